"""Pictures of a decoded frame: made when somebody asks, halved from the decoder's planes, masks in all of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cv2
import numpy as np
import pytest
from av.video.frame import VideoFrame
from hypothesis import given
from hypothesis import strategies as st

from models.tinydet import scaled
from scheduler.types import Frame
from streams.decoded import DecodedFrame, Shot
from streams.halved import halved_rgb, halvings
from streams.masks import Mask
from streams.video import RgbMaker, to_rgb

LEFT_THIRD = Mask(((0.0, 0.0), (0.33, 0.0), (0.33, 1.0), (0.0, 1.0)))


def decoded(*, form: str = "yuv420p", width_px: int = 128, height_px: int = 64, space: int = 2, range: int = 0) -> VideoFrame:
    """Smooth colours (FFmpeg has its own ways of mixing them across edges) with some noise in brightness. Its planes have gaps between
    their rows unless the width is a multiple of what FFmpeg aligns to."""
    rng = np.random.default_rng(width_px)
    across, down = np.linspace(0, 1, width_px)[None, :], np.linspace(0, 1, height_px)[:, None]
    image = np.stack([120 + 60 * across - 40 * down, 90 + 80 * down + 0 * across, 150 - 70 * across * down], axis=2)
    image = (image + rng.integers(0, 12, (height_px, width_px, 1))).astype(np.uint8)
    frame = VideoFrame.from_ndarray(image, format="rgb24").reformat(format=form)
    frame.colorspace, frame.color_range = space, range
    return frame


def means(image: np.ndarray, times: int) -> np.ndarray:
    """Of each square."""
    side = 2**times
    height, width = image.shape[0] // side, image.shape[1] // side
    mean: np.ndarray = image.reshape(height, side, width, side, 3).astype(float).mean(axis=(1, 3))
    return mean


# --- how often --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size_px", "least_px", "times"),
    [
        ((640, 360), 256, 1), ((1280, 720), 256, 2), ((1920, 1080), 256, 2), ((1920, 1080), 960, 1), ((3840, 2160), 256, 3),
        ((640, 360), 320, 1), ((640, 360), 321, 0), ((641, 360), 256, 0), ((640, 361), 256, 0), ((360, 640), 256, 1),
        ((1924, 1080), 256, 2), ((1922, 1080), 256, 1), ((640, 360), 0, 0), ((640, 360), -1, 0), ((256, 144), 256, 0),
    ],
)  # fmt: skip
def test_a_picture_is_halved_while_its_sides_are_even_and_enough_is_left(
    size_px: tuple[int, int], least_px: int, times: int
) -> None:
    assert halvings(*size_px, least_px) == times


@given(
    width_px=st.integers(1, 200).map(lambda n: 8 * n),
    height_px=st.integers(1, 200).map(lambda n: 8 * n),
    least=st.integers(16, 400),
)
def test_halved_for_a_model_is_what_the_model_would_have_halved_itself(width_px: int, height_px: int, least: int) -> None:
    image = np.random.default_rng(least).integers(0, 256, (height_px, width_px, 3)).astype(np.uint8)
    half = image
    for _ in range(halvings(width_px, height_px, least)):
        half = cv2.resize(half, (half.shape[1] // 2, half.shape[0] // 2), interpolation=cv2.INTER_AREA)
    assert max(half.shape[:2]) >= min(least, max(width_px, height_px))
    assert np.array_equal(scaled(half, least), scaled(image, least))


# --- from planes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("form", ["yuv420p", "yuvj420p"])
@pytest.mark.parametrize("space", [0, 1, 2, 5, 6])
@pytest.mark.parametrize("range", [0, 1, 2])
def test_of_each_square_the_mean_in_the_colours_that_the_stream_says(times: int, form: str, space: int, range: int) -> None:
    frame = decoded(form=form, space=space, range=range)
    half = halved_rgb(frame, times)
    assert half is not None
    assert half.dtype == np.uint8
    assert half.shape == (64 >> times, 128 >> times, 3)
    off = np.abs(half - means(to_rgb(frame), times))
    assert off.mean() < 1.0
    assert off.max() < 5
    tint = (half - means(to_rgb(frame), times)).mean(axis=(0, 1))
    assert np.abs(tint).max() < 0.4 + 0.25 * times, "neither lighter nor darker; each halving rounds up what lies in the middle"


def test_other_colours_come_out_otherwise() -> None:
    """So the test above can fail."""
    ways = [(2, 0), (1, 0), (2, 2), (1, 2)]
    pictures = [halved_rgb(decoded(space=space, range=range), 1) for space, range in ways]
    for i, one in enumerate(pictures):
        for other in pictures[i + 1 :]:
            assert one is not None
            assert other is not None
            assert np.abs(one.astype(int) - other).max() > 6


@pytest.mark.parametrize("width_px", [36, 44, 52, 100, 132, 640])
def test_rows_with_gaps_between_them(width_px: int) -> None:
    frame = decoded(width_px=width_px, height_px=36)
    half = halved_rgb(frame, 1)
    assert half is not None
    assert np.abs(half - means(to_rgb(frame), 1)).max() < 8


@pytest.mark.parametrize(
    "how", [{"form": "yuv422p"}, {"form": "yuv444p"}, {"form": "nv12"}, {"form": "yuv420p10le"}, {"form": "rgb24"}, {"form": "gray"},
            {"space": 9}, {"space": 7}, {"space": 4}],
)  # fmt: skip
def test_what_is_not_known_is_left_to_ffmpeg(how: dict[str, object]) -> None:
    frame = decoded(**how)  # type: ignore[arg-type]
    assert halved_rgb(frame, 1) is None
    assert np.array_equal(Shot(frame, RgbMaker()).halved(32), to_rgb(frame)), "the whole picture instead"


# --- one shot ---------------------------------------------------------------------------------------------------------


class Counting(RgbMaker):
    made = 0

    def make(self, frame: VideoFrame, *, height_px: int = 0) -> np.ndarray:
        self.made += 1
        return super().make(frame, height_px=height_px)


def test_nothing_is_made_before_somebody_asks_and_nothing_twice() -> None:
    maker, frame = Counting(), decoded()
    shot = Shot(frame, maker)
    assert shot.size_px == (128, 64)
    small = shot.halved(64)
    assert maker.made == 0
    assert shot.halved(64) is small
    image = shot.image()
    assert shot.image() is image
    assert maker.made == 1
    assert np.array_equal(image, to_rgb(frame))
    assert shot.halved(64) is small, "still known"


def test_once_the_whole_picture_is_there_other_halves_come_to_be_that() -> None:
    shot = Shot(decoded(), RgbMaker())
    image = shot.image()
    assert shot.halved(64) is image, "the planes are gone, and the whole picture will do"


def test_who_asks_for_more_than_the_half_gets_the_whole() -> None:
    shot = Shot(decoded(), RgbMaker())
    assert shot.halved(65) is shot.image()


def test_who_asks_for_more_after_a_half_was_made_gets_the_whole() -> None:
    shot = Shot(decoded(), RgbMaker())
    half = shot.halved(64)
    assert shot.halved(65) is shot.image()
    assert shot.halved(64) is half


def test_another_half_than_the_last() -> None:
    shot = Shot(decoded(), RgbMaker())
    assert [shot.halved(least).shape[1] for least in (64, 32, 64, 16)] == [64, 32, 64, 16]


def test_a_reduced_picture_is_not_halved() -> None:
    shot = Shot(decoded(), RgbMaker(), height_px=32)
    assert shot.size_px == (64, 32)
    assert shot.halved(16) is shot.image()
    assert shot.image().shape == (32, 64, 3)


def test_masks_are_in_every_picture() -> None:
    whole, plain = Shot(decoded(), RgbMaker(), masks=(LEFT_THIRD,)), Shot(decoded(), RgbMaker())
    for least_px in (64, 32):
        half, bare = whole.halved(least_px), plain.halved(least_px)
        edge_px = round(0.33 * half.shape[1])
        assert not half[:, : edge_px + 1].any()
        assert np.array_equal(half[:, edge_px + 3 :], bare[:, edge_px + 3 :])
    assert not whole.image()[:, :42].any()
    assert np.array_equal(whole.image()[:, 46:], plain.image()[:, 46:])


def test_a_mask_hides_every_pixel_that_holds_something_of_what_is_under_it() -> None:
    """White under the mask: none of it may be in the half picture, although a pixel there is the mean of four."""
    for corner in np.linspace(0.2, 0.8, 13):
        mask = Mask(((0.1, 0.1), (corner, 0.15), (corner - 0.05, 0.9)))
        white = Shot(
            VideoFrame.from_ndarray(np.full((64, 128, 3), 255, np.uint8), format="rgb24").reformat(format="yuv420p"), RgbMaker()
        )
        hidden = np.zeros((64, 128, 3), np.uint8)
        points = np.rint(np.array(mask.points) * [127, 63]).astype(np.int32)
        cv2.fillPoly(hidden, points[None], (255, 255, 255))
        touched = means(hidden, 1).any(axis=2)
        half = Shot(decoded(), RgbMaker(), masks=(mask,)).halved(64)
        assert white.halved(64).min() > 250
        assert not half[touched].any()


def test_many_who_ask_at_once_get_the_same_picture() -> None:
    maker, start = Counting(), threading.Barrier(8)
    shots = [Shot(decoded(), maker) for _ in range(20)]

    def asks(n: int) -> dict[int, tuple[int, int]]:
        start.wait()
        return {id(shot): (id(shot.halved(64)), id(shot.image())) for shot in (shots if n % 2 else shots[::-1])}

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(asks, range(8)))
    assert maker.made == len(shots)
    assert all(one == found[0] for one in found)


# --- the frame --------------------------------------------------------------------------------------------------------


def test_a_frame_whose_picture_is_made_when_it_is_asked_for() -> None:
    maker, source = Counting(), decoded()
    frame = DecodedFrame.of(Shot(source, maker), stream="cam", seq=3, captured_s=1.0, captured_utc=2.0, camera_s=4.0)
    assert isinstance(frame, Frame)
    assert (frame.stream, frame.seq, frame.captured_s, frame.captured_utc, frame.camera_s) == ("cam", 3, 1.0, 2.0, 4.0)
    assert frame.regions is None
    assert frame.size_px == (128, 64)
    assert frame.halved(64).shape == (32, 64, 3)
    assert maker.made == 0
    assert frame.image is frame.image
    assert np.array_equal(frame.image, to_rgb(source))
    assert maker.made == 1


def test_a_copy_with_another_time_has_its_picture() -> None:
    frame = DecodedFrame.of(Shot(decoded(), RgbMaker()), stream="cam", seq=3, captured_s=1.0, captured_utc=2.0)
    other = replace(frame, captured_s=9.0)
    assert other.captured_s == 9.0
    assert other.image is frame.image
    assert other.size_px == (128, 64)
    assert other.halved(64) is other.image
    with pytest.raises(AttributeError):
        frame.seq = 4  # type: ignore[misc]


def test_any_frame_can_be_asked_for_a_half_and_for_its_size() -> None:
    image = np.zeros((64, 128, 3), np.uint8)
    frame = Frame(stream="cam", seq=0, captured_s=0.0, captured_utc=0.0, image=image)
    assert frame.halved(32) is image
    assert frame.size_px == (128, 64)
