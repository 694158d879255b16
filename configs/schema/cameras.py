"""Section `cameras`: a list of what the box watches."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.schema.box import checked_id
from configs.schema.queries import QueryEntry
from configs.schema.secret import CameraUrl
from configs.schema.tasks import checked_task
from configs.tasks import DETECTION

#: A corner of a mask: (x, y) as fractions of width and height, from the upper left.
Point = tuple[float, float]


class CameraEntry(Section):
    """One camera."""

    id: str = setting(
        ...,
        text="Name in folders, topics and pages: lower case letters, digits, `_`, `-`; unique.",
        example="gate",
        max_length=63,
    )
    url: CameraUrl = setting(
        ...,
        text="`rtsp://`, `rtsps://`, `http://`, `https://` (MJPEG, HLS), the path of a video file, `/dev/video0`, or "
        "`rendered:street?seed=1` (scenes: street, yard, hall). Credentials as references: `rtsp://user:${env:CAM_PW}@host/stream`.",
        example="rtsp://user:${env:GATE_PASSWORD}@192.0.2.10/stream1",
    )
    name: str = setting("", text="Name for people; empty: the id.", max_length=80)
    fps: float = setting(5.0, unit="frames/s", ge=0, le=120, text="Wanted analysis rate; 0: as the camera gives.")
    height_px: int = setting(
        0, unit="px", ge=0, le=4320, text="Height to which frames are reduced before anything else; 0: as the camera gives."
    )
    transport: Literal["tcp", "udp"] = setting("tcp", text="How RTSP carries the video. `udp` loses packets on a busy network.")
    masks: tuple[tuple[Point, ...], ...] = setting(
        (),
        text="Privacy masks: polygons of [x, y] corners as fractions 0-1 of width and height. Burnt in before anything else.",
        default_text="none",
    )
    task: str = setting(
        DETECTION, text="What its model is asked: `detection`, `classification` of what moves, or a task that a package brings."
    )
    edge: str | None = setting(
        None, text="Edge model for this camera only.", default_text="`models.edge`, or that of `models.tasks`"
    )
    deadline_ms: float | None = setting(
        None,
        unit="ms",
        gt=0,
        le=600_000,
        text="From capture to answer: frames answered later are late, and may be given up where a queue serves (`scheduler.serving`).",
        default_text="two intervals of `fps`; 400 without `fps`",
    )
    queries: tuple[QueryEntry, ...] = setting((), text="What is asked of it (docs/serving.md).")
    loop: bool = setting(False, text="Begin a video file again at its end; without it the camera ends with the file.")
    may_lag: bool = setting(
        False,
        text="Work a video file off picture by picture, however long each takes, and report the lag; without it the file plays in real "
        "time and the newest frame wins, as with every live camera.",
    )
    enabled: bool = setting(True, text="Watch this camera.")

    @field_validator("id")
    @classmethod
    def _id(cls, value: str) -> str:
        return checked_id(value)

    @field_validator("task")
    @classmethod
    def _task(cls, value: str) -> str:
        return checked_task(value)

    @field_validator("may_lag")
    @classmethod
    def _recording(cls, value: bool, info: ValidationInfo) -> bool:
        url = info.data.get("url")
        if value and isinstance(url, CameraUrl) and url.scheme != "file":
            raise PydanticCustomError("may_lag", "only video files may lag; of a live camera the newest frame wins")
        return value

    @field_validator("masks")
    @classmethod
    def _polygons(cls, masks: tuple[tuple[Point, ...], ...]) -> tuple[tuple[Point, ...], ...]:
        for number, polygon in enumerate(masks):
            if len(polygon) < 3:
                raise PydanticCustomError("mask", "mask {number} needs at least 3 corners", {"number": number})
            if any(not 0 <= value <= 1 for point in polygon for value in point):
                raise PydanticCustomError("mask", "mask {number} has a corner outside 0 to 1", {"number": number})
        return masks

    @property
    def goal_s(self) -> float:
        """`deadline_ms` in seconds, or what stands for it."""
        if self.deadline_ms is not None:
            return self.deadline_ms / 1000.0
        return 2.0 / (self.fps or 5.0)

    @property
    def title(self) -> str:
        """What people read: the name, or the id when there is none."""
        return self.name or self.id
