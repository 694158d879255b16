"""Live inference of one camera: newest frame in, detections out, the model exchanged between two frames.

One thread per camera; compute goes through the camera's lane, so a share is kept here as everywhere. What the page, telemetry and the
sampler see is the last `Shown`: a frame with the boxes that belong to it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from configs.errors import JobCancelled, redact
from edge.clock import Clock
from edge.gpu.base import Lane
from models.detector import Detector
from models.tasks.base import Picture, Task
from models.tasks.detection import DETECTION
from scheduler.types import Detections, Frame, KnobProfile
from streams.source import Camera

#: Frames over which rate and cost are averaged.
HISTORY = 64
#: Longest sleep between two looks at the knobs, and shortest.
LOOK_S, LEAST_S = 0.25, 0.005
#: Rest after a prediction that threw: a broken model must not burn the share.
ERROR_REST_S = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """The last analysed frame. cost_s: CPU seconds of the prediction; lag_s: from capture to result."""

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


class InferenceWorker:
    """Runs until `stop`. `swap` may be called from any thread with a warmed detector; the next frame uses it."""

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
    ) -> None:
        self.camera = camera
        self._lane = lane
        self._detector = detector
        self._version = version
        self._clock = clock
        self._score_min, self._task = score_min, task
        self._lock = threading.Lock()
        self._shown: Shown | None = None
        self._times_s: deque[float] = deque(maxlen=HISTORY)
        self._costs_s: deque[float] = deque(maxlen=HISTORY)
        self._swapped_to: str | None = None
        self.swaps: deque[SwapRecord] = deque(maxlen=HISTORY)
        self.frames = 0
        self.errors = 0
        self.last_error = ""
        self._interval_s = 0.0
        self._next_s = 0.0
        self._seq = -1
        self._paused = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"infer-{camera.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The caller cancels the lane first, so that a waiting iteration ends."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def set_knobs(self, knobs: KnobProfile | None) -> None:
        """knobs=None pauses inference; the camera goes on for the sampler."""
        if knobs is None:
            self._paused.set()
            return
        self._interval_s = 1.0 / knobs.fps if knobs.fps > 0 else 0.0
        self._paused.clear()

    def swap(self, detector: Detector, version: str) -> None:
        """Takes effect between two frames: the frame in work ends on the old model."""
        with self._lock:
            self._detector, self._version = detector, version
            self._swapped_to = version

    def shown(self) -> Shown | None:
        with self._lock:
            return self._shown

    def version(self) -> str:
        with self._lock:
            return self._version

    def rate_fps(self) -> float:
        """Analysed frames per second over the last frames."""
        with self._lock:
            interval_s = self._usual_interval_s()
        return 1.0 / interval_s if interval_s > 0 else 0.0

    def cost_s(self) -> float | None:
        """Median CPU seconds of a prediction, None before the first frames."""
        with self._lock:
            costs = sorted(self._costs_s)
        return costs[len(costs) // 2] if len(costs) >= 5 else None

    def _usual_interval_s(self) -> float:
        times = list(self._times_s)[-16:]
        gaps = sorted(b - a for a, b in zip(times, times[1:], strict=False))
        return gaps[len(gaps) // 2] if gaps else 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                wait_s = self.step()
            except JobCancelled:
                return
            if wait_s > 0:
                self._stop.wait(wait_s)

    def step(self) -> float:
        """Analyses the newest frame if one is due; returns the seconds to rest before the next step. Raises JobCancelled.
        For the worker's own thread (tests call it instead of starting one)."""
        now_s = self._clock.monotonic_s()
        if self._paused.is_set():
            return LOOK_S
        if now_s < self._next_s:
            return min(LOOK_S, max(LEAST_S, self._next_s - now_s))
        frame = self.camera.next_frame(after_seq=self._seq, timeout_s=0.5)
        if frame is None:
            return 0.0
        self._seq = frame.seq
        # The next frame is due one interval after this one was due, not after it was done: else the rate sinks below the wanted.
        interval_s = self._interval_s
        self._next_s = max(self._next_s + interval_s, now_s - interval_s) if interval_s else 0.0
        try:
            self._seq = self._analyse(frame)
        except JobCancelled:
            raise
        except Exception as error:  # a broken model must not end the camera; the operator sees the count and the text
            self.errors += 1
            self.last_error = redact(f"{type(error).__name__}: {error}")
            return ERROR_REST_S
        self.last_error = ""
        return 0.0

    def _analyse(self, frame: Frame) -> int:
        """Analyses the newest frame there is, `frame` or later; returns its seq."""
        with self._lane.iteration():
            # The share may have made us wait: what came meanwhile is what people want to see analysed.
            frame = self.camera.next_frame(after_seq=frame.seq, timeout_s=0.0) or frame
            with self._lock:
                detector, version = self._detector, self._version
            started_s = self._clock.thread_cpu_s()
            picture = Picture(image=frame.image, regions=frame.regions)
            detections = self._task.shown(self._task.predict(detector, [picture], score_min=self._score_min)[0])
            cost_s = self._clock.thread_cpu_s() - started_s
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._shown = Shown(
                frame=frame, detections=detections, version=version, cost_s=cost_s, lag_s=now_s - frame.captured_s
            )
            self._note_swap(version, now_s)
            self._times_s.append(now_s)
            self._costs_s.append(cost_s)
            self.frames += 1
        return frame.seq

    def _note_swap(self, version: str, now_s: float) -> None:
        if self._swapped_to != version:
            return
        self._swapped_to = None
        if self._times_s:  # else nobody was watching yet
            gap_s = now_s - self._times_s[-1]
            self.swaps.append(SwapRecord(version=version, at_s=now_s, gap_s=gap_s, interval_s=self._usual_interval_s()))
