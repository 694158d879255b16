"""The world of the virtual-time driver with real models behind it: what jobs cost, what they do, what people saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from edge import jobs
from edge.evaluate.studio import GoldenFromMemo, Studio, StudioSamples, f1_of, key_of
from models.detector import Detector
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
from scheduler.events import EpochDone, Event, GateDone, JobFailed, LabelDone, ProfileDone, RetrainDone, SwapDone
from scheduler.sim.driver import Work
from scheduler.types import EpochReport, KnobProfile, ProfileTrial, RetrainConfig


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
        self._goldens: dict[str, Detector] = {}

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
        new = sum(self.samples.split(r) is None for r in refs)
        cost = new * costs.golden_gpu_s + len(refs) * command.holdout_frac * costs.infer_gpu_s

        def finish(at_s: float) -> Event:
            self.samples.now_s, self.gpu_s = at_s, self.gpu_s + cost
            result = jobs.run_at_once(
                jobs.label_steps(
                    self.samples,
                    self._golden(command.stream),
                    self._studio.detector(command.version),
                    stream=command.stream,
                    window=command.window,
                    frames=command.frames,
                    holdout_frac=command.holdout_frac,
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
        configs: list[RetrainConfig] = []
        cost = 0.0
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
        key = key_of("trial", command.version, data_key, config, command.epochs, command.data_frac, self._options.seed)
        found = self._studio.memo.json(key)
        if found is None:
            trials, _ = jobs.run_at_once(
                jobs.profile_steps(
                    self.samples,
                    self._studio.detector(command.version),
                    stream=command.stream,
                    window=command.window,
                    configs=[config],
                    epochs=command.epochs,
                    data_frac=command.data_frac,
                    budget_gpu_s=float("inf"),
                    seed=int(key[:8], 16),
                    timer=lambda: 0.0,
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
        version = key_of("train", command.version, data_keys, config, self._options.seed)
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
                    self.samples,
                    self._golden(command.stream),
                    self._studio.detector(command.version),
                    self._studio.detector(command.candidate),
                    stream=command.stream,
                    window=command.window,
                    frames=command.frames,
                    scoring=self._options.scoring,
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
            self._goldens[stream] = GoldenFromMemo(self._studio, stream, self._options.scoring)  # type: ignore[assignment]
        return self._goldens[stream]

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
