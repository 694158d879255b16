"""Plans that fit on the GPUs: any policy, wrapped. What packs is left as it is; what does not is changed as little as possible.

The unpacked plan says what each job should have. Jobs are laid on devices, the largest first, each where it fits best or, where it
fits nowhere, where most is free. Then every device is settled exactly: given which jobs lie there and what the others have, the
shares, knobs and options that make the most of its capacity and memory (a small knapsack over its streams). Then single jobs move
to other devices, open or take whole ones, and pairs change places, for as long as that helps and the tries last. Every quality is
that of `StreamEstimator`, the same that the policies climb on; allocations are ranked with the floor first, as everywhere.

Cheap changes are found before dear ones because they lose less: a share that buys nothing goes first, then quanta, then an option or
knobs with less memory, then the retraining. A retraining in progress is never dropped: it may be paused, and keeps its memory. What
fragmentation leaves is spare. How far a plan may be changed depends on the policy (`Latitude`): an even split stays one, only smaller.

Deterministic and bounded (`tries_for` settlements of one device). Not exact: assigning jobs to devices is bin packing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Literal

from configs.errors import ConfigError
from scheduler.ekya.estimate import QUALITY_TOL, Choice, SpeedCurve, StreamEstimator, best_knobs
from scheduler.ekya.pack import (
    MEMORY_TOL_MIB,
    NODES,
    Home,
    Job,
    check_gpus,
    jobs_of_plan,
    option_of,
    pack,
    place,
    placements,
)
from scheduler.types import Plan, Snapshot, StreamPlan, StreamView

#: Settlements of one device that a repair may use over those that the start needs: the most, the least, and how the number falls
#: between them as streams grow, since a trial costs more then.
TRIES_MOST, TRIES_LEAST, TRIES_STREAMS = 1000, 200, 40_000

#: By how many quanta less the policy is asked to plan, one after the other, for another start; and up to how many streams.
FEWER_QUANTA = (1, 2, 3, 5, 8)
STREAMS_REPLANNED = 50

#: Starts that are repaired, the best ones first.
STARTS = 2

#: Combinations kept while a device is settled; only many kinds of memory reach it.
_FRONT_MOST = 400

Kind = Literal["infer", "train"]
#: A job: (stream number, kind).
Key = tuple[int, Kind]


@dataclass(frozen=True, kw_only=True)
class Latitude:
    """How a plan may be changed to fit. grow: a job may get more than planned; swap: another option may be trained than planned."""

    grow: bool = True
    swap: bool = True


@dataclass(frozen=True)
class Setting:
    """What one stream does: shares, the memory that each job holds on every device it touches, and what comes of it."""

    infer_pct: int
    train_pct: int
    infer_mib: float
    train_mib: float
    choice: Choice

    def worth(self) -> tuple[int, float]:
        """Rank: smaller is better."""
        return int(self.choice.below_floor), -self.choice.quality


# --- what a stream could do -----------------------------------------------------------------------------------------------


@dataclass
class Menu:
    """Everything that one stream could do, by the estimator of its view; with less memory by that of a view with fewer entries."""

    view: StreamView
    planned: StreamPlan
    snapshot: Snapshot
    speed: SpeedCurve
    latitude: Latitude
    memory_counts: bool
    _estimators: dict[tuple[float, float], StreamEstimator] = field(default_factory=dict)
    _settings: dict[tuple[int, int], tuple[Setting, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.running = self.view.running is not None
        self.step = self.snapshot.quantum_pct if self.latitude.grow else 1
        held = option_of(self.view, self.planned)
        self._held_mib = held.memory_mib if held is not None else 0.0
        self._options = self.view.retrain
        if not self.latitude.swap or self.planned.source != "box":
            self._options = tuple(o for o in self.view.retrain if o is held and self.planned.retrain == o.name)
        counted = self.memory_counts
        self._knob_caps = sorted({k.memory_mib for k in self.view.knobs}) if counted else [math.inf]
        self._option_caps = sorted({o.memory_mib for o in self._options}) if counted and not self.running else [math.inf]
        self._stops = self._knob_stops()
        alone = self._estimator(math.inf, math.inf).with_option(None, self.planned.infer_pct, 0)
        elsewhere = self.planned.source != "box" and alone is not None and alone.quality > 0
        #: What a model from elsewhere multiplies the serving model's average by.
        self._from_elsewhere = self.planned.expected_quality / alone.quality if elsewhere and alone else 1.0

    def _knob_stops(self) -> list[int]:
        """Inference shares worth having: those at which better knobs fit, for any limit on memory. More is never worse, so a
        stop serves as well as all shares up to the next."""
        stops = {0}
        for knobs in self.view.knobs:
            stops.add(max(self.step, self.step * math.ceil(round(knobs.demand_pct, 9) / self.step)))
        if not self.latitude.grow:
            stops = {stop for stop in stops if stop <= self.planned.infer_pct} | {self.planned.infer_pct}
        return sorted(stops)

    def stop_at(self, infer_pct: int) -> int:
        """The largest inference share up to this one that is worth having."""
        return max(stop for stop in self._stops if stop <= infer_pct)

    def most_pct(self, kind: Kind) -> float:
        """No larger share is of use."""
        if kind == "infer":
            return self._stops[-1]
        return 0 if not self._options else math.inf if self.latitude.grow else self.planned.train_pct

    def shares(self, kind: Kind, base_pct: int, room_pct: int) -> list[int]:
        """Shares worth trying when `base_pct` are whole devices and up to `room_pct` may be part of another."""
        if kind == "infer":
            found = {stop for stop in self._stops if base_pct <= stop <= base_pct + room_pct}
        elif not self._options:
            found = {0}
        else:
            most = base_pct + room_pct if self.latitude.grow else min(base_pct + room_pct, self.planned.train_pct)
            found = set(range(base_pct, most + 1, self.snapshot.quantum_pct))
            found |= {self.planned.train_pct} if base_pct <= self.planned.train_pct <= most else set()
        # a share below 100 lies on one device only
        return sorted({s for s in found if base_pct == 0 or s >= 100 or s == base_pct} | {base_pct})

    def settings(self, infer_pct: int, train_pct: int) -> tuple[Setting, ...]:
        """What these shares may be used for: the best first, then what gives less for less memory."""
        key = (infer_pct, train_pct)
        if key not in self._settings:
            self._settings[key] = _undominated(self._all_settings(infer_pct, train_pct))
        return self._settings[key]

    def _all_settings(self, infer_pct: int, train_pct: int) -> Iterator[Setting]:
        best = best_knobs(self.view.knobs, infer_pct)
        for cap in self._knob_caps:
            knobs = best_knobs([k for k in self.view.knobs if k.memory_mib <= cap], infer_pct)
            limit = math.inf if knobs is best else cap
            for option_cap in self._option_caps or [math.inf]:
                choice = self._choice(self._estimator(limit, option_cap), infer_pct, train_pct)
                option = choice.retrain
                yield Setting(
                    infer_pct=infer_pct,
                    train_pct=train_pct if option is not None else 0,
                    infer_mib=knobs.memory_mib if knobs is not None and infer_pct > 0 else 0.0,
                    train_mib=self._held_mib if self.running else option.memory_mib if option is not None else 0.0,
                    choice=choice,
                )

    def _estimator(self, knob_cap: float, option_cap: float) -> StreamEstimator:
        found = self._estimators.get((knob_cap, option_cap))
        if found is None:
            knobs = tuple(k for k in self.view.knobs if k.memory_mib <= knob_cap)
            options = tuple(o for o in self._options if o.memory_mib <= option_cap)
            view = replace(self.view, knobs=knobs, retrain=options)
            found = StreamEstimator.of(view, self.snapshot, self.speed, only_useful=self.latitude.swap)
            self._estimators[knob_cap, option_cap] = found
        return found

    def _choice(self, estimator: StreamEstimator, infer_pct: int, train_pct: int) -> Choice:
        if self.latitude.swap and self.planned.source == "box":
            return estimator.best(infer_pct, train_pct)
        option = estimator.view.retrain[0] if estimator.view.retrain and train_pct > 0 else None
        choice = estimator.with_option(option, infer_pct, train_pct) or estimator.with_option(None, infer_pct, train_pct)
        assert choice is not None  # doing nothing always fits
        return replace(choice, quality=choice.quality * self._from_elsewhere)


def _undominated(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    kept: list[Setting] = []
    for one in sorted(settings, key=lambda s: (*s.worth(), s.infer_mib, s.train_mib)):
        if not any(k.infer_mib <= one.infer_mib and k.train_mib <= one.train_mib for k in kept):
            kept.append(one)
    return tuple(kept)


# --- which job lies where -------------------------------------------------------------------------------------------------


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
        infer, train = _keys(number)
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


@dataclass
class _Repair:
    """Moves jobs about until that no longer helps, nothing is left to win (`goal`, a rank), or the tries are used up."""

    layout: Layout
    goal: tuple[int, float]
    tries: int
    used: int = 0

    def run(self) -> Layout:
        while self._helped():
            pass
        return self.layout

    def _helped(self) -> bool:
        """One pass over all moves; True if any helped and another pass may."""
        helped = False
        for move in self._moves():
            if self.used >= self.tries or not _is_better(self.goal, self.layout.rank()):
                return False
            if not move.applies(self.layout):
                continue
            trial = self.layout.copy()
            if self._settle(trial, move.apply(trial)) and _is_better(trial.rank(), self.layout.rank()):
                self.layout, helped = trial, True
        return helped

    def _settle(self, trial: Layout, touched: Sequence[int]) -> bool:
        """Settle the touched devices in order, then those that share a stream with them."""
        linked = {trial.part[key] for gpu in touched for key in trial.siblings(gpu) if key in trial.part} - set(touched)
        for gpu in (*touched, *sorted(linked)):
            self.used += 1
            if not trial.settle(gpu):
                return False
        return True

    def _moves(self) -> Iterator[Move | Widen | Swap]:
        """Moves in a fixed order, those of the streams that have lost most first."""
        menus, gpus = self.layout.menus, range(len(self.layout.capacity_pct))
        lost = [menu.planned.expected_quality - now.choice.quality for menu, now in zip(menus, self.layout.now, strict=True)]
        numbers = sorted(range(len(menus)), key=lambda n: (-lost[n], n))
        keys = [key for n in numbers for key in _keys(n) if menus[n].most_pct(key[1]) > 0 or key in self.layout.part]
        for key in keys:
            yield from (Move(key, gpu) for gpu in gpus)
            yield from (Widen(key, gpu) for gpu in gpus)
        for number, key in enumerate(keys):
            yield from (Swap(key, other) for other in keys[number + 1 :])


def tries_for(streams: int) -> int:
    """How many settlements a repair of that many streams may use."""
    return min(TRIES_MOST, max(TRIES_LEAST, TRIES_STREAMS // max(1, streams)))


def _keys(number: int) -> tuple[Key, Key]:
    return (number, "infer"), (number, "train")


def _is_better(a: tuple[int, float], b: tuple[int, float]) -> bool:
    return a[0] < b[0] or (a[0] == b[0] and a[1] < b[1] - QUALITY_TOL)


# --- the start ------------------------------------------------------------------------------------------------------------


def _layouts(snapshot: Snapshot, plan: Plan, latitude: Latitude) -> Iterator[Layout]:
    """What the plan wants, laid out as well as it goes, every device settled: once for each way of seating what is running, except
    those that do not fit."""
    memory = tuple(math.inf if gpu.memory_mib is None else gpu.memory_mib for gpu in snapshot.gpus)
    capacity = tuple(gpu.capacity_pct for gpu in snapshot.gpus)
    limited, speed = min(memory) < math.inf, SpeedCurve.of(snapshot)
    menus = [
        Menu(view, planned, snapshot, speed, latitude, limited)
        for view, planned in zip(snapshot.streams, plan.streams, strict=True)
    ]
    wanted = [menu.settings(menu.stop_at(menu.planned.infer_pct), menu.planned.train_pct)[0] for menu in menus]
    holding: list[Key] = [(n, "train") for n, now in enumerate(wanted) if limited and menus[n].running and now.train_mib > 0]
    for running in _homes_of_running(snapshot, plan) if holding else [{}]:
        layout = Layout(menus, capacity, memory, list(wanted), here=[[] for _ in capacity])
        _lay_out(layout, running)
        for number, menu in enumerate(menus):
            infer_pct, train_pct = (
                layout.share_pct(key) if key in layout.part else layout.base_pct(key) for key in _keys(number)
            )
            layout.now[number] = menu.settings(infer_pct, train_pct)[0]
        if layout.has_seated(holding) and all(layout.settle(gpu) for _ in range(2) for gpu in range(len(capacity))):
            yield layout


def _homes_of_running(snapshot: Snapshot, plan: Plan) -> Iterator[dict[Key, int]]:
    """Devices for the retrainings in progress: with all other jobs, in the order of their shares; then by memory alone, which fits
    whatever else does not: tightly, and on as few devices as possible, so that others stay free for large shares."""
    yield {}
    jobs = [job for job in jobs_of_plan(snapshot, plan) if job.kind == "train" and snapshot.streams[job.stream].running]
    paused = [Job(job.stream, job.kind, 0, job.memory_mib) for job in jobs if job.memory_mib > 0]
    largest = sorted(range(len(snapshot.gpus)), key=lambda g: (-(snapshot.gpus[g].memory_mib or math.inf), g))
    for devices in (range(len(largest)), *(largest[:count] for count in range(1, len(largest)))) if paused else ():
        homes = place(paused, [snapshot.gpus[g] for g in devices])
        if homes is not None:
            yield {(job.stream, job.kind): devices[home[0][0]] for job, home in zip(paused, homes, strict=True)}
            if len(devices) < len(largest):
                return


def _lay_out(layout: Layout, running: dict[Key, int]) -> None:
    """Whole devices for the large jobs, then the parts in descending order: best fit, or where most is free. running: devices of
    those jobs that have one already."""
    for key, gpu in running.items():
        layout.put(key, gpu)
    keys = [key for number in range(len(layout.menus)) for key in _keys(number) if layout.is_placed(key)]
    keys.sort(key=lambda key: -layout.share_pct(key))
    left_pct = {key: _wholes_taken(layout, key) for key in keys}
    free_pct = [0 if g in layout.owner else cap for g, cap in enumerate(layout.capacity_pct)]
    free_mib = list(layout.memory_mib)
    for key, gpu in running.items():
        free_pct[gpu] -= left_pct[key]
        free_mib[gpu] -= layout.held_mib(key)
    rest = [key for key in keys if key not in running and (left_pct[key] > 0 or key not in layout.whole)]
    shared = [g for g in range(len(free_pct)) if g not in layout.owner]
    for key in sorted(rest, key=lambda key: -left_pct[key]) if shared else ():
        need_pct, need_mib = left_pct[key], layout.held_mib(key)
        fits = [g for g in shared if free_pct[g] >= need_pct and free_mib[g] >= need_mib]
        roomy = max(shared, key=lambda g: (free_mib[g] >= need_mib, free_pct[g]))
        gpu = min(fits, key=lambda g: free_pct[g]) if fits else roomy
        layout.put(key, gpu)
        free_pct[gpu] -= need_pct
        free_mib[gpu] -= need_mib


def _wholes_taken(layout: Layout, key: Key) -> int:
    """Give the job the empty devices that its share fills, the largest first; what is left of the share."""
    left_pct = layout.share_pct(key)
    if left_pct < 100:
        return left_pct
    for gpu in sorted(range(len(layout.capacity_pct)), key=lambda g: (-layout.capacity_pct[g], g)):
        capacity = layout.capacity_pct[gpu]
        if 0 < capacity <= left_pct and layout.is_empty(gpu) and layout.held_mib(key) <= layout.memory_mib[gpu]:
            layout.take(key, gpu)
            left_pct -= capacity
    return left_pct


# --- the wrapper ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """A policy whose plans fit on the snapshot's devices."""

    policy: Callable[[Snapshot], Plan]
    latitude: Latitude = Latitude()

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Errors: ConfigError when the devices do not add up to the capacity, or cannot hold what is already running."""
        if not snapshot.gpus:
            return self.policy(snapshot)
        check_gpus(snapshot)
        offered = _offered(snapshot)
        plan = self.policy(offered)
        placement = pack(offered, plan)
        return self._repaired(offered, plan) if placement is None else replace(plan, placement=placement)

    def _repaired(self, snapshot: Snapshot, plan: Plan) -> Plan:
        """The best of the repairs from the starts that look best. Errors: ConfigError if there is none."""
        goal = sum(s.below_floor for s in plan.streams), -sum(s.expected_quality for s in plan.streams)
        layouts = [layout for start in self._starts(snapshot, plan) for layout in _layouts(snapshot, start, self.latitude)]
        if not layouts:
            text = "the retrainings in progress do not fit into the memory of the GPUs"
            raise ConfigError(text, problems=(("gpus", text),), remedy="correct memory_mib of the GPUs or of the retrainings")
        repairs = [_Repair(layout, goal, tries_for(len(plan.streams))) for layout in sorted(layouts, key=Layout.rank)[:STARTS]]
        best = repairs[0].run()
        for repair in repairs[1:]:
            if _is_better(goal, best.rank()) and _is_better(repair.run().rank(), best.rank()):
                best = repair.layout
        return _plan_of(snapshot, plan, best, plan.steps + sum(repair.used for repair in repairs))

    def _starts(self, snapshot: Snapshot, plan: Plan) -> Iterator[Plan]:
        """The plan that did not pack, then one for less capacity that does: it may have other jobs in mind."""
        yield plan
        if not self.latitude.grow or len(plan.streams) > STREAMS_REPLANNED:
            return
        for quanta in FEWER_QUANTA:
            capacity_pct = snapshot.capacity_pct - quanta * snapshot.quantum_pct
            if capacity_pct < snapshot.quantum_pct:
                return
            smaller = self.policy(replace(snapshot, gpus=(), capacity_pct=capacity_pct))
            freed_pct = snapshot.capacity_pct - capacity_pct
            smaller = replace(smaller, policy=plan.policy, spare_pct=smaller.spare_pct + freed_pct)
            if pack(snapshot, smaller, nodes=NODES // 10) is not None:
                yield smaller
                return


def placed(policy: Callable[[Snapshot], Plan], latitude: Latitude | None = None) -> Placed:
    """`policy`, but its plans fit on the snapshot's devices and say where each share lies; unchanged for snapshots without any."""
    return Placed(policy, latitude or Latitude())


