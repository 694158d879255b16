"""How many frames were answered by their deadline, and what a worker counts as due."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError, JobCancelled
from configs.load import parse_config
from configs.schema.planning import ServingName
from edge.clock import FakeClock
from edge.finish import DueFrames, FinishBook, Finished, described, quantile
from edge.inference import BLIND_FRAMES, PATIENCE_MAX_S, RATE_READ_S, InferenceWorker
from edge.pool.turn import TooLate, current
from edge.shadow import Shadow, ShadowRules
from models.fake import FakeDetector
from scheduler.orloj.registry import POLICIES
from scheduler.types import Detections, KnobProfile
from streams.source import CameraStatus
from tests.support.fakes import FreeLane, StillCamera


def test_late_dropped_and_missed_frames_all_count_as_due() -> None:
    book = FinishBook(0.5)
    book.due(4)
    for lag_s in (0.1, 0.5, 0.7):
        book.answered(lag_s)
    book.dropped()
    assert book.total() == Finished(due=4, in_time=2, answered=3, dropped=1, lag_p50_s=0.5, lag_p99_s=0.7)
    assert book.total().frac == pytest.approx(0.5)


def test_a_window_begins_anew_and_the_total_goes_on() -> None:
    book = FinishBook(0.5)
    book.due(2)
    book.answered(0.1)
    assert book.close_window() == Finished(due=2, in_time=1, answered=1, lag_p50_s=0.1, lag_p99_s=0.1)
    assert book.window() == Finished()
    assert book.window().frac is None
    book.due()
    book.answered(0.9)
    assert book.window() == Finished(due=1, answered=1, lag_p50_s=0.9, lag_p99_s=0.9)
    assert (book.total().due, book.total().in_time) == (3, 1)


@pytest.mark.parametrize("goal_s", [0.0, -1.0, math.nan, math.inf])
def test_a_goal_is_a_time(goal_s: float) -> None:
    with pytest.raises(ValueError, match="goal"):
        FinishBook(goal_s)


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_a_value_that_this_part_does_not_exceed(values: list[float], frac: float) -> None:
    ordered = sorted(values)
    found = quantile(ordered, frac)
    assert found in ordered
    assert sum(v <= found for v in ordered) >= frac * len(ordered) - 1e-9


def test_the_line_for_the_log() -> None:
    book = FinishBook(0.4)
    assert described("gate", book.total(), 0.4) == "gate: 0 of 0 frames by their deadline of 400 ms"
    book.due(2)
    book.answered(0.1)
    book.dropped()
    assert described("gate", book.total(), 0.4) == (
        "gate: 1 of 2 frames by their deadline of 400 ms (50.0 %), 1 given up, lag p50 100 ms, p99 100 ms"
    )


# --- a worker ---------------------------------------------------------------------------------------------------------


class Slow(FakeDetector):
    """Takes `each_s` of time; says TooLate while `late`; remembers the turns it was asked in."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(skill=1.0)
        self.clock, self.each_s, self.late = clock, 0.0, False
        self.patience_s: list[float] = []
        self.next_s: list[float | None] = []
        self.weights: list[float] = []

    def predict(self, images, **_: object) -> list[Detections]:  # type: ignore[no-untyped-def, override]
        turn = current()
        assert turn is not None
        self.patience_s.append(turn.deadline_s - self.clock.monotonic_s())
        self.next_s.append(turn.next_s)
        self.weights.append(turn.weight)
        self.clock.advance_to(self.clock.monotonic_s() + self.each_s)
        turn.spent_s += self.each_s
        if self.late:
            raise TooLate("made up")
        return super().predict(images)


class Bench:
    def __init__(self, *, fps: float = 5.0, goal_s: float = 0.4) -> None:
        self.camera, self.clock = StillCamera("a"), FakeClock(start_s=100.0)
        self.model = Slow(self.clock)
        self.worker = InferenceWorker(
            self.camera, FreeLane(), self.model, "a-1", clock=self.clock, score_min=0.25, goal_s=goal_s
        )
        self.worker.set_knobs(KnobProfile(name="k", demand_pct=10.0, quality_frac=1.0, fps=fps))
        self.worker._next_s = 100.0

    def run(self, seconds: float, *, camera_fps: float = 20.0) -> Finished:
        """The camera gives a frame now and then; the worker steps whenever it may."""
        until_s, seq = self.clock.monotonic_s() + seconds, self.worker._seq + 1
        while (now_s := self.clock.monotonic_s()) < until_s:
            self.camera.show(max(seq, int(now_s * camera_fps)), at_s=int(now_s * camera_fps) / camera_fps)
            rest_s = self.worker.step()
            self.clock.advance_to(max(self.clock.monotonic_s(), now_s) + max(rest_s, 0.01))
        return self.worker.finish.total()


def test_a_worker_that_keeps_up_answers_all_in_time() -> None:
    told = Bench().run(10.0)
    assert told.due == pytest.approx(50, abs=2)
    assert told.in_time == told.answered == told.due


