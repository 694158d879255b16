"""Which job lies on which GPU: several GPUs (Ekya section 4) as bins of two sizes, share and memory.

A share below 100 lies on one device. A larger one takes whole devices (all that each of them gives out) and at most one part of
another. Memory is the second size: an inference job holds its knobs' memory while it has a share, a training job holds its own from
start to end (so a running one counts at share 0 too), and a job on several devices holds it on each of them.

    paper   rounds every share down to an inverse power of two (1/2, 1/4, ...), which always packs in descending order and throws
            away up to half of each share; memory is not looked at
    ours    leaves the shares alone and searches: descending jobs, best fit first, then backtracking over what differs. Positions
            that were seen to fail are remembered, so that small problems are answered exactly; large ones stop after `NODES`
            tries. Nothing is lost when a plan packs, and only what does not fit is changed otherwise (`scheduler.ekya.placing`)

`tests/benchmarks/bench_pack.py` measures both. Deterministic: ties go to the earlier job and the earlier device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from configs.errors import ConfigError
from scheduler.types import Gpu, KnobProfile, Placement, Plan, RetrainOption, Snapshot, StreamPlan, StreamView

#: Positions that the search may try before it gives up. Problems of some ten jobs are decided long before.
NODES = 3000

#: Sums of memory are of floats; this much beyond the limit is noise.
MEMORY_TOL_MIB = 1e-6

#: Where a job lies: (device number, share pct) pairs. A paused job has one pair of share 0.
Home = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Job:
    """One thing to place: share in percent points, memory on each device it touches. stream: number in the snapshot."""

    stream: int
    kind: Literal["infer", "train"]
    share_pct: int
    memory_mib: float


def gpu_problems(snapshot: Snapshot) -> list[tuple[str, str]]:
    """(path, text) of what is wrong with the snapshot's devices; empty without devices."""
    problems = []
    for number, gpu in enumerate(snapshot.gpus):
        if not 0 <= gpu.capacity_pct <= 100:
            problems.append((f"gpus[{number}].capacity_pct", f"{gpu.capacity_pct} is not between 0 and 100"))
        if gpu.memory_mib is not None and not gpu.memory_mib >= 0:
            problems.append((f"gpus[{number}].memory_mib", f"{gpu.memory_mib} is negative"))
    if len({gpu.id for gpu in snapshot.gpus}) < len(snapshot.gpus):
        problems.append(("gpus", "two devices have the same id"))
    total_pct = sum(gpu.capacity_pct for gpu in snapshot.gpus)
    if snapshot.gpus and not problems and total_pct != snapshot.capacity_pct:
        problems.append(("capacity_pct", f"{snapshot.capacity_pct}, but the GPUs have {total_pct} together"))
    return problems


def limit_mib(gpu: Gpu) -> float:
    """What jobs may hold of the device's memory; infinity: not limited."""
    return math.inf if gpu.memory_mib is None else gpu.memory_mib


def check_gpus(snapshot: Snapshot) -> None:
    """Errors: ConfigError naming every problem of the snapshot's devices."""
    problems = gpu_problems(snapshot)
    if problems:
        text = "; ".join(f"{path}: {what}" for path, what in problems)
        raise ConfigError(f"the GPUs do not add up: {text}", problems=tuple(problems), remedy="correct the list of GPUs")


def knobs_of(view: StreamView, planned: StreamPlan) -> KnobProfile | None:
    """The profile of the planned knobs."""
    return next((k for k in view.knobs if k.name == planned.knobs), None)


def option_of(view: StreamView, planned: StreamPlan) -> RetrainOption | None:
    """The option that the plan trains on the box, or the one in progress (paused or not)."""
    name = view.running if view.running is not None else planned.retrain if planned.source == "box" else None
    return next((o for o in view.retrain if o.name == name), None)


def jobs_of_plan(snapshot: Snapshot, plan: Plan) -> list[Job]:
    """Every job that has a share or holds memory, in stream order."""
    jobs = []
    for number, (view, planned) in enumerate(zip(snapshot.streams, plan.streams, strict=True)):
        knobs, option = knobs_of(view, planned), option_of(view, planned)
        if planned.infer_pct > 0:
            jobs.append(Job(number, "infer", planned.infer_pct, knobs.memory_mib if knobs else 0.0))
        if planned.train_pct > 0 or view.running is not None:
            jobs.append(Job(number, "train", planned.train_pct, option.memory_mib if option else 0.0))
    return jobs


# --- the devices while they fill ------------------------------------------------------------------------------------------


