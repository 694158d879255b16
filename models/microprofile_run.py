"""Runs the micro-profiler's trials: short trainings on a small sample that tell what a retraining would gain and cost.

Ekya section 4.3 (papers/ekya.md section 4.1): for each family of configurations, a uniform random sample of the labelled data,
few epochs from the serving model, held-out quality after each. The decisions (which configurations, what curve, which families are
clearly worse) are in `scheduler.ekya.microprofile`. A window's families are one trial group (Fluid), its rungs successive groups:
`microprofile` runs it an iteration at a time, `models.trial_pack` several trials at once; both give the same qualities, because a trial
has a model, a sample and seeds of its own. What we changed:
- all families advance epoch by epoch together, so that a budget that runs out leaves every family equally well known (at once: no
  family begins an epoch before all others have begun the one before);
- the batch shrinks with the sample, so that an epoch has as many updates as it would on the full data: with 5-10 % of a small
  sample, an epoch would otherwise be a single update and show no gain at all;
- everything of a configuration but its epochs is tried as it is: added layer, distillation from the serving model, class balance, and
  replay of as large a part of each epoch, so that a trial's epoch costs what its share of a real one does;
- with halving, families that are clearly worse stop at a rung;
- with `keep_features`, families that train the head alone share one pass of the trunk, with each other and with the serving model, and
  learn from pictures as they are (`models.kept_features`);
- with `lend` too, only those families are run, where the model has any, and as what they cost is little, on all of their pictures and
  for longer (`trials_of`); the others borrow (`scheduler.ekya.microprofile.options`);
- with `judged_frac`, families that train more than the head are judged by part of the held-out pictures, beside the serving model on the
  same ones: what counts is the difference, which fewer pictures tell as well;
- with `widths`, each epoch of a trial that trains more than the head has as many devices as Fluid gives it (`scheduler.fluid.running`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from models.augment import Augmentation
from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts
from models.kept_features import KeptFeatures
from models.labelled import LabelledImage, Subset, persons_of, predicted, spread
from models.retrain import Step, n_replayed, n_used, retrain, student, trains_head_only
from models.tasks.base import Scoring, Task
from models.tasks.detection import DETECTION
from models.trial_pack import Piece, shape_of
from models.wide_trials import Going, WidthChanges, Widths
from scheduler.ekya.microprofile import families, lenders, picture_load, rung_epochs, survivors
from scheduler.types import ProfileTrial, RetrainConfig

#: Fewer samples than this tell nothing, however small the fraction.
N_MIN = 12

#: Least epochs of trials that speak for others too. With fewer, curves are read too far beyond their points (docs/trials.md).
LENDING_EPOCHS = 5

#: Seconds of compute spent so far by the calling thread; it must not advance while that waits for its share. Only differences count.
Timer = Callable[[], float]
T = TypeVar("T")


@dataclass(eq=False)
class _Trial:
    """A family's run in progress. begun: epochs; busy: one of them is in progress; alive: goes on; kept: where its features come from,
    None when it works them out; width: devices of its newest epoch, 0 before; compare: what asks how much wider trials gain, on a copy;
    None: it has one device whatever happens."""

    config: RetrainConfig
    detector: Detector
    steps: Generator[Step, None, None] | WidthChanges
    n_profiled: int
    init_gpu_s: float
    quality: list[float]
    load: float
    kept: KeptFeatures | None = None
    epoch_gpu_s: list[float] = field(default_factory=list)
    begun: int = 0
    busy: bool = False
    alive: bool = True
    width: int = 0
    compare: Callable[[], Generator[None, None, None]] | None = None

    def result(self, n_total: int) -> ProfileTrial:
        return ProfileTrial(
            config=self.config,
            quality=tuple(self.quality),
            init_gpu_s=self.init_gpu_s,
            gpu_s_per_epoch=float(np.mean(self.epoch_gpu_s)),
            n_profiled=self.n_profiled,
            n_total=n_total,
        )


class _Stretch:
    """One epoch of a trial and its judging, or what is measured for it (`models.trial_pack.Piece`)."""

    def __init__(self, trial: _Trial, steps: Generator[str, None, None], width: int) -> None:
        self.of, self.trial, self.doing, self.width = trial, trial.config.name, "", width
        self.shape = shape_of(trial.config, "kept" if trial.kept else "")
        self._steps = steps

    def step(self) -> bool:
        try:
            self.doing = next(self._steps)
        except StopIteration:
            return False
        return True

    def __iter__(self) -> Iterator[None]:
        while self.step():
            yield


class ProfileGroup:
    """The trials of one camera's window (`models.trial_pack.Work`). First `prelude` to its end, then `take` pieces until `done`, in
    whatever threads; then `results`, and `close` in any case. Parameters as for `microprofile`; apart: pieces run in several threads, so
    that nothing may be shared between trials, and the longest epochs go first."""

    def __init__(
        self, serving: Detector, train: Sequence[LabelledImage], holdout: Sequence[LabelledImage], configs: Sequence[RetrainConfig],
        *, epochs: int, data_frac: float, budget_gpu_s: float, seed: int, timer: Timer, yield_point: YieldPoint | None = None,
        n_min: int = N_MIN, scoring: Scoring | None = None, task: Task = DETECTION, replay: Sequence[LabelledImage] = (),
        look_gpu_s: float = 0.0, choose_gpu_s: float = 0.0, halving: bool = False, apart: bool = False,
        keep_features: bool = False, kept_data_frac: float | None = None, judged_frac: float = 1.0, lend: bool = False,
        widths: Widths | None = None, lanes: int = 1,
    ) -> None:  # fmt: skip
        if apart:
            lock = threading.Lock()
            train, holdout, replay = (_OneAtATime(samples, lock) for samples in (train, holdout, replay))
        self._serving, self._train, self._replay, self._widths = serving, train, replay, widths
        tried = trials_of(serving, configs, epochs=epochs, data_frac=data_frac, lend=lend and keep_features)
        self._configs = tried.configs if len(train) and len(holdout) else ()
        self._epochs, self._data_frac, self._n_min, self._seed = tried.epochs, tried.data_frac, n_min, seed
        self._budget_gpu_s, self._timer, self._task, self._apart = budget_gpu_s, timer, task, apart
        self._before_gpu_s = (look_gpu_s, choose_gpu_s)
        self._judge = _Judge(holdout, yield_point, scoring or Scoring(), task, judged_frac)
        self._kept_data_frac = tried.data_frac if kept_data_frac is None else kept_data_frac
        self._kept = KeptFeatures(timer) if keep_features else None
        self._rungs = list(rung_epochs(tried.epochs)) if halving and tried.epochs > 0 else [tried.epochs]
        self._spending = threading.Lock()
        self._trials: list[_Trial] = []
        self._devices = max(lanes, widths.devices if widths else 1)
        self.spent_gpu_s = 0.0

    def prelude(self) -> Generator[None, None, None]:
        """Judges the serving model and prepares the trials. One thread."""
        if not self._configs:
            return
        before = yield from self._metered(self._judge.start(self._keeping(self._serving)[0]))
        for config in self._configs:
            self._trials.append(self._metered_once(lambda config=config: self._started(config, before)))  # type: ignore[misc]

    def take(self, room: int = 1, alone: bool = False) -> Piece | None:
        """An epoch of the family that has begun the fewest; None: none can begin now."""
        return self._take(room, alone)

    def _take(self, room: int = 1, alone: bool = False) -> _Stretch | None:
        self._cull()
        level = min((t.begun for t in self._going()), default=0)
        next_up = [t for t in self._going() if not t.busy and t.begun == level < self._rungs[0]]
        if not next_up or self.spent_gpu_s >= self._budget_gpu_s:
            return None
        trial = min(next_up, key=lambda t: -t.load if self._apart else 0.0)
        width = self._width(trial, room, alone)
        if width > 1 and trial.compare and self._widths and self._widths.asks(trial.detector.spec.arch):
            trial.busy = True
            return _Stretch(trial, _said("compare", self._metered(trial.compare())), 2)
        trial.begun, trial.busy, trial.width = trial.begun + 1, True, width
        if isinstance(trial.steps, WidthChanges):
            trial.steps.width = width
        return _Stretch(trial, self._epoch(trial), width)

    def ended(self, piece: Piece) -> None:
        assert isinstance(piece, _Stretch)
        piece.of.busy = False

    @property
    def done(self) -> bool:
        if any(t.busy for t in self._trials):
            return False
        self._cull()
        return self.spent_gpu_s >= self._budget_gpu_s or all(t.begun >= self._rungs[-1] for t in self._going())

    def results(self) -> tuple[ProfileTrial, ...]:
        """One trial per family that ended its first epoch, in the order of the configurations; also of those that were stopped."""
        return tuple(trial.result(len(self._train)) for trial in self._trials if len(trial.quality) > 1)

    def close(self) -> None:
        for trial in self._trials:
            trial.steps.close()

    # --- rungs --------------------------------------------------------------------------------------------------------

    def _going(self) -> list[_Trial]:
        return [t for t in self._trials if t.alive]

    def _cull(self) -> None:
        """When all have reached a rung, those that are clearly worse stop."""
        while len(self._rungs) > 1 and all(not t.busy and t.begun >= self._rungs[0] for t in self._going()):
            going = self._going()
            kept = survivors([(t.config, t.quality) for t in going], n_holdout=len(self._judge.holdout))
            for i, trial in enumerate(going):
                trial.alive = i in kept
            self._rungs.pop(0)

    # --- one trial ----------------------------------------------------------------------------------------------------

    def _started(self, config: RetrainConfig, before: float) -> _Trial:
        started_s = self._timer()
        train = self._train
        detector = student(self._serving, config, seed=self._seed)
        detector, kept = self._keeping(detector) if trains_head_only(detector, config) else (detector, None)
        n_profiled = sample_size(config, len(train), self._kept_data_frac if kept else self._data_frac, self._n_min)
        chosen = np.sort(np.random.default_rng(self._seed).permutation(len(train))[:n_profiled])
        batch = max(1, round(config.batch * n_profiled / n_used(config, len(train))))
        short = replace(config, epochs=self._epochs, batch=batch, data_frac=1.0)
        older = self._replay if config.replay_frac > 0 else ()
        teacher = self._serving.clone() if self._apart and config.distill > 0 else self._serving
        lesson: tuple[Any, ...] = (detector, Subset(train, chosen.tolist()), short)
        how: dict[str, Any] = {
            "seed": self._seed, "task": self._task, "replay": older, "teacher": teacher, "yield_point": self._judge.yield_point,
            "augmentation": Augmentation.none() if kept else None,
        }  # fmt: skip
        widths = None if kept else self._widths
        look_gpu_s, choose_gpu_s = self._before_gpu_s
        shown = n_profiled + n_replayed(config, n_profiled, len(older))
        return _Trial(
            config=config,
            detector=detector,
            steps=widths.train(*lesson, **how) if widths else retrain(*lesson, **how),
            n_profiled=n_profiled,
            init_gpu_s=self._timer() - started_s + look_gpu_s + (choose_gpu_s if config.replay_frac > 0 else 0.0),
            quality=[before],
            load=shown * picture_load(config),
            kept=kept,
            compare=(lambda: widths.compare(*lesson, **how)) if widths else None,
        )

    # --- widths -------------------------------------------------------------------------------------------------------

    def _width(self, trial: _Trial, room: int, alone: bool) -> int:
        """Devices for its next epoch."""
        if self._widths is None or trial.compare is None or room < 2:
            return 1
        group = [trial] if alone else [t for t in self._going() if t.busy or t.begun < self._rungs[0]]
        going = [Going(id=str(i), left_s=self._left_s(t), width=t.width, runs=t.busy) for i, t in enumerate(group)]
        arch = trial.detector.spec.arch
        return self._widths.choose(str(group.index(trial)), arch, going, devices=self._devices, room=room)

    def _left_s(self, trial: _Trial) -> float:
        """Compute until the end of this rung: by its own epochs, else by those of others and how much more it trains on."""
        known = [t for t in self._trials if t.epoch_gpu_s]
        if trial.epoch_gpu_s:
            epoch_s = float(np.mean(trial.epoch_gpu_s))
        elif known:
            epoch_s = trial.load * sum(float(np.mean(t.epoch_gpu_s)) for t in known) / sum(t.load for t in known)
        else:
            epoch_s = trial.load
        return epoch_s * (self._rungs[0] - trial.begun + trial.busy)

    # --- compute of a trial -------------------------------------------------------------------------------------------

    def _keeping(self, detector: Detector) -> tuple[Detector, KeptFeatures | None]:
        """The detector, reading kept features, and its view of them; as it is, and None, where it cannot."""
        if self._kept is None or not hasattr(detector, "keeping"):
            return detector, None
        view = self._kept.again()
        return detector.keeping(view), view

    def _epoch(self, trial: _Trial) -> Generator[str, None, None]:
        """Trains to the end of the epoch, charging it the compute of its iterations and not what happens between them; then judges.
        What kept features saved is charged to the epoch, though it was not spent: a real retraining's epoch will cost it."""
        spent_s = -trial.kept.saved_s if trial.kept else 0.0
        while True:
            started_s = self._timer()
            step = next(trial.steps)
            used_s = self._timer() - started_s
            self._spend(used_s)
            spent_s += used_s
            yield "train"
            if step.epoch_loss is not None:
                break
        trial.epoch_gpu_s.append(spent_s + (trial.kept.saved_s if trial.kept else 0.0))
        judging = self._metered(self._judge.quality(trial.detector, in_full=trial.kept is not None))
        while True:
            try:
                next(judging)
            except StopIteration as end:
                trial.quality.append(end.value)
                return
            yield "judge"

    # --- compute ------------------------------------------------------------------------------------------------------

    def _spend(self, gpu_s: float) -> None:
        with self._spending:
            self.spent_gpu_s += gpu_s

    def _metered(self, steps: Generator[None, None, T]) -> Generator[None, None, T]:
        while True:
            started_s = self._timer()
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self._spend(self._timer() - started_s)
            yield

    def _metered_once(self, work: Callable[[], T]) -> T:
        started_s = self._timer()
        try:
            return work()
        finally:
            self._spend(self._timer() - started_s)


