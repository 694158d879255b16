"""ONVIF over loopback: a camera that answers as real ones do, and strangers that do not."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest

from configs.errors import JobError, UsageError
from edge.cameras import onvif
from edge.cameras.onvif import Onvif, host_and_port
from tests.support.onvif_camera import PASSWORD, USER, OnvifCamera

BOMB = (
    '<?xml version="1.0"?><!DOCTYPE z [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {n} "{f"&{p};" * 10}">' for p, n in zip("abcdefghi", "bcdefghij", strict=True))
    + "]><z>&j;</z>"
).encode()
READS_FILE = b'<?xml version="1.0"?><!DOCTYPE z [<!ENTITY x SYSTEM "file:///etc/passwd">]><z>&x;</z>'


@pytest.fixture(autouse=True)
def a_slow_start_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is full of other tests, the process that asks may need longer to be there than any camera to answer."""
    monkeypatch.setattr(onvif, "START_S", 120.0)


def test_a_camera_tells_its_streams_and_roles_are_proposed() -> None:
    with OnvifCamera() as camera:
        told = Onvif().probe(camera.address, user=USER, password=PASSWORD)
        assert (told.ok, told.analyse, told.record) == (True, "sub", "main")
        assert (told.manufacturer, told.model) == ("Acme <b>", "Dome 3")
        sub = next(profile for profile in told.profiles if profile.token == "sub")
        assert (sub.url, sub.width_px, sub.height_px, sub.fps, sub.codec) == ("rtsp://127.0.0.1:554/sub", 640, 360, 15, "H264")
        assert not any(PASSWORD in text for text in camera.received), "the password travels only as a digest"


def test_a_camera_is_found_by_its_announcement() -> None:
    with OnvifCamera() as camera:
        # Whoever does not answer within these seconds is not found: on a busy machine a person would press the button again.
        looks = (Onvif().discover(seconds=3.0, address=f"127.0.0.1:{camera.udp_port}") for _ in range(10))
        [found] = next(found for found in looks if found)
        assert (found.address, found.name, found.hardware, found.location) == (camera.address, "Dome 3", "D3", "yard")


def test_announcements_of_strangers_are_judged() -> None:
    cameras = [
        {"address": "http://192.0.2.7/x", "name": "<b>\n", "hardware": 7},
        {"address": "http://192.0.2.7:80/again"},
        {"address": "http://239.1.2.3/x"},
        {"address": "ftp://192.0.2.9/"},
        {},
        "no camera",
    ]
    [found] = Onvif(lambda asked, within_s: {"cameras": cameras}).discover(seconds=1.0)
    assert (found.address, found.name, found.hardware) == ("192.0.2.7:80", "<b>", "")
    with pytest.raises(JobError):
        Onvif(lambda asked, within_s: {"code": "failed", "error": "no network"}).discover(seconds=1.0)
    with pytest.raises(UsageError):
        Onvif().discover(seconds=60.0)


@pytest.mark.parametrize(
    "answer", [b"", b"\xff\xfe\x00", b"<a><b></a>", BOMB[:60000], READS_FILE], ids=["empty", "bytes", "open", "bomb", "file"]
)
def test_nonsense_for_an_announcement_finds_nobody(answer: bytes) -> None:
    with OnvifCamera() as camera:
        camera.matches = lambda relates_to: answer
        assert Onvif().discover(seconds=1.0, address=f"127.0.0.1:{camera.udp_port}") == ()


def test_a_wrong_password_is_one_and_is_told_to_nobody() -> None:
    with OnvifCamera() as camera:
        told = Onvif().probe(camera.address, user="wrong-user", password=PASSWORD)
    assert (told.ok, told.code) == (False, "auth")
    assert PASSWORD not in repr(told)


ALWAYS: list[tuple[str, Callable[[str, str], str | bytes], set[str]]] = [
    ("a bomb of entities", lambda operation, body: BOMB, {"malformed", "failed"}),
    ("a file of ours", lambda operation, body: READS_FILE, {"malformed", "failed"}),
    ("nothing", lambda operation, body: b"", {"malformed", "failed"}),
    ("html", lambda operation, body: b"<html><body>login</body></html>", {"malformed", "failed"}),
    ("profiles that are none", lambda operation, body: "<x/>" if operation == "GetProfiles" else body, {"malformed", "failed"}),
    (
        "no profiles",
        lambda op, body: "<trt:GetProfilesResponse></trt:GetProfilesResponse>" if op == "GetProfiles" else body,
        {"malformed"},
    ),
]


