"""One device's queue of live pictures: cameras hand them in with their deadlines, workers run the batches that a policy decides.

Which requests form the next batch, and which are given up, is decided in `scheduler/orloj` (Orloj or a baseline); here it is done. A
worker is a thread: one on a GPU, one for each core where models are on the processor. Each computes in a lane of its own
(`edge.gpu.pooled`); together they have the sum of the cameras' inference shares. A worker decides when it may compute, not before: what
came while it waited for its share takes part.

What goes wrong stays with whom it concerns. A batch that throws, or whose answers are no answers, is run again one picture at a time,
so that a poisonous picture costs its own camera only. A batch that hangs cannot be ended: its cameras are told, its thread is left to
itself, another one in another lane goes on, and nobody is let near that model until it comes back. A request that waits past its
deadline is taken back by the camera itself, so nothing waits for ever. For a policy that throws, the earliest deadline stands in.

Changed from the paper: many models share the workers (a box has one device for all of them); run times are measured as time that
passes inside an iteration, so a training beside it counts; a newer frame replaces an older one of its camera that still waits.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from configs.errors import DriftboxError, JobCancelled, JobError
from edge.clock import Clock
from edge.gpu.base import Lane
from edge.inference import close_detector
from edge.pool.asides import Aside, Asides
from edge.pool.calls import Answer, Asked, Call, Running, answers_of, found_of, share_out
from edge.pool.shared import Kept, SharedModel, free_name, weights_key
from edge.pool.turn import Superseded, TooLate, Turn
from models.detector import Detector
from scheduler.orloj.types import Batch, BatchPolicy, Decision, Request
from scheduler.types import Detections

log = logging.getLogger("driftbox")

#: Longest sleep of a waiting camera between two looks at its job, its deadline and the batch in work.
POLL_S = 0.25
#: A batch that takes so long, and `HANGS_TIMES` what is usual, hangs.
HANGS_S, HANGS_TIMES = 10.0, 10.0
#: A model that is out of use and still predicts for so long is not waited for.
CLOSE_S = 5.0
#: A request outside any frame's turn waits for so long.
ASIDE_S = 60.0

Make = Callable[[Detector, str], Detector]


class Seat(Protocol):
    """The pool's place on the device; see `edge.gpu.pooled`. workers: how many compute there at a time."""

    workers: int

    def open(self, worker: int) -> Lane:
        """A lane for the thread of a worker, counted from 0; the one before, whose thread hangs, is of no use any more."""

    def charge(self, job: str, compute_s: float) -> None:
        """So much of what the pool computed was for `job`."""

    def beside(self) -> str:
        """What else computes there now, empty: nothing. Returns at once."""


class _Worker:
    """One of those who compute: its thread now, and what that does. Its fields belong to the pool's lock."""

    def __init__(self, index: int, lock: threading.Lock) -> None:
        self.index = index
        self.number = 0  # of its newest thread
        self.alive = False  # whether that one still works
        self.running: Running | None = None
        self.rests = threading.Condition(lock)
        self.measures = index == 0  # two would measure the same


def in_thread(body: Callable[[], None]) -> None:
    threading.Thread(target=body, name="pool", daemon=True).start()


