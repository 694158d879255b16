"""Which form of a model serves a camera: made, checked against the trained one, chosen by measurement; else the trained one itself.

After a retraining `Serving` turns the new model into the form that this box runs fastest, on the camera's newest sampled frames: for
calibration (int8), and to see that the form says what the trained model says and is not slower. What was fastest for an architecture is
measured once and remembered in the data folder, with the machine and the library versions in the key. Forms are kept there as well, so a
restart, or a way back to an older version, does not make them again.

Converting and quantising run in a child process (`models.serving.build`): niced, on one core, ended after `build_s`. One at a time.
"""

from __future__ import annotations

import json
import logging
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from configs.errors import DriftboxError, JobError, StorageError, redact
from configs.files import atomic_write
from models.detector import Detector, DetectorSpec, YieldPoint
from models.evaluate import MatchCounts, match_counts
from models.serving.base import Builder, Runtime
from models.serving.build import ChildBuilder
from models.serving.cache import FormCache, machine, versions
from models.serving.registry import RUNTIMES, runtime_of
from models.serving.served import Aside, Deferred, ServedDetector, open_form
from models.tasks.base import Picture, Task
from scheduler.types import Detections

log = logging.getLogger("driftbox")

AUTO, TRAINED = "auto", "trained"
#: What `auto` tries on a CPU, on a GPU; those that the machine cannot run are passed over. int8 of ONNX Runtime and compiled torch are
#: not among them: measured, neither was ever the fastest, and the second takes half a minute (docs/compression.md).
ON_CPU: tuple[str, ...] = ("openvino-int8", "openvino", "onnxruntime")
ON_GPU: tuple[str, ...] = ("tensorrt-fp16", "tensorrt", "torch-compiled")
#: Pictures that a form is made and judged on, and how many of them time it.
PICTURES, TIMED = 24, 6
#: F1 of the form's detections against the trained model's: below it the form is not served. int8 of good models reached 0.93 to 0.98
#: (boxes near the score threshold come and go); a broken calibration is far below.
AGREEMENT_MIN = 0.85
#: CPU time of the form against the trained model's at most; forms of the same speed differ by this much from run to run.
SLOWER_MAX = 1.1
#: The trained model's CPU time is shown in the remembered measurements under this name.
_CHOICES = "choices.json"

#: camera -> its newest sampled pictures.
Newest = Callable[[str], Sequence[Picture]]
#: (camera, text): told to the operator.
Tell = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """agreement: F1 of the form's detections against the trained model's (0-1); ms: CPU time per picture of both."""

    agreement: float
    ms: float
    trained_ms: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """order: runtimes that passed their check, fastest first (empty: the trained form is best); ms: CPU time per picture of each that
    was tried, and of the trained model."""

    order: tuple[str, ...]
    ms: dict[str, float] = field(default_factory=dict)


