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
    """Changes in place. gpus: their numbers, rising; share_max: c. seats: trial -> its GPUs; widths: trial -> its width."""

    def __init__(self, gpus: Iterable[int], share_max: int) -> None:
        self.gpus = sorted(gpus)
        self.share_max = share_max
        self.seats: dict[str, tuple[int, ...]] = {}
        self.widths: dict[str, Width] = {}

    def copy(self) -> Layout:
        twin = Layout(self.gpus, self.share_max)
        twin.seats, twin.widths = dict(self.seats), dict(self.widths)
        return twin

    def residents(self, gpu: int) -> list[str]:
        return [trial for trial, seat in self.seats.items() if gpu in seat]

    def idle(self) -> list[int]:
        """GPUs that nobody uses."""
        used = {gpu for seat in self.seats.values() for gpu in seat}
        return [gpu for gpu in self.gpus if gpu not in used]

    def open_gpu(self, *, spread: bool) -> int | None:
        """Where a packed trial goes: the emptiest GPU with room (spread), or the fullest (a shelf is filled first)."""
        counts = dict.fromkeys(self.gpus, 0)
        for trial, seat in self.seats.items():
            for gpu in seat:
                counts[gpu] += self.share_max if self.widths[trial] >= 1 else 1
        room = [gpu for gpu in self.gpus if counts[gpu] < self.share_max]
        return min(room, key=lambda gpu: (counts[gpu] if spread else -counts[gpu], gpu), default=None)

    def seat(self, trial: str, width: Width, *, spread: bool = True) -> bool:
        """Seats a trial that has no seat; False, and nothing changes, when there is no room."""
        if trial in self.seats:
            raise ValueError(f"trial '{trial}' has a seat already")
        if width < 1:
            gpu = self.open_gpu(spread=spread)
            chosen = [] if gpu is None else [gpu]
        else:
            idle = self.idle()
            chosen = idle[: int(width)] if len(idle) >= width else []
        if not chosen:
            return False
        self.seats[trial], self.widths[trial] = tuple(chosen), width
        return True

    def leave(self, trial: str) -> None:
        del self.seats[trial], self.widths[trial]

    def neighbours(self, trial: str) -> int:
        """Trials on its GPU, itself included; 1 for one that has whole GPUs."""
        if self.widths[trial] >= 1:
            return 1
        return sum(self.seats[trial] == seat for seat in self.seats.values())

    def felt_width(self, trial: str) -> Width:
        """The width that its speed is that of: 1/p with p trials on its GPU."""
        width = self.widths[trial]
        return width if width >= 1 else Fraction(1, self.neighbours(trial))

    def has_room(self, trial: str, width: Width) -> bool:
        """Can a seated trial have that many whole GPUs, its own included where it has them for itself?"""
        return int(width) <= len(self.idle()) + len(self._own(trial))

    def resize(self, trial: str, width: Width) -> None:
        """Gives a seated trial another width: it keeps GPUs that it has for itself, and takes idle ones. A trial that shrinks below 1
        keeps its first GPU and opens it to others. Raises ValueError when there is no room (see `has_room`)."""
        own = self._own(trial)
        if width < 1:
            self.seats[trial], self.widths[trial] = self.seats[trial][:1], width
            return
        if not self.has_room(trial, width):
            raise ValueError(f"no room for trial '{trial}' at width {width}")
        chosen = (own + self.idle())[: int(width)]
        self.seats[trial], self.widths[trial] = tuple(chosen), width

    def _own(self, trial: str) -> list[int]:
        return list(self.seats[trial]) if self.neighbours(trial) == 1 else []

    def without(self, lost: Iterable[int]) -> tuple[Layout, tuple[str, ...]]:
        """(the layout without these GPUs, trials that have lost their seat). A trial that keeps some of its GPUs is as wide as those."""
        gone = set(lost)
        after = Layout([gpu for gpu in self.gpus if gpu not in gone], self.share_max)
        homeless = []
        for trial, seat in self.seats.items():
            kept = tuple(gpu for gpu in seat if gpu not in gone)
            if not kept:
                homeless.append(trial)
                continue
            after.seats[trial] = kept
            after.widths[trial] = Fraction(len(kept)) if self.widths[trial] >= 1 else self.widths[trial]
        return after, tuple(homeless)

    def check(self) -> None:
        """Raises AssertionError when a GPU is used twice, by more than c, or by nobody who exists."""
        assert self.seats.keys() == self.widths.keys()
        for gpu in {gpu for seat in self.seats.values() for gpu in seat}:
            here = self.residents(gpu)
            assert gpu in self.gpus, f"GPU {gpu} is gone"
            assert len(here) <= self.share_max, f"{here} on GPU {gpu}"
            assert len(here) == 1 or all(self.widths[t] < 1 for t in here), f"{here} on GPU {gpu}"
        for trial, seat in self.seats.items():
            assert len(seat) == max(1, int(self.widths[trial])), f"'{trial}' at {self.widths[trial]} on {seat}"
