"""What counts as harm: labels, where a box tells what it measured on them; reports, only where a fall lasts; knobs never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.rollouts.evidence import changed, cleared, taken_in
from cluster.rollouts.harm import sure_of
from cluster.rollouts.rules import advance
from cluster.rollouts.types import Rollout, RolloutRules, Watched
from cluster.rollouts.wishes import RolloutWish, apply
from cluster.types import FleetState
from scheduler.fleet.types import CameraReport, Measured, OfferWord
from tests.support.fleets import camera, fleet_of, key, labelled, measured, saying

#: No step ends by itself: what is asked is whether it stops.
RULES = RolloutRules(steps_frac=(0.0, 1.0), soak_s=1e9)
HERE = key("b000")


def sample(quality: float, version: str = "v2", *, error: float = 0.08, number: int = 0, **more: object) -> Measured:
    return Measured(number=number, version=version, quality=quality, frames=10, error=error, **more)  # type: ignore[arg-type]


class Fleet:
    """Box b000 serves the version; the others do not. `say` is a report, `labels` a window's measurements; either moves on."""

    def __init__(self, boxes: int = 1, *, labels: bool, before: float = 0.8) -> None:
        self.state, self.now_s = fleet_of(boxes), 0.0
        self.cameras = [one.camera for view in self.state.boxes.values() for one in view.cameras]
        if labels:
            self.state = labelled(self.state, {one: sample(before, "v1") for one in self.cameras})
        self.state = apply(RolloutWish(what="begin", id="r", parcel="p", rules=RULES, cameras=(HERE,) if boxes == 1 else ()),
                           measured(self.state, dict.fromkeys(self.cameras, before)), 0.0)  # fmt: skip
        self.first = key(self.rollout.boxes[0])
        self._on(1.0)
        self._on(1.0, lambda state: saying(state, [(self.first.home, SERVING(self.first))]))

    @property
    def rollout(self) -> Rollout:
        return self.state.rollouts["r"]

    @property
    def stopped(self) -> bool:
        return self.rollout.state == "stopped"

    def say(self, quality: float, *, after_s: float = 5.0) -> None:
        self._on(after_s, lambda state: measured(state, {self.first: quality}))

    def labels(self, quality: float, others: Sequence[float] = (), **more: object) -> None:
        found = {self.first: sample(quality, **more)}  # type: ignore[arg-type]
        rest = [one for one in self.cameras if one != self.first]
        found |= {one: sample(value, "v1") for one, value in zip(rest, others, strict=True)}
        self._on(200.0, lambda state: labelled(state, found))

    def proof(self, gain: float, *, quality: float, error: float = 0.1) -> None:
        more = sample(quality, over="v1", gain=gain, gain_error=error)
        self._on(200.0, lambda state: labelled(state, {self.first: more}))

    def _on(self, after_s: float, news: Callable[[FleetState], FleetState] = lambda state: state) -> None:
        self.now_s += after_s
        self.state = news(self.state)
        rollouts, _ = advance(self.state.rollouts, self.state, self.now_s)
        self.state = replace(self.state, rollouts=rollouts)


def SERVING(camera: object) -> OfferWord:
    return OfferWord(rollout="r", camera=camera, stage="serving", version="v2")  # type: ignore[arg-type]


# --- knobs ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 5000)), min_size=1, max_size=40))
def test_whatever_knobs_make_of_the_quality_stops_nothing_where_labels_are_told(said: list[tuple[float, float]]) -> None:
    fleet = Fleet(4, labels=True)
    fleet.labels(0.8, [0.8, 0.8, 0.8])
    for quality, after_s in said:
        fleet.say(quality, after_s=after_s)
        assert not fleet.stopped, fleet.rollout.reason


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, RULES.low_reports - 1), st.floats(0, 0.7), st.floats(1, 100)), max_size=12))
def test_a_moment_s_fall_stops_nothing_where_only_reports_are_told(falls: list[tuple[int, float, float]]) -> None:
    """However many moments there are, each shorter than what counts."""
    fleet = Fleet(4, labels=False)
    for count, quality, after_s in falls:
        for _ in range(count):
            fleet.say(quality, after_s=after_s)
            assert not fleet.stopped
        fleet.say(0.79)
        assert not fleet.stopped


def test_many_reports_within_a_moment_are_still_a_moment() -> None:
    fleet = Fleet(4, labels=False)
    for _ in range(100):
        fleet.say(0.2, after_s=5.0)
    assert not fleet.stopped
    for _ in range(25):
        fleet.say(0.2, after_s=5.0)
    assert fleet.stopped
    assert "as reported fell by 0.600" in fleet.rollout.reason


