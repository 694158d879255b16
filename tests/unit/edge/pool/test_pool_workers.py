"""The pool with several workers, in virtual time: batches at a time, whose share pays, and what goes wrong for whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobError
from edge.gpu.pooled import POOL_JOB, pool_job
from edge.pool.asides import Asides
from edge.pool.turn import TooLate
from tests.support.pooled import PoolBench, TimedModel, answer, picture


def warmed(policy: str = "fifo", *, workers: int = 2, hangs_s: float = 10.0, asides: Asides | None = None) -> PoolBench:
    """Every worker's lane has run: before, each has the device to itself, so that its memory can be measured."""
    bench = PoolBench(policy, workers=workers, capacity_pct=100 * workers, hangs_s=hangs_s, asides=asides)
    front, results = bench.front(TimedModel(bench.clock, skill=0.01), "warm", share_pct=10.0), list[object]()
    for number in range(2 * workers):
        bench.ask(front, [number], results)
        bench.pass_time(1.0)
    assert len(results) == 2 * workers
    return bench


@pytest.fixture
def bench() -> Iterator[PoolBench]:
    made = warmed()
    yield made
    made.end()


def test_two_batches_run_at_a_time(bench: PoolBench) -> None:
    """One worker would need 0.4 s for both."""
    results: list[object] = []
    for number, camera in enumerate("ab"):
        model = TimedModel(bench.clock, each_s=0.2, skill=0.4 + number / 10)
        bench.ask(bench.front(model, camera, share_pct=90.0), [number], results)
    bench.pass_time(0.25)
    assert sorted(results) == [[0], [1]]  # type: ignore[type-var]


def test_one_model_is_run_by_both_and_by_each_in_a_copy_of_its_own(bench: PoolBench) -> None:
    model = TimedModel(bench.clock, each_s=0.2)
    fronts = [bench.front(model, camera, share_pct=90.0) for camera in "ab"]
    results: list[object] = []
    for number, front in enumerate(fronts):
        bench.ask(front, [number], results)
        bench.pass_time(0.01)
    bench.pass_time(0.25)
    assert sorted(results) == [[0], [1]]  # type: ignore[type-var]
    assert model.beside.most == 2
    assert fronts[0].behind is model


def test_a_third_waits_for_the_first_that_is_free(bench: PoolBench) -> None:
    results: list[object] = []
    for number, (camera, each_s) in enumerate((("a", 0.5), ("b", 0.1), ("c", 0.1))):
        model = TimedModel(bench.clock, each_s=each_s, skill=0.4 + number / 10)
        bench.ask(bench.front(model, camera, share_pct=60.0), [number], results)
        bench.pass_time(0.01)
    bench.pass_time(0.3)
    assert results == [[1], [2]]
    bench.pass_time(0.3)
    assert results[-1] == [0]


def test_a_picture_wakes_one_of_them_in_turns(bench: PoolBench) -> None:
    """Nobody looks for nothing, and both shares are used alike."""
    front, results = bench.front(TimedModel(bench.clock, each_s=0.02), "a"), list[object]()
    for number in range(20):
        bench.ask(front, [number], results)
        bench.pass_time(0.2)
    reports = bench.inside.report(4.0)
    assert [reports[pool_job(worker)].iterations for worker in range(2)] == [10, 10]
    assert len(results) == 20


def test_what_they_receive_together_is_the_sum_of_the_cameras_shares(bench: PoolBench) -> None:
    """Two cameras that want two whole cores; all are promised 1.3 together."""
    told: list[float] = []
    for number, camera in enumerate("ab"):
        model = TimedModel(bench.clock, each_s=0.2, skill=0.4 + number / 10)
        front = bench.front(model, camera, share_pct=60.0)
        bench.spawn_camera(front, every_s=0.2, frames=150, goal_s=0.4, told=told.append)
    bench.pass_time(25.0)
    report = bench.backend.report(10.0)
    assert set(report) == {"a/infer", "b/infer", "warm/infer"}
    assert sum(r.received_pct for r in report.values()) == pytest.approx(130.0, abs=3.0)
    assert sum(r.received_pct for r in report.values()) == pytest.approx(
        sum(bench.inside.report(10.0)[pool_job(worker)].received_pct for worker in range(2))
    )
    assert [report[f"{camera}/infer"].promised_pct for camera in "ab"] == [pytest.approx(60.0)] * 2


