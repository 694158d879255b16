"""Pictures for pages: made once for everybody, no wider than wanted, and forgotten when there is a newer frame."""

from __future__ import annotations

import threading

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge import live_pictures
from edge.inference import Shown
from edge.live_pictures import WIDTHS_PX, LivePictures, draw_jpeg, rounded_width
from scheduler.types import Detections
from tests.support.fakes import scripted_frame


def shown(seq: int = 1) -> Shown:
    box = np.array([[10, 10, 40, 40]], np.float32)
    found = Detections(xyxy=box, score=np.array([0.9], np.float32), class_id=np.array([0]))
    return Shown(frame=scripted_frame("a", seq), detections=found, version="v", cost_s=0.0, lag_s=0.0)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """What was encoded: (width, with boxes)."""
    made: list[tuple[int, bool]] = []

    def counted(shown: Shown, *, width_px: int = 0, boxes: bool = True) -> bytes | None:
        made.append((width_px, boxes))
        return draw_jpeg(shown, width_px=width_px, boxes=boxes)

    monkeypatch.setattr(live_pictures, "draw_jpeg", counted)
    return made


def size_of(jpeg: bytes | None) -> tuple[int, int]:
    assert jpeg is not None
    height, width = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR).shape[:2]
    return width, height


def test_viewers_of_one_frame_share_one_encoding(encoded: list[tuple[int, bool]]) -> None:
    pictures, frame = LivePictures(), shown()
    wide = frame.frame.image.shape[1]
    first = pictures.jpeg("a", frame)
    assert pictures.jpeg("a", frame) is first
    assert pictures.jpeg("a", frame, width_px=wide + 500) is first, "nobody gets more than the frame has"
    assert encoded == [(wide, True)]
    pictures.jpeg("a", frame, boxes=False)
    assert encoded[1:] == [(wide, False)]
    pictures.jpeg("a", shown(2))
    assert len(encoded) == 3, "a newer frame is another picture"
    pictures.jpeg("b", frame)
    assert len(encoded) == 4, "so is another camera's"


def test_viewers_at_once_wait_for_one_encoding(encoded: list[tuple[int, bool]]) -> None:
    pictures, frame = LivePictures(), shown()
    together = threading.Barrier(8)

    def look() -> None:
        together.wait()
        pictures.jpeg("a", frame)

    viewers = [threading.Thread(target=look) for _ in range(8)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    assert len(encoded) == 1


def test_cameras_that_are_gone_are_forgotten(encoded: list[tuple[int, bool]]) -> None:
    pictures, frame = LivePictures(), shown()
    pictures.jpeg("a", frame)
    pictures.jpeg("b", frame)
    pictures.forget({"a"})
    pictures.jpeg("a", frame)
    assert len(encoded) == 2
    pictures.jpeg("b", frame)
    assert len(encoded) == 3


@given(wanted=st.integers(-5, 5000), frame=st.integers(16, 4096))
def test_a_picture_is_as_wide_as_wanted_or_as_the_frame(wanted: int, frame: int) -> None:
    width = rounded_width(wanted, frame)
    assert 1 <= width <= frame
    assert width in (*WIDTHS_PX, frame)
    assert width >= min(wanted, frame)


def test_pictures_keep_their_shape() -> None:
    frame = shown()
    height, width = frame.frame.image.shape[:2]
    assert size_of(draw_jpeg(frame)) == (width, height)
    assert size_of(draw_jpeg(frame, width_px=width // 2)) == (width // 2, height // 2)
    assert size_of(draw_jpeg(frame, width_px=10 * width)) == (width, height)


def test_boxes_are_drawn_where_they_are_also_in_a_smaller_picture() -> None:
    frame = shown()
    half = frame.frame.image.shape[1] // 2
    for width, scale in ((0, 1.0), (half, 0.5)):
        jpegs = [draw_jpeg(frame, width_px=width, boxes=boxes) for boxes in (True, False)]
        drawn, plain = (cv2.imdecode(np.frombuffer(j or b"", np.uint8), cv2.IMREAD_COLOR).astype(int) for j in jpegs)
        changed = np.argwhere(np.abs(drawn - plain).max(axis=2) > 60)
        (top, left), (bottom, right) = changed.min(axis=0), changed.max(axis=0)
        assert abs(left - 10 * scale) <= 2
        assert abs(bottom - 40 * scale) <= 2
        assert right >= 38 * scale
        assert top <= 12 * scale