class Choices:
    """Remembered choices in one small JSON file. A file that cannot be read is begun anew; one that cannot be written is left."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _CHOICES
        self._seen: dict[str, Choice] = {}

    def get(self, key: str) -> Choice | None:
        if not self._seen and self._path.is_file():
            try:
                rows = json.loads(self._path.read_text(encoding="utf-8"))
                self._seen = {k: Choice(order=tuple(r["order"]), ms=dict(r["ms"])) for k, r in rows.items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                log.warning("%s cannot be read; forms are measured again", self._path.name)
        return self._seen.get(key)

    def keep(self, key: str, choice: Choice) -> None:
        self._seen[key] = choice
        text = json.dumps({k: {"order": c.order, "ms": c.ms} for k, c in self._seen.items()}, indent=1, sort_keys=True)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self._path, text.encode())
        except (OSError, StorageError) as error:
            log.warning("the choice of a serving form is not kept: %s", error)


class Serving:
    """Makes served forms. Thread-safe; a call takes seconds, so call it beside the loop. choice: 'auto', 'trained' or a runtime's name;
    build_s: most that making one form may take. build: where forms are made (a child process unless told)."""

    def __init__(
        self,
        choice: str,
        folder: Path,
        *,
        newest: Newest,
        task_of: Callable[[str], Task],
        tell: Tell,
        build_s: float,
        build: Builder | None = None,
        runtimes: Callable[[str], Runtime] = runtime_of,
        aside: Aside | None = None,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._choice, self._newest, self._task_of, self._tell = choice, newest, task_of, tell
        self._build_s, self._runtimes, self._cpu_s = build_s, runtimes, cpu_s
        self._child = ChildBuilder(build_s)
        self._build: Builder = build or self._child
        self._cache, self._choices = FormCache(folder), Choices(folder)
        self._aside = aside or in_thread
        self._turn = threading.Lock()

    def serve(self, detector: Detector, camera_id: str) -> Detector:
        """The form of a model that is about to serve a camera; the trained one when there is none that is right and faster, and then
        the operator is told why. Without sampled frames it comes later, as in `serve_later`."""
        if self._choice == TRAINED:
            return detector
        try:
            pictures = self._shown(detector, camera_id)
        except Exception as error:  # samples that cannot be read
            self._tell(camera_id, f"serves as trained: its samples cannot be used ({_text(error)})")
            return detector
        if not pictures:
            return self.serve_later(detector, camera_id)
        return self._made(detector, camera_id, pictures)

    def serve_later(self, detector: Detector, camera_id: str) -> Detector:
        """Serves as trained at once; the form takes over by itself when it has been made on live frames. For a box that starts, and
        wherever nobody may wait."""
        if self._choice == TRAINED:
            return detector
        return Deferred(detector, lambda pictures: self._made(detector, camera_id, pictures), self._aside)

    def close(self) -> None:
        """Ends what is being made: for the end of the box."""
        self._child.close()

    def _shown(self, detector: Detector, camera_id: str) -> list[np.ndarray]:
        """What the camera's task shows its model of the newest sampled pictures: whole pictures, or crops."""
        recorder = _Recorder(detector)
        newest = list(self._newest(camera_id))
        if newest:
            self._task_of(camera_id).predict(recorder, newest)  # type: ignore[arg-type]
        return recorder.images[:PICTURES]

    def _made(self, detector: Detector, camera_id: str, pictures: Sequence[np.ndarray]) -> Detector:
        if not self._turn.acquire(timeout=self._build_s):
            self._tell(camera_id, "serves as trained: another form was being made for too long")
            return detector
        try:
            return self._first_right(detector, camera_id, pictures)
        except Exception as error:  # nothing here may keep a model from serving
            log.exception("%s: no served form", camera_id)
            self._tell(camera_id, f"serves as trained: {_text(error)}")
            return detector
        finally:
            self._turn.release()

    def _first_right(self, detector: Detector, camera_id: str, pictures: Sequence[np.ndarray]) -> Detector:
        trained = [detector.predict([picture])[0] for picture in pictures]
        if self._choice != AUTO:
            return self._tried((self._choice,), detector, camera_id, pictures, trained)
        key = choice_key(detector.spec)
        known = self._choices.get(key)
        if known is None:
            return self._measured(key, detector, camera_id, pictures, trained)
        return self._tried(known.order, detector, camera_id, pictures, trained)

    def _tried(
        self,
        names: Sequence[str],
        detector: Detector,
        camera_id: str,
        pictures: Sequence[np.ndarray],
        trained: list[Detections],
    ) -> Detector:
        """The first of the named runtimes whose form is right; the trained model when none is."""
        for name in names:
            try:
                form, _ = self._form(name, detector, pictures, trained)
                return form
            except Exception as error:
                self._tell(camera_id, f"not served by {name}: {_text(error)}")
        return detector

    def _measured(
        self, key: str, detector: Detector, camera_id: str, pictures: Sequence[np.ndarray], trained: list[Detections]
    ) -> Detector:
        """Tries them all, remembers the order, returns the fastest."""
        made: dict[str, tuple[ServedDetector, Checked]] = {}
        ms: dict[str, float] = {}
        for name in candidates(self._runtimes):
            try:
                made[name] = self._form(name, detector, pictures, trained)
                ms[name], ms[TRAINED] = round(made[name][1].ms, 3), round(made[name][1].trained_ms, 3)
            except Exception as error:
                log.info("%s: %s is not a form for %s: %s", camera_id, name, detector.spec.arch, _text(error))
        order = tuple(sorted(made, key=lambda name: made[name][1].ms))
        for name in order[1:]:
            made[name][0].close()
        self._choices.keep(key, Choice(order=order, ms=ms))
        if not order:
            self._tell(camera_id, f"{detector.spec.arch} serves as trained: no other form of it is right and faster here")
            return detector
        log.info("%s: %s serves %s, CPU ms per picture: %s", camera_id, order[0], detector.spec.arch, ms)
        return made[order[0]][0]

    def _form(
        self, name: str, detector: Detector, pictures: Sequence[np.ndarray], trained: list[Detections]
    ) -> tuple[ServedDetector, Checked]:
        """A form that passed its check. Raises JobError when it did not, or what making it raised."""
        runtime = self._runtimes(name)
        if problem := runtime.missing():
            raise JobError(problem, subject=name)
        form = ServedDetector(
            detector,
            runtime,
            lambda body, shape: open_form(runtime, body, shape, pictures, build=self._build, cache=self._cache),
            aside=self._aside,
        )
        try:
            for picture in _one_of_each_shape(pictures):
                form.prepare(picture)
            found = check(form, detector, pictures, trained, cpu_s=self._cpu_s)
            if form.last_error:
                raise JobError(f"it failed to run: {form.last_error}", subject=name)
            refuse(found)
        except BaseException:
            form.close()
            raise
        return form, found


