"""Which form of a model serves a camera: made, checked against the trained one, chosen by measurement; else the trained one itself.

After a retraining `Serving` turns the new model into the form that this box runs fastest, on the camera's newest sampled frames: for
calibration (int8), and to see that the form says what the trained model says and is not slower. What was fastest for an architecture is
measured once and remembered in the data folder, with the machine, the GPU that models are on and the library versions in the key. Forms
are kept there as well, so a restart, or a way back to an older version, does not make them again.

A new model has to serve before its window ends. `form_s` says how long its form may take, by what forms took before; where that is more
than what is left, the model serves as trained at once and the form follows (`edge.swapping`).

All of that happens in a child process (`edge.form_child`): niced, on one core, ended after `build_s`. One at a time. This process only
loads the files of the form that serves.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from configs.errors import DriftboxError, JobCancelled, JobError, StorageError, redact
from configs.files import atomic_write
from edge.form_child import ChildMaker
from edge.form_making import AGREEMENT_MIN, Made, Maker, Wanted
from models.detector import Detector, DetectorSpec, ServedBody
from models.serving.base import Form, Runtime, ShapePx
from models.serving.cache import FORM_FORMAT, gpu_name, machine, versions
from models.serving.registry import runtime_of
from models.serving.served import Aside, Deferred, ServedDetector
from models.tasks.base import Picture, Task

log = logging.getLogger("driftbox")

AUTO, TRAINED = "auto", "trained"
#: What `auto` tries where models are on a CPU, on a GPU; those that the machine cannot run are passed over. int8 of ONNX Runtime and, on
#: a CPU, compiled torch are not tried: measured, neither was ever the fastest, and the second takes half a minute (docs/compression.md).
ON_CPU: tuple[str, ...] = ("openvino-int8", "openvino", "onnxruntime")
ON_GPU: tuple[str, ...] = ("tensorrt-fp16", "tensorrt", "torch-graph-fp16", "torch-compiled", "onnxruntime")
_CHOICES = "choices.json"

#: camera -> its newest sampled pictures.
Newest = Callable[[str], Sequence[Picture]]
#: (camera, text): told to the operator.
Tell = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """order: runtimes that passed their check, fastest first (empty: the trained form is best); ms: time per picture of each that was
    tried, and of the trained model beside the last of them (of a core, or until the GPU is done)."""

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


class _NothingShown(Exception):
    """The camera's task shows its model nothing of these pictures."""


