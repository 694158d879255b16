"""A served form made and checked against the model that it is made of: what a box's child process does (`edge.form_child`).

The form is judged on the pictures that it is made on: it must say what the trained model says, in numbers, and not be slower.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from configs.errors import JobError
from models.detector import Detector, ServedBody, YieldPoint, encoded_px
from models.evaluate import MatchCounts, match_counts
from models.serving.base import Files, Form, Runtime, ShapePx
from models.serving.cache import FormCache
from models.serving.served import ServedDetector, made_form
from models.tasks.base import Picture, Task
from scheduler.types import Detections

#: Pictures that a form is made and judged on, and how many of them time it.
PICTURES, TIMED = 24, 6
#: Shapes among them that get a form at once; others come when they are met.
SHAPES = 2
#: F1 of the form's detections against the trained model's: below it the form is not served. int8 of good models reached 0.93 to 0.98
#: (boxes near the score threshold come and go); a broken calibration is far below.
AGREEMENT_MIN = 0.85
#: Time of the form against the trained model's at most; forms of the same speed differ by this much from run to run.
SLOWER_MAX = 1.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Wanted:
    """runtime: its name. task: what shows the pictures to the model; None: they are what the model is shown. shape_px: only the form
    of that shape, which all the pictures have; None: of the pictures' own shapes. Checked on the pictures; without any, not at all.
    agreement_min: see AGREEMENT_MIN."""

    runtime: str
    detector: Detector
    pictures: Sequence[Picture] = ()
    task: Task | None = None
    shape_px: ShapePx | None = None
    agreement_min: float = AGREEMENT_MIN


@dataclass(frozen=True, kw_only=True)
class Checked:
    """agreement: F1 of the form's detections against the trained model's (0-1); ms: time per picture of both, see `spent_on`."""

    agreement: float
    ms: float
    trained_ms: float

    @property
    def of_trained_frac(self) -> float:
        """Its time as a part of the trained model's, taken in turns with it: what forms are compared by. They are made one after the
        other, and what else a GPU does meanwhile makes all that is timed on it slower."""
        return self.ms / max(self.trained_ms, 1e-6)


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """files: of each shape, {} where the runtime has none. samples: for each shape a picture as `encode` made it. checked: None for a
    form that was wanted by its shape, without pictures. Nothing in it: the task shows its model nothing of these pictures."""

    files: dict[ShapePx, Files] = field(default_factory=dict)
    samples: dict[ShapePx, np.ndarray] = field(default_factory=dict)
    checked: Checked | None = None


#: Makes a form, wherever. Raises JobError when there is none that is right, JobCancelled when the box is stopping, OSError on a full
#: disk.
Maker = Callable[[Wanted], Made]

#: Seconds that were spent so far. Only differences count.
Spent = Callable[[], float]


def spent_on(device: str) -> Spent:
    """What tells how long a model on a device ('cpu', 'cuda') takes: the calling thread's time on its core. On a GPU, of which that says
    nothing, the time that passes until the device is done with all that this process gave it."""
    if device == "cpu":
        return time.thread_time
    import torch

    def done_s() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return done_s


def make_form(wanted: Wanted, runtime: Runtime, *, cache: FormCache | None = None, spent_s: Spent = time.thread_time) -> Made:
    """Here and now. Raises JobError for a form that is missing, wrong or slow, and whatever making it raises."""
    if problem := runtime.missing():
        raise JobError(problem, subject=runtime.name)
    if wanted.shape_px is not None and not wanted.pictures:
        files, form = made_form(runtime, wanted.detector.body(), wanted.shape_px, cache=cache)
        form.close()
        return Made(files={wanted.shape_px: files})
    images = shown(wanted)
    return _checked(wanted, runtime, images, cache, spent_s) if images else Made()


def shown(wanted: Wanted) -> list[np.ndarray]:
    """What the model is shown of the pictures: whole ones, or crops."""
    if wanted.task is None:
        return [picture.image for picture in wanted.pictures][:PICTURES]
    recorder = _Recorder(wanted.detector)
    wanted.task.predict(recorder, wanted.pictures)  # type: ignore[arg-type]
    return recorder.images[:PICTURES]


def _checked(wanted: Wanted, runtime: Runtime, images: list[np.ndarray], cache: FormCache | None, spent_s: Spent) -> Made:
    detector = wanted.detector
    trained = [detector.predict([image])[0] for image in images]
    body, made = detector.body(), Made()

    def opener(body: ServedBody, shape_px: ShapePx, _: Sequence[np.ndarray]) -> Form:
        made.files[shape_px], form = made_form(runtime, body, shape_px, images, cache=cache)
        return form

    form = ServedDetector(detector, runtime, opener)
    try:
        for image in _one_of_each_shape(images):
            array, _ = body.encode(image)
            form.take(array)
            made.samples[encoded_px(array)] = array
        found = check(form, detector, images, trained, spent_s=spent_s)
        if form.last_error:
            raise JobError(f"it failed to run: {form.last_error}", subject=runtime.name)
        refuse(found, agreement_min=wanted.agreement_min)
    finally:
        form.close()
    return Made(files=made.files, samples=made.samples, checked=found)


def check(
    form: Detector,
    detector: Detector,
    pictures: Sequence[np.ndarray],
    trained: Sequence[Detections],
    *,
    spent_s: Spent,
) -> Checked:
    """Compares a form with the model it was made of. trained: what the model says of each picture."""
    agreement = MatchCounts.total(
        match_counts(found, label) for found, label in zip(form.predict(pictures), trained, strict=True)
    )
    ms, trained_ms = times_ms((form, detector), pictures, spent_s=spent_s)
    return Checked(agreement=agreement.f1, ms=ms, trained_ms=trained_ms)


def times_ms(models: Sequence[Detector], pictures: Sequence[np.ndarray], *, spent_s: Spent) -> list[float]:
    """What a prediction of each takes, median, in turns, so that what else the machine does hits all of them."""
    spent: list[list[float]] = [[] for _ in models]
    for picture in list(pictures[:TIMED]) * 2:
        for model, times in zip(models, spent, strict=True):
            started_s = spent_s()
            model.predict([picture])
            times.append(1000 * (spent_s() - started_s))
    return [statistics.median(times) for times in spent]


def refuse(found: Checked, *, agreement_min: float = AGREEMENT_MIN) -> None:
    """Raises JobError for a form that must not serve."""
    if found.agreement < agreement_min:
        raise JobError(f"it agrees with the trained model by F1 {found.agreement:.2f} only, {agreement_min} is asked")
    if found.ms > SLOWER_MAX * found.trained_ms:
        raise JobError(f"it is slower than the trained model: {found.ms:.1f} ms against {found.trained_ms:.1f}")


def _one_of_each_shape(pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
    return list({picture.shape: picture for picture in pictures}.values())[:SHAPES]


class _Recorder:
    """Passes pictures on to a model and keeps them."""

    def __init__(self, detector: Detector) -> None:
        self.spec, self._detector = detector.spec, detector
        self.images: list[np.ndarray] = []

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        self.images += list(images)
        return self._detector.predict(images, score_min=score_min, yield_point=yield_point)
