"""Whose iteration runs next in a lane (papers/salus.md section 6): one table of policies, each a pure function.

A policy sees the jobs of one lane between two of its iterations and names the next one, or none and when to ask again. It keeps
nothing: what it goes by (service, counters, times) is in the `LaneJob`s, which `join`, `rejoin` and `served` bring forward.

    name    runs                                                      idle lane  admission
    fair    least service / weight; weight: the plan's share          no         S1
    rr      fewest iterations since somebody joined                   no         S1
    pack    whichever asked first; meant for a lane per job           no         S1, as many lanes as fit
    fifo    the oldest job only                                       yes        one lane
    srtf    the least remaining time T_total - T_used only            yes        one lane
    plan    most tokens saved; nobody who is in debt                  yes        S1

idle lane: whether the lane may stay idle although somebody is ready. `fair` and `rr` can be told to (`work_conserving=False`), `fifo`
and `srtf` run the chosen job only, as the released code does: that is what makes them FIFO and SRTF. `plan` holds jobs to shares of
compute: its tokens are `scheduler.pacing.Pacer`'s (`with_tokens`), whose mode says whether unused shares are lent. Ties go to the name
in alphabetical order; those of `plan` to who has waited longest (in a lane with more promises than time everybody has saved all that
may be saved, and the last by name would starve); those of `srtf` to the job listed later and those of `rr` to the one listed first, as
in the released code.

FAIR, ours where the text is silent (card, [G]): a newcomer starts at the least service of its lane, else it would keep the lane until it
had caught up (T5); the same for a job that had nothing to run for a while (`rejoin`), which the text does not speak of: it must not
save up the time in which it did not want to run. SRTF, for what can be enforced: paused jobs keep their P, so the condition of a more
urgent newcomer is SP + P + max(L, E) <= C on the one shared lane, which is `find_lane` with `max_lanes=1`.

Latency: at an iteration boundary jobs of role `infer` go before all others, whatever the policy (`LanePolicy.infer_first`). A frame then
waits for the rest of one iteration at most. `fifo` and `srtf` keep the lane for nobody of them: a camera never ends, and learning would
wait for its next frame for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from configs.errors import UsageError
from scheduler.pacing import Pacer
from scheduler.salus.types import Role

#: Two sums of seconds that differ by less are equal: rounding must not break ties.
TIE_S = 1e-9


@dataclass(frozen=True, kw_only=True)
class LaneJob:
    """A job of a lane as policies see it. ready: it has an iteration to run and its memory allows it, since ready_since_s.
    weight: for `fair`, such as its share in the plan; 0: only when nobody else is ready. service_s: seconds of lane time it was given,
    for `fair` counted from where it started. iterations: for `rr`, since somebody joined. total_s, used_s: whole length, if known, and
    time run, for `srtf`. wait_s, saved_s: for `plan`, seconds until its tokens allow an iteration and what it has saved
    (`with_tokens`)."""

    job: str
    role: Role = "learn"
    ready: bool = True
    ready_since_s: float = 0.0
    arrived_s: float = 0.0
    weight: float = 1.0
    service_s: float = 0.0
    iterations: int = 0
    total_s: float | None = None
    used_s: float = 0.0
    wait_s: float = 0.0
    saved_s: float = 0.0

    @property
    def remaining_s(self) -> float:
        """T_total - T_used; inf when the length is not known."""
        return math.inf if self.total_s is None else self.total_s - self.used_s


@dataclass(frozen=True, kw_only=True)
class Pick:
    """job: who runs the next iteration, None: nobody now. again_s: when to ask again if nothing happens before (an iteration asked for,
    a job that comes or goes); inf: not before something happens. why: for people."""

    job: str | None
    again_s: float = math.inf
    why: str


#: (now_s, jobs of the lane in the order in which they were listed) -> who is next.
Rule = Callable[[float, Sequence[LaneJob]], Pick]


@dataclass(frozen=True, kw_only=True)
class LanePolicy:
    """rule: see above. max_lanes: lanes that the policy is meant for, None: as many as fit. work_conserving: a ready job is never kept
    waiting on an idle lane; only `fair` and `rr` have a choice."""

    name: str
    rule: Rule
    max_lanes: int | None = None
    work_conserving: bool = True
    infer_first: bool = True

    def pick(self, now_s: float, jobs: Sequence[LaneJob]) -> Pick:
        """Who runs the next iteration. now_s: seconds of the clock of the jobs' times."""
        if not self.infer_first:
            return self._pick(now_s, jobs)
        urgent = [j for j in jobs if j.role == "infer" and j.ready]
        others = [j for j in jobs if j.role != "infer"]
        if not urgent:
            return self._pick(now_s, others)
        first = self._pick(now_s, urgent)
        if first.job is not None:
            return first
        rest = self._pick(now_s, others)
        return replace(rest, again_s=min(first.again_s, rest.again_s))

    def _pick(self, now_s: float, jobs: Sequence[LaneJob]) -> Pick:
        if self.work_conserving and self.name in _FALL_THROUGH:
            jobs = [j for j in jobs if j.ready]
        if not jobs:
            return Pick(job=None, why="nobody is ready")
        return self.rule(now_s, jobs)


#: Policies that go on to the next job when the one they would choose is not ready.
_FALL_THROUGH = ("fair", "rr")


def _only(job: LaneJob, why: str) -> Pick:
    """The chosen job or nobody: the lane waits for it."""
    return Pick(job=job.job, why=why) if job.ready else Pick(job=None, why=f"{why}, and is not ready")


