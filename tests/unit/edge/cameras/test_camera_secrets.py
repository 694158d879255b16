"""Credentials leave an address for files, and come back only where the camera is opened."""

from __future__ import annotations

import stat
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.schema import CameraUrl
from edge.cameras.secrets import SecretFiles, is_same, names_in, same_place, split, with_credentials_of


def opened(text: str, folder: Path, prefix: str = "gate-1") -> str:
    """An address as the camera code gets it, after its credentials were taken out and kept."""
    found, files = split(text, prefix), SecretFiles(folder)
    files.keep(found.values)
    return str(CameraUrl(files.reference(found.text)).resolve())


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("rtsp://box:pw@192.0.2.1:554/s?x=1", "rtsp://${secret:g-user}:${secret:g-password}@192.0.2.1:554/s?x=1"),
        ("rtsp://box@192.0.2.1/s", "rtsp://${secret:g-user}@192.0.2.1/s"),
        ("rtsp://:pw@192.0.2.1/s", "rtsp://:${secret:g-password}@192.0.2.1/s"),
        ("http://192.0.2.1/v?user=a&pwd=b&ch=1", "http://192.0.2.1/v?user=${secret:g-query0}&pwd=${secret:g-query1}&ch=1"),
        ("rtsp://192.0.2.1/s", "rtsp://192.0.2.1/s"),
        ("rendered:street?seed=3", "rendered:street?seed=3"),
    ],
)
def test_what_is_kept_of_an_address(typed: str, shown: str) -> None:
    assert split(typed, "g").text == shown


@pytest.mark.parametrize("typed", ["rtsp://a:b/c@d?e#f@192.0.2.1/s", "rtsp://a:b@@192.0.2.1/s", "rtsp://a:%2F%40@192.0.2.1/s"])
def test_passwords_that_nobody_quoted_are_found(tmp_path: Path, typed: str) -> None:
    parts = urlsplit(opened(typed, tmp_path))
    assert (parts.hostname, parts.path, parts.username) == ("192.0.2.1", "/s", "a")
    assert "/" not in (parts.password or "")


@given(user=st.text(min_size=1, max_size=30), password=st.text(min_size=1, max_size=60))
def test_any_password_arrives_as_it_was_typed(tmp_path_factory: pytest.TempPathFactory, user: str, password: str) -> None:
    lines = "\r\n\ud800"
    if (
        any(c in user + password for c in lines)
        or any("\ud800" <= c <= "\udfff" for c in user + password)
        or "***" in (user, password)
    ):
        return
    typed = f"rtsp://{quote(user, safe='')}:{quote(password, safe='')}@192.0.2.1/s"
    assert opened(typed, tmp_path_factory.mktemp("data")) == typed


def test_files_are_for_the_box_alone_and_are_written_once(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path)
    files.keep({"gate-1-password": "pw"})
    path = tmp_path / "secrets" / "gate-1-password"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(Exception, match="exist"):
        files.keep({"gate-1-password": "other"})
    assert path.read_text() == "pw\n"


def test_what_nobody_names_is_removed(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path)
    files.keep({"a-password": "1", "b-password": "2"})
    assert files.remove_unnamed({"a-password"}) == ["b-password"]
    assert [p.name for p in files.folder.iterdir()] == ["a-password"]
    assert SecretFiles(tmp_path / "none").remove_unnamed(set()) == []


def test_the_data_folder_may_be_moved(tmp_path: Path) -> None:
    found = split("rtsp://a:b@192.0.2.1/s", "g")
    old, new = tmp_path / "old", tmp_path / "new"
    SecretFiles(old).keep(found.values)
    old.rename(new)
    assert CameraUrl(SecretFiles(new).reference(found.text)).resolve() == "rtsp://a:b@192.0.2.1/s"


@pytest.mark.parametrize(
    "typed",
    [
        "rtsp://a:${file:/etc/shadow}@evil.example/s", "rtsp://a:${env:HOME}@evil.example/s", "rtsp://x/${secret:other-password}",
        "rtsp://a:***@192.0.2.1/s", "http://192.0.2.1/v?pwd=***",
    ],
)  # fmt: skip
def test_references_and_stars_are_no_passwords(typed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        split(typed, "g")
    assert "shadow" not in str(refused.value)


def test_known_passwords_go_only_to_the_same_place() -> None:
    known = "rtsp://${secret:g-user}:${secret:g-password}@192.0.2.1:554/main"
    assert is_same("rtsp://***@192.0.2.1:554/sub")
    assert is_same("rtsp://***:***@192.0.2.1:554/sub")
    assert not is_same("rtsp://***x@192.0.2.1/sub")
    assert same_place("rtsp://***@192.0.2.1:554/sub", known)
    for other in (
        "rtsp://***@192.0.2.2:554/sub",
        "rtsp://***@192.0.2.1:555/sub",
        "rtsps://***@192.0.2.1:554/sub",
        "http://***@192.0.2.1:554/x",
    ):
        assert not same_place(other, known)
    kept = with_credentials_of("rtsp://***@192.0.2.1:554/sub", known)
    assert kept == "rtsp://${secret:g-user}:${secret:g-password}@192.0.2.1:554/sub"
    assert names_in(kept) == ["g-user", "g-password"]
