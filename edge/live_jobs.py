"""The learning jobs on a live box: each command that starts one becomes a body to run in a thread and a lane.

What a job does is in `edge.jobs`; here it gets the box's samples, models and database, and its answer becomes an event.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from configs.errors import StorageError, UsageError, WeightsError
from edge import jobs
from edge.clock import Clock
from edge.gpu.base import Lane
from edge.gpu.members import Members
from edge.sampling import no_limit
from edge.shelf import Shelf
from edge.store.store import QualityPoint, Store
from models.detector import Detector
from models.golden import PLAIN, Labelling
from models.microprofile_run import trials_of
from models.tasks.base import Task
from models.wide_trials import Widths
from scheduler import events as ev
from scheduler.admission import error_of
from scheduler.commands import (
    StartGate,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartReprofiling,
    StartRetraining,
)
from scheduler.drift import signature
from scheduler.types import EpochReport, ProfileTrial, Signature, Traits

log = logging.getLogger("driftbox")
T = TypeVar("T")

#: Windows of a camera of which it is kept what they were like.
KEPT_WINDOWS = 2
#: Compute a job has used so far, in CPU seconds (GPU-seconds on a GPU).
Spent = Callable[[], float]
MakeEvent = Callable[[float], ev.Event]
#: Runs a job to its end in a lane; the answer waits for the time at which the loop hears it.
Body = Callable[[Lane, Spent], MakeEvent]
LearningCommand = StartLook | StartLabelling | StartProbe | StartProfiling | StartReprofiling | StartRetraining | StartGate
#: Measures what a camera's knobs, or those of a query of it, are worth and keeps it: (the camera's id, the query's name or '' for the
#: camera's own, seconds of compute for the search, what to call now and then).
Reprofile = Callable[[str, str, float, Callable[[], None]], None]

#: Commands that start a learning job -> what people read.
KINDS: dict[type, str] = {
    StartLook: "looking",
    StartLabelling: "labelling",
    StartProbe: "probing",
    StartProfiling: "profiling",
    StartReprofiling: "re-profiling",
    StartRetraining: "retraining",
    StartGate: "gate",
}


@dataclass(kw_only=True)
class LearningParts:
    """What the learning jobs need of the box. golden_of: a camera's golden model, by its task; each job takes its own (`JobSteps.own`).
    require_room: raises StorageError when the disk is to be left alone, so that nothing new is trained. steps: (job's id) -> how
    its kind is done, here or in a process of its own. trials_at_once: most profiling trials at once (docs/trials.md);
    profile_halving: those that are clearly worse stop early; widths: gives one job the devices that its trials may have (None: one
    each). reprofiling: measures knobs of a camera or a query anew; None: nobody does."""

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
    steps: Callable[[str], jobs.JobSteps] = jobs.here
    trials_at_once: int = 1
    profile_halving: bool = False
    widths: Callable[[], AbstractContextManager[Widths | None]] = nullcontext
    reprofiling: Reprofile | None = None


class LiveJobs:
    """task_of: a camera's task; on_epoch: hears each epoch of a retraining. Both are called from the jobs' threads. members: gives a job
    further lanes; None: a job has its own lane only."""

    def __init__(
        self, parts: LearningParts, *, on_epoch: Callable[[StartRetraining, EpochReport], None], task_of: Callable[[str], Task],
        members: Members | None = None,
    ) -> None:  # fmt: skip
        self._parts, self._on_epoch, self._task_of, self._members = parts, on_epoch, task_of, members
        self._traits: dict[str, dict[int, Traits]] = {}  # of each camera's newest labelled windows
        self._signatures: dict[str, dict[int, Signature]] = {}  # of each camera's newest windows that were looked at

    def body(self, command: LearningCommand) -> Body:
        if isinstance(command, StartLook):
            return partial(self._look, command)
        if isinstance(command, StartLabelling):
            return partial(self._labelling, command)
        if isinstance(command, StartProbe):
            return partial(self._probe, command)
        if isinstance(command, StartProfiling):
            return partial(self._profiling, command)
        if isinstance(command, StartReprofiling):
            return partial(self._reprofiling, command)
        if isinstance(command, StartRetraining):
            return partial(self._retraining, command)
        return partial(self._gate, command)

    def _look(self, command: StartLook, lane: Lane, spent: Spent) -> MakeEvent:
        parts, steps = self._parts, self._parts.steps(command.job)
        look = jobs.run_in_lane(
            steps.look(
                parts.samples, self._task_of(command.stream), parts.shelf.detector(command.version), stream=command.stream,
                window=command.window, frames=command.frames, version=command.version, score_min=parts.scoring.score_min,
                yield_point=lane.checkpoint,
            ),
            lane,
        )  # fmt: skip
        seen = signature(look)
        self._signatures[command.stream] = _newest(self._signatures.get(command.stream), command.window, seen)
        gpu_s = spent()
        return lambda at_s: ev.LookDone(
            at_s=at_s, job=command.job, stream=command.stream, look=look, signature=seen, gpu_s=gpu_s
        )

    def _probe(self, command: StartProbe, lane: Lane, spent: Spent) -> MakeEvent:
        parts, steps = self._parts, self._parts.steps(command.job)
        result = jobs.run_in_lane(
            steps.probe(
                parts.samples, parts.shelf.detector(command.version), self._still_there(command.candidates),
                stream=command.stream, window=command.window, scoring=parts.scoring, task=self._task_of(command.stream),
                yield_point=lane.checkpoint,
            ),
            lane,
        )  # fmt: skip
        self._keep_proof(command, result)
        gpu_s = spent()
        return lambda at_s: ev.ProbeDone(
            at_s=at_s, job=command.job, stream=command.stream, serving_quality=result.serving_quality, found=result.found,
            frames=result.frames, gpu_s=gpu_s,
        )  # fmt: skip

    def _still_there(self, versions: Sequence[str]) -> Iterator[tuple[str, Detector]]:
        """The versions whose files can be read; one at a time, when its turn comes."""
        for version in versions:
            try:
                detector = self._parts.shelf.detector(version)
            except (WeightsError, StorageError, KeyError) as error:
                log.info("%s is not measured: %s", version, error)
                continue
            yield version, detector

    def _labelling(self, command: StartLabelling, lane: Lane, spent: Spent) -> MakeEvent:
        parts, steps = self._parts, self._parts.steps(command.job)
        result = jobs.run_in_lane(
            steps.label(
                parts.samples, steps.own(parts.golden_of(command.stream)), parts.shelf.detector(command.version),
                stream=command.stream, window=command.window, frames=command.frames, holdout_frac=command.holdout_frac,
                scoring=parts.scoring, task=self._task_of(command.stream), yield_point=lane.checkpoint, labelling=parts.labelling,
                timer=spent, judges=command.judges,
            ),
            lane,
        )  # fmt: skip
        say_doubts(command, result)
        if result.quality is not None:
            self.keep_quality(
                command.stream, result.quality, command.version, frames=result.holdout, error=result.quality_error
            )
        traits = replace(result.traits, daypart=daypart(parts.clock.utc_s()))
        self._traits[command.stream] = _newest(self._traits.get(command.stream), command.window, traits)
        gpu_s = spent()
        return lambda at_s: ev.LabelDone(
            at_s=at_s, job=command.job, stream=command.stream, train=result.train, holdout=result.holdout,
            quality=result.quality, gpu_s=gpu_s, golden_gpu_s=result.golden_gpu_s / result.new if result.new else None,
            traits=traits, corrected=result.corrected, left_out=result.left_out,
        )  # fmt: skip

    def _profiling(self, command: StartProfiling, lane: Lane, spent: Spent) -> MakeEvent:
        parts = self._parts
        how: dict[str, Any] = {
            "stream": command.stream, "window": command.window, "configs": command.configs, "epochs": command.epochs,
            "data_frac": command.data_frac, "budget_gpu_s": command.budget_gpu_s, "seed": self._seed(command.job), "timer": spent,
            "scoring": parts.scoring, "task": self._task_of(command.stream), "replay_windows": parts.replay_windows,
            "halving": parts.profile_halving, "lend": command.lend,
        }  # fmt: skip
        serving = parts.shelf.detector(command.version)
        if self._members is not None and parts.trials_at_once > 1:
            trials, n_train, gpu_s = self._profiled_at_once(self._members, command, lane, serving, how)
        else:
            steps = parts.steps(command.job).profile(parts.samples, serving, yield_point=lane.checkpoint, **how)
            trials, n_train = jobs.run_in_lane(steps, lane)
            gpu_s = spent()
        tried = trials_of(serving, command.configs, epochs=command.epochs, data_frac=command.data_frac, lend=command.lend)
        return lambda at_s: ev.ProfileDone(
            at_s=at_s, job=command.job, stream=command.stream, trials=trials, n_train=n_train, gpu_s=gpu_s, lend=tried.lending
        )

    def _reprofiling(self, command: StartReprofiling, lane: Lane, spent: Spent) -> MakeEvent:
        if self._parts.reprofiling is None:
            raise UsageError("nobody profiles here", subject=command.stream, remedy="set scheduler.reprofile to auto")
        with lane.iteration():
            self._parts.reprofiling(command.stream, command.query, command.budget_gpu_s, lane.checkpoint)
        gpu_s = spent()
        return lambda at_s: ev.Reprofiled(at_s=at_s, job=command.job, stream=command.stream, gpu_s=gpu_s)

    def _profiled_at_once(
        self, members: Members, command: StartProfiling, lane: Lane, serving: Detector, how: dict[str, Any]
    ) -> tuple[tuple[ProfileTrial, ...], int, float]:
        """(trials, labelled frames, GPU-seconds of all lanes)."""
        with (
            members.lanes(command.job, lane, min(self._parts.trials_at_once, len(command.configs))) as lanes,
            self._parts.widths() as widths,
        ):
            found = jobs.profile_at_once(
                self._parts.samples, serving, lanes, on_turn=partial(members.divide, command.job), widths=widths, **how
            )  # fmt: skip
        if found.report is not None:
            log.info("%s: %d trials at once (alpha %.2f)", command.stream, found.report.share_max, found.report.alpha)
        return found.trials, found.n_train, found.gpu_s

    def _retraining(self, command: StartRetraining, lane: Lane, spent: Spent) -> MakeEvent:
        parts, steps, notes = self._parts, self._parts.steps(command.job), list[str]()
        parts.require_room()
        detector = jobs.run_in_lane(
            steps.retrain(
                parts.samples, parts.shelf.detector(command.version), job=command.job, stream=command.stream,
                window=command.window, replay_windows=parts.replay_windows, config=command.config,
                seed=self._seed(command.job), timer=spent, on_epoch=partial(self._on_epoch, command), scoring=parts.scoring,
                task=self._task_of(command.stream), yield_point=lane.checkpoint, members=command.members, on_note=notes.append,
            ),
            lane,
        )  # fmt: skip
        gpu_s = spent()
        kept = {camera: self._keep(command, camera, detector, gpu_s) for camera in command.members or (command.stream,)}
        return lambda at_s: ev.RetrainDone(
            at_s=at_s, job=command.job, stream=command.stream, candidate=kept[command.stream], gpu_s=gpu_s,
            notes=tuple(notes), candidates=tuple(kept.items()) if command.members else (),
        )  # fmt: skip

    def _keep(self, command: StartRetraining, camera: str, detector: Detector, gpu_s: float) -> str:
        """Stores a trained model for one camera, with what that camera's window looked like; returns its version. A member of a group
        keeps it as a child of what it serves itself."""
        shelf = self._parts.shelf
        own = camera == command.stream
        version = shelf.keep_candidate(
            camera, parent=command.version if own else shelf.serving_version(camera).id, detector=detector, config=command.config,
            window=command.window, traits=self._traits.get(camera, {}).get(command.window),
            signature=self._signatures.get(camera, {}).get(command.window), gpu_s=gpu_s if own else None,
            group=command.members, samples=self._trained_on(camera, command.window),
        )  # fmt: skip
        return version.id

    def _trained_on(self, camera: str, window: int) -> list[str]:
        """Names of the window's frames that a training of it learned from (frames replayed from earlier windows are not among them)."""
        samples = self._parts.samples
        return [ref.name for ref in samples.sampled(camera, window) if samples.split(ref) == "train"]

    def _gate(self, command: StartGate, lane: Lane, spent: Spent) -> MakeEvent:
        parts, steps = self._parts, self._parts.steps(command.job)
        result = jobs.run_in_lane(
            steps.gate(
                parts.samples, steps.own(parts.golden_of(command.stream)), parts.shelf.detector(command.version),
                parts.shelf.detector(command.candidate), stream=command.stream, window=command.window, frames=command.frames,
                holdout_frac=command.holdout_frac, scoring=parts.scoring, task=self._task_of(command.stream),
                yield_point=lane.checkpoint, labelling=parts.labelling, timer=spent, older=command.older,
                known=command.known, least=command.least,
            ),
            lane,
        )  # fmt: skip
        if result.serving_quality is not None:
            self.keep_quality(
                command.stream, result.serving_quality, command.version, frames=result.newest, error=result.serving_error
            )
        gpu_s = spent()
        return lambda at_s: ev.GateDone(
            at_s=at_s, job=command.job, stream=command.stream, candidate=command.candidate,
            serving_quality=result.serving_quality, candidate_quality=result.candidate_quality, frames=result.frames,
            gpu_s=gpu_s, gain_sd=result.gain_sd, gain=result.gain,
        )  # fmt: skip

    def _keep_proof(self, command: StartProbe, result: jobs.ProbeResult) -> None:
        """A probe that measured what the serving version had replaced says whether that was right: on the same pictures."""
        replaced = self._parts.shelf.replaced(command.stream)
        before = next((p for p in result.found if p.version == replaced), None)
        if before is None or result.serving_quality is None:
            return
        self.keep_quality(
            command.stream, result.serving_quality, command.version, frames=result.frames, error=result.serving_error,
            over=before.version, gain=result.serving_quality - before.quality, gain_error=error_of(before.gain_sd, result.frames),
        )  # fmt: skip

    def keep_quality(self, stream: str, quality: float, version: str, **behind: Any) -> None:
        """Adds a measurement to the camera's history; a full disk is said, not raised. behind: as in `QualityPoint`."""
        at_utc = self._parts.clock.utc_s()
        try:
            self._parts.store.add_quality(
                QualityPoint(stream=stream, at_utc=at_utc, value=quality, kind="f1", version=version, **behind)
            )
        except StorageError as error:
            log.warning("not recorded: %s", error)

    def _seed(self, job_id: str) -> int:
        return stable_seed(self._parts.seed, job_id)


def _newest(known: dict[int, T] | None, window: int, value: T) -> dict[int, T]:
    """With what is known of one more window; the last window and the one in progress are all that a model is ever made of."""
    all_known = {**(known or {}), window: value}
    return {w: all_known[w] for w in sorted(all_known)[-KEPT_WINDOWS:]}


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
