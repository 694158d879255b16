"""Knobs and inference shares between two plans: what is divided, what stays, and that a replay finds the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import knob_loop
from scheduler.codec import decode, encode
from scheduler.commands import Command, Note, SetKnobs, SetShares
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import AskedAnew, BoxStarted, CameraAdded, CameraHealth, KnobsDue, KnobsMeasured, Load, TimerFired
from scheduler.pricing import ChangePrice
from scheduler.types import KnobProfile, RetrainConfig
from scheduler.videostorm.rules import Objective
from scheduler.videostorm.types import Utility

ENGINE = EngineConfig(
    window_s=100, first_window_s=100, prep_pct=40, retrain=(RetrainConfig(name="full", epochs=4),), knob_loop=True, policy="lookahead",
)  # fmt: skip


def menu(cost: float) -> tuple[KnobProfile, ...]:
    """cost: share that every frame takes."""
    return tuple(
        KnobProfile(name=name, demand_pct=cost * part, quality_frac=quality)
        for name, part, quality in (("every", 1.0, 1.0), ("1/2", 0.5, 0.8), ("1/4", 0.25, 0.6))
    )


def begun(
    costs: dict[str, float], qualities: dict[str, float] | None = None, config: EngineConfig = ENGINE, window: int = 0
) -> BoxEngine:
    engine = BoxEngine(config)
    for camera, cost in costs.items():
        quality = (qualities or {}).get(camera, 0.5)
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=menu(cost), version=f"{camera}-0", quality=quality))
    engine.handle(BoxStarted(at_s=0, window=window))
    return engine


def planned(engine: BoxEngine) -> None:
    """Window 0 of a new box has nothing to prepare and is planned at its end; windows go on until one is."""
    engine.handle(TimerFired(at_s=1, timer="prep-deadline"))
    assert engine.state.phase == "planned"


def shares(engine: BoxEngine) -> dict[str, float]:
    return {s.id: s.infer_pct for s in engine.state.ordered()}


def dearer(engine: BoxEngine, camera: str, cost: float, at_s: float = 5.0) -> None:
    """A crowd came before it."""
    engine.handle(KnobsMeasured(at_s=at_s, stream=camera, knobs=menu(cost)))


def due(engine: BoxEngine, at_s: float = 6.0) -> list[Command]:
    return engine.handle(KnobsDue(at_s=at_s))


def test_a_camera_whose_frames_cost_more_takes_share_where_it_is_worth_least() -> None:
    engine = begun({"a": 20.0, "b": 20.0, "c": 20.0}, {"a": 0.9, "b": 0.5, "c": 0.2})
    planned(engine)
    assert {s.knob for s in engine.state.ordered()} == {"every"}
    dearer(engine, "a", 70.0)
    commands = due(engine)
    assert engine.state.streams["a"].knob == "every"
    assert engine.state.streams["c"].knob == "1/2", "the least is lost where quality is least"
    assert [c.stream for c in commands if isinstance(c, SetKnobs)] == ["c"]
    total = sum(share for _, share in next(c for c in commands if isinstance(c, SetShares)).shares_pct)
    assert total <= 100 + 1e-9


@pytest.mark.parametrize(("objective", "knobs"), [("sum", {"a": "every", "b": None}), ("maxmin", {"a": "1/4", "b": "every"})])
def test_the_objective_says_who_goes_without_when_there_is_not_enough(
    objective: Objective, knobs: dict[str, str | None]
) -> None:
    config = replace(ENGINE, knob_rules=replace(ENGINE.knob_rules, objective=objective))
    engine = begun({"a": 20.0, "b": 20.0}, {"a": 0.9, "b": 0.1}, config)
    planned(engine)
    dearer(engine, "a", 100.0)
    dearer(engine, "b", 100.0)
    due(engine)
    assert {s.id: s.knob for s in engine.state.ordered()} == knobs
    assert (shares(engine)["b"] > shares(engine)["a"]) == (objective == "maxmin"), "the worst one is lifted, or goes without"


def test_a_journal_that_does_not_name_the_objective_was_decided_by_the_largest_sum() -> None:
    engine = BoxEngine(replace(ENGINE, knob_rules=replace(ENGINE.knob_rules, objective="maxmin")))
    line = encode(engine.checkpoint())
    assert decode(line).config == engine.config
    older = json.loads(line)
    del older["config"]["knob_rules"]
    assert decode(json.dumps(older)).config == ENGINE


def test_nothing_is_said_while_nothing_would_change() -> None:
    engine = begun({"a": 20.0, "b": 20.0})
    planned(engine)
    assert knob_loop.reallocated(engine.state, engine.config) is None
    assert due(engine) == []


def test_a_share_that_is_larger_than_needed_stays() -> None:
    engine = begun({"a": 40.0, "b": 20.0})
    planned(engine)
    dearer(engine, "a", 10.0)
    before = shares(engine)
    assert due(engine) == []
    assert shares(engine) == before


def test_what_learning_has_is_not_touched() -> None:
    engine = begun({"a": 30.0, "b": 30.0})
    planned(engine)
    engine.state.streams["a"].train_pct, engine.state.streams["a"].gating = 50.0, "a/gate/0"
    assert knob_loop.inference_pct(engine.state, engine.config) == 50.0
    dearer(engine, "b", 60.0)
    commands = due(engine)
    told = dict(next(c for c in commands if isinstance(c, SetShares)).shares_pct)
    assert told["a/gate/0"] == 50.0
    assert told["a/infer"] + told["b/infer"] <= 50.0


def test_while_a_window_is_prepared_the_even_split_stands() -> None:
    engine = begun({"a": 40.0, "b": 40.0}, window=1)
    assert engine.state.phase == "prepare"
    assert {s.knob for s in engine.state.ordered()} == {"1/2"}
    dearer(engine, "a", 90.0)
    assert due(engine) == []


def test_beside_preparation_inference_divides_no_more_than_its_own() -> None:
    engine = begun({"a": 20.0, "b": 20.0})
    planned(engine)
    engine.state.prepares, engine.state.infer_pct = True, 40.0
    dearer(engine, "a", 40.0)
    due(engine)
    assert sum(shares(engine).values()) <= 40.0


def test_without_capacity_a_camera_pauses_and_comes_back() -> None:
    engine = begun({"a": 20.0, "b": 20.0}, config=replace(ENGINE, capacity_pct=10, prep_pct=5))
    engine.handle(TimerFired(at_s=1, timer="prep-deadline"))
    dearer(engine, "a", 400.0)
    dearer(engine, "b", 400.0)
    due(engine)
    assert all(s.knob is None or s.infer_pct > 0 for s in engine.state.ordered())
    dearer(engine, "a", 4.0, at_s=7)
    dearer(engine, "b", 4.0, at_s=7)
    due(engine, at_s=8)
    assert {s.knob for s in engine.state.ordered()} == {"every"}


def test_a_camera_that_is_gone_leaves_its_share_to_the_others() -> None:
    engine = begun({"a": 80.0, "b": 80.0})
    planned(engine)
    engine.handle(CameraHealth(at_s=4, stream="a", live=False))
    due(engine)
    assert engine.state.streams["b"].knob == "every"


@pytest.mark.parametrize("policy", ["uniform(high,50)", "no-retrain", "cached(time)"])
def test_baselines_stay_as_they_were_split(policy: str) -> None:
    engine = begun({"a": 20.0, "b": 20.0}, config=replace(ENGINE, policy=policy))
    dearer(engine, "a", 90.0)
    assert not engine.config.knob_loop
    assert due(engine) == []


def test_before_the_box_has_started_nothing_is_divided() -> None:
    engine = BoxEngine(ENGINE)
    assert due(engine) == []
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=menu(20.0), version="a-0"))
    assert due(engine) == []


def test_the_event_reads_back_as_it_was_written() -> None:
    event = KnobsDue(at_s=3.5, loads=(Load(stream="a", lag_s=12.25),))
    assert decode(encode(event)) == event


def test_a_recording_that_lags_gets_share_to_catch_up() -> None:
    engine = begun({"a": 40.0, "b": 40.0})
    planned(engine)
    before = shares(engine)["a"]
    engine.handle(KnobsDue(at_s=6, loads=(Load(stream="a", lag_s=30.0),)))
    assert shares(engine)["a"] > before


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 90), st.floats(0, 1)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0.5, 300)), max_size=6),
)
def test_shares_never_exceed_the_device_and_it_comes_to_rest(
    cameras: list[tuple[float, float]], changes: list[tuple[int, float]]
) -> None:
    ids = "abcdef"[: len(cameras)]
    engine = begun(dict(zip(ids, (c for c, _ in cameras), strict=True)), dict(zip(ids, (q for _, q in cameras), strict=True)))
    planned(engine)
    for number, (camera, cost) in enumerate(changes):
        dearer(engine, ids[camera % len(ids)], cost, at_s=2.0 + number)
        for again in range(len(ids) + 1):  # hysteresis: a change too small to be made may pay once another was made
            due(engine, at_s=2.5 + number + again / 100)
        assert sum(s.infer_pct + s.train_pct for s in engine.state.streams.values()) <= 100 + 1e-6
        assert knob_loop.reallocated(engine.state, engine.config) is None


def test_what_is_seen_changes_with_what_a_plan_rests_on() -> None:
    engine = begun({"a": 20.0, "b": 20.0})
    planned(engine)
    found = [knob_loop.seen(engine.state)]
    dearer(engine, "a", 70.0)
    found.append(knob_loop.seen(engine.state))
    due(engine)
    assert knob_loop.seen(engine.state) == found[-1], "its own answer is no news"
    engine.handle(CameraHealth(at_s=7, stream="b", live=False))
    found.append(knob_loop.seen(engine.state))
    found.append(knob_loop.seen(engine.state, [Load(stream="a", lag_s=4)]))
    assert len(set(found)) == len(found)


def test_where_a_new_share_means_a_new_process_shares_change_with_the_plan_only() -> None:
    engine = begun({"a": 20.0, "b": 20.0}, config=replace(ENGINE, change=ChangePrice(settle_s=4.0, gpu_s=2.0)))
    planned(engine)
    dearer(engine, "a", 120.0)
    assert due(engine) == []


# --- what queries want ------------------------------------------------------------------------------------------------


def with_goals(goals: dict[str, Utility], costs: float, quality: float = 0.6, config: EngineConfig = ENGINE) -> BoxEngine:
    engine = BoxEngine(config)
    for camera, utility in goals.items():
        engine.handle(
            CameraAdded(
                at_s=0, stream=camera, knobs=menu(costs), version=f"{camera}-0", quality=quality, utility=utility
            )  # fmt: skip
        )
    engine.handle(BoxStarted(at_s=0, window=0))
    planned(engine)
    return engine


def test_several_queries_of_a_camera_want_the_strictest_and_weigh_together() -> None:
    both = knob_loop.together(
        [Utility(quality_goal=0.4, lag_goal_s=5, quality_weight=2), Utility(quality_goal=0.7, lag_goal_s=9, quality_penalty=3)]
    )
    assert both == Utility(quality_goal=0.7, lag_goal_s=5, quality_weight=3, lag_weight_per_s=2, quality_penalty=3)
    assert knob_loop.together([]) is None


def test_a_camera_whose_queries_weigh_more_keeps_its_frames_when_room_gets_scarce() -> None:
    engine = with_goals({"a": Utility(quality_weight=1), "b": Utility(quality_weight=5)}, 40.0)
    dearer(engine, "a", 70.0, at_s=5)
    dearer(engine, "b", 70.0, at_s=5)
    due(engine)
    assert engine.state.streams["b"].knob == "every"
    assert engine.state.streams["a"].knob == "1/2", "six of seven of every second frame are more than every fourth"


def test_a_goal_that_cannot_be_met_is_said_once_and_so_is_its_return() -> None:
    goal = Utility(quality_goal=0.55, quality_penalty=2)
    engine = with_goals({"a": goal, "b": Utility()}, 40.0)
    assert not engine.state.streams["a"].unmet
    dearer(engine, "a", 300.0, at_s=5)
    dearer(engine, "b", 300.0, at_s=5)
    told = [c for c in [*due(engine), *due(engine, 7)] if isinstance(c, Note)]
    assert [(note.stream, note.code) for note in told] == [("a", "goal")]
    assert "0.55" in told[0].text
    dearer(engine, "a", 10.0, at_s=8)
    dearer(engine, "b", 10.0, at_s=8)
    told = [c for c in due(engine, 9) if isinstance(c, Note)]
    assert ["meets" in note.text for note in told] == [True]


@pytest.mark.parametrize(("quality", "said"), [(0.3, ["a"]), (0.6, []), (None, [])])
def test_a_plan_says_that_a_goal_cannot_be_met_also_where_knobs_stay_between_plans(
    quality: float | None, said: list[str]
) -> None:
    engine = BoxEngine(replace(ENGINE, knob_loop=False))
    for camera, goal in (("a", 0.55), ("b", 0.0)):
        utility = Utility(quality_goal=goal)
        engine.handle(
            CameraAdded(at_s=0, stream=camera, knobs=menu(20.0), version=f"{camera}-0", quality=quality, utility=utility)
        )
    told = [*engine.handle(BoxStarted(at_s=0, window=0)), *engine.handle(TimerFired(at_s=1, timer="prep-deadline"))]
    assert engine.state.phase == "planned"
    assert [note.stream for note in told if isinstance(note, Note) and note.code == "goal"] == said


def test_a_camera_that_goes_dark_is_not_said_to_meet_its_goal() -> None:
    goal = Utility(quality_goal=0.55, quality_penalty=2)
    engine = with_goals({"a": goal, "b": Utility()}, 40.0, config=replace(ENGINE, say_lag=True))
    dearer(engine, "a", 300.0, at_s=5)
    dearer(engine, "b", 300.0, at_s=5)
    assert [c.stream for c in due(engine) if isinstance(c, Note)] == ["a"]
    dark = [*engine.handle(CameraHealth(at_s=7, stream="a", live=False)), *due(engine, 8)]
    back = [*engine.handle(CameraHealth(at_s=9, stream="a", live=True)), *due(engine, 10)]
    assert not [c for c in [*dark, *back] if isinstance(c, Note)], "nothing has changed"
    assert engine.state.streams["a"].unmet


def test_what_a_camera_is_worth_survives_the_journal() -> None:
    added = CameraAdded(at_s=0, stream="a", knobs=menu(3.0), version="a-0", utility=Utility(quality_goal=0.5, lag_goal_s=2))
    assert decode(encode(added)) == added


# --- recordings that are late -----------------------------------------------------------------------------------------

SAYS_LAG = replace(ENGINE, say_lag=True)
PATIENT = Utility(lag_goal_s=10)


def told(engine: BoxEngine, lag_s: float, at_s: float) -> list[str]:
    """What is said when so much of the recording waits; the box tells nothing while nothing is due."""
    loads = (Load(stream="a", lag_s=lag_s),) if lag_s else ()
    if not knob_loop.due(engine.state, engine.config, loads):
        return []
    notes = [c for c in engine.handle(KnobsDue(at_s=at_s, loads=loads)) if isinstance(c, Note)]
    assert {(note.stream, note.code) for note in notes} <= {("a", "goal")}
    return [note.text for note in notes]


def test_a_lag_goal_that_is_missed_is_said_once_and_taken_back_when_it_is_met_with_some_room() -> None:
    engine = with_goals({"a": PATIENT, "b": Utility()}, 40.0, config=SAYS_LAG)
    lags_s = [4, 10, 11, 300, 11, 10, 9, 8, 9, 10, 0, 11]
    said = {number: text for number, lag_s in enumerate(lags_s) for text in told(engine, lag_s, 6.0 + number)}
    assert said == {
        2: "its recording is 11 s behind, above the lag goal 10 s of its queries",
        7: "its recording is 8 s behind and meets the lag goal 10 s of its queries again",
        11: "its recording is 11 s behind, above the lag goal 10 s of its queries",
    }


@pytest.mark.parametrize("change", [{"knob_loop": False}, {"policy": "no-retrain"}, {"capacity_pct": 10, "prep_pct": 5}])
def test_a_lag_goal_that_is_missed_is_said_also_where_nothing_can_be_divided_anew(change: dict[str, Any]) -> None:
    config = replace(SAYS_LAG, **change)
    engine = with_goals({"a": PATIENT}, 400.0, config=config)
    due(engine)
    before = shares(engine)
    assert len(told(engine, 20, 8)) == 1
    assert told(engine, 21, 9) == []
    assert len(told(engine, 0, 10)) == 1
    assert shares(engine) == before


def test_journals_from_before_lag_goals_were_said_say_nothing_of_them() -> None:
    engine = with_goals({"a": PATIENT, "b": Utility()}, 40.0, config=ENGINE)
    line = json.loads(encode(engine.checkpoint()))
    del line["config"]["say_lag"]
    for stream in line["state"]["streams"].values():
        del stream["late"]
    older = decode(json.dumps(line))
    again = BoxEngine(older.config, older.state)
    commands = again.handle(KnobsDue(at_s=6, loads=(Load(stream="a", lag_s=300.0),)))
    assert commands, "it catches up"
    assert not [c for c in commands if isinstance(c, Note)]


def test_a_checkpoint_knows_what_was_said() -> None:
    engine = with_goals({"a": PATIENT}, 40.0, config=SAYS_LAG)
    assert told(engine, 20, 6)
    known = decode(encode(engine.checkpoint()))
    again = BoxEngine(known.config, known.state)
    assert told(again, 20, 7) == []
    assert told(again, 5, 8) == told(engine, 5, 8) != []


def test_a_camera_without_frames_or_without_queries_says_nothing_of_its_lag() -> None:
    engine = with_goals({"a": PATIENT, "b": Utility()}, 40.0, config=SAYS_LAG)
    engine.handle(CameraHealth(at_s=5, stream="a", live=False))
    assert told(engine, 20, 6) == []
    engine.handle(CameraHealth(at_s=7, stream="a", live=True))
    assert len(told(engine, 20, 8)) == 1
    engine.handle(AskedAnew(at_s=9, stream="a", utility=None))
    assert told(engine, 30, 10) == []
    assert not engine.state.streams["a"].late, "its queries are gone, and the goal with them"
    engine.handle(AskedAnew(at_s=11, stream="a", utility=PATIENT))
    assert len(told(engine, 30, 12)) == 1
