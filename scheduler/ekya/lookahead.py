"""Planning with what completions will free: retrainings may wait for each other. Ours; the paper's estimate holds every share still.

The paper's planner starts every retraining of a window at once, because EstimateAccuracy (Alg. 2) knows no later. One after the
other is better where speed is proportional to the share: the first new model arrives much earlier, the last one no later.

The mathematics. A window is a list of phases; a completion ends each. In phase k let U_k(q) be the summed quality that q quanta
of inference buy with the models of that phase (`quanta.InferenceValue`), b_k the quanta that train, S(b) their throughput,
W_k the work of the phase, and U_end what all quanta buy with all new models. Then

    value = T'*U_end - sum over k of  W_k * (U_end - U_k(Q - b_k)) / S(b_k)

so phases meet only in the order of the list, and each b_k minimises its own ratio: what a second of the phase loses against the
end, per unit of work done in it. The window's end needs no constraint: a list too long for the window is worth more cut at the
window's end than this formula says (every second beyond it counts a loss), and still more without the retrainings that were cut.
With proportional speed and no floor the best list is the best there is: any schedule with the same completions in the same order
and the same total for training at each moment completes nothing earlier, and a phase gains nothing by mixing several b (a mean of
ratios is not below the least). `clairvoyant` uses that to be exact.

The search. Lists are improved by the best insertion, replacement, removal or move of one stream's retraining, all of them priced
exactly and at once: U without the stream is known for every phase of the list, and the stream joins with each of its options. With
a speed curve that falls off (MPS) or a limit per job, several retrainings at once are better. Then lists are tried at several
widths, each job in list order getting up to `width` quanta. The formula, with S(b) the throughput of all of them, is then a guide
only (it lets the first job have all of it), so every list is played through before it counts. Static plans played with planning
anew are candidates too. A large problem is cut into groups of streams.

A model that serves when the window ends serves on. With L seconds of the time after it that count (`Snapshot.later_s`), L*U_end is
added, with U_end of what has ended by then: a retraining that the rest of the window alone would not repay may be worth it. How a
phase is best shared does not depend on that, but a list may now be priced that is too long. It is played before it counts: what does
not end in the window is left out there, and the next one on the list gets at least what it needs to end in time.

Floors come first in every phase: training never takes a quantum that would leave one more stream under the floor than all quanta
for inference would. The plan names the shares of the first phase; the engine plans again at each completion (receding horizon).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.ekya.estimate import QUALITY_TOL, StreamEstimator, expected_end
from scheduler.ekya.optimal import optimal
from scheduler.ekya.pick_configs import PickConfigs
from scheduler.ekya.quanta import InferenceTable, InferenceValue, training_speed
from scheduler.ekya.thief import thief_repeat
from scheduler.ekya.timeline import WindowRun, held_by, keep, play_window, replan
from scheduler.types import Plan, RetrainOption, Snapshot, StreamPlan

#: Stands for "cannot be trained here": far above any sum of qualities over a window, far below overflow.
_NEVER = 1e15

#: Retrainings that end within this part of each other's time end at once.
_SAME_TIME = 1e-12

#: Streams times quanta up to which: static plans are played even where the priced search is exact; the search has a second start;
#: static plans are planned anew at completions.
_TINY, _SMALL, _MEDIUM = 200, 500, 1_000

#: Streams squared times quanta that are searched in one piece, and how much more a speed curve that falls off takes.
_WORK_MOST = 1_000_000
_CURVED_WORK = 12

#: Widths that are tried, at most, besides the halves.
_WIDTHS_MOST = 12


@dataclass(frozen=True)
class Job:
    """A retraining on the list: stream number, the option it trains, and the quality it is expected to leave in service."""

    stream: int
    option: RetrainOption
    end: float


@dataclass(frozen=True)
class Phase:
    """A stretch of constant shares: quanta per stream to inference and to training."""

    lasts_s: float
    infer: tuple[int, ...]
    train: tuple[int, ...]
    options: tuple[RetrainOption | None, ...]


@dataclass(frozen=True)
class Timeline:
    """A list played through. value: integral of the summed quality (0-1 times seconds), over the window and what counts of the time
    after it; mean_quality: over the window, per stream."""

    value: float
    mean_quality: tuple[float, ...]
    phases: tuple[Phase, ...]


class Problem:
    """A snapshot in the numbers that planning ahead needs. options: per stream, what is worth training and can end in the window."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.picker = PickConfigs(snapshot)  # checks capacity and quantum
        self.snapshot = snapshot
        self.quanta = self.picker.quanta
        self.window_s = max(0.0, snapshot.remaining_s)
        self.horizon_s = self.window_s + (snapshot.later_s if self.window_s > 0 else 0.0)
        self.inference = InferenceValue(snapshot, self.picker.estimators)
        self._throughput: dict[tuple[int, int], np.ndarray] = {}
        self._after: dict[frozenset[tuple[int, float]], tuple[np.ndarray, InferenceTable]] = {}
        self.quality = np.array([view.quality for view in snapshot.streams])
        self.factor = training_speed(snapshot)
        fastest = float(self.factor.max(initial=0.0))
        self.size = len(self.quality) * self.quanta
        #: The fewest quanta that train as fast as any.
        self.width_max = max(1, int(np.argmax(self.factor)))
        self.options = tuple(
            tuple(Job(v, t.option, t.end) for t in estimator.terms if t.cost_gpu_s < self.window_s * fastest)
            for v, estimator in enumerate(self.picker.estimators)
        )

    @property
    def proportional(self) -> bool:
        """Does every quantum add the same speed to one retraining?"""
        return bool(np.allclose(self.factor, self.factor[-1] * np.arange(len(self.factor)) / max(1, self.quanta)))

    def groups(self) -> int:
        """Into how many parts the problem is cut, so that the search stays a matter of a second."""
        streams = len(self.quality)
        work = float(streams) ** 2 * self.quanta * (1 if self.proportional else _CURVED_WORK)
        return min(max(1, streams), math.ceil(math.sqrt(work / _WORK_MOST)))

    def throughput(self, jobs: int, width: int) -> np.ndarray:
        """(Q+1,) summed speed of `jobs` jobs when b quanta are filled into them in order, `width` each."""
        jobs = min(jobs, self.quanta // width + 1)
        if (jobs, width) not in self._throughput:
            full, rest = np.divmod(np.arange(self.quanta + 1), width)
            partly = np.where(full < jobs, self.factor[rest], 0.0)
            self._throughput[jobs, width] = np.minimum(full, jobs) * self.factor[min(width, self.quanta)] + partly
        return self._throughput[jobs, width]

    def quanta_to_end(self, work_gpu_s: float, left_s: float) -> int:
        """The fewest quanta with which one job ends in time; 0 where none do."""
        enough = np.flatnonzero(self.factor * left_s >= work_gpu_s * (1 + _SAME_TIME))
        return int(enough[0]) if len(enough) else 0

    def models(self, done: Sequence[Job]) -> np.ndarray:
        """(V,) qualities once `done` have ended."""
        quality = self.quality.copy()
        for job in done:
            quality[job.stream] = job.end
        return quality

    def after(self, done: Sequence[Job]) -> tuple[np.ndarray, InferenceTable]:
        """(V,) qualities once `done` have ended, in any order, and U with them."""
        key = frozenset((job.stream, job.end) for job in done)
        if key not in self._after:
            models = self.models(done)
            self._after[key] = models, self.inference.table(models[None, :])
        return self._after[key]


def fill(quanta: int, jobs: int, width: int) -> list[int]:
    """`quanta` into `jobs` in order, up to `width` each; what does not fit is given to nobody."""
    return [min(width, max(0, quanta - width * number)) for number in range(jobs)]


# --- pricing lists ----------------------------------------------------------------------------------------------------


class Pricer:
    """The formula of the module for lists of one width, and for every change of one stream at once."""

    def __init__(self, problem: Problem, width: int) -> None:
        self.problem = problem
        self.width = width
        self.rounds = 0
        self._pace: dict[int, np.ndarray] = {}
        self._by_phase: dict[tuple[int, int], np.ndarray] = {}

    def pace(self, jobs: int) -> np.ndarray:
        """(Q,) seconds per GPU-second with b = 1..Q quanta for training and `jobs` retrainings left."""
        if jobs not in self._pace:
            speed = self.problem.throughput(jobs, self.width)[1:]
            self._pace[jobs] = np.divide(1.0, speed, out=np.full(len(speed), _NEVER), where=speed > 0)
        return self._pace[jobs]

    def _paces(self, jobs: int, phases: int) -> np.ndarray:
        """(m+1, Q) `pace` of each phase, one job less in each."""
        key = (jobs, phases)
        if key not in self._by_phase:
            self._by_phase[key] = np.stack([self.pace(max(1, jobs - k)) for k in range(phases)])
        return self._by_phase[key]

    def look(self, jobs: Sequence[Job]) -> View:
        """The list with its tables."""
        self.rounds += 1
        problem = self.problem
        models = np.stack([problem.models(jobs[:k]) for k in range(len(jobs) + 1)])
        seen, ends = self._beside_training(problem.inference.worth(models))
        work = np.array([job.option.cost_gpu_s for job in jobs])
        lost = float(work @ self._ratio(float(ends[-1]) - seen, len(jobs))[:-1])
        return View(tuple(jobs), models, problem.horizon_s * float(ends[-1]) - lost)

    def changes(self, view: View) -> list[Change]:
        """The best place for each option of each stream, and the list without each of its jobs."""
        without = self.problem.inference.worth_without(view.models)
        return [change for v in range(len(without)) for change in self._changes(view, v, without[v])]

    def _changes(self, view: View, stream: int, without: np.ndarray) -> list[Change]:
        """The same for one stream. without: (n+1, Q+1), worth of U over the other streams after each completion."""
        options = self.problem.options[stream]
        if not options:
            return []
        at = next((n for n, job in enumerate(view.jobs) if job.stream == stream), None)
        others = tuple(job for job in view.jobs if job.stream != stream)
        rows = [k for k in range(len(view.jobs) + 1) if at is None or k != at + 1]
        quality = np.array([self.problem.quality[stream], *(o.end for o in options)])
        worth = self.problem.inference.worth_with(without[rows], stream, quality)
        seen, ends = self._beside_training(worth)  # (1+O, m+1, Q), (1+O, m+1)
        end, work = ends[:, -1], np.array([job.option.cost_gpu_s for job in others])
        found = []
        if at is not None:
            idle = float(work @ self._ratio(end[0] - seen[0], len(others))[:-1])
            found.append(Change(stream, self.problem.horizon_s * float(end[0]) - idle, others))
        before = self._ratio(end[1:, None, None] - seen[0], len(others) + 1)  # (O, m+1)
        after = self._ratio(end[1:, None, None] - seen[1:], len(others))
        own = np.array([o.option.cost_gpu_s for o in options])[:, None] * before
        lost = own
        lost[:, 1:] += np.cumsum(work * before[:, :-1], axis=1)
        lost[:, :-1] += np.cumsum((work * after[:, :-1])[:, ::-1], axis=1)[:, ::-1]
        values = self.problem.horizon_s * end[1:, None] - lost
        places = values.argmax(axis=1).tolist()
        for n, (option, place) in enumerate(zip(options, places, strict=True)):
            found.append(Change(stream, float(values[n, place]), (*others[:place], option, *others[place:])))
        return found

    def _beside_training(self, worth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(..., Q) the value of inference beside b = 1..Q trained quanta, and (...) with all quanta. The floor forbids a b that
        leaves more streams below it."""
        value, below = self.problem.inference.split(worth)
        allowed = below[..., -2::-1] <= below[..., -1:]
        return np.where(allowed, value[..., -2::-1], -_NEVER), value[..., -1]

    def _ratio(self, loss: np.ndarray, jobs: int) -> np.ndarray:
        """(..., m+1) least loss per unit of work in each phase. loss: (..., m+1, Q); jobs: how many are left in the first."""
        pace = self._paces(jobs, loss.shape[-2])
        return np.minimum((np.maximum(loss, 0.0) * pace).min(axis=-1), _NEVER)


@dataclass(frozen=True, eq=False)
class View:
    """A list as priced. models: (n+1, V) before the first and after each completion."""

    jobs: tuple[Job, ...]
    models: np.ndarray
    value: float


@dataclass(frozen=True)
class Change:
    """A list in which only what `stream` trains, or when, is different; and its value."""

    stream: int
    value: float
    jobs: tuple[Job, ...]


def climb(pricer: Pricer, jobs: Sequence[Job]) -> View:
    """Change the list while that raises the value: as many streams at once as pays, at least the best one. It ends: every step is
    better by more than float noise."""
    view = pricer.look(jobs)
    while True:
        better = [c for c in pricer.changes(view) if c.value > view.value + _tolerance(view.value)]
        if not better:
            return view
        better_view = _together(pricer, view, _best_per_stream(better))
        if better_view.value <= view.value:  # float noise
            return view
        view = better_view


def _best_per_stream(changes: Sequence[Change]) -> list[Change]:
    best: dict[int, Change] = {}
    for change in changes:
        if change.stream not in best or change.value > best[change.stream].value:
            best[change.stream] = change
    return sorted(best.values(), key=lambda c: -c.value)


def _together(pricer: Pricer, view: View, changes: Sequence[Change]) -> View:
    """All changes, else the better half of them, and so on; one change alone is worth what it was priced at."""
    count = len(changes)
    while count > 1:
        trial = pricer.look(_changed(view.jobs, changes[:count]))
        if trial.value > changes[0].value:
            return trial
        count //= 2
    return pricer.look(changes[0].jobs)


def _changed(jobs: Sequence[Job], changes: Sequence[Change]) -> tuple[Job, ...]:
    """Each changed job goes behind the nearest one before it that is still on the list."""
    moved = {change.stream for change in changes}
    found = [job for job in jobs if job.stream not in moved]
    for change in changes:
        place = next((n for n, job in enumerate(change.jobs) if job.stream == change.stream), None)
        if place is not None:
            ahead = [found.index(job) for job in change.jobs[:place] if job in found]
            found.insert(1 + max(ahead, default=-1), change.jobs[place])
    return tuple(found)


def _tolerance(value: float) -> float:
    return QUALITY_TOL * max(1.0, abs(value))


# --- playing lists ----------------------------------------------------------------------------------------------------


def play(problem: Problem, jobs: Sequence[Job], width: int) -> Timeline:
    """The list as it would really run; what does not end within the window is left out from the start."""
    jobs = tuple(jobs)
    while True:
        timeline, unfinished = _play_once(problem, jobs, width)
        if not unfinished:
            return timeline
        jobs = tuple(job for job in jobs if job not in unfinished)


def _play_once(problem: Problem, jobs: tuple[Job, ...], width: int) -> tuple[Timeline, list[Job]]:
    end = float(problem.after(jobs)[1].value[0, -1])
    left = {job: job.option.cost_gpu_s for job in jobs}
    at_s, seen_s, phases = 0.0, np.zeros(len(problem.quality)), list[Phase]()
    while not phases or at_s < problem.window_s:
        left_s = problem.window_s - at_s
        models, table = problem.after([job for job in jobs if job not in left])
        shares = _shares(problem, table, end, list(left.values()), width, left_s)
        speeds = problem.factor[shares].tolist()
        ends_s = [work / s if s > 0 else np.inf for work, s in zip(left.values(), speeds, strict=True)]
        lasts_s = min([left_s, *ends_s])
        beside = problem.quanta - sum(shares)
        phases.append(_phase(problem, lasts_s, table.quanta[0, :, beside], list(left), shares))
        seen_s += table.kept[0, :, beside] * models * lasts_s
        at_s += lasts_s
        after = {job: work - s * lasts_s for (job, work), s in zip(left.items(), speeds, strict=True)}
        if lasts_s < left_s:
            left = {job: work for (job, work), e in zip(after.items(), ends_s, strict=True) if e > lasts_s * (1 + _SAME_TIME)}
    means = seen_s / problem.window_s if problem.window_s > 0 else table.kept[0, :, beside] * models
    later = (problem.horizon_s - problem.window_s) * float(
        problem.after([job for job in jobs if job not in left])[1].value[0, -1]
    )
    return Timeline(float(seen_s.sum()) + later, tuple(means.tolist()), tuple(phases)), list(left)


def _shares(problem: Problem, table: InferenceTable, end: float, work: Sequence[float], width: int, left_s: float) -> list[int]:
    """Quanta for each job on the list. One that would not end in time with what it gets waits for more."""
    if not work:
        return []
    quanta = _quanta_to_train(problem, table, end, len(work), width)
    if quanta > 0 and problem.horizon_s > problem.window_s:
        quanta = max(quanta, min(width, problem.quanta_to_end(work[0], left_s)))
    shares = fill(quanta, len(work), width)
    return [q if problem.factor[q] > 0 and w / problem.factor[q] <= left_s else 0 for q, w in zip(shares, work, strict=True)]


def _quanta_to_train(problem: Problem, table: InferenceTable, end: float, jobs: int, width: int) -> int:
    """b: the least loss per unit of work; of equals the fastest. 0 if the floor leaves nothing to train with."""
    speed = problem.throughput(jobs, width)[1:]
    allowed = (table.below[0, -2::-1] <= table.below[0, -1]) & (speed > 0)
    if not allowed.any():
        return 0
    loss = np.maximum(end - table.value[0, -2::-1], 0.0)
    ratio = np.where(allowed, loss / np.where(speed > 0, speed, 1.0), np.inf)
    among = allowed & (ratio <= ratio.min() + QUALITY_TOL)
    return 1 + int(np.argmax(np.where(among, speed, -1.0)))


def _phase(problem: Problem, lasts_s: float, infer: np.ndarray, jobs: Sequence[Job], shares: Sequence[int]) -> Phase:
    train, options = [0] * len(infer), [None] * len(infer)
    for job, share in zip(jobs, shares, strict=True):
        if share > 0:
            train[job.stream], options[job.stream] = share, job.option  # type: ignore[call-overload]
    return Phase(lasts_s, tuple(int(q) for q in infer), tuple(train), tuple(options))


# --- the policy -------------------------------------------------------------------------------------------------------


def lookahead(snapshot: Snapshot) -> Plan:
    """The first phase of the best timeline found. expected_quality is of the whole timeline, planned re-sharing included; a
    retraining whose start is planned for later gets no share yet. Errors: UsageError if capacity or quantum is not positive."""
    problem = Problem(snapshot)
    groups = problem.groups()
    if groups > 1:
        return _in_groups(snapshot, groups)
    best, steps = _best_timeline(problem)
    return _plan(problem, best, steps)


def _in_groups(snapshot: Snapshot, groups: int) -> Plan:
    """A large problem in parts: each group of streams has the quanta that the exact static plan gives it. No group can then do worse
    than that plan does with it, floors included; what is lost is sharing between groups until the next completion."""
    static, step = optimal(replace(snapshot, estimate="static")), snapshot.quantum_pct
    owned = [sum(s.infer_pct + s.train_pct for s in static.streams[number::groups]) // step for number in range(groups)]
    left = snapshot.capacity_pct // step - sum(owned)
    owned = [quanta + (left + number) // groups for number, quanta in enumerate(owned)]
    planned: list[StreamPlan] = list(static.streams)
    steps = static.steps
    for number, quanta in enumerate(owned):
        part = replace(snapshot, streams=snapshot.streams[number::groups], capacity_pct=quanta * step, gpus=())
        plan = lookahead(part)
        planned[number::groups] = plan.streams
        steps += plan.steps
    return _whole(snapshot, planned, steps)


def _best_timeline(problem: Problem) -> tuple[Timeline, int]:
    """The best of all timelines tried, and the number of lists priced."""
    best, steps = play(problem, (), problem.width_max), 1
    if not any(problem.options) or problem.quanta == 0:
        return best, steps
    widths, starts = _widths(problem), _starts(problem)
    found: tuple[Job, ...] = ()
    for width in widths:
        pricer = Pricer(problem, width)
        jobs = max((climb(pricer, start) for start in starts), key=lambda view: view.value).jobs
        steps, starts = steps + pricer.rounds, [jobs]
        timeline = play(problem, jobs, width)
        if timeline.value > best.value + _tolerance(best.value):
            best, found = timeline, jobs
    others = [play(problem, found, w) for w in _more_widths(problem, widths)]
    for timeline in (*others, *_played_static(problem)):
        if timeline.value > best.value + _tolerance(best.value):
            best = timeline
    return best, steps


def _starts(problem: Problem) -> list[tuple[Job, ...]]:
    """Where the search begins: at no retraining, and in a small problem also at what the exact static plan would train."""
    if problem.size > _SMALL:
        return [()]
    return list(dict.fromkeys([(), _seed(problem)]))


def _seed(problem: Problem) -> tuple[Job, ...]:
    """What the exact static plan trains, in the order in which it would end."""
    plan, step = optimal(problem.snapshot), problem.picker.quantum_pct
    jobs = [
        (job.option.cost_gpu_s / float(problem.factor[planned.train_pct // step]), job.stream, job)
        for number, planned in enumerate(plan.streams)
        for job in problem.options[number]
        if job.option.name == planned.retrain
    ]
    return tuple(job for *_, job in sorted(jobs, key=lambda entry: entry[:2]))


def _widths(problem: Problem) -> list[int]:
    """Quanta that one job gets at most: all it can use, then halves of that as long as they do more per quantum."""
    widths, width = [problem.width_max], problem.width_max
    while width > 1:
        width //= 2
        if problem.factor[width] * widths[-1] > problem.factor[widths[-1]] * width * (1 + 1e-9):
            widths.append(width)
    return widths


def _more_widths(problem: Problem, tried: Sequence[int]) -> list[int]:
    """Widths in between, where width matters."""
    most = min(problem.width_max, _WIDTHS_MOST) if len(tried) > 1 else 0
    return [width for width in range(1, most + 1) if width not in tried]


def _played_static(problem: Problem) -> list[Timeline]:
    """Static plans played with planning anew at completions, so that looking ahead never expects less than they come to. Left out
    where the priced search is exact but for its local optima, unless the problem is tiny; one plan held still if it is large."""
    priced = problem.proportional and problem.snapshot.min_quality <= 0
    if priced and problem.size > _TINY:
        return []
    policies: tuple[Callable[[Snapshot], Plan], ...] = (optimal, thief_repeat) if problem.size <= _MEDIUM else (optimal,)
    certain = _certain(problem.snapshot)
    runs = []
    for policy in policies:
        start = held_by(policy(certain))
        runs.append(play_window(certain, start, replan(policy) if problem.size <= _MEDIUM else keep))
    return [_timeline_of(problem, run, certain) for run in runs if run.segments]


def _certain(snapshot: Snapshot) -> Snapshot:
    """The snapshot with every option ending at what is expected of it."""
    streams = [
        replace(
            view, retrain=tuple(replace(o, end_quality=expected_end(o, view.quality), quality_sd=0.0) for o in view.retrain)
        )
        for view in snapshot.streams
    ]
    return replace(snapshot, streams=tuple(streams))


def _timeline_of(problem: Problem, run: WindowRun, snapshot: Snapshot) -> Timeline:
    """A played window, if it keeps as many streams from the floor as any allocation would."""
    first, step = run.segments[0], problem.picker.quantum_pct
    below = int(problem.after(())[1].below[0, -1])
    kept = sum(q >= snapshot.min_quality - QUALITY_TOL for q in first.quality) >= len(first.quality) - below
    names = [{job.option.name: job.option for job in jobs} for jobs in problem.options]
    phase = Phase(
        first.to_s - first.from_s,
        tuple(int(h.infer_pct) // step for h in first.held),
        tuple(int(h.train_pct) // step for h in first.held),
        tuple(known.get(h.retrain or "") for h, known in zip(first.held, names, strict=True)),
    )
    later = problem.inference.table(np.array([run.end_quality])).value[0, -1] * (problem.horizon_s - problem.window_s)
    value = run.quality * len(run.mean_quality) * problem.window_s + float(later)
    return Timeline(value if kept else -np.inf, run.mean_quality, (phase,))


def _plan(problem: Problem, timeline: Timeline, steps: int) -> Plan:
    first, step = timeline.phases[0], problem.picker.quantum_pct
    streams = tuple(
        _stream_plan(problem, number, first, timeline.mean_quality[number], step) for number in range(len(problem.quality))
    )
    return _whole(problem.snapshot, streams, steps)


def _whole(snapshot: Snapshot, streams: Sequence[StreamPlan], steps: int) -> Plan:
    mean = sum(s.expected_quality for s in streams) / len(streams) if streams else 0.0
    spare_pct = snapshot.capacity_pct - sum(s.infer_pct + s.train_pct for s in streams)
    plan = Plan(policy="lookahead", streams=tuple(streams), spare_pct=spare_pct, expected_quality=mean, steps=steps)
    plan.check(snapshot.capacity_pct)
    return plan


def _stream_plan(problem: Problem, number: int, first: Phase, quality: float, step: int) -> StreamPlan:
    estimator: StreamEstimator = problem.picker.estimators[number]
    infer_pct, option = first.infer[number] * step, first.options[number]
    knobs, frac = estimator.knobs_at(infer_pct)
    return StreamPlan(
        id=estimator.view.id,
        knobs=knobs.name if knobs else None,
        infer_pct=infer_pct,
        retrain=option.name if option else None,
        train_pct=first.train[number] * step if option else 0,
        expected_quality=quality,
        below_floor=estimator.is_below(frac),
    )
