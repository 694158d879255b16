"""In which steps shares are given out: fine where rounding would waste much, as said where it would not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler import steps
from scheduler.commands import ReportPlan, ReportWindow, SetKnobs
from scheduler.ekya.lookahead import lookahead
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.engine_state import BoxState, StreamState
from scheduler.events import BoxStarted, CameraAdded
from scheduler.sim.driver import VirtualDriver
from scheduler.snapshots import snapshot_of
from scheduler.types import Gpu, KnobProfile, RetrainOption, Snapshot, StreamView
from tests.support.learning_world import ENGINE, LearningWorld


def knobs(cheapest_pct: float) -> tuple[KnobProfile, ...]:
    return (
        KnobProfile(name="every", demand_pct=12 * cheapest_pct, quality_frac=1.0),
        KnobProfile(name="1/12", demand_pct=cheapest_pct, quality_frac=0.8),
    )


def views(count: int, cheapest_pct: float) -> list[StreamView]:
    return [StreamView(id=f"c{n}", quality=0.5, knobs=knobs(cheapest_pct)) for n in range(count)]


@pytest.mark.parametrize(
    ("cameras", "cheapest_pct", "capacity_pct", "step"),
    [
        (8, 2.7, 100, 1),  # 40 % for 22 %
        (2, 2.7, 100, 5),  # 10 % for 5 %: little of the device
        (8, 5.0, 100, 5),  # nothing is lost
        (8, 4.9, 100, 5),
        (4, 5.4, 100, 1),  # 40 % for 22 %
        (8, 2.7, 800, 5),  # of eight devices it is little
        (300, 0.3, 1_000, 5),  # a plan would take too long
        (0, 1.0, 100, 5),
    ],
)  # fmt: skip
def test_the_step_follows_what_rounding_wastes(cameras: int, cheapest_pct: float, capacity_pct: int, step: int) -> None:
    assert steps.quantum_pct(views(cameras, cheapest_pct), capacity_pct=capacity_pct, most_pct=5) == step


def test_the_coarsest_that_wastes_little_is_taken() -> None:
    assert steps.quantum_pct(views(4, 4.9), capacity_pct=100, most_pct=10) == 5
    assert steps.quantum_pct(views(8, 1.9), capacity_pct=100, most_pct=10) == 2


def test_a_camera_without_knobs_needs_nothing() -> None:
    assert steps.quantum_pct([StreamView(id="a", quality=0.5, knobs=())], capacity_pct=100, most_pct=5) == 5


@pytest.mark.parametrize(
    ("demand_pct", "step_pct", "up_pct"), [(2.7, 5, 5.0), (5.0, 5, 5.0), (5.0 + 1e-12, 5, 5.0), (0.0, 5, 0.0), (2.7, 1, 3.0)]
)
def test_rounding_up(demand_pct: float, step_pct: int, up_pct: float) -> None:
    assert steps.rounded_up(demand_pct, step_pct) == up_pct


def state(count: int = 8, cheapest_pct: float = 2.7) -> BoxState:
    return BoxState(streams={v.id: StreamState(id=v.id, knobs=v.knobs, version="0") for v in views(count, cheapest_pct)})


CONFIG = EngineConfig(policy="lookahead", quantum_auto=True)


def step_of(config: EngineConfig, box: BoxState | None = None) -> int:
    return snapshot_of(box or state(), config, 100.0, cached=False).quantum_pct


@pytest.mark.parametrize("policy", ["lookahead", "optimal"])
def test_planners_that_search_everything_get_finer_steps(policy: str) -> None:
    assert step_of(replace(CONFIG, policy=policy)) == 1


@pytest.mark.parametrize("policy", ["thief-repeat", "thief", "uniform(high,50)"])
def test_a_thief_does_not_because_it_would_stick(policy: str) -> None:
    assert step_of(replace(CONFIG, policy=policy)) == 5


def test_nor_where_it_is_switched_off_or_shares_are_placed_or_divided() -> None:
    assert step_of(replace(CONFIG, quantum_auto=False)) == 5
    assert step_of(replace(CONFIG, gpus=(Gpu(id="0"),))) == 5
    divided = state()
    divided.shares_pct = (("a", 50.0), ("b", 50.0))
    assert step_of(CONFIG, divided) == 5


def test_the_step_does_not_depend_on_what_is_reserved_meanwhile() -> None:
    """Else shares would be rounded anew with every labelling."""
    taken = [snapshot_of(state(), CONFIG, 100.0, cached=False, reserved_pct=pct).quantum_pct for pct in (0, 20, 60)]
    assert taken == [1, 1, 1]


FITS = replace(CONFIG, quantum_fits=True)


def snapshot_beside(reserved_pct: int, config: EngineConfig) -> Snapshot:
    """Three cameras of 2.2 pct, beside what preparation keeps."""
    return snapshot_of(state(3, 2.2), config, 100.0, cached=False, reserved_pct=reserved_pct)


def test_no_camera_goes_dark_for_nothing_but_rounding() -> None:
    """10 pct are left, which three cameras of 2.2 pct share in steps of 5 only if one of them rests (seen on a live box)."""
    assert snapshot_beside(90, CONFIG).quantum_pct == 5, "what journals without it were decided with"
    fine = snapshot_beside(90, FITS)
    assert fine.quantum_pct == 1
    assert all(s.infer_pct > 0 for s in lookahead(fine).streams)
    assert not all(s.infer_pct > 0 for s in lookahead(replace(fine, quantum_pct=5)).streams)


@pytest.mark.parametrize("reserved_pct", [0, 50, 85])
def test_where_all_fit_the_step_stays(reserved_pct: int) -> None:
    assert snapshot_beside(reserved_pct, FITS).quantum_pct == 5


def test_where_they_would_not_fit_anyhow_the_step_stays() -> None:
    assert snapshot_beside(95, FITS).quantum_pct == 5


@pytest.mark.parametrize("capacity_pct", [50, 60, 70])
def test_what_rounding_took_is_learned_with(capacity_pct: int) -> None:
    """In steps of 5 % eight cameras of 2.7 % take 40 %, in steps of 1 % 24 %: the rest retrains, and everybody is still seen."""
    learner = RetrainOption(name="full", end_quality=0.95, cost_gpu_s=12.0)
    streams = tuple(replace(v, retrain=(learner,) if v.id in ("c0", "c1", "c2") else ()) for v in views(8, 2.7))
    coarse = Snapshot(
        remaining_s=100.0, capacity_pct=capacity_pct, quantum_pct=5, min_quality=0.0, streams=streams, estimate="hand-back"
    )
    fine = replace(coarse, quantum_pct=steps.quantum_pct(streams, capacity_pct=capacity_pct, most_pct=5))
    before, after = lookahead(coarse), lookahead(fine)
    assert all(s.infer_pct > 0 for s in after.streams)
    assert sum(s.train_pct for s in after.streams) >= sum(s.train_pct for s in before.streams) + 16
    assert after.expected_quality > before.expected_quality + 0.02
    after.check(capacity_pct)


def test_a_box_plans_in_them() -> None:
    engine = BoxEngine(replace(CONFIG, window_s=100, first_window_s=100, min_quality=0.0))
    for view in views(8, 10.0 / 3):
        engine.handle(CameraAdded(at_s=0, stream=view.id, knobs=view.knobs, version="0", quality=0.5))
    commands = engine.handle(BoxStarted(at_s=0, window=0))
    (plan,) = [c.plan for c in commands if isinstance(c, ReportPlan)]
    assert all(s.infer_pct >= 4 for s in plan.streams)
    assert any(s.infer_pct % 5 for s in plan.streams)
    assert not [c for c in commands if isinstance(c, SetKnobs) and c.knobs is None]


# --- whole windows ----------------------------------------------------------------------------------------------------


def strides(every_pct: float) -> tuple[KnobProfile, ...]:
    kept = {1: 1.0, 2: 0.99, 3: 0.98, 4: 0.97, 6: 0.93, 8: 0.89, 12: 0.8}
    return tuple(
        KnobProfile(name=f"1/{n}", demand_pct=round(every_pct / n, 3), quality_frac=q, fps=12 / n) for n, q in kept.items()
    )


def shown(every_pct: float, *, auto: bool) -> list[float]:
    """Eight cameras that can learn from 0.45 to 0.75: what they showed, window by window from the second on."""
    world = LearningWorld(base=0.45, learns=0.75)
    config = replace(
        ENGINE, policy="lookahead", overlap=True, prep_auto=True, min_quality=0.1, window_s=250, first_window_s=250, label_frames=20,
        gate_frames=8, golden_gpu_s=0.82, profile_every=3, quantum_auto=auto,
    )  # fmt: skip
    driver = VirtualDriver(BoxEngine(config), world)
    cameras = [CameraAdded(at_s=0, stream=f"c{n}", knobs=strides(every_pct), version=f"c{n}-0", quality=0.45) for n in range(8)]
    driver.run([*cameras, BoxStarted(at_s=0, window=0)], until_s=250 * 4 - 1)
    outcomes = [c.outcome for c in world.done if isinstance(c, ReportWindow)]
    return [outcome.realised_quality or 0.0 for outcome in outcomes[1:]]


@pytest.mark.parametrize(("every_pct", "more"), [(32.6, 0.0), (65.2, 0.01), (130.4, 0.05)])
def test_the_shorter_the_device_the_more_is_shown_by_steps_that_fit(every_pct: float, more: float) -> None:
    coarse, fine = shown(every_pct, auto=False), shown(every_pct, auto=True)
    assert len(coarse) == len(fine) == 2
    assert all(after > before + more for before, after in zip(coarse, fine, strict=True))
