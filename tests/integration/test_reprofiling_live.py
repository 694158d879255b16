"""A live box whose profile has grown old profiles anew by itself: in its share of preparation, without losing a frame of others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.errors import UsageError
from configs.schema.queries import QueryEntry
from edge.live_jobs import Reprofile
from edge.profiler.chain import FORM, MODEL
from edge.profiler.command import keep_profile
from edge.profiler.live import Profiles, Watching
from edge.profiler.profile import CameraProfile, MeasuredOption, ProfilingCost
from edge.queries.base import KnobValue, Tools
from edge.queries.live import CameraQueries, specs_of
from scheduler import events as ev
from scheduler.videostorm.reprofile import ReprofileRules
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import LiveBox

DECODE = {"transform": "decode", "knobs": {"fps": [0], "height_px": [0]}}
TURNABLE = [DECODE, {"transform": "read", "knobs": {"every": [1, 5]}}]
FIXED = [DECODE, {"transform": "read", "knobs": {"every": [1]}}]
SETTING: dict[str, KnobValue] = {"decode.fps": 0, "decode.height_px": 0}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_fakes_in_the_zoo(monkeypatch)
    return tmp_path


def profile(fps: float, *, frame_s: float) -> CameraProfile:
    options = tuple(
        MeasuredOption(
            name=f"{stride}", quality=0.9 / stride, device_s=fps * frame_s / stride, cpu_s=0.001, fps=fps / stride,
            setting={MODEL: "fake", FORM: "trained"},
        )
        for stride in (1, 4)
    )  # fmt: skip
    return CameraProfile(
        camera="a", task="detection", model="fake", golden="g", source="test", clip_s=10.0, frames=50, fps=fps, watched_fps=fps,
        machine="here", options=options, cost=ProfilingCost(search_s=1.0, settings=2, of_settings=2),
        serving={MODEL: "fake", FORM: "trained"},
    )  # fmt: skip


def box_with(root: Path, reprofiling: Reprofile) -> LiveBox:
    """A box whose camera a costs ten times what its profile says, from its first frame on."""
    box = LiveBox(root, {"a": "fake"}, cost_s=0.01)
    watched, parts = box.watched["a"], box.runtime.parts
    watching = Watching(task="detection", model="fake", fps=watched.fps, machine="here")
    parts.profiles = Profiles(box.store, lambda camera: watching, lambda camera, text: None)
    parts.reprofile = ReprofileRules(for_s=0.0)
    parts.reprofiling = reprofiling
    keep_profile(root, profile(watched.fps, frame_s=0.01))
    watched.menu = parts.profiles.menu("a")
    assert watched.menu is not None
    watched.knobs = watched.menu.knobs
    watched.worker.cost_s = lambda: 0.1  # type: ignore[method-assign]
    return box


def test_an_old_profile_is_made_anew_and_taken_up(root: Path) -> None:
    asked: list[tuple[str, float]] = []
    made: list[str] = []
    threads: list[threading.Thread] = []

    def again(camera: str, query: str, budget_s: float, checkpoint: Callable[[], None]) -> None:
        assert query == ""
        asked.append((camera, budget_s))
        threads.append(threading.current_thread())
        for _ in range(20):
            checkpoint()
        keep_profile(root, profile(box.watched["a"].fps, frame_s=0.1))
        made.append(camera)

    box = box_with(root, again)
    with box:
        done = box.wait_for(ev.Reprofiled)
        assert asked[0][0] == "a"
        assert asked[0][1] > 0
        assert done.stream == "a"
        assert threads[0].name != "box-loop", "in a thread and a lane of its own"
        box.wait(lambda: box.watched["a"].menu.version == 2, "the new profile is planned with")  # type: ignore[union-attr]
        assert "profiled anew" in box.noted("profile-old")[0]
        box.wait_windows(3)
        assert made == ["a"], "once, and not in every window; one that a window's end broke off is asked for again"
        box.wait_frames("a")
        assert box.replayed().exact


def test_one_that_cannot_be_made_is_told_and_the_box_goes_on(root: Path) -> None:
    def again(camera: str, query: str, budget_s: float, checkpoint: Callable[[], None]) -> None:
        raise UsageError("a has no samples", subject=camera, remedy="let the box run for a while")

    with box_with(root, again) as box:
        failed = box.wait_for(ev.JobFailed)
        assert failed.stream == "a"
        box.wait_windows(2)
        box.wait_frames("a")
        assert any("no samples" in text for text in box.noted("reprofile-failed"))
        assert box.watched["a"].menu.version == 1  # type: ignore[union-attr]
        assert box.replayed().exact


def test_a_query_without_a_profile_is_given_one_and_runs_with_it(root: Path) -> None:
    """Of two queries the one that has a knob; the camera itself has no profile and gets none."""
    made: list[tuple[str, str]] = []

    def make(camera: str, query: str, budget_s: float, checkpoint: Callable[[], None]) -> None:
        checkpoint()
        options = tuple(
            MeasuredOption(
                name=f"{every}",
                setting=SETTING | {"read.every": every},
                quality=quality,
                device_s=0.01 / every,
                cpu_s=0.0,
                fps=5.0,
            )
            for every, quality in ((1, 1.0), (5, 0.9))
        )
        keep_profile(
            root,
            profile(box.watched["a"].fps, frame_s=0.1).model_copy(update={"camera": f"{camera}/{query}", "options": options}),
        )
        made.append((camera, query))

    box = LiveBox(root, {"a": "fake"}, cost_s=0.01)
    watched, parts = box.watched["a"], box.runtime.parts
    entries = [
        QueryEntry.model_validate({"name": name, "nodes": nodes}) for name, nodes in (("plate", TURNABLE), ("fixed", FIXED))
    ]
    specs, _ = specs_of(entries, task="detection")
    read = Tools(camera_id="a", fps=watched.fps, read_text=lambda image: [])
    watched.queries = CameraQueries(specs, read, clock=box.clock)
    watching = Watching(task="detection", model="fake", fps=watched.fps, machine="here")
    parts.profiles = Profiles(box.store, lambda camera: watching, lambda camera, text: None)
    parts.reprofile, parts.reprofiling = ReprofileRules(for_s=0.0), make
    with box:
        box.wait_for(ev.Reprofiled)
        box.wait(lambda: "plate" in box.watched["a"].asked.menus, "the profile is planned with")
        assert [text for text in box.noted("profile-old") if "plate" in text] == [
            "a: its query plate has no profile in use; it is profiled when there is time"
        ]
        box.wait_windows(2)
        assert made == [("a", "plate")], "once, and for nobody else"
        box.wait_frames("a")
        assert box.replayed().exact
