"""A door in front of the executor: as many frames as may be in work come in, the others wait outside, in the order in which they came.

Whose turn it is, is decided inside (`edge.gpu.executor`), and that looks at memory lanes, shares and who else asks. A hundred frames
that all ask in there make each other wait for its lock, and each is looked at twice. Out here waiting costs a place in a queue.

Who is inside and has to wait for something else than the others' frames, goes back out without a turn and lets the next one in; it has
then asked, and is told inside. One that hangs does not keep the others waiting: after `turn_s` it is not counted.
"""

from __future__ import annotations

import threading

from edge.clock import Clock


class Pass:
    """One job's way through a door. For one thread; its fields belong to the door's lock."""

    __slots__ = ("changed", "hurried", "is_in")

    def __init__(self, lock: threading.Lock) -> None:
        self.changed = threading.Condition(lock)
        self.is_in = False
        self.hurried = False  # ended: it may come in at once, to be told so


class Door:
    """width: how many may be inside. Thread-safe."""

    def __init__(self, width: int, clock: Clock, *, turn_s: float) -> None:
        if width < 1:
            raise ValueError(f"a door lets at least one in, got {width}")
        self._width, self._clock, self._turn_s = width, clock, turn_s
        self._lock = threading.Lock()
        self._inside: dict[Pass, float] = {}  # since when
        self._outside: dict[Pass, None] = {}  # in the order in which they came

    def pass_for(self) -> Pass:
        return Pass(self._lock)

    def enter_if_free(self, one: Pass) -> bool:
        """Comes in if nobody is before it; whether it did."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._outside or not self._has_room(now_s):
                return False
            self._let_in(one, now_s)
            return True

    def enter(self, one: Pass) -> None:
        """Waits until there is room and nobody is before it, or until it is hurried."""
        with self._lock:
            self._outside[one] = None
            self._let_in_next()
            while not one.is_in and not one.hurried:
                self._clock.wait(one.changed, self._patience_s())
                self._let_in_next()
            self._outside.pop(one, None)

    def leave(self, one: Pass) -> None:
        """No-op for one that is not inside."""
        with self._lock:
            if one.is_in:
                one.is_in = False
                del self._inside[one]
                self._let_in_next()

    def hurry(self, one: Pass) -> None:
        """It was ended: it need not wait, now or later."""
        with self._lock:
            one.hurried = True
            self._clock.notify_all(one.changed)

    # --- lock held ----------------------------------------------------------------------------------------------------

    def _has_room(self, now_s: float) -> bool:
        if len(self._inside) < self._width:
            return True
        return sum(now_s - since_s < self._turn_s for since_s in self._inside.values()) < self._width

    def _let_in(self, one: Pass, now_s: float) -> None:
        one.is_in = True
        self._inside[one] = now_s

    def _let_in_next(self) -> None:
        if not self._outside:
            return
        now_s = self._clock.monotonic_s()
        while self._outside and self._has_room(now_s):
            one = next(iter(self._outside))
            del self._outside[one]
            self._let_in(one, now_s)
            self._clock.notify_all(one.changed)

    def _patience_s(self) -> float:
        """Until one of those inside is not counted any more. That somebody left, one is told."""
        now_s = self._clock.monotonic_s()
        left_s = [since_s + self._turn_s - now_s for since_s in self._inside.values() if now_s - since_s < self._turn_s]
        return max(1e-6, min(left_s, default=self._turn_s))
