"""How much of the device preparation should have: what inference loses meanwhile against what learning sooner, and more, brings.

Ekya gives labelling and profiling a fixed part of the window. Here the share is chosen anew in every window, because both sides of the
bargain are known: what live inference loses at a share is on the cameras' knob profiles (flat where frames can be skipped, steep where
they cannot), and what a camera's retrainings have brought is remembered. A box whose cameras all gain takes much; one that only
measures takes a trickle, over the whole of the time it has. Pure.

With p the share, D(p) how long preparation takes at it, T the time left, Q(c) the cameras' mean quality when inference has c, and G(p)
the sum of gains of the cameras that get their labels in time, the share is the p that is best in

    G(p) * ((T - D) / T + later)  -  (Q(capacity) - Q(capacity - p)) * D / T

`later` counts windows in which a gain still lasts after this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.types import KnobProfile

#: What a retraining is expected to bring to a camera that never had one.
PRIOR_GAIN = 0.1
#: Windows after this one in which a gain still counts. Gains last longer, and to count three wins nothing at 1x (docs/decisions/0108).
LATER_WINDOWS = 1.0
#: What is left to win after a retraining, as a part of what it won: on real cameras the next one wins less than half of it.
LEFT_FRAC = 0.5


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A camera while others learn. quality: of its serving model, 0-1."""

    quality: float
    knobs: tuple[KnobProfile, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A camera's part of preparation. gpu_s: what it takes, at 100 pct; gain: what it is expected to bring, 0-1."""

    gpu_s: float
    gain: float


def expected_gain(gains: Sequence[float], *, full: bool) -> float:
    """What learning from this window should bring a camera. gains: what its newest retrainings won, newest last; full: it is examined
    in full (it drifted, or has more to learn), else it is only measured. A camera that has just won much has less left to win;
    else those that never had their turn would wait behind it for ever."""
    if not full:
        return 0.0
    return LEFT_FRAC * max(0.0, gains[-1]) if gains else PRIOR_GAIN


def choose(
    work: Sequence[Work], watched: Sequence[Watched], *, left_s: float, most_s: float, capacity_pct: float, quantum_pct: float,
    speed_frac: float = 1.0,
) -> float:  # fmt: skip
    """The share in percent, a multiple of `quantum_pct` that leaves inference one quantum; the smallest among equals.

    left_s: until the window ends; most_s: until preparation must have ended; speed_frac: part of a promise that this machine
    delivers."""
    steps = max(1, int((capacity_pct - quantum_pct) // quantum_pct))
    shares = [quantum_pct * step for step in range(1, steps + 1)]
    if left_s <= 0 or not work:
        return shares[0]
    undisturbed = shown_quality(watched, capacity_pct)

    def value(share_pct: float) -> float:
        rate = share_pct / 100 * speed_frac
        gained, used_gpu_s = _in_time(work, most_s * rate)
        takes_s = used_gpu_s / rate
        lost = undisturbed - shown_quality(watched, capacity_pct - share_pct)
        return gained * windows_served(takes_s, left_s) - lost * takes_s / left_s

    return max(shares, key=lambda share_pct: (round(value(share_pct), 9), -share_pct))


def _in_time(work: Sequence[Work], budget_gpu_s: float) -> tuple[float, float]:
    """(gains, GPU-seconds) of what the budget pays for, the best value first; the last one in part (fewer labels)."""
    gained = used = 0.0
    for part in sorted(work, key=lambda w: (-w.gain / max(w.gpu_s, 1e-9), w.gpu_s)):
        frac = min(1.0, max(0.0, budget_gpu_s - used) / max(part.gpu_s, 1e-9))
        gained, used = gained + frac * part.gain, used + frac * part.gpu_s
    return gained, used


def windows_served(ends_s: float, left_s: float) -> float:
    """Windows for which a gain counts that is there in `ends_s` seconds, where the window ends in `left_s` (above 0): what is left of
    this one, and later ones."""
    return max(0.0, left_s - ends_s) / left_s + LATER_WINDOWS


def shown_quality(watched: Sequence[Watched], capacity_pct: float) -> float:
    """What people see: sum over cameras, inference split evenly, as the engine does while it prepares."""
    even_pct = capacity_pct / max(1, len(watched))
    return sum(camera.quality * _kept(camera.knobs, even_pct) for camera in watched)


def _kept(knobs: Sequence[KnobProfile], share_pct: float) -> float:
    """What is left of a camera's quality at a share; when not even the cheapest knobs fit, frames are skipped (as much as is short)."""
    fit = [k.quality_frac for k in knobs if k.demand_pct <= share_pct + 1e-9]
    if fit or not knobs:
        return max(fit, default=0.0)
    cheapest = min(knobs, key=lambda k: k.demand_pct)
    return cheapest.quality_frac * share_pct / max(cheapest.demand_pct, 1e-9)