@dataclass
class Bins:
    """What is left of every device."""

    capacity_pct: tuple[int, ...]
    free_pct: list[int]
    free_mib: list[float]

    @classmethod
    def of(cls, gpus: Sequence[Gpu]) -> Bins:
        capacity = tuple(gpu.capacity_pct for gpu in gpus)
        return cls(capacity, list(capacity), [limit_mib(gpu) for gpu in gpus])

    def put(self, job: Job, home: Home, sign: int = 1) -> None:
        """Take what `job` needs at `home` (sign -1: give it back)."""
        for gpu, share in home:
            self.free_pct[gpu] -= sign * share
            self.free_mib[gpu] -= sign * job.memory_mib

    def kind(self, gpu: int) -> tuple[int, int, float]:
        """Devices of one kind are the same for what is still to be placed."""
        return self.capacity_pct[gpu], self.free_pct[gpu], self.free_mib[gpu]

    def has_memory(self, gpu: int, job: Job) -> bool:
        return job.memory_mib <= self.free_mib[gpu] + MEMORY_TOL_MIB

    def homes(self, job: Job) -> Iterator[Home]:
        """Every way to place `job` that differs from the others, best fit first."""
        if job.share_pct < 100:
            for gpu in self._parts(job, job.share_pct, ()):
                yield ((gpu, job.share_pct),)
            return
        empty = [
            g for g, cap in enumerate(self.capacity_pct) if cap > 0 and self.free_pct[g] == cap and self.has_memory(g, job)
        ]
        empty.sort(key=lambda g: (-self.capacity_pct[g], self.free_mib[g], g))
        for whole in self._wholes(empty, job.share_pct):
            rest = job.share_pct - sum(self.capacity_pct[g] for g in whole)
            home = tuple((g, self.capacity_pct[g]) for g in whole)
            if rest == 0:
                yield home
            for gpu in self._parts(job, rest, whole) if rest > 0 else ():
                yield (*home, (gpu, rest))

    def _parts(self, job: Job, share_pct: int, whole: tuple[int, ...]) -> list[int]:
        """One device of each kind that has room for a part, the tightest first."""
        fits = (g for g in range(len(self.free_pct)) if self.free_pct[g] >= share_pct and self.has_memory(g, job))
        first: dict[tuple[int, int, float], int] = {}
        for gpu in fits:
            if gpu not in whole:
                first.setdefault(self.kind(gpu), gpu)
        return sorted(first.values(), key=lambda g: (self.free_pct[g], self.free_mib[g], g))

    def _wholes(self, empty: Sequence[int], left_pct: int) -> Iterator[tuple[int, ...]]:
        """Sets of empty devices of at most `left_pct` together, at least one, most first; of equal devices the first ones."""
        start = next((n for n, g in enumerate(empty) if self.capacity_pct[g] <= left_pct), None)
        if start is None:
            return
        gpu = empty[start]
        for more in self._wholes(empty[start + 1 :], left_pct - self.capacity_pct[gpu]):
            yield (gpu, *more)
        yield (gpu,)
        yield from self._wholes([g for g in empty[start + 1 :] if self.kind(g) != self.kind(gpu)], left_pct)


# --- the search -----------------------------------------------------------------------------------------------------------


