"""How rollouts move on by themselves, and what boxes are offered meanwhile.

Ours: none of the papers has it. One box, then parts of the fleet, is how every careful release goes; the paired test with the rest of
the fleet as its control is difference in differences.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from cluster.rollouts.evidence import is_undecided, taken_in
from cluster.rollouts.harm import compared, harm
from cluster.rollouts.seen import Seen, seen_in
from cluster.rollouts.types import MOST_DECISIONS, Decision, Rollout, Watched
from cluster.types import FleetState
from scheduler.fleet.types import CameraKey, ModelOffer, OfferWord

#: A step in which nothing new was measured goes on after so many soaks: two measurements can be the same number.
PATIENCE_SOAKS = 3.0


def advance(
    rollouts: Mapping[str, Rollout], state: FleetState, now_utc_s: float
) -> tuple[dict[str, Rollout], dict[str, tuple[ModelOffer, ...]]]:
    """The rollouts of the next moment, and all offers that stand then, by box (boxes with none are left out). now_utc_s: on the
    controller's clock. To be called at every round with the rollouts that it gave before, as often as one likes."""
    if not rollouts:
        return {}, {}
    seen = seen_in(state)
    moved = {id: _moved(rollout, seen, now_utc_s) for id, rollout in sorted(rollouts.items())}
    return moved, _offers(moved, seen)


def decided(rollout: Rollout, at_utc_s: float, what: str, reason: str, by: str = "rules") -> Rollout:
    """With one more decision; the oldest beyond `MOST_DECISIONS` go."""
    kept = (*rollout.decisions, Decision(at_utc_s=at_utc_s, what=what, reason=reason, by=by))[-MOST_DECISIONS:]
    return replace(rollout, decisions=kept)


def boxes_of_step(rollout: Rollout, step: int) -> tuple[str, ...]:
    """Boxes that have the offer once `step` has begun, in the order in which they got it."""
    if step < 0:
        return ()
    count = math.ceil(rollout.rules.steps_frac[step] * len(rollout.boxes) - 1e-9)
    return rollout.boxes[: max(1, count)]


def begin_step(rollout: Rollout, seen: Seen, now_utc_s: float, reason: str, by: str = "rules") -> Rollout:
    """The next step begins; done when there is none."""
    step = rollout.step + 1
    if step >= len(rollout.rules.steps_frac):
        return decided(replace(rollout, state="done"), now_utc_s, "done", reason, by)
    before, boxes = set(boxes_of_step(rollout, rollout.step)), boxes_of_step(rollout, step)
    fresh = [box for box in boxes if box not in before]
    cameras = tuple(_in_step(watched, step, watched.step is None and watched.group in boxes) for watched in rollout.cameras)
    owners = {seen.owners.get(w.camera, w.group) for w in cameras if w.step == step}
    known = {(box, sentence) for box in {*fresh, *owners} for sentence in seen.alarms.get(box, ())}
    begun = replace(
        rollout, step=step, cameras=cameras, step_utc_s=now_utc_s, settled_utc_s=None,
        alarms=tuple(sorted({*rollout.alarms, *known})),
    )  # fmt: skip
    named = f" ({', '.join(fresh)})" if 0 < len(fresh) <= 3 else ""
    told = f"step {step + 1} of {len(rollout.rules.steps_frac)}: {len(boxes)} of {len(rollout.boxes)} boxes{named}"
    begun = decided(begun, now_utc_s, told, reason, by)
    return begun if fresh else begin_step(begun, seen, now_utc_s, "the step has no further box", by)


def parcel_for(box: str, bundle: str) -> str:
    """Name of the parcel that brings a box the bundle (docs/fleet/controller.md: parcels are named by whom they are for)."""
    return f"{box}.{bundle}"


def observed(rollout: Rollout, seen: Seen, now_utc_s: float) -> Rollout:
    """With what its cameras say now."""
    cameras = tuple(_watched(rollout, watched, seen, now_utc_s) for watched in rollout.cameras)
    return rollout if cameras == rollout.cameras else replace(rollout, cameras=cameras)


# --- inside -----------------------------------------------------------------------------------------------------------


def _moved(rollout: Rollout, seen: Seen, now_utc_s: float) -> Rollout:
    if rollout.state == "returned":
        return rollout
    rollout = observed(rollout, seen, now_utc_s)
    if rollout.state == "running":
        return _running(rollout, seen, now_utc_s)
    if rollout.state == "returning" and not [w for w in rollout.cameras if _to_return(w) and w.camera in seen.cameras]:
        return decided(replace(rollout, state="returned"), now_utc_s, "rolled back", "no camera serves it any more")
    return rollout


