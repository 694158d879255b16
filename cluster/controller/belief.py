"""Is a box's report believed, and which of its numbers? Pure.

What cannot be true is not used and told as a doubt, a sentence; the rest is. A box is never cut off for it: it watches its cameras, and
what it says tomorrow may be right. Two questions:

1. Is this the box, now? `listen`: a message that came again, or two boxes with one id (a copied disk): by `boot` and `sequence`, which
   counts up over the box's life. A new boot with a higher number is a restart. A boot that speaks on after another one took over, or a
   second one whose numbers rise beside the first, means two boxes: until only one is heard for CONFLICT_S, neither is believed.
2. Can it be true? `believable`: quality outside 0-1, measured on no pictures, capacity above what was enrolled, more received than
there is, another's camera
   without a lease, wishes confirmed that were never made.

Times that a box tells are never compared with ours: `offset_s` is measured and only told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.types import BoxView, CameraLease, Handoff
from scheduler.fleet.desire import utc_s
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, CameraWord, Measured

#: A box that is not heard for so long is not there any more, for question 1.
CONFLICT_S = 120.0
#: Messages in rising order after which a boot that came with too low a number counts: one alone may be an old message.
RISING = 3
#: Boots that are remembered of a box, the newest.
MOST_VOICES = 8
#: A clock that is off by more is told of.
OFFSET_TOLD_S = 30.0
#: What was received is measured over another time than what there is: so much more is no lie.
RECEIVED_SLACK = 1.1


@dataclass(frozen=True, kw_only=True)
class Voice:
    """One boot that is heard under a box's id. sequence: its newest; heard_utc_s: when, on our clock; rising: messages in order so far;
    left: another boot took over from it, as after a restart."""

    boot: str
    sequence: int
    heard_utc_s: float
    rising: int = 1
    left: bool = False


@dataclass(frozen=True, kw_only=True)
class Heard:
    """use: whether the message is from the box, now; doubt: why not, '' there is nothing wrong with it."""

    voices: tuple[Voice, ...]
    use: bool
    doubt: str = ""


@dataclass(frozen=True, kw_only=True)
class Believed:
    """A report without what is not believed, and why."""

    report: BoxReport
    doubts: tuple[str, ...] = ()


# --- is this the box, now? --------------------------------------------------------------------------------------------


def listen(voices: tuple[Voice, ...], boot: str, sequence: int, *, now_utc_s: float) -> Heard:
    """A message of `boot` with `sequence` has come. voices: of this box so far, the one that is believed first."""
    known = {voice.boot: voice for voice in voices}
    mine = known.get(boot)
    if mine is not None and sequence <= mine.sequence:
        again = "" if sequence == mine.sequence else f"an old message came again (number {sequence} after {mine.sequence})"
        return Heard(voices=voices, use=False, doubt=again)
    mine = (
        Voice(boot=boot, sequence=sequence, heard_utc_s=now_utc_s)
        if mine is None
        else replace(mine, sequence=sequence, heard_utc_s=now_utc_s, rising=mine.rising + 1, left=False)
    )
    if not voices:
        return Heard(voices=(mine,), use=True)
    rest = tuple(voice for voice in voices if voice.boot != boot)
    if voices[0].boot == boot:
        return _believed_one_speaks(mine, rest, now_utc_s)
    return _another_one_speaks(voices[0], mine, rest, now_utc_s, first_time=boot not in known)


def _believed_one_speaks(mine: Voice, rest: tuple[Voice, ...], now_utc_s: float) -> Heard:
    rivals = [voice for voice in rest if _rivals(voice, now_utc_s)]
    return Heard(voices=_kept(mine, rest), use=not rivals, doubt=_two_words(mine, rivals[0]) if rivals else "")


def _another_one_speaks(before: Voice, mine: Voice, rest: tuple[Voice, ...], now_utc_s: float, *, first_time: bool) -> Heard:
    """before: the one that was believed until now, first of `rest`."""
    silent = now_utc_s - before.heard_utc_s >= CONFLICT_S
    if silent or (first_time and mine.sequence > max(voice.sequence for voice in rest)):
        left = tuple(replace(voice, left=True) for voice in rest)
        return Heard(voices=_kept(mine, left), use=True)
    voices = _kept(before, (mine, *(voice for voice in rest if voice.boot != before.boot)))
    if mine.rising < RISING and first_time:
        why = f"a message with number {mine.sequence} came from another start of the box; {before.sequence} was seen before"
        return Heard(voices=voices, use=False, doubt=why)
    return Heard(voices=voices, use=False, doubt=_two_words(before, mine))


def _rivals(voice: Voice, now_utc_s: float) -> bool:
    return not voice.left and voice.rising >= RISING and now_utc_s - voice.heard_utc_s < CONFLICT_S


def _kept(first: Voice, rest: tuple[Voice, ...]) -> tuple[Voice, ...]:
    newest = sorted((v for v in rest if v.boot != first.boot), key=lambda voice: (-voice.heard_utc_s, voice.boot))
    return (first, *newest[: MOST_VOICES - 1])


def _two_words(one: Voice, other: Voice) -> str:
    pair = " and ".join(sorted((one.boot[:8], other.boot[:8])))
    return f"two boxes speak under this id (starts {pair}): what they say is not used; take one away, or let it join anew"


# --- can it be true? --------------------------------------------------------------------------------------------------


def believable(
    report: BoxReport, view: BoxView, leases: Mapping[CameraKey, CameraLease], handoffs: Mapping[CameraKey, Handoff], *,
    wished: tuple[int, int],
) -> Believed:  # fmt: skip
    """`report` of the box of `view`, without what cannot be true. wished: (term, version) of the newest wish that was told."""
    doubts: list[str] = []
    report = _capacity(report, view, doubts)
    cameras = _whose(report, leases, handoffs, doubts)
    cameras = _received(tuple(_camera(camera, doubts) for camera in cameras), report.capacity_pct, doubts)
    _confirmed(report, leases, wished, doubts)
    return Believed(report=replace(report, cameras=cameras), doubts=tuple(dict.fromkeys(doubts)))


def measured_offset_s(report: BoxReport, view: BoxView, *, now_utc_s: float) -> float:
    """The box's clock minus ours. A message takes time, so what is measured is at most that too little; of what was measured with one
    clock the highest counts, as long as the clock was not set (a jump of more than OFFSET_TOLD_S)."""
    sent_s = utc_s(report.sent_utc)
    if sent_s is None:
        return view.offset_s
    found_s = sent_s - now_utc_s
    same_clock = view.report is not None and view.report.boot == report.boot and abs(found_s - view.offset_s) < OFFSET_TOLD_S
    return max(found_s, view.offset_s) if same_clock else found_s


def _capacity(report: BoxReport, view: BoxView, doubts: list[str]) -> BoxReport:
    capacity_pct, most_pct = report.capacity_pct, view.enrolled_pct
    if capacity_pct < 0:
        doubts.append(f"it says its capacity is {capacity_pct:g} pct")
        capacity_pct = 0.0
    if most_pct is not None and capacity_pct > most_pct:
        doubts.append(
            f"it says its capacity is {capacity_pct:g} pct, {most_pct:g} were agreed on when it joined: more is not counted until it"
            " joins anew"
        )
        capacity_pct = most_pct
    spare_pct = min(max(0.0, report.spare_pct), capacity_pct)
    memory_mib = report.memory_mib if report.memory_mib is None or report.memory_mib >= 0 else None
    return replace(report, capacity_pct=capacity_pct, spare_pct=spare_pct, memory_mib=memory_mib)


def _whose(
    report: BoxReport, leases: Mapping[CameraKey, CameraLease], handoffs: Mapping[CameraKey, Handoff], doubts: list[str]
) -> tuple[CameraReport, ...]:
    """Each camera once, and none of others that it was not given."""
    found: dict[CameraKey, CameraReport] = {}
    for camera in report.cameras:
        key = camera.camera
        if key in found:
            doubts.append(f"it tells of {key} twice: the first counts")
        elif key.home == report.box or _given(report.box, leases.get(key), handoffs.get(key)):
            found[key] = camera
        else:
            doubts.append(f"it says that it watches {key}, which nobody gave it: not used")
    return tuple(found.values())


def _given(box: str, lease: CameraLease | None, handoff: Handoff | None) -> bool:
    return (lease is not None and box in (lease.box, lease.standby)) or (
        handoff is not None and box in (handoff.source, handoff.target)
    )


def _camera(camera: CameraReport, doubts: list[str]) -> CameraReport:
    changes: dict[str, float | None] = {}
    for name in ("quality", "finish_frac"):
        value = getattr(camera, name)
        if value is not None and not 0 <= value <= 1:
            doubts.append(f"{name} of {camera.camera} is {value:g}, it can only be 0 to 1: not used")
            changes[name] = None
    sound = tuple(one for one in camera.measured if _can_be(one))
    if len(sound) < len(camera.measured):
        doubts.append(f"of {camera.camera} it tells of measurements that cannot be: not used")
        camera = replace(camera, measured=sound)
    for name in ("demand_pct", "got_pct", "fps", "memory_mib", "lag_goal_s"):
        value = getattr(camera, name)
        if not (math.isfinite(value) and value >= 0):
            doubts.append(f"{name} of {camera.camera} is {value:g}, it cannot be below 0: not used")
            changes[name] = 0.0
    return replace(camera, **changes) if changes else camera  # type: ignore[arg-type]


def _can_be(one: Measured) -> bool:
    gains = (0.0 if one.gain is None else one.gain, 0.0 if one.gain_error is None else one.gain_error)
    known = (one.gain is None) == (one.gain_error is None) == (not one.over)
    return (
        0 <= one.quality <= 1
        and one.frames > 0
        and 0 <= one.error < math.inf
        and known
        and abs(gains[0]) <= 1
        and gains[1] >= 0
    )


def _received(cameras: tuple[CameraReport, ...], capacity_pct: float, doubts: list[str]) -> tuple[CameraReport, ...]:
    """More than there is cannot have been received; which of the numbers is wrong nobody can know, so none is used."""
    got_pct = sum(camera.got_pct for camera in cameras)
    if got_pct <= capacity_pct * RECEIVED_SLACK + 1.0:
        return cameras
    doubts.append(
        f"its cameras are said to have received {got_pct:.0f} pct of {capacity_pct:.0f}: what they received is not used"
    )
    return tuple(replace(camera, got_pct=0.0) for camera in cameras)


def _confirmed(report: BoxReport, leases: Mapping[CameraKey, CameraLease], wished: tuple[int, int], doubts: list[str]) -> None:
    said = (report.confirmation.term, report.confirmation.version)
    if said > wished:
        doubts.append(f"it confirms wish {said[1]} of term {said[0]}, which this controller has not made")
    for word in report.confirmation.cameras:
        lease = leases.get(word.camera)
        if word.stage == "owning" and lease is not None and lease.box != report.box and not may_own(word, lease):
            doubts.append(f"it says that it owns {word.camera}, which is {lease.box}'s since term {lease.term}")


def may_own(word: CameraWord, lease: CameraLease) -> bool:
    """Whether a box that is not the owner may still say it owns: it was not told yet that the camera has a new one."""
    return word.term < lease.term


def clock_words(offset_s: float) -> str:
    """What is to be told of a clock that is off, '': nothing. No doubt: times that the box tells are corrected by it."""
    if abs(offset_s) <= OFFSET_TOLD_S:
        return ""
    return f"its clock is {_span(abs(offset_s))} {'ahead of' if offset_s > 0 else 'behind'} the controller's"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
