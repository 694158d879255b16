"""RTP payloads for H.264 (RFC 6184) and H.265 (RFC 7798): access units in, packets out; sender reports. Pure functions, no sockets."""

from __future__ import annotations

import re
import struct

#: Largest RTP packet in bytes; below Ethernet's 1500 less IP, UDP and a tunnel's header.
MTU = 1400
CLOCK_HZ = 90_000

_START_CODE = re.compile(rb"\x00\x00\x00?\x01")
_PARAMETER_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
_H264_FU_A = 28
_HEVC_FU = 49


def split_annexb(data: bytes) -> list[bytes]:
    """The NAL units of an Annex B byte stream, without start codes and without the zero bytes that may follow a unit."""
    starts = [match.span() for match in _START_CODE.finditer(data)]
    ends = [*(begin for begin, _ in starts[1:]), len(data)]
    units = (data[begin:end].rstrip(b"\x00") for (_, begin), end in zip(starts, ends, strict=False))
    return [unit for unit in units if unit]


def nal_type(nal: bytes, codec: str = "h264") -> int:
    return (nal[0] >> 1) & 0x3F if codec == "hevc" else nal[0] & 0x1F


def parameter_sets(data: bytes, codec: str = "h264") -> list[bytes]:
    """The units of an access unit that a decoder needs before any other: SPS and PPS (and VPS)."""
    return [nal for nal in split_annexb(data) if nal_type(nal, codec) in _PARAMETER_SETS[codec]]


def payloads(nal: bytes, *, codec: str = "h264", size: int = MTU - 12) -> list[bytes]:
    """One NAL unit as RTP payloads of at most `size` bytes: itself when it fits, else fragmentation units."""
    if len(nal) <= size:
        return [nal]
    if codec == "hevc":
        header, kind, rest = bytes([(nal[0] & 0x81) | (_HEVC_FU << 1), nal[1]]), nal_type(nal, codec), nal[2:]
    else:
        header, kind, rest = bytes([(nal[0] & 0xE0) | _H264_FU_A]), nal_type(nal), nal[1:]
    room = size - len(header) - 1
    parts = [rest[at : at + room] for at in range(0, len(rest), room)]
    last = len(parts) - 1
    return [
        header + bytes([(0x80 if index == 0 else 0) | (0x40 if index == last else 0) | kind]) + part
        for index, part in enumerate(parts)
    ]


def packetise(data: bytes, *, seq: int, timestamp: int, ssrc: int, codec: str = "h264", payload_type: int = 96) -> list[bytes]:
    """An Annex B access unit as RTP packets with sequence numbers from `seq`; the last one carries the marker bit."""
    parts = [part for nal in split_annexb(data) for part in payloads(nal, codec=codec)]
    last = len(parts) - 1
    return [
        struct.pack(
            ">BBHII",
            0x80,
            payload_type | (0x80 if index == last else 0),
            (seq + index) & 0xFFFF,
            timestamp & 0xFFFFFFFF,
            ssrc & 0xFFFFFFFF,
        )
        + part
        for index, part in enumerate(parts)
    ]


#: Seconds between the epochs of NTP (1900) and of Unix (1970).
NTP_UNIX_S = 2_208_988_800


def sender_report(*, ssrc: int, utc_s: float, timestamp: int, packets: int, size_bytes: int) -> bytes:
    """An RTCP sender report (RFC 3550, section 6.4.1): RTP time `timestamp` was `utc_s` on the camera's clock, seconds since 1970."""
    ntp_s = utc_s + NTP_UNIX_S
    whole_s = int(ntp_s)
    numbers = (ssrc, whole_s, int((ntp_s - whole_s) * 2**32), timestamp, packets, size_bytes)
    return struct.pack(">BBH6I", 0x80, 200, 6, *(number & 0xFFFFFFFF for number in numbers))


def told_time(report: bytes) -> tuple[float, int] | None:
    """(seconds since 1970 on the camera's clock, the RTP time at that moment) of a packet that begins with a sender report; None: it
    does not, or the camera does not know the time."""
    if len(report) < 20 or report[0] >> 6 != 2 or report[1] != 200:
        return None
    seconds, fraction, timestamp = struct.unpack_from(">III", report, 8)
    return (seconds - NTP_UNIX_S + fraction / 2**32, timestamp) if seconds else None


def receiver_report(*, ssrc: int) -> bytes:
    """That somebody is listening (RFC 3550, section 6.4.2), and a name for him: without reports some cameras stop after a while."""
    name = b"driftbox"
    item = bytes([1, len(name)]) + name
    item += bytes(4 - len(item) % 4)  # one to four zero bytes end the list
    described = struct.pack(">BBHI", 0x81, 202, (4 + len(item)) // 4, ssrc) + item
    return struct.pack(">BBHI", 0x80, 201, 1, ssrc) + described
