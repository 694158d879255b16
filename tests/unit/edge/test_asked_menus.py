"""What a live camera's queries may run with, from their stored profiles, and how their metered cost corrects it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from configs.schema.queries import QueryEntry
from edge.profiler.asked import MU_MAX, Asked, beside_s, by_itself, default_menus, query_menu_of
from edge.profiler.live import Profiles, Watching
from edge.profiler.of_query import shown_nodes
from edge.profiler.profile import HEADROOM, CameraProfile, MeasuredOption, ProfilingCost
from edge.queries.base import QuerySpec
from edge.queries.registry import query_spec
from scheduler.types import KnobProfile
from scheduler.videostorm.joint import Joint
from scheduler.videostorm.reprofile import ReprofileRules

HERE = Watching(task="detection", model="fake", fps=5.0, machine="here")
EVERY = KnobProfile(name="every", demand_pct=20.0, quality_frac=1.0, fps=5.0)


def plate(**more: Any) -> QuerySpec:
    nodes = [
        {"transform": "decode", "knobs": {"fps": [0], "height_px": [0]}},
        {"transform": "read", "knobs": {"every": [1, 5, 25]}},
    ]
    return query_spec(QueryEntry.model_validate({"name": "plate", "nodes": nodes, **more}), task="detection")


def option(every: int, quality: float, device_s: float, **more: Any) -> MeasuredOption:
    setting = {"decode.fps": 0, "decode.height_px": 0, "read.every": every}
    return MeasuredOption(
        name=f"every={every}", setting=setting, quality=quality, device_s=device_s, cpu_s=0.0, fps=5.0, **more
    )


def profile(*options: MeasuredOption, **more: Any) -> CameraProfile:
    fields: dict[str, Any] = {
        "camera": "gate/plate", "task": "detection", "model": "fake", "golden": "its golden setting", "source": "test", "clip_s": 10.0,
        "frames": 50, "fps": 5.0, "watched_fps": 5.0, "machine": "here", "cost": ProfilingCost(search_s=1.0, settings=3, of_settings=3),
    } | more  # fmt: skip
    return CameraProfile(options=options, **fields)


THREE = (option(1, 0.8, 0.4), option(5, 0.72, 0.1), option(25, 0.4, 0.02))


def test_the_front_best_first_relative_to_the_best() -> None:
    menu = query_menu_of(profile(*THREE, option(25, 0.3, 0.3)), plate(quality_weight=2.0))
    assert menu is not None
    assert [(o.setting["read.every"], o.quality, o.demand_pct) for o in menu.options] == [
        (1, 1.0, pytest.approx(40 * HEADROOM)), (5, 0.9, pytest.approx(10 * HEADROOM)), (25, 0.5, pytest.approx(2 * HEADROOM)),
    ]  # fmt: skip
    assert menu.weight == 2.0


def test_what_the_query_may_not_be_any_more_is_left_out() -> None:
    narrowed = [{"transform": "decode"}, {"transform": "read", "knobs": {"every": [5, 25]}}]
    menu = query_menu_of(profile(*THREE), plate(nodes=narrowed))
    assert menu is not None
    assert [(o.setting["read.every"], o.quality) for o in menu.options] == [(5, 1.0), (25, pytest.approx(0.5556))]
    assert query_menu_of(profile(option(7, 0.8, 0.1)), plate()) is None
    assert query_menu_of(profile(option(1, 0.0, 0.1)), plate()) is None


def test_the_cameras_own_work_is_not_the_querys() -> None:
    """0.5 s of models, of which 0.3 are the camera's own detector; 0.2 s of cores, of which 0.15 decode."""
    one = option(1, 0.8, 0.5, shown_s=0.3).model_copy(update={"cpu_s": 0.2, "decode_s": 0.15})
    assert beside_s(one, "cpu") == pytest.approx(0.25)
    assert beside_s(one, "cuda") == pytest.approx(0.2), "its thread is not on the GPU"
    assert beside_s(option(1, 0.8, 0.1, shown_s=0.3), "cpu") == 0.0