def test_frames_that_nobody_looked_at_are_due_all_the_same() -> None:
    """5 frames a second are wanted; each takes a second."""
    bench = Bench()
    bench.model.each_s = 1.0
    told = bench.run(20.0)
    assert told.due == pytest.approx(100, abs=6)
    assert told.answered == pytest.approx(20, abs=1)
    assert told.in_time == 0


def test_a_camera_that_gives_less_than_is_wanted_misses_nothing() -> None:
    told = Bench().run(20.0, camera_fps=2.0)
    assert told.answered == told.in_time
    assert told.answered == pytest.approx(40, abs=2)
    assert told.due == pytest.approx(told.answered, abs=2)


class Asked(StillCamera):
    """Counts who asks for its whole status; gives pictures at `fps`."""

    def __init__(self) -> None:
        super().__init__("a")
        self.times, self.fps = 0, 2.0

    def status(self) -> CameraStatus:
        self.times += 1
        return replace(super().status(), fps=self.fps)


def test_a_camera_is_asked_for_its_rate_now_and_then_and_not_for_every_frame() -> None:
    bench = Bench()
    bench.camera = bench.worker.camera = camera = Asked()
    told = bench.run(20.0, camera_fps=5.0)
    assert told.answered == pytest.approx(100, abs=3)
    assert 5 <= camera.times <= 20.0 / RATE_READ_S + 2
    assert told.due == told.answered, "two a second are known of, but more come: what was answered was due"


def test_a_rate_that_changes_is_noticed_soon() -> None:
    """A model that does 2.5 frames a second misses none of a camera that gives as many, and half of one that gives 5."""
    bench = Bench()
    bench.camera = bench.worker.camera = camera = Asked()
    bench.model.each_s, camera.fps = 0.4, 2.5
    slow = bench.run(20.0, camera_fps=5.0)
    assert slow.due == pytest.approx(slow.answered, abs=2)
    camera.fps = 5.0
    both = bench.run(20.0, camera_fps=5.0)
    missed = (both.due - slow.due) - (both.answered - slow.answered)
    assert missed == pytest.approx(20.0 * 2.5, abs=RATE_READ_S * 5 + 2)


def test_a_silent_camera_and_a_paused_worker_owe_no_frames() -> None:
    bench = Bench()
    before = bench.run(2.0)
    bench.camera.newest = None
    for _ in range(10):
        bench.worker.step()
        bench.clock.advance_to(bench.clock.monotonic_s() + 1.0)
    bench.worker.set_knobs(None)
    for _ in range(10):
        bench.worker.step()
        bench.clock.advance_to(bench.clock.monotonic_s() + 1.0)
    assert bench.worker.finish.total() == before
    bench.worker.set_knobs(KnobProfile(name="k", demand_pct=10.0, quality_frac=1.0, fps=5.0))
    bench.worker.step()
    after = bench.run(2.0)
    assert after.due - before.due <= 13


def test_a_frame_that_was_given_up_is_no_error_and_the_next_one_is_taken() -> None:
    bench = Bench()
    bench.model.late = True
    told = bench.run(0.5)
    assert told.dropped == told.due > 1
    assert (bench.worker.errors, bench.worker.last_error, told.answered) == (0, "", 0)
    bench.model.late = False
    assert bench.run(1.0).answered >= 4


def test_a_camera_that_would_show_nothing_gets_more_and_more_time() -> None:
    bench = Bench(goal_s=0.4)
    bench.model.late = True
    bench.run(10.0)
    asked = bench.model.patience_s
    assert max(asked[:BLIND_FRAMES]) <= 0.4 + 1e-9
    assert asked[BLIND_FRAMES] > 0.4
    assert asked == sorted(asked[:BLIND_FRAMES]) + asked[BLIND_FRAMES:] or asked[-1] > 10.0
    assert asked[-1] <= PATIENCE_MAX_S
    assert bench.model.next_s[BLIND_FRAMES] is None, "a newer frame would take its place"
    bench.model.late = False
    bench.run(0.4)
    assert bench.worker.patience_s() == pytest.approx(0.4)


@pytest.mark.parametrize("may_lag", [False, True], ids=["live", "a recording"])
def test_the_queue_is_told_what_an_answer_is_worth(may_lag: bool) -> None:
    bench = Bench()
    bench.camera.may_lag = may_lag
    bench.run(1.0)
    bench.worker.weight = 3.0
    before = len(bench.model.weights)
    bench.run(1.0)
    assert set(bench.model.weights[:before]) == {1.0}
    assert set(bench.model.weights[before:]) == {3.0}


def test_a_shadows_look_is_worth_what_the_cameras_frames_are() -> None:
    bench = Bench()
    bench.worker.weight = 3.0
    beside = Slow(bench.clock)
    bench.worker.shadow(Shadow(beside, "a-2", ShadowRules(frames=3)))
    bench.run(2.0)
    assert set(beside.weights) == {3.0}


def test_what_others_computed_for_a_frame_is_its_cost() -> None:
    bench = Bench()
    bench.model.each_s = 0.03
    bench.run(2.0)
    assert bench.worker.cost_s() == pytest.approx(0.03)


