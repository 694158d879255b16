"""The backend wrapper: whose the pool's compute is, what cameras are promised, and that everything else goes through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.gpu.lanes import LaneBackend
from edge.gpu.pooled import POOL_JOB, PooledBackend
from tests.support.pooled import PoolBench, TimedModel


@pytest.fixture
def bench() -> Iterator[PoolBench]:
    made = PoolBench(capacity_pct=200)
    yield made
    made.end()


def lags(
    bench: PoolBench, camera: str, model: TimedModel, *, share_pct: float, every_s: float = 0.2, frames: int = 100
) -> list[float]:
    told: list[float] = []
    front = bench.front(model, camera, share_pct=share_pct)
    bench.spawn_camera(front, every_s=every_s, frames=frames, goal_s=2 * every_s, told=told.append)
    return told


def test_what_the_pool_received_is_split_by_what_was_asked_of_it(bench: PoolBench) -> None:
    """10 % of a core for one camera, 30 % for the other."""
    told = lags(bench, "a", TimedModel(bench.clock, each_s=0.02), share_pct=40.0)
    lags(bench, "b", TimedModel(bench.clock, each_s=0.06, skill=0.9), share_pct=40.0)
    bench.pass_time(11.0)
    report = bench.backend.report(10.0)
    assert set(report) == {"a/infer", "b/infer"}, "the pool's own lane is not told beside its cameras'"
    assert report["a/infer"].received_pct == pytest.approx(10.0, abs=0.5)
    assert report["b/infer"].received_pct == pytest.approx(30.0, abs=1.0)
    assert [r.promised_pct for r in report.values()] == [pytest.approx(40.0)] * 2
    assert report["a/infer"].iterations == 0, "this bench asks without a lane"
    assert len(told) > 40


def test_the_split_adds_up_to_what_the_pool_received(bench: PoolBench) -> None:
    model = TimedModel(bench.clock, each_s=0.03, c0_s=0.01)
    for camera in "abc":
        lags(bench, camera, model, share_pct=30.0)
    bench.pass_time(11.0)
    together = sum(r.received_pct for r in bench.backend.report(10.0).values())
    assert together == pytest.approx(bench.inside.report(10.0)[POOL_JOB].received_pct)


def test_a_batch_is_split_evenly_among_its_members(bench: PoolBench) -> None:
    model = TimedModel(bench.clock, each_s=0.0, c0_s=0.1)
    busy: list[object] = []
    bench.ask(bench.front(TimedModel(bench.clock, each_s=0.2, skill=0.99), "busy", share_pct=50.0), [9], busy, within_s=9.0)
    bench.pass_time(0.1)
    bench.ask(bench.front(model, "a", share_pct=50.0), [1], [], within_s=9.0)
    bench.ask(bench.front(model, "b", share_pct=50.0), [2, 3], [], within_s=9.0)
    bench.pass_time(5.0)
    asked_s = {job: lane.span(60.0)[1] for job, lane in bench.backend._lanes.items()}
    assert model.batches == [[1, 2, 3]]
    assert asked_s["a/infer"] == pytest.approx(0.1 / 3)
    assert asked_s["b/infer"] == pytest.approx(0.2 / 3)


def test_the_pool_is_held_to_the_sum_of_the_cameras_shares(bench: PoolBench) -> None:
    """Two cameras that want 60 % of a core together, and are promised 30 %."""
    for camera in "ab":
        lags(
            bench, camera, TimedModel(bench.clock, each_s=0.06, skill=0.5 if camera == "a" else 0.9), share_pct=15.0, frames=200
        )
    bench.pass_time(25.0)
    assert bench.inside.report(10.0)[POOL_JOB].received_pct == pytest.approx(30.0, abs=1.0)
    assert bench.pool.dropped > 20, "what did not fit was given up"


def test_a_cameras_own_compute_is_told_too() -> None:
    clock = FakeClock()
    backend = PooledBackend(LaneBackend(capacity_pct=100, clock=clock), clock=clock)
    lane = backend.open_lane("a/infer", role="infer")
    backend.set_shares({"a/infer": 20.0})

    def body() -> None:
        for _ in range(10):
            with lane.iteration():
                clock.work(0.05)
            clock.sleep(0.95)

    clock.spawn(body)
    clock.advance_to(10.0)
    report = backend.report(10.0)["a/infer"]
    assert (report.received_pct, report.promised_pct) == (pytest.approx(5.0), pytest.approx(20.0))
    assert report.iterations == 10
    assert report.backlogged_frac == pytest.approx(0.05)
    clock.join()


def test_a_share_that_was_set_before_its_lane_counts() -> None:
    clock = FakeClock()
    inside = LaneBackend(capacity_pct=100, clock=clock)
    backend = PooledBackend(inside, clock=clock)
    backend.set_shares({"a/infer": 30.0, "train": 40.0})
    backend.open_lane("a/infer", role="infer")
    backend.open(0)
    clock.advance_to(5.0)
    assert inside.report(1.0)[POOL_JOB].promised_pct == pytest.approx(30.0)
    backend.open_lane("b/infer", role="infer")
    backend.set_shares({"a/infer": 30.0, "b/infer": 20.0})
    clock.advance_to(10.0)
    assert inside.report(1.0)[POOL_JOB].promised_pct == pytest.approx(50.0)
    backend.close_lane("a/infer")
    clock.advance_to(15.0)
    assert inside.report(1.0)[POOL_JOB].promised_pct == pytest.approx(20.0)


def test_too_much_is_refused_and_changes_nothing() -> None:
    clock = FakeClock()
    backend = PooledBackend(LaneBackend(capacity_pct=100, clock=clock), clock=clock)
    backend.open_lane("a/infer", role="infer")
    backend.set_shares({"a/infer": 60.0})
    with pytest.raises(ValueError, match="capacity"):
        backend.set_shares({"a/infer": 60.0, "train": 60.0})
    clock.advance_to(1.0)
    assert backend.report(1.0)["a/infer"].promised_pct == pytest.approx(60.0)


def test_names_are_used_once() -> None:
    backend = PooledBackend(LaneBackend(capacity_pct=100))
    backend.open_lane("a/infer", role="infer")
    backend.open_lane("learns")
    for job, role in (("a/infer", "infer"), ("a/infer", "learn"), ("learns", "infer"), (POOL_JOB, "infer")):
        with pytest.raises(ValueError, match="lane already"):
            backend.open_lane(job, role=role)  # type: ignore[arg-type]


def test_a_camera_is_cancelled_by_itself_and_the_pool_by_nobody() -> None:
    backend = PooledBackend(LaneBackend(capacity_pct=100))
    a, b = (backend.open_lane(f"{camera}/infer", role="infer") for camera in "ab")
    seat = backend.open(0)
    backend.set_shares({"a/infer": 50.0})
    backend.cancel("a/infer")
    backend.cancel(POOL_JOB)
    backend.close_lane(POOL_JOB)
    with pytest.raises(JobCancelled), a.iteration():
        pass
    with pytest.raises(JobCancelled):
        a.checkpoint()
    with b.iteration():
        b.checkpoint()
    with seat.iteration():
        pass
    backend.close()
    with pytest.raises(JobCancelled), b.iteration():
        pass
    with pytest.raises(JobCancelled), seat.iteration():
        pass


def test_the_memory_of_the_pool_is_its_cameras(bench: PoolBench) -> None:
    assert bench.backend.memory() == {}
    told = lags(bench, "a", TimedModel(bench.clock), share_pct=40.0)
    lags(bench, "b", TimedModel(bench.clock, skill=0.9), share_pct=40.0)
    bench.pass_time(5.0)
    memory, pool = bench.backend.memory(), bench.inside.memory()[POOL_JOB]
    assert set(memory) == {"a/infer", "b/infer"}
    assert {m.lane for m in memory.values()} == {pool.lane}
    assert pool.need is not None
    assert sum(m.need.persistent_mib for m in memory.values() if m.need) == pytest.approx(pool.need.persistent_mib)
    assert told


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(5, 60), st.integers(10, 60)), min_size=1, max_size=4))
def test_whatever_is_asked_the_split_adds_up(cameras: list[tuple[int, int]]) -> None:
    """cameras: (ms of compute per frame, share in pct)."""
    bench = PoolBench(capacity_pct=400)
    for n, (each_ms, share_pct) in enumerate(cameras):
        model = TimedModel(bench.clock, each_s=each_ms / 1000, skill=0.1 + 0.1 * n)
        lags(bench, f"cam{n}", model, share_pct=float(share_pct), every_s=0.25, frames=20)
    bench.pass_time(4.0)
    report = bench.backend.report(3.0)
    assert sum(r.received_pct for r in report.values()) == pytest.approx(
        bench.inside.report(3.0)[POOL_JOB].received_pct, abs=1e-6
    )
    assert all(r.received_pct >= 0 for r in report.values())
    bench.pass_time(6.0)
    bench.end()
