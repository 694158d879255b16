"""The pool in virtual time: who is answered, by which batch, who is given up, and what goes wrong for whom."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from configs.errors import JobCancelled, JobError
from edge.gpu.pooled import POOL_JOB
from edge.pool.batch_times import worthwhile
from edge.pool.shared import free_name, weights_key
from edge.pool.turn import Superseded, TooLate, Turn, current, taken
from models.fake import FakeDetector
from scheduler.orloj.fifo import Fifo
from scheduler.orloj.registry import POLICIES
from scheduler.orloj.types import Request
from scheduler.types import Detections
from tests.support.pooled import PoolBench, TimedModel, answer, picture


@pytest.fixture
def bench() -> Iterator[PoolBench]:
    made = PoolBench()
    yield made
    made.end()


def test_every_camera_gets_its_own_answers(bench: PoolBench) -> None:
    model = TimedModel(bench.clock)
    results: dict[str, list[object]] = {"a": [], "b": []}
    bench.ask(bench.front(model, "a"), [1, 2, 3], results["a"])
    bench.ask(bench.front(model, "b"), [7], results["b"])
    bench.pass_time(1.0)
    assert results == {"a": [[1, 2, 3]], "b": [[7]]}
    assert bench.pool.pictures == 4


def test_cameras_with_the_same_weights_share_one_model_and_its_batches(bench: PoolBench) -> None:
    model = TimedModel(bench.clock, each_s=0.1)
    fronts = [
        bench.front(model if n == 0 else TimedModel(bench.clock), camera, share_pct=25.0) for n, camera in enumerate("abc")
    ]
    assert all(front.behind is model for front in fronts), "the copies of b and c are not kept"
    results: list[object] = []
    for n, front in enumerate(fronts):
        bench.ask(front, [n], results)
    bench.pass_time(2.0)
    assert sorted(results) == [[0], [1], [2]]  # type: ignore[type-var]
    assert sorted(sum(model.batches, [])) == [0, 1, 2]
    assert max(map(len, model.batches)) >= 2, "those who waited together were run together"


def test_other_weights_are_another_model_on_the_same_thread(bench: PoolBench) -> None:
    one, other = TimedModel(bench.clock, skill=0.4), TimedModel(bench.clock, skill=0.6)
    results: list[object] = []
    bench.ask(bench.front(one, "a"), [1], results)
    bench.ask(bench.front(other, "b"), [2], results)
    bench.pass_time(1.0)
    assert (one.batches, other.batches) == ([[1]], [[2]])


def test_the_last_camera_closes_the_model_and_frees_its_name(bench: PoolBench) -> None:
    model = TimedModel(bench.clock)
    a, b = bench.front(model, "a"), bench.front(TimedModel(bench.clock), "b")
    a.close()
    a.close()
    assert not model.closed
    with pytest.raises(JobError, match="out of use"):
        a.predict([picture(1)])
    b.close()
    assert model.closed
    again = bench.front(TimedModel(bench.clock, skill=0.9), "a")
    assert again._model.name == "fake@128#0"


def test_what_is_not_predict_is_asked_of_the_model_behind(bench: PoolBench) -> None:
    model = TimedModel(bench.clock)
    front = bench.front(model, "a")
    assert front.spec == model.spec
    assert front.state()["skill"] == model.state()["skill"]
    assert front.trainable_layers() == model.trainable_layers()
    assert isinstance(front.clone(), FakeDetector)
    assert front.embed([np.zeros((96, 128, 3), np.uint8)]).shape[0] == 1
    with pytest.raises(JobError, match="shared"):
        front.load_state(model.state())


def test_nothing_asked_is_nothing_answered(bench: PoolBench) -> None:
    assert bench.front(TimedModel(bench.clock), "a").predict([]) == []


# --- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_policy_lets_a_camera_wait_past_its_deadline(policy: str) -> None:
    """Not even one that drops nothing, and not when the pool has no share at all."""
    bench = PoolBench(policy)
    results: list[object] = []
    bench.ask(bench.front(TimedModel(bench.clock), "a", share_pct=0.0), [1], results, within_s=0.5)
    bench.pass_time(0.4)
    assert results == []
    bench.pass_time(0.2)
    assert isinstance(results[0], TooLate)
    assert bench.pool.dropped == 1
    bench.shares["a/infer"] = 50.0
    bench.backend.set_shares(bench.shares)
    again = bench.pool._models
    assert len(again) == 1
    bench.end()


def test_a_frame_in_work_is_waited_for_even_when_it_is_late(bench: PoolBench) -> None:
    results: list[object] = []
    bench.ask(bench.front(TimedModel(bench.clock, each_s=1.0), "a"), [1], results, within_s=0.5)
    bench.pass_time(2.0)
    assert results == [[1]]


def test_a_newer_frame_replaces_one_that_still_waits(bench: PoolBench) -> None:
    front = bench.front(TimedModel(bench.clock, each_s=1.0), "slow")
    results: list[object] = []
    bench.ask(front, [1], results, within_s=5.0)  # in work for a second
    bench.pass_time(0.1)
    there: list[bool] = [False]
    asked_s = bench.clock.monotonic_s()
    turn = Turn(deadline_s=asked_s + 5.0, next_s=asked_s + 0.2, newer=lambda: there[0])
    bench.ask(bench.front(TimedModel(bench.clock, skill=0.9), "a"), [2], results, turn=turn)
    bench.pass_time(0.5)
    assert results == [], "no newer frame is there yet"
    there[0] = True
    bench.pass_time(0.3)
    assert isinstance(results[0], Superseded)
    bench.pass_time(1.0)
    assert results[1:] == [[1]]


def test_a_cancelled_camera_stops_waiting(bench: PoolBench) -> None:
    front = bench.front(TimedModel(bench.clock), "a", share_pct=0.0)
    lane = bench.backend._lanes["a/infer"]
    results: list[object] = []
    bench.ask(front, [1], results, turn=Turn(deadline_s=bench.clock.monotonic_s() + 60.0, checkpoint=lane.checkpoint))
    bench.pass_time(0.5)
    bench.backend.cancel("a/infer")
    bench.pass_time(0.5)
    assert isinstance(results[0], JobCancelled)
    assert bench.pool._policy.waiting() == 0


def test_closing_the_pool_ends_everybodys_wait(bench: PoolBench) -> None:
    results: list[object] = []
    front = bench.front(TimedModel(bench.clock), "a", share_pct=0.0)
    bench.ask(front, [1], results, within_s=60.0)
    bench.pass_time(0.1)
    bench.pool.close()
    bench.pass_time(0.5)
    assert isinstance(results[0], JobCancelled)
    bench.ask(front, [2], results)
    bench.pass_time(0.5)
    assert isinstance(results[1], JobCancelled)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def together(bench: PoolBench, model: TimedModel, cameras: str, *, within_s: float = 5.0) -> dict[str, list[object]]:
    """Each camera asks its own number (a: 1, b: 2, ...) while the pool is busy, so that they meet in one batch."""
    busy: list[object] = []
    bench.ask(bench.front(TimedModel(bench.clock, each_s=0.5, skill=0.99), "busy", share_pct=10.0), [99], busy, within_s=60.0)
    bench.pass_time(0.1)
    results: dict[str, list[object]] = {camera: [] for camera in cameras}
    for n, camera in enumerate(cameras, start=1):
        bench.ask(bench.front(model, camera, share_pct=20.0), [n], results[camera], within_s=within_s)
    bench.pass_time(4.0)
    return results


def test_one_poisonous_picture_costs_its_own_camera_only(bench: PoolBench) -> None:
    model = TimedModel(bench.clock)
    model.on[2] = ArithmeticError("poison")
    results = together(bench, model, "abc")
    assert sorted(model.batches[0]) == [1, 2, 3], "they did meet"
    assert results["a"] == [[1]]
    assert isinstance(results["b"][0], ArithmeticError)
    assert results["c"] == [[3]]
    assert bench.pool.errors == 1


@pytest.mark.parametrize(("right_px", "score"), [(np.nan, 0.9), (3.0, np.nan), (3.0, np.inf)])
def test_numbers_that_are_none_are_run_again_alone_and_stay_with_their_camera(
    bench: PoolBench, right_px: float, score: float
) -> None:
    model = TimedModel(bench.clock)
    broken = Detections(
        xyxy=np.array([[2, 0, right_px, 1]], np.float32), score=np.array([score], np.float32), class_id=np.zeros(1, np.int64)
    )
    model.on[2] = broken
    results = together(bench, model, "abc")
    assert [sorted(batch) for batch in model.batches] == [[1, 2, 3], [2]], "threads ask in any order"
    assert (results["a"], results["c"]) == ([[1]], [[3]])
    assert results["b"] == [[2]], "the camera sees it itself: its frame has no numbers"


@pytest.mark.parametrize("nonsense", ["text", None, 7])
def test_an_answer_that_is_none_is_an_error_of_its_own_picture(bench: PoolBench, nonsense: object) -> None:
    model = TimedModel(bench.clock)
    model.on[1] = nonsense
    results = together(bench, model, "ab")
    assert isinstance(results["a"][0], JobError)
    assert "predict" in str(results["a"][0])
    assert results["b"] == [[2]]


def test_a_batch_that_hangs_is_told_and_the_other_models_go_on() -> None:
    bench = PoolBench(hangs_s=5.0)
    hanging, fine = TimedModel(bench.clock), TimedModel(bench.clock, skill=0.9)
    hanging.on[1] = lambda: bench.clock.work(1000.0) or answer(1)
    results: list[object] = []
    front = bench.front(hanging, "a")
    bench.ask(front, [1], results, within_s=1.0)
    bench.pass_time(4.0)
    assert results == [], "it is in work"
    bench.pass_time(2.0)
    assert isinstance(results[0], JobError)
    assert results[0].code == "hung"
    bench.ask(bench.front(fine, "b"), [2], results)
    bench.pass_time(1.0)
    assert results[1] == [2]
    bench.ask(front, [3], results)
    bench.pass_time(1.0)
    assert isinstance(results[2], JobError), "nobody is let near it"
    assert hanging.batches == [[1]]
    bench.pass_time(1000.0)  # the first one comes back, and finds that nobody waits
    bench.ask(front, [4], results)
    bench.pass_time(1.0)
    assert results[3] == [4]
    assert set(bench.inside.report()) == {POOL_JOB}
    bench.end()


def test_a_camera_may_give_a_batch_up_that_it_is_in_and_none_that_it_waits_for() -> None:
    bench = PoolBench(hangs_s=100.0)
    model = TimedModel(bench.clock)
    model.on[1] = lambda: bench.clock.work(50.0) or answer(1)
    a, b = bench.front(model, "a"), bench.front(TimedModel(bench.clock, skill=0.9), "b")
    results: list[object] = []
    bench.ask(a, [1], results, within_s=1.0)
    bench.pass_time(0.1)
    bench.ask(b, [2], results, within_s=60.0)
    bench.pass_time(0.1)
    b.abandon()
    bench.pass_time(0.5)
    assert results == []
    a.abandon()
    bench.pass_time(0.5)
    assert isinstance(results[0], JobError)
    assert results[1] == [2]
    bench.pass_time(60.0)
    bench.end()


def test_a_policy_that_throws_is_stood_in_for_by_the_earliest_deadline(
    bench: PoolBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = TimedModel(bench.clock)
    fronts = [bench.front(model, camera, share_pct=20.0) for camera in "abc"]
    whole = bench.pool._policy.decide

    def throws(*_: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(bench.pool._policy, "decide", throws)
    monkeypatch.setattr(bench.pool._policy, "ran", throws)
    results: list[object] = []
    for n, front in enumerate(fronts):
        bench.ask(front, [n], results, within_s=3.0 - n)
    bench.pass_time(1.0)
    assert sorted(results) == [[0], [1], [2]]  # type: ignore[type-var]
    assert [len(batch) for batch in model.batches] == [1, 1, 1]
    assert (bench.pool.policy_errors, bench.pool.errors) == (6, 0)
    assert sum("a bug of ours" in (record.exc_text or "") for record in caplog.records) == 1, "said once"
    monkeypatch.setattr(bench.pool._policy, "decide", whole)
    bench.ask(fronts[0], [7], results)
    bench.pass_time(1.0)
    assert results[-1] == [7]
    assert bench.pool._policy.waiting() == 0


def test_a_lane_that_was_removed_is_opened_again(bench: PoolBench, monkeypatch: pytest.MonkeyPatch) -> None:
    front = bench.front(TimedModel(bench.clock), "a")
    refused = [True]
    seat_open = bench.backend.open

    class Removed:
        job = POOL_JOB

        def iteration(self):  # type: ignore[no-untyped-def]
            raise JobError("it took more memory than there is", subject=POOL_JOB, code="out_of_memory")

    def open(worker: int):  # type: ignore[no-untyped-def]
        return Removed() if refused.pop() else seat_open(worker)

    refused.insert(0, False)
    monkeypatch.setattr(bench.backend, "open", open)
    results: list[object] = []
    bench.ask(front, [1], results)
    bench.pass_time(1.0)
    bench.ask(front, [2], results)
    bench.pass_time(1.0)
    assert isinstance(results[0], JobError)
    assert results[1] == [2]


# --- first runs and thresholds ----------------------------------------------------------------------------------------


def test_the_first_run_of_a_model_is_made_by_whom_it_concerns(bench: PoolBench) -> None:
    """Not in the queue, where frames would wait behind it."""
    model = TimedModel(bench.clock, each_s=0.0)
    front = bench.front(model, "a")
    assert current() is None
    found: list[object] = []
    bench.clock.spawn(lambda: found.append(front.predict([picture(5)])))
    bench.pass_time(0.1)
    assert found
    assert bench.pool.batches == 0
    bench.ask(front, [6], [])
    bench.pass_time(0.5)
    bench.clock.spawn(lambda: found.append(front.predict([picture(7)])))
    bench.pass_time(0.5)
    assert len(found) == 2
    assert bench.pool.batches == 2, "a warm one goes through the queue: a detector is not thread-safe"


def test_each_camera_gets_what_is_above_its_own_threshold(bench: PoolBench) -> None:
    model = TimedModel(bench.clock)
    model.on[1], model.on[2] = answer(1, score=0.4), answer(2, score=0.4)
    busy: list[object] = []
    bench.ask(bench.front(TimedModel(bench.clock, each_s=0.5, skill=0.99), "busy", share_pct=10.0), [99], busy, within_s=60.0)
    bench.pass_time(0.1)
    found: dict[str, list[Detections]] = {}

    def ask(camera: str, number: int, score_min: float) -> None:
        front = bench.front(model, camera, share_pct=20.0)

        def body() -> None:
            with taken(Turn(deadline_s=bench.clock.monotonic_s() + 10.0)):
                found[camera] = front.predict([picture(number)], score_min=score_min)

        bench.clock.spawn(body)

    ask("low", 1, 0.25)
    ask("high", 2, 0.5)
    bench.pass_time(5.0)
    assert model.batches == [[1, 2]]
    assert (len(found["low"][0]), len(found["high"][0])) == (1, 0)


def test_a_yield_point_is_called_before_and_after(bench: PoolBench) -> None:
    front, calls = bench.front(TimedModel(bench.clock), "a"), []

    def body() -> None:
        with taken(Turn(deadline_s=bench.clock.monotonic_s() + 1.0)):
            front.predict([picture(1)], yield_point=lambda: calls.append(bench.pool.pictures))

    bench.clock.spawn(body)
    bench.pass_time(1.0)
    assert calls == [0, 1]


def test_what_a_frame_cost_is_told_to_its_turn(bench: PoolBench) -> None:
    front = bench.front(TimedModel(bench.clock, each_s=0.03), "a")
    turn = Turn(deadline_s=bench.clock.monotonic_s() + 1.0)
    bench.ask(front, [1, 2], [], turn=turn)
    bench.pass_time(1.0)
    assert turn.spent_s == pytest.approx(0.06)


def test_a_model_that_hangs_in_its_first_run_is_not_waited_for(bench: PoolBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its swap is refused, and the thread that closes it must come home."""
    monkeypatch.setattr("edge.pool.pool.CLOSE_S", 0.01)
    model = TimedModel(bench.clock)
    front = bench.front(model, "a")
    with front._model.copies[0].running:  # somebody is in it, and stays
        front.abandon()
        front.close()
    assert not model.closed
    assert not bench.pool._models


