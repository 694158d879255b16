"""Fluid's widths for Ray Tune: what each trial of a fleet's tuning job gets, in Tune's own terms (papers/fluid.md section 10).

Tune's trial executors are gone; what is left is `ResourceChangingScheduler(base_scheduler, resources_allocation_function)`. Its function
is called on results with (controller, trial, result, scheduler) and returns a `PlacementGroupFactory`, or None for no change.
`allocation_function` makes such a function of Fluid's decision; `bundles` are a width in Ray's resources. Which GPU a half lands on is
Ray's choice, and its shares are logical: compute and memory are kept by the box underneath, or not at all.

`ResourceChangingScheduler` restarts a trial from its checkpoint to change it (epsilon_s), so trials have to write checkpoints often. Its
base scheduler decides who goes on, with Tune's own ASHA, Hyperband or PBT; a real run: tests/integration/test_fluid_in_ray_tune.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from configs.errors import EnvironmentLacking
from scheduler.fluid import Layout, Pool, Trial, Width, dynamic_widths

Bundle = dict[str, float]

#: What Tune calls a trial that is running.
RUNNING = "RUNNING"


def bundles(width: Width, *, cpus_per_gpu: float = 1.0) -> tuple[Bundle, ...]:
    """A width as Ray's placement group bundles: one bundle with a part of a GPU, or one per whole GPU. CPUs go with the GPUs, at least
    one per bundle (a trial's process needs it). Raises ValueError for a width of 0 or less."""
    if width <= 0:
        raise ValueError(f"a trial needs a width above 0, got {width}")
    if width < 1:
        return ({"CPU": max(1.0, cpus_per_gpu * float(width)), "GPU": float(width)},)
    return tuple({"CPU": max(1.0, cpus_per_gpu), "GPU": 1.0} for _ in range(int(width)))


def width_of(found: Sequence[Mapping[str, float]]) -> Width:
    """The width that bundles stand for; 0 without a GPU."""
    return sum((Fraction(b.get("GPU", 0.0)).limit_denominator(64) for b in found), start=Fraction(0))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """left_s: Tune's trial and its newest result -> seconds left on one GPU (measured seconds per iteration times iterations left);
    alpha, beta, epsilon_s: as measured (`scheduler.fluid`)."""

    pool: Pool
    left_s: Callable[[Any, Mapping[str, Any] | None], float]
    alpha: float = 1.0
    beta: float = 1.0
    epsilon_s: float = 0.0
    cpus_per_gpu: float = 1.0


def widths_now(trials: Sequence[Any], settings: Settings) -> dict[str, Width]:
    """DynamicFluid's widths of Tune's trials, by trial id. Trials that do not run are left out; when one waits, nobody changes (and
    nothing is returned), as algorithm 3.2 has it."""
    running = [t for t in trials if t.status == RUNNING]
    if any(t.status in ("PENDING", "PAUSED") for t in trials) or not running:
        return {}
    layout = _layout(running, settings.pool)
    if layout is None:
        return {}
    known = [
        Trial(id=t.trial_id, h_s=max(0.0, settings.left_s(t, t.last_result)), alpha=settings.alpha, beta=settings.beta)
        for t in running
    ]
    found = dynamic_widths(known, layout, settings.pool, epsilon_s=settings.epsilon_s)
    return {id: verdict.granted for id, verdict in found.verdicts.items()}


def _layout(running: Sequence[Any], pool: Pool) -> Layout | None:
    """Who sits where, as far as Ray's bundles say. None: they need more than the pool has; Ray may have lost a node."""
    narrow = [w.denominator for t in running if 0 < (w := width_of(t.placement_group_factory.bundles)) < 1]
    layout = Layout(range(pool.gpus), max(narrow, default=pool.share_max))
    for trial in sorted(running, key=lambda t: -width_of(t.placement_group_factory.bundles)):
        width = width_of(trial.placement_group_factory.bundles)
        if width <= 0 or not layout.seat(trial.trial_id, width):
            return None
    return layout


def allocation_function(settings: Settings) -> Callable[[Any, Any, Mapping[str, Any], Any], Any]:
    """For `ResourceChangingScheduler(resources_allocation_function=...)`. What it returns raises EnvironmentLacking, when a width is to
    change, where Ray Tune is not installed."""

    def allocate(controller: Any, trial: Any, result: Mapping[str, Any], scheduler: Any) -> Any:
        width = widths_now(controller.get_trials(), settings).get(trial.trial_id)
        if width is None or width == width_of(trial.placement_group_factory.bundles):
            return None
        return _factory()([*bundles(width, cpus_per_gpu=settings.cpus_per_gpu)])

    return allocate


def _factory() -> Any:
    try:
        from ray.tune import PlacementGroupFactory  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise EnvironmentLacking(
            "Ray Tune is not installed",
            subject="ray",
            remedy="install ray[tune], or run the trials on the box (docs/trials.md)",
        ) from error
    return PlacementGroupFactory
