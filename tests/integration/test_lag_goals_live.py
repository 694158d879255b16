"""A live box says when more of a recording waits than its queries allow, once, and when that is over; an exact replay finds the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler import events as ev
from scheduler.videostorm.types import Utility
from tests.support.live_box import CONFIG, LiveBox

#: One long window, in which nothing is divided anew: the goal is looked at all the same.
BOX = replace(CONFIG, say_lag=True, window_s=600.0, first_window_s=600.0)

LATE = "a: its recording is 30 s behind, above the lag goal 5 s of its queries"
IN_TIME = "a: its recording is 0 s behind and meets the lag goal 5 s of its queries again"

pytestmark = pytest.mark.usefixtures("fake_models")


def test_a_recording_that_falls_behind_is_said_and_taken_back_when_it_has_caught_up(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=BOX, cost_s=0.04) as box:
        asked = Utility(lag_goal_s=5)
        box.runtime.ask(lambda: box.runtime._handle(lambda at_s: ev.AskedAnew(at_s=at_s, stream="a", utility=asked)))
        box.cameras["b"].lag_s = 300.0  # nobody asks it anything
        box.cameras["a"].lag_s = 30.2
        box.wait(lambda: box.noted("goal") == [LATE], "it is said")
        box.cameras["a"].lag_s = 31.0
        box.wait_frames("a")
        box.cameras["a"].lag_s = 0.2
        box.wait(lambda: box.noted("goal") == [LATE, IN_TIME], "it is taken back")
        assert [len(due.loads) for due in box.seen(ev.KnobsDue)] == [2, 1]
        assert box.replayed().exact
