"""Knobs of single queries on a box that runs: a stored profile joins the camera's menu, and a short device turns the query's knobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from configs.schema.queries import QueryEntry
from edge.profiler.command import keep_profile
from edge.profiler.live import Profiles, Watching
from edge.profiler.profile import CameraProfile, MeasuredOption, ProfilingCost
from edge.queries.base import Tools
from edge.queries.live import CameraQueries, specs_of
from scheduler import events as ev
from scheduler.commands import SetKnobs
from scheduler.videostorm.types import Utility
from tests.support.live_box import CONFIG, LiveBox

LOOP = replace(CONFIG, knob_loop=True, policy="lookahead", window_s=600.0, first_window_s=600.0)
CROWD = QueryEntry.model_validate(
    {"name": "crowd", "template": "count", "knobs": {"decode.fps": [0, 5, 1], "decode.height_px": [0], "detect.height_px": [0]}}
)


pytestmark = pytest.mark.usefixtures("fake_models")


def with_query(box: LiveBox) -> None:
    """Camera a is asked for a crowd; profiles may be written."""
    watched = box.watched["a"]
    specs, _ = specs_of([CROWD], task="detection")
    watched.queries = CameraQueries(specs, Tools(camera_id="a", fps=watched.fps), clock=box.clock)
    watched.queries.frame_cost_s = lambda *, with_cpu: None  # type: ignore[method-assign]  # the said cost stays
    watching = Watching(task="detection", model="fake", fps=watched.fps, machine="here")
    box.runtime.parts.profiles = Profiles(box.store, lambda camera: watching, lambda camera, text: None)


def profile(fps: float, *, core_frac: float, slow: int = 1) -> CameraProfile:
    """All frames need so much of a core; `slow` a second a fifth of that, for 90 % of the quality."""
    points = ((0, 1.0, core_frac), (slow, 0.9, core_frac / 5))
    options = tuple(
        MeasuredOption(
            name=f"fps={rate}", setting={"decode.fps": rate, "decode.height_px": 0, "detect.height_px": 0, "detect.model": ""},
            quality=quality, device_s=0.0, cpu_s=cpu_s, fps=fps,
        )
        for rate, quality, cpu_s in points
    )  # fmt: skip
    return CameraProfile(
        camera="a/crowd", task="detection", model="fake", golden="its golden setting", source="test", clip_s=10.0, frames=50, fps=fps,
        watched_fps=fps, machine="here", options=options, cost=ProfilingCost(search_s=1.0, settings=2, of_settings=2),
    )  # fmt: skip


def setting(box: LiveBox) -> object:
    queries = box.watched["a"].queries
    assert queries is not None
    return queries.reports()[0].setting["decode.fps"]


def test_a_query_that_needs_too_much_gives_way_by_its_own_knob(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=LOOP, cost_s=0.04) as box:
        with_query(box)
        box.wait_frames("a")
        stream = box.runtime.parts.engine.state.streams["a"]
        assert (stream.knob, setting(box)) == ("every", 0)
        keep_profile(tmp_path / "data", profile(box.watched["a"].fps, core_frac=1.5))  # of one core
        box.wait(lambda: stream.knob == "every crowd:2", "the query looks at a frame a second, the camera at all")
        box.wait(lambda: setting(box) == 1, "and does")
        assert any("crowd" in text for text in box.noted("profile-taken-up"))
        assert box.watched["a"].worker.errors == 0
        keep_profile(tmp_path / "data", profile(box.watched["a"].fps, core_frac=1.5, slow=5))
        box.wait(lambda: setting(box) == 5, "the same name stands for what the new profile calls so")
        assert stream.knob == "every crowd:2"
        keep_profile(tmp_path / "data", profile(box.watched["a"].fps, core_frac=0.1))
        box.wait(lambda: (stream.knob, setting(box)) == ("every", 0), "there is room for all of it again")
        box.wait_frames("a")
        replayed = box.replayed()
        assert replayed.exact
        assert len(box.seen(ev.KnobsDue)) >= 2
        assert {"every", "every crowd:2"} <= told_knobs(box)


READING = [
    QueryEntry.model_validate(
        {
            "name": name, "quality_weight": weight,
            "nodes": [
                {"transform": "decode", "knobs": {"fps": [0], "height_px": [0]}}, {"transform": "read", "knobs": {"every": [1, 5]}}
            ],
        }
    )
    for name, weight in (("badge", 3.0), ("plate", 1.0))
]  # fmt: skip


def every(box: LiveBox) -> dict[str, object]:
    queries = box.watched["a"].queries
    assert queries is not None
    return {report.name: report.setting["read.every"] for report in queries.reports()}


def test_before_it_has_a_profile_a_query_gives_way_by_how_often_it_asks(tmp_path: Path) -> None:
    """Each frame that is read costs 0.1 s for each query: 115 % of the device for both, beside 23 % for the camera's own model."""
    box = LiveBox(tmp_path / "data", {"a": "fake"}, config=LOOP, cost_s=0.04)
    watched = box.watched["a"]
    specs, _ = specs_of(READING, task="detection")
    watched.queries = CameraQueries(specs, Tools(camera_id="a", fps=watched.fps, read_text=lambda image: []), clock=box.clock)
    watched.queries.frame_cost_s = lambda *, with_cpu: sum(0.1 * box.slower / int(n) for n in every(box).values())  # type: ignore[method-assign, call-overload]
    watching = Watching(task="detection", model="fake", fps=watched.fps, machine="here")
    box.runtime.parts.profiles = Profiles(box.store, lambda camera: watching, lambda camera, text: None)
    with box:
        stream = box.runtime.parts.engine.state.streams
        box.wait(
            lambda: "a" in stream and stream["a"].knob == "every plate:2", "the query of less weight reads every fifth frame"
        )
        box.wait(lambda: every(box) == {"badge": 1, "plate": 5}, "and does")
        box.wait_frames("a")
        options = tuple(
            MeasuredOption(
                name=f"every={n}", setting={"decode.fps": 0, "decode.height_px": 0, "read.every": n}, quality=quality, device_s=0.0,
                cpu_s=0.5 * watched.fps * 0.1 * box.slower / n, fps=watched.fps,
            )
            for n, quality in ((1, 1.0), (5, 0.9))
        )  # fmt: skip
        badge = profile(watched.fps, core_frac=0.1).model_copy(update={"camera": "a/badge", "options": options})
        keep_profile(tmp_path / "data", badge)
        box.wait(lambda: every(box)["plate"] == 1, "what is not planned with any more runs as it began")
        assert any("badge" in text for text in box.noted("profile-taken-up"))
        assert box.replayed().exact


