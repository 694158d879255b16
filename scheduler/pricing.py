"""Is a new plan worth its changes? A share that changes costs something on most backends: a standby that has to be warmed, seconds until
the new share holds, frames that nobody analyses. Ekya's authors restart a process at every change and leave that out (papers/ekya.md,
section 6: "every share change restarts the process").

A plan is compared, stream by stream, with leaving a stream's shares as they are. What a stream is worth under a pair of shares is what
the planner thinks it is worth (`scheduler.ekya.estimate`), less what getting there costs in the time T' that is left:

    settle_s   until then the old shares hold: nothing is gained, and a retraining whose share changes stands still
    blind_s    a changed inference job shows nothing: phi * a0 is lost for so long
    gpu_s      compute that the change itself takes, for each changed job, at the mean price of a GPU-second: the plan's quality summed
               over its streams, divided by the capacity in GPUs

A job that is not running has no share that could change: starting one, and pausing a retraining, are free; inference that was given
a share is never kept without one. Of all combinations of {new, old} inference and {new, old} training share per stream that fit the
capacity, the best is taken, exactly (a multiple-choice knapsack over whole percent); of equals the new plan. What becomes free
because others keep less than the plan gave is spare until the next plan. Streams under the floor count first, as in the planner.
With a price of nothing the plan is returned as it is.

Not priced: what SLAQ moves between two plans, and the change from preparation's shares to shares that are no whole percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from scheduler.ekya.estimate import QUALITY_TOL, Choice, SpeedCurve, StreamEstimator
from scheduler.ekya.pick_configs import BELOW_VALUE
from scheduler.types import Plan, Snapshot, StreamPlan, StreamView


@dataclass(frozen=True, kw_only=True)
class ChangePrice:
    """What changing the shares of running jobs costs. settle_s: seconds until new shares hold; gpu_s: compute per changed job;
    blind_s: seconds in which a changed inference job analyses nothing."""

    settle_s: float = 0.0
    gpu_s: float = 0.0
    blind_s: float = 0.0

    @property
    def free(self) -> bool:
        return self.settle_s <= 0 and self.gpu_s <= 0 and self.blind_s <= 0


@dataclass(frozen=True, kw_only=True)
class Held:
    """The shares that a stream's jobs have now. train_pct: of a retraining that runs, 0 while it is paused, None: none runs."""

    infer_pct: float = 0.0
    train_pct: float | None = None


@dataclass(frozen=True, kw_only=True)
class Priced:
    """plan: the one to carry out; kept: streams whose shares (one or both) stay against the plan, because changing them does not pay."""

    plan: Plan
    kept: tuple[str, ...] = ()


def worth_its_changes(plan: Plan, snapshot: Snapshot, held: Mapping[str, Held], price: ChangePrice) -> Priced:
    """`plan`, with old shares where changing them does not pay. Plans that are placed on devices, and those that take models from
    elsewhere, are returned as they are: their shares do not move alone."""
    elsewhere = bool(snapshot.gpus) or any(entry.source != "box" for entry in plan.streams)
    if price.free or elsewhere or snapshot.remaining_s <= 0 or not plan.streams:
        return Priced(plan=plan)
    choices = _Judge(plan, snapshot, held, price).choices()
    taken = _best(choices, snapshot.capacity_pct)
    if not any(taken):
        return Priced(plan=plan)
    streams = tuple(options[number].entry for options, number in zip(choices, taken, strict=True))
    used = sum(s.infer_pct + s.train_pct for s in streams)
    return Priced(
        plan=replace(
            plan, streams=streams, spare_pct=snapshot.capacity_pct - used,
            expected_quality=sum(s.expected_quality for s in streams) / len(streams),
        ),
        kept=tuple(s.id for s, number in zip(streams, taken, strict=True) if number),
    )  # fmt: skip


def net_value(plan: Plan, snapshot: Snapshot, held: Mapping[str, Held], price: ChangePrice) -> float:
    """What a plan is worth after its changes are paid, summed over streams; `BELOW_VALUE` for each stream under the floor."""
    judge = _Judge(plan, snapshot, held, price)
    return sum(judge.option(view, entry, entry.infer_pct, entry.train_pct).value for view, entry in judge.pairs)


@dataclass(frozen=True, kw_only=True)
class _Option:
    """One pair of shares for one stream. value: net of what it costs to get there, floor included."""

    entry: StreamPlan
    value: float

    @property
    def used_pct(self) -> int:
        return self.entry.infer_pct + self.entry.train_pct


