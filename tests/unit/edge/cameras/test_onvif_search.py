"""What is taken for the announcement of a camera, by the book or not, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cameras.onvif_search import announced
from tests.support.onvif_camera import match_of

PLACE = "http://192.0.2.7:8000/onvif/device_service"
#: As a virtual camera on PyPI answers (ipycam 1.3.0): another action, no list around the match, its address in another namespace.
SLOPPY = f"""<?xml version="1.0" encoding="UTF-8"?>
<soap:Envelope xmlns:soap="http://www.w3.org/2003/05/soap-envelope" xmlns:wsa="http://schemas.xmlsoap.org/ws/2004/08/addressing"
  xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery" xmlns:dn="http://www.onvif.org/ver10/network/wsdl">
  <soap:Header><wsa:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/ProbeMatch</wsa:Action></soap:Header>
  <soap:Body><d:ProbeMatch>
    <d:EndpointReference><wsa:Address>urn:uuid:1</wsa:Address></d:EndpointReference>
    <d:Types>dn:NetworkVideoTransmitter tds:Device</d:Types>
    <d:Scopes>onvif://www.onvif.org/type/video_encoder onvif://www.onvif.org/name/Dome onvif://[ onvif://www.onvif.org/name/Other</d:Scopes>
    <d:XAddrs>{PLACE} http://[fe80::1]/onvif/device_service</d:XAddrs>
  </d:ProbeMatch></soap:Body></soap:Envelope>"""


def test_a_camera_by_the_book() -> None:
    [found] = announced(match_of("urn:uuid:1", PLACE))
    assert found == {"address": PLACE, "name": "Dome 3", "hardware": "D3", "location": "yard"}


def test_a_camera_that_answers_in_its_own_way() -> None:
    assert announced(SLOPPY.encode()) == [{"address": PLACE, "name": "Dome"}]


def test_several_in_one_answer() -> None:
    two = match_of("urn:uuid:1", PLACE).replace(
        b"</d:ProbeMatches>", b"<d:ProbeMatch><d:XAddrs>https://h/</d:XAddrs></d:ProbeMatch></d:ProbeMatches>"
    )
    assert [camera["address"] for camera in announced(two)] == [PLACE, "https://h/"]


@pytest.mark.parametrize(
    "other",
    [
        SLOPPY.replace("dn:NetworkVideoTransmitter", "wsdp:Printer"),
        SLOPPY.replace(PLACE, "ftp://192.0.2.7/").replace("http://[", "//["),
        SLOPPY.replace("ProbeMatch>", "Hello>"), "", "<a>", "\x00", "<a/>",
    ],
    ids=["a printer", "no web address", "a greeting", "nothing", "half", "bytes", "another message"],
)  # fmt: skip
def test_who_is_no_camera(other: str) -> None:
    assert announced(other.encode()) == []


BOMB = "".join(f'<!ENTITY {n} "{f"&{p};" * 10}">' for p, n in zip("abcdefghi", "bcdefghij", strict=True))


@pytest.mark.parametrize(
    ("declared", "used"),
    [
        ('<!ENTITY a "aaaaaaaaaa">', "&a;"),
        (f'<!ENTITY a "aaaaaaaaaa">{BOMB}', "&j;"),
        ('<!ENTITY x SYSTEM "file:///etc/passwd">', "&x;"),
    ],
    ids=["one", "a bomb", "a file"],
)
def test_entities_are_neither_expanded_nor_loaded(declared: str, used: str) -> None:
    hostile = SLOPPY.replace("?>", f"?><!DOCTYPE z [{declared}]>", 1).replace("name/Dome", f"name/Dome{used}")
    told = repr(announced(hostile.encode()))
    assert "aaaa" not in told
    assert "root" not in told


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_announce_cameras_or_none(data: bytes) -> None:
    assert announced(data) == []
