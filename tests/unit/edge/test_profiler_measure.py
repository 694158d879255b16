"""What a setting is worth: held answers, golden labels, told values, nonsense; profiles, menus, the store."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobError, StorageError
from edge.profiler.chain import CROPS, Space, heights_for
from edge.profiler.graph import Ran
from edge.profiler.live import LiveMenu, Profiles, Watching
from edge.profiler.measure import GoldenJudge, LabelJudge, held, told_quality
from edge.profiler.profile import (
    HEADROOM,
    CameraProfile,
    MeasuredOption,
    ProfilingCost,
    knob_name,
    live_options,
    menu_of,
    pareto,
    read_profile,
    refusal,
)
from edge.queries.base import Scene, scene_of
from edge.runtime import DEMAND_HEADROOM
from edge.store.store import Store
from models.tasks.base import Scoring
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from scheduler.types import Detections, Frame
from scheduler.videostorm.types import Option, Query, Utility

IMAGE = np.zeros((8, 8, 3), np.uint8)


def boxes(*lefts: float) -> Detections:
    """One box of 10 x 10 px per left edge."""
    xyxy = np.array([[x, 0, x + 10, 10] for x in lefts], np.float32).reshape(-1, 4)
    return Detections(xyxy=xyxy, score=np.full(len(lefts), 0.9, np.float32), class_id=np.zeros(len(lefts), np.int64))


def scene(number: int, found: Detections | None = None, **told: Any) -> Scene:
    frame = Frame(stream="a", seq=number, captured_s=float(number), captured_utc=0.0, image=IMAGE)
    return scene_of(frame).with_(detections=found, told=told)


def ran(*scenes: Scene | None, sink: str = "answer") -> Ran:
    return Ran(setting={}, sinks={sink: scenes}, costs={}, work={})


def judge(*labels: Detections) -> LabelJudge:
    return LabelJudge(sink="answer", task=DETECTION, labels=labels, scoring=Scoring())


# --- quality ----------------------------------------------------------------------------------------------------------


def test_a_skipped_frame_is_answered_by_the_last_analysed_one() -> None:
    assert [(None if s is None else s.frame.seq, age) for s, age in held([None, scene(1), None, None, scene(4)])] == [
        (None, 0), (1, 0), (1, 1), (1, 2), (4, 0)
    ]  # fmt: skip


def test_quality_is_f1_over_all_frames_of_the_full_rate() -> None:
    moving = [boxes(0.0), boxes(5.0), boxes(30.0), boxes(30.0)]
    full = judge(*moving)(ran(*(scene(i, found) for i, found in enumerate(moving))))
    half = judge(*moving)(ran(scene(0, moving[0]), None, scene(2, moving[2]), None))
    quarter = judge(*moving)(ran(scene(0, moving[0]), None, None, None))
    assert full == 1.0
    assert half == 1.0  # 5 px of 10 away: IoU 1/3
    assert quarter == pytest.approx(2 * 2 / (2 * 2 + 2 + 2))


def test_nothing_is_seen_before_the_first_answer() -> None:
    assert judge(boxes(0.0), boxes(0.0))(ran(None, scene(1, boxes(0.0)))) == pytest.approx(2 / 3)


def test_a_clip_with_nothing_in_it_is_right_when_nothing_is_found() -> None:
    nothing = Detections.empty()
    assert judge(nothing, nothing)(ran(scene(0, nothing), None)) == 1.0
    assert judge(nothing, nothing)(ran(scene(0, boxes(0.0)), None)) == 0.0


def test_a_clip_of_one_frame() -> None:
    assert judge(boxes(0.0))(ran(scene(0, boxes(0.0)))) == 1.0


def test_boxes_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(JobError, match="none"):
        judge(boxes(0.0))(ran(scene(0, boxes(math.nan))))


def test_old_answers_about_regions_are_carried_to_where_things_are_now() -> None:
    labels = [boxes(0.0), boxes(4.0)]
    judged = LabelJudge(sink="answer", task=CLASSIFICATION, labels=labels, scoring=Scoring())
    assert judged(ran(scene(0, boxes(0.0)), None)) == 1.0


def test_labels_and_frames_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="labels"):
        judge(boxes(0.0))(ran(scene(0), scene(1)))


def test_what_is_told_is_compared_value_by_value() -> None:
    assert told_quality({"in": 4, "zones": {"a": 2}}, {"in": 4, "zones": {"a": 2}}) == 1.0
    assert told_quality({"in": 2, "zones": {"a": 2}}, {"in": 4, "zones": {"a": 2}}) == pytest.approx(0.75)
    assert told_quality({}, {"in": 4}) == 0.0
    assert told_quality({"text": "AB"}, {"text": "AC"}) == 0.0
    assert told_quality({}, {}) == 1.0
    assert told_quality({"dwell_s": 10.2}, {"dwell_s": 10.0}) == 1.0  # as good as the same


def test_a_query_is_judged_against_its_golden_setting() -> None:
    golden = ran(scene(0, boxes(0.0), n=1), scene(1, boxes(0.0, 50.0), n=2))
    told = GoldenJudge(golden=golden, task=DETECTION, scoring=Scoring())
    assert told(golden) == 1.0
    assert told(ran(scene(0, boxes(0.0), n=1), None)) == pytest.approx(0.75)
    silent = ran(scene(0, boxes(0.0)), scene(1, boxes(0.0, 50.0)))
    assert GoldenJudge(golden=silent, task=DETECTION, scoring=Scoring())(ran(scene(0, boxes(0.0)), None)) == pytest.approx(0.8)
    with pytest.raises(JobError):
        told(ran(scene(0, boxes(0.0), n=math.nan), None))


# --- the camera's own query -------------------------------------------------------------------------------------------


def test_heights_are_those_at_which_the_network_has_less_to_do() -> None:
    assert heights_for(360, 640, 320) == (0, 136, 90)
    assert heights_for(1080, 1920, 640) == (0, 270, 180)
    assert heights_for(240, 320, 320) == (0, 180, 120)


def test_a_picture_that_is_small_already_has_no_heights() -> None:
    assert heights_for(120, 160, 320) == (0,)


def test_the_golden_setting_is_the_full_one() -> None:
    spec = Space(heights_px=(0, 136), models=("m", "n")).spec("a")
    assert spec.golden_setting() == {
        "rate.stride": 1, "answer.height_px": 0, "answer.model": "m", "answer.form": "trained"
    }  # fmt: skip
    assert "answer.crops" in Space(crops=(0, 4)).spec("a").knobs


# --- profiles and menus -----------------------------------------------------------------------------------------------


def option(
    stride: int, quality: float, *, height_px: int = 0, model: str = "m", device_s: float | None = None
) -> MeasuredOption:
    return MeasuredOption(
        name=f"stride={stride} height_px={height_px} model={model}", quality=quality, fps=5.0 / stride, height_px=height_px,
        setting={"rate.stride": stride, "answer.height_px": height_px, "answer.model": model, "answer.form": "trained"},
        device_s=0.1 / stride if device_s is None else device_s, cpu_s=0.02, decode_s=0.01, memory_mib=12.0,
    )  # fmt: skip


def profile(*options: MeasuredOption, **changes: Any) -> CameraProfile:
    given: dict[str, Any] = {
        "camera": "gate", "task": "detection", "model": "m", "golden": "g", "source": "a.mp4", "clip_s": 10.0, "frames": 50,
        "fps": 5.0, "watched_fps": 5.0, "machine": "here", "options": options,
        "cost": ProfilingCost(search_s=1.0, settings=2, of_settings=18),
        "serving": {"answer.model": "m", "answer.form": "trained"},
    }  # fmt: skip
    return CameraProfile(**(given | changes))


GOOD = profile(option(1, 0.8), option(2, 0.7), option(1, 0.6, height_px=136, device_s=0.06), option(1, 0.9, model="other"))


def test_a_menu_holds_what_a_live_box_can_turn() -> None:
    menu = menu_of(GOOD)
    assert menu is not None
    assert [(k.name, k.quality_frac, k.fps, k.height_px, k.memory_mib) for k in menu.knobs] == [
        ("every", 1.0, 5.0, 0, 12.0), ("1/2", 0.875, 2.5, 0, 12.0)
    ]  # the lower picture costs more than the lower rate and is worse  # fmt: skip
    assert menu.knobs[0].demand_pct == pytest.approx(100 * 1.15 * 0.1)


def cropped(crops: int, quality: float, device_s: float, *, stride: int = 1) -> MeasuredOption:
    """What is measured of a camera that classifies what moves: at most so many regions of a frame, 0 all."""
    whole = option(stride, quality, device_s=device_s)
    return whole.model_copy(update={"name": f"{whole.name} crops={crops}", "setting": {**whole.setting, CROPS: crops}})


CROPPED = profile(
    *(cropped(crops, q / stride**0.5, d / stride, stride=stride)
      for stride in (1, 2) for crops, q, d in ((0, 0.9, 0.3), (8, 0.8, 0.2), (4, 0.6, 0.1))),
    task="classification",
)  # fmt: skip


@pytest.mark.parametrize("serving", [CROPPED.serving, CROPPED.serving | {CROPS: 0}])
def test_a_live_box_is_not_offered_the_crops_that_it_cannot_turn(serving: dict[str, Any]) -> None:
    """Also out of profiles that were stored without a word on crops."""
    menu = menu_of(CROPPED.model_copy(update={"serving": serving}))
    assert menu is not None
    assert [(k.name, k.demand_pct) for k in menu.knobs] == [
        ("every", pytest.approx(100 * 1.15 * 0.3)), ("1/2", pytest.approx(100 * 1.15 * 0.15))
    ]  # fmt: skip
    options = tuple(Option(name=k.name, demand_pct=k.demand_pct, quality=k.quality_frac) for k in menu.knobs)
    assert len(Query(id="gate", options=options, utility=Utility()).options) == 2  # two of one name would be refused


def test_a_profile_of_fewer_crops_alone_gives_no_menu() -> None:
    assert menu_of(profile(cropped(8, 0.8, 0.2), cropped(4, 0.6, 0.1))) is None


def test_of_several_settings_with_one_name_the_best_counts_at_the_least_it_needs() -> None:
    """All of these are `every`, whatever knobs nobody has said to be served otherwise."""
    points = ((0.7, 0.05), (0.9, 0.3), (0.9, 0.2), (0.8, 0.1))
    found = profile(*(option(1, q, device_s=d, model=f"m{i}") for i, (q, d) in enumerate(points)), serving={})
    menu = menu_of(found)
    assert menu is not None
    assert [(k.name, k.quality_frac, k.demand_pct) for k in menu.knobs] == [("every", 1.0, pytest.approx(100 * 1.15 * 0.2))]
    assert live_options(found)["every"].setting["answer.model"] == "m2"


def test_headroom_is_that_of_default_profiles() -> None:
    assert HEADROOM == DEMAND_HEADROOM


def test_a_menu_keeps_its_shape_when_frames_cost_otherwise() -> None:
    menu = menu_of(GOOD)
    assert menu is not None
    live = LiveMenu(version=1, menu=menu, knob="1/2")
    assert live.expected_cost_s() == pytest.approx(0.02)
    twice = live.corrected(0.04)
    assert live.mu == pytest.approx(2.0)
    assert live.expected_cost_s() == pytest.approx(0.04)
    for knob, before in zip(twice, menu.knobs, strict=True):
        assert knob.demand_pct == pytest.approx(2 * before.demand_pct)
        assert (knob.name, knob.quality_frac, knob.fps, knob.height_px) == (
            before.name, before.quality_frac, before.fps, before.height_px
        )  # fmt: skip
    with pytest.raises(ValueError, match="mu"):
        menu.at(0.0)


def test_a_frame_at_a_lower_height_is_compared_with_its_own_cost() -> None:
    menu = menu_of(profile(option(1, 0.8), option(1, 0.7, height_px=136, device_s=0.05)))
    assert menu is not None
    live = LiveMenu(version=1, menu=menu, knob="every@136p")
    live.corrected(0.01)  # 5 frames/s of 10 ms: as profiled
    assert live.mu == pytest.approx(1.0)


@pytest.mark.parametrize("options", [(), (option(1, 0.0),), (option(1, 0.9, model="other"),), (option(1, 0.9, device_s=0.0),)])
def test_a_profile_without_anything_usable_gives_no_menu(options: tuple[MeasuredOption, ...]) -> None:
    assert menu_of(profile(*options)) is None


@given(st.lists(st.tuples(st.sampled_from((1, 2, 3, 4, 6, 8)), st.floats(0, 1), st.floats(0.001, 1)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_menu_is_a_front_and_its_best_is_whole(points: list[tuple[int, float, float]]) -> None:
    menu = menu_of(profile(*(option(s, q, device_s=d, height_px=i) for i, (s, q, d) in enumerate(points))))
    if menu is None:
        assert all(round(q, 12) == 0 for _, q, _ in points)
        return
    assert menu.knobs[0].quality_frac == 1.0
    demands = [k.demand_pct for k in menu.knobs]
    assert demands == sorted(demands, reverse=True)
    assert all(0 <= k.quality_frac <= 1 for k in menu.knobs)
    assert len({k.name for k in menu.knobs}) == len(menu.knobs)


def test_names_are_those_of_default_profiles() -> None:
    assert [knob_name(5.0, 5.0, 0), knob_name(2.5, 5.0, 0), knob_name(5 / 3, 5.0, 136)] == ["every", "1/2", "1/3@136p"]


def test_the_front_of_a_profile_counts_decoding_too() -> None:
    assert [o.name for o in pareto(GOOD.options)] == [o.name for o in GOOD.front()]
    assert GOOD.options[0].demand == pytest.approx(0.12)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"task": "classification"}, "task"), ({"model": "n"}, "n serves"), ({"fps": 10.0}, "10"), ({"machine": "there"}, "machine"),
        ({"device": "cuda"}, "made on the cpu"),
    ],
)  # fmt: skip
def test_a_profile_of_something_else_is_refused(changed: dict[str, Any], said: str) -> None:
    fits: dict[str, Any] = {"task": "detection", "model": "m", "fps": 5.0, "machine": "here"}
    assert refusal(GOOD, **fits) == ""
    assert said in refusal(GOOD, **(fits | changed))


# --- stored -----------------------------------------------------------------------------------------------------------

HERE = Watching(task="detection", model="m", fps=5.0, machine="here")


def test_a_profile_survives_the_store_and_its_versions_rise(tmp_path: Path) -> None:
    with Store(tmp_path / "driftbox.db") as store:
        assert store.profile("gate") is None
        first = store.add_profile("gate", GOOD.model_dump_json(), 1.0)
        store.add_profile("yard", GOOD.model_dump_json(), 1.0)
        second = store.add_profile("gate", profile(option(1, 0.5)).model_dump_json(), 2.0)
        found = store.profile("gate")
    with Store(tmp_path / "driftbox.db") as store:
        assert store.profile("gate") == found
    assert found is not None
    assert found[0] == second > first
    assert read_profile(found[1], subject="gate") == profile(option(1, 0.5))


def test_old_profiles_go(tmp_path: Path) -> None:
    with Store(tmp_path / "driftbox.db") as store:
        for number in range(6):
            newest = store.add_profile("gate", str(number), float(number), keep=3)
        store.add_profile("yard", "y", 0.0, keep=3)
        assert store.profile("gate") == (newest, "5")
        assert [r["body"] for r in store.rows("SELECT body FROM profiles WHERE camera = 'gate' ORDER BY version")] == [
            "3",
            "4",
            "5",
        ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "corrupt"), ("{}", "corrupt"), (json.dumps({"schema_version": 2}), "newer"),
        (GOOD.model_dump_json().replace('"quality":0.8', '"quality":1e999'), "corrupt"),
    ],
)  # fmt: skip
def test_a_damaged_or_newer_profile_is_said_so(text: str, code: str) -> None:
    with pytest.raises(StorageError) as raised:
        read_profile(text, subject="gate")
    assert raised.value.code == code


class Shelved:
    """A store with one profile."""

    def __init__(self, body: str | None, version: int = 1) -> None:
        self.body, self.version = body, version

    def profile(self, camera: str) -> tuple[int, str] | None:
        return None if self.body is None else (self.version, self.body)


def test_the_box_takes_a_profile_up_once_and_a_newer_one_again() -> None:
    store, told = Shelved(GOOD.model_dump_json()), list[tuple[str, str]]()
    profiles = Profiles(store, lambda camera: HERE, lambda camera, text: told.append((camera, text)))
    first = profiles.menu("gate", at_s=3.0)
    assert first is not None
    assert first.version == 1
    assert profiles.newer("gate", first) is None
    store.version = 2
    second = profiles.newer("gate", first)
    assert second is not None
    assert second.version == 2
    assert told == []


def test_a_profile_that_does_not_fit_is_told_once() -> None:
    store, told = Shelved(profile(option(1, 0.5), model="other").model_dump_json()), list[str]()
    profiles = Profiles(store, lambda camera: HERE, lambda camera, text: told.append(text))
    assert profiles.menu("gate") is None
    assert profiles.menu("gate") is None
    assert profiles.newer("gate", None) is None
    assert len(told) == 1
    assert "driftbox profile gate" in told[0]


def test_a_damaged_profile_leaves_the_default_one() -> None:
    told = list[str]()
    profiles = Profiles(Shelved("{"), lambda camera: HERE, lambda camera, text: told.append(text))
    assert profiles.menu("gate") is None
    assert "damaged" in told[0]


def test_without_a_profile_nothing_is_said() -> None:
    profiles = Profiles(Shelved(None), lambda camera: HERE, lambda camera, text: pytest.fail(text))
    assert profiles.menu("gate") is None
    assert profiles.newer("gate", None) is None