#: Libraries whose versions a remembered choice depends on.
_LIBRARIES = ("torch", "onnxruntime", "openvino", "nncf", "tensorrt")


def choice_key(spec: DetectorSpec) -> str:
    """Under which the choice for models of a kind is remembered: it is of this machine and these libraries."""
    return f"{spec.arch}@{spec.input_px} | {machine()} | {versions(_LIBRARIES)}"


def form_in_use(choice: str, folder: Path, spec: DetectorSpec) -> str:
    """The form that a box with `models.serving` = choice serves models of this kind in, by what it remembers in `folder`; 'trained'
    where it has not chosen yet."""
    if choice != AUTO:
        return choice
    known = Choices(folder).get(choice_key(spec))
    return known.order[0] if known is not None and known.order else TRAINED


def candidates(runtimes: Callable[[str], Runtime] = runtime_of) -> tuple[str, ...]:
    """What `auto` tries on this machine."""
    return tuple(name for name in (*ON_GPU, *ON_CPU) if name in RUNTIMES and not runtimes_missing(runtimes, name))


def runtimes_missing(runtimes: Callable[[str], Runtime], name: str) -> bool:
    gpu_only = name in ON_GPU
    import torch

    return bool(runtimes(name).missing()) or (gpu_only and not torch.cuda.is_available())


def check(
    form: Detector,
    detector: Detector,
    pictures: Sequence[np.ndarray],
    trained: Sequence[Detections],
    *,
    cpu_s: Callable[[], float],
) -> Checked:
    """Compares a form with the model it was made of. trained: what the model says of each picture."""
    agreement = MatchCounts.total(
        match_counts(found, label) for found, label in zip(form.predict(pictures), trained, strict=True)
    )
    times: tuple[list[float], list[float]] = ([], [])
    for picture in list(pictures[:TIMED]) * 2:  # in turns, so that what else the machine does hits both
        for one, spent in zip((form, detector), times, strict=True):
            started_s = cpu_s()
            one.predict([picture])
            spent.append(1000 * (cpu_s() - started_s))
    return Checked(agreement=agreement.f1, ms=statistics.median(times[0]), trained_ms=statistics.median(times[1]))


def refuse(found: Checked) -> None:
    """Raises JobError for a form that must not serve."""
    if found.agreement < AGREEMENT_MIN:
        raise JobError(f"it agrees with the trained model by F1 {found.agreement:.2f} only, {AGREEMENT_MIN} is asked")
    if found.ms > SLOWER_MAX * found.trained_ms:
        raise JobError(f"it is slower than the trained model: {found.ms:.1f} ms against {found.trained_ms:.1f}")


def in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="serving-form", daemon=True).start()


def _one_of_each_shape(pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
    return list({picture.shape: picture for picture in pictures}.values())[:2]  # others come when they are met


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, DriftboxError) else redact(f"{type(error).__name__}: {error}")


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
