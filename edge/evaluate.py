"""`driftbox evaluate`: how well would this box have done on this footage? Real inference, labels and training; virtual time.

Every stream is cut into `windows` equal parts, each standing for `window_s` virtual seconds (the authors counted frames too, with
Cityscapes). The box's own engine runs under `scheduler.sim.driver`; what a job costs comes from a cost profile, so the result does
not depend on how busy this machine is. What a job *does* is real: `edge.jobs`, the code the live box runs.

Truth is kept apart from belief: shown quality is F1 against golden labels of evaluation frames that no job ever sees, with the model,
the knobs and the share in force at the frame's virtual time. A frame that the knobs skip is judged by the detections of the last
analysed one. Work that policies share (labels, trainings from the same parent on the same data) is done once, keyed by content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import JobError
from edge import jobs
from edge.costs import CostProfile
from edge.footage import Footage
from edge.memo import Memo
from models.detector import Detector
from models.evaluate import match_counts
from models.retrain import LabelledImage
from scheduler.commands import (
    Command,
    SetKnobs,
    SetShares,
    StartGate,
    StartLabelling,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    EpochDone,
    Event,
    GateDone,
    JobFailed,
    LabelDone,
    ProfileDone,
    RetrainDone,
    SwapDone,
)
from scheduler.sim.driver import VirtualDriver, Work
from scheduler.types import Detections, EpochReport, KnobProfile, ProfileTrial, RetrainConfig, RetrainOption

#: Ages (in frames of the footage) at which stale detections are really measured; ages between take the next lower one.
AGES: tuple[int, ...] = (0, 1, 2, 4, 8)
#: Every how-many-th frame the offered knobs analyse.
STRIDES: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """windows: parts each stream is cut into; candidates: frames per part that may be sampled; judged: evaluation frames per part
    (never labelled for training); fps: rate at which live inference must keep up; gpu_speed: one GPU does the work of so many
    cores of the machine the costs were measured on."""

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
    scoring: jobs.Scoring = field(default_factory=jobs.Scoring)


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


class Studio:
    """Footage in memory plus everything that is the same for all policies: labels, predictions, trainings, costs."""

    def __init__(
        self, footage: Sequence[Footage], edge: Detector, golden: Detector, costs: CostProfile, options: EvaluateOptions,
        memo: Memo, log: Log,
    ) -> None:  # fmt: skip
        self.footage = {f.id: f for f in footage}
        self.options, self.costs, self.memo, self.log = options, costs, memo, log
        self.golden, self._base = golden, edge
        self.base_version = _key("base", edge.spec, memo.digest_of(edge.state()))
        self._detectors: dict[str, Detector] = {self.base_version: edge}
        self._images: dict[tuple[str, int], np.ndarray] = {}
        self._golden: dict[tuple[str, int], Detections] = {}
        self._counts: dict[tuple[str, str, int, int], np.ndarray] = {}
        self.trainings = 0
        self._longest_px = max(edge.spec.input_px, golden.spec.input_px)
        self._load()

    def _load(self) -> None:
        for stream, footage in self.footage.items():
            judged = [i for w in range(self.options.windows) for _, i in self.judged(stream, w)]
            wanted = {max(0, i - age) for i in judged for age in AGES}
            wanted |= {c.index for w in range(self.options.windows) for c in self.candidates(stream, w)}
            for index, image in footage.load(wanted, longest_px=self._longest_px).items():
                self._images[stream, index] = image
            missing = wanted - {index for name, index in self._images if name == stream}
            # A file may claim more frames than it holds: the nearest earlier picture stands in.
            for index in sorted(missing):
                have = max((i for s, i in self._images if s == stream and i < index), default=None)
                if have is not None:
                    self._images[stream, index] = self._images[stream, have]
            self.log(f"{stream}: {footage.frames} frames, {len(wanted)} used")

    def _bounds(self, stream: str, window: int) -> tuple[int, int]:
        frames = self.footage[stream].frames
        return frames * window // self.options.windows, frames * (window + 1) // self.options.windows

    def judged(self, stream: str, window: int) -> list[tuple[float, int]]:
        """(position in the window 0-1, frame) of the evaluation frames, each in the middle of its stretch."""
        start, stop = self._bounds(stream, window)
        count = min(self.options.judged, max(1, (stop - start) // 2))
        return [((i + 0.5) / count, start + int((i + 0.5) / count * (stop - start))) for i in range(count)]

    def candidates(self, stream: str, window: int) -> list[Candidate]:
        """Frames that may be sampled: evenly spread, never an evaluation frame."""
        start, stop = self._bounds(stream, window)
        taken = {i for _, i in self.judged(stream, window)}
        free = [i for i in range(start, stop) if i not in taken]
        count = min(self.options.candidates, len(free))
        picks = [free[int((k + 0.5) / count * len(free))] for k in range(count)]
        return [
            Candidate(stream=stream, window=window, index=i, at_frac=(i - start) / (stop - start)) for i in dict.fromkeys(picks)
        ]

    def image(self, stream: str, index: int) -> np.ndarray:
        return self._images[stream, index]

    def golden_labels(self, stream: str, index: int) -> Detections:
        """Golden detections of a frame (score >= golden_score_min), from memory, the memo, or the model."""
        if (stream, index) not in self._golden:
            score_min = min(self.options.scoring.golden_score_min, self.options.scoring.score_min)
            key = _key("golden", self.golden.spec, self.footage[stream].key(), index, self._longest_px, score_min)
            found = self.memo.detections(key)
            if found is None:
                found = self.golden.predict([self.image(stream, index)], score_min=score_min)[0]
                self.memo.keep_detections(key, found)
            self._golden[stream, index] = found
        return self._golden[stream, index]

    def detector(self, version: str) -> Detector:
        return self._detectors[version]

    def counts(self, stream: str, version: str, index: int, stride: int) -> np.ndarray:
        """(tp, fp, fn) of a version on an evaluation frame when every stride-th frame is analysed: the mean over the ages that the
        shown detections can have (0 .. stride-1 frames)."""
        total = np.zeros(3)
        for age in range(stride):
            measured = max(a for a in AGES if a <= age)
            total += self._counts_at(stream, version, index, measured)
        return total / stride

    def _counts_at(self, stream: str, version: str, index: int, age: int) -> np.ndarray:
        key = (stream, version, index, age)
        if key not in self._counts:
            scoring = self.options.scoring
            shown = self._predict(stream, version, max(0, index - age))
            truth = self.golden_labels(stream, index).above(scoring.score_min)
            found = match_counts(shown, truth, iou_min=scoring.iou_min, score_min=scoring.score_min)
            self._counts[key] = np.array([found.tp, found.fp, found.fn], dtype=float)
        return self._counts[key]

    def _predict(self, stream: str, version: str, index: int) -> Detections:
        key = _key("predict", version, self.footage[stream].key(), index, self._longest_px, self.options.scoring.score_min)
        found = self.memo.detections(key)
        if found is None:
            found = self.detector(version).predict([self.image(stream, index)], score_min=self.options.scoring.score_min)[0]
            self.memo.keep_detections(key, found)
        return found

    def window_f1(self, stream: str, window: int, version: str, stride: int = 1) -> float:
        """F1 of one version over a whole window at one stride."""
        return f1_of(sum((self.counts(stream, version, i, stride) for _, i in self.judged(stream, window)), np.zeros(3)))

    def knobs(self, stream: str) -> tuple[KnobProfile, ...]:
        """The stream's inference profile, measured on its first window with its first model (the offline profile of the paper)."""
        full = self.window_f1(stream, 0, self.base_version)
        profiles, last = [], 1.0
        for stride in STRIDES:
            measured = self.window_f1(stream, 0, self.base_version, stride) / full if full > 0 else 1.0 / stride
            last = min(last, measured)  # a slower rate is never better: what looks so is noise of the sample
            demand = 100.0 * self.options.fps * self.costs.infer_gpu_s / stride
            name = "every" if stride == 1 else f"1/{stride}"
            fps = self.options.fps / stride
            profiles.append(KnobProfile(name=name, demand_pct=round(demand, 3), quality_frac=round(last, 4), fps=fps))
        return tuple(profiles)

    def train(self, version: str, make: Callable[[], Detector]) -> bool:
        """Makes `version` exist: from this run, from the memo, or by `make`. False when the training failed."""
        if version in self._detectors:
            return True
        state = self.memo.state(version)
        if state is not None:
            detector = self.detector(self.base_version).clone()
            detector.load_state(state)
        else:
            self.trainings += 1
            try:
                detector = make()
            except JobError as error:
                self.log(f"training {version[:8]} failed: {error}")
                return False
            self.memo.keep_state(version, detector.state())
        self._detectors[version] = detector
        return True


