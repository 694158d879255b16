"""Who sits where: whole GPUs for a width of 1 and more, one of c places on a shared GPU for 1/c.

Placement of algorithm 3.1 (papers/fluid.md section 4). The text fills a GPU with c trials of similar length ("shelves") before it
takes the next one; ours (`spread`) takes the emptiest, because a trial without neighbours is faster, and no GPU stays empty (card,
section 11).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from scheduler.fluid.types import Width


class Layout:
    """Changes in place. gpus: their numbers, rising; share_max: c. seats: trial -> its GPUs; widths: trial -> its width (do not change
    these two from outside)."""

    def __init__(self, gpus: Iterable[int], share_max: int) -> None:
        self.share_max = share_max
        self.seats: dict[str, tuple[int, ...]] = {}
        self.widths: dict[str, Width] = {}
        self._on: dict[int, set[str]] = {gpu: set() for gpu in sorted(gpus)}
        self._idle = set(self._on)

    @property
    def gpus(self) -> list[int]:
        return list(self._on)

    def copy(self) -> Layout:
        twin = Layout(self._on, self.share_max)
        for trial, seat in self.seats.items():
            twin._sit(trial, seat, self.widths[trial])
        return twin

    def add_gpus(self, count: int) -> None:
        """`count` more, with the next free numbers."""
        first = max(self._on, default=-1) + 1
        self._on |= {gpu: set() for gpu in range(first, first + count)}
        self._idle |= set(range(first, first + count))

    def idle(self) -> list[int]:
        """GPUs that nobody uses, rising."""
        return sorted(self._idle)

    def open_gpu(self, *, spread: bool) -> int | None:
        """Where a packed trial goes: the emptiest GPU with room (spread), or the fullest (a shelf is filled first)."""
        room = [gpu for gpu, here in self._on.items() if len(here) < self.share_max and all(self.widths[t] < 1 for t in here)]
        return min(room, key=lambda gpu: (len(self._on[gpu]) * (1 if spread else -1), gpu), default=None)

    def seat(self, trial: str, width: Width, *, spread: bool = True) -> bool:
        """Seats a trial that has no seat; False, and nothing changes, when there is no room."""
        if trial in self.seats:
            raise ValueError(f"trial '{trial}' has a seat already")
        if width < 1:
            gpu = self.open_gpu(spread=spread)
            chosen = [] if gpu is None else [gpu]
        else:
            chosen = self.idle()[: int(width)] if len(self._idle) >= width else []
        if not chosen:
            return False
        self._sit(trial, tuple(chosen), width)
        return True

    def leave(self, trial: str) -> None:
        for gpu in self.seats.pop(trial):
            self._on[gpu].discard(trial)
            if not self._on[gpu]:
                self._idle.add(gpu)
        del self.widths[trial]

    def neighbours(self, trial: str) -> int:
        """Trials on its GPU, itself included; 1 for one that has whole GPUs."""
        return len(self._on[self.seats[trial][0]])

    def felt_width(self, trial: str) -> Width:
        """The width that its speed is that of: 1/p with p trials on its GPU."""
        width = self.widths[trial]
        return width if width >= 1 else Fraction(1, self.neighbours(trial))

    def has_room(self, trial: str, width: Width) -> bool:
        """Can a seated trial have that many whole GPUs, its own included where it has them for itself?"""
        return int(width) <= len(self._idle) + len(self._own(trial))

    def resize(self, trial: str, width: Width) -> None:
        """Gives a seated trial another width: it keeps GPUs that it has for itself, and takes idle ones. A trial that shrinks below 1
        keeps its first GPU and opens it to others. Raises ValueError when there is no room (see `has_room`)."""
        if width >= 1 and not self.has_room(trial, width):
            raise ValueError(f"no room for trial '{trial}' at width {width}")
        own = self._own(trial)
        chosen = self.seats[trial][:1] if width < 1 else tuple((own + self.idle())[: int(width)])
        self.leave(trial)
        self._sit(trial, chosen, width)

    def without(self, lost: Iterable[int]) -> tuple[Layout, tuple[str, ...]]:
        """(the layout without these GPUs, trials that have lost their seat). A trial that keeps some of its GPUs is as wide as those."""
        gone = set(lost)
        after = Layout((gpu for gpu in self._on if gpu not in gone), self.share_max)
        homeless = []
        for trial, seat in self.seats.items():
            kept = tuple(gpu for gpu in seat if gpu not in gone)
            if kept:
                after._sit(trial, kept, Fraction(len(kept)) if self.widths[trial] >= 1 else self.widths[trial])
            else:
                homeless.append(trial)
        return after, tuple(homeless)

    def check(self) -> None:
        """Raises AssertionError when a GPU is used twice, by more than c, or by nobody who exists."""
        assert self.seats.keys() == self.widths.keys()
        assert self._idle == {gpu for gpu, here in self._on.items() if not here}
        for gpu, here in self._on.items():
            assert here == {t for t, seat in self.seats.items() if gpu in seat}
            assert len(here) <= self.share_max, f"{here} on GPU {gpu}"
            assert len(here) <= 1 or all(self.widths[t] < 1 for t in here), f"{here} on GPU {gpu}"
        for trial, seat in self.seats.items():
            assert len(set(seat)) == len(seat) == max(1, int(self.widths[trial])), f"'{trial}': {self.widths[trial]} on {seat}"
            assert set(seat) <= set(self._on), f"'{trial}' sits on {seat}"

    def _own(self, trial: str) -> list[int]:
        return list(self.seats[trial]) if self.neighbours(trial) == 1 else []

    def _sit(self, trial: str, gpus: tuple[int, ...], width: Width) -> None:
        self.seats[trial], self.widths[trial] = gpus, width
        for gpu in gpus:
            self._on[gpu].add(trial)
        self._idle -= set(gpus)
