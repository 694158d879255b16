"""Two versions of a camera's model on the same held-out pictures, for people to look at.

When it is computed: only when somebody asks, and each pair once (answers are remembered until a label of them changes). Nothing is
stored beside the models, because which pair is of interest is known only then, and pictures go with their windows anyway.

How it stays out of the way of inference: both models are loaded onto the CPU, also on a box with a GPU, so no GPU is touched and no
memory lane is needed. One comparison runs at a time, in a thread of its own with the lowest priority of the system, and it rests after
every prediction so long that it takes `SHARE_FRAC` of a core on average. It is not a job of a plan: a lane runs only what a plan has
promised a share to, and a look at pictures must not make the box plan anew.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from configs.errors import DriftboxError, JobError, UsageError
from edge.jobs.base import SampleRef, Samples, spread
from edge.labels_admin import boxes_of
from edge.learning import BeforeAfter, ComparedPicture, ModelBoxes
from models.detector import Detector
from models.evaluate import MatchCounts
from models.tasks.base import Scoring, Task
from scheduler.types import Detections

#: Mean part of one core that a comparison may take.
SHARE_FRAC = 0.1
#: A comparison that takes longer is given up; its thread ends after the prediction in work.
MOST_S = 60.0
REMEMBERED = 12


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What a comparison needs. detector: (version) -> its model on the CPU, raises WeightsError or KeyError; windows: (camera) -> the
    windows that have samples."""

    detector: Callable[[str], Detector]
    samples: Samples
    windows: Callable[[str], Sequence[int]]
    task_of: Callable[[str], Task]
    scoring: Scoring


class Comparer:
    """Thread-safe. rest: waits so many seconds (tests do not)."""

    def __init__(self, sources: Sources, *, rest: Callable[[float], None] = time.sleep, most_s: float = MOST_S) -> None:
        self._sources, self._rest, self._most_s = sources, rest, most_s
        self._busy = threading.Lock()
        self._known: OrderedDict[tuple[object, ...], BeforeAfter] = OrderedDict()

    def compare(self, camera: str, before: str, after: str, pictures: int) -> BeforeAfter:
        """Raises UsageError ('not_found': nothing to look at, or a version whose files are gone), JobError ('busy')."""
        window, refs = self._pictures(camera, pictures)
        key = (camera, before, after, *(self._key(ref) for ref in refs))
        known = self._known.get(key)
        if known is not None:
            return known
        if not self._busy.acquire(blocking=False):
            raise JobError("another comparison is being computed", subject=camera, code="busy", remedy="ask again in a moment")
        started_s = time.monotonic()
        run = _Run(self._sources, camera, (before, after), refs, rest=self._rest)
        thread = threading.Thread(target=run.run, args=(self._busy.release,), name="before-after", daemon=True)
        thread.start()
        found = run.wait(thread, self._most_s)
        view = _view(camera, before, after, window, found, self._sources.task_of(camera), time.monotonic() - started_s)
        self._known[key] = view
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return view

    def _pictures(self, camera: str, count: int) -> tuple[int, list[SampleRef]]:
        """Held-out pictures of the newest window that has any with an object in it."""
        samples = self._sources.samples
        for window in sorted(self._sources.windows(camera), reverse=True):
            held = [ref for ref in samples.sampled(camera, window) if samples.split(ref) == "holdout"]
            telling = [ref for ref in held if len(samples.labels(ref) or ()) > 0]
            if telling:
                return window, spread(telling, count)
        raise UsageError(
            f"camera '{camera}' has no held-out picture with a label yet", subject=camera, code="not_found",
            remedy="wait until a window was labelled",
        )  # fmt: skip

    def _key(self, ref: SampleRef) -> object:
        labels = self._sources.samples.labels(ref)
        return ref.name, None if labels is None else labels.xyxy.tobytes() + labels.class_id.tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Seen:
    """One picture through both models."""

    ref: SampleRef
    size_px: tuple[int, int]
    labels: Detections
    found: tuple[Detections, ...]
    counts: tuple[MatchCounts, ...]