@dataclass
class _Search:
    """Depth-first over the jobs in descending order. Without recursion: a plan may have thousands of jobs."""

    jobs: Sequence[Job]
    bins: Bins
    nodes: int
    dead: set[tuple[object, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        # from each job on: all shares together, and the smallest part that one of them may have
        self._share_left, self._part_least = [0], [math.inf]
        for job in reversed(self.jobs):
            part = 1 if job.share_pct >= 100 else job.share_pct or math.inf
            self._share_left.append(self._share_left[-1] + job.share_pct)
            self._part_least.append(min(self._part_least[-1], part))
        self._share_left.reverse()
        self._part_least.reverse()

    def run(self) -> list[Home] | None:
        """The homes of all jobs in order; None if there are none, or none were found in time."""
        homes: list[Home] = []
        trails = [self._open(0)]
        while len(homes) < len(self.jobs):
            home = next(trails[-1], None)
            if home is not None and self.nodes > 0:
                self.nodes -= 1
                self.bins.put(self.jobs[len(homes)], home)
                homes.append(home)
                trails.append(self._open(len(homes)))
            elif not homes or self.nodes <= 0:
                return None
            else:
                self.dead.add(self._position(len(homes)))
                trails.pop()
                self.bins.put(self.jobs[len(homes) - 1], homes.pop(), sign=-1)
        return homes

    def _open(self, number: int) -> Iterator[Home]:
        """Ways to go on from here; none where going on is known to be in vain."""
        if number == len(self.jobs) or self._is_wasted(number) or (self.dead and self._position(number) in self.dead):
            return iter(())
        return self.bins.homes(self.jobs[number])

    def _position(self, number: int) -> tuple[object, ...]:
        return number, *sorted(self.bins.kind(g) for g in range(len(self.bins.free_pct)))

    def _is_wasted(self, number: int) -> bool:
        """Gaps smaller than the smallest part cannot be used: is too little left without them?"""
        least = self._part_least[number]
        return self._share_left[number] > sum(free for free in self.bins.free_pct if free >= least)


def place(jobs: Sequence[Job], gpus: Sequence[Gpu], *, nodes: int = NODES) -> list[Home] | None:
    """Homes of `jobs` in their order; None if they fit in no way (or none was found within `nodes` tries)."""
    bins = Bins.of(gpus)
    most_pct = max(bins.capacity_pct, default=0) or 1
    most_mib = max((m for m in bins.free_mib if m < math.inf), default=0.0) or 1.0

    def size(number: int) -> tuple[bool, float, int, float, int]:
        job = jobs[number]
        biggest = max(job.share_pct / most_pct, job.memory_mib / most_mib)
        return job.share_pct < 100, -biggest, -job.share_pct, -job.memory_mib, number

    order = sorted(range(len(jobs)), key=size)
    found = _Search([jobs[n] for n in order], bins, nodes).run()
    if found is None:
        return None
    homes: list[Home] = [()] * len(jobs)
    for number, home in zip(order, found, strict=True):
        homes[number] = home
    return homes


def placements(snapshot: Snapshot, jobs: Sequence[Job], homes: Sequence[Home]) -> tuple[Placement, ...]:
    """Jobs and homes as a plan carries them: in stream order, inference before training, devices in the snapshot's order."""
    entries = [
        (job.stream, job.kind, gpu, share) for job, home in zip(jobs, homes, strict=True) for gpu, share in home
    ]  # "infer" sorts before "train"
    return tuple(
        Placement(stream=snapshot.streams[stream].id, kind=kind, gpu=snapshot.gpus[gpu].id, share_pct=share)
        for stream, kind, gpu, share in sorted(entries)
    )


def pack(snapshot: Snapshot, plan: Plan, *, nodes: int = NODES) -> tuple[Placement, ...] | None:
    """Where each share of `plan` lies; None if it does not fit. Without devices in the snapshot: the empty tuple.

    A running retraining that is paused has a placement of share 0: it keeps its memory there. Errors: ConfigError when the
    devices do not add up to the snapshot's capacity.
    """
    check_gpus(snapshot)
    if not snapshot.gpus:
        return ()
    jobs = jobs_of_plan(snapshot, plan)
    homes = place(jobs, snapshot.gpus, nodes=nodes)
    return None if homes is None else placements(snapshot, jobs, homes)


def placement_problems(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What keeps the plan's placement from being carried out; empty when nothing does. Knows the rules, not the search."""
    jobs = {(snapshot.streams[job.stream].id, job.kind): job for job in jobs_of_plan(snapshot, plan)}
    gpus = {gpu.id: gpu for gpu in snapshot.gpus}
    if not gpus:
        return ["a placement without devices"] if plan.placement else []
    problems = []
    for entry in plan.placement:
        if entry.gpu not in gpus or (entry.stream, entry.kind) not in jobs:
            problems.append(f"{entry} names a device or a job that is not there")
    for key, job in jobs.items():
        parts = [p for p in plan.placement if (p.stream, p.kind) == key]
        if sum(p.share_pct for p in parts) != job.share_pct or not parts or len({p.gpu for p in parts}) < len(parts):
            problems.append(f"{key}: {parts} is not a share of {job.share_pct} pct")
        if len(parts) > 1 and job.share_pct < 100:
            problems.append(f"{key}: a share below 100 pct on {len(parts)} devices")
        if len(parts) > 1 and sum(p.gpu in gpus and p.share_pct < gpus[p.gpu].capacity_pct for p in parts) > 1:
            problems.append(f"{key}: more than one part of a device")
    for gpu in snapshot.gpus:
        here = [p for p in plan.placement if p.gpu == gpu.id]
        if sum(p.share_pct for p in here) > gpu.capacity_pct:
            problems.append(f"{gpu.id}: shares above {gpu.capacity_pct} pct")
        held_mib = sum(jobs[p.stream, p.kind].memory_mib for p in here if (p.stream, p.kind) in jobs)
        if gpu.memory_mib is not None and held_mib > gpu.memory_mib + MEMORY_TOL_MIB:
            problems.append(f"{gpu.id}: {held_mib:g} of {gpu.memory_mib:g} MiB held")
    return problems
