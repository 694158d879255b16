"""The world of the virtual-time driver with real models behind it: what jobs cost, what they do, what people saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from configs.errors import JobError
from edge import jobs
from edge.answers import AnswerMeter
from edge.costs import CostProfile
from edge.evaluate.studio import FromMemo, Studio, StudioSamples, f1_of, key_of
from edge.jobs.train import n_embedded
from models.averaging import averaged
from models.detector import Detector
from models.microprofile_run import Trials, sample_size, trials_of
from scheduler.answers import Answers
from scheduler.commands import (
    Command,
    ReportWindow,
    SetKnobs,
    SetShares,
    StartGate,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartRetraining,
    SwapModel,
    TurnToScene,
)
from scheduler.drift import signature
from scheduler.ekya.microprofile import families
from scheduler.ekya.staleness import Agreement, Fading, fading, followed, of_all
from scheduler.events import (
    Answered,
    EpochDone,
    Event,
    GateDone,
    JobFailed,
    KnobsMeasured,
    LabelDone,
    LookDone,
    ModelsOffered,
    ProbeDone,
    ProfileDone,
    RetrainDone,
    SwapDone,
)
from scheduler.sim.driver import Work
from scheduler.types import CachedModel, EpochReport, KnobProfile, ProfileTrial, RetrainConfig, Traits, WindowOutcome

#: What was seen of a stream's rates is of as many windows as a plan's footage: this one and the one before.
RATES_WINDOWS = 2


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What a stream was served with from at_s on. infer_pct: the share of its inference."""

    at_s: float
    version: str
    knobs: str | None
    infer_pct: float


@dataclass(frozen=True, kw_only=True)
class Training:
    """A retraining that ended in time. quality: on the window's evaluation frames, which the box never sees; held_out: on the held-out
    labels of the window it learned from, which is what its micro-profile predicted (None without such labels). labels: that it learned
    from; gpu_s: of the training alone."""

    stream: str
    window: int
    config: str
    parent: str
    version: str
    quality: float
    labels: int
    gpu_s: float
    held_out: float | None = None


@dataclass(frozen=True, kw_only=True)
class Left:
    """A model that a camera left in a window, for later windows of all cameras to choose (policy `cached`)."""

    stream: str
    window: int
    model: CachedModel


