"""May this wish of the fleet be applied? Values in, an answer out: the box's clock and what it remembers come as arguments.

Order decides, not time: (term of the controller's lease, version). A wish with a lower term than one that was seen comes from a
controller that has lost its lease and does not know it yet (split brain): it is refused whatever it says. Time decides only whether a
wish may still be *begun*: `expires_utc` is on the controller's clock, so the box adds the difference that it has measured; as long as it
has measured none, nobody is there who could say what time it is, and the wish waits. What is in force is never ended by time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from scheduler.fleet.types import Desired

#: apply: it is to be put in force; same: it is in force; wait: not before the clocks were compared; refuse: `Answer.why`.
Verdict = Literal["apply", "same", "wait", "refuse"]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a box remembers of wishes, over restarts. applied: the one in force; highest: of all wishes for this box that were looked at,
    also those that were refused for another reason than their order."""

    applied: Desired | None = None
    highest: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """verdict; why: in words, '' for apply and same; split: a controller that has lost its lease still writes; known: what the box
    remembers from now on (`applied` is not changed here: it is what the box has *put* in force)."""

    verdict: Verdict
    why: str = ""
    split: bool = False
    known: Known


def judged(wish: Desired, known: Known, *, box: str, now_utc_s: float, offset_s: float | None) -> Answer:
    """now_utc_s: the box's clock; offset_s: the controller's clock minus the box's, None not measured yet."""
    if wish.box != box:
        return _refused(known, f"it is for box {wish.box}")
    if wish.term < known.highest[0]:
        why = f"a controller of term {wish.term} still writes although term {known.highest[0]} has begun"
        return Answer(verdict="refuse", why=why, split=True, known=known)
    if wish.order < known.highest:
        return _refused(known, f"version {wish.version} of term {wish.term} is older than {known.highest[1]}, which was seen")
    if known.applied is not None and wish.order == known.applied.order:
        return _again(wish, known)
    return _new(wish, Known(applied=known.applied, highest=wish.order), now_utc_s, offset_s)


def _again(wish: Desired, known: Known) -> Answer:
    if known.applied is not None and _says(wish) == _says(known.applied):
        return Answer(verdict="same", known=known)
    why = f"two different wishes are called version {wish.version} of term {wish.term}; the first one holds"
    return Answer(verdict="refuse", why=why, split=True, known=known)


def _new(wish: Desired, known: Known, now_utc_s: float, offset_s: float | None) -> Answer:
    doubled = _doubled(order.customer for order in wish.shares) or _doubled(str(order.camera) for order in wish.cameras)
    if doubled:
        return _refused(known, f"{doubled} stands in it twice")
    expires_s = utc_s(wish.expires_utc)
    if expires_s is None:
        return _refused(known, f"it does not say until when it may be begun ({wish.expires_utc[:40]!r})")
    if offset_s is None:
        return Answer(verdict="wait", why="the controller's clock is not known yet", known=known)
    late_s = now_utc_s + offset_s - expires_s
    if late_s >= 0:
        return _refused(known, f"it expired {late_s:.0f} s ago")
    return Answer(verdict="apply", known=known)


def utc_s(text: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 time with its zone; None: it is none."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError, OSError):
        return None


def _refused(known: Known, why: str) -> Answer:
    return Answer(verdict="refuse", why=why, known=known)


def _says(wish: Desired) -> Desired:
    """What it wishes, without its times: a controller may tell the same wish again with a later end."""
    return replace(wish, made_utc="", expires_utc="")


def _doubled(names: Iterable[str]) -> str:
    return next((name for name, times in sorted(Counter(names).items()) if times > 1), "")