def test_a_dropped_frame_says_nothing_of_a_watched_model() -> None:
    bench = Bench()
    bench.run(1.0)
    new = Slow(bench.clock)
    new.late = True
    bench.worker.swap(new, "a-2")
    watched = bench.worker._watched
    bench.run(2.0)
    assert (bench.worker.version(), bench.worker._watched, bench.worker.errors) == ("a-2", watched, 0)


def test_the_frame_of_a_model_that_failed_is_given_time_with_the_one_before() -> None:
    bench = Bench()
    bench.run(1.0)

    class Broken(Slow):
        def predict(self, images, **_: object) -> list[Detections]:  # type: ignore[no-untyped-def, override]
            self.clock.advance_to(self.clock.monotonic_s() + 5.0)
            raise RuntimeError("at last")

    bench.worker.swap(Broken(bench.clock), "a-2")
    bench.model.patience_s.clear()
    bench.camera.show(10_000, at_s=bench.clock.monotonic_s())
    bench.clock.advance_to(bench.clock.monotonic_s() + 0.2)
    bench.worker.step()
    assert bench.model.patience_s == [pytest.approx(0.4)]
    assert bench.worker.frames > 0


def test_a_cancelled_turn_ends_the_worker() -> None:
    bench = Bench()
    lane = bench.worker._lane
    lane.cancelled = True  # type: ignore[attr-defined]
    bench.camera.show(1, at_s=100.0)
    with pytest.raises(JobCancelled):
        bench.worker.step()


# --- configuration ----------------------------------------------------------------------------------------------------


def camera_of(words: str):  # type: ignore[no-untyped-def]
    return parse_config(f'{{cameras: [{{id: yard, url: "rendered:yard"{words}}}]}}').cameras[0]


@pytest.mark.parametrize(
    ("words", "goal_s"), [("", 0.4), (", fps: 2", 1.0), (", fps: 0", 0.4), (", deadline_ms: 150", 0.15), (", fps: 25", 0.08)]
)
def test_a_cameras_deadline(words: str, goal_s: float) -> None:
    assert camera_of(words).goal_s == pytest.approx(goal_s)


def test_every_serving_policy_can_be_configured() -> None:
    assert set(ServingName.__args__) == {"auto", "own", *POLICIES}  # type: ignore[attr-defined]


def test_a_queue_under_mps_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config("{scheduler: {serving: orloj}, gpus: {device: cuda, backend: mps}}")
    assert "scheduler.serving" in dict(refused.value.problems)
    assert "process" in dict(refused.value.problems)["scheduler.serving"]
    for serving in ("own", "auto"):
        parse_config(f"{{scheduler: {{serving: {serving}}}, gpus: {{device: cuda, backend: mps}}}}")


@pytest.mark.parametrize("words", ["deadline_ms: 0", "deadline_ms: -5", "deadline_ms: .nan", "deadline_ms: soon"])
def test_a_deadline_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(ConfigError):
        camera_of(", " + words)


def test_an_unknown_way_of_serving_is_refused_and_the_known_are_told() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config("{scheduler: {serving: clever}}")
    assert any("orloj" in text for _, text in refused.value.problems)


# --- what is due ------------------------------------------------------------------------------------------------------


def test_as_many_frames_are_due_as_the_wanted_interval_fits_in() -> None:
    due = DueFrames()
    assert [due.until(at_s, 0.2) for at_s in (0.0, 0.2, 0.45, 0.6, 1.6)] == [1, 1, 1, 1, 5]
    due.rest()
    assert due.until(100.0, 0.2) == 1
    assert due.until(110.0, 0.2, silent_s=9.8) == 1


@given(st.lists(st.floats(0.01, 2.0), min_size=20, max_size=60))
def test_however_they_were_handled_their_number_is_that_of_the_schedule(gaps_s: list[float]) -> None:
    due, at_s, counted, handled = DueFrames(), 0.0, 0, 0
    for gap_s in [0.0, *gaps_s]:
        at_s += gap_s
        counted += due.until(at_s, 0.2)
        handled += 1
    assert counted >= handled
    assert counted >= at_s / 0.2 - 1
    assert counted <= at_s / 0.2 + handled


def test_a_worker_that_waits_for_its_share_owes_what_came_meanwhile() -> None:
    """Frames are taken when the lane opens, so it looks busy never and late never; yet every second one was not looked at."""
    bench = Bench()
    lane = bench.worker._lane

    def waits() -> None:
        bench.clock.advance_to(bench.clock.monotonic_s() + 0.4)
        now_s = bench.clock.monotonic_s()
        bench.camera.show(int(now_s * 20), at_s=int(now_s * 20) / 20)

    lane.on_enter = waits  # type: ignore[attr-defined]
    told = bench.run(20.0)
    assert told.due == pytest.approx(100, abs=4)
    assert told.answered == pytest.approx(47, abs=5)
    assert told.in_time == told.answered