class Serving:
    """Makes served forms. Thread-safe; a call takes seconds, so call it beside the loop. choice: 'auto', 'trained' or a runtime's name;
    build_s: most that making one form may take. device: where models are ('cpu', 'cuda'); tries: what `auto` measures there; make: where
    forms are made (a child process unless told); agreement_min: F1 of a form against the trained model from which on it serves; threads:
    as many will run a form at a time."""

    def __init__(
        self,
        choice: str,
        folder: Path,
        *,
        newest: Newest,
        task_of: Callable[[str], Task],
        tell: Tell,
        build_s: float,
        device: str = "cpu",
        tries: Sequence[str] | None = None,
        make: Maker | None = None,
        runtimes: Callable[[str], Runtime] | None = None,
        aside: Aside | None = None,
        now_s: Callable[[], float] = time.monotonic,
        agreement_min: float = AGREEMENT_MIN,
        threads: int = 1,
    ) -> None:
        self._choice, self._newest, self._task_of, self._tell = choice, newest, task_of, tell
        self._build_s, self._runtimes = build_s, runtimes or partial(runtime_of, device=device)
        self._device, self._tries = device, tuple(tries_on(device) if tries is None else tries)
        self._child = ChildMaker(folder, build_s, device=device)
        self._make: Maker = make or self._child
        self._choices = Choices(folder)
        self._aside = aside or in_thread
        self._turn = threading.Lock()
        self._now_s, self._agreement_min, self._threads = now_s, agreement_min, threads
        self._took_s: dict[str, float] = {}  # the longest of the newest forms, by architecture
        self._asked = 0  # forms that have or want the turn
        self._count = threading.Lock()

    def form_s(self, detector: Detector) -> float:
        """How long `serve` may take for this model: what the form of its architecture took here, once for each that is being made or
        waits before it; `build_s` where none was made yet. 0: nothing is made."""
        if self._choice == TRAINED:
            return 0.0
        with self._count:
            return self._took_s.get(detector.spec.arch, self._build_s) * (1 + self._asked)

    def serve(self, detector: Detector, camera_id: str) -> Detector:
        """The form of a model that is about to serve a camera; the trained one when there is none that is right and faster, and then
        the operator is told why. Without sampled frames it comes later, as in `serve_later`."""
        if self._choice == TRAINED:
            return detector
        try:
            pictures, task = list(self._newest(camera_id)), self._task_of(camera_id)
        except Exception as error:  # samples that cannot be read
            self._tell(camera_id, f"serves as trained: its samples cannot be used ({_text(error)})")
            return detector
        if not pictures:
            return self.serve_later(detector, camera_id)
        with self._in_line():
            if not self._turn.acquire(timeout=self._build_s):
                self._tell(camera_id, "serves as trained: another form was being made for too long")
                return detector
            return self._in_turn(detector, camera_id, pictures, task)

    def serve_later(self, detector: Detector, camera_id: str) -> Detector:
        """Serves as trained at once; the form takes over by itself when it has been made on live frames. For a box that starts, and
        wherever nobody may wait."""
        if self._choice == TRAINED:
            return detector

        return Deferred(detector, partial(self.form_of, detector, camera_id), self._aside)

    def form_of(self, detector: Detector, camera_id: str, images: Sequence[np.ndarray]) -> Detector:
        """As `serve`, on pictures that the model was shown; waits for its turn, so nobody should wait for it."""
        with self._in_line():
            self._turn.acquire()
            return self._in_turn(detector, camera_id, [Picture(image=image) for image in images], None)

    def close(self) -> None:
        """Ends what is being made: for the end of the box."""
        self._child.close()

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        """Counts a form for as long as it has or wants the turn."""
        with self._count:
            self._asked += 1
        try:
            yield
        finally:
            with self._count:
                self._asked -= 1

    def _in_turn(self, detector: Detector, camera_id: str, pictures: Sequence[Picture], task: Task | None) -> Detector:
        """The form for one that holds the turn; gives it back."""
        began_s = self._now_s()
        try:
            return self._first_right(detector, camera_id, pictures, task)
        except _NothingShown:
            return self.serve_later(detector, camera_id)
        except JobCancelled as error:
            self._tell(camera_id, f"serves as trained: {_text(error)}")
            return detector
        except Exception as error:  # nothing here may keep a model from serving
            log.exception("%s: no served form", camera_id)
            self._tell(camera_id, f"serves as trained: {_text(error)}")
            return detector
        finally:
            with self._count:
                # A form that was kept is there in a moment, the next one is not: what is remembered sinks by halves only.
                before_s = self._took_s.get(detector.spec.arch, 0.0)
                self._took_s[detector.spec.arch] = max(self._now_s() - began_s, before_s / 2)
            self._turn.release()

    def _first_right(self, detector: Detector, camera_id: str, pictures: Sequence[Picture], task: Task | None) -> Detector:
        if self._choice != AUTO:
            return self._tried((self._choice,), detector, camera_id, pictures, task)
        key = choice_key(detector.spec, self._device, self._tries)
        known = self._choices.get(key)
        if known is None:
            return self._measured(key, detector, camera_id, pictures, task)
        return self._tried(known.order, detector, camera_id, pictures, task)

    def _tried(
        self, names: Sequence[str], detector: Detector, camera_id: str, pictures: Sequence[Picture], task: Task | None
    ) -> Detector:
        """The first of the named runtimes whose form is right; the trained model when none is."""
        return self._first_opened(names, lambda name: self._made(name, detector, pictures, task), detector, camera_id)

    def _first_opened(
        self, names: Sequence[str], made_by: Callable[[str], Made], detector: Detector, camera_id: str
    ) -> Detector:
        """The form of the first of the named runtimes that opens; the trained model when none does."""
        for name in names:
            try:
                return self._opened(name, made_by(name), detector)
            except (_NothingShown, JobCancelled):
                raise
            except Exception as error:
                self._tell(camera_id, f"not served by {name}: {_text(error)}")
        return detector

    def _measured(
        self, key: str, detector: Detector, camera_id: str, pictures: Sequence[Picture], task: Task | None
    ) -> Detector:
        """Tries them all, remembers the order, returns the fastest."""
        made: dict[str, Made] = {}
        ms: dict[str, float] = {}
        fracs: dict[str, float] = {}
        for name in runnable(self._tries, self._runtimes):
            try:
                one = self._made(name, detector, pictures, task)
            except (_NothingShown, JobCancelled):  # a box that stops has not measured anything
                raise
            except Exception as error:
                log.info("%s: %s is not a form for %s: %s", camera_id, name, detector.spec.arch, _text(error))
                continue
            if one.checked is not None:
                made[name], fracs[name] = one, one.checked.of_trained_frac
                ms[name], ms[TRAINED] = round(one.checked.ms, 3), round(one.checked.trained_ms, 3)
        order = tuple(sorted(made, key=lambda name: fracs[name]))
        self._choices.keep(key, Choice(order=order, ms=ms))
        if not order:
            self._tell(camera_id, f"{detector.spec.arch} serves as trained: no other form of it is right and faster here")
        log.info("%s: %s, fastest first: %s; ms per picture: %s", camera_id, detector.spec.arch, order, ms)
        return self._first_opened(order, made.__getitem__, detector, camera_id)

    def _made(self, name: str, detector: Detector, pictures: Sequence[Picture], task: Task | None) -> Made:
        """A form that passed its check. Raises JobError when it did not, or what making it raised."""
        if problem := self._runtimes(name).missing():
            raise JobError(problem, subject=name)
        wanted = Wanted(
            runtime=name, detector=detector, pictures=pictures, task=task, agreement_min=self._agreement_min
        )  # fmt: skip
        made = self._make(wanted)
        if not made.files:
            raise _NothingShown
        return made

    def _opened(self, name: str, made: Made, detector: Detector) -> ServedDetector:
        """The form, loaded in this process and run once for each shape. Shapes that come later are made in the child as well."""
        runtime, kept = self._runtimes(name), dict(made.files)

        def opener(body: ServedBody, shape_px: ShapePx, pictures: Sequence[np.ndarray]) -> Form:
            files = kept.pop(shape_px, None)  # loaded once; not held beside what the runtime made of it
            if files is None:
                shown = [Picture(image=image) for image in pictures]
                wanted = Wanted(
                    runtime=name, detector=detector, pictures=shown, shape_px=shape_px, agreement_min=self._agreement_min
                )  # fmt: skip
                files = self._make(wanted).files[shape_px]
            return runtime.start(files, body, shape_px)

        form = ServedDetector(detector, runtime, opener, aside=self._aside, threads=self._threads)
        try:
            for sample in made.samples.values():
                form.take(sample)
        except BaseException:
            form.close()
            raise
        return form


