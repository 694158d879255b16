"""The learning jobs on a live box: each command that starts one becomes a body to run in a thread and a lane.

What a job does is in `edge.jobs`; here it gets the box's samples, models and database, and its answer becomes an event.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from configs.errors import StorageError
from edge import jobs
from edge.clock import Clock
from edge.gpu.base import Lane
from edge.sampling import no_limit
from edge.shelf import Shelf
from edge.store.store import Store
from models.detector import Detector
from models.golden import PLAIN, Labelling
from models.tasks.base import Task
from scheduler import events as ev
from scheduler.commands import StartGate, StartLabelling, StartProfiling, StartRetraining
from scheduler.types import EpochReport, Traits

log = logging.getLogger("driftbox")

#: Compute a job has used so far, in CPU seconds (GPU-seconds on a GPU).
Spent = Callable[[], float]
MakeEvent = Callable[[float], ev.Event]
#: Runs a job to its end in a lane; the answer waits for the time at which the loop hears it.
Body = Callable[[Lane, Spent], MakeEvent]
LearningCommand = StartLabelling | StartProfiling | StartRetraining | StartGate

#: Commands that start a learning job -> what people read.
KINDS: dict[type, str] = {
    StartLabelling: "labelling",
    StartProfiling: "profiling",
    StartRetraining: "retraining",
    StartGate: "gate",
}


@dataclass(kw_only=True)
class LearningParts:
    """What the learning jobs need of the box. golden_of: a camera's golden model, by its task; jobs clone it. require_room: raises
    StorageError when the disk is to be left alone, so that nothing new is trained."""

    store: Store
    shelf: Shelf
    samples: jobs.Samples
    golden_of: Callable[[str], Detector]
    clock: Clock
    scoring: jobs.Scoring
    labelling: Labelling = PLAIN
    seed: int = 0
    replay_windows: int = 3
    require_room: Callable[[], None] = no_limit


class LiveJobs:
    """task_of: a camera's task; on_epoch: hears each epoch of a retraining. Both are called from the jobs' threads."""

    def __init__(
        self, parts: LearningParts, *, on_epoch: Callable[[StartRetraining, EpochReport], None], task_of: Callable[[str], Task]
    ) -> None:
        self._parts, self._on_epoch, self._task_of = parts, on_epoch, task_of
        self._traits: dict[str, tuple[int, Traits]] = {}  # of each camera's newest labelled window

    def body(self, command: LearningCommand) -> Body:
        if isinstance(command, StartLabelling):
            return partial(self._labelling, command)
        if isinstance(command, StartProfiling):
            return partial(self._profiling, command)
        if isinstance(command, StartRetraining):
            return partial(self._retraining, command)
        return partial(self._gate, command)

    def _labelling(self, command: StartLabelling, lane: Lane, spent: Spent) -> MakeEvent:
        parts = self._parts
        result = jobs.run_in_lane(
            jobs.label_steps(
                parts.samples, parts.golden_of(command.stream).clone(), parts.shelf.detector(command.version), stream=command.stream,
                window=command.window, frames=command.frames, holdout_frac=command.holdout_frac, scoring=parts.scoring,
                task=self._task_of(command.stream), yield_point=lane.checkpoint, labelling=parts.labelling, timer=spent,
            ),
            lane,
        )  # fmt: skip
        say_doubts(command, result)
        if result.quality is not None:
            self.keep_quality(command.stream, result.quality, command.version)
        traits = replace(result.traits, daypart=daypart(parts.clock.utc_s()))
        self._traits[command.stream] = (command.window, traits)
        gpu_s = spent()
        return lambda at_s: ev.LabelDone(
            at_s=at_s, job=command.job, stream=command.stream, train=result.train, holdout=result.holdout,
            quality=result.quality, gpu_s=gpu_s, golden_gpu_s=result.golden_gpu_s / result.new if result.new else None,
            traits=traits, corrected=result.corrected, left_out=result.left_out,
        )  # fmt: skip

    def _profiling(self, command: StartProfiling, lane: Lane, spent: Spent) -> MakeEvent:
        parts = self._parts
        trials, n_train = jobs.run_in_lane(
            jobs.profile_steps(
                parts.samples, parts.shelf.detector(command.version), stream=command.stream, window=command.window,
                configs=command.configs, epochs=command.epochs, data_frac=command.data_frac,
                budget_gpu_s=command.budget_gpu_s, seed=self._seed(command.job), timer=spent, scoring=parts.scoring,
                task=self._task_of(command.stream), yield_point=lane.checkpoint,
            ),
            lane,
        )  # fmt: skip
        gpu_s = spent()
        return lambda at_s: ev.ProfileDone(
            at_s=at_s, job=command.job, stream=command.stream, trials=trials, n_train=n_train, gpu_s=gpu_s
        )

    def _retraining(self, command: StartRetraining, lane: Lane, spent: Spent) -> MakeEvent:
        parts = self._parts
        parts.require_room()
        detector = jobs.run_in_lane(
            jobs.retrain_steps(
                parts.samples, parts.shelf.detector(command.version), job=command.job, stream=command.stream,
                window=command.window, replay_windows=parts.replay_windows, config=command.config,
                seed=self._seed(command.job), timer=spent, on_epoch=partial(self._on_epoch, command), scoring=parts.scoring,
                task=self._task_of(command.stream), yield_point=lane.checkpoint,
            ),
            lane,
        )  # fmt: skip
        window, traits = self._traits.get(command.stream, (-1, None))
        version = parts.shelf.keep_candidate(
            command.stream, parent=command.version, detector=detector, config=command.config, window=command.window,
            traits=traits if window == command.window else None,
        )  # fmt: skip
        gpu_s = spent()
        return lambda at_s: ev.RetrainDone(at_s=at_s, job=command.job, stream=command.stream, candidate=version.id, gpu_s=gpu_s)

    def _gate(self, command: StartGate, lane: Lane, spent: Spent) -> MakeEvent:
        parts = self._parts
        result = jobs.run_in_lane(
            jobs.gate_steps(
                parts.samples, parts.golden_of(command.stream).clone(), parts.shelf.detector(command.version),
                parts.shelf.detector(command.candidate), stream=command.stream, window=command.window, frames=command.frames,
                holdout_frac=command.holdout_frac, scoring=parts.scoring, task=self._task_of(command.stream),
                yield_point=lane.checkpoint, labelling=parts.labelling, timer=spent,
            ),
            lane,
        )  # fmt: skip
        if result.serving_quality is not None:
            self.keep_quality(command.stream, result.serving_quality, command.version)
        gpu_s = spent()
        return lambda at_s: ev.GateDone(
            at_s=at_s, job=command.job, stream=command.stream, candidate=command.candidate,
            serving_quality=result.serving_quality, candidate_quality=result.candidate_quality, frames=result.frames,
            gpu_s=gpu_s, gain_sd=result.gain_sd,
        )  # fmt: skip

    def keep_quality(self, stream: str, quality: float, version: str) -> None:
        """Adds a measurement to the camera's history; a full disk is said, not raised."""
        try:
            self._parts.store.add_quality(stream, self._parts.clock.utc_s(), quality, kind="f1", version=version)
        except StorageError as error:
            log.warning("not recorded: %s", error)

    def _seed(self, job_id: str) -> int:
        return stable_seed(self._parts.seed, job_id)


def say_doubts(command: StartLabelling, result: jobs.LabelResult) -> None:
    """Logs what an operator should know of a window's labels."""
    where = f"{command.stream}, window {command.window}"
    if result.left_out:
        log.info("%s: the golden model is unsure of %d of %d new frames; they are left out", where, result.left_out, result.new)
    if result.unreadable:
        log.warning("%s: %d samples were gone or damaged and got no labels", where, result.unreadable)
    if result.train + result.holdout and not result.objects:
        log.info("%s: no object in any of %d labelled frames", where, result.train + result.holdout)


def daypart(utc_s: float) -> str:
    """Which quarter of the local day it is."""
    return ("night", "morning", "afternoon", "evening")[time.localtime(utc_s).tm_hour // 6]


def stable_seed(seed: int, text: str) -> int:
    """The same for the same job in every run (Python's hash is not)."""
    value = seed
    for letter in text.encode():
        value = (value * 131 + letter) % (2**31 - 1)
    return value
