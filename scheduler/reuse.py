"""Reuse before retraining, and the way back: which earlier versions are worth a look, and which of them serves again.

RECL (Khani et al., NSDI'23) keeps the models of earlier windows and picks one for the present window before it trains; its gating
network names a few experts, and a check on labelled samples decides. Here the few are
    replaced    the version that the serving one took the place of: if it is better after all, the swap was a mistake (rollback)
    nearest     the k kept models whose windows looked most like this one (`Signature`); only when the window drifted, because else
                the serving model is the nearest
and the check is the gate's own rule (`scheduler.admission`) on the window's held-out labels. What is taken costs nothing and serves at
once, and the retraining that may follow starts from it (docs/decisions/0013-reuse-before-the-plan.md).

Two models must not take turns for ever on the noise of a few frames. A version that was left by reuse or rollback stays out for
`COOLDOWN` windows, twice as long each time it is left again, unless this window looks more like its own than like that of the model
which serves: then the world went back, and so may the box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler import admission, drift
from scheduler.events import Probed
from scheduler.types import CachedModel, Signature

#: Windows that a version which was left by reuse or rollback stays out, the first time.
COOLDOWN = 4
#: What another model may gain when the camera has turned to another scene: both have served, and may be at home in it or not. On real
#: footage (docs/decisions/0104-scenes.md) the gains of 24 such turns had a standard deviation of 0.12.
TURNED = admission.Belief(sd=0.15)
#: It doubles so often at most.
MOST_DOUBLINGS = 10


@dataclass(frozen=True, kw_only=True)
class Left:
    """A version that reuse or rollback took out of service. window: the last time; times: how often."""

    window: int
    times: int = 1

    def out_until(self) -> int:
        """The first window in which it may be looked at again, whatever the window looks like."""
        return self.window + COOLDOWN * 2 ** min(MOST_DOUBLINGS, self.times - 1)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """quality: on the held-out labels; expected_gain: over the serving version, given all that is known (`admission.posterior`)."""

    version: str
    quality: float
    gain: float
    expected_gain: float
    rollback: bool


def distance(a: Signature | None, b: Signature | None) -> float:
    """How unlike two windows were (`scheduler.drift.distance`); infinite when either is unknown."""
    return math.inf if a is None or b is None else drift.distance(a, b)


def candidates(
    *, serving: str, replaced: str | None, kept: Sequence[CachedModel], signature: Signature | None, drifted: bool, nearest: int,
    window: int, left: Mapping[str, Left],
) -> tuple[str, ...]:  # fmt: skip
    """The versions to measure, the replaced one first, then by distance (the newer first among equals).

    kept: newest first; signature: of the window whose labels they are measured on; nearest: how many kept ones at most."""
    own = next((m.signature for m in kept if m.name == serving), None)
    known = {m.name: distance(signature, m.signature) for m in reversed(kept) if m.name not in (serving, replaced)}
    near = sorted((name for name in reversed(known) if math.isfinite(known[name])), key=lambda name: known[name])
    allowed = [name for name in near if known[name] < distance(signature, own) or _is_in(left.get(name), window)]
    first = (replaced,) if replaced is not None and replaced != serving else ()
    return (*first, *(allowed[:nearest] if drifted else ()))


def _is_in(left: Left | None, window: int) -> bool:
    return left is None or window >= left.out_until()


def choose(
    found: Sequence[Probed], *, serving_quality: float | None, frames: int, replaced: str | None, margin: float, risk: float,
    belief: admission.Belief = admission.REUSED,
) -> Chosen | None:  # fmt: skip
    """The measured version that serves again: of those that `admission.judge` lets, the one with most to expect; None when none may.
    An equal one that came earlier in `found` wins."""
    best: Chosen | None = None
    for probed in found:
        verdict = admission.judge(
            serving_quality, probed.quality, gain_sd=probed.gain_sd, frames=frames, margin=margin, risk=risk, belief=belief
        )
        if verdict.admitted and (best is None or verdict.expected > best.expected_gain):
            best = Chosen(
                version=probed.version, quality=probed.quality, gain=verdict.gain, expected_gain=verdict.expected,
                rollback=probed.version == replaced,
            )  # fmt: skip
    return best


def leave(left: Mapping[str, Left], version: str, window: int) -> dict[str, Left]:
    """`left` after `version` was taken out of service; those whose time is long over are forgotten."""
    times = left[version].times + 1 if version in left else 1
    kept = {name: entry for name, entry in left.items() if window < entry.out_until() + COOLDOWN * 2**entry.times}
    return {**kept, version: Left(window=window, times=times)}