#: Libraries whose versions a remembered choice depends on, and those that only forms on a GPU come from.
_LIBRARIES = ("torch", "onnxruntime", "openvino", "nncf", "tensorrt")
_GPU_LIBRARIES = ("onnxruntime-gpu", "tensorrt-cu12", "tensorrt-cu13", "triton")


def choice_key(spec: DetectorSpec, device: str = "cpu", tries: Sequence[str] = ON_CPU) -> str:
    """Under which the choice for models of a kind is remembered: it is of this machine, these libraries, and how forms are written.
    Where models are on a GPU, it is of that GPU, too, and of what was tried there: not everything is under every `gpus.backend`."""
    key = f"{spec.arch}@{spec.input_px} | {machine()} | {versions(_LIBRARIES)} | format {FORM_FORMAT}"
    if device == "cpu":
        return key
    return f"{key} | {device}: {gpu_name(device) or 'none'} | {versions(_GPU_LIBRARIES)} | of {', '.join(tries)}"


def form_in_use(choice: str, folder: Path, spec: DetectorSpec) -> str:
    """The form that a box with `models.serving` = choice serves models of this kind in on a CPU, by what it remembers in `folder`;
    'trained' where it has not chosen yet."""
    if choice != AUTO:
        return choice
    known = Choices(folder).get(choice_key(spec))
    return known.order[0] if known is not None and known.order else TRAINED


def tries_on(device: str) -> tuple[str, ...]:
    """What `auto` tries for models on a device: forms that compute where the plan promised them something."""
    return ON_CPU if device == "cpu" else ON_GPU


def runnable(names: Sequence[str], runtimes: Callable[[str], Runtime]) -> tuple[str, ...]:
    """Those of the named forms that this machine can run."""
    return tuple(name for name in names if not runtimes(name).missing())


def in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="serving-form", daemon=True).start()


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, DriftboxError) else redact(f"{type(error).__name__}: {error}")
