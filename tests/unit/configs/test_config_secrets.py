"""Secrets are references, resolved late; no way of showing a configuration shows one."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import EnvironmentLacking
from configs.load import parse_config
from configs.schema import BoxConfig, CameraUrl, Secret

CANARY = "c4n4ry-s3cret"


def config_with_secrets() -> BoxConfig:
    return parse_config(
        f"""
cameras:
  - {{id: a, url: "rtsp://viewer:{CANARY}@192.0.2.1/stream"}}
  - {{id: b, url: "rtsp://viewer:{CANARY}@x/y@192.0.2.2/stream"}}
  - {{id: c, url: "http://192.0.2.3/video?user=viewer&password={CANARY}"}}
telemetry: {{mqtt: {{username: box, password: {CANARY}}}}}
"""
    )


def test_a_canary_shows_nowhere() -> None:
    config = config_with_secrets()
    shown = [
        repr(config),
        str(config),
        config.model_dump_json(),
        json.dumps(config.model_dump(mode="json")),
        repr(config.model_dump()),
        "\n".join(f"{camera.url} {camera.url!r} {camera.url:>3}" for camera in config.cameras),
        f"{config.telemetry.mqtt.password}",
    ]
    assert not [text for text in shown if CANARY in text]
    assert "192.0.2.1/stream" in shown[0]


def test_a_literal_is_given_out_on_request() -> None:
    config = config_with_secrets()
    assert config.cameras[0].url.resolve() == f"rtsp://viewer:{CANARY}@192.0.2.1/stream"
    assert config.telemetry.mqtt.password is not None
    assert config.telemetry.mqtt.password.resolve() == CANARY


def test_a_reference_is_resolved_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAM_PW", raising=False)
    url = CameraUrl("rtsp://u:${env:CAM_PW}@h/x")
    with pytest.raises(EnvironmentLacking, match="CAM_PW"):
        url.resolve()
    monkeypatch.setenv("CAM_PW", "a@b/c?d:e")
    assert url.resolve() == "rtsp://u:a%40b%2Fc%3Fd%3Ae@h/x"
    assert str(url) == "rtsp://***@h/x"
    assert url.references() == ("env:CAM_PW",)


def test_a_secret_from_a_file_loses_its_last_line_break_only(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text(" pass word \n")
    secret = Secret(f"file:{tmp_path}/pw")
    assert secret.resolve() == " pass word "
    assert str(secret) == f"file:{tmp_path}/pw"
    with pytest.raises(EnvironmentLacking, match="cannot be read"):
        Secret(f"file:{tmp_path}/none").resolve()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(EnvironmentLacking, match="UTF-8"):
        Secret(f"file:{tmp_path}/binary").resolve()


def test_copies_are_equal_and_frozen() -> None:
    secret, url = Secret(CANARY), CameraUrl(f"rtsp://u:{CANARY}@h")
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert copy.deepcopy(url) == url
    assert len({secret, Secret(CANARY), url}) == 2
    assert Secret(CANARY) != CameraUrl(CANARY)
    with pytest.raises(AttributeError):
        secret._text = "x"


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("rtsp://h/x", "rtsp"),
        ("RTSPS://h/x", "rtsps"),
        ("/dev/video0", "v4l2"),
        ("clips/a.mp4", "file"),
        ("file:///clips/a.mp4", "file"),
        ("rendered:street?seed=1", "rendered"),
        ("rendered://yard", "rendered"),
        ("http://h:8080/mjpeg", "http"),
    ],
)
def test_the_kind_of_an_address(url: str, scheme: str) -> None:
    assert CameraUrl(url).scheme == scheme


@pytest.mark.parametrize("url", ["rtsp://[2001:db8::1]:554/x", "rtsp://u:p@[2001:db8::1]/x", "rtsp://u:${env:A}@h:554/x?y=1#z"])
def test_addresses_that_are_fine(url: str) -> None:
    assert parse_config(f"cameras: [{{id: a, url: '{url}'}}]").cameras[0].url.scheme == "rtsp"


@given(st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["C", "Z"]), min_size=1))
def test_no_password_shows_whatever_its_letters(password: str) -> None:
    assert str(CameraUrl(f"rtsp://viewer:{password}Q{CANARY}@host/stream")).count(CANARY) == 0
