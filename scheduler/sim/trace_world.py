"""A world over a recorded trace: the same engine and driver, no model, no pixels. What `simulate` runs.

What it may be used to claim: which decisions a policy takes on recorded offers and what they are worth. What it may not: effects
that no run recorded. A stream that has not been retrained in the simulation has the trace's base quality in every window, one
that has follows the recorded run from the next window on; inside a window a retraining ends at its measured quality (predicted,
where nobody measured it). The gate judges by these true qualities, so it makes no mistakes here.

Truth and belief are apart: labels and profiles answer what the trace says was predicted, the gate and what people see follow what
was measured. `scheduler.sim.variations` makes other beliefs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler.commands import (
    Command,
    ReportPlan,
    SetKnobs,
    SetShares,
    StartGate,
    StartLabelling,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.engine import BoxEngine, EngineConfig, best_affordable
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    EpochDone,
    Event,
    GateDone,
    LabelDone,
    ProfileDone,
    RetrainDone,
    SwapDone,
    SwapFailed,
)
from scheduler.sim.driver import Answer, VirtualDriver, Work
from scheduler.trace import Trace, TraceOption, TraceStream, TraceWindow
from scheduler.types import EpochReport, KnobProfile, ProfileTrial, RetrainConfig, RetrainOption


@dataclass(frozen=True, kw_only=True)
class SimResult:
    """mean_quality: shown quality over time and streams, from window 1 on; streams: the same per stream; quality: [stream][window].
    gpu_s: compute of labelling, profiling, retraining and gates; plans: how often the policy was asked."""

    policy: str
    mean_quality: float
    retrainings: int
    admitted: int
    gpu_s: float
    plans: int
    streams: dict[str, float]
    quality: dict[str, list[float]]


def simulate(trace: Trace, policy: str, config: EngineConfig, *, overhead_s: float | None = None) -> SimResult:
    """One run of the engine over the trace. config: capacity, quanta, estimate, preparation; the rest is taken from the trace.

    overhead_s: labelling and profiling take so many seconds of every window and no compute, gates nothing at all (the authors'
    simulator, 2 s); None: all of them run on the box and cost what the trace says.
    """
    driver, world, events = virtual_box(trace, policy, config, overhead_s)
    driver.keep_log = False
    end_s = trace.windows * trace.window_s
    # Not quite to the end: there the next window opens, of which the trace says nothing.
    driver.run(events, until_s=end_s - 1e-6 * trace.window_s)
    quality = world.shown(end_s)
    streams = {id: _mean(values[1:] or values) for id, values in quality.items()}
    return SimResult(
        policy=policy, mean_quality=_mean(list(streams.values())), retrainings=world.retrainings, admitted=world.admitted,
        gpu_s=sum(driver.used_gpu_s.values()), plans=world.plans, streams=streams, quality=quality,
    )  # fmt: skip


def virtual_box(
    trace: Trace, policy: str, config: EngineConfig, overhead_s: float | None = None
) -> tuple[VirtualDriver, TraceWorld, list[Event]]:
    """The engine in its driver over the trace's world, and the events that start it. Arguments as of `simulate`."""
    if overhead_s is not None:
        # The least preparation share there is: nothing runs on it.
        trace, config = trace.model_copy(update={"golden_gpu_s": 0.0}), replace(config, prep_pct=1)
    world = TraceWorld(trace, overhead_s)
    engine = BoxEngine(replace(engine_config(trace, config), policy=policy))
    cameras: list[Event] = [
        CameraAdded(at_s=0.0, stream=s.id, knobs=_knobs(s), version="base", quality=s.windows[0].start_quality)
        for s in sorted(trace.streams, key=lambda s: s.id)
    ]
    return VirtualDriver(engine, world, config.speed), world, [*cameras, BoxStarted(at_s=0.0, window=0)]


def engine_config(trace: Trace, config: EngineConfig) -> EngineConfig:
    """`config` with what the trace says: windows, label cost, one configuration per option name with its mean cost."""
    names = trace.option_names()
    offers = [o for s in trace.streams for w in s.windows for o in w.options]
    costs = {name: _mean([o.cost_gpu_s for o in offers if o.name == name]) for name in names}
    epochs = {o.name: o.epochs or 1 for o in reversed(offers)}
    # Configurations that differ only in epochs share a trial; recorded options stand alone, so each gets a rate of its own.
    configs = tuple(RetrainConfig(name=name, epochs=epochs[name], lr=1e-6 * (i + 1)) for i, name in enumerate(names))
    families = {o.name: o.family or o.name for o in reversed(offers)}
    labels = max((w.labels for s in trace.streams for w in s.windows), default=0)
    return replace(
        config, window_s=trace.window_s, first_window_s=trace.window_s, golden_gpu_s=trace.golden_gpu_s, retrain=configs,
        label_frames=labels or config.label_frames, families=tuple(families.items()),
        reference=tuple(RetrainOption(name=n, end_quality=0.0, cost_gpu_s=c) for n, c in costs.items()),
        drift=False, reuse=False, group=False,  # a trace holds neither pictures nor what earlier models would do
    )  # fmt: skip


