"""What holds for every rollout, whatever boxes answer and whenever they are away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.rollouts.rules import advance, boxes_of_step
from cluster.rollouts.types import Rollout, RolloutRules
from cluster.rollouts.wishes import RolloutWish, apply
from cluster.types import FleetState
from scheduler.fleet.codec import as_dict, decode
from scheduler.fleet.types import OfferWord
from tests.support.fleets import alarmed, fleet_of, measured, saying

#: A camera's stage, its quality, and whether its box is there, raises an alarm.
HAPPENING = st.tuples(
    st.sampled_from(["judging", "serving", "refused", "failed", "withdrawn", ""]), st.floats(0, 1), st.booleans(), st.booleans()
)
WISHES = st.sampled_from(["", "", "", "stop", "go_on", "roll_back"])
MOMENT = st.tuples(st.lists(st.tuples(st.integers(0, 7), HAPPENING), max_size=6), WISHES, st.floats(0, 2000))


def histories(
    moments: list[tuple[list[tuple[int, tuple[str, float, bool, bool]]], str, float]], seed: int
) -> Iterator[tuple[FleetState, dict, float]]:
    now_s = 0.0
    state = apply(RolloutWish(what="begin", id=f"r{seed}", parcel="p", rules=RolloutRules(soak_s=500.0)), fleet_of(8), now_s)
    id = f"r{seed}"
    for happenings, wish, passed_s in moments:
        now_s += passed_s
        for number, (stage, quality, there, alarm) in happenings:
            box = f"b{number:03}"
            camera = state.boxes[box].cameras[0].camera
            if stage:
                state = saying(state, [(box, OfferWord(rollout=id, camera=camera, stage=stage))])  # type: ignore[arg-type]
            state = alarmed(measured(state, {camera: quality}), box, *(["hot"] if alarm else []))
            state = replace(state, boxes={**state.boxes, box: replace(state.boxes[box], online=there)})
        state = _wished(state, wish, id, now_s)
        rollouts, offers = advance(state.rollouts, state, now_s)
        state = replace(state, rollouts=rollouts)
        yield state, offers, now_s


def _wished(state: FleetState, wish: str, id: str, now_s: float) -> FleetState:
    held = state.rollouts[id].state
    allowed = {"stop": ("running",), "go_on": ("running", "stopped"), "roll_back": ("running", "stopped", "done")}
    return apply(RolloutWish(what=wish, id=id), state, now_s) if held in allowed.get(wish, ()) else state  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.lists(MOMENT, max_size=25), st.integers(0, 5))
def test_at_every_moment(moments: list, seed: int) -> None:
    before: Rollout | None = None
    for state, offers, now_s in histories(moments, seed):
        rollout = state.rollouts[f"r{seed}"]
        offered = {camera for of_box in offers.values() for offer in of_box for camera in offer.cameras}
        entitled = set(boxes_of_step(rollout, rollout.step))
        assert {camera.home for camera in offered} <= entitled, "nobody is offered before its step"
        if rollout.state in ("stopped", "done", "returned"):
            assert not offered
        withdrawn = {offer.withdraw for of_box in offers.values() for offer in of_box}
        assert withdrawn <= ({True} if rollout.state == "returning" else {False})
        assert sum(rollout.counts().values()) == len(rollout.cameras)
        assert all(decision.reason for decision in rollout.decisions)
        assert decode(Rollout, as_dict(rollout)) == rollout
        assert at_rest(state, now_s), "without time and news it comes to rest"
        if before is not None:
            assert rollout.step >= before.step, "steps only go up"
            assert rollout.step_utc_s >= before.step_utc_s
            if rollout.state != before.state:
                assert len(rollout.decisions) > len(before.decisions), "every change has its decision"
        before = rollout


def at_rest(state: FleetState, now_s: float) -> bool:
    """Within three calls: what a box said before it was offered anything is heard with the next one."""
    for _ in range(3):
        rollouts, _offers = advance(state.rollouts, state, now_s)
        if rollouts == dict(state.rollouts):
            return True
        state = replace(state, rollouts=rollouts)
    return False
