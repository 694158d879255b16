"""A detector whose network runs in another form: `predict` goes encode -> form -> decode, everything else to the trained detector."""

from __future__ import annotations

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from configs.errors import DriftboxError, StorageError, UsageError
from models.detector import Detector, DetectorSpec, ServedBody, YieldPoint, encoded_px
from models.serving.base import MAX_CALIBRATION, Files, Form, Runtime, ShapePx
from models.serving.cache import FormCache, form_key
from scheduler.types import Detections

if TYPE_CHECKING:
    import torch

log = logging.getLogger("driftbox")

#: Picture shapes that have a form at a time: a camera has one, its crops a few.
MAX_FORMS = 4
#: Runs a piece of work later and elsewhere.
Aside = Callable[[Callable[[], None]], None]
#: Makes the form of a network for one shape; pictures: of that shape, to calibrate it on.
Opener = Callable[[ServedBody, ShapePx, Sequence[np.ndarray]], Form]


def open_form(
    runtime: Runtime,
    body: ServedBody,
    shape_px: ShapePx,
    pictures: Sequence[np.ndarray] = (),
    *,
    cache: FormCache | None = None,
) -> Form:
    """The runtime's form of a network for one shape, see `made_form`."""
    return made_form(runtime, body, shape_px, pictures, cache=cache)[1]


def made_form(
    runtime: Runtime,
    body: ServedBody,
    shape_px: ShapePx,
    pictures: Sequence[np.ndarray] = (),
    *,
    cache: FormCache | None = None,
) -> tuple[Files, Form]:
    """A form of a network for one shape and its files. pictures: uint8 (H, W, 3), for runtimes that calibrate; those that `encode` to
    another shape are left out. cache: where files are kept; one that does not load is made again, a full disk is logged and no more.
    Raises UsageError (cannot be exported), JobError 'no_data' (nothing to calibrate on), EnvironmentLacking, JobError."""
    if not runtime.portable:
        return {}, runtime.start({}, body, shape_px)
    from models.serving.onnx_form import to_onnx

    key = form_key(body.network, runtime, shape_px) if cache else ""
    kept = cache.load(key) if cache else None
    if kept is not None:
        try:
            return kept, runtime.start(kept, body, shape_px)
        except (DriftboxError, KeyError) as error:
            log.warning("kept form %s does not load and is made again: %s", key[:12], error)
    files = runtime.convert(to_onnx(body, shape_px), _encoded(body, shape_px, pictures) if runtime.calibrated else [])
    form = runtime.start(files, body, shape_px)
    if cache:
        try:
            cache.store(key, files)
        except StorageError as error:
            log.warning("%s", error)
    return files, form


