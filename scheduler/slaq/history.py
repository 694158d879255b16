"""What a job has shown so far: losses per iteration and their normalised changes. SLAQ, sections 3 and 11 of the chapter.

Symbols of the text -> names here:
    l_k        losses[k - 1]           loss after iteration k; the first entry is k = 1
    d_k        deltas(losses)          l_(k-1) - l_k; negative when the loss rose
    nd_k       normalised_deltas       d_k / max over i <= k of d_i: starts at 1, tends to 0 for every algorithm
    max d      largest_delta           the unit in which gains of different jobs are compared

What we settled (the text leaves it open): falling back is no progress, so negative deltas never make the unit; a first iteration
more than OUTLIER_FACTOR times the next best one is an initialisation effect and is ignored, because an inflated unit lowers a
job's gain for ever; a job that never improved is measured by the size of its losses, so the unit is never zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from configs.errors import UsageError

#: A first delta this many times the next largest one does not count as the job's largest step.
OUTLIER_FACTOR = 10.0

#: Losses beyond this size are refused: differences and squares of scaled values must stay finite.
LOSS_MAX = 1e300

#: The unit of a job is at least this fraction of its largest loss, so that rounding noise never looks like progress.
UNIT_MIN_FRAC = 1e-12


def history_problems(losses: Sequence[float]) -> list[str]:
    """What keeps `losses` from being a history; empty when nothing does (no losses at all are fine)."""
    wrong = [i for i, loss in enumerate(losses) if not (math.isfinite(loss) and abs(loss) <= LOSS_MAX)]
    return [f"loss {i + 1} of {len(losses)} is not a finite number of usable size" for i in wrong[:1]]


def check_history(losses: Sequence[float], subject: str = "") -> None:
    """Errors: UsageError naming the first loss that is NaN, infinite or beyond LOSS_MAX."""
    problems = history_problems(losses)
    if problems:
        raise UsageError(f"{subject or 'history'}: {problems[0]}", subject=subject, remedy="report finite losses only")


def deltas(losses: Sequence[float]) -> np.ndarray:
    """d_k = l_(k-1) - l_k, float (len(losses) - 1,); empty for fewer than two losses."""
    return -np.diff(np.asarray(losses, float)) if len(losses) > 1 else np.zeros(0)


def largest_delta(losses: Sequence[float]) -> float:
    """max d: the largest step down, > 0 always (see the module's text for outliers and for jobs that never improved)."""
    steps = deltas(losses)
    least = max(UNIT_MIN_FRAC * max((abs(loss) for loss in losses), default=0.0), 1e-300)
    if len(steps) > 1 and steps[0] > OUTLIER_FACTOR * steps[1:].max() > 0:
        steps = steps[1:]
    best = float(steps.max()) if len(steps) else 0.0
    if best > 0:
        return max(best, least)
    return max((abs(loss) for loss in losses), default=0.0) or 1.0


def normalised_deltas(losses: Sequence[float]) -> np.ndarray:
    """nd_k = d_k / max over i <= k of d_i, clipped to at most 1; float (len(losses) - 1,). 0 where nothing has improved yet."""
    steps = deltas(losses)
    top = np.maximum.accumulate(np.maximum(steps, 0.0)) if len(steps) else steps
    return np.minimum(np.divide(steps, top, out=np.zeros_like(steps), where=top > 0), 1.0)


def running_minimum(losses: Sequence[float]) -> tuple[float, ...]:
    """The best loss so far after each iteration: how a job whose loss does not fall monotonically is smoothed (section 7)."""
    return tuple(float(v) for v in np.minimum.accumulate(np.asarray(losses, float))) if losses else ()


def reduction_frac(losses: Sequence[float], converged: float) -> np.ndarray:
    """(l_first - l_k) / (l_first - converged) per iteration, the share of the reachable reduction; zeros when none is reachable."""
    seen = np.asarray(losses, float)
    span = float(seen[0]) - converged if len(seen) else 0.0
    return (seen[0] - seen) / span if span > 0 else np.zeros_like(seen)


def cost_per_iteration(costs: Sequence[float]) -> float:
    """c * S, the mean GPU-seconds (or core-seconds) of an iteration, without the first one, which is noisy (section 4).

    The prototype leaves the first out of the sum but divides by the full count; this divides by what was summed.
    Errors: UsageError for no costs, or any that is not finite and > 0.
    """
    if not costs or not all(math.isfinite(c) and c > 0 for c in costs):
        raise UsageError(f"costs per iteration must be finite and > 0, got {list(costs)[:5]}", subject="slaq")
    counted = costs[1:] or costs
    return sum(counted) / len(counted)
