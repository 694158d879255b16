"""Encoded packets waiting in front of a decoder, bounded in bytes and in number.

A group is a keyframe and what follows it; nothing behind a missing packet can be decoded until the next keyframe, so room is
made by whole groups, oldest first. Pure data: the camera holds the lock.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Item(Protocol):
    @property
    def keyframe(self) -> bool: ...

    @property
    def size_bytes(self) -> int: ...


T = TypeVar("T", bound=Item)


class PacketQueue(Generic[T]):
    """First in, first out. dropped: packets lost for want of room (what `skip_to_newest` leaves out is not counted)."""

    def __init__(self, *, max_bytes: int, max_packets: int) -> None:
        if max_bytes < 1 or max_packets < 1:
            raise ValueError(f"a packet queue needs room, got {max_bytes} bytes and {max_packets} packets")
        self.max_bytes = max_bytes
        self.max_packets = max_packets
        self.size_bytes = 0
        self.dropped = 0
        self._items: deque[T] = deque()
        self._needs_keyframe = True

    def __len__(self) -> int:
        return len(self._items)

    def fits(self, item: T) -> bool:
        """Whether `put` would drop nothing (an empty queue takes anything that it can take at all)."""
        return not self._items or (self.size_bytes + item.size_bytes <= self.max_bytes and len(self._items) < self.max_packets)

    def half_empty(self) -> bool:
        return 2 * self.size_bytes <= self.max_bytes and 2 * len(self._items) <= self.max_packets

    def put(self, item: T) -> None:
        """Adds a packet, and makes room when that is too much. Packets before the first keyframe are of no use and left out."""
        if self._needs_keyframe and not item.keyframe:
            self.dropped += 1
            return
        self._needs_keyframe = False
        self._items.append(item)
        self.size_bytes += item.size_bytes
        while self._items and (self.size_bytes > self.max_bytes or len(self._items) > self.max_packets):
            self.dropped += self._drop_group()

    def _drop_group(self) -> int:
        """Drops the oldest group, or the rest of one. When nothing is left, the rest of that group is refused as it comes."""
        count = 0
        while self._items and (count == 0 or not self._items[0].keyframe):
            self.size_bytes -= self._items.popleft().size_bytes
            count += 1
        self._needs_keyframe = self._needs_keyframe or not self._items
        return count

    def pop(self) -> T:
        """Takes the oldest packet. Raises IndexError when there is none."""
        item = self._items.popleft()
        self.size_bytes -= item.size_bytes
        return item

    def take(self) -> list[T]:
        """Takes everything, oldest first."""
        items = list(self._items)
        self._items.clear()
        self.size_bytes = 0
        return items

    def skip_to_newest(self) -> int:
        """Forgets what is older than the newest keyframe, if that is here; returns how many packets."""
        if len(self._items) < 2:
            return 0
        newest = next((at for at in range(len(self._items) - 1, -1, -1) if self._items[at].keyframe), 0)
        for _ in range(newest):
            self.size_bytes -= self._items.popleft().size_bytes
        return newest

    def peek(self) -> T | None:
        """The oldest packet, left where it is."""
        return self._items[0] if self._items else None

    def clear(self) -> None:
        """Forgets everything; the next packet taken is a keyframe."""
        self._items.clear()
        self.size_bytes = 0
        self._needs_keyframe = True