class _Judge:
    """Values pairs of shares of the streams of one plan."""

    def __init__(self, plan: Plan, snapshot: Snapshot, held: Mapping[str, Held], price: ChangePrice) -> None:
        self._snapshot, self._held, self._price = snapshot, held, price
        self._speed = SpeedCurve.of(snapshot)
        views = {view.id: view for view in snapshot.streams}
        self.pairs = [(views[entry.id], entry) for entry in plan.streams]
        total = sum(max(0.0, entry.expected_quality) for entry in plan.streams)
        self._quality_per_gpu = total / max(snapshot.capacity_pct / 100.0, 1e-9)

    def choices(self) -> list[list[_Option]]:
        """Per stream its pairs of shares, the plan's own first."""
        return [self._choices(view, entry) for view, entry in self.pairs]

    def _choices(self, view: StreamView, entry: StreamPlan) -> list[_Option]:
        old = self._held.get(view.id, Held())
        infer = [entry.infer_pct, *(_whole(old.infer_pct) if old.infer_pct > 0 else ())]
        train = [entry.train_pct, *_whole(old.train_pct or 0.0)]
        return [self.option(view, entry, i, t) for i, t in dict.fromkeys(product(infer, train))]

    def option(self, view: StreamView, entry: StreamPlan, infer_pct: int, train_pct: int) -> _Option:
        old = self._held.get(view.id, Held())
        infer_moves = old.infer_pct not in (0, infer_pct)
        train_moves = old.train_pct is not None and train_pct not in (0, old.train_pct)
        total_s = self._snapshot.remaining_s
        settle_s = min(total_s, self._price.settle_s)
        before, after = self._frac(view, old.infer_pct), self._frac(view, infer_pct)
        chosen = self._choice(view, entry, infer_pct, train_pct, total_s - settle_s if train_moves else total_s)
        quality = chosen.quality
        if train_moves:  # the old share of inference holds, and training stands still, until the new ones do
            quality = (settle_s * before * view.quality + (total_s - settle_s) * quality) / total_s
        elif infer_moves:
            quality -= (after - before) * view.quality * settle_s / total_s
        if infer_moves:
            quality -= before * view.quality * min(total_s, self._price.blind_s) / total_s
        quality -= (infer_moves + train_moves) * self._price.gpu_s * self._quality_per_gpu / total_s
        same = (infer_pct, train_pct) == (entry.infer_pct, entry.train_pct)
        made = entry if same else _entry(entry, chosen, infer_pct, train_pct)
        return _Option(entry=made, value=quality + (BELOW_VALUE if chosen.below_floor else 0.0))

    def _frac(self, view: StreamView, infer_pct: float) -> float:
        return StreamEstimator(view, self._snapshot, self._speed, ()).frac_at(infer_pct)

    def _choice(self, view: StreamView, entry: StreamPlan, infer_pct: int, train_pct: int, remaining_s: float) -> Choice:
        """The plan's own retraining where there is a share for it (a running one goes on), else none."""
        estimator = StreamEstimator(view, replace(self._snapshot, remaining_s=remaining_s), self._speed, view.retrain)
        wanted = view.running or entry.retrain
        option = next((o for o in view.retrain if o.name == wanted), None) if train_pct > 0 else None
        chosen = estimator.with_option(option, infer_pct, train_pct) or estimator.with_option(None, infer_pct, train_pct)
        assert chosen is not None
        return chosen


def _whole(share_pct: float) -> list[int]:
    """The share, if a plan can hold it: plans are in whole percent."""
    return [round(share_pct)] if abs(share_pct - round(share_pct)) < 1e-9 else []


def _entry(entry: StreamPlan, chosen: Choice, infer_pct: int, train_pct: int) -> StreamPlan:
    retrain = chosen.retrain.name if chosen.retrain is not None else None
    return replace(
        entry, knobs=chosen.knobs.name if chosen.knobs is not None else None, infer_pct=infer_pct, retrain=retrain,
        train_pct=train_pct, expected_quality=chosen.quality, below_floor=chosen.below_floor,
    )  # fmt: skip


def _best(choices: Sequence[Sequence[_Option]], capacity_pct: int) -> list[int]:
    """Number of the option taken per stream: the largest sum of values within the capacity; of equals the earlier option of the
    earlier stream. Exact: `best[u]` is the most that the streams so far are worth when they use u percent."""
    best = np.full(capacity_pct + 1, -np.inf)
    best[0] = 0.0
    taken: list[np.ndarray] = []
    for options in choices:
        new, number = np.full_like(best, -np.inf), np.zeros(len(best), np.int64)
        for n, option in enumerate(options):
            if option.used_pct > capacity_pct:
                continue
            moved = np.full_like(best, -np.inf)
            moved[option.used_pct :] = best[: len(best) - option.used_pct] + option.value
            better = moved > new + QUALITY_TOL if n else np.isfinite(moved)
            new[better], number[better] = moved[better], n
        best = new
        taken.append(number)
    used = int(np.argmax(best))
    if best[used] <= sum(options[0].value for options in choices) + QUALITY_TOL * len(choices):
        return [0] * len(choices)
    return _trace(choices, taken, used)


def _trace(choices: Sequence[Sequence[_Option]], taken: Sequence[np.ndarray], used: int) -> list[int]:
    numbers: list[int] = []
    for options, number in zip(reversed(choices), reversed(taken), strict=True):
        numbers.append(int(number[used]))
        used -= options[numbers[-1]].used_pct
    return numbers[::-1]
