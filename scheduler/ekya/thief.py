"""The thief scheduler, Ekya Alg. 1: every job in turn steals shares from every other while that raises the mean quality.

    thief         the listing: one sweep over ordered (thief, victim) pairs
    thief-repeat  sweeps until one changes nothing, as the paper's prose says; it matters (the tests measure how much)

Jobs, in order: each stream's inference job, then its training job if the stream has any retraining option. The start is the
fair split, remainder to the first jobs. Every share is an integer number of quanta, so the sum is constant and nothing drifts.
What we changed: the incumbent is copied before each trial (the listing aliases it); in thief-repeat the last steal takes what
the victim still holds; allocations are ranked with the floor first (`pick_configs.Rank`), by the streams that a steal touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.ekya.estimate import is_useful
from scheduler.ekya.pick_configs import Pair, PickConfigs
from scheduler.types import Plan, RetrainOption, Snapshot, StreamView

#: A job: (stream number, 0 = inference / 1 = training).
Job = tuple[int, int]


def jobs_of(snapshot: Snapshot) -> tuple[Job, ...]:
    """Every job that can hold a share. A finished retraining (no options left) is no job any more."""
    return tuple((number, kind) for number, view in enumerate(snapshot.streams) for kind in (0, 1) if kind == 0 or view.retrain)


def fair_split(quanta: int, jobs: int) -> list[int]:
    """`quanta` over `jobs`, remainder to the first."""
    if jobs == 0:
        return []
    base, extra = divmod(quanta, jobs)
    return [base + (1 if number < extra else 0) for number in range(jobs)]


def to_pairs(jobs: Sequence[Job], shares: Sequence[int], streams: int) -> list[Pair]:
    """Shares in job order -> (infer, train) quanta in stream order."""
    pairs = [[0, 0] for _ in range(streams)]
    for (stream, kind), share in zip(jobs, shares, strict=True):
        pairs[stream][kind] = share
    return [(infer, train) for infer, train in pairs]


@dataclass
class _Search:
    """The incumbent allocation of one run and how it is improved. pairs: (infer, train) quanta in stream order."""

    picker: PickConfigs
    jobs: tuple[Job, ...]
    pairs: list[Pair]
    steal_quanta: int
    cap_last: bool

    def steal(self, thief: Job, victim: Job) -> bool:
        """Steal from one victim for as long as each steal helps; True if the incumbent moved."""
        moved = False
        while True:
            held = self.pairs[victim[0]][victim[1]]
            amount = min(self.steal_quanta, held) if self.cap_last else self.steal_quanta
            if amount == 0 or amount > held:
                return moved
            trial = _moved(self.pairs, thief, victim, amount)
            if not self.picker.improves(self.pairs, trial):
                return moved
            for stream, pair in trial.items():
                self.pairs[stream] = pair
            moved = True

    def sweep(self) -> bool:
        """One pass over all ordered pairs of jobs; True if anything moved."""
        moved = False
        for thief in self.jobs:
            for victim in self.jobs:
                if victim != thief and self.steal(thief, victim):
                    moved = True
        return moved

    def retrainings(self) -> list[tuple[StreamView, RetrainOption | None]]:
        """What each stream would train under the incumbent."""
        views = self.picker.snapshot.streams
        return [(view, self.picker.choice(v, self.pairs[v]).retrain) for v, view in enumerate(views)]


def _moved(pairs: Sequence[Pair], thief: Job, victim: Job, amount: int) -> dict[int, Pair]:
    """The one or two streams' pairs after a steal; the incumbent's are left alone (the listing aliases them)."""
    trial = {stream: list(pairs[stream]) for stream in (thief[0], victim[0])}
    trial[victim[0]][victim[1]] -= amount
    trial[thief[0]][thief[1]] += amount
    return {stream: (infer, train) for stream, (infer, train) in trial.items()}


def _search(snapshot: Snapshot, steal_quanta: int, *, repeat: bool) -> _Search:
    """Run the thief over the options as given; if that names one that does not raise quality, run it again without such.

    The listing offers every option, and the known answers were made so. Only hand-back can be drawn to a useless one: the
    share that it frees flatters it, although giving that share to inference at once is at least as good.
    """
    search = _run(PickConfigs(snapshot, only_useful=False), steal_quanta, repeat=repeat)
    if any(option is not None and not is_useful(option, view) for view, option in search.retrainings()):
        return _run(PickConfigs(snapshot), steal_quanta, repeat=repeat)
    return search


def _run(picker: PickConfigs, steal_quanta: int, *, repeat: bool) -> _Search:
    jobs = jobs_of(picker.snapshot)
    start = to_pairs(jobs, fair_split(picker.quanta, len(jobs)), len(picker.estimators))
    picker.rank(start)
    search = _Search(picker, jobs, start, max(1, steal_quanta), cap_last=repeat)
    while search.sweep() and repeat:
        pass
    return search


def thief(snapshot: Snapshot, *, steal_quanta: int = 1) -> Plan:
    """The listing: one sweep. steal_quanta is the paper's Delta in quanta."""
    search = _search(snapshot, steal_quanta, repeat=False)
    return search.picker.plan("thief", search.pairs)


def thief_repeat(snapshot: Snapshot, *, steal_quanta: int = 1, policy: str = "thief-repeat") -> Plan:
    """Sweeps until stable. It ends: every accepted steal improves the rank, and there are finitely many allocations."""
    search = _search(snapshot, steal_quanta, repeat=True)
    return search.picker.plan(policy, search.pairs)


def fair(snapshot: Snapshot) -> Plan:
    """The thief's starting point: the fair split over all jobs with the best configurations under it."""
    picker, jobs = PickConfigs(snapshot), jobs_of(snapshot)
    pairs = to_pairs(jobs, fair_split(picker.quanta, len(jobs)), len(snapshot.streams))
    picker.rank(pairs)
    return picker.plan("fair", pairs)
