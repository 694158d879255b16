"""How a model takes over a camera's live inference: load, build what serves, warm, shadow, admit durably, exchange between two frames.

All of it happens beside the model that serves, in a thread of its own; until the exchange nothing has changed, so on any failure the old
model stays. What was replaced is kept warm (`edge.inference`), so going back to it is one assignment.

That thread has no lower priority than others. It was tried: on a busy machine a thread that the system has put aside still holds
Python's lock, and frames then wait for it (longest gap 6 to 7 intervals instead of 3, `driftbox bench swap`). What helps is to ask for
the lock more often, see `SWITCH_S`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from configs.errors import redact
from edge.clock import Clock
from edge.inference import InferenceWorker
from edge.shadow import FAST_S, OVERTIME, Shadow, ShadowRules, SwapRefused, is_finite
from edge.shelf import Shelf
from edge.store.store import Store
from models.detector import Detector
from models.tasks.base import Picture
from scheduler.commands import SwapModel

log = logging.getLogger("driftbox")

#: Longest that a thread which computes in Python keeps its lock from the others, for `sys.setswitchinterval`. A frame takes it dozens of
#: times, once for each operation of the network; with Python's 5 ms a model that is being built delays a frame by several intervals.
SWITCH_S = 0.0005
#: Seconds for which a model that was replaced stays in memory.
KEPT_WARM_S = 900.0


@dataclass(kw_only=True)
class Swapper:
    """serve: (a model as trained, its camera) -> the form that serves frames; serve_later: the same at once, the form follows by itself.
    Thread-safe; `take_over` and `go_back` are for helper
    threads and may take seconds, `stop` is quick."""

    shelf: Shelf
    store: Store
    clock: Clock
    serve: Callable[[Detector, str], Detector]
    serve_later: Callable[[Detector, str], Detector]
    rules: ShadowRules

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[str, _Attempt] = {}

    def version_under_way(self, stream: str) -> str | None:
        """The version that is about to take over a camera, None: none."""
        with self._lock:
            attempt = self._under_way.get(stream)
            return attempt.version if attempt else None

    def take_over(self, worker: InferenceWorker, command: SwapModel) -> None:
        """Carries out a SwapModel. Raises SwapRefused when the model does not hold its own beside the serving one or is no longer
        wanted, WeightsError, StorageError, ValueError (rejected meanwhile); the serving model then goes on."""
        attempt = self._begin(command.stream, command.version)
        try:
            detector = self._ready(worker, command.stream, command.version, self.serve)
            if command.shadow and self.rules.frames > 0:
                self._shadow(worker, command, detector, attempt)
            attempt.check()
            # Durable first: killed in between, the box comes up with the new model, which is the admitted one.
            self.shelf.admit(command.stream, command.version, command.quality, command.reason)
            worker.swap(detector, command.version)
        finally:
            self._end(command.stream, attempt)

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

    def _begin(self, stream: str, version: str) -> _Attempt:
        attempt = _Attempt(version)
        with self._lock:
            before, self._under_way[stream] = self._under_way.get(stream), attempt
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
        self._warm(worker, detector)
        return detector

    def _warm(self, worker: InferenceWorker, detector: Detector) -> None:
        """Raises SwapRefused when it throws, gives no numbers, or is so slow that one run would hold up the camera."""
        shown, cost_s = worker.shown(), worker.cost_s()
        picture = Picture(image=shown.frame.image, regions=shown.frame.regions) if shown else _grey()
        try:
            for _ in range(2):
                started_s = self.clock.thread_cpu_s()
                found = worker.task.predict(detector, [picture])[0]
                needed_s = self.clock.thread_cpu_s() - started_s
        except Exception as error:
            raise SwapRefused(f"its first run failed: {redact(f'{type(error).__name__}: {error}')}") from error
        if not is_finite(found):
            raise SwapRefused("its first run gave numbers that are none (NaN or infinite)")
        if cost_s is not None and needed_s > OVERTIME * max(10 * FAST_S, self.rules.slow_ratio * cost_s):
            raise SwapRefused(f"it needs {1000 * needed_s:.0f} ms a frame, the present one {1000 * cost_s:.0f} ms")

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


class _Attempt:
    """One model on its way; `stop` from any thread, `check` where it can still turn back."""

    def __init__(self, version: str) -> None:
        self.version = version
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
