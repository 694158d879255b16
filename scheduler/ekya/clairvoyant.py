"""The best that any planner could do with a window whose profiles are true: exact on small problems, for tests and benchmarks.

Which schedules count: shares are whole quanta and change when a retraining ends, and only then; each stream trains at most one
option, one that ends above its serving model; a retraining may start at any completion, pause and go on. Inference always has the
best knobs for what training leaves. Floors come first in every phase: training never takes a quantum that would leave one more
stream under `min_quality` than all quanta for inference would.

The relaxation. Let S_n(b) be the most that n retrainings together progress on b quanta. Suppose that all of it could go into one
retraining at a time. Then a schedule is a list, and

    value = T'*U_end - sum over its phases of  W_k * min over b of (U_end - U_k(Q-b)) / S_n(b)

(symbols as in `lookahead`), which dynamic programming over subsets maximises over all lists. No schedule is worth more: do its
work in the order of its completions, with the same total for training at each moment; no model comes later, and what the formula
charges beyond the window's end is never negative. Nor is one that changes shares between completions: a phase that mixes several
b loses a mean of ratios per unit of work, and the mean is not below the least.

With proportional speed and no floor S_n(b) is the speed of one retraining that has all b quanta. The best list can then be carried
out as it stands: its value is the optimum, and finer changes of shares could not raise it. Otherwise all schedules are searched,
depth first, the relaxation cutting off what cannot beat the best one found. There, changes between completions might gain a
little: with a curve that falls off, mixing two allocations may beat either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from configs.errors import UsageError
from scheduler.ekya.estimate import SpeedCurve, StreamEstimator
from scheduler.ekya.quanta import InferenceValue, training_speed
from scheduler.ekya.timeline import Completion, Held
from scheduler.types import Snapshot

#: Model vectors that are looked at, at most.
MOST_STATES = 300_000

#: An integral of quality (0-1 times seconds) must exceed the best one by this.
_TOL = 1e-9

#: GPU-seconds of what cannot be trained; finite, so that 0 times it is 0.
_NEVER = 1e15

_BATCH = 4096


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Constant shares from one completion to the next. done: ids of the streams that have their new model by then."""

    lasts_s: float
    held: tuple[Held, ...]
    done: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Best:
    """quality: the optimum, mean over time and streams; schedule: one that reaches it; nodes: schedules looked into."""

    quality: float
    schedule: tuple[Stretch, ...]
    nodes: int

    def rule(self, completion: Completion) -> tuple[Held, ...]:
        """The schedule as a rule of `timeline.play_window`, found by who has ended."""
        over = {view.id for view in completion.snapshot.streams if not view.retrain}
        return max((s for s in self.schedule if s.done <= over), key=lambda s: len(s.done)).held


def clairvoyant(snapshot: Snapshot, *, exhaustive: bool = False) -> Best:
    """The optimum of `snapshot`. exhaustive: search all schedules even where the relaxation is known to be exact.

    Errors: UsageError if there are more than `MOST_STATES` combinations of models.
    """
    window = _Window(snapshot)
    proportional = not snapshot.speed and bool(np.all(np.diff(window.speed) > 0))
    if exhaustive or not proportional or snapshot.min_quality > 0:
        return _Search(window).run()
    return _serial(window)