def _normalised_s(job: LaneJob) -> float:
    """Service per weight; last of all without a weight."""
    return job.service_s / job.weight if job.weight > 0 else math.inf


def _least(jobs: Sequence[LaneJob], key: Callable[[LaneJob], float]) -> list[LaneJob]:
    """All jobs with the least key, up to rounding."""
    least = min(key(j) for j in jobs)
    return [j for j in jobs if key(j) <= least + TIE_S]


def fair(now_s: float, jobs: Sequence[LaneJob]) -> Pick:
    """FAIR: the least service per weight."""
    chosen = min(_least(jobs, _normalised_s), key=lambda j: (j.service_s if j.weight <= 0 else 0.0, j.job))
    return _only(chosen, f"has the least service, {chosen.service_s:.6g} s at weight {chosen.weight:.6g}")


def rr(now_s: float, jobs: Sequence[LaneJob]) -> Pick:
    """Round robin: the fewest iterations."""
    chosen = min(jobs, key=lambda j: j.iterations)
    return _only(chosen, f"has run fewest iterations, {chosen.iterations}")


def pack(now_s: float, jobs: Sequence[LaneJob]) -> Pick:
    """PACK: no order at all between lanes; in a lane, the iteration that was asked for first."""
    ready = [j for j in jobs if j.ready]
    if not ready:
        return Pick(job=None, why="nobody is ready")
    return Pick(job=min(ready, key=lambda j: (j.ready_since_s, j.job)).job, why="asked first")


def fifo(now_s: float, jobs: Sequence[LaneJob]) -> Pick:
    """FIFO: the oldest job until it ends."""
    return _only(min(jobs, key=lambda j: (j.arrived_s, j.job)), "came first")


def srtf(now_s: float, jobs: Sequence[LaneJob]) -> Pick:
    """SRTF: the least remaining time, of several the job listed last; jobs of unknown length after all others, oldest first."""
    known = [j for j in jobs if j.total_s is not None]
    if not known:
        return fifo(now_s, jobs)
    chosen = _least(known, lambda j: j.remaining_s)[-1]
    return _only(chosen, f"has least to do, {chosen.remaining_s:.6g} s")


def plan(now_s: float, jobs: Sequence[LaneJob]) -> Pick:
    """The scheduler's shares: of the ready jobs whose tokens allow an iteration, the one that has saved most; none: when one will."""
    ready = [j for j in jobs if j.ready]
    able = [j for j in ready if j.wait_s <= 0]
    if able:
        chosen = min(able, key=lambda j: (-j.saved_s, j.ready_since_s, j.job))
        return Pick(job=chosen.job, why=f"has saved most, {chosen.saved_s:.6g} s")
    wait_s = min((j.wait_s for j in ready), default=math.inf)
    return Pick(job=None, again_s=now_s + wait_s, why="every ready job has used its share" if ready else "nobody is ready")


#: The one table.
POLICIES: Mapping[str, LanePolicy] = {
    p.name: p
    for p in (
        LanePolicy(name="fair", rule=fair),
        LanePolicy(name="rr", rule=rr),
        LanePolicy(name="pack", rule=pack),
        LanePolicy(name="fifo", rule=fifo, max_lanes=1, work_conserving=False),
        LanePolicy(name="srtf", rule=srtf, max_lanes=1, work_conserving=False),
        LanePolicy(name="plan", rule=plan, work_conserving=False),
    )
}


def lane_policy(name: str, *, work_conserving: bool = True, infer_first: bool = True) -> LanePolicy:
    """The policy called `name`. work_conserving=False: `fair` and `rr` wait for the job whose turn it is. infer_first=False: without the
    latency rule. Errors: UsageError listing the known names."""
    if name not in POLICIES:
        raise UsageError(f"unknown lane policy '{name}'", subject=name, remedy=f"known: {', '.join(POLICIES)}")
    chosen = POLICIES[name]
    return replace(chosen, work_conserving=chosen.work_conserving and work_conserving, infer_first=infer_first)


# --- bringing jobs forward --------------------------------------------------------------------------------------------


def join(jobs: Sequence[LaneJob], newcomer: LaneJob) -> tuple[LaneJob, ...]:
    """The lane with a newcomer, who starts at the least service per weight of the lane; all counters of `rr` begin anew."""
    started = replace(newcomer, service_s=_start_s(jobs, newcomer.weight))
    return tuple(replace(j, iterations=0) for j in (*jobs, started))


def rejoin(jobs: Iterable[LaneJob], job: LaneJob) -> LaneJob:
    """A job of the lane that has an iteration to run again: its service is at least that of the jobs that were ready meanwhile."""
    others = [j for j in jobs if j.job != job.job and j.ready]
    return replace(job, ready=True, service_s=max(job.service_s, _start_s(others, job.weight)))


def served(job: LaneJob, used_s: float) -> LaneJob:
    """After an iteration that took `used_s` seconds of the lane."""
    return replace(job, service_s=job.service_s + used_s, used_s=job.used_s + used_s, iterations=job.iterations + 1)


def with_tokens(jobs: Iterable[LaneJob], pacer: Pacer, now_s: float) -> tuple[LaneJob, ...]:
    """The jobs with what `pacer` says of each: for `plan`. Errors: KeyError for a job that it does not know."""
    return tuple(replace(j, wait_s=pacer.wait_s(j.job, now_s), saved_s=pacer.balance_s(j.job)) for j in jobs)


def _start_s(jobs: Iterable[LaneJob], weight: float) -> float:
    least = min((_normalised_s(j) for j in jobs), default=0.0)
    return least * weight if weight > 0 and math.isfinite(least) else 0.0
