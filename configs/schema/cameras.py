"""Section `cameras`: a list of what the box watches."""

from __future__ import annotations

import unicodedata
import zoneinfo
from typing import Literal

from pydantic import ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from configs.schedule import MAX_SPANS, Span, span_of
from configs.schema.base import Section, checked_id, setting
from configs.schema.fleet import HOUSE, checked_networks
from configs.schema.media import ObjectsSection, RecordingSection
from configs.schema.queries import QueryEntry, checked_classes, checked_zones
from configs.schema.secret import CameraUrl
from configs.schema.tasks import checked_task
from configs.tasks import DETECTION

#: A corner of a mask: (x, y) as fractions of width and height, from the upper left.
Point = tuple[float, float]


class ScheduleEntry(Section):
    """When it is watched, and when it learns (docs/cameras.md)."""

    time_zone: str = setting(
        "", text="Time zone of the times, as `Europe/Berlin`.", default_text="the machine's", max_length=64
    )
    watch: tuple[str, ...] = setting(
        (),
        default_text="always",
        text="Weekly times: `mon-fri 07:00-19:00`, `sat,sun 22:00-06:00`. Outside them it is not opened.",
    )
    learn: tuple[str, ...] = setting(
        (), default_text="always", text="Weekly times. Outside them it is neither labelled nor retrained; analysis goes on."
    )

    @field_validator("time_zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            if value:
                zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise PydanticCustomError("time_zone", "unknown time zone; write it as Europe/Berlin or UTC") from None
        return value

    @field_validator("watch", "learn")
    @classmethod
    def _spans(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        if len(texts) > MAX_SPANS:
            raise PydanticCustomError("schedule", "at most {most} times", {"most": MAX_SPANS})
        for text in texts:
            try:
                span_of(text)
            except ValueError as error:
                raise PydanticCustomError("schedule", "{why}", {"why": str(error)}) from None
        return texts

    def spans(self, what: Literal["watch", "learn"]) -> tuple[Span, ...]:
        """The times of one of its two lists."""
        return tuple(span_of(text) for text in getattr(self, what))


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
    record_url: CameraUrl | None = setting(
        None,
        text="Main stream, which clips are cut from, where the camera has a larger one beside that of `url`; written like `url`.",
        default_text="`url`",
    )
    name: str = setting("", text="Name for people; empty: the id.", max_length=80)
    fps: float = setting(5.0, unit="frames/s", ge=0, le=120, text="Wanted analysis rate; 0: as the camera gives.")
    height_px: int = setting(
        0, unit="px", ge=0, le=4320, text="Height to which frames are reduced before anything else; 0: as the camera gives."
    )
    transport: Literal["tcp", "udp"] = setting("tcp", text="How RTSP carries the video. `udp` loses packets on a busy network.")
    rtsp_by: Literal["own", "ffmpeg"] = setting(
        "own",
        text="Who reads RTSP over TCP. `own` gives a picture as soon as it is here, and leaves to FFmpeg what it cannot read; `ffmpeg` "
        "gives it one frame interval later.",
    )
    masks: tuple[tuple[Point, ...], ...] = setting(
        (),
        text="Privacy masks: polygons of [x, y] corners as fractions 0-1 of width and height. Burnt in before anything else.",
        default_text="none",
    )
    zones: dict[str, tuple[Point, ...]] = setting(
        default_factory=dict, default_text="none",
        text="Places in the picture by name: polygons of [x, y] corners as fractions 0-1 of width and height. Objects are told with the "
        "zones they are in.",
    )  # fmt: skip
    classes: tuple[str, ...] = setting(
        (), text="Classes whose objects become events; what the model learns stays the same.", default_text="all"
    )
    objects: ObjectsSection = setting(default_factory=ObjectsSection, text="What is told of tracked objects.")
    recording: RecordingSection = setting(default_factory=RecordingSection, text="Clips of what objects do.")
    schedule: ScheduleEntry = setting(default_factory=ScheduleEntry, text="When it is watched, and when it learns.")
    learning: bool = setting(
        True, text="Let its model learn. Without it the camera is neither labelled nor retrained; analysis goes on."
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
    customer: str = setting(
        HOUSE, text="Whose camera it is, for the shares that a fleet gives its customers; letters as in `id`.", max_length=63
    )
    networks: tuple[str, ...] = setting(
        (),
        text="Networks from which it can be reached, by the names of `fleet.networks`: boxes there may watch it when this one cannot.",
        default_text="none: only from here",
    )
    consent: bool | None = setting(
        None, text="Whether its labelled samples may leave the box (`fleet.consent`).", default_text="`fleet.consent`"
    )

    @field_validator("customer")
    @classmethod
    def _customer(cls, value: str) -> str:
        return checked_id(value)

    @field_validator("networks")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return checked_networks(value)

    @field_validator("id")
    @classmethod
    def _id(cls, value: str) -> str:
        return checked_id(value)

    @field_validator("name")
    @classmethod
    def _one_line(cls, value: str) -> str:
        if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in value):
            raise PydanticCustomError("name", "must be one line of text")
        return value

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

    @field_validator("zones")
    @classmethod
    def _zones(cls, zones: dict[str, tuple[Point, ...]]) -> dict[str, tuple[Point, ...]]:
        return checked_zones(zones)

    @field_validator("classes")
    @classmethod
    def _classes(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        return checked_classes(classes)

    @field_validator("record_url")
    @classmethod
    def _streams(cls, value: CameraUrl | None) -> CameraUrl | None:
        if value is not None and value.scheme == "rendered":
            raise PydanticCustomError("record_url", "a rendered camera has one stream")
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