class _Run:
    """One comparison in its thread."""

    def __init__(
        self, sources: Sources, camera: str, versions: Sequence[str], refs: Sequence[SampleRef], *, rest: Callable[[float], None]
    ) -> None:  # fmt: skip
        self._sources, self._camera, self._versions, self._refs, self._rest = sources, camera, versions, refs, rest
        self._seen: list[_Seen] = []
        self._failure: Exception | None = None
        self._given_up = threading.Event()

    def run(self, done: Callable[[], None]) -> None:
        try:
            _be_last()
            self._work()
        except Exception as error:  # told to whoever asked
            self._failure = error
        finally:
            done()

    def wait(self, thread: threading.Thread, most_s: float) -> list[_Seen]:
        thread.join(most_s)
        if thread.is_alive():
            self._given_up.set()
            raise JobError(
                f"comparing two models of '{self._camera}' took more than {most_s:.0f} s", subject=self._camera, code="busy",
                remedy="ask for fewer pictures, or when the machine has less to do",
            )  # fmt: skip
        if isinstance(self._failure, KeyError):
            raise UsageError(f"there is no version {self._failure.args[0]}", subject=self._camera, code="not_found", remedy="")
        if self._failure is not None:
            raise _told(self._failure, self._camera)
        return self._seen

    def _work(self) -> None:
        sources, task = self._sources, self._sources.task_of(self._camera)
        models = [sources.detector(version) for version in self._versions]
        for ref in self._refs:
            if self._given_up.is_set():
                return
            self._look(ref, models, task)

    def _look(self, ref: SampleRef, models: Sequence[Detector], task: Task) -> None:
        sources = self._sources
        labels, picture = sources.samples.labels(ref), sources.samples.picture(ref)
        if labels is None:  # corrected meanwhile: a person took it out
            return
        found = []
        for model in models:
            started_s = time.thread_time()
            found += task.predict(model, [picture], score_min=sources.scoring.score_min)
            self._rest((time.thread_time() - started_s) * (1 / SHARE_FRAC - 1))
        height_px, width_px = picture.image.shape[:2]
        counts = tuple(task.counts(one, labels, sources.scoring) for one in found)
        self._seen.append(_Seen(ref=ref, size_px=(width_px, height_px), labels=labels, found=tuple(found), counts=counts))


def _be_last() -> None:
    """The calling thread gets a core only when nobody else wants it. Linux sets the priority of single threads; elsewhere it stays."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _told(error: Exception, camera: str) -> DriftboxError:
    if isinstance(error, DriftboxError):
        return error
    return JobError(f"the models could not be compared: {type(error).__name__}: {error}", subject=camera)


def _view(
    camera: str, before: str, after: str, window: int, seen: Sequence[_Seen], task: Task, took_s: float
) -> BeforeAfter:  # fmt: skip
    totals = [MatchCounts.total(one.counts[n] for one in seen) for n in (0, 1)]
    qualities = [total.f1 if seen else None for total in totals]
    return BeforeAfter(
        camera=camera, before=before, after=after, window=window, quality_name=task.quality_name, before_quality=qualities[0],
        after_quality=qualities[1], pictures=tuple(_picture(one, (before, after)) for one in seen), took_s=took_s,
    )  # fmt: skip


def _picture(seen: _Seen, versions: tuple[str, str]) -> ComparedPicture:
    before, after = (
        ModelBoxes(version=version, boxes=boxes_of(found), right=counts.tp, wrong=counts.fp, missed=counts.fn)
        for version, found, counts in zip(versions, seen.found, seen.counts, strict=True)
    )
    return ComparedPicture(
        sample=seen.ref.name, width_px=seen.size_px[0], height_px=seen.size_px[1], labels=boxes_of(seen.labels), before=before,
        after=after,
    )  # fmt: skip
