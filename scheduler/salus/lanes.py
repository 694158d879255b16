"""Memory lanes: which jobs fit one device together, and where each lane lies (papers/salus.md sections 2, 3 and 5; eq. 2.1, alg. 2.1).

A job i has persistent memory P_i as long as it lives and ephemeral memory E_i inside one iteration only. Jobs whose iterations run one
after the other can therefore share one *lane* of L_l = max E_j. Everything rests on

    S1   sum_i P_i + sum_l L_l <= C        all admitted jobs i, all lanes l; C: usable memory of the device
    S2   L_l = max E_j of the jobs in l    an empty lane disappears
    S3   at most one iteration is in flight per lane
    S4   between two iterations a lane holds nothing

which `LaneTable.check` asserts after every event. It follows that the largest iteration of every lane always fits, so that no
allocation can wait for another one, although the sum of all E_j may exceed C.

`find_lane` is algorithm 2.1 with the card's two repairs. SP, SL: the sums of P and L as they stand; (P, E): the newcomer.

    A  SP + P + SL + E <= C, and fewer lanes than `max_lanes`     open a lane of size E
    B  the smallest lane with L >= E, if SP + P + SL <= C          share it (best fit)
    C  lanes by ascending L; n = max(L, E): SP + P + SL - L + n <= C    let it grow to n and share it
    -  otherwise the job waits

Repair 1: the printed step B does not count the newcomer's own P and so breaks S1 (T1 of the card: job I). Repair 2: with repair 1, C can
be reached by a newcomer that is smaller than a lane; the printed `L = E` would shrink that lane under its residents. Ties: the lowest
lane. A before B means that lanes are opened greedily, which can starve later persistent memory (T3): hence `max_lanes`, and `best_cap`.
(With both repairs C only ever succeeds by growth: a lane with L >= E that C could share was tried by B.)

Ours:
- With `spread`, B takes the lane with the fewest jobs among those that are large enough. That costs no memory, since a lane that is
  large enough stays as it is; by size alone, forty equal cameras on 32 lanes would put nine of them into one lane.
- The queue of waiting jobs is scanned in order of arrival whenever memory is freed and one that does not fit is skipped (back-fill, as
  the released code does). With `age_limit_s` a job that has waited so long is not overtaken any more, by newcomers neither. One that
  would not fit when all learning had ended stops nobody: cameras do not end, and the others would wait for ever with it.
- `resize`: a job's need was measured and is not what was declared. It stays in its lane if that may grow, else moves to another, else
  waits (it keeps P and runs no iteration), else is told to leave. While its iteration runs this is put off to the boundary. When all
  that hold memory are paused, the one paused last has to leave, or they would wait for each other.
- Layout. Persistent memory grows from one end, lanes from the other; `base_mib` counts from the lanes' end. A lane in an iteration
  stays where it is; every other one is empty (S4) and so moves for free: lanes keep their order, and each slides to where it would lie
  with no hole below it as soon as nothing is in the way, also upwards when one below it is to grow. A memory request can be granted by
  S1 and still have to wait for such a slide; `LaneTable.hindrance` says so. The topmost lane that must go up and the lowest that must
  go down are never in each other's way, so one boundary of every lane at a time is enough for all of them to arrive.
  (Persistent memory is taken to have no holes: few large pieces, and virtual memory behind them.)

Everything is a value: an event makes a new table and says what it decided, so a recorded sequence replays exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from scheduler.salus.types import BYTE_MIB, MemoryNeed, Role

#: Which step of `find_lane` found the lane; "" where none was asked.
FoundBy = Literal["A", "B", "C", ""]

#: placed: has a lane; queued: waits for memory; refused: can never fit, is not in the table; resized: its need changed, it stays in its
#: lane; moved: it changed lanes; paused: it keeps its persistent memory and waits for a lane; expelled: it is to leave, and holds its
#: persistent memory until `finish`; noted: will be done when its iteration ends; finished: it is gone.
DecisionKind = Literal["placed", "queued", "refused", "resized", "moved", "paused", "expelled", "noted", "finished"]


@dataclass(frozen=True, kw_only=True)
class LaneRules:
    """capacity_mib: C, memory that jobs may hold in all. max_lanes: None for as many as fit. age_limit_s: a job that has waited so long
    is not overtaken any more (None: it may starve). unknown: what a job that declares nothing is charged (`charged`). apart: inference
    and learning share a lane only where they have to. spread: of the lanes that could be shared as they are, the one with the fewest
    jobs, not the smallest. Raises ValueError."""

    capacity_mib: float
    max_lanes: int | None = None
    age_limit_s: float | None = None
    unknown: MemoryNeed | None = None
    apart: bool = False
    spread: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.capacity_mib) or self.capacity_mib < 0:
            raise ValueError(f"capacity_mib must be a number of MiB, 0 or more, got {self.capacity_mib}")
        if self.max_lanes is not None and self.max_lanes < 1:
            raise ValueError(f"max_lanes must be 1 or more, got {self.max_lanes}")
        if self.age_limit_s is not None and not self.age_limit_s >= 0:
            raise ValueError(f"age_limit_s must be 0 or more seconds, got {self.age_limit_s}")

    @property
    def charged(self) -> MemoryNeed:
        """What a job that declares nothing is charged: `unknown`, or the whole device, as in the released code. Half of it as persistent
        memory, so that no other such job shares its lane, and half for its iterations."""
        half_mib = self.capacity_mib / 2
        return self.unknown or MemoryNeed(persistent_mib=half_mib, ephemeral_mib=half_mib)


@dataclass(frozen=True, kw_only=True)
class MemoryLane:
    """size_mib: L, what is reserved. base_mib: where it lies (None: nowhere yet), held_mib: its length there; held_mib is more than
    size_mib while an iteration keeps it from shrinking, less while it cannot grow yet. running: the job whose iteration is in flight;
    stuck_mib: what that job left behind at its end (S4 broken: the lane cannot be used until the job is gone)."""

    id: int
    size_mib: float
    base_mib: float | None = None
    held_mib: float = 0.0
    running: str | None = None
    stuck_mib: float = 0.0

    @property
    def end_mib(self) -> float:
        """Where it ends; 0 when it lies nowhere."""
        return 0.0 if self.base_mib is None else self.base_mib + self.held_mib


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A job that holds memory. need: what is reserved for it. lane: None while it is paused or has been told to leave. loaded_mib: how
    much of its persistent memory may really be held now (less than need says: lanes have to slide first). leaving: why it was told to
    go, "": it was not. finishing: it ended inside an iteration. wanted: a `resize` put off to the end of its iteration."""

    job: str
    need: MemoryNeed
    role: Role
    lane: int | None
    loaded_mib: float = 0.0
    leaving: str = ""
    finishing: bool = False
    wanted: MemoryNeed | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A job in the queue. since_s: when it came (or was paused)."""

    job: str
    need: MemoryNeed
    role: Role
    since_s: float


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The two sums of S1. lanes: (lane, L) by lane."""

    persistent_mib: float
    lanes: tuple[tuple[int, float], ...]
    capacity_mib: float

    @property
    def lanes_mib(self) -> float:
        return math.fsum(size for _, size in self.lanes)

    @property
    def total_mib(self) -> float:
        return math.fsum([self.persistent_mib, *(size for _, size in self.lanes)])


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided on one job, with the sums after it. why: one sentence for people."""

    job: str
    kind: DecisionKind
    step: FoundBy = ""
    lane: int | None = None
    sums: Sums
    why: str


@dataclass(frozen=True, kw_only=True)
class Slide:
    """A lane lies elsewhere now, or has another length there. from_mib: None: it lay nowhere."""

    lane: int
    from_mib: float | None
    to_mib: float
    held_mib: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """What an event did: the table after it, what was decided in this order, and which lanes were moved for it."""

    table: LaneTable
    decisions: tuple[Decision, ...] = ()
    slides: tuple[Slide, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """A lane for a request. lane: None: a new one. size_mib: its L with the newcomer."""

    step: Literal["A", "B", "C"]
    lane: int | None
    size_mib: float


def find_lane(
    need: MemoryNeed,
    *,
    persistent_mib: float,
    lanes: Mapping[int, float],
    capacity_mib: float,
    max_lanes: int | None = None,
    shunned: Iterable[int] = (),
    crowd: Mapping[int, int] | None = None,
) -> Found | None:
    """Algorithm 2.1, repaired (see above). persistent_mib: SP; lanes: L of each lane; shunned: lanes that come after the others in B and
    C, whatever their size (`LaneRules.apart`). crowd: how many jobs a lane has, where B is to take the emptiest (`LaneRules.spread`).
    None: the job has to wait."""
    held_mib = math.fsum([persistent_mib, need.persistent_mib, *lanes.values()])
    if (max_lanes is None or len(lanes) < max_lanes) and _fits(held_mib + need.ephemeral_mib, capacity_mib):
        return Found(step="A", lane=None, size_mib=need.ephemeral_mib)
    late = frozenset(shunned)
    jobs = crowd or {}
    ascending = sorted(lanes, key=lambda lane: (lane in late, lanes[lane], lane))
    for lane in sorted(ascending, key=lambda lane: (lane in late, jobs.get(lane, 0))):
        if lanes[lane] >= need.ephemeral_mib and _fits(held_mib, capacity_mib):
            return Found(step="B", lane=lane, size_mib=lanes[lane])
    for lane in ascending:
        size_mib = max(lanes[lane], need.ephemeral_mib)
        if _fits(held_mib - lanes[lane] + size_mib, capacity_mib):
            return Found(step="C", lane=lane, size_mib=size_mib)
    return None


def _fits(total_mib: float, capacity_mib: float) -> bool:
    return total_mib <= capacity_mib + BYTE_MIB


@dataclass(frozen=True, kw_only=True)
class LaneTable:
    """The device's memory as decided so far. Make one with `LaneTable(rules=...)`; every event gives a `Step` with the next table.

    residents: by job, in order of admission; lanes: by id; waiting: in the order in which they are tried (paused jobs first: what they
    hold helps nobody). Do not change the mappings. at_s: seconds of any clock, the same for all events; used for waiting times only.
    Errors: ValueError for a job that is (or is not) there, RuntimeError for an iteration that may not start.
    """

    rules: LaneRules
    residents: Mapping[str, Resident] = field(default_factory=dict)
    lanes: Mapping[int, MemoryLane] = field(default_factory=dict)
    waiting: tuple[Waiting, ...] = ()
    next_lane: int = 1

    # --- events -------------------------------------------------------------------------------------------------------

    def admit(self, job: str, need: MemoryNeed | None, *, at_s: float = 0.0, role: Role = "learn") -> Step:
        """A job arrives: placed, queued, or refused (it would not fit an empty device)."""
        if job in self.residents or any(w.job == job for w in self.waiting):
            raise ValueError(f"job {job!r} is in the table already")
        need = need or self.rules.charged
        draft = _Draft(self)
        if not _fits(need.peak_mib, self.rules.capacity_mib):
            draft.say(job, "refused", why=f"{_needs(need)}, more than the {_mib(self.rules.capacity_mib)} that jobs may hold")
            return draft.done()
        request = Waiting(job=job, need=need, role=role, since_s=at_s)
        aged = self._aged(at_s)
        if aged or not draft.place(request, "placed"):
            draft.waiting.append(request)
            draft.say(
                job, "queued", why=f"waits behind '{aged}', which has waited too long" if aged else draft.no_room(request)
            )
        return draft.done()

    def finish(self, job: str, *, at_s: float = 0.0) -> Step:
        """A job ends or gives up waiting: its memory is freed, its lane shrinks, and the waiting ones are tried in order. Inside an
        iteration this happens at the iteration's end (`end` must still be called). ValueError: no such job."""
        draft = _Draft(self)
        resident = self.residents.get(job)
        if resident is None:
            draft.drop_waiting(job)
            draft.say(job, "finished", why="gave up waiting")
            draft.retry(at_s)  # it may have been in the others' way
            return draft.done()
        lane = self._lane_of(resident)
        if lane is not None and lane.running == job and not lane.stuck_mib:
            draft.residents[job] = replace(resident, finishing=True)
            draft.say(job, "noted", lane=lane.id, why="its memory is freed when its iteration ends")
            return draft.done()
        draft.remove(job, at_s)
        return draft.done()

    def resize(self, job: str, need: MemoryNeed, *, at_s: float = 0.0) -> Step:
        """A job needs `need` and not what it has. Of one that waits: its request is changed. ValueError: no such job."""
        draft = _Draft(self)
        resident = self.residents.get(job)
        if resident is None:
            draft.change_request(job, need, at_s)
            return draft.done()
        lane = self._lane_of(resident)
        if lane is not None and lane.running == job:
            draft.residents[job] = replace(resident, wanted=need)
            draft.say(job, "noted", lane=lane.id, why="its new need counts from the end of its iteration")
            return draft.done()
        draft.resize(job, need, at_s)
        return draft.done()

    def expel(self, job: str, why: str, *, at_s: float = 0.0) -> Step:
        """A job has to go (it leaks, hangs, lies): no iteration of it starts any more, its lane is free of it at once or at the end of
        its iteration; its persistent memory counts until `finish`, when it has really let go. ValueError: it holds no memory."""
        if job not in self.residents:
            raise ValueError(f"job {job!r} holds no memory")
        draft = _Draft(self)
        draft.expel(job, why)
        draft.retry(at_s)
        return draft.done()

    def begin(self, job: str) -> Step:
        """An iteration starts. RuntimeError when it may not (`hindrance`)."""
        resident = self.residents.get(job)
        hindrance = self.hindrance(job)
        if hindrance or resident is None or resident.lane is None:
            raise RuntimeError(f"job {job!r} may not start an iteration: {hindrance}")
        started = replace(self.lanes[resident.lane], running=job)
        table = replace(self, lanes={**self.lanes, resident.lane: started})
        table.check()
        return Step(table=table)

    def end(self, job: str, *, at_s: float = 0.0, live_mib: float = 0.0) -> Step:
        """Its iteration has ended (on a GPU: its event has fired); what was put off is done now, and lanes slide. live_mib: ephemeral
        memory that it has not given back: S4 is broken, so it is told to leave, and its lane stands still until `finish`.
        RuntimeError: none of its iterations runs."""
        resident = self.residents.get(job)
        lane = None if resident is None else self._lane_of(resident)
        if resident is None or lane is None or lane.running != job:
            raise RuntimeError(f"no iteration of job {job!r} is running")
        draft = _Draft(self)
        if live_mib > BYTE_MIB and not resident.finishing:
            draft.lanes[lane.id] = replace(lane, stuck_mib=live_mib)
            draft.expel(job, f"it kept {_mib(live_mib)} of what an iteration has to give back")
            return draft.done()
        draft.lanes[lane.id] = replace(lane, running=None, stuck_mib=0.0)
        if resident.finishing:
            draft.remove(job, at_s)
        elif resident.leaving:
            draft.leave_lane(job)
            draft.retry(at_s)
        elif resident.wanted is not None:
            draft.residents[job] = replace(resident, wanted=None)
            draft.resize(job, resident.wanted, at_s)
        return draft.done()

    # --- questions ----------------------------------------------------------------------------------------------------

    def hindrance(self, job: str) -> str:
        """Why no iteration of `job` may start now, for people; "": it may."""
        resident = self.residents.get(job)
        if resident is None:
            return "waits for memory" if any(w.job == job for w in self.waiting) else "is not in the table"
        if resident.leaving or resident.finishing:
            return f"has to leave: {resident.leaving}" if resident.leaving else "has ended"
        lane = self._lane_of(resident)
        if lane is None:
            return "is paused until its memory fits"
        if lane.running is not None:
            doing = "left memory behind" if lane.stuck_mib else "runs an iteration"
            return f"'{lane.running}' {doing} in lane {lane.id}"
        if (
            resident.loaded_mib < resident.need.persistent_mib
            or lane.base_mib is None
            or lane.held_mib < resident.need.ephemeral_mib
        ):
            return "its memory is free when other lanes have ended their iterations"
        return ""

    def may_start(self, job: str) -> bool:
        """Whether an iteration of `job` may start now."""
        return not self.hindrance(job)

    def lane_of(self, job: str) -> MemoryLane | None:
        """The lane that `job` shares; None: it waits, is paused, leaves, or is not here."""
        resident = self.residents.get(job)
        return None if resident is None else self._lane_of(resident)

    def members(self, lane: int) -> tuple[str, ...]:
        """Jobs of a lane, in order of admission."""
        return tuple(r.job for r in self.residents.values() if r.lane == lane)

    def sums(self) -> Sums:
        return Sums(
            persistent_mib=math.fsum(r.need.persistent_mib for r in self.residents.values()),
            lanes=tuple((lane.id, lane.size_mib) for lane in self.lanes.values()),
            capacity_mib=self.rules.capacity_mib,
        )

    def holes(self) -> tuple[tuple[float, float], ...]:
        """Unused ranges between the lanes, as (from, to) MiB from the lanes' end, lowest first."""
        found, cursor_mib = [], 0.0
        for lane in _by_base(self.lanes.values()):
            assert lane.base_mib is not None
            if lane.base_mib > cursor_mib + BYTE_MIB:
                found.append((cursor_mib, lane.base_mib))
            cursor_mib = max(cursor_mib, lane.end_mib)
        return tuple(found)

    def check(self) -> None:
        """S1 to S4, the layout, and that every job is in exactly one place. AssertionError says which is broken."""
        rules, sums = self.rules, self.sums()
        assert _fits(sums.total_mib, rules.capacity_mib), f"S1: {sums.total_mib} MiB of {rules.capacity_mib}"
        largest: dict[int, float] = {}
        for r in self.residents.values():
            if r.lane is not None:
                largest[r.lane] = max(largest.get(r.lane, 0.0), r.need.ephemeral_mib)
        assert {lane.id: lane.size_mib for lane in self.lanes.values()} == largest, (
            f"S2: lanes {sums.lanes}, jobs need {largest}"
        )
        assert rules.max_lanes is None or len(self.lanes) <= rules.max_lanes, f"{len(self.lanes)} lanes of {rules.max_lanes}"
        for lane in self.lanes.values():
            self._check_lane(lane)
        self._check_layout()
        self._check_places()

    def _check_lane(self, lane: MemoryLane) -> None:
        if lane.running is None:
            assert not lane.stuck_mib, f"S4: lane {lane.id} holds {lane.stuck_mib} MiB between iterations"
            return
        runner = self.residents.get(lane.running)
        assert runner is not None, f"S3: '{lane.running}' runs in lane {lane.id} and is not in the table"
        assert runner.lane == lane.id, f"S3: '{lane.running}' runs in lane {lane.id}, which is not its own"
        assert lane.base_mib is not None, f"an iteration runs in lane {lane.id}, which lies nowhere"
        assert lane.held_mib >= runner.need.ephemeral_mib, f"an iteration of '{runner.job}' runs in too small a lane"
        assert not lane.stuck_mib or runner.leaving, f"S4: '{runner.job}' left memory behind and may stay"

    def _check_layout(self) -> None:
        loaded_mib = math.fsum(r.loaded_mib for r in self.residents.values())
        above_mib = 0.0
        for lane in _by_base(self.lanes.values()):
            assert lane.base_mib is not None
            assert lane.base_mib >= above_mib - BYTE_MIB, f"lane {lane.id} overlaps another"
            above_mib = max(above_mib, lane.end_mib)
        assert loaded_mib + above_mib <= self.rules.capacity_mib + 2 * BYTE_MIB, "lanes and persistent memory overlap"

    def _check_places(self) -> None:
        queue = [w.job for w in self.waiting]
        assert len(queue) == len(set(queue)), "a job waits twice"
        homeless = {r.job for r in self.residents.values() if r.lane is None and not r.leaving}
        assert homeless == {job for job in queue if job in self.residents}, "a paused job does not wait, or one in a lane does"
        assert self.residents or not queue, f"nobody holds memory, and {queue} wait"
        assert not homeless or len(homeless) < len(self.residents), f"{sorted(homeless)} wait for each other"

    def _lane_of(self, resident: Resident) -> MemoryLane | None:
        return None if resident.lane is None else self.lanes[resident.lane]

    def _aged(self, at_s: float) -> str:
        """The first job in the queue that may not be overtaken any more, "": none."""
        return next((w.job for w in self.waiting if _stops_others(w, self.residents, self.rules, at_s)), "")


