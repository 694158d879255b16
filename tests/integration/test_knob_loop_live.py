"""A live box divides inference anew when the pictures cost more, between two plans; an exact replay finds the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler import events as ev
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import CONFIG, LiveBox

#: One long window: whatever changes, no plan did it.
LOOP = replace(CONFIG, knob_loop=True, policy="lookahead", window_s=600.0, first_window_s=600.0)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    put_fakes_in_the_zoo(monkeypatch)
    return


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
