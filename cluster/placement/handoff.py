"""A camera on its way between boxes: start before stop, one owner by lease. Pure: a state and a time in, a state and orders out.

    prepare --parcel lies here--> warm --target is warm--> switch --target owns--> release --source let go--> done
       \\-------------\\----------------> undone <-----------/  (the target is lost before the source let go)

VideoStorm, card section 8: start a copy on the target, give both the input, stop the old copy after a short overlap. What the paper
leaves open is who counts when either of them, the controller or a message is lost. Here: the lease has a term, and a term is given to
one box only; the source goes on until the target has said that it owns the camera; then the source stops and says up to which capture
time it has told, and the target, which has kept its frames since, tells those after that. So every frame is told once, whatever is
late. Before its word the source sends the state of the camera's objects and counts after that very frame; the target goes on from it.
Everything is read from the newest report of each box and said again in every `Desired`: nothing depends on a message arriving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cluster.placement.sight import (
    UNDER_WAY,
    Patience,
    has_listened,
    is_dead,
    labels_stay,
    lease_of,
    parcel_id,
    told_up_to_s,
    word_of,
)
from cluster.types import CameraLease, FleetState, Handoff, Phase
from scheduler.fleet.types import CameraKey, CameraOrder, Role

Cause = Literal["move", "drain", "takeover", "return"]


@dataclass(frozen=True, kw_only=True)
class HandoffRules:
    """Longest times of the phases: prepare_s, warm_s, switch_s (then the camera stays with its source); release_s (then the target
    tells from the source's last known word on); kept_s: how long an ended handoff is remembered."""

    patience: Patience = Patience()
    prepare_s: float = 60.0
    warm_s: float = 60.0
    switch_s: float = 20.0
    release_s: float = 15.0
    kept_s: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """state: the next one; orders: what each box is to do with which camera, complete; said: what has changed, in sentences."""

    state: FleetState
    orders: Mapping[str, tuple[CameraOrder, ...]] = field(default_factory=dict)
    said: tuple[str, ...] = ()


def advance_handoffs(state: FleetState, rules: HandoffRules, now_utc_s: float) -> Advanced:
    """Takes every handoff as far as what is known allows, forgets old ones, and says what every box is to do with cameras. Called with
    every report that came and every round; calling it twice changes nothing more."""
    state, said = _caught_up(state, now_utc_s)
    for camera in sorted(state.handoffs):
        while True:
            after = _STEPS[state.handoffs[camera].phase](state, state.handoffs[camera], rules, now_utc_s)
            if after is state:
                break
            state = after
            if camera not in state.handoffs:
                break
            said.append(_sentence(state, state.handoffs[camera]))
    return Advanced(state=state, orders=orders_of(state), said=tuple(said))


def begin_handoff(
    state: FleetState, camera: CameraKey, target: str, *, cause: Cause, reason: str, rules: HandoffRules, now_utc_s: float
) -> FleetState:
    """A camera sets out for `target`. cause: move, drain, return: live, with a parcel from its owner; takeover: its owner is dead, the
    lease changes at once. No-op while it is on its way already, or is there."""
    lease, before = lease_of(state, camera), state.handoffs.get(camera)
    if lease.box == target or (before is not None and before.phase in UNDER_WAY):
        return state
    handoff = Handoff(
        camera=camera, source=lease.box, target=target, term=lease.term + 1, phase="prepare", cause=cause, reason=reason,
        began_utc_s=now_utc_s, phase_utc_s=now_utc_s, parcel=parcel_id(target, camera, lease.term + 1),
    )  # fmt: skip
    if cause == "takeover":
        parcel = lease.standby_parcel if target == lease.standby else ""
        handoff = replace(handoff, phase="switch", parcel=parcel)
        state = _with_lease(state, _handed_over(lease, handoff, now_utc_s, after_s=told_up_to_s(state, lease.box, camera)))
    elif camera not in state.leases:
        state = _with_lease(state, lease)
    return _with_handoff(state, handoff)


# --- what boxes know and this controller does not -----------------------------------------------------------------------


def _caught_up(state: FleetState, now_utc_s: float) -> tuple[FleetState, list[str]]:
    """A controller may begin with an old copy of its data: a back-up that was put back, a stand-by with a folder of its own. Cameras
    have changed boxes since, by terms that it does not know; what it says by lower ones boxes take for the past, and a camera would be
    watched by two, or by nobody. The home of a camera that was moved always has an order for it, so its word says how far terms
    are; who owns by that term keeps the camera. Only a home is believed: one that lies harms its own cameras."""
    said = []
    for home, box in sorted(state.boxes.items()):
        for word in box.report.confirmation.cameras if box.report is not None else ():
            if word.camera.home == home and word.term > _newest_term(state, word.camera):
                found = _newer_lease(state, word.camera, word.term, now_utc_s)
                if found is not None:
                    handoffs = {camera: other for camera, other in state.handoffs.items() if camera != word.camera}
                    state = replace(_with_lease(state, found), handoffs=handoffs)
                    said.append(f"{word.camera}: boxes know term {word.term}; box {found.box} owns it by term {found.term}")
    return state, said


def _newest_term(state: FleetState, camera: CameraKey) -> int:
    handoff = state.handoffs.get(camera)
    return max(lease_of(state, camera).term, handoff.term if handoff is not None else 0)


def _newer_lease(state: FleetState, camera: CameraKey, term: int, now_utc_s: float) -> CameraLease | None:
    """As it is by `term`; where nobody owns by it, the one that is known, above it. None: not all have been heard yet."""
    lease = lease_of(state, camera)
    words = {box_id: word_of(state, box_id, camera) for box_id in state.boxes}
    owners = [box_id for box_id, word in words.items() if word is not None and (word.stage, word.term) == ("owning", term)]
    if len(owners) == 1:
        [owner] = owners
        parcel = words[owner].parcel  # type: ignore[union-attr]
        return replace(
            lease, box=owner, term=term, since_utc_s=now_utc_s, parcel=parcel if parcel.startswith(f"{owner}.") else "", after_s=0.0,
            standby="", standby_parcel="", cause="takeover" if owner != camera.home else "",
        )  # fmt: skip
    if not has_listened(state, now_utc_s):
        return None
    return replace(lease, term=term + 1, since_utc_s=now_utc_s, after_s=0.0)


# --- the phases ---------------------------------------------------------------------------------------------------------


def _prepare(state: FleetState, handoff: Handoff, rules: HandoffRules, now_utc_s: float) -> FleetState:
    if handoff.parcel in state.parcels:
        return _to(state, handoff, "warm", now_utc_s)
    for box_id in (handoff.target, handoff.source):
        if is_dead(state, box_id, rules.patience, now_utc_s):
            return _undone(state, handoff, f"box {box_id} is gone", now_utc_s)
    if now_utc_s - handoff.phase_utc_s > rules.prepare_s:
        if handoff.target == handoff.camera.home:  # it knows its own camera: without what was learnt elsewhere, but watched
            return _to(state, replace(handoff, parcel=""), "warm", now_utc_s)
        word = word_of(state, handoff.source, handoff.camera)
        why = f" ({word.problem})" if word is not None and word.problem else ""
        return _undone(state, handoff, f"box {handoff.source} has not packed it in {rules.prepare_s:.0f} s{why}", now_utc_s)
    return state


def _warm(state: FleetState, handoff: Handoff, rules: HandoffRules, now_utc_s: float) -> FleetState:
    if is_dead(state, handoff.target, rules.patience, now_utc_s):
        return _undone(state, handoff, f"box {handoff.target} is gone", now_utc_s)
    word = word_of(state, handoff.target, handoff.camera)
    stage = word.stage if word is not None and word.term == handoff.term else ""
    if word is not None and stage == "failed":
        return _undone(state, handoff, f"box {handoff.target} cannot watch it: {word.problem}", now_utc_s)
    if stage == "warm":
        lease = _handed_over(lease_of(state, handoff.camera), handoff, now_utc_s, after_s=None)
        return _to(_with_lease(state, lease), handoff, "switch", now_utc_s)
    if now_utc_s - handoff.phase_utc_s > rules.warm_s:
        return _undone(state, handoff, f"box {handoff.target} was not warm in {rules.warm_s:.0f} s", now_utc_s)
    return state


def _switch(state: FleetState, handoff: Handoff, rules: HandoffRules, now_utc_s: float) -> FleetState:
    word = word_of(state, handoff.target, handoff.camera)
    stage = word.stage if word is not None and word.term == handoff.term else ""
    if stage == "owning":
        return _to(state, handoff, "release" if handoff.cause != "takeover" else "done", now_utc_s)
    lost = is_dead(state, handoff.target, rules.patience, now_utc_s)
    late = now_utc_s - handoff.phase_utc_s > rules.switch_s and handoff.cause != "takeover"
    if not (lost or late or stage == "failed"):
        return state
    why = word.problem if word is not None and stage == "failed" else "it is gone" if lost else "it does not answer"
    return _put_back(state, handoff, f"box {handoff.target} does not own it: {why}", rules, now_utc_s)


def _release(state: FleetState, handoff: Handoff, rules: HandoffRules, now_utc_s: float) -> FleetState:
    word = word_of(state, handoff.source, handoff.camera)
    if word is not None and word.stage == "released" and word.term >= handoff.term:
        return _tells(state, handoff, word.last_s or 0.0, now_utc_s)
    if is_dead(state, handoff.target, rules.patience, now_utc_s):
        return _put_back(state, handoff, f"box {handoff.target} is gone", rules, now_utc_s)
    waited = now_utc_s - handoff.phase_utc_s > rules.release_s
    if waited or is_dead(state, handoff.source, rules.patience, now_utc_s):
        return _tells(state, handoff, told_up_to_s(state, handoff.source, handoff.camera), now_utc_s)
    return state


def _ended(state: FleetState, handoff: Handoff, rules: HandoffRules, now_utc_s: float) -> FleetState:
    if now_utc_s - handoff.phase_utc_s <= rules.kept_s:
        return state
    return replace(state, handoffs={camera: other for camera, other in state.handoffs.items() if camera != handoff.camera})


_Step = Callable[[FleetState, Handoff, HandoffRules, float], FleetState]
_STEPS: Mapping[str, _Step] = {
    "prepare": _prepare, "warm": _warm, "switch": _switch, "release": _release, "done": _ended, "undone": _ended,
}  # fmt: skip


# --- what a state means for the boxes -----------------------------------------------------------------------------------


def orders_of(state: FleetState) -> dict[str, tuple[CameraOrder, ...]]:
    """What each box is to do with cameras now. A camera that is watched at home and was never moved is in no order."""
    found: dict[str, dict[CameraKey, CameraOrder]] = {box_id: {} for box_id in state.boxes}
    for camera in sorted({*state.leases, *state.handoffs}):
        for box_id, order in _orders_of(state, lease_of(state, camera), state.handoffs.get(camera)):
            if box_id in found:
                found[box_id].setdefault(camera, order)
    return {box_id: tuple(orders.values()) for box_id, orders in found.items()}


def _orders_of(state: FleetState, lease: CameraLease, handoff: Handoff | None) -> list[tuple[str, CameraOrder]]:
    """(box, order), those that count more first: a box has one order for a camera."""
    orders: list[tuple[str, CameraOrder]] = []

    def give(
        box_id: str, role: Role, term: int, parcel: str = "", after_s: float | None = 0.0, reason: str = "", packed: str = ""
    ) -> None:
        made = CameraOrder(
            camera=lease.camera, role=role, term=term, parcel=parcel, after_s=after_s, reason=reason, state=packed
        )
        orders.append((box_id, made))

    phase = handoff.phase if handoff is not None else ""
    if handoff is not None and phase == "prepare":
        give(
            handoff.source, "own", lease.term, handoff.parcel, lease.after_s, f"pack it for {handoff.target}: {handoff.reason}"
        )
    elif handoff is not None and phase == "warm":
        give(handoff.target, "warm", handoff.term, handoff.parcel, reason=handoff.reason)
    elif handoff is not None and phase == "switch" and handoff.cause != "takeover":
        give(handoff.source, "own", handoff.term - 1, reason=f"until {handoff.target} owns it")
    # With an order a box also says up to where it has told: needed if it dies before it is released.
    moved = lease.term > 0 or lease.box != lease.camera.home or phase == "warm"
    if moved or _to_pack(state, lease):
        come = _state_of(handoff) if handoff is not None and phase == "done" and lease.term == handoff.term else ""
        give(
            lease.box, "own", lease.term, _to_pack(state, lease) or lease.parcel, lease.after_s, lease.cause,
            come if come in state.parcels else "",
        )  # fmt: skip
    if handoff is not None and phase in ("release", "done"):
        give(
            handoff.source, "release", handoff.term, reason=f"box {handoff.target} owns it",
            packed=_state_of(handoff) if phase == "release" else "",
        )  # fmt: skip
    if lease.box != lease.camera.home:
        give(lease.camera.home, "release", lease.term, reason=f"box {lease.box} owns it")
    if lease.standby:
        give(lease.standby, "standby", lease.term, lease.standby_parcel, reason=f"if box {lease.box} is lost")
    return orders


def _state_of(handoff: Handoff) -> str:
    """The parcel in which the source hands the camera's state over, when it is released."""
    return parcel_id(handoff.target, handoff.camera, handoff.term, "state")


def _to_pack(state: FleetState, lease: CameraLease) -> str:
    """The parcel for its standby that the owner of a camera still owes, '': none, or it has not begun itself."""
    word = word_of(state, lease.standby, lease.camera) if lease.standby else None
    has_it = word is not None and word.stage == "standby" and word.parcel == lease.standby_parcel
    if not lease.standby_parcel or lease.standby_parcel in state.parcels or has_it:
        return ""
    own = word_of(state, lease.box, lease.camera)
    begun = lease.term == 0 or (own is not None and own.stage == "owning" and own.term == lease.term)
    return lease.standby_parcel if begun else ""


# --- changes of the state -----------------------------------------------------------------------------------------------


def _handed_over(lease: CameraLease, handoff: Handoff, now_utc_s: float, *, after_s: float | None) -> CameraLease:
    keeps = lease.standby not in (handoff.target, "")
    return replace(
        lease, box=handoff.target, term=handoff.term, since_utc_s=now_utc_s, parcel=handoff.parcel, after_s=after_s, cause=handoff.cause,
        standby=lease.standby if keeps else "", standby_parcel=lease.standby_parcel if keeps else "",
    )  # fmt: skip


def _tells(state: FleetState, handoff: Handoff, after_s: float, now_utc_s: float) -> FleetState:
    """The target tells all frames after `after_s`."""
    lease = replace(lease_of(state, handoff.camera), after_s=after_s)
    return _to(_with_lease(state, lease), handoff, "done", now_utc_s)


def _put_back(state: FleetState, handoff: Handoff, problem: str, rules: HandoffRules, now_utc_s: float) -> FleetState:
    """The lease has changed hands, but its new owner is lost. The source, which never stopped or can begin again, owns it by a new term;
    when it is dead as well the plan looks for another."""
    if is_dead(state, handoff.source, rules.patience, now_utc_s):
        return _with_handoff(state, replace(handoff, phase="undone", problem=problem, phase_utc_s=now_utc_s))
    lease = replace(
        lease_of(state, handoff.camera), box=handoff.source, term=handoff.term + 1, since_utc_s=now_utc_s, parcel="", after_s=0.0,
        cause="takeover" if handoff.source != handoff.camera.home else "",
    )  # fmt: skip
    ended = replace(handoff, phase="undone", problem=problem, phase_utc_s=now_utc_s)
    return _with_handoff(_with_lease(state, lease), ended)


def _undone(state: FleetState, handoff: Handoff, problem: str, now_utc_s: float) -> FleetState:
    """Nothing was handed over. The term that the target has heard of is used up: it goes to the source, so that no message that is
    still on its way can mean anybody else by it."""
    lease = replace(lease_of(state, handoff.camera), term=handoff.term)
    ended = replace(handoff, phase="undone", problem=problem, phase_utc_s=now_utc_s)
    return _with_handoff(_with_lease(state, lease), ended)


def _to(state: FleetState, handoff: Handoff, phase: Phase, now_utc_s: float) -> FleetState:
    return _with_handoff(state, replace(handoff, phase=phase, phase_utc_s=now_utc_s))


def _with_lease(state: FleetState, lease: CameraLease) -> FleetState:
    return replace(state, leases={**state.leases, lease.camera: lease})


def _with_handoff(state: FleetState, handoff: Handoff) -> FleetState:
    return replace(state, handoffs={**state.handoffs, handoff.camera: handoff})


def _sentence(state: FleetState, handoff: Handoff) -> str:
    where = f"{handoff.source} -> {handoff.target}"
    why = f": {handoff.problem}" if handoff.phase == "undone" else f" ({handoff.cause}: {handoff.reason})"
    stay = labels_stay(state, handoff) if handoff.phase in ("warm", "done") else ""
    return f"camera {handoff.camera}, {where}, {handoff.phase}{why}{f'; {stay}' if stay else ''}"
