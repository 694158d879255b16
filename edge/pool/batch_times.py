"""How long a model's batches took, and what batches are taken to cost by that (c0, c1 and the sizes of `ModelCost`).

Run times are kept apart by what ran beside them: beside a training everything takes several times as long, so a single picture from
before it and a batch from its midst say nothing together. What batches *save* is taken for the same in all states: a size that was run
in one of them only is counted in the others in proportion to single pictures. How much slower a state is, `scheduler.orloj.beside` says.

Batches larger than any that was run are hoped to save something, one size at a time: so they are tried when so many pictures wait, and
two runs tell. Else a box whose cameras leave no gaps to measure in would never form a batch.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Mapping

from scheduler.orloj.fit import BatchRun, fit_cost
from scheduler.orloj.types import ModelCost

#: Batch sizes that are tried.
SIZES: tuple[int, ...] = (1, 2, 4, 8, 16)
#: A larger batch must save this part of the time per picture, or it only makes everybody wait.
SAVES_FRAC = 0.03
#: Newest run times that are remembered, of each batch size.
RUNS_KEPT = 16
#: Times with fewer runs than this are not believed.
RUNS_LEAST = 2
#: What a batch larger than any that was run is hoped to save of its pictures' time.
HOPED_FRAC = 0.25
#: Sizes that did not pay are tried again after this time (s).
TRY_AGAIN_S = 300.0
#: The state of a device that has nothing else to do.
QUIET = ""


class BatchTimes:
    """Of one model. failed: sizes that it could not be run in."""

    def __init__(self) -> None:
        self._of_state: dict[str, dict[int, deque[float]]] = {}  # state -> batch size -> newest run times
        self.failed: set[int] = set()
        self._forgot_s: float | None = None

    def note(self, size: int, took_s: float, state: str = QUIET) -> bool:
        """A batch of `size` pictures took so long. True: now it is known how long such batches take, and was not before."""
        times = self._of_state.setdefault(state, {}).setdefault(size, deque(maxlen=RUNS_KEPT))
        times.append(took_s)
        return len(times) == RUNS_LEAST

    def clear(self) -> None:
        self._of_state.clear()
        self.failed.clear()

    def forget_bad_sizes(self, now_s: float) -> bool:
        """Now and then: sizes that did not pay, or failed, count as never run. True: some were forgotten."""
        if self._forgot_s is None:
            self._forgot_s = now_s
        if now_s - self._forgot_s < TRY_AGAIN_S:
            return False
        self._forgot_s = now_s
        pay = worthwhile(self.typical_s())
        known = {size for times in self._of_state.values() for size in times}
        bad = (known - set(pay)) | self.failed
        for times in self._of_state.values():
            for size in bad & times.keys():
                del times[size]
        self.failed.clear()
        return bool(bad)

    def typical_s(self) -> dict[int, float]:
        """Median run time of each batch size that was run often enough: on the quiet device, or in another state where single pictures
        were never run quietly."""
        base = self._base()
        known = _medians(self._of_state.get(base, {}))
        for state in self._of_state.keys() - {base}:
            there = _medians(self._of_state[state])
            if there.get(1, 0.0) > 0 and 1 in known:
                known = {size: took_s * known[1] / there[1] for size, took_s in there.items()} | known
        return dict(sorted(known.items()))

    def _base(self) -> str:
        """The state whose times count: where single pictures are known, the quiet one before others."""
        with_singles = [state for state, times in self._of_state.items() if len(times.get(1, ())) >= RUNS_LEAST]
        return min(with_singles, default=QUIET)

    def expected_s(self, size: int, state: str = QUIET) -> float:
        """A guess at what a batch takes; 0: nothing is known."""
        times = self._of_state.get(state) or next(iter(self._of_state.values()), {})
        known = _medians(times) or {k: statistics.median(t) for k, t in times.items()}
        if not known:
            return 0.0
        nearest = min(known, key=lambda k: abs(k - size))
        return known[nearest] * max(1.0, size / nearest)

    def cost(self) -> ModelCost:
        """c0, c1 and the sizes that pay, and the one size that is hoped for. Pictures are run one by one until it is known how long one
        takes."""
        typical_s = {size: took_s for size, took_s in self.typical_s().items() if size in SIZES}
        if typical_s.get(1, 0.0) <= 0:
            return ModelCost()
        sizes = worthwhile(typical_s)
        unknown = next((size for size in SIZES if size not in typical_s), None)
        if unknown is not None and unknown < min(self.failed, default=math.inf):
            below = max(size for size in typical_s if size < unknown)
            typical_s[unknown] = (1 - HOPED_FRAC) * unknown * typical_s[below] / below
            sizes = tuple(sorted((*sizes, unknown)))
        if sizes == (1,):
            return ModelCost()
        single_s = self._of_state[self._base()][1]
        runs = [BatchRun(size=size, longest_s=longest_of(single_s, size), took_s=typical_s[size]) for size in sizes]
        return fit_cost(runs, sizes)


def _medians(times_s: Mapping[int, Collection[float]]) -> dict[int, float]:
    return {size: statistics.median(times) for size, times in sorted(times_s.items()) if len(times) >= RUNS_LEAST}


def worthwhile(typical_s: Mapping[int, float]) -> tuple[int, ...]:
    """Batch sizes that pay, ascending, 1 among them: each saves `SAVES_FRAC` of the time per picture over the one before it."""
    sizes, best_s = [1], typical_s.get(1)
    for size in sorted(k for k in typical_s if k > 1):
        each_s = typical_s[size] / size
        if best_s is None or each_s <= (1 - SAVES_FRAC) * best_s:
            sizes.append(size)
            best_s = each_s
    return tuple(sizes)


def longest_of(times_s: Collection[float], count: int) -> float:
    """What the longest of `count` of these times is on average, drawn with putting back. A batch's law takes the longest of single ones,
    so what it took has to be compared with that, or a machine whose times vary seems to gain nothing from batches."""
    n = len(times_s)
    return sum(took_s * ((i / n) ** count - ((i - 1) / n) ** count) for i, took_s in enumerate(sorted(times_s), start=1))
