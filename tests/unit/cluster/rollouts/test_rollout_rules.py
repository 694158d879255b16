"""Staged rollouts: steps, soaking, what stops them, what the owner may do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cluster.rollouts.harm import compared
from cluster.rollouts.rules import advance, waiting_for
from cluster.rollouts.types import Rollout, RolloutRules
from cluster.rollouts.wishes import RolloutWish, apply
from cluster.types import CameraLease, FleetState
from configs.errors import UsageError
from scheduler.fleet.codec import as_dict, decode
from scheduler.fleet.types import CameraKey, Measured, ModelOffer, OfferWord
from tests.support.fleets import alarmed, box_view, fleet, fleet_of, key, labelled, measured, saying

SOAK_S = 600.0
RULES = RolloutRules(soak_s=SOAK_S)


class World:
    """A controller and boxes that answer as they are told, in steps of 100 s. by: what boxes tell of the quality: `labels` as well, or
    `reports` alone, as older ones do."""

    def __init__(self, state: FleetState, rules: RolloutRules = RULES, *, by: str = "reports") -> None:
        self.now_s, self.offers, self.by = 1000.0, dict[str, tuple[ModelOffer, ...]](), by
        if by == "labels":
            state = labelled(state, {one.camera: sample(0.8, "v1") for view in state.boxes.values() for one in view.cameras})
        self.state = apply(RolloutWish(what="begin", id="r", parcel="bundle", rules=rules), state, self.now_s)
        self.answer: Callable[[ModelOffer, str], str] = lambda offer, box: "withdrawn" if offer.withdraw else "serving"
        self.lift, self.lifted = 0.0, set[str]()  # by how much the version is better, where (nothing: everywhere)

    @property
    def rollout(self) -> Rollout:
        return self.state.rollouts["r"]

    def wish(self, what: str) -> None:
        self.state = apply(RolloutWish(what=what, id="r"), self.state, self.now_s, by="anna")  # type: ignore[arg-type]

    def step(self) -> None:
        self.now_s += 100.0
        rollouts, self.offers = advance(self.state.rollouts, self.state, self.now_s)
        self.state = replace(self.state, rollouts=rollouts)
        for box, offers in self.offers.items():
            for offer in offers:
                self._hear(box, offer)

    def _hear(self, box: str, offer: ModelOffer) -> None:
        said = self.answer(offer, box)
        if not said or not self.state.boxes[box].online:
            return
        words = [(box, OfferWord(rollout=offer.rollout, camera=one, stage=said, version="v2")) for one in offer.cameras]  # type: ignore[arg-type]
        self.state = saying(self.state, words)
        if said == "serving":
            lift = self.lift if not self.lifted or box in self.lifted else 0.0
            self.tell(dict.fromkeys(offer.cameras, 0.8 + lift))

    def tell(self, quality: dict[CameraKey, float], version: str = "v2") -> None:
        """What is measured now."""
        self.state = measured(self.state, quality)
        if self.by == "labels":
            self.state = labelled(self.state, {one: sample(value, version) for one, value in quality.items()})

    def run(self, steps: int = 200) -> None:
        for _ in range(steps):
            self.step()
            if self.rollout.state != "running":
                return


def sample(quality: float, version: str, **more: Any) -> Measured:
    return Measured(**({"number": 0, "version": version, "quality": quality, "frames": 12, "error": 0.02} | more))  # type: ignore[arg-type]


BOTH = pytest.mark.parametrize("by", ["reports", "labels"])


def test_one_box_then_a_tenth_then_half_then_all() -> None:
    world, sizes = World(fleet_of(40)), list[int]()
    for _ in range(60):
        world.step()
        sizes.append(len(world.offers))
    assert sorted(set(sizes)) == [0, 1, 4, 20, 40]
    assert world.rollout.state == "done"
    first = sizes.count(1) * 100.0
    assert first >= SOAK_S, "the first box is watched for the soak"
    assert [d.what for d in world.rollout.decisions][0] == "made"
    assert all(d.reason for d in world.rollout.decisions)
    assert "without harm" in world.rollout.decisions[-1].reason


def test_offers_name_the_box_s_own_parcel() -> None:
    world = World(fleet_of(1))
    world.step()
    (offer,) = world.offers["b000"]
    assert (offer.parcel, offer.rollout, offer.withdraw) == ("b000.bundle", "r", False)


def test_a_gate_that_refuses_on_the_first_box_stops_it_there() -> None:
    world = World(fleet_of(40, cameras=3))
    world.answer = lambda offer, box: "refused"
    world.run()
    assert world.rollout.state == "stopped"
    assert "the gates of 3 of 3 cameras" in world.rollout.reason
    world.step()
    assert world.offers == {}


def test_refusals_up_to_the_limit_stop_nothing() -> None:
    world = World(fleet_of(40, cameras=2))
    world.answer = lambda offer, box: "refused" if world.rollout.boxes.index(box) % 3 == 1 else "serving"
    world.run()
    assert world.rollout.state == "done"
    assert world.rollout.counts()["refused"] > 10


def test_harm_in_the_newest_step_is_not_hidden_by_the_ones_before() -> None:
    world = World(fleet_of(100))
    later = set[str]()

    def answer(offer: ModelOffer, box: str) -> str:
        return "refused" if box in later else "serving"

    world.answer = answer
    while world.rollout.step < 2:
        world.step()
        if world.rollout.step == 1:
            later = set(world.rollout.boxes[10:50])
    world.run()
    assert world.rollout.state == "stopped"
    assert "of this step" in world.rollout.reason


@BOTH
def test_fallen_quality_stops_it(by: str) -> None:
    world = World(fleet_of(40), by=by)
    world.lift = -0.1
    world.run()
    assert (world.rollout.state, world.rollout.step) == ("stopped", 0)
    told = {"reports": "quality as reported fell by 0.100", "labels": "quality on labels fell by 0.100"}
    assert told[by] in world.rollout.reason


@BOTH
def test_a_fall_within_the_margin_or_within_chance_stops_nothing(by: str) -> None:
    world = World(fleet_of(10), by=by)
    world.lift = -0.02
    world.run()
    assert world.rollout.state == "done"


@BOTH
def test_night_that_falls_on_all_is_not_the_model_s_fault(by: str) -> None:
    world = World(fleet_of(40), by=by)
    world.step()
    world.step()
    night = {one: 0.6 for view in world.state.boxes.values() if view.id != world.rollout.boxes[0] for one in [key(view.id)]}
    world.tell(night, "v1")
    world.lift = -0.2
    for _ in range(10):
        world.step()
    assert world.rollout.state == "running"
    assert world.rollout.step >= 1


def test_an_alarm_of_a_box_that_took_it_stops_it_and_others_do_not() -> None:
    world = World(alarmed(fleet_of(20), "b003", "disk is 81 % full"))
    world.step()
    first = world.rollout.boxes[0]
    other = next(b for b in world.rollout.boxes if b not in (first, "b003"))
    world.state = alarmed(world.state, other, "camera gone")
    world.step()
    assert world.rollout.state == "running"
    world.state = alarmed(world.state, first, "inference is behind")
    world.step()
    assert world.rollout.state == "stopped"
    assert f"box {first}" in world.rollout.reason
    assert "inference is behind" in world.rollout.reason


def test_an_alarm_that_was_there_before_may_change_its_number() -> None:
    state = fleet([box_view("b000")])
    world = World(alarmed(state, "b000", "disk is 81 % full"))
    world.step()
    world.state = alarmed(world.state, "b000", "disk is 82.5 % full")
    world.run()
    assert world.rollout.state == "done"


def test_it_waits_for_boxes_that_are_away() -> None:
    world = World(fleet_of(4))
    world.answer = lambda offer, box: ""
    world.step()
    first = world.rollout.boxes[0]
    world.state = replace(world.state, boxes={**world.state.boxes, first: replace(world.state.boxes[first], online=False)})
    for _ in range(50):
        world.step()
    assert (world.rollout.state, world.rollout.step) == ("running", 0)
    assert waiting_for(world.rollout, world.state, world.now_s) == f"answers of 1 cameras; away: {first}"
    assert set(world.offers) == {first}


def test_it_waits_for_a_box_that_does_not_trust_the_key_and_says_so() -> None:
    world = World(fleet_of(4))
    world.answer = lambda offer, box: ""
    world.step()
    first = world.rollout.boxes[0]
    view = world.state.boxes[first]
    assert view.report is not None
    word = OfferWord(
        rollout=world.rollout.id, camera=view.cameras[0].camera, stage="judging", problem="the key is not trusted: trust it"
    )
    confirmation = replace(view.report.confirmation, offers=(word,))
    report = replace(view.report, confirmation=confirmation)
    state = replace(world.state, boxes={**world.state.boxes, first: replace(view, report=report)})
    rollouts, offers = advance({world.rollout.id: world.rollout}, state, world.now_s)
    assert rollouts[world.rollout.id].state == "running", "nobody has refused it"
    assert set(offers) == {first}
    assert "the key is not trusted: trust it" in waiting_for(world.rollout, state, world.now_s)


def test_the_first_box_is_a_sound_one() -> None:
    state = alarmed(fleet_of(3), "b000", "hot")
    state = replace(state, boxes={**state.boxes, "b001": replace(state.boxes["b001"], online=False)})
    assert World(state).rollout.boxes[0] == "b002"


def test_a_camera_that_moved_gets_its_offer_where_it_is_now() -> None:
    state = fleet_of(2)
    world = World(replace(state))
    world.step()
    first, other = world.rollout.boxes
    moved = world.state.boxes[first].cameras[0]
    view = world.state.boxes[other]
    assert view.report is not None
    boxes = {**world.state.boxes, other: replace(view, report=replace(view.report, cameras=(*view.cameras, moved)))}
    lease = CameraLease(camera=moved.camera, box=other, term=2, since_utc_s=0.0)
    world.state = replace(world.state, boxes=boxes, leases={moved.camera: lease})
    world.step()
    assert moved.camera in world.offers[other][0].cameras
    assert first not in world.offers


def test_rolled_back_until_nobody_serves_it() -> None:
    world = World(fleet_of(10))
    world.step()
    world.step()
    world.wish("roll_back")
    world.answer = lambda offer, box: ""
    world.step()
    first = world.rollout.boxes[0]
    assert [(o.withdraw, o.parcel) for o in world.offers[first]] == [(True, "")]
    assert world.rollout.state == "returning"
    world.answer = lambda offer, box: "withdrawn"
    world.step()
    world.step()
    assert world.rollout.state == "returned"
    assert world.offers == {}
    assert world.rollout.decisions[-2].by == "anna"


@BOTH
def test_the_owner_goes_on_and_only_what_is_new_counts(by: str) -> None:
    world = World(fleet_of(10), by=by)
    world.lift, world.lifted = -0.1, {world.rollout.boxes[0]}
    world.run()
    assert world.rollout.state == "stopped"
    world.wish("go_on")
    world.run()
    assert world.rollout.state == "done", world.rollout.reason


def test_the_owner_ends_the_waiting() -> None:
    world = World(fleet_of(40))
    world.step()
    world.step()
    world.wish("go_on")
    assert world.rollout.step == 1


@pytest.mark.parametrize(("first", "then"), [("stop", "stop"), ("roll_back", "roll_back"), ("roll_back", "go_on")])
def test_what_cannot_be_is_refused(first: str, then: str) -> None:
    world = World(fleet_of(3))
    world.step()
    world.wish(first)
    with pytest.raises(UsageError, match="it cannot"):
        world.wish(then)


def test_a_camera_is_in_one_rollout_at_a_time() -> None:
    world = World(fleet_of(3))
    with pytest.raises(UsageError, match="another rollout"):
        apply(RolloutWish(what="begin", id="s", parcel="x"), world.state, 0.0)
    with pytest.raises(UsageError, match="already"):
        apply(RolloutWish(what="begin", id="r", parcel="x"), world.state, 0.0)
    with pytest.raises(UsageError, match="no box watches"):
        apply(RolloutWish(what="begin", id="s", parcel="x", cameras=(key("nowhere"),)), world.state, 0.0)
    with pytest.raises(UsageError, match="no rollout"):
        apply(RolloutWish(what="stop", id="none"), world.state, 0.0)


def test_a_finished_one_can_be_forgotten() -> None:
    world = World(fleet_of(2))
    with pytest.raises(UsageError, match="cannot be forgotten"):
        world.wish("forget")
    world.run()
    world.wish("forget")
    assert world.state.rollouts == {}


@BOTH
def test_it_goes_through_json_at_every_moment(by: str) -> None:
    world = World(fleet_of(12), by=by)
    while world.rollout.state == "running":
        world.step()
        assert decode(Rollout, as_dict(world.rollout)) == world.rollout


@pytest.mark.parametrize(
    "wrong", [{"steps_frac": ()}, {"steps_frac": (0.5, 0.1, 1.0)}, {"steps_frac": (0.0, 0.5)}, {"soak_s": -1.0}, {"answered_frac": 0.0},
              {"refused_frac": 2.0}, {"margin": float("nan")}, {"fewest_answers": 0}, {"low_reports": 0}, {"low_s": -1.0},
              {"risk": 0.0}, {"lone_sigma": float("inf")}],
)  # fmt: skip
def test_rules_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RolloutRules(**wrong)  # type: ignore[arg-type]


@BOTH
def test_many_cameras_of_one_box_are_one_proof(by: str) -> None:
    """Where boxes without the version change as much by themselves, one box that fell proves nothing; when many fall, it does."""
    world = World(fleet_of(40, cameras=10), replace(RULES, soak_s=1e6), by=by)
    world.lift = -0.1
    world.step()
    first = world.rollout.boxes[0]
    wander = {
        one.camera: 0.8 + (0.1 if int(view.id[1:]) % 2 else -0.1)
        for view in world.state.boxes.values()
        if view.id != first
        for one in view.cameras
    }
    world.tell(wander, "v1")
    for _ in range(9):  # reports must tell a fall for ten minutes
        world.step()
    assert world.rollout.state == "running"
    found = compared(world.rollout, world.rollout.cameras)
    assert found is not None
    assert (found.cameras, found.boxes) == (10, 1)
    assert found.mean == pytest.approx(-0.1, abs=0.006)
    assert found.error == pytest.approx(0.1, rel=0.05)
