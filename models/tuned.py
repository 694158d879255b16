"""Carries out what a tuner asks for with real trainings on the lanes of a box: grid, random, successive halving, Hyperband, ASHA and PBT
(`scheduler.fluid.groups`), as `Work` for `models.trial_pack`.

What the tuner asks for together is a trial group; the longest begin first. Budgets are epochs of a schedule that is as long as the most
that the tuner gives; a trial that goes on from one rung to the next goes on where it was. PBT's copies go on where the copied one is,
with its weights, its optimiser and their own learning rate, the one continuous knob of a retraining. A trial whose loss is no number
any more is told as NaN, which no tuner promotes. Scores do not depend on how many run at once, or how wide: each trial has its own
model and seeds. What an asynchronous tuner (ASHA) asks next does depend on who was done first, as published.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from configs.errors import JobError, UsageError
from models.detector import Detector
from models.labelled import LabelledImage
from models.retrain import n_used, scaled, student
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from models.trial_pack import Piece, shape_of
from models.wide_trials import Going, WidthChanges, Widths, narrow
from scheduler.ekya.microprofile import picture_load
from scheduler.fluid.groups import Ask, Report, Tuner
from scheduler.types import RetrainConfig

#: Errors of a training that end the trial, not the group.
FAILED = ("nan",)


@dataclass
class _Trial:
    """epochs: done; width: devices of the newest one; epoch_s: what one took, 0: not known."""

    config: RetrainConfig
    detector: Detector
    steps: WidthChanges
    load: float
    epochs: int = 0
    width: int = 0
    epoch_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Increment:
    """An ask in progress. until: the epoch that it ends with; runs: a lane is at an epoch of it."""

    ask: Ask
    until: int


class _Epoch:
    """One epoch of a trial, and its judging when that was the last of the ask (`models.trial_pack.Piece`)."""

    def __init__(self, trial: str, config: RetrainConfig, steps: Generator[str, None, None], width: int) -> None:
        self.trial, self.shape, self.doing, self.width, self._steps = trial, shape_of(config), "", width, steps

    def step(self) -> bool:
        try:
            self.doing = next(self._steps)
        except StopIteration:
            return False
        return True


class TunedGroup:
    """A tuner's trials. configs: by the tuner's names of trials; epochs: the most that it gives to one; judge: see
    `models.microprofile_run.judged`; widths: devices that trials may have (None: one); lanes: most at once; clock: seconds.
    `told` is what the tuner has heard; `close` when all is done, or given up."""

    def __init__(
        self, tuner: Tuner, configs: Mapping[str, RetrainConfig], serving: Detector, train: Sequence[LabelledImage],
        judge: Callable[[Detector], Generator[None, None, float]], *, epochs: int, seed: int, task: Task = DETECTION,
        widths: Widths | None = None, lanes: int = 1, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._tuner, self._configs, self._serving, self._train, self._judge = tuner, configs, serving, train, judge
        self._epochs, self._seed, self._task, self._widths, self._clock = epochs, seed, task, widths, clock
        self._devices = max(lanes, widths.devices if widths else 1)
        self._trials: dict[str, _Trial] = {}
        self._waiting: dict[str, _Increment] = {}
        self._running: dict[str, _Increment] = {}
        self.told: list[Report] = []

    # --- `models.trial_pack.Work` ---

    def take(self, room: int = 1, alone: bool = False) -> Piece | None:
        """The next epoch of the trial that has the most left of what was asked."""
        self._hear()
        if not self._waiting:
            return None
        name = max(self._waiting, key=self._left_s)
        increment, trial = self._waiting.pop(name), self._trials[name]
        self._running[name] = increment
        width = self._width(name, room, alone)
        if width > 1 and self._widths is not None and self._widths.asks(trial.detector.spec.arch):
            compare = self._widths.compare(trial.detector, self._train, trial.config, **self._how(trial.config))
            return _Epoch(name, trial.config, ("compare" for _ in compare), 2)
        trial.width = trial.steps.width = width
        return _Epoch(name, trial.config, self._epoch(name, trial, increment), width)

    def ended(self, piece: Piece) -> None:
        increment = self._running.pop(piece.trial)
        if self._trials[piece.trial].epochs < increment.until and not self._has_told(increment.ask):
            self._waiting[piece.trial] = increment

    @property
    def done(self) -> bool:
        if not self._running:
            self._hear()
        return not self._running and not self._waiting

    def close(self) -> None:
        for trial in self._trials.values():
            trial.steps.close()

    def best(self) -> tuple[str, Detector]:
        """The trial with the best of all scores, and its model. Raises JobError when there is none."""
        scores = [report for report in self.told if not math.isnan(report.score)]
        if not scores:
            raise JobError("no trial came to a score", subject="trials", remedy="lower the learning rates", code="nan")
        name = max(scores, key=lambda report: report.score).trial
        return name, self._trials[name].detector

    # --- what the tuner wants ---

    def _hear(self) -> None:
        """Asks the tuner; whatever it copies is copied now, while that stands still."""
        asks = self._tuner.ask(self.told, [*self._running, *self._waiting])
        copies = {ask.trial: self._copy(ask) for ask in asks if ask.like is not None}
        for ask in asks:
            if ask.budget != int(ask.budget) or ask.budget > self._epochs:
                raise UsageError(
                    f"trial '{ask.trial}': budgets are whole epochs up to {self._epochs}, got {ask.budget:g}", subject="fluid"
                )
            if ask.trial in copies:
                self._trials[ask.trial].steps.close()
                self._trials[ask.trial] = copies[ask.trial]
            elif ask.trial not in self._trials:
                self._trials[ask.trial] = self._new(replace(self._configs[ask.trial], epochs=self._epochs))
            self._waiting[ask.trial] = _Increment(ask=ask, until=int(ask.budget))

    def _new(self, config: RetrainConfig) -> _Trial:
        detector = student(self._serving, config, seed=self._seed)
        return self._trial(config, detector, self._begun(detector, config, after=None))

    def _copy(self, ask: Ask) -> _Trial:
        assert ask.like is not None
        like = self._trials[ask.like]
        config = replace(like.config, name=self._configs[ask.trial].name, lr=like.config.lr * ask.factor)
        detector, saved = like.detector.clone(), like.steps.saved()
        steps = self._begun(detector, config, after=scaled(saved, ask.factor) if saved is not None else None)
        return replace(self._trial(config, detector, steps), epochs=like.epochs, epoch_s=like.epoch_s)

    def _begun(self, detector: Detector, config: RetrainConfig, **after: Any) -> WidthChanges:
        train = self._widths.train if self._widths is not None else narrow
        return train(detector, self._train, config, **self._how(config), **after)

    def _trial(self, config: RetrainConfig, detector: Detector, steps: WidthChanges) -> _Trial:
        return _Trial(
            config=config, detector=detector, steps=steps, load=n_used(config, len(self._train)) * picture_load(config)
        )

    def _how(self, config: RetrainConfig) -> dict[str, Any]:
        return {"seed": self._seed, "task": self._task, "teacher": self._serving.clone() if config.distill > 0 else None}

    # --- an epoch ---

    def _epoch(self, name: str, trial: _Trial, increment: _Increment) -> Generator[str, None, None]:
        began_s = self._clock()
        try:
            while next(trial.steps).epoch_loss is None:
                yield "train"
        except JobError as error:
            if error.code not in FAILED:
                raise
            self.told.append(Report(trial=name, budget=increment.ask.budget, score=math.nan))
            return
        trial.epochs += 1
        trial.epoch_s = (self._clock() - began_s) * trial.width
        yield "train"
        if trial.epochs < increment.until:
            return
        judging = self._judge(trial.detector)
        while True:
            try:
                next(judging)
            except StopIteration as end:
                self.told.append(Report(trial=name, budget=increment.ask.budget, score=end.value))
                return
            yield "judge"

    def _has_told(self, ask: Ask) -> bool:
        return any(report.trial == ask.trial and report.budget == ask.budget for report in self.told)

    def _left_s(self, name: str) -> float:
        """Of what was asked, by its own epochs, else by how much it trains on and what that takes others."""
        trial = self._trials[name]
        increment = self._waiting.get(name) or self._running[name]
        known = [t for t in self._trials.values() if t.epoch_s]
        per_load_s = sum(t.epoch_s for t in known) / sum(t.load for t in known) if known else 1.0
        return (trial.epoch_s or trial.load * per_load_s) * (increment.until - trial.epochs)

    def _width(self, name: str, room: int, alone: bool) -> int:
        if self._widths is None or room < 2:
            return 1
        names = [name] if alone else [*self._running, *self._waiting]
        group = [
            Going(id=n, left_s=self._left_s(n), width=self._trials[n].width, runs=n in self._running and n != name)
            for n in names
        ]
        return self._widths.choose(name, self._trials[name].detector.spec.arch, group, devices=self._devices, room=room)
