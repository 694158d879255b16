"""Whose turn it is: worked examples, a search through everything that may be done, and what must hold for any cameras."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import prep
from scheduler.engine_state import BoxState, EngineConfig, StreamState
from scheduler.prep_share import LATER_WINDOWS, Watched, shown_quality
from scheduler.registry import Needs
from scheduler.turns import (
    FIRST_FRAC,
    HALF_LABELS,
    LABEL_STEP,
    MEASURED_GAIN,
    Chosen,
    Turn,
    choose,
    expected_gain,
    first_frac,
    left_to_win,
    part_won,
)
from scheduler.types import KnobProfile, Observation, RetrainOption

#: Loses nothing down to 5 % of the device, everything in proportion below.
EASY = (KnobProfile(name="every", demand_pct=5, quality_frac=1.0, fps=1.0),)
#: Needs 40 % for its full quality.
STEEP = (
    KnobProfile(name="every", demand_pct=40, quality_frac=1.0, fps=4.0),
    KnobProfile(name="1/2", demand_pct=20, quality_frac=0.6, fps=2.0),
    KnobProfile(name="1/4", demand_pct=10, quality_frac=0.3, fps=1.0),
)
SHARES = [float(pct) for pct in range(10, 100, 10)]


def turn(id: str = "a", gain: float = 0.2, *, label: float = 1.0, fixed: float = 10.0, least: int = 8, most: int = 20) -> Turn:
    return Turn(id=id, gain=gain, label_gpu_s=label, fixed_gpu_s=fixed, least=least, most=most)


def chosen(
    turns: list[Turn],
    *,
    knobs: tuple[KnobProfile, ...] = EASY,
    left_s: float = 200.0,
    most_s: float = 200.0,
    tries: bool = False,
) -> Chosen:
    watched = [Watched(quality=0.5, knobs=knobs)] * max(1, len(turns))
    return choose(turns, watched, left_s=left_s, most_s=most_s, capacity_pct=100, shares_pct=SHARES, tries=tries)


# --- the choice -----------------------------------------------------------------------------------------------------------


def test_where_nothing_is_short_everybody_has_a_turn_with_all_labels_wanted() -> None:
    found = chosen([turn("a", label=0.1, fixed=0.1), turn("b", label=0.1, fixed=0.1)], left_s=10_000, most_s=10_000)
    assert dict(found.frames) == {"a": 20, "b": 20}


def test_where_only_one_turn_fits_it_is_the_most_promising_cameras_not_the_first_by_name() -> None:
    """A turn takes at least 18 GPU-s; 90 % of 25 s pay for 22.5."""
    found = chosen([turn("a", 0.05), turn("b", 0.3), turn("c", 0.1)], left_s=25, most_s=25)
    assert [id for id, _ in found.frames] == ["b"]


def test_few_labels_for_many_before_many_labels_for_few() -> None:
    """50 s at 90 % pay for 45 GPU-s: two turns with 12 labels (44 GPU-s), where one with 20 takes 30 of them."""
    found = chosen([turn("a"), turn("b")], left_s=50, most_s=50)
    assert [id for id, _ in found.frames] == ["a", "b"]
    assert all(8 <= frames <= 12 for _, frames in found.frames)


def test_nothing_to_win_is_nobodys_turn_and_leaves_inference_alone() -> None:
    assert chosen([turn(gain=0.0)], knobs=STEEP) == Chosen(share_pct=10.0)


def test_a_gain_that_costs_inference_more_than_it_brings_waits() -> None:
    """At any share the cameras lose more than 0.01 for a good part of the window: one of them is measured on the least share, and
    that is all."""
    knobs = (KnobProfile(name="every", demand_pct=100, quality_frac=1.0, fps=4.0),)
    tiny = [turn("a", 0.01, fixed=60.0), turn("b", 0.01, fixed=60.0)]
    assert chosen(tiny, knobs=knobs) == Chosen(share_pct=10.0, frames=(("a", 8),))
    assert len(chosen([replace(t, gain=0.5) for t in tiny], knobs=knobs).frames) == 2


def test_no_time_and_nobody_to_learn_choose_the_least() -> None:
    assert chosen([]) == Chosen(share_pct=10.0)
    assert chosen([turn()], left_s=0.0) == Chosen(share_pct=10.0)


def test_where_no_turn_fits_the_most_promising_camera_has_its_fewest_labels_all_the_same() -> None:
    """A machine that has become slow for a while must find out that it is fast again, and that it does by labelling."""
    found = chosen([turn("a", 0.1), turn("b", 0.2)], left_s=200, most_s=15)
    assert found.frames == (("b", 8),)
    assert found.share_pct >= 50


def test_a_few_labels_on_the_least_share_tell_that_as_well() -> None:
    """Of a turn that fits nothing is left to waste; where one is worth it, or nobody promises anything, nobody is tried."""
    late = {"left_s": 200.0, "most_s": 15.0, "tries": True}
    assert chosen([turn("a", 0.1), turn("b", 0.2)], **late) == Chosen(share_pct=10.0, tried="b")
    assert chosen([turn("a", 0.0)], **late) == Chosen(share_pct=10.0)
    assert chosen([turn("a", 0.1), turn("b", 0.2)], tries=True).tried == ""


@settings(max_examples=60, deadline=None)
@given(gains=st.lists(st.floats(0, 0.5), min_size=1, max_size=4), left_s=st.floats(1, 400), speed=st.floats(0.01, 1))
def test_somebody_is_tried_where_no_turn_is_taken_and_never_else(gains: list[float], left_s: float, speed: float) -> None:
    watched = [Watched(quality=0.9, knobs=STEEP)] * 3
    turns = [turn(f"{n}", gain) for n, gain in enumerate(gains)]
    how = {"left_s": left_s, "most_s": left_s, "capacity_pct": 100, "shares_pct": SHARES, "speed_frac": speed}
    found = choose(turns, watched, **how, tries=True)  # type: ignore[arg-type]
    assert bool(found.tried) == (not found.frames and any(gain > 0 for gain in gains))
    if found.frames:
        assert found == choose(turns, watched, **how)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(speed=st.floats(0.001, 1), left_s=st.floats(0.1, 400), gain=st.floats(0.001, 0.5))
def test_somebody_has_a_turn_however_slow_the_machine(speed: float, left_s: float, gain: float) -> None:
    watched = [Watched(quality=0.9, knobs=STEEP)] * 3
    turns = [turn(id, gain) for id in "abc"]
    assert choose(turns, watched, left_s=left_s, most_s=left_s, capacity_pct=100, shares_pct=SHARES, speed_frac=speed).frames


def test_a_slow_machine_is_reckoned_with() -> None:
    watched = [Watched(quality=0.5, knobs=EASY)] * 2
    turns = [turn("a"), turn("b")]
    fast = choose(turns, watched, left_s=50, most_s=50, capacity_pct=100, shares_pct=SHARES)
    slow = choose(turns, watched, left_s=50, most_s=50, capacity_pct=100, shares_pct=SHARES, speed_frac=0.5)
    assert len(slow.frames) < len(fast.frames)


@settings(max_examples=60, deadline=None)
@given(
    gains=st.lists(st.floats(0, 0.6), min_size=1, max_size=4), fixed=st.floats(0, 30), label=st.floats(0.1, 3),
    quality=st.floats(0.05, 1), left_s=st.floats(20, 400),
)  # fmt: skip
def test_it_is_the_best_of_all_shares_labels_and_counts(
    gains: list[float], fixed: float, label: float, quality: float, left_s: float
) -> None:
    """Against a search that writes the objective out in its own words. Equal costs, so the order is that of the gains."""
    turns = [turn(f"{n}", gain, label=label, fixed=fixed) for n, gain in enumerate(gains)]

    def shown(capacity: float) -> float:
        each = capacity / len(gains)
        kept = 1.0 if each >= 40 else 0.6 if each >= 20 else 0.3 if each >= 10 else 0.3 * each / 10
        return quality * kept * len(gains)

    def value(share: float, labels: int, count: int) -> float:
        each_s = (fixed + labels * label) * 100 / share
        if count * each_s > left_s:
            return float("-inf")
        scale = (labels / (labels + HALF_LABELS)) / (20 / (20 + HALF_LABELS))
        won = sum(
            scale * gain * ((left_s - (n + 1) * each_s) / left_s + LATER_WINDOWS)
            for n, gain in enumerate(sorted(gains, reverse=True)[:count])
        )
        return won - (shown(100) - shown(100 - share)) * count * each_s / left_s

    watched = [Watched(quality=quality, knobs=STEEP)] * len(gains)
    got = choose(turns, watched, left_s=left_s, most_s=left_s, capacity_pct=100, shares_pct=SHARES)
    best = max(
        value(share, n, count) for share in SHARES for n in (*range(8, 20, LABEL_STEP), 20) for count in range(len(gains) + 1)
    )
    if best > 1e-6:
        assert value(got.share_pct, got.frames[0][1], len(got.frames)) >= best - 1e-6
        assert got.ends_s <= left_s + 1e-9
    else:  # nothing is worth it: one camera at most, with its fewest labels
        assert got.frames in ((), (("0", 8),)) or [labels for _, labels in got.frames] == [8]


# --- what a camera should gain --------------------------------------------------------------------------------------------


def test_more_labels_win_more_and_each_wins_less() -> None:
    won = [part_won(n) for n in (0, 4, 8, 16, 32)]
    assert won == sorted(won)
    assert won[2] - won[1] > won[3] - won[2] > won[4] - won[3] - 1e-9
    assert part_won(HALF_LABELS) == pytest.approx(0.5)


def test_a_first_retraining_wins_a_part_of_what_is_missing() -> None:
    assert expected_gain([], 0.2, 0.25, drifted=False) == pytest.approx(0.2)
    assert expected_gain([], 0.2, 0.25, drifted=False) > expected_gain([], 0.8, 0.25, drifted=False)


def test_a_later_one_wins_less_and_never_more_than_what_is_missing_allows() -> None:
    assert expected_gain([0.1], 0.2, 0.25, drifted=False) == pytest.approx(0.05)
    assert expected_gain([0.6], 0.9, 0.25, drifted=False) == pytest.approx(0.025)
    assert expected_gain([-0.1], 0.2, 0.25, drifted=False) == 0.0


def test_a_drift_makes_a_camera_that_had_nothing_more_to_learn_worth_a_turn_again() -> None:
    assert expected_gain([0.0], 0.2, 0.25, drifted=True) == pytest.approx(0.1)


def test_cameras_tell_each_other_what_a_first_retraining_wins() -> None:
    assert first_frac([]) == FIRST_FRAC
    assert first_frac([(0.8, 0.6), (0.7, 0.5)]) > FIRST_FRAC > first_frac([(0.8, 0.0), (0.7, 0.02)])
    assert first_frac([(0.5, -1.0)]) == 0.0
    assert left_to_win([0.3, 0.2]) == pytest.approx(0.1)


# --- in the engine's preparation ------------------------------------------------------------------------------------------

CONFIG = EngineConfig(
    prep_auto=True, overlap=True, label_frames=20, min_label_frames=8, gate_frames=4,
    reference=(RetrainOption(name="r", end_quality=0.0, cost_gpu_s=4.0),),
)  # fmt: skip


def camera(id: str, quality: float = 0.5, **more: object) -> StreamState:
    return StreamState(id=id, knobs=EASY, version="v", quality=quality, **more)  # type: ignore[arg-type]


def state_of(*streams: StreamState, seconds: float = 200.0) -> BoxState:
    return BoxState(window=3, opened_s=0.0, ends_s=seconds, golden_gpu_s=0.8, streams={s.id: s for s in streams})


def test_on_a_device_that_is_very_short_the_worst_camera_has_the_turn_and_not_a_trickle() -> None:
    """What it was before: the first camera by name got eight labels on 13 % of the device, and nothing was retrained."""
    state = state_of(camera("a", 0.7), camera("b", 0.8), camera("z", 0.1), seconds=40)
    found = prep.turns_of(state, CONFIG, Needs(), 0.0)
    assert [id for id, _ in found.frames] == ["z"]
    assert found.share_pct >= 50


def test_a_camera_that_is_only_measured_comes_behind_those_that_learn_and_is_not_forgotten() -> None:
    state = state_of(camera("a", full=False), camera("b", 0.3))
    assert [id for id, _ in prep.turns_of(state, CONFIG, Needs(), 0.0).frames] == ["b", "a"]
    waits = state_of(camera("a", full=False, waited=0), camera("c", full=False, waited=9), seconds=40)
    assert prep.turns_of(waits, CONFIG, Needs(), 0.0).frames[0][0] == "c"
    assert MEASURED_GAIN * 10 < FIRST_FRAC * 0.7


def test_what_one_camera_won_is_expected_of_the_next() -> None:
    def seen(gain: float) -> list[Observation]:
        return [
            Observation(
                stream="a", window=1, option="r", start_quality=0.3, predicted_quality=0.5, predicted_gpu_s=4.0, realised_gpu_s=4.0,
                realised_quality=0.3 + gain, serving_quality=0.3,
            )
        ]  # fmt: skip

    new = camera("b", 0.4)
    much = prep._turn(new, state_of(camera("a", observations=seen(0.5)), new), CONFIG, Needs()).gain
    little = prep._turn(new, state_of(camera("a", observations=seen(0.0)), new), CONFIG, Needs()).gain
    assert much > little


@pytest.mark.parametrize("seconds", [15, 40, 200])
def test_an_offered_model_is_judged_by_all_labels_that_are_wanted_or_waits(seconds: float) -> None:
    waits = camera("a", 0.7, offered=("x",))
    found = prep.turns_of(state_of(waits, camera("b", 0.6), seconds=seconds), CONFIG, Needs(), 0.0)
    assert dict(found.frames).get("a", CONFIG.label_frames) == CONFIG.label_frames
    alone = prep.turns_of(state_of(waits, seconds=seconds), CONFIG, Needs(), 0.0)
    assert alone.frames == (("a", CONFIG.label_frames),), "nobody else is there to wait for"


def test_a_configured_share_is_kept() -> None:
    found = prep.turns_of(state_of(camera("a", 0.2)), replace(CONFIG, prep_auto=False, prep_pct=35), Needs(), 0.0)
    assert found.share_pct == 35


def test_only_cameras_that_a_look_may_spare_are_looked_at_before_anybody_learns() -> None:
    """A camera that still learns is labelled whatever a look says; reuse wants to know what its window was like, so it is looked at in
    its turn."""
    config = replace(CONFIG, drift=True, reuse=True, policy="lookahead")
    settled, learning = camera("s", gains=[0.0]), camera("l", gains=[0.2])
    state = state_of(settled, learning)
    chooses = Needs(profiles=True)
    assert {task.stream for task in prep.opening(state, config, chooses)} == {"s"}
    tasks, _ = prep.turn_tasks(Chosen(share_pct=50, frames=(("l", 8),)), state, config, 0.0)
    assert [(task.kind, task.stream) for task in tasks] == [("look", "l"), ("label", "l")]
    everybody = prep.opening(state, replace(config, overlap=False), chooses)
    assert {task.stream for task in everybody} == {"s", "l"}


def test_a_labelling_whose_retraining_would_not_end_is_too_late() -> None:
    state = state_of(camera("a", 0.2))
    state.prep_pct = 50.0
    task = prep.turn_tasks(Chosen(share_pct=50, frames=(("a", 8),)), state, CONFIG, 0.0)[0][0]
    assert not prep.comes_too_late(task, state, CONFIG, Needs(), 190.0)  # the first one is begun in any case
    state.streams["a"].measured = 0.2
    assert not prep.comes_too_late(task, state, CONFIG, Needs(), 0.0)
    assert prep.comes_too_late(task, state, CONFIG, Needs(), 190.0)


def test_a_camera_that_once_lost_by_learning_has_its_turn_again_when_it_has_waited() -> None:
    """Without looks nobody sees a drift: what it last won must not keep it from its labels for ever."""
    state = state_of(camera("a", 0.9, gains=[-0.1], waited=3))
    assert prep.turns_of(state, replace(CONFIG, drift=False), Needs(), 0.0).frames


def test_people_are_told_who_waits_and_why() -> None:
    state = state_of(camera("a", 0.7), camera("z", 0.1))
    _, told = prep.turn_tasks(Chosen(share_pct=50, frames=(("z", 8),)), state, CONFIG, 0.0)
    assert "8 of 40 labels" in told


# --- labels that teach, labels that judge ---------------------------------------------------------------------------------


def test_labels_that_judge_win_nothing() -> None:
    """Of 8 labels 4 teach, of 12 eight, of 20 twelve (scheduler.split, 40 % held out)."""
    one = replace(turn(gain=0.2), holdout_frac=0.4)
    assert one.gain_of(20) == pytest.approx(0.2)
    assert one.gain_of(12) == pytest.approx(0.2 * (8 / 11) / (12 / 15))
    assert one.gain_of(8) == pytest.approx(0.2 * (4 / 7) / (12 / 15))


def test_where_all_labels_count_it_is_as_it_was() -> None:
    assert turn(gain=0.2).gain_of(8) == pytest.approx(0.2 * part_won(8) / part_won(20))


@given(st.floats(0, 1), st.floats(0, 0.9), st.integers(1, 30), st.integers(1, 30))
def test_more_labels_never_win_less_and_none_win_more_than_all(gain: float, frac: float, some: int, more: int) -> None:
    one = Turn(id="a", gain=gain, label_gpu_s=1.0, fixed_gpu_s=1.0, least=1, most=30, holdout_frac=frac)
    few, many = sorted((some, more))
    assert one.gain_of(few) <= one.gain_of(many) + 1e-9
    assert one.gain_of(many) <= gain + 1e-9


def test_seven_turns_that_teach_before_eight_that_are_mostly_judged() -> None:
    """Eight cameras and 250 s: with eight labels each, of which four teach, all of them have a turn; that is one too many."""
    turns = [turn(id, 0.2) for id in "abcdefgh"]
    before = chosen(turns, left_s=250, most_s=250)
    after = chosen([replace(t, holdout_frac=0.4) for t in turns], left_s=250, most_s=250)
    assert [frames for _, frames in before.frames] == [8] * 8
    assert [frames for _, frames in after.frames] == [10] * 7


def test_a_box_counts_what_teaches_where_it_is_told_to() -> None:
    knobs = (KnobProfile(name="every", demand_pct=10, quality_frac=1.0, fps=12.0),)
    streams = {id: StreamState(id=id, knobs=knobs, version=f"{id}-0", quality=0.4) for id in "abcde"}
    state = BoxState(window=2, opened_s=0.0, ends_s=250.0, streams=streams, golden_gpu_s=1.0)
    config = EngineConfig(window_s=250, policy="lookahead", overlap=True, prep_auto=True, label_frames=20, gate_frames=8)

    def labels(*, taught: bool) -> list[int]:
        found = prep.turns_of(state, replace(config, count_taught=taught), Needs(labels=True, profiles=True), 0.0)
        return [frames for _, frames in found.frames]

    assert labels(taught=False) == [8] * 5
    assert labels(taught=True) == [14] * 4


# --- cameras that learn together ----------------------------------------------------------------------------------------------


def pooled(*gains: float, label: float = 1.0, fixed: float = 1.0) -> list[Turn]:
    turns = [turn(f"p{n}", gain, label=label, fixed=fixed, least=5) for n, gain in enumerate(gains)]
    return [replace(t, pool="net") for t in turns]


def test_a_pool_has_one_turn_all_of_it_or_none() -> None:
    assert {id for id, _ in chosen(pooled(0.3, 0.2, 0.001)).frames} == {"p0", "p1", "p2"}
    assert not chosen(pooled(0.3, 0.2, 0.001, label=100.0), tries=True).frames


def test_who_learns_alone_is_served_beside_a_pool() -> None:
    alone = turn("z", 0.3, fixed=1.0, least=5)
    assert {id for id, _ in chosen([*pooled(0.2, 0.2), alone]).frames} == {"p0", "p1", "z"}
    assert {id for id, _ in chosen([*pooled(0.2, 0.2, label=100.0), alone]).frames} == {"z"}


def test_what_a_pool_wins_it_wins_when_its_last_label_is_learned_from() -> None:
    """Two cameras with 20 labels at 1 GPU-s: 44 s at 90 %, where the first of two single turns would have ended after 22."""
    members, watched = [replace(t, least=20) for t in pooled(0.2, 0.2, fixed=0.0)], [Watched(quality=0.5, knobs=EASY)]

    def by(most_s: float) -> Chosen:
        return choose(members, watched, left_s=200, most_s=most_s, capacity_pct=100, shares_pct=[90.0], tries=True)

    assert by(200.0).ends_s == pytest.approx(40 / 0.9)
    assert not by(40 / 0.9 - 1e-6).frames


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=6), st.floats(0.1, 4), st.floats(1, 400))
def test_the_choice_for_one_pool_is_the_best_of_all_that_may_be_done(gains: list[float], label: float, most_s: float) -> None:
    members = pooled(*gains, label=label)
    watched = [Watched(quality=0.5, knobs=STEEP)] * len(members)
    found = choose(members, watched, left_s=200.0, most_s=most_s, capacity_pct=100, shares_pct=SHARES)

    def value(share_pct: float, labels: int) -> float:
        ends_s = sum(t.gpu_s(labels) for t in members) / (share_pct / 100)
        lost = shown_quality(watched, 100) - shown_quality(watched, 100 - share_pct)
        won = sum(t.gain_of(labels) for t in members)
        return won * (max(0.0, 200.0 - ends_s) / 200.0 + LATER_WINDOWS) - lost * ends_s / 200.0 if ends_s <= most_s else 0.0

    best = max([0.0, *(value(share, labels) for share in SHARES for labels in (*range(5, 20, LABEL_STEP), 20))])
    got = value(found.share_pct, found.frames[0][1]) if found.frames else 0.0
    assert got == pytest.approx(best, abs=1e-6)