@pytest.mark.parametrize(("answer", "codes"), [(a, c) for _, a, c in ALWAYS], ids=[name for name, _, _ in ALWAYS])
def test_what_is_no_onvif_is_said_to_be_none(answer: Callable[[str, str], str | bytes], codes: set[str]) -> None:
    with OnvifCamera(answer) as camera:
        told = Onvif().probe(camera.address, user=USER, password=PASSWORD)
    assert not told.ok
    assert told.code in codes
    assert told.error
    assert "root:" not in repr(told)


def test_a_flood_costs_the_box_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is read elsewhere, and that ends when its memory or time does."""
    monkeypatch.setattr(onvif, "PROBE_S", 2.0)
    monkeypatch.setattr(onvif, "START_S", 6.0)
    flood = b"<a>" * 20_000_000

    def slow(operation: str, body: str) -> bytes:
        time.sleep(0.5)
        return flood

    before = psutil.Process().memory_info().rss
    with OnvifCamera(slow) as camera:
        told = Onvif().probe(camera.address, user=USER, password=PASSWORD)
    assert not told.ok
    assert psutil.Process().memory_info().rss - before < 300 * 2**20
    assert not [child for child in psutil.Process().children() if "onvif_child" in " ".join(child.cmdline())]


def test_addresses_of_other_machines_are_not_followed() -> None:
    """A camera behind a router names its inner address, and a hostile one somebody else's."""
    with OnvifCamera(host="203.0.113.66") as camera:
        told = Onvif().probe(camera.address, user=USER, password=PASSWORD)
        assert told.ok
        assert {profile.url for profile in told.profiles} == {
            f"rtsp://127.0.0.1:554/{token}" for token in ("main", "sub", "tiny")
        }
        assert any("203.0.113.66" in note for note in told.notes)
        assert "GetProfiles" in camera.asked, "its services are asked where it was found"


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "rtsp://",
        "rtsp://h/${env:HOME}",
        "rtsp://h/'\"><b>",
        "http://[::1",
        "x" * 5000,
    ],
)
def test_streams_that_are_none_are_left_out(uri: str) -> None:
    profiles = [{"token": "main", "width_px": 640, "height_px": 360, "url": uri}]
    told = Onvif(lambda asked, within_s: {"profiles": profiles}).probe("192.0.2.1", user="", password="")
    assert not told.ok
    assert {profile.url for profile in told.profiles} == {""}


def test_a_password_in_a_stream_address_is_not_shown() -> None:
    profiles = [{"token": "main", "url": "rtsp://me:c4nary@192.0.2.1/s?user=a&password=c4nary"}]
    told = Onvif(lambda asked, within_s: {"profiles": profiles}).probe("192.0.2.1", user="", password="")
    assert told.profiles[0].url == "rtsp://192.0.2.1/s?user=***&password=***"
    assert "c4nary" not in repr(told)


def test_nobody_there_and_no_address() -> None:
    assert Onvif().probe("127.0.0.1:1", user="", password="").code == "network"
    for address in ("", "a b", "http://", "ftp://x/", "u:p@", "[::1", "h" * 300):
        with pytest.raises(UsageError):
            Onvif().probe(address, user="", password="")


def test_one_question_at_a_time() -> None:
    waits: list[JobError] = []

    def ask(asked: object, within_s: float) -> dict[str, object]:
        with pytest.raises(JobError) as refused:
            eyes.discover(seconds=1.0)
        waits.append(refused.value)
        return {"cameras": []}

    eyes = Onvif(ask)
    eyes.discover(seconds=1.0)
    assert [error.code for error in waits] == ["busy"]


@pytest.mark.parametrize(
    "told", [{}, {"profiles": "x"}, {"profiles": [1, None]}, {"profiles": [{"token": 7, "url": 9, "fps": float("inf")}]}]
)
def test_an_answer_of_another_shape_is_no_camera(told: dict[str, object]) -> None:
    assert not Onvif(lambda asked, within_s: told).probe("192.0.2.1", user="", password="").ok


def test_addresses() -> None:
    assert host_and_port("192.0.2.1", 80) == ("192.0.2.1", 80)
    assert host_and_port("cam.local:8000", 80) == ("cam.local", 8000)
    assert host_and_port("[::1]:81", 80) == ("::1", 81)
    assert host_and_port("https://cam/onvif/device_service", 80) == ("cam", 443)
