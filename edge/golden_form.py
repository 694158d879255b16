"""The golden model in the form that labels fastest on this box's processor.

Labels are the larger part of what learning costs (docs/learning.md), and a golden model as it was trained takes half a second of a core
for each. The same network in OpenVINO's form, in bfloat16 where the processor computes in it, says the same for a third of that. It is
made as served forms are (`edge.serving`): aside, in a child process, on the first pictures that are labelled, checked against the model
as trained, measured, remembered. Until then, and for good where none is right and faster, the model labels as trained. What a label
costs is measured as it goes, so plans follow by themselves.

The bar is higher than for what serves: labels are what everything else is judged by (`AGREEMENT_MIN`), and only forms that differ by
rounding are tried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from models.detector import Detector, DetectorSpec, ServedBody, YieldPoint
from models.serving.served import Aside, ServedDetector
from scheduler.types import Detections

if TYPE_CHECKING:
    import torch

#: What `auto` tries.
TRIES: tuple[str, ...] = ("openvino-bf16", "openvino")
#: F1 of the form's boxes against those of the model as trained. A box whose score lies at the threshold may come or go.
AGREEMENT_MIN = 0.95
#: Pictures on which it is made and checked: as many are waited for.
PICTURES = 8

#: (the golden model as trained, what it was shown) -> its form, or itself.
Make = Callable[[Detector, list[np.ndarray]], Detector]


class GoldenForm:
    """The form of one golden model, once there is one; for all who use that model. Thread-safe."""

    def __init__(self, trained: Detector, make: Make, aside: Aside) -> None:
        self._trained, self._make, self._aside = trained, make, aside
        self._lock = threading.Lock()
        self._kept: list[np.ndarray] | None = []
        self.form: ServedDetector | None = None

    def shown(self, images: Sequence[np.ndarray]) -> None:
        """The model is shown these; with the first few its form is made."""
        with self._lock:
            if self._kept is None:
                return
            self._kept += images[: PICTURES - len(self._kept)]
            if len(self._kept) < PICTURES:
                return
            pictures, self._kept = self._kept, None
        self._aside(lambda: self._begin_with(pictures))

    def _begin_with(self, pictures: list[np.ndarray]) -> None:
        made = self._make(self._trained, pictures)
        self.form = made if isinstance(made, ServedDetector) else None


class FormedGolden:
    """Implements `Detector` for labelling: answers by the form once there is one, else as trained. Each job has its own (`clone`), since
    a network as trained is for one thread; the form is everybody's."""

    def __init__(self, trained: Detector, shared: GoldenForm) -> None:
        self.spec: DetectorSpec = trained.spec
        self.trained = trained
        self._shared = shared
        self._mine: ServedDetector | None = None

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        self._shared.shown(images)
        return self._answers().predict(images, score_min=score_min, yield_point=yield_point)

    def _answers(self) -> Detector:
        if self._mine is None and self._shared.form is not None:
            self._mine = self._shared.form.beside(self.trained)
        return self.trained if self._mine is None else self._mine

    def clone(self) -> Detector:
        """Another with the same form."""
        return FormedGolden(self.trained.clone(), self._shared)

    # --- as trained -----------------------------------------------------------------------------------------------------

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self.trained.embed(images)

    def state(self) -> dict[str, torch.Tensor]:
        return self.trained.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.trained.load_state(state)

    def body(self) -> ServedBody:
        return self.trained.body()

    def trainable_layers(self) -> list[torch.nn.Module]:
        return self.trained.trainable_layers()

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        return self.trained.loss(images, targets)

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        return self.trained.distill_loss(images, teacher)


class GoldenForms:
    """Camera -> its golden model for labelling; cameras with the same model share its form. golden_of: the model as trained."""

    def __init__(self, golden_of: Callable[[str], Detector], make: Make, aside: Aside) -> None:
        self._golden_of, self._make, self._aside = golden_of, make, aside
        self._lock = threading.Lock()
        self._known: dict[DetectorSpec, FormedGolden] = {}

    def __call__(self, camera_id: str) -> Detector:
        trained = self._golden_of(camera_id)
        with self._lock:
            if trained.spec not in self._known:
                self._known[trained.spec] = FormedGolden(trained, GoldenForm(trained, self._make, self._aside))
            return self._known[trained.spec]
