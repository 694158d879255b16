"""The thief scheduler, Ekya Alg. 1: every job in turn steals shares from every other while that raises the mean quality.

    thief         the listing: one sweep over ordered (thief, victim) pairs
    thief-repeat  sweeps until one changes nothing, as the paper's prose says; it matters (the tests measure how much)
    thief-thorough  ours: until no steal of any size or from several victims helps, from two starts; finds most of what a single
                  quantum misses

Jobs, in order: each stream's inference job, then its training job if the stream has any retraining option. The start is the
fair split, remainder to the first jobs. Every share is an integer number of quanta, so the sum is constant and nothing drifts.
What we changed: the incumbent is copied before each trial (the listing aliases it); in thief-repeat the last steal takes what
the victim still holds; allocations are ranked with the floor first (`pick_configs.Rank`), by the streams that a steal touches;
a run that ends with more streams below the floor than must be starts again from the floors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scheduler.ekya.estimate import QUALITY_TOL, is_useful
from scheduler.ekya.pick_configs import Pair, PickConfigs, cheapest_floors
from scheduler.types import Plan, Snapshot

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


class _Search:
    """The incumbent allocation of one run and how it is improved, with what each single steal is worth kept beside it.

    pairs: (infer, train) quanta in stream order. Over the jobs, float (J,), in values (`PickConfigs.value`) and for the incumbent:
        held    quanta that a steal would take from the job: steal_quanta, less where the last one is capped, 0 for none
        lost    what its stream's value changes by when they are taken; -inf where there is nothing to take
        won     (steal_quanta + 1, J) what its stream's value changes by when the job gets 0, 1, ... quanta; -inf for what no
                steal takes
        most    the largest of them
        turned  what its stream's value changes by when the job steals from the stream's other job; -inf without another
    A steal between two streams is worth won + lost, because no other stream sees it, and an accepted one changes the entries
    of two streams only. So the victims of a thief are tried all at once, and thieves for which no victim can be worth it are
    passed over; the decisions and their order are those of the listing (the tests hold it against one written out plainly).
    """

    def __init__(self, picker: PickConfigs, pairs: Sequence[Pair], steal_quanta: int, *, cap_last: bool) -> None:
        self.picker, self.pairs, self.steal_quanta, self.cap_last = picker, list(pairs), steal_quanta, cap_last
        self.jobs = jobs_of(picker.snapshot)
        self.jobs_of_stream: list[list[int]] = [[] for _ in pairs]
        for job, (stream, _) in enumerate(self.jobs):
            self.jobs_of_stream[stream].append(job)
        self.amounts = range(1 if cap_last else steal_quanta, steal_quanta + 1)
        count = len(self.jobs)
        self.held = np.zeros(count, np.int64)
        self.lost = np.full(count, -np.inf)
        self.won = np.full((steal_quanta + 1, count), -np.inf)
        self.most = np.full(count, -np.inf)
        self.turned = np.full(count, -np.inf)
        #: A gain in the sum of values that is a gain in their mean.
        self.least = QUALITY_TOL * len(pairs)
        for stream in range(len(pairs)):
            self._refresh(stream)

    def sweep(self) -> bool:
        """One pass over all ordered pairs of jobs; True if anything moved."""
        moved, thief = False, 0
        while thief < len(self.jobs):
            hopeful = self._next_hopeful(thief)
            passed = slice(thief, hopeful)
            # each of those that are passed over looks at every other job that holds something
            self.picker.calls += (hopeful - thief) * _count(self.held) - _count(self.held[passed])
            if hopeful < len(self.jobs) and self._steal_from_all(hopeful):
                moved = True
            thief = hopeful + 1
        return moved

    def _next_hopeful(self, first: int) -> int:
        """The first job from `first` on for which some steal may help; the number of jobs if there is none."""
        if not len(self.lost):
            return 0
        most = self.most[first:] + self.lost.max()
        hopeful = np.flatnonzero((most > self.least) | (self.turned[first:] > self.least))
        return first + int(hopeful[0]) if len(hopeful) else len(self.jobs)

    def _steal_from_all(self, thief: int) -> bool:
        """Steal from one victim after the other, from each for as long as each steal helps; True if the incumbent moved."""
        moved, victim = False, 0
        while True:
            worth = self._worth(thief)[victim:]
            helping = np.flatnonzero(worth > self.least)
            found = victim + int(helping[0]) if len(helping) else len(self.jobs)
            looked_at = slice(victim, found + 1)
            self.picker.calls += _count(self.held[looked_at]) - (victim <= thief <= found and bool(self.held[thief]))
            if found == len(self.jobs):
                return moved
            self._move(thief, found)
            victim, moved = found, True

    def _worth(self, thief: int) -> np.ndarray:
        """What the value of the allocation changes by when `thief` steals from each job, float (J,)."""
        worth: np.ndarray = self.lost + (self.won[self.held, thief] if len(self.amounts) > 1 else self.most[thief])
        for job in self.jobs_of_stream[self.jobs[thief][0]]:
            worth[job] = self.turned[thief] if job != thief else -np.inf
        return worth

    def _move(self, thief: int, victim: int) -> None:
        amount = int(self.held[victim])
        for stream in {self.jobs[thief][0], self.jobs[victim][0]}:
            pair = self.pairs[stream]
            if self.jobs[victim][0] == stream:
                pair = _plus(pair, self.jobs[victim][1], -amount)
            if self.jobs[thief][0] == stream:
                pair = _plus(pair, self.jobs[thief][1], amount)
            self.pairs[stream] = pair
            self._refresh(stream)

    def _refresh(self, stream: int) -> None:
        """Bring the entries of a stream's jobs up to its pair."""
        pair, jobs, value = self.pairs[stream], self.jobs_of_stream[stream], self.picker.value
        now = value(stream, pair)
        for job in jobs:
            kind = self.jobs[job][1]
            self.held[job] = held = self._taken_from(pair[kind])
            self.lost[job] = self._loss(stream, pair, kind, held)
            won = [value(stream, _plus(pair, kind, amount)) - now for amount in self.amounts]
            self.won[self.amounts.start :, job], self.most[job] = won, max(won)
        if len(jobs) == 2:
            for job in jobs:
                kind = self.jobs[job][1]
                other = self._taken_from(pair[1 - kind])
                turned = _plus(_plus(pair, kind, other), 1 - kind, -other)
                self.turned[job] = value(stream, turned) - now if other else -np.inf

    def _loss(self, stream: int, pair: Pair, kind: int, amount: int) -> float:
        """What a stream's value changes by when a job of it loses `amount` quanta; -inf for none."""
        if amount == 0:
            return -math.inf
        return self.picker.value(stream, _plus(pair, kind, -amount)) - self.picker.value(stream, pair)

    def _taken_from(self, share: int) -> int:
        """The quanta that one steal takes from a job which holds `share`."""
        if share >= self.steal_quanta:
            return self.steal_quanta
        return share if self.cap_last else 0

    def below_count(self) -> int:
        """Streams below the floor under the incumbent."""
        return sum(self.picker.value(v, pair) < 0 for v, pair in enumerate(self.pairs))

    def repeat(self) -> _Search:
        """Sweep until stable. It ends: every accepted steal improves the rank, and there are finitely many allocations."""
        while self.sweep():
            pass
        return self

    def gathered(self) -> list[Pair] | None:
        """The allocation after the first thief for whom quanta from several victims help, although none alone does, has taken them;
        None if there is no such thief."""
        return next((found for thief in range(len(self.jobs)) if (found := self._gathered_by(thief))), None)

    def _gathered_by(self, thief: int) -> list[Pair] | None:
        """As soon as they help together: single quanta, each from the job of another stream that misses it least by then."""
        value, quanta, (own, kind) = self.picker.value, self.picker.quanta, self.jobs[thief]
        pairs, lost = list(self.pairs), self.lost.copy()
        lost[self.jobs_of_stream[own]] = -np.inf
        before = value(own, pairs[own])
        most = value(own, _plus(pairs[own], kind, quanta - sum(pairs[own]))) - before
        missed = 0.0
        while missed + most > self.least:
            victim = int(lost.argmax())
            missed += float(lost[victim])
            if missed == -np.inf:
                break
            stream, victim_kind = self.jobs[victim]
            pairs[stream] = _plus(pairs[stream], victim_kind, -1)
            pairs[own] = _plus(pairs[own], kind, 1)
            self.picker.calls += 1
            if value(own, pairs[own]) - before + missed > self.least:
                return pairs
            for job in self.jobs_of_stream[stream]:
                kind_there = self.jobs[job][1]
                lost[job] = self._loss(stream, pairs[stream], kind_there, min(1, pairs[stream][kind_there]))
        return None

    def trains_useless(self) -> bool:
        """Does the incumbent retrain with an option that does not raise quality?"""
        views = self.picker.snapshot.streams
        chosen = [self.picker.choice(v, pair).retrain for v, pair in enumerate(self.pairs)]
        return any(option is not None and not is_useful(option, view) for view, option in zip(views, chosen, strict=True))


