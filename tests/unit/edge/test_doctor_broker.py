"""What `driftbox doctor` says of the broker: reached or not, its certificate and ours, a password in clear text, the box's own one."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from configs.schema import BoxConfig
from edge import doctor
from edge.doctor import Finding, Level
from edge.telemetry import connection
from tests.support.authority import DAY, Authority


def finding(**mqtt: Any) -> Finding:
    config = BoxConfig.model_validate(
        {"telemetry": {"mqtt": {"enabled": True, **mqtt}}, "web": {"enabled": False}}, strict=False
    )
    return doctor.guarded("broker", doctor.check_broker, config)


@pytest.fixture
def accepting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that takes everybody."""
    monkeypatch.setattr(connection, "probe", lambda mqtt, *, timeout_s=5.0: None)


def test_nobody_there_is_bad_and_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = finding(port=port)
    assert (found.level, found.exit_code) == (Level.BAD, 3)
    assert "Connection refused" in found.text
    assert "telemetry.mqtt.host" in found.remedy


@pytest.mark.usefixtures("accepting")
def test_a_password_in_clear_text_is_worth_a_warning_beyond_this_machine() -> None:
    words = {"username": "box", "password": "env:X"}
    assert finding(host="192.0.2.7", **words).level is Level.WARN
    assert finding(host="192.0.2.7", tls=True, **words).level is Level.OK
    assert finding(host="127.0.0.1", **words).level is Level.OK


@pytest.mark.usefixtures("accepting")
@pytest.mark.parametrize(
    ("left", "level", "words"),
    [(-DAY, Level.BAD, "has expired"), (10 * DAY, Level.WARN, "expires"), (90 * DAY, Level.OK, "TLS")],
)
def test_the_boxs_certificate(tmp_path: Path, left: timedelta, level: Level, words: str) -> None:
    pair = Authority(tmp_path).issue("box", left=left)
    found = finding(tls=True, cert_file=str(pair.cert), key_file=str(pair.key))
    assert found.level is level
    assert words in found.text


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "rubbish.pem").write_text("no certificate")
    found = finding(tls=True, cert_file=str(tmp_path / "rubbish.pem"), key_file=str(tmp_path / "rubbish.pem"))
    assert found.level is Level.BAD
    assert "rubbish.pem" in found.text


def test_the_boxs_own_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = finding(broker="embedded", port=port)
        assert found.level is Level.BAD
        assert "telemetry.mqtt.port" in found.remedy
    assert finding(broker="embedded", port=port).level is Level.OK
    monkeypatch.delenv("NOBODY_SET_THIS", raising=False)
    users = [{"name": "ha", "password": "env:NOBODY_SET_THIS"}]
    assert "NOBODY_SET_THIS" in finding(broker="embedded", port=port, embedded={"users": users}).text
    old = Authority(tmp_path).issue("127.0.0.1", left=-DAY)
    expired = finding(broker="embedded", port=port, embedded={"cert_file": str(old.cert), "key_file": str(old.key)})
    assert (expired.level, "has expired" in expired.text) == (Level.BAD, True)
