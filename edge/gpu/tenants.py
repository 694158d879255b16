"""Who holds how much memory of a device, and who may run: a job's way from "unknown" to a memory lane, and what happens when it lies.

The decisions are `scheduler.salus.lanes.LaneTable`'s (eq. 2.1, algorithm 2.1); this is the book that a live device keeps with it:

    unknown   nothing declared: its first `FIRST_READINGS` iterations run *aside*, one job at a time, and are measured
    placed    it has a lane, and its iterations are measured now and then (always, where that costs nothing)
    waiting   its memory does not fit now: it runs no iteration
    removed   it can never fit, or took more than there is: JobError, and its memory counts until its lane is closed

Salus is told a job's need, and charges the whole device where nobody says (card, section 7). We measure instead
(`scheduler.salus.measure`). A job's phases differ (a retraining looks at labels before it trains), so what is reserved grows whenever a
reading says so, and is never taken back while the job lives. While a job runs aside, what it holds is not yet in the sum of S1; one job
at a time, so that is one iteration of one job. An inference job is not removed for growing: it waits for room.

Not thread-safe: the executor's lock is held. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from configs.errors import JobError
from edge.gpu.base import Fault, FaultCode, JobMemory, Role
from scheduler.salus.lanes import Decision, LaneRules, LaneTable, Step
from scheduler.salus.measure import MeasureRules, MemorySample, enforce, judge, measure, remember
from scheduler.salus.types import MemoryNeed

#: The lane of jobs that are measured before they are admitted.
ASIDE = 0
#: Measured iterations before a job without a declared need is admitted.
FIRST_READINGS = 2
#: Later, every so-many-th iteration is measured, and those in between whose number is a power of two.
PERIOD = {"learn": 16, "infer": 512}
#: A job whose last so many readings found more held each time is measured in every iteration until one does not.
SUSPICIOUS_RISES = 2
#: Rises smaller than this are none.
RISE_MIB = 0.01
#: How readings become a need, a leak, a verdict. Its iterations are our readings. One warms up: then a job is admitted after two.
RULES = MeasureRules(warmup=1, leak=8)
#: A job that grows or leaks is told of again when it takes so many times as much.
TELL_AGAIN = 2.0
#: A job that has waited so long for memory is not overtaken by smaller ones any more.
AGE_LIMIT_S = 300.0
#: A learning job that has waited so long is removed: what holds the memory may be cameras, which never end.
WAITS_MAX_S = 900.0

LESS_MEMORY = "use a smaller model, batch or input, or raise gpus.memory_mib"


@dataclass(kw_only=True)
class _Tenant:
    role: Role
    declared: MemoryNeed | None
    since_s: float
    started: int = 0  # iterations
    readings: int = 0
    seen: MemoryNeed = MemoryNeed(persistent_mib=0.0, ephemeral_mib=0.0)  # most of each class that was measured
    samples: tuple[MemorySample, ...] = ()
    rises: int = 0  # readings in a row that found more held than the one before
    told_mib: dict[str, float] = field(default_factory=dict)  # fault code -> what it took when it was told of last
    removed: JobError | None = None

    def note(self, usage: MemoryNeed) -> None:
        more_mib = usage.persistent_mib - self.samples[-1].persistent_mib if self.samples else 0.0
        self.rises = self.rises + 1 if more_mib >= RISE_MIB else 0
        self.readings += 1
        self.seen = _most(self.seen, usage)
        sample = MemorySample(persistent_mib=usage.persistent_mib, peak_mib=usage.peak_mib)
        self.samples = remember(self.samples, sample, RULES)

    def tells(self, code: str) -> bool:
        """Whether its operator is to hear of it (again)."""
        took_mib = self.samples[-1].peak_mib
        if code in self.told_mib and took_mib < TELL_AGAIN * self.told_mib[code]:
            return False
        self.told_mib[code] = took_mib
        return True


class Tenants:
    """capacity_mib: what the jobs may hold together; max_lanes: most lanes at a time (None: as many as fit)."""

    def __init__(self, *, capacity_mib: float, max_lanes: int | None) -> None:
        self.table = LaneTable(
            rules=LaneRules(capacity_mib=capacity_mib, max_lanes=max_lanes, age_limit_s=AGE_LIMIT_S, apart=True, spread=True)
        )
        self._tenants: dict[str, _Tenant] = {}
        self._shared: tuple[LaneTable, dict[int, tuple[str, ...]]] = (self.table, {})  # see `sharers`
        self._inside: set[str] = set()  # jobs in an iteration in a lane of the table
        self._settled = True  # nothing waits for a lane to slide
        self._stale = False  # the table does not know of iterations that began or ended since it was settled

    @property
    def capacity_mib(self) -> float:
        return self.table.rules.capacity_mib

    # --- events -------------------------------------------------------------------------------------------------------

    def arrive(self, job: str, role: Role, need: MemoryNeed | None, at_s: float) -> None:
        """Raises JobError when a declared need can never fit."""
        self._tenants[job] = _Tenant(role=role, declared=need, since_s=at_s)
        if need is None:
            return
        problem = self._admit(job, need, at_s)
        if problem:
            del self._tenants[job]
            raise _too_large(job, problem)

    def leave(self, job: str, at_s: float) -> None:
        """The job has gone, outside any iteration."""
        self._tenants.pop(job, None)
        if job in self.table.residents or self._waits(job):
            self._finish(job, at_s)

    def begin(self, job: str) -> None:
        """An iteration starts at `place(job)`."""
        self._tenants[job].started += 1
        if job in self.table.residents:
            self._inside.add(job)
            self._move_along(lambda: self.table.begin(job))

    def end(self, job: str, at_s: float) -> None:
        """It has ended. To be told before `leave` and `read`."""
        if job in self._inside:
            self._inside.remove(job)
            self._move_along(lambda: self.table.end(job, at_s=at_s))

    def read(self, job: str, usage: MemoryNeed, at_s: float) -> list[Fault]:
        """What an iteration that has just ended was measured to take; what has to be told of it."""
        tenant = self._tenants[job]
        tenant.note(usage)
        if tenant.removed:
            return []
        if not self._known(job):
            return self._first_admission(job, tenant, at_s)
        return self._judge(job, tenant, at_s)

    def remove_starved(self, at_s: float) -> list[Fault]:
        """Learning jobs that have waited for memory for WAITS_MAX_S have to go."""
        starved = [w.job for w in self.table.waiting if w.role == "learn" and at_s - w.since_s >= WAITS_MAX_S]
        return [self._remove(job, f"it has waited {WAITS_MAX_S:.0f} s for memory", at_s) for job in starved]

    def expel(self, job: str, error: JobError, at_s: float) -> None:
        """The job is to run no more: its next iteration raises `error`."""
        self._tenants[job].removed = error
        if job in self.table.residents:
            self._apply(lambda: self.table.expel(job, str(error), at_s=at_s))
        elif self._waits(job):
            self._finish(job, at_s)

    def resettle(self, lane: int, at_s: float) -> tuple[str, ...]:
        """Looks for other lanes for those who share `lane` with a job that hangs; returns who has one."""
        moved = []
        for job in self.table.members(lane) if lane != ASIDE else ():
            tenant = self._tenants[job]
            if job in self._inside or tenant.removed:
                continue
            need = self.table.residents[job].need
            self._finish(job, at_s)
            self._admit(job, need, at_s)
            if self.place(job) not in (None, lane):
                moved.append(job)
        return tuple(moved)

    # --- questions ----------------------------------------------------------------------------------------------------

    def has(self, job: str) -> bool:
        return job in self._tenants

    def place(self, job: str) -> int | None:
        """The lane in which the job may run its next iteration, `ASIDE`, or None: it has to wait for memory."""
        if not self._known(job):
            return None if self._tenants[job].removed else ASIDE
        lane = self.table.lane_of(job)
        if lane is None:
            return None
        return lane.id if self._settled or lane.running is not None or self.table.may_start(job) else None

    def sharers(self, lane: int) -> Sequence[str]:
        """Jobs whose `place` may be `lane` (that of any other is not), looked up once per table: asked twice for each iteration."""
        if lane == ASIDE:
            return [job for job in self._tenants if not self._known(job)]
        table, found = self._shared
        if table is not self.table:
            found = {}
            self._shared = (self.table, found)
        if lane not in found:
            found[lane] = self.table.members(lane)
        return found[lane]

    def removed(self, job: str) -> JobError | None:
        return self._tenants[job].removed

    @property
    def promised_mib(self) -> float:
        """To those who have a lane, together."""
        return self.table.sums().total_mib

    def wants_measuring(self, job: str) -> bool:
        """Whether the iteration that has just begun should be measured."""
        tenant = self._tenants[job]
        if tenant.rises >= SUSPICIOUS_RISES:
            return True
        number = tenant.started - 1
        early = number < FIRST_READINGS or number & (number - 1) == 0
        return early and number < PERIOD[tenant.role] or number % PERIOD[tenant.role] == 0

    def memory(self, key: str, job: str) -> JobMemory:
        """key: as it arrived; job: what to call it."""
        tenant = self._tenants[key]
        lane = self.table.lane_of(key)
        need = tenant.seen if tenant.readings else tenant.declared
        return JobMemory(
            job=job, need=need, measured=tenant.readings >= FIRST_READINGS, lane=lane.id if lane else None,
            lane_mib=lane.size_mib if lane else 0.0, held_mib=tenant.samples[-1].persistent_mib if tenant.samples else None,
        )  # fmt: skip

    def check(self) -> None:
        """The table's invariants, and that nobody is in two places."""
        self._catch_up()
        self.table.check()
        assert self._inside <= set(self.table.residents), f"{self._inside - set(self.table.residents)} run without a lane"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _known(self, job: str) -> bool:
        return job in self.table.residents or self._waits(job)

    def _waits(self, job: str) -> bool:
        return any(w.job == job for w in self.table.waiting)

    def _admit(self, job: str, need: MemoryNeed, at_s: float) -> str:
        """'' or why it can never fit."""
        role = self._tenants[job].role
        step = self._apply(lambda: self.table.admit(job, need, at_s=at_s, role=role))
        return next((d.why for d in step.decisions if d.job == job and d.kind == "refused"), "")

    def _finish(self, job: str, at_s: float) -> None:
        self._apply(lambda: self.table.finish(job, at_s=at_s))

    def _first_admission(self, job: str, tenant: _Tenant, at_s: float) -> list[Fault]:
        if tenant.readings < FIRST_READINGS:
            return []
        found = measure(tenant.samples, self.capacity_mib, RULES)
        assert found is not None, "fewer readings than FIRST_READINGS"
        problem = self._admit(job, found.need, at_s)
        return [self._remove(job, problem, at_s)] if problem else []

    def _judge(self, job: str, tenant: _Tenant, at_s: float) -> list[Fault]:
        """What becomes of a job after a reading. A promise that is too large is left alone: another phase of the job may need it."""
        has = self._reserved(job)
        verdict = judge(tenant.samples, has, self.capacity_mib, RULES)
        if verdict.kind == "leaks":
            return [_leak(job, verdict.why, at_s)] if tenant.tells("leak") else []
        if verdict.kind == "remove" and tenant.role == "learn":
            code: FaultCode = "leak" if tenant.rises >= RULES.leak else "memory"
            return [self._remove(job, verdict.why, at_s, code)]
        if verdict.kind not in ("grow", "remove"):
            return []
        if verdict.kind == "remove":  # of a camera: it is asked for what it takes, and waits if that is too much
            verdict = replace(verdict, kind="grow", need=_most(has, tenant.seen), least=tenant.seen)
        step = self._apply(lambda: enforce(self.table, job, verdict, at_s=at_s))
        decision = next(d for d in step.decisions if d.job == job)
        if decision.kind in ("expelled", "refused"):
            return self._no_room(job, tenant, verdict.least or verdict.need, decision, at_s)
        if decision.kind != "paused" and (tenant.declared is None or not tenant.tells("memory")):
            return []
        done = "it waits for room" if decision.kind == "paused" else "its lane was made to fit"
        remedy = LESS_MEMORY if decision.kind == "paused" else "declare what it takes, or leave it out: then it is measured"
        return [Fault(at_s=at_s, job=job, code="memory", text=f"{verdict.why}: {done}", remedy=remedy)]

    def _reserved(self, job: str) -> MemoryNeed:
        resident = self.table.residents.get(job)
        return resident.need if resident else next(w.need for w in self.table.waiting if w.job == job)

    def _no_room(self, job: str, tenant: _Tenant, wanted: MemoryNeed, decision: Decision, at_s: float) -> list[Fault]:
        if tenant.role == "infer" and decision.kind == "expelled" and wanted.peak_mib <= self.capacity_mib:
            self._finish(job, at_s)
            self._admit(job, wanted, at_s)
            text = f"{decision.why}: it analyses nothing until there is room"
            return [Fault(at_s=at_s, job=job, code="memory", text=text, remedy=LESS_MEMORY)]
        return [self._remove(job, decision.why, at_s)]

    def _remove(self, job: str, why: str, at_s: float, code: FaultCode = "memory") -> Fault:
        error = _too_large(job, why)
        self.expel(job, error, at_s)
        return Fault(at_s=at_s, job=job, code=code, text=error.message, remedy=error.remedy, removed=True)

    # --- the table ----------------------------------------------------------------------------------------------------
    # An iteration's begin and end change nothing as long as no lane has to slide, and a copy of the table per iteration would cost more
    # than all the rest of the executor. So they are told to the table only when something else happens, or when a lane has to slide.

    def _apply(self, event: Callable[[], Step]) -> Step:
        self._catch_up()
        step = event()
        self.table = step.table
        self._settled = _is_settled(self.table)
        return step

    def _move_along(self, event: Callable[[], Step]) -> None:
        if self._settled:
            self._stale = True
            return
        self._apply(event)

    def _catch_up(self) -> None:
        if not self._stale:
            return
        self._stale = False
        running = {lane.running for lane in self.table.lanes.values() if lane.running is not None}
        for job in running - self._inside:
            self.table = self.table.end(job).table
        for job in self._inside - running:
            self.table = self.table.begin(job).table


def _is_settled(table: LaneTable) -> bool:
    return (
        not table.holes()
        and all(lane.base_mib is not None and lane.held_mib == lane.size_mib for lane in table.lanes.values())
        and all(
            r.loaded_mib >= r.need.persistent_mib and r.wanted is None and not (r.leaving and r.lane is not None)
            for r in table.residents.values()
        )
    )


def _most(a: MemoryNeed, b: MemoryNeed) -> MemoryNeed:
    return MemoryNeed(
        persistent_mib=max(a.persistent_mib, b.persistent_mib), ephemeral_mib=max(a.ephemeral_mib, b.ephemeral_mib)
    )


def _leak(job: str, why: str, at_s: float) -> Fault:
    remedy = "report it with the log; it is removed when it takes more than it was given"
    return Fault(at_s=at_s, job=job, code="leak", text=why, remedy=remedy)


def _too_large(job: str, why: str) -> JobError:
    return JobError(f"no memory for it: {why}", subject=job, remedy=LESS_MEMORY, code="out_of_memory")
