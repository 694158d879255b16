"""The backend `mps`: a process per job under NVIDIA MPS, each with its part of the GPU's threads and memory. 100 pct is the GPU.

What holds a share are two things, one on top of the other:

    percentage   of the GPU's threads, fixed when a process first uses CUDA; rounded up to steps of `step_pct`
    tokens       the job's iterations are paced as in `lanes` (`edge.gpu.executor`), by the device time that its process reports

MPS alone does not keep shares: a percentage is a cap, and it cannot be changed. The tokens make a new share hold from the next iteration
on, and to the point; the percentage keeps one job's kernels from taking the whole GPU meanwhile, and follows by a *standby*: a process
with the new percentage is made and loads the same model; `edge.swapping` warms it with real frames and lets it take over between two
of them (`hand_over`). On failure the old process stays. Percentages have steps with slack (`next_pct`): small changes of the plan cost
no process.

A second of a client of 30 pct counts as 0.3 GPU-seconds: what it could not use was free for others.

Where `static` asks for it and the daemon has it (CUDA 13.1), a process gets a *static partition* instead of a percentage: chunks of
multiprocessors of its own (`edge.gpu.mps_partitions`). What is said of percentages holds for them: fixed for good, followed by a
standby, with tokens on top. A percentage fits always; a partition needs room beside the others, so a job that begins may have to wait
for standbys of others (`ROOM_S`, then it shares a partition), and processes without a job are not kept. Whatever is wrong with
partitions: the box goes on with percentages, and says so.

Memory: a process gives nothing back between iterations, so what it holds counts as persistent, and every job has a lane of its own. A
process is limited to what its job needs (`limit_mib`); one that takes more is out of memory by itself.

Faults: a process that dies or hangs is replaced, the others go on. A fault on the device is another thing: MPS tells all clients, and
not whose it was. All processes are then ended, the daemon recovers, and they start again when they are next wanted. The first to report
it is suspected: after `POISONED_MAX` such faults its model gets no more processes.

What runs in a process: live inference, and every learning job (labels, looks, probes, profiles, retrainings, gates:
`edge.gpu.remote_jobs`). A learning job's process is kept for the next of its kind, with its golden model loaded (`IDLE_MAX`). Nothing of
this was verified on a GPU, see docs/gpu.md.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import statistics
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from configs.errors import DriftboxError, EnvironmentLacking, JobError, StorageError
from configs.files import atomic_write, storage_errors
from edge.clock import Clock, SystemClock
from edge.gpu.base import ChangeCost, DeviceFacts, Fault, FaultCode, Lane, Role
from edge.gpu.executor import HUNG_S, Executor, ExecutorLane
from edge.gpu.mps_daemon import MpsDaemon, runtime_root
from edge.gpu.mps_partitions import GIVEN_UP, StaticPartitions
from edge.gpu.remote import BEAT_S as PING_S
from edge.gpu.remote import RemoteClock, RemoteDetector, WorkerLost, WorkerProcess
from edge.gpu.remote_jobs import job_steps
from edge.gpu.worker import ModelFile, Settings, keep
from edge.jobs import JobSteps
from models.detector import Detector, DetectorSpec
from scheduler.pacing import PacingMode
from scheduler.salus.types import MemoryNeed

log = logging.getLogger("driftbox")

#: Steps of the thread percentage. A step is at most one standby; finer ones restart processes more often and cap no better.
STEP_PCT = 10
#: Most clients of one MPS server on Volta and later.
CLIENTS_MAX = 48
#: Processes without a job that are kept for the next one. Each holds a context, and perhaps a golden model.
IDLE_MAX = 2
#: Part of the GPU's memory that jobs may hold together when the configuration does not say.
MEMORY_FRAC = 0.9
UNKNOWN_MIB = 8192.0
#: Device memory of a process beyond its job's: the CUDA context and the libraries' work space, which count towards its limit; and room
#: for what a measured need does not know of.
CONTEXT_MIB, LIMIT_FACTOR = 768.0, 1.25
#: Seconds between two looks at idle processes; before a standby that failed is tried again.
BEAT_S, RETRY_S = 5.0, 30.0
#: Seconds that a job which begins waits for a partition of its own, until it shares one; between two looks for it.
ROOM_S, LOOK_S = 30.0, 0.05
#: Seconds that the daemon may take to notice that all its clients have ended.
DRAIN_S = 5.0
#: Seconds between two looks at who has left its partition.
TIDY_S = 0.5
#: Partitions in a row that the daemon does not make, until none is asked for any more.
REFUSED_MAX = 3
#: How CUDA says that a client has no such partition.
NO_SUCH_PARTITION = "invalid resource configuration"
#: A detector that was used so shortly after another took its place is not taken for the one that serves.
JUST_MOVED_S = 5.0
#: Faults on the device that a model's process may be the first to report within `POISONED_S`.
POISONED_MAX, POISONED_S = 3, 600.0
#: What a change of share is taken to cost before one was measured: the issue's limit for a standby, and a model's load.
GUESSED = ChangeCost(settle_s=5.0, gpu_s=0.5, blind_s=0.0)

#: Whether static partitions are wanted. auto: where the driver has them; on: the same, and their absence is told.
Static = Literal["off", "auto", "on"]

#: (job, what makes the new place of the detector that serves it). Raises DriftboxError when the old one goes on.
HandOver = Callable[[str, Callable[[Detector], Detector]], None]


def next_pct(current_pct: float | None, share_pct: float, step_pct: int = STEP_PCT) -> float:
    """The thread percentage of a process for a share: the next step above it. A running process (current_pct) keeps its own until the
    share is a quarter of a step above it, or a step and a quarter below: a change of one point starts no process, and shares that swing
    around a step do not either. A share of 0 gets one step: its tokens hold it."""
    wanted = float(min(100, max(step_pct, step_pct * math.ceil(share_pct / step_pct - 1e-9))))
    if current_pct is None:
        return wanted
    slack = step_pct / 4
    if share_pct > current_pct + slack or share_pct <= current_pct - step_pct - slack:
        return wanted
    return current_pct


def _has_room(limit_mib: float | None, wanted_mib: float | None) -> bool:
    """Whether a process with this limit may do a job that wants the other."""
    return limit_mib is None or (wanted_mib is not None and wanted_mib <= limit_mib)


def limit_mib(need: MemoryNeed | None) -> float | None:
    """What a job's process may hold on the device; None: no limit, its need is not known."""
    return None if need is None else LIMIT_FACTOR * need.peak_mib + CONTEXT_MIB


