"""When a profile has grown old. Card: VideoStorm, sections 9 and 13: mu covers demand only, "quality drift is not corrected. Re-profile
periodically".

What we changed: not by the clock but by what is seen. A profile is due when the scene has drifted since it was made, because its
qualities are of another scene, or when the measured demand has been off by more than a factor for a while, because what a frame holds
has changed. A single glance is no reason: mu follows a crowd within seconds, and a profile made of a passing crowd would be wrong for
the rest of the day. Where there is none yet (the paper profiles a query when it is submitted) it is due after the same while: then there
is something to make it of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class ReprofileRules:
    """factor: mu outside 1/factor .. factor is off; for_s: it must stay so for this long; rest_s: after an answer, or a new profile,
    nothing is said for this long. Raises ValueError for a factor of 1 or less, or negative times."""

    factor: float = 2.0
    for_s: float = 120.0
    rest_s: float = 1800.0

    def __post_init__(self) -> None:
        if not self.factor > 1 or not math.isfinite(self.factor) or self.for_s < 0 or self.rest_s < 0:
            raise ValueError(f"reprofiling needs a factor above 1 and times from 0 on, got {self}")


@dataclass(frozen=True, kw_only=True)
class ProfileAge:
    """What is remembered of one camera's profile. since_s: when it was made, or last answered about; off_since_s: since when mu is off,
    None: it is not."""

    since_s: float = float("-inf")
    off_since_s: float | None = None


def fresh(at_s: float) -> ProfileAge:
    """A profile that was just made, or taken up."""
    return ProfileAge(since_s=at_s)


def reviewed(
    age: ProfileAge, rules: ReprofileRules, *, at_s: float, mu: float | None, drifted: bool = False, missing: bool = False
) -> tuple[ProfileAge, str]:
    """(what is remembered from now on, why to profile anew; '': the profile will do). mu: real over profiled demand, None: nothing was
    measured; drifted: the camera's window is not what the profile was made on; missing: there is no profile. Times never run backwards;
    mu that is no number is taken for none."""
    off = missing or (mu is not None and math.isfinite(mu) and not 1 / rules.factor <= mu <= rules.factor)
    since_s = age.off_since_s if age.off_since_s is not None else at_s
    age = replace(age, off_since_s=since_s if off else None)
    if at_s - age.since_s < rules.rest_s:
        return age, ""
    why = ""
    if drifted:
        why = "the scene has drifted since"
    elif missing and at_s - since_s >= rules.for_s:
        why = "there is none yet"
    elif off and at_s - since_s >= rules.for_s:
        why = f"a frame has needed {mu:.2g} times what was profiled for {at_s - since_s:.0f} s"
    return (fresh(at_s), why) if why else (age, "")
