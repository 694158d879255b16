"""A profile that is used again: what is recalled, when, and that what came of it counts."""

from __future__ import annotations

import pytest

from scheduler import belief
from scheduler.commands import StartProfiling, StartRetraining
from scheduler.engine_state import EngineConfig, StreamState
from scheduler.types import RetrainOption
from tests.support.learning_world import KNOBS, LearningWorld, Ran, run

SHORT = RetrainOption(name="short", end_quality=0.6, cost_gpu_s=5.0)
LONG = RetrainOption(name="long", end_quality=0.7, cost_gpu_s=20.0, quality_sd=0.2)


def camera(gains: list[float], quality: float = 0.55, *profiles: tuple[RetrainOption, ...]) -> StreamState:
    return StreamState(
        id="a",
        knobs=KNOBS,
        version="v",
        quality=quality,
        gains=gains,
        profiles=list(profiles),
        profiled_in=2,
        profiled_from=0.5,
    )


def test_a_worked_example() -> None:
    """Profiled at 0.5: short +0.1, long +0.2. Its newest retraining won 0.2 and left 0.1, half of the best:
    from 0.55 on +0.05 and +0.1."""
    short, long = belief.recalled(camera([0.05, 0.2], 0.55, (SHORT, LONG)), EngineConfig())
    assert short.end_quality == pytest.approx(0.60)
    assert long.end_quality == pytest.approx(0.65)
    assert (short.cost_gpu_s, long.cost_gpu_s) == (5.0, 20.0)
    assert short.quality_sd == belief.LEAST_PROMISE_SD
    assert long.quality_sd == 0.2


def test_gains_beyond_what_was_promised_promise_no_more() -> None:
    assert belief.recalled(camera([0.5], 0.55, (LONG,)), EngineConfig())[0].end_quality == pytest.approx(0.75)


@pytest.mark.parametrize("gains", [[0.0], [-0.1, 0.0]])
def test_retrainings_that_won_nothing_promise_nothing(gains: list[float]) -> None:
    assert all(
        o.end_quality == pytest.approx(0.55) for o in belief.recalled(camera(gains, 0.55, (SHORT, LONG)), EngineConfig())
    )


def test_without_a_profile_or_with_a_hopeless_one_nothing_is_offered() -> None:
    assert belief.recalled(camera([0.1]), EngineConfig()) == ()
    hopeless = RetrainOption(name="bad", end_quality=0.4, cost_gpu_s=1.0)
    assert belief.recalled(camera([0.1], 0.55, (hopeless,)), EngineConfig()) == ()


def test_quality_is_never_above_one() -> None:
    assert belief.recalled(camera([0.5], 0.95, (LONG,)), EngineConfig())[0].end_quality == 1.0


# --- in the engine ----------------------------------------------------------------------------------------------------


def lived(every: int, *, overlap: bool = True, said_gain: float = 0.05) -> Ran:
    """A camera that is worth 0.1 more with each retraining, over eight windows."""
    world = LearningWorld()
    steps: dict[str, float] = {}

    def better(version: str, truth: float, window: int) -> float:
        steps.setdefault(version, 0.3 + said_gain * len(steps))
        return steps[version]

    world.said = better
    return run(
        world, windows=8, cameras=("a",), profile_every=every, overlap=overlap, drift=False, reuse=False, policy="lookahead",
        label_frames=20,
    )  # fmt: skip


def windows_of(ran: Ran, kind: type) -> list[int]:
    return [c.window + 1 for c in ran.of(kind)]


@pytest.mark.parametrize("overlap", [False, True])
def test_every_window_is_retrained_and_every_third_profiled(overlap: bool) -> None:
    always, seldom = lived(1, overlap=overlap), lived(3, overlap=overlap)
    assert windows_of(always, StartProfiling) == [1, 2, 3, 4, 5, 6, 7]
    assert windows_of(seldom, StartProfiling) == [1, 4, 7]
    assert windows_of(seldom, StartRetraining) == windows_of(always, StartRetraining)


def test_a_camera_that_was_never_retrained_is_profiled_each_time() -> None:
    """Nothing came of its profile, so there is nothing to scale it by."""
    world = LearningWorld(failing={"StartRetraining"})
    ran = run(world, windows=5, profile_every=4, drift=False, reuse=False, label_frames=20)
    assert windows_of(ran, StartProfiling) == [1, 2, 3, 4]


def test_people_read_that_it_was_recalled() -> None:
    ran = lived(3)
    reasons = [reason for c in ran.world.done if type(c).__name__ == "ReportPlan" for reason in c.reasons]  # type: ignore[attr-defined]
    assert any("profile of window 1 recalled" in reason for reason in reasons)
