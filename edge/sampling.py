"""Keeps a frame of every camera now and then as a candidate for labelling: one thread for all cameras.

A disk without room stops sampling, never the cameras; it is said once and tried again.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from configs.errors import StorageError
from edge.clock import Clock
from scheduler.types import Frame
from streams.source import Camera

log = logging.getLogger("driftbox")


class FrameStore(Protocol):
    def add(self, frame: Frame, window: int) -> object: ...


class Sampler:
    """window: where samples go; the runtime sets it when a window opens. fps: samples per second and camera."""

    def __init__(self, store: FrameStore, *, fps: float, clock: Clock) -> None:
        self.fps = fps
        self.window = 0
        self.problem = ""
        self._store, self._clock = store, clock
        self._cameras: dict[str, Camera] = {}
        self._seqs: dict[str, int] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._clock.notify_all(self._changed)
        if self._thread.is_alive():
            self._thread.join(2.0)

    def add(self, camera: Camera) -> None:
        with self._changed:
            self._cameras[camera.id] = camera

    def remove(self, camera_id: str) -> None:
        with self._changed:
            self._cameras.pop(camera_id, None)

    def sample_once(self) -> int:
        """Keeps the newest unseen frame of every camera; returns how many."""
        with self._changed:
            cameras = list(self._cameras.values())
        return sum(self._sample(camera) for camera in cameras)

    def _sample(self, camera: Camera) -> int:
        frame = camera.next_frame(after_seq=self._seqs.get(camera.id, -1), timeout_s=0.0)
        if frame is None:
            return 0
        self._seqs[camera.id] = frame.seq
        try:
            self._store.add(frame, self.window)
        except StorageError as error:
            if str(error) != self.problem:
                log.warning("sampling stopped: %s", error)
            self.problem = str(error)
            return 0
        self.problem = ""
        return 1

    def _run(self) -> None:
        next_s = self._clock.monotonic_s()
        while True:
            with self._changed:
                if self._stopping:
                    return
                wait_s = next_s - self._clock.monotonic_s()
                if wait_s > 0:
                    self._clock.wait(self._changed, wait_s)
                    continue
            self.sample_once()
            next_s = max(next_s + 1.0 / self.fps, self._clock.monotonic_s())