def test_which_nodes_a_live_box_answers_from_what_is_shown() -> None:
    def spec(*nodes: dict[str, Any]) -> QuerySpec:
        return query_spec(QueryEntry.model_validate({"name": "q", "nodes": list(nodes)}), task="detection")

    cascade = spec({"transform": "decode"}, {"transform": "detect"}, {"transform": "classify"})
    assert shown_nodes(cascade, cascade.golden_setting()) == ("detect",), "crops of detections go to a model of their own"
    own = spec({"transform": "decode"}, {"transform": "detect", "knobs": {"model": ["yolov8s"]}})
    assert shown_nodes(own, own.golden_setting()) == ()


# --- stored profiles --------------------------------------------------------------------------------------------------


class Shelf:
    def __init__(self, **texts: str) -> None:
        self.found = {name: (1, text) for name, text in texts.items()}

    def profile(self, camera: str) -> tuple[int, str] | None:
        return self.found.get(camera.replace("/", "_"))


def profiles_in(shelf: Shelf) -> tuple[Profiles, list[str]]:
    told: list[str] = []
    return Profiles(shelf, lambda camera: HERE, lambda camera, text: told.append(f"{camera}: {text}")), told


def test_a_query_profile_is_taken_up_once_and_again_when_it_is_renewed() -> None:
    shelf = Shelf(gate_plate=profile(*THREE).model_dump_json())
    profiles, told = profiles_in(shelf)
    found = profiles.asked("gate", {"plate": plate()})
    assert found is not None
    assert list(found.menus) == ["plate"]
    assert profiles.asked("gate", {"plate": plate()}, known=found) is None
    shelf.found["gate_plate"] = (2, profile(*THREE[:2]).model_dump_json())
    renewed = profiles.asked("gate", {"plate": plate()}, known=found)
    assert renewed is not None
    assert len(renewed.menus["plate"].options) == 2
    assert told == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "damaged"),
        (profile(*THREE, machine="elsewhere").model_dump_json(), "another machine"),
        (profile(*THREE, task="classification").model_dump_json(), "task"),
        (profile(option(7, 0.8, 0.1)).model_dump_json(), "none of its settings"),
    ],
)
def test_a_profile_that_does_not_fit_is_told_once_and_the_query_keeps_its_settings(text: str, why: str) -> None:
    profiles, told = profiles_in(Shelf(gate_plate=text))
    for _ in range(3):
        found = profiles.asked("gate", {"plate": plate()})
        assert found is not None
        assert not found.menus
        assert found.joined((EVERY,), 5.0)[0].knobs == EVERY
    assert len(told) == 1
    assert why in told[0]
    assert told[0].startswith("gate: ")


def test_without_profiles_nothing_is_offered_and_nothing_told() -> None:
    profiles, told = profiles_in(Shelf())
    found = profiles.asked("gate", {"plate": plate()})
    assert found is not None
    assert (dict(found.versions), dict(found.menus), found.planned()) == ({}, {}, frozenset())
    assert found.joined((EVERY,), 5.0)[0].knobs == EVERY
    assert told == []


# --- which are to be profiled -----------------------------------------------------------------------------------------

RULES = ReprofileRules(factor=2.0, for_s=60.0, rest_s=1000.0)


def due(found: Asked | None, at_s: float, *, drifted: bool = False, missing: bool = True) -> dict[str, str]:
    assert found is not None
    return found.due(RULES, at_s=at_s, drifted=drifted, missing=missing)