class Pool:
    """policy: whose decisions are carried out. start: runs a worker's thread. Thread-safe; `start` after the seat's backend is there.
    Counters: batches, pictures (answered), dropped (requests given up), errors (pictures on which a model failed), policy_errors
    (decisions that failed)."""

    def __init__(
        self, policy: BatchPolicy, seat: Seat, clock: Clock, *, hangs_s: float = HANGS_S, asides: Asides | None = None,
        start: Callable[[Callable[[], None]], object] = in_thread,
    ) -> None:  # fmt: skip
        self._policy, self._seat, self._clock = policy, seat, clock
        self._hangs_s, self._asides, self._spawn = hangs_s, asides or Asides(), start
        self._lock = threading.Lock()
        self._workers = [_Worker(index, self._lock) for index in range(seat.workers)]
        self._idle: deque[_Worker] = deque()  # who rest, the longest first: that one's share has grown most
        self._models: dict[str, SharedModel] = {}  # by weights
        self._asked: dict[int, Asked] = {}  # requests that wait, by id
        self._ids = 0
        self._look_again = False  # something changed since the last decision
        self._wake_s = float("inf")
        self._closed = False
        self.batches = self.pictures = self.dropped = self.errors = self.policy_errors = 0
        self.sizes: dict[int, int] = {}  # batch size -> batches

    # --- models -------------------------------------------------------------------------------------------------------

    def share(self, trained: Detector, camera: str, make: Make) -> SharedModel:
        """The model with these weights, loaded already or made now (`make`, which may take seconds). Must be given back (`leave`)."""
        key = weights_key(trained)
        with self._lock:
            known = self._models.get(key)
            if known is not None:
                known.users += 1
                return known
        made = make(trained, camera)
        with self._lock:
            known = self._models.get(key)
            if known is None:
                name = free_name(made, {model.name for model in self._models.values()})
                known = self._models[key] = SharedModel(name, key, made, copies=len(self._workers))
                self._policy.add_model(name, known.cost())
            known.users += 1
        if known.detector is not made:  # another camera was faster
            close_detector(made)
        return known

    def leave(self, model: SharedModel) -> None:
        """A camera needs it no more; with the last one it is closed, once it is out of use."""
        with self._lock:
            model.users -= 1
            if model.users > 0:
                return
            self._models.pop(model.weights, None)
        # What hangs keeps its memory, for neither it nor its thread can be taken away.
        free = [copy for copy in model.copies if copy.running.acquire(timeout=CLOSE_S)]
        try:
            if len(free) == len(model.copies):
                close_detector(model.detector)
        finally:
            for copy in free:
                copy.running.release()

    def now_s(self) -> float:
        """The pool's time, in which deadlines are given."""
        return self._clock.monotonic_s()

    # --- asking (the cameras' threads) --------------------------------------------------------------------------------

    def ask(
        self, model: SharedModel, app: str, job: str, images: Sequence[np.ndarray], score_min: float, turn: Turn
    ) -> list[Detections]:
        """Hands pictures in and waits for what the model says of each. Raises TooLate (given up), Superseded (a newer frame is there),
        JobCancelled, JobError (the model hangs, or answers nonsense), and what the model raised."""
        with self._lock:
            self._require_usable(model)
            call = self._hand_in(model, app, job, images, score_min, turn)
            try:
                while call.left and call.error is None:
                    self._look_after(call, turn)
                    if call.left and call.error is None:
                        self._clock.wait(call.done, self._sleep_s(call, turn))
            finally:
                turn.spent_s += call.spent_s
                self._withdraw(call)
            if call.error is not None:
                raise call.error
            return [found_of(asked) for asked in call.asked]

    def abandon(self, app: str, model: SharedModel) -> None:
        """The batch that runs with a picture of `app` is given up, because it takes too long. No-op when there is none: what waits is
        nobody's fault but the queue's."""
        with self._lock:
            for worker, running in self._in_work():
                if running.model is model and any(asked.call.app == app for asked in running.asked):
                    self._give_up(worker, running, self._clock.monotonic_s())

    def _require_usable(self, model: SharedModel) -> None:
        if self._closed:
            raise _cancelled()
        if model.broken:
            raise _hung(model)

    def _hand_in(
        self, model: SharedModel, app: str, job: str, images: Sequence[np.ndarray], score_min: float, turn: Turn
    ) -> Call:
        self._start_workers()
        now_s = self._clock.monotonic_s()
        call = Call(model, app, job, score_min, self._lock)
        # a call is answered whole or not at all, and counts once
        together, penalty = self._ids + 1, turn.weight / max(1, len(images))
        for image in images:
            self._ids += 1
            request = Request(
                id=self._ids, app=app, model=model.name, released_s=now_s, deadline_s=turn.deadline_s, after_s=turn.after_s,
                together=together, penalty=penalty,
            )  # fmt: skip
            self._policy.submit(request, now_s)
            asked = self._asked[request.id] = Asked(call, image, request)
            call.asked.append(asked)
        call.left = len(call.asked)
        self._asides.came(app, turn.next_s, now_s)
        self._look_again = True
        self._wake_one()
        return call

    def _look_after(self, call: Call, turn: Turn) -> None:
        """What a camera that waits has to see to by itself."""
        turn.checkpoint()
        if self._closed:
            raise _cancelled()
        now_s = self._clock.monotonic_s()
        waits = call.waits()
        if waits and now_s >= turn.deadline_s:
            raise self._drop(call, TooLate("it still waited at its deadline", subject=call.app))
        if len(waits) == len(call.asked) and turn.next_s is not None and now_s >= turn.next_s and turn.newer():
            raise self._drop(call, Superseded("a newer frame is there", subject=call.app))
        for worker, running in self._in_work():
            if now_s - running.since_s >= self._hangs_after_s(running):
                self._give_up(worker, running, now_s)

    def _sleep_s(self, call: Call, turn: Turn) -> float:
        """Until the next of a waiting camera's own moments."""
        now_s = self._clock.monotonic_s()
        moments = [now_s + POLL_S]
        if call.waits():
            moments.append(turn.deadline_s)
            if turn.next_s is not None and turn.next_s > now_s:
                moments.append(turn.next_s)
        return max(1e-4, min(moments) - now_s)

    def _drop(self, call: Call, why: TooLate) -> TooLate:
        self.dropped += len(call.waits())
        return why

    def _withdraw(self, call: Call) -> None:
        """What still waits is taken out; what runs is not waited for."""
        for asked in call.waits():
            self._policy.withdraw(asked.request.id)
            self._asked.pop(asked.request.id, None)
            asked.state = "done"
        call.left = 0

    # --- the workers --------------------------------------------------------------------------------------------------

    def _in_work(self) -> Iterator[tuple[_Worker, Running]]:
        return ((worker, worker.running) for worker in self._workers if worker.running is not None)

    def _wake_one(self) -> None:
        """One of those who rest looks; it wakes the next when it leaves something (lock held)."""
        if self._idle:
            self._clock.notify_all(self._idle.popleft().rests)

    def _start_workers(self) -> None:
        for worker in self._workers:
            if not worker.alive:
                self._renew(worker)

    def _renew(self, worker: _Worker) -> None:
        """Another thread in another lane; the one before is left to itself (lock held)."""
        lane = self._seat.open(worker.index)
        worker.number += 1
        number, worker.alive, self._look_again = worker.number, True, True
        self._spawn(lambda: self._run(worker, number, lane))

    def _run(self, worker: _Worker, number: int, lane: Lane) -> None:
        while self._wait_for_work(worker, number):
            try:
                with lane.iteration():
                    self._iterate(worker, number)
            except JobCancelled:
                self._lane_lost(worker, number, None)
                return
            except (
                Exception
            ) as error:  # the lane was removed for a fault, or a decision failed: cameras are told, the next one may work
                if not self._lane_lost(worker, number, error):
                    return

    def _lane_lost(self, worker: _Worker, number: int, error: Exception | None) -> bool:
        """error None: the backend ended. Whether this thread goes on."""
        with self._lock:
            if number != worker.number:
                return False
            if error is None:
                self._closed = True
            if isinstance(error, DriftboxError) and not self._closed:
                log.warning("the pool's lane is of no use any more: %s", error)
                worker.alive = False  # the next request opens another
                if any(other.alive for other in self._workers):
                    self._look_again = True
                    self._wake_one()
                    return False
            for call in {asked.call for asked in self._asked.values()}:
                self._fail(call, error or _cancelled())
            if self._closed or isinstance(error, DriftboxError):
                return False
            log.exception("the pool's batch could not be decided", exc_info=error)
            return True

    def _wait_for_work(self, worker: _Worker, number: int) -> bool:
        """Until there is something to decide or to measure; False: this thread is not wanted any more."""
        with self._lock:
            while True:
                if self._closed or number != worker.number:
                    return False
                now_s = self._clock.monotonic_s()
                if self._policy.waiting() and (self._look_again or now_s >= self._wake_s):
                    return True
                if not self._policy.waiting() and self._aside_for(worker, now_s) is not None:
                    return True
                self._rest(worker, now_s)

    def _rest(self, worker: _Worker, now_s: float) -> None:
        until_s = float("inf")
        if self._policy.waiting():
            until_s = self._wake_s
        elif worker.measures:
            until_s = self._asides.look_again_s(now_s)
        self._idle.append(worker)
        self._clock.wait(worker.rests, None if until_s == float("inf") else max(1e-4, until_s - now_s))
        with suppress(ValueError):  # taken out by who woke it
            self._idle.remove(worker)

    def _aside_for(self, worker: _Worker, now_s: float) -> Aside | None:
        """What could be measured now."""
        return self._asides.next(self._models.values(), now_s, self._seat.beside()) if worker.measures else None

    def _iterate(self, worker: _Worker, number: int) -> None:
        """Inside an iteration of the worker's lane."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._closed or number != worker.number:
                return
            running = worker.running = self._decided(now_s)
            if running is not None and self._policy.waiting():
                self._wake_one()
            aside = self._aside_for(worker, now_s) if running is None and not self._policy.waiting() else None
            if aside is not None:
                running = worker.running = Running(
                    batch=aside.batch(), model=aside.model, asked=[], since_s=now_s, beside=self._seat.beside()
                )
        if running is None:
            return
        if aside is not None:
            self._measure(worker, running, aside)
        else:
            self._carry_out(worker, running)

    def _measure(self, worker: _Worker, running: Running, aside: Aside) -> None:
        self._asides.run(aside, self._policy, self._clock, self._lock, self._seat.beside)
        with self._lock:
            if worker.running is running:
                worker.running = None
            else:  # given up meanwhile, as a batch that hangs is
                aside.model.broken = ""

    def _decided(self, now_s: float) -> Running | None:
        """Asks the policy (lock held), tells those who were given up."""
        self._look_again, self._wake_s = False, float("inf")
        try:
            decision = self._policy.decide(now_s)
        except Exception as error:  # a fault of ours: cameras must not pay for it, and their models even less
            self._policy_failed(error)
            decision = self._most_urgent_alone()
        for request in decision.dropped:
            asked = self._asked.pop(request.id, None)
            if asked is not None:
                asked.state = "done"
                self.dropped += 1
                self._fail(asked.call, TooLate("it could not be answered by its deadline", subject=request.app))
        if decision.wake_s is not None:
            self._wake_s = decision.wake_s
        if decision.batch is None:
            return None
        asked_for = [asked for r in decision.batch.requests if (asked := self._asked.pop(r.id, None)) is not None]
        for asked in asked_for:
            asked.state = "runs"
        self._look_again = True
        if not asked_for:
            return None
        model = asked_for[0].call.model
        return Running(batch=decision.batch, model=model, asked=asked_for, since_s=now_s, beside=self._seat.beside())

    def _policy_failed(self, error: Exception) -> None:
        self.policy_errors += 1
        if self.policy_errors == 1:
            log.exception(
                "the policy %s failed; while it does, the most urgent picture is next", self._policy.name, exc_info=error
            )

    def _most_urgent_alone(self) -> Decision:
        """Earliest deadline first, one at a time."""
        asked = min(self._asked.values(), key=lambda one: (one.request.deadline_s, one.request.id), default=None)
        if asked is None:
            return Decision()
        with suppress(Exception):
            self._policy.withdraw(asked.request.id)
        return Decision(batch=Batch(model=asked.request.model, requests=(asked.request,), size=1, expected_s=0.0))

    def _carry_out(self, worker: _Worker, running: Running) -> None:
        compute_s, copy = self._clock.thread_cpu_s, running.model.copies[worker.index]
        before_s = compute_s()
        with copy.running:
            answers, at_once = answers_of(copy.detector, running.asked, compute_s)
        spent_s = compute_s() - before_s
        with self._lock:
            now_s = self._clock.monotonic_s()
            if worker.running is not running:  # given up meanwhile: it did not hang for ever
                running.model.broken = ""
                return
            worker.running, self._look_again = None, True
            share_out(answers, spent_s)
            for asked, answer in zip(running.asked, answers, strict=True):
                self._deliver(asked, answer)
            self._learn(running, now_s, believed=at_once)

    def _learn(self, running: Running, now_s: float, *, believed: bool) -> None:
        """believed: the batch ran once; one that failed, or was run twice, says nothing of what batches take."""
        took_s = now_s - running.since_s
        model, size = running.model, len(running.asked)
        self.batches += 1
        self.sizes[size] = self.sizes.get(size, 0) + 1
        if not believed:
            if size > 1:
                model.times.failed.add(size)
                self._tell_cost(model)
            return
        model.ran = True
        try:
            self._policy.ran(running.batch, took_s, now_s)
        except Exception as error:
            self._policy_failed(error)
        self._asides.earn(took_s)
        if self._news_of(running, took_s, now_s):
            self._tell_cost(model)
        for asked in running.asked:
            call = asked.call
            kept = Kept(app=call.app, image=asked.image, score_min=call.score_min)
            model.keep(kept, sampled=size == 1 and running.batch.size == 1)

    def _tell_cost(self, model: SharedModel) -> None:
        """What its batches are taken to cost now."""
        try:
            self._policy.add_model(model.name, model.cost())
        except Exception as error:  # as in `_decided`: the worker must not end for it
            self._policy_failed(error)

    def _news_of(self, running: Running, took_s: float, now_s: float) -> bool:
        """Whether the model's batches cost something else by this run. One that was begun in another form says nothing of the new one,
        and one beside which something began or ended says nothing of either."""
        model = running.model
        if model.changed_form():
            return True
        same = running.beside == self._seat.beside()
        learnt = same and model.times.note(len(running.asked), took_s, running.beside)
        return model.times.forget_bad_sizes(now_s) or learnt

    def _deliver(self, asked: Asked, answer: Answer) -> None:
        call = asked.call
        asked.state, asked.found = "done", answer.found
        call.spent_s += answer.compute_s
        self._seat.charge(call.job, answer.compute_s)
        if answer.error is not None:
            self.errors += 1
            self._fail(call, answer.error)
            return
        self.pictures += 1
        call.left = max(0, call.left - 1)
        if not call.left:
            self._clock.notify_all(call.done)

    def _fail(self, call: Call, error: Exception) -> None:
        """Lock held. What else the call asked is of no use any more."""
        call.error = call.error or error
        self._withdraw(call)
        self._clock.notify_all(call.done)

    # --- hanging ------------------------------------------------------------------------------------------------------

    def _hangs_after_s(self, running: Running) -> float:
        return max(
            self._hangs_s,
            HANGS_TIMES * running.model.times.expected_s(len(running.asked) or running.batch.size, running.beside),
        )

    def _give_up(self, worker: _Worker, running: Running, now_s: float) -> None:
        """Lock held."""
        model = running.model
        model.broken = f"{model.name} hangs: no answer for {now_s - running.since_s:.0f} s"
        log.warning("%s; the other models go on in another thread", model.broken)
        worker.running = None
        for asked in running.asked:
            asked.state = "done"
            self.errors += 1
            self._fail(asked.call, _hung(model))
        for call in {asked.call for asked in self._asked.values() if asked.call.model is model}:
            self._fail(call, _hung(model))
        self._renew(worker)

    def close(self) -> None:
        """Ends the workers; who waits gets JobCancelled. Idempotent."""
        with self._lock:
            self._closed = True
            in_work = [asked for _, running in self._in_work() for asked in running.asked]
            for call in {asked.call for asked in (*self._asked.values(), *in_work)}:
                self._fail(call, _cancelled())
            while self._idle:
                self._wake_one()


def _hung(model: SharedModel) -> JobError:
    return JobError(
        model.broken, subject=model.name, remedy="nobody asks it until it comes back; let another model serve", code="hung"
    )


def _cancelled() -> JobCancelled:
    return JobCancelled("the box's queue of pictures is closed", subject="pool")
