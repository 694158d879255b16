"""What every serving policy has in common: checked requests, one queue per model in order of deadlines, nothing lost or served twice."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from scheduler.orloj.types import Batch, Decision, ModelCost, Request


class Queue:
    """Requests of one model in order of (deadline, submission). Arrays beside them, so that thousands are looked at in one step."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        # Columns of the request at place i are at `_begin + i`: most are taken near the front, and what is before them moves up.
        self._begin = 0
        self._floats = np.empty((3, 64))  # deadline_s, penalty, after_s
        self._ints = np.empty((2, 64), np.int64)  # mark, together

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> Sequence[Request]:
        return self._requests

    @property
    def deadline_s(self) -> np.ndarray:
        """float64 (N,), ascending."""
        return self._floats[0, self._begin : self._begin + len(self._requests)]

    @property
    def penalty(self) -> np.ndarray:
        """float64 (N,)."""
        return self._floats[1, self._begin : self._begin + len(self._requests)]

    @property
    def after_s(self) -> np.ndarray:
        """float64 (N,)."""
        return self._floats[2, self._begin : self._begin + len(self._requests)]

    @property
    def mark(self) -> np.ndarray:
        """int64 (N,): the number that each request was added with."""
        return self._ints[0, self._begin : self._begin + len(self._requests)]

    @property
    def together(self) -> np.ndarray:
        """int64 (N,): `Request.together`, -1 for one by itself."""
        return self._ints[1, self._begin : self._begin + len(self._requests)]

    def add(self, request: Request, mark: int = 0) -> None:
        if self._begin + len(self._requests) == self._floats.shape[1]:
            self._make_room()
        place = bisect.bisect_right(self._requests, request.deadline_s, key=_deadline)
        at, end = self._begin + place, self._begin + len(self._requests)
        together = -1 if request.together is None else request.together
        for columns in (self._floats, self._ints):
            columns[:, at + 1 : end + 1] = columns[:, at:end]
        self._floats[:, at] = request.deadline_s, request.penalty, request.after_s
        self._ints[:, at] = mark, together
        self._requests.insert(place, request)

    def _make_room(self) -> None:
        """Columns from 0 on again, with as much room as is in use."""
        n = len(self._requests)
        used = slice(self._begin, self._begin + n)
        room = max(n, 64)
        self._floats = np.concatenate([self._floats[:, used], np.empty((3, room))], axis=1)
        self._ints = np.concatenate([self._ints[:, used], np.empty((2, room), np.int64)], axis=1)
        self._begin = 0

    def take(self, places: Iterable[int]) -> tuple[Request, ...]:
        """Takes these places out, in the order given."""
        chosen = list(places)
        if not chosen:
            return ()
        taken = tuple(self._requests[i] for i in chosen)
        looked = max(chosen) + 1
        keep = np.ones(looked, bool)
        keep[chosen] = False
        self._requests[:looked] = itertools.compress(self._requests[:looked], keep.tolist())
        front = slice(self._begin, self._begin + looked)
        self._begin += len(chosen)
        for columns in (self._floats, self._ints):
            columns[:, self._begin : front.stop] = columns[:, front][:, keep]
        return taken

    def take_before(self, deadline_s: float) -> tuple[Request, ...]:
        """Takes out all whose deadline lies before this time."""
        return self.take(range(int(np.searchsorted(self.deadline_s, deadline_s, side="left"))))

    def place_of(self, request: Request) -> int:
        at = bisect.bisect_left(self._requests, request.deadline_s, key=_deadline)
        while self._requests[at].id != request.id:
            at += 1
        return at


