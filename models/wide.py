"""One training on several devices of this machine at once, data parallel: Fluid's widths above one (papers/fluid.md, section 3).

A trial of width w has w processes, one per device: GPUs talk through NCCL, a CPU's cores through gloo. Each has a copy of the model and
does every w-th micro-batch of each batch; gradients are added up before each update (`models.retrain.Team`). Batches, their order, the
augmentation and the schedule are those of one process, so the result is too, but for the rounding of sums.

All ranks are processes of their own, also the first: a collective that waits for a rank that died cannot be left from inside. `Ranks`
stands outside of them. It asks all for one iteration at a time, so a trial can be paused or cancelled between any two, and within one
the processes are ended; one that dies, hangs or fails ends them all, with what it said. Processes are kept for the next trial while all
goes well, because starting them takes longer than many a trial, and hold as many trials as are open: a group's advance together.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed

from configs.errors import DriftboxError, JobError
from models.augment import Augmentation
from models.detector import Detector, YieldPoint
from models.labelled import LabelledImage
from models.precision import device_of, precision_of
from models.retrain import Step, check_lesson, retrain
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler.types import RetrainConfig

log = logging.getLogger("driftbox")

CPU = "cpu"
#: Seconds for a process to start and find the others; for an iteration.
START_S, ANSWER_S = 300.0, 120.0
#: How often a wait looks whether it is to go on, and a rank whether its parent lives.
LOOK_S, ORPHAN_S = 0.02, 1.0
#: Seconds after which a process that died can be known to have.
SEEN_DEAD_S = 0.5
#: Around a wait for the ranks; what is yielded hears the seconds of compute that they spent (`edge.gpu.remote.RemoteClock.elsewhere`).
Elsewhere = Callable[[], AbstractContextManager[Callable[[float], None]]]


@contextmanager
def uncharged() -> Iterator[Callable[[float], None]]:
    yield lambda seconds: None


@dataclass(frozen=True, kw_only=True)
class _Lesson:
    """What every rank is sent: the arguments of `retrain`."""

    detector: Detector
    samples: tuple[LabelledImage, ...]
    replay: tuple[LabelledImage, ...]
    config: RetrainConfig
    seed: int
    micro_batch: int
    augmentation: Augmentation | None
    task: Task
    teacher: Detector | None


@dataclass(frozen=True, kw_only=True)
class _Ask:
    """What a rank is told about one training. lesson: it begins (a pickled `_Lesson`; no answer); drop: it is given up (no answer);
    neither: its next iteration."""

    training: int
    lesson: bytes | None = None
    drop: bool = False


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A rank's. step: None after the last; weights: of rank 0 at the end of an epoch; spent_s: compute of this iteration; error: what it
    failed with (message, remedy, code)."""

    step: Step | None = None
    weights: tuple[np.ndarray, ...] | None = None
    spent_s: float = 0.0
    error: tuple[str, str, str] | None = None


