"""Jobs on devices while a plan is fitted to them: who lies where, what each device makes of its jobs, and the moves between.

A job has whole devices of its own, a part of one more that it shares, or both. Settling a device is exact: given which jobs lie there
and what their streams have elsewhere, a small knapsack over the streams finds the shares, knobs and options that make the most of
its capacity and memory, the floor before quality.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from scheduler.ekya.menu import Kind, Menu, Setting
from scheduler.ekya.pack import MEMORY_TOL_MIB, Home

#: A job: (stream number, kind).
Key = tuple[int, Kind]

#: Combinations kept while a device is settled; only many kinds of memory reach it.
_FRONT_MOST = 400


def keys_of(number: int) -> tuple[Key, Key]:
    return (number, "infer"), (number, "train")


#: What streams take of a device together: (cameras under the floor, minus quality, share pct, memory MiB, chain of choices). A chain is
#: () or (chain, stream number, setting). Smaller is better, and sorts first.
_Use = tuple[int, float, int, float, tuple[Any, ...]]


def _front(uses: Iterable[_Use], room_pct: int) -> list[_Use]:
    """Those that no other one matches or beats in worth, share and memory; the best first. All within `room_pct`."""
    kept: list[_Use] = []
    least_mib = [math.inf] * (room_pct + 1)  # of what is kept and takes no more share
    for use in sorted(uses, key=itemgetter(0, 1, 2, 3)):
        pct, mib = use[2], use[3]
        if least_mib[pct] <= mib:
            continue
        kept.append(use)
        for share in range(pct, room_pct + 1):
            if least_mib[share] <= mib:
                break
            least_mib[share] = mib
    if len(kept) > _FRONT_MOST:
        # what needs least keeps the way on open
        kept = [*kept[: _FRONT_MOST - 1], min(kept, key=itemgetter(3, 2))]
    return kept


@dataclass(frozen=True)
class _Seat:
    """How a stream lies on a device: for each job the share that whole devices give it, or None and what it has elsewhere; and
    the memory that it may hold at most."""

    number: int
    infer_base: int | None
    train_base: int | None
    infer_pct: int
    train_pct: int
    infer_most: float
    train_most: float


@dataclass
class Layout:
    """Which devices each job has. whole: devices that are all its own; part: the one it shares with others (a job without a share
    may have a part too, of 0); now: what each stream does. Changed in place; `copy` before a trial."""

    menus: Sequence[Menu]
    capacity_pct: tuple[int, ...]
    memory_mib: tuple[float, ...]
    now: list[Setting]
    whole: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    part: dict[Key, int] = field(default_factory=dict)
    here: list[list[Key]] = field(default_factory=list)
    owner: dict[int, Key] = field(default_factory=dict)
    #: Devices settled before, with the same streams seated in the same way. Shared by all copies.
    known: dict[tuple[Any, ...], list[_Use]] = field(default_factory=dict)

    def copy(self) -> Layout:
        return Layout(
            self.menus, self.capacity_pct, self.memory_mib, list(self.now), dict(self.whole), dict(self.part),
            [list(keys) for keys in self.here], dict(self.owner), self.known,
        )  # fmt: skip

    def rank(self) -> tuple[int, float]:
        """Smaller is better."""
        return sum(s.choice.below_floor for s in self.now), -sum(s.choice.quality for s in self.now)

    def base_pct(self, key: Key) -> int:
        return sum(self.capacity_pct[g] for g in self.whole.get(key, ()))

    def share_pct(self, key: Key) -> int:
        setting = self.now[key[0]]
        return setting.infer_pct if key[1] == "infer" else setting.train_pct

    def is_placed(self, key: Key) -> bool:
        """Has the job a share, or is it running and keeps its place without one?"""
        return self.share_pct(key) > 0 or (key[1] == "train" and self.menus[key[0]].running)

    def siblings(self, gpu: int) -> Iterator[Key]:
        """The other job of every job that lies here."""
        return ((number, "train" if kind == "infer" else "infer") for number, kind in self.here[gpu])

    def put(self, key: Key, gpu: int) -> None:
        """The job's part is on `gpu` from now on."""
        self.drop(key)
        self.part[key] = gpu
        self.here[gpu].append(key)

    def drop(self, key: Key) -> None:
        """The job has no part any more."""
        gpu = self.part.pop(key, None)
        if gpu is not None:
            self.here[gpu].remove(key)

    def take(self, key: Key, gpu: int) -> None:
        """An empty device becomes the job's own."""
        self.whole[key] = (*self.whole.get(key, ()), gpu)
        self.owner[gpu] = key

    def open(self, gpu: int) -> set[int]:
        """The device's owner, if any, shares it from now on: its part lies there. Returns the devices that must be settled."""
        key = self.owner.pop(gpu, None)
        if key is None:
            return {gpu}
        self.whole[key] = tuple(g for g in self.whole[key] if g != gpu)
        left = self.part.get(key)
        self.put(key, gpu)
        return {gpu} if left is None else {gpu, left}

    def is_empty(self, gpu: int) -> bool:
        return not self.here[gpu] and gpu not in self.owner

    def is_repeated(self, gpu: int) -> bool:
        """Is an earlier device just as empty and of the same size?"""
        if not self.is_empty(gpu):
            return False
        size = self.capacity_pct[gpu], self.memory_mib[gpu]
        return any(self.is_empty(g) and (self.capacity_pct[g], self.memory_mib[g]) == size for g in range(gpu))

    def settle(self, gpu: int) -> bool:
        """The best that the jobs lying here can do with the device, all else as it is. False if they do not fit at all."""
        owner = self.owner.get(gpu)
        room_pct = 0 if owner is not None else self.capacity_pct[gpu]
        room_mib = self.memory_mib[gpu] - (self.held_mib(owner) if owner is not None else 0.0) + MEMORY_TOL_MIB
        seats = tuple(self._seat(number, gpu) for number in sorted({key[0] for key in self.here[gpu]}))
        front = self._together(seats, room_pct, room_mib)
        if not front:
            return False
        chain = front[0][4]
        while chain:
            chain, number, setting = chain
            self.now[number] = setting
        return True

    def held_mib(self, key: Key) -> float:
        setting = self.now[key[0]]
        return setting.infer_mib if key[1] == "infer" else setting.train_mib

    def _seat(self, number: int, gpu: int) -> _Seat:
        """A job that also lies elsewhere may not hold more memory than it does."""
        now = self.now[number]
        infer, train = keys_of(number)
        infer_base = self.base_pct(infer) if self.part.get(infer) == gpu else None
        train_base = self.base_pct(train) if self.part.get(train) == gpu else None
        return _Seat(
            number,
            infer_base,
            train_base,
            0 if infer_base is not None else now.infer_pct,
            0 if train_base is not None else now.train_pct,
            math.inf if infer_base == 0 else now.infer_mib,
            math.inf if train_base == 0 else now.train_mib,
        )

    def _together(self, seats: tuple[_Seat, ...], room_pct: int, room_mib: float) -> list[_Use]:
        """Everything worth having that these streams can make of that much room."""
        if not seats:
            return [(0, 0.0, 0, 0.0, ())]
        found = self.known.get((seats, room_pct, room_mib))
        if found is None:
            others = self._together(seats[:-1], room_pct, room_mib)
            uses = self._alone(seats[-1], room_pct)
            number = seats[-1].number
            found = _front(
                (
                    (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], (a[4], number, b[4][0]))
                    for a in others
                    for b in uses
                    if a[2] + b[2] <= room_pct and a[3] + b[3] <= room_mib
                ),
                room_pct,
            )
            self.known[seats, room_pct, room_mib] = found
        return found

    def _alone(self, seat: _Seat, room_pct: int) -> list[_Use]:
        found = self.known.get((seat, room_pct))
        if found is None:
            found = self.known[seat, room_pct] = _front(self._uses(seat, room_pct), room_pct)
        return found

    def _uses(self, seat: _Seat, room_pct: int) -> Iterator[_Use]:
        """What one stream may take of the room, whatever memory that needs; its chain holds just the setting."""
        menu, infer_base, train_base = self.menus[seat.number], seat.infer_base, seat.train_base
        infers = [seat.infer_pct] if infer_base is None else menu.shares("infer", infer_base, room_pct)
        trains = [seat.train_pct] if train_base is None else menu.shares("train", train_base, room_pct)
        for infer_pct, train_pct in itertools.product(infers, trains):
            infer_part = 0 if infer_base is None else infer_pct - infer_base
            train_part = 0 if train_base is None else train_pct - train_base
            if infer_part + train_part > room_pct:
                continue
            for setting in menu.settings(infer_pct, train_pct):
                mib = setting.infer_mib if infer_part else 0.0
                mib += setting.train_mib if train_part or train_base == 0 else 0.0
                if setting.infer_mib <= seat.infer_most and setting.train_mib <= seat.train_most:
                    yield (*setting.worth(), infer_part + train_part, mib, (setting,))

    def home(self, key: Key) -> Home:
        """Devices and shares of a job; none if it has no share and holds nothing."""
        share, base = self.share_pct(key), self.base_pct(key)
        wholes = tuple((g, self.capacity_pct[g]) for g in self.whole.get(key, ()))
        if share > 0:
            return wholes if share == base else (*wholes, (self.part[key], share - base))
        if key[1] == "train" and self.menus[key[0]].running:
            # one that nobody made room for holds no memory that counts
            return ((self.part.get(key, wholes[0][0] if wholes else 0), 0),)
        return ()

    def has_seated(self, keys: Iterable[Key]) -> bool:
        """Has each of these jobs a device?"""
        return all(key in self.part or self.whole.get(key) for key in keys)