class QueuedPolicy:
    """Base of the policies: checks, bookkeeping, queues. A policy decides in `_decide` and may learn in `_learn` and `_ran`."""

    name = ""

    def __init__(self) -> None:
        self._cost: dict[str, ModelCost] = {}
        self._queue: dict[str, Queue] = {}
        self._waiting: dict[int, Request] = {}

    def add_model(self, model: str, cost: ModelCost) -> None:
        """A model that requests may name; again: its cost was measured anew. Raises ValueError for a cost that is none."""
        check_cost(cost)
        self._cost[model] = cost
        self._queue.setdefault(model, Queue())

    def submit(self, request: Request, now_s: float) -> None:
        """Raises ValueError for an unknown model, an id that waits already, times and penalties that are no numbers."""
        _check_time(now_s)
        if request.model not in self._queue:
            raise ValueError(f"no model '{request.model}' was added, known: {', '.join(sorted(self._queue)) or 'none'}")
        if request.id in self._waiting:
            raise ValueError(f"request {request.id} waits already")
        numbers = (request.released_s, request.deadline_s, request.penalty, request.after_s)
        if not all(map(math.isfinite, numbers)) or request.penalty < 0 or request.after_s < 0 or (request.together or 0) < 0:
            raise ValueError(f"a request needs finite times, and a penalty, after_s and together of 0 or more, got {request}")
        self._waiting[request.id] = request
        self._queue[request.model].add(request, self._mark(request))
        self._arrived(request, now_s)

    def withdraw(self, id: int) -> bool:
        """Takes a waiting request out; False: it does not wait."""
        request = self._waiting.pop(id, None)
        if request is None:
            return False
        queue = self._queue[request.model]
        queue.take([queue.place_of(request)])
        return True

    def decide(self, now_s: float) -> Decision:
        """What the free worker does now. Raises ValueError for a time that is no number."""
        _check_time(now_s)
        decision = self._decide(now_s)
        for request in (*decision.dropped, *(decision.batch.requests if decision.batch else ())):
            del self._waiting[request.id]
        return decision

    def sample(self, model: str, app: str, alone_s: float, now_s: float) -> None:
        """A request of `app` took `alone_s` by itself. Raises ValueError for an unknown model or a time that is none."""
        _check_time(now_s)
        self._check_run(model, alone_s)
        self._learn(model, app, alone_s, now_s)

    def ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        """A batch took so long. Raises ValueError for an unknown model or a time that is none."""
        _check_time(now_s)
        self._check_run(batch.model, took_s)
        self._ran(batch, took_s, now_s)

    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def _check_run(self, model: str, took_s: float) -> None:
        if model not in self._queue:
            raise ValueError(f"no model '{model}' was added, known: {', '.join(sorted(self._queue)) or 'none'}")
        if not math.isfinite(took_s) or took_s < 0:
            raise ValueError(f"a run time must be a number of seconds, 0 or more, got {took_s}")

    def _mark(self, request: Request) -> int:
        """The number that the request's place in the queue is marked with."""
        return 0

    def _arrived(self, request: Request, now_s: float) -> None:
        pass

    def _decide(self, now_s: float) -> Decision:
        raise NotImplementedError

    def _learn(self, model: str, app: str, alone_s: float, now_s: float) -> None:
        pass

    def _ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        pass

    def _fits(self, model: str, count: int) -> int:
        """The smallest size of the model that holds `count` requests, its largest if none does."""
        sizes = self._cost[model].sizes
        return sizes[min(bisect.bisect_left(sizes, count), len(sizes) - 1)]

    def _most_urgent(self) -> str | None:
        """The model that holds the earliest deadline; the first added wins a tie."""
        held = [(queue.requests[0].deadline_s, i, model) for i, (model, queue) in enumerate(self._queue.items()) if len(queue)]
        return min(held)[2] if held else None


def check_cost(cost: ModelCost) -> None:
    """Raises ValueError for a cost that no model can have."""
    if not (math.isfinite(cost.c0_s) and math.isfinite(cost.c1)) or cost.c0_s < 0 or cost.c1 <= 0:
        raise ValueError(f"a cost needs c0_s of 0 or more and c1 above 0, got {cost}")
    if not cost.sizes or cost.sizes[0] != 1 or list(cost.sizes) != sorted(set(cost.sizes)):
        raise ValueError(f"batch sizes must ascend from 1, got {cost.sizes}")


def _check_time(now_s: float) -> None:
    if not math.isfinite(now_s):
        raise ValueError(f"the time must be a number of seconds, got {now_s}")


def _deadline(request: Request) -> float:
    return request.deadline_s
