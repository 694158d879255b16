"""Which box watches a camera, who stands by for it, and what changes. Pure: a state and a time in, intents with reasons out.

ESCHER's part (card, sections 5 and 6): hard constraints say which boxes may watch a camera at all (`cluster.placement.may`): they reach
its network, are there and believed, are not being emptied, have no part in it already. VideoStorm's part (card, section 8): of those,
the three scores choose (`scheduler.videostorm.placement`, the same functions as everywhere), and a camera moves only if that wins more
than tau.
What both leave open and is decided here: a camera that has just moved rests (`settle_s`), a move that failed is not tried again at once
(`retry_s`), few are on their way at a time, a camera that was taken over goes home when its home has been back for a while.

Order: takeovers first (nobody watches these cameras), then boxes to be emptied, cameras that go home, standbys, moves that pay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cluster.placement.handoff import HandoffRules, begin_handoff
from cluster.placement.may import Allowed
from cluster.placement.sight import cameras_of, is_away, is_dead, labels_stay, lease_of, parcel_id, under_way, word_of
from cluster.types import CameraLease, FleetState, Handoff
from scheduler.fleet.types import CameraKey, CameraReport
from scheduler.videostorm.placement import Demand, Machine, Move, PlacementRules, best_move, place

What = Literal["move", "drain", "takeover", "return", "standby", "stay"]

#: Share and memory that a camera is taken to need before anybody has measured it.
UNKNOWN_PCT, SHARE, MEMORY = 5.0, "share_pct", "memory_mib"
#: Memory of a box that does not say how much it has (one without a GPU): it does not limit.
PLENTY_MIB = 1e9


@dataclass(frozen=True, kw_only=True)
class FleetRules:
    """scores: tau, weights and how many moves may be under way at a time; takeovers: how many of these; settle_s: rest of a camera that
    has moved; retry_s: before what failed is tried again; home_s: how long a home must be back before its cameras return; standby:
    whether cameras get a standby; refresh_s: age at which a standby's parcel is made anew when the model has changed."""

    handoff: HandoffRules = HandoffRules()
    scores: PlacementRules = PlacementRules(balanced=SHARE)
    takeovers: int = 8
    settle_s: float = 600.0
    retry_s: float = 120.0
    home_s: float = 120.0
    standby: bool = True
    refresh_s: float = 3600.0


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What is to happen with a camera. box: where to ('' with `stay`, and with `standby` where nobody may stand by any more); reason:
    in words; gain: score won, 0 where that was not the reason; parcel: of a standby."""

    camera: CameraKey
    what: What
    box: str
    reason: str
    gain: float = 0.0
    parcel: str = ""


def plan_placement(state: FleetState, rules: FleetRules, now_utc_s: float) -> tuple[Intent, ...]:
    """What is to change now, and which cameras stay though somebody could wish otherwise, with the reason. A fleet of one box changes
    nothing, nor does a controller that hears nobody: then it is more likely the one that is cut off."""
    patience = rules.handoff.patience
    if len(state.boxes) < 2 or all(is_away(state, b, patience, now_utc_s) for b in state.boxes):
        return ()
    planner = _Planner(state, rules, now_utc_s)
    for step in (planner.takeovers, planner.drains, planner.returns, planner.standbys, planner.moves):
        step()
    return tuple(planner.intents)


def carry_out(state: FleetState, intents: Iterable[Intent], rules: FleetRules, now_utc_s: float) -> FleetState:
    """The state with the intents begun: handoffs for those that travel, leases with their standby."""
    intents = tuple(intents)
    standing = {  # all at once: the first round of a large fleet has thousands
        intent.camera: replace(lease_of(state, intent.camera), standby=intent.box, standby_parcel=intent.parcel)
        for intent in intents
        if intent.what == "standby"
    }
    if standing:
        state = replace(state, leases={**state.leases, **standing})
    for intent in intents:
        if intent.what != "stay" and intent.what != "standby":
            state = begin_handoff(
                state,
                intent.camera,
                intent.box,
                cause=intent.what,
                reason=intent.reason,
                rules=rules.handoff,
                now_utc_s=now_utc_s,
            )
    return state


def machines_of(state: FleetState) -> dict[str, Machine]:
    """Every box that has reported, with the cameras that it owns or is getting."""
    held: defaultdict[str, list[Demand]] = defaultdict(list)
    for camera, report in sorted(cameras_of(state).items()):
        for box_id in _holders(state, camera):
            held[box_id].append(demand_of(report))
    found = {}
    for box_id, box in sorted(state.boxes.items()):
        if box.report is None or box.capacity_pct <= 0:
            continue
        capacity = {SHARE: box.capacity_pct, MEMORY: box.report.memory_mib or PLENTY_MIB}
        found[box_id] = Machine(id=box_id, capacity=capacity, queries=tuple(held[box_id]))
    return found


def demand_of(report: CameraReport) -> Demand:
    """What a camera needs, as the scores know it."""
    need = {SHARE: report.demand_pct or UNKNOWN_PCT, MEMORY: report.memory_mib}
    return Demand(id=str(report.camera), need=need, lag_goal_s=report.lag_goal_s)


def _holders(state: FleetState, camera: CameraKey) -> set[str]:
    handoff = under_way(state, camera)
    return {lease_of(state, camera).box, *((handoff.source, handoff.target) if handoff else ())}


class _Planner:
    """One round. What a step intends counts for the steps after it."""

    def __init__(self, state: FleetState, rules: FleetRules, now_utc_s: float) -> None:
        self.state, self.rules, self.now_utc_s = state, rules, now_utc_s
        self.cameras = {**self._untold(), **cameras_of(state)}
        self.machines = machines_of(state)
        self.allowed = Allowed(state, rules.handoff.patience, now_utc_s)
        self.largest_goal_s = max((q.lag_goal_s for m in self.machines.values() for q in m.queries), default=0.0)
        self.intents: list[Intent] = []
        self.taken: set[CameraKey] = set()  # those with an intent to travel, or on their way
        self.taken.update(camera for camera in self.cameras if under_way(state, camera) is not None)

    # --- steps --------------------------------------------------------------------------------------------------------

    def takeovers(self) -> None:
        """Cameras whose owner is dead, or says that it cannot watch a guest."""
        room = self.rules.takeovers - self._under_way(lambda handoff: handoff.cause == "takeover")
        for lease in self._resting():
            if not self._is_lost(lease):
                continue
            why = f"box {lease.box} is gone" if self._is_dead(lease.box) else f"box {lease.box} cannot watch it"
            if lease.pinned:
                self._stay(lease.camera, f"{why}, but the camera is pinned to it")
                continue
            found = self._rescuer(lease)
            if found is None:
                self._stay(lease.camera, f"{why}, and nobody may take it over: {self._refusals(lease)}")
            elif room > 0:
                room -= 1
                self._travel(lease.camera, "takeover", found, why)

    def drains(self) -> None:
        """Cameras of boxes that are to be emptied."""
        for lease in self._resting():
            box = self.state.boxes.get(lease.box)
            if box is None or not box.draining:
                continue
            why = f"box {lease.box} is to be emptied"
            if lease.pinned:
                self._stay(lease.camera, f"{why}, but the camera is pinned to it")
            elif self._may_travel(lease):
                target = self._best(lease)
                if target is None:
                    self._stay(lease.camera, f"{why}, but nobody may take it: {self._refusals(lease)}")
                else:
                    self._travel(lease.camera, "drain", target, why)

    def returns(self) -> None:
        """Cameras that were taken over or drained, whose home has been back for a while."""
        for lease in self._resting():
            home = lease.camera.home
            if lease.box == home or lease.cause not in ("takeover", "drain") or lease.pinned or not self._may_travel(lease):
                continue
            refusal = self._refusal(lease, home)
            box = self.state.boxes.get(home)
            back_s = self.now_utc_s - max(box.online_utc_s, lease.since_utc_s) if box is not None else 0.0
            if not refusal and back_s >= self.rules.home_s and self._has_room(lease.camera, home):
                self._travel(lease.camera, "return", home, f"its home has been back for {back_s:.0f} s")

    def standbys(self) -> None:
        """Somebody else who has what is needed at hand, for every camera that may be taken over."""
        if not self.rules.standby:
            return
        for lease in self._resting():
            report, travels = self.cameras[lease.camera], lease.camera in self.taken
            if travels or lease.pinned or self._is_lost(lease):
                continue
            good = lease.standby and not self._refusal(lease, lease.standby)
            if good:
                parcel = self._standby_parcel(lease, report, lease.standby)
                if parcel != lease.standby_parcel:
                    self._stand_by(lease, lease.standby, parcel, "its model has changed")
                continue
            target = self._best(lease, fits=False)
            if target is not None:
                self._stand_by(lease, target, self._standby_parcel(lease, report, target), f"if box {lease.box} is lost")
            elif lease.standby and is_dead(self.state, lease.standby, self.rules.handoff.patience, self.now_utc_s):
                self._stand_by(lease, "", "", f"box {lease.standby} is gone and nobody else may")

    def moves(self) -> None:
        """Moves that win more than tau, the best first (VideoStorm, section 8), a few at a time. Each is scored with those before it."""
        room = self.rules.scores.moves - self._under_way(lambda handoff: handoff.cause in ("move", "return"))
        room -= sum(intent.what == "return" for intent in self.intents)
        if room <= 0:
            return
        paying = [(move, lease) for lease in self._resting() if (move := self._paying(lease)) is not None]
        for _, lease in sorted(paying, key=lambda pair: (-pair[0].gain, pair[0].query)):
            move = self._paying(lease)
            if move is None:
                continue
            why = f"its score is higher there by {move.gain:.3f} (more than {self.rules.scores.tau:g})"
            self._travel(lease.camera, "move", move.target, why, gain=move.gain)
            room -= 1
            if room == 0:
                return

    def _untold(self) -> dict[CameraKey, CameraReport]:
        """Guests of dead boxes that nobody's last report names: their homes can take them back."""
        lost = (lease for lease in self.state.leases.values() if lease.box != lease.camera.home and self._is_dead(lease.box))
        return {lease.camera: CameraReport(camera=lease.camera, customer="") for lease in lost}

    # --- questions ----------------------------------------------------------------------------------------------------

    def _resting(self) -> list[CameraLease]:
        """Cameras that nobody moves, in the order of their names."""
        return [lease_of(self.state, camera) for camera in sorted(self.cameras) if camera not in self.taken]

    def _under_way(self, counts: Callable[[Handoff], bool]) -> int:
        found = (under_way(self.state, camera) for camera in self.state.handoffs)
        return sum(counts(handoff) for handoff in found if handoff is not None)

    def _is_dead(self, box_id: str) -> bool:
        return is_dead(self.state, box_id, self.rules.handoff.patience, self.now_utc_s)

    def _is_lost(self, lease: CameraLease) -> bool:
        word = word_of(self.state, lease.box, lease.camera)
        failed = word is not None and word.stage == "failed" and word.term == lease.term and lease.box != lease.camera.home
        return failed or self._is_dead(lease.box)

    def _may_travel(self, lease: CameraLease) -> bool:
        """Whether a try that failed is long enough ago, and its owner can pack it."""
        before = self.state.handoffs.get(lease.camera)
        rests = before is not None and before.phase == "undone" and self.now_utc_s - before.phase_utc_s < self.rules.retry_s
        return not rests and not self._is_dead(lease.box)

    def _settled(self, lease: CameraLease) -> bool:
        return lease.since_utc_s == 0 or self.now_utc_s - lease.since_utc_s >= self.rules.settle_s

    def _taken_seats(self, lease: CameraLease) -> set[str]:
        """Where the camera is, and is going. Its standby's seat is the standby's to use."""
        return _holders(self.state, lease.camera)

    def _refusal(self, lease: CameraLease, box_id: str) -> str:
        return self.allowed.why_not(self.cameras[lease.camera], box_id, self._taken_seats(lease))

    def _refusals(self, lease: CameraLease) -> str:
        others = [b for b in sorted(self.state.boxes) if b != lease.box]
        said = [self._refusal(lease, b) or f"box {b} has no room, or nothing to begin from" for b in others[:4]]
        return (
            "; ".join(said) + (f" and {len(others) - 4} more" if len(others) > 4 else "") if said else "there is no other box"
        )

    def _candidates(self, lease: CameraLease) -> list[Machine]:
        found = self.allowed.boxes_for(self.cameras[lease.camera], self._taken_seats(lease))
        return [self.machines[box_id] for box_id in found if box_id in self.machines]

    def _best(self, lease: CameraLease, *, fits: bool = True) -> str | None:
        """The allowed box with the best score; fits=False: where nobody has room now, the emptiest may still stand by."""
        query, candidates = demand_of(self.cameras[lease.camera]), self._candidates(lease)
        found = place(query, candidates, self.rules.scores)
        if found is None and not fits and candidates:
            return min(candidates, key=lambda m: (m.taken(SHARE) / m.capacity[SHARE], m.id)).id
        return found

    def _has_room(self, camera: CameraKey, box_id: str) -> bool:
        machine = self.machines.get(box_id)
        return machine is not None and place(demand_of(self.cameras[camera]), [machine], self.rules.scores) is not None

    def _rescuer(self, lease: CameraLease) -> str | None:
        """Who can begin without the dead owner: its standby if that has it at hand, else its home. Watched badly on a full box is better
        than not watched, so room is no condition here."""
        word = word_of(self.state, lease.standby, lease.camera) if lease.standby else None
        ready = word is not None and word.stage == "standby"
        for box_id, can in ((lease.camera.home, True), (lease.standby, ready)):
            if can and box_id != lease.box and not self._refusal(lease, box_id):
                return box_id
        return lease.camera.home if self._is_last_resort(lease) else None

    def _is_last_resort(self, lease: CameraLease) -> bool:
        """Whether the camera's home could watch it, were it not being emptied: a wish to empty a box is no wish that nobody watches."""
        home = lease.camera.home
        return home != lease.box and not is_away(self.state, home, self.rules.handoff.patience, self.now_utc_s)

    def _paying(self, lease: CameraLease) -> Move | None:
        source = self.machines.get(lease.box)
        stays = lease.pinned or lease.camera in self.taken or source is None or self._is_lost(lease)
        if stays or source is None or not self._settled(lease) or not self._may_travel(lease):
            return None
        machines = [source, *self._candidates(lease)]
        return best_move(demand_of(self.cameras[lease.camera]), source, machines, self.largest_goal_s, self.rules.scores)

    def _standby_parcel(self, lease: CameraLease, report: CameraReport, box_id: str) -> str:
        """Made anew with another model, but not more often than `refresh_s`: named by the model and the hour, so to say."""
        before = lease.standby_parcel.rsplit(".", 1)[-1] if lease.standby == box_id else ""
        version, made = (before.rsplit("_", 1) + [""])[:2] if before else ("", "")
        made_s = float(made) * 60 if made.isdigit() else 0.0
        same = version == _plain(report.version) or self.now_utc_s - made_s < self.rules.refresh_s
        if before and lease.standby_parcel.startswith(f"{box_id}.") and same:
            return lease.standby_parcel
        return parcel_id(box_id, lease.camera, lease.term, f"{_plain(report.version)}_{int(self.now_utc_s // 60)}")

    # --- intents ------------------------------------------------------------------------------------------------------

    def _stay(self, camera: CameraKey, reason: str) -> None:
        self.intents.append(Intent(camera=camera, what="stay", box="", reason=reason))

    def _stand_by(self, lease: CameraLease, box_id: str, parcel: str, reason: str) -> None:
        self.intents.append(Intent(camera=lease.camera, what="standby", box=box_id, reason=reason, parcel=parcel))

    def _travel(self, camera: CameraKey, what: What, target: str, reason: str, *, gain: float = 0.0) -> None:
        self.intents.append(Intent(camera=camera, what=what, box=target, reason=reason, gain=gain))
        self.taken.add(camera)
        if target in self.machines:  # until it has arrived it counts on both
            self.machines[target] = self.machines[target].holding(demand_of(self.cameras[camera]))


def _plain(version: str) -> str:
    """A model's version as part of a parcel's name."""
    return "".join(c if c.isalnum() or c == "-" else "-" for c in version.lower())[:80]


def describe(state: FleetState, intents: Iterable[Intent] = ()) -> Mapping[CameraKey, str]:
    """Why each camera is where it is, for the fleet view: its lease's cause, its handoff, or what the plan said of it."""
    said = {intent.camera: f"{intent.what}: {intent.reason}" for intent in intents}
    for camera in cameras_of(state):
        lease, handoff = lease_of(state, camera), under_way(state, camera)
        if handoff is not None:
            stay = labels_stay(state, handoff)
            said[camera] = f"on its way to {handoff.target} ({handoff.phase}): {handoff.reason}{f'; {stay}' if stay else ''}"
        elif camera not in said:
            said[camera] = "at home" if lease.box == camera.home else f"on {lease.box} since a {lease.cause or 'move'}"
    return said
