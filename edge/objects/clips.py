"""What runs for one camera's clips: the ring behind its stream, or behind a stream of its own for recording."""

from __future__ import annotations

from typing import Protocol

from edge.media.recorder import ClipRules, Recorder, ring_s
from streams.recording import Ring

#: Most that the packets of a camera may take in memory: 20 s of 20 Mbit/s.
RING_BYTES = 48 * 1024 * 1024


class Recordable(Protocol):
    """A camera whose packets can be had (`streams.camera`)."""

    @property
    def ring(self) -> Ring | None: ...

    def record_to(self, ring: Ring | None) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class CameraClips:
    """camera_id: whose clips; watched: the camera that is analysed; main: another stream of it that clips are cut from, started and
    stopped here; None: the same."""

    def __init__(
        self, camera_id: str, recorder: Recorder, rules: ClipRules, watched: Recordable, main: Recordable | None = None
    ) -> None:
        self._camera_id, self._recorder, self._rules = camera_id, recorder, rules
        self._main, self._source = main, main or watched
        self._ring = Ring(keep_s=ring_s(rules), max_bytes=RING_BYTES)

    def start(self) -> None:
        self._source.record_to(self._ring)
        self._recorder.add(self._camera_id, self._ring, self._rules)
        if self._main is not None:
            self._main.start()

    def stop(self) -> None:
        """Others may have taken over the camera already."""
        self._recorder.remove(self._camera_id, self._ring)
        if self._source.ring is self._ring:
            self._source.record_to(None)
        if self._main is not None:
            self._main.stop()