def _stops_others(request: Waiting, residents: Mapping[str, Resident], rules: LaneRules, at_s: float) -> bool:
    """Whether it has waited so long that nobody may overtake it, and waiting can help it: it fits beside the inference jobs alone."""
    if rules.age_limit_s is None or at_s - request.since_s < rules.age_limit_s:
        return False
    lasting = [r for r in residents.values() if r.role == "infer" and r.job != request.job and not r.leaving]
    lanes: dict[int, float] = {}
    for r in lasting:
        if r.lane is not None:
            lanes[r.lane] = max(lanes.get(r.lane, 0.0), r.need.ephemeral_mib)
    persistent_mib = math.fsum(r.need.persistent_mib for r in lasting)
    found = find_lane(
        request.need,
        persistent_mib=persistent_mib,
        lanes=lanes,
        capacity_mib=rules.capacity_mib,
        max_lanes=rules.max_lanes,
    )
    return found is not None


class _Draft:
    """A table in the making: what one event changes. `done` lays the lanes out and checks the result."""

    def __init__(self, table: LaneTable) -> None:
        self.before = table
        self.rules = table.rules
        self.residents = dict(table.residents)
        self.lanes = dict(table.lanes)
        self.waiting = list(table.waiting)
        self.next_lane = table.next_lane
        self.decisions: list[Decision] = []

    def table(self) -> LaneTable:
        return LaneTable(
            rules=self.rules,
            residents=self.residents,
            lanes=self.lanes,
            waiting=tuple(self.waiting),
            next_lane=self.next_lane,
        )

    def done(self) -> Step:
        _lay_out(self.lanes, self.residents, self.rules.capacity_mib)
        table = self.table()
        table.check()
        return Step(table=table, decisions=tuple(self.decisions), slides=_slides(self.before.lanes, self.lanes))

    def say(self, job: str, kind: DecisionKind, *, why: str, step: FoundBy = "", lane: int | None = None) -> None:
        self.decisions.append(Decision(job=job, kind=kind, step=step, lane=lane, sums=self.table().sums(), why=why))

    # --- a job's place ------------------------------------------------------------------------------------------------

    def place(self, request: Waiting, kind: DecisionKind) -> bool:
        """Gives a job a lane; False (nothing changed): none was found. What it holds already is not counted twice."""
        resident = self.residents.get(request.job)
        held_mib = resident.need.persistent_mib if resident else 0.0
        found = self.find(request.need, request.role, held_mib)
        if found is None:
            return False
        if resident is not None:
            self.leave_lane(request.job)
        lane = found.lane
        if lane is None:
            lane, self.next_lane = self.next_lane, self.next_lane + 1
            self.lanes[lane] = MemoryLane(id=lane, size_mib=found.size_mib)
        self.residents[request.job] = Resident(
            job=request.job,
            need=request.need,
            role=request.role,
            lane=lane,
            loaded_mib=min(resident.loaded_mib, request.need.persistent_mib) if resident else 0.0,
        )
        self.refit(lane)
        self.say(request.job, kind, step=found.step, lane=lane, why=_found_why(found, lane))
        return True

    def find(self, need: MemoryNeed, role: Role, held_mib: float) -> Found | None:
        persistent_mib = math.fsum([*(r.need.persistent_mib for r in self.residents.values()), -held_mib])
        other_role = {r.lane for r in self.residents.values() if r.lane is not None and r.role != role}
        return find_lane(
            need,
            persistent_mib=persistent_mib,
            lanes={lane.id: lane.size_mib for lane in self.lanes.values() if lane.stuck_mib == 0},
            capacity_mib=self.rules.capacity_mib - math.fsum(lane.size_mib for lane in self.lanes.values() if lane.stuck_mib),
            max_lanes=self.cap(),
            shunned=other_role if self.rules.apart else (),
            crowd=Counter(r.lane for r in self.residents.values() if r.lane is not None) if self.rules.spread else None,
        )

    def cap(self) -> int | None:
        stuck = sum(1 for lane in self.lanes.values() if lane.stuck_mib)
        return None if self.rules.max_lanes is None else self.rules.max_lanes - stuck

    def leave_lane(self, job: str) -> None:
        """The job has no lane any more; its lane gets the size that the others need (S2), or disappears."""
        resident = self.residents[job]
        self.residents[job] = replace(resident, lane=None)
        if resident.lane is not None:
            self.refit(resident.lane)

    def refit(self, lane: int) -> None:
        needs = [r.need.ephemeral_mib for r in self.residents.values() if r.lane == lane]
        if not needs:
            del self.lanes[lane]
        elif self.lanes[lane].size_mib != max(needs):
            self.lanes[lane] = replace(self.lanes[lane], size_mib=max(needs))

    def remove(self, job: str, at_s: float) -> None:
        resident = self.residents[job]
        if resident.lane is not None and self.lanes[resident.lane].running == job:
            self.lanes[resident.lane] = replace(self.lanes[resident.lane], running=None, stuck_mib=0.0)
        self.leave_lane(job)
        del self.residents[job]
        self.waiting = [w for w in self.waiting if w.job != job]
        self.say(job, "finished", lane=resident.lane, why=f"its {_mib(resident.need.persistent_mib)} are free")
        self.retry(at_s)

    def expel(self, job: str, why: str) -> None:
        resident = self.residents[job]
        self.residents[job] = replace(resident, leaving=resident.leaving or why, wanted=None)
        self.waiting = [w for w in self.waiting if w.job != job]
        if resident.lane is not None and self.lanes[resident.lane].running != job:
            self.leave_lane(job)
        self.say(job, "expelled", lane=resident.lane, why=why)

    # --- changed needs ------------------------------------------------------------------------------------------------

    def resize(self, job: str, need: MemoryNeed, at_s: float) -> None:
        """A job outside an iteration needs something else: stays, moves, waits, or has to leave."""
        resident = self.residents[job]
        if resident.leaving:
            self.say(job, "noted", why=f"has to leave anyway: {resident.leaving}")
            return
        if not _fits(need.peak_mib, self.rules.capacity_mib):
            limit = f"more than the {_mib(self.rules.capacity_mib)} that jobs may hold"
            self.expel(job, f"it {_needs(need)}, {limit}; it was promised {_mib(resident.need.peak_mib)}")
        elif not self.stay(job, need) and not self.move(job, need):
            self.wait_or_leave(job, need, at_s)
        self.retry(at_s)

    def stay(self, job: str, need: MemoryNeed) -> bool:
        """Grants `need` inside the job's own lane. False (nothing changed): it has none, or S1 does not allow it."""
        resident = self.residents[job]
        if resident.lane is None:
            return False
        others = [r.need.ephemeral_mib for r in self.residents.values() if r.lane == resident.lane and r.job != job]
        size_mib = max([need.ephemeral_mib, *others])
        sums = self.table().sums()
        more_mib = need.persistent_mib - resident.need.persistent_mib + size_mib - self.lanes[resident.lane].size_mib
        if more_mib > 0 and not _fits(sums.total_mib + more_mib, self.rules.capacity_mib):
            return False
        self.set_need(job, need)
        self.refit(resident.lane)
        self.say(job, "resized", lane=resident.lane, why=f"it {_needs(need)} now, lane {resident.lane} is {_mib(size_mib)}")
        return True

    def move(self, job: str, need: MemoryNeed) -> bool:
        """Looks for another lane, as if the job had none. False (nothing changed): no lane takes it."""
        resident = self.residents[job]
        lanes = dict(self.lanes)
        self.leave_lane(job)
        if self.place(Waiting(job=job, need=need, role=resident.role, since_s=0.0), "moved"):
            self.waiting = [w for w in self.waiting if w.job != job]
            return True
        self.lanes, self.residents[job] = lanes, resident
        return False

    def wait_or_leave(self, job: str, need: MemoryNeed, at_s: float) -> None:
        resident = self.residents[job]
        self.leave_lane(job)
        free_mib = self.rules.capacity_mib - self.table().sums().total_mib
        if not _fits(need.persistent_mib - resident.need.persistent_mib, free_mib):
            text = f"it holds {_mib(need.persistent_mib)} instead of {_mib(resident.need.persistent_mib)}, and only"
            self.expel(job, f"{text} {_mib(max(0.0, free_mib))} are free")
            return
        self.set_need(job, need)
        since_s = next((w.since_s for w in self.waiting if w.job == job), at_s)
        request = Waiting(job=job, need=need, role=resident.role, since_s=since_s)
        paused = [w for w in self.waiting if w.job in self.residents and w.job != job]
        others = [w for w in self.waiting if w.job not in self.residents]
        self.waiting = [*sorted([*paused, request], key=lambda w: w.since_s), *others]
        self.say(job, "paused", why=self.no_room(request))

    def set_need(self, job: str, need: MemoryNeed) -> None:
        resident = self.residents[job]
        self.residents[job] = replace(resident, need=need, loaded_mib=min(resident.loaded_mib, need.persistent_mib))

    # --- the queue ----------------------------------------------------------------------------------------------------

    def retry(self, at_s: float) -> None:
        """Tries everyone who waits, in order; who does not fit is skipped, unless it has waited so long that nobody may overtake it."""
        for request in list(self.waiting):
            if self.place(request, "placed"):
                self.waiting.remove(request)
            elif _stops_others(request, self.residents, self.rules, at_s):
                break
        self.unlock(at_s)

    def unlock(self, at_s: float) -> None:
        """Paused jobs that have only each other to wait for would wait for ever: the one paused last has to leave."""
        residents = self.residents.values()
        if self.residents and all(r.lane is None and not r.leaving for r in residents):
            last = max((w for w in self.waiting if w.job in self.residents), key=lambda w: w.since_s)
            self.expel(last.job, f"it {_needs(last.need)}, and the other jobs that wait for memory hold too much for that")

    def drop_waiting(self, job: str) -> None:
        left = [w for w in self.waiting if w.job != job]
        if len(left) == len(self.waiting):
            raise ValueError(f"job {job!r} is not in the table")
        self.waiting = left

    def change_request(self, job: str, need: MemoryNeed, at_s: float) -> None:
        i = next((i for i, request in enumerate(self.waiting) if request.job == job), None)
        if i is None:
            raise ValueError(f"job {job!r} is not in the table")
        if not _fits(need.peak_mib, self.rules.capacity_mib):
            del self.waiting[i]
            self.say(job, "refused", why=f"{_needs(need)}, more than the {_mib(self.rules.capacity_mib)} that jobs may hold")
        else:
            self.waiting[i] = replace(self.waiting[i], need=need)
        self.retry(at_s)

    def no_room(self, request: Waiting) -> str:
        sums = self.table().sums()
        return f"{_needs(request.need)}; {_mib(sums.total_mib)} of {_mib(sums.capacity_mib)} are taken and no lane has room"


