"""Decoded frames as RGB: the same values from kept memory as from fresh, and no picture changes while somebody holds it."""

from __future__ import annotations

import numpy as np
import pytest
from av.video.frame import VideoFrame

from streams.video import RgbMaker, to_rgb


def frame(seed: int, *, form: str = "yuv420p", width_px: int = 128, height_px: int = 64) -> VideoFrame:
    """Smooth colours and some noise."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 200, width_px)[None, :, None] + np.linspace(0, 40, height_px)[:, None, None]
    image = (ramp * rng.uniform(0.3, 1.0, 3) + rng.integers(0, 15, (height_px, width_px, 3))).clip(0, 255).astype(np.uint8)
    return VideoFrame.from_ndarray(image, format="rgb24").reformat(format=form)


@pytest.mark.parametrize(
    "form", ["yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "nv12", "gray", "yuyv422", "rgb24", "bgr24"]
)
def test_kept_memory_changes_no_value(form: str) -> None:
    maker = RgbMaker()
    for seed in range(3):
        one = frame(seed, form=form)
        assert np.array_equal(maker.make(one), to_rgb(one))


@pytest.mark.parametrize("colorspace", [1, 5, 6, 7, 9])
@pytest.mark.parametrize("color_range", [0, 1, 2])
def test_colours_as_the_stream_says(colorspace: int, color_range: int) -> None:
    one = frame(1)
    one.colorspace, one.color_range = colorspace, color_range
    assert np.array_equal(RgbMaker().make(one), to_rgb(one))


def test_colours_that_change_in_the_middle() -> None:
    maker, other = RgbMaker(), frame(1)
    plain = maker.make(frame(1))
    other.color_range = 2
    assert not np.array_equal(maker.make(other), plain)
    assert np.array_equal(maker.make(other), to_rgb(other))


def test_sizes_that_change_in_the_middle() -> None:
    maker = RgbMaker()
    for seed, (width_px, height_px) in enumerate([(128, 64), (64, 48), (128, 64), (98, 66), (100, 64)]):
        one = frame(seed, width_px=width_px, height_px=height_px)
        made = maker.make(one)
        assert made.shape == (height_px, width_px, 3)
        assert np.array_equal(made, to_rgb(one))


def test_a_reduced_picture() -> None:
    maker, one = RgbMaker(), frame(1)
    assert maker.make(one, height_px=32).shape == (32, 64, 3)
    assert np.array_equal(maker.make(one, height_px=32), to_rgb(one, height_px=32))
    assert np.array_equal(maker.make(one, height_px=64), to_rgb(one))


def test_a_picture_that_somebody_holds_stays_as_it_is() -> None:
    maker, frames = RgbMaker(), [frame(seed) for seed in range(12)]
    held = [maker.make(one) for one in frames]
    assert all(np.array_equal(made, to_rgb(one)) for made, one in zip(held, frames, strict=True))
    part = held[0][10:20, 10:20]
    before = part.copy()
    del held
    for one in frames:
        maker.make(one)
    assert np.array_equal(part, before), "a cut-out holds it, too"


def test_memory_is_used_again() -> None:
    maker, one = RgbMaker(), frame(1, width_px=640, height_px=360)
    places = set()
    for _ in range(20):
        made = maker.make(one)
        places.add(made.ctypes.data)
        del made
    assert len(places) == 1


@pytest.mark.parametrize("width_px", [64, 96, 320, 352, 640, 1280])
def test_rows_follow_each_other_without_gaps(width_px: int) -> None:
    assert RgbMaker().make(frame(1, width_px=width_px)).flags.c_contiguous


def test_pictures_may_be_written_into_and_outlive_who_made_them() -> None:
    maker = RgbMaker()
    made = maker.make(frame(1))
    del maker
    made[:] = 7
    assert (made == 7).all()