# --- moves ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """The job's part goes to another device, which its owner must share if it has one."""

    key: Key
    gpu: int

    def applies(self, layout: Layout) -> bool:
        elsewhere = layout.part.get(self.key) != self.gpu and layout.owner.get(self.gpu) != self.key
        return elsewhere and not layout.is_repeated(self.gpu)

    def apply(self, layout: Layout) -> Sequence[int]:
        """Change the layout; the devices to settle, in order."""
        source = layout.part.get(self.key)
        touched = layout.open(self.gpu) | ({source} if source is not None else set())
        layout.put(self.key, self.gpu)
        return (self.gpu, *sorted(touched - {self.gpu}))


@dataclass(frozen=True)
class Widen:
    """The job takes a device as its own and keeps its part; whatever lies on the device comes to where that part is."""

    key: Key
    gpu: int

    def applies(self, layout: Layout) -> bool:
        menu, kind = layout.menus[self.key[0]], self.key[1]
        wanted_pct = layout.base_pct(self.key) + layout.capacity_pct[self.gpu]
        planned_pct = menu.planned.infer_pct if kind == "infer" else menu.planned.train_pct
        return (
            layout.part.get(self.key, self.gpu) != self.gpu
            and self.gpu not in layout.owner
            and not layout.is_repeated(self.gpu)
            and (layout.is_empty(self.gpu) or wanted_pct <= planned_pct)
            and layout.capacity_pct[self.gpu] > 0
            and wanted_pct <= menu.most_pct(kind)
            and layout.held_mib(self.key) <= layout.memory_mib[self.gpu]
        )

    def apply(self, layout: Layout) -> Sequence[int]:
        part = layout.part[self.key]
        for other in tuple(layout.here[self.gpu]):
            layout.put(other, part)
        layout.take(self.key, self.gpu)
        return (part,)


@dataclass(frozen=True)
class Swap:
    """Two parts change places."""

    key: Key
    other: Key

    def applies(self, layout: Layout) -> bool:
        a, b = layout.part.get(self.key), layout.part.get(self.other)
        return a is not None and b is not None and a != b

    def apply(self, layout: Layout) -> Sequence[int]:
        a, b = layout.part[self.key], layout.part[self.other]
        layout.put(self.key, b)
        layout.put(self.other, a)
        return (a, b)