class Ranks:
    """Processes that train together. devices: one per rank, 'cpu' or the UUIDs of GPUs; start_s, answer_s: how long they may take.
    For one thread. `close` ends the processes, and with them all trainings that are open."""

    def __init__(
        self, devices: Sequence[str], *, elsewhere: Elsewhere = uncharged, start_s: float = START_S, answer_s: float = ANSWER_S
    ) -> None:
        if not devices or (CPU in devices and set(devices) != {CPU}):
            raise ValueError(f"a training is as wide as it has devices of one kind, got {list(devices)}")
        self._devices, self._elsewhere = tuple(devices), elsewhere
        self._start_s, self._answer_s = start_s, answer_s
        self._team: _Processes | None = None
        self._begun = 0

    @property
    def width(self) -> int:
        return len(self._devices)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that run now."""
        return self._team.pids if self._team else ()

    def ready(self) -> bool:
        """Whether they can train at once. When there are none they are started; nothing is waited for."""
        try:
            if self._team is None:
                self._team = _Processes(self._devices)
            if not self._team.met and (self._team.has_answers or time.monotonic() >= self._team.born_s + self._start_s):
                self._meet("a training on several devices", None, 0.0)
            return self._team is not None and self._team.met
        except (JobError, OSError) as error:
            log.warning("the processes of trainings on several devices do not start: %s", error)
            return False

    def retrain(
        self, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, *, seed: int, micro_batch: int = 1,
        replay: Sequence[LabelledImage] = (), augmentation: Augmentation | None = None, task: Task = DETECTION,
        teacher: Detector | None = None, yield_point: YieldPoint | None = None,
    ) -> Generator[Step, None, None]:  # fmt: skip
        """As `models.retrain.retrain`, an iteration being one micro-batch on each device. `detector` has the weights of the last epoch
        that ended. yield_point: called now and then while the ranks compute; what it raises ends them and the training.
        Raises JobError as `retrain` does, and 'process_lost' when a rank died or hangs."""
        check_lesson(samples, config, micro_batch)

        def lesson() -> bytes:  # not before it begins: all pictures are in it
            return pickle.dumps(
                _Lesson(
                    detector=detector,
                    samples=tuple(samples),
                    replay=tuple(replay),
                    config=config,
                    seed=seed,
                    micro_batch=micro_batch,
                    augmentation=augmentation,
                    task=task,
                    teacher=teacher,
                )  # fmt: skip
            )

        return self._steps(detector, config.name, lesson, yield_point)

    def close(self) -> None:
        if self._team is not None:
            self._team.end()
            self._team = None

    def _steps(
        self, detector: Detector, subject: str, lesson: Callable[[], bytes], yield_point: YieldPoint | None
    ) -> Generator[Step, None, None]:
        team, self._begun = self._started(subject, yield_point), self._begun + 1
        training = self._begun
        team.send(_Ask(training=training, lesson=lesson()))
        while True:
            first = self._iteration(team, training, subject, yield_point)
            if first.weights is not None:
                _load(detector, first.weights)
            if first.step is None:
                return
            try:
                yield first.step
            except GeneratorExit:  # given up between two iterations: the ranks wait for what comes next
                if team is self._team:
                    team.send(_Ask(training=training, drop=True))
                raise

    def _iteration(self, team: _Processes, training: int, subject: str, yield_point: YieldPoint | None) -> _Answer:
        """Of rank 0. Whatever goes wrong ends the processes."""
        if team is not self._team:
            raise _process_lost(subject, "its processes have ended")
        try:
            with self._elsewhere() as computed:
                team.send(_Ask(training=training))
                answers = team.answers(subject, self._answer_s, yield_point)
                computed(sum(answer.spent_s for answer in answers))
        except BaseException:
            self.close()
            raise
        return answers[0]

    def _started(self, subject: str, yield_point: YieldPoint | None) -> _Processes:
        if self._team is None:
            self._team = _Processes(self._devices)
        if not self._team.met:
            self._meet(subject, yield_point, self._start_s)
        return self._team

    def _meet(self, subject: str, yield_point: YieldPoint | None, most_s: float) -> None:
        """Waits until every rank has found the others."""
        assert self._team is not None
        try:
            self._team.answers(subject, most_s, yield_point)
        except BaseException:
            self.close()
            raise
        self._team.met = True


class _Processes:
    """The ranks' processes, and a folder where they meet. met: they have."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.met, self.born_s = False, time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="driftbox-ranks-"))
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        try:
            for rank, device in enumerate(devices):
                ours, theirs = spawn.Pipe()
                process = spawn.Process(
                    target=_serve, args=(rank, len(devices), device, str(self._folder / "meet"), theirs), daemon=True
                )
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    @property
    def has_answers(self) -> bool:
        """One of each, or the end of one."""
        return all(pipe.poll() for pipe in self._pipes)

    def send(self, what: object) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # it died: `answers` says so
                pipe.send(what)

    def answers(self, subject: str, most_s: float, yield_point: YieldPoint | None) -> list[_Answer]:
        """One of each rank, in order. JobError: one failed, died, or took longer than most_s."""
        found: dict[int, _Answer] = {}
        until_s = time.monotonic() + most_s
        while len(found) < len(self._pipes):
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            for pipe in cast("list[Connection]", wait(waiting, LOOK_S)):
                rank = self._pipes.index(pipe)
                try:
                    found[rank] = pipe.recv()
                except (EOFError, OSError):
                    raise self._lost(subject, rank) from None
                error = found[rank].error
                if error is not None:
                    raise self._dead(subject, but=rank) or JobError(error[0], subject=subject, remedy=error[1], code=error[2])
            if len(found) < len(self._pipes) and time.monotonic() >= until_s:
                silent = min(set(range(len(self._pipes))) - set(found))
                raise _process_lost(subject, f"process {silent + 1} of {len(self._pipes)} gave no answer for {most_s:.0f} s")
            if yield_point is not None:
                yield_point()
        return [found[rank] for rank in range(len(self._pipes))]

    def end(self) -> None:
        """Never waits long: a rank that is in a collective hears nothing, so it is not asked."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _dead(self, subject: str, *, but: int) -> JobError | None:
        """Who has died, when a rank says that something is wrong: a collective fails where another one's end of it is gone."""
        until_s = time.monotonic() + SEEN_DEAD_S
        others = [rank for rank in range(len(self._processes)) if rank != but]
        while True:
            gone = next((rank for rank in others if self._processes[rank].exitcode is not None), None)
            if gone is not None:
                return self._lost(subject, gone)
            if time.monotonic() >= until_s:
                return None
            time.sleep(LOOK_S)

    def _lost(self, subject: str, rank: int) -> JobError:
        process = self._processes[rank]
        process.join(1.0)
        code = process.exitcode
        how = "closed its pipe" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return _process_lost(subject, f"process {rank + 1} of {len(self._pipes)} {how}")