class StudioSamples:
    """`edge.jobs.Samples` over a studio, for one policy's run: who has labelled what, and what time it is."""

    def __init__(self, studio: Studio, options: EvaluateOptions) -> None:
        self._studio, self._options = studio, options
        self._splits: dict[tuple[str, int], str] = {}
        self.now_s = 0.0

    def sampled(self, stream: str, window: int) -> list[Candidate]:
        """Only what has been captured by now: a window in progress shows its past."""
        passed = self.now_s / self._options.window_s - window
        return [c for c in self._studio.candidates(stream, window) if c.at_frac <= passed]

    def image(self, ref: Any) -> np.ndarray:
        return self._studio.image(ref.stream, ref.index)

    def labels(self, ref: Any) -> Detections | None:
        if (ref.stream, ref.index) not in self._splits:
            return None
        return self._studio.golden_labels(ref.stream, ref.index).above(self._options.scoring.golden_score_min)

    def split(self, ref: Any) -> str | None:
        return self._splits.get((ref.stream, ref.index))

    def label(self, ref: Any, labels: Detections, *, golden: str, split: str) -> None:
        self._splits[ref.stream, ref.index] = split

    def labelled(self, stream: str, windows: Sequence[int], split: str) -> list[LabelledImage]:
        return [
            LabelledImage(image=self.image(c), labels=labels)
            for window in windows
            for c in self._studio.candidates(stream, window)
            if self.split(c) == split and (labels := self.labels(c)) is not None
        ]

    def key(self, stream: str, window: int, split: str) -> str:
        indices = [c.index for c in self._studio.candidates(stream, window) if self.split(c) == split]
        return _key(self._studio.footage[stream].key(), self._studio.golden.spec, indices, self._options.scoring)


