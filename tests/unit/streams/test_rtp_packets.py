"""RTP packets of H.264 and H.265: taken apart again as RFC 6184 and RFC 7798 say, they give the units that went in."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import rtp
from streams.encode import AnnexBEncoder


def unpack(packet: bytes) -> tuple[int, int, int, bool, bytes]:
    """(sequence number, timestamp, ssrc, marker, payload)"""
    first, second, seq, timestamp, ssrc = struct.unpack(">BBHII", packet[:12])
    assert first == 0x80
    assert second & 0x7F == 96
    return seq, timestamp, ssrc, bool(second & 0x80), packet[12:]


def join_h264(payloads: list[bytes]) -> list[bytes]:
    """RFC 6184 section 5.6 and 5.8 read backwards."""
    units: list[bytes] = []
    for payload in payloads:
        if payload[0] & 0x1F != 28:
            units.append(payload)
        elif payload[1] & 0x80:
            units.append(bytes([(payload[0] & 0xE0) | (payload[1] & 0x1F)]) + payload[2:])
        else:
            units[-1] += payload[2:]
    return units


def join_hevc(payloads: list[bytes]) -> list[bytes]:
    """RFC 7798 section 4.4.1 and 4.4.3 read backwards."""
    units: list[bytes] = []
    for payload in payloads:
        if (payload[0] >> 1) & 0x3F != 49:
            units.append(payload)
        elif payload[2] & 0x80:
            units.append(bytes([(payload[0] & 0x81) | ((payload[2] & 0x3F) << 1), payload[1]]) + payload[3:])
        else:
            units[-1] += payload[3:]
    return units


# A unit's body: no start code inside and no zero at its end, as the standards demand.
bodies = st.binary(max_size=4000).map(lambda body: body.replace(b"\x00", b"\x11") + b"\x80")
h264_units = st.builds(lambda kind, body: bytes([0x60 | kind]) + body, st.integers(1, 23), bodies)
hevc_units = st.builds(lambda kind, body: bytes([kind << 1, 1]) + body, st.integers(0, 40), bodies)
start_codes = st.sampled_from([b"\x00\x00\x01", b"\x00\x00\x00\x01"])


@given(
    units=st.lists(st.tuples(start_codes, h264_units), min_size=1, max_size=5),
    seq=st.integers(0, 0xFFFF),
    timestamp=st.integers(0, 2**34),
)
def test_h264_goes_there_and_back(units: list[tuple[bytes, bytes]], seq: int, timestamp: int) -> None:
    data = b"".join(code + unit for code, unit in units)
    packets = [unpack(packet) for packet in rtp.packetise(data, seq=seq, timestamp=timestamp, ssrc=7)]
    assert all(len(packet[4]) + 12 <= rtp.MTU for packet in packets)
    assert [packet[0] for packet in packets] == [(seq + index) & 0xFFFF for index in range(len(packets))]
    assert {packet[1] for packet in packets} == {timestamp & 0xFFFFFFFF}
    assert [packet[3] for packet in packets] == [False] * (len(packets) - 1) + [True], "the marker is on the last"
    assert join_h264([packet[4] for packet in packets]) == [unit for _, unit in units]


@given(units=st.lists(hevc_units, min_size=1, max_size=4), size=st.integers(20, 1388))
def test_hevc_goes_there_and_back_in_pieces_of_any_size(units: list[bytes], size: int) -> None:
    parts = [part for unit in units for part in rtp.payloads(unit, codec="hevc", size=size)]
    assert all(len(part) <= size for part in parts)
    assert join_hevc(parts) == units


@given(units=st.lists(st.tuples(start_codes, h264_units), max_size=6))
def test_a_byte_stream_is_split_at_start_codes_of_either_length(units: list[tuple[bytes, bytes]]) -> None:
    assert rtp.split_annexb(b"".join(code + unit for code, unit in units)) == [unit for _, unit in units]


def test_exactly_one_packet_and_one_byte_more() -> None:
    unit = bytes([0x65]) + b"\x11" * 99
    assert rtp.payloads(unit, size=100) == [unit]
    assert len(rtp.payloads(unit + b"\x11", size=100)) == 2


@pytest.mark.parametrize(("codec", "kinds"), [("h264", [7, 8]), ("hevc", [32, 33, 34])])
def test_an_encoder_gives_what_a_viewer_needs_to_join(codec: str, kinds: list[int]) -> None:
    encoder = AnnexBEncoder(64, 48, fps=10, keyframe_s=0.5, codec=codec)
    coded = [encoder.encode(np.full((48, 64, 3), 10 * index, np.uint8)) for index in range(11)]
    assert [keyframe for _, keyframe in coded] == [index % 5 == 0 for index in range(11)]
    for data, keyframe in coded:
        assert data, "one unit for each picture, without delay"
        found = [rtp.nal_type(unit, codec) for unit in rtp.parameter_sets(data, codec)]
        assert found == (kinds if keyframe else [])


@pytest.mark.parametrize(("width", "height", "codec"), [(63, 48, "h264"), (64, 47, "h264"), (64, 48, "vp8")])
def test_what_cannot_be_encoded_is_refused(width: int, height: int, codec: str) -> None:
    with pytest.raises(ValueError, match=codec):
        AnnexBEncoder(width, height, fps=10, codec=codec)
