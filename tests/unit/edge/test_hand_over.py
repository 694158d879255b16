"""The model that serves goes on elsewhere: warmed on real frames, between two frames, and on failure where it ran before.

Elsewhere is another process, share or form; here it is a detector that can be closed and told to stop, and that fails on order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edge.swapping
from edge.clock import FakeClock
from edge.inference import FAILURES_IN_A_ROW, WATCHED_FRAMES, FellBack, InferenceWorker
from edge.runtime import BoxRuntime
from edge.shadow import ShadowRules, SwapRefused
from edge.swapping import Swapper
from models.fake import FakeDetector
from scheduler.commands import SwapModel
from scheduler.types import Detections
from tests.support.fakes import FreeLane, StillCamera

RULES = ShadowRules(frames=0)
Twist = Callable[["Elsewhere", Detections], Detections]


def sound(detector: Elsewhere, found: Detections) -> Detections:
    return found


def throws(detector: Elsewhere, found: Detections) -> Detections:
    raise RuntimeError("the process is gone")


def no_numbers(detector: Elsewhere, found: Detections) -> Detections:
    return Detections(xyxy=found.xyxy * np.float32("nan"), score=found.score, class_id=found.class_id)


def hangs(detector: Elsewhere, found: Detections) -> Detections:
    detector.stopped.wait(60.0)
    raise RuntimeError("it was told to stop" if detector.abandoned else "nobody told it to stop")


class Elsewhere(FakeDetector):
    """Does `twist` from its `after`-th prediction on."""

    def __init__(self, twist: Twist = sound, after: int = 0) -> None:
        super().__init__(skill=1.0)
        self.twist, self.after = twist, after
        self.pictures: list[np.ndarray] = []
        self.closed = self.abandoned = 0
        self.stopped, self.ended = threading.Event(), threading.Event()

    def predict(self, images: Sequence[np.ndarray], **_: object) -> list[Detections]:  # type: ignore[override]
        assert not self.closed, "used after it was closed"
        self.pictures += list(images)
        found = super().predict(images)
        return [self.twist(self, f) for f in found] if len(self.pictures) > self.after else found

    def abandon(self) -> None:
        self.abandoned += 1
        self.stopped.set()

    def close(self) -> None:
        self.closed += 1
        self.ended.set()


class Place:
    """Camera a, served by `first`, with five frames behind it."""

    def __init__(self) -> None:
        self.clock, self.camera, self.first = FakeClock(), StillCamera("a"), Elsewhere()
        self.worker = InferenceWorker(self.camera, FreeLane(), self.first, "a-1", clock=self.clock, score_min=0.25)
        self.fell: list[FellBack] = []
        self.worker.on_fall_back = self.fell.append
        self.admitted: list[str] = []
        shelf = SimpleNamespace(
            detector=lambda version: Elsewhere(), admit=lambda stream, version, *_: self.admitted.append(version)
        )
        self.swapper = Swapper(
            shelf=shelf, store=SimpleNamespace(), clock=self.clock, serve=lambda d, c: d, serve_later=lambda d, c: d,  # type: ignore[arg-type]
            rules=RULES,
        )  # fmt: skip
        self.seq = 0
        self.frames(5)

    def frames(self, count: int) -> list[str]:
        """Who answered each of the next frames; every one is shown."""
        by = []
        for _ in range(count):
            self.seq += 1
            self.clock.advance_to(0.2 * self.seq)
            self.camera.show(self.seq, at_s=0.2 * self.seq)
            self.worker.step()
            shown = self.worker.shown()
            assert shown is not None
            assert shown.frame.seq == self.seq, "no frame is missed"
            assert np.isfinite(shown.detections.xyxy).all()
            by.append(shown.version)
        return by

    def hand_over(self, to: Elsewhere) -> None:
        self.swapper.hand_over(self.worker, "a", lambda serving: to)

    def stays_where_it_is(self, tried: Elsewhere) -> None:
        assert self.worker.serving() == ("a-1", self.first)
        assert self.first.closed == 0
        assert tried.closed == 1, "what was made is given back"
        assert self.fell == []
        self.frames(3)


@pytest.fixture
def place() -> Place:
    return Place()


def test_the_new_place_is_warmed_with_the_newest_frames_and_the_old_one_closed_when_it_has_held_its_own(place: Place) -> None:
    new = Elsewhere()
    place.hand_over(new)
    newest = place.worker.shown()
    assert newest is not None
    assert len(new.pictures) == 2
    assert all(np.array_equal(picture, newest.frame.image) for picture in new.pictures), "real frames, not plain ones"
    seen = len(place.first.pictures)
    place.frames(WATCHED_FRAMES - 1)
    assert len(place.first.pictures) == seen, "the old one answers nothing any more"
    assert place.first.closed == 0, "but stands by"
    place.frames(2)
    assert place.first.ended.wait(120.0)
    assert place.worker.serving() == ("a-1", new)
    assert (place.first.closed, new.closed) == (1, 0)
    (swap,) = place.worker.swaps
    assert (swap.version, swap.missed_frames) == ("a-1", 0)


def test_what_is_made_is_told_where_the_model_serves_now(place: Place) -> None:
    told: list[Any] = []
    place.swapper.hand_over(place.worker, "a", lambda serving: told.append(serving) or Elsewhere())
    assert told == [place.first]


@pytest.mark.parametrize(
    ("twist", "after", "message"),
    [
        (throws, 0, "its first run failed: RuntimeError: the process is gone"),
        (throws, 1, "its first run failed"),
        (no_numbers, 1, "gave numbers that are none"),
    ],
)
def test_one_that_fails_when_it_is_warmed_does_not_take_over(place: Place, twist: Twist, after: int, message: str) -> None:
    new = Elsewhere(twist, after)
    with pytest.raises(SwapRefused, match=message):
        place.hand_over(new)
    place.stays_where_it_is(new)


def test_one_that_hangs_when_it_is_warmed_is_stopped_and_does_not_take_over(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge.swapping, "WARM_S", 0.05)
    new = Elsewhere(hangs)
    with pytest.raises(SwapRefused, match="gave no answer within"):
        place.hand_over(new)
    assert new.abandoned == 1
    place.stays_where_it_is(new)


def test_one_that_cannot_even_be_made_changes_nothing(place: Place) -> None:
    def make(serving: object) -> Elsewhere:
        raise OSError("no permission to start a process")

    with pytest.raises(OSError, match="no permission"):
        place.swapper.hand_over(place.worker, "a", make)
    place.frames(2)
    assert place.worker.serving() == ("a-1", place.first)
    place.hand_over(Elsewhere())  # and it may be tried again


@pytest.mark.parametrize("twist", [throws, no_numbers])
@pytest.mark.parametrize("live", [0, 4])
def test_one_that_fails_on_live_frames_is_helped_out_and_given_up(place: Place, twist: Twist, live: int) -> None:
    new = Elsewhere(twist, after=2 + live)
    place.hand_over(new)
    place.frames(live + FAILURES_IN_A_ROW + 2)
    assert place.worker.serving() == ("a-1", place.first)
    (fell,) = place.fell
    assert fell.failed == fell.version == "a-1"
    assert new.ended.wait(120.0)
    assert place.first.closed == 0
    place.frames(WATCHED_FRAMES + 2)
    assert place.first.closed == 0


def test_one_that_hangs_on_its_first_live_frame_is_broken_off_and_the_frame_is_done_where_it_ran_before(place: Place) -> None:
    new = Elsewhere(hangs, after=2)
    place.hand_over(new)
    assert place.worker.break_off(after_s=0.0) is False, "nothing is in work"
    frame = threading.Thread(target=place.frames, args=(1,))
    frame.start()
    while not place.worker.break_off(after_s=0.0):
        assert frame.is_alive()
    frame.join(120.0)
    shown = place.worker.shown()
    assert shown is not None
    assert shown.frame.seq == place.seq
    assert "told to stop" in place.worker.last_error
    assert new.abandoned == 1
    new.twist = throws
    place.frames(FAILURES_IN_A_ROW - 1)
    assert place.worker.serving() == ("a-1", place.first)


def test_a_model_that_has_proved_itself_is_never_broken_off(place: Place) -> None:
    slow = Elsewhere(lambda detector, found: found if place.worker.break_off(after_s=0.0) is False else throws(detector, found))
    place.first.twist = slow.twist
    place.frames(3)
    assert place.worker.errors == 0


def test_several_hand_overs_in_a_row_keep_the_place_that_has_proved_itself(place: Place) -> None:
    second, third = Elsewhere(), Elsewhere(throws, after=2)
    place.hand_over(second)
    place.frames(3)
    place.hand_over(third)  # the second is still watched
    place.frames(1)
    assert second.ended.wait(120.0)
    place.frames(FAILURES_IN_A_ROW)
    assert place.worker.serving() == ("a-1", place.first)
    assert place.first.closed == 0


def test_a_model_on_its_way_goes_first_and_one_that_comes_later_overtakes(place: Place) -> None:
    asked: list[str] = []

    def meanwhile(serving: object) -> Elsewhere:
        place.swapper.take_over(place.worker, SwapModel(stream="a", version="a-2", quality=None, reason="better"))
        return late

    late = Elsewhere()
    with pytest.raises(SwapRefused, match="another model is to take over"):
        place.swapper.hand_over(place.worker, "a", meanwhile)
    assert late.closed == 1
    assert place.worker.version() == "a-2"

    def serve(detector: Any, camera: str) -> Any:
        with pytest.raises(SwapRefused, match="a-3 is about to take over"):
            place.hand_over(Elsewhere())
        assert place.swapper.version_under_way("a") == "a-3"
        asked.append("served")
        return detector

    place.swapper.serve = serve
    place.swapper.take_over(place.worker, SwapModel(stream="a", version="a-3", quality=None, reason="better"))
    assert asked == ["served"]
    assert place.admitted == ["a-2", "a-3"]


def test_a_hand_over_is_no_version_under_way_and_an_operators_choice_ends_it(place: Place) -> None:
    new = Elsewhere()

    def make(serving: object) -> Elsewhere:
        assert place.swapper.version_under_way("a") is None
        place.swapper.go_back(place.worker, "a", "a-7")
        return new

    with pytest.raises(SwapRefused, match="the operator chose another model"):
        place.swapper.hand_over(place.worker, "a", make)
    assert place.worker.version() == "a-7"
    assert new.closed == 1


def test_a_detector_replaced_behind_its_back_is_not_replaced_again(place: Place) -> None:
    new = Elsewhere()

    def make(serving: object) -> Elsewhere:
        place.worker.swap(Elsewhere(), "a-2")
        return new

    with pytest.raises(SwapRefused, match="another model took over meanwhile"):
        place.swapper.hand_over(place.worker, "a", make)
    assert place.worker.version() == "a-2"
    assert new.closed == 1


def test_models_that_are_let_go_are_closed_between_two_frames_and_those_in_use_never(place: Place) -> None:
    second, third = Elsewhere(), Elsewhere()
    place.worker.swap(second, "a-2")
    place.frames(1)
    place.worker.swap(third, "a-3")  # two models in memory, never more
    assert place.first.closed == 0, "not before the next frame"
    place.frames(1)
    assert place.first.ended.wait(120.0)
    place.worker.swap(second, "a-2")  # back to the one that is kept warm
    place.frames(WATCHED_FRAMES + 1)
    place.clock.advance_to(place.clock.monotonic_s() + 1000.0)
    place.worker.let_go(after_s=900.0)
    place.seq += 5000
    place.frames(1)
    assert third.ended.wait(120.0)
    assert second.closed == 0


def test_people_read_that_the_model_stayed_and_its_version_is_not_touched() -> None:
    noted: list[Any] = []
    runtime = SimpleNamespace(note_from_anywhere=noted.append)
    fell = FellBack(failed="a-1", version="a-1", reason="failed on 3 live frames in a row: RuntimeError: gone")
    BoxRuntime._put_back(runtime, "a", fell)  # type: ignore[arg-type]
    (note,) = noted
    assert note.code == "hand-over-failed"
    assert note.text.startswith("a-1 goes on where it ran before: the new place failed on 3 live frames in a row")