def test_twice_the_frames_are_in_time_with_two_workers() -> None:
    kept = {}
    for workers in (1, 2):
        bench, told = PoolBench("orloj", workers=workers, capacity_pct=200), list[float]()
        for number, camera in enumerate("abcd"):
            model = TimedModel(bench.clock, each_s=0.08, skill=0.4 + number / 10)
            front = bench.front(model, camera, share_pct=45.0)
            bench.spawn_camera(front, every_s=0.2, frames=50, goal_s=0.4, told=told.append)
        bench.pass_time(15.0)
        kept[workers] = sum(lag_s <= 0.4 for lag_s in told) / len(told)
        bench.end()
    assert kept[1] < 0.7, "four cameras want 1.6 cores"
    assert kept[2] == 1.0


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_who_hangs_is_replaced_and_the_other_goes_on_meanwhile() -> None:
    bench = warmed(hangs_s=5.0)
    hanging, fine = TimedModel(bench.clock), TimedModel(bench.clock, skill=0.9, each_s=0.3)
    hanging.on[1] = lambda: bench.clock.work(1000.0) or answer(1)
    results: list[object] = []
    bad, good = bench.front(hanging, "a", share_pct=90.0), bench.front(fine, "b", share_pct=90.0)
    bench.ask(bad, [1], results)
    bench.pass_time(1.0)
    bench.ask(good, [2], results)
    bench.pass_time(1.0)
    assert results == [[2]], "before anybody knows that the other one hangs"
    bench.pass_time(4.0)
    assert isinstance(results[1], JobError)
    assert results[1].code == "hung"
    begun_s = bench.clock.monotonic_s()
    for number in (3, 4):
        bench.ask(good, [number], results)
        bench.pass_time(0.01)
    bench.pass_time(0.35)
    assert sorted(results[2:]) == [[3], [4]], "two at a time again"  # type: ignore[type-var]
    assert bench.clock.monotonic_s() - begun_s < 0.6
    bench.pass_time(1000.0)
    bench.ask(bad, [5], results)
    bench.pass_time(1.0)
    assert results[-1] == [5], "it has come back"
    assert set(bench.inside.report()) == {pool_job(0), pool_job(1)}
    bench.end()


def test_both_may_hang() -> None:
    bench = warmed(hangs_s=5.0)
    model, results = TimedModel(bench.clock), list[object]()
    model.on[1] = model.on[2] = lambda: bench.clock.work(100.0) or answer(0)
    front, other = bench.front(model, "a"), bench.front(TimedModel(bench.clock, skill=0.9), "b")
    for number in (1, 2):
        bench.ask(front, [number], results)
        bench.pass_time(0.01)
    bench.pass_time(6.0)
    assert [error.code for error in results if isinstance(error, JobError)] == ["hung", "hung"]
    bench.ask(other, [3], results)
    bench.pass_time(1.0)
    assert results[-1] == [3]
    bench.pass_time(200.0)
    bench.end()


def test_a_camera_gives_up_the_batch_that_it_is_in_and_no_other() -> None:
    bench = warmed(hangs_s=100.0)
    results: dict[str, list[object]] = {"a": [], "b": []}
    fronts = {}
    for number, camera in enumerate("ab"):
        model = TimedModel(bench.clock, skill=0.4 + number / 10)
        model.on[1] = lambda: bench.clock.work(20.0) or answer(1)
        fronts[camera] = bench.front(model, camera)
        bench.ask(fronts[camera], [1], results[camera], within_s=1.0)
    bench.pass_time(0.5)
    fronts["a"].abandon()
    bench.pass_time(0.5)
    assert isinstance(results["a"][0], JobError)
    assert results["b"] == []
    bench.pass_time(30.0)
    assert results["b"] == [[1]]
    bench.end()


def test_what_waits_is_taken_over_from_a_worker_whose_lane_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = PoolBench(workers=2, capacity_pct=200)
    seat_open, opened = bench.backend.open, list[int]()

    class Removed:
        job = POOL_JOB

        def iteration(self):  # type: ignore[no-untyped-def]
            raise JobError("it took more memory than there is", subject=POOL_JOB, code="out_of_memory")

    def open(worker: int):  # type: ignore[no-untyped-def]
        opened.append(worker)
        return Removed() if opened == [0] else seat_open(worker)

    monkeypatch.setattr(bench.backend, "open", open)
    front, results = bench.front(TimedModel(bench.clock), "a"), list[object]()
    for number in range(4):
        bench.ask(front, [number], results)
        bench.pass_time(0.5)
    assert results == [[0], [1], [2], [3]]
    assert opened == [0, 1, 0], "with the next picture it has a lane again"
    bench.end()


