"""What a query is profiled on: a stretch of a video, or a camera's newest samples; and the golden labels of its frames.

A recording is decoded once without making pictures, and once with: so what decoding takes and what a picture takes are told
apart, as
they are spent apart live (every frame of a stream must be decoded, pictures are made of those that are analysed).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from configs.errors import JobError, UsageError
from edge.memo import Memo
from edge.profiler.graph import Clip
from edge.queries.base import Cost, scene_of
from models.detector import Detector
from models.tasks.base import Picture, Task
from scheduler.types import Detections, Frame
from streams.masks import Mask, burn_in
from streams.motion import Motion
from streams.samples import SampleRef, SampleStore
from streams.video import probe, read_frames

#: Seconds of a recording that are profiled on, unless told.
CLIP_S = 20.0
#: Memory that the pictures of a clip may take.
CLIP_MIB = 1500.0
#: Newest samples of a camera that are profiled on, and the fewest that will do.
SAMPLES, SAMPLES_MIN = 48, 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Footage:
    """A clip and where it came from. fps: its full rate; rates: whether its frames are near enough in time for rates to be
    measured;
    source: in words, for people."""

    clip: Clip
    fps: float
    rates: bool
    source: str

    @property
    def size_px(self) -> tuple[int, int]:
        """(width, height) of its pictures."""
        height, width = self.clip.scenes[0].image.shape[:2]
        return width, height


def of_video(
    path: Path, *, camera: str, fps: float, start_s: float = 0.0, seconds: float = CLIP_S, masks: Sequence[Mask] = (),
    regions: bool = False, height_px: int = 0, cpu_s: Callable[[], float] = time.thread_time, name: str = "",
) -> Footage:  # fmt: skip
    """A stretch of a file, at `fps` frames per second (0, or more than it has: all). regions: say what moves in each frame; name: of it,
    for people, and no other's (default: the file's).
    Raises StreamError for what is no video; UsageError for a stretch without frames, or one that does not fit into memory."""
    info, name = probe(path), name or path.name
    native = info.fps or 10.0
    first, last = round(start_s * native), min(info.frames, round((start_s + seconds) * native))
    wanted = fps if 0 < fps < native else native
    numbers = _at_rate(first, last, native, wanted)
    if not numbers:
        raise UsageError(
            f"{name} has nothing at {start_s:g} s: it lasts {info.duration_s:.1f} s", subject=str(path),
            remedy="begin earlier",
        )  # fmt: skip
    _fits(len(numbers), info.width_px, height_px or info.height_px, info.height_px, name)
    decode_s = _decoding_s(path, first, last, cpu_s)
    began_s = cpu_s()
    images = {
        n: burn_in(image, masks)
        for n, image in read_frames(path, start=first, stop=last, only=set(numbers), height_px=height_px)
    }
    picture_s = max(0.0, cpu_s() - began_s - decode_s) / max(1, len(images))
    frames = _frames(camera, images, native, regions)
    key = f"{name}/{path.stat().st_size}/{first}-{last}@{wanted:g}/{height_px}/{regions}/{_mask_key(masks)}"
    seconds = len(numbers) / wanted
    clip = Clip(
        key=key, scenes=[scene_of(frame) for frame in frames], seconds=seconds, decode=Cost(cpu_s=decode_s),
        picture=Cost(cpu_s=picture_s),
    )  # fmt: skip
    return Footage(clip=clip, fps=wanted, rates=True, source=name)


def _at_rate(first: int, last: int, native: float, fps: float) -> list[int]:
    count = int((last - first) * fps / native + 1e-6) or min(1, max(0, last - first))
    return sorted({min(last - 1, first + round(i * native / fps)) for i in range(count)})


def _fits(frames: int, width_px: int, height_px: int, whole_px: int, name: str) -> None:
    mib = frames * height_px * (width_px * height_px / max(1, whole_px)) * 3 / 2**20
    if mib > CLIP_MIB:
        raise UsageError(
            f"the clip of {name} would take {mib:.0f} MiB of memory, {CLIP_MIB:.0f} are allowed", subject=name,
            remedy="take a shorter --clip-s, or set the camera's fps or height_px",
        )  # fmt: skip


def _decoding_s(path: Path, first: int, last: int, cpu_s: Callable[[], float]) -> float:
    """CPU seconds of decoding a stretch without making pictures; what comes before it in the file is not counted."""
    before_s = _passed_s(path, first, cpu_s) if first else 0.0
    return max(0.0, _passed_s(path, last, cpu_s) - before_s)


def _passed_s(path: Path, stop: int, cpu_s: Callable[[], float]) -> float:
    began_s = cpu_s()
    for _ in read_frames(path, stop=stop, only=()):
        pass
    return cpu_s() - began_s


def _frames(camera: str, images: dict[int, np.ndarray], native: float, regions: bool) -> list[Frame]:
    motion = Motion() if regions else None
    frames = []
    for number, image in sorted(images.items()):
        at_s = number / native
        moving = motion.find(image, at_s=at_s) if motion is not None else None
        frames.append(Frame(stream=camera, seq=number, captured_s=at_s, captured_utc=at_s, image=image, regions=moving))
    if not frames:
        raise JobError("none of the clip's frames can be decoded", code="no_data")
    return frames


def _mask_key(masks: Sequence[Mask]) -> str:
    return ",".join(str(mask) for mask in masks)


def of_samples(store: SampleStore, camera: str, *, fps: float, most: int = SAMPLES) -> Footage:
    """A camera's newest samples, which stand for frames at its full rate; they are too far apart for rates to be measured.
    Raises JobError 'no_data' for fewer than SAMPLES_MIN."""
    refs: list[SampleRef] = store.list(camera)[-most:]
    frames = []
    for number, ref in enumerate(refs):
        image, at_s = store.load_image(ref), number / fps
        frames.append(
            Frame(
                stream=camera, seq=ref.window * 10**9 + ref.seq, captured_s=at_s, captured_utc=at_s, image=image,
                regions=store.load_regions(ref),
            )
        )  # fmt: skip
    if len(frames) < SAMPLES_MIN:
        raise JobError(
            f"{camera} has {len(frames)} samples: too few to profile on", code="no_data", subject=camera,
            remedy="let the box run for a while, or give a recording with --video",
        )  # fmt: skip
    # Pictures of another size than the newest (the camera was changed) would be another camera's.
    shape = frames[-1].image.shape
    frames = [frame for frame in frames if frame.image.shape == shape]
    clip = Clip(
        key=f"samples/{camera}/{refs[0].name}-{refs[-1].name}", scenes=[scene_of(f) for f in frames], seconds=len(frames) / fps
    )
    return Footage(clip=clip, fps=fps, rates=False, source=f"{len(frames)} samples")


# --- the truth --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """labels: one per frame of the clip; cost_s: what making them took, or once took."""

    labels: Sequence[Detections]
    cost_s: float


def truth_of(
    footage: Footage, task: Task, golden: Detector, *, score_min: float, memo: Memo, name: str,
    used_s: Callable[[], float] = time.thread_time, told: Callable[[int, int], None] = lambda done, of: None,
) -> Truth:  # fmt: skip
    """The golden model's labels of every frame. name: what identifies the model, for the memo; told: progress."""
    labels: list[Detections] = []
    cost_s = 0.0
    for number, scene in enumerate(footage.clip.scenes):
        key = f"truth-{name}-{task.name}-{score_min}-{footage.clip.key}-{scene.frame.seq}".replace("/", "_")
        found, spent_s = memo.detections(_hashed(key)), memo.json(_hashed(key + "-s"))
        if found is None or spent_s is None:
            began_s = used_s()
            picture = Picture(image=scene.image, regions=scene.regions)
            found = task.labels(golden, [picture], score_min=score_min)[0]
            spent_s = used_s() - began_s
            memo.keep_detections(_hashed(key), found)
            memo.keep_json(_hashed(key + "-s"), spent_s)
        labels.append(found)
        cost_s += float(spent_s)
        told(number + 1, len(footage.clip.scenes))
    return Truth(labels=labels, cost_s=cost_s)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
