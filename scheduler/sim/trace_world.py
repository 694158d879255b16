"""A world over a recorded trace: the same engine and driver, no model, no pixels. What `simulate` runs.

What it may be used to claim: which decisions a policy takes on recorded offers and what they are worth. What it may not: effects
that no run recorded. A stream that has not been retrained in the simulation has the trace's base quality in every window, one
that has follows the recorded run from the next window on; inside a window a retraining ends at its measured quality (predicted,
where nobody measured it). The gate judges by these true qualities, so it makes no mistakes here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
from scheduler.engine import BoxEngine, EngineConfig, best_affordable
from scheduler.events import BoxStarted, CameraAdded, Event, GateDone, LabelDone, ProfileDone, RetrainDone, SwapDone
from scheduler.sim.driver import VirtualDriver, Work
from scheduler.trace import Trace, TraceOption, TraceStream, TraceWindow
from scheduler.types import KnobProfile, ProfileTrial, RetrainConfig, RetrainOption


@dataclass(frozen=True, kw_only=True)
class SimResult:
    """mean_quality: shown quality over time and streams, from window 1 on; streams: the same per stream; quality: [stream][window].
    gpu_s: compute of labelling, profiling, retraining and gates."""

    policy: str
    mean_quality: float
    retrainings: int
    admitted: int
    gpu_s: float
    streams: dict[str, float]
    quality: dict[str, list[float]]


def simulate(trace: Trace, policy: str, config: EngineConfig) -> SimResult:
    """One run of the engine over the trace. config: capacity, quanta, estimate, preparation; the rest is taken from the trace."""
    world = TraceWorld(trace)
    engine = BoxEngine(replace(engine_config(trace, config), policy=policy))
    driver = VirtualDriver(engine, world, config.speed)
    cameras: list[Event] = [
        CameraAdded(at_s=0.0, stream=s.id, knobs=_knobs(s), version="base", quality=s.windows[0].start_quality)
        for s in sorted(trace.streams, key=lambda s: s.id)
    ]
    end_s = trace.windows * trace.window_s
    driver.run([*cameras, BoxStarted(at_s=0.0, window=0)], until_s=end_s)
    quality = world.shown(end_s)
    streams = {id: _mean(values[1:] or values) for id, values in quality.items()}
    return SimResult(
        policy=policy, mean_quality=_mean(list(streams.values())), retrainings=world.retrainings, admitted=world.admitted,
        gpu_s=sum(driver.used_gpu_s.values()), streams=streams, quality=quality,
    )  # fmt: skip


def engine_config(trace: Trace, config: EngineConfig) -> EngineConfig:
    """`config` with what the trace says: windows, label cost, one configuration per option name with its mean cost."""
    names = trace.option_names()
    offers = [o for s in trace.streams for w in s.windows for o in w.options]
    costs = {name: _mean([o.cost_gpu_s for o in offers if o.name == name]) for name in names}
    # Configurations that differ only in epochs share a trial; recorded options stand alone, so each gets a rate of its own.
    configs = tuple(RetrainConfig(name=name, epochs=1, lr=1e-6 * (number + 1)) for number, name in enumerate(names))
    labels = max((w.labels for s in trace.streams for w in s.windows), default=0)
    return replace(
        config, window_s=trace.window_s, first_window_s=trace.window_s, golden_gpu_s=trace.golden_gpu_s, retrain=configs,
        label_frames=labels or config.label_frames,
        reference=tuple(RetrainOption(name=n, end_quality=0.0, cost_gpu_s=c) for n, c in costs.items()),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    at_s: float
    quality_frac: float


class TraceWorld:
    """`scheduler.sim.driver.World` over a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.retrainings = 0
        self.admitted = 0
        self._streams = {s.id: s for s in trace.streams}
        self._knobs: dict[str, str | None] = dict.fromkeys(self._streams)
        self._infer_pct: dict[str, float] = dict.fromkeys(self._streams, 0.0)
        self._shown: dict[str, list[_Stretch]] = {s: [] for s in self._streams}
        self._swaps: dict[str, list[tuple[float, float]]] = {s: [] for s in self._streams}
        self._candidates: dict[str, float] = {}

    def start(self, command: Command, at_s: float) -> Work:
        if isinstance(command, StartLabelling):
            return self._labelling(command)
        if isinstance(command, StartProfiling):
            return self._profiling(command)
        if isinstance(command, StartRetraining):
            return self._retraining(command)
        if isinstance(command, StartGate):
            return self._gate(command)
        raise TypeError(type(command).__name__)

    def _window(self, stream: str, window: int) -> TraceWindow:
        windows = self._streams[stream].windows
        return windows[min(window, len(windows) - 1)]

    def _labelling(self, command: StartLabelling) -> Work:
        window = self._window(command.stream, command.window + 1)
        frames = min(command.frames, window.labels or command.frames)
        cost = frames * self.trace.golden_gpu_s
        holdout = int(frames * command.holdout_frac)
        quality = self.true_quality(command.stream, command.window + 1)
        if window.predicted_start_quality is not None and quality == window.start_quality:
            quality = window.predicted_start_quality  # what labels said of that very model

        def finish(at_s: float) -> Event:
            return LabelDone(
                at_s=at_s, job=command.job, stream=command.stream, train=frames - holdout, holdout=holdout, quality=quality,
                gpu_s=cost, golden_gpu_s=self.trace.golden_gpu_s or None,
            )  # fmt: skip

        return Work(gpu_s=cost, finish=finish)

    def _profiling(self, command: StartProfiling) -> Work:
        window = self._window(command.stream, command.window + 1)
        trials = tuple(
            # A curve through one point is constant: the recorded prediction itself; all cost is start-up cost.
            ProfileTrial(
                config=config, quality=(predicted,), init_gpu_s=option.cost_gpu_s, gpu_s_per_epoch=0.0, n_profiled=1, n_total=1
            )
            for config in command.configs
            if (option := window.option(config.name)) is not None and (predicted := _predicted(option)) is not None
        )

        def finish(at_s: float) -> Event:
            return ProfileDone(
                at_s=at_s, job=command.job, stream=command.stream, trials=trials, n_train=1, gpu_s=window.profile_gpu_s
            )

        return Work(gpu_s=window.profile_gpu_s, finish=finish)

    def _retraining(self, command: StartRetraining) -> Work:
        self.retrainings += 1
        option = self._window(command.stream, command.window + 1).option(command.config.name)
        candidate = f"{command.stream}:{command.window + 1}:{command.config.name}"
        cost = option.cost_gpu_s if option else self._reference_gpu_s(command.config.name)
        quality = option.quality if option else None
        # Nobody recorded this one (a fixed policy asked for it): it changes nothing, so the gate refuses it.
        self._candidates[candidate] = -1.0 if quality is None else quality

        def finish(at_s: float) -> Event:
            return RetrainDone(at_s=at_s, job=command.job, stream=command.stream, candidate=candidate, gpu_s=cost)

        return Work(gpu_s=cost, finish=finish)

    def _reference_gpu_s(self, name: str) -> float:
        return _mean([o.cost_gpu_s for s in self.trace.streams for w in s.windows if (o := w.option(name)) is not None])

    def _gate(self, command: StartGate) -> Work:
        cost = command.frames * self.trace.golden_gpu_s
        serving = self.true_quality(command.stream, command.window)
        candidate = max(0.0, self._candidates[command.candidate])

        def finish(at_s: float) -> Event:
            return GateDone(
                at_s=at_s, job=command.job, stream=command.stream, candidate=command.candidate, serving_quality=serving,
                candidate_quality=candidate, frames=command.frames, gpu_s=cost,
            )  # fmt: skip

        return Work(gpu_s=cost, finish=finish)

    def swap(self, command: SwapModel, at_s: float) -> Event:
        self.admitted += 1
        self._swaps[command.stream].append((at_s, self._candidates[command.version]))
        return SwapDone(at_s=at_s, stream=command.stream, version=command.version)

    def observe(self, command: Command, at_s: float) -> None:
        if isinstance(command, SetKnobs):
            self._knobs[command.stream] = command.knobs
            self._show(command.stream, at_s)
        elif isinstance(command, SetShares):
            shares = dict(command.shares_pct)
            for stream in self._streams:
                self._infer_pct[stream] = shares.get(f"{stream}/infer", 0.0)
                self._show(stream, at_s)

    def _show(self, stream: str, at_s: float) -> None:
        self._shown[stream].append(_Stretch(at_s=at_s, quality_frac=self._quality_frac(stream)))

    def _quality_frac(self, stream: str) -> float:
        """What the share really carries: the asked knobs, or the best that fits; the cheapest in proportion when none does."""
        share, profiles = self._infer_pct[stream], _knobs(self._streams[stream])
        asked = next((k for k in profiles if k.name == self._knobs[stream]), None)
        if asked is None or share <= 0:
            return 0.0
        if asked.demand_pct <= share + 1e-6:
            return asked.quality_frac
        carried = best_affordable(profiles, share)
        if carried is None:
            return 0.0
        return min(asked.quality_frac, carried.quality_frac) * min(1.0, share / max(carried.demand_pct, 1e-9))

    # --- the truth ----------------------------------------------------------------------------------------------------

    def true_quality(self, stream: str, window: int, until_s: float = float("inf")) -> float:
        """Of the model that serves in `window` at `until_s`, every frame analysed."""
        recorded = self._window(stream, window)
        opened_s = window * self.trace.window_s
        swaps = [(at_s, q) for at_s, q in self._swaps[stream] if at_s <= until_s]
        inside = [q for at_s, q in swaps if opened_s <= at_s < opened_s + self.trace.window_s]
        if inside:
            return inside[-1]
        return recorded.start_quality if any(at_s < opened_s for at_s, _ in swaps) else recorded.base_quality

    def shown(self, end_s: float) -> dict[str, list[float]]:
        """[stream][window]: quality averaged over the window as people saw it."""
        return {s: [self._average(s, w) for w in range(self.trace.windows)] for s in self._streams}

    def _average(self, stream: str, window: int) -> float:
        start, stop = window * self.trace.window_s, (window + 1) * self.trace.window_s
        changes = {s.at_s for s in self._shown[stream]} | {at_s for at_s, _ in self._swaps[stream]}
        cuts = [start, *sorted(t for t in changes if start < t < stop), stop]
        total = sum((b - a) * self._at(stream, window, a) for a, b in zip(cuts, cuts[1:], strict=False))
        return total / (stop - start)

    def _at(self, stream: str, window: int, at_s: float) -> float:
        frac = next((s.quality_frac for s in reversed(self._shown[stream]) if s.at_s <= at_s), 0.0)
        return frac * self.true_quality(stream, window, until_s=at_s)


def _predicted(option: TraceOption) -> float | None:
    return option.predicted_quality if option.predicted_quality is not None else option.measured_quality


def _knobs(stream: TraceStream) -> tuple[KnobProfile, ...]:
    return tuple(KnobProfile(**k.model_dump()) for k in stream.knobs)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
