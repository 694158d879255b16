"""How many trials may share a GPU (c) and how many GPUs one may have (d), from what was measured. Section 3.2 of the text.

    O^p = 1 - ((p - 1) / p) * avg(T^p) / avg(T^(p-1))      p > 1        eq. 3.1; T^p: times of an iteration with p trials at once
    c   = the largest p before the first whose O^p does not exceed O_th

O^p is what the p-th trial saves of the group's time: with O^p = 0, p at once take as long as p - 1 at once and one after them. The value
of O_th is not given; ours is 0.1. The text knows no memory: c is capped by what Salus's admission lets in (`memory_cap`). d is the
widest before a further GPU stops helping, as measured by beta; the text estimates it before (Paleo), the released code has constants.
Ours (`widest`) goes on to two GPUs where those still save as much as a co-resident must.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from configs.errors import UsageError
from scheduler.fluid.types import ROUNDING
from scheduler.salus.lanes import LaneTable
from scheduler.salus.types import MemoryNeed

#: O_th: less than this part of the time saved is not worth a further co-resident.
GAIN_MIN = 0.1


def packing_gains(iteration_s: Sequence[float]) -> tuple[float, ...]:
    """O^2, O^3, ... iteration_s: avg(T^1), avg(T^2), ..., the mean time of an iteration with 1, 2, ... trials at once.
    Raises UsageError for a time that is not above 0."""
    if any(not (math.isfinite(t) and t > 0) for t in iteration_s):
        raise UsageError(f"iteration times must be above 0 seconds, got {list(iteration_s)}", subject="fluid")
    pairs = zip(iteration_s, iteration_s[1:], strict=False)
    return tuple(1 - (p - 1) / p * (with_p / before) for p, (before, with_p) in enumerate(pairs, start=2))


def share_max(iteration_s: Sequence[float], *, gain_min: float = GAIN_MIN, cap: int | None = None) -> int:
    """c by eq. 3.1: at least 1, at most as many as were measured, at most `cap` (memory)."""
    c = 1
    for p, gain in enumerate(packing_gains(iteration_s), start=2):
        if not gain > gain_min + ROUNDING:
            break
        c = p
    return max(1, c if cap is None else min(c, cap))


def share_max_of(alpha: float, *, gain_min: float = GAIN_MIN, most: int = 64, cap: int | None = None) -> int:
    """c of the cost model, in which each further co-resident makes an iteration alpha times as long."""
    return share_max([alpha**p for p in range(most)], gain_min=gain_min, cap=cap)


def alpha_of(iteration_s: Sequence[float]) -> float:
    """The alpha that fits the measured times best: mean growth of an iteration per further co-resident, at least 1; 1 for fewer than two
    measurements."""
    packing_gains(iteration_s)
    if len(iteration_s) < 2:
        return 1.0
    return max(1.0, (iteration_s[-1] / iteration_s[0]) ** (1 / (len(iteration_s) - 1)))


def beta_of(run_s: Sequence[float]) -> float:
    """beta from times of the same work on 1, 2, ... GPUs: (w * h_w / h_1)^(1/(w - 1)) at the widest, at least 1."""
    packing_gains(run_s)
    if len(run_s) < 2:
        return 1.0
    return max(1.0, (len(run_s) * run_s[-1] / run_s[0]) ** (1 / (len(run_s) - 1)))


def width_max(beta: float, *, most: int) -> int:
    """d: the largest with beta < 1 + 1/d, so that d + 1 GPUs would still be faster (the text's range, one safer than the width of least
    time); at least 1, at most `most`."""
    d = 1
    while d < most and beta * (d + 1) < d + 2 - ROUNDING:
        d += 1
    return d


def widest(beta: float, *, most: int, gain_min: float = GAIN_MIN) -> int:
    """d as it is used: `width_max`, but 2 where the text's range ends at 1 and two GPUs still save more than gain_min of the time. With
    two of them there is no third that would have to help as well."""
    d = width_max(beta, most=most)
    return 2 if d == 1 and most >= 2 and beta / 2 < 1 - gain_min - ROUNDING else d


def fastest_width(beta: float, *, most: int) -> int:
    """The smallest width at which a trial takes the least time."""
    w = 1
    while w < most and beta * w < w + 1 - ROUNDING:
        w += 1
    return w


def memory_cap(need: MemoryNeed, table: LaneTable, *, most: int) -> int:
    """Most trials that may run at once beside what `table` holds, at least 1 (one alone is a question of its own). Each needs a lane for
    itself (step A of Salus's admission): two that share one would take turns. need: of the hungriest trial. Raises nothing: `table` is
    a value, nobody is admitted for real."""
    p = 0
    while p < most:
        step = table.admit(f"fluid/{p}", need)
        if not step.decisions or (step.decisions[0].kind, step.decisions[0].step) != ("placed", "A"):
            break
        table, p = step.table, p + 1
    return max(1, p)


def hungriest(needs: Sequence[MemoryNeed]) -> MemoryNeed:
    """Enough for any of them. Raises ValueError for none."""
    return MemoryNeed(persistent_mib=max(n.persistent_mib for n in needs), ephemeral_mib=max(n.ephemeral_mib for n in needs))