# --- layout -----------------------------------------------------------------------------------------------------------


def _lay_out(lanes: dict[int, MemoryLane], residents: dict[str, Resident], capacity_mib: float) -> None:
    """Lets lanes slide and jobs load as far as the lanes in an iteration allow. Changes both mappings."""
    while _slide_once(lanes, _limit_mib(residents, capacity_mib)) or _load_once(lanes, residents, capacity_mib):
        pass


def _slide_once(lanes: dict[int, MemoryLane], limit_mib: float) -> bool:
    """Moves every lane that may move to its place, once; whether any did."""
    order = _in_order(lanes)
    if _in_place(order):
        return False
    changed = False
    for lane_id in [lane.id for lane in order]:
        moved = _moved(lanes, lane_id, limit_mib)
        if moved != lanes[lane_id]:
            lanes[lane_id], changed = moved, True
    return changed


def _in_place(order: Sequence[MemoryLane]) -> bool:
    """Whether every lane lies without a hole below it and has its size: nearly always, and quick to see."""
    cursor_mib = 0.0
    for lane in order:
        if lane.base_mib is None or abs(lane.base_mib - cursor_mib) > BYTE_MIB or lane.held_mib != lane.size_mib:
            return False
        cursor_mib += lane.size_mib
    return True


def _moved(lanes: Mapping[int, MemoryLane], lane_id: int, limit_mib: float) -> MemoryLane:
    """A lane where it should be now. In an iteration: where it is. Empty: at the place that it has when there are no holes, if none of
    the lanes below and above is in the way; else, if it is too small or lies nowhere, in the lowest gap that holds it; else where it
    is, shrunk to its size."""
    lane, size_mib = lanes[lane_id], lanes[lane_id].size_mib
    if lane.running is not None:
        return lane
    order = _in_order(lanes)
    at = order.index(lane)
    below, above = order[:at], [x for x in order[at + 1 :] if x.base_mib is not None]
    place_mib = math.fsum(x.size_mib for x in below)
    if lane.base_mib is not None and abs(lane.base_mib - place_mib) <= BYTE_MIB and lane.held_mib == size_mib:
        return lane
    below_mib = max((x.end_mib for x in below), default=0.0)
    if _fits(below_mib, place_mib) and _clear(place_mib + size_mib, above, limit_mib):
        return replace(lane, base_mib=max(place_mib, below_mib), held_mib=size_mib)  # rounding must not change the order
    if lane.base_mib is not None and lane.held_mib >= size_mib:
        return replace(lane, held_mib=size_mib)
    others = [x for x in order if x.id != lane_id and x.base_mib is not None]
    for start_mib in [0.0, *sorted(x.end_mib for x in others)]:
        if _clear(start_mib + size_mib, [x for x in others if x.end_mib > start_mib], limit_mib):
            return replace(lane, base_mib=start_mib, held_mib=size_mib)
    return lane


