"""A thread's signs of life. It says `beat` when it has come round, and `rest` before it waits for something that may take its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class Pulse:
    """Written by one thread, read by others: one number, so no lock. now_s: a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._due_s = float("inf")

    def beat(self) -> None:
        """Alive, and expected to say so again soon."""
        self._due_s = self._now_s()

    def rest(self, *, for_s: float = float("inf")) -> None:
        """About to wait, for so long: silence means nothing until then."""
        self._due_s = self._now_s() + for_s

    def silent_s(self) -> float:
        """Seconds for which nothing was heard although something should have been; 0 while it rests, and before it began."""
        return max(0.0, self._now_s() - self._due_s)


@dataclass(frozen=True, kw_only=True)
class ThreadLook:
    """How one of a camera's threads is. silent_s: see `Pulse`; faults, done: failures and successes so far; fault: newest failure."""

    name: str
    alive: bool
    silent_s: float = 0.0
    faults: int = 0
    done: int = 0
    fault: str = ""


@runtime_checkable
class Threaded(Protocol):
    """A camera whose threads can be looked at, and started anew."""

    def threads(self) -> tuple[ThreadLook, ...]: ...

    def restart(self) -> None:
        """Ends what can be ended and begins again. Takes a second at most; a thread that hangs is left behind."""
