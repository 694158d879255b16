"""What a viewer says over RTSP, and what it understands: descriptions as cameras send them, passwords as the standards show them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import rtsp_words
from streams.depacketise import START, Unsuited
from streams.rtsp_words import Server, address_of, request, take_answer, timeout_s, track_of

OK = b"RTSP/1.0 200 OK\r\nCSeq: 3\r\nPublic: OPTIONS, DESCRIBE\r\nContent-Length: 5\r\n\r\nhello"


def test_a_request() -> None:
    said = request("SETUP", "rtsp://cam/live/track1", 4, [("Transport", "RTP/AVP/TCP")])
    assert said.decode().split("\r\n") == [
        "SETUP rtsp://cam/live/track1 RTSP/1.0", "CSeq: 4", "User-Agent: driftbox", "Transport: RTP/AVP/TCP", "", "",
    ]  # fmt: skip


def test_an_answer_and_where_it_ends() -> None:
    found = take_answer(b"xy" + OK + b"$rest", 2)
    assert found is not None
    answer, end = found
    assert (answer.status, answer.header("cseq"), answer.header("public"), answer.body) == (
        200,
        "3",
        "OPTIONS, DESCRIBE",
        b"hello",
    )
    assert end == 2 + len(OK)
    assert answer.header("session") == ""


def test_an_answer_in_pieces_is_waited_for() -> None:
    assert [take_answer(OK[:size]) for size in range(len(OK))] == [None] * len(OK)


def test_what_the_server_asks_is_no_answer() -> None:
    asked = b"SET_PARAMETER rtsp://cam/ RTSP/1.0\r\nCSeq: 1\r\n\r\n"
    assert all(take_answer(asked[:size]) is None for size in range(len(asked)))
    found = take_answer(asked)
    assert found is not None
    assert (found[0].status, found[1]) == (0, len(asked))


@pytest.mark.parametrize(
    "data",
    [
        b"220 mail.example ESMTP ready\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x16\x03\x01\x00", b"RTSP/1.0 fine\r\n\r\n",
        b"RTSP/1.0\r\n\r\n", b"RTSP/1.0 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"RTSP/1.0 200 OK\r\nContent-Length: -5\r\n\r\n", b"RTSP/1.0 200 OK\r\nX: " + b"x" * rtsp_words.ANSWER_BYTES,
    ],
)  # fmt: skip
def test_another_language(data: bytes) -> None:
    with pytest.raises(Unsuited):
        take_answer(data)


@given(st.binary(max_size=200))
def test_rubbish_is_unsuited_or_incomplete(data: bytes) -> None:
    for text in (data, b"RTSP/1.0 200 OK\r\n" + data + b"\r\n\r\n"):
        try:
            found = take_answer(text)
        except Unsuited:
            continue
        assert found is None or 0 < found[1] <= len(text)


# --- descriptions -----------------------------------------------------------------------------------------------------

SPS, PPS = bytes([0x67, 0x42, 0xC0, 0x16]), bytes([0x68, 0xCE, 0x3C])
SETS = ",".join(base64.b64encode(nal).decode() for nal in (SPS, PPS))

TWO_TRACKS = f"""v=0
o=- 1001 1 IN IP4 192.0.2.10
s=VCP IPC Realtime stream
m=audio 0 RTP/AVP 8
a=control:rtsp://192.0.2.10/media/video1/audio
a=rtpmap:8 PCMA/8000
m=video 0 RTP/AVP 105
c=IN IP4 192.0.2.10
a=control:rtsp://192.0.2.10/media/video1/video
a=rtpmap:105 H264/90000
a=fmtp:105 profile-level-id=64001F; packetization-mode=1; sprop-parameter-sets={SETS}
a=recvonly
m=application 0 RTP/AVP 107
a=control:rtsp://192.0.2.10/media/video1/metadata
a=rtpmap:107 vnd.onvif.metadata/90000
"""
H265 = """v=0
a=control:*
m=video 0 RTP/AVP 96
a=rtpmap:96 H265/90000
a=fmtp:96 sprop-vps=QAE=;sprop-sps=QgE=;sprop-pps=RAE=
a=control:trackID=0
"""


def test_the_video_among_other_tracks() -> None:
    for text in (TWO_TRACKS, TWO_TRACKS.replace("\n", "\r\n")):
        track = track_of(text)
        assert (track.codec, track.payload_type) == ("h264", 105)
        assert (track.control, track.session_control) == ("rtsp://192.0.2.10/media/video1/video", "")
        assert track.parameters == START + SPS + START + PPS


def test_h265() -> None:
    track = track_of(H265)
    assert (track.codec, track.payload_type, track.control, track.session_control) == ("hevc", 96, "trackID=0", "*")
    assert track.parameters == START + b"\x40\x01" + START + b"\x42\x01" + START + b"\x44\x01"


def test_parameter_sets_that_cannot_be_read_are_left_out() -> None:
    assert track_of(TWO_TRACKS.replace(SETS, "Z0*!")).parameters == b""
    assert track_of(TWO_TRACKS.replace("sprop-parameter-sets=", "x=")).parameters == b""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no video"),
        (TWO_TRACKS.replace("m=video", "m=text"), "no video"),
        (TWO_TRACKS.replace("H264", "JPEG"), "neither"),
        ("m=video 0 RTP/AVP 26\n", "neither"),
        ("m=video 0\n", "plain"),
        (TWO_TRACKS.replace("m=video 0 RTP/AVP", "m=video 0 RTP/SAVP"), "plain"),
        (TWO_TRACKS.replace("packetization-mode=1", "packetization-mode=2"), "interleaved"),
        (H265.replace("sprop-vps", "sprop-max-don-diff=3;sprop-vps"), "interleaved"),
        (TWO_TRACKS.replace("H264/90000", "H264/48000"), "neither"),
    ],
)
def test_what_is_left_to_ffmpeg(text: str, why: str) -> None:
    with pytest.raises(Unsuited, match=why):
        track_of(text)


@pytest.mark.parametrize(
    ("base", "control", "address"),
    [
        ("rtsp://cam/live", "track0", "rtsp://cam/live/track0"),
        ("rtsp://cam/live/", "track0", "rtsp://cam/live/track0"),
        ("rtsp://cam/live?channel=1", "trackID=0", "rtsp://cam/live?channel=1/trackID=0"),
        ("rtsp://cam/live", "rtsp://cam/other", "rtsp://cam/other"),
        ("rtsp://cam/live", "*", "rtsp://cam/live"),
        ("rtsp://cam/live", "", "rtsp://cam/live"),
    ],
)
def test_addresses_of_tracks(base: str, control: str, address: str) -> None:
    assert address_of(base, control) == address


def test_how_long_a_session_lives() -> None:
    assert [timeout_s(text) for text in ("ab12;timeout=30", "ab12; timeout=8", "ab12", "ab12;timeout=0", "")] == [
        30,
        8,
        60,
        60,
        60,
    ]


# --- passwords --------------------------------------------------------------------------------------------------------


def test_addresses_hold_no_credentials() -> None:
    server = Server.of("rtsp://jo%40e:p%2Fw@[2001:db8::7]:8554/a%20b?channel=1&sub=0")
    assert (server.host, server.port, server.user, server.password) == ("2001:db8::7", 8554, "jo@e", "p/w")
    assert server.url == "rtsp://[2001:db8::7]:8554/a%20b?channel=1&sub=0"
    assert Server.of("rtsp://cam").url == "rtsp://cam/"
    assert Server.of("rtsp://cam/x").port == 554
    assert "p/w" not in repr(server)


def header_of(server: Server, method: str, url: str) -> str:
    ((name, value),) = server.authorization(method, url)
    assert name == "Authorization"
    return value


def test_digest_as_the_rfc_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtsp_words.secrets, "token_hex", lambda size: "0a4f113b")
    server = Server(host="h", port=1, url="", user="Mufasa", password="Circle Of Life")
    nonce, opaque = "dcd98b7102dd2f0e8b11d0f600bfb0c093", "5ccc069c403ebaf9f0171e9517f40e41"
    assert server.challenged([f'Digest realm="testrealm@host.com", qop="auth,auth-int", nonce="{nonce}", opaque="{opaque}"'])
    said = header_of(server, "GET", "/dir/index.html")
    assert 'response="6629fae49393a05397450978507c4ef1"' in said
    assert f'opaque="{opaque}"' in said
    assert "nc=00000001" in said
    assert "nc=00000002" in header_of(server, "GET", "/dir/index.html")


def test_digest_with_sha_256_as_the_rfc_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cnonce = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
    monkeypatch.setattr(rtsp_words.secrets, "token_hex", lambda size: cnonce)
    server = Server(host="h", port=1, url="", user="Mufasa", password="Circle of Life")
    nonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v"
    assert server.challenged(
        [f'Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm=SHA-256, nonce="{nonce}"']
    )
    said = header_of(server, "GET", "/dir/index.html")
    assert 'response="753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"' in said


def test_basic_only_where_digest_is_not_offered() -> None:
    server = Server(host="h", port=1, url="", user="joe", password="secret")
    assert server.authorization("PLAY", "x") == ()
    assert server.challenged(['Basic realm="cam"', 'Digest realm="cam", nonce="1"'])
    assert header_of(server, "PLAY", "x").startswith("Digest ")
    other = Server(host="h", port=1, url="", user="joe", password="secret")
    assert other.challenged(['Digest realm="cam", nonce="1", algorithm=SHA-512-256', 'Basic realm="cam"'])
    assert header_of(other, "PLAY", "x") == "Basic am9lOnNlY3JldA=="


def test_a_password_is_tried_once() -> None:
    server = Server(host="h", port=1, url="", user="joe", password="wrong")
    assert server.challenged(['Digest realm="cam", nonce="1"'])
    assert not server.challenged(['Digest realm="cam", nonce="2"']), "cameras lock accounts"
    stale = Server(host="h", port=1, url="", user="joe", password="right")
    assert stale.challenged(['Digest realm="cam", nonce="1"'])
    assert stale.challenged(['Digest realm="cam", nonce="2", stale=true']), "only the nonce was too old"
    nobody = Server(host="h", port=1, url="", user="", password="")
    assert not nobody.challenged(['Digest realm="cam", nonce="1"'])
    assert not Server(host="h", port=1, url="", user="joe", password="x").challenged(["NTLM"])
