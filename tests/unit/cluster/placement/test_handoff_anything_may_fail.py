"""Any message may be lost, doubled or late, any box and the controller may die at any step: who owns a camera stays settled.

Boxes are played by a few lines that do what `scheduler.fleet.handoff` says an order means; time is a number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.placement.handoff import advance_handoffs, begin_handoff, orders_of
from cluster.placement.plan import FleetRules, carry_out, plan_placement
from cluster.placement.sight import is_dead, lease_of
from cluster.types import BoxView, CameraLease, FleetState, Handoff
from scheduler.fleet.codec import as_dict, decode
from scheduler.fleet.handoff import Here, goal_of, word_for
from scheduler.fleet.types import BoxReport, CameraKey, CameraOrder, CameraReport, Confirmation

BOXES = ("a", "b", "c")
GATE = CameraKey(home="a", camera="gate")
RULES = FleetRules(settle_s=30.0, home_s=10.0, retry_s=5.0)


@dataclass
class Box:
    """As a real one: it does what it was told last, keeps it over a restart, and follows wishes in their order."""

    id: str
    alive: bool = True
    version: int = 0
    order: CameraOrder | None = None
    watches: bool = False
    told_s: float | None = None  # of this camera, last
    owned: set[int] = field(default_factory=set)  # terms by which it has owned
    parcels: set[str] = field(default_factory=set)
    sequence: int = 0

    def apply(self, version: int, order: CameraOrder | None) -> None:
        if self.alive and version > self.version:
            self.version, self.order = version, order

    @property
    def goal(self):  # type: ignore[no-untyped-def]
        return goal_of(self.order, self.id, GATE)

    @property
    def tells(self) -> bool:
        return self.alive and self.watches and self.goal.watch and self.goal.voice == "tell"

    def live(self, now_s: float, lying: set[str]) -> None:
        """A second of its life. lying: parcels at the controller."""
        if not self.alive:
            return
        goal = self.goal
        if goal.pack and self.watches:
            lying.add(goal.pack)
        for wanted in (goal.keep, goal.begin):
            if wanted in lying:
                self.parcels.add(wanted)
        can = GATE.home == self.id or self.watches or (goal.begin != "" and goal.begin in self.parcels)
        self.watches = goal.watch and can
        if self.watches and self.order is not None and self.order.role == "own":
            self.owned.add(self.order.term)
        if self.tells:
            self.told_s = now_s

    def report(self) -> BoxReport:
        words = ()
        if self.order is not None:
            here = Here(
                state="watched" if self.watches else "absent", frames=5, clock=True, first_s=self.told_s, last_s=self.told_s,
                kept=self.goal.keep if self.goal.keep in self.parcels else "",
            )  # fmt: skip
            words = (word_for(self.order, here),)
        self.sequence += 1
        cameras = ()
        if self.id == GATE.home or self.watches:
            cameras = (CameraReport(camera=GATE, customer="house", networks=("lan",), demand_pct=20.0, version="v1"),)
        return BoxReport(
            box=self.id, site="s", boot="b", sequence=self.sequence, sent_utc="", software="", capacity_pct=100.0, spare_pct=0.0,
            memory_mib=None, networks=("lan",), cameras=cameras, confirmation=Confirmation(term=1, version=self.version, cameras=words),
        )  # fmt: skip


class AnythingMayFail(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now_s = 1_000.0
        self.boxes = {id: Box(id, watches=id == "a") for id in BOXES}
        self.lying: set[str] = set()
        self.version = 0
        self.reports: list[BoxReport] = []  # on their way, in any order
        self.desired: list[tuple[str, int, CameraOrder | None]] = []
        self.owners: dict[int, str] = {}
        self.state = FleetState(
            term=1, boxes={id: BoxView(id=id, site="s", joined_utc_s=0.0, online=True, seen_utc_s=self.now_s) for id in BOXES}
        )
        self.settle()

    # --- what happens -------------------------------------------------------------------------------------------------

    @rule(rounds=st.integers(1, 5))
    def all_goes_well_for_a_while(self, rounds: int) -> None:
        self.exchange(rounds, 1)

    @rule(where=st.sampled_from(BOXES), rounds=st.integers(0, 3), also_dies=st.sampled_from(BOXES))
    def a_move_goes_on_for_a_while_and_a_box_dies(self, where: str, rounds: int, also_dies: str) -> None:
        self.somebody_wishes_a_move(where, "move")
        self.exchange(rounds, 1)
        self.a_box_dies(also_dies, True)

    @rule(seconds=st.sampled_from([1, 1, 1, 5, 30]))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            for box in self.boxes.values():
                box.live(self.now_s, self.lying)

    @rule(which=st.sampled_from(BOXES))
    def a_box_reports(self, which: str) -> None:
        if self.boxes[which].alive:
            self.reports.append(self.boxes[which].report())

    @rule(at=st.integers(0, 50), doubled=st.booleans())
    def a_report_arrives(self, at: int, doubled: bool) -> None:
        if self.reports:
            report = self.reports[at % len(self.reports)]
            if not doubled:
                self.reports.remove(report)
            self.hear(report)

    @rule(at=st.integers(0, 50), doubled=st.booleans())
    def a_wish_arrives(self, at: int, doubled: bool) -> None:
        if self.desired:
            wish = self.desired[at % len(self.desired)]
            if not doubled:
                self.desired.remove(wish)
            self.boxes[wish[0]].apply(wish[1], wish[2])

    @rule(kind=st.sampled_from(["reports", "wishes"]))
    def all_that_is_on_its_way_is_lost(self, kind: str) -> None:
        (self.reports if kind == "reports" else self.desired).clear()

    @rule(which=st.sampled_from(BOXES), will=st.booleans())
    def a_box_dies(self, which: str, will: bool) -> None:
        self.boxes[which].alive = False
        self.boxes[which].watches = False
        if will:
            self.see(which, online=False)

    @rule(which=st.sampled_from(BOXES))
    def a_box_comes_back(self, which: str) -> None:
        if not self.boxes[which].alive:
            self.boxes[which].alive = True
            self.see(which, online=True, online_utc_s=self.now_s)

    @rule(where=st.sampled_from(BOXES), cause=st.sampled_from(["move", "drain", "return"]))
    def somebody_wishes_a_move(self, where: str, cause: str) -> None:
        if not is_dead(self.state, lease_of(self.state, GATE).box, RULES.handoff.patience, self.now_s):
            self.state = begin_handoff(
                self.state, GATE, where, cause=cause, reason="wished", rules=RULES.handoff, now_utc_s=self.now_s  # type: ignore[arg-type]
            )  # fmt: skip

    @rule()
    def the_controller_decides(self) -> None:
        self.round()

    @rule()
    def the_controller_is_killed(self) -> None:
        """What it has written is all that it has."""
        leases = [decode(CameraLease, as_dict(lease)) for lease in self.state.leases.values()]
        handoffs = [decode(Handoff, as_dict(handoff)) for handoff in self.state.handoffs.values()]
        self.state = replace(self.state, leases={x.camera: x for x in leases}, handoffs={x.camera: x for x in handoffs})

    # --- what must be so ----------------------------------------------------------------------------------------------

    @invariant()
    def a_term_is_given_to_one_box_only(self) -> None:
        for box_id, orders in orders_of(self.state).items():
            for order in orders:
                if order.role == "own":
                    assert self.owners.setdefault(order.term, box_id) == box_id, f"term {order.term} was given to two boxes"

    @invariant()
    def a_source_is_not_released_before_its_target_has_said_that_it_owns(self) -> None:
        handoff = self.state.handoffs.get(GATE)
        if handoff is not None and handoff.phase in ("release", "done") and handoff.cause != "takeover":
            assert handoff.term in self.boxes[handoff.target].owned

    @invariant()
    def the_lease_names_one_box_of_the_fleet(self) -> None:
        assert lease_of(self.state, GATE).box in BOXES

    def teardown(self) -> None:
        """Once everything is quiet: the camera is told by exactly one box that lives, if any can."""
        if not hasattr(self, "boxes"):
            return
        standby = lease_of(self.state, GATE).standby
        self.ready = (
            {standby: bool(standby) and self.boxes[standby].goal.keep in self.boxes[standby].parcels - {""}} if standby else {}
        )
        self.settle()
        alive = [box for box in self.boxes.values() if box.alive]
        telling = [box.id for box in alive if box.tells]
        assert len(telling) <= 1, f"two boxes tell: {telling}, {self.state.leases}, {self.state.handoffs}"
        owner = lease_of(self.state, GATE)
        able = [box.id for box in alive if box.id in (GATE.home, owner.box) or self.ready.get(box.id)]
        if able:
            assert telling == [owner.box], f"{able} could tell, {telling} tells: {owner}, {self.state.handoffs}"

    # --- inside -------------------------------------------------------------------------------------------------------

    def see(self, box_id: str, **what: object) -> None:
        view = replace(self.state.boxes[box_id], **what)  # type: ignore[arg-type]
        self.state = replace(self.state, boxes={**self.state.boxes, box_id: view})

    def hear(self, report: BoxReport) -> None:
        """As the controller's inbox: what is older than what is known changes nothing."""
        known = self.state.boxes[report.box].report
        if known is None or report.sequence > known.sequence:
            self.see(report.box, report=report, seen_utc_s=self.now_s)

    def round(self) -> None:
        self.state = replace(self.state, parcels=frozenset(self.lying))
        intents = plan_placement(self.state, RULES, self.now_s)
        advanced = advance_handoffs(carry_out(self.state, intents, RULES, self.now_s), RULES.handoff, self.now_s)
        self.state = advanced.state
        again = advance_handoffs(self.state, RULES.handoff, self.now_s)
        assert again.state == self.state, "advancing twice is not advancing once"
        self.version += 1
        for box_id, orders in advanced.orders.items():
            self.desired.append((box_id, self.version, orders[0] if orders else None))

    def settle(self) -> None:
        """Everybody hears everybody for ten minutes."""
        self.reports.clear()
        self.exchange(60, 10)

    def exchange(self, rounds: int, seconds: int) -> None:
        for _ in range(rounds):
            self.time_passes(seconds)
            for box in self.boxes.values():
                self.see(box.id, online=box.alive)
                if box.alive:
                    self.hear(box.report())
            self.round()
            while self.desired:
                self.boxes[self.desired[-1][0]].apply(*self.desired.pop()[1:])


TestAnythingMayFail = AnythingMayFail.TestCase
TestAnythingMayFail.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
