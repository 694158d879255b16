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
at once from the tables of the list as it is: the knobs chosen without the move stay feasible with it, so the price is a lower
bound. With a speed curve that falls off (MPS) or a limit per job, several retrainings at once are better: then lists are also
tried at fixed widths, each job in list order getting up to `width` quanta, and played through exactly.

Floors come first in every phase: training never takes a quantum that would leave one more stream under the floor than all quanta
for inference would. The plan names the shares of the first phase; the engine plans again at each completion (receding horizon).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.ekya.estimate import QUALITY_TOL, StreamEstimator
from scheduler.ekya.optimal import optimal
from scheduler.ekya.pick_configs import PickConfigs
from scheduler.ekya.quanta import InferenceTable, InferenceValue, training_speed
from scheduler.types import Plan, RetrainOption, Snapshot, StreamPlan

#: Stands for "cannot be trained here": far above any sum of qualities over a window, far below overflow.
_NEVER = 1e15

#: Streams times quanta up to which a second start of the search is cheap.
_SMALL = 1_000


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
    """A list played through. value: integral of the summed quality (0-1 times seconds); mean_quality: over time, per stream."""

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
        self.inference = InferenceValue(snapshot, self.picker.estimators)
        self._after: dict[frozenset[tuple[int, float]], tuple[np.ndarray, InferenceTable]] = {}
        self.quality = np.array([view.quality for view in snapshot.streams])
        self.factor = training_speed(snapshot)
        fastest = float(self.factor.max(initial=0.0))
        #: The fewest quanta that train as fast as any.
        self.width_max = max(1, int(np.argmax(self.factor)))
        self.options = tuple(
            tuple(Job(v, t.option, t.end) for t in estimator.terms if t.cost_gpu_s < self.window_s * fastest)
            for v, estimator in enumerate(self.picker.estimators)
        )

    def throughput(self, jobs: int, width: int) -> np.ndarray:
        """(Q+1,) summed speed of `jobs` jobs when b quanta are filled into them in order, `width` each."""
        return self.factor[np.array([fill(b, jobs, width) for b in range(self.quanta + 1)], np.int64)].sum(axis=1)

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
        jobs = min(jobs, -(-self.problem.quanta // self.width))
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
        return View(tuple(jobs), models, problem.window_s * float(ends[-1]) - lost)

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
            found.append(Change(stream, self.problem.window_s * float(end[0]) - idle, others))
        before = self._ratio(end[1:, None, None] - seen[0], len(others) + 1)  # (O, m+1)
        after = self._ratio(end[1:, None, None] - seen[1:], len(others))
        own = np.array([o.option.cost_gpu_s for o in options])[:, None] * before
        lost = own
        lost[:, 1:] += np.cumsum(work * before[:, :-1], axis=1)
        lost[:, :-1] += np.cumsum((work * after[:, :-1])[:, ::-1], axis=1)[:, ::-1]
        values = self.problem.window_s * end[1:, None] - lost
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
        view = _together(pricer, view, _best_per_stream(better))


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
    left = [(job, job.option.cost_gpu_s) for job in jobs]
    done: list[Job] = []
    at_s, seen_s, phases = 0.0, np.zeros(len(problem.quality)), list[Phase]()
    while not phases or at_s < problem.window_s:
        models, table = problem.after(done)
        trained = _quanta_to_train(problem, table, end, len(left), width) if left else 0
        shares = fill(trained, len(left), width)
        speeds = problem.factor[shares]
        ends_s = [work / s if s > 0 else np.inf for (_, work), s in zip(left, speeds, strict=True)]
        lasts_s = min([problem.window_s - at_s, *ends_s])
        if trained == 0:
            lasts_s = problem.window_s - at_s
        kept, infer = table.kept[0, :, problem.quanta - trained], table.quanta[0, :, problem.quanta - trained]
        phases.append(_phase(problem, lasts_s, infer, [job for job, _ in left], shares))
        seen_s += kept * models * lasts_s
        at_s += lasts_s
        ended = [n for n, e in enumerate(ends_s) if e <= lasts_s * (1 + 1e-12) and at_s < problem.window_s]
        done += [left[n][0] for n in ended]
        left = [
            (job, work - s * lasts_s) for n, ((job, work), s) in enumerate(zip(left, speeds, strict=True)) if n not in ended
        ]
    means = seen_s / problem.window_s if problem.window_s > 0 else kept * models
    return Timeline(float(seen_s.sum()), tuple(means.tolist()), tuple(phases)), [job for job, _ in left]


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
    best, steps = _best_list(problem)
    return _plan(problem, best, steps)


def _best_list(problem: Problem) -> tuple[Timeline, int]:
    """The best of all lists tried, played through, and the number of lists priced."""
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
    for width in range(1, problem.width_max + 1) if len(widths) > 1 else ():
        timeline = play(problem, found, width)
        if timeline.value > best.value + _tolerance(best.value):
            best = timeline
    return best, steps


def _starts(problem: Problem) -> list[tuple[Job, ...]]:
    """Where the search begins: at no retraining, and in a small problem also at what the exact static plan would train."""
    if len(problem.quality) * problem.quanta > _SMALL:
        return [()]
    return list(dict.fromkeys([(), _seed(problem)]))


def _seed(problem: Problem) -> tuple[Job, ...]:
    """What the exact static plan would train, most gain per GPU-second first (Smith's rule)."""
    plan = optimal(problem.snapshot)
    jobs = [
        job
        for number, planned in enumerate(plan.streams)
        for job in problem.options[number]
        if job.option.name == planned.retrain
    ]
    gain = {job: job.end - problem.quality[job.stream] for job in jobs}
    return tuple(sorted(jobs, key=lambda j: (-gain[j] / max(j.option.cost_gpu_s, 1e-9), j.stream)))


def _widths(problem: Problem) -> list[int]:
    """Quanta that one job gets at most: halving from all it can use; only that one where nothing is gained by less."""
    widths = [problem.width_max]
    while widths[-1] > 1 and _falls_off(problem, widths[-1]):
        widths.append(widths[-1] // 2)
    return widths


def _falls_off(problem: Problem, width: int) -> bool:
    """Do two jobs of half the width do more than one of the whole?"""
    half = width // 2
    return bool(problem.factor[half] + problem.factor[width - half] > problem.factor[width] + 1e-9)


def _plan(problem: Problem, timeline: Timeline, steps: int) -> Plan:
    first, step = timeline.phases[0], problem.picker.quantum_pct
    streams = tuple(
        _stream_plan(problem, number, first, timeline.mean_quality[number], step) for number in range(len(problem.quality))
    )
    spare_pct = problem.snapshot.capacity_pct - sum(s.infer_pct + s.train_pct for s in streams)
    mean = sum(timeline.mean_quality) / len(streams) if streams else 0.0
    plan = Plan(policy="lookahead", streams=streams, spare_pct=spare_pct, expected_quality=mean, steps=steps)
    plan.check(problem.snapshot.capacity_pct)
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
