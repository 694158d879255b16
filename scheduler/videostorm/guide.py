"""Which configuration is worth measuring next, from those that were: knobs are taken to act on their own.

    log D(c) = d_0 + sum over knobs of d_knob(value)        log Q(c) = q_0 + sum over knobs of q_knob(value)

A factor per value of each knob, fitted to what was measured (least squares, slightly drawn to 1). A climb ends with all neighbours of
one configuration measured, so every value was seen by then. That knobs act on their own is Chameleon's assumption; here it only says
where to look: nothing enters a profile unmeasured, every measurement corrects the factors, and the worse they fit, the more is hoped
of what was not measured (by one standard deviation of their error).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

#: How strongly factors are drawn to 1: so much of a measurement.
PULL = 0.01

#: Qualities and demands below this (part of the largest demand) count as this: their logarithms are of no use.
LEAST_QUALITY, LEAST_DEMAND_FRAC = 0.02, 1e-6

#: Demands within this factor are taken as equal: an expected one is not exact.
ALIKE = 1.05

#: Largest space that is predicted in one go.
MOST = 20_000

#: Position of each knob's value in its list.
Key = tuple[int, ...]


def promising(
    shape: Sequence[int], tried: Mapping[Key, tuple[float, float]], known: Sequence[Key], least_gain: float
) -> Key | None:
    """The configuration that is expected to lift the front most per square root of its demand, by `least_gain` at least; None: none.

    shape: values per knob, their product at most MOST; tried: (demand, quality) of what was measured; known: not to be named again.
    """
    if not tried:
        return None
    keys = np.indices(shape).reshape(len(shape), -1).T
    rows = np.ravel_multi_index(np.array(list(tried)).T, shape)
    demand, quality = np.array(list(tried.values()), float).T
    gain, cost = _gains(_one_hot(keys, shape), rows, demand, quality)
    gain[np.ravel_multi_index(np.array(known).T, shape)] = -1.0
    value = np.where(gain >= least_gain, gain / np.sqrt(cost), -1.0)
    best = int(value.argmax())
    return tuple(int(i) for i in keys[best]) if value[best] > 0 else None


def _gains(every: np.ndarray, rows: np.ndarray, demand: np.ndarray, quality: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(quality that each configuration is expected to add to the front at its demand, that demand)."""
    floor = max(LEAST_DEMAND_FRAC * float(demand.max()), 1e-300)
    costs = np.exp(_fitted(every, rows, np.log(np.maximum(demand, floor))))
    logs = np.log(np.maximum(quality, LEAST_QUALITY))
    fitted = _fitted(every, rows, logs)
    doubt = float(np.sqrt(np.mean((fitted[rows] - logs) ** 2)))
    hopes = np.minimum(1.0, np.exp(fitted + doubt))
    order = np.argsort(demand, kind="stable")
    front = np.concatenate([[0.0], np.maximum.accumulate(quality[order])])
    return hopes - front[np.searchsorted(demand[order], ALIKE * costs, side="right")], costs


def _fitted(every: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Ridge regression of `values` on the measured rows of `every`, told for all rows."""
    measured, mean = every[rows], float(values.mean())
    pull = PULL * np.eye(every.shape[1])
    return np.asarray(every @ np.linalg.solve(measured.T @ measured + pull, measured.T @ (values - mean)) + mean)


def _one_hot(keys: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """(configurations, sum of values + 1): which values each has, and a constant."""
    starts = np.cumsum([0, *shape[:-1]])
    table = np.zeros((len(keys), sum(shape) + 1))
    table[:, -1] = 1.0
    np.put_along_axis(table, keys + starts, 1.0, axis=1)
    return table