def _encoded(body: ServedBody, shape_px: ShapePx, pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the network sees of pictures spread evenly over those given, of this shape only."""
    step = max(1, -(-len(pictures) // MAX_CALIBRATION))
    arrays = (body.encode(picture)[0] for picture in pictures[::step])
    return [array for array in arrays if encoded_px(array) == tuple(shape_px)]


class _Some:
    """Pictures to calibrate a form on: every so many that are shown one is kept, until there are enough."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []
        self._seen = 0

    def add(self, image: np.ndarray) -> list[np.ndarray] | None:
        """They, once there are enough."""
        if self._seen % Deferred.EVERY == 0:
            self._kept.append(image)
        self._seen += 1
        return self._kept if len(self._kept) >= Deferred.COLLECTED else None


class ServedDetector:
    """Implements `Detector` for serving. trained: the model as trained. opener: makes the form of a shape. threads: as many may run a
    form at a time, each by a `Twin` of its own. A shape without a form is answered by the trained model, and its form made by `aside`
    (None: never) meanwhile, of a runtime that calibrates once enough pictures of that shape were shown; when a form fails to run, the
    trained model answers and goes on answering for that shape.

    One thread may predict while another makes forms."""

    def __init__(
        self,
        trained: Detector,
        runtime: Runtime,
        opener: Opener,
        *,
        aside: Aside | None = None,
        max_forms: int = MAX_FORMS,
        threads: int = 1,
    ) -> None:
        self.spec: DetectorSpec = trained.spec
        self.trained, self.runtime = trained, runtime
        self._body = trained.body()
        self._opener, self._aside, self._max_forms, self._threads = opener, aside, max_forms, threads
        self._forms: OrderedDict[ShapePx, Form] = OrderedDict()
        self._asked: set[ShapePx] = set()
        self._met: dict[ShapePx, _Some] = {}  # shapes whose pictures are being collected
        self._lock = threading.Lock()
        self.last_error = ""

    @property
    def memory_mib(self) -> float:
        """Of all forms that are open."""
        with self._lock:
            return sum(form.memory_mib for form in self._forms.values())

    def beside(self, trained: Detector) -> ServedDetector:
        """Another that answers by the same forms, for another thread: `trained`, a copy of this one's, answers where there is none."""
        other = copy.copy(self)
        other.trained = trained
        return other

    def prepare(self, picture: np.ndarray, others: Sequence[np.ndarray] = ()) -> None:
        """Makes the form for pictures like this one, here and now. others: more like it, to calibrate the form on. Raises what
        `open_form` raises."""
        self.take(self._body.encode(picture)[0], others)

    def take(self, array: np.ndarray, pictures: Sequence[np.ndarray] = ()) -> None:
        """The same for a picture that is encoded already."""
        shape_px = encoded_px(array)
        with self._lock:
            known = shape_px in self._forms
            self._asked.add(shape_px)
        if not known:
            self._add(shape_px, self._opened(shape_px, array, pictures))

    def _opened(self, shape_px: ShapePx, array: np.ndarray, pictures: Sequence[np.ndarray]) -> Form:
        """The form of a shape, run once. Raises DriftboxError when what it says is no number."""
        form = self._opener(self._body, shape_px, pictures)
        for _ in range(self._threads - 1):
            form.widen()
        if not all(np.isfinite(output).all() for output in form.run(array)):
            form.close()
            text = f"the {self.runtime.name} form gives numbers that are none (NaN or infinite)"
            raise DriftboxError(text, subject=self.spec.arch)
        return form

    def _add(self, shape_px: ShapePx, form: Form) -> None:
        with self._lock:
            self._forms[shape_px] = form
            while len(self._forms) > self._max_forms:
                # Not closed here: another thread may be running it. It is freed when that run ends.
                gone, _ = self._forms.popitem(last=False)
                self._asked.discard(gone)

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """As the trained model's, one picture at a time; yields between pictures only, a form cannot be interrupted."""
        results = []
        for image in images:
            if yield_point:
                yield_point()
            results.append(self._one(image, score_min))
        return results

    def _one(self, image: np.ndarray, score_min: float) -> Detections:
        array, context = self._body.encode(image)
        shape_px = encoded_px(array)
        form = self._form(shape_px, array, image)
        if form is not None:
            try:
                return self._body.decode(form.run(array), context, score_min)
            except Exception as error:  # native code; the camera must not go dark for it
                self._gave_up(shape_px, f"{type(error).__name__}: {error}")
        return self.trained.predict([image], score_min=score_min)[0]

    def _form(self, shape_px: ShapePx, array: np.ndarray, image: np.ndarray) -> Form | None:
        with self._lock:
            form = self._forms.get(shape_px)
            if form is not None:
                self._forms.move_to_end(shape_px)
                return form
            # Beyond the limit the trained model answers: shapes that alternate must not have forms made all the time.
            if self._aside is None or shape_px in self._asked or len(self._asked) >= self._max_forms:
                return None
            pictures = self._collected(shape_px, image)
            if pictures is None:
                return None
            self._asked.add(shape_px)
        self._aside(lambda: self._open_aside(shape_px, array, pictures))
        return None

    def _collected(self, shape_px: ShapePx, image: np.ndarray) -> list[np.ndarray] | None:
        """What the form of a shape is made on, None: not yet (lock held)."""
        if not self.runtime.calibrated:
            return [image]
        if shape_px not in self._met and len(self._met) + len(self._asked) >= self._max_forms:
            return None
        enough = self._met.setdefault(shape_px, _Some()).add(image)
        if enough is not None:
            del self._met[shape_px]
        return enough

    def _open_aside(self, shape_px: ShapePx, array: np.ndarray, pictures: Sequence[np.ndarray]) -> None:
        try:
            self._add(shape_px, self._opened(shape_px, array, pictures))
        except Exception as error:  # the trained model goes on answering
            self._gave_up(shape_px, f"{type(error).__name__}: {error}")

    def _gave_up(self, shape_px: ShapePx, why: str) -> None:
        log.warning("%s of %s, %dx%d: %s; it serves as trained", self.runtime.name, self.spec.arch, *shape_px, why)
        self.last_error = why
        with self._lock:
            self._forms.pop(shape_px, None)

    def close(self) -> None:
        """Frees the forms; the trained model still answers."""
        with self._lock:
            forms = list(self._forms.values())
            self._forms.clear()
            self._aside = None
        for form in forms:
            form.close()

    # --- what only the trained model can do ---------------------------------------------------------------------------

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self.trained.embed(images)

    def state(self) -> dict[str, torch.Tensor]:
        return self.trained.state()

    def clone(self) -> Detector:
        """A copy of the trained model, free to be trained."""
        return self.trained.clone()

    def body(self) -> ServedBody:
        return self.trained.body()

    def trainable_layers(self) -> list[torch.nn.Module]:
        raise self._not_trained()

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        raise self._not_trained()

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        raise self._not_trained()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        raise self._not_trained()

    def _not_trained(self) -> UsageError:
        return UsageError(
            f"the served form of {self.spec.arch} cannot be trained or changed",
            subject=self.spec.arch,
            remedy="train a `clone` of it",
        )


class Predicts(Protocol):
    """What a thread asks of a model that serves."""

    spec: DetectorSpec

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """See `models.detector.Detector`."""


class Twin:
    """A serving model for one thread more: answers by the same forms, whichever it has at the time, and by a copy of the trained model
    where there is none. The copy is made with the first prediction. of: made for as many threads as ask it and its twins."""

    def __init__(self, of: Detector) -> None:
        self.spec: DetectorSpec = of.spec
        self._of = of
        self._trained: Detector | None = None
        self._form: Detector | None = None
        self._mine: Predicts = of

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        form = form_of(self._of)
        if form is not self._form:
            self._trained = self._trained or self._of.clone()
            self._mine = form.beside(self._trained) if isinstance(form, ServedDetector) else self._trained
            self._form = form
        return self._mine.predict(images, score_min=score_min, yield_point=yield_point)


def form_of(detector: Detector) -> Detector:
    """What computes for a serving model: `Deferred` exchanges it."""
    return detector.current if isinstance(detector, Deferred) else detector


class Deferred:
    """Implements `Detector` by the trained model until a better form of it was made aside, on pictures that it was really shown: for a
    box that starts, where nothing has been seen yet and nobody should wait. make: pictures -> the form to serve from then on."""

    #: Every so many pictures one is kept, until there are COLLECTED.
    EVERY, COLLECTED = 10, 16

    def __init__(self, trained: Detector, make: Callable[[list[np.ndarray]], Detector], aside: Aside) -> None:
        self.spec: DetectorSpec = trained.spec
        self.current = trained
        self._make, self._aside = make, aside
        self._some: _Some | None = _Some()

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        for image in images:
            self._collect(image)
        return self.current.predict(images, score_min=score_min, yield_point=yield_point)

    def _collect(self, image: np.ndarray) -> None:
        pictures = self._some.add(image) if self._some is not None else None
        if pictures is not None:
            self._some = None
            self._aside(lambda: self._change(pictures))

    def _change(self, pictures: list[np.ndarray]) -> None:
        self.current = self._make(pictures)

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        return self.current.loss(images, targets)

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        return self.current.distill_loss(images, teacher)

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self.current.embed(images)

    def body(self) -> ServedBody:
        return self.current.body()

    def trainable_layers(self) -> list[torch.nn.Module]:
        return self.current.trainable_layers()

    def state(self) -> dict[str, torch.Tensor]:
        return self.current.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.current.load_state(state)

    def clone(self) -> Detector:
        return self.current.clone()
