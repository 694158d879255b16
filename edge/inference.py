"""Live inference of one camera: newest frame in, detections out, the model exchanged between two frames.

One thread per camera, or a few for all of them where frames take turns and are decoded in them (`edge.step_pool`); compute goes through
the camera's lane, so a share is kept here as everywhere. What the page, telemetry and the
sampler see is the last `Shown`: a frame with the boxes that belong to it.

A model that was replaced stays warm beside the new one for a while. While the new one is watched (its first frames), the old one does
every frame on which it fails, so that people miss none; when it fails several times in a row the old one is back for good, at once.

The same holds where not the model changes but where it runs (another process, another share, another form): the new carrier takes over
between two frames, the old one stands in for it while it is watched, and is closed after. What is closed is always out of use: that is
decided between two frames, by the camera's own thread.

Every frame has a deadline: `goal_s` after it was taken. A model that answers through the box's queue (`edge.pool`) is told it, by the
`Turn` around each prediction, and may give a frame up (`TooLate`): counted, shown, no error. When frame after frame is given up, the
next ones are given more and more time, so that people see something however small the share is; what is counted does not change.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from configs.errors import JobCancelled, redact
from edge.answers import AnswerMeter
from edge.clock import Clock
from edge.finish import DueFrames, FinishBook
from edge.gpu.base import Lane, TurnLane
from edge.pool.turn import TooLate, Turn, taken
from edge.resolution import ask, of_live
from edge.shadow import Shadow, is_finite, overtime, said_of
from edge.step_pool import Entry, StepPool
from models.detector import Detector
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler.types import Detections, Frame, KnobProfile
from streams.pulse import Pulse
from streams.source import Camera, Undecoded

#: Frames over which rate and cost are averaged.
HISTORY = 64
#: A share planned for the typical frame would fall behind when much moves: so many of the frames cost no more than is planned for.
BUSY_QUANTILE = 0.9
#: Longest sleep between two looks at the knobs, and shortest.
LOOK_S, LEAST_S = 0.25, 0.005
#: Rest after a prediction that threw: a broken model must not burn the share.
ERROR_REST_S = 0.5
#: Frames for which a new model is watched, and failures in a row that put the old one back.
WATCHED_FRAMES, FAILURES_IN_A_ROW = 50, 3
#: A camera of which so many frames in a row were given up asks for twice the time with each further one, up to the second number (s).
BLIND_FRAMES, PATIENCE_MAX_S = 3, 60.0
#: So often a camera is asked at which rate its pictures come.
RATE_READ_S = 2.0
#: From capture to answer, where nobody says otherwise.
GOAL_S = 0.4


@runtime_checkable
class Closable(Protocol):
    """A detector that holds something besides memory: a process, an engine."""

    def close(self) -> None: ...


@runtime_checkable
class Abandonable(Protocol):
    """A detector whose prediction can be broken off from another thread; it then raises."""

    def abandon(self) -> None: ...


class NotFinite(Exception):
    """A prediction whose boxes or scores are NaN or infinite; nobody is shown that."""

    def __init__(self) -> None:
        super().__init__("the model gave numbers that are none (NaN or infinite)")


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A detector ready to serve, and which version it is."""

    detector: Detector
    version: str


@dataclass(frozen=True, kw_only=True)
class FellBack:
    """A watched model that failed too often was replaced by the one before it. failed == version: the same model, which goes on where it
    ran before."""

    failed: str
    version: str
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """The last analysed frame. cost_s: seconds of compute of the prediction; lag_s: from capture to result."""

    frame: Frame
    detections: Detections
    version: str
    cost_s: float
    lag_s: float


@dataclass(frozen=True, kw_only=True)
class SwapRecord:
    """How a swap went. gap_s: time between the last frame of the old and the first of the new model; interval_s: the usual time
    between frames then; missed_frames: whole intervals without a frame beyond the usual one."""

    version: str
    at_s: float
    gap_s: float
    interval_s: float

    @property
    def missed_frames(self) -> int:
        return max(0, round(self.gap_s / self.interval_s) - 1) if self.interval_s > 1e-6 else 0


