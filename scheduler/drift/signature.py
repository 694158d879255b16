"""A window in a few numbers that windows months apart share: what nearest earlier versions are found by (the idea of RECL, NSDI 2023).

The serving model changes in between, so its embedding cannot be part of it. What is: the picture's statistics, how many objects and
of which classes (detectors differ here, but far less than night and day), and a coarse layout of colours and edges.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from configs.units import CLASSES
from scheduler.types import Look, Signature

#: What one unit is: grey levels of brightness and of contrast, log1p of the Laplacian's variance. Fixed, so that signatures made
#: by different boxes and years compare.
_IMAGE_UNITS = np.array([64.0, 32.0, 1.0])
_OBJECTS_UNIT = 1.0  # of log1p(objects per frame)
_LAYOUT_UNIT = 0.25  # of a number that runs 0-1

#: Numbers in each part, in order; the last may be missing.
PARTS: tuple[int, ...] = (3, 1, len(CLASSES))


def signature(look: Look) -> Signature:
    """The signature of a look; without frames, one without values (unknown). Tint and layout count only when all frames have both."""
    if not look.frames:
        return Signature()
    image = np.mean([(f.brightness, f.contrast, f.sharpness) for f in look.frames], axis=0) / _IMAGE_UNITS
    counts = np.mean([f.objects * _classes(f.class_frac) for f in look.frames], axis=0)
    objects = np.log1p(np.mean([f.objects for f in look.frames])) / _OBJECTS_UNIT
    # Square roots, so that the distance of two mixes is Hellinger's: at most 1 apart.
    shares = np.sqrt(counts / counts.sum() / 2) if counts.sum() > 0 else counts
    parts = [_even(image), [objects], shares, _even(_layout(look))]
    return Signature(values=tuple(round(float(v), 6) for part in parts for v in part), view=look.view)


def distance(a: Signature, b: Signature) -> float:
    """How far apart two windows are: root mean square over the parts that both have. 0: the same; around 1 and more: day and
    night. Symmetric; infinite when one is unknown."""
    known = min(len(a.values), len(b.values))
    parts = len(PARTS) + 1 if known > sum(PARTS) and len(a.values) == len(b.values) else len(PARTS)
    if known < sum(PARTS):
        return math.inf
    used = slice(0, len(a.values) if parts > len(PARTS) else sum(PARTS))
    gap = np.subtract(a.values[used], b.values[used])
    return float(np.sqrt((gap**2).sum() / parts))


def picture(seen: Signature) -> Signature:
    """The same without what a model said of it: two looks at one scene by different models are alike then."""
    said = range(PARTS[0], sum(PARTS))
    return replace(seen, values=tuple(0.0 if number in said else value for number, value in enumerate(seen.values)))


def _classes(class_frac: tuple[float, ...]) -> np.ndarray:
    """Shares of the box's own classes; what lies beyond them (`NOTHING`) is no object."""
    known = np.zeros(len(CLASSES))
    known[: len(class_frac[: len(CLASSES)])] = class_frac[: len(CLASSES)]
    return known


def _layout(look: Look) -> np.ndarray:
    sizes = {(len(f.tint), len(f.layout)) for f in look.frames}
    if len(sizes) != 1 or 0 in next(iter(sizes)):
        return np.zeros(0)
    return np.mean([(*f.tint, *f.layout) for f in look.frames], axis=0) / _LAYOUT_UNIT


def _even(values: np.ndarray) -> np.ndarray:
    """So that a part counts as its mean square, however many numbers it has."""
    return values / np.sqrt(max(1, len(values)))
