"""Keeps a frame of every camera now and then as a candidate for labelling: one thread for all cameras.

A disk without room stops sampling, never the cameras; it is said once and tried again with every sample.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from configs.errors import StorageError
from edge.clock import Clock
from scheduler.types import Frame
from streams.pulse import Pulse
from streams.source import Camera

log = logging.getLogger("driftbox")


class FrameStore(Protocol):
    def add(self, frame: Frame, window: int) -> object: ...


def no_limit() -> None:
    """Room for as many samples as the disk takes."""


class Sampler:
    """window: where samples go; the runtime sets it when a window opens. fps: samples per second and camera.

    A frame of a camera that looks for movement, in which nothing moves, is not kept.

    problem: why nothing is kept now, '' when all is well. require_room raises StorageError when the disk is to be left alone.
    """

    def __init__(self, store: FrameStore, *, fps: float, clock: Clock, require_room: Callable[[], None] = no_limit) -> None:
        self.fps = fps
        self.window = 0
        self.problem = ""
        self._store, self._clock, self._require_room = store, clock, require_room
        self._cameras: dict[str, Camera] = {}
        self._seqs: dict[str, int] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._pulse = Pulse(clock.monotonic_s)
        self._generation = 0
        self._thread = threading.Thread(target=self.run, name="sampler", daemon=True)

    def start(self) -> None:
        self._pulse.beat()
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether its thread does what it should: it runs, or was told to end, or has not begun."""
        return self._stopping or self._thread.ident is None or self._thread.is_alive()

    def silent_s(self) -> float:
        """See `streams.pulse`."""
        return 0.0 if self._stopping else self._pulse.silent_s()

    def begin_anew(self) -> None:
        """Another thread samples from now on; the old one has died, or ends when it comes back from where it hangs."""
        with self._changed:
            if self._stopping:
                return
            self._generation += 1
        self._thread = threading.Thread(target=self.run, name="sampler", daemon=True)
        self.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._clock.notify_all(self._changed)
        if self._thread.is_alive():
            self._thread.join(2.0)

    def add(self, camera: Camera) -> None:
        with self._changed:
            self._cameras[camera.id] = camera
            self._seqs.pop(camera.id, None)

    def remove(self, camera_id: str) -> None:
        with self._changed:
            self._cameras.pop(camera_id, None)

    def sample_once(self) -> int:
        """Keeps the newest unseen frame of every camera; returns how many."""
        with self._changed:
            cameras = list(self._cameras.values())
        kept, problem = 0, None
        for camera in cameras:
            try:
                kept += self._sample(camera)
            except StorageError as error:
                problem = problem or error
            except Exception:  # one odd picture must not end the sampling of all cameras
                log.exception("%s: a sample could not be kept", camera.id)
        if problem is not None and not self.problem:
            log.warning("sampling stopped: %s", problem)
        elif problem is None and self.problem and kept:
            log.info("sampling goes on")
        if problem is not None or kept:
            self.problem = str(problem) if problem is not None else ""
        return kept

    def _sample(self, camera: Camera) -> int:
        frame = camera.next_frame(after_seq=self._seqs.get(camera.id, -1), timeout_s=0.0)
        if frame is None:
            return 0
        self._seqs[camera.id] = frame.seq
        if frame.regions is not None and not len(frame.regions):
            return 0  # nothing moves: there is nothing that could be labelled
        self._require_room()
        self._store.add(frame, self.window)
        return 1

    def run(self) -> None:
        """Samples until `stop`; what the sampler's thread does."""
        next_s, generation = self._clock.monotonic_s(), self._generation
        while True:
            with self._changed:
                if self._stopping or generation != self._generation:
                    return
                wait_s = next_s - self._clock.monotonic_s()
                if wait_s > 0:
                    self._pulse.rest(for_s=wait_s)
                    self._clock.wait(self._changed, wait_s)
                    continue
            self._pulse.beat()
            self.sample_once()
            next_s = max(next_s + 1.0 / self.fps, self._clock.monotonic_s())