class _MemoGolden:
    """The golden model as the jobs see it, answered from the studio's labels."""

    def __init__(self, studio: Studio, stream: str, scoring: jobs.Scoring) -> None:
        self.spec = studio.golden.spec
        self._studio, self._stream, self._scoring = studio, stream, scoring
        self._index: dict[int, int] = {id(image): index for (s, index), image in studio._images.items() if s == stream}

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        return [self._studio.golden_labels(self._stream, self._index[id(image)]).above(score_min) for image in images]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What a stream was served with from at_s on. infer_pct: its share; demand_pct: what its knobs need."""

    at_s: float
    version: str
    knobs: str | None
    infer_pct: float


class EvaluateWorld:
    """`scheduler.sim.driver.World` with real models behind it."""

    def __init__(self, studio: Studio, knobs: dict[str, tuple[KnobProfile, ...]]) -> None:
        self._studio, self._options = studio, studio.options
        self.samples = StudioSamples(studio, studio.options)
        self._knobs = knobs
        self._now: dict[str, Stretch] = {
            s: Stretch(at_s=0.0, version=studio.base_version, knobs=None, infer_pct=0.0) for s in studio.footage
        }
        self.timeline: dict[str, list[Stretch]] = {s: [] for s in studio.footage}
        self.gpu_s = 0.0
        self.retrainings = 0
        self.admitted = 0
        self.trace: list[dict[str, Any]] = []

    # --- what the driver asks ---

    def start(self, command: Command, at_s: float) -> Work:
        if isinstance(command, StartLabelling):
            return self._labelling(command)
        if isinstance(command, StartProfiling):
            return self._profiling(command)
        if isinstance(command, StartRetraining):
            return self._retraining(command)
        if isinstance(command, StartGate):
            return self._gate(command, at_s)
        raise TypeError(type(command).__name__)

    def swap(self, command: SwapModel, at_s: float) -> Event:
        self._record(command.stream, replace(self._now[command.stream], at_s=at_s, version=command.version))
        self.admitted += 1
        return SwapDone(at_s=at_s, stream=command.stream, version=command.version)

    def observe(self, command: Command, at_s: float) -> None:
        if isinstance(command, SetKnobs):
            self._record(command.stream, replace(self._now[command.stream], at_s=at_s, knobs=command.knobs))
        elif isinstance(command, SetShares):
            shares = dict(command.shares_pct)
            for stream in self._studio.footage:
                share = shares.get(f"{stream}/infer", 0.0)
                self._record(stream, replace(self._now[stream], at_s=at_s, infer_pct=share))

    def _record(self, stream: str, stretch: Stretch) -> None:
        self._now[stream] = stretch
        self.timeline[stream].append(stretch)

    # --- jobs: cost now, work when virtual time has come ---

    def _labelling(self, command: StartLabelling) -> Work:
        costs = self._studio.costs
        refs = jobs.spread(self._studio.candidates(command.stream, command.window), command.frames)
        new = sum(self.samples.split(r) is None for r in refs)  # type: ignore[arg-type]
        cost = new * costs.golden_gpu_s + len(refs) * command.holdout_frac * costs.infer_gpu_s

        def finish(at_s: float) -> Event:
            self.samples.now_s, self.gpu_s = at_s, self.gpu_s + cost
            result = jobs.run_at_once(
                jobs.label_steps(
                    self.samples, self._golden(command.stream), self._studio.detector(command.version), stream=command.stream,
                    window=command.window, frames=command.frames, holdout_frac=command.holdout_frac,
                    scoring=self._options.scoring,
                )  # fmt: skip
            )
            return LabelDone(
                at_s=at_s, job=command.job, stream=command.stream, train=result.train, holdout=result.holdout,
                quality=result.quality, gpu_s=new * costs.golden_gpu_s if new else 0.0,
            )  # fmt: skip

        return Work(gpu_s=cost, finish=finish)

    def _profiling(self, command: StartProfiling) -> Work:
        """Trials run in order while the budget lasts, as on the live box."""
        train = self.samples.labelled(command.stream, [command.window], "train")
        holdout = self.samples.labelled(command.stream, [command.window], "holdout")
        configs, cost = [], 0.0
        for config in command.configs:
            trial = self._studio.costs.trial_gpu_s(
                config, train=len(train), holdout=len(holdout), epochs=command.epochs, data_frac=command.data_frac
            )
            if configs and cost + trial > command.budget_gpu_s:
                break
            configs.append(config)
            cost += trial

        def finish(at_s: float) -> Event:
            self.samples.now_s, self.gpu_s = at_s, self.gpu_s + cost
            key = self.samples.key(command.stream, command.window, "train") + self.samples.key(
                command.stream, command.window, "holdout"
            )
            trials = tuple(self._trial(command, config, key) for config in configs)
            return ProfileDone(
                at_s=at_s, job=command.job, stream=command.stream, trials=trials, n_train=len(train), gpu_s=cost
            )  # fmt: skip

        return Work(gpu_s=cost, finish=finish)

    def _trial(self, command: StartProfiling, config: RetrainConfig, data_key: str) -> ProfileTrial:
        key = _key("trial", command.version, data_key, config, command.epochs, command.data_frac, self._options.seed)
        found = self._studio.memo.json(key)
        if found is None:
            trials, _ = jobs.run_at_once(
                jobs.profile_steps(
                    self.samples, self._studio.detector(command.version), stream=command.stream, window=command.window,
                    configs=[config], epochs=command.epochs, data_frac=command.data_frac, budget_gpu_s=float("inf"),
                    seed=int(key[:8], 16), timer=lambda: 0.0,
                )  # fmt: skip
            )
            found = {"quality": list(trials[0].quality), "n_profiled": trials[0].n_profiled, "n_total": trials[0].n_total}
            self._studio.memo.keep_json(key, found)
            self._studio.log(f"profiled {command.stream} w{command.window} {config.name}: {found['quality']}")
        # Costs come from the profile, never from this machine's clock: a rerun gives the same plan.
        per_epoch = self._studio.costs.epoch_gpu_s(config, found["n_profiled"])
        return ProfileTrial(
            config=config, quality=tuple(found["quality"]), init_gpu_s=self._studio.costs.init_gpu_s,
            gpu_s_per_epoch=per_epoch, n_profiled=found["n_profiled"], n_total=found["n_total"],
        )  # fmt: skip

    def _retraining(self, command: StartRetraining) -> Work:
        self.retrainings += 1
        data = self.samples.labelled(command.stream, [command.window], "train")
        costs, config = self._studio.costs, command.config
        windows = range(max(0, command.window - self._options.replay_windows), command.window + 1)
        data_keys = [self.samples.key(command.stream, w, "train") for w in windows]
        version = _key("train", command.version, data_keys, config, self._options.seed)
        per_epoch = costs.epoch_gpu_s(config, max(1, round(len(data) * config.data_frac)))
        total = costs.init_gpu_s + config.epochs * per_epoch

        def epoch(number: int) -> Callable[[float], Event]:
            used = costs.init_gpu_s + number * per_epoch
            report = EpochReport(job=command.job, epoch=number, loss=0.0, gpu_s=used)
            return lambda at_s: EpochDone(at_s=at_s, stream=command.stream, report=report)

        def finish(at_s: float) -> Event:
            self.gpu_s += total
            steps = partial(
                jobs.retrain_steps, self.samples, self._studio.detector(command.version), job=command.job,
                stream=command.stream, window=command.window, replay_windows=self._options.replay_windows, config=config,
                seed=int(version[:8], 16), timer=lambda: 0.0, on_epoch=lambda report: None,
            )  # fmt: skip
            self._studio.log(f"training {command.stream} w{command.window} {config.name} from {command.version[:8]}")
            if not self._studio.train(version, lambda: jobs.run_at_once(steps())):
                return JobFailed(at_s=at_s, job=command.job, stream=command.stream, code="exception", text="see the log")
            return RetrainDone(at_s=at_s, job=command.job, stream=command.stream, candidate=version, gpu_s=total)

        milestones = tuple((costs.init_gpu_s + n * per_epoch, epoch(n)) for n in range(1, config.epochs))
        return Work(gpu_s=total, finish=finish, milestones=milestones)

    def _gate(self, command: StartGate, at_s: float) -> Work:
        self.samples.now_s = at_s
        refs = jobs.spread(self.samples.sampled(command.stream, command.window), command.frames)
        costs = self._studio.costs
        cost = len(refs) * (costs.golden_gpu_s + 2 * costs.infer_gpu_s)

        def finish(done_s: float) -> Event:
            self.gpu_s += cost
            self.samples.now_s = at_s  # it judges what had been captured when it began
            result = jobs.run_at_once(
                jobs.gate_steps(
                    self.samples, self._golden(command.stream), self._studio.detector(command.version),
                    self._studio.detector(command.candidate), stream=command.stream, window=command.window,
                    frames=command.frames, scoring=self._options.scoring,
                )  # fmt: skip
            )
            self.trace.append({"stream": command.stream, "window": command.window, "candidate": command.candidate[:12],
                               "serving_f1": result.serving_quality, "candidate_f1": result.candidate_quality})  # fmt: skip
            return GateDone(
                at_s=done_s, job=command.job, stream=command.stream, candidate=command.candidate,
                serving_quality=result.serving_quality, candidate_quality=result.candidate_quality, frames=result.frames,
                gpu_s=cost,
            )  # fmt: skip

        return Work(gpu_s=max(cost, 1e-6), finish=finish)

    def _golden(self, stream: str) -> Detector:
        if stream not in self._goldens:
            self._goldens[stream] = _MemoGolden(self._studio, stream, self._options.scoring)  # type: ignore[assignment]
        return self._goldens[stream]

    @property
    def _goldens(self) -> dict[str, Detector]:
        return self.__dict__.setdefault("_golden_cache", {})

    # --- the truth ---

    def shown_f1(self) -> dict[str, list[float]]:
        """Per stream, per window from the first on: F1 over the window's evaluation frames as people saw them."""
        return {stream: [self._window(stream, w) for w in range(self._options.windows)] for stream in self._studio.footage}

    def _window(self, stream: str, window: int) -> float:
        total = np.zeros(3)
        for position, index in self._studio.judged(stream, window):
            total += self._shown_counts(stream, (window + position) * self._options.window_s, index)
        return f1_of(total)

    def _shown_counts(self, stream: str, at_s: float, index: int) -> np.ndarray:
        stretch = next((s for s in reversed(self.timeline[stream]) if s.at_s <= at_s), None)
        stride = self.stride(stretch) if stretch else None
        if stretch is None or stride is None:  # nothing is analysed: every object is missed
            truth = self._studio.golden_labels(stream, index).above(self._options.scoring.score_min)
            return np.array([0.0, 0.0, float(len(truth))])
        return self._studio.counts(stream, stretch.version, index, stride)

    def stride(self, stretch: Stretch) -> int | None:
        """Every how-many-th frame was really analysed: what the knobs ask, or less when the share cannot carry it."""
        if stretch.knobs is None or stretch.infer_pct <= 0:
            return None
        full_pct = 100.0 * self._options.fps * self._studio.costs.infer_gpu_s
        wanted = 1 if stretch.knobs == "every" else int(stretch.knobs.removeprefix("1/"))
        return max(wanted, int(np.ceil(full_pct / stretch.infer_pct - 1e-6)))


