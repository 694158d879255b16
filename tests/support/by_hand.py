"""A live camera whose threads do not run: the test sends packets, lets the decoder work, and moves its clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
from av.packet import Packet

import streams.camera as camera_module
from scheduler.types import Frame
from streams.camera import PyavCamera, _Session
from streams.recording import Tap
from streams.url import SourceUrl

FPS = 10.0
FRAMES = 30
MOST_PACKETS, MOST_BYTES = 40, 20_000


class HandClock:
    """Time that only the test moves, and a wall clock that it may set to anything."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.wall_s = 1.7e9

    def now_s(self) -> float:
        return self.time_s

    def utc(self) -> float:
        return self.wall_s + self.time_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.is_set()


def grey(index: int) -> np.ndarray:
    return np.full((48, 64, 3), 8 * (index % FRAMES), np.uint8)


def index_of(frame: Frame) -> int:
    """Which picture of the clip it is."""
    return round(float(frame.image.mean()) / 8)


class ByHand:
    """A live camera whose threads are not running: the test sends packets and lets the decoder work."""

    def __init__(self, clip: Path) -> None:
        self.clock = HandClock()
        self.camera = PyavCamera(
            "cam", SourceUrl("rtsp://cam.test/live"), clock=self.clock, queue_packets=MOST_PACKETS, queue_bytes=MOST_BYTES
        )
        self.sent = self.decoded = 0
        self._clip = clip
        self._packets = self._endless()

    def _endless(self) -> Iterator[Packet]:
        self._container = av.open(str(self._clip))
        stream = self._container.streams.video[0]
        self.session = _Session(decoder=camera_module._decoder(stream), fps=FPS, tap=Tap(stream))
        while True:
            with av.open(str(self._clip)) as source:
                yield from (packet for packet in source.demux(video=0) if packet.size)

    def send(self, count: int, *, every_s: float = 0.0) -> None:
        for _ in range(count):
            self.clock.time_s += every_s
            packet = next(self._packets)
            self.camera._take(packet, self.session, None)
            self.sent += 1
            waiting = self.camera._queue
            assert len(waiting) <= MOST_PACKETS
            assert waiting.size_bytes <= MOST_BYTES

    def decode(self) -> int:
        """One turn of the decoder; returns how many packets it took."""
        batch, alone = self.camera._next_batch()
        assert len(batch) <= MOST_PACKETS
        self.camera._decode(batch, alone=alone)
        self.decoded += len(batch)
        return len(batch)

    def ask(self, after_seq: int = -1) -> Frame | None:
        return self.camera.next_frame(after_seq=after_seq, timeout_s=0.0)