def _count(held: np.ndarray) -> int:
    """How many jobs have something to take."""
    return int(np.count_nonzero(held))


def _plus(pair: Pair, kind: int, amount: int) -> Pair:
    """`pair` with `amount` quanta more for inference (kind 0) or training (kind 1)."""
    return (pair[0] + amount, pair[1]) if kind == 0 else (pair[0], pair[1] + amount)


def _search(snapshot: Snapshot, steal_quanta: int, *, repeat: bool) -> _Search:
    """In hand-back mode, run the thief over the options as given; if it ends with one that does not raise quality, run it again
    without such.

    The listing offers every option, and the known answers were made so. Hand-back can be drawn to a useless one: the share
    that it frees flatters it, although giving that share to inference at once is at least as good. In static mode none that
    is sure to be useless ever wins, so they are left out from the start, and with them those that only a gate makes a gain.
    """
    search = _run(PickConfigs(snapshot, only_useful=snapshot.estimate == "static"), steal_quanta, repeat=repeat)
    if search.trains_useless():
        return _run(PickConfigs(snapshot), steal_quanta, repeat=repeat)
    return search


def _run(picker: PickConfigs, steal_quanta: int, *, repeat: bool) -> _Search:
    """The thief from the fair split. If more streams end below the floor than must, it stuck: again from the floors.

    The second start holds as few streams below the floor as any allocation (`cheapest_floors`), and no steal adds one.
    """
    jobs, streams = jobs_of(picker.snapshot), len(picker.estimators)
    search = _climb(picker, to_pairs(jobs, fair_split(picker.quanta, len(jobs)), streams), steal_quanta, repeat=repeat)
    if picker.snapshot.min_quality <= 0:
        return search
    if search.below_count() == streams - len(cheapest_floors(picker.floors(), picker.quanta)):
        return search
    return _climb(picker, floors_first(picker), steal_quanta, repeat=repeat)


