"""Live inference of one camera, step by step, on a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.inference import ERROR_REST_S, FAILURES_IN_A_ROW, LOOK_S, WATCHED_FRAMES, FellBack, InferenceWorker, SwapRecord
from edge.shadow import Shadow, ShadowRules
from models.fake import FakeDetector
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from scheduler.types import Detections, KnobProfile
from tests.support.fakes import FreeLane, StillCamera


class Bench:
    """A worker, its camera and its clock."""

    def __init__(self, detector: FakeDetector | None = None) -> None:
        self.camera, self.lane, self.clock = StillCamera("a"), FreeLane(), FakeClock()
        self.worker = InferenceWorker(
            self.camera, self.lane, detector or FakeDetector(skill=1.0), "a-1", clock=self.clock, score_min=0.25
        )

    def at(self, at_s: float) -> Bench:
        self.clock.advance_to(at_s)
        return self

    def frame(self, seq: int) -> None:
        """The camera makes a frame now, and the worker steps once."""
        self.camera.show(seq, at_s=self.clock.monotonic_s())
        self.worker.step()


def knobs(fps: float) -> KnobProfile:
    return KnobProfile(name="k", demand_pct=10.0, quality_frac=1.0, fps=fps)


class Broken(FakeDetector):
    def predict(self, images: Sequence[np.ndarray], **_: object) -> list[Detections]:  # type: ignore[override]
        raise RuntimeError("rtsp://user:hunter2@cam/ broke the net")


def test_a_frame_is_shown_with_its_own_boxes_model_and_lag() -> None:
    bench = Bench().at(3.0)
    bench.camera.show(7, at_s=2.5)
    bench.worker.step()
    shown = bench.worker.shown()
    assert shown is not None
    assert (shown.frame.seq, shown.version, shown.lag_s) == (7, "a-1", pytest.approx(0.5))
    assert len(shown.detections) == 6
    assert bench.worker.frames == 1


def test_no_frame_is_analysed_twice_and_none_is_no_error() -> None:
    bench = Bench()
    bench.worker.step()
    bench.frame(1)
    bench.worker.step()
    assert bench.worker.frames == 1
    assert bench.worker.errors == 0


def test_the_newest_frame_wins_when_the_share_made_the_worker_wait() -> None:
    bench = Bench()
    bench.camera.show(1)
    bench.lane.on_enter = lambda: bench.camera.show(9)
    bench.worker.step()
    shown = bench.worker.shown()
    assert shown is not None
    assert shown.frame.seq == 9
    bench.lane.on_enter = lambda: None
    bench.worker.step()
    assert bench.worker.frames == 1, "frame 9 is not analysed again"


def analysed_over(bench: Bench, *, seconds: float, camera_fps: float) -> int:
    """How many frames are analysed while the camera gives `camera_fps` and the worker is asked at each frame."""
    before, start_s = bench.worker.frames, bench.clock.monotonic_s()
    for n in range(round(seconds * camera_fps)):
        bench.at(start_s + (n + 1) / camera_fps).frame(1000 + bench.worker.frames * 1000 + n)
    return bench.worker.frames - before


@pytest.mark.parametrize(("wanted_fps", "expected"), [(0.0, 200), (20.0, 200), (5.0, 50), (2.5, 25), (1.0, 10)])
def test_the_rate_follows_the_knobs(wanted_fps: float, expected: int) -> None:
    bench = Bench()
    bench.worker.set_knobs(knobs(wanted_fps))
    assert analysed_over(bench, seconds=10, camera_fps=20) == pytest.approx(expected, abs=2)


def test_the_rate_changes_while_running_and_a_pause_pauses() -> None:
    bench = Bench()
    bench.worker.set_knobs(knobs(5.0))
    assert analysed_over(bench, seconds=4, camera_fps=20) == pytest.approx(20, abs=2)
    bench.worker.set_knobs(None)
    assert analysed_over(bench, seconds=4, camera_fps=20) == 0
    assert bench.worker.step() == LOOK_S
    bench.worker.set_knobs(knobs(10.0))
    assert analysed_over(bench, seconds=4, camera_fps=20) == pytest.approx(40, abs=3)


def test_after_a_silence_nothing_is_caught_up() -> None:
    bench = Bench()
    bench.worker.set_knobs(knobs(1.0))
    bench.at(1.0).frame(1)
    before = bench.worker.frames
    bench.at(60.0)
    for n in range(20):
        bench.at(60.0 + n * 0.05).frame(100 + n)
    assert bench.worker.frames - before <= 3


def test_rests_are_short_enough_to_notice_new_knobs() -> None:
    bench = Bench()
    bench.worker.set_knobs(knobs(0.1))
    for seq in range(1, 5):  # due at 90, 100, 110 s
        bench.at(100.0 + seq).frame(seq)
    assert 0 < bench.worker.step() <= LOOK_S


def test_a_swap_falls_between_two_frames() -> None:
    bench = Bench(FakeDetector(skill=1.0))
    bench.at(1.0).frame(1)
    bench.lane.on_enter = lambda: bench.worker.swap(FakeDetector(skill=0.0), "a-2")
    bench.at(2.0).frame(2)
    shown = bench.worker.shown()
    assert shown is not None
    # The swap came before the prediction of frame 2 began, so that frame is the new model's from first to last.
    assert (shown.frame.seq, shown.version) == (2, "a-2")
    assert shown.detections.xyxy[:, 0].min() >= 128, "the boxes are those of the blind model, none of the old one's"
    assert bench.worker.version() == "a-2"


def test_a_swap_while_a_frame_is_in_work_counts_for_the_next() -> None:
    class SwapsInside(FakeDetector):
        def predict(self, images: Sequence[np.ndarray], **options: object) -> list[Detections]:  # type: ignore[override]
            bench.worker.swap(FakeDetector(skill=1.0), "a-2")
            return super().predict(images)

    bench = Bench(SwapsInside(skill=1.0))
    bench.at(1.0).frame(1)
    first = bench.worker.shown()
    bench.at(2.0).frame(2)
    second = bench.worker.shown()
    assert first is not None
    assert second is not None
    assert (first.version, second.version) == ("a-1", "a-2")


def test_a_swap_records_the_gap_it_made() -> None:
    bench = Bench()
    for n in range(1, 11):
        bench.at(n * 0.2).frame(n)
    bench.worker.swap(FakeDetector(), "a-2")
    bench.at(2.7).frame(20)  # 0.7 s after the last one
    (record,) = bench.worker.swaps
    assert (record.version, record.at_s) == ("a-2", 2.7)
    assert record.gap_s == pytest.approx(0.7)
    assert record.interval_s == pytest.approx(0.2)
    assert record.missed_frames in (2, 3)  # 3.5 intervals: rounding decides
    bench.at(2.9).frame(21)
    assert len(bench.worker.swaps) == 1


def test_a_swap_before_the_first_frame_has_no_gap() -> None:
    bench = Bench()
    bench.worker.swap(FakeDetector(), "a-2")
    bench.at(1.0).frame(1)
    bench.at(2.0).frame(2)
    assert not bench.worker.swaps


@pytest.mark.parametrize(
    ("gap_s", "interval_s", "missed"),
    [(0.2, 0.2, 0), (0.05, 0.2, 0), (0.29, 0.2, 0), (0.4, 0.2, 1), (1.0, 0.2, 4), (5.0, 0.0, 0)],
)
def test_missed_frames_are_whole_intervals_beyond_the_usual_one(gap_s: float, interval_s: float, missed: int) -> None:
    assert SwapRecord(version="v", at_s=0.0, gap_s=gap_s, interval_s=interval_s).missed_frames == missed


@given(st.floats(0, 1e4), st.floats(0, 100) | st.floats(0, 1e-5))
def test_missed_frames_are_never_negative(gap_s: float, interval_s: float) -> None:
    record = SwapRecord(version="v", at_s=0.0, gap_s=gap_s, interval_s=interval_s)
    assert record.missed_frames >= 0
    if interval_s > 1e-6:
        assert record.missed_frames <= gap_s / interval_s + 0.5


def test_a_model_that_throws_does_not_end_the_camera_and_leaks_nothing() -> None:
    bench = Bench(Broken())
    bench.camera.show(1)
    assert bench.worker.step() == ERROR_REST_S
    assert (bench.worker.errors, bench.worker.frames) == (1, 0)
    assert "RuntimeError" in bench.worker.last_error
    assert "hunter2" not in bench.worker.last_error
    bench.worker.swap(FakeDetector(skill=1.0), "a-2")
    bench.at(1.0).frame(2)
    assert (bench.worker.errors, bench.worker.frames, bench.worker.last_error) == (1, 1, "")


def test_a_cancelled_lane_ends_the_worker() -> None:
    bench = Bench()
    bench.lane.cancelled = True
    bench.camera.show(1)
    with pytest.raises(JobCancelled):
        bench.worker.step()
    bench.camera.show(2)
    bench.worker.start()
    bench.worker.join(120.0)
    assert not bench.worker._thread.is_alive()
    assert bench.worker.errors == 0


def test_rate_and_cost_are_known_after_a_few_frames() -> None:
    bench = Bench()
    assert bench.worker.rate_fps() == 0.0
    assert bench.worker.cost_s() is None
    for n in range(1, 9):
        bench.at(n * 0.25).frame(n)
    assert bench.worker.rate_fps() == pytest.approx(4.0)
    assert bench.worker.cost_s() == pytest.approx(0.0)  # nothing computes on this clock


def test_where_work_follows_content_the_cost_is_that_of_a_busy_frame() -> None:
    """Three quiet frames of four: the median would be theirs, and the share too small for every fourth."""
    for task, expected_s in ((DETECTION, 0.001), (CLASSIFICATION, 0.016)):
        bench = Bench()
        bench.worker.task = task
        bench.worker._costs_s.extend([0.001, 0.001, 0.001, 0.016] * 16)
        assert bench.worker.cost_s() == expected_s


# --- a new model is watched, and the one before it stays warm -----------------------------------------------------------


#: What a model may do instead of an answer.
FAULTS = ("throws", "NaN boxes", "NaN score", "infinite score")


class Odd(FakeDetector):
    """Fails from its `after`-th prediction on."""

    def __init__(self, *, after: int = 0, fault: str = "throws", until: int = 10**9) -> None:
        super().__init__(skill=1.0)
        self.asked, self._after, self._fault, self._until = 0, after, fault, until

    def predict(self, images: Sequence[np.ndarray], **_: object) -> list[Detections]:  # type: ignore[override]
        self.asked += 1
        found = super().predict(images)
        if not self._after < self.asked <= self._until:
            return found
        if self._fault == "throws":
            raise RuntimeError("boom")
        return [spoilt(found[0], self._fault)]


def spoilt(found: Detections, fault: str) -> Detections:
    """One number of the first box is none, whatever the others are."""
    xyxy, score = found.xyxy.copy(), found.score.copy()
    if fault == "NaN boxes":
        xyxy[0, 2] = np.nan
    else:
        score[0] = {"NaN score": np.nan, "infinite score": np.inf}[fault]
    return Detections(xyxy=xyxy, score=score, class_id=found.class_id)


def said_of(fault: str) -> str:
    return "boom" if fault == "throws" else "NaN"


class Fell:
    """A bench whose falls back are heard."""

    def __init__(self, bench: Bench) -> None:
        self.heard: list[FellBack] = []
        bench.worker.on_fall_back = self.heard.append


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("after", [0, 7])
def test_a_new_model_that_fails_is_replaced_by_the_one_before_and_no_frame_is_missed(fault: str, after: int) -> None:
    bench = Bench()
    fell = Fell(bench)
    for n in range(1, 6):
        bench.at(n * 0.2).frame(n)
    bench.worker.swap(Odd(after=after, fault=fault), "a-2")
    versions = []
    for n in range(6, 6 + after + FAILURES_IN_A_ROW + 2):
        bench.at(n * 0.2).frame(n)
        shown = bench.worker.shown()
        assert shown is not None
        assert shown.frame.seq == n, "each frame is shown, whoever analysed it"
        assert np.isfinite(shown.detections.xyxy).all()
        assert np.isfinite(shown.detections.score).all()
        versions.append(shown.version)
    assert versions == ["a-2"] * after + ["a-1"] * (FAILURES_IN_A_ROW + 2)
    (back,) = fell.heard
    assert (back.failed, back.version) == ("a-2", "a-1")
    assert said_of(fault) in back.reason
    assert bench.worker.version() == "a-1"
    assert bench.worker.kept("a-2") is None, "what does not work is not kept"
    assert bench.worker.errors == FAILURES_IN_A_ROW
    assert not [record for record in bench.worker.swaps if record.missed_frames]


@pytest.mark.parametrize("fault", FAULTS[1:])
def test_numbers_that_are_none_are_errors_of_their_frames_and_nobody_is_shown_them(fault: str) -> None:
    """A camera's only model: there is none to help out, and the last good frame stays."""
    bench = Bench(Odd(after=2, until=5, fault=fault))
    for n in range(1, 6):
        bench.at(float(n)).frame(n)
    shown = bench.worker.shown()
    assert shown is not None
    assert (shown.frame.seq, bench.worker.frames, bench.worker.errors) == (2, 2, 3)
    assert bench.worker.last_error == "NotFinite: the model gave numbers that are none (NaN or infinite)"
    bench.at(6.0).frame(6)
    assert (bench.worker.frames, bench.worker.errors, bench.worker.last_error) == (3, 3, "")


