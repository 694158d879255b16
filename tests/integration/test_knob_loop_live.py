"""A live box divides inference anew when the pictures cost more, between two plans; an exact replay finds the same."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import StorageError
from edge import runtime
from edge.gpu.base import Fault
from edge.rates import RateMeter
from edge.runtime import knob_profiles
from scheduler import events as ev
from scheduler.commands import TurnToScene
from scheduler.engine_state import BoxState
from scheduler.events import Load
from scheduler.knob_loop import seen
from tests.support.live_box import CONFIG, LiveBox

#: One long window: whatever changes, no plan did it.
LOOP = replace(CONFIG, knob_loop=True, policy="lookahead", window_s=600.0, first_window_s=600.0)


pytestmark = pytest.mark.usefixtures("fake_models")


def test_a_crowd_before_one_camera_slows_the_other_and_both_come_back(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=LOOP, cost_s=0.04) as box:
        streams = box.runtime.parts.engine.state.streams
        box.wait_frames("a")
        assert {streams[c].knob for c in "ab"} == {"every"}, "together 46 % of a core: all are seen"
        box.watched["a"].worker.cost_s = lambda: 2.0 * box.slower  # type: ignore[method-assign]
        box.wait_for(ev.KnobsDue)
        box.wait(lambda: {streams[c].knob for c in "ab"} != {"every"}, "somebody skips frames")
        assert sum(s.infer_pct for s in streams.values()) <= 100
        box.watched["a"].worker.cost_s = lambda: 0.04 * box.slower  # type: ignore[method-assign]
        box.wait(lambda: {streams[c].knob for c in "ab"} == {"every"}, "all are seen again")
        box.wait_frames("b")
        assert len(box.seen(ev.KnobsDue)) >= 2
        assert box.replayed().exact


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the runtime warns of, taken where it says it: what becomes of the log elsewhere does not matter here."""
    said: list[str] = []
    monkeypatch.setattr(runtime.log, "warning", lambda text, *values: said.append(text % values))
    return said


def test_a_division_that_fails_is_said_once_and_the_box_goes_on_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    looks: list[int] = []
    repaired = threading.Event()

    def broken(state: BoxState, loads: Iterable[Load]) -> Hashable:
        if repaired.is_set():
            return seen(state, loads)
        looks.append(1)
        raise ValueError("query a: two options have the same name")

    monkeypatch.setattr("edge.runtime.knob_loop.seen", broken)
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=LOOP, cost_s=0.04) as box:
        box.wait(lambda: len(looks) >= 3, "the knobs are looked at again and again")
        box.watched["a"].worker.cost_s = lambda: 2.0 * box.slower  # type: ignore[method-assign]
        box.wait_for(ev.KnobsMeasured, "a")  # costs are still told
        box.wait_frames("a")
        assert [text for text in warned if "two options" in text] == [
            "knobs between plans: ValueError: query a: two options have the same name"
        ]
        repaired.set()
        box.wait_for(ev.KnobsDue)  # what failed is tried again


def test_a_backend_that_cannot_be_asked_ends_no_look(tmp_path: Path, warned: list[str]) -> None:
    asked: list[int] = []

    def broken() -> tuple[Fault, ...]:
        asked.append(1)
        raise OSError("the daemon is gone")

    with LiveBox(tmp_path / "data", {"a": "fake"}, config=LOOP, cost_s=0.04) as box:
        box.runtime.parts.backend.faults = broken  # type: ignore[method-assign]
        box.wait(lambda: len(asked) >= 3, "the box is looked at again and again")
        assert [text for text in warned if "daemon is gone" in text] == ["looking at the box: OSError: the daemon is gone"]
        box.wait_frames("a")


def test_a_look_that_fails_again_after_a_good_one_is_said_again(tmp_path: Path, warned: list[str]) -> None:
    said = "looking at the box: OSError: the daemon is gone"
    gone = threading.Event()
    well: list[int] = []

    def faults() -> tuple[Fault, ...]:
        if gone.is_set():
            raise OSError("the daemon is gone")
        well.append(1)
        return ()

    with LiveBox(tmp_path / "data", {"a": "fake"}, config=LOOP, cost_s=0.04) as box:
        box.runtime.parts.backend.faults = faults  # type: ignore[method-assign]
        for times in (1, 2):
            gone.set()
            box.wait(lambda times=times: warned.count(said) == times, "it is said")  # type: ignore[misc]
            gone.clear()
            well.clear()
            box.wait(lambda: len(well) >= 2, "one look went well to its end")
        assert warned.count(said) == 2, "once each time"


def test_a_database_that_fails_again_after_a_good_look_is_complained_of_again(tmp_path: Path, warned: list[str]) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=LOOP, cost_s=0.04) as box:

        def follow(*, broken: bool) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(box.runtime.parts.store, "changed_by_others", lambda: True)
                if broken:
                    patch.setattr(box.runtime, "_follow_choice", refuse)
                box.runtime.follow()

        def refuse(camera_id: str, entry: object) -> None:
            raise StorageError("the database is locked")

        for broken in (True, True, False, True):
            box.runtime.ask(lambda broken=broken: follow(broken=broken))  # type: ignore[misc]
        assert [text for text in warned if "locked" in text] == ["database: the database is locked"] * 2


def test_plans_hear_what_is_known_of_the_scene_that_a_camera_turned_to(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=LOOP, cost_s=0.04) as box:
        box.wait_frames("a")
        camera, meter = box.runtime.watched["a"], RateMeter(score_min=0.25)
        camera.rates = meter
        box.runtime.ask(lambda: box.runtime._turn_to_scene(TurnToScene(stream="a", scene=1)))
        told = box.wait_for(ev.KnobsMeasured, "a")
        assert told.knobs == camera.offered() == knob_profiles(camera.fps, camera.profiled_cost_s), "nothing was seen of it yet"
        assert meter._scenes.keys() == {0, 1}
        box.wait(lambda: box.runtime.parts.engine.state.streams["a"].knobs == told.knobs, "plans use it")
        box.runtime.ask(lambda: box.runtime._turn_to_scene(TurnToScene(stream="b", scene=1)))
        box.runtime.ask(lambda: box.runtime._turn_to_scene(TurnToScene(stream="gone", scene=1)))
        box.wait_frames("b")
        assert not box.seen(ev.KnobsMeasured, "b"), "of a camera without a meter nothing is known"
        assert box.replayed().exact