@dataclass
class _Meter:
    """Shown quality of one stream, summed up window by window while time goes on.

    swapped: (when, quality) of the last swap; frac: what the share in force leaves of the model's quality."""

    stream: TraceStream
    window_s: float
    at_s: float = 0.0
    window: int = 0
    frac: float = 0.0
    swapped: tuple[float, float] | None = None
    averages: list[float] = field(default_factory=list)  # of windows that have ended
    _area: float = 0.0  # of the window that is open

    def advance(self, to_s: float) -> None:
        """Nothing changed until `to_s`."""
        while self.at_s < to_s:
            ends_s = (self.window + 1) * self.window_s
            until_s = min(to_s, ends_s)
            self._area += (until_s - self.at_s) * self.frac * self.true_quality(self.window)
            self.at_s = until_s
            if until_s == ends_s:
                self.averages.append(self._area / self.window_s)
                self.window, self._area = self.window + 1, 0.0

    def recorded(self, window: int) -> TraceWindow:
        return self.stream.windows[min(window, len(self.stream.windows) - 1)]

    def true_quality(self, window: int) -> float:
        """Of the model that serves now, on `window`'s frames, every frame analysed."""
        if self.swapped is None:
            return self.recorded(window).base_quality
        at_s, quality = self.swapped
        return quality if at_s >= window * self.window_s else self.recorded(window).start_quality


