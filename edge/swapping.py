"""How a model takes over a camera's live inference: load, build what serves, warm, shadow, admit durably, exchange between two frames.
By the same steps the model that serves goes on elsewhere (`Swapper.hand_over`): in another process, share or form.

All of it happens beside the model that serves, in a thread of its own; until the exchange nothing has changed, so on any failure the old
model stays. What was replaced is kept warm (`edge.inference`), so going back to it is one assignment.

That thread has no lower priority than others. It was tried: on a busy machine a thread that the system has put aside still holds
Python's lock, and frames then wait for it (longest gap 6 to 7 intervals instead of 3, `driftbox bench swap`). What helps is to ask for
the lock more often, see `edge.gpu.base.SWITCH_S`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from configs.errors import DriftboxError, StorageError, WeightsError, redact
from edge.clock import Clock
from edge.inference import Abandonable, InferenceWorker, close_detector
from edge.shadow import FAST_S, OVERTIME, Shadow, ShadowRules, SwapRefused, is_finite
from edge.shelf import Shelf
from edge.store.store import Store
from models.detector import Detector
from models.tasks.base import Picture
from scheduler.commands import SwapModel

log = logging.getLogger("driftbox")

#: Seconds for which a model that was replaced stays in memory.
KEPT_WARM_S = 900.0
#: Runs on the newest frames before a model meets a live one, and the longest that they may take.
WARM_RUNS, WARM_S = 2, 60.0
#: A form may take this part of what is left of the window: first runs and shadow follow it.
FORM_FRAC = 0.5


def no_form_s(detector: Detector) -> float:
    """How long a form takes where models serve as they were trained."""
    return 0.0


@dataclass(kw_only=True)
class Swapper:
    """serve: (a model as trained, its camera) -> the form that serves frames; serve_later: the same at once, the form follows by itself.
    form_s: how long `serve` may take for a model; left_s: what is left of the window, at whose end a model that has not taken over yet
    is given up. Thread-safe; `take_over` and `go_back` are for helper threads and may take seconds, `stop` is quick."""

    shelf: Shelf
    store: Store
    clock: Clock
    serve: Callable[[Detector, str], Detector]
    serve_later: Callable[[Detector, str], Detector]
    rules: ShadowRules
    form_s: Callable[[Detector], float] = no_form_s
    left_s: Callable[[], float] = lambda: math.inf

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[str, _Attempt] = {}

    def version_under_way(self, stream: str) -> str | None:
        """The version that is about to take over a camera, None: none."""
        with self._lock:
            attempt = self._under_way.get(stream)
            return attempt.version if attempt and not attempt.moves else None

    def take_over(self, worker: InferenceWorker, command: SwapModel) -> str:
        """Carries out a SwapModel; returns the version that serves now. Raises SwapRefused when the model does not hold its own beside
        the serving one or is no longer wanted, WeightsError, StorageError, ValueError (rejected meanwhile); the serving model then
        goes on."""
        attempt = self._begin(command.stream, command.version)
        try:
            mean = self._mean_of(command)
            if mean is not None and self._mean_takes_over(worker, replace(command, version=mean, quality=None), attempt):
                return mean
            self._take_over(worker, command, attempt, self._in_time)
            return command.version
        finally:
            self._end(command.stream, attempt)

    def _take_over(
        self, worker: InferenceWorker, command: SwapModel, attempt: _Attempt, serve: Callable[[Detector, str], Detector]
    ) -> None:
        detector = self._ready(worker, command.stream, command.version, serve)
        with _given_back(detector, unless=worker.kept(command.version) is detector):
            if command.shadow and self.rules.frames > 0:
                self._shadow(worker, command, detector, attempt)
            attempt.check()
            # Durable first: killed in between, the box comes up with the new model, which is the admitted one.
            self.shelf.admit(command.stream, command.version, command.quality, command.reason)
            worker.swap(detector, command.version)

    def _mean_takes_over(self, worker: InferenceWorker, command: SwapModel, attempt: _Attempt) -> bool:
        """As trained at once: what it is for has begun, and its form is nowhere yet. False: it cannot, and is rejected."""
        try:
            self._take_over(worker, command, attempt, self.serve_later)
        except DriftboxError as error:
            log.info("%s: %s does not serve: %s", command.stream, command.version, error)
            self.shelf.reject(command.stream, command.version, str(error))
            return False
        return True

    def _mean_of(self, command: SwapModel) -> str | None:
        """The mean that is to take over, as a version of its own; None: nobody wants one, or there is none."""
        if not command.mean_of:
            return None
        try:
            mean = self.shelf.average(command.stream, command.mean_of, instead_of=command.version)
        except (StorageError, WeightsError) as error:
            log.warning("%s: %s serves by itself: %s", command.stream, command.version, error)
            return None
        return mean.id if mean is not None else None

    def hand_over(self, worker: InferenceWorker, stream: str, make: Callable[[Detector], Detector]) -> None:
        """The version that serves goes on in what `make` gives, which is told the serving detector: the same model in another process,
        under another share, in another form. It is warmed with the camera's newest frames and takes over between two frames; where it
        ran before stands in while the new one is watched, and is closed when that has held its own.

        Raises SwapRefused when it fails or hangs in its first runs, or when a model is about to take over (that one goes first) or did
        meanwhile, and what `make` raises; nothing has changed then, and what was made is closed."""
        version, serving = worker.serving()
        attempt = self._begin(stream, version, moves=True)
        try:
            detector = make(serving)
            with _given_back(detector):
                self._warm(worker, detector)
                attempt.check()
                if not worker.move(detector, instead_of=serving):
                    raise SwapRefused("another model took over meanwhile", subject=version)
        finally:
            self._end(stream, attempt)

    def go_back(self, worker: InferenceWorker, stream: str, version: str) -> None:
        """Serves what the database says already (an operator's choice); at once when it is still warm. What was about to take over is
        given up."""
        self.give_up(stream, "the operator chose another model")
        warm = worker.kept(version)
        worker.swap(warm if warm is not None else self._ready(worker, stream, version, self.serve_later), version)

    def give_up(self, stream: str, reason: str, version: str | None = None) -> None:
        """Ends the attempt that is under way for a camera (with `version`: only if it is that one's), unless it is through already."""
        with self._lock:
            attempt = self._under_way.get(stream)
        if attempt is not None and version in (None, attempt.version):
            attempt.stop(reason)

    def stop(self) -> None:
        """No attempt keeps the box from ending."""
        for stream in list(self._under_way):
            self.give_up(stream, "the box was stopped")

    # --- inside -------------------------------------------------------------------------------------------------------

    def _begin(self, stream: str, version: str, *, moves: bool = False) -> _Attempt:
        attempt = _Attempt(version, moves=moves)
        with self._lock:
            before = self._under_way.get(stream)
            if moves and before is not None and not before.moves:
                raise SwapRefused(f"{before.version} is about to take over", subject=version)
            self._under_way[stream] = attempt
        if before is not None:  # the engine asks for one at a time; a late one must not overtake
            before.stop("another model is to take over")
        return attempt

    def _end(self, stream: str, attempt: _Attempt) -> None:
        with self._lock:
            if self._under_way.get(stream) is attempt:
                del self._under_way[stream]

    def _ready(
        self, worker: InferenceWorker, stream: str, version: str, serve: Callable[[Detector, str], Detector]
    ) -> Detector:
        """The version's detector as it will serve, run once or twice: the first run of a model is slow, not in front of people."""
        warm = worker.kept(version)
        if warm is not None:
            return warm
        detector = serve(self.shelf.detector(version), stream)
        with _given_back(detector):
            self._warm(worker, detector)
        return detector

    def _in_time(self, detector: Detector, stream: str) -> Detector:
        """The form where there is time for it: a model that was admitted must not be lost to the end of the window because of it."""
        needed_s, left_s = self.form_s(detector), self.left_s()
        if needed_s <= left_s * FORM_FRAC:
            return self.serve(detector, stream)
        log.info(
            "%s: serves as trained first: its form may take %.0f s, %.0f s of the window are left", stream, needed_s, left_s
        )
        return self.serve_later(detector, stream)

    def _warm(self, worker: InferenceWorker, detector: Detector) -> None:
        """Raises SwapRefused when it throws, hangs, gives no numbers, or is so slow that one run would hold up the camera."""
        runs = _Runs(worker, detector, self.clock)
        thread = threading.Thread(target=runs.run, name="warm", daemon=True)
        thread.start()
        thread.join(WARM_S)
        if thread.is_alive():
            if isinstance(detector, Abandonable):
                detector.abandon()
            raise SwapRefused(f"its first run gave no answer within {WARM_S:.0f} s")
        if runs.error is not None:
            raise SwapRefused(f"its first run failed: {redact(f'{type(runs.error).__name__}: {runs.error}')}") from runs.error
        if not runs.finite:
            raise SwapRefused("its first run gave numbers that are none (NaN or infinite)")
        cost_s = worker.cost_s()
        if cost_s is not None and runs.needed_s > OVERTIME * max(10 * FAST_S, self.rules.slow_ratio * cost_s):
            raise SwapRefused(f"it needs {1000 * runs.needed_s:.0f} ms a frame, the present one {1000 * cost_s:.0f} ms")

    def _shadow(self, worker: InferenceWorker, command: SwapModel, detector: Detector, attempt: _Attempt) -> None:
        serving = worker.version()
        shadow = Shadow(
            detector, command.version, self.rules, serving_quality=self._measured(command.stream, serving),
            quality=command.quality,
        )  # fmt: skip
        attempt.shadow = shadow
        worker.shadow(shadow)
        try:
            attempt.check()
            refusal = shadow.verdict()
        finally:
            worker.shadow(None)
        looks = len(shadow.glances)
        if refusal:
            raise SwapRefused(f"refused after {looks} live frames beside {serving}: {refusal}", subject=command.version)
        log.info("%s: model %s held its own on %d live frames beside %s", command.stream, command.version, looks, serving)

    def _measured(self, stream: str, version: str) -> float | None:
        """The newest golden quality of a version: the gate measured it on the labels that the new one was measured on."""
        points = [p for p in self.store.quality(stream, kind="f1", limit=50) if p.version == version]
        return points[-1].value if points else None


class _Runs:
    """A model's first runs, on the camera's newest frames, in a thread that may hang. needed_s: CPU time of the last."""

    def __init__(self, worker: InferenceWorker, detector: Detector, clock: Clock) -> None:
        self._worker, self._detector, self._clock = worker, detector, clock
        self.error: Exception | None = None
        self.finite, self.needed_s = True, 0.0

    def run(self) -> None:
        try:
            for _ in range(WARM_RUNS):
                shown = self._worker.shown()
                picture = Picture(image=shown.frame.image, regions=shown.frame.regions) if shown else _grey()
                started_s = self._clock.thread_cpu_s()
                found = self._worker.task.predict(self._detector, [picture])[0]
                self.needed_s = self._clock.thread_cpu_s() - started_s
            self.finite = is_finite(found)
        except Exception as error:
            self.error = error


@contextmanager
def _given_back(detector: Detector, *, unless: bool = False) -> Iterator[None]:
    """Closes a detector that does not come to serve."""
    try:
        yield
    except BaseException:
        if not unless:
            close_detector(detector)
        raise


class _Attempt:
    """One model on its way; `stop` from any thread, `check` where it can still turn back. moves: it serves already, and goes on
    elsewhere."""

    def __init__(self, version: str, *, moves: bool = False) -> None:
        self.version, self.moves = version, moves
        self.shadow: Shadow | None = None
        self._reason = ""

    def stop(self, reason: str) -> None:
        self._reason = reason
        if self.shadow is not None:
            self.shadow.fail(reason)

    def check(self) -> None:
        if self._reason:
            raise SwapRefused(self._reason, subject=self.version)


def _grey() -> Picture:
    """A plain picture for a camera that has shown nothing yet; all of it moves."""
    return Picture(image=np.full((360, 640, 3), 127, np.uint8), regions=np.array([[0, 0, 640, 360]], np.float32))
