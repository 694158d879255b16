"""Addresses of cameras: what they are, and that their credentials stay hidden."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, dataclass
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from streams.url import SourceKind, SourceUrl


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("rtsp://10.0.0.7/live", SourceKind.RTSP, ""),
        ("RTSPS://10.0.0.7:322/live", SourceKind.RTSP, ""),
        ("http://cam/video.mjpg", SourceKind.HTTP, ""),
        ("https://joe:pw@cam/live.m3u8?channel=2", SourceKind.HTTP, ""),
        ("/videos/yard one.mp4", SourceKind.FILE, "/videos/yard one.mp4"),
        ("clips/yard.mp4", SourceKind.FILE, "clips/yard.mp4"),
        ("../yard:2.mp4", SourceKind.FILE, "../yard:2.mp4"),
        ("file:clips/yard.mp4", SourceKind.FILE, "clips/yard.mp4"),
        ("file:///videos/yard.mp4", SourceKind.FILE, "/videos/yard.mp4"),
        ("/dev/video0", SourceKind.V4L2, "/dev/video0"),
        ("v4l2:/dev/video12", SourceKind.V4L2, "/dev/video12"),
    ],
)
def test_kind_and_path(text: str, kind: SourceKind, path: str) -> None:
    url = SourceUrl(text)
    assert url.kind is kind
    assert url.path == path
    assert url.reveal() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rtsp://",
        "rtsp:///live",
        "ftp://cam/live",
        "concat:a.mp4",
        "rtsp://cam:port/live",
        "rtsp://joe:QZ can@cam/live",
        "rtsp://joe:QZ/can@cam/live",
        "rtsp://joe:QZ?can@cam/live",
        "rtsp://joe:QZ#can@cam/live",
        'rtsp://joe:QZ"can@cam/live',
        "rtsp://joe:QZ\x00can@cam/live",
    ],
)
def test_unreadable_addresses_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceUrl(text)
    assert "QZ" not in str(caught.value)
    assert caught.value.remedy


@given(user=st.text(min_size=1, max_size=8), password=st.text(max_size=12).map(lambda text: f"QZ{text}ZQ"))
def test_credentials_appear_only_when_revealed(user: str, password: str) -> None:
    text = f"rtsp://{quote(user, safe='')}:{quote(password, safe='')}@cam7.example:8554/live"
    url = SourceUrl(text)
    for shown in (str(url), repr(url), f"{url}", f"{url!r:>9}", "%s" % url, repr([url]), repr(copy.copy(url))):  # noqa: UP031
        assert "QZ" not in shown
        assert "***@cam7.example:8554/live" in shown
    assert url.reveal() == text


def test_a_record_spelled_out_does_not_spell_out_the_credentials() -> None:
    @dataclass
    class Settings:
        url: SourceUrl

    assert "QZ" not in repr(asdict(Settings(SourceUrl("rtsp://joe:QZcanary@cam/live"))))


def test_it_is_never_pickled() -> None:
    with pytest.raises(TypeError, match="password"):
        pickle.dumps(SourceUrl("rtsp://joe:pw@cam/live"))


def test_equal_addresses_are_equal() -> None:
    assert SourceUrl("rtsp://cam/live") == SourceUrl("rtsp://cam/live")
    assert len({SourceUrl("rtsp://cam/live"), SourceUrl("rtsp://cam/live")}) == 1
