"""How wide the next stretch of a trial is, while its group runs on a box. Pure.

A box's trials advance an epoch at a time, and a width changes only between two epochs of a trial. So the question is asked for one trial
whenever it is about to begin an epoch, of what is left of all:

    it begins              StaticFluid's width, with what rounding leaves (`scheduler.fluid.plan.leftover_widths`)
    others wait            as wide as it was: DynamicFluid is not asked while one waits
    none waits             DynamicFluid's verdict, with what a change costs (`scheduler.fluid.widths.dynamic_widths`)

always at most what is free. What we changed: the text applies verdicts to all running trials at the end of their iterations; here each
is asked about at its own next epoch, by what is left then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from configs.errors import UsageError
from scheduler.fluid.layout import Layout
from scheduler.fluid.plan import leftover_widths
from scheduler.fluid.types import Pool, Trial, Width
from scheduler.fluid.widths import dynamic_widths


@dataclass(frozen=True, kw_only=True, slots=True)
class UnderWay:
    """A trial of a running group. trial: h_s is what is left on one device; width: devices that it has, or had when it last ran, 0:
    it has not begun; runs: whether it has them now."""

    trial: Trial
    width: int = 0
    runs: bool = False


def next_width(id: str, group: Sequence[UnderWay], pool: Pool, *, room: int, epsilon_s: float = 0.0) -> int:
    """Devices for the next epoch of trial `id`, which does not run now; 1 at least.

    group: all that have something left, `id` among them; room: devices that are free, 1 or more; epsilon_s: seconds that a change of
    width costs. Raises UsageError when `id` is not in the group, or runs."""
    own = next((member for member in group if member.trial.id == id), None)
    if own is None or own.runs or room < 1:
        raise UsageError(f"trial '{id}' cannot begin an epoch: it must be in the group, not run, and have room", subject=id)
    most = min(room, pool.gpus)
    if not own.width:
        return _whole(leftover_widths([member.trial for member in group], pool)[id], most)
    if own.width > most or any(not member.runs and member is not own for member in group):
        return min(own.width, most)
    layout = Layout(range(pool.gpus), pool.share_max)
    for member in group:
        if not layout.seat(member.trial.id, Fraction(member.width)):
            return min(own.width, most)  # more run than there are devices: nobody can grow
    found = dynamic_widths([member.trial for member in group], layout, pool, epsilon_s=epsilon_s)
    return _whole(found.verdicts[id].granted, most)


def _whole(width: Width, most: int) -> int:
    return max(1, min(int(width), most))
