"""From performance to utility, 0-1 (card section 2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cluster.cilantro.types import FloatArray

#: What of v = min(1, performance / goal) a customer feels. quadratic is harsh on misses, sqrt lenient.
SHAPES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "linear": lambda v: v,
    "quadratic": lambda v: v * v,
    "sqrt": np.sqrt,
}
#: Utility is the performance itself, also above the goal.
IDENTITY = "identity"

#: A utility of one's own: performance and goal to utility; must not fall as performance grows.
Own = Callable[[FloatArray, float], FloatArray]


def utility(performance: FloatArray | float, goal: float, shape: str | Own) -> FloatArray:
    """Utility of each performance. 1 at the goal and above, except for `identity` and one's own.

    Errors: ValueError for a shape that is not known, or a goal that is not above 0."""
    if not goal > 0:
        raise ValueError(f"a goal must be above 0, got {goal}")
    values = np.maximum(np.asarray(performance, dtype=np.float64), 0.0)
    if callable(shape):
        return np.asarray(shape(values, goal), dtype=np.float64)
    if shape == IDENTITY:
        return values
    if shape not in SHAPES:
        raise ValueError(f"unknown utility {shape!r}, known: {', '.join((*SHAPES, IDENTITY))}")
    return SHAPES[shape](np.minimum(1.0, values / goal))