# --- names and sizes --------------------------------------------------------------------------------------------------


def test_a_key_is_what_a_model_is_and_what_it_knows() -> None:
    key = weights_key(FakeDetector(skill=0.5))
    assert key == weights_key(FakeDetector(skill=0.5))
    assert key != weights_key(FakeDetector(skill=0.6))
    assert key != weights_key(FakeDetector(skill=0.5, arch="other"))


def test_the_lowest_free_number_is_taken() -> None:
    model = FakeDetector()
    assert free_name(model, []) == "fake@128#0"
    assert free_name(model, ["fake@128#0", "fake@128#2"]) == "fake@128#1"


@pytest.mark.parametrize(
    ("times_s", "sizes"),
    [
        ({}, (1,)),
        ({1: 0.02}, (1,)),
        ({1: 0.02, 2: 0.04, 4: 0.08}, (1,)),  # twice the pictures, twice the time
        ({1: 0.02, 2: 0.03, 4: 0.04, 8: 0.06}, (1, 2, 4, 8)),
        ({1: 0.02, 2: 0.04, 4: 0.06}, (1, 4)),  # two do not pay, four do
        ({1: 0.02, 2: 0.03, 4: 0.06}, (1, 2)),
    ],
)
def test_sizes_that_pay(times_s: dict[int, float], sizes: tuple[int, ...]) -> None:
    assert worthwhile(times_s) == sizes


