"""Profiles that are wrong: the running correction mu of the card's section 9.

    R_k = core-seconds used / video-seconds processed        (the measured need)
    mu <- average of mu and R_k / D_k(c)                     D * mu replaces D in the predictor

The need is counted per second of video processed: plain usage cannot be larger than the share and would never show a need above it.
The text names no weight for the average; ours follows a lasting error in a few periods, and one odd second moves it little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: mu stays within these: beyond them a profile is of no use, and one absurd measurement must not starve or flood a query.
MU_MIN, MU_MAX = 0.01, 100.0


@dataclass(frozen=True, kw_only=True)
class Correction:
    """mu of one query. gain: weight of a second of video in the average, on the scale of logarithms (x2 and x0.5 are equally far
    from 1), so that short periods count less; measured_s: video-seconds that it rests on."""

    mu: float = 1.0
    gain: float = 0.2
    measured_s: float = 0.0

    def __post_init__(self) -> None:
        if not (MU_MIN <= self.mu <= MU_MAX and 0 < self.gain < 1 and 0 <= self.measured_s < math.inf):
            raise ValueError(f"mu must be {MU_MIN}-{MU_MAX}, gain between 0 and 1, measured_s from 0 on; got {self}")

    def after(self, used_pct_s: float, processed_s: float, demand_pct: float) -> Correction:
        """The correction when a period used `used_pct_s` (percent of the device times seconds) to process `processed_s` seconds of
        video with an option of the profiled `demand_pct`. Nothing processed, or no demand in the profile: unchanged.

        Errors: ValueError for numbers that are negative or not finite.
        """
        if not all(0 <= n < math.inf for n in (used_pct_s, processed_s, demand_pct)):
            raise ValueError(
                f"usage, video and demand must be numbers from 0 on, got {used_pct_s}, {processed_s}, {demand_pct}"
            )
        if processed_s == 0 or demand_pct == 0:
            return self
        seen = _clamped(used_pct_s / processed_s / demand_pct)
        kept = (1 - self.gain) ** processed_s
        mu = math.exp(kept * math.log(self.mu) + (1 - kept) * math.log(seen))
        return replace(self, mu=_clamped(mu), measured_s=self.measured_s + processed_s)


def _clamped(mu: float) -> float:
    return min(MU_MAX, max(MU_MIN, mu))
