"""The resolution knob: what the model sees is reduced; what it says is in the pixels of the camera's picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edge.clock import SystemClock
from edge.inference import InferenceWorker
from edge.resolution import ask, at_own_size, reduced
from models.detector import YieldPoint
from models.fake import FakeDetector
from models.tasks.base import Picture
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from models.torch_support import letterbox
from scheduler.types import Detections, KnobProfile
from tests.support.fakes import FreeLane, StillCamera


class Sees:
    """Finds one box, the left upper quarter of whatever picture it is shown; remembers the sizes."""

    def __init__(self) -> None:
        self.spec = FakeDetector().spec
        self.sizes: list[tuple[int, int]] = []

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        self.sizes += [image.shape[:2] for image in images]
        return [
            Detections(
                xyxy=np.array([[0, 0, image.shape[1] / 2, image.shape[0] / 2]], np.float32), score=np.ones(1, np.float32),
                class_id=np.zeros(1, np.int64),
            )
            for image in images
        ]  # fmt: skip


def picture(height: int = 360, width: int = 640, regions: np.ndarray | None = None) -> Picture:
    return Picture(image=np.zeros((height, width, 3), np.uint8), regions=regions)


def test_boxes_come_back_in_the_pixels_of_the_whole_picture() -> None:
    model = Sees()
    found = ask(DETECTION, model, picture(), score_min=0.25, height_px=90)  # type: ignore[arg-type]
    assert model.sizes == [(90, 160)]
    assert found.xyxy.tolist() == [[0, 0, 320, 180]]
    assert found.xyxy.dtype == np.float32


@pytest.mark.parametrize("height_px", [0, 360, 720])
def test_a_picture_is_never_enlarged(height_px: int) -> None:
    whole = picture()
    assert reduced(whole, height_px) is whole


def test_widths_that_do_not_divide_still_give_exact_corners() -> None:
    model = Sees()
    found = ask(DETECTION, model, picture(361, 643), score_min=0.25, height_px=100)  # type: ignore[arg-type]
    assert found.xyxy[0, 2:] == pytest.approx([643 / 2, 361 / 2])


def test_regions_are_reduced_with_the_picture_and_come_back_exactly() -> None:
    regions = np.array([[10, 20, 110, 131], [300, 100, 420, 180]], np.float32)
    small = reduced(picture(regions=regions), 90)
    assert small.regions is not None
    assert small.regions == pytest.approx(regions / 4)
    found = ask(CLASSIFICATION, Sees(), picture(regions=regions), score_min=0.0, height_px=90)  # type: ignore[arg-type]
    assert found.xyxy.tolist() == regions.tolist()


def test_a_worker_shows_boxes_on_the_frame_it_shows() -> None:
    camera, model = StillCamera("a"), Sees()
    worker = InferenceWorker(camera, FreeLane(), model, "v1", clock=SystemClock(), score_min=0.25)  # type: ignore[arg-type]
    worker.set_knobs(KnobProfile(name="every@48p", demand_pct=1.0, quality_frac=1.0, fps=0.0, height_px=48))
    camera.show(1)
    worker.step()
    shown = worker.shown()
    assert shown is not None
    assert model.sizes == [(48, 64)]
    assert shown.frame.image.shape[:2] == (96, 128)  # what people and the sampler see is whole
    assert shown.detections.xyxy.tolist() == [[0, 0, 64, 48]]
    worker.set_knobs(KnobProfile(name="every", demand_pct=1.0, quality_frac=1.0, fps=0.0))
    camera.show(2)
    worker.step()
    assert model.sizes[-1] == (96, 128)


def test_frames_of_another_height_begin_a_new_account_of_costs() -> None:
    camera = StillCamera("a")
    worker = InferenceWorker(camera, FreeLane(), Sees(), "v1", clock=SystemClock(), score_min=0.25)  # type: ignore[arg-type]
    whole = KnobProfile(name="every", demand_pct=1.0, quality_frac=1.0)
    worker.set_knobs(whole)
    for seq in range(1, 7):
        camera.show(seq)
        worker.step()
    assert worker.cost_s() is not None
    worker.set_knobs(whole)
    assert worker.cost_s() is not None
    worker.set_knobs(KnobProfile(name="every@48p", demand_pct=1.0, quality_frac=1.0, height_px=48))
    assert worker.cost_s() is None


class Carrier:
    """A served form, or a front of a pool."""

    def __init__(self, **inner: object) -> None:
        self.__dict__.update(inner)


def test_the_model_behind_a_form_or_a_pool_leaves_small_pictures_small() -> None:
    trained, other = FakeDetector(), FakeDetector()
    trained.enlarges = other.enlarges = True  # type: ignore[attr-defined]
    at_own_size(Carrier(current=Carrier(trained=trained)))  # type: ignore[arg-type]
    at_own_size(Carrier(behind=other))  # type: ignore[arg-type]
    assert not trained.enlarges  # type: ignore[attr-defined]
    assert not other.enlarges  # type: ignore[attr-defined]
    plain = FakeDetector()
    assert at_own_size(plain) is plain  # type: ignore[arg-type]


def test_a_letterbox_that_does_not_enlarge_only_pads() -> None:
    small = letterbox(np.zeros((90, 160, 3), np.uint8), input_px=320, enlarge=False)
    assert (small.scale, small.image.shape[:2]) == (1.0, (96, 160))
    large = letterbox(np.zeros((720, 1280, 3), np.uint8), input_px=320, enlarge=False)
    assert (large.scale, large.image.shape[:2]) == (0.25, (192, 320))
    assert letterbox(np.zeros((90, 160, 3), np.uint8), input_px=320).image.shape[:2] == (192, 320)