def test_a_fall_that_lasts_counts_by_its_best_report() -> None:
    fleet = Fleet(4, labels=False)
    for quality in (0.1, 0.1, 0.1, 0.74, 0.1, 0.1, 0.1, 0.1):
        fleet.say(quality, after_s=120.0)
    assert fleet.stopped
    assert "fell by 0.060" in fleet.rollout.reason


def test_a_report_that_is_looked_at_twice_counts_once() -> None:
    fleet = Fleet(4, labels=False)
    fleet.say(0.1)
    for _ in range(20):
        fleet._on(120.0)
    assert not fleet.stopped
    (watched,) = [one for one in fleet.rollout.cameras if one.camera == fleet.first]
    assert (watched.low_reports, watched.after_count) == (1, 2), "the answer itself was the first report"


def test_a_step_does_not_end_while_a_fall_may_yet_count() -> None:
    fleet = Fleet(4, labels=False)
    soak = replace(fleet.rollout, rules=replace(RULES, soak_s=300.0))
    fleet.state = replace(fleet.state, rollouts={"r": soak})
    fleet.say(0.8)
    for _ in range(6):
        fleet.say(0.3, after_s=100.0)
    assert (fleet.rollout.state, fleet.rollout.step) == ("running", 0)
    fleet.say(0.8)
    assert fleet.rollout.step == 1, "it was a moment"


# --- labels -----------------------------------------------------------------------------------------------------------


def stops_after(d: float, seed: int, *, windows: int, boxes: int = 5, sd: float = 0.08) -> int | None:
    """Windows until a version that is worse by d is stopped, where each measurement errs by `sd`; None: it is not."""
    rng = np.random.default_rng(seed)
    fleet = Fleet(boxes, labels=True, before=0.8 + float(rng.normal(0, sd)))
    for window in range(1, windows + 1):
        scene = 0.8 + float(rng.normal(0, 0.02))
        fleet.labels(
            scene - d + float(rng.normal(0, sd)), [scene + float(rng.normal(0, sd)) for _ in range(boxes - 1)], error=sd
        )
        if fleet.stopped:
            return window
    return None


@pytest.mark.parametrize(("d", "windows", "at_least"), [(0.5, 2, 0.95), (0.3, 6, 0.6), (0.4, 6, 0.9)])
def test_a_version_that_is_worse_is_stopped_soon(d: float, windows: int, at_least: float) -> None:
    """Within so many windows, in such a part of 100 worlds; one camera, ten pictures a window."""
    found = [stops_after(d, seed, windows=windows) for seed in range(100)]
    assert sum(window is not None for window in found) >= at_least * len(found), found


def test_a_version_that_does_no_harm_is_seldom_stopped_however_long_one_looks() -> None:
    found = [stops_after(0.0, seed, windows=30) for seed in range(100)]
    assert sum(window is not None for window in found) <= 100 * RULES.risk, found


def test_the_risk_of_all_looks_together_is_the_risk() -> None:
    from statistics import NormalDist

    assert sum(1 - NormalDist().cdf(sure_of(0.05, looks)) for looks in range(1, 5000)) == pytest.approx(0.05, rel=1e-3)
    assert sure_of(0.05, 2) > sure_of(0.05, 1) == sure_of(0.05, 0)


def test_an_evening_on_a_lone_box_is_not_the_model_s_fault_when_the_one_before_fares_worse() -> None:
    """Quality falls by 0.3 with the light; on the same pictures the version is better than what it replaced."""
    fleet = Fleet(labels=True)
    fleet.proof(0.1, quality=0.5)
    for _ in range(10):
        fleet.labels(0.5)
        assert not fleet.stopped


def test_worse_on_the_same_pictures_is_its_fault_though_the_morning_hides_it() -> None:
    fleet = Fleet(labels=True, before=0.4)
    fleet.labels(0.45)
    fleet.proof(-0.3, quality=0.5)
    assert fleet.stopped
    assert "on labels" in fleet.rollout.reason


def test_a_collapse_stops_it_on_a_lone_box_too() -> None:
    fleet = Fleet(labels=True)
    for _ in range(3):
        fleet.labels(0.02)
    assert fleet.stopped


