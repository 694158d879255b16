"""Privacy masks: polygons filled with black in the decoded picture, before anybody else sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from configs.errors import ConfigError


@dataclass(frozen=True)
class Mask:
    """points: the corners (x_frac, y_frac), fractions of the picture's width and height, at least three."""

    points: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if len(self.points) < 3:
            raise ConfigError(f"a privacy mask needs at least 3 corners, got {len(self.points)}", remedy="add corners")
        for point in self.points:
            if len(point) != 2 or not all(math.isfinite(value) and 0.0 <= value <= 1.0 for value in point):
                raise ConfigError(
                    f"a privacy mask has the corner {point}",
                    remedy="corners are (x, y) in fractions of the picture, each from 0 to 1",
                )


def masks_from(polygons: Iterable[Sequence[Sequence[float]]]) -> tuple[Mask, ...]:
    """Masks from lists of corners, as a configuration file holds them. Raises ConfigError."""
    return tuple(Mask(tuple(tuple(point) for point in polygon)) for polygon in polygons)


def burn_in(image: np.ndarray, masks: Sequence[Mask]) -> np.ndarray:
    """Blackens the masks in `image`, uint8 (H, W, 3), in place; returns it.

    A mask also takes every pixel that its outline touches, and one more: a reduced picture mixes neighbours at the edge.
    """
    height, width = image.shape[:2]
    for mask in masks:
        corners = np.array([(x * (width - 1), y * (height - 1)) for x, y in mask.points])
        outline = np.rint(corners).astype(np.int32)[None]
        cv2.fillPoly(image, outline, (0, 0, 0))
        cv2.polylines(image, outline, True, (0, 0, 0), thickness=3)
    return image
