"""Pictures out of RTP packets of H.264 (RFC 6184) and H.265 (RFC 7798), each as soon as its last packet is here. No sockets, no clock.

FFmpeg's reader gives a picture when the next one begins, one frame interval late, because it does not look at the marker bit that says
"this was the last packet". Here the marker ends a picture, and a new timestamp does where the marker is missing or lost. A camera that
marks every slice, or both fields of a picture, is found out at the second one; from then on timestamps decide, as they do for FFmpeg.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

START = b"\x00\x00\x00\x01"
#: More than any picture; what grows beyond it is no stream.
UNIT_BYTES = 8 * 1024 * 1024
#: Timestamps that run back by less are pictures sent before those that they are shown after; by more, a clock that was set.
_REORDERED_TICKS = 2 * 90_000
#: Fields of a picture.
_FIELDS = 2

_HEAD = struct.Struct(">BBHI")
_H264_STAP_A, _H264_FU_A = 24, 28
_HEVC_AP, _HEVC_FU = 48, 49
_H264_SLICES, _HEVC_SLICES = range(1, 6), range(32)
_H264_IDR, _H264_SEI = 5, 6
_HEVC_IRAP = range(16, 24)
_RECOVERY_POINT = 6


class Unsuited(Exception):
    """Nothing is wrong with the stream, but this reader is not for it; FFmpeg's is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One coded picture, Annex B, with what was sent before it. ticks: its timestamp, which does not wrap, from 0 on."""

    data: bytes
    keyframe: bool
    ticks: int