def _offered(snapshot: Snapshot) -> Snapshot:
    """The snapshot without knobs and options that fit into no device's memory. What is running stays."""
    most_mib = max((math.inf if gpu.memory_mib is None else gpu.memory_mib for gpu in snapshot.gpus), default=math.inf)

    def fitting(view: StreamView) -> StreamView:
        knobs = tuple(k for k in view.knobs if k.memory_mib <= most_mib)
        options = tuple(o for o in view.retrain if o.memory_mib <= most_mib or o.name == view.running)
        return (
            view
            if (len(knobs), len(options)) == (len(view.knobs), len(view.retrain))
            else replace(view, knobs=knobs, retrain=options)
        )

    return replace(snapshot, streams=tuple(fitting(view) for view in snapshot.streams)) if most_mib < math.inf else snapshot


def _plan_of(snapshot: Snapshot, plan: Plan, layout: Layout, steps: int) -> Plan:
    streams = tuple(_stream_plan(planned, now) for planned, now in zip(plan.streams, layout.now, strict=True))
    quality = sum(s.expected_quality for s in streams) / len(streams) if streams else 0.0
    spare_pct = snapshot.capacity_pct - sum(s.infer_pct + s.train_pct for s in streams)
    made = replace(plan, streams=streams, spare_pct=spare_pct, expected_quality=quality, steps=steps)
    made.check(snapshot.capacity_pct)
    jobs = jobs_of_plan(snapshot, made)
    return replace(made, placement=placements(snapshot, jobs, [layout.home((job.stream, job.kind)) for job in jobs]))


def _stream_plan(planned: StreamPlan, now: Setting) -> StreamPlan:
    knobs, option = now.choice.knobs, now.choice.retrain
    return replace(
        planned,
        knobs=knobs.name if knobs is not None else None,
        infer_pct=now.infer_pct,
        retrain=planned.retrain if planned.source != "box" else option.name if option is not None else None,
        train_pct=now.train_pct,
        expected_quality=now.choice.quality,
        below_floor=now.choice.below_floor,
    )
