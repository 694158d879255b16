"""One setting of the simulator, or a grid of them, run on one or two processes. Results do not depend on how many."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from configs.errors import UsageError
from scheduler.engine import EngineConfig
from scheduler.sim.trace_world import SimResult, simulate
from scheduler.sim.variations import Profiles, believing, experience, fixed_configs, prefix, shuffled, with_window_s
from scheduler.trace import Trace, TraceStream
from scheduler.types import Gpu, Network

#: Streams whose measured profiles say which configurations the uniform policies use (the last ones of the shuffled order).
HOLD_OUT = 2
#: A configuration that this part of a GPU cannot end within a recorded window is none to fix for every stream.
FIXED_MOST_FRAC = 0.25
MAX_JOBS = 2


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One situation. streams None: all; window_s None: as recorded; overhead_s None: preparation runs on the box as recorded.
    noise: standard deviation on predicted end qualities (0-1); seed: of the streams' order and of the noise.
    devices: a job's share lies on one GPU (several whole ones), as on a real box; else one pool, as in the paper's simulator.
    calibrate, prune, react, slaq: as of `scheduler.engine_state.EngineConfig`; None for the first and third: when a prediction can be
    wrong at all (not with true profiles and no noise). hold_out: calibration begins with what the last streams of the order showed,
    which then must not be among those simulated. network: for the policy `cloud`."""

    streams: int | None = None
    gpus: float = 1.0
    window_s: float | None = None
    quantum: int = 5
    noise: float = 0.0
    profiles: Profiles = "predicted"
    estimate: Literal["static", "hand-back"] = "hand-back"
    min_quality: float = 0.4
    overhead_s: float | None = None
    devices: bool = False
    calibrate: bool | None = None
    hold_out: bool = False
    prune: bool = True
    react: bool | None = None
    slaq: Literal["sum", "minmax", "finish"] | None = None
    network: Network | None = None
    seed: int = 0

    @property
    def exact(self) -> bool:
        """Does every prediction come true?"""
        return self.profiles == "true" and self.noise == 0


