"""What a box does with a camera order: pure, an order in, what should be true out. `edge.fleet.guests` makes it true.

A box asks for nothing and decides nothing here: whom a camera belongs to is the controller's (`cluster.placement.handoff`). What is
decided is what an order means for a camera of its own and for a guest, and what to say of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scheduler.fleet.types import CameraKey, CameraOrder, CameraWord

#: tell: those who listen are told each frame; hold: frames are kept until it is known which are to be told; silent: neither.
Voice = Literal["tell", "hold", "silent"]

#: A box that watches a camera and has not seen its clock after so long says that it is warm all the same.
NO_CLOCK_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What should be true of a camera here. watch: it is opened and analysed; voice, after_s: who is told of which frames; begin: parcel
    to begin from, '' none is needed or known; keep: parcel that should lie here; pack: parcel that should be made and sent; leave: the
    same of its state, before it is closed; take: parcel with the state to go on from, before the first frame is told."""

    watch: bool
    voice: Voice
    after_s: float = 0.0
    begin: str = ""
    keep: str = ""
    pack: str = ""
    leave: str = ""
    take: str = ""


@dataclass(frozen=True, kw_only=True)
class Here:
    """What is true of a camera here. state: absent: it is not opened; idle: it is ours, but not to be opened now (its schedule, or
    somebody has switched it off); watched; frames: analysed in this stay; clock: its stream tells the camera's time; for_s: seconds
    since this stay began; first_s, last_s: camera time of the first and last frame told, or analysed while nothing is told; kept:
    parcel that lies here; left: parcel of its state that was sent, or given up; problem: what went wrong last, final: it will not get
    better by itself."""

    state: Literal["absent", "idle", "watched"]
    frames: int = 0
    clock: bool = False
    for_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    kept: str = ""
    left: str = ""
    problem: str = ""
    final: bool = False


def goal_of(order: CameraOrder | None, box: str, camera: CameraKey) -> Goal:
    """What an order of `box` for a camera asks; None: there is none for it."""
    at_home = camera.home == box
    if order is None:
        return Goal(watch=at_home, voice="tell" if at_home else "silent")
    mine = order.parcel if order.parcel.partition(".")[0] == box else ""
    match order.role:
        case "own":
            pack = order.parcel if order.parcel and not mine else ""
            take = order.state if order.after_s is not None and order.state.partition(".")[0] == box else ""
            return Goal(
                watch=True, voice="hold" if order.after_s is None else "tell", after_s=order.after_s or 0.0, begin=mine, pack=pack,
                take=take,
            )  # fmt: skip
        case "warm":
            return Goal(watch=True, voice="hold", begin=mine)
        case "standby":
            return Goal(watch=False, voice="silent", keep=mine)
        case "release":
            return Goal(watch=False, voice="silent", leave=order.state)


def word_for(order: CameraOrder, here: Here) -> CameraWord:
    """What to tell the controller of an order."""
    stage = _stage(order, here)
    return CameraWord(
        camera=order.camera, term=order.term, stage=stage, problem=here.problem, first_s=here.first_s, last_s=here.last_s,
        parcel=here.kept if stage == "standby" else order.parcel if stage == "owning" else "",
    )  # fmt: skip


def _stage(order: CameraOrder, here: Here) -> Literal["owning", "warming", "warm", "standby", "leaving", "released", "failed"]:
    if order.role == "release":
        return "released" if order.state in ("", here.left) else "leaving"
    if order.role == "standby":
        if here.kept and here.kept == order.parcel:
            return "standby"
        return "failed" if here.final else "warming"
    if here.state == "absent":
        return "failed" if here.final else "warming"
    if order.role == "own":
        return "owning"
    knows = here.clock or here.for_s >= NO_CLOCK_S
    return "warm" if here.state == "idle" or (here.frames > 0 and knows) else "warming"
