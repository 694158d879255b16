"""Jobs on a simulated device: the same `LaneTable`, policies and verdicts as live, in virtual time, against the jobs' true memory.

A job's truth may differ from what it declared: its persistent memory may appear late (optimizer state) or grow without end (a leak), its
ephemeral memory may be larger. The device counts what is really held:

    held(t) = sum of what each job holds + sum of what each running iteration takes,      out of memory: held(t) > C

`enforced` (the default) is a device on which nobody can take more than it was granted: a counting allocator, or MPS's memory limit. An
iteration that tries to fails in its own job, which is then judged (`scheduler.salus.measure`) and repeats it once it has grown. Without,
as with torch's own allocator, what is taken is taken: only padding stands between a lie and everybody else, and the one who asks when
nothing is left crashes.

Lanes run at the same time. With k iterations in flight each runs at min(1, width / k): 1 is a device that one job fills alone. What is
compared are decisions and memory; it says nothing about the speed of a real device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from scheduler.pacing import Pacer, PacingMode
from scheduler.salus.lanes import Decision, LaneRules, LaneTable, Step
from scheduler.salus.measure import MeasureRules, MemorySample, enforce, judge, remember
from scheduler.salus.policies import LaneJob, Pick, join, lane_policy, rejoin, served, with_tokens
from scheduler.salus.types import BYTE_MIB, MemoryNeed, Role

#: Two moments closer than this are one: sums of steps of 0.1 s must meet.
SAME_S = 1e-9
#: More steps than any sensible question takes.
MAX_STEPS = 2_000_000


@dataclass(frozen=True, kw_only=True)
class SimJob:
    """A job as it is. iterations of iteration_s each, gap_s after the end of one until the next is asked for. declared: what it says of
    its memory, None: nothing; truth: what it needs (None: what it declares), of which late_frac of the persistent part appears only in
    its first iteration; leak_mib: kept more after each one. share_pct: what the plan gives it (and its weight under `fair`).
    crashes_in: the iteration, from 0, in which it ends by itself. Raises ValueError."""

    job: str
    iterations: int
    iteration_s: float
    arrives_s: float = 0.0
    gap_s: float = 0.0
    role: Role = "learn"
    declared: MemoryNeed | None = field(default_factory=lambda: MemoryNeed(persistent_mib=0.0, ephemeral_mib=0.0))
    truth: MemoryNeed | None = None
    late_frac: float = 0.0
    leak_mib: float = 0.0
    share_pct: float = 1.0
    crashes_in: int | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1 or not self.iteration_s > 0 or self.gap_s < 0:
            raise ValueError(f"job {self.job!r} needs 1 or more iterations of more than 0 s, and gaps of 0 or more")
        if self.declared is None and self.truth is None:
            raise ValueError(f"job {self.job!r} declares nothing: say what it really needs")

    def needs(self) -> MemoryNeed:
        """What it needs in truth, leaks aside."""
        need = self.truth or self.declared
        assert need is not None
        return need

    def persistent_mib(self, done: int) -> float:
        """What it wants to hold after `done` iterations."""
        late = self.late_frac if done == 0 else 0.0
        return self.needs().persistent_mib * (1 - late) + self.leak_mib * done


@dataclass(frozen=True, kw_only=True)
class SimRules:
    """lanes: memory; policy: one of `policies.POLICIES`; mode: of `plan`; work_conserving: of `fair` and `rr`; measure: how needs are
    measured; enforced, width: see above; until_s: when to stop."""

    lanes: LaneRules
    policy: str = "fair"
    mode: PacingMode = "work-conserving"
    work_conserving: bool = True
    infer_first: bool = True
    measure: MeasureRules = field(default_factory=MeasureRules)
    enforced: bool = True
    width: float = 1.0
    until_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Run:
    """Iterations of one job in one lane without a break between them."""

    job: str
    lane: int
    start_s: float
    end_s: float
    iterations: int


#: done: all its iterations; crashed: by itself; killed: the device had no memory left; removed: expelled; refused: can never fit;
#: unfinished: `until_s` came.
Fate = Literal["done", "crashed", "killed", "removed", "refused", "unfinished"]


@dataclass(frozen=True, kw_only=True)
class SimOutcome:
    """What became of a job. placed_s: when it got a lane first; waited_s: longest from asking for an iteration to its start."""

    job: str
    fate: Fate
    arrived_s: float
    placed_s: float | None
    ended_s: float | None
    iterations: int
    waited_s: float
    why: str = ""

    @property
    def jct_s(self) -> float | None:
        """Job completion time, of jobs that were done."""
        return None if self.ended_s is None or self.fate != "done" else self.ended_s - self.arrived_s


@dataclass(frozen=True, kw_only=True)
class SimResult:
    """out_of_memory: (moment, MiB held, job that asked) of every time the device had no memory left; refused_allocations: iterations
    that failed because they asked for more than was granted (enforced devices only); peak_mib: most that was ever held."""

    runs: tuple[Run, ...]
    jobs: tuple[SimOutcome, ...]
    decisions: tuple[tuple[float, Decision], ...]
    out_of_memory: tuple[tuple[float, float, str], ...]
    refused_allocations: int
    peak_mib: float
    peak_residents: int

    @property
    def mean_jct_s(self) -> float | None:
        times = [j.jct_s for j in self.jobs if j.jct_s is not None]
        return math.fsum(times) / len(times) if times else None

    @property
    def makespan_s(self) -> float:
        return max((run.end_s for run in self.runs), default=0.0)


def simulate(jobs: Sequence[SimJob], rules: SimRules) -> SimResult:
    """Runs `jobs` to their end, or to `until_s`. Same input, same result. Errors: ValueError for two jobs of one name, UsageError for
    an unknown policy."""
    names = [j.job for j in jobs]
    if len(set(names)) != len(names):
        raise ValueError("two jobs have the same name")
    return _Device(jobs, rules).run()


@dataclass(kw_only=True)
class _Live:
    """A job of the simulation. card: as policies see it; samples: measured; fate: None while it lives."""

    job: SimJob
    card: LaneJob
    placed_s: float | None = None
    ended_s: float | None = None
    asks_s: float = 0.0
    waited_s: float = 0.0
    done: int = 0
    samples: tuple[MemorySample, ...] = ()
    fate: Fate | None = None
    why: str = ""
    loaded: bool = False
    holds_mib: float = 0.0
    rests: bool = False


@dataclass(kw_only=True)
class _Flight:
    """An iteration in flight. left_s: of its compute; wants: memory that it asks for, takes_mib: ephemeral memory that it holds;
    refused: it asked for more than granted."""

    job: str
    started_s: float
    left_s: float
    wants: MemoryNeed
    takes_mib: float
    refused: bool


class _Device:
    def __init__(self, jobs: Sequence[SimJob], rules: SimRules) -> None:
        self.rules = rules
        self.policy = lane_policy(rules.policy, work_conserving=rules.work_conserving, infer_first=rules.infer_first)
        self.table = LaneTable(rules=rules.lanes)
        self.pacer = Pacer(capacity_pct=100.0, mode=rules.mode)
        self.now_s = 0.0
        self.to_come = sorted(jobs, key=lambda j: j.arrives_s)
        self.live: dict[str, _Live] = {j.job: _Live(job=j, card=_card(j)) for j in jobs}
        self.order = {j.job: i for i, j in enumerate(jobs)}
        self.flights: dict[int, _Flight] = {}
        self.runs: list[Run] = []
        self.decisions: list[tuple[float, Decision]] = []
        self.out_of_memory: list[tuple[float, float, str]] = []
        self.refused_allocations = 0
        self.peak_mib = 0.0
        self.peak_residents = 0

    def run(self) -> SimResult:
        for _ in range(MAX_STEPS):
            self.arrive()
            again_s = self.dispatch()
            next_s = self.next_moment(again_s)
            if next_s > self.rules.until_s or math.isinf(next_s):
                return self.result()
            self.advance(next_s)
        raise RuntimeError(f"the simulation did not end within {MAX_STEPS} steps")

    # --- time ---------------------------------------------------------------------------------------------------------

    def rate(self) -> float:
        """Of each iteration in flight."""
        return min(1.0, self.rules.width / len(self.flights)) if self.flights else 1.0

    def next_moment(self, again_s: float) -> float:
        arrivals = (j.arrives_s for j in self.to_come[:1])
        ends = (self.now_s + f.left_s / self.rate() for f in self.flights.values())
        asks = (x.asks_s for job, x in self.live.items() if job in self.table.residents and x.asks_s > self.now_s + SAME_S)
        return min([again_s, *arrivals, *ends, *asks])

    def advance(self, to_s: float) -> None:
        rate, elapsed_s = self.rate(), to_s - self.now_s
        self.now_s = to_s
        for flight in self.flights.values():
            flight.left_s -= rate * elapsed_s
        for lane in sorted(lane for lane, flight in self.flights.items() if flight.left_s <= SAME_S):
            self.land(lane, self.flights.pop(lane))

    # --- events -------------------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        while self.to_come and self.to_come[0].arrives_s <= self.now_s + SAME_S:
            job = self.to_come.pop(0)
            self.live[job.job].asks_s = job.arrives_s
            self.take(self.table.admit(job.job, job.declared, at_s=self.now_s, role=job.role))

    def dispatch(self) -> float:
        """Starts what may start; when a policy wants to be asked again. Once more when a start has killed its job: that frees a lane."""
        while True:
            deaths = len(self.out_of_memory)
            again_s = self.start_all()
            if len(self.out_of_memory) == deaths:
                return again_s

    def start_all(self) -> float:
        self.ask()
        again_s = math.inf
        for lane_id in list(self.table.lanes):
            lane = self.table.lanes.get(lane_id)
            if lane is None or lane.running is not None:
                continue
            pick = self.pick(lane_id)
            if pick.job is not None:
                self.begin(pick.job, lane_id)
            elif pick.again_s > self.now_s:
                again_s = min(again_s, pick.again_s)
        return again_s

    def asks(self, job: str) -> bool:
        return self.live[job].asks_s <= self.now_s + SAME_S

    def ask(self) -> None:
        """Jobs that have rested and ask for an iteration now are brought up to the others of their lane."""
        for job, resident in self.table.residents.items():
            x = self.live[job]
            if not self.asks(job) or resident.lane is None:
                continue
            if x.rests:
                x.rests = False
                x.card = rejoin([self.current(j) for j in self.table.members(resident.lane) if self.asks(j)], x.card)
            if self.rules.policy == "plan":
                self.pacer.want(job, self.now_s)

    def current(self, job: str) -> LaneJob:
        """Its card with what the iteration in flight has used so far."""
        card = self.live[job].card
        lane = self.table.lane_of(job)
        flight = None if lane is None else self.flights.get(lane.id)
        if flight is None or flight.job != job:
            return card
        return replace(card, service_s=card.service_s + self.now_s - flight.started_s)

    def pick(self, lane: int) -> Pick:
        members = sorted(self.table.members(lane), key=self.order.__getitem__)
        cards: Sequence[LaneJob] = [
            replace(self.live[j].card, ready=self.asks(j) and self.table.may_start(j), ready_since_s=self.live[j].asks_s)
            for j in members
        ]
        if self.rules.policy == "plan":
            cards = with_tokens(cards, self.pacer, self.now_s)
        return self.policy.pick(self.now_s, cards)

    def begin(self, job: str, lane: int) -> None:
        x, need = self.live[job], self.table.residents[job].need
        self.table = self.table.begin(job).table
        x.waited_s = max(x.waited_s, self.now_s - x.asks_s)
        wants = MemoryNeed(persistent_mib=x.job.persistent_mib(1 + x.done), ephemeral_mib=x.job.needs().ephemeral_mib)
        refused = _more(wants, need) and self.rules.enforced
        x.holds_mib = min(wants.persistent_mib, need.persistent_mib) if self.rules.enforced else wants.persistent_mib
        takes_mib = min(wants.ephemeral_mib, need.ephemeral_mib) if self.rules.enforced else wants.ephemeral_mib
        self.flights[lane] = _Flight(
            job=job,
            started_s=self.now_s,
            left_s=x.job.iteration_s,
            wants=wants,
            takes_mib=takes_mib,
            refused=refused,
        )
        if self.rules.policy == "plan":
            self.pacer.start(job, self.now_s)
        self.count_memory(job)

    def land(self, lane: int, flight: _Flight) -> None:
        """An iteration ends."""
        x = self.live[flight.job]
        self.runs.append(Run(job=flight.job, lane=lane, start_s=flight.started_s, end_s=self.now_s, iterations=1))
        self.take(self.table.end(flight.job, at_s=self.now_s))
        if self.rules.policy == "plan":
            self.pacer.charge(flight.job, x.job.iteration_s, self.now_s, done=True)
        x.card = replace(served(x.card, self.now_s - flight.started_s), used_s=x.card.used_s + x.job.iteration_s)
        if not flight.refused:
            x.done += 1
        else:
            self.refused_allocations += 1
        self.next_iteration(x)
        if x.job.crashes_in is not None and x.done > x.job.crashes_in:
            self.leave(flight.job, "crashed")
        elif x.done >= x.job.iterations:
            self.leave(flight.job, "done")
        else:
            self.measure(x, flight)

    def next_iteration(self, x: _Live) -> None:
        x.asks_s = self.now_s + x.job.gap_s
        x.rests = x.job.gap_s > 0
        if x.rests and self.rules.policy == "plan":
            self.pacer.rest(x.job.job, self.now_s)

    def measure(self, x: _Live, flight: _Flight) -> None:
        """What the iteration wanted to hold is seen: by the allocator, whether it granted it or not."""
        name = x.job.job
        sample = MemorySample(persistent_mib=flight.wants.persistent_mib, peak_mib=flight.wants.peak_mib)
        seen = (*x.samples, sample)
        if not flight.refused:  # else it will be repeated, and seen again
            x.samples = remember(x.samples, sample, self.rules.measure)
        promised = self.table.residents[name].need
        verdict = judge(seen, promised, self.rules.lanes.capacity_mib, self.rules.measure)
        self.take(enforce(self.table, name, verdict, at_s=self.now_s))

    def take(self, step: Step) -> None:
        """Follows what a step decided: it is what a backend does."""
        self.table = step.table
        self.peak_residents = max(self.peak_residents, len(step.table.residents))
        self.decisions += [(self.now_s, d) for d in step.decisions]
        for decision in step.decisions:
            x = self.live[decision.job]
            if decision.kind in ("placed", "moved") and decision.job in self.table.residents:
                self.join_lane(x)
            elif decision.kind == "refused":
                x.fate, x.why, x.ended_s = "refused", decision.why, self.now_s
            elif decision.kind == "expelled":
                x.why = decision.why
                self.leave(decision.job, "removed")
        self.load()

    def load(self) -> None:
        """Jobs whose persistent memory has room by now take it."""
        for job, resident in self.table.residents.items():
            x = self.live[job]
            if x.loaded or resident.loaded_mib < resident.need.persistent_mib:
                continue
            x.loaded = True
            wants_mib = x.job.persistent_mib(0)
            x.holds_mib = min(wants_mib, resident.need.persistent_mib) if self.rules.enforced else wants_mib
            if self.count_memory(job):
                return  # the table has changed, and what is left was loaded on the way

    def join_lane(self, x: _Live) -> None:
        name = x.job.job
        if x.placed_s is None:
            x.placed_s = self.now_s
        if self.rules.policy == "plan" and name not in self.pacer.jobs():
            self.pacer.open(name, self.now_s)
            self.set_shares()
        lane = self.table.lane_of(name)
        if lane is None:
            return
        others = [self.current(j) for j in self.table.members(lane.id) if j != name]
        x.card = join(others, x.card)[-1]
        for other in others:
            self.live[other.job].card = replace(self.live[other.job].card, iterations=0)

    def set_shares(self) -> None:
        wanted = {job: self.live[job].job.share_pct for job in self.pacer.jobs()}
        total_pct = sum(wanted.values())
        self.pacer.set_shares({job: pct * min(1.0, 100.0 / total_pct) for job, pct in wanted.items()}, self.now_s)

    def leave(self, job: str, fate: Fate) -> None:
        x = self.live[job]
        x.fate, x.ended_s, x.holds_mib = fate, self.now_s, 0.0
        if self.rules.policy == "plan":
            self.pacer.close(job, self.now_s)
        self.take(self.table.finish(job, at_s=self.now_s))

    # --- memory -------------------------------------------------------------------------------------------------------

    def held_mib(self) -> float:
        return math.fsum(
            [*(self.live[j].holds_mib for j in self.table.residents), *(f.takes_mib for f in self.flights.values())]
        )

    def count_memory(self, job: str) -> bool:
        """Looks whether the device can hold what is held now that `job` has asked for something; whether that killed it."""
        held_mib = self.held_mib()
        self.peak_mib = max(self.peak_mib, held_mib)
        if held_mib > self.rules.lanes.capacity_mib + 2 * BYTE_MIB:
            self.out_of_memory.append((self.now_s, held_mib, job))
            self.kill(job)
            return True
        return False

    def kill(self, job: str) -> None:
        """The device has no memory left for the job that asks: it dies of it, at once."""
        lane = next((lane for lane, flight in self.flights.items() if flight.job == job), None)
        if lane is not None:
            del self.flights[lane]
            self.take(self.table.end(job, at_s=self.now_s))
        self.live[job].why = "the device had no memory left"
        self.leave(job, "killed")

    def result(self) -> SimResult:
        return SimResult(
            runs=tuple(_joined(self.runs)),
            jobs=tuple(_outcome(x) for x in self.live.values()),
            decisions=tuple(self.decisions),
            out_of_memory=tuple(self.out_of_memory),
            refused_allocations=self.refused_allocations,
            peak_mib=self.peak_mib,
            peak_residents=self.peak_residents,
        )


def _card(job: SimJob) -> LaneJob:
    return LaneJob(
        job=job.job,
        role=job.role,
        arrived_s=job.arrives_s,
        weight=job.share_pct,
        total_s=job.iterations * job.iteration_s,
    )


def _more(wants: MemoryNeed, granted: MemoryNeed) -> bool:
    return wants.persistent_mib > granted.persistent_mib + BYTE_MIB or wants.ephemeral_mib > granted.ephemeral_mib + BYTE_MIB


def _outcome(x: _Live) -> SimOutcome:
    return SimOutcome(
        job=x.job.job,
        fate=x.fate or "unfinished",
        arrived_s=x.job.arrives_s,
        placed_s=x.placed_s,
        ended_s=x.ended_s,
        iterations=x.done,
        waited_s=x.waited_s,
        why=x.why,
    )


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Runs in order of start; those of one job that follow each other in a lane are one."""
    joined: list[Run] = []
    last: dict[int, int] = {}
    for run in sorted(runs, key=lambda r: (r.start_s, r.lane)):
        at = last.get(run.lane)
        if at is not None and joined[at].job == run.job and abs(joined[at].end_s - run.start_s) <= SAME_S:
            joined[at] = replace(joined[at], end_s=run.end_s, iterations=joined[at].iterations + run.iterations)
        else:
            last[run.lane] = len(joined)
            joined.append(run)
    return joined
