"""What is left of a camera's quality when only every n-th frame is analysed, where nobody has measured it.

Camera c1 of Ekya's measured table (card, section 4.4): the one published curve of a real camera that loses neither next to nothing nor
everything. A profile measured on the box replaces it.
"""

from __future__ import annotations

#: (every how-many-th frame, what that leaves of the quality).
STRIDES: tuple[tuple[int, float], ...] = ((1, 1.0), (2, 0.78), (3, 0.64), (4, 0.60), (6, 0.42), (8, 0.33))


def usual_quality_frac(stride: float) -> float:
    """Between two points of the curve on the straight line between them; beyond the last, as the rate. stride: 1 or more."""
    last, left_frac = STRIDES[-1]
    if stride >= last:
        return left_frac * last / stride
    after = next(n for n, (at, _) in enumerate(STRIDES) if at > stride)
    (low, high_frac), (high, low_frac) = STRIDES[after - 1], STRIDES[after]
    return high_frac + (low_frac - high_frac) * (stride - low) / (high - low)