def test_a_version_that_was_good_for_long_and_turns_bad_is_stopped() -> None:
    fleet = Fleet(labels=True)
    for _ in range(20):
        fleet.labels(0.85)
    for _ in range(4):
        fleet.labels(0.05)
    assert fleet.stopped


def test_what_is_measured_before_it_serves_is_of_before_though_the_step_had_begun() -> None:
    waiting = serving(answer="", starts=(None,), error=None, start_error=None, last=None, told_by="", number=0)
    found = after(waiting, sample(0.7, "v1", number=1, error=0.05))
    assert (found.start, found.start_error) == (0.7, 0.05)
    late = after(replace(waiting, answer="serving"), sample(0.7, number=1))
    assert (late.start, late.start_error) == (None, None), "what it serves by now is not of before"


def test_a_newer_model_s_measurements_are_not_the_version_s() -> None:
    fleet = Fleet(labels=True)
    for _ in range(20):
        fleet.labels(0.0, version="v3")
    assert not fleet.stopped


def test_a_proof_of_few_pictures_moves_little_beside_many_measurements() -> None:
    watched = replace(serving(), start_error=0.01, after=((0.79, 0.02),) * 4, after_count=10)
    one = replace(watched, pair_sum=-0.4, pair_var=0.5**2, pair_count=1)
    found = changed(one, 0.0, 0.02)
    assert found is not None
    assert found.mean == pytest.approx(-0.01, abs=0.005)
    assert 0.9 < found.wander < 1.0
    sure = changed(replace(one, pair_var=0.01**2), 0.0, 0.15)
    assert sure is not None
    assert sure.mean == pytest.approx(-0.4, abs=0.01)


# --- which measurements count -----------------------------------------------------------------------------------------


def serving(**more: object) -> Watched:
    known = {"step": 0, "answer": "serving", "version": "v2", "starts": (0.8,), "error": 0.08, "start_error": 0.08, "last": 0.8}
    return Watched(camera=HERE, group="b000", **(known | {"told_by": "b000", "number": 3} | more))  # type: ignore[arg-type]


def told(*measured: Measured) -> CameraReport:
    return camera("b000", quality=0.3, measured=measured)


def after(watched: Watched, *measured: Measured, box: str = "b000") -> Watched:
    return taken_in(watched, told(*measured), box, "m", RULES, 0.0)


def test_each_measurement_counts_once_also_those_of_while_the_controller_was_away() -> None:
    newest = [sample(0.6, number=n) for n in (3, 4, 5)]
    found = after(serving(), *newest)
    assert (found.after_count, found.after) == (2, ((0.6, 0.08), (0.6, 0.08)))
    assert after(found, *newest) == found


def test_of_a_box_that_was_not_asked_before_nothing_of_the_past_counts() -> None:
    found = after(serving(), sample(0.1, number=8), sample(0.2, number=9), box="b001")
    assert (found.after_count, found.told_by, found.number, found.last) == (0, "b001", 9, 0.2)
    assert after(found, sample(0.3, number=10), box="b001").after_count == 1


def test_a_box_whose_data_were_put_back_begins_to_count_anew() -> None:
    found = after(serving(number=90), sample(0.5, number=7))
    assert (found.after_count, found.number) == (0, 7)
    assert after(found, sample(0.5, number=8)).after_count == 1


def test_a_box_that_knows_labels_is_never_judged_by_its_reports() -> None:
    """Its report may lack them once: a camera that began anew."""
    assert after(serving()) == serving()


def test_a_box_that_begins_to_tell_labels_is_judged_by_the_same_pictures_only() -> None:
    """What it told before was another number."""
    found = after(serving(error=None, start_error=None, told_by="", number=0), sample(0.1, number=1))
    found = after(found, sample(0.1, number=2))
    assert found.after_count == 1
    assert changed(found, 0.0, 0.02) is None
    proved = after(found, sample(0.1, number=3, over="v1", gain=-0.2, gain_error=0.1))
    assert changed(proved, 0.0, 0.02) is not None


def test_no_error_at_all_is_not_believed() -> None:
    assert after(serving(), sample(0.8, number=4, error=0.0)).after[-1][1] > 0


def test_cleared_of_all_that_was_told() -> None:
    full = serving(after=((1.0, 1.0),), after_count=2, pair_sum=1.0, pair_var=1.0, pair_count=3, low_reports=4, low_best=0.5,
                   low_since_utc_s=1.0, lasting=True)  # fmt: skip
    assert cleared(full, (0.7,)) == serving(starts=(0.7,))