def _clear(end_mib: float, above: Iterable[MemoryLane], limit_mib: float) -> bool:
    """Whether a range may end there."""
    return _fits(end_mib, min((x.base_mib for x in above if x.base_mib is not None), default=limit_mib)) and _fits(
        end_mib, limit_mib
    )


def _load_once(lanes: Mapping[int, MemoryLane], residents: dict[str, Resident], capacity_mib: float) -> bool:
    """Lets the first job that may hold more of its persistent memory do so; whether there was one."""
    if all(r.loaded_mib >= r.need.persistent_mib for r in residents.values()):
        return False
    top_mib = max((lane.end_mib for lane in lanes.values()), default=0.0)
    room_mib = _limit_mib(residents, capacity_mib) - top_mib
    for r in residents.values():
        missing_mib = r.need.persistent_mib - r.loaded_mib
        if missing_mib > 0 and _fits(missing_mib, room_mib):
            residents[r.job] = replace(r, loaded_mib=r.need.persistent_mib)
            return True
    return False


def _limit_mib(residents: Mapping[str, Resident], capacity_mib: float) -> float:
    """Where persistent memory begins, seen from the lanes' end."""
    return capacity_mib - math.fsum(r.loaded_mib for r in residents.values())


def _in_order(lanes: Mapping[int, MemoryLane]) -> list[MemoryLane]:
    """Lanes by base, those that lie nowhere yet behind them, by id."""
    return [*_by_base(lanes.values()), *(x for x in lanes.values() if x.base_mib is None)]


