"""A frame's time by the camera's own clock: told in sender reports, the same for everybody who watches."""

from __future__ import annotations

import struct

from av.packet import Packet, PacketSideData
from hypothesis import given
from hypothesis import strategies as st

from streams.camera import camera_time_s
from streams.rtp import NTP_UNIX_S, sender_report


@given(utc_s=st.floats(0, 4e9), timestamp=st.integers(0, 2**40), packets=st.integers(0, 2**40))
def test_a_sender_report_ties_media_time_to_the_wall_clock(utc_s: float, timestamp: int, packets: int) -> None:
    report = sender_report(ssrc=7, utc_s=utc_s, timestamp=timestamp, packets=packets, size_bytes=9)
    first, kind, words, ssrc, whole_s, part, media, count, size = struct.unpack(">BBHIIIIII", report)
    assert (first, kind, words, ssrc, size) == (0x80, 200, 6, 7, 9)
    assert len(report) == 4 * (words + 1)
    assert abs(((whole_s - NTP_UNIX_S) % 2**32) + part / 2**32 - utc_s % 2**32) < 1e-5
    assert (media, count) == (timestamp % 2**32, packets % 2**32)


def test_a_packet_without_one_has_no_camera_time() -> None:
    assert camera_time_s(Packet(b"abc")) is None


def test_a_packets_camera_time_is_read_from_ffmpegs_reference_time() -> None:
    packet = Packet(b"abc")
    data = PacketSideData.from_packet(packet, "prft")
    assert data.data_size == 0
    assert camera_time_s(packet) is None