def test_frames_are_worth_what_their_cameras_queries_say(tmp_path: Path) -> None:
    """In the box's queue as in the division of shares; without queries it is what a camera is worth to everybody."""
    config = replace(LOOP, knob_utility=Utility(quality_weight=2.0))
    box = LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=config, cost_s=0.01)
    watched = box.watched["a"]
    entries = [
        CROWD.model_copy(update={"name": name, "quality_weight": weight}) for name, weight in (("one", 3.0), ("two", 0.5))
    ]
    specs, _ = specs_of(entries, task="detection")
    watched.queries = CameraQueries(specs, Tools(camera_id="a", fps=watched.fps), clock=box.clock)
    with box:
        box.wait_frames("a")
        stream = box.runtime.parts.engine.state.streams["a"]
        assert stream.utility is not None
        assert box.watched["a"].worker.weight == stream.utility.quality_weight == 3.5
        assert box.watched["b"].worker.weight == 2.0


def told_knobs(box: LiveBox) -> set[str]:
    """Names of knobs that the journal's commands set."""
    text = "".join(path.read_text() for path in sorted(box.folder.events_dir.glob("*.jsonl")))
    assert SetKnobs.__name__ in text
    return {name for name in ("every", "every crowd:2") if f'"knobs":"{name}"' in text.replace('": "', '":"')}