class _Seat:
    """A job's place: what its thread had computed elsewhere, and what its process holds. See `edge.gpu.device.Seat`."""

    def __init__(self, clock: RemoteClock, held_mib: Callable[[], float]) -> None:
        self._clock, self._held_mib = clock, held_mib
        self._state: tuple[float, int | None, float] = (0.0, None, 0.0)

    @contextmanager
    def iteration(self, lane: int | None, *, measure: bool) -> Iterator[None]:
        before_s, started_s = self._state[0], self._clock.thread_cpu_s()
        self._state = (before_s, threading.get_ident(), started_s)
        try:
            yield
        finally:
            self._state = (before_s + self._clock.thread_cpu_s() - started_s, None, 0.0)

    def settle(self) -> None:
        """A process answers when it is done."""

    def resume(self) -> None:
        """Nothing was put away."""

    def used_s(self) -> float:
        before_s, thread_id, started_s = self._state
        if thread_id is None:
            return before_s
        try:
            return before_s + self._clock.thread_cpu_s(thread_id) - started_s
        except OSError:  # the thread has just ended; the next reading is right
            return before_s

    def usage(self) -> MemoryNeed | None:
        return MemoryNeed(persistent_mib=self._held_mib(), ephemeral_mib=0.0)

    def close(self) -> None:
        """The process goes with its detector."""


class _Gpu:
    """The GPU as the executor sees it; see `edge.gpu.device.Device`."""

    name = "mps"
    capacity_pct = 100
    job_max_pct = 100.0
    parallel = CLIENTS_MAX
    measures_always = True
    promised_mib = 0.0

    def __init__(
        self,
        memory_mib: float,
        clock: RemoteClock,
        held_mib: Callable[[str], float],
        facts: Callable[[], tuple[DeviceFacts, ...]],
    ) -> None:
        self.memory_mib = memory_mib
        self._clock, self._held_mib, self._facts = clock, held_mib, facts

    def seat(self, job: str, role: Role) -> _Seat:
        return _Seat(self._clock, partial(self._held_mib, job))

    def used_mib(self) -> float | None:
        facts = self._facts()
        return facts[0].memory_used_mib if facts else None

    def facts(self) -> tuple[DeviceFacts, ...]:
        return self._facts()