class Depacketiser:
    """Packets of one stream in, units out. lost: packets that were missing between others."""

    def __init__(self, codec: str, payload_type: int) -> None:
        if codec not in ("h264", "hevc"):
            raise ValueError(f"codec must be h264 or hevc, got {codec!r}")
        self._payload_type = payload_type
        self._add_payload = self._add_hevc if codec == "hevc" else self._add_h264
        self._hevc = codec == "hevc"
        self.lost = 0
        self._by_marker = True
        self._seq: int | None = None
        self._stamp: int | None = None
        self._ticks = 0
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._fragment: list[bytes] | None = None  # of a unit that came in parts
        self._fragment_bytes = 0
        self._pictures = 0  # first slices in `_parts`
        self._slices = 0
        self._keyframe = False
        self._given = False  # a unit of this timestamp

    def feed(self, data: bytes, begin: int = 0, end: int | None = None) -> list[Unit]:
        """Takes the packet data[begin:end]; returns what is complete now. Raises Unsuited."""
        end = len(data) if end is None else end
        if end - begin < 12:
            return []
        first, second, seq, stamp = _HEAD.unpack_from(data, begin)
        if first >> 6 != 2 or second & 0x7F != self._payload_type:
            return []
        at = begin + 12 + 4 * (first & 0x0F)
        if first & 0x10:
            at += 4 + 4 * int.from_bytes(data[at + 2 : at + 4], "big")
        if first & 0x20:
            end -= data[end - 1]
        if self._seq is not None and seq != (self._seq + 1) & 0xFFFF:
            self.lost += (seq - self._seq - 1) & 0xFFFF
            self._fragment = None
        self._seq = seq
        units = self._turn_to(stamp) if stamp != self._stamp else []
        if at < end:
            self._add_payload(data, at, end)
        if second & 0x80 and self._by_marker and self._slices:
            units.append(self._taken())
        return units

    def _turn_to(self, stamp: int) -> list[Unit]:
        """A new timestamp. What is here and was not marked is complete, too; what has no picture in it belongs to the next one."""
        units = [self._taken()] if self._slices else []
        if self._stamp is not None:
            step = (stamp - self._stamp + (1 << 31)) % (1 << 32) - (1 << 31)
            if -_REORDERED_TICKS <= step < 0:
                raise Unsuited("its pictures are sent in another order than they are shown")
            self._ticks += step
        self._stamp, self._given = stamp, False
        return units

    def _taken(self) -> Unit:
        unit = Unit(data=b"".join(self._parts), keyframe=self._keyframe, ticks=self._ticks)
        self._clear()
        self._given = True
        return unit

    def _clear(self) -> None:
        self._parts, self._fragment, self._size_bytes = [], None, 0
        self._pictures = self._slices = 0
        self._keyframe = False

    def _add_h264(self, data: bytes, at: int, end: int) -> None:
        shape = data[at] & 0x1F
        if 0 < shape < _H264_STAP_A:
            self._add([START, data[at:end]])
        elif shape == _H264_STAP_A:
            self._add_each(data, at + 1, end)
        elif shape == _H264_FU_A and end - at > 2:
            header = bytes([(data[at] & 0xE0) | (data[at + 1] & 0x1F)])
            self._add_fragment(data[at + 1], header, data[at + 2 : end])

    def _add_hevc(self, data: bytes, at: int, end: int) -> None:
        shape = (data[at] >> 1) & 0x3F
        if end - at < 3:
            return
        if shape < _HEVC_AP:
            self._add([START, data[at:end]])
        elif shape == _HEVC_AP:
            self._add_each(data, at + 2, end)
        elif shape == _HEVC_FU and end - at > 3:
            header = bytes([(data[at] & 0x81) | ((data[at + 2] & 0x3F) << 1), data[at + 1]])
            self._add_fragment(data[at + 2], header, data[at + 3 : end])

    def _add_each(self, data: bytes, at: int, end: int) -> None:
        """Units with their sizes before them."""
        while at + 2 < end:
            size = int.from_bytes(data[at : at + 2], "big")
            if not size or at + 2 + size > end:
                return
            self._add([START, data[at + 2 : at + 2 + size]])
            at += 2 + size

    def _add_fragment(self, flags: int, header: bytes, part: bytes) -> None:
        if flags & 0x80:
            self._fragment = [START, header + part]
            self._fragment_bytes = len(part)
        elif self._fragment is not None:
            self._fragment.append(part)
            self._fragment_bytes += len(part)
            if self._fragment_bytes > UNIT_BYTES:
                self._fragment = None
        if flags & 0x40 and self._fragment is not None:
            whole, self._fragment = self._fragment, None
            self._add(whole)

    def _add(self, parts: list[bytes]) -> None:
        """A whole unit: start code, then its bytes, the first two of them in one piece."""
        self._size_bytes += sum(map(len, parts))
        if self._size_bytes > UNIT_BYTES:
            self._clear()
            return
        head = parts[1]
        self._look_hevc(head) if self._hevc else self._look_h264(head)
        self._parts += parts

    def _look_h264(self, head: bytes) -> None:
        what = head[0] & 0x1F
        if what in _H264_SLICES:
            self._saw_slice(first=len(head) > 1 and bool(head[1] & 0x80), keyframe=what == _H264_IDR)
        elif what == _H264_SEI:
            self._keyframe = self._keyframe or _tells_recovery(head)

    def _look_hevc(self, head: bytes) -> None:
        what = (head[0] >> 1) & 0x3F
        if what in _HEVC_SLICES:
            self._saw_slice(first=len(head) > 2 and bool(head[2] & 0x80), keyframe=what in _HEVC_IRAP)

    def _saw_slice(self, *, first: bool, keyframe: bool) -> None:
        if self._given:
            self._by_marker = False
        self._slices += 1
        self._pictures += first
        self._keyframe = self._keyframe or keyframe
        if self._pictures > _FIELDS:
            raise Unsuited("its timestamps stand still")


def _tells_recovery(sei: bytes) -> bool:
    """Whether a unit of supplemental information says that decoding may begin here: streams without IDR pictures."""
    sei = sei.replace(b"\x00\x00\x03", b"\x00\x00")
    at = 1
    while at + 1 < len(sei) and sei[at] != 0x80:
        what, at = _number(sei, at)
        size, at = _number(sei, at)
        if what == _RECOVERY_POINT:
            return True
        at += size
    return False


def _number(sei: bytes, at: int) -> tuple[int, int]:
    """(number, where it ends): bytes of 255 and a last one, added up."""
    value = 0
    while at < len(sei) and sei[at] == 255:
        value, at = value + 255, at + 1
    return (value + sei[at], at + 1) if at < len(sei) else (value, at)