def test_single_failures_are_helped_out_and_forgiven() -> None:
    bench = Bench()
    fell = Fell(bench)
    bench.at(0.1).frame(1)
    bench.worker.swap(Odd(after=1, until=1 + FAILURES_IN_A_ROW - 1), "a-2")
    shown = []
    for n in range(2, 12):
        bench.at(n * 0.2).frame(n)
        shown.append(bench.worker.shown().version)  # type: ignore[union-attr]
    assert shown == ["a-2"] + ["a-1"] * (FAILURES_IN_A_ROW - 1) + ["a-2"] * 7
    assert fell.heard == []
    assert bench.worker.last_error == ""


def test_after_its_first_frames_a_model_is_trusted_and_its_errors_are_ordinary_ones() -> None:
    bench = Bench()
    fell = Fell(bench)
    bench.at(0.1).frame(1)
    bench.worker.swap(Odd(after=WATCHED_FRAMES), "a-2")
    for n in range(2, 2 + WATCHED_FRAMES + 5):
        bench.at(n * 0.2).frame(n)
    assert fell.heard == []
    assert bench.worker.version() == "a-2"
    assert bench.worker.errors == 5


def test_when_both_fail_the_camera_goes_on_and_says_so() -> None:
    bench = Bench(Odd())
    fell = Fell(bench)
    bench.worker.swap(Odd(), "a-2")
    for n in range(1, 10):
        bench.at(float(n)).frame(n)
    assert len(fell.heard) == 1
    assert bench.worker.frames == 0
    assert "boom" in bench.worker.last_error