@pytest.mark.parametrize(
    ("nodes", "on_samples", "on_a_recording"),
    [
        ([{"transform": "decode"}, {"transform": "read"}], True, True),
        ([{"transform": "decode"}, {"transform": "detect"}, {"transform": "count"}], True, True),
        ([{"transform": "decode"}, {"transform": "motion"}, {"transform": "classify"}], True, True),
        ([{"transform": "decode"}, {"transform": "detect"}, {"transform": "track"}, {"transform": "dwell"}], False, True),
        ([{"transform": "decode", "knobs": {"fps": [0], "height_px": [0]}}, {"transform": "count"}], False, False),
    ],
    ids=["texts", "counts", "what moves", "tracks", "no knob to turn"],
)  # fmt: skip
def test_what_a_box_can_profile_by_itself(nodes: list[dict[str, Any]], on_samples: bool, on_a_recording: bool) -> None:
    """Tracks of pictures that are seconds apart say nothing of a tracker."""
    spec = query_spec(QueryEntry.model_validate({"name": "q", "nodes": nodes}), task="detection")
    assert (by_itself(spec, every_frame=False), by_itself(spec, every_frame=True)) == (on_samples, on_a_recording)


def test_a_query_without_a_profile_is_due_after_a_while_where_the_box_makes_them() -> None:
    profiles, _ = profiles_in(Shelf())
    found = profiles.asked("gate", {"plate": plate()}, at_s=10.0)
    assert [due(found, t, missing=False) for t in (10.0, 100.0, 200.0)] == [{}, {}, {}]
    assert [due(found, t) for t in (300.0, 350.0, 361.0)] == [{}, {}, {"plate": "there is none yet"}]
    assert due(found, 700.0) == {}, "it is on its way, or could not be made"
    assert due(found, 1362.0) == {"plate": "there is none yet"}
    tracks = plate(nodes=[{"transform": "decode"}, {"transform": "detect"}, {"transform": "track"}])
    found = profiles.asked("gate", {"plate": tracks})
    assert [due(found, t) for t in (0.0, 500.0)] == [{}, {}], "there is nothing to profile it on"


def test_one_that_is_made_and_taken_up_is_new_and_one_that_fits_nothing_is_not_made_again_at_once() -> None:
    shelf = Shelf()
    profiles, told = profiles_in(shelf)
    specs = {"plate": plate(), "other": replace(plate(), name="other")}
    found = profiles.asked("gate", specs, at_s=0.0)
    assert due(found, 0.0) == {}
    assert set(due(found, 60.0)) == {"plate", "other"}
    shelf.found["gate_plate"] = (1, profile(option(7, 0.8, 0.1)).model_dump_json())
    after = profiles.asked("gate", specs, known=found, at_s=90.0)
    assert after is not None
    assert not after.menus
    assert len(told) == 1
    assert due(after, 1000.0) == {}
    assert due(after, 1060.0) == {"other": "there is none yet"}, "its own age goes on"
    assert due(after, 1090.0) == {"plate": "there is none yet"}


def test_a_profile_is_old_when_the_scene_drifts_or_all_queries_cost_something_else() -> None:
    shelf = Shelf(gate_plate=profile(*THREE).model_dump_json())
    profiles, _ = profiles_in(shelf)
    found = profiles.asked("gate", {"plate": plate()}, at_s=0.0)
    assert found is not None
    assert due(found, 1000.0, drifted=True, missing=False) == {"plate": "the scene has drifted since"}
    found.mu = 3.0
    assert due(found, 2000.0) == {}
    assert due(found, 2060.0) == {"plate": "a frame has needed 3 times what was profiled for 60 s"}
    both = profiles.asked("gate", {"plate": plate(), "other": replace(plate(), name="other")}, at_s=0.0)
    assert both is not None
    both.mu = 3.0
    assert {query for t in (1000.0, 1060.0) for query in due(both, t)} == {"other"}, "it may be what the other one costs"


# --- before there is a profile ----------------------------------------------------------------------------------------


def reading(name: str, *, every: tuple[int, ...] = (1, 5, 25), fps: tuple[int, ...] = (0,), **more: Any) -> QuerySpec:
    nodes = [{"transform": "decode", "knobs": {"fps": list(fps)}}, {"transform": "read", "knobs": {"every": list(every)}}]
    return query_spec(QueryEntry.model_validate({"name": name, "nodes": nodes, **more}), task="detection")


