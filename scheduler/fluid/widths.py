"""How wide each trial is: StaticFluid for a new group (algorithm 3.1), DynamicFluid when something changes (algorithm 3.2).

    w'_i = min( max( floor(h_i * n / S), 1/c ), d )        S: sum of all h_i; h_i: what is left of trial i, on one GPU

StaticFluid places by falling width (`scheduler.fluid.layout`) and lets wait what finds nothing. DynamicFluid, once nothing waits:

    w' > w  and  h_{w'} + eps < h_w               grow      eps: seconds that a change costs (checkpoint, restart, rejoin)
    w' < w  and  w' * (h_{w'} + eps) < w * h_w    shrink    it must save GPU-seconds

What we changed. The printed listing applies w_i where w'_i is meant. Shrinks come first; growth then goes longest first and only into
GPUs that are really idle, as far as they go (a trial that wants three more and finds one gets one, if that pays). When GPUs vanish
(`after_loss`), trials shrink and move without any test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from scheduler.fluid.layout import Layout
from scheduler.fluid.types import ROUNDING, Pool, Trial, Width, check_ids, longest_first, time_s


def static_widths(trials: Sequence[Trial], pool: Pool) -> dict[str, Width]:
    """Algorithm 3.1's widths, by trial id, in the order given. Shares of one GPU and more round down to whole GPUs, all others become
    1/c. The whole widths add up to at most n. Raises UsageError for two trials with one id."""
    check_ids(trials)
    total_s = math.fsum(t.h_s for t in trials)
    return {t.id: _clipped(t.h_s * pool.gpus / total_s if total_s > 0 else 0.0, pool) for t in trials}


def _clipped(share: float, pool: Pool) -> Width:
    whole = math.floor(share + ROUNDING)
    return min(max(Fraction(whole), pool.least), Fraction(pool.width_max))


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What DynamicFluid says of one running trial. width: now; ideal: w'; pays: whether the change to `ideal` passes its test (also
    where GPUs for it are missing); granted: what it gets."""

    trial: str
    width: Width
    ideal: Width
    pays: bool
    granted: Width

    @property
    def changes(self) -> bool:
        return self.granted != self.width


@dataclass(frozen=True, kw_only=True, slots=True)
class Reallocation:
    """verdicts: by trial, in the order given; layout: who sits where when all of them are carried out."""

    verdicts: dict[str, Verdict]
    layout: Layout


def dynamic_widths(
    running: Sequence[Trial], layout: Layout, pool: Pool, *, epsilon_s: float = 0.0, actual: bool = True
) -> Reallocation:
    """Algorithm 3.2. Call it when no trial waits. `layout` is not changed.

    running: with h_s as what is left; layout: where they sit. actual: a packed trial is as fast as its present neighbours let it,
    not as with c of them. Raises ValueError for a trial that the layout does not know, or an epsilon_s below 0."""
    _check(running, layout, epsilon_s)
    ideal, after = static_widths(running, pool), layout.copy()
    told = {t.id: _keep(t, after, ideal[t.id]) for t in running}
    for trial in longest_first(running):
        verdict = told[trial.id]
        if verdict.ideal < verdict.width:
            told[trial.id] = _shrunk(trial, verdict, after, epsilon_s)
    for trial in longest_first(running):
        verdict = told[trial.id]
        if verdict.ideal > verdict.width:
            told[trial.id] = _grown(trial, verdict, after, epsilon_s, actual)
    return Reallocation(verdicts=told, layout=after)


def _check(running: Sequence[Trial], layout: Layout, epsilon_s: float) -> None:
    check_ids(running)
    unknown = [t.id for t in running if t.id not in layout.widths]
    if unknown:
        raise ValueError(f"trials that sit nowhere: {', '.join(unknown)}")
    if not (math.isfinite(epsilon_s) and epsilon_s >= 0):
        raise ValueError(f"epsilon_s must be a number of seconds, 0 or more, got {epsilon_s}")


def _keep(trial: Trial, layout: Layout, ideal: Width) -> Verdict:
    width = layout.widths[trial.id]
    return Verdict(trial=trial.id, width=width, ideal=ideal, pays=False, granted=width)


def _shrunk(trial: Trial, verdict: Verdict, layout: Layout, epsilon_s: float) -> Verdict:
    narrow_s, now_s = time_s(trial, verdict.ideal), time_s(trial, verdict.width)
    if not verdict.ideal * (narrow_s + epsilon_s) < verdict.width * now_s:
        return verdict
    layout.resize(trial.id, verdict.ideal)
    return replace(verdict, pays=True, granted=verdict.ideal)


def _grown(trial: Trial, verdict: Verdict, layout: Layout, epsilon_s: float, actual: bool) -> Verdict:
    now_s = time_s(trial, layout.felt_width(trial.id) if actual else verdict.width)

    def pays(width: Width) -> bool:
        return time_s(trial, width) + epsilon_s < now_s

    verdict = replace(verdict, pays=pays(verdict.ideal))
    for whole in range(int(verdict.ideal), 0, -1):
        width = Fraction(whole)
        if width > verdict.width and layout.has_room(trial.id, width) and pays(width):
            layout.resize(trial.id, width)
            return replace(verdict, granted=width)
    return verdict


# --- GPUs that are gone -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What becomes of the trials when GPUs vanish. layout: the new one; moved: trials that changed width or place, and lose what a
    change costs; waiting: those that find no room, in the order in which they shall start again."""

    layout: Layout
    moved: tuple[str, ...]
    waiting: tuple[str, ...]


def after_loss(running: Sequence[Trial], layout: Layout, pool: Pool) -> Loss:
    """The forced shrink that the text leaves out. `layout` is as it was, `pool.gpus` what is left (the highest-numbered GPUs are those
    that vanish unless `layout.without` was called before).

    A trial keeps what it holds of the GPUs that stay. One that loses all is placed again, the longest first: on an idle GPU, on a
    shared one with room, or on one that a trial wider than its w' gives up; else it waits."""
    after, homeless = layout.without(layout.gpus[pool.gpus :])
    by_id = {t.id: t for t in running}
    ideal = static_widths(running, pool)
    waiting = [
        t.id for t in longest_first([by_id[id] for id in homeless]) if not _rehoused(t, ideal, after, pool, by_id.__getitem__)
    ]
    moved = tuple(t.id for t in running if t.id not in waiting and after.seats.get(t.id) != layout.seats[t.id])
    return Loss(layout=after, moved=moved, waiting=tuple(waiting))


def _rehoused(trial: Trial, ideal: Mapping[str, Width], layout: Layout, pool: Pool, trial_of: Callable[[str], Trial]) -> bool:
    wanted = ideal[trial.id]
    if not layout.idle() and layout.open_gpu(spread=True) is None:
        _give_up(ideal, layout, trial_of)
    for whole in range(min(int(wanted), len(layout.idle())), 0, -1):
        if layout.seat(trial.id, Fraction(whole)):
            return True
    return layout.seat(trial.id, pool.least)


def _give_up(ideal: Mapping[str, Width], layout: Layout, trial_of: Callable[[str], Trial]) -> None:
    """The trial that is widest beyond its w' shrinks to it; of equal ones the shortest."""
    wide = [id for id, width in layout.widths.items() if width > ideal[id]]
    if wide:
        widest = max(wide, key=lambda id: (layout.widths[id] - ideal[id], -trial_of(id).h_s))
        layout.resize(widest, ideal[widest])
