"""One training on several devices of this machine at once, data parallel: Fluid's widths above one (papers/fluid.md, section 3).

There is a process per device, and a training of width w has w of them: GPUs talk through NCCL, a CPU's cores through gloo, those of
one training in a group of their own. Each has a copy of the model and does every w-th micro-batch of each batch; gradients are added up
before each update (`models.retrain.Team`). Batches, their order, the augmentation, the schedule and the precision are those of one
process, so the result is too, but for the rounding of sums. Between two epochs a training can move to another width
(`models.retrain.Bookmark`).

All ranks are processes of their own, also the first: a collective that waits for a rank that died cannot be left from inside. `Ranks`
stands outside of them. It asks all for one iteration at a time, so a trial can be paused or cancelled between any two, and within one
the processes are ended; one that dies, hangs or fails ends them all, with what it said. Processes are kept for the next trial while all
goes well, because starting them takes longer than many a trial, and hold as many trials as are open: a group's advance together, those
on different devices at the same time.
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
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
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
from models.precision import Precision, device_of, precision_of
from models.retrain import Bookmark, Saved, Step, check_lesson, retrain
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
    """What every rank is sent: the arguments of `retrain`. ranks: who trains together."""

    ranks: tuple[int, ...]
    detector: Detector
    samples: tuple[LabelledImage, ...]
    replay: tuple[LabelledImage, ...]
    config: RetrainConfig
    seed: int
    micro_batch: int
    augmentation: Augmentation | None
    task: Task
    teacher: Detector | None
    precision: Precision
    after: Saved | None


@dataclass(frozen=True, kw_only=True)
class _Ask:
    """What a rank is told about one training. lesson: it begins (a pickled `_Lesson`; no answer); drop: it is given up (no answer);
    save: where would it go on; none of them: its next iteration. group: of no training, these ranks will train together (no answer)."""

    training: int = 0
    group: tuple[int, ...] = ()
    lesson: bytes | None = None
    drop: bool = False
    save: bool = False


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A rank's. step: None after the last; weights: of the training's first rank at the end of an epoch; saved: what it was asked to
    save; spent_s: compute of this iteration; error: what it failed with (message, remedy, code)."""

    step: Step | None = None
    saved: Saved | None = None
    weights: tuple[np.ndarray, ...] | None = None
    spent_s: float = 0.0
    error: tuple[str, str, str] | None = None


