"""Privacy masks leave nothing of what they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from streams.masks import Mask, burn_in, masks_from

SQUARE = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))


def white(height: int = 100, width: int = 200) -> np.ndarray:
    return np.full((height, width, 3), 255, np.uint8)


def test_the_inside_is_black_and_the_outside_untouched() -> None:
    image = burn_in(white(), [Mask(SQUARE)])
    assert not image[25:75, 50:150].any()
    assert (image[:22] == 255).all()
    assert (image[78:] == 255).all()
    assert (image[:, :46] == 255).all()
    assert (image[:, 154:] == 255).all()


def test_it_works_in_place_and_without_masks() -> None:
    image = white()
    assert burn_in(image, []) is image
    assert (image == 255).all()
    assert burn_in(image, [Mask(SQUARE)]) is image


def test_several_masks_and_the_whole_picture() -> None:
    corner = Mask(((0.0, 0.0), (0.1, 0.0), (0.1, 0.1), (0.0, 0.1)))
    image = burn_in(white(), [corner, Mask(SQUARE)])
    assert not image[0:10, 0:20].any()
    assert not image[50, 100].any()
    assert image[0, 199].all()
    everything = Mask(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)))
    assert not burn_in(white(), [everything]).any()


@given(
    corners=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=3),
    weights=st.tuples(st.floats(0.0, 1), st.floats(0.0, 1), st.floats(0.01, 1)),
    height=st.integers(4, 90),
    width=st.integers(4, 90),
)
def test_every_pixel_of_a_triangle_is_black_at_every_size(
    corners: list[tuple[float, float]], weights: tuple[float, float, float], height: int, width: int
) -> None:
    image = burn_in(white(height, width), [Mask(tuple(corners))])
    # Any mixture of the corners lies inside the triangle; the pixel that holds it has to be black.
    share = np.array(weights) / sum(weights)
    x_frac, y_frac = share @ np.array(corners)
    pixel = image[min(height - 1, int(y_frac * height)), min(width - 1, int(x_frac * width))]
    assert not pixel.any()


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((0.0, 0.0), (1.0, 1.0)),
        ((0.0, 0.0), (1.0, 0.0), (1.1, 1.0)),
        ((0.0, 0.0), (1.0, 0.0), (-0.1, 1.0)),
        ((0.0, 0.0), (1.0, 0.0), (math.nan, 1.0)),
        ((0.0, 0.0), (1.0, 0.0), (math.inf, 1.0)),
        ((0.0, 0.0), (1.0, 0.0), (1.0,)),
        ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0, 1.0)),
    ],
)
def test_senseless_masks_are_refused(points: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        Mask(points)
    assert caught.value.remedy


def test_masks_from_a_configuration() -> None:
    assert masks_from([[[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]]]) == (Mask(SQUARE),)
    with pytest.raises(ConfigError):
        masks_from([[[0, 0], [1, 0], [2, 2]]])
