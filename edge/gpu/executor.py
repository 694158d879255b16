"""The scheduling core of the `lanes` backends (Salus): one thread per job, one iteration at a time in each memory lane.

Three things decide when a job's next iteration runs, and all must agree:

    memory   it has a lane (`edge.gpu.tenants`); iterations in one lane never overlap, lanes do (card, section 2)
    share    policy `plan`: its token bucket is not in debt (`scheduler.pacing`); the others: its share is not 0
    order    of the jobs in a lane that could run, the policy picks one (`scheduler.salus.policies`)

Latency: jobs with the role `infer` share memory lanes with learning only where memory leaves no other way, and go first even there. And
learning gives way: while a frame is analysed, learning jobs wait at their next checkpoint or iteration, as long as they can catch up
(they save tokens meanwhile, `GIVE_WAY_S`). So learning delays a frame by one piece at most, and still gets its share.

Frames take turns: where `infer_width` says so, no more than that many are analysed at a time, and the others wait in the order in which
they asked. On few cores many models at once only push each other out of the caches and out of Python's lock; one after the other, each
frame is done sooner. A frame that takes longer than `TURN_S` does not keep the others waiting any more. Those whose turn it is not wait
outside, where that costs least (`edge.gpu.door`); inside there are those who wait for memory or for their share, too.

A job that holds a lane which others wait for is not paced at its checkpoints: it would keep the lane while it rests. It runs into debt,
and pays before its next iteration.

This file knows threads, locks and time (`edge.clock`); what a machine is, it asks of `edge.gpu.device`. Everything that is decided
rather than done is in `scheduler/`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from types import TracebackType

from configs.errors import JobCancelled, JobError
from edge.clock import Clock, SystemClock
from edge.gpu.base import ChangeCost, DeviceFacts, Fault, JobMemory, Lane, Role, ShareReport
from edge.gpu.device import Device, Seat, Sparing
from edge.gpu.door import Door, Pass
from edge.gpu.tenants import ASIDE, Tenants
from scheduler.pacing import EPSILON_S, Ledger, Pacer, PacingMode
from scheduler.salus.policies import LaneJob, join, lane_policy, rejoin
from scheduler.salus.types import MemoryNeed

#: A checkpoint that comes sooner than this after the last charge does nothing: layers of microseconds need no accounting.
CHECKPOINT_MIN_S = 0.001
#: Learning gives way to a frame in work while it has saved less compute than this; 0.15 s are 1.5 points of a 10 s span. Less than what
#: a job may save (`burst_s`), so that nothing is lost for ever.
GIVE_WAY_S = 0.15
#: No sign of life for this long inside an iteration: the job hangs.
HUNG_S = 60.0
#: A job that asks again sooner than this has not rested, see `scheduler.salus.policies.rejoin`.
RESTED_S = 0.05
#: A frame that has been in work for so long does not count among those that others wait for: it hangs, or its model is far too large.
TURN_S = 1.0
#: Policies that order the jobs of a lane: they need as many lanes as the device runs pieces at a time, not one for each job.
ORDERED = ("fair", "rr")
#: So long a lane is kept for the job that has just left it, if an ordering policy says it is its turn again: it needs a moment to ask.
GRACE_S = 0.001
#: Policies that run one job only and keep its lane idle between its iterations.
ONE_ONLY = ("fifo", "srtf")
#: Faults that are remembered.
FAULTS_KEPT = 50


class ExecutorLane:
    """One job's lane; see `edge.gpu.base.Lane`. Made by `Executor.open_lane`; its fields belong to the executor's lock."""

    def __init__(self, executor: Executor, job: str, role: Role, seat: Seat, lock: threading.Lock, *, key: str) -> None:
        self.job = job
        self.role = role
        self._key = key  # its name among the tenants: a closed lane may still be there when the next of that job is opened
        self._executor = executor
        self._seat = seat
        self._sparing = seat if isinstance(seat, Sparing) else None  # found out once: to ask costs microseconds
        self._turn = threading.Condition(lock)
        self._wake: Callable[[], None] | None = None  # in its place, for one that asks without waiting
        self._inside = False  # between the start of an iteration and its end
        self._runs = False  # inside, and not waiting at a checkpoint
        self._charged_s = 0.0  # reading of the seat at the last charge
        self._alive_s = 0.0  # last sign of life
        self._hung = False  # told already, of this piece
        self._queued = False  # wants to start an iteration
        self._asked = 0  # number of its wish to start one
        self._waits = False  # asleep
        self._paced = False  # waited for its share, see `Pacer.wait_s`
        self._holds: int | None = None  # the memory lane it occupies while inside
        self._place: int | None = None  # the memory lane whose accounts `_account` is kept for
        self._written = LaneJob(job=key, role=role, ready=True)  # read of lanes that ask
        self._unwritten = False  # what follows is newer, see `_account`
        self._ready_since_s = self._service_s = self._used_s = 0.0
        self._iterations = 0
        self._cancelled = False
        self._closed = False
        self._pass: Pass | None = None  # through the executor's door

    @property
    def _account(self) -> LaneJob:
        """Written down when somebody reads it, which nobody does as long as a memory lane has one job: a copy at each event would be
        half of what an iteration costs."""
        if self._unwritten:
            self._written = replace(
                self._written, ready_since_s=self._ready_since_s, service_s=self._service_s, used_s=self._used_s,
                iterations=self._iterations,
            )  # fmt: skip
            self._unwritten = False
        return self._written

    @_account.setter
    def _account(self, account: LaneJob) -> None:
        self._written, self._unwritten = account, False
        self._ready_since_s, self._iterations = account.ready_since_s, account.iterations
        self._service_s, self._used_s = account.service_s, account.used_s

    def _is_ready(self, now_s: float) -> None:
        self._ready_since_s, self._unwritten = now_s, True

    def _has_used(self, used_s: float) -> None:
        self._service_s, self._used_s, self._unwritten = self._service_s + used_s, self._used_s + used_s, True

    def _has_iterated(self) -> None:
        self._iterations, self._unwritten = self._iterations + 1, True

    def iteration(self) -> AbstractContextManager[None]:
        return _Iteration(self)

    def ask(self, wake: Callable[[], None]) -> AbstractContextManager[None] | float:
        """See `edge.gpu.base.TurnLane`."""
        begun = self._executor._ask_to_begin(self, wake)
        return begun if isinstance(begun, float) else _Begun(self, *begun)

    @property
    def takes_turns(self) -> bool:
        """See `edge.gpu.base.TurnLane`."""
        return self.role == "infer" and self._executor._infer_width is not None and self._sparing is not None

    def beside(self) -> AbstractContextManager[None]:
        """See `edge.gpu.base.TurnLane`; only where it `takes_turns`."""
        assert self._sparing is not None
        return self._sparing.beside()

    def checkpoint(self) -> None:
        if self._cancelled or self._closed:
            raise _cancelled(self.job)
        if not self._inside:  # a model used outside its job, to draw one picture, say
            return
        if self._seat.used_s() - self._charged_s >= CHECKPOINT_MIN_S:
            self._executor._checkpoint(self)


class _Iteration:
    """One iteration of a lane. Written out, because a generator costs twice as much, and this surrounds milliseconds."""

    __slots__ = ("_body", "_lane", "_measure")

    def __init__(self, lane: ExecutorLane) -> None:
        self._lane = lane

    def __enter__(self) -> None:
        self._enter(*self._lane._executor._begin(self._lane))

    def _enter(self, place: int | None, measure: bool) -> None:
        lane, self._measure = self._lane, measure
        try:
            self._body = lane._seat.iteration(place, measure=measure)
            self._body.__enter__()
        except BaseException:
            lane._executor._end(lane, measured=measure)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return self._body.__exit__(kind, error, trace)
        finally:
            self._lane._executor._end(self._lane, measured=self._measure)


class _Begun(_Iteration):
    """One whose turn it is already."""

    __slots__ = ("_granted",)

    def __init__(self, lane: ExecutorLane, place: int | None, measure: bool) -> None:
        super().__init__(lane)
        self._granted = (place, measure)

    def __enter__(self) -> None:
        self._enter(*self._granted)


class Executor:
    """Shares of a device for the jobs of this process, see the module's text.

    capacity_pct: what may be promised (None: all the device has). mode, of the policy `plan`: 'capped' (a job gets its share, no more)
    or 'work-conserving' (what nobody uses is lent, see `scheduler.pacing`). burst_s: compute a job may save up while the machine is too
    busy to deliver. memory_mib: what the jobs may hold together (None: what the device says). max_lanes: most memory lanes (None: as
    the policy needs). hung_s, give_way_s: see HUNG_S, GIVE_WAY_S. infer_width: frames that are analysed at a time (None: all that
    come).
    Thread-safe. Reports reach back 60 s.
    """

    name = "lanes"

    def __init__(
        self,
        device: Device,
        *,
        capacity_pct: int | None = None,
        mode: PacingMode = "capped",
        policy: str = "plan",
        burst_s: float = 0.25,
        memory_mib: float | None = None,
        max_lanes: int | None = None,
        hung_s: float = HUNG_S,
        give_way_s: float = GIVE_WAY_S,
        infer_width: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.device = device
        self.capacity_pct = device.capacity_pct if capacity_pct is None else capacity_pct
        self.clock: Clock = clock or SystemClock()
        self._policy = lane_policy(policy)
        if max_lanes is None:
            max_lanes = self._policy.max_lanes or (device.parallel if policy in ORDERED else None)
        self._hung_s = hung_s
        self.give_way_s = give_way_s
        self._pacer = Pacer(capacity_pct=self.capacity_pct, mode=mode, burst_s=burst_s, job_max_pct=device.job_max_pct)
        self._tenants = Tenants(capacity_mib=device.memory_mib if memory_mib is None else memory_mib, max_lanes=max_lanes)
        self._lanes: dict[str, ExecutorLane] = {}
        self._holders: dict[int, ExecutorLane] = {}  # memory lane -> who is inside an iteration in it
        self._queue: dict[str, ExecutorLane] = {}  # those who want to start an iteration
        self._kept: dict[int, tuple[ExecutorLane, float]] = {}  # memory lane -> (who may come back, until when), see GRACE_S
        self._giving_way: dict[str, ExecutorLane] = {}  # learning that waits for frames in work
        self._frames: dict[str, ExecutorLane] = {}  # cameras' lanes that compute, in the order in which they began
        self._infer_width = infer_width
        self._door = Door(infer_width, self.clock, turn_s=TURN_S) if infer_width is not None else None
        self._at_gate: dict[
            str, ExecutorLane
        ] = {}  # frames that could start but for `infer_width`, in the order in which they asked
        self._opened = self._asked = 0
        self._faults: deque[Fault] = deque(maxlen=FAULTS_KEPT)
        self._lock = threading.Lock()

    # --- the seam: jobs -----------------------------------------------------------------------------------------------

    def open_lane(self, job: str, *, role: Role = "learn", need: MemoryNeed | None = None) -> Lane:
        """See `edge.gpu.base`. A share that was set before the lane was opened counts from now on."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            self._pacer.open(job, now_s)
            self._opened += 1
            key = f"{job} ({self._opened})" if self._tenants.has(job) else job
            try:
                self._tenants.arrive(key, role, need, now_s)
                seat = self.device.seat(job, role)
            except Exception:
                self._tenants.leave(key, now_s)
                self._pacer.close(job, now_s)
                raise
            lane = self._lanes[job] = ExecutorLane(self, job, role, seat, self._lock, key=key)
            lane._account = replace(lane._account, arrived_s=now_s)
            if self._door is not None and role == "infer":
                lane._pass = self._door.pass_for()
            self._wake_all()
            return lane

    def close_lane(self, job: str) -> None:
        """Ends the lane; a thread that still uses it gets JobCancelled. No-op for an unknown job."""
        with self._lock:
            lane = self._lanes.pop(job, None)
            if lane is None:
                return
            lane._closed = True
            self._hurry(lane)
            self._queue.pop(lane._key, None)  # its thread may not have woken yet when others are asked about it
            now_s = self.clock.monotonic_s()
            self._pacer.close(job, now_s)
            if not lane._inside:
                self._let_go(lane, now_s)
            self._notify(lane)
            self._wake_all()

    def abandon(self, job: str) -> None:
        """`close_lane` for a job whose thread hangs inside an iteration, without waiting `hung_s`: it is told as a fault, and who shared
        its memory lane has another. No-op for an unknown job."""
        with self._lock:
            lane = self._lanes.get(job)
            if lane is not None and lane._inside and not lane._hung:
                lane._hung = True
                self._tell([self._give_up(lane, self.clock.monotonic_s())])
        self.close_lane(job)

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """See `edge.gpu.base`. Work that is running is charged at the old shares up to this moment."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            self._charge_running(now_s)
            self._pacer.set_shares(shares_pct, now_s)
            self._wake_all()

    def cancel(self, job: str) -> None:
        """See `edge.gpu.base`. Stays in force until the lane is closed."""
        with self._lock:
            lane = self._lanes.get(job)
            if lane is not None:
                lane._cancelled = True
                self._hurry(lane)
                self._wake_all()

    def close(self) -> None:
        """See `edge.gpu.base`."""
        with self._lock:
            for lane in self._lanes.values():
                lane._cancelled = True
                self._hurry(lane)
            self._wake_all()

    def expect(self, job: str, total_s: float) -> None:
        """See `edge.gpu.base`."""
        with self._lock:
            lane = self._lanes.get(job)
            if lane is not None and lane._account.total_s != total_s:
                lane._account = replace(lane._account, total_s=total_s)
                self._wake_all()

    # --- the seam: what is known --------------------------------------------------------------------------------------

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        """See `edge.gpu.base`. Includes what running iterations have used so far. The span is cut to the lane's age and to
        the history kept; ShareReport.span_s says what it covers. A job that waits for memory is not backlogged: no share would help.
        ValueError: span_s is not positive."""
        if not span_s > 0:
            raise ValueError(f"span_s must be positive, got {span_s}")
        with self._lock:
            now_s = self.clock.monotonic_s()
            self._charge_running(now_s)
            return {
                job: _report(job, self._pacer.ledger(job, now_s), now_s, span_s, self._pacer.share_pct(job))
                for job in self._lanes
            }

    def memory(self) -> dict[str, JobMemory]:
        """See `edge.gpu.base`."""
        with self._lock:
            return {job: self._tenants.memory(lane._key, job) for job, lane in self._lanes.items()}

    def change_cost(self) -> ChangeCost:
        """Nothing: shares are numbers that are looked at before the next piece of work."""
        return ChangeCost()

    def facts(self) -> tuple[DeviceFacts, ...]:
        return self.device.facts()

    def faults(self) -> tuple[Fault, ...]:
        """See `edge.gpu.base`."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            self._look_for_hung(now_s)
            starved = self._tenants.remove_starved(now_s)
            if starved:
                self._tell(starved)
                self._wake_all()
            return tuple(self._faults)

    def ledger(self, job: str) -> Ledger:
        """The account of an open lane, for measurements. KeyError: no such lane."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            self._charge_running(now_s)
            return self._pacer.ledger(job, now_s)

    def check(self) -> None:
        """Invariants: those of the pacer and of the memory lanes; one iteration at most in each memory lane."""
        with self._lock:
            self._check()

    # --- called by lanes, in the job's thread -------------------------------------------------------------------------

    def _begin(self, lane: ExecutorLane) -> tuple[int | None, bool]:
        """Waits for the job's turn. Returns (memory lane, None: aside; whether to measure)."""
        self._come_in(lane)
        try:
            return self._begin_inside(lane)
        except BaseException:
            self._go_out(lane)
            raise

    def _come_in(self, lane: ExecutorLane) -> None:
        door, its = self._door, lane._pass
        if door is None or its is None or door.enter_if_free(its):
            return
        with self._lock:
            if not lane._closed:
                self._pacer.want(lane.job, self.clock.monotonic_s())  # that others go first is no rest
        door.enter(its)

    def _go_out(self, lane: ExecutorLane) -> None:
        if self._door is not None and lane._pass is not None:
            self._door.leave(lane._pass)

    def _hurry(self, lane: ExecutorLane) -> None:
        if self._door is not None and lane._pass is not None:
            self._door.hurry(lane._pass)

    def _begin_inside(self, lane: ExecutorLane) -> tuple[int | None, bool]:
        with self._lock:
            self._require_outside(lane, self.clock.monotonic_s())
            self._wait_for_turn(lane, iteration=True)
            return self._take_place(lane, self.clock.monotonic_s())

    def _ask_to_begin(self, lane: ExecutorLane, wake: Callable[[], None]) -> tuple[int | None, bool] | float:
        """As `_begin` for whoever does not wait: seconds after which to ask again. It stands in no line at the door: there are no more
        threads that ask so than frames may be in work."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            self._require_outside(lane, now_s)
            if not lane._queued:
                lane._paced = False
                self._queue_up(lane, now_s)
            lane._waits, lane._wake = False, wake
            try:
                wait_s = self._wait_s(lane, now_s, iteration=True)
            except BaseException:
                self._stop_asking(lane)
                raise
            if wait_s > 0:
                lane._waits = True
                return wait_s
            self._stop_asking(lane)
            return self._take_place(lane, now_s)

    def _require_outside(self, lane: ExecutorLane, now_s: float) -> None:
        """Lock held."""
        if lane._inside:
            raise RuntimeError(f"job {lane.job!r}: iteration inside an iteration, or from a second thread")
        self._require_open(lane, now_s)  # ended outside: nothing is known of it any more

    def _take_place(self, lane: ExecutorLane, now_s: float) -> tuple[int | None, bool]:
        """Lock held. It is its turn."""
        place = self._tenants.place(lane._key)
        assert place is not None
        assert place not in self._holders, f"{lane.job}: lane {place} is taken"
        lane._inside, lane._holds = True, place
        self._holders[place] = lane
        self._kept.pop(place, None)
        self._tenants.begin(lane._key)
        self._start(lane, now_s, iteration=True)
        if measure := self._tenants.wants_measuring(lane._key):
            self.device.promised_mib = self._tenants.promised_mib
        return (None if place == ASIDE else place), measure or self.device.measures_always

    def _end(self, lane: ExecutorLane, *, measured: bool) -> None:
        with self._lock:
            handed_on = self._ended(lane, measured=measured)
        self._go_out(lane)
        if handed_on:
            # The one who was woken needs Python's lock, which this thread would keep for the interpreter's switch interval.
            time.sleep(0)

    def _ended(self, lane: ExecutorLane, *, measured: bool) -> bool:
        """Whether somebody was woken to take the lane."""
        now_s = self.clock.monotonic_s()
        if lane._runs:  # else cancelled at a checkpoint: charged there
            self._charge(lane, now_s, done=True)
        place, lane._inside, lane._holds = lane._holds, False, None
        if place is not None and self._holders.get(place) is lane:
            del self._holders[place]
        self._tenants.end(lane._key, now_s)
        lane._has_iterated()
        if lane._closed:
            self._let_go(lane, now_s)
            return True
        self._pacer.rest(lane.job, now_s)
        if measured:
            self._learn_memory(lane, now_s)
        if self._policy.name in ORDERED and place is not None:
            self._keep_if_next(lane, place, now_s)
        return self._pass_on(place, now_s)

    def _keep_if_next(self, lane: ExecutorLane, place: int, now_s: float) -> None:
        """Keeps the lane for a moment for the job that has just left it, if it would be its turn again."""
        self._ask(lane)
        if self._pick(place, now_s) is lane:
            self._kept[place] = (lane, now_s + GRACE_S)
        lane._queued = False
        del self._queue[lane._key]

    def _checkpoint(self, lane: ExecutorLane) -> None:
        lane._seat.settle()
        with self._lock:
            self._charge(lane, self.clock.monotonic_s(), done=True)
            self._wait_for_turn(lane, iteration=False)
            self._start(lane, self.clock.monotonic_s(), iteration=False)
        lane._seat.resume()

    # --- whose turn it is (lock held) ---------------------------------------------------------------------------------

    def _wait_for_turn(self, lane: ExecutorLane, *, iteration: bool) -> None:
        """Raises JobCancelled, or JobError when the job was removed; the job then rests."""
        lane._paced = False
        if iteration:
            self._queue_up(lane, self.clock.monotonic_s())
        try:
            while (wait_s := self._wait_s(lane, self.clock.monotonic_s(), iteration=iteration)) > 0:
                lane._waits = True
                if lane._key not in self._at_gate:
                    self._go_out(lane)  # for its memory or its share; a turn is of no use to it
                self.clock.wait(lane._turn, None if math.isinf(wait_s) else wait_s)
                lane._waits = False
        finally:
            self._stop_asking(lane)

    def _stop_asking(self, lane: ExecutorLane) -> None:
        lane._queued, lane._wake = False, None
        self._queue.pop(lane._key, None)
        self._giving_way.pop(lane._key, None)
        self._leave_gate(lane)

    def _queue_up(self, lane: ExecutorLane, now_s: float) -> None:
        self._ask(lane)
        lane._is_ready(now_s)
        if now_s - lane._alive_s > RESTED_S and len(self._queue) > 1:
            place = self._tenants.place(lane._key)
            asking = self._asking(place) if place is not None else ()
            others = [o._account for o in asking if o is not lane and o._place == lane._place]
            if others:
                lane._account = rejoin(others, lane._account)

    def _ask(self, lane: ExecutorLane) -> None:
        self._asked += 1
        lane._queued, lane._asked, self._queue[lane._key] = True, self._asked, lane

    def _wait_s(self, lane: ExecutorLane, now_s: float, *, iteration: bool) -> float:
        """Seconds until the lane might have its turn, 0: now, inf: not before something changes (which wakes it)."""
        wait_s = self._own_wait_s(lane, now_s, iteration=iteration)
        if self._infer_width is None or lane.role != "infer" or not iteration or lane._wake is not None:
            return wait_s  # those who ask without waiting are as few as may be in work
        if wait_s > 0:
            self._leave_gate(lane)
            return wait_s
        return self._gate_s(lane, now_s)

    def _own_wait_s(self, lane: ExecutorLane, now_s: float, *, iteration: bool) -> float:
        """The same, but for the other cameras' frames."""
        self._require_open(lane, now_s)
        place = self._tenants.place(lane._key) if iteration else lane._holds
        if place is None:
            self._pacer.rest(lane.job, now_s)  # its share is of no use to it
            return math.inf
        self._pacer.want(lane.job, now_s)
        if iteration or not self._others_wait_for(place):
            share_s = self._share_s(lane, now_s)
            if share_s > 0:
                lane._paced = True
                return share_s
        way_s = self._give_way_s(lane)
        if way_s > 0:
            self._giving_way[lane._key] = lane
            return way_s
        self._giving_way.pop(lane._key, None)
        if not iteration:
            return way_s
        kept_for, until_s = self._kept.get(place, (lane, now_s))
        if kept_for is not lane and until_s - now_s > EPSILON_S:
            return until_s - now_s
        return 0.0 if self._is_its_turn(lane, place, now_s) else math.inf

    def _require_open(self, lane: ExecutorLane, now_s: float) -> None:
        removed = None if lane._closed else self._tenants.removed(lane._key)
        if not (lane._cancelled or lane._closed or removed):
            return
        if not lane._closed:
            self._pacer.rest(lane.job, now_s)
        self._wake_all()
        if lane._cancelled or lane._closed or removed is None:
            raise _cancelled(lane.job)
        raise JobError(removed.message, subject=lane.job, remedy=removed.remedy, code=removed.code)

    def _is_its_turn(self, lane: ExecutorLane, place: int, now_s: float) -> bool:
        if place in self._holders:
            return False
        if len(self._queue) == 1 and self._policy.name not in ONE_ONLY:
            return True  # nobody else asks
        chosen = self._pick(place, now_s, asks=lane)
        if chosen is not None and chosen is not lane and chosen._waits:
            self._notify(chosen)
        return chosen is lane

    def _share_s(self, lane: ExecutorLane, now_s: float) -> float:
        if self._policy.name == "plan":
            return self._pacer.wait_s(lane.job, now_s, resumed=lane._paced)
        return 0.0 if self._pacer.share_pct(lane.job) > 0 else math.inf

    def _give_way_s(self, lane: ExecutorLane) -> float:
        """How long a learning job lets the frames in work go first."""
        rate = self._pacer.rate_pct(lane.job) / 100.0
        if lane.role == "infer" or not self._frames or rate <= 0:
            return 0.0
        missing_s = self.give_way_s - self._pacer.balance_s(lane.job)
        return missing_s / rate if missing_s > EPSILON_S else 0.0  # rounding must not cost a wait that no clock can keep

    def _gate_s(self, lane: ExecutorLane, now_s: float) -> float:
        """How long a frame that could start lets those before it go first; 0: it starts. It is woken when its turn comes sooner."""
        self._line_up(lane)
        if lane in self._next_at_gate(now_s):
            del self._at_gate[lane._key]  # and nobody is told: it takes the room
            return 0.0
        begun_s = [other._alive_s for other in self._frames.values() if now_s - other._alive_s < TURN_S]
        return max(EPSILON_S, min(begun_s, default=now_s) + TURN_S - now_s)

    def _line_up(self, lane: ExecutorLane) -> None:
        """One that had to wait for its memory lane first asked before those who came meanwhile, and takes its place among them: at the
        end of the line it would wait twice, while cameras that have a lane to themselves wait once. No-op for one in the line."""
        if lane._key in self._at_gate:
            return
        overtakes = bool(self._at_gate) and next(reversed(self._at_gate.values()))._ready_since_s > lane._ready_since_s
        self._at_gate[lane._key] = lane
        if overtakes:
            self._at_gate = dict(sorted(self._at_gate.items(), key=lambda item: item[1]._ready_since_s))

    def _next_at_gate(self, now_s: float) -> list[ExecutorLane]:
        """As many of those who wait as there is room for."""
        if self._infer_width is None:
            return []
        at_work = sum(now_s - lane._alive_s < TURN_S for lane in self._frames.values())
        return list(islice(self._at_gate.values(), max(0, self._infer_width - at_work)))

    def _leave_gate(self, lane: ExecutorLane) -> None:
        """It has a reason of its own to wait, or was ended: whoever is next is told."""
        if self._at_gate.pop(lane._key, None) is not None:
            self._wake_at_gate(self.clock.monotonic_s())

    def _wake_at_gate(self, now_s: float) -> bool:
        """Whether somebody was woken."""
        following = [lane for lane in self._next_at_gate(now_s) if lane._waits] if self._at_gate else []
        for lane in following:
            self._notify(lane)
        return bool(following)

    def _others_wait_for(self, place: int) -> bool:
        return any(self._tenants.place(other._key) == place for other in self._asking(place))

    def _pick(self, place: int, now_s: float, asks: ExecutorLane | None = None) -> ExecutorLane | None:
        """Whose iteration is next in a free lane. asks: one who could run now."""
        lanes = [lane for lane in self._pool(place) if self._could_be_next(lane, place)]
        if lanes == [asks]:
            return asks
        self._bring_accounts_forward(lanes, place)
        jobs = [
            replace(
                lane._account, ready=lane._queued, weight=self._pacer.share_pct(lane.job),
                wait_s=self._share_s(lane, now_s), saved_s=self._pacer.balance_s(lane.job),
            )
            for lane in lanes
        ]  # fmt: skip
        picked = self._policy.pick(now_s, jobs).job
        return next((lane for lane in lanes if lane._key == picked), None)

    def _pool(self, place: int) -> Iterable[ExecutorLane]:
        """Whose turn in a memory lane it could be. Policies that run one job only wait for it, also while it does not ask."""
        return self._lanes.values() if self._policy.name in ONE_ONLY else self._asking(place)

    def _asking(self, place: int) -> list[ExecutorLane]:
        """Who wants to start an iteration in a memory lane, in the order in which they asked. Not found by going through the whole
        queue: when many frames wait, looking at all of them for each that begins and ends makes more of them wait."""
        asking = (self._queue.get(key) for key in self._tenants.sharers(place))
        return sorted((lane for lane in asking if lane is not None), key=lambda lane: lane._asked)

    def _could_be_next(self, lane: ExecutorLane, place: int) -> bool:
        return (
            self._tenants.place(lane._key) == place
            and not (lane._cancelled or lane._closed or lane._inside or self._tenants.removed(lane._key))
            and self._pacer.rate_pct(lane.job) > 0
        )

    def _bring_accounts_forward(self, lanes: Sequence[ExecutorLane], place: int) -> None:
        """A newcomer to a memory lane begins with the least service of those who are there (card, example T5)."""
        there = [lane for lane in lanes if lane._place == place]
        for lane in lanes:
            if lane._place == place:
                continue
            accounts = join([other._account for other in there], lane._account)
            there.append(lane)
            lane._place = place
            for other, account in zip(there, accounts, strict=True):
                other._account = account

    # --- accounts and waking (lock held) ------------------------------------------------------------------------------

    def _start(self, lane: ExecutorLane, now_s: float, *, iteration: bool) -> None:
        lane._runs, lane._alive_s, lane._hung = True, now_s, False
        lane._charged_s = lane._seat.used_s()
        if lane.role == "infer":
            self._frames[lane._key] = lane
        self._pacer.start(lane.job, now_s, iteration=iteration)

    def _charge(self, lane: ExecutorLane, now_s: float, *, done: bool) -> None:
        """Charges what the job used since the last charge."""
        used_s = lane._seat.used_s()
        charged_s, lane._charged_s = used_s - lane._charged_s, used_s
        if done:
            lane._runs = False
            if lane.role == "infer":
                self._frames.pop(lane._key, None)
                if not self._frames:
                    self._wake_those_who_give_way()
        lane._has_used(charged_s)
        lane._alive_s = now_s if done else lane._alive_s
        if not lane._closed:
            self._pacer.charge(lane.job, charged_s, now_s, done=done)

    def _charge_running(self, now_s: float) -> None:
        for lane in self._lanes.values():
            if lane._runs:
                self._charge(lane, now_s, done=False)

    def _pass_on(self, place: int | None, now_s: float) -> bool:
        """A lane is free: wakes whose turn it is, and says whether there was somebody. Those whose share does not allow it yet wake by
        themselves."""
        following = self._pick(place, now_s) if place is not None and place not in self._holders and self._queue else None
        woken = following is not None and following._waits
        if following is not None and woken:
            if self._infer_width is not None and following.role == "infer" and following._wake is None:
                self._line_up(following)  # now, or the room would be another's before it has woken
            self._notify(following)
        woken = self._wake_at_gate(now_s) or woken
        if self._pacer.mode == "work-conserving":  # somebody rests: others may start earlier than they thought
            self._wake_all()
        return woken

    def _wake_those_who_give_way(self) -> None:
        for lane in self._giving_way.values():
            self._notify(lane)

    def _wake_all(self) -> None:
        for lane in self._lanes.values():
            if lane._waits:
                self._notify(lane)

    def _notify(self, lane: ExecutorLane) -> None:
        if lane._wake is not None:
            lane._wake()
        else:
            self.clock.notify_all(lane._turn)

    # --- memory and faults (lock held) --------------------------------------------------------------------------------

    def _learn_memory(self, lane: ExecutorLane, now_s: float) -> None:
        usage = lane._seat.usage()
        if usage is None:
            return
        before = self._tenants.table
        self._tell(self._tenants.read(lane._key, usage, now_s))
        if self._tenants.table is not before:
            self._wake_all()

    def _let_go(self, lane: ExecutorLane, now_s: float) -> None:
        """A closed lane, outside any iteration: its memory is free, and others may fit now."""
        self._tenants.leave(lane._key, now_s)
        lane._seat.close()
        self._wake_all()

    def _look_for_hung(self, now_s: float) -> None:
        for lane in list(self._lanes.values()):
            if lane._runs and not lane._hung and now_s - lane._alive_s >= self._hung_s:
                lane._hung = True
                self._tell([self._give_up(lane, now_s)])

    def _give_up(self, lane: ExecutorLane, now_s: float) -> Fault:
        """A job that hangs keeps its memory and its thread, for neither can be taken away; those who share its lane are moved."""
        used_s = lane._seat.used_s() - lane._charged_s
        text = f"no sign of life for {now_s - lane._alive_s:.0f} s inside an iteration ({used_s:.1f} s of compute since)"
        removed = lane.role == "learn"
        remedy = "restart the box if it goes on: the job's memory is free only then"
        if removed:
            self._tenants.expel(lane._key, JobError(f"it hung: {text}", subject=lane.job, remedy=remedy, code="hung"), now_s)
        if lane._holds == ASIDE:
            del self._holders[ASIDE]  # others are measured although it is not done
        elif lane._holds is not None:
            moved = self._tenants.resettle(lane._holds, now_s)
            text += f"; {len(moved)} jobs that shared its lane have another" if moved else ""
        self._wake_all()
        return Fault(at_s=now_s, job=lane.job, code="hung", text=text, remedy=remedy, removed=removed)

    def _tell(self, faults: Iterable[Fault]) -> None:
        self._faults.extend(faults)

    def _check(self) -> None:
        self._pacer.check()
        self._tenants.check()
        for place, lane in self._holders.items():
            assert (lane._inside, lane._holds) == (True, place), f"{lane.job} holds lane {place} and is not in it"


def _cancelled(job: str) -> JobCancelled:
    return JobCancelled(f"job {job} was cancelled", subject=job)


def _report(job: str, ledger: Ledger, now_s: float, span_s: float, share_pct: float) -> ShareReport:
    start_s = max(now_s - span_s, ledger.entries()[0].at_s)
    a, b = ledger.at(start_s), ledger.last()
    covered_s = now_s - start_s
    if covered_s <= 0:
        return ShareReport(job=job, promised_pct=share_pct, received_pct=0.0, backlogged_frac=0.0, iterations=0, span_s=0.0)
    return ShareReport(
        job=job,
        promised_pct=100.0 * (b.promised_s - a.promised_s) / covered_s,
        received_pct=100.0 * (b.received_s - a.received_s) / covered_s,
        backlogged_frac=(b.backlogged_s - a.backlogged_s) / covered_s,
        iterations=round(b.iterations - a.iterations),
        span_s=covered_s,
    )
