"""What a network sees of a picture: the same inside a form, in training and when asked."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.detector import encoded_px
from models.pixels import FromPixels, Levels, normalised
from models.tinydet import TinyDetector, _scaled_size, scaled, to_input


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_levels_are_shifted_spread_and_turned_into_planes() -> None:
    image = np.array([[[0, 64, 255], [128, 1, 2]]], np.uint8)
    planes = normalised(torch.from_numpy(image)[None], Levels(shift=127.5, spread=64.0))
    assert planes.shape == (1, 3, 1, 2)
    assert planes[0, :, 0, 0].tolist() == [(level - 127.5) / 64 for level in (0, 64, 255)]
    assert planes[0, :, 0, 1].tolist() == [(level - 127.5) / 64 for level in (128, 1, 2)]


@settings(max_examples=30, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), multiple=st.sampled_from([1, 8, 16]))
def test_what_is_added_is_zero_and_only_right_and_below(height: int, width: int, multiple: int) -> None:
    pixels = torch.from_numpy(picture(height, width))[None]
    bare = normalised(pixels, Levels(shift=100.0, spread=50.0))
    planes = normalised(pixels, Levels(shift=100.0, spread=50.0, multiple=multiple))
    assert all(side % multiple == 0 for side in planes.shape[2:])
    assert all(wide - narrow < multiple for wide, narrow in zip(planes.shape[2:], bare.shape[2:], strict=True))
    assert torch.equal(planes[:, :, :height, :width], bare)
    assert float(planes.abs().sum()) == pytest.approx(float(bare.abs().sum()))


def test_a_network_from_pixels_says_what_it_says_of_the_planes() -> None:
    network = torch.nn.Conv2d(3, 2, 3)
    pixels = torch.from_numpy(picture(9, 11))[None]
    levels = Levels(shift=127.5, spread=64.0, multiple=16)
    with torch.no_grad():
        assert torch.equal(FromPixels(network, levels)(pixels), network(normalised(pixels, levels)))


def test_a_body_sees_what_training_sees() -> None:
    detector = TinyDetector("tinydet-edge", seed=3)
    image = picture(150, 333)
    array, _ = detector.body().encode(image)
    assert array.dtype == np.uint8
    network = detector.body().network
    assert isinstance(network, FromPixels)
    trained_on = to_input(image, detector.spec.input_px, torch.device("cpu"))
    assert torch.equal(normalised(torch.from_numpy(array), network.levels)[0], trained_on)


# --- scaling ----------------------------------------------------------------------------------------------------------

SIZES = [(360, 640), (720, 1280), (540, 960), (600, 800), (675, 1201), (144, 256), (90, 160), (180, 320), (640, 360), (7, 2000)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_scaled_pictures_have_the_networks_size_and_look_alike(size: tuple[int, int]) -> None:
    smooth = cv2.resize(picture(6, 9), (size[1], size[0]), interpolation=cv2.INTER_CUBIC)
    found = scaled(smooth, 256)
    wanted = _scaled_size(*size, 256)
    assert (found.shape, found.dtype) == ((*wanted, 3), np.uint8)
    assert found.flags.c_contiguous
    in_one_go = cv2.resize(smooth, (wanted[1], wanted[0]), interpolation=cv2.INTER_AREA)
    assert np.abs(found.astype(int) - in_one_go).mean() < 1.5


@pytest.mark.parametrize("size", [s for s in SIZES if max(s) > 256], ids=str)
def test_shrinking_looks_at_every_pixel(size: tuple[int, int]) -> None:
    """A picture of fine checks is grey when it is small; by skipping pixels it would be black, white or striped."""
    checks = np.indices(size).sum(axis=0) % 2
    image = np.repeat((255 * checks).astype(np.uint8)[:, :, None], 3, axis=2)
    found = scaled(image, 256).astype(float)
    assert found.mean() == pytest.approx(127.5, abs=3)
    assert found.std() < 64


def test_a_picture_of_the_right_size_is_handed_over_as_it_is() -> None:
    image = picture(144, 256)
    assert scaled(image, 256) is image
    turned = picture(256, 144).transpose(1, 0, 2)
    assert scaled(turned, 256).flags.c_contiguous


def test_the_size_of_what_was_encoded_is_read_off_either_layout() -> None:
    assert encoded_px(np.zeros((1, 144, 256, 3), np.uint8)) == (144, 256)
    assert encoded_px(np.zeros((1, 3, 144, 256), np.float32)) == (144, 256)
