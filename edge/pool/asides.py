"""What the pool does when nothing waits: runs finished requests again, alone, and measures what batches cost.

Measurements of batches cannot tell how long a member takes by itself, because members mask each other (card, section 3.3). So now and
then a finished picture is run once more alone, for the law of its camera's run times; and batches of each size are run, until it is
known which sizes pay and what c0 and c1 are (`edge.pool.batch_times`). Where there are no gaps, batches of frames tell it.

It costs at most `ASIDE_FRAC` of what the frames cost (and `LENT_S` at first), and begins only when no camera's next frame is expected
before it would be over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from edge.clock import Clock
from edge.pool.batch_times import QUIET
from edge.pool.shared import Kept, SharedModel
from models.serving.served import form_of
from scheduler.orloj.types import Batch, BatchPolicy

#: Compute for measuring, as a part of the time that frames took; and most that is saved up for it (s).
ASIDE_FRAC, SAVED_MAX_S = 0.05, 2.0
#: What may be spent before the frames have earned it, so that a new box soon knows its models (s).
LENT_S = 1.0
#: Costs are measured anew after this time (s).
REFRESH_S = 300.0
#: Longest batch that is run only to measure it (s).
LONGEST_S = 0.5
#: A camera whose frame is overdue for longer than this is not waited for (s).
OVERDUE_S = 2.0
#: Newest times between two frames of a camera, the shortest of which may pass until the next.
GAPS_KEPT = 8
#: Reserve on what a measurement is expected to take.
RESERVE = 1.3
#: A first measurement is expected to take this (s).
UNKNOWN_S = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Aside:
    """A measurement. size 1 with `sample`: a finished picture alone; else: a batch of `size`."""

    model: SharedModel
    kept: tuple[Kept, ...]
    sample: bool
    expected_s: float

    def batch(self) -> Batch:
        """As what runs: nobody's requests."""
        return Batch(model=self.model.name, requests=(), size=len(self.kept), expected_s=self.expected_s)


@dataclass(kw_only=True)
class _Came:
    """A camera's newest frame. at_s: when it came; due_s: see `Asides.came`; next_s: when the next is expected."""

    at_s: float
    due_s: float
    next_s: float
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS_KEPT))


class Asides:
    """Chosen and booked under the pool's lock; only `run` computes."""

    def __init__(self, *, frac: float = ASIDE_FRAC, refresh_s: float = REFRESH_S) -> None:
        self._frac, self._refresh_s = frac, refresh_s
        self._saved_s = LENT_S if frac > 0 else 0.0
        self._came: dict[str, _Came] = {}  # app -> its newest frame
        self.samples = self.measured = 0

    def earn(self, took_s: float) -> None:
        """Frames took so long."""
        self._saved_s = min(SAVED_MAX_S, self._saved_s + self._frac * took_s)

    def came(self, app: str, due_s: float | None, now_s: float) -> None:
        """A camera's frame is here. due_s: when it may ask for its next one, None: nobody knows. It comes later than that: a picture is
        decoded first, and a camera need not reach the rate that is wanted of it. So from the second frame on the newest gaps count."""
        if due_s is None:
            return
        before = self._came.get(app)
        if before is None:
            self._came[app] = _Came(at_s=now_s, due_s=due_s, next_s=due_s)
        elif before.due_s != due_s:  # not the same frame asking once more
            before.gaps_s.append(now_s - before.at_s)
            before.at_s, before.due_s, before.next_s = now_s, due_s, now_s + min(before.gaps_s)

    def next(self, models: Iterable[SharedModel], now_s: float, state: str = QUIET) -> Aside | None:
        """What could be measured now. state: what else runs."""
        if self._saved_s <= 0:
            return None
        wanted = next((aside for model in models if (aside := self._of(model, now_s, state)) is not None), None)
        if wanted is None or RESERVE * wanted.expected_s > self._gap_s(now_s):
            return None
        return wanted

    def look_again_s(self, now_s: float) -> float:
        """When waiting for a longer gap may be over; infinite: not before a frame comes."""
        if self._saved_s <= 0:
            return float("inf")
        overdue = [came.next_s + OVERDUE_S for came in self._came.values() if now_s < came.next_s + OVERDUE_S]
        return min(overdue, default=float("inf"))

    def _gap_s(self, now_s: float) -> float:
        """Until the next frame that is expected."""
        return min(
            (max(0.0, came.next_s - now_s) for came in self._came.values() if came.next_s > now_s - OVERDUE_S),
            default=float("inf"),
        )

    def _of(self, model: SharedModel, now_s: float, state: str) -> Aside | None:
        if not model.kept or not model.ran or model.broken:
            return None
        kept = model.unsampled()
        if kept is not None:
            return Aside(model=model, kept=(kept,), sample=True, expected_s=model.times.expected_s(1, state) or UNKNOWN_S)
        if not model.to_measure and now_s - model.measured_s >= self._refresh_s:
            model.measure_anew()
        if not model.to_measure:
            return None
        size = model.to_measure[0]
        pictures = list(model.kept.values())
        batch = tuple(pictures[n % len(pictures)] for n in range(size))
        return Aside(model=model, kept=batch, sample=False, expected_s=model.times.expected_s(size, state) or UNKNOWN_S)

    def run(self, aside: Aside, policy: BatchPolicy, clock: Clock, lock: threading.Lock, beside: Callable[[], str]) -> None:
        """Inside an iteration, without the lock. A model that fails here fails on its frames, too: nothing is said. beside: what else
        runs at the moment; where that changes meanwhile, nothing is learnt."""
        model, took_s, state = aside.model, None, beside()
        started_s = clock.monotonic_s()
        with model.copies[0].running, suppress(Exception):
            form_of(model.detector).predict(
                [k.image for k in aside.kept], score_min=min(k.score_min for k in aside.kept)
            )  # fmt: skip
            took_s = clock.monotonic_s() - started_s
        with lock:
            now_s = clock.monotonic_s()
            self._saved_s -= now_s - started_s
            if beside() != state:
                return
            if aside.sample:
                self._sampled(aside, policy, took_s, now_s, state)
            else:
                self._measured(aside, policy, took_s, now_s, state)

    def _sampled(self, aside: Aside, policy: BatchPolicy, took_s: float | None, now_s: float, state: str) -> None:
        [kept] = aside.kept
        aside.model.sampled.add(kept.app)
        if took_s is not None:
            policy.sample(aside.model.name, kept.app, took_s, now_s)
            aside.model.times.note(1, took_s, state)
            self.samples += 1

    def _measured(self, aside: Aside, policy: BatchPolicy, took_s: float | None, now_s: float, state: str) -> None:
        model, size = aside.model, len(aside.kept)
        if took_s is None:
            model.to_measure.clear()
            model.measured_s = now_s
            model.times.failed.add(size)
            policy.add_model(model.name, model.cost())
            return
        model.times.note(size, took_s, state)
        self.measured += 1
        if size not in model.times.typical_s():  # a second run of the same size
            return
        policy.add_model(model.name, model.cost())
        model.to_measure = [k for k in model.to_measure if k > size]
        if 2 * took_s > LONGEST_S:
            model.to_measure = []
        if not model.to_measure:
            model.measured_s = now_s
