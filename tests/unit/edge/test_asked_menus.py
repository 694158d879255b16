"""What a live camera's queries may run with, from their stored profiles, and how their metered cost corrects it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from configs.schema.queries import QueryEntry
from edge.profiler.asked import MU_MAX, Asked, beside_s, query_menu_of
from edge.profiler.live import Profiles, Watching
from edge.profiler.of_query import shown_nodes
from edge.profiler.profile import HEADROOM, CameraProfile, MeasuredOption, ProfilingCost
from edge.queries.base import QuerySpec
from edge.queries.registry import query_spec
from scheduler.types import KnobProfile

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
    assert found == Asked()
    assert told == []


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
