"""What jobs must have so that they end before their deadlines. Ours: SLAQ knows no deadlines; see `reallocate`."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.ekya.estimate import SpeedCurve
from scheduler.slaq.forecast import Forecast
from scheduler.slaq.job import Goal, SlaqJob

#: `finish` may put a job off as long as it could still end when it is served again only after this many epochs.
REACH = 2.0

#: Slack in comparing GPU-seconds that come out of divisions.
_TOL_FRAC = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The question, in quanta."""

    units: int
    quantum_pct: int
    epoch_s: float
    objective: Goal
    min_pct: int
    now_s: float
    speed: SpeedCurve
    age_s: float | None
    jobs: int

    def gpu_s(self, units: int, seconds: float) -> float:
        """GPU-seconds at 100 pct that `units` quanta deliver in `seconds`."""
        return self.speed.at(units * self.quantum_pct) * seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A job, its future, and what it may and must have in quanta. need None: nothing asked of it, or more than it could get."""

    job: SlaqJob
    future: Forecast | None
    cap: int
    useful: int
    need: int | None
    can_end: bool
    timed: bool
    ends_in_s: float

    @staticmethod
    def of(job: SlaqJob, future: Forecast | None, asked: Asked) -> Case:
        cap = asked.units if job.max_pct is None else min(asked.units, job.max_pct // asked.quantum_pct)
        cap = cap if job.left_gpu_s > 0 else 0
        timed = job.deadline_s is not None and job.epochs_left is not None
        ends_in_s = (job.deadline_s or 0.0) - asked.now_s if timed else math.inf
        need = least_units(asked, cap, job.left_gpu_s, ends_in_s) if timed else 0
        useful = least_units(asked, cap, job.left_gpu_s, asked.epoch_s)
        return Case(
            job=job, future=future, cap=cap, useful=cap if useful is None else useful, need=need, can_end=need is not None,
            timed=timed, ends_in_s=ends_in_s,
        )  # fmt: skip


def least_units(asked: Asked, cap: int, gpu_s: float, seconds: float) -> int | None:
    """Fewest quanta that deliver `gpu_s` in `seconds`; None when `cap` do not. Throughput is taken as never falling with the share."""
    if gpu_s <= 0:
        return 0
    enough = gpu_s * (1 - _TOL_FRAC)
    found = 1 + bisect_left(range(1, cap + 1), enough, key=lambda units: asked.gpu_s(units, seconds))
    return found if found <= cap else None


def constant_needs(cases: Sequence[Case], units: int) -> list[int | None]:
    """Quanta set aside so that jobs end in time at a constant share, None: not promised. Smallest need per weight first."""
    granted: list[int | None] = [None] * len(cases)
    for j in _by_need(cases):
        need = cases[j].need or 0
        if need <= units:
            granted[j] = need
            units -= need
    return granted


def latest_needs(cases: Sequence[Case], asked: Asked) -> list[int | None]:
    """For `finish`, which runs jobs one after another: quanta without which a job, or all jobs up to some deadline together, could not
    end in time any more if they were served again only after REACH epochs. None: not promised."""
    found: list[int | None] = [None if case.timed else 0 for case in cases]
    promised = _in_time(cases, asked)
    latest_s = max((case.ends_in_s for case in cases), default=0.0)
    free, work_gpu_s, done_gpu_s = asked.units, 0.0, 0.0
    for place, j in enumerate(promised):
        case = cases[j]
        reach_s = min(REACH * asked.epoch_s, case.ends_in_s)
        after_s = case.ends_in_s - reach_s
        work_gpu_s += case.job.left_gpu_s
        need = least_units(asked, case.cap, case.job.left_gpu_s - asked.gpu_s(case.cap, after_s), reach_s) or 0
        # all jobs up to a deadline share the budget afterwards; what they cannot do then, they must do now, before later ones
        last_of_its_time = place + 1 == len(promised) or cases[promised[place + 1]].ends_in_s > case.ends_in_s
        if last_of_its_time and case.ends_in_s < latest_s:
            together_gpu_s = work_gpu_s - asked.gpu_s(asked.units, after_s) - done_gpu_s
            rest = least_units(asked, case.cap, together_gpu_s, reach_s)
            need = max(need, case.cap if rest is None else rest)
        found[j] = need = min(free, need)
        free -= need
        done_gpu_s += asked.gpu_s(need, reach_s)
    return found


def _in_time(cases: Sequence[Case], asked: Asked) -> list[int]:
    """Jobs that the budget can bring to their deadlines all together, served earliest deadline first, in that order; chosen by need."""
    order = [j for j in sorted(range(len(cases)), key=lambda j: cases[j].ends_in_s) if cases[j].timed]
    place = {j: i for i, j in enumerate(order)}
    # GPU-seconds that may still be promised up to each deadline
    slack_gpu_s = np.array([asked.gpu_s(asked.units, max(0.0, cases[j].ends_in_s)) for j in order]) * (1 + _TOL_FRAC)
    chosen = set()
    for j in _by_need(cases):
        work_gpu_s = cases[j].job.left_gpu_s
        if cases[j].timed and slack_gpu_s[place[j] :].min() >= work_gpu_s:
            slack_gpu_s[place[j] :] -= work_gpu_s
            chosen.add(j)
    return [j for j in order if j in chosen]


def _by_need(cases: Sequence[Case]) -> list[int]:
    """Jobs that could end in time were they alone, smallest need per weight first: so most jobs end."""
    possible = [j for j, case in enumerate(cases) if case.need is not None]
    return sorted(possible, key=lambda j: ((cases[j].need or 0) / cases[j].job.weight, j))