# --- what comes after -------------------------------------------------------------------------------------------------


def test_a_frame_whose_queries_need_the_rest_of_its_time_is_given_up_in_time() -> None:
    """Pictures take 0.1 s. With 0.5 s left a frame is answered, and not where what comes after it needs 0.45 s of them."""
    bench = PoolBench("orloj")
    front = bench.front(TimedModel(bench.clock, each_s=0.1), "a", share_pct=100.0)
    results: list[object] = []
    for number in range(8):  # its run times become known
        bench.ask(front, [number], results, within_s=5.0)
        bench.pass_time(1.0)
    results.clear()
    for number, after_s in ((1, 0.0), (2, 0.2), (3, 0.45)):
        turn = Turn(deadline_s=bench.clock.monotonic_s() + 0.5, after_s=after_s)
        bench.ask(front, [number], results, turn=turn)
        bench.pass_time(1.0)
    assert results[:2] == [[1], [2]]
    assert isinstance(results[2], TooLate)
    bench.end()


def test_the_pictures_of_a_call_are_of_use_only_together_and_count_once(
    bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is answered whole or fails whole, and the policy may plan so. Eight crops do not outweigh seven other frames."""
    told: list[Request] = []
    before = Fifo.submit

    def submit(self: Fifo, request: Request, now_s: float) -> None:
        told.append(request)
        before(self, request, now_s)

    monkeypatch.setattr(Fifo, "submit", submit)
    front = bench.front(TimedModel(bench.clock), "a")
    results: list[object] = []
    bench.ask(front, [1, 2, 3], results)
    bench.pass_time(1.0)
    bench.ask(front, [4, 5], results)
    bench.pass_time(1.0)
    assert results == [[1, 2, 3], [4, 5]]
    first, second = told[0].together, told[3].together
    assert [request.together for request in told] == [first] * 3 + [second] * 2
    assert None not in (first, second)
    assert first != second
    assert [request.penalty for request in told] == pytest.approx([1 / 3] * 3 + [1 / 2] * 2)


@pytest.mark.parametrize(("numbers", "each"), [([1], 3.0), ([1, 2], 1.5)], ids=["one picture", "two pictures"])
def test_what_a_frame_is_worth_reaches_the_policy(
    bench: PoolBench, monkeypatch: pytest.MonkeyPatch, numbers: list[int], each: float
) -> None:
    """Of a call as a whole, however many pictures it has."""
    told: list[Request] = []
    monkeypatch.setattr(Fifo, "submit", lambda self, request, now_s: told.append(request))
    front = bench.front(TimedModel(bench.clock), "a")
    results: list[object] = []
    bench.ask(front, numbers, results, turn=Turn(deadline_s=bench.clock.monotonic_s() + 1.0, weight=3.0))
    bench.pass_time(2.0)
    assert [request.penalty for request in told] == pytest.approx([each] * len(numbers))


@pytest.mark.parametrize("heavier", ["a", "b"])
def test_of_two_cameras_frames_the_weightier_is_answered_when_there_is_time_for_one(heavier: str) -> None:
    """Both come while another picture runs. When that is done, 0.35 s are left and each of them needs 0.22."""
    bench = PoolBench("orloj")
    model = TimedModel(bench.clock, each_s=0.2)
    fronts = {camera: bench.front(model, camera, share_pct=30.0) for camera in "abc"}
    results: dict[str, list[object]] = {camera: [] for camera in "abc"}
    for number in range(9):  # run times become known
        camera = "abc"[number % 3]
        bench.ask(fronts[camera], [number], results[camera], within_s=20.0)
        bench.pass_time(5.0)
    for _ in range(3):  # and that two at a time save nothing
        bench.ask(fronts["c"], [40, 41], results["c"], within_s=20.0)
        bench.pass_time(5.0)
    begun_s = bench.clock.monotonic_s()
    bench.ask(fronts["c"], [30], results["c"], within_s=5.0)
    bench.pass_time(0.05)
    for number, camera in ((10, "a"), (20, "b")):
        turn = Turn(deadline_s=begun_s + 0.2 / 0.9 + 0.35, weight=2.0 if camera == heavier else 1.0)
        bench.ask(fronts[camera], [number], results[camera], turn=turn)
    bench.pass_time(5.0)
    answered = {camera for camera in "ab" if not isinstance(results[camera][-1], TooLate)}
    assert answered == {heavier}
    assert results["c"][-1] == [30]
    bench.end()
