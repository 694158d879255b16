"""What is measured when nothing waits: run times alone, sizes that pay, c0 and c1; and that frames do not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edge.pool.asides import LENT_S, Asides
from edge.pool.batch_times import SIZES
from edge.pool.pool import Pool
from edge.pool.shared import SharedModel
from edge.pool.turn import Turn
from models.serving.served import Deferred
from scheduler.orloj.types import ModelCost
from tests.support.pooled import PoolBench, TimedModel


class Told:
    """What a policy is told of run times, in front of a real one."""

    def __init__(self, pool: Pool) -> None:
        self.samples: list[tuple[str, str, float]] = []
        self.costs: list[ModelCost] = []
        policy: Any = pool._policy
        sample, add_model = policy.sample, policy.add_model

        def note_sample(model: str, app: str, alone_s: float, now_s: float) -> None:
            self.samples.append((model, app, alone_s))
            sample(model, app, alone_s, now_s)

        def note_cost(model: str, cost: ModelCost) -> None:
            self.costs.append(cost)
            add_model(model, cost)

        policy.sample, policy.add_model = note_sample, note_cost


@pytest.fixture
def bench() -> Iterator[PoolBench]:
    made = PoolBench(asides=Asides(frac=0.2), capacity_pct=200)
    yield made
    made.end()


def watch(bench: PoolBench, model: TimedModel, cameras: str, *, every_s: float = 0.5, frames: int = 100) -> list[float]:
    told: list[float] = []
    for camera in cameras:
        front = bench.front(model, camera, share_pct=90.0 / len(cameras))
        bench.spawn_camera(front, every_s=every_s, frames=frames, goal_s=2 * every_s, told=told.append)
    return told


def test_what_batches_cost_is_measured_in_the_gaps(bench: PoolBench) -> None:
    """15 ms + 10 ms a picture: c0 and c1 * l are those, and sizes pay as far as they were tried."""
    told = Told(bench.pool)
    watch(bench, TimedModel(bench.clock, c0_s=0.015, each_s=0.01), "a")
    bench.pass_time(50.0)
    cost = told.costs[-1]
    assert cost.sizes == SIZES
    assert cost.c0_s == pytest.approx(0.015, rel=0.05)
    assert cost.c1 * 0.025 == pytest.approx(0.010, rel=0.05)


def test_batches_that_save_nothing_are_not_made(bench: PoolBench) -> None:
    told = Told(bench.pool)
    watch(bench, TimedModel(bench.clock, each_s=0.02), "a")
    bench.pass_time(50.0)
    assert told.costs[-1] == ModelCost(sizes=(1,))


def test_a_finished_picture_of_a_batch_is_run_again_alone(bench: PoolBench) -> None:
    told = Told(bench.pool)
    model = TimedModel(bench.clock, c0_s=0.02, each_s=0.01)
    watch(bench, model, "ab")
    bench.pass_time(50.0)
    assert max(map(len, model.batches)) == 2 or max(bench.pool.sizes) == 2
    assert {app for _, app, _ in told.samples} == {"a", "b"}
    assert all(alone_s == pytest.approx(0.03) for _, _, alone_s in told.samples)


def test_measuring_never_costs_more_than_its_part_and_delays_no_frame() -> None:
    lags: dict[float, list[float]] = {}
    spent: dict[float, float] = {}
    for frac in (0.0, 0.05):
        bench = PoolBench(asides=Asides(frac=frac), capacity_pct=200)
        model = TimedModel(bench.clock, c0_s=0.02, each_s=0.01)
        lags[frac] = watch(bench, model, "a", every_s=0.2, frames=200)
        bench.pass_time(41.0)
        spent[frac] = sum(0.02 + 0.01 * len(numbers) for numbers in model.batches)
        bench.end()
    assert len(lags[0.05]) == len(lags[0.0]) == 200
    assert max(lags[0.05]) == pytest.approx(max(lags[0.0])), "the camera's next frame was known"
    assert spent[0.0] < spent[0.05] <= 1.05 * spent[0.0] + LENT_S + 0.2  # into debt by one measurement


def test_without_gaps_nothing_is_measured() -> None:
    bench = PoolBench(asides=Asides(frac=0.2), capacity_pct=200)
    watch(bench, TimedModel(bench.clock, each_s=0.09), "a", every_s=0.1, frames=100)
    bench.pass_time(9.0)
    assert bench.pool._asides.measured == bench.pool._asides.samples == 0
    bench.pass_time(30.0)
    bench.end()


def test_a_model_that_fails_while_it_is_measured_is_left_as_it_is(bench: PoolBench) -> None:
    told = Told(bench.pool)
    model = TimedModel(bench.clock, each_s=0.01)
    whole = model.predict

    def predict(images: Any, **words: Any) -> Any:
        if len(images) > 1:
            raise MemoryError
        return whole(images, **words)

    model.predict = predict  # type: ignore[method-assign]
    lags = watch(bench, model, "a")
    bench.pass_time(51.0)
    assert len(lags) == 100
    assert max(lags) < 0.1
    assert [cost.sizes for cost in told.costs[-2:]] == [(1, 2), (1,)], "two were hoped for until they failed"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_hangs_while_it_is_measured_is_given_up_as_one_that_hangs_in_a_batch(workers: int) -> None:
    """Nobody waits for that measurement, so whoever waits next finds out."""
    bench = PoolBench(asides=Asides(frac=0.2), capacity_pct=200, hangs_s=5.0, workers=workers)
    model, fine = TimedModel(bench.clock, each_s=0.01), TimedModel(bench.clock, each_s=0.01, skill=0.9)
    whole, hung = model.predict, list[bool]()

    def predict(images: Any, **words: Any) -> Any:
        if len(images) > 1 and not hung:
            hung.append(True)
            bench.clock.work(60.0)
        return whole(images, **words)

    model.predict = predict  # type: ignore[method-assign]
    lags = watch(bench, model, "a", every_s=0.5, frames=100)
    others: list[float] = []
    bench.spawn_camera(bench.front(fine, "b", share_pct=80.0), every_s=0.5, frames=200, goal_s=0.4, told=others.append)
    bench.pass_time(50.0)
    assert hung
    assert lags[-1] == float("inf"), "nobody is let near it"
    assert sum(lag_s < 0.1 for lag_s in others[-60:]) == 60, "the other model's goes on"
    bench.pass_time(30.0)
    results: list[object] = []
    bench.ask(bench.front(model, "a", share_pct=None), [7], results)
    bench.pass_time(1.0)
    assert results == [[7]], "it has come back"
    bench.end()


def test_another_form_of_the_model_is_measured_anew() -> None:
    bench = PoolBench()
    slow, quick = TimedModel(bench.clock, each_s=0.05), TimedModel(bench.clock, each_s=0.01)
    served = Deferred(slow, lambda _: quick, lambda work: None)
    shared = SharedModel("m#0", "key", served)
    shared.times.note(1, 0.05)
    shared.to_measure = []
    assert not shared.changed_form()
    served.current = quick
    assert shared.changed_form()
    assert (shared.times.typical_s(), shared.to_measure) == ({}, list(SIZES))
    assert not shared.changed_form()
    bench.end()


def test_a_guess_at_a_batch_that_was_never_run() -> None:
    bench = PoolBench()
    shared = SharedModel("m#0", "key", TimedModel(bench.clock))
    assert shared.times.expected_s(4) == 0.0
    shared.times.note(2, 0.04)
    assert shared.times.expected_s(2) == pytest.approx(0.04)
    assert shared.times.expected_s(8) == pytest.approx(0.16)
    assert shared.cost() == ModelCost(sizes=(1,)), "how long one takes is not known"
    bench.end()


def test_a_camera_that_does_not_reach_the_wanted_rate_leaves_gaps_all_the_same(bench: PoolBench) -> None:
    """Its next frame has always been due for a while; it comes half a second after the last one."""
    front, results = bench.front(TimedModel(bench.clock, each_s=0.02), "a", share_pct=80.0), list[object]()
    for number in range(30):
        now_s = bench.clock.monotonic_s()
        bench.ask(front, [number], results, turn=Turn(deadline_s=now_s + 0.4, next_s=now_s - 0.1))
        bench.pass_time(0.5)
    assert results == [[number] for number in range(30)]
    assert bench.pool._asides.measured >= 9


def test_a_frame_is_expected_after_the_shortest_of_its_cameras_newest_gaps() -> None:
    asides = Asides()
    for at_s in (0.0, 0.5, 0.9, 1.4):
        asides.came("a", at_s - 0.2, at_s)
        asides.came("a", at_s - 0.2, at_s + 0.05)  # its crops are no frame of their own
    assert asides._gap_s(1.4) == pytest.approx(0.4)
    assert asides._gap_s(1.7) == pytest.approx(0.1)
    assert asides._gap_s(2.0) == 0.0
    asides.came("b", None, 1.4)
    assert asides._gap_s(1.4) == pytest.approx(0.4), "nobody knows when b asks"
    for n in range(1, 10):
        asides.came("a", 1.2 + n, 1.4 + n)
    assert asides._gap_s(10.4) == pytest.approx(1.0), "what was long ago does not count"
    assert asides._gap_s(14.0) == float("inf"), "one that stays away is not waited for"