def _by_base(lanes: Iterable[MemoryLane]) -> list[MemoryLane]:
    """Lanes that lie somewhere, lowest first (an empty range before the one that begins there)."""
    return sorted((x for x in lanes if x.base_mib is not None), key=lambda x: (x.base_mib, x.end_mib, x.id))


def _slides(before: Mapping[int, MemoryLane], after: Mapping[int, MemoryLane]) -> tuple[Slide, ...]:
    found = []
    for lane in after.values():
        old = before.get(lane.id)
        place = (lane.base_mib, lane.held_mib)
        if lane.base_mib is not None and (old is None or (old.base_mib, old.held_mib) != place):
            from_mib = None if old is None else old.base_mib
            found.append(Slide(lane=lane.id, from_mib=from_mib, to_mib=lane.base_mib, held_mib=lane.held_mib))
    return tuple(found)


# --- sentences --------------------------------------------------------------------------------------------------------


def _mib(mib: float) -> str:
    return f"{mib:.6g} MiB"


def _needs(need: MemoryNeed) -> str:
    return f"needs {_mib(need.persistent_mib)} for good and {_mib(need.ephemeral_mib)} in an iteration"


def _found_why(found: Found, lane: int) -> str:
    if found.step == "A":
        return f"opens lane {lane} of {_mib(found.size_mib)}"
    if found.step == "B":
        return f"shares lane {lane}, the smallest of at least its size"
    return f"shares lane {lane}, which grows to {_mib(found.size_mib)}"


