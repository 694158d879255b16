"""What batches cost where there are no gaps to measure it in: frames tell it, and larger batches are tried when so many wait."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from edge.pool.batch_times import RUNS_LEAST, SIZES, TRY_AGAIN_S, BatchTimes, longest_of
from edge.pool.shared import SharedModel
from models.serving.served import Deferred, ServedDetector
from models.serving.torch_runtime import TorchRuntime
from models.zoo import load_detector
from scheduler.orloj.types import ModelCost
from tests.support.pooled import PoolBench, TimedModel


def sizes_of(model: TimedModel) -> Counter[int]:
    return Counter(len(batch) for batch in model.batches)


def calls(bench: PoolBench, model: TimedModel, *, count: int, pictures: int = 8, every_s: float = 1.0) -> list[object]:
    """A camera that asks for `pictures` at once, again and again."""
    front, results = bench.front(model, "a", share_pct=90.0), list[object]()
    for _ in range(count):
        bench.ask(front, list(range(pictures)), results, within_s=0.9)
        bench.pass_time(every_s)
    return results


def test_batches_that_pay_are_found_and_made() -> None:
    bench = PoolBench("orloj", batches=False)
    model = TimedModel(bench.clock, c0_s=0.03, each_s=0.005)
    results = calls(bench, model, count=12)
    assert results == [list(range(8))] * 12
    model.batches.clear()
    calls(bench, model, count=5)
    assert sizes_of(model) == {8: 5}
    assert bench.pool._asides.measured == 0
    bench.end()


def test_batches_that_do_not_pay_are_tried_twice_each() -> None:
    bench = PoolBench("orloj", batches=False)
    model = TimedModel(bench.clock, each_s=0.02)
    results = calls(bench, model, count=12)
    assert results == [list(range(8))] * 12
    tried = {size: count for size, count in sizes_of(model).items() if size > 1}
    assert set(tried) == {2, 4, 8}
    assert max(tried.values()) <= 3
    model.batches.clear()
    calls(bench, model, count=5)
    assert set(sizes_of(model)) == {1}
    bench.end()


def test_they_are_tried_again_later() -> None:
    """A training beside them, say, may have spoilt the first trial."""
    bench = PoolBench("orloj", batches=False)
    model = TimedModel(bench.clock, each_s=0.02)
    calls(bench, model, count=12)
    model.c0_s, model.each_s = 0.03, 0.005
    bench.pass_time(TRY_AGAIN_S)
    calls(bench, model, count=12)
    model.batches.clear()
    calls(bench, model, count=3)
    assert sizes_of(model) == {8: 3}
    bench.end()


def test_a_model_that_cannot_run_batches_is_asked_for_one_and_then_for_none() -> None:
    bench = PoolBench("orloj", batches=False)
    model = TimedModel(bench.clock, c0_s=0.03, each_s=0.005)
    whole = model.predict

    def predict(images: Any, **words: Any) -> Any:
        if len(images) > 1:
            model.batches.append([-1] * len(images))
            raise MemoryError
        return whole(images, **words)

    model.predict = predict  # type: ignore[method-assign]
    results = calls(bench, model, count=12, pictures=4)
    assert results == [list(range(4))] * 12, "picture by picture"
    assert sum(count for size, count in sizes_of(model).items() if size > 1) == 1
    bench.pass_time(TRY_AGAIN_S)
    calls(bench, model, count=2, pictures=4)
    assert sum(count for size, count in sizes_of(model).items() if size > 1) == 2, "once more"
    bench.end()


def test_a_policy_that_does_not_take_a_cost_is_said_and_frames_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = PoolBench("orloj", batches=False)
    model = TimedModel(bench.clock, each_s=0.02)
    calls(bench, model, count=1, pictures=1)

    def throws(*_: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(bench.pool._policy, "add_model", throws)
    assert calls(bench, model, count=4) == [list(range(8))] * 4
    assert bench.pool.policy_errors > 0
    bench.end()


# --- the cost ---------------------------------------------------------------------------------------------------------


def times_of(times_s: dict[int, float], *, state: str = "", times: BatchTimes | None = None) -> BatchTimes:
    times = times or BatchTimes()
    for size, took_s in times_s.items():
        for _ in range(RUNS_LEAST):
            times.note(size, took_s, state)
    return times


@pytest.mark.parametrize(
    ("times_s", "sizes"),
    [
        ({}, (1,)),
        ({2: 0.03}, (1,)),  # how long one takes is not known
        ({1: 0.02}, (1, 2)),
        ({1: 0.02, 2: 0.04}, (1, 4)),  # two do not pay, four may
        ({1: 0.02, 2: 0.03}, (1, 2, 4)),
        ({1: 0.02, 2: 0.03, 4: 0.06, 8: 0.08, 16: 0.2}, (1, 2, 8)),
        ({1: 0.02, 2: 0.04, 4: 0.08, 8: 0.16, 16: 0.32}, (1,)),
        ({1: 0.02, 3: 0.021, 2: 0.03}, (1, 2, 4)),  # batches that were not filled are no size
    ],
)
def test_one_size_more_than_is_known_is_hoped_for(times_s: dict[int, float], sizes: tuple[int, ...]) -> None:
    assert times_of(times_s).cost().sizes == sizes


def test_a_hope_is_that_a_quarter_of_the_time_is_saved() -> None:
    cost = times_of({1: 0.02}).cost()
    assert cost.c0_s + cost.c1 * 0.02 == pytest.approx(0.02)
    assert cost.c0_s + cost.c1 * 2 * 0.02 == pytest.approx(0.03)


def test_larger_ones_than_one_that_failed_are_not_hoped_for() -> None:
    times = times_of({1: 0.02, 2: 0.03})
    times.failed.add(4)
    assert times.cost().sizes == (1, 2)


def test_times_beside_a_training_are_not_mixed_with_those_of_the_quiet_device() -> None:
    """Four at a time save a third in either; all of it takes three times as long beside the training."""
    times = times_of({1: 0.03, 2: 0.05, 4: 0.08}, state="learning", times=times_of({1: 0.01}))
    assert times.typical_s() == {1: pytest.approx(0.01), 2: pytest.approx(0.05 / 3), 4: pytest.approx(0.08 / 3)}
    assert times.cost().sizes == (1, 2, 4, 8)
    assert [times.expected_s(4, state) for state in ("learning", "")] == [pytest.approx(0.08), pytest.approx(0.04)]
    times_of({4: 0.04}, times=times)
    assert times.typical_s()[4] == pytest.approx(0.04), "what was run there counts there"


def test_where_nothing_was_run_quietly_the_other_state_counts() -> None:
    times = times_of({1: 0.03, 2: 0.05}, state="learning")
    times.note(1, 0.01)
    assert times.typical_s() == {1: 0.03, 2: 0.05}
    times.note(1, 0.01)
    assert times.typical_s() == {1: 0.01, 2: pytest.approx(0.05 / 3)}


def test_the_longest_of_some_is_longer_than_one() -> None:
    times_s = [0.01, 0.02, 0.06]
    assert longest_of(times_s, 1) == pytest.approx(0.03)
    every = [max(a, b, c) for a in times_s for b in times_s for c in times_s]
    assert longest_of(times_s, 3) == pytest.approx(sum(every) / 27)


def test_a_machine_whose_times_vary_is_not_taken_for_pictures_that_differ() -> None:
    """Singles take 10 to 30 ms by chance. Two take 30, four 50: that is c0 = 12 ms and little that grows with the longest."""
    times = BatchTimes()
    for took_s in (0.01, 0.02, 0.03, 0.01, 0.02, 0.03):
        times.note(1, took_s)
    times_of({2: 0.03, 4: 0.05, 8: 0.09, 16: 0.17}, times=times)
    cost = times.cost()
    single_s = [0.01, 0.02, 0.03]
    for size, took_s in ((2, 0.03), (4, 0.05), (8, 0.09), (16, 0.17)):
        assert cost.c0_s + cost.c1 * size * longest_of(single_s, size) == pytest.approx(took_s, rel=0.1)


def test_a_form_that_runs_pictures_one_by_one_is_never_asked_for_batches() -> None:
    trained = load_detector("tinydet-edge")
    runtime = TorchRuntime()
    served = ServedDetector(trained, runtime, lambda body, shape_px, _: runtime.start({}, body, shape_px))
    assert SharedModel("m#0", "key", served).cost() == ModelCost()
    deferred = Deferred(trained, lambda _: served, lambda work: None)
    model = SharedModel("m#0", "key", deferred)
    model.times = times_of({1: 0.02, 2: 0.03})
    assert model.cost().sizes == (1, 2, 4)
    assert model.to_measure == list(SIZES)
    deferred.current = served
    assert model.changed_form()
    assert model.cost() == ModelCost()
    assert model.to_measure == [1]