class Ranks:
    """Processes that train together. devices: one per rank, 'cpu' or the UUIDs of GPUs; start_s, answer_s: how long they may take.
    Thread-safe: trainings on different devices go on at the same time, those on the same ones in turns. `close` ends the processes, and
    with them all trainings that are open."""

    def __init__(
        self, devices: Sequence[str], *, elsewhere: Elsewhere = uncharged, start_s: float = START_S, answer_s: float = ANSWER_S
    ) -> None:
        if not devices or (CPU in devices and set(devices) != {CPU}):
            raise ValueError(f"a training is as wide as it has devices of one kind, got {list(devices)}")
        self._devices, self._elsewhere = tuple(devices), elsewhere
        self._start_s, self._answer_s = start_s, answer_s
        self._lock = threading.RLock()
        self._team: _Processes | None = None
        self._begun = 0
        self._open: Counter[int] = Counter()  # rank -> trainings that have it

    @property
    def width(self) -> int:
        """Devices there are."""
        return len(self._devices)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that run now."""
        team = self._team
        return team.pids if team else ()

    def ready(self) -> bool:
        """Whether they can train at once. When there are none they are started; nothing is waited for."""
        with self._lock:
            try:
                if self._team is None:
                    self._team = _Processes(self._devices)
                if not self._team.met and (
                    self._team.has_answers or time.monotonic() >= self._team.born_s + self._start_s
                ):  # fmt: skip
                    self._meet("a training on several devices", None, 0.0)
                return self._team is not None and self._team.met
            except (JobError, OSError) as error:
                log.warning("the processes of trainings on several devices do not start: %s", error)
                return False

    def retrain(
        self, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, *, seed: int, micro_batch: int = 1,
        replay: Sequence[LabelledImage] = (), augmentation: Augmentation | None = None, task: Task = DETECTION,
        teacher: Detector | None = None, precision: Precision | None = None, yield_point: YieldPoint | None = None,
        bookmark: Bookmark | None = None, width: int | None = None,
    ) -> Generator[Step, None, None]:  # fmt: skip
        """As `models.retrain.retrain`, an iteration being one micro-batch on each of `width` devices (None: on all): those with the
        fewest trainings. `detector` has the weights of the last epoch that ended. yield_point: called now and then while the ranks
        compute; what it raises ends them and the training.
        Raises JobError as `retrain` does, and 'process_lost' when a rank died or hangs."""
        check_lesson(samples, config, micro_batch)
        mark = bookmark or Bookmark()
        same = precision or precision_of(device_of(detector.trainable_layers()), detector.spec.arch)

        def lesson(ranks: tuple[int, ...]) -> bytes:  # not before it begins: all pictures are in it
            return pickle.dumps(
                _Lesson(
                    ranks=ranks,
                    detector=detector,
                    samples=tuple(samples),
                    replay=tuple(replay),
                    config=config,
                    seed=seed,
                    micro_batch=micro_batch,
                    augmentation=augmentation,
                    task=task,
                    teacher=teacher,
                    precision=same,
                    after=mark.after,
                )  # fmt: skip
            )

        return self._steps(detector, config.name, lesson, yield_point, mark, width or self.width)

    def close(self) -> None:
        with self._lock:
            team, self._team = self._team, None
            self._open.clear()
        if team is not None:
            team.end()

    def _steps(
        self, detector: Detector, subject: str, lesson: Callable[[tuple[int, ...]], bytes], yield_point: YieldPoint | None,
        mark: Bookmark, width: int,
    ) -> Generator[Step, None, None]:  # fmt: skip
        team = self._started(subject, yield_point)
        with self._lock:
            self._begun += 1
            training = self._begun
            ranks = tuple(sorted(sorted(range(self.width), key=lambda rank: (self._open[rank], rank))[:width]))
            self._open.update(ranks)
        ended = False
        try:
            team.group(ranks)
            team.send(_Ask(training=training, lesson=lesson(ranks)), ranks)
            mark.save = lambda: self._saved(team, training, ranks, subject, yield_point)
            while True:
                first = self._asked(team, _Ask(training=training), ranks, subject, yield_point)[0]
                if first.weights is not None:
                    _load(detector, first.weights)
                if first.step is None:
                    ended = True
                    return
                yield first.step
        finally:
            with self._lock:
                if team is self._team:
                    self._open.subtract(ranks)
                    if not ended:  # given up between two iterations: the ranks wait for what comes next
                        team.send(_Ask(training=training, drop=True), ranks)

    def _saved(
        self, team: _Processes, training: int, ranks: tuple[int, ...], subject: str, yield_point: YieldPoint | None
    ) -> Saved:
        found = self._asked(team, _Ask(training=training, save=True), ranks, subject, yield_point)[0].saved
        assert found is not None  # it has begun
        return found

    def _asked(
        self, team: _Processes, ask: _Ask, ranks: tuple[int, ...], subject: str, yield_point: YieldPoint | None
    ) -> list[_Answer]:
        """The answers of these ranks, in order. Whatever goes wrong ends the processes."""
        with ExitStack() as held:
            for rank in ranks:
                held.enter_context(team.turn(rank, yield_point))
            if team is not self._team:
                raise _process_lost(subject, "its processes have ended")
            try:
                with self._elsewhere() as computed:
                    team.send(ask, ranks)
                    answers = team.answers(subject, self._answer_s, yield_point, ranks)
                    computed(sum(answer.spent_s for answer in answers))
            except BaseException:
                self.close()
                raise
        return answers

    def _started(self, subject: str, yield_point: YieldPoint | None) -> _Processes:
        with self._lock:
            if self._team is None:
                self._team = _Processes(self._devices)
            if not self._team.met:
                self._meet(subject, yield_point, self._start_s)
            return self._team

    def _meet(self, subject: str, yield_point: YieldPoint | None, most_s: float) -> None:
        """Waits until every rank has found the others."""
        assert self._team is not None
        try:
            self._team.answers(subject, most_s, yield_point, range(self.width))
        except BaseException:
            self.close()
            raise
        self._team.met = True


class _Processes:
    """The ranks' processes, and a folder where they meet. met: they have."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.met, self.born_s = False, time.monotonic()
        self._sending, self._ending = threading.Lock(), threading.Lock()
        self._turns = [threading.Lock() for _ in devices]
        everybody = tuple(range(len(devices)))
        self._groups = {everybody, *((rank,) for rank in everybody)}  # there is nothing to make of these
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

    @contextmanager
    def turn(self, rank: int, yield_point: YieldPoint | None) -> Iterator[None]:
        """Whoever asks a rank for an iteration has it until it has answered."""
        while not self._turns[rank].acquire(timeout=LOOK_S):
            if yield_point is not None:
                yield_point()
        try:
            yield
        finally:
            self._turns[rank].release()

    def send(self, what: _Ask, ranks: Sequence[int]) -> None:
        """All ranks hear all that is said in one order: of two groups that share ranks, none waits for the other's."""
        with self._sending:
            self._send(what, ranks)

    def group(self, ranks: tuple[int, ...]) -> None:
        """Before these train together for the first time. All ranks hear of it, also who is not in it: torch finds the members of a
        group by how many groups a process has heard of (told to the members only, they wait for each other under different names;
        pytorch issue 173608)."""
        with self._sending:
            if ranks not in self._groups:
                self._groups.add(ranks)
                self._send(_Ask(group=ranks), range(len(self._pipes)))

    def _send(self, what: _Ask, ranks: Sequence[int]) -> None:
        for rank in ranks:
            with suppress(OSError):  # it died: `answers` says so
                self._pipes[rank].send(what)

    def answers(self, subject: str, most_s: float, yield_point: YieldPoint | None, ranks: Sequence[int]) -> list[_Answer]:
        """One of each of these ranks, in order. JobError: one failed, died, or took longer than most_s."""
        found: dict[int, _Answer] = {}
        until_s = time.monotonic() + most_s
        while len(found) < len(ranks):
            waiting = {self._pipes[rank]: rank for rank in ranks if rank not in found}
            for pipe in self._come(list(waiting), subject):
                rank = waiting[pipe]
                try:
                    found[rank] = pipe.recv()
                except (EOFError, OSError):
                    raise self._lost(subject, rank) from None
                error = found[rank].error
                if error is not None:
                    raise self._dead(subject, but=rank) or JobError(error[0], subject=subject, remedy=error[1], code=error[2])
            if len(found) < len(ranks) and time.monotonic() >= until_s:
                silent = min(set(ranks) - set(found))
                raise _process_lost(subject, f"process {silent + 1} of {len(self._pipes)} gave no answer for {most_s:.0f} s")
            if yield_point is not None:
                yield_point()
        return [found[rank] for rank in ranks]

    def end(self) -> None:
        """Never waits long: a rank that is in a collective hears nothing, so it is not asked."""
        with self._ending:
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.join()
            for pipe in self._pipes:
                pipe.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _come(self, pipes: list[Connection], subject: str) -> list[Connection]:
        try:
            return cast("list[Connection]", wait(pipes, LOOK_S))
        except (OSError, ValueError):  # another training's thread has ended them
            raise _process_lost(subject, "its processes have ended") from None

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
    """`models.retrain.Team` over torch.distributed. group: None: all processes."""

    rank: int
    size: int
    group: Any = None

    def add_up(self, values: Sequence[torch.Tensor]) -> None:
        """As one message per type of number: a network has hundreds of small tensors."""
        for dtype in dict.fromkeys(value.dtype for value in values):
            same = [value for value in values if value.dtype == dtype]
            flat = torch.cat([value.reshape(-1) for value in same])
            torch.distributed.all_reduce(flat, group=self.group)
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
        _train(_Groups(rank, size), pipe)
    except (EOFError, OSError):
        return
    except DriftboxError as error:
        _say(pipe, error.message, error.remedy, error.code)
    except Exception as error:
        log.exception("rank %d of a training on several devices", rank)
        _say(pipe, f"a training on several devices failed: {type(error).__name__}: {error}", "see the log", "process_lost")