def _running(rollout: Rollout, seen: Seen, now_utc_s: float) -> Rollout:
    if rollout.step < 0:
        return begin_step(rollout, seen, now_utc_s, "it begins")
    against = harm(rollout, seen)
    if against:
        return decided(replace(rollout, state="stopped"), now_utc_s, "stopped", against)
    present = _of_step(rollout, seen)
    answered = [w for w in present if w.answer]
    if len(answered) < rollout.rules.answered_frac * len(present):
        return rollout if rollout.settled_utc_s is None else replace(rollout, settled_utc_s=None)
    if rollout.settled_utc_s is None:
        return replace(rollout, settled_utc_s=now_utc_s)
    waited_s = now_utc_s - rollout.settled_utc_s
    if waited_s < rollout.rules.soak_s:
        return rollout
    serving = [w for w in present if w.answer == "serving"]
    found = compared(rollout, serving)
    open_question = found is None or any(map(is_undecided, serving))
    if serving and open_question and waited_s < PATIENCE_SOAKS * rollout.rules.soak_s:
        return rollout
    mean = f"quality {found.mean:+.3f} on {found.cameras} of them" if found is not None else "nothing new was measured"
    reason = f"{len(serving)} of {len(answered)} cameras took it, {mean}, {waited_s / 60:.0f} min without harm"
    return begin_step(rollout, seen, now_utc_s, reason)


def _in_step(watched: Watched, step: int, joins: bool) -> Watched:
    """A camera when a step begins. joins: it is offered the version from now on."""
    watched = replace(watched, starts=(*watched.starts, watched.last))
    return replace(watched, step=step, start_error=watched.error) if joins else watched


def _of_step(rollout: Rollout, seen: Seen) -> list[Watched]:
    """Cameras of the present step, less those that are there no more: nobody can answer for them."""
    return [w for w in rollout.cameras if w.step == rollout.step and w.camera in seen.cameras]


def waiting_for(rollout: Rollout, state: FleetState, now_utc_s: float) -> str:
    """What a running rollout waits for, in words, for people."""
    if rollout.state == "returning":
        return f"{sum(1 for w in rollout.cameras if _to_return(w))} cameras to give it back"
    if rollout.state != "running":
        return ""
    seen = seen_in(state)
    silent = [w for w in _of_step(rollout, seen) if not w.answer]
    if rollout.settled_utc_s is None:
        away = sorted({seen.owners[w.camera] for w in silent} & seen.away)
        told = f"; away: {', '.join(away[:3])}{' ...' if len(away) > 3 else ''}" if away else ""
        words = (seen.words.get((rollout.id, w.camera)) for w in silent)
        problems = sorted({word.problem for word in words if word is not None and word.stage == "judging" and word.problem})
        return "; ".join((f"answers of {len(silent)} cameras{told}", *problems[:2]))
    left_s = rollout.settled_utc_s + rollout.rules.soak_s - now_utc_s
    return f"{left_s / 60:.0f} min more without harm" if left_s > 0 else "a measurement of quality"


def _watched(rollout: Rollout, watched: Watched, seen: Seen, now_utc_s: float) -> Watched:
    report, word = seen.cameras.get(watched.camera), seen.words.get((rollout.id, watched.camera))
    if word is not None and watched.step is not None and word.stage != "judging":
        watched = _answered(watched, word)
    if report is None:
        return watched
    box = seen.owners[watched.camera]
    return taken_in(watched, report, box, seen.messages.get(box, ""), rollout.rules, now_utc_s)


def _answered(watched: Watched, word: OfferWord) -> Watched:
    if (watched.answer, watched.problem, watched.version) == (word.stage, word.problem, word.version):
        return watched
    if watched.answer == "withdrawn":  # a late word of before
        return watched
    return replace(watched, answer=word.stage, problem=word.problem, version=word.version)  # type: ignore[arg-type]  # all but "judging"


def _to_return(watched: Watched) -> bool:
    """Also one that has not answered: it may be taking it just now."""
    return watched.step is not None and watched.answer in ("", "serving")


def _offers(rollouts: Mapping[str, Rollout], seen: Seen) -> dict[str, tuple[ModelOffer, ...]]:
    offers: defaultdict[str, list[ModelOffer]] = defaultdict(list)
    for rollout in rollouts.values():
        if rollout.state not in ("running", "returning"):
            continue
        back = rollout.state == "returning"
        by_box: defaultdict[str, list[CameraKey]] = defaultdict(list)
        for watched in rollout.cameras:
            if watched.step is not None and watched.camera in seen.cameras and (_to_return(watched) or not back):
                by_box[seen.owners[watched.camera]].append(watched.camera)
        for box, cameras in by_box.items():
            parcel = "" if back else parcel_for(box, rollout.parcel)
            offers[box].append(ModelOffer(rollout=rollout.id, parcel=parcel, cameras=tuple(sorted(cameras)), withdraw=back))
    return {box: tuple(offered) for box, offered in sorted(offers.items())}
