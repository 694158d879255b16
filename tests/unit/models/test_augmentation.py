"""Augmentation: boxes follow their pixels, nothing else is touched, draws are seeded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.augment import Augmentation, augmented
from models.labelled import LabelledImage, Subset, spread
from scheduler.types import Detections

BLACK = np.zeros((60, 80, 3), np.uint8)


def one_box(x1: int, y1: int, x2: int, y2: int) -> LabelledImage:
    """A white box on black."""
    image = BLACK.copy()
    image[y1:y2, x1:x2] = 255
    labels = Detections(
        xyxy=np.array([[x1, y1, x2, y2]], np.float32), score=np.ones(1, np.float32), class_id=np.array([2], np.int64)
    )
    return LabelledImage(image=image, labels=labels)


def white_box(image: np.ndarray) -> tuple[float, float, float, float]:
    rows, columns = np.nonzero(image[:, :, 0] > 180)
    return float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1)


def test_mirroring_is_exact() -> None:
    sample = one_box(10, 20, 30, 50)
    how = Augmentation(flip_frac=1.0, brightness_frac=0, contrast_frac=0, scale_frac=0, shift_frac=0)
    mirrored = augmented(sample, how, np.random.default_rng(0))
    assert np.array_equal(mirrored.image, sample.image[:, ::-1])
    assert mirrored.labels.xyxy.tolist() == [[50, 20, 70, 50]]
    assert mirrored.labels.class_id.tolist() == [2]


def test_none_changes_nothing() -> None:
    sample = one_box(10, 20, 30, 50)
    same = augmented(sample, Augmentation.none(), np.random.default_rng(0))
    assert np.array_equal(same.image, sample.image)
    assert np.array_equal(same.labels.xyxy, sample.labels.xyxy)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(5, 50), st.integers(5, 35), st.integers(10, 28), st.integers(10, 24))
def test_boxes_stay_on_their_pixels(seed: int, x: int, y: int, w: int, h: int) -> None:
    sample = one_box(x, y, min(80, x + w), min(60, y + h))
    how = Augmentation(flip_frac=0.5, brightness_frac=0.0, contrast_frac=0.0, scale_frac=0.3, shift_frac=0.2)
    moved = augmented(sample, how, np.random.default_rng(seed))
    if not len(moved.labels):
        return
    assert np.allclose(moved.labels.xyxy[0], white_box(moved.image), atol=1.1)


@given(st.integers(0, 10_000))
def test_boxes_end_inside_the_picture_and_have_area(seed: int) -> None:
    how = Augmentation(scale_frac=0.9, shift_frac=0.9)
    moved = augmented(one_box(0, 0, 80, 60), how, np.random.default_rng(seed))
    xyxy = moved.labels.xyxy
    assert (xyxy >= 0).all()
    assert (xyxy <= [80, 60, 80, 60]).all()
    assert (xyxy[:, 2:] - xyxy[:, :2] >= 2).all()


def test_a_box_mostly_outside_is_dropped() -> None:
    how = Augmentation(flip_frac=0, brightness_frac=0, contrast_frac=0, scale_frac=0, shift_frac=0.9)
    sample = one_box(30, 20, 50, 40)
    kept = [len(augmented(sample, how, np.random.default_rng(seed)).labels) for seed in range(60)]
    assert 0 < sum(kept) < 60


def test_light_changes_move_grey_levels_and_no_boxes() -> None:
    sample = LabelledImage(image=np.full((60, 80, 3), 100, np.uint8), labels=one_box(1, 1, 20, 20).labels)
    how = Augmentation(flip_frac=0, brightness_frac=0.2, contrast_frac=0.2, scale_frac=0, shift_frac=0)
    levels = [int(augmented(sample, how, np.random.default_rng(seed)).image[0, 0, 0]) for seed in range(40)]
    assert min(levels) < 80
    assert max(levels) > 120
    assert np.array_equal(augmented(sample, how, np.random.default_rng(0)).labels.xyxy, sample.labels.xyxy)


def test_the_sample_itself_is_not_touched_and_the_seed_decides() -> None:
    sample = one_box(10, 20, 30, 50)
    before = sample.image.copy()
    a = augmented(sample, Augmentation(), np.random.default_rng(3))
    b = augmented(sample, Augmentation(), np.random.default_rng(3))
    c = augmented(sample, Augmentation(), np.random.default_rng(4))
    assert np.array_equal(sample.image, before)
    assert np.array_equal(a.image, b.image)
    assert not np.array_equal(a.image, c.image)


def test_labelled_image_refuses_other_arrays() -> None:
    with pytest.raises(ValueError, match="uint8"):
        LabelledImage(image=np.zeros((4, 4, 3), np.float32), labels=Detections.empty())


@given(st.integers(0, 200), st.integers(1, 200))
def test_spread_is_rising_unique_and_covers(n: int, wanted: int) -> None:
    picked = spread(n, wanted)
    assert picked == sorted(set(picked))
    assert len(picked) == min(n, wanted)
    assert all(0 <= i < n for i in picked)
    if wanted < n:
        gaps = np.diff([-1, *picked, n])
        assert gaps.max() <= 2 * n / wanted + 1


def test_subset_loads_lazily() -> None:
    class Counting(list):
        reads = 0

        def __getitem__(self, i):  # type: ignore[no-untyped-def]
            Counting.reads += 1
            return super().__getitem__(i)

    samples = Counting(one_box(i, 0, i + 5, 5) for i in range(5))
    subset = Subset(samples, [4, 0])
    assert len(subset) == 2
    assert Counting.reads == 0
    assert subset[0].labels.xyxy[0, 0] == 4
    assert [s.labels.xyxy[0, 0] for s in subset[1:]] == [0]
    assert Counting.reads == 2
