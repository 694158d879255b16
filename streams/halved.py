"""A decoded picture at a half, a quarter, ... of its width and height, made from the decoder's planes.

A decoder gives brightness (Y) at full size and two planes of colour (U, V) at half of it. RGB of all that only to take the mean of each
four pixels of it touches 8 bytes of memory a pixel; the mean of each four of Y beside U and V as they are touches a third of that, and
memory is what many cameras on few cores wait for (docs/serving.md).
"""

from __future__ import annotations

import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane

#: FFmpeg's number of a colour space (AVColorSpace; 2: the stream does not say) -> what red and blue are of brightness (ITU-R BT.601 and
#: BT.709). Other spaces are left to FFmpeg.
_RED_BLUE = {0: (0.299, 0.114), 1: (0.2126, 0.0722), 2: (0.299, 0.114), 5: (0.299, 0.114), 6: (0.299, 0.114)}
#: FFmpeg's number of a range that uses all 256 levels (AVCOL_RANGE_JPEG), and its name for a format that always does.
_FULL_RANGE, _FULL_FORMAT = 2, "yuvj420p"
_FORMATS = ("yuv420p", _FULL_FORMAT)


def halvings(width_px: int, height_px: int, least_px: int) -> int:
    """How often a picture can be halved while its sides are even and the longer one stays at least `least_px`. 0 for least_px < 1.
    The same rule as that of a model that halves first (`models.tinydet.scaled`), which may not be imported here: a test holds them
    together."""
    times = 0
    while least_px > 0 and not (width_px % 2 or height_px % 2) and max(width_px, height_px) >= 2 * least_px:
        width_px, height_px, times = width_px // 2, height_px // 2, times + 1
    return times


def halved_rgb(frame: VideoFrame, times: int) -> np.ndarray | None:
    """uint8 (H / 2^times, W / 2^times, 3) RGB: of each square the mean, times >= 1; both sides can be halved so often (`halvings`).
    None: the frame is of a sort for which this is not known, and FFmpeg is to convert it."""
    matrix = _matrix_of(frame)
    if matrix is None:
        return None
    width, height = frame.width, frame.height
    luma, *chroma = (_pixels(plane) for plane in frame.planes)
    planes = [_shrunk(luma[:height, :width], times), *(_shrunk(p[: height // 2, : width // 2], times - 1) for p in chroma)]
    rgb: np.ndarray = cv2.transform(cv2.merge(planes), matrix)
    return rgb


def _pixels(plane: VideoPlane) -> np.ndarray:
    return np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)


def _shrunk(plane: np.ndarray, times: int) -> np.ndarray:
    for _ in range(times):  # by halves: a mean of four has instructions of its own
        plane = cv2.resize(plane, (plane.shape[1] // 2, plane.shape[0] // 2), interpolation=cv2.INTER_AREA)
    return plane


def _matrix_of(frame: VideoFrame) -> np.ndarray | None:
    """float32 (3, 4): RGB of (Y, U, V, 1)."""
    name, red_blue = frame.format.name, _RED_BLUE.get(int(frame.colorspace))
    if name not in _FORMATS or red_blue is None:
        return None
    full = name == _FULL_FORMAT or int(frame.color_range) == _FULL_RANGE
    return _MATRICES[(*red_blue, full)]


def _matrix(red: float, blue: float, full: bool) -> np.ndarray:
    """Of the two parts of brightness: ITU-R BT.601-7 and BT.709-6, section "digital representation"."""
    green = 1 - red - blue
    y, c, black = (1.0, 1.0, 0.0) if full else (255 / 219, 255 / 224, 16.0)
    of_v, of_u = 2 * (1 - red) * c, 2 * (1 - blue) * c
    turn = np.array([[y, 0.0, of_v], [y, -of_u * blue / green, -of_v * red / green], [y, of_u, 0.0]])
    # FFmpeg cuts each product off where this rounds once: half a level each, on average. Models learn from FFmpeg's pictures.
    products = np.array([1, 2, 1]) if full else np.array([2, 3, 2])
    return np.column_stack([turn, -turn @ [black, 128.0, 128.0] - products / 2]).astype(np.float32)


_MATRICES = {(*pair, full): _matrix(*pair, full) for pair in set(_RED_BLUE.values()) for full in (False, True)}
