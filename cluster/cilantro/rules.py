"""The baselines' rules as plain functions of what was seen in the last round (card section 8), repaired where the released code is not
what the paper says (card section 14)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from cluster.cilantro.fairness import max_min, whole_units, with_least
from cluster.cilantro.types import FloatArray, IntArray

#: Minerva's floor, part of the units each.
MINERVA_FLOOR = 0.00101
#: PARTIES: parts of the possible slack below which a job is nearly in violation, above which it is comfortable.
PARTIES_NEAR, PARTIES_COMFORTABLE = 0.05, 0.2
#: PID gains of the code's extra baseline.
PID = (10.0, 0.0, 4.0)
BISECTIONS = 30


def share(demands: FloatArray, total: int, least: int = 1) -> IntArray:
    """NJC with equal entitlements, whole units, nobody below `least`."""
    amounts = max_min(np.ones(len(demands)).tolist(), demands.tolist(), float(total))
    return whole_units(with_least(amounts, np.full(len(demands), float(least)), float(total)), total)


def scaled_down(demands: FloatArray, total: int) -> IntArray:
    """What is asked for, all scaled down alike if it is too much; at least one each."""
    asked = np.maximum(1.0, demands)
    if asked.sum() > total:
        asked = with_least(asked * (total / asked.sum()), np.ones(len(asked)), float(total))
    return whole_units(asked, total)


def miad(units: FloatArray, violated: NDArray[np.bool_], *, grow: float = 1.5, shrink: float = 1.0) -> FloatArray:
    """Demand grown by half under violation, one unit less otherwise. (The released code never runs it, and would multiply by 5.)"""
    return np.where(violated, units * grow, np.maximum(1.0, units - shrink))


def slack(values: FloatArray, goals: FloatArray, best: FloatArray) -> FloatArray:
    """How far above its goal a job is, as a part of how far it can be (best: largest performance, inf where unknown: part of the goal).
    PARTIES measures latency; the distance of a fraction from a goal of .9 could never be 20 percent of the goal."""
    with np.errstate(invalid="ignore"):
        room = np.where(np.isfinite(best), np.maximum(best - goals, 1e-9), goals)
    return (values - goals) / room


def parties(units: FloatArray, slacks: FloatArray, *, up: float = 20.0, down: float = 5.0) -> FloatArray:
    """20 more for who is violated or nearly, 5 less for who is comfortable. No eviction. (Never run in the released code either, where
    the sign of the slack is reversed.)"""
    demands = np.where(slacks < PARTIES_NEAR, units + up, np.where(slacks > PARTIES_COMFORTABLE, units - down, units))
    return np.maximum(1.0, demands)


def minerva(units: FloatArray, utilities: FloatArray, total: float, *, damp: float = 0.0) -> FloatArray:
    """a_j proportional to a_j / u_j. damp: added to both (1e-4 in the released code), or u of 0 takes everything."""
    with np.errstate(divide="ignore"):
        wanted = (units + damp) / np.maximum(utilities + damp, 1e-12)
    return total * wanted / wanted.sum()


def kubernetes_style(units: FloatArray, values: FloatArray, goals: FloatArray) -> FloatArray:
    """The horizontal autoscaler: ceil(replicas * goal / measured)."""
    return np.ceil(units * goals / np.maximum(values, 1e-3 * goals))


def pid(
    units: FloatArray, errors: FloatArray, before: FloatArray, summed: FloatArray, gains: tuple[float, float, float] = PID
) -> FloatArray:
    """Units changed by proportional, integral and derivative part of the error, (goal - measured) / goal."""
    proportional, integral, derivative = gains
    return np.maximum(1.0, units + proportional * errors + integral * summed + derivative * (errors - before))


def ds2(units: FloatArray, values: FloatArray, goals: FloatArray) -> FloatArray:
    """Replicas for the load if each does what it did: round(replicas * goal / measured). The released formula cancels the load out
    and leaves out the goal; here it is the rate that is asked for."""
    return np.maximum(1.0, np.round(units * goals / np.maximum(values, 1e-3 * goals)))


# --- Ernest -----------------------------------------------------------------------------------------------------------


def ernest_features(units: FloatArray, loads: FloatArray) -> FloatArray:
    """(samples, 4): 1, load / alloc, log(alloc + 1), alloc."""
    return np.column_stack([np.ones_like(units), loads / units, np.log(units + 1), units])


def ernest_fit(units: FloatArray, loads: FloatArray, times: FloatArray) -> FloatArray:
    """Weights >= 0 of the features; columns are scaled for the solver's sake."""
    features = ernest_features(units, loads)
    scale = np.maximum(np.abs(features).max(axis=0), 1e-12)
    return np.asarray(nnls(features / scale, times)[0], dtype=np.float64) / scale


def ernest_demand(weights: FloatArray, load: float, time: float, total: float) -> float:
    """Smallest units predicted to take no longer than `time`, by bisection on [0, total]; total where none does."""

    def predicted(units: float) -> float:
        return float((ernest_features(np.array([units]), np.array([load])) @ weights)[0])

    if not math.isfinite(time) or predicted(total) > time:
        return total
    low, high = 1e-6, total
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if predicted(middle) <= time:
            high = middle
        else:
            low = middle
    return high


# --- Quasar -----------------------------------------------------------------------------------------------------------


def low_rank(
    known: FloatArray, rng: np.random.Generator, *, rate: float = 5e-4, penalty: float = 5e-5, steps: int = 4000, tolerance: float = 0.01
) -> FloatArray:  # fmt: skip
    """(types, units) completed from what is known (nan: unknown) by P Q, both >= 0, gradient descent; stops when the root mean square
    of what is known is met to `tolerance`."""
    types, width = known.shape
    rank = max(1, min(3, types // 2))
    left, right = rng.uniform(0.2, 0.8, (types, rank)), rng.uniform(0.2, 0.8, (rank, width))
    seen = np.isfinite(known)
    target = np.where(seen, known, 0.0)
    for _ in range(steps):
        error = np.where(seen, target - left @ right, 0.0)
        if not seen.any() or math.sqrt(float((error**2).sum()) / int(seen.sum())) <= tolerance:
            break
        # a column is seen by few types, a type has hundreds of columns: the rate is per entry
        step_left = error @ right.T - penalty * left
        step_right = left.T @ error - penalty * right
        left, right = np.maximum(0.0, left + 10 * rate * step_left), np.maximum(0.0, right + 200 * rate * step_right)
    return np.clip(left @ right, 0.0, 1.0)


def quasar_demand(row: FloatArray, goal: float) -> float:
    """First units (from 1) whose running maximum reaches the goal, else the largest."""
    reached = np.flatnonzero(np.maximum.accumulate(row) >= goal)
    return float(reached[0] + 1) if len(reached) else float(len(row))


def measured_welfare(utilities: Sequence[float], objective: str) -> float:
    """W_S or W_E of what was measured."""
    return float(np.mean(utilities) if objective == "sw" else np.min(utilities))
