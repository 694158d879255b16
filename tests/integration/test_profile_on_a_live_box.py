"""A box that runs plans with a camera's stored profile, takes a new one up, turns its resolution, says when it has grown old."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.profiler.chain import FORM, MODEL
from edge.profiler.command import keep_profile
from edge.profiler.live import Profiles, Watching
from edge.profiler.profile import CameraProfile, MeasuredOption, ProfilingCost
from scheduler.events import CameraAdded, KnobsMeasured
from scheduler.videostorm.reprofile import ReprofileRules
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import LiveBox

HERE = "a made-up machine"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_fakes_in_the_zoo(monkeypatch)
    return tmp_path


def box_with_profiles(root: Path, *, reprofile: ReprofileRules | None = None) -> LiveBox:
    box = LiveBox(root, {"a": "fake"}, cost_s=0.01)
    fps = box.watched["a"].fps
    box.told = []  # type: ignore[attr-defined]
    watching = Watching(task="detection", model="fake", fps=fps, machine=HERE)
    parts = box.runtime.parts
    parts.profiles = Profiles(box.store, lambda camera: watching, lambda camera, text: box.told.append(text))  # type: ignore[attr-defined]
    parts.reprofile = reprofile
    return box


def profile(fps: float, *, frame_s: float = 0.01, machine: str = HERE) -> CameraProfile:
    """Full rate and picture; full rate at half the height, for a third; a fourth of the rate."""
    points = ((1, 0, 0.9, 1.0), (1, 48, 0.6, 1 / 3), (4, 0, 0.3, 1 / 4))
    options = tuple(
        MeasuredOption(
            name=f"{stride} {height_px}", quality=quality, device_s=fps * frame_s * part, cpu_s=0.001, fps=fps / stride,
            height_px=height_px, setting={MODEL: "fake", FORM: "trained"},
        )
        for stride, height_px, quality, part in points
    )  # fmt: skip
    return CameraProfile(
        camera="a", task="detection", model="fake", golden="g", source="test", clip_s=10.0, frames=50, fps=fps, watched_fps=fps,
        machine=machine, options=options, cost=ProfilingCost(search_s=1.0, settings=3, of_settings=3),
        serving={MODEL: "fake", FORM: "trained"},
    )  # fmt: skip


def names(event: KnobsMeasured | CameraAdded) -> list[str]:
    return [knobs.name for knobs in event.knobs]


def test_a_profile_that_is_written_while_the_box_runs_is_planned_with(root: Path) -> None:
    with box_with_profiles(root) as box:
        assert names(box.wait_for(CameraAdded)) == ["every", "1/2", "1/3", "1/4", "1/6", "1/8"]
        box.wait_frames("a")
        assert keep_profile(root, profile(box.watched["a"].fps)) == 1  # as the command does, beside the box
        measured = box.wait_for(KnobsMeasured)
        assert names(measured) == ["every", "every@48p", "1/4"]
        assert [k.quality_frac for k in measured.knobs] == [1.0, pytest.approx(0.6667), pytest.approx(0.3333)]
        assert [k.height_px for k in measured.knobs] == [0, 48, 0]
        taken_up = box.noted("profile-taken-up")
        assert len(taken_up) == 1
        assert "version 1" in taken_up[0]
        box.wait_windows(2)  # and plans go on
        stream = box.runtime.parts.engine.state.streams["a"]
        assert stream.knob in {None, *names(measured)}
        box.wait_frames("a")
        assert box.replayed().exact


def test_a_resolution_is_carried_out_and_boxes_stay_those_of_the_whole_frame(root: Path) -> None:
    with box_with_profiles(root) as box:
        box.wait_frames("a")
        keep_profile(root, profile(box.watched["a"].fps))
        box.wait_for(KnobsMeasured)
        worker = box.watched["a"].worker
        lower = next(k for k in box.watched["a"].knobs if k.height_px)
        worker.set_knobs(lower)
        box.wait_frames("a")
        shown = worker.shown()
        assert shown is not None
        assert shown.frame.image.shape[:2] == (96, 128)
        assert worker.errors == 0


def test_a_profile_of_another_machine_is_told_and_not_used(root: Path) -> None:
    with box_with_profiles(root) as box:
        box.wait_frames("a")
        keep_profile(root, profile(box.watched["a"].fps, machine="another"))
        box.wait(lambda: bool(box.told), "the profile is looked at")  # type: ignore[attr-defined]
        assert "another machine" in box.told[0]  # type: ignore[attr-defined]
        assert box.seen(KnobsMeasured) == []
        assert box.watched["a"].menu is None


def test_a_frame_that_costs_otherwise_scales_the_whole_menu_and_is_said_to_be_old(root: Path) -> None:
    rules = ReprofileRules(factor=2.0, for_s=0.0, rest_s=0.0)
    with box_with_profiles(root, reprofile=rules) as box:
        box.wait_frames("a")
        keep_profile(root, profile(box.watched["a"].fps))
        first = box.wait_for(KnobsMeasured)
        worker = box.watched["a"].worker
        menu = box.watched["a"].menu
        assert menu is not None
        box.wait(lambda: menu.knob in names(first), "a knob of the profile is in force")
        expected_s = menu.menu.expected_cost_s(menu.knob)
        worker.cost_s = lambda: 3 * expected_s  # type: ignore[method-assign]
        second = box.wait_for(KnobsMeasured, count=2)
        assert names(second) == names(first)
        for now, before in zip(second.knobs, first.knobs, strict=True):
            assert now.quality_frac == before.quality_frac
            assert now.demand_pct > 1.2 * before.demand_pct
        box.wait(lambda: bool(box.noted("profile-old")), "the box says that the profile is old")
        assert "driftbox profile a" in box.noted("profile-old")[0]
