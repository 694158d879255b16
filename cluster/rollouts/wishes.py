"""What the owner may wish of rollouts: `apply` a `RolloutWish`, or call what stands behind it. UsageError where it cannot be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cluster.rollouts.evidence import cleared
from cluster.rollouts.rules import begin_step, decided, observed
from cluster.rollouts.seen import Seen, owner_of, seen_in
from cluster.rollouts.types import Rollout, RolloutRules, Watched
from cluster.types import FleetState
from configs.errors import UsageError
from scheduler.fleet.types import CameraKey


@dataclass(frozen=True, kw_only=True)
class RolloutWish:
    """what: is to happen with the rollout `id`; forget: one that has ended goes from the list. parcel, cameras, name, rules: of one
    that begins, see `begin`."""

    what: Literal["begin", "stop", "go_on", "roll_back", "forget"]
    id: str
    parcel: str = ""
    cameras: tuple[CameraKey, ...] = ()
    name: str = ""
    rules: RolloutRules = RolloutRules()
    reason: str = ""


def apply(wish: RolloutWish, state: FleetState, now_utc_s: float, *, by: str = "owner") -> FleetState:
    """The state in which it is wished; boxes hear of it after the next `advance`."""
    rollouts = dict(state.rollouts)
    if wish.what == "begin":
        rollouts[wish.id] = begin(
            rollouts,
            state,
            now_utc_s,
            id=wish.id,
            parcel=wish.parcel,
            cameras=wish.cameras,
            name=wish.name,
            rules=wish.rules,
            by=by,
        )
        return replace(state, rollouts=rollouts)
    rollout = rollouts.get(wish.id)
    if rollout is None:
        raise UsageError(f"there is no rollout {wish.id[:80]}", subject=wish.id, code="not_found")
    if wish.what == "forget":
        if rollout.state not in ("done", "returned"):
            raise _not_now(rollout, "be forgotten")
        del rollouts[wish.id]
    elif wish.what == "stop":
        rollouts[wish.id] = stop(rollout, now_utc_s, by=by, reason=wish.reason)
    elif wish.what == "go_on":
        rollouts[wish.id] = go_on(rollout, state, now_utc_s, by=by, reason=wish.reason)
    else:
        rollouts[wish.id] = roll_back(rollout, now_utc_s, by=by, reason=wish.reason)
    return replace(state, rollouts=rollouts)


def begin(
    rollouts: Mapping[str, Rollout], state: FleetState, now_utc_s: float, *, id: str, parcel: str, cameras: Sequence[CameraKey] = (),
    name: str = "", rules: RolloutRules | None = None, by: str = "owner",
) -> Rollout:  # fmt: skip
    """A new rollout of the bundle `parcel` to `cameras` (none: all that are watched now). It offers nothing before the next `advance`.
    The first box is one that is there, raises no alarm and has measured the most cameras, so that harm is seen where it is small; the
    others follow in an order that only their names and the rollout's decide."""
    if id in rollouts:
        raise UsageError(f"there is a rollout {id} already", subject=id, code="taken")
    seen = seen_in(state)
    chosen = sorted(set(cameras) or seen.cameras)
    unknown = [camera for camera in chosen if camera not in seen.cameras]
    if unknown or not chosen:
        raise UsageError(
            f"no box watches {unknown[0]}" if unknown else "no box watches a camera", subject=id, code="not_found",
            remedy="the fleet view lists the cameras",
        )  # fmt: skip
    busy = next((w.camera for r in rollouts.values() if r.state in ("running", "stopped", "returning") for w in r.cameras
                 if w.camera in set(chosen)), None)  # fmt: skip
    if busy is not None:
        raise UsageError(
            f"camera {busy} is in another rollout", subject=str(busy), code="busy", remedy="let that one end, or roll it back"
        )
    watched = tuple(
        Watched(camera=camera, group=owner_of(state, camera), last=seen.cameras[camera].quality) for camera in chosen
    )
    try:
        made = Rollout(
            id=id, parcel=parcel, name=name, cameras=watched, rules=rules or RolloutRules(), begun_utc_s=now_utc_s,
            boxes=_order(id, watched, state, seen),
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(str(error), subject=id) from None
    made = observed(made, seen, now_utc_s)
    return decided(made, now_utc_s, "made", f"{len(watched)} cameras on {len(made.boxes)} boxes", by)


def stop(rollout: Rollout, now_utc_s: float, *, by: str = "owner", reason: str = "") -> Rollout:
    """Nothing more is offered; whoever serves the version goes on with it."""
    if rollout.state != "running":
        raise _not_now(rollout, "stop")
    return decided(replace(rollout, state="stopped"), now_utc_s, "stopped", reason or "the owner's wish", by)


def go_on(rollout: Rollout, state: FleetState, now_utc_s: float, *, by: str = "owner", reason: str = "") -> Rollout:
    """A stopped one goes on where it was: what spoke against it until now (refusals, alarms, fallen quality) does so no more, only what
    comes. A running one begins its next step at once."""
    if rollout.state not in ("running", "stopped"):
        raise _not_now(rollout, "go on")
    seen = seen_in(state)
    rollout = observed(rollout, seen, now_utc_s)
    why = reason or "the owner's wish"
    if rollout.state == "running":
        return begin_step(rollout, seen, now_utc_s, why, by)
    owners = {seen.owners.get(w.camera, w.group) for w in rollout.cameras if w.step is not None}
    known = {(box, sentence) for box in owners for sentence in seen.alarms.get(box, ())}
    pardoned = replace(
        rollout, state="running", settled_utc_s=None, alarms=tuple(sorted({*rollout.alarms, *known})),
        cameras=tuple(_pardoned(w, rollout.step) for w in rollout.cameras),
    )  # fmt: skip
    return decided(pardoned, now_utc_s, "goes on", why, by)


def roll_back(rollout: Rollout, now_utc_s: float, *, by: str = "owner", reason: str = "") -> Rollout:
    """Every camera that serves the version gets back the one before."""
    if rollout.state in ("returning", "returned"):
        raise _not_now(rollout, "roll back")
    return decided(replace(rollout, state="returning"), now_utc_s, "rolls back", reason or "the owner's wish", by)


# --- inside -----------------------------------------------------------------------------------------------------------


def _pardoned(watched: Watched, step: int) -> Watched:
    """Its quality of now is what later falls are measured from, for every step so far."""
    starts = tuple(watched.last for _ in range(step + 1))
    refused = watched.answer in ("refused", "failed")
    return replace(cleared(watched, starts), forgiven=watched.forgiven or refused)


def _order(id: str, cameras: Sequence[Watched], state: FleetState, seen: Seen) -> tuple[str, ...]:
    measured: dict[str, int] = {}
    for watched in cameras:
        measured[watched.group] = measured.get(watched.group, 0) + (watched.last is not None)

    def chance(box: str) -> str:
        return hashlib.sha256(f"{id}/{box}".encode()).hexdigest()

    def first(box: str) -> tuple[object, ...]:
        view = state.boxes.get(box)
        unfit = view is None or not view.online or bool(view.doubts) or view.draining or bool(seen.alarms.get(box))
        return (unfit, -measured[box], chance(box))

    head = min(measured, key=first)
    return (head, *sorted((box for box in measured if box != head), key=chance))


def _not_now(rollout: Rollout, what: str) -> UsageError:
    return UsageError(f"rollout {rollout.id} is {rollout.state}: it cannot {what}", subject=rollout.id, code="not_now")