# --- replay -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LaneEvent:
    """An event as a value, for traces. need: of `admit` and `resize`; live_mib: of `end`; why: of `expel`."""

    kind: Literal["admit", "finish", "resize", "expel", "begin", "end"]
    job: str
    at_s: float = 0.0
    need: MemoryNeed | None = None
    role: Role = "learn"
    live_mib: float = 0.0
    why: str = ""


def apply(table: LaneTable, event: LaneEvent) -> Step:
    """The step of one recorded event. Errors: as the method of its name; ValueError for a `resize` without a need."""
    if event.kind == "admit":
        return table.admit(event.job, event.need, at_s=event.at_s, role=event.role)
    if event.kind == "finish":
        return table.finish(event.job, at_s=event.at_s)
    if event.kind == "resize":
        if event.need is None:
            raise ValueError(f"a resize of job {event.job!r} says no need")
        return table.resize(event.job, event.need, at_s=event.at_s)
    if event.kind == "expel":
        return table.expel(event.job, event.why, at_s=event.at_s)
    if event.kind == "begin":
        return table.begin(event.job)
    return table.end(event.job, at_s=event.at_s, live_mib=event.live_mib)


def replay(rules: LaneRules, events: Iterable[LaneEvent]) -> list[Step]:
    """One step per event, from an empty table."""
    table, steps = LaneTable(rules=rules), []
    for event in events:
        steps.append(apply(table, event))
        table = steps[-1].table
    return steps


