"""How many jobs could have been finished in time by whoever had known everything beforehand: what a finish rate is to be judged against.

For one request at a time this is exact: when an earlier release never comes with a later deadline, going through the jobs in order of
deadlines and leaving out, whenever one would be late, the one without which the rest ends earliest, serves as many as can be served
(Kise, Ibaraki and Mine: one machine with ready and due times, 1978). With batches each request counts as its part of the largest batch
in which all members are as long as itself, and stages may follow each other at once: no schedule does better, and perhaps none as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scheduler.orloj.simulate import Job, World
from scheduler.orloj.types import ModelCost


def possible(world: World, jobs: Sequence[Job]) -> int:
    """At most so many of these jobs can be finished in time, by any policy. The world's jitter is left out. Raises ValueError as
    `most_in_time`."""
    work_s = [
        sum(least_s(world.costs[stage.model], alone_s) for stage in job.stages for alone_s in stage.alone_s) for job in jobs
    ]
    released_s, deadline_s = [job.released_s for job in jobs], [job.deadline_s for job in jobs]
    return most_in_time(np.array(released_s), np.array(deadline_s), np.array(work_s))


def least_s(cost: ModelCost, alone_s: float) -> float:
    """Device time that a request takes at least: its part of the largest batch, nobody in it longer than itself."""
    return cost.c0_s / cost.sizes[-1] + cost.c1 * alone_s


def most_in_time(released_s: np.ndarray, deadline_s: np.ndarray, work_s: np.ndarray) -> int:
    """How many jobs one worker can finish in time, all known beforehand. float64 (N,) each. Raises ValueError when an earlier release
    comes with a later deadline: then the question is a hard one."""
    order = np.lexsort((released_s, deadline_s))
    if (np.diff(released_s[order]) < 0).any():
        raise ValueError("a job that is released earlier must not be wanted later than another one")
    kept: list[tuple[float, float, float]] = []  # released, work, begins
    for i in order.tolist():
        _append(kept, float(released_s[i]), float(work_s[i]))
        if _end_s(kept) > deadline_s[i]:
            _leave_out(kept, _costliest(kept))
    return len(kept)


def _append(kept: list[tuple[float, float, float]], released_s: float, work_s: float) -> None:
    kept.append((released_s, work_s, max(released_s, _end_s(kept))))


def _end_s(kept: list[tuple[float, float, float]]) -> float:
    return kept[-1][2] + kept[-1][1] if kept else -math.inf


def _costliest(kept: list[tuple[float, float, float]]) -> int:
    """The job without which the others end earliest. Those after it move up by the gap that it leaves, but none before its release."""
    best, most_s, room_s, next_s = len(kept) - 1, -1.0, math.inf, _end_s(kept)
    for i in range(len(kept) - 1, -1, -1):
        released_s, _, begins_s = kept[i]
        gained_s = min(next_s - _end_s(kept[max(i - 1, 0) : i]), room_s)
        if gained_s > most_s:
            best, most_s = i, gained_s
        room_s, next_s = min(room_s, begins_s - released_s), begins_s
        if room_s <= 0:  # the worker was idle before this one: nothing earlier matters
            break
    return best


def _leave_out(kept: list[tuple[float, float, float]], place: int) -> None:
    later = kept[place + 1 :]
    del kept[place:]
    for released_s, work_s, _ in later:
        _append(kept, released_s, work_s)