def test_closing_ends_all_of_them_and_everybodys_wait() -> None:
    bench = PoolBench(workers=3, capacity_pct=300)
    results: list[object] = []
    front = bench.front(TimedModel(bench.clock, each_s=5.0), "a", share_pct=90.0)
    for number in range(5):
        bench.ask(front, [number], results, within_s=60.0)
    bench.pass_time(0.5)
    before = threading.active_count()
    bench.end()
    assert len(results) == 5
    assert threading.active_count() <= before - 3


def test_a_model_is_closed_when_none_of_them_is_in_it(bench: PoolBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.pool.pool.CLOSE_S", 0.01)
    models = [TimedModel(bench.clock, skill=0.4 + n / 10) for n in range(2)]
    fronts = [bench.front(model, camera) for model, camera in zip(models, "ab", strict=True)]
    with fronts[0]._model.copies[1].running:  # it hangs, so its memory cannot be given back
        fronts[0].close()
    fronts[1].close()
    assert [model.closed for model in models] == [False, True]


def test_a_first_run_is_one_of_every_copy(bench: PoolBench) -> None:
    """So no frame pays for what a copy does only once."""
    model, found = TimedModel(bench.clock), list[object]()
    front = bench.front(model, "a")
    bench.clock.spawn(lambda: found.append(front.predict([picture(5)])))
    bench.pass_time(0.5)
    assert len(found) == 1
    assert model.batches == [[5], [5]]


# --- measuring --------------------------------------------------------------------------------------------------------


def test_one_of_them_measures_what_one_alone_would() -> None:
    measured = {}
    for workers in (1, 2):
        bench = PoolBench("orloj", asides=Asides(frac=0.2), workers=workers, capacity_pct=200)
        model, told = TimedModel(bench.clock, each_s=0.01), list[float]()
        bench.spawn_camera(
            bench.front(model, "a", share_pct=90.0), every_s=0.5, frames=60, goal_s=0.5, told=told.append
        )  # fmt: skip
        bench.pass_time(31.0)
        assert max(told) < 0.05, "frames do not wait for it"
        assert model.beside.most == 1
        measured[workers] = bench.pool._asides.measured
        bench.end()
    assert measured[1] == measured[2] >= 9, "two runs of each of five sizes, single pictures were run anyway"


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(1, 3),
    cameras=st.lists(st.tuples(st.integers(5, 200), st.integers(10, 90), st.booleans()), min_size=1, max_size=4),
    policy=st.sampled_from(["fifo", "edf", "orloj", "clockwork", "nexus"]),
)
def test_whatever_is_asked_everybody_is_answered_rightly_or_told(
    workers: int, cameras: list[tuple[int, int, bool]], policy: str
) -> None:
    """cameras: (ms of compute per picture, share in pct, whether it shares the first one's model)."""
    bench = PoolBench(policy, workers=workers, capacity_pct=400)
    results: dict[int, list[object]] = {}
    first = TimedModel(bench.clock, each_s=cameras[0][0] / 1000, skill=0.05)
    for n, (each_ms, share_pct, shared) in enumerate(cameras):
        model = first if shared else TimedModel(bench.clock, each_s=each_ms / 1000, skill=0.1 + 0.1 * n)
        front = bench.front(model, f"cam{n}", share_pct=float(share_pct))
        for k in range(6):
            number = 10 * n + k
            bench.ask(front, [number, number], results.setdefault(number, []), within_s=0.1 * (k + 1))
        bench.pass_time(0.05)
    bench.pass_time(3.0)
    for number, [result] in results.items():
        assert result == [number, number] or isinstance(result, TooLate)
    assert bench.pool._policy.waiting() == 0
    assert bench.pool.pictures % 2 == 0 or bench.pool.dropped
    report = bench.backend.report(3.0)
    inside = bench.inside.report(3.0)
    assert sum(r.received_pct for r in report.values()) == pytest.approx(
        sum(inside[pool_job(worker)].received_pct for worker in range(workers)), abs=1e-6
    )
    bench.end()
