"""What is told about cameras that come, change and go while the box runs."""

from __future__ import annotations

from dataclasses import dataclass

from configs.schema import CameraEntry


@dataclass(frozen=True, kw_only=True)
class CameraChanged:
    """Told to the runtime's listeners (`Parts.listeners`), in the loop's thread, whenever a camera is watched from now on, is watched
    otherwise, or is watched no more (entry: None). What is in `BoxRuntime.watched` is in force already."""

    camera: str
    entry: CameraEntry | None
