"""Networks for other programs are checked against the trained one before anybody gets them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest

from configs.errors import EnvironmentLacking, JobError, UsageError
from models.compress.export import DIFFERENCE_MAX, FORMATS, exported, made_up
from models.detector import ServedBody
from models.fake import FakeDetector, scripted_image
from models.serving.base import Files, Form, ShapePx
from models.serving.onnxruntime_runtime import OnnxForm, OnnxRuntime
from models.serving.tensorrt_runtime import TensorRtRuntime
from models.zoo import load_detector
from tests.support.fake_tensorrt import FakeTensorRt


@pytest.fixture(scope="module")
def body() -> ServedBody:
    return load_detector("tinydet-edge").body()


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_says_what_the_network_says(form: str, body: ServedBody, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRt())
    runtime = TensorRtRuntime(device="cpu") if form == "tensorrt" else None
    if runtime is not None:
        monkeypatch.setattr(runtime, "missing", lambda: "")
    done = exported(body, form, runtime=runtime)
    assert done.shape_px == body.example_px
    assert 0 <= done.difference <= DIFFERENCE_MAX
    assert all(len(content) > 1000 for content in done.files.values())


def test_own_pictures_and_another_shape(body: ServedBody) -> None:
    done = exported(body, "onnx", [scripted_image(1)[0]], shape_px=(192, 256))
    assert done.shape_px == (192, 256)
    with pytest.raises(JobError, match="no picture has the shape"):
        exported(body, "onnx", [np.zeros((64, 256, 3), np.uint8)])


def test_made_up_pictures_are_the_same_every_time_and_not_plain(body: ServedBody) -> None:
    first, again = made_up(body, (144, 256)), made_up(body, (144, 256))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(picture.std() > 20 for picture in first)


class Harmed(OnnxRuntime):
    """Its forms add `error` to the first output, or leave one out."""

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> Form:
        inner, error = super().start(files, body, shape_px), self.error

        class Wrong:
            memory_mib = 1.0

            def run(self, array: np.ndarray) -> list[np.ndarray]:
                found: Sequence[np.ndarray] = inner.run(array)
                return [found[0] + np.float32(error), *found[1:]] if error else list(found[:1])

            def close(self) -> None: ...

        assert isinstance(inner, OnnxForm)
        return Wrong()


@pytest.mark.parametrize("error", [0.5, float("nan"), 0.0], ids=["other numbers", "NaN", "an output missing"])
def test_an_export_that_says_something_else_is_not_handed_out(error: float, body: ServedBody) -> None:
    with pytest.raises(JobError, match="does not say what the trained one says"):
        exported(body, "onnx", runtime=Harmed(error))


def test_unknown_formats_and_missing_libraries_are_named() -> None:
    body = FakeDetector().body()
    with pytest.raises(UsageError, match="no format 'coreml'"):
        exported(body, "coreml")
    if TensorRtRuntime().missing():
        with pytest.raises(EnvironmentLacking, match="tensorrt cannot be made here"):
            exported(body, "tensorrt")
