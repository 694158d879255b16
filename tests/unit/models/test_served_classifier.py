"""A classifier in another form answers about regions as the trained one does, unsure or not."""

from __future__ import annotations

import numpy as np
import pytest

from models.classifier import Classifier
from models.detector import DetectorSpec
from models.serving.registry import runtime_of
from models.serving.served import ServedDetector, open_form
from models.tasks.base import Picture
from models.tasks.classification import CLASSIFICATION
from tests.support.networks import settled


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("arch", ["shufflenetv2-0.5", "efficientnet-lite0"])
def test_regions_are_answered_alike(arch: str, runtime: str) -> None:
    plain = settled(Classifier(DetectorSpec(arch=arch, input_px=32), seed=2))
    assert isinstance(plain, Classifier)
    trained = plain.with_head(16)
    form = runtime_of(runtime)
    opened: list[tuple[int, int]] = []

    def opener(body, shape_px, shown):  # type: ignore[no-untyped-def]
        opened.append(shape_px)
        return open_form(form, body, shape_px)

    served = ServedDetector(trained, form, opener)
    rng = np.random.default_rng(0)
    picture = Picture(
        image=rng.integers(0, 255, (90, 120, 3)).astype(np.uint8),
        regions=np.array([[0, 0, 30, 60], [50, 50, 51, 51], [80, 10, 118, 40]], np.float32),
    )
    served.prepare(picture.image)
    [wanted], [found] = (CLASSIFICATION.predict(model, [picture], score_min=0.0) for model in (trained, served))
    assert np.array_equal(found.class_id, wanted.class_id)
    assert np.allclose(found.score, wanted.score, atol=1e-3)
    assert opened == [(32, 32)], "one shape, whatever the regions"
    assert not served.last_error