class _Window:
    """A snapshot as arrays. choice 0 of a stream is its serving model, c the c-th useful option. A model vector is an index in
    mixed radix: sum over streams of choice*stride."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.window_s = max(0.0, snapshot.remaining_s)
        self.speed = training_speed(snapshot)
        self.quanta = len(self.speed) - 1
        self.options = [tuple(o for o in v.retrain if o.end_quality > v.quality) for v in snapshot.streams]
        self.streams = len(self.options)
        counts = [len(o) + 1 for o in self.options]
        self.states = int(np.prod(counts, dtype=np.int64)) if counts else 1
        if self.states > MOST_STATES:
            raise UsageError(
                f"{self.states} combinations of models are too many for an exact search",
                remedy=f"leave out streams or options until there are at most {MOST_STATES}",
            )
        self.strides = [int(np.prod(counts[:v], dtype=np.int64)) for v in range(self.streams)]
        every = np.arange(self.states)
        #: (V, A) choice of each stream in each model vector, and the work behind it.
        self.choice = np.array([every // s % c for s, c in zip(self.strides, counts, strict=True)], np.int64).reshape(
            -1, self.states
        )
        self.quality = np.array(
            [
                np.array([view.quality, *(o.end_quality for o in options)])[self.choice[v]]
                for v, (view, options) in enumerate(zip(snapshot.streams, self.options, strict=True))
            ]
        ).reshape(-1, self.states)
        speed = SpeedCurve.of(snapshot)
        estimators = [StreamEstimator.of(view, snapshot, speed) for view in snapshot.streams]
        self.inference = InferenceValue(snapshot, estimators)
        #: (A, Q+1) U if there were no floor.
        self.value = self._over_states(InferenceValue(replace(snapshot, min_quality=0.0), estimators).worth)

    def floored(self) -> tuple[np.ndarray, np.ndarray]:
        """(A, Q+1) U and the streams under the floor, the floor first."""
        return self.inference.split(self._over_states(self.inference.worth))

    def _over_states(self, worth: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return np.concatenate([worth(self.quality[:, n : n + _BATCH].T) for n in range(0, self.states, _BATCH)])

    def together(self, jobs: int) -> np.ndarray:
        """(Q+1,) S_n(b): the most that `jobs` retrainings progress on b quanta together."""
        best = np.zeros(self.quanta + 1)
        for _ in range(jobs):
            best = np.array([max(best[b - q] + self.speed[q] for q in range(b + 1)) for b in range(self.quanta + 1)])
        return best


class _Relaxation:
    """The best list if all of S_n(b) could go into one retraining at a time; an upper bound for every schedule from a state on."""

    def __init__(self, window: _Window, jobs: int) -> None:
        self.window = window
        speed = window.together(jobs)[1:]
        self.pace = np.divide(1.0, speed, out=np.full(len(speed), _NEVER), where=speed > 0)
        self.end = window.value[:, -1]
        self.full = (1 << window.streams) - 1
        #: [mask] (A,): least loss per unit of work while the streams in mask have their new model and the others the old.
        self.ratio = [self._ratio(mask) for mask in range(1 << window.streams)]

    def _ratio(self, mask: int) -> np.ndarray:
        window = self.window
        if window.quanta == 0:
            return np.full(window.states, _NEVER)
        state = sum((window.choice[v] * window.strides[v] for v in _members(mask)), np.zeros(window.states, np.int64))
        loss = np.maximum(self.end[:, None] - window.value[state, -2::-1], 0.0)
        return np.minimum((loss * self.pace).min(axis=1), _NEVER)

    def bound(self, work: np.ndarray, left_s: np.ndarray, done: int) -> np.ndarray:
        """(N,) upper bounds of the summed quality over the seconds `left_s` (N,). work: (N, V, C) GPU-seconds left to each choice
        (0 for the one that serves, `_NEVER` for one that is out); done: mask of the streams that have ended for all N."""
        lost = self._lost(work, done)[self.full]
        return (left_s[:, None] * self.end - lost).max(axis=1)

    def _lost(self, work: np.ndarray, done: int) -> dict[int, np.ndarray]:
        """[mask] (N, A): least loss until the streams in mask have their model, over all orders."""
        own = [
            np.take_along_axis(work[:, v], np.broadcast_to(c, (len(work), len(c))), axis=1)
            for v, c in enumerate(self.window.choice)
        ]
        lost = {done: np.zeros((len(work), self.window.states))}
        for mask in range(done + 1, self.full + 1):
            if mask & done != done:
                continue
            before = ((v, mask & ~(1 << v)) for v in _members(mask & ~done))
            lost[mask] = np.minimum.reduce([lost[m] + np.minimum(own[v] * self.ratio[m], _NEVER) for v, m in before])
        return lost

    def best(self, work: np.ndarray) -> tuple[int, list[int]]:
        """The best model vector and the order of its streams."""
        lost = self._lost(work[None], 0)
        # Of equals the fewest retrainings: one that gains nothing may not end in time.
        trained = (self.window.choice > 0).sum(axis=0)
        state = int(np.argmax(self.window.window_s * self.end - lost[self.full][0] - _TOL * trained))
        order: list[int] = []
        mask = self.full
        while mask:
            v = min(
                _members(mask),
                key=lambda v: (
                    lost[mask & ~(1 << v)][0, state]
                    + work[v, self.window.choice[v, state]] * self.ratio[mask & ~(1 << v)][state]
                ),
            )
            order.append(v)
            mask &= ~(1 << v)
        return state, [v for v in reversed(order) if self.window.choice[v, state] > 0]


def _members(mask: int) -> Iterator[int]:
    return (v for v in range(mask.bit_length()) if mask >> v & 1)


def _work(window: _Window) -> np.ndarray:
    """(V, C) GPU-seconds of every choice; `_NEVER` where a stream has no such option."""
    most = max((len(o) for o in window.options), default=0)
    work = np.full((window.streams, most + 1), _NEVER)
    for v, options in enumerate(window.options):
        work[v, 0] = 0.0
        for c, option in enumerate(options, start=1):
            work[v, c] = option.cost_gpu_s
    return work


# --- proportional speed, no floor: the relaxation is the answer -------------------------------------------------------


def _serial(window: _Window) -> Best:
    work = _work(window)
    relaxation = _Relaxation(window, 1)
    state, order = relaxation.best(work)
    state_now, at_s, total = 0, 0.0, 0.0
    schedule: list[Stretch] = []
    for v in order:
        choice = int(window.choice[v, state])
        loss = np.maximum(relaxation.end[state] - window.value[state_now, -2::-1], 0.0) * relaxation.pace
        # Of equals the fastest: more of the window is left.
        quanta = window.quanta - int(np.argmin(loss[::-1]))
        lasts_s = work[v, choice] / window.speed[quanta]
        schedule.append(_stretch(window, lasts_s, state_now, {v: (choice, quanta)}))
        total += lasts_s * window.value[state_now, window.quanta - quanta]
        at_s += lasts_s
        state_now += choice * window.strides[v]
    total += (window.window_s - at_s) * window.value[state_now, -1]
    schedule.append(_stretch(window, window.window_s - at_s, state_now, {}))
    return Best(quality=_mean(window, total), schedule=tuple(schedule), nodes=window.states)


def _stretch(window: _Window, lasts_s: float, state: int, training: dict[int, tuple[int, int]]) -> Stretch:
    """With the models of `state`, while the streams in `training` train (choice, quanta)."""
    step = window.snapshot.quantum_pct
    left = window.quanta - sum(quanta for _, quanta in training.values())
    infer = window.inference.table(window.quality[:, state][None, :]).quanta[0, :, left]
    held = []
    for v in range(window.streams):
        choice, quanta = training.get(v, (0, 0))
        name = window.options[v][choice - 1].name if choice else None
        held.append(Held(infer_pct=float(infer[v] * step), train_pct=float(quanta * step), retrain=name))
    done = frozenset(view.id for v, view in enumerate(window.snapshot.streams) if window.choice[v, state] > 0)
    return Stretch(lasts_s=lasts_s, held=tuple(held), done=done)


def _mean(window: _Window, total: float) -> float:
    if window.streams == 0:
        return 0.0
    if window.window_s == 0:
        table = window.inference.table(window.quality[:, :1].T)
        return float(table.value[0, -1]) / window.streams
    return total / window.window_s / window.streams


# --- any speed curve, any floor: all schedules ------------------------------------------------------------------------

#: Who trains in a phase: stream -> (choice, quanta).
_Training = dict[int, tuple[int, int]]


@dataclass(frozen=True, eq=False)
class _Node:
    """A moment at which shares may change. work: (V, C) as in `_Relaxation.bound`; total: quality collected so far; path: phases
    so far as (seconds, model vector, who trained)."""

    state: int
    done: int
    work: np.ndarray
    left_s: float
    total: float
    path: tuple[tuple[float, int, _Training], ...]


class _Search:
    """Depth-first search over all schedules, best bound first."""

    def __init__(self, window: _Window) -> None:
        self.window = window
        self.value, self.below = window.floored()
        self.relaxed = {jobs: _Relaxation(window, jobs) for jobs in range(1, window.streams + 1)}
        self.best = -np.inf
        self.path: tuple[tuple[float, int, _Training], ...] = ()
        self.nodes = 0

    def run(self) -> Best:
        window = self.window
        self._visit(_Node(0, 0, _work(window), window.window_s, 0.0, ()))
        schedule = tuple(_stretch(window, lasts_s, state, training) for lasts_s, state, training in self.path)
        return Best(quality=_mean(window, self.best), schedule=schedule, nodes=self.nodes)

    def _visit(self, node: _Node) -> None:
        self.nodes += 1
        idle = node.total + node.left_s * float(self.value[node.state, -1])
        if idle > self.best + _TOL:
            self.best, self.path = idle, (*node.path, (node.left_s, node.state, {}))
        for bound, child in sorted(self._children(node), key=lambda pair: -pair[0]):
            if bound <= self.best + _TOL:
                return
            self._visit(child)

    def _children(self, node: _Node) -> Iterator[tuple[float, _Node]]:
        live = [v for v in _members(~node.done & (1 << self.window.streams) - 1) if (node.work[v, 1:] < _NEVER).any()]
        for count in range(1, len(live) + 1):
            for streams in itertools.combinations(live, count):
                shares = self._shares(node.state, count)
                choices = ([c for c in range(1, node.work.shape[1]) if node.work[v, c] < _NEVER] for v in streams)
                for chosen in itertools.product(*choices):
                    yield from self._phases(node, streams, chosen, shares, len(live))

    def _shares(self, state: int, count: int) -> np.ndarray:
        """(R, count) quanta of at least 1 that leave inference enough for the floor."""
        rows = [r for r in itertools.product(range(1, self.window.quanta + 1), repeat=count) if sum(r) <= self.window.quanta]
        shares = np.array(rows, np.int64).reshape(-1, count)
        left = self.window.quanta - shares.sum(axis=1)
        moving = (self.window.speed[shares] > 0).all(axis=1)
        return shares[moving & (self.below[state, left] <= self.below[state, -1])]

    def _phases(
        self, node: _Node, streams: tuple[int, ...], chosen: tuple[int, ...], shares: np.ndarray, live: int
    ) -> Iterator[tuple[float, _Node]]:
        """(bound, node at the next completion) of every split of shares that leads to one and may still be the best."""
        work = node.work[list(streams), list(chosen)]
        speed = self.window.speed[shares]  # (R, k)
        lasts_s = (work / speed).min(axis=1)
        shares, speed, lasts_s = (a[lasts_s < node.left_s] for a in (shares, speed, lasts_s))
        if len(shares) == 0:
            return
        left = work - speed * lasts_s[:, None]
        ended = left <= _TOL
        after = np.repeat(node.work[None], len(shares), axis=0)
        for k, (v, c) in enumerate(zip(streams, chosen, strict=True)):
            after[:, v, 1:] = _NEVER
            after[:, v, c] = np.where(ended[:, k], 0.0, left[:, k])
            after[:, v, 0] = np.where(ended[:, k], _NEVER, 0.0)
        totals = node.total + lasts_s * self.value[node.state, self.window.quanta - shares.sum(axis=1)]
        bounds = totals + self.relaxed[live].bound(after, node.left_s - lasts_s, node.done)
        for n in np.flatnonzero(bounds > self.best + _TOL).tolist():
            over = [(v, c) for k, (v, c) in enumerate(zip(streams, chosen, strict=True)) if ended[n, k]]
            state = node.state + sum(c * self.window.strides[v] for v, c in over)
            done = node.done | sum(1 << v for v, _ in over)
            training = {v: (c, int(q)) for v, c, q in zip(streams, chosen, shares[n], strict=True)}
            path = (*node.path, (float(lasts_s[n]), node.state, training))
            yield float(bounds[n]), _Node(state, done, after[n], node.left_s - float(lasts_s[n]), float(totals[n]), path)
