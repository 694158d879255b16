"""The models that a profile compares, each in the forms that this machine can serve, ready to be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from configs.errors import UsageError
from edge.profiler.chain import TRAINED
from edge.resolution import at_own_size, reduced
from models.detector import Detector
from models.precision import device_of
from models.serving.cache import FormCache
from models.serving.registry import runtime_of
from models.serving.served import ServedDetector, open_form
from models.tasks.base import Picture, Task


class ReadyModels:
    """Loads each model once, and makes each form once per height. load: name -> the model as trained; pictures: of the clip, for
    forms
    that calibrate and to warm up on; own_size: small pictures are not enlarged (a resolution knob is turned); cache: of forms that the
    box has made."""

    def __init__(
        self,
        task: Task,
        load: Callable[[str], Detector],
        pictures: Sequence[Picture],
        *,
        own_size: bool,
        cache: FormCache | None = None,
    ) -> None:
        self._task, self._load, self._pictures, self._own_size, self._cache = task, load, list(pictures), own_size, cache
        self._trained: dict[str, Detector] = {}
        self._forms: dict[tuple[str, str], Detector] = {}
        self._warm: set[tuple[str, str, int]] = set()

    def trained(self, model: str) -> Detector:
        if model not in self._trained:
            detector = self._load(model)
            self._trained[model] = at_own_size(detector) if self._own_size else detector
        return self._trained[model]

    def ready(self, model: str, form: str, height_px: int) -> Detector:
        """Raises UsageError or EnvironmentLacking for a form that this machine has not, JobError for one that cannot be made."""
        detector = self.trained(model) if form == TRAINED else self._form(model, form)
        if (model, form, height_px) not in self._warm:
            self._warm_up(detector, height_px)
            self._warm.add((model, form, height_px))
        return detector

    def _form(self, model: str, form: str) -> Detector:
        if (model, form) not in self._forms:
            trained = self.trained(model)
            runtime = runtime_of(form, device=device_of(trained.trainable_layers()).type)
            if problem := runtime.missing():
                raise UsageError(problem, subject=form, remedy="leave this form out of --forms")
            images = [reduced(p, 0).image for p in self._pictures]
            self._forms[model, form] = ServedDetector(
                trained,
                runtime,
                lambda body, shape, shown: open_form(runtime, body, shape, shown or images, cache=self._cache),
                max_forms=8,
            )
        return self._forms[model, form]

    def _warm_up(self, detector: Detector, height_px: int) -> None:
        """Its form is made, its buffers are there: the first picture of a clip then costs what any other does."""
        for picture in self._pictures[:1]:
            small = reduced(picture, height_px)
            if isinstance(detector, ServedDetector) and not self._task.wants_regions:
                detector.prepare(small.image, [reduced(p, height_px).image for p in self._pictures])
            self._task.predict(detector, [small])
            self._task.predict(detector, [small])

    def memory_mib(self, model: str) -> float:
        return model_mib(self.trained(model))


def model_mib(detector: Detector) -> float:
    """Of a model's tensors."""
    arrays = (tensor.detach().cpu().numpy() for tensor in detector.state().values())
    return sum(float(np.asarray(array).nbytes) for array in arrays) / 2**20