def f1_of(counts: np.ndarray) -> float:
    """F1 of summed (tp, fp, fn), which may be fractional; 1 when there was nothing to find and nothing was found."""
    tp, fp, fn = counts
    return float(2 * tp / (2 * tp + fp + fn)) if tp + fp + fn > 0 else 1.0


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


# --- one policy, all policies -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PolicyResult:
    """mean_f1: over windows 1.. and streams (window 0 has nothing to learn from); videos: the same per stream; f1: all windows."""

    policy: str
    mean_f1: float
    retrainings: int
    admitted: int
    gpu_s: float
    videos: dict[str, float]
    f1: dict[str, list[float]]
    gates: list[dict[str, Any]]
    plans: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy, "mean_f1": round(self.mean_f1, 4), "retrainings": self.retrainings,
            "admitted": self.admitted, "gpu_s": round(self.gpu_s, 1),
            "videos": {k: round(v, 4) for k, v in self.videos.items()},
            "f1_per_window": {k: [round(x, 4) for x in v] for k, v in self.f1.items()},
        }  # fmt: skip


def run_policy(studio: Studio, policy: str, shown_as: str) -> PolicyResult:
    """One run of the box over the footage under `policy` (the registry's name)."""
    options = studio.options
    engine = BoxEngine(replace(options.engine, policy=policy))
    knobs = {stream: studio.knobs(stream) for stream in studio.footage}
    world = EvaluateWorld(studio, knobs)
    driver = VirtualDriver(engine, world, options.engine.speed)
    start: list[Event] = [
        CameraAdded(at_s=0.0, stream=s, knobs=knobs[s], version=studio.base_version, quality=studio.window_f1(s, 0, studio.base_version))
        for s in sorted(studio.footage)
    ]  # fmt: skip
    # Without a window's end after the last one the run would begin a window that has no footage.
    driver.run([*start, BoxStarted(at_s=0.0, window=0)], until_s=options.windows * options.window_s - 1e-3)
    f1 = world.shown_f1()
    videos = {stream: float(np.mean(values[1:] or values)) for stream, values in f1.items()}
    return PolicyResult(
        policy=shown_as, mean_f1=float(np.mean(list(videos.values()))), retrainings=world.retrainings,
        admitted=world.admitted, gpu_s=world.gpu_s, videos=videos, f1=f1, gates=world.trace, plans=_plans(driver),
    )  # fmt: skip