def link(up_mbps: float | None, down_mbps: float | None, up_mb: float, down_mb: float) -> Network | None:
    """The network of a setting; None when no speed is given. Raises UsageError when only one of the two is."""
    if up_mbps is None and down_mbps is None:
        return None
    if up_mbps is None or down_mbps is None:
        missing = "up-mbps" if up_mbps is None else "down-mbps"
        raise UsageError(f"{missing}: a link needs both directions", subject=missing, remedy=f"give --{missing} too")
    return Network(up_mbps=up_mbps, down_mbps=down_mbps, up_mb=up_mb, down_mb=down_mb)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What `--sweep` may vary. parse: text to value; low, high: bounds, both allowed."""

    field: str
    parse: Callable[[str], Any]
    low: float
    high: float


#: Name as typed -> field of `Setting`.
AXES: dict[str, Axis] = {
    "streams": Axis(field="streams", parse=int, low=1, high=100_000),
    "gpus": Axis(field="gpus", parse=float, low=0.05, high=1000),
    "window": Axis(field="window_s", parse=float, low=1, high=1e6),
    "quantum": Axis(field="quantum", parse=int, low=1, high=100),
    "noise": Axis(field="noise", parse=float, low=0, high=1),
}


def parse_sweep(words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """`("streams=2,4 gpus=1,2",)` -> {"streams": (2, 4), "gpus": (1.0, 2.0)}, order kept. Raises UsageError naming the axis."""
    axes: dict[str, tuple[Any, ...]] = {}
    for word in " ".join(words).split():
        name, equals, values = word.partition("=")
        if name not in AXES or not equals:
            raise UsageError(f"sweep: '{word}' is no axis", subject="sweep", remedy=f"write {'=..., '.join(AXES)}=...")
        if name in axes:
            raise UsageError(f"sweep: {name} is given twice", subject=f"sweep.{name}", remedy="list all its values once")
        axes[name] = tuple(dict.fromkeys(_value(name, text) for text in values.split(",")))
    return axes


def _value(name: str, text: str) -> Any:
    axis = AXES[name]
    try:
        value = axis.parse(text)
    except ValueError:
        kind = "a whole number" if axis.parse is int else "a number"
        raise UsageError(
            f"sweep: {name}: '{text}' is not {kind}", subject=f"sweep.{name}", remedy="separate by commas"
        ) from None
    if not axis.low <= value <= axis.high:
        raise UsageError(
            f"sweep: {name}: {text} is outside {axis.low:g} to {axis.high:g}", subject=f"sweep.{name}", remedy="change it"
        )
    return value


@dataclass(frozen=True, kw_only=True)
class Point:
    """at: axis -> value (empty without a sweep)."""

    at: Mapping[str, Any]
    setting: Setting
    results: tuple[SimResult, ...]


def grid(setting: Setting, axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[dict[str, Any], Setting]]:
    """All combinations, the last axis fastest."""
    for values in itertools.product(*axes.values()):
        at = dict(zip(axes, values, strict=True))
        yield at, replace(setting, **{AXES[name].field: value for name, value in at.items()})


def run_sweep(
    trace: Trace,
    policies: Sequence[str],
    setting: Setting,
    axes: Mapping[str, Sequence[Any]],
    *,
    jobs: int = 1,
    progress: Callable[[str, float], None] = lambda what, done_frac: None,
) -> list[Point]:
    """Every policy at every point. Raises UsageError when a point asks for more streams than there are."""
    points = list(grid(setting, axes))
    for _, each in points:
        varied(trace, each)
    results = run_many(trace, [(each, policy) for _, each in points for policy in policies], jobs=jobs, progress=progress)
    size = len(policies)
    return [
        Point(at=at, setting=each, results=tuple(results[n * size : (n + 1) * size])) for n, (at, each) in enumerate(points)
    ]


def run_many(
    trace: Trace,
    wanted: Sequence[tuple[Setting, str]],
    *,
    jobs: int = 1,
    progress: Callable[[str, float], None] = lambda what, done_frac: None,
) -> list[SimResult]:
    """One run for each (setting, policy), in order. jobs: processes, 2 at most."""
    results: list[SimResult] = []
    for result in _each([(trace, setting, policy) for setting, policy in wanted], jobs):
        results.append(result)
        progress(result.policy, len(results) / len(wanted))
    return results


def _each(tasks: Sequence[tuple[Trace, Setting, str]], jobs: int) -> Iterator[SimResult]:
    if jobs <= 1 or len(tasks) == 1:
        yield from map(_run_task, tasks)
        return
    with ProcessPoolExecutor(max_workers=min(jobs, MAX_JOBS), mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_run_task, tasks)


def _run_task(task: tuple[Trace, Setting, str]) -> SimResult:
    trace, setting, policy = task
    return run_policy(trace, policy, setting)


def run_policy(trace: Trace, policy: str, setting: Setting) -> SimResult:
    """One run. `uniform(high,W)` and `uniform(low,W)` take one configuration for all streams, as the paper does: the dear and the
    cheap end of the Pareto front measured on hold-out streams."""
    named = policy
    for role, name in fixed_by_hold_out(trace, setting.seed).items():
        named = named.replace(f"({role},", f"({name},")
    config = engine_config_of(setting)
    if setting.hold_out:
        config = replace(config, hold_out=experience(hold_out_streams(believed(trace, setting), setting)))
    result = simulate(varied(trace, setting), named, config, overhead_s=setting.overhead_s)
    return replace(result, policy=policy)


def fixed_by_hold_out(trace: Trace, seed: int) -> dict[str, str]:
    """What `high` and `low` stand for: from the last streams of the shuffled order, which a study with fewer streams does not hold."""
    order = shuffled([s.id for s in trace.streams], seed)[-HOLD_OUT:]
    return fixed_configs([s for s in trace.streams if s.id in order], FIXED_MOST_FRAC * trace.window_s)


def hold_out_streams(trace: Trace, setting: Setting) -> list[TraceStream]:
    """The last streams of the shuffled order. Raises UsageError when they are among those that are simulated."""
    last = shuffled([s.id for s in trace.streams], setting.seed)[-HOLD_OUT:]
    simulated = len(trace.streams) if setting.streams is None else setting.streams
    if simulated + HOLD_OUT > len(trace.streams):
        raise UsageError(
            f"hold-out: {simulated} of {len(trace.streams)} streams are simulated, {HOLD_OUT} must be left", subject="hold-out",
            remedy=f"take --streams {max(1, len(trace.streams) - HOLD_OUT)} or fewer",
        )  # fmt: skip
    return [s for s in trace.streams if s.id in last]


def believed(trace: Trace, setting: Setting) -> Trace:
    return believing(trace, setting.profiles, setting.noise, setting.seed)


def varied(trace: Trace, setting: Setting) -> Trace:
    """The trace as the setting wants it. Raises UsageError for more streams than there are."""
    changed = trace if setting.streams is None else prefix(trace, setting.streams, setting.seed)
    if setting.window_s is not None:
        changed = with_window_s(changed, setting.window_s)
    return believed(changed, setting)


def engine_config_of(setting: Setting) -> EngineConfig:
    """The box's own defaults with what the setting says. Recorded costs are what came true: no margin is added to them."""
    capacity_pct = round(100 * setting.gpus)
    calibrate = not setting.exact if setting.calibrate is None else setting.calibrate
    react = not setting.exact if setting.react is None else setting.react
    config = EngineConfig(
        capacity_pct=capacity_pct, quantum_pct=setting.quantum, estimate=setting.estimate, min_quality=setting.min_quality,
        cost_margin_frac=0.0, gpus=_devices(capacity_pct) if setting.devices else (), network=setting.network,
        calibrate=calibrate, react=react, slaq=setting.slaq,
    )  # fmt: skip
    return config if setting.prune else replace(config, prune_every=0)


def _devices(capacity_pct: int) -> tuple[Gpu, ...]:
    """Whole GPUs, the last one perhaps only a part."""
    parts = [min(100, capacity_pct - start) for start in range(0, capacity_pct, 100)]
    return tuple(Gpu(id=f"gpu{number}", capacity_pct=part) for number, part in enumerate(parts))