def test_the_model_before_is_kept_warm_and_let_go_after_a_while() -> None:
    bench = Bench()
    first = bench.worker.kept("a-1")
    second = FakeDetector(skill=1.0)
    bench.worker.swap(second, "a-2")
    assert (bench.worker.kept("a-1"), bench.worker.kept("a-2")) == (first, second)
    bench.worker.swap(bench.worker.kept("a-1"), "a-1")  # type: ignore[arg-type]
    assert bench.worker.kept("a-2") is second, "so a rollback can be undone at once, too"
    bench.worker.swap(FakeDetector(), "a-3")
    assert bench.worker.kept("a-2") is None, "two models in memory, never more"
    for n in range(WATCHED_FRAMES):
        bench.at(1.0 + n).frame(n + 1)
    bench.worker.let_go(after_s=900.0)
    assert bench.worker.kept("a-1") is first
    bench.at(1000.0).worker.let_go(after_s=900.0)
    assert bench.worker.kept("a-1") is None
    assert bench.worker.kept("a-3") is not None


def test_a_shadow_sees_the_frame_that_people_see_and_is_never_shown() -> None:
    bench = Bench(FakeDetector(skill=1.0))
    shadow = Shadow(FakeDetector(skill=0.0), "a-2", ShadowRules(frames=3))
    bench.worker.shadow(shadow)
    for n in range(1, 6):
        bench.at(n * 0.2).frame(n)
        shown = bench.worker.shown()
        assert shown is not None
        assert shown.version == "a-1"
        assert shown.detections.xyxy[:, 0].max() < 128, "none of the blind model's boxes"
    assert len(shadow.glances) == 3
    assert {(g.serving, g.new) for g in shadow.glances} == {(6, 6)}
    assert bench.worker.frames == 5