def _plans(driver: VirtualDriver) -> list[dict[str, Any]]:
    return [
        {"at_s": round(event.at_s, 3), "window": command.window, "reasons": list(command.reasons)}
        for event, commands in driver.log
        for command in commands
        if type(command).__name__ == "ReportPlan"
    ]


def engine_config(options: EvaluateOptions, costs: CostProfile, retrain: Iterable[RetrainConfig]) -> EngineConfig:
    """The engine's configuration for a virtual box of `gpus` GPUs with these costs."""
    configs = tuple(retrain)
    samples = max(1, round(options.candidates * (1 - options.engine.holdout_frac)))
    reference = tuple(
        RetrainOption(name=c.name, end_quality=0.0, cost_gpu_s=costs.retrain_gpu_s(c, samples)) for c in configs
    )
    return replace(
        options.engine, window_s=options.window_s, first_window_s=options.window_s,
        capacity_pct=round(100 * options.gpus), golden_gpu_s=costs.golden_gpu_s, retrain=configs, reference=reference,
        label_frames=options.candidates,
    )  # fmt: skip


def fixed_configs(config: EngineConfig) -> dict[str, str]:
    """The paper's Cfg 1 and Cfg 2 for `uniform`: the dearest and the cheapest configuration by reference cost."""
    by_cost = sorted(config.reference, key=lambda o: (o.cost_gpu_s, o.name))
    return {"high": by_cost[-1].name, "low": by_cost[0].name}


def result_json(results: Sequence[PolicyResult], costs: CostProfile, options: EvaluateOptions) -> dict[str, Any]:
    return {
        "policies": [r.as_dict() for r in results],
        "costs": costs.as_dict(),
        "options": {"windows": options.windows, "window_s": options.window_s, "gpus": options.gpus, "fps": options.fps,
                    "candidates": options.candidates, "judged": options.judged},
    }  # fmt: skip


def write_trace(path: Path, studio: Studio, results: Sequence[PolicyResult]) -> None:
    """A finished evaluation as JSON: F1 over time, gates and plans per policy, knobs and costs."""
    body = {
        "version": 1,
        "costs": studio.costs.as_dict(),
        "knobs": {s: [vars_of(k) for k in studio.knobs(s)] for s in studio.footage},
        "policies": [{**r.as_dict(), "gates": r.gates, "plans": r.plans} for r in results],
    }
    path.write_text(json.dumps(body, indent=1), encoding="utf-8")


def vars_of(knobs: KnobProfile) -> dict[str, Any]:
    return {"name": knobs.name, "demand_pct": knobs.demand_pct, "quality_frac": knobs.quality_frac, "fps": knobs.fps}
