"""Live inference of one camera, step by step, on a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.inference import ERROR_REST_S, LOOK_S, InferenceWorker, SwapRecord
from models.fake import FakeDetector
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
    bench.worker.join(10.0)
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