def offered(spec: QuerySpec) -> list[tuple[object, ...]]:
    """(fps, every, part of the work, quality, frames per second that it takes) of each option, best first."""
    menu = default_menus([spec], 5.0)[spec.name].menu
    return [
        (o.setting["decode.fps"], o.setting["read.every"], pytest.approx(o.demand_pct), pytest.approx(o.quality), o.fps)
        for o in menu.options
    ]


def test_how_often_a_query_reads_is_offered_from_what_its_knobs_may_be() -> None:
    assert offered(reading("plate")) == [(0, 1, 1.0, 1.0, 5.0), (0, 5, 0.2, 0.51, 5.0), (0, 25, 0.04, 0.1056, 5.0)]
    assert offered(reading("plate", every=(1, 2), fps=(0, 5, 2))) == [
        (0, 1, 1.0, 1.0, 5.0), (0, 2, 0.5, 0.78, 5.0), (2, 1, 0.4, 0.71, 2.0), (2, 2, 0.2, 0.51, 2.0),
    ]  # fmt: skip


def test_it_is_the_best_that_the_knobs_may_be_that_counts_as_whole() -> None:
    spec = reading("plate", every=(5, 1, 25), quality_weight=3.0)
    found = default_menus([spec], 5.0)["plate"]
    assert found.usual == {"decode.fps": 0, "read.every": 5}
    assert (found.menu.options[0].setting["read.every"], found.menu.options[0].quality, found.menu.weight) == (1, 1.0, 3.0)


@pytest.mark.parametrize(
    "nodes",
    [
        [{"transform": "decode"}, {"transform": "detect"}, {"transform": "count"}],
        [{"transform": "decode"}, {"transform": "detect"}, {"transform": "track"}, {"transform": "dwell"}],
        [{"transform": "decode", "knobs": {"fps": [2]}}, {"transform": "read", "knobs": {"every": [5]}}],
        [
            {"id": "front", "transform": "decode"}, {"id": "one", "transform": "read", "inputs": ["front"]},
            {"id": "other", "transform": "read", "inputs": ["front"]},
        ],
    ],
    ids=["nothing to save", "a tracker", "no knob to turn", "two that cost"],
)  # fmt: skip
def test_others_keep_their_settings(nodes: list[dict[str, Any]]) -> None:
    spec = query_spec(QueryEntry.model_validate({"name": "q", "nodes": nodes}), task="detection")
    assert default_menus([spec], 5.0) == {}


def test_a_default_menu_is_offered_once_it_is_known_what_it_needs() -> None:
    """0.1 s a frame for both together, at 5 frames/s. The query of less weight is the first to be asked less often."""
    profiles, _ = profiles_in(Shelf())
    found = profiles.asked("gate", {"a": reading("a", quality_weight=0.5), "b": reading("b", every=(1, 5))})
    assert found is not None
    [running] = found.joined((EVERY,), 5.0)
    assert (running.settings, found.planned()) == ({}, frozenset())
    assert found.measured(0.1, running=running, fps=5.0)
    assert found.planned() == {"a", "b"}
    whole = 50 * HEADROOM
    by_name = {joint.knobs.name: joint for joint in found.joined((EVERY,), 5.0)}
    assert by_name["every"].knobs.demand_pct == pytest.approx(20 + whole)
    assert by_name["every a:2"].knobs.demand_pct == pytest.approx(20 + whole * (0.5 + 0.1))
    assert by_name["every a:2"].settings["a"] == {"decode.fps": 0, "read.every": 5}
    # Both at every fifth frame need a fifth, and nothing has changed; twice that is twice as much for all of them.
    slow = by_name["every a:2,b:2"]
    assert not found.measured(0.02, running=slow, fps=5.0)
    assert found.measured(0.04, running=slow, fps=5.0)
    assert found.joined((EVERY,), 5.0)[0].knobs.demand_pct == pytest.approx(20 + 2 * whole)