def microprofile(
    serving: Detector,
    train: Sequence[LabelledImage],
    holdout: Sequence[LabelledImage],
    configs: Sequence[RetrainConfig],
    *,
    epochs: int,
    data_frac: float,
    budget_gpu_s: float,
    seed: int,
    timer: Timer,
    yield_point: YieldPoint | None = None,
    n_min: int = N_MIN,
    scoring: Scoring | None = None,
    task: Task = DETECTION,
    replay: Sequence[LabelledImage] = (),
    look_gpu_s: float = 0.0,
    choose_gpu_s: float = 0.0,
    halving: bool = False,
    keep_features: bool = False,
    kept_data_frac: float | None = None,
    judged_frac: float = 1.0,
    lend: bool = False,
    widths: Widths | None = None,
) -> Generator[None, None, tuple[ProfileTrial, ...]]:
    """One iteration (a training micro-batch, or the evaluation of one picture) per `next`; returns one trial per family.

    configs: those that differ only in epochs share a trial. data_frac: part of each configuration's data that is used, at least
    n_min pictures. epochs: at most that many per trial. budget_gpu_s: no epoch begins once that much compute is spent.
    replay: older pictures for the families that replay. look_gpu_s, choose_gpu_s: what a retraining spends before its first epoch on
    its labels, and on choosing what it replays; parts of a trial's init_gpu_s. halving: families that are clearly worse stop after 1, 2,
    4, ... epochs (`scheduler.ekya.microprofile.survivors`); what they showed so far is their trial.
    keep_features, judged_frac, lend: see the module's text. kept_data_frac: data_frac of the families whose features are kept (default:
    the same), since a picture more costs them little.
    widths: devices that the trials which do not keep features may have (`models.wide_trials`); None: one.
    A family that did not end its first epoch has no trial. Without training or held-out pictures there are no trials.
    Raises JobError as `retrain` does. `serving` is not changed.
    """
    group = ProfileGroup(
        serving, train, holdout, configs, epochs=epochs, data_frac=data_frac, budget_gpu_s=budget_gpu_s, seed=seed, timer=timer,
        yield_point=yield_point, n_min=n_min, scoring=scoring, task=task, replay=replay, look_gpu_s=look_gpu_s,
        choose_gpu_s=choose_gpu_s, halving=halving, keep_features=keep_features,
        kept_data_frac=kept_data_frac, judged_frac=judged_frac, lend=lend, widths=widths,
    )  # fmt: skip
    try:
        yield from group.prelude()
        while (piece := group._take(widths.devices if widths else 1, alone=True)) is not None:
            yield from piece
            group.ended(piece)
    finally:
        group.close()
    return group.results()


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What is run of a list of configurations: the families, each for so many epochs on that part of its pictures. lending: they are
    those whose features are kept, and speak for the others."""

    configs: tuple[RetrainConfig, ...]
    epochs: int
    data_frac: float
    lending: bool = False


def trials_of(serving: Detector, configs: Sequence[RetrainConfig], *, epochs: int, data_frac: float, lend: bool) -> Trials:
    """All families as they are asked for; with lend, of a model that has families whose features are kept, these alone."""
    cheap = lend and hasattr(serving, "keeping")
    lending = lenders(configs, lambda config: trains_head_only(serving, config)) if cheap else ()
    if not lending:
        return Trials(configs=families(configs), epochs=epochs, data_frac=data_frac)
    return Trials(configs=lending, epochs=max(epochs, LENDING_EPOCHS), data_frac=1.0, lending=True)


def sample_size(config: RetrainConfig, n_train: int, data_frac: float, n_min: int = N_MIN) -> int:
    """Pictures that a trial of `config` uses: data_frac of what the configuration would, at least n_min, at most all of it."""
    available = n_used(config, n_train)
    return min(available, max(n_min, round(data_frac * available)))


def _said(doing: str, steps: Generator[None, None, None]) -> Generator[str, None, None]:
    for _ in steps:
        yield doing


class _OneAtATime(Sequence[LabelledImage]):
    """Samples that several trials read at once, from a folder or a memory that knows nothing of threads."""

    def __init__(self, samples: Sequence[LabelledImage], lock: threading.Lock) -> None:
        self._samples, self._lock = samples, lock

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # int or slice, as Sequence has it
        if isinstance(i, slice):
            return Subset(self, range(len(self))[i])
        with self._lock:
            return self._samples[i]

    @property
    def presence(self) -> np.ndarray | None:
        """See `models.labelled.presence_of`."""
        with self._lock:
            return getattr(self._samples, "presence", None)

    @property
    def persons(self) -> list[int]:
        return persons_of(self._samples)


def judged(
    holdout: Sequence[LabelledImage],
    *,
    task: Task = DETECTION,
    scoring: Scoring | None = None,
    yield_point: YieldPoint | None = None,
) -> Callable[[Detector], Generator[None, None, float]]:
    """Says how good a detector is on held-out pictures, one picture per `next`."""
    judge = _Judge(holdout, yield_point, scoring or Scoring(), task)
    return lambda detector: judge.quality(detector, in_full=True)


@dataclass
class _Judge:
    """Held-out quality of a detector, one picture an iteration."""

    holdout: Sequence[LabelledImage]
    yield_point: YieldPoint | None
    scoring: Scoring
    task: Task
    judged_frac: float = 1.0
    before: tuple[MatchCounts, ...] = ()

    def start(self, serving: Detector) -> Generator[None, None, float]:
        """Quality of the serving model, on every held-out picture; the others are compared with it."""
        counts: list[MatchCounts] = []
        yield from self._counts(serving, range(len(self.holdout)), counts)
        self.before = tuple(counts)
        return _quality(counts)

    def quality(self, detector: Detector, *, in_full: bool) -> Generator[None, None, float]:
        n = len(self.holdout)
        places = range(n) if in_full else spread(n, max(1, round(self.judged_frac * n)))
        counts: list[MatchCounts] = []
        yield from self._counts(detector, places, counts)
        if len(places) == n:
            return _quality(counts)
        won = _quality(counts) - _quality([self.before[i] for i in places])
        return min(1.0, max(0.0, _quality(self.before) + won))

    def _counts(self, detector: Detector, places: Sequence[int], into: list[MatchCounts]) -> Generator[None, None, None]:
        judged = predicted(
            detector,
            Subset(self.holdout, places),
            task=self.task,
            score_min=self.scoring.score_min,
            yield_point=self.yield_point,
        )
        for found, labels in judged:
            into.append(self.task.counts(found, labels, self.scoring))
            yield


def _quality(counts: Sequence[MatchCounts]) -> float:
    return MatchCounts.total(counts).f1
