"""A frame in a few numbers: the picture's statistics, its layout, what was found, the projected embedding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from configs.units import CLASSES, NOTHING
from models.embedding import EMBEDDING_NUMBERS, LOOK_PX, VIEW_GRID, FrameStats, edges, layout, projected, reduced, tint, view
from models.tasks.base import Picture
from scheduler.types import Detections

STATS = FrameStats("fake")
NO_EMBEDDING = np.zeros(0, np.float32)
LAYOUT_NUMBERS = 16


def picture(image: np.ndarray) -> Picture:
    return Picture(image=image)


def textured(height: int = 120, width: int = 160, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def plain(level: int, height: int = 120, width: int = 160) -> np.ndarray:
    return np.full((height, width, 3), level, np.uint8)


def found(classes: list[int], scores: list[float]) -> Detections:
    boxes = np.tile(np.array([0, 0, 9, 9], np.float32), (len(classes), 1)).reshape(-1, 4)
    return Detections(xyxy=boxes, score=np.array(scores, np.float32), class_id=np.array(classes, np.int64))


def test_a_plain_picture_is_its_grey_level() -> None:
    look = STATS.look_at(picture(plain(90)), Detections.empty(), NO_EMBEDDING)
    assert look.brightness == pytest.approx(90, abs=1)
    assert look.contrast == 0
    assert look.sharpness == 0
    assert (look.objects, look.confidence, look.embedding) == (0, 0, ())
    assert look.class_frac == (0.0,) * len(CLASSES)


def test_blur_lowers_sharpness_and_light_raises_brightness() -> None:
    import cv2

    sharp, soft = textured(), cv2.GaussianBlur(textured(), (0, 0), 2.0)
    a, b = (STATS.look_at(picture(i), Detections.empty(), NO_EMBEDDING) for i in (sharp, soft))
    assert a.sharpness > b.sharpness + 1
    assert a.contrast > b.contrast
    assert a.brightness == pytest.approx(b.brightness, abs=3)


def test_what_was_found_is_counted_by_class() -> None:
    look = STATS.look_at(picture(plain(90)), found([0, 2, 2, 2], [0.9, 0.5, 0.5, 0.3]), NO_EMBEDDING)
    assert look.objects == 4
    assert look.confidence == pytest.approx(0.55)
    assert look.class_frac[:3] == (0.25, 0.0, 0.75)
    assert sum(look.class_frac) == pytest.approx(1)


def test_a_class_that_is_no_object_has_no_share() -> None:
    look = STATS.look_at(picture(plain(90)), found([NOTHING, 0], [0.5, 0.5]), NO_EMBEDDING)
    assert look.class_frac[0] == 1.0


def test_a_camera_of_any_size_is_seen_at_the_same_size() -> None:
    import cv2

    small = cv2.GaussianBlur(textured(90, 160), (0, 0), 4.0)
    large = cv2.resize(small, (1280, 720), interpolation=cv2.INTER_CUBIC)
    a, b = (STATS.look_at(picture(i), Detections.empty(), NO_EMBEDDING) for i in (small, large))
    assert a.brightness == pytest.approx(b.brightness, abs=1)
    assert a.sharpness == pytest.approx(b.sharpness, abs=0.3)
    assert a.layout == pytest.approx(b.layout, abs=0.02)
    assert max(reduced(large).shape) == LOOK_PX


@given(
    image=hnp.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))),
    embedding=hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(-100, 100, width=32)),
)
@settings(max_examples=60, deadline=None)
def test_any_picture_down_to_a_pixel_has_a_look(image: np.ndarray, embedding: np.ndarray) -> None:
    look = STATS.look_at(picture(image), Detections.empty(), embedding)
    assert len(look.layout) == LAYOUT_NUMBERS
    assert all(0 <= v <= 1 for v in (*look.layout, *look.tint))
    assert len(look.embedding) == (EMBEDDING_NUMBERS if embedding.size else 0)
    assert STATS.look_at(picture(image), Detections.empty(), embedding) == look


def test_the_layout_says_where_it_is_light_and_where_edges_are() -> None:
    image = plain(0)
    image[:40, :40] = 255  # the first of 3 x 4 cells
    numbers = layout(image[..., 0])
    assert numbers[0] == 1.0
    assert numbers[1:12] == (0.0,) * 11
    assert numbers[12] > 0
    assert numbers[13:] == (0.0, 0.0, 0.0), "edges in the first quarter only"


@pytest.mark.parametrize(
    ("channel", "expected"), [(0, (1.0, 0.25)), (1, (0.5, 1.0)), (2, (0.0, 0.25)), (None, (0.5, 0.5))], ids=str
)
def test_the_tint_is_the_colour_cast(channel: int | None, expected: tuple[float, float]) -> None:
    image = plain(0)
    image[..., slice(None) if channel is None else channel] = 255
    assert tint(image) == pytest.approx(expected)


# --- embeddings -------------------------------------------------------------------------------------------------------


def test_the_projection_is_fixed_for_an_architecture() -> None:
    features = np.arange(64, dtype=np.float32)
    assert projected(features, "yolov8n") == projected(features.copy(), "yolov8n")
    assert projected(features, "yolov8n") != projected(features, "yolo26n")
    # A box that is updated must understand the looks it stored before.
    assert projected(np.ones(3), "fake")[:3] == pytest.approx(GOLDEN)


#: Of `projected(ones(3), "fake")`: seed, generator and scaling together.
GOLDEN = (-0.178905, 0.195752, -0.178573)


def test_length_does_not_matter_and_direction_does() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 256))
    assert projected(a, "x") == pytest.approx(projected(1000 * a, "x"), abs=1e-6)
    apart = np.linalg.norm(np.subtract(projected(a, "x"), projected(b, "x")))
    true = np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b))
    assert apart == pytest.approx(true, rel=0.6)
    assert np.mean(
        [np.linalg.norm(projected(rng.normal(size=256), "x")) for _ in range(100)]
    ) == pytest.approx(1.0, abs=0.1)  # fmt: skip


def test_dead_features_are_zeros() -> None:
    assert projected(np.zeros(32), "x") == (0.0,) * EMBEDDING_NUMBERS


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        STATS.look_at(picture(plain(9)), Detections.empty(), np.array([1.0, bad]))


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        STATS.look_at(picture(plain(9)), found([0], [float("nan")]), NO_EMBEDDING)


# --- what the camera is turned to -------------------------------------------------------------------------------------


def street(seed: int, height: int = 360, width: int = 640) -> np.ndarray:
    """Boxes of all sizes and greys: another arrangement for each seed."""
    rng, image = np.random.default_rng(seed), plain(120, height, width)
    for _ in range(30):
        y, x, h, w = (int(rng.integers(0, most)) for most in (height, width, height // 3, width // 3))
        image[y : y + h, x : x + w] = rng.integers(0, 256, 3)
    return image


def correlation(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return float(np.dot(a, b))


def test_a_view_has_mean_0_and_length_1_whatever_the_size() -> None:
    small, large = (view([edges(street(1, h, w))]) for h, w in ((90, 160), (720, 1280)))
    for seen in (small, large):
        assert len(seen) == VIEW_GRID[0] * VIEW_GRID[1]
        assert sum(seen) == pytest.approx(0, abs=0.02)
        assert correlation(seen, seen) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("factor", "level"), [(0.4, 0), (0.4, 150), (1.0, 40), (0.15, 90)])
def test_light_and_haze_leave_a_view_and_a_turn_of_the_camera_does_not(factor: float, level: float) -> None:
    image = street(1)
    other_light = np.clip(image * factor + level, 0, 255).astype(np.uint8)
    day = view([edges(image)])
    assert correlation(day, view([edges(other_light)])) > 0.8
    assert correlation(day, view([edges(np.ascontiguousarray(image[:, ::-1]))])) < 0.5
    assert all(correlation(day, view([edges(street(seed))])) < 0.5 for seed in range(2, 12))


def test_what_passes_through_is_no_part_of_a_view() -> None:
    frames = []
    for at in range(5):
        frame = street(1)
        frame[100:250, at * 120 : at * 120 + 100] = textured(150, 100, seed=at)
        frames.append(frame)
    empty = view([edges(street(1))])
    alone = min(correlation(empty, view([edges(frame)])) for frame in frames)
    assert correlation(empty, view([edges(frame) for frame in frames])) > max(0.95, alone)


@pytest.mark.parametrize("frames", [[], [plain(0)], [plain(255), plain(255)]])
def test_a_picture_that_is_the_same_everywhere_has_no_view(frames: list[np.ndarray]) -> None:
    assert view([edges(frame) for frame in frames]) == ()


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))))
def test_a_view_of_any_picture_is_finite(image: np.ndarray) -> None:
    assert all(abs(value) <= 1 for value in view([edges(image)]))
