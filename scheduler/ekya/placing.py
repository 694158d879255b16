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

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from configs.errors import ConfigError
from scheduler.ekya.estimate import QUALITY_TOL, SpeedCurve
from scheduler.ekya.layout import Key, Layout, Move, Swap, Widen, keys_of
from scheduler.ekya.menu import Latitude, Menu, Setting
from scheduler.ekya.pack import NODES, Job, check_gpus, jobs_of_plan, limit_mib, pack, place, placements
from scheduler.types import Plan, Snapshot, StreamPlan, StreamView

#: Settlements of one device that a repair may use over those that the start needs: the most, the least, and how the number falls
#: between them as streams grow, since a trial costs more then.
TRIES_MOST, TRIES_LEAST, TRIES_STREAMS = 1000, 200, 40_000

#: By how many quanta less the policy is asked to plan, one after the other, for another start; and up to how many streams.
FEWER_QUANTA = (1, 2, 3, 5, 8)
STREAMS_REPLANNED = 50

#: Mean quality that is not worth looking further for: a hundredth of a point.
ENOUGH = 1e-4

#: Starts that are repaired, the best ones first.
STARTS = 2


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
        keys = [key for n in numbers for key in keys_of(n) if menus[n].most_pct(key[1]) > 0 or key in self.layout.part]
        for key in keys:
            yield from (Move(key, gpu) for gpu in gpus)
            yield from (Widen(key, gpu) for gpu in gpus)
        for number, key in enumerate(keys):
            yield from (Swap(key, other) for other in keys[number + 1 :])


def tries_for(streams: int) -> int:
    """How many settlements a repair of that many streams may use."""
    return min(TRIES_MOST, max(TRIES_LEAST, TRIES_STREAMS // max(1, streams)))


def _is_better(a: tuple[int, float], b: tuple[int, float]) -> bool:
    return a[0] < b[0] or (a[0] == b[0] and a[1] < b[1] - QUALITY_TOL)


# --- the start ------------------------------------------------------------------------------------------------------------


def _layouts(snapshot: Snapshot, plan: Plan, latitude: Latitude) -> Iterator[Layout]:
    """What the plan wants, laid out as well as it goes, every device settled: once for each way of seating what is running, except
    those that do not fit."""
    memory = tuple(map(limit_mib, snapshot.gpus))
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
                layout.share_pct(key) if key in layout.part else layout.base_pct(key) for key in keys_of(number)
            )
            most = wanted[number]  # its memory was looked at when whole devices were given out
            settings = menu.settings(infer_pct, train_pct)
            held = (s for s in settings if s.infer_mib <= most.infer_mib and s.train_mib <= most.train_mib)
            layout.now[number] = next(held, settings[-1])
        if layout.has_seated(holding) and all(layout.settle(gpu) for _ in range(2) for gpu in range(len(capacity))):
            yield layout


def _homes_of_running(snapshot: Snapshot, plan: Plan) -> Iterator[dict[Key, int]]:
    """Devices for the retrainings in progress: with all other jobs, in the order of their shares; then by memory alone, which fits
    whatever else does not: tightly, and on as few devices as possible, so that others stay free for large shares."""
    yield {}
    jobs = [job for job in jobs_of_plan(snapshot, plan) if job.kind == "train" and snapshot.streams[job.stream].running]
    paused = [Job(job.stream, job.kind, 0, job.memory_mib) for job in jobs if job.memory_mib > 0]
    largest = sorted(range(len(snapshot.gpus)), key=lambda g: (-limit_mib(snapshot.gpus[g]), g))
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
    keys = [key for number in range(len(layout.menus)) for key in keys_of(number) if layout.is_placed(key)]
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
        enough = (ENOUGH - plan.expected_quality) * len(plan.streams)
        goal = sum(s.below_floor for s in plan.streams), enough
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
    most_mib = max(map(limit_mib, snapshot.gpus), default=math.inf)

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
