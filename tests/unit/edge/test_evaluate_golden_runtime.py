"""Labels out of another runtime: the same but for rounding, remembered apart, never mixed with those of the model as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from configs.errors import EnvironmentLacking, JobError, UsageError
from edge.evaluate.golden import FormGolden, golden_key, in_form
from edge.evaluate.studio import Studio
from edge.memo import Memo
from models.detector import Detector, ServedBody
from models.evaluate import MatchCounts, match_counts
from models.serving.base import Files, Form, ShapePx
from models.serving.openvino_runtime import OpenVinoRuntime
from models.zoo import load_detector
from tests.support.evaluation import scripted_studio, scripted_videos
from tests.support.networks import settled

PICTURES = [np.random.default_rng(n).integers(0, 255, (72, 128, 3), np.uint8) for n in range(3)]
OTHER_SHAPE = np.random.default_rng(9).integers(0, 255, (128, 96, 3), np.uint8)


def small() -> Detector:
    return settled(load_detector("tinydet-edge"))


class Broken:
    """Converts, starts, is asked once for a look, then fails."""

    def __init__(self, shape_px: ShapePx) -> None:
        self.memory_mib, self.shape_px, self.runs = 0.0, shape_px, 0

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        self.runs += 1
        if self.runs > 1:
            raise RuntimeError("out of registers")
        return [np.zeros(1, np.float32)]

    def close(self) -> None:
        pass


class BrokenRuntime:
    name, precision, portable, calibrated = "openvino", "fp32", False, False
    libraries: tuple[str, ...] = ()

    def missing(self) -> str:
        return ""

    def tuned_for(self) -> str:
        return ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        raise AssertionError

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> Form:
        return Broken(shape_px)


def test_torch_is_the_model_itself_and_adds_nothing_to_keys() -> None:
    golden = small()
    assert in_form(golden, "torch") is golden
    assert golden_key(golden) == ()


def test_what_does_not_keep_the_numbers_is_not_offered() -> None:
    with pytest.raises(UsageError, match="openvino-int8"):
        in_form(small(), "openvino-int8")


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenVinoRuntime, "missing", lambda self: "openvino is not installed")
    with pytest.raises(EnvironmentLacking, match="not installed"):
        in_form(small(), "openvino")


@pytest.mark.parametrize(("runtime", "least"), [("openvino", 0.98), ("openvino-bf16", 0.9)])
def test_openvino_labels_as_the_model_does_from_the_first_picture_of_each_shape_on(runtime: str, least: float) -> None:
    pytest.importorskip("openvino")
    golden = small()
    form = in_form(golden, runtime)
    pictures = [*PICTURES, OTHER_SHAPE]
    said = form.predict(pictures, score_min=0.02)
    wanted = [golden.predict([picture], score_min=0.02)[0] for picture in pictures]
    assert sum(map(len, wanted)) > 4, "nothing to compare"
    agreement = MatchCounts.total(match_counts(a, b, score_min=0.0) for a, b in zip(said, wanted, strict=True))
    assert agreement.f1 > least
    assert golden_key(form) == (runtime,)
    assert form.state().keys() == golden.state().keys()


def test_a_form_that_fails_ends_the_work_instead_of_mixing_labels() -> None:
    form = FormGolden(small(), BrokenRuntime())
    with pytest.raises(JobError, match="out of registers"):
        form.predict([PICTURES[0]])


def test_labels_of_two_runtimes_are_remembered_apart(tmp_path: Path) -> None:
    videos = scripted_videos(tmp_path, count=1, frames=12)
    plain = scripted_studio(videos, memo=Memo(tmp_path / "memo"))
    plain.golden_labels("cam0", 3)
    assert plain.done.golden == 1
    again = scripted_studio(videos, memo=Memo(tmp_path / "memo"))
    again.golden_labels("cam0", 3)
    assert again.done.golden == 0
    form = FormGolden.__new__(FormGolden)
    form.spec, form.runtime_name, form._served = plain.golden.spec, "openvino", plain.golden  # type: ignore[assignment]
    form.predict = plain.golden.predict  # type: ignore[method-assign]
    other = Studio(
        list(plain.footage.values()), plain.detector(plain.base_version), form, plain.costs, plain.options,  # type: ignore[arg-type]
        Memo(tmp_path / "memo"), lambda text: None,
    )  # fmt: skip
    other.golden_labels("cam0", 3)
    assert other.done.golden == 1
    assert other.golden_version != plain.golden_version
