"""Footage in memory and everything about it that is the same for all policies: labels, predictions, trainings, costs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from configs.errors import JobError, StreamError, StreamErrorCode
from edge import jobs
from edge.costs import CostProfile
from edge.evaluate.golden import TORCH, golden_key
from edge.evaluate.seen import RememberedTask, seen_counts
from edge.footage import Footage
from edge.memo import Memo
from models.detector import Detector
from models.evaluate import match_counts
from models.golden import PLAIN, Labelling
from models.labelled import LabelledImage
from models.tasks.base import Picture, Task
from models.tasks.detection import DETECTION
from models.zoo import is_classifier, new_detector
from scheduler.ekya.staleness import Agreement
from scheduler.ekya.usual_knobs import usual_quality_frac
from scheduler.engine import EngineConfig
from scheduler.types import Detections, KnobProfile
from streams.motion import MotionOptions, no_regions

#: Ages (in frames of the footage) at which stale detections are really measured; ages between take the next lower one.
AGES: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
#: Every how-many-th frame the offered knobs analyse.
STRIDES: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)
#: Of a window's candidates so many are held against earlier frames, where a stream's rates follow its own model.
COMPARED = 10
#: Longer side of the frames that crops are cut from.
REGIONS_PX = 640
#: A stream in which hardly anything moves still costs this part of the usual one.
LEAST_BUSY = 0.05
#: A live box keeps a frame a second (`window.sample_fps`), so whoever looks at the first minute of a window has more to see than the
#: candidates that were captured by then: so many frames more, of the first part of a window.
EARLY, EARLY_FRAC = 8, 0.2
#: Where a stream declares no change of the light, windows take turns: so many make a day.
DAYPARTS = 3
Log = Callable[[str], None]


def default_scoring() -> jobs.Scoring:
    """The box's labels are counted like the truth: golden detections from the same score on."""
    return jobs.Scoring(golden_score_min=0.25)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """windows: parts each stream is cut into; candidates: frames per part that may be sampled; judged: evaluation frames per part
    (never labelled for training); fps: rate at which live inference must keep up; gpu_speed: one GPU does the work of so many
    cores of the machine the costs were measured on; replay_windows: earlier windows whose labels a retraining may replay.
    golden_runtime: what carries out the golden model (`edge.evaluate.golden`); a label's virtual cost does not depend on it.
    engine: everything of the box's configuration that the evaluation does not set itself (see `edge.evaluate.run.engine_config`).
    """

    windows: int = 5
    window_s: float = 200.0
    gpus: float = 1.0
    fps: float = 10.0
    candidates: int = 24
    judged: int = 16
    gpu_speed: float = 1.0
    seed: int = 0
    replay_windows: int = 3
    engine: EngineConfig = field(default_factory=EngineConfig)
    scoring: jobs.Scoring = field(default_factory=default_scoring)
    labelling: Labelling = PLAIN
    task: Task = DETECTION
    golden_runtime: str = TORCH

    def switched(self, **switches: bool | None) -> EvaluateOptions:
        """With these switches of the engine (drift, reuse, group, together) set; None leaves one as it is."""
        given = {name: value for name, value in switches.items() if value is not None}
        return replace(self, engine=replace(self.engine, **given))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A frame that may be sampled: position in its window as a fraction of it."""

    stream: str
    window: int
    index: int
    at_frac: float

    @property
    def name(self) -> str:
        return f"{self.index:06d}"


@dataclass(kw_only=True)
class Work:
    """Work really done, not found in the memo: what a second run must not do again."""

    golden: int = 0
    predictions: int = 0
    embeddings: int = 0
    trials: int = 0
    trainings: int = 0


class Studio:
    """Footage in memory plus everything that is the same for all policies: labels, predictions, trainings, costs.

    Raises StreamError for footage that cannot be decoded.
    """

    def __init__(
        self, footage: Sequence[Footage], edge: Detector, golden: Detector, costs: CostProfile, options: EvaluateOptions,
        memo: Memo, log: Log,
    ) -> None:  # fmt: skip
        self.footage = {f.id: f for f in footage}
        self.options, self.costs, self.memo, self.log = options, costs, memo, log
        self.golden = golden
        self.base_version = key_of("base", edge.spec, memo.digest_of(edge.state()))
        self.golden_version = key_of("golden", golden.spec, memo.digest_of(golden.state()), *golden_key(golden))
        self.done = Work()
        self._detectors: dict[str, Detector] = {self.base_version: edge}
        self._forgotten: set[str] = set()  # made in this run, on disk only
        self.task: Task = RememberedTask(options.task, self._recall)
        self._images: dict[tuple[str, int], np.ndarray] = {}
        self._regions: dict[tuple[str, int], np.ndarray] = {}
        self._moving: dict[str, float] = {}  # regions of the mean frame
        self._index_of: dict[tuple[str, int], int] = {}
        self._digests: dict[tuple[str, int], str] = {}
        self._golden: dict[tuple[str, int], Detections] = {}
        self._counts: dict[tuple[str, str, int, int], np.ndarray] = {}
        self._longest_px = longest_px(options.task, edge, golden)
        for stream in self.footage:
            self._load(stream)

    # --- frames -------------------------------------------------------------------------------------------------------

    def _load(self, stream: str) -> None:
        footage = self.footage[stream]
        profiled = [c.index for c in self.candidates(stream, 0)]
        aged = [i for w in range(self.options.windows) for _, i in self.judged(stream, w)] + profiled
        wanted = {max(0, i - age) for i in aged for age in AGES}
        wanted |= {c.index for w in range(self.options.windows) for c in self.kept(stream, w)}
        # What `agreements` looks back at, in the same pass: decoding begins at a clip's first frame, whichever are wanted.
        compared = [c.index for w in range(self.options.windows) for c in self.compared(stream, w)]
        found = self._keep(footage, wanted | {max(0, i - age) for i in compared for age in AGES})
        self.log(f"{stream}: {footage.frames} frames, {len(found)} used")
        if self.options.task.wants_regions:
            self._find_regions(stream, sorted(wanted), found)

    def _keep(self, footage: Footage, wanted: set[int]) -> dict[int, np.ndarray]:
        """Has these frames from now on; returns those that could be decoded."""
        stream = footage.id
        found = footage.load(wanted, longest_px=self._longest_px)
        if not found:
            raise StreamError(
                f"{stream}: none of its frames can be decoded", stream_code=StreamErrorCode.CODEC, subject=stream,
                remedy="play the file, or make it anew",
            )  # fmt: skip
        nearest = found[min(found)]
        for index in sorted(wanted):
            # A file may claim more frames than it holds: the nearest earlier picture stands in.
            nearest = self._images[stream, index] = found.get(index, nearest)
            self._index_of[stream, id(nearest)] = index
        return found

    def _find_regions(self, stream: str, wanted: Sequence[int], found: Mapping[int, np.ndarray]) -> None:
        """What moves in the wanted frames; a frame that another stands in for has that one's regions."""
        moving = regions_of(self.footage[stream], self._longest_px, self.memo)
        nearest = min(found)
        for index in wanted:
            nearest = index if index in found else nearest
            self._regions[stream, index] = moving.get(nearest, no_regions())
        self._moving[stream] = float(np.mean([len(self._regions[stream, index]) for index in wanted]))
        self.log(f"{stream}: {self._moving[stream]:.1f} regions move in a frame")

    def bounds(self, stream: str, window: int) -> tuple[int, int]:
        """First frame of a window and the first after it."""
        frames = self.footage[stream].frames
        return frames * window // self.options.windows, frames * (window + 1) // self.options.windows

    def daypart_and_place(self, stream: str, window: int) -> tuple[str, str]:
        """Labels of a window, as its middle frame has them. Time of day: what the stream declares, or which of the `DAYPARTS` it is."""
        footage, middle = self.footage[stream], sum(self.bounds(stream, window)) // 2
        return footage.daypart(middle) or f"part {window % DAYPARTS}", footage.place(middle)

    def judged(self, stream: str, window: int) -> list[tuple[float, int]]:
        """(position in the window 0-1, frame) of the evaluation frames, each in the middle of its stretch."""
        start, stop = self.bounds(stream, window)
        count = min(self.options.judged, max(1, (stop - start) // 2))
        return [((i + 0.5) / count, start + int((i + 0.5) / count * (stop - start))) for i in range(count)]

    def candidates(self, stream: str, window: int) -> list[Candidate]:
        """Frames that may be sampled: evenly spread, never an evaluation frame."""
        start, stop = self.bounds(stream, window)
        taken = {i for _, i in self.judged(stream, window)}
        free = [i for i in range(start, stop) if i not in taken]
        count = min(self.options.candidates, len(free))
        picks = [free[int((k + 0.5) / count * len(free))] for k in range(count)]
        return self._candidates(stream, window, picks)

    def early(self, stream: str, window: int) -> list[Candidate]:
        """Further frames of a window's beginning, evenly spread, no evaluation frames either."""
        start, stop = self.bounds(stream, window)
        taken = {i for _, i in self.judged(stream, window)} | {c.index for c in self.candidates(stream, window)}
        free = [i for i in range(start, start + int(EARLY_FRAC * (stop - start))) if i not in taken]
        count = min(EARLY, len(free))
        return self._candidates(stream, window, [free[int((k + 0.5) / count * len(free))] for k in range(count)])

    def kept(self, stream: str, window: int) -> list[Candidate]:
        """Candidates and early frames, in time order."""
        return sorted([*self.candidates(stream, window), *self.early(stream, window)], key=lambda c: c.index)

    def _candidates(self, stream: str, window: int, picks: Sequence[int]) -> list[Candidate]:
        start, stop = self.bounds(stream, window)
        return [
            Candidate(stream=stream, window=window, index=i, at_frac=(i - start) / (stop - start)) for i in dict.fromkeys(picks)
        ]

    def image(self, stream: str, index: int) -> np.ndarray:
        return self._images[stream, index]

    def picture(self, stream: str, index: int) -> Picture:
        """The frame as a task sees it."""
        return Picture(image=self.image(stream, index), regions=self._regions.get((stream, index)))

    def index_of(self, stream: str, image: np.ndarray) -> int | None:
        """The frame that `image` (one of `image(...)`'s own arrays) shows; None for any other picture (a mirrored one, say)."""
        return self._index_of.get((stream, id(image)))

    def digest(self, stream: str, index: int) -> str:
        """What identifies a frame as a task sees it, for memoised work: its pixels, and what moves where the task asks for that."""
        regions = self._regions.get((stream, index))
        pixels = self.pixels(stream, index)
        return pixels if regions is None else key_of(pixels, regions.tolist())

    def pixels(self, stream: str, index: int) -> str:
        """What identifies a frame's pixels."""
        if (stream, index) not in self._digests:
            self._digests[stream, index] = digest_of_image(self.image(stream, index))
        return self._digests[stream, index]

    # --- labels and predictions ---------------------------------------------------------------------------------------

    def golden_labels(self, stream: str, index: int) -> Detections:
        """Golden detections of a frame, down to the lower of both score thresholds: from memory, the memo, or the model."""
        if (stream, index) not in self._golden:
            self._golden[stream, index] = self._asked(self.image(stream, index), self.pixels(stream, index))
        return self._golden[stream, index]

    def golden_on(self, image: np.ndarray) -> Detections:
        """The same for a picture that is no frame of the footage."""
        return self._asked(image, digest_of_image(image))

    def _asked(self, image: np.ndarray, digest: str) -> Detections:
        scoring, labelling = self.options.scoring, self.options.labelling
        score_min = min(scoring.golden_score_min * labelling.labels_from_frac, scoring.score_min)
        key = key_of("golden", self.golden_version, digest, score_min)
        found = self.memo.detections(key)
        if found is None:
            self.done.golden += 1
            found = self.golden.predict([image], score_min=score_min)[0]
            self.memo.keep_detections(key, found)
        return found

    def truth(self, stream: str, index: int) -> Detections:
        """What should be said of a frame."""
        golden: Any = FromMemo(self, stream)
        return self.options.task.labels(golden, [self.picture(stream, index)], score_min=self.options.scoring.score_min)[0]

    def counts(self, stream: str, version: str, index: int, stride: int) -> np.ndarray:
        """(tp, fp, fn) of a version on a frame when every stride-th frame is analysed: the mean over the ages that the shown
        detections can have (0 .. stride-1 frames)."""
        total = np.zeros(3)
        for number, age in enumerate(AGES):
            after = AGES[number + 1] if number + 1 < len(AGES) else stride
            ages = min(after, stride) - age  # how many of the ages this measurement stands for
            if ages > 0:
                total += ages * self._counts_at(stream, version, index, age)
        return total / stride

    def _counts_at(self, stream: str, version: str, index: int, age: int) -> np.ndarray:
        key = (stream, version, index, age)
        if key not in self._counts:
            task, scoring = self.options.task, self.options.scoring
            said = self.predictions(stream, version, max(0, index - age))
            judge = partial(seen_counts, task) if age else task.counts
            found = judge(said, self.truth(stream, index), scoring)
            self._counts[key] = np.array([found.tp, found.fp, found.fn], dtype=float)
        return self._counts[key]

    def predictions(self, stream: str, version: str, index: int) -> Detections:
        """What a version says of a frame, from the edge's score threshold on: from the memo, or the model."""
        task, score_min = self.options.task, self.options.scoring.score_min
        key = key_of("predict", version, self.digest(stream, index), score_min, *task_marks(task))
        found = self.memo.detections(key)
        if found is None:
            self.done.predictions += 1
            found = task.predict(self.detector(version), [self.picture(stream, index)], score_min=score_min)[0]
            self.memo.keep_detections(key, found)
        return found

    def _recall(self, model: Detector, picture: Picture, score_min: float) -> Detections | None:
        """What `predictions` has for a job that asks a remembered version; None: not a frame of the footage, or another model."""
        if not isinstance(model, FromMemo) or model.version is None or score_min != self.options.scoring.score_min:
            return None
        index = self.index_of(model.stream, picture.image)
        return None if index is None else self.predictions(model.stream, model.version, index)

    def embedding(self, stream: str, version: str, index: int) -> np.ndarray:
        """float32 (D,): a version's features of a frame (`Detector.embed`): from the memo, or the model."""
        key = key_of("embed", version, self.digest(stream, index))
        found = self.memo.json(key)
        if found is None:
            self.done.embeddings += 1
            found = self.detector(version).embed([self.image(stream, index)])[0].tolist()
            self.memo.keep_json(key, found)
        return np.array(found, np.float32)

    def window_f1(self, stream: str, window: int, version: str) -> float:
        """F1 of one version over a window's evaluation frames, every frame analysed."""
        return self._f1(stream, version, [i for _, i in self.judged(stream, window)], stride=1)

    def _f1(self, stream: str, version: str, indices: Sequence[int], stride: int) -> float:
        return f1_of(sum((self.counts(stream, version, i, stride) for i in indices), np.zeros(3)))

    # --- what the box is told about a camera beforehand ---------------------------------------------------------------

    def first_quality(self, stream: str, stride: int = 1) -> float:
        """F1 of the first model on the sampled frames of the first window (evaluation frames stay unseen)."""
        return self._f1(stream, self.base_version, [c.index for c in self.candidates(stream, 0)], stride)

    def is_profiled(self, stream: str) -> bool:
        """Whether `knobs` could be measured. Where not, rates follow the stream's own model, as on a box (`scheduler.ekya.staleness`);
        which compares boxes, so not where a task answers for regions."""
        return self.first_quality(stream) > 0 or self.options.task.wants_regions

    def compared(self, stream: str, window: int) -> list[Candidate]:
        """Some of the candidates, evenly spread: the newest frames of comparisons."""
        return self.candidates(stream, window)[:: max(1, -(-self.options.candidates // COMPARED))]

    def agreements(self, stream: str, version: str, index: int, stride: int) -> list[Agreement]:
        """What a version said of earlier frames held against what it says of this one, of `compared`. stride: of what was analysed no
        two frames are nearer."""
        scoring = self.options.scoring
        newest = self.predictions(stream, version, index).above(scoring.score_min)
        found = []
        for age in (age for age in AGES if 0 < stride <= age <= index):
            old = self.predictions(stream, version, index - age)
            seen = match_counts(old, newest, iou_min=scoring.iou_min, score_min=scoring.score_min)
            found.append(Agreement(age_s=age / self.options.fps, tp=seen.tp, fp=seen.fp, fn=seen.fn))
        return found

    def knobs(self, stream: str) -> tuple[KnobProfile, ...]:
        """The stream's inference profile: the offline profile of the paper, measured on its first window with its first model;
        where that finds nothing there is nothing to measure, and it is taken for usual, as on a box that has no profile."""
        full = self.first_quality(stream)
        if full <= 0:
            return self.usual_knobs(stream)
        return self._rated(stream, lambda stride: self.first_quality(stream, stride) / full)

    def usual_knobs(self, stream: str) -> tuple[KnobProfile, ...]:
        """What a box takes every stream for of which it knows nothing."""
        return self._rated(stream, usual_quality_frac)

    def _rated(self, stream: str, quality_frac: Callable[[int], float]) -> tuple[KnobProfile, ...]:
        """quality_frac: what analysing every so-many-th frame leaves of the quality."""
        profiles, last = [], 1.0
        for stride in STRIDES:
            last = min(last, quality_frac(stride))  # a slower rate is never better: what looks so is noise of the sample
            name = "every" if stride == 1 else f"1/{stride}"
            demand_pct, fps = self.full_pct(stream) / stride, self.options.fps / stride
            profiles.append(KnobProfile(name=name, demand_pct=round(demand_pct, 3), quality_frac=round(last, 4), fps=fps))
        return tuple(profiles)

    def full_pct(self, stream: str) -> float:
        """Percent of a GPU that analysing every frame of a stream needs. The measured cost is that of the usual frame; where work
        follows content, a stream in which more moves than in the others needs more, in proportion."""
        return 100.0 * self.options.fps * self.costs.infer_gpu_s * self._busyness(stream)

    def _busyness(self, stream: str) -> float:
        """Regions of the stream's frames against the mean of all streams; 1 where nobody looks for movement."""
        usual = float(np.mean([self._moving[s] for s in self.footage])) if self._moving else 0.0
        return max(LEAST_BUSY, self._moving[stream] / usual) if usual > 0 else 1.0

    # --- models -------------------------------------------------------------------------------------------------------

    def detector(self, version: str) -> Detector:
        """A version made in this run. Raises KeyError for any other."""
        if version in self._forgotten:
            state = self.memo.state(version)
            assert state is not None, "only what the memo keeps is forgotten"
            self._forgotten.discard(version)
            self._detectors[version] = self.restored(state)
        return self._detectors[version]

    def forget(self) -> None:
        """Lets go of the trained models that the memo keeps on disk, and of the work copies that they hold: between two policies, which
        share few of them. `detector` reads one again when it is asked for."""
        if not self.memo.on_disk:
            return
        self._forgotten |= self._detectors.keys() - {self.base_version}
        self._detectors = {self.base_version: self._detectors[self.base_version]}

    def has(self, version: str) -> bool:
        """Has this version been made in this run?"""
        return version in self._detectors or version in self._forgotten

    def train(self, version: str, make: Callable[[], Detector]) -> str | None:
        """Makes `version` exist: from this run, from the memo, or by `make`. The JobError's text when the training failed."""
        if self.has(version):
            return None
        state = self.memo.state(version)
        if state is not None:
            detector = self.restored(state)
        else:
            self.done.trainings += 1
            try:
                detector = make()
            except JobError as error:
                return str(error)
            self.memo.keep_state(version, detector.state())
        self._detectors[version] = detector
        return None

    def restored(self, state: dict[str, torch.Tensor]) -> Detector:
        """A trained model out of its weights. A classifier is built anew: how wide its head is lies in the state."""
        base = self.detector(self.base_version)
        if is_classifier(base.spec.arch):
            return new_detector(base.spec, state=state)
        detector = base.clone()
        detector.load_state(state)
        return detector


class StudioSamples:
    """`edge.jobs.Samples` over a studio, for one policy's run: who has labelled what, and what time it is."""

    def __init__(self, studio: Studio) -> None:
        self._studio, self._options = studio, studio.options
        self._splits: dict[tuple[str, int], str] = {}
        self._found: dict[tuple[str, int], Detections | None] = {}  # None: left out
        self._now_s, self._looks_at = 0.0, -1

    def set_time(self, now_s: float, looks_at: int = -1) -> None:
        """It is so late. looks_at: the window that is glanced at; if it is in progress, its early frames are there."""
        self._now_s, self._looks_at = now_s, looks_at

    def sampled(self, stream: str, window: int) -> list[Candidate]:
        """Only what has been captured by now: a window in progress shows its past. Early frames are there for glances, and stay once
        they are labelled. As live, a frame in which nothing moves is no sample where the task is about what moves."""
        passed = self._now_s / self._options.window_s - window
        plain = {c.index for c in self._studio.candidates(stream, window)}
        glance = window == self._looks_at and passed < 1
        known = (c for c in self._studio.kept(stream, window) if glance or c.index in plain or self.split(c) is not None)
        past = [c for c in known if c.at_frac <= passed]
        return [c for c in past if (regions := self.picture(c).regions) is None or len(regions)]

    def picture(self, ref: Any) -> Picture:
        return self._studio.picture(ref.stream, ref.index)

    def labels(self, ref: Any) -> Detections | None:
        return self._found.get((ref.stream, ref.index))

    def split(self, ref: Any) -> str | None:
        return self._splits.get((ref.stream, ref.index))

    def by_person(self, ref: Any) -> bool:
        return False

    def label(
        self, ref: Any, labels: Detections, *, golden: str, split: str, unsure: Detections | None = None,
        left_out: bool = False, gpu_s: float | None = None,
    ) -> None:  # fmt: skip
        self._splits[ref.stream, ref.index] = split
        self._found[ref.stream, ref.index] = None if left_out else labels

    def labelled(self, stream: str, windows: Sequence[int], split: str) -> list[LabelledImage]:
        return [
            LabelledImage(image=self.picture(c).image, labels=labels)
            for c in self._with_split(stream, windows, split)
            if (labels := self.labels(c)) is not None
        ]

    def _with_split(self, stream: str, windows: Sequence[int], split: str) -> list[Candidate]:
        mine = [c for w in windows for c in self._studio.kept(stream, w) if self.split(c) == split]
        return [c for c in mine if self.labels(c) is not None]

    def labelled_indices(self) -> set[tuple[str, int]]:
        """(stream, frame) of everything that was labelled."""
        return set(self._splits)

    def key(self, stream: str, windows: Sequence[int], split: str) -> str:
        """What identifies `labelled(...)`: pixels and labels."""
        digests = [self._studio.digest(c.stream, c.index) for c in self._with_split(stream, windows, split)]
        return key_of(self._studio.golden_version, digests, self._options.scoring.golden_score_min, *self._marks())

    def _marks(self) -> tuple[object, ...]:
        """What else the labels depend on; nothing for plain ones, so that kept work stays valid."""
        plain = self._options.labelling == PLAIN
        return (*task_marks(self._options.task), *(() if plain else (self._options.labelling,)))


class FromMemo:
    """A detector as jobs see it that train nothing, answered from the studio's memory of one stream: the golden model (version None)
    or a served one."""

    def __init__(self, studio: Studio, stream: str, version: str | None = None) -> None:
        self.spec = studio.golden.spec if version is None else studio.detector(version).spec
        self.stream, self.version = stream, version
        self._studio = studio

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        return [self._said(image, score_min) for image in images]

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([self._features(image) for image in images])

    def _features(self, image: np.ndarray) -> np.ndarray:
        index = self._studio.index_of(self.stream, image)
        assert self.version is not None, "nobody looks through the golden model"
        if index is None:
            return self._studio.detector(self.version).embed([image])[0]
        return self._studio.embedding(self.stream, self.version, index)

    def state(self) -> dict[str, torch.Tensor]:
        return (self._studio.golden if self.version is None else self._studio.detector(self.version)).state()

    def _said(self, image: np.ndarray, score_min: float) -> Detections:
        """The golden model's answers are kept, those of a served one by the studio's task: whatever else is asked, the model says."""
        if self.version is not None:
            return self._studio.detector(self.version).predict([image], score_min=score_min)[0]
        index = self._studio.index_of(self.stream, image)
        found = self._studio.golden_on(image) if index is None else self._studio.golden_labels(self.stream, index)
        return found.above(score_min)


def longest_px(task: Task, *models: Detector) -> int:
    """Size of the frames that are kept: what the models see of a frame; crops are cut from frames of a camera's usual size."""
    return max(REGIONS_PX if task.wants_regions else 0, *(model.spec.input_px for model in models))


def regions_of(footage: Footage, longest_px: int, memo: Memo) -> dict[int, np.ndarray]:
    """What moves in each frame (`Footage.regions`): from the memo, or looked for."""
    key = key_of("regions", footage.key(), footage.fps, longest_px, MotionOptions())
    found = memo.json(key)
    if found is None:
        found = {str(index): regions.tolist() for index, regions in footage.regions(longest_px=longest_px).items()}
        memo.keep_json(key, found)
    return {int(index): np.array(regions, np.float32).reshape(-1, 4) for index, regions in found.items()}


def task_marks(task: Task) -> tuple[str, ...]:
    """What a task adds to the keys of remembered work; nothing for detection, so that kept work stays valid."""
    return () if task is DETECTION else (task.name,)


def f1_of(counts: np.ndarray) -> float:
    """F1 of summed (tp, fp, fn), which may be fractional; 1 when there was nothing to find and nothing was found."""
    tp, fp, fn = counts
    return float(2 * tp / (2 * tp + fp + fn)) if tp + fp + fn > 0 else 1.0


def digest_of_image(image: np.ndarray) -> str:
    """SHA-256 of a picture's size and pixels."""
    return hashlib.sha256(repr(image.shape).encode() + np.ascontiguousarray(image).tobytes()).hexdigest()


def key_of(*parts: object) -> str:
    """SHA-256 of the parts' representations; every part must print all that it stands for."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()
