"""Why a plan gives each job its share, and what one quantum more or less would be worth. Ours; the paper explains nothing.

For every job of a plan, with everything else held still:

    one_more   change of the plan if the capacity had one more quantum and this job got it
    one_less   change if it had one quantum less and this job paid it
    net        change if the job's quantum more were taken from the job that would pay it best (`payer`, which may be the spare share)

A plan at rest (thief-repeat, optimal) has no job with a net gain; a net gain elsewhere is what the policy leaves lying. Every number is
a difference of two estimates by the planners' own estimator, in quality averaged over cameras; the cameras that fall under the floor
or rise above it are counted apart and come first, as in the plan. Shares are taken as one pool: whether a moved quantum also fits on a
GPU is the packing's to say. Cost: a few estimates per job, since a payer in another stream changes nothing but its own estimate.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scheduler.ekya.estimate import QUALITY_TOL, SHARE_TOL_PCT, Choice, SpeedCurve, duration_s
from scheduler.ekya.menu import Latitude, Menu
from scheduler.ekya.pack import knobs_of, option_of
from scheduler.types import Plan, Snapshot, StreamPlan, StreamView


@dataclass(frozen=True, kw_only=True)
class Change:
    """What would change. quality: of the mean over cameras (0-1); below: cameras under the floor."""

    quality: float
    below: int = 0

    def __add__(self, other: Change) -> Change:
        return Change(quality=self.quality + other.quality, below=self.below + other.below)

    def rank(self) -> tuple[int, float]:
        """Smaller is better."""
        return self.below, -self.quality

    def is_gain(self) -> bool:
        return self.below < 0 or (self.below == 0 and self.quality > QUALITY_TOL)


@dataclass(frozen=True, kw_only=True)
class Payer:
    """Who would give a quantum: a job, or the share that nobody owns (stream None)."""

    stream: str | None
    kind: Literal["infer", "train", "spare"]


@dataclass(frozen=True, kw_only=True)
class JobWorth:
    """One job's share explained. one_less: None when it has less than a quantum. payer, net: None when nobody has one."""

    stream: str
    kind: Literal["infer", "train"]
    share_pct: int
    one_more: Change
    one_less: Change | None
    payer: Payer | None
    net: Change | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A plan explained. quantum_worth: what the policy makes of one quantum more, planning anew; jobs: in stream order."""

    quantum_pct: int
    quantum_worth: Change
    jobs: tuple[JobWorth, ...]


def explain(
    snapshot: Snapshot, plan: Plan, policy: Callable[[Snapshot], Plan], latitude: Latitude | None = None
) -> Explanation:
    """`plan`, made from `snapshot` by `policy` (which is asked twice more, for one pool of all GPUs), explained.

    latitude: what the policy may choose; by default everything.
    """
    speed = SpeedCurve.of(snapshot)
    streams = [
        _Stream(number, view, planned, snapshot, speed, latitude or Latitude())
        for number, (view, planned) in enumerate(zip(snapshot.streams, plan.streams, strict=True))
    ]
    # a stream has two jobs, so the best payer in another stream is one of the best three
    paying = heapq.nsmallest(3, (pay for stream in streams for pay in stream.payers()), key=lambda pay: pay.cost.rank())
    spare = plan.spare_pct >= snapshot.quantum_pct
    jobs = tuple(stream.explained(kind, paying, spare) for stream in streams for kind in stream.kinds)
    return Explanation(quantum_pct=snapshot.quantum_pct, quantum_worth=_quantum_worth(snapshot, policy), jobs=jobs)


def _quantum_worth(snapshot: Snapshot, policy: Callable[[Snapshot], Plan]) -> Change:
    pool = replace(snapshot, gpus=())
    more = policy(replace(pool, capacity_pct=pool.capacity_pct + pool.quantum_pct))
    now = policy(pool)
    below = sum(s.below_floor for s in more.streams) - sum(s.below_floor for s in now.streams)
    return Change(quality=more.expected_quality - now.expected_quality, below=below)


@dataclass(frozen=True)
class _Offer:
    """A job that has a quantum, and what giving it would change."""

    number: int
    payer: Payer
    cost: Change


class _Stream:
    """One stream of the plan and what other shares would make of it."""

    def __init__(
        self, number: int, view: StreamView, planned: StreamPlan, snapshot: Snapshot, speed: SpeedCurve, latitude: Latitude
    ) -> None:
        self.number, self.view, self.planned, self.speed = number, view, planned, speed
        self.quantum_pct, self.streams = snapshot.quantum_pct, len(snapshot.streams)
        self._menu = Menu(view, planned, snapshot, speed, latitude, memory_counts=False)
        now = self._choice()
        names = now.knobs and now.knobs.name, now.retrain and now.retrain.name
        if names != (planned.knobs, planned.retrain):  # memory forced a choice of less
            self._menu = Menu(_as_planned(view, planned), planned, snapshot, speed, latitude, memory_counts=False)
        self.kinds: Sequence[Literal["infer", "train"]] = ("infer", "train") if self._menu.most_pct("train") else ("infer",)

    def share_pct(self, kind: str) -> int:
        return self.planned.infer_pct if kind == "infer" else self.planned.train_pct

    def payers(self) -> list[_Offer]:
        """Its jobs that have a quantum to give."""
        has = [kind for kind in self.kinds if self.share_pct(kind) >= self.quantum_pct]
        return [_Offer(self.number, Payer(stream=self.view.id, kind=k), self._moved(**{k: -self.quantum_pct})) for k in has]

    def explained(self, kind: Literal["infer", "train"], paying: Sequence[_Offer], spare: bool) -> JobWorth:
        """paying: the jobs that would pay a quantum best, of all streams."""
        own = self.quantum_pct
        other: Literal["infer", "train"] = "train" if kind == "infer" else "infer"
        one_more = self._moved(**{kind: own})
        found: list[tuple[Change, Payer]] = [(one_more, Payer(stream=None, kind="spare"))] if spare else []
        found += [(one_more + offer.cost, offer.payer) for offer in paying if offer.number != self.number][:1]
        if other in self.kinds and self.share_pct(other) >= own:
            found.append((self._moved(**{kind: own, other: -own}), Payer(stream=self.view.id, kind=other)))
        net, payer = min(found, key=lambda pair: pair[0].rank(), default=(None, None))
        one_less = self._moved(**{kind: -own}) if self.share_pct(kind) >= own else None
        return JobWorth(
            stream=self.view.id,
            kind=kind,
            share_pct=self.share_pct(kind),
            one_more=one_more,
            one_less=one_less,
            payer=payer,
            net=net,
            why="; ".join(self._why(kind, one_more, one_less, payer, net)),
        )

    def _choice(self, infer: int = 0, train: int = 0) -> Choice:
        return self._menu.settings(self.planned.infer_pct + infer, self.planned.train_pct + train)[0].choice

    def _moved(self, infer: int = 0, train: int = 0) -> Change:
        now, then = self._choice(), self._choice(infer, train)
        return Change(quality=(then.quality - now.quality) / self.streams, below=int(then.below_floor) - int(now.below_floor))

    # --- words ---

    def _why(self, kind: str, one_more: Change, one_less: Change | None, payer: Payer | None, net: Change | None) -> list[str]:
        told = [self._infer_why() if kind == "infer" else self._train_why()]
        if one_less is not None:
            told.append(f"one quantum less: {_told(one_less)}")
        told.append(f"one more: {_told(one_more)}")
        if payer is None or net is None:
            return [*told, "nobody has one to give"]
        giver = "the spare share" if payer.stream is None else f"{payer.stream}'s {_JOBS[payer.kind]}"
        verdict = "would be worth it" if net.is_gain() else "makes no difference" if _is_nothing(net) else "is not worth it"
        return [*told, f"taken from {giver} it {verdict} ({_told(net)})"]

    def _infer_why(self) -> str:
        knobs, share = knobs_of(self.view, self.planned), self.planned.infer_pct
        if share == 0 or knobs is None:
            return f"{share} pct: no knobs run on that"
        rest = ", which needs less" if share - self.quantum_pct + SHARE_TOL_PCT >= knobs.demand_pct else ""
        better = [k for k in self.view.knobs if k.quality_frac > knobs.quality_frac]
        if not better:
            return f"'{knobs.name}' at {share} pct{rest}, the best there is"
        nearest = min(better, key=lambda k: k.demand_pct)
        reason = "too much memory" if nearest.demand_pct <= share + SHARE_TOL_PCT else f"{nearest.demand_pct:g} pct"
        return f"'{knobs.name}' at {share} pct{rest}; '{nearest.name}' would take {reason}"

    def _train_why(self) -> str:
        option, share = option_of(self.view, self.planned), self.planned.train_pct
        if share > 0 and option is not None:
            return f"'{option.name}' ends after {duration_s(option.cost_gpu_s, share, self.speed):.1f} s at {share} pct"
        return "the running retraining is paused" if self.view.running else "no retraining is worth a share here"


_JOBS = {"infer": "inference", "train": "retraining"}


def _as_planned(view: StreamView, planned: StreamPlan) -> StreamView:
    """The stream with only those entries that hold no more memory than the chosen ones."""
    chosen, option = knobs_of(view, planned), option_of(view, planned)
    knobs = tuple(k for k in view.knobs if chosen is None or k.memory_mib <= chosen.memory_mib)
    options = tuple(o for o in view.retrain if option is None or o.memory_mib <= option.memory_mib)
    return replace(view, knobs=knobs, retrain=options)


def _is_nothing(change: Change) -> bool:
    return change.below == 0 and abs(change.quality) <= QUALITY_TOL


def _told(change: Change) -> str:
    """+0.0123, and how many cameras cross the floor."""
    if _is_nothing(change):
        return "no change"
    if change.below == 0:
        return f"{change.quality:+.4f}"
    cameras = f"{abs(change.below)} camera{'' if abs(change.below) == 1 else 's'}"
    return f"{change.quality:+.4f}, {cameras} {'under' if change.below > 0 else 'back above'} the floor"
