"""What the world is like at a moment (`Condition`) and how it changes over time (`Schedule`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from configs.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Strengths in 0-1, 0 = a clear day. dark: 0.5 dusk, 1 night; bump: how far the camera was knocked (shift and rotation, its
    direction comes from the scene's seed); mix: how far the class mix has moved from the scene's usual one to its other one."""

    dark: float = 0.0
    fog: float = 0.0
    rain: float = 0.0
    glare: float = 0.0
    bump: float = 0.0
    mix: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"Condition.{field.name} must be in 0-1, got {value}")

    def blend(self, other: Condition, frac: float) -> Condition:
        """This condition at frac 0, `other` at 1, linear between."""
        return Condition(**{f.name: (1 - frac) * getattr(self, f.name) + frac * getattr(other, f.name) for f in fields(self)})

    def with_(self, other: Condition) -> Condition:
        """Both at once: the stronger of each field."""
        return Condition(**{f.name: max(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})


#: Named conditions; `named("night+rain")` combines them.
CONDITIONS: dict[str, Condition] = {
    "day": Condition(),
    "dusk": Condition(dark=0.55),
    "night": Condition(dark=1.0),
    "fog": Condition(fog=1.0),
    "rain": Condition(rain=1.0),
    "glare": Condition(glare=1.0),
    "bump": Condition(bump=1.0),
    "mix": Condition(mix=1.0),
}


def named(name: str) -> Condition:
    """The condition called `name`, or several joined by '+'. Raises ConfigError listing the known names."""
    result = Condition()
    for part in name.split("+"):
        if part not in CONDITIONS:
            known = ", ".join(CONDITIONS)
            raise ConfigError(f"no condition is called {part!r}", subject=name, remedy=f"use one of {known}, joined by '+'")
        result = result.with_(CONDITIONS[part])
    return result


class Schedule:
    """A condition for every moment: key moments (t_s, condition), smoothly graded between neighbours, constant outside."""

    def __init__(self, moments: Iterable[tuple[float, Condition]] = ((0.0, Condition()),)) -> None:
        self.moments = tuple((float(t_s), condition) for t_s, condition in moments)
        times = [t_s for t_s, _ in self.moments]
        if not times or times != sorted(times) or not all(map(math.isfinite, times)):
            raise ConfigError(
                f"a schedule needs moments in rising order of time, got {times}", remedy="sort its moments by time"
            )

    @staticmethod
    def of(*moments: tuple[float, str]) -> Schedule:
        """From (t_s, name) pairs: `Schedule.of((0, "day"), (40, "day"), (70, "night"))`."""
        return Schedule((t_s, named(name)) for t_s, name in moments)

    @staticmethod
    def always(name: str) -> Schedule:
        return Schedule.of((0.0, name))

    def at(self, t_s: float) -> Condition:
        """The condition at t_s; between two moments a smoothstep, so that nothing jumps."""
        if t_s <= self.moments[0][0]:
            return self.moments[0][1]
        for (start_s, before), (end_s, after) in zip(self.moments, self.moments[1:], strict=False):
            if t_s < end_s:
                frac = (t_s - start_s) / (end_s - start_s)
                return before.blend(after, frac * frac * (3 - 2 * frac))
        return self.moments[-1][1]
