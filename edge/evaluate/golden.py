"""The golden model in a form that labels faster on this machine, for evaluations: OpenVINO's is about 1.4 times torch's on a CPU, and
2.0 times that in bfloat16 where the processor computes in it (yolo26l@640: 0.53 and 0.26 s a picture on one core).

What a label costs in virtual time does not change, only what it takes really. A form's labels are those of the model as it is up to
rounding; since one box in thousands may differ, they are remembered apart (`golden_key`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from configs.errors import EnvironmentLacking, JobError, UsageError
from models.detector import Detector, YieldPoint
from models.serving.base import Runtime
from models.serving.registry import runtime_of
from models.serving.served import ServedDetector, open_form
from scheduler.types import Detections

TORCH = "torch"
#: As the model is, and the forms that change its numbers by rounding only: int8 would label otherwise.
GOLDEN_RUNTIMES: Mapping[str, Callable[[], Runtime]] = {
    TORCH: partial(runtime_of, TORCH),
    "openvino": partial(runtime_of, "openvino"),
    "openvino-bf16": partial(runtime_of, "openvino-bf16"),
}
#: Shapes of picture that have a form at a time; clips come one after the other.
MAX_FORMS = 8


class FormGolden:
    """Implements what labelling asks of a `Detector`. A shape's form is made when its first picture comes, and answers that one too. A
    form that fails ends the work, since labels of two kinds must not be mixed: JobError, or what making it raises."""

    def __init__(self, golden: Detector, runtime: Runtime) -> None:
        self.spec = golden.spec
        self.runtime_name = runtime.name
        self._served = ServedDetector(golden, runtime, partial(open_form, runtime), max_forms=MAX_FORMS)

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        found: list[Detections] = []
        for image in images:
            self._served.prepare(image)
            found += self._served.predict([image], score_min=score_min, yield_point=yield_point)
        if self._served.last_error:
            raise JobError(
                f"{self.spec.arch} failed in the form of {self.runtime_name}: {self._served.last_error}", subject=self.spec.arch,
                remedy=f"label with --golden-runtime {TORCH}",
            )  # fmt: skip
        return found

    def state(self) -> dict[str, torch.Tensor]:
        return self._served.state()


def in_form(golden: Detector, runtime: str) -> Detector:
    """`golden` as it is ('torch'), or its labels from another runtime. Raises UsageError for one that is not offered,
    EnvironmentLacking when its library is missing."""
    if runtime not in GOLDEN_RUNTIMES:
        raise UsageError(
            f"labels do not come from {runtime!r}", subject=runtime, remedy=f"use one of {', '.join(GOLDEN_RUNTIMES)}"
        )
    if runtime == TORCH:
        return golden
    chosen = GOLDEN_RUNTIMES[runtime]()
    if problem := chosen.missing():
        raise EnvironmentLacking(
            problem, subject=runtime, remedy=f"pip install {' '.join(chosen.libraries)}, or --golden-runtime {TORCH}"
        )
    return FormGolden(golden, chosen)  # type: ignore[return-value]


def golden_key(golden: Detector) -> tuple[str, ...]:
    """What the runtime adds to the key of remembered labels; nothing for torch, so that kept work stays valid."""
    return (golden.runtime_name,) if isinstance(golden, FormGolden) else ()
