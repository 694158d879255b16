"""Pictures of one region each: what a classifier looks at.

A region is widened by a margin (a classifier needs some surroundings, and a region of movement often cuts its object short), cut at
the picture's border and never smaller than a few pixels; so every region has a crop, also one of 1 px or outside the picture.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from models.torch_support import letterbox

#: Margin on each side, as part of the box's longer side.
MARGIN_FRAC = 0.1
#: Shortest side of a crop, where the picture is that large.
LEAST_PX = 8


def windows(regions: np.ndarray, height_px: int, width_px: int, *, margin_frac: float = MARGIN_FRAC) -> np.ndarray:
    """int64 (N, 4): the whole pixels (x1, y1, x2, y2; ends not included) that show each region. Never empty, always inside the
    picture. regions: (N, 4) xyxy px, in any state: corners swapped, without area, outside, not finite."""
    limit = np.array([width_px, height_px], np.float64)
    ends = np.nan_to_num(np.asarray(regions, np.float64).reshape(-1, 2, 2), nan=0.0, posinf=1e9, neginf=-1e9)
    ends = np.clip(np.sort(ends, axis=1), 0.0, limit)  # (N, 2 corners, 2 axes)
    centre, side = ends.mean(axis=1), ends[:, 1] - ends[:, 0]
    half = np.maximum(side / 2 + margin_frac * side.max(axis=1, initial=0.0, keepdims=True), LEAST_PX / 2)
    start = np.floor(np.clip(centre - half, 0.0, np.maximum(limit - LEAST_PX, 0.0)))
    stop = np.clip(np.ceil(centre + half), np.minimum(start + LEAST_PX, limit), limit)
    return np.concatenate([start, stop], axis=1).astype(np.int64)


def crops(image: np.ndarray, regions: np.ndarray, *, margin_frac: float = MARGIN_FRAC) -> Iterator[np.ndarray]:
    """The crop of each region, in order. uint8 (h, w, 3): a view of `image`, not a copy."""
    height, width = image.shape[:2]
    for x1, y1, x2, y2 in windows(regions, height, width, margin_frac=margin_frac).tolist():
        yield image[y1:y2, x1:x2]


def squared(crop: np.ndarray, input_px: int) -> np.ndarray:
    """uint8 (input_px, input_px, 3): the crop scaled until its longer side fits, the rest grey. Shapes are kept: a bus stays long."""
    return letterbox(np.ascontiguousarray(crop), input_px=input_px, stride=input_px).image