def test_what_a_default_menu_needs_is_the_same_whatever_the_cameras_rate() -> None:
    profiles, _ = profiles_in(Shelf())
    specs = {"plate": reading("plate", fps=(0, 1))}
    found = profiles.asked("gate", specs)
    half = replace(EVERY, name="1/2", demand_pct=10.0, quality_frac=0.8, fps=2.5)
    assert found is not None
    assert found.measured(0.1, running=found.joined((half,), 5.0)[0], fps=5.0)
    assert found.flat_pct == pytest.approx(50 * HEADROOM), "at the full rate"
    slow = next(j for j in found.joined((EVERY, half), 5.0) if j.base is half and j.settings["plate"]["decode.fps"] == 1)
    each_s = 0.1 / 2.5 / slow_stride(slow)
    assert not found.measured(each_s, running=slow, fps=5.0), "of 2.5 frames per second it takes one, and not all are read"


def slow_stride(joint: Joint) -> int:
    return int(joint.settings["plate"]["read.every"])


def test_with_the_first_profile_of_a_camera_the_other_queries_run_as_they_began() -> None:
    shelf = Shelf(gate_plate=profile(*THREE).model_dump_json())
    profiles, _ = profiles_in(shelf)
    found = profiles.asked("gate", {"plate": plate(), "badge": reading("badge")})
    assert found is not None
    assert found.planned() == {"plate"}
    assert found.usual() == {"badge": {"decode.fps": 0, "read.every": 1}}
    assert {query for joint in found.joined((EVERY,), 5.0) for query in joint.settings} == {"plate"}


# --- metered cost -----------------------------------------------------------------------------------------------------


def asked() -> Asked:
    menu = query_menu_of(profile(*THREE), plate())
    assert menu is not None
    return Asked(menus={"plate": menu})


def test_a_frame_that_costs_twice_doubles_what_all_settings_need() -> None:
    one = asked()
    best, coarse, _ = one.joined((EVERY,), 5.0)
    assert best.knobs.demand_pct == pytest.approx(20 + 40 * HEADROOM)
    assert not one.measured(0.08, running=best, fps=5.0), "as profiled: 0.4 s per second are 0.08 s a frame"
    assert one.measured(0.16, running=best, fps=5.0)
    assert one.mu == pytest.approx(2.0)
    assert not one.measured(0.16, running=best, fps=5.0), "it is known now"
    assert one.joined((EVERY,), 5.0)[1].knobs.demand_pct == pytest.approx(20 + 20 * HEADROOM, abs=0.01)
    assert one.measured(0.02, running=coarse, fps=5.0), "and back, whatever runs"
    assert one.mu == pytest.approx(1.0)


def test_one_frame_that_took_a_minute_is_no_law() -> None:
    one = asked()
    best = one.joined((EVERY,), 5.0)[0]
    assert one.measured(60.0, running=best, fps=5.0)
    assert one.mu == MU_MAX


def test_unprofiled_queries_are_demand_too() -> None:
    one = Asked()
    running = one.joined((EVERY,), 5.0)[0]
    assert one.measured(0.01, running=running, fps=5.0)
    half = replace(EVERY, name="1/2", demand_pct=10.0, quality_frac=0.8, fps=2.5)
    offered = one.joined((EVERY, half), 5.0)
    assert [joint.knobs.name for joint in offered] == ["every", "1/2"]
    assert [joint.knobs.demand_pct for joint in offered] == [
        pytest.approx(20 + 5 * HEADROOM),
        pytest.approx(10 + 2.5 * HEADROOM),
    ]
    assert not any(joint.settings for joint in offered)
    assert not one.measured(0.0101, running=running, fps=5.0)


def test_a_camera_that_rests_measures_nothing() -> None:
    assert not asked().measured(1.0, running=None, fps=5.0)
