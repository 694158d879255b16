"""A frame in a few numbers, for drift (`scheduler.drift`): the picture's statistics, what was found in it, the model's features.

All of it is computed on a copy of 160 px, so that numbers of cameras of any size compare, and costs a millisecond beside the
inference that comes first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np

from configs.units import CLASSES
from models.tasks.base import Picture
from scheduler.types import Detections, FrameLook

#: Longer side of the copy that statistics are taken of; shorter pictures stay as they are.
LOOK_PX = 160
#: Numbers that an embedding is projected to. Distances keep to about 1 / sqrt(2 * 16) of their size (Johnson and Lindenstrauss 1984).
EMBEDDING_NUMBERS = 16
#: Rows and columns of the layout's grey levels, and of its edges.
GREY_GRID, EDGE_GRID = (3, 4), (2, 2)
#: Mean gradient, in grey levels a pixel, at which a part of the picture is as full of edges as the layout can say.
_EDGE_FULL = 64.0
#: Rows and columns of a view. On the real clips of docs/learning.md coarser ones tell cameras apart worse (6 x 8), finer ones little
#: better for three times the numbers (18 x 32).
VIEW_GRID = (12, 16)


class FrameStats:
    """Looks at the frames of one model architecture. arch: seeds the projection, so that looks of one architecture compare over restarts
    and boxes."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def look_at(self, picture: Picture, detections: Detections, embedding: np.ndarray) -> FrameLook:
        """picture.image: uint8 (H, W, 3) RGB; detections: what the model found in it; embedding: float (D,) of `Detector.embed`, empty:
        unknown. Raises ValueError for an embedding that is not finite (a broken model)."""
        small = reduced(picture.image)
        grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
        known = detections.class_id[(detections.class_id >= 0) & (detections.class_id < len(CLASSES))]
        counts = np.bincount(known, minlength=len(CLASSES))
        return FrameLook(
            brightness=float(grey.mean()), contrast=float(grey.std()), sharpness=float(sharpness(grey)),
            objects=float(len(detections)), confidence=float(detections.score.mean()) if len(detections) else 0.0,
            class_frac=tuple((counts / max(1, counts.sum())).tolist()), embedding=projected(embedding, self.arch),
            tint=tint(small), layout=layout(grey),
        )  # fmt: skip


def reduced(image: np.ndarray) -> np.ndarray:
    """uint8 (H, W, 3) with a longer side of at most LOOK_PX."""
    height, width = image.shape[:2]
    scale = LOOK_PX / max(height, width)
    if scale >= 1:
        return image
    return cv2.resize(image, (max(1, round(width * scale)), max(1, round(height * scale))), interpolation=cv2.INTER_AREA)


def sharpness(grey: np.ndarray) -> float:
    """log(1 + variance of the Laplacian): falls with blur and fog, rises with noise (Pech-Pacheco et al. 2000)."""
    return float(np.log1p(cv2.Laplacian(grey, cv2.CV_32F).var()))


def tint(small: np.ndarray) -> tuple[float, ...]:
    """Mean red against blue, and green against both, 0-1; 0.5 each for grey. small: uint8 (h, w, 3) RGB."""
    red, green, blue = small.reshape(-1, 3).mean(axis=0) / 255
    return round(float(0.5 + (red - blue) / 2), 5), round(float(0.5 + (green - (red + blue) / 2) / 2), 5)


def layout(grey: np.ndarray) -> tuple[float, ...]:
    """Where it is light and where edges are: 3 x 4 grey levels and 2 x 2 edges, each 0-1. grey: uint8 (h, w)."""
    across = cv2.Sobel(grey, cv2.CV_32F, 1, 0, scale=0.25)
    down = cv2.Sobel(grey, cv2.CV_32F, 0, 1, scale=0.25)
    edges = np.minimum(1.0, _cells(np.hypot(across, down), EDGE_GRID) / _EDGE_FULL)
    numbers = np.concatenate([_cells(grey, GREY_GRID) / 255, edges])
    return tuple(np.round(numbers, 5).tolist())


def edges(image: np.ndarray) -> np.ndarray:
    """How strong edges are in each part of a picture: float (12, 16), log1p of the mean gradient. image: uint8 (H, W, 3) RGB."""
    grey = cv2.GaussianBlur(cv2.cvtColor(reduced(image), cv2.COLOR_RGB2GRAY).astype(np.float32), (0, 0), 1.0)
    strength = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
    return np.log1p(_cells(strength, VIEW_GRID)).reshape(VIEW_GRID)


def view(found: Sequence[np.ndarray]) -> tuple[float, ...]:
    """What the camera is turned to: the median of its frames' `edges`, so that what passes through does not count, with mean 0 and
    length 1. The dot product of two is their correlation; light changes it little, a turn of the camera much. Empty without frames, or
    where the picture is the same everywhere."""
    if not found:
        return ()
    middle = np.median(found, axis=0).ravel()
    middle = middle - middle.mean()
    length = float(np.linalg.norm(middle))
    return tuple(np.round(middle / length, 4).tolist()) if length > 1e-6 else ()


def _cells(values: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Mean of each cell, row by row. A picture smaller than the grid repeats its pixels."""
    rows, columns = grid
    if values.shape[0] < rows or values.shape[1] < columns:
        values = cv2.resize(
            values, (max(columns, values.shape[1]), max(rows, values.shape[0])), interpolation=cv2.INTER_NEAREST
        )
    tops, lefts = _begins(values.shape[0], rows), _begins(values.shape[1], columns)
    sums = np.add.reduceat(np.add.reduceat(values.astype(np.float64), tops[:-1], axis=0), lefts[:-1], axis=1)
    return (sums / np.outer(np.diff(tops), np.diff(lefts))).ravel()


def _begins(size: int, parts: int) -> np.ndarray:
    """Where each part begins, and the end: as even as whole numbers allow, the longer ones first."""
    return np.array([part * (size // parts) + min(part, size % parts) for part in range(parts + 1)])


def projected(embedding: np.ndarray, arch: str) -> tuple[float, ...]:
    """The embedding at length 1, through a fixed random projection that keeps lengths in the mean: EMBEDDING_NUMBERS numbers; () for
    an empty one. Raises ValueError when it is not finite."""
    flat = np.asarray(embedding, np.float64).ravel()
    if not flat.size:
        return ()
    if not np.isfinite(flat).all():
        raise ValueError("the model's features are not finite numbers")
    length = np.linalg.norm(flat)
    unit = flat / length if length > 0 else flat
    return tuple(np.round(unit @ _projection(arch, flat.size), 6).tolist())


@lru_cache(maxsize=32)
def _projection(arch: str, features: int) -> np.ndarray:
    """(features, EMBEDDING_NUMBERS), Gaussian; the same for the same architecture, everywhere and always."""
    seed = int.from_bytes(hashlib.sha256(arch.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=(features, EMBEDDING_NUMBERS)) / np.sqrt(EMBEDDING_NUMBERS)