def _process_lost(subject: str, what: str) -> JobError:
    return JobError(
        f"a training on several devices was given up: {what}", subject=subject, code="process_lost",
        remedy="the camera keeps its model; look for its message above, and at the machine's memory",
    )  # fmt: skip


# --- in a rank's process ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Member:
    """`models.retrain.Team` over torch.distributed."""

    rank: int
    size: int

    def add_up(self, values: Sequence[torch.Tensor]) -> None:
        """As one message per type of number: a network has hundreds of small tensors."""
        for dtype in dict.fromkeys(value.dtype for value in values):
            same = [value for value in values if value.dtype == dtype]
            flat = torch.cat([value.reshape(-1) for value in same])
            torch.distributed.all_reduce(flat)
            at = 0
            for value in same:
                value.copy_(flat[at : at + value.numel()].view_as(value))
                at += value.numel()


def _serve(rank: int, size: int, device: str, meet: str, pipe: Connection) -> None:
    """Meets the others, then trains what it is sent until the pipe closes."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    if device == CPU:
        torch.set_num_threads(1)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = device  # before CUDA is used: this device is number 0 here
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        torch.distributed.init_process_group(
            "gloo" if device == CPU else "nccl", init_method=f"file://{meet}", rank=rank, world_size=size
        )
        pipe.send(_Answer())
        _train(_Member(rank=rank, size=size), pipe)
    except (EOFError, OSError):
        return
    except DriftboxError as error:
        _say(pipe, error.message, error.remedy, error.code)
    except Exception as error:
        log.exception("rank %d of a training on several devices", rank)
        _say(pipe, f"a training on several devices failed: {type(error).__name__}: {error}", "see the log", "process_lost")


def _train(member: _Member, pipe: Connection) -> None:
    """Does what it is asked, until the pipe closes."""
    trainings: dict[int, tuple[Detector, Generator[Step, None, None]]] = {}
    while True:
        ask: _Ask = pipe.recv()
        if ask.lesson is not None:
            trainings[ask.training] = _begun(pickle.loads(ask.lesson), member)
        elif ask.drop:
            trainings.pop(ask.training)[1].close()
        else:
            detector, steps = trainings[ask.training]
            device = device_of(detector.trainable_layers())
            before_s = _spent_s(device)
            step = next(steps, None)
            at_end = step is not None and step.epoch_loss is not None and member.rank == 0
            pipe.send(_Answer(step=step, weights=_weights(detector) if at_end else None, spent_s=_spent_s(device) - before_s))
            if step is None:
                del trainings[ask.training]


def _begun(lesson: _Lesson, member: _Member) -> tuple[Detector, Generator[Step, None, None]]:
    device = device_of(lesson.detector.trainable_layers())
    return lesson.detector, retrain(
        lesson.detector, lesson.samples, lesson.config, seed=lesson.seed, micro_batch=lesson.micro_batch, replay=lesson.replay,
        augmentation=lesson.augmentation, task=lesson.task, teacher=lesson.teacher,
        precision=precision_of(device, lesson.detector.spec.arch), team=member,
    )  # fmt: skip


def _spent_s(device: torch.device) -> float:
    """Compute so far: of this process on a CPU; on a GPU the time, since the device is waited for. Only differences count."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.monotonic()


def _say(pipe: Connection, message: str, remedy: str, code: str) -> None:
    with suppress(OSError):
        pipe.send(_Answer(error=(message, remedy, code)))
        pipe.recv()  # the others are in a collective with this one; it is ended with them


def _end_with(parent: int) -> None:
    """A rank whose parent was killed has nobody to answer to, and may be in a collective."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_S)
    os._exit(1)


def _weights(detector: Detector) -> tuple[np.ndarray, ...]:
    return tuple(p.detach().cpu().numpy() for layer in detector.trainable_layers() for p in layer.parameters())


def _load(detector: Detector, weights: tuple[np.ndarray, ...]) -> None:
    parameters = [p for layer in detector.trainable_layers() for p in layer.parameters()]
    with torch.no_grad():
        for parameter, value in zip(parameters, weights, strict=True):
            parameter.copy_(torch.from_numpy(value))
