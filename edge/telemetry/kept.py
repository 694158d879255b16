"""The status with the cameras that are configured and not watched just now: for others they are there, only stopped, so that they can be
switched on again. What is not configured any more is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from configs.errors import DriftboxError
from configs.schema import CameraEntry
from edge.status import BoxStatus, CameraView, StatusSource

log = logging.getLogger(__name__)

#: The configuration is asked this often while nothing changes.
ASK_EVERY_S = 5.0


class WithKept:
    """A `StatusSource` over another. configured: every camera of the configuration, watched or not."""

    def __init__(
        self,
        source: StatusSource,
        configured: Callable[[], Sequence[CameraEntry]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._configured, self._monotonic = source, configured, monotonic
        self._entries: tuple[CameraEntry, ...] = ()
        self._running: tuple[str, ...] = ()
        self._asked_s = float("-inf")

    def status(self) -> BoxStatus:
        status = self._source.status()
        running = tuple(camera.id for camera in status.cameras)
        self._ask_again_if_due(running)
        stopped = [_stopped(entry) for entry in self._entries if entry.id not in running]
        cameras = sorted([*status.cameras, *stopped], key=lambda camera: camera.id)
        return status.model_copy(update={"cameras": tuple(cameras)}) if stopped else status

    def picture(self, camera_id: str, *, width_px: int = 0, boxes: bool = True) -> bytes | None:
        return self._source.picture(camera_id, width_px=width_px, boxes=boxes)

    def _ask_again_if_due(self, running: tuple[str, ...]) -> None:
        """A camera that came or went was changed just now; so was one whose switch somebody turned while it is stopped (seen later)."""
        if running == self._running and self._monotonic() - self._asked_s < ASK_EVERY_S:
            return
        self._running, self._asked_s = running, self._monotonic()
        try:
            self._entries = tuple(self._configured())
        except DriftboxError as error:
            log.warning("mqtt: the cameras of the configuration cannot be read: %s", error)


def _stopped(entry: CameraEntry) -> CameraView:
    return CameraView(
        id=entry.id, name=entry.title, state="stopped", task=entry.task, learning=entry.learning, watching=entry.enabled,
        zones={zone: {} for zone in entry.zones},
    )  # fmt: skip
