"""When a box's GPUs make it degraded: one that cannot be used, and one that has been slowed for a while.

Clocks are held down for a second now and then wherever a GPU works hard; when it lasts, every share is a share of a slower GPU, and
what plans expect does not come. The rule is pure (`judged`); `DeviceAlarm` keeps its state between two looks of the watchdog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edge.clock import Clock
from edge.gpu.base import DeviceFacts
from edge.gpu.nvml import slowed_by

#: So long held down, in spite of breaks shorter than `FREE_S`, and it is said; so long free, and it is over.
HELD_S = 60.0
FREE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Slowed:
    """A GPU that is, or was a moment ago, held down. reasons: all since it began, in the order in which they came, so that what is told
    does not change with each look; since_s, seen_s: monotonic, first and newest look that found it so."""

    since_s: float
    seen_s: float
    reasons: tuple[str, ...]

    @property
    def lasts(self) -> bool:
        return self.seen_s - self.since_s >= HELD_S


def judged(before: Mapping[int, Slowed], devices: Sequence[DeviceFacts], *, at_s: float) -> dict[int, Slowed]:
    """Index -> how it is slowed, after a look at all devices; those that have been free for `FREE_S` are left out."""
    after = {index: slowed for index, slowed in before.items() if at_s - slowed.seen_s < FREE_S}
    for facts in devices:
        reasons = slowed_by(facts.throttled)
        if reasons:
            known = after.get(facts.index, Slowed(since_s=at_s, seen_s=at_s, reasons=()))
            after[facts.index] = Slowed(
                since_s=known.since_s, seen_s=at_s, reasons=tuple(dict.fromkeys((*known.reasons, *reasons)))
            )
    return after


class DeviceAlarm:
    """Why the GPUs make the box degraded, a sentence each; called with every look of the watchdog. devices: as of the newest look at
    them, must answer at once."""

    def __init__(self, devices: Callable[[], tuple[DeviceFacts, ...]], clock: Clock) -> None:
        self._devices, self._clock = devices, clock
        self._slowed: dict[int, Slowed] = {}

    def __call__(self) -> tuple[str, ...]:
        devices = self._devices()
        self._slowed = judged(self._slowed, devices, at_s=self._clock.monotonic_s())
        return tuple(words for facts in devices if (words := self._words(facts)))

    def _words(self, facts: DeviceFacts) -> str:
        if facts.problem:
            return f"GPU {facts.index} ({facts.name}) cannot be used: {facts.problem}"
        slowed = self._slowed.get(facts.index)
        if slowed is None or not slowed.lasts:
            return ""
        return (
            f"GPU {facts.index} ({facts.name}) is slowed: {', '.join(slowed.reasons)}; "
            "shares of it are worth less, look at its cooling and supply"
        )