@pytest.mark.parametrize("fault", FAULTS)
def test_a_shadow_that_fails_ends_and_the_camera_goes_on(fault: str) -> None:
    bench = Bench()
    shadow = Shadow(Odd(after=1, fault=fault), "a-2", ShadowRules(frames=50))
    bench.worker.shadow(shadow)
    for n in range(1, 6):
        bench.at(n * 0.2).frame(n)
    assert said_of(fault) in shadow.verdict()
    assert (bench.worker.frames, bench.worker.errors, bench.worker.last_error) == (5, 0, "")


def test_a_box_that_stops_does_not_wait_for_a_shadow() -> None:
    bench = Bench()
    bench.worker.shadow(Shadow(FakeDetector(), "a-2", ShadowRules()))

    def cancel() -> None:
        bench.lane.cancelled = bench.lane.entered == 1  # after the frame, before the shadow's turn

    bench.lane.on_enter = cancel
    with pytest.raises(JobCancelled):
        bench.at(1.0).frame(1)
    assert bench.worker.frames == 1


# --- another stream, and the end --------------------------------------------------------------------------------------


def test_the_frames_of_another_stream_count_anew_and_nothing_else_changes() -> None:
    bench = Bench()
    bench.frame(900)
    other = StillCamera("a")
    other.show(3, at_s=bench.clock.monotonic_s())
    bench.worker.turn_to(other)
    bench.worker.step()
    shown = bench.worker.shown()
    assert shown is not None
    assert (shown.frame.seq, shown.version) == (3, "a-1")
    assert (bench.worker.frames, bench.worker.errors) == (2, 0)
    bench.frame(901)
    assert bench.worker.frames == 2, "the old stream is left"


def test_between_two_streams_no_frame_is_counted_as_due() -> None:
    bench = Bench()
    bench.worker.set_knobs(knobs(5))
    bench.frame(1)
    bench.at(60.0)
    other = StillCamera("a")
    other.show(1, at_s=60.0)
    bench.worker.turn_to(other)
    bench.worker.step()
    assert bench.worker.finish.total().due == 2


class Held(FakeDetector):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_what_a_camera_that_was_taken_out_held_is_given_back_once() -> None:
    first, second = Held(skill=1.0), Held(skill=1.0)
    bench = Bench(first)
    bench.worker.swap(second, "a-2")
    bench.worker.stop()
    bench.worker.join(0.0)  # it was never started
    bench.worker.close()
    assert (first.closed, second.closed) == (1, 1)
