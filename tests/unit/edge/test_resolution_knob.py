"""The resolution knob: what the model sees is reduced; what it says is in the pixels of the camera's picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import cv2
import numpy as np
import pytest
from av.video.frame import VideoFrame

from edge.clock import FakeClock, SystemClock
from edge.inference import InferenceWorker
from edge.resolution import ask, at_own_size, of_live, reduced
from edge.step_pool import StepPool
from models import zoo
from models.detector import DetectorSpec, YieldPoint
from models.evaluate import MatchCounts, match_counts
from models.fake import FakeDetector
from models.tasks.base import Picture
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from models.torch_support import letterbox
from scheduler.types import Detections, Frame, KnobProfile
from streams.decoded import DecodedFrame, Shot
from streams.halved import halvings
from streams.rendered.scene import RenderedScene
from streams.video import RgbMaker
from tests.support.fakes import FreeLane, StillCamera
from tests.unit.edge.test_decoding_in_turn import EncodedCamera, TurnsLane


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


# --- live frames ------------------------------------------------------------------------------------------------------


class LiveFrame(Frame):
    """Says which pictures it was asked for; its halves are made as the camera's are, of RGB."""

    asked: list[str]

    def halved(self, least_px: int) -> np.ndarray:
        self.asked.append(f"half {least_px}")
        image = self.image
        for _ in range(halvings(*self.size_px, least_px)):
            image = cv2.resize(image, (image.shape[1] // 2, image.shape[0] // 2), interpolation=cv2.INTER_AREA)
        return image


def live(height: int = 360, width: int = 640, regions: np.ndarray | None = None) -> LiveFrame:
    image, _ = RenderedScene("street", 5, width, height).render(3.0)
    frame = LiveFrame(stream="cam", seq=0, captured_s=0.0, captured_utc=0.0, image=image, regions=regions)
    object.__setattr__(frame, "asked", [])
    return frame


class Halves(Sees):
    def __init__(self) -> None:
        super().__init__()
        self.spec = zoo.spec_of("tinydet-edge")


def test_a_model_that_would_halve_a_picture_is_shown_the_half() -> None:
    model, frame = Halves(), live()
    found = ask(DETECTION, model, frame, score_min=0.25)  # type: ignore[arg-type]
    assert frame.asked == ["half 256"]
    assert model.sizes == [(180, 320)]
    assert found.xyxy.tolist() == [[0, 0, 320, 180]], "in the pixels of the frame"


@pytest.mark.parametrize(
    ("height_px", "half", "seen"),
    [(0, 256, (180, 320)), (360, 256, (180, 320)), (720, 256, (180, 320)), (180, 320, (180, 320)), (181, 322, (181, 322)),
     (144, 256, (144, 256)), (90, 160, (90, 160))],
)  # fmt: skip
def test_the_half_is_large_enough_for_the_resolution_knob(height_px: int, half: int, seen: tuple[int, int]) -> None:
    model, frame = Halves(), live()
    found = ask(DETECTION, model, frame, score_min=0.25, height_px=height_px)  # type: ignore[arg-type]
    assert frame.asked == [f"half {half}"]
    assert model.sizes == [seen]
    assert np.allclose(found.xyxy, [[0, 0, 320, 180]], atol=1.0)


def test_other_models_and_tasks_and_frames_with_regions_are_shown_the_whole_picture() -> None:
    moving = np.array([[10, 10, 50, 50]], np.float32)
    for task, model, frame in (
        (DETECTION, Sees(), live()),
        (CLASSIFICATION, Halves(), live(regions=moving)),
        (DETECTION, Halves(), live(regions=moving)),
    ):
        picture = of_live(task, model, frame)  # type: ignore[arg-type]
        assert picture.image is frame.image
        assert picture.regions is frame.regions
        assert frame.asked == []


@pytest.mark.parametrize("arch", ["tinydet-edge", "tinydet-golden"])
@pytest.mark.parametrize("size", [(360, 640), (720, 1280), (1080, 1920), (540, 960)])
def test_models_said_to_halve_find_the_same_in_the_half(arch: str, size: tuple[int, int]) -> None:
    model, frame = zoo.load_detector(arch), live(*size)
    whole = ask(DETECTION, model, Picture(image=frame.image), score_min=0.25)
    found = ask(DETECTION, model, frame, score_min=0.25)
    assert len(whole) > 0
    assert np.array_equal(found.score, whole.score)
    assert np.allclose(found.xyxy, whole.xyxy, atol=0.01)


def test_who_halves_first_is_said_of_every_model_of_the_zoo() -> None:
    assert {arch for arch in zoo.ZOO if zoo.least_px(zoo.spec_of(arch))} == {"tinydet-edge", "tinydet-golden"}
    assert zoo.least_px(DetectorSpec(arch="somebody-elses", input_px=256)) == 0


@pytest.mark.parametrize("size", [(360, 640), (1080, 1920)])
def test_from_the_decoders_planes_a_model_finds_what_it_finds_in_the_whole_picture(size: tuple[int, int]) -> None:
    """Colours are rounded otherwise, by a level or two of 256; an object at the threshold may come or go for that."""
    model = zoo.load_detector("tinydet-edge")
    counts = MatchCounts()
    for at_s in (2.0, 4.0, 6.0, 8.0):
        image, _ = RenderedScene("street", 5, size[1], size[0]).render(at_s)
        shot = Shot(VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuv420p"), RgbMaker())
        frame = DecodedFrame.of(shot, stream="cam", seq=0, captured_s=at_s, captured_utc=at_s)
        found = ask(DETECTION, model, frame, score_min=0.25)
        assert "image" not in vars(frame), "nobody needed it"
        whole = ask(DETECTION, model, Picture(image=frame.image), score_min=0.25)
        counts += match_counts(found, whole, iou_min=0.8, score_min=0.25)
    assert counts.f1 > 0.9


def test_a_worker_that_decodes_makes_what_its_model_is_shown_beside_its_share() -> None:
    log: list[str] = []

    class Camera(EncodedCamera):
        def make(self, *, after_seq: int) -> Frame | None:
            frame = live()
            object.__setattr__(frame, "asked", log)
            return frame

    class BesideLane(TurnsLane):
        @contextmanager
        def beside(self) -> Iterator[None]:
            log.append("beside")
            yield
            log.append("back")

    camera, clock = Camera("a"), FakeClock()
    worker = InferenceWorker(
        camera, BesideLane([]), Halves(), "v1", clock=clock, score_min=0.25, pool=StepPool(1, clock, spawn=lambda body: None)
    )  # type: ignore[arg-type]
    worker.set_knobs(KnobProfile(name="k", demand_pct=1.0, quality_frac=1.0, fps=5.0))
    camera.comes(0)
    worker.step()
    assert worker.shown() is not None
    assert log[:3] == ["beside", "half 256", "back"]