@dataclass(kw_only=True)
class Record:
    """What happened in one run, for the answer and the trace. admitted: retrained models that were; swaps: of earlier versions that
    serve again (cause `reuse` or `rollback`); probes: what was measured for that, beside the truth. labelled: (stream, window) -> F1
    of the serving model on the labels made for the window; opened_with: (stream, window) -> version that served when it opened."""

    retrainings: int = 0
    admitted: int = 0
    trainings: list[Training] = field(default_factory=list)
    gates: list[dict[str, Any]] = field(default_factory=list)
    swaps: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[WindowOutcome] = field(default_factory=list)
    labelled: dict[tuple[str, int], float] = field(default_factory=dict)
    opened_with: dict[tuple[str, int], str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Rates:
    """What a stream's frames say of slower rates. profiled: the scene that its knobs were profiled in, and are believed in; None: they
    could not be. knobs: what plans believe now; scene: the present one, by the box's own count; seen: scene -> (when, what) was
    compared; until_s: up to then everything was."""

    knobs: tuple[KnobProfile, ...]
    profiled: int | None = None
    scene: int = 0
    seen: dict[int, list[tuple[float, Agreement]]] = field(default_factory=dict)
    until_s: float = 0.0
    fading: Fading | None = None  # of the present scene, as it was when it was last asked for
    faded_at: tuple[int, int, float] | None = None  # scene, comparisons, the newest of them

    def turn_to(self, scene: int, since_s: float) -> None:
        """What was seen since then is the new scene's."""
        before = self.seen.get(self.scene, [])
        self.seen[self.scene] = [one for one in before if one[0] < since_s]
        self.seen[scene] = [*self.seen.get(scene, ()), *(one for one in before if one[0] >= since_s)]
        self.scene = scene


class EvaluateWorld:
    """`scheduler.sim.driver.World` with real models behind it. progress: told the virtual time of every command."""

    def __init__(
        self, studio: Studio, knobs: dict[str, tuple[KnobProfile, ...]], progress: Callable[[float], None] = lambda at_s: None
    ) -> None:
        self._studio, self._options, self._progress = studio, studio.options, progress
        self.samples = StudioSamples(studio)
        self._knobs = knobs
        self._now: dict[str, Stretch] = {
            s: Stretch(at_s=0.0, version=studio.base_version, knobs=None, infer_pct=0.0) for s in studio.footage
        }
        self.timeline: dict[str, list[Stretch]] = {s: [] for s in studio.footage}
        self.record = Record()
        self._traits: dict[tuple[str, int], Traits] = {}  # of windows that were labelled
        self._left: list[Left] = []
        self._offered_in = 0  # the window that was told what earlier ones left
        self._answered_s = 0.0  # up to then answers were told
        # Knobs that were profiled are those of the first scene; of others only a box knows that glances at them.
        turns = studio.options.engine.glances and not studio.task.wants_regions
        self._rates = {
            s: Rates(knobs=knobs[s], profiled=0 if studio.is_profiled(s) else None)
            for s in studio.footage
            if turns or not studio.is_profiled(s)
        }

    # --- what the driver asks -----------------------------------------------------------------------------------------

    def start(self, command: Command, at_s: float) -> Work:
        if isinstance(command, StartLook):
            return self._look(command, at_s)
        if isinstance(command, StartLabelling):
            return self._labelling(command, at_s)
        if isinstance(command, StartProbe):
            return self._probe(command)
        if isinstance(command, StartProfiling):
            return self._profiling(command)
        if isinstance(command, StartRetraining):
            return self._retraining(command)
        if isinstance(command, StartGate):
            return self._gate(command, at_s)
        raise TypeError(type(command).__name__)

    def swap(self, command: SwapModel, at_s: float) -> Event:
        before, version = self._now[command.stream].version, self._averaged(command.mean_of) or command.version
        self._serve(command.stream, replace(self._now[command.stream], at_s=at_s, version=version))
        if command.cause in ("reuse", "rollback"):
            self.record.swaps.append(
                {"at_s": round(at_s, 3), "stream": command.stream, "window": self._window_at(at_s),
                 "cause": command.cause, "from": before[:12], "to": version[:12], "mean_of": [v[:12] for v in command.mean_of]}
            )  # fmt: skip
        else:
            self.record.admitted += 1
        asked = "" if version == command.version else command.version
        return SwapDone(at_s=at_s, stream=command.stream, version=version, asked=asked)

    def _averaged(self, versions: Sequence[str]) -> str | None:
        """The mean of versions as one of its own; None: of nothing, or they have none."""
        studio, mean = self._studio, key_of("mean", list(versions))
        if not studio.has(mean):
            state = averaged([studio.detector(version).state() for version in versions])
            if state is None:
                return None
            studio.train(mean, lambda: studio.restored(state))
        return mean

    def observe(self, command: Command, at_s: float) -> list[Event]:
        self._progress(at_s)
        if isinstance(command, SetKnobs):
            self._serve(command.stream, replace(self._now[command.stream], at_s=at_s, knobs=command.knobs))
        elif isinstance(command, SetShares):
            shares = dict(command.shares_pct)
            for stream in self._studio.footage:
                share = shares.get(f"{stream}/infer", 0.0)
                self._serve(stream, replace(self._now[stream], at_s=at_s, infer_pct=share))
        elif isinstance(command, TurnToScene) and command.stream in self._rates:
            self._rates[command.stream].turn_to(command.scene, self._options.window_s * (at_s // self._options.window_s))
        elif isinstance(command, ReportWindow):
            self.record.outcomes.append(command.outcome)
        rated = [event for stream in self._rates for event in self._follow_rates(stream, at_s)]
        return [*rated, *self._offer_left(at_s)]

    def answered(self, at_s: float) -> list[Event]:
        """What the model that serves each stream said of the candidates that came since this was last asked."""
        since_s, self._answered_s = self._answered_s, at_s
        told = ((stream, self._answers(stream, since_s, at_s)) for stream in self._studio.footage if self._at(stream, at_s))
        return [Answered(at_s=at_s, stream=stream, answers=answers) for stream, answers in told if answers is not None]

    def _answers(self, stream: str, since_s: float, until_s: float) -> Answers | None:
        version, window_s, meter = self.timeline[stream][-1].version, self._options.window_s, AnswerMeter()
        for window in range(int(since_s // window_s), min(self._options.windows, int(until_s // window_s) + 1)):
            for frame in self._studio.candidates(stream, window):
                frame_s = (window + frame.at_frac) * window_s
                stretch = self._at(stream, frame_s) if since_s < frame_s <= until_s else None
                if stretch is not None and stretch.version == version:
                    meter.add(version, self._studio.predictions(stream, version, frame.index))
        return meter.take()

    def _offer_left(self, at_s: float) -> list[Event]:
        """Once a window: every camera may choose among what all cameras left in earlier ones, as the paper's cache is one of all its
        cameras. All have one architecture and one task here."""
        window = self._window_at(at_s)
        before, self._offered_in = self._offered_in, window
        if window == before or not self._left:
            return []
        return [
            ModelsOffered(at_s=at_s, stream=stream, cached=self._choice(stream), offered=()) for stream in self._studio.footage
        ]

    def _choice(self, stream: str) -> tuple[CachedModel, ...]:
        """Newest first; of one window, the camera's own before the others'."""
        return tuple(left.model for left in sorted(self._left, key=lambda left: (-left.window, left.stream != stream)))

    def _follow_rates(self, stream: str, at_s: float) -> Iterator[Event]:
        """What the frames that came since the last look say of a stream's slower rates."""
        rates, window_s = self._rates[stream], self._options.window_s
        since_s, rates.until_s = rates.until_s, at_s
        found = rates.seen.setdefault(rates.scene, [])
        for window in range(int(since_s // window_s), min(self._options.windows, int(at_s // window_s) + 1)):
            for frame in self._studio.compared(stream, window):
                frame_s = (window + frame.at_frac) * window_s
                if since_s < frame_s <= at_s:
                    found += [(frame_s, seen) for seen in self._agreements(stream, frame.index, frame_s)]
        rates.seen[rates.scene] = [one for one in found if one[0] > found[-1][0] - RATES_WINDOWS * window_s]
        knobs = self._rated(stream, rates)
        if knobs != rates.knobs:
            rates.knobs = knobs
            yield KnobsMeasured(at_s=at_s, stream=stream, knobs=knobs)

    def _rated(self, stream: str, rates: Rates) -> tuple[KnobProfile, ...]:
        """The profile in the scene that it is of; elsewhere the usual knobs with what was seen there."""
        profile = self._knobs[stream]
        if rates.scene == rates.profiled:
            return profile
        others = of_all(found for s in self._rates if s != stream and (found := self._fading(s)) is not None)
        return followed(followed(self._studio.usual_knobs(stream), others), self._fading(stream))

    def _fading(self, stream: str) -> Fading | None:
        """What its frames say in its present scene."""
        rates = self._rates[stream]
        seen = rates.seen.get(rates.scene, [])
        mark = (rates.scene, len(seen), seen[-1][0] if seen else 0.0)
        if rates.faded_at != mark:
            rates.fading, rates.faded_at = fading(one for _, one in seen), mark
        return rates.fading

    def _agreements(self, stream: str, index: int, frame_s: float) -> list[Agreement]:
        stretch = self._at(stream, frame_s)
        stride = self.stride(stretch, self._studio.full_pct(stream)) if stretch else None
        return self._studio.agreements(stream, stretch.version, index, stride) if stretch and stride else []

    def _window_at(self, at_s: float) -> int:
        return int(at_s // self._options.window_s)

    def _at(self, stream: str, at_s: float) -> Stretch | None:
        """What it was served with then."""
        return next((s for s in reversed(self.timeline[stream]) if s.at_s <= at_s), None)

    def _serve(self, stream: str, stretch: Stretch) -> None:
        self._now[stream] = stretch
        self.timeline[stream].append(stretch)

    # --- jobs: cost now, work when virtual time has come --------------------------------------------------------------

    def _look(self, command: StartLook, begun_s: float) -> Work:
        """So many passes of each frame that was captured when it began."""
        self.samples.set_time(begun_s, command.window)
        frames = min(command.frames, len(self.samples.sampled(command.stream, command.window)))
        cost = jobs.passes_of(self._studio.task) * frames * self._studio.costs.infer_gpu_s

        def finish(at_s: float) -> Event:
            self.samples.set_time(begun_s, command.window)
            look = jobs.run_at_once(
                jobs.look_steps(
                    self.samples, self._studio.task, self._remembered(command.stream, command.version),
                    stream=command.stream, window=command.window, frames=command.frames, version=command.version,
                    score_min=self._options.scoring.score_min,
                )
            )  # fmt: skip
            return LookDone(at_s=at_s, job=command.job, stream=command.stream, look=look, signature=signature(look), gpu_s=cost)

        return Work(gpu_s=cost, finish=finish)

    def _probe(self, command: StartProbe) -> Work:
        refs = jobs.probe_refs(self.samples, command.stream, command.window)
        cost = (1 + len(command.candidates)) * len(refs) * self._studio.costs.infer_gpu_s

        def finish(at_s: float) -> Event:
            self.samples.set_time(at_s)
            candidates = ((v, self._remembered(command.stream, v)) for v in command.candidates if self._studio.has(v))
            result = jobs.run_at_once(
                jobs.probe_steps(
                    self.samples, self._remembered(command.stream, command.version), candidates, stream=command.stream,
                    window=command.window, scoring=self._options.scoring, task=self._studio.task,
                )
            )  # fmt: skip
            self.record.probes.append(self._probed(command, result, at_s))
            return ProbeDone(
                at_s=at_s, job=command.job, stream=command.stream, serving_quality=result.serving_quality,
                found=result.found, frames=result.frames, gpu_s=cost,
            )  # fmt: skip

        return Work(gpu_s=cost, finish=finish)

    def _probed(self, command: StartProbe, result: jobs.ProbeResult, at_s: float) -> dict[str, Any]:
        """A probe for the answer: what it said, and what the versions are really worth in the window that it decided about."""
        window = self._window_at(at_s)
        return {
            "at_s": round(at_s, 3), "stream": command.stream, "window": window, "frames": result.frames,
            "serving": command.version[:12], "serving_f1": result.serving_quality,
            "serving_true_f1": self._studio.window_f1(command.stream, window, command.version),
            "found": [
                {
                    "version": found.version[:12], "f1": found.quality, "gain_sd": found.gain_sd,
                    "true_f1": self._studio.window_f1(command.stream, window, found.version),
                }
                for found in result.found
            ],
        }  # fmt: skip

    def _labelling(self, command: StartLabelling, begun_s: float) -> Work:
        costs = self._studio.costs
        self.samples.set_time(begun_s, command.window)
        golden_gpu_s = costs.golden_gpu_s * self._options.labelling.views
        train, judged = jobs.frames_to_label(
            self.samples, command.stream, command.window, command.frames, command.holdout_frac, command.judges
        )
        new = sum(self.samples.split(ref) is None for ref in [*train, *judged])
        cost = new * golden_gpu_s + len(judged) * costs.infer_gpu_s

        def finish(at_s: float) -> Event:
            self.samples.set_time(begun_s, command.window)
            result = jobs.run_at_once(
                jobs.label_steps(
                    self.samples, self._remembered(command.stream), self._remembered(command.stream, command.version),
                    stream=command.stream, window=command.window, frames=command.frames,
                    holdout_frac=command.holdout_frac, scoring=self._options.scoring, task=self._studio.task,
                    labelling=self._options.labelling, judges=command.judges,
                )
            )  # fmt: skip
            key = (command.stream, command.window + 1)
            over = begun_s >= key[1] * self._options.window_s  # a glance labels the window in progress
            if over:
                self.record.opened_with[key] = command.version
            if over and result.quality is not None:
                self.record.labelled[key] = result.quality
            self._traits[command.stream, command.window] = result.traits
            return LabelDone(
                at_s=at_s, job=command.job, stream=command.stream, train=result.train, holdout=result.holdout,
                quality=result.quality, gpu_s=cost, golden_gpu_s=golden_gpu_s if new else None,
                # Of the window in progress, as live: nobody needs labels to know what time it is and where a camera looks.
                traits=self._marked(result.traits, command.stream, self._window_at(begun_s)),
            )  # fmt: skip

        return Work(gpu_s=cost, finish=finish)

    def _marked(self, traits: Traits, stream: str, window: int) -> Traits:
        """With the window's time of day and place."""
        daypart, place = self._studio.daypart_and_place(stream, window)
        return replace(traits, daypart=daypart, place=place)

    def _profiling(self, command: StartProfiling) -> Work:
        n_train = len(self.samples.labelled(command.stream, [command.window], "train"))
        n_holdout = len(self.samples.labelled(command.stream, [command.window], "holdout"))
        serving = self._studio.detector(command.version)
        tried = trials_of(serving, command.configs, epochs=command.epochs, data_frac=command.data_frac, lend=command.lend)
        epochs, cost = affordable_epochs(tried, self._studio.costs, n_train, n_holdout, budget_gpu_s=command.budget_gpu_s)

        def finish(at_s: float) -> Event:
            self.samples.set_time(at_s)
            try:
                trials = tuple(self._trial(command, tried, config, n) for config, n in epochs)
            except JobError as error:
                return JobFailed(at_s=at_s, job=command.job, stream=command.stream, code=error.code, text=str(error))
            return ProfileDone(
                at_s=at_s, job=command.job, stream=command.stream, trials=trials, n_train=n_train, gpu_s=cost, lend=tried.lending
            )  # fmt: skip

        return Work(gpu_s=cost, finish=finish)

    def _trial(self, command: StartProfiling, tried: Trials, config: RetrainConfig, epochs: int) -> ProfileTrial:
        """The first `epochs` epochs of a trial. Trials are kept whole, so that a budget only decides how much of one is seen."""
        data = [self.samples.key(command.stream, [command.window], split) for split in ("train", "holdout")]
        if config.replay_frac > 0:
            data.append(self.samples.key(command.stream, self._earlier(command.window), "train"))
        key = key_of("trial", command.version, data, config, tried.epochs, tried.data_frac, self._options.seed)
        found = self._studio.memo.json(key)
        if found is None:
            self._studio.done.trials += 1
            trials, _ = jobs.run_at_once(
                jobs.profile_steps(
                    self.samples, self._studio.detector(command.version), stream=command.stream, window=command.window,
                    configs=[config], epochs=tried.epochs, data_frac=tried.data_frac, budget_gpu_s=float("inf"),
                    seed=self._options.seed, timer=lambda: 0.0, scoring=self._options.scoring, task=self._options.task,
                    replay_windows=self._options.replay_windows,
                )
            )  # fmt: skip
            found = {"quality": list(trials[0].quality), "n_profiled": trials[0].n_profiled, "n_total": trials[0].n_total}
            self._studio.memo.keep_json(key, found)
            self._studio.log(f"profiled {command.stream} w{command.window} {config.name}: {found['quality']}")
        # Costs come from the profile, never from this machine's clock: a rerun gives the same plan.
        costs = self._studio.costs
        init_gpu_s = costs.init_gpu_s + self._choosing_gpu_s([command.stream], command.window, config)
        return ProfileTrial(
            config=config, quality=tuple(found["quality"][: epochs + 1]), init_gpu_s=init_gpu_s,
            gpu_s_per_epoch=costs.epoch_gpu_s(config, found["n_profiled"]), n_profiled=found["n_profiled"],
            n_total=found["n_total"],
        )  # fmt: skip

    def _retraining(self, command: StartRetraining) -> Work:
        self.record.retrainings += 1
        costs, config = self._studio.costs, command.config
        cameras = command.members or (command.stream,)
        n_train = sum(len(self.samples.labelled(camera, [command.window], "train")) for camera in cameras)
        per_epoch = costs.epoch_gpu_s(config, max(1, round(n_train * config.data_frac)))
        init_gpu_s = costs.init_gpu_s + self._choosing_gpu_s(cameras, command.window, config)
        total = init_gpu_s + config.epochs * per_epoch
        version = self._version(command)

        def epoch(number: int) -> Callable[[float], Event]:
            used = init_gpu_s + number * per_epoch
            report = EpochReport(job=command.job, epoch=number, loss=0.0, gpu_s=used)
            return lambda at_s: EpochDone(at_s=at_s, stream=command.stream, report=report)

        def finish(at_s: float) -> Event:
            problem = self._studio.train(version, partial(self._train, command, version))
            if problem is not None:
                self._studio.log(f"training {command.stream} w{command.window} {config.name} failed: {problem}")
                return JobFailed(at_s=at_s, job=command.job, stream=command.stream, code="exception", text=problem)
            window = self._window_at(at_s)
            quality = self._studio.window_f1(command.stream, window, version)
            self.record.trainings.append(
                Training(
                    stream=command.stream, window=window, config=config.name, parent=command.version,
                    version=version, quality=quality, labels=n_train, gpu_s=total, held_out=self._held_out(command, version),
                )
            )  # fmt: skip
            if command.remote_s == 0:
                self._leave(command, version, window)
            return RetrainDone(
                at_s=at_s, job=command.job, stream=command.stream, candidate=version, gpu_s=total,
                candidates=tuple((member, version) for member in command.members),
            )  # fmt: skip

        milestones = tuple((init_gpu_s + n * per_epoch, epoch(n)) for n in range(1, config.epochs))
        return Work(gpu_s=total, finish=finish, milestones=milestones)

    def _leave(self, command: StartRetraining, version: str, window: int) -> None:
        """Keeps a model for later windows, under what the window that it learned from was like."""
        traits = self._marked(self._traits[command.stream, command.window], command.stream, command.window)
        self._left.append(Left(stream=command.stream, window=window, model=CachedModel(name=version, traits=traits)))

    def _held_out(self, command: StartRetraining, version: str) -> float | None:
        """Quality of a trained model on the labels that its trials were judged by."""
        refs = [r for r in self.samples.sampled(command.stream, command.window) if self.samples.split(r) == "holdout"]
        model = self._remembered(command.stream, version)
        steps = jobs.quality_steps(self.samples, self._studio.task, model, refs, self._options.scoring, jobs.no_yield)
        return jobs.quality_of(jobs.run_at_once(steps))

    def _version(self, command: StartRetraining) -> str:
        """What the trained model will be: the same parent, data, configuration and seed make the same model."""
        cameras = command.members or (command.stream,)
        data = [self.samples.key(camera, [command.window], "train") for camera in cameras]
        if command.config.replay_frac > 0:
            data += [self.samples.key(camera, self._earlier(command.window), "train") for camera in cameras]
        return key_of("train", command.version, data, command.config, self._options.seed)

    def _choosing_gpu_s(self, cameras: Sequence[str], window: int, config: RetrainConfig) -> float:
        """What a retraining spends on choosing the older pictures that it replays."""
        if config.replay_frac <= 0:
            return 0.0
        n_train = sum(len(self.samples.labelled(camera, [window], "train")) for camera in cameras)
        n_older = sum(len(self.samples.labelled(camera, self._earlier(window), "train")) for camera in cameras)
        return n_embedded(config, n_train, n_older) * self._studio.costs.infer_gpu_s

    def _earlier(self, window: int) -> list[int]:
        """The windows whose labels may be replayed in this one."""
        return list(range(max(0, window - self._options.replay_windows), window))

    def _train(self, command: StartRetraining, version: str) -> Detector:
        self._studio.log(f"training {command.stream} w{command.window} {command.config.name} from {command.version[:8]}")
        return jobs.run_at_once(
            jobs.retrain_steps(
                self.samples, self._studio.detector(command.version), job=command.job, stream=command.stream,
                window=command.window, replay_windows=self._options.replay_windows, config=command.config,
                seed=int(version[:8], 16), timer=lambda: 0.0, on_epoch=lambda report: None, task=self._options.task,
                members=command.members,
            )
        )  # fmt: skip

    def _gate(self, command: StartGate, at_s: float) -> Work:
        self.samples.set_time(at_s)
        costs = self._studio.costs
        refs, older = jobs.judging_refs(
            self.samples, command.stream, command.window, command.frames, holdout_frac=command.holdout_frac, older=command.older,
            known=command.known,
        )  # fmt: skip
        new = sum(self.samples.split(ref) is None for ref in refs)
        cost = new * costs.golden_gpu_s * self._options.labelling.views + 2 * (len(refs) + len(older)) * costs.infer_gpu_s

        def finish(done_s: float) -> Event:
            self.samples.set_time(at_s)  # it judges what had been captured when it began
            result = jobs.run_at_once(
                jobs.gate_steps(
                    self.samples, self._remembered(command.stream), self._remembered(command.stream, command.version),
                    self._remembered(command.stream, command.candidate), stream=command.stream, window=command.window,
                    frames=command.frames, scoring=self._options.scoring, holdout_frac=command.holdout_frac,
                    labelling=self._options.labelling, task=self._studio.task, older=command.older, known=command.known,
                    least=command.least,
                )
            )  # fmt: skip
            self.record.gates.append(
                {
                    "at_s": round(done_s, 3), "stream": command.stream, "window": command.window, "known": command.known,
                    "candidate": command.candidate[:12], "frames": result.frames, "serving_f1": result.serving_quality,
                    "candidate_f1": result.candidate_quality, "gain": result.gain, "gain_sd": result.gain_sd,
                    "serving_true_f1": self._studio.window_f1(command.stream, command.window, command.version),
                    "candidate_true_f1": self._studio.window_f1(command.stream, command.window, command.candidate),
                }
            )  # fmt: skip
            return GateDone(
                at_s=done_s, job=command.job, stream=command.stream, candidate=command.candidate,
                serving_quality=result.serving_quality, candidate_quality=result.candidate_quality, frames=result.frames,
                gpu_s=cost, gain_sd=result.gain_sd, gain=result.gain,
            )  # fmt: skip

        return Work(gpu_s=max(cost, 1e-6), finish=finish)

    def _remembered(self, stream: str, version: str | None = None) -> Detector:
        """The golden model (None) or a version, for jobs that only predict."""
        return FromMemo(self._studio, stream, version)  # type: ignore[return-value]

    # --- the truth ----------------------------------------------------------------------------------------------------

    def shown_f1(self) -> dict[str, list[float]]:
        """Per stream, per window from the first on: F1 over the window's evaluation frames as people saw them."""
        return {stream: [self._window(stream, w) for w in range(self._options.windows)] for stream in self._studio.footage}

    def _window(self, stream: str, window: int) -> float:
        total = np.zeros(3)
        for position, index in self._studio.judged(stream, window):
            total += self._shown_counts(stream, (window + position) * self._options.window_s, index)
        return f1_of(total)

    def _shown_counts(self, stream: str, at_s: float, index: int) -> np.ndarray:
        stretch = self._at(stream, at_s)
        stride = self.stride(stretch, self._studio.full_pct(stream)) if stretch else None
        if stretch is None or stride is None:  # nothing is analysed: every object is missed
            return np.array([0.0, 0.0, float(len(self._studio.truth(stream, index)))])
        return self._studio.counts(stream, stretch.version, index, stride)

    def stride(self, stretch: Stretch, full_pct: float) -> int | None:
        """Every how-many-th frame was really analysed: what the knobs ask, or less when the share cannot carry it, where every
        frame needs full_pct."""
        if stretch.knobs is None or stretch.infer_pct <= 0:
            return None
        wanted = 1 if stretch.knobs == "every" else int(stretch.knobs.removeprefix("1/"))
        return max(wanted, int(np.ceil(full_pct / stretch.infer_pct - 1e-6)))


def affordable_epochs(
    tried: Trials, costs: CostProfile, n_train: int, n_holdout: int, *, budget_gpu_s: float
) -> tuple[list[tuple[RetrainConfig, int]], float]:
    """How many epochs of each family's trial a budget buys, and what that costs in GPU-seconds.

    The order of `models.microprofile_run`: the serving model is judged first, then all families advance epoch by epoch; none begins
    an epoch once the budget is spent. Families without an epoch are left out."""
    done, spent = [0] * len(tried.configs), 0.0
    for number, gpu_s in trial_steps(tried, costs, n_train, n_holdout):
        if number is not None and spent >= budget_gpu_s:
            break
        spent += gpu_s
        if number is not None:
            done[number] += 1
    return [(config, n) for config, n in zip(tried.configs, done, strict=True) if n], spent


#: What a picture costs whose features are kept, as part of its first pass (measured: docs/trials.md).
KEPT_COST_FRAC = 0.05


def trial_steps(tried: Trials, costs: CostProfile, n_train: int, n_holdout: int) -> Iterator[tuple[int | None, float]]:
    """(family, GPU-seconds) of everything that profiling does, in order; family None for what comes before the first epoch. Trials that
    lend pass each picture through the trunk once."""
    if not n_train or not n_holdout or not tried.configs:
        return
    judging, seen, again = n_holdout * costs.infer_gpu_s, 0, KEPT_COST_FRAC if tried.lending else 1.0
    yield None, judging + costs.init_gpu_s * len(tried.configs)
    for _ in range(tried.epochs):
        for number, config in enumerate(tried.configs):
            frames = sample_size(config, n_train, tried.data_frac)
            new = max(0, frames - seen) if tried.lending else 0  # a trial's pictures are the first of one order
            seen += new
            yield number, costs.epoch_gpu_s(config, new) + again * (costs.epoch_gpu_s(config, frames - new) + judging)


def profiling_gpu_s(
    configs: Sequence[RetrainConfig], costs: CostProfile, n_train: int, n_holdout: int, *, epochs: int, data_frac: float
) -> float:
    """All epochs of all trials of one stream, when every family is tried."""
    tried = Trials(configs=families(configs), epochs=epochs, data_frac=data_frac)
    return sum(gpu_s for _, gpu_s in trial_steps(tried, costs, n_train, n_holdout))