def floors_first(picker: PickConfigs) -> list[Pair]:
    """As many streams' floors as `cheapest_floors` reaches (of equal ones, those that show most), and the fair split over all
    jobs of what is left."""
    floors, jobs = picker.floors(), jobs_of(picker.snapshot)
    shown = [0.0 if floor is None else picker.value(v, (floor, 0)) for v, floor in enumerate(floors)]
    needed = {v: floors[v] or 0 for v in cheapest_floors(floors, picker.quanta, shown)}
    rest = to_pairs(jobs, fair_split(picker.quanta - sum(needed.values()), len(jobs)), len(floors))
    return [(infer + needed.get(stream, 0), train) for stream, (infer, train) in enumerate(rest)]


def _climb(picker: PickConfigs, start: Sequence[Pair], steal_quanta: int, *, repeat: bool) -> _Search:
    picker.calls += 1
    search = _Search(picker, start, max(1, steal_quanta), cap_last=repeat)
    if repeat:
        return search.repeat()
    search.sweep()
    return search


def _climb_thoroughly(picker: PickConfigs, start: Sequence[Pair]) -> _Search:
    """Steals of one quantum until stable; then of 2, 3, ... quanta; then from several victims. After any that helps, of one again."""
    search, steal_quanta = _climb(picker, start, 1, repeat=True), 2
    while True:
        if steal_quanta <= max((max(pair) for pair in search.pairs), default=0):
            larger = _Search(picker, search.pairs, steal_quanta, cap_last=False)
            better = larger.pairs if larger.sweep() else None
        else:
            better = search.gathered()
            if better is None:
                return search
        steal_quanta += 1
        if better is not None:
            search, steal_quanta = _climb(picker, better, 1, repeat=True), 2


def thief(snapshot: Snapshot, *, steal_quanta: int = 1) -> Plan:
    """The listing: one sweep. steal_quanta is the paper's Delta in quanta."""
    search = _search(snapshot, steal_quanta, repeat=False)
    return search.picker.plan("thief", search.pairs)


def thief_repeat(snapshot: Snapshot, *, steal_quanta: int = 1, policy: str = "thief-repeat") -> Plan:
    """Sweeps until stable."""
    search = _search(snapshot, steal_quanta, repeat=True)
    return search.picker.plan(policy, search.pairs)


def thief_thorough(snapshot: Snapshot) -> Plan:
    """`thief_repeat`, and then steals of every size, and of quanta from several victims, until none of them helps. The better of two
    climbs, from the fair split and from everything to inference; with a floor, of three, the third from the floors.

    A single quantum seldom buys a retraining that ends in time: the listing gives up where several together would help. The steals
    of every size are the line search of the authors' code, made into a local optimum. It is still no exact plan.
    """
    picker, jobs, streams = PickConfigs(snapshot), jobs_of(snapshot), len(snapshot.streams)
    starts = [
        to_pairs(jobs, fair_split(picker.quanta, len(jobs)), streams),
        [(quanta, 0) for quanta in fair_split(picker.quanta, streams)],
    ]
    if snapshot.min_quality > 0:
        starts.append(floors_first(picker))
    found = [_climb_thoroughly(picker, start).pairs for start in starts]
    return picker.plan("thief-thorough", min(found, key=lambda pairs: picker.rank(pairs).key()))


def fair(snapshot: Snapshot) -> Plan:
    """The thief's starting point: the fair split over all jobs with the best configurations under it."""
    picker, jobs = PickConfigs(snapshot), jobs_of(snapshot)
    picker.calls = 1
    return picker.plan("fair", to_pairs(jobs, fair_split(picker.quanta, len(jobs)), len(snapshot.streams)))