class MpsBackend(Executor):
    """gpu: UUID of the GPU; data_dir: the box's data folder, below which daemon and weights for the processes have their place. spare:
    keep a process with torch loaded for whoever wants one next (about 250 MiB of the machine's memory). daemon, blank, device, client:
    stand-ins for tests. builder: makes detectors in the processes (`edge.gpu.worker.ModelFile`). Raises EnvironmentLacking when MPS
    cannot be had, with what to do.

    mode 'work-conserving': every process may use all threads of the GPU, and only the tokens divide it; else what a job leaves idle
    would be of no use to another whose percentage is small. static: partitions instead of percentages; room_s: how long a job that
    begins waits for one.

    `remote_clock` knows what processes computed: costs per frame are read from it, not from the machine's clock."""

    name = "mps"

    def __init__(
        self, gpu: str, *, data_dir: Path, capacity_pct: int | None = None, memory_mib: float | None = None, clock: Clock | None = None,
        facts: Callable[[], tuple[DeviceFacts, ...]] = lambda: (), mode: PacingMode = "capped", step_pct: int = STEP_PCT,
        daemon: MpsDaemon | None = None, blank: Callable[[Callable[[int], object]], WorkerProcess] | None = None,
        device: str = "cuda:0", client: str = "", beat_s: float = BEAT_S, spare: bool = True, builder: str = ModelFile.builder,
        hung_s: float = HUNG_S, static: Static = "off", room_s: float = ROOM_S,
    ) -> None:  # fmt: skip
        if memory_mib is None:
            known = facts()
            memory_mib = MEMORY_FRAC * known[0].memory_total_mib if known else UNKNOWN_MIB
        self.remote_clock = RemoteClock(clock or SystemClock())
        self._workers: defaultdict[str, weakref.WeakSet[WorkerProcess]] = defaultdict(weakref.WeakSet)
        super().__init__(
            _Gpu(memory_mib, self.remote_clock, self._held_mib, facts),
            capacity_pct=capacity_pct,
            mode=mode,
            clock=self.remote_clock,
            hung_s=hung_s,
        )
        self._memory_mib, self._builder = memory_mib, builder
        self._step_pct = 100 if mode == "work-conserving" else step_pct
        self._data_dir, self._device, self._client = data_dir, device, client
        self._blank = blank or (lambda before_kill: WorkerProcess(before_kill=before_kill))
        self._detectors: weakref.WeakKeyDictionary[RemoteDetector, tuple[str, ModelFile]] = weakref.WeakKeyDictionary()
        self._shares: dict[str, float] = {}
        self._roles: dict[str, Role] = {}
        self._declared: dict[str, MemoryNeed] = {}
        self._made = 0
        self._goldens: dict[DetectorSpec, ModelFile] = {}
        self._idle: deque[WorkerProcess] = deque()
        self._starting: Counter[str] = Counter()
        self._given_up: set[str] = set()  # jobs whose processes were ended because they hung
        self._recovering, self._keeping = threading.RLock(), threading.RLock()
        self._at_fault, self._recovered_s = False, -math.inf
        self._poisoned: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=POISONED_MAX))
        self._changes: deque[tuple[float, float]] = deque(maxlen=20)
        self._retry_s: dict[str, float] = {}
        self._beat_s, self._keeps_spare = beat_s, spare
        self._spare: WorkerProcess | None = None
        self._moved_s: weakref.WeakKeyDictionary[RemoteDetector, float] = weakref.WeakKeyDictionary()
        self._wake, self._over = threading.Event(), False
        #: Lets a job's model go on elsewhere (`edge.swapping.Swapper.hand_over`); None: percentages stay as they are.
        self.hand_over: HandOver | None = None
        self.daemon = daemon or MpsDaemon(runtime_root(data_dir, gpu), gpu=gpu, owner=str(data_dir.absolute()))
        self._static: StaticPartitions | None = None
        self._room_s, self._waiting = room_s, dict[object, str]()
        self._make_room()
        self._start_daemon("off" if mode == "work-conserving" else static)
        self._thread = threading.Thread(target=self._look_for_ever, name="mps", daemon=True)
        self._thread.start()

    # --- the seam -----------------------------------------------------------------------------------------------------

    def open_lane(self, job: str, *, role: Role = "learn", need: MemoryNeed | None = None) -> Lane:
        """See `edge.gpu.base`. Inference goes before learning also on the device (a client's priority)."""
        whole = None if need is None else MemoryNeed(persistent_mib=need.peak_mib, ephemeral_mib=0.0)
        self._make_way(0.0 if whole is None else whole.peak_mib)
        lane = super().open_lane(job, role=role, need=whole)
        self._roles[job] = role
        if whole is not None:
            self._declared[job] = whole
        return lane

    def close_lane(self, job: str) -> None:
        super().close_lane(job)
        self._roles.pop(job, None)
        self._declared.pop(job, None)
        self._given_up.discard(job)

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """See `edge.gpu.base`. The new shares hold from the next iterations on; percentages follow by standbys, one after the other."""
        super().set_shares(shares_pct)
        self._shares = dict(shares_pct)
        self._wake.set()

    def change_cost(self) -> ChangeCost:
        """Median of the standbys so far; before the first, a guess. settle_s is what a job waits that is to get more than its
        percentage allows; a job that is to get less gets it at once."""
        if self._step_pct >= 100:  # every process may use all of the GPU: shares are tokens
            return ChangeCost()
        changes = list(self._changes)
        if not changes:
            return GUESSED
        settle_s, gpu_s = (statistics.median(values) for values in zip(*changes, strict=True))
        return ChangeCost(settle_s=settle_s, gpu_s=gpu_s, blind_s=0.0)

    def close(self) -> None:
        """See `edge.gpu.base`."""
        super().close()
        if self._over:
            return
        self._over = True
        self._wake.set()
        for detector in list(self._detectors):
            detector.close()
        for worker in self._all_workers():
            worker.close()
        if self._thread is not threading.current_thread():
            self._thread.join(60.0)
        if self._spare is not None:
            self._spare.kill(at_work=False)
        with suppress(EnvironmentLacking):  # it does not answer: it is made to end
            if not self.daemon.drain(timeout_s=DRAIN_S):
                log.warning("MPS still has clients %.0f s after all processes were ended", DRAIN_S)
            if self._static is not None:
                self._static.close()
        self.daemon.stop()
        shutil.rmtree(self._weights_dir, ignore_errors=True)

    # --- what runs in processes ---------------------------------------------------------------------------------------

    def serve(self, trained: Detector, job: str, *, builder: str = "") -> RemoteDetector:
        """A detector whose predictions are made by a process of `job`, started when the first is asked for; its share is known then.
        Raises StorageError when the weights cannot be written for it."""
        model = self._keep_weights(trained, job, builder or self._builder)
        detector = RemoteDetector(
            trained, partial(self._process_for, job, model), clock=self.remote_clock, lost=partial(self._lost, job, model.path)
        )
        weakref.finalize(detector, Path(model.path).unlink, missing_ok=True)
        self._detectors[detector] = (job, model)
        return detector

    def steps(self, job: str) -> JobSteps:
        """How a learning job is done in a process of its own, one iteration at a time. Its percentage is that of its share when it
        begins; later shares are kept by its tokens."""
        return job_steps(self, job)

    # --- what jobs' steps ask for (`edge.gpu.remote_jobs.Processes`) ---------------------------------------------------

    def keep_weights(self, detector: Detector, job: str) -> ModelFile:
        """See `edge.gpu.remote_jobs.Processes`."""
        return self._keep_weights(detector, job, self._builder)

    def keep_golden(self, golden: Detector) -> ModelFile:
        """See `edge.gpu.remote_jobs.Processes`. Golden models are told apart by what they are: a box has one of each kind."""
        with self._keeping:
            known = self._goldens.get(golden.spec)
            if known is None:
                known = self._goldens[golden.spec] = self._keep_weights(golden, "golden", self._builder)
            return known

    def take_process(self, job: str, golden: str) -> tuple[WorkerProcess, Settings | None]:
        """See `edge.gpu.remote_jobs.Processes`."""
        with self._recovering:
            worker = self._idle_for(next_pct(None, self._shares.get(job, 0.0), self._step_pct), self._limit_mib(job), golden)
            if worker is not None:
                self._workers[""].discard(worker)
                self._workers[job].add(worker)
                return worker, None
        worker, settings = self._client_for(job)
        worker.golden = golden
        return worker, settings

    def give_back_process(self, job: str, worker: WorkerProcess) -> None:
        """See `edge.gpu.remote_jobs.Processes`. The oldest of too many goes."""
        try:
            worker.ask("drop", timeout_s=PING_S)
        except JobError:
            worker.kill()
        with self._recovering:
            self._workers.pop(job, None)
            if worker.alive and not self._over:
                self._workers[""].add(worker)
                self._idle.append(worker)
            keep = IDLE_MAX if self._static is None else 0  # a partition that nobody computes in is somebody's who waits
            gone = [self._idle.popleft() for _ in range(len(self._idle) - keep)]
        for one in gone:
            one.release()
        self._make_way(0.0)

    @contextmanager
    def starting(self, job: str) -> Iterator[None]:
        """While a process of the job is made or loads: as long as that takes (`edge.gpu.remote.START_S`), it does not hang."""
        with self._lock:
            self._starting[job] += 1
        try:
            yield
        except JobError as error:
            if NO_SUCH_PARTITION in error.message:
                self._fall_back(f"a process cannot use its partition: {error.message}")
            raise
        finally:
            with self._lock:
                self._starting[job] -= 1

    def lost_process(self, job: str, error: WorkerLost) -> None:
        """See `edge.gpu.remote_jobs.Processes`."""
        self._lost(job, job, None, error)

    def _idle_for(self, pct: float, limit_mib: float | None, golden: str) -> WorkerProcess | None:
        """Of the same kind: what a process is as a client was settled when it first used the device."""
        for worker in list(self._idle):
            if not worker.alive:
                self._idle.remove(worker)
            elif worker.golden == golden and worker.thread_pct == pct and _has_room(worker.limit_mib, limit_mib):
                self._idle.remove(worker)
                return worker
        return None

    def _make_way(self, mib: float) -> None:
        """Ends processes without a job while these and all jobs' needs, with `mib` more, are above what there is."""
        needs_mib = mib + sum(known.need.peak_mib for known in self.memory().values() if known.need is not None)
        # The box's loop must not wait for a daemon that recovers, which ends them all anyway.
        while self._recovering.acquire(blocking=False):
            try:
                if not self._idle or needs_mib + self._held_mib("") <= self._memory_mib:
                    return
                worker = self._idle.popleft()
                self._workers[""].discard(worker)
            finally:
                self._recovering.release()
            worker.release()

    # --- processes ----------------------------------------------------------------------------------------------------

    @property
    def scratch_dir(self) -> Path:
        """For files that processes read and that go with the backend."""
        return self._weights_dir / "scratch"

    @property
    def _weights_dir(self) -> Path:
        return self._data_dir / "mps" / "weights"

    def _make_room(self) -> None:
        with storage_errors(self._weights_dir):
            shutil.rmtree(self._weights_dir, ignore_errors=True)
            self._weights_dir.mkdir(parents=True)

    def _keep_weights(self, detector: Detector, job: str, builder: str) -> ModelFile:
        with self._keeping:
            self._made += 1
            number = self._made
        name = f"{number:06d}-{re.sub(r'[^A-Za-z0-9_-]', '-', job)[:60]}.safetensors"
        return keep(detector, self._weights_dir / name, builder=builder)

    def _client_for(self, job: str) -> tuple[WorkerProcess, Settings]:
        """A process that will be a client of the job's share, and how it becomes one. Waits for a partition where that is needed: until
        others have made room for it, at most `room_s`. Raises JobError, EnvironmentLacking."""
        end_s = time.monotonic() + self._room_s
        with self.starting(job), self._waits(job) as waits:
            while True:
                with self._recovering:
                    partition = self._partition_for(job, at_once=self._over or time.monotonic() >= end_s)
                    if self._static is None:
                        return self._blank_for(job, next_pct(None, self._shares.get(job, 0.0), self._step_pct))
                    if partition is not None:
                        return self._blank_for(job, self._static.pct(partition), partition)
                    waits()
                self._wake.set()
                time.sleep(LOOK_S)

    @contextmanager
    def _waits(self, job: str) -> Iterator[Callable[[], None]]:
        """What is yielded is called while the job waits for a partition: others make room for it."""
        token = object()
        try:
            yield lambda: self._waiting.update({token: job})
        finally:
            with self._recovering:
                self._waiting.pop(token, None)

    def _partition_for(self, job: str, *, at_once: bool) -> str | None:
        """None: none yet, or partitions were given up (recovering lock held)."""
        if self._static is None:
            return None
        self._static.tidy()
        at = self._places()
        try:
            return self._static.place(job, self._shares, at, self._waiting.values(), at_once=at_once)
        except EnvironmentLacking as error:
            stays = None if job in at else self._static.largest()
            if self._static.refused >= REFUSED_MAX or (stays is None and job not in at):
                self._fall_back(error.message)
                return None
            if stays is None:
                raise  # it goes on where it is
            log.warning("%s: %s; it shares a partition", job, error.message)
            return stays

    def _places(self) -> dict[str, str]:
        """The partition of each job that moves with its share."""
        found = {}
        for detector in self._serving():
            job, worker = self._detectors[detector][0], detector.worker
            if worker is not None and worker.alive and worker.partition and self._shares.get(job, 0.0) > 0:
                found[job] = worker.partition
        return found

    def _blank_for(self, job: str, pct: float, partition: str = "") -> tuple[WorkerProcess, Settings]:
        """A process that will be a client of `pct`, and how it becomes one. Waits while the daemon recovers."""
        with self._recovering:
            if self._over:
                raise JobError("the box ends", subject=job)
            limit_mib = self._limit_mib(job)
            env = self.daemon.client_env(
                thread_pct=pct, memory_mib=limit_mib, below_normal=self._roles.get(job) != "infer", partition=partition
            )
            worker = self._new_process()
            worker.thread_pct, worker.limit_mib, worker.partition = pct, limit_mib, partition
            self._workers[job].add(worker)
            if self._static is not None and partition:
                self._static.enter(partition, job, worker)
        return worker, Settings(env=env, device=self._device, client=self._client)

    def _limit_mib(self, job: str) -> float | None:
        """By what was declared or measured, whichever is more: what a process held so far is no reason to give it less room."""
        known = self.memory().get(job)
        needs = [need for need in (self._declared.get(job), known.need if known else None) if need is not None]
        return limit_mib(max(needs, key=lambda need: need.peak_mib, default=None))

    def _new_process(self) -> WorkerProcess:
        """The spare one, which has torch loaded already, else a new one; the next spare is made beside."""
        with self._lock:
            spare, self._spare = self._spare, None
        self._wake.set()
        return spare if spare is not None and spare.alive else self._blank(self._end_work)

    def _process_for(self, job: str, model: ModelFile) -> WorkerProcess:
        reported = self._poisoned[model.path]
        if len(reported) == POISONED_MAX and time.monotonic() - reported[0] < POISONED_S:
            raise JobError(
                f"{job}: {model.arch} was the first to report a fault of the GPU {POISONED_MAX} times and gets no process any more",
                subject=job, remedy="serve another version (driftbox models), or restart the box",
            )  # fmt: skip
        worker, settings = self._client_for(job)
        try:
            with self.starting(job):
                worker.become(model, settings)
        except BaseException:
            worker.kill()
            raise
        return worker

    def _end_work(self, pid: int) -> None:
        if not self._over:
            self.daemon.terminate_client(pid)

    def _held_mib(self, job: str) -> float:
        return sum(worker.held_mib for worker in list(self._workers[job]) if worker.alive)

    def _all_workers(self) -> list[WorkerProcess]:
        return [worker for workers in list(self._workers.values()) for worker in list(workers)]

    # --- the daemon, and partitions of it ------------------------------------------------------------------------------

    def _start_daemon(self, static: Static) -> None:
        """With partitions where they are wanted and can be had."""
        if static != "off" and self._starts_divided(tell=static == "on"):
            return
        self.daemon.static = False
        self.daemon.start()

    def _starts_divided(self, *, tell: bool) -> bool:
        """False: not, and why was told. What keeps a daemon from starting at all is told by the next start, without partitions."""
        try:
            if not self.daemon.has_partitions():
                self._give_up_partitions("the driver's MPS has none: they came with CUDA 13.1", tell=tell)
                return False
            self.daemon.static = True
            self.daemon.start()
            self._open_partitions()
        except EnvironmentLacking as lacking:
            self.daemon.stop(timeout_s=1.0)
            self._give_up_partitions(lacking.message)
            return False
        (self._data_dir / GIVEN_UP).unlink(missing_ok=True)
        return True

    def _open_partitions(self) -> None:
        found = StaticPartitions(self.daemon)
        news = found.open()
        if news:
            self._say(
                "", news, "remove them if nobody needs them: echo lspart | nvidia-cuda-mps-control lists them", device=True
            )
        self._static = found

    def _give_up_partitions(self, why: str, *, tell: bool = True) -> None:
        """Tells the operator, also the one who asks `driftbox doctor` later."""
        log.info("static partitions of MPS are not used: %s", why)
        if not tell:
            return
        with suppress(StorageError):
            atomic_write(self._data_dir / GIVEN_UP, json.dumps({"at_utc": time.time(), "why": why}).encode())
        self._say(
            "", f"static partitions cannot be used: {why}",
            "none: shares are kept by percentages. Set gpus.mps_static to off, or see to it and restart the box", device=True,
        )  # fmt: skip

    def _fall_back(self, why: str) -> None:
        """A daemon for partitions takes no client without one: it is exchanged for another, and all processes start again."""
        with self._recovering:
            if self._static is None or self._over:
                return
            self._static, self._at_fault = None, True
            for worker in self._all_workers():
                worker.kill()
            try:
                self.daemon.stop(timeout_s=1.0)
                self.daemon.static = False
                self.daemon.start()
            except EnvironmentLacking as lacking:
                self._say("", f"MPS does not come back: {lacking.message}", lacking.remedy, device=True)
            self._at_fault, self._recovered_s = False, time.monotonic()
        self._give_up_partitions(why)

    # --- faults -------------------------------------------------------------------------------------------------------

    def _lost(self, job: str, suspect: str, detector: RemoteDetector | None, error: WorkerLost) -> None:
        """suspect: what is to blame when this goes on: a model's path, or a learning job."""
        if error.poisoned:
            self._recover(job, suspect, error)
        elif job in self._given_up or self._over or self._at_fault or error.at_s <= self._recovered_s:
            return  # it was ended by us
        elif self._roles.get(job) == "infer":
            self._say(
                job,
                error.message,
                "the others go on, and it gets a new process; if this happens again, look at its model and the GPU's memory",
            )
        else:
            self._say(
                job,
                f"{error.message}; the job is given up",
                "the others go on, and its camera keeps its model; if this happens again, look at the job's model and the GPU's memory",
                removed=True,
            )

    def _recover(self, job: str, suspect: str, error: WorkerLost) -> None:
        """A fault on the device is everybody's; whoever reports it first does what is needed."""
        with self._recovering:
            if self._over or error.at_s < self._recovered_s:
                return
            self._at_fault = True
            self._poisoned[suspect].append(time.monotonic())
            self._say(
                job, f"a fault on the GPU, reported first by this job: {error.message}",
                "all processes on it are started again; if it goes on, look at this job's model first",
            )  # fmt: skip
            for worker in self._all_workers():
                worker.kill(at_work=False)
            try:
                self.daemon.recover()
                if self._static is not None:
                    self._open_partitions()
            except EnvironmentLacking as lacking:
                if self._static is None:
                    self._say("", f"MPS does not come back: {lacking.message}", lacking.remedy, device=True)
                else:
                    self._fall_back(f"they do not come back after a fault: {lacking.message}")
            self._at_fault, self._recovered_s = False, time.monotonic()

    def _look_for_hung(self, now_s: float) -> None:
        """As in `lanes`, without those whose process is being made (lock held)."""
        for job, count in self._starting.items():
            if count and job in self._lanes:
                self._lanes[job]._alive_s = now_s
        super()._look_for_hung(now_s)

    def _give_up(self, lane: ExecutorLane, now_s: float) -> Fault:
        """A thread cannot be taken away, a process can (lock held)."""
        fault = super()._give_up(lane, now_s)
        if not fault.removed:
            return fault
        self._given_up.add(lane.job)
        threading.Thread(target=self._end_processes, args=(lane.job,), daemon=True, name=f"end-{lane.job}").start()
        text, remedy = f"{fault.text}; its process is ended", "the others go on, and its camera keeps its model"
        return replace(fault, text=text, remedy=f"{remedy}; if this happens again, look at the job's model")

    def _end_processes(self, job: str) -> None:
        for worker in list(self._workers[job]):
            worker.kill()

    def _say(self, job: str, text: str, remedy: str, *, device: bool = False, removed: bool = False) -> None:
        log.warning("%s: %s", job or "GPU", text)
        code: FaultCode = "device" if device else "crashed"
        fault = Fault(at_s=self.clock.monotonic_s(), job=job, code=code, text=text, remedy=remedy, removed=removed)
        with self._lock:
            self._tell([fault])

    # --- looking after processes, in a thread of its own --------------------------------------------------------------

    def _look_for_ever(self) -> None:
        beat_s = time.monotonic()
        while not self._over:
            at_most_s = math.inf if self._static is None else TIDY_S
            self._wake.wait(min(at_most_s, max(0.0, beat_s + self._beat_s - time.monotonic())))
            self._wake.clear()
            self._make_spare()
            self._tidy()
            for detector in self._serving():
                self._follow_share(detector)
            if time.monotonic() >= beat_s + self._beat_s:
                self._look_at_idle()
                beat_s = time.monotonic()

    def _tidy(self) -> None:
        """Removes partitions that everybody has left, and asks those for theirs who have no share and so do not compute."""
        with self._recovering:
            if self._static is None or self._over:
                return
            self._static.tidy()
            if not self._static.is_pressed(self._shares, self._places(), self._waiting.values()):
                return
        for detector, (job, _) in list(self._detectors.items()):
            if self._shares.get(job, 0.0) <= 0:
                detector.rest()

    def _make_spare(self) -> None:
        if not self._keeps_spare or self._spare is not None or self._over:
            return
        try:
            self._spare = self._blank(self._end_work)
        except EnvironmentLacking as error:  # whoever wants a process is told
            log.warning("no spare process: %s", error)

    def _serving(self) -> list[RemoteDetector]:
        """The detector of each job that was used last: others are kept warm to go back to, and change when they serve again."""
        newest: dict[str, RemoteDetector] = {}
        for detector, (job, _) in list(self._detectors.items()):
            if detector.last_used_s < self._moved_s.get(detector, -math.inf) + JUST_MOVED_S:
                continue  # it was at its last frame when another took over
            if detector.last_used_s > (newest[job].last_used_s if job in newest else 0.0):
                newest[job] = detector
        return list(newest.values())

    def _follow_share(self, detector: RemoteDetector) -> None:
        job, _ = self._detectors[detector]
        worker, share_pct = detector.worker, self._shares.get(job, 0.0)
        if (
            self._over
            or self.hand_over is None
            or worker is None
            or share_pct <= 0
            or time.monotonic() < self._retry_s.get(job, 0.0)
        ):
            return
        if self._is_right(job, worker, share_pct):
            return
        try:
            self._standby(job, detector)
        except (DriftboxError, OSError, ValueError) as error:  # the old process stays
            self._retry_s[job] = time.monotonic() + RETRY_S
            self._say(
                job,
                f"its share changed to {share_pct:g} pct, and it does not go on in another process: {error}",
                "none: it goes on where it is, and its share is kept there",
            )

    def _is_right(self, job: str, worker: WorkerProcess, share_pct: float) -> bool:
        with self._recovering:
            if self._static is not None and worker.partition:
                return self._static.is_right(job, self._shares, self._places(), self._waiting.values())
        return next_pct(worker.thread_pct, share_pct, self._step_pct) == worker.thread_pct

    def _standby(self, job: str, serving: RemoteDetector) -> None:
        """The model of `serving` goes on in a process of the job's present share. Raises DriftboxError when it stays where it is."""
        assert self.hand_over is not None
        made: list[RemoteDetector] = []

        def make(old: Detector) -> Detector:
            if old is not serving:
                raise JobError(f"{job} is served by another model by now", subject=job)
            made.append(self.serve(serving.trained, job, builder=self._detectors[serving][1].builder))
            made[0].prepare()
            return made[0]

        started_s = time.monotonic()
        try:
            self.hand_over(job, make)
        except BaseException:
            for standby in made:
                standby.close()
            raise
        self._moved_s[serving] = time.monotonic()
        self._changes.append((time.monotonic() - started_s, sum(standby.gpu_s for standby in made)))
        if self._static is not None:
            self._clear_of(job, serving, made[0])

    def _clear_of(self, job: str, serving: RemoteDetector, standby: RemoteDetector) -> None:
        """Older versions of a job that moved are kept warm, but not at the price of the partition that it left. The one that served
        until now goes when its successor has held its own."""
        for detector, (whose, _) in list(self._detectors.items()):
            if whose == job and detector not in (serving, standby):
                detector.rest()

    def _look_at_idle(self) -> None:
        for detector in list(self._detectors):
            if self._over:
                return
            if time.monotonic() - detector.last_used_s > self._beat_s:
                with suppress(DriftboxError):  # said when it was lost; whoever wants it next is told
                    detector.beat()
