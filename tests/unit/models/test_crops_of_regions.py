"""Where crops are cut, whatever the region looks like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.crops import LEAST_PX, crops, squared, windows
from models.torch_support import BORDER

number = st.one_of(st.floats(-2000, 2000), st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))


def window(region: list[float], height: int = 100, width: int = 200, margin: float = 0.1) -> list[int]:
    return windows(np.array([region]), height, width, margin_frac=margin)[0].tolist()


def test_a_region_gets_a_margin_of_its_longer_side() -> None:
    assert window([50, 40, 90, 60]) == [46, 36, 94, 64]
    assert window([50, 40, 90, 60], margin=0.0) == [50, 40, 90, 60]


def test_it_is_cut_at_the_border() -> None:
    assert window([-10, 80, 30, 130], margin=0.0) == [0, 80, 30, 100]
    assert window([190, 10, 200, 30])[2] == 200


@pytest.mark.parametrize("region", [[50, 50, 51, 51], [50, 50, 50, 50], [50, 50, 50.2, 50.2]])
def test_a_pixel_is_shown_with_its_surroundings(region: list[float]) -> None:
    x1, y1, x2, y2 = window(region)
    assert LEAST_PX <= x2 - x1 <= LEAST_PX + 2
    assert LEAST_PX <= y2 - y1 <= LEAST_PX + 2
    assert x1 <= 50 < x2
    assert y1 <= 50 < y2


def test_outside_becomes_the_nearest_corner() -> None:
    assert window([500, 500, 600, 620]) == [192, 92, 200, 100]
    assert window([-500, -500, -400, -400]) == [0, 0, 8, 8]


def test_swapped_corners_are_the_same_region() -> None:
    assert window([90, 60, 50, 40]) == window([50, 40, 90, 60])


@given(
    regions=st.lists(st.tuples(number, number, number, number), max_size=20),
    height=st.integers(1, 300),
    width=st.integers(1, 300),
)
def test_every_region_has_a_crop_inside_the_picture(
    regions: list[tuple[float, float, float, float]], height: int, width: int
) -> None:
    found = windows(np.array(regions, np.float64).reshape(-1, 4), height, width)
    assert found.shape == (len(regions), 4)
    assert (found >= 0).all()
    assert (found[:, [0, 2]] <= width).all()
    assert (found[:, [1, 3]] <= height).all()
    assert (found[:, 2] - found[:, 0] >= min(LEAST_PX, width)).all()
    assert (found[:, 3] - found[:, 1] >= min(LEAST_PX, height)).all()


def test_crops_show_the_region() -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[40:60, 50:90] = 200
    [cut] = crops(image, np.array([[50, 40, 90, 60]], np.float32), margin_frac=0.0)
    assert cut.shape == (20, 40, 3)
    assert (cut == 200).all()
    assert list(crops(image, np.zeros((0, 4), np.float32))) == []


@pytest.mark.parametrize("shape", [(20, 40), (40, 20), (1, 300), (64, 64), (8, 8), (1, 1)])
def test_squares_keep_the_shape_of_what_they_show(shape: tuple[int, int]) -> None:
    square = squared(np.full((*shape, 3), 250, np.uint8), 64)
    assert square.shape == (64, 64, 3)
    shown = (square != BORDER).all(axis=2)
    height, width = int(shown.any(axis=1).sum()), int(shown.any(axis=0).sum())
    assert max(height, width) == 64
    assert min(height, width) == max(1, round(64 * min(shape) / max(shape)))
