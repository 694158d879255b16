"""The box's side of `edge.gpu.worker`: processes that compute for jobs, and a detector that runs in one (learning jobs:
`edge.gpu.remote_jobs`).

`RemoteDetector` is what inference and swapping see of it: a `Detector` whose `predict` is answered elsewhere, and whose process is
replaced when it died; whoever uses it need not know. What a process computes is charged to the thread that waits for it
(`RemoteClock`), so lanes, costs per frame and budgets mean what they mean in one process.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from configs.errors import EnvironmentLacking, JobError, WeightsError, redact
from edge.clock import Clock
from edge.gpu.worker import (
    PRELOAD,
    SHARED_BYTES,
    Channel,
    ChannelClosed,
    Header,
    ModelFile,
    Settings,
    shared_memory,
    unpack,
)
from models.detector import Detector, DetectorSpec, ServedBody, YieldPoint
from scheduler.types import Detections

if TYPE_CHECKING:
    import torch

log = logging.getLogger("driftbox")

#: Seconds for a process to start and load a model; for an answer; for an idle process to say that it lives.
START_S, ANSWER_S, BEAT_S = 300.0, 30.0, 5.0
#: Seconds that a process which was told to stop may take.
STOP_S = 5.0
#: A process that dies again and again is started again after 1, 2, 4 ... seconds, at most.
REST_MAX_S = 60.0


class WorkerLost(JobError):
    """The process of a job ended, hangs, or cannot use its device any more (poisoned: a fault on the device, which under MPS may be
    another job's)."""

    def __init__(self, message: str, *, subject: str = "", poisoned: bool = False) -> None:
        super().__init__(message, subject=subject, remedy="the job gets a new process; look for its message above")
        self.poisoned, self.at_s = poisoned, time.monotonic()


class RemoteClock:
    """A clock for threads that let other processes compute: their CPU time is their own plus what was computed for them."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._credit_s: dict[int, float] = {}

    @contextmanager
    def elsewhere(self) -> Iterator[Callable[[float], None]]:
        """Around a wait for another process. What is yielded is told the seconds of compute, at 100 pct, that were done there; waiting
        and copying are then not charged on top."""
        computed_s: list[float] = []
        before_s = self._base.thread_cpu_s()
        try:
            yield computed_s.append
        finally:
            own_s = self._base.thread_cpu_s() - before_s
            ident = threading.get_ident()
            self._credit_s[ident] = self._credit_s.get(ident, 0.0) + max(0.0, sum(computed_s) - own_s)

    def thread_cpu_s(self, thread_id: int | None = None) -> float:
        ident = threading.get_ident() if thread_id is None else thread_id
        return self._base.thread_cpu_s(thread_id) + self._credit_s.get(ident, 0.0)

    def monotonic_s(self) -> float:
        return self._base.monotonic_s()

    def utc_s(self) -> float:
        return self._base.utc_s()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        self._base.wait(condition, timeout_s)

    def notify_all(self, condition: threading.Condition) -> None:
        self._base.notify_all(condition)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """busy_s: for how long the device was busy with it; gpu_s: the same at 100 pct (a client of 30 pct that is busy for a second has
    used 0.3)."""

    header: Header
    arrays: list[np.ndarray]
    busy_s: float
    gpu_s: float


class WorkerProcess:
    """One process. Used by one thread at a time, but for `close`, `kill` and `alive`.

    Made blank; `become` gives it a model. preload: modules that it loads meanwhile. before_kill: called with its id before it is killed
    while it may be at work (MPS: its work on the device is ended first)."""

    def __init__(self, *, before_kill: Callable[[int], object] = lambda pid: None, preload: Sequence[str] = PRELOAD) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        memory = os.memfd_create("driftbox-pictures")
        os.ftruncate(memory, SHARED_BYTES)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (for as long as the process is)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edge.gpu.worker", str(theirs.fileno()), str(memory), *preload], stdin=subprocess.DEVNULL,
                stdout=self._errors, stderr=self._errors, pass_fds=(theirs.fileno(), memory),
                cwd=Path(__file__).resolve().parents[2], env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            self._shared = shared_memory(memory)
        except OSError as error:
            ours.close()
            raise EnvironmentLacking(
                f"a process cannot be started: {error.strerror}", remedy="see what else runs here"
            ) from error
        finally:
            theirs.close()
            os.close(memory)
        self._link, self._channel = ours, Channel(ours, self._shared)
        self._before_kill = before_kill
        self._closing, self._sending = threading.Lock(), threading.Lock()
        self._closed = False
        self.held_mib = 0.0
        #: What kind of client it is; for good, once it has used the device. partition: where it computes ('': anywhere); golden: path of
        #: the golden model that it has loaded.
        self.thread_pct, self.partition = 100.0, ""
        self.limit_mib: float | None = None
        self.golden = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    @property
    def ended(self) -> bool:
        """It is gone. One that was told to stop may still be at its last work."""
        return self._process.poll() is not None

    def become(self, model: ModelFile, settings: Settings, *, timeout_s: float = START_S) -> Answer:
        """Loads a model. Raises WeightsError, JobError, WorkerLost."""
        return self.ask("load", timeout_s=timeout_s, model=asdict(model), settings=asdict(settings))

    def ask(self, op: str, arrays: Sequence[np.ndarray] = (), *, timeout_s: float = ANSWER_S, **said: Any) -> Answer:
        """One request and its answer. Raises what the process raised, as ours; WorkerLost when it ended, hangs (it is then killed) or
        talks nonsense."""
        try:
            self._link.settimeout(timeout_s)
            with self._sending:
                self._channel.send({"op": op} | said, arrays)
            header, out = self._channel.receive()
        except ChannelClosed:
            raise self._lost(f"ended while it was at {op!r}") from None
        except TimeoutError:
            self.kill()
            raise WorkerLost(f"process {self.pid} gave no answer to {op!r} within {timeout_s:g} s and was ended") from None
        except (ValueError, KeyError, TypeError) as error:
            self.kill()
            raise WorkerLost(f"process {self.pid} said something that is no answer: {error}") from error
        if "error" in header:
            raise self._raised(header["error"])
        self.held_mib = float(header.get("held_mib", 0.0))
        busy_s = float(header.get("busy_s", 0.0))
        return Answer(header=header, arrays=out, busy_s=busy_s, gpu_s=busy_s * self.thread_pct / 100.0)

    def _raised(self, error: Header) -> JobError | WeightsError:
        if error["poisoned"]:
            self.kill()
            return WorkerLost(f"process {self.pid} cannot use the GPU any more: {error['text']}", poisoned=True)
        kind = WeightsError if error["kind"] == "weights" else JobError
        code = error["code"] if kind is JobError else ""
        return kind(error["text"], subject=error["subject"], remedy=error["remedy"], code=code)

    def _lost(self, what: str) -> WorkerLost:
        code = self._wait(STOP_S)
        self.close()
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        said = self.last_words()
        return WorkerLost(f"process {self.pid} {what} ({how}){f': {said}' if said else ''}")

    def last_words(self) -> str:
        """The end of what it printed."""
        try:
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - 2000))
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        except (OSError, ValueError):
            return ""
        return redact(lines[-1])[:300] if lines else ""

    def close(self, *, timeout_s: float = STOP_S) -> None:
        """Tells it to stop after what it is at, and ends it when it does not. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        with suppress(ChannelClosed, TimeoutError, OSError), self._sending:
            self._channel.send({"op": "stop"})
        if self._wait(timeout_s) is None:
            self._end()
        self._give_back()

    def kill(self, *, at_work: bool = True) -> None:
        """Ends it now, whatever it is at. at_work: its work on the device is ended first. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._process.poll() is None:
            self._end(at_work=at_work)
        self._give_back()

    def release(self) -> None:
        """`close` by a thread of its own: for whoever must not wait."""
        with suppress(RuntimeError):  # the box is ending: the process sees that by itself
            threading.Thread(target=self.close, daemon=True, name=f"release-{self.pid}").start()

    def _end(self, *, at_work: bool = True) -> None:
        if at_work:
            self._before_kill(self.pid)
        self._process.kill()
        self._process.wait()

    def _give_back(self) -> None:
        """Hangs up. Not closed here: another thread may be waiting at it, and the number could become another file's."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it could not be made
            self._link.close()
            self._errors.close()

    def _wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


@dataclass
class _Seat:
    """The process under a detector; apart from it, so that it can be released when the detector is gone."""

    worker: WorkerProcess | None = None

    def leave(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.release()


#: Makes a process that has loaded the detector's model. Raises EnvironmentLacking, WeightsError, JobError.
Start = Callable[[], WorkerProcess]


class RemoteDetector:
    """Implements `models.detector.Detector`: `predict` runs in a process, everything else in `trained`, which stays here.

    start: makes the process, at the first prediction and whenever it has been lost; clock: charges the calling thread; lost: told when
    the process is lost, before WorkerLost is raised. One thread predicts; `beat`, `abandon` and `close` may be called from others. The
    process ends with the last reference to the detector."""

    def __init__(
        self, trained: Detector, start: Start, *, clock: RemoteClock,
        lost: Callable[[RemoteDetector, WorkerLost], None] = lambda detector, error: None, answer_s: float = ANSWER_S,
    ) -> None:  # fmt: skip
        self.spec: DetectorSpec = trained.spec
        self.trained = trained
        self._start, self._clock, self._on_lost, self._answer_s = start, clock, lost, answer_s
        self._lock = threading.Lock()
        self._seat = _Seat()
        self._closed = False
        self._deaths, self._not_before_s = 0, 0.0
        self.last_used_s = 0.0
        #: GPU-seconds at 100 pct that its answers took.
        self.gpu_s = 0.0
        self._finalizer = weakref.finalize(self, _Seat.leave, self._seat)

    # --- inference ----------------------------------------------------------------------------------------------------

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """As the trained model's; yields once, when it is done. Raises WorkerLost, WeightsError, EnvironmentLacking, JobError."""
        if not images:
            return []
        with self._lock:
            answer = self._ask("predict", images, score_min=score_min)
            found = unpack(answer.header["counts"], answer.arrays)
            self.last_used_s = time.monotonic()
        if yield_point:
            yield_point()
        return found

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        if not images:
            return self.trained.embed(images)
        with self._lock:
            return self._ask("embed", images).arrays[0].copy()

    def _ask(self, op: str, images: Sequence[np.ndarray], **said: Any) -> Answer:
        """Lock held."""
        worker = self._seated()
        try:
            with self._clock.elsewhere() as computed:
                answer = worker.ask(op, images, timeout_s=self._answer_s, **said)
                computed(answer.gpu_s)
        except WorkerLost as error:
            self._mourn(error)
            raise
        self._deaths = 0
        self.gpu_s += answer.gpu_s
        return answer

    def _seated(self) -> WorkerProcess:
        if self._closed:
            raise JobError(f"the process of {self.spec.arch} was closed", subject=self.spec.arch)
        worker = self._seat.worker
        if worker is not None and worker.alive:
            return worker
        self._seat.leave()
        rest_s = self._not_before_s - time.monotonic()
        if rest_s > 0:
            raise JobError(
                f"the process of {self.spec.arch} ended {self._deaths} times in a row; it is started again in {rest_s:.0f} s",
                subject=self.spec.arch,
            )
        try:
            self._seat.worker = self._start()
        except WorkerLost as error:
            self._mourn(error)
            raise
        return self._seat.worker

    def _mourn(self, error: WorkerLost) -> None:
        self._deaths += 1
        if self._deaths > 1:
            self._not_before_s = time.monotonic() + min(REST_MAX_S, 2.0 ** (self._deaths - 2))
        log.warning("%s: %s", self.spec.arch, error.message)
        self._seat.leave()
        self._on_lost(self, error)

    # --- the process under it -----------------------------------------------------------------------------------------

    @property
    def worker(self) -> WorkerProcess | None:
        """None before the first prediction and after a loss."""
        return self._seat.worker

    def prepare(self) -> None:
        """Starts the process now instead of at the first prediction. Raises what a start raises."""
        with self._lock:
            self._seated()

    def beat(self) -> bool:
        """Whether an idle process still lives; one that does not is replaced here and now. True for one that is at work: a hang there is
        found by whoever waits for it. Raises what a start raises."""
        if not self._lock.acquire(blocking=False):
            return True
        try:
            worker = self._seat.worker
            if worker is None:
                return True
            try:
                worker.ask("ping", timeout_s=BEAT_S)
            except WorkerLost as error:
                self._mourn(error)
                self._seated()
                return False
            return True
        finally:
            self._lock.release()

    def rest(self) -> None:
        """Ends an idle process; the next prediction starts another. Nothing for one that is at work."""
        if self._lock.acquire(blocking=False):
            try:
                self._seat.leave()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """Ends the process now, whatever it is at; the next prediction starts another."""
        worker = self._seat.worker
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        """Ends the process after what it is at."""
        self._closed = True
        self._seat.leave()

    # --- what stays here ----------------------------------------------------------------------------------------------

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        return self.trained.loss(images, targets)

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        return self.trained.distill_loss(images, teacher)

    def trainable_layers(self) -> list[torch.nn.Module]:
        return self.trained.trainable_layers()

    def state(self) -> dict[str, torch.Tensor]:
        return self.trained.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Raises NotImplementedError: the process would go on with the old weights."""
        raise NotImplementedError("a detector that serves from a process is not retrained in place; make another")

    def clone(self) -> Detector:
        """A copy of the trained model, here."""
        return self.trained.clone()

    def body(self) -> ServedBody:
        return self.trained.body()
