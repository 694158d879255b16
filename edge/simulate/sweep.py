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
from scheduler.sim.variations import Profiles, believing, fixed_configs, prefix, shuffled, with_window_s
from scheduler.trace import Trace

#: Streams whose measured profiles say which configurations the uniform policies use (the last ones of the shuffled order).
HOLD_OUT = 2
MAX_JOBS = 2


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One situation. streams None: all; window_s None: as recorded; overhead_s None: preparation runs on the box as recorded.
    noise: standard deviation on predicted end qualities (0-1); seed: of the streams' order and of the noise."""

    streams: int | None = None
    gpus: float = 1.0
    window_s: float | None = None
    quantum: int = 5
    noise: float = 0.0
    profiles: Profiles = "predicted"
    estimate: Literal["static", "hand-back"] = "hand-back"
    min_quality: float = 0.4
    overhead_s: float | None = None
    seed: int = 0


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
    tasks = [(trace, each, policy) for _, each in points for policy in policies]
    results: list[SimResult] = []
    for result in _each(tasks, jobs):
        results.append(result)
        progress(result.policy, len(results) / len(tasks))
    size = len(policies)
    return [
        Point(at=at, setting=each, results=tuple(results[n * size : (n + 1) * size])) for n, (at, each) in enumerate(points)
    ]


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
    fixed = fixed_configs(hold_out(trace, setting.seed))
    named = policy
    for role, name in fixed.items():
        named = named.replace(f"({role},", f"({name},")
    result = simulate(varied(trace, setting), named, engine_config_of(setting), overhead_s=setting.overhead_s)
    return replace(result, policy=policy)


def hold_out(trace: Trace, seed: int) -> list[Any]:
    """The last streams of the shuffled order: those that a study with fewer streams does not hold."""
    order = shuffled([s.id for s in trace.streams], seed)[-HOLD_OUT:]
    return [s for s in trace.streams if s.id in order]


def varied(trace: Trace, setting: Setting) -> Trace:
    """The trace as the setting wants it. Raises UsageError for more streams than there are."""
    changed = trace if setting.streams is None else prefix(trace, setting.streams, setting.seed)
    if setting.window_s is not None:
        changed = with_window_s(changed, setting.window_s)
    return believing(changed, setting.profiles, setting.noise, setting.seed)


def engine_config_of(setting: Setting) -> EngineConfig:
    """The box's own defaults with what the setting says. Recorded costs are what came true: no margin is added to them."""
    return EngineConfig(
        capacity_pct=round(100 * setting.gpus), quantum_pct=setting.quantum, estimate=setting.estimate,
        min_quality=setting.min_quality, cost_margin_frac=0.0,
    )  # fmt: skip