def _undecoded_of(camera: Camera, lane: Lane, pool: StepPool | None) -> tuple[Undecoded, TurnLane] | None:
    """Who decodes the camera's frames here, and where: on a processor on which frames take turns decoding is a part of the turn."""
    if pool is None or camera.may_lag:
        return None
    if not isinstance(camera, Undecoded) or not isinstance(lane, TurnLane) or not lane.takes_turns:
        return None
    return camera, lane


def _nobody() -> None:
    """Who steps by hand is not woken."""


class InferenceWorker:
    """Runs until `stop`. `swap` may be called from any thread with a warmed detector; the next frame uses it.

    on_fall_back: told in the worker's own thread when the model before was put back; must be quick. goal_s: from capture to answer.
    after_s: how much of the seconds that a frame has until its deadline is needed after its answer (`Turn.after_s`). weight: what an
    answer is worth beside other cameras' (`Turn.weight`).
    on_shown: told each analysed frame, in the worker's own thread; must return at once and never raise. hold: whether somebody is not
    done with the last frame; asked only where frames may wait (`Camera.may_lag`). pool: who does its steps where nothing of a frame has
    to be waited for inside one (None: a thread of its own)."""

    def __init__(
        self,
        camera: Camera,
        lane: Lane,
        detector: Detector,
        version: str,
        *,
        clock: Clock,
        score_min: float,
        task: Task = DETECTION,
        goal_s: float = GOAL_S,
        pool: StepPool | None = None,
    ) -> None:
        self.camera = camera
        self.finish = FinishBook(goal_s)
        self._late_in_a_row = 0
        self._due = DueFrames()
        self._asks_since_s: float | None = None  # for a frame that the camera has not got yet
        self._blocked_s = 0.0  # how long the camera was asked for the frame in work
        self._handled: Frame | None = None  # the frame in work
        self._rate_read_s = self._camera_interval_s = 0.0  # see `_least_interval_s`
        self.task = task
        self.answers = AnswerMeter()
        self.on_fall_back: Callable[[FellBack], None] = lambda fell: None
        self.on_shown: Callable[[Shown], None] = lambda shown: None
        self.hold: Callable[[], bool] = lambda: False
        self.after_s: Callable[[float], float] = lambda patience_s: 0.0
        self.weight = 1.0
        self._lane = lane
        self._pool = pool
        self._undecoded = _undecoded_of(camera, lane, pool)
        self._model = Model(detector=detector, version=version)
        self._previous: Model | None = None
        self._twin: Model | None = None  # the same version where it ran before, while the new one is watched
        self._retired: list[Detector] = []  # out of use from the next frame on
        self._busy_since_s: float | None = None  # inside a prediction of a watched model
        self._replaced_s = 0.0
        self._watched = 0  # frames for which the serving model is still watched
        self._failures = 0  # of it, in a row
        self._shadow: Shadow | None = None
        self._next_camera: Camera | None = None
        self._clock = clock
        self._score_min = score_min
        self._lock = threading.Lock()
        self._shown: Shown | None = None
        self._times_s: deque[float] = deque(maxlen=HISTORY)
        self._costs_s: deque[float] = deque(maxlen=HISTORY)
        self._swapped_to: Model | None = None
        self.swaps: deque[SwapRecord] = deque(maxlen=HISTORY)
        self.frames = 0
        self.errors = 0
        self.last_error = ""
        self._interval_s = 0.0
        self._height_px = 0  # of what the model is shown; 0: the camera's picture as it is
        self._next_s = 0.0
        self._seq = -1
        self._paused = threading.Event()
        self._stop = threading.Event()
        self._pulse = Pulse(clock.monotonic_s)
        self._cancelled = False  # its lane was taken away
        self._generation = 0
        self._found = False  # a frame is due and has not had its turn yet (where the pool does the steps)
        self._beside: Callable[[AbstractContextManager[None]], None] | None = None  # what the shadow is to look at, there
        self._entry: Entry | None = None  # in the pool
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, args=(self._generation,), name=f"infer-{self.camera.id}", daemon=True)

    def start(self) -> None:
        self._pulse.beat()
        if self._pool is not None and self._undecoded is not None:
            generation = self._generation
            self._entry = self._pool.add(f"infer-{self.camera.id}", lambda: self._step_for_pool(generation))
            self._entry.wake()
        else:
            self._thread.start()

    def is_alive(self) -> bool:
        """Whether its thread does what it should: it runs, or was told to end, or has not begun."""
        if self._entry is not None and not self._stop.is_set():
            return not self._entry.ended
        return self._stop.is_set() or self._thread.ident is None or self._thread.is_alive()

    def _is_at_work(self) -> bool:
        return self._thread.is_alive() if self._entry is None else self._entry.works

    def silent_s(self) -> float:
        """See `streams.pulse`; waiting for a share is no silence, nor is a pause, which may catch it inside a frame."""
        return 0.0 if self._stop.is_set() or self._paused.is_set() else self._pulse.silent_s()

    @property
    def keeps_its_lane(self) -> bool:
        """Whether a new thread can go on in the lane of the old one, which left it in order."""
        return not self._is_at_work() and not self._cancelled

    def begin_anew(self, lane: Lane | None = None) -> None:
        """Another thread does the work from now on. The old one has died, or hangs: then it ends when it comes back, and `lane` is the
        new one's, for the old one is still inside its own."""
        if self._stop.is_set():
            return
        if lane is not None:
            self._lane = lane
            self._undecoded = _undecoded_of(self.camera, lane, self._pool)
        if self._entry is not None:
            self._entry.leave()
        self._generation += 1
        self._cancelled = self._found = False
        self._beside = None
        self._entry, self._thread = None, self._new_thread()
        self.start()

    def stop(self) -> None:
        """The caller cancels the lane first, so that a waiting iteration ends."""
        self._stop.set()
        if self._entry is not None:
            self._entry.leave()

    def join(self, timeout_s: float) -> None:
        if self._entry is not None:
            self._entry.join(timeout_s)
        elif self._thread.ident is not None:  # else it was never started
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Gives back what its models hold. After `stop` and `join`; a thread that hangs inside a model keeps that one."""
        with self._lock:
            models = [m.detector for m in (self._model, self._previous, self._twin) if m is not None]
            detectors, self._retired = {id(d): d for d in [*models, *self._retired]}, []
        for detector in detectors.values():
            close_detector(detector)

    def turn_to(self, camera: Camera) -> None:
        """Another camera's frames from the next one on (the same camera by another address). From any thread."""
        with self._lock:
            self._next_camera = camera
        self._look_again()

    def _look_again(self) -> None:
        if self._entry is not None:
            self._entry.wake()

    def set_knobs(self, knobs: KnobProfile | None) -> None:
        """knobs=None pauses inference; the camera goes on for the sampler."""
        if knobs is None:
            self._paused.set()
            return
        self._interval_s = 1.0 / knobs.fps if knobs.fps > 0 else 0.0
        with self._lock:
            if knobs.height_px != self._height_px:  # frames of another size cost otherwise, and are answered otherwise
                self._costs_s.clear()
                self.answers.take()
            self._height_px = knobs.height_px
        self._paused.clear()
        self._look_again()

    def swap(self, detector: Detector, version: str) -> None:
        """Takes effect between two frames: the frame in work ends on the old model, which stays warm (`kept`)."""
        with self._lock:
            self._replace(Model(detector=detector, version=version))

    def move(self, detector: Detector, *, instead_of: Detector) -> bool:
        """The serving version goes on in `detector`, from the next frame on; False: something else than `instead_of` serves by now, and
        nothing changed."""
        with self._lock:
            if self._model.detector is not instead_of:
                return False
            self._replace(Model(detector=detector, version=self._model.version))
            return True

    def serving(self) -> tuple[str, Detector]:
        """The version that serves, and where."""
        with self._lock:
            return self._model.version, self._model.detector

    def _replace(self, model: Model) -> None:
        """Lock held. Of several carriers in a row the one that has proved itself stays until another has."""
        before = self._model
        if model.detector is before.detector:
            pass
        elif model.version == before.version:
            self._retire(before if self._twin else None)
            self._twin = self._twin or before
        else:
            self._retire(self._twin)
            if self._previous is not None and self._previous.detector is not model.detector:
                self._retire(self._previous)
            self._previous, self._twin, self._replaced_s = before, None, self._clock.monotonic_s()
        self._model = self._swapped_to = model
        self._retired = [d for d in self._retired if d is not model.detector]
        self._watched, self._failures = WATCHED_FRAMES, 0

    def _retire(self, model: Model | None) -> None:
        if model is not None and isinstance(model.detector, Closable):
            self._retired.append(model.detector)

    def _close_retired(self) -> None:
        """Between two frames. Beside the worker, because a process may take its time to end."""
        if not self._retired:
            return
        with self._lock:
            retired, self._retired = self._retired, []
        for detector in retired:
            threading.Thread(target=close_detector, args=(detector,), name=f"retire-{self.camera.id}", daemon=True).start()

    def break_off(self, *, after_s: float) -> bool:
        """Ends a prediction of a watched model that has taken `after_s` already, where its detector can be told; the frame is then done
        by the one before. From any thread; whether it was told."""
        with self._lock:
            since_s, detector = self._busy_since_s, self._model.detector
            hangs = since_s is not None and self._clock.monotonic_s() - since_s >= after_s
        if not hangs or not isinstance(detector, Abandonable):
            return False
        detector.abandon()
        return True

    def kept(self, version: str) -> Detector | None:
        """The warm detector of `version` when it serves, or did before the present one and was not let go yet."""
        with self._lock:
            found = (m for m in (self._model, self._previous) if m is not None and m.version == version)
            return next((m.detector for m in found), None)

    def let_go(self, *, after_s: float) -> None:
        """Gives the memory of the model before back once it has been out of use for `after_s`."""
        with self._lock:
            if self._clock.monotonic_s() - self._replaced_s >= after_s and self._watched == 0:
                self._retire(self._previous)
                self._previous = None

    def shadow(self, shadow: Shadow | None) -> None:
        """Lets a new model run beside the serving one from the next frame on; None ends that."""
        with self._lock:
            self._shadow = shadow

    def shown(self) -> Shown | None:
        with self._lock:
            return self._shown

    def version(self) -> str:
        with self._lock:
            return self._model.version

    def rate_fps(self) -> float:
        """Analysed frames per second over the last frames."""
        with self._lock:
            interval_s = self._usual_interval_s()
        return 1.0 / interval_s if interval_s > 0 else 0.0

    def cost_s(self) -> float | None:
        """CPU seconds of a prediction, None before the first frames: the median, or what a task's busier frames need
        (`BUSY_QUANTILE`) where a frame's work follows its content."""
        with self._lock:
            costs = sorted(self._costs_s)
        quantile = BUSY_QUANTILE if self.task.wants_regions else 0.5
        return costs[int(len(costs) * quantile)] if len(costs) >= 5 else None

    def _usual_interval_s(self) -> float:
        times = list(self._times_s)[-16:]
        gaps = sorted(b - a for a, b in zip(times, times[1:], strict=False))
        return gaps[len(gaps) // 2] if gaps else 0.0

    def _run(self, generation: int) -> None:
        while not self._stop.is_set() and generation == self._generation:
            self._pulse.beat()
            try:
                wait_s = self.step()
            except JobCancelled:
                self._cancelled = self._cancelled or generation == self._generation
                return
            except Exception as error:  # the watchdog begins anew, and says why
                self._count_error(error)
                raise
            if wait_s > 0:
                self._stop.wait(wait_s)

    def _step_for_pool(self, generation: int) -> float:
        entry = self._entry
        if self._stop.is_set() or generation != self._generation or entry is None:
            return math.inf
        self._pulse.beat()
        if self._undecoded is None:  # it was turned to a camera whose frames come another way
            entry.leave()
            self._entry = None
            self._thread.start()
            return math.inf
        try:
            wait_s = self.step()
        except JobCancelled:
            self._cancelled = self._cancelled or generation == self._generation
            entry.leave()
            return math.inf
        except Exception as error:  # the watchdog begins anew, and says why
            self._count_error(error)
            raise
        if wait_s > 0 and generation == self._generation:
            self._pulse.rest()
        return wait_s

    def step(self) -> float:
        """Analyses the newest frame if one is due; returns the seconds to rest before the next step. Where the pool does the steps it
        waits for nothing. Raises JobCancelled. For the worker's own thread, or the pool's (tests call it instead of starting one)."""
        if self._undecoded is None:
            return self._step_waiting()
        _, lane = self._undecoded
        if self._beside is None and not self._found:
            wait_s = self._look_for_frame()
            if not self._found:
                return wait_s
        rest_s = self._in_its_turn(lane)
        if rest_s > 0 or self._beside is not None:
            return rest_s
        return self._look_for_frame()  # mostly there is none, and the pool is spared a step

    def _step_waiting(self) -> float:
        """A step in which the frame, and then its turn, are waited for."""
        now_s = self._clock.monotonic_s()
        wait_s = self._rest_s(now_s)
        if wait_s > 0:
            return wait_s
        asks_since_s = now_s if self._asks_since_s is None else self._asks_since_s
        frame = self.camera.next_frame(after_seq=self._seq, timeout_s=0.5)
        if frame is None:
            self._asks_since_s = asks_since_s
            return 0.0
        self._is_due(frame, asks_since_s, now_s)
        return self._handle(frame, None)

    def _look_for_frame(self) -> float:
        """Whether one is due that can be decoded (`_found`); else seconds after which to look again."""
        now_s = self._clock.monotonic_s()
        wait_s = self._rest_s(now_s)
        if wait_s > 0 or self._undecoded is None:  # it may have been turned to another camera
            return wait_s
        camera, _ = self._undecoded
        asks_since_s = now_s if self._asks_since_s is None else self._asks_since_s
        wait_s = camera.until_due(after_seq=self._seq, wake=self._entry.wake if self._entry else _nobody)
        if wait_s > 0:
            self._asks_since_s = asks_since_s
            return wait_s
        self._found = True
        self._is_due(None, asks_since_s, now_s)
        return 0.0

    def _in_its_turn(self, lane: TurnLane) -> float:
        """What is next, a frame or the shadow's look at the last one, if it is its turn."""
        iteration = lane.ask(self._entry.wake_first if self._entry else _nobody)
        if isinstance(iteration, float):
            return iteration
        if self._beside is not None:
            beside, self._beside = self._beside, None
            beside(iteration)
            return 0.0
        self._found = False
        return self._handle(None, iteration)

    def _rest_s(self, now_s: float) -> float:
        """Seconds to rest before a frame is asked for."""
        self._close_retired()
        self._turn_if_told()
        if self._paused.is_set():
            self._due.rest()
            self._asks_since_s = None
            return LOOK_S
        if now_s < self._next_s:
            return min(LOOK_S, max(LEAST_S, self._next_s - now_s))
        return LEAST_S if self.camera.may_lag and self.hold() else 0.0

    def _is_due(self, frame: Frame | None, asks_since_s: float, now_s: float) -> None:
        """frame: None where it is not decoded yet. now_s: when the camera was asked last."""
        self._asks_since_s, self._blocked_s = None, self._clock.monotonic_s() - asks_since_s
        self._handled = frame
        if frame is not None:
            self._seq = frame.seq
        # The next frame is due one interval after this one was due, not after it was done: else the rate sinks below the wanted.
        # What may lag comes at the wanted rate of its own time, as fast as it is taken.
        interval_s = 0.0 if self.camera.may_lag else self._interval_s
        self._next_s = max(self._next_s + interval_s, now_s - interval_s) if interval_s else 0.0

    def _handle(self, frame: Frame | None, iteration: AbstractContextManager[None] | None) -> float:
        """Analyses a frame that is due; seconds to rest. iteration: see `_analyse`."""
        try:
            self._seq = self._analyse(frame, iteration)
        except JobCancelled:
            raise
        except TooLate:
            self._late_in_a_row += 1
            self.finish.dropped()
        except Exception as error:  # a broken model must not end the camera; the operator sees the count and the text
            self._count_error(error)
            return ERROR_REST_S
        finally:
            self._count_due()
        return 0.0

    def _turn_if_told(self) -> None:
        """Frames of the other camera are counted anew."""
        if self._next_camera is None:
            return
        with self._lock:
            camera, self._next_camera = self._next_camera, None
        if camera is None:
            return
        self.camera, self._seq, self._handled, self._asks_since_s = camera, -1, None, None
        self._undecoded = _undecoded_of(camera, self._lane, self._pool)
        self._camera_interval_s = 0.0
        self._due.rest()

    def _count_due(self) -> None:
        """How many frames were due up to the one in work, those included that nobody looked at."""
        frame = self._handled
        if frame is None:
            return
        if self.camera.may_lag or self._interval_s <= 0:
            self.finish.due(1)
            return
        interval_s = max(self._interval_s, self._least_interval_s())
        self.finish.due(self._due.until(frame.captured_s, interval_s, silent_s=max(0.0, self._blocked_s - interval_s)))

    def _least_interval_s(self) -> float:
        """Between two frames of the camera, 0 before it is known. A camera's rate changes seldom, and its status tells a dozen things
        under the lock that its threads need: it is asked now and then, not for every frame."""
        now_s = self._clock.monotonic_s()
        if now_s - self._rate_read_s >= (RATE_READ_S if self._camera_interval_s else 0.0):
            fps = self.camera.status().fps
            self._rate_read_s, self._camera_interval_s = now_s, 1.0 / fps if fps > 0 else 0.0
        return self._camera_interval_s

    def patience_s(self) -> float:
        """How long after its capture a frame may be answered: the goal, or more for a camera that would show nothing otherwise."""
        given_up = self._late_in_a_row - BLIND_FRAMES + 1
        if given_up <= 0:
            return self.finish.goal_s
        return max(self.finish.goal_s, min(PATIENCE_MAX_S, self.finish.goal_s * 2.0**given_up))

    def _turn(self, frame: Frame) -> Turn:
        """What the box's queue is told of a frame."""

        def newer() -> bool:
            return self.camera.next_frame(after_seq=frame.seq, timeout_s=0.0) is not None

        if self.camera.may_lag:
            return Turn(
                deadline_s=self._clock.monotonic_s() + PATIENCE_MAX_S, weight=self.weight, checkpoint=self._lane.checkpoint
            )
        replaceable = self._interval_s > 0 and self._late_in_a_row < BLIND_FRAMES
        patience_s = self.patience_s()
        return Turn(
            deadline_s=frame.captured_s + patience_s, after_s=self.after_s(patience_s), newer=newer,
            next_s=self._next_s if replaceable else None, weight=self.weight, checkpoint=self._lane.checkpoint,
        )  # fmt: skip

    def _count_error(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = redact(f"{type(error).__name__}: {error}")

    def _newest(self, frame: Frame | None) -> Frame | None:
        """Inside an iteration: the newest frame. The share may have made us wait: what came meanwhile is what people want to see
        analysed. None: what was there gave no picture."""
        if frame is not None:
            return self.camera.next_frame(after_seq=frame.seq, timeout_s=0.0) or frame
        if self._undecoded is None:
            return None
        camera, lane = self._undecoded
        with lane.beside():
            made = camera.make(after_seq=self._seq)
            if made is not None:  # what the model is shown belongs to decoding, too
                of_live(self.task, self._model.detector, made, height_px=self._height_px)
            return made

    def _analyse(self, frame: Frame | None, iteration: AbstractContextManager[None] | None) -> int:
        """Analyses the newest frame there is, `frame` or later; returns its seq. iteration: its turn, None: it is waited for here."""
        self._pulse.rest()
        with iteration or self._lane.iteration():
            self._pulse.beat()
            frame = self._newest(frame)
            if frame is None:
                return self._seq
            self._seq, self._handled = frame.seq, frame
            started_s = self._clock.thread_cpu_s()
            with taken(self._turn(frame)) as turn:
                model, detections = self._answer(frame, turn)
            cost_s = self._clock.thread_cpu_s() - started_s + turn.spent_s
        now_s = self._clock.monotonic_s()
        self._late_in_a_row = 0
        self.finish.answered(now_s - frame.captured_s)
        with self._lock:
            shown = self._shown = Shown(
                frame=frame,
                detections=detections,
                version=model.version,
                cost_s=cost_s,
                lag_s=max(0.0, now_s - frame.captured_s),
            )
            self._note_swap(model, now_s)
            self._times_s.append(now_s)
            self._costs_s.append(cost_s)
            self.frames += 1
            shadow = self._shadow
        self.answers.add(model.version, detections)
        self.on_shown(shown)
        if shadow is not None and shadow.may_look(cost_s):
            look = functools.partial(self._look_beside, shadow, frame, detections, cost_s)
            if iteration is None:
                self._pulse.rest()
                look(self._lane.iteration())
            else:  # in a turn of its own, which nobody waits for here
                self._beside = look
        return frame.seq

    def _answer(self, frame: Frame, turn: Turn) -> tuple[Model, Detections]:
        """What is shown of a frame, and by whom: a watched model that fails on it is helped out by the one before."""
        with self._lock:
            model, stand_in = self._model, (self._twin or self._previous) if self._watched else None
            self._watched = max(0, self._watched - 1)
            self._busy_since_s = self._clock.monotonic_s() if stand_in is not None else None
        try:
            found = self._predict(model, frame)
        except JobCancelled:
            raise
        except TooLate:  # says nothing of the model
            with self._lock:
                self._watched += stand_in is not None and self._model is model
            raise
        except Exception as error:
            if stand_in is None:
                raise
            self._busy_since_s = None
            self._count_error(error)
            self._failed(model, stand_in)
            # The failure may have taken the frame's time; people are to see it all the same.
            turn.deadline_s = max(turn.deadline_s, self._clock.monotonic_s() + self.finish.goal_s)
            turn.next_s = None
            return stand_in, self._predict(stand_in, frame)
        finally:
            self._busy_since_s = None
        self.last_error = ""
        self._held_its_own(model)
        return model, found

    def _held_its_own(self, model: Model) -> None:
        with self._lock:
            if self._model is not model:
                return
            self._failures = 0
            if not self._watched:  # where the model ran before is not needed any more
                self._retire(self._twin)
                self._twin = None

    def _predict(self, model: Model, frame: Frame) -> Detections:
        said = ask(self.task, model.detector, frame, score_min=self._score_min, height_px=self._height_px)
        found = self.task.shown(said)
        if not is_finite(found):
            raise NotFinite
        return found

    def _failed(self, model: Model, stand_in: Model) -> None:
        """Counts a failure of a watched model; after `FAILURES_IN_A_ROW` the one before it is back."""
        with self._lock:
            if self._model is not model:  # replaced meanwhile
                return
            self._failures += 1
            if self._failures < FAILURES_IN_A_ROW:
                return
            self._model = self._swapped_to = stand_in
            self._retire(model)
            if stand_in is self._twin:
                self._twin = None
            else:
                self._previous = None
            self._watched, self._failures = 0, 0
        reason = f"failed on {FAILURES_IN_A_ROW} live frames in a row: {self.last_error}"
        self.on_fall_back(FellBack(failed=model.version, version=stand_in.version, reason=reason))

    def _look_beside(
        self, shadow: Shadow, frame: Frame, shown: Detections, cost_s: float, iteration: AbstractContextManager[None]
    ) -> None:
        """The shadow's turn, after the frame is out. Whatever it does, the camera goes on."""
        with iteration:
            self._pulse.beat()
            turn = Turn(
                deadline_s=self._clock.monotonic_s() + self.patience_s(), weight=self.weight, checkpoint=self._lane.checkpoint
            )  # fmt: skip

            def used_s() -> float:
                return self._clock.thread_cpu_s() + turn.spent_s

            started_s = used_s()
            too_long = overtime(used_s, shadow.limit_s(cost_s))
            try:
                with taken(turn):
                    found = ask(
                        self.task, shadow.detector, frame, score_min=self._score_min, height_px=self._height_px,
                        yield_point=too_long,
                    )  # fmt: skip
                shadow.add(shown, self.task.shown(found), serving_s=cost_s, new_s=used_s() - started_s)
            except JobCancelled:
                raise
            except TooLate:  # live frames go first
                return
            except Exception as error:
                shadow.fail(said_of(error))

    def _note_swap(self, model: Model, now_s: float) -> None:
        if self._swapped_to is not model:
            return
        self._swapped_to = None
        if self._times_s:  # else nobody was watching yet
            gap_s = now_s - self._times_s[-1]
            self.swaps.append(SwapRecord(version=model.version, at_s=now_s, gap_s=gap_s, interval_s=self._usual_interval_s()))


def close_detector(detector: Detector) -> None:
    """Gives back what a detector that is out of use holds besides memory."""
    if isinstance(detector, Closable):
        with contextlib.suppress(Exception):  # whatever it says
            detector.close()
