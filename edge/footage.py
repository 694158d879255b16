"""What `evaluate` watches: clips cut into windows, joined and drifted as a scenario file says, frames kept small and in memory.

A scenario (YAML):

    streams:
      - id: avenue
        clips: [{video: brt_avenue.mp4, start: 0, stop: 400}, {video: brt_avenue.mp4, repeat: 2}]
        drift: [{kind: dusk, start: 300, ramp: 200, strength: 0.8}]     # frames of the joined footage
        seed: 7

Relative paths start from a given folder, else from the scenario file's own. Drift is graded and seeded (`streams.drift`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import ConfigError, UsageError
from streams.drift import DriftSpec, apply_all
from streams.motion import Motion, MotionOptions
from streams.video import probe, read_frames

#: Frames per second of a file that does not say.
DEFAULT_FPS = 10.0
#: Drifts that are of the time of day: the sun or the lamps. Others (fog, rain, blur) come at any time.
LIGHT = ("dusk", "glare", "overexposure", "underexposure")


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Frames start..stop (exclusive; None = to the end) of a video file."""

    path: Path
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True)
class Footage:
    """One stream: its clips end to end, with drift laid over. frames: length in frames; fps: of the first clip."""

    id: str
    clips: tuple[Clip, ...]
    lengths: tuple[int, ...]
    fps: float
    drift: tuple[DriftSpec, ...] = ()
    seed: int = 0

    @property
    def frames(self) -> int:
        return sum(self.lengths)

    def key(self) -> str:
        """What identifies the pixels, for memoised work."""
        clips = [(c.path.name, c.path.stat().st_size, c.start, n) for c, n in zip(self.clips, self.lengths, strict=True)]
        return repr((clips, self.drift, self.seed))

    def daypart(self, frame: int) -> str:
        """The time of day at a frame as its drift declares it: the kinds of light in force, or `day` under none of them; '' for a
        stream that declares no change of the light."""
        light = [spec for spec in self.drift if spec.kind in LIGHT]
        now = sorted({spec.kind for spec in light if spec.strength_at(frame) > 0})
        return "+".join(now) or ("day" if light else "")

    def place(self, frame: int) -> str:
        """Where the camera looks at a frame: the name of its clip's video. Clips of several videos are a camera that turns."""
        ends = accumulate(self.lengths)
        return next(clip.path.stem for clip, end in zip(self.clips, ends, strict=True) if frame < end)

    def load(self, indices: Iterable[int], *, longest_px: int) -> dict[int, np.ndarray]:
        """The wanted frames as uint8 (H, W, 3) RGB, longer side at most `longest_px`. One pass over each clip."""
        wanted = set(indices)
        found: dict[int, np.ndarray] = {}
        offset = 0
        for clip, length in zip(self.clips, self.lengths, strict=True):
            mine = {i - offset + clip.start for i in wanted if offset <= i < offset + length}
            if mine:
                for number, image in read_frames(clip.path, start=min(mine), stop=max(mine) + 1, only=mine):
                    index = number - clip.start + offset
                    found[index] = apply_all(_fit(image, longest_px), self.drift, frame=index, seed=self.seed)
            offset += length
        return found

    def regions(self, *, longest_px: int, options: MotionOptions | None = None) -> dict[int, np.ndarray]:
        """What moves in each frame, as a camera would say it (`streams.motion`): float32 (N, 4) xyxy px of the frames that `load`
        gives. Every frame is decoded and looked at once, in order of time; one that cannot be decoded is not there."""
        motion, fps = Motion(options), self.fps or DEFAULT_FPS
        found: dict[int, np.ndarray] = {}
        offset = 0
        for clip, length in zip(self.clips, self.lengths, strict=True):
            for number, image in read_frames(clip.path, start=clip.start, stop=clip.start + length):
                index = number - clip.start + offset
                drifted = apply_all(_fit(image, longest_px), self.drift, frame=index, seed=self.seed)
                found[index] = motion.find(drifted, at_s=index / fps)
            offset += length
        return found


def _fit(image: np.ndarray, longest_px: int) -> np.ndarray:
    height, width = image.shape[:2]
    scale = longest_px / max(height, width)
    if scale >= 1:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def footage_of(id: str, clips: Sequence[Clip], drift: Sequence[DriftSpec] = (), seed: int = 0) -> Footage:
    """Probes the files. Raises StreamError for one that is not a video."""
    lengths, fps = [], 0.0
    for clip in clips:
        info = probe(clip.path)
        stop = info.frames if clip.stop is None else min(clip.stop, info.frames)
        if stop <= clip.start:
            raise UsageError(f"clip {clip.path.name} has {info.frames} frames; {clip.start}..{clip.stop} is empty", subject=id)
        lengths.append(stop - clip.start)
        fps = fps or info.fps
    return Footage(id=id, clips=tuple(clips), lengths=tuple(lengths), fps=fps, drift=tuple(drift), seed=seed)


def footage_of_videos(videos: Sequence[Path]) -> tuple[Footage, ...]:
    """One stream per file, named after it; names that repeat get a number."""
    names: dict[str, int] = {}
    result = []
    for video in videos:
        names[video.stem] = names.get(video.stem, 0) + 1
        id = video.stem if names[video.stem] == 1 else f"{video.stem}-{names[video.stem]}"
        result.append(footage_of(id, [Clip(path=video)]))
    return tuple(result)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _ClipEntry(_Strict):
    video: Path
    start: Annotated[int, Field(ge=0)] = 0
    stop: int | None = None
    repeat: Annotated[int, Field(ge=1, le=100)] = 1


class _DriftEntry(_Strict):
    """The fields of `DriftSpec`, which checks them further."""

    kind: str
    start: Annotated[int, Field(ge=0)] = 0
    end: int | None = None
    strength: Annotated[float, Field(ge=0, le=1)] = 1.0
    ramp: Annotated[int, Field(ge=0)] = 0
    ramp_out: Annotated[int, Field(ge=0)] = 0


class _StreamEntry(_Strict):
    id: str
    clips: Annotated[list[_ClipEntry], Field(min_length=1)]
    drift: list[_DriftEntry] = []
    seed: int = 0


class _Scenario(_Strict):
    streams: Annotated[list[_StreamEntry], Field(min_length=1)]


def load_scenario(path: Path, folder: Path | None = None) -> tuple[Footage, ...]:
    """Reads a scenario file. folder: where relative video paths start (None: the scenario's own folder).
    Raises ConfigError naming every wrong field, StreamError for a bad video."""
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        scenario = _Scenario.model_validate(data)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"scenario {path} cannot be read: {type(error).__name__}", subject=str(path)) from error
    except ValidationError as error:
        problems = tuple((".".join(map(str, d["loc"])), d["msg"]) for d in error.errors())
        raise ConfigError(f"scenario {path} is wrong", subject=str(path), problems=problems) from error
    ids = [entry.id for entry in scenario.streams]
    doubled = sorted({id for id in ids if ids.count(id) > 1})
    if doubled:
        raise ConfigError(
            f"scenario {path}: two streams are called {', '.join(doubled)}", subject=str(path), remedy="rename one"
        )
    return tuple(_stream(entry, folder or path.parent) for entry in scenario.streams)


def _stream(entry: _StreamEntry, folder: Path) -> Footage:
    clips = [
        Clip(path=folder / clip.video, start=clip.start, stop=clip.stop) for clip in entry.clips for _ in range(clip.repeat)
    ]
    drift = [DriftSpec(**d.model_dump()) for d in entry.drift]
    return footage_of(entry.id, clips, drift, entry.seed)