# --- how many lanes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CapChoice:
    """max_lanes: the best cap; admitted: how many of the jobs have a lane with it; tried: (cap, admitted) of every cap."""

    max_lanes: int
    admitted: int
    tried: tuple[tuple[int, int], ...]


def best_cap(needs: Sequence[MemoryNeed], capacity_mib: float) -> CapChoice:
    """The cap on lanes that admits most of `needs`, arriving in this order; of several the largest, for lanes are what runs at once.

    Exact, by trying every cap from 1 to the number of jobs through the algorithm itself: the number admitted need not fall with the cap
    when jobs differ. Of n jobs with m lanes each, n^2 m steps: meant for tens of jobs (T3 of the card). ValueError: no jobs.
    """
    if not needs:
        raise ValueError("no jobs to choose a number of lanes for")
    tried = tuple((cap, _admitted(needs, capacity_mib, cap)) for cap in range(1, len(needs) + 1))
    max_lanes, admitted = max(tried, key=lambda pair: (pair[1], pair[0]))
    return CapChoice(max_lanes=max_lanes, admitted=admitted, tried=tried)


def _admitted(needs: Sequence[MemoryNeed], capacity_mib: float, cap: int) -> int:
    persistent_mib, admitted = 0.0, 0
    lanes: dict[int, float] = {}
    for need in needs:
        found = find_lane(need, persistent_mib=persistent_mib, lanes=lanes, capacity_mib=capacity_mib, max_lanes=cap)
        if found is not None:
            lanes[len(lanes) + 1 if found.lane is None else found.lane] = found.size_mib
            persistent_mib = math.fsum([persistent_mib, need.persistent_mib])
            admitted += 1
    return admitted
