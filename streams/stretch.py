"""Some seconds of a live camera, held in memory as a file: for whoever must look at neighbouring pictures, which samples are not.

    with recorded(camera, 20.0) as path:
        ...  # a video like any other

The camera's own packets are copied, nothing is encoded anew, so decoding it costs what decoding the camera costs. They are without
masks, and nothing unmasked reaches the disk (`streams.recording`): the file is anonymous memory, which is gone when the block ends or
the process dies. Whoever reads it burns the masks in.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Protocol

from configs.errors import StreamError, StreamErrorCode
from streams.recording import ClipFile, Coded, Ring
from streams.source import CameraState, CameraStatus

#: A camera that has sent no keyframe after so long sends none.
PATIENCE_S = 20.0
#: Memory that packets may take: 20 s of a camera's 60 Mbit/s.
MAX_BYTES = 150 * 2**20
_LOOK_S = 0.1
#: States in which a camera sends nothing, and waits for no one.
_OVER = (CameraState.ENDED, CameraState.STOPPED)


class Recordable(Protocol):
    """A camera whose packets can be had (`streams.camera`); not started yet."""

    id: str

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def status(self) -> CameraStatus: ...

    def record_to(self, ring: Ring | None) -> None: ...


@contextmanager
def recorded(
    camera: Recordable,
    seconds: float,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Path]:
    """`seconds` of a camera, from its next keyframe on, as a video at a path that lasts as long as the block. Less when the camera ends
    or falls silent after that. The camera is started and stopped here. Raises StreamError when nothing comes."""
    with open(os.memfd_create("driftbox-stretch"), "w+b") as file:
        ring = Ring(keep_s=seconds + PATIENCE_S, max_bytes=MAX_BYTES)
        camera.record_to(ring)
        camera.start()
        try:
            _copy(ring, file, camera, seconds, now_s, sleep)
        finally:
            camera.stop()
            camera.record_to(None)
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _copy(
    ring: Ring, file: BinaryIO, camera: Recordable, seconds: float, now_s: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    clip, cursor, until_s = None, ring.cursor(0.0), now_s() + PATIENCE_S
    try:
        while clip is None or clip.length_s < seconds:
            items, cursor = ring.read(cursor)
            if items and clip is None:
                clip, until_s = ClipFile(file, items[0].format), now_s() + seconds + PATIENCE_S
            taken = _add(clip, items) if clip is not None else 0
            of_another_size = taken < len(items)  # what follows is another clip
            if of_another_size or now_s() >= until_s or (not items and _is_over(camera.status(), begun=clip is not None)):
                break
            if not items:
                sleep(_LOOK_S)
    finally:
        facts = clip.close() if clip is not None else None
    if facts is None:
        raise _nothing_came(camera.id, camera.status())
    file.flush()


def _add(clip: ClipFile, items: Sequence[Coded]) -> int:
    """How many of them the clip has taken, from the front."""
    same = list(takewhile(clip.takes, items))
    for item in same:
        clip.add(item)
    return len(same)


def _is_over(status: CameraStatus, *, begun: bool) -> bool:
    """Will it send nothing more? One that says itself that it failed is not waited for, unless it has sent something."""
    return status.state in _OVER or (not begun and status.state is CameraState.WAITING)


def _nothing_came(camera: str, status: CameraStatus) -> StreamError:
    code = status.code if status.code is not None else StreamErrorCode.TIMEOUT
    return StreamError(
        status.error or f"camera {camera}: no keyframe came within {PATIENCE_S:g} s", stream_code=code, subject=camera,
        remedy="driftbox doctor looks at it",
    )  # fmt: skip