class TraceWorld:
    """`scheduler.sim.driver.World` over a trace. overhead_s: see `simulate`."""

    def __init__(self, trace: Trace, overhead_s: float | None = None) -> None:
        self.trace = trace
        self.overhead_s = overhead_s
        self.retrainings = 0
        self.admitted = 0
        self.plans = 0
        self._meters = {s.id: _Meter(s, trace.window_s) for s in trace.streams}
        self._profiles = {s.id: _knobs(s) for s in trace.streams}
        self._knobs: dict[str, str | None] = dict.fromkeys(self._meters)
        self._infer_pct: dict[str, float] = dict.fromkeys(self._meters, 0.0)
        self._candidates: dict[str, float] = {}
        self._label_error: dict[str, float] = {}  # of the window's held-out labels: what they say less what is true

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
        return self._meters[stream].recorded(window)

    def true_quality(self, stream: str, window: int) -> float:
        """Of the model that serves now, on `window`'s frames, every frame analysed."""
        return self._meters[stream].true_quality(window)

    def shown(self, end_s: float) -> dict[str, list[float]]:
        """[stream][window]: quality averaged over the window as people saw it, for windows that ended by `end_s`."""
        for meter in self._meters.values():
            meter.advance(end_s)
        return {stream: list(meter.averages) for stream, meter in self._meters.items()}

    def _labelling(self, command: StartLabelling) -> Work:
        window = self._window(command.stream, command.window + 1)
        frames = min(command.frames, window.labels or command.frames)
        cost = frames * self.trace.golden_gpu_s
        holdout = int(frames * command.holdout_frac)
        truth = quality = self.true_quality(command.stream, command.window + 1)
        if window.predicted_start_quality is not None and quality == window.start_quality:
            quality = window.predicted_start_quality  # what labels said of that very model
        self._label_error[command.stream] = quality - truth

        def finish(at_s: float) -> Event:
            return LabelDone(
                at_s=at_s, job=command.job, stream=command.stream, train=frames - holdout, holdout=holdout, quality=quality,
                gpu_s=cost, golden_gpu_s=self.trace.golden_gpu_s or None,
            )  # fmt: skip

        if self.overhead_s is not None:
            return Work.waiting(self.overhead_s / len(self._meters), finish)
        return Work(gpu_s=cost, finish=finish)

    def _profiling(self, command: StartProfiling) -> Work:
        window = self._window(command.stream, command.window + 1)
        cost = 0.0 if self.overhead_s is not None else window.profile_gpu_s
        trials = tuple(
            # A curve through one point is constant: the recorded prediction itself; all cost is start-up cost.
            ProfileTrial(
                config=config, quality=(predicted,), init_gpu_s=option.cost_gpu_s, gpu_s_per_epoch=0.0, n_profiled=1, n_total=1
            )
            for config in command.configs
            if (option := window.option(config.name)) is not None and (predicted := _predicted(option)) is not None
        )

        def finish(at_s: float) -> Event:
            return ProfileDone(at_s=at_s, job=command.job, stream=command.stream, trials=trials, n_train=1, gpu_s=cost)

        return Work(gpu_s=cost, finish=finish)

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

        error = self._label_error.get(command.stream, 0.0)
        return Work(gpu_s=cost, finish=finish, milestones=_epoch_reports(command, option, error) if option else ())

    def _reference_gpu_s(self, name: str) -> float:
        return _mean([o.cost_gpu_s for s in self.trace.streams for w in s.windows if (o := w.option(name)) is not None])

    def _gate(self, command: StartGate) -> Work:
        cost = 1e-6 if command.known else command.frames * self.trace.golden_gpu_s
        serving = self.true_quality(command.stream, command.window)
        candidate = max(0.0, self._candidates[command.candidate])

        def finish(at_s: float) -> Event:
            return GateDone(
                at_s=at_s, job=command.job, stream=command.stream, candidate=command.candidate, serving_quality=serving,
                candidate_quality=candidate, frames=command.frames, gpu_s=cost,
            )  # fmt: skip

        return Work(gpu_s=cost, finish=finish)

    def swap(self, command: SwapModel, at_s: float) -> Event:
        if command.version not in self._candidates:
            return SwapFailed(at_s=at_s, stream=command.stream, version=command.version, text="the trace holds no such model")
        self.admitted += 1
        meter = self._meters[command.stream]
        meter.advance(at_s)
        meter.swapped = (at_s, self._candidates[command.version])
        return SwapDone(at_s=at_s, stream=command.stream, version=command.version)

    def observe(self, command: Command, at_s: float) -> Sequence[Event]:
        if isinstance(command, SetKnobs):
            self._knobs[command.stream] = command.knobs
            self._show(command.stream, at_s)
        elif isinstance(command, SetShares):
            shares = dict(command.shares_pct)
            for stream in self._meters:
                self._infer_pct[stream] = shares.get(f"{stream}/infer", 0.0)
                self._show(stream, at_s)
        elif isinstance(command, ReportPlan):
            self.plans += 1
        return ()

    def _show(self, stream: str, at_s: float) -> None:
        meter, frac = self._meters[stream], self._quality_frac(stream)
        if frac != meter.frac:
            meter.advance(at_s)
            meter.frac = frac

    def _quality_frac(self, stream: str) -> float:
        """What the share really carries: the asked knobs, or the best that fits; the cheapest in proportion when none does."""
        share, profiles = self._infer_pct[stream], self._profiles[stream]
        asked = next((k for k in profiles if k.name == self._knobs[stream]), None)
        if asked is None or share <= 0:
            return 0.0
        if asked.demand_pct <= share + 1e-6:
            return asked.quality_frac
        carried = best_affordable(profiles, share)
        if carried is None:
            return 0.0
        return min(asked.quality_frac, carried.quality_frac) * min(1.0, share / max(carried.demand_pct, 1e-9))


def _epoch_reports(command: StartRetraining, option: TraceOption, label_error: float) -> tuple[tuple[float, Answer], ...]:
    """One answer per epoch of an option whose way was recorded: loss is what is missing to quality 1.

    label_error: a job measures itself on the held-out labels that judged the start, so it is off by as much as they were.
    """
    if not option.epoch_quality:
        return ()
    per_epoch = (option.cost_gpu_s - option.init_gpu_s) / len(option.epoch_quality)

    def answer(epoch: int, quality: float, gpu_s: float) -> Answer:
        report = EpochReport(job=command.job, epoch=epoch, loss=1.0 - quality, quality=quality, gpu_s=gpu_s)
        return lambda at_s: EpochDone(at_s=at_s, stream=command.stream, report=report)

    said = (min(1.0, max(0.0, q + label_error)) for q in option.epoch_quality)
    spent = ((k, q, option.init_gpu_s + k * per_epoch) for k, q in enumerate(said, start=1))
    return tuple((gpu_s, answer(k, q, gpu_s)) for k, q, gpu_s in spent)


def _predicted(option: TraceOption) -> float | None:
    return option.predicted_quality if option.predicted_quality is not None else option.measured_quality


def _knobs(stream: TraceStream) -> tuple[KnobProfile, ...]:
    return tuple(KnobProfile(**k.model_dump()) for k in stream.knobs)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
