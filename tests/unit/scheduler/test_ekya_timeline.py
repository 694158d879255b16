"""The exact window: progress survives a pause, what has not ended is thrown away, floats do not lose a completion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ekya.estimate import SpeedCurve, StreamEstimator
from scheduler.ekya.timeline import Completion, Held, held_by, keep, play_window, replan, to_all_jobs
from scheduler.registry import make_policy
from scheduler.sim.random_profiles import random_snapshot
from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamView

KNOBS = (KnobProfile(name="full", demand_pct=20, quality_frac=1.0),)


def view(name: str, quality: float, end_quality: float, cost_gpu_s: float) -> StreamView:
    option = RetrainOption(name="c", end_quality=end_quality, cost_gpu_s=cost_gpu_s)
    return StreamView(id=name, quality=quality, knobs=KNOBS, retrain=(option,))


def snapshot(*views: StreamView, window_s: float = 100.0) -> Snapshot:
    return Snapshot(remaining_s=window_s, capacity_pct=200, quantum_pct=10, min_quality=0, streams=views)


def held(train_pct: float, retrain: str | None = "c") -> Held:
    return Held(infer_pct=20, train_pct=train_pct, retrain=retrain)


def test_one_retraining_by_hand() -> None:
    run = play_window(snapshot(view("a", 0.5, 0.9, 20)), [held(50)], keep)
    assert [(s.from_s, s.to_s, s.quality) for s in run.segments] == [(0, 40, (0.5,)), (40, 100, (0.9,))]
    assert run.quality == pytest.approx(0.5 * 0.4 + 0.9 * 0.6)
    assert run.end_quality == (0.9,)


def test_a_share_above_what_one_job_can_use_trains_no_faster() -> None:
    limited = replace(snapshot(view("a", 0.5, 0.9, 20)), train_max_pct=40)
    assert [play_window(limited, [held(pct)], keep).segments[0].to_s for pct in (20, 40, 80)] == [100, 50, 50]


def test_what_has_not_ended_is_thrown_away() -> None:
    run = play_window(snapshot(view("a", 0.5, 0.9, 60)), [held(50)], keep)
    assert (run.quality, run.end_quality) == (0.5, (0.5,))


def test_a_pause_keeps_progress_and_choice() -> None:
    seen: list[Completion] = []

    def rule(completion: Completion) -> tuple[Held, ...]:
        seen.append(completion)
        # b pauses while c trains, then goes on
        b_pct, c_pct = [(0, 100), (100, 0), (0, 0)][len(seen) - 1]
        return tuple(held(pct, "c" if pct else None) for pct in (0, b_pct, c_pct))

    given = snapshot(view("a", 0.5, 0.9, 10), view("b", 0.5, 0.9, 50), view("c", 0.5, 0.9, 20))
    run = play_window(given, [held(100), held(100), held(0, None)], rule)
    at_first = {s.id: s for s in seen[0].snapshot.streams}
    assert (seen[0].at_s, seen[0].ended, seen[0].snapshot.remaining_s) == (10, (0,), 90)
    assert (at_first["a"].retrain, at_first["a"].quality) == ((), 0.9)
    assert (at_first["b"].running, at_first["b"].retrain[0].cost_gpu_s) == ("c", pytest.approx(40))
    assert (at_first["c"].running, at_first["c"].retrain[0].cost_gpu_s) == (None, 20)
    assert [s.to_s for s in run.segments] == [pytest.approx(t) for t in (10, 30, 70, 100)]
    assert run.end_quality == (0.9, 0.9, 0.9)


def test_an_unknown_retraining_cannot_be_started() -> None:
    with pytest.raises(ValueError, match="no retraining 'x'"):
        play_window(snapshot(view("a", 0.5, 0.9, 10)), [held(50, "x")], keep)


def test_no_time_and_no_streams() -> None:
    assert play_window(snapshot(view("a", 0.5, 0.9, 10), window_s=0), [held(50)], keep).segments == ()
    assert play_window(snapshot(), [], keep).quality == 0.0


def test_both_end_at_once() -> None:
    run = play_window(snapshot(view("a", 0.5, 0.9, 10), view("b", 0.5, 0.9, 10)), [held(50), held(50)], to_all_jobs)
    assert [s.to_s for s in run.segments] == [20, 100]
    assert [h.infer_pct for h in run.segments[1].held] == [70, 70]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from(["thief-repeat", "optimal", "lookahead", "uniform(high,50)"]))
def test_planning_anew_is_consistent(seed: int, streams: int, name: str) -> None:
    """Time is covered without holes, shares never exceed the capacity, and nothing trained twice."""
    given_snapshot = random_snapshot(seed, streams=streams, gpus=1, configs=4)
    policy = make_policy(name)
    run = play_window(given_snapshot, held_by(policy(given_snapshot)), replan(policy))
    assert run.segments[0].from_s == 0
    assert run.segments[-1].to_s == pytest.approx(given_snapshot.remaining_s)
    assert all(a.to_s == b.from_s for a, b in zip(run.segments, run.segments[1:], strict=False))
    assert len(run.segments) <= streams + 1
    assert all(sum(h.infer_pct + h.train_pct for h in s.held) <= given_snapshot.capacity_pct for s in run.segments)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_without_re_sharing_the_window_is_what_the_static_estimate_said(seed: int, streams: int) -> None:
    given_snapshot = random_snapshot(seed, streams=streams, gpus=1, configs=4)
    plan = make_policy("thief-repeat")(given_snapshot)
    run = play_window(given_snapshot, held_by(plan), keep)
    assert run.mean_quality == tuple(pytest.approx(s.expected_quality) for s in plan.streams)


def test_the_estimate_of_one_stream_is_its_window() -> None:
    given_snapshot = snapshot(view("a", 0.5, 0.9, 20))
    choice = StreamEstimator.of(given_snapshot.streams[0], given_snapshot, SpeedCurve()).best(20, 50)
    assert choice.quality == pytest.approx(play_window(given_snapshot, [held(50)], keep).quality)