class _Groups:
    """Who trains together, as this rank sees it."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._made: dict[tuple[int, ...], Any] = {tuple(range(size)): None}

    def make(self, ranks: tuple[int, ...]) -> None:
        """Every rank comes here for every group, in one order. Its members wait for each other, the rest for nobody."""
        self._made[ranks] = torch.distributed.new_group(list(ranks))

    def member(self, ranks: tuple[int, ...]) -> _Member | None:
        """None: this one alone."""
        if len(ranks) == 1:
            return None
        return _Member(rank=ranks.index(self._rank), size=len(ranks), group=self._made[ranks])


@dataclass(frozen=True, kw_only=True)
class _Training:
    """One that is open here. first: whether this rank speaks for it."""

    detector: Detector
    steps: Generator[Step, None, None]
    bookmark: Bookmark
    first: bool


def _train(groups: _Groups, pipe: Connection) -> None:
    """Does what it is asked, until the pipe closes."""
    trainings: dict[int, _Training] = {}
    while True:
        ask: _Ask = pipe.recv()
        if ask.group:
            groups.make(ask.group)
        elif ask.lesson is not None:
            trainings[ask.training] = _begun(pickle.loads(ask.lesson), groups)
        elif ask.drop:
            _close(trainings.pop(ask.training, None))
        elif ask.save:
            training = trainings[ask.training]
            pipe.send(_Answer(saved=training.bookmark.saved() if training.first else None))
        else:
            training = trainings[ask.training]
            device = device_of(training.detector.trainable_layers())
            before_s = _spent_s(device)
            step = next(training.steps, None)
            at_end = step is not None and step.epoch_loss is not None and training.first
            weights = _weights(training.detector) if at_end else None
            pipe.send(_Answer(step=step, weights=weights, spent_s=_spent_s(device) - before_s))
            if step is None:
                del trainings[ask.training]


def _close(training: _Training | None) -> None:
    if training is not None:
        training.steps.close()


def _begun(lesson: _Lesson, groups: _Groups) -> _Training:
    member, bookmark = groups.member(lesson.ranks), Bookmark(lesson.after)
    steps = retrain(
        lesson.detector, lesson.samples, lesson.config, seed=lesson.seed, micro_batch=lesson.micro_batch, replay=lesson.replay,
        augmentation=lesson.augmentation, task=lesson.task, teacher=lesson.teacher, precision=lesson.precision, team=member,
        bookmark=bookmark,
    )  # fmt: skip
    return _Training(detector=lesson.detector, steps=steps, bookmark=bookmark, first=member is None or member.rank == 0)


def _spent_s(device: torch.device) -> float:
    """Compute so far: of this process on a CPU; on a GPU the time, since the device is waited for. Only differences count."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.monotonic()


def _say(pipe: Connection, message: str, remedy: str, code: str) -> None:
    with suppress(OSError, EOFError):
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
