"""The pictures of an object: the frame that shows it best, with its box, and a thumbnail of it. Frames have their masks burnt in."""

from __future__ import annotations

import cv2
import numpy as np

#: Thumbnails are so large, in px.
THUMBNAIL_PX = (256, 192)
#: What is shown around an object, as a part of its size, and how much of the picture at least.
MARGIN_FRAC, LEAST_FRAC = 0.25, 0.15
SNAPSHOT_QUALITY, THUMBNAIL_QUALITY = 85, 75
_BOX_RGB = (255, 214, 10)

Box = tuple[float, float, float, float]


def snapshot_jpeg(image: np.ndarray, box: Box, words: str) -> bytes:
    """image: uint8 (H, W, 3) RGB; box: fractions; words: beside it. The whole frame."""
    picture = np.ascontiguousarray(image[:, :, ::-1])  # cv2 wants BGR
    height, width = picture.shape[:2]
    left, top, right, bottom = _px(box, width, height)
    thick = max(1, round(min(width, height) / 300))
    colour = _BOX_RGB[::-1]
    cv2.rectangle(picture, (left, top), (right, bottom), colour, thick, cv2.LINE_AA)
    size = max(0.35, height / 900)
    place = (left, top - 4) if top > 30 * size else (left, min(height - 4, bottom + round(30 * size)))
    cv2.putText(picture, words, place, cv2.FONT_HERSHEY_SIMPLEX, size, (0, 0, 0), thick + 2, cv2.LINE_AA)
    cv2.putText(picture, words, place, cv2.FONT_HERSHEY_SIMPLEX, size, colour, thick, cv2.LINE_AA)
    return _jpeg(picture, SNAPSHOT_QUALITY)


def thumbnail_jpeg(image: np.ndarray, box: Box) -> bytes:
    """The object with what is around it, in the shape of `THUMBNAIL_PX`, black where the picture ends."""
    height, width = image.shape[:2]
    left, top, right, bottom = _px(box, width, height)
    across, down = THUMBNAIL_PX
    wanted = max(
        (right - left) * (1 + 2 * MARGIN_FRAC) / across, (bottom - top) * (1 + 2 * MARGIN_FRAC) / down,
        LEAST_FRAC * max(width / across, height / down),
    )  # fmt: skip
    half_w, half_h = wanted * across / 2, wanted * down / 2
    x, y = (_inside((left + right) / 2, half_w, width), _inside((top + bottom) / 2, half_h, height))
    x1, x2 = max(0, round(x - half_w)), min(width, round(x + half_w))
    y1, y2 = max(0, round(y - half_h)), min(height, round(y + half_h))
    crop = np.ascontiguousarray(image[y1 : max(y2, y1 + 1), x1 : max(x2, x1 + 1), ::-1])
    scale = min(across / crop.shape[1], down / crop.shape[0])
    size = max(1, min(across, round(crop.shape[1] * scale))), max(1, min(down, round(crop.shape[0] * scale)))
    small = cv2.resize(crop, size, interpolation=cv2.INTER_AREA)
    canvas = np.zeros((down, across, 3), np.uint8)
    at_x, at_y = (across - size[0]) // 2, (down - size[1]) // 2
    canvas[at_y : at_y + size[1], at_x : at_x + size[0]] = small
    return _jpeg(canvas, THUMBNAIL_QUALITY)


def _inside(middle: float, half: float, size: int) -> float:
    """`middle` moved so that as much as possible of what is around it lies in the picture."""
    return size / 2 if 2 * half >= size else min(max(middle, half), size - half)


def _px(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    left, top = min(width - 1, int(box[0] * width)), min(height - 1, int(box[1] * height))
    return left, top, max(left + 1, min(width, round(box[2] * width))), max(top + 1, min(height, round(box[3] * height)))


def _jpeg(picture: np.ndarray, quality: int) -> bytes:
    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError("a picture could not be encoded")
    return data.tobytes()
