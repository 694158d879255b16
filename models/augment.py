"""Light augmentation for retraining on one fixed camera: mirror, brightness and contrast, small scale and shift.

No mosaic and no strong colour changes: the model is meant to fit one camera's present view, not to generalise to others.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from models.labelled import LabelledImage
from scheduler.types import Detections

_BORDER = (114, 114, 114)
#: Random values that one picture takes.
_DRAWN = 6
#: A box is kept when at least this part of it stays in the picture, ...
_KEEP_AREA_FRAC = 0.35
#: ... and both sides are at least this long.
_KEEP_SIDE_PX = 2.0


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """flip_frac: probability of mirroring. brightness_frac, contrast_frac, scale_frac, shift_frac: largest change either way
    (of full brightness, contrast, size, and picture side)."""

    flip_frac: float = 0.5
    brightness_frac: float = 0.15
    contrast_frac: float = 0.2
    scale_frac: float = 0.15
    shift_frac: float = 0.08

    @staticmethod
    def none() -> Augmentation:
        return Augmentation(flip_frac=0.0, brightness_frac=0.0, contrast_frac=0.0, scale_frac=0.0, shift_frac=0.0)


def augmented(sample: LabelledImage, how: Augmentation, rng: np.random.Generator) -> LabelledImage:
    """A changed copy; `sample` is not touched. Draws the same number of random values whatever they are."""
    flip, brightness, contrast, scale, dx, dy = rng.random(_DRAWN)
    moved = _moved(sample, _affine(sample.image.shape, how, flip, scale, dx, dy))
    gain = 1 + how.contrast_frac * (2 * contrast - 1)
    offset = 255 * how.brightness_frac * (2 * brightness - 1) + 128 * (1 - gain)  # contrast turns around mid-grey
    if gain == 1 and offset == 0:
        return moved
    levels = np.clip(np.arange(256) * gain + offset, 0, 255).astype(np.uint8)
    return LabelledImage(image=cv2.LUT(moved.image, levels), labels=moved.labels)


def skip_augmented(n: int, rng: np.random.Generator) -> None:
    """Draws what `augmented` would have drawn for n pictures."""
    rng.random((n, _DRAWN))


def _affine(shape: tuple[int, ...], how: Augmentation, flip: float, scale: float, dx: float, dy: float) -> np.ndarray:
    """2x3 matrix: mirror and scale around the centre, then shift. float64"""
    height, width = shape[:2]
    size = 1 + how.scale_frac * (2 * scale - 1)
    sign = -1.0 if flip < how.flip_frac else 1.0
    centre = np.array([width / 2, height / 2])
    linear = np.array([[sign * size, 0.0], [0.0, size]])
    shift = how.shift_frac * np.array([(2 * dx - 1) * width, (2 * dy - 1) * height])
    return np.concatenate([linear, (centre - linear @ centre + shift)[:, None]], axis=1)


def _moved(sample: LabelledImage, affine: np.ndarray) -> LabelledImage:
    height, width = sample.image.shape[:2]
    if np.array_equal(affine, np.eye(2, 3)):
        return sample
    # OpenCV maps pixel centres, boxes are in pixel edges: half a pixel lies between them.
    at_centres = affine.copy()
    at_centres[:, 2] += affine[:, :2] @ (0.5, 0.5) - 0.5
    image = cv2.warpAffine(
        sample.image, at_centres, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=_BORDER
    )
    return LabelledImage(image=image, labels=_moved_boxes(sample.labels, affine, width, height))


def _moved_boxes(labels: Detections, affine: np.ndarray, width: int, height: int) -> Detections:
    """Boxes of the moved picture, cut at its border; those mostly outside are dropped."""
    corners = labels.xyxy.astype(np.float64)
    ends = np.stack([corners[:, :2] @ affine[:, :2].T, corners[:, 2:] @ affine[:, :2].T]) + affine[:, 2]  # (2, N, 2)
    whole = np.concatenate([ends.min(axis=0), ends.max(axis=0)], axis=1)  # (N, 4)
    cut = np.clip(whole, 0, (width, height, width, height))
    sides = cut[:, 2:] - cut[:, :2]
    inside_frac = sides.prod(axis=1) / np.maximum((whole[:, 2:] - whole[:, :2]).prod(axis=1), 1e-9)
    keep = (inside_frac >= _KEEP_AREA_FRAC) & (sides >= _KEEP_SIDE_PX).all(axis=1)
    return Detections(xyxy=cut[keep].astype(np.float32), score=labels.score[keep], class_id=labels.class_id[keep])
