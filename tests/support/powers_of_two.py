"""How the paper makes shares fit on GPUs: rounded down to inverse powers of two, which always pack in descending order."""

from __future__ import annotations

from scheduler.ekya.estimate import SpeedCurve, StreamEstimator
from scheduler.types import Plan, Snapshot

#: A GPU is cut no finer than this; the paper names no limit.
FINEST_PCT = 100 / 32

#: [infer, train] pct per stream.
Shares = list[list[float]]


def rounded_down(share_pct: float) -> float:
    """Whole GPUs, and of the rest the largest inverse power of two of a GPU that it holds."""
    whole, rest = divmod(share_pct, 100.0)
    part = 100.0
    while part > rest and part >= FINEST_PCT:
        part /= 2
    return 100.0 * whole + (part if FINEST_PCT <= part <= rest else 0.0)


def rounded(plan: Plan) -> Shares:
    """Every share of the plan, rounded down."""
    return [[rounded_down(s.infer_pct), rounded_down(s.train_pct)] for s in plan.streams]


def quality_of(snapshot: Snapshot, shares: Shares) -> float:
    """Mean expected quality under these shares, configurations chosen anew."""
    speed = SpeedCurve.of(snapshot)
    chosen = [
        StreamEstimator.of(view, snapshot, speed).best(infer, train)
        for view, (infer, train) in zip(snapshot.streams, shares, strict=True)
    ]
    return sum(choice.quality for choice in chosen) / len(chosen)


def doubled(snapshot: Snapshot, shares: Shares) -> Shares:
    """More than the paper does: what rounding freed is spent on doubling shares, the most gain per share first, while that helps.

    Sums of inverse powers of two within the capacity always pack, so this stays a plan.
    """
    speed = SpeedCurve.of(snapshot)
    estimators = [StreamEstimator.of(view, snapshot, speed) for view in snapshot.streams]
    now = [list(pair) for pair in shares]
    while True:
        free = snapshot.capacity_pct - sum(map(sum, now))
        best_rate, best = 1e-12, None
        for number, estimator in enumerate(estimators):
            have = estimator.best(*now[number]).quality
            for kind in (0, 1):
                step = now[number][kind] % 100.0 or FINEST_PCT
                while step <= min(free, 100.0):
                    trial = list(now[number])
                    trial[kind] += step
                    rate = (estimator.best(*trial).quality - have) / step
                    if rate > best_rate:
                        best_rate, best = rate, (number, trial)
                    # up to the next powers, of a share that is a power itself
                    step = 2 * (now[number][kind] % 100.0 + step) - now[number][kind] % 100.0
        if best is None:
            return now
        now[best[0]] = best[1]
