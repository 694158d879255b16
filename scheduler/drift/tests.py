"""Four detectors of drift, none of which needs a label: each compares a window's look with that of a reference window.

A detector says how far apart the two looks are in units of its own (`DriftTest.statistic`), and from where on that is drift
(`threshold`): the distance that two looks at an unchanged scene exceed with probability `alpha` at most (`scheduler.drift.blocks`),
and never less than a floor, under which a difference may be certain and still is too small to matter to a model.

| name | distance | 0 | 1 |
|---|---|---|---|
| class-mix | Hellinger's, of objects per frame and class | as many of each | none of the same class |
| confidence | mean score of a detection | same | from sure to nothing |
| embedding | maximum mean discrepancy (Gretton et al. 2012), Gaussian kernel of median width | same features | 1.4 is as far as may be |
| image | brightness, contrast, sharpness, tint, in fixed units, root of squares | same | e.g. 32 grey levels darker |

Confidence and embedding mean the same only for looks by one model version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduler.drift.blocks import Halves, fewest_blocks, threshold_of
from scheduler.types import DriftTest, FrameLook, Look

CLASS_MIX, CONFIDENCE, EMBEDDING, IMAGE = "class-mix", "confidence", "embedding", "image"
#: Detectors in the order in which they are asked.
NAMES: tuple[str, ...] = (CLASS_MIX, CONFIDENCE, EMBEDDING, IMAGE)
#: Those that also compare looks by different model versions.
ANY_VERSION: tuple[str, ...] = (IMAGE,)

#: What one unit of the image distance is: grey levels of brightness, of contrast, log1p of the Laplacian's variance.
IMAGE_UNITS = np.array([32.0, 16.0, 0.5])
#: ... and of tint, whose whole range is 1 and which few scenes leave the middle of.
TINT_UNIT = 0.04
#: Smallest distance that counts.
FLOORS: dict[str, float] = {CLASS_MIX: 0.15, CONFIDENCE: 0.05, EMBEDDING: 0.15, IMAGE: 0.25}
#: Objects per frame so few that they say nothing of the class mix; keeps an empty scene from being far from itself.
_FEW_OBJECTS = 0.1
#: Least width of the embedding's kernel, in lengths of an embedding: a still scene repeats itself to the last digit.
_LEAST_WIDTH = 0.05


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """distances: float64 (1 + S,) of the truth and of deals of centred blocks; values: (frames, features) whose autocorrelation
    counts."""

    distances: np.ndarray
    values: np.ndarray


def run_test(
    name: str, reference: Look, current: Look, *, alpha: float, blocks: int = 8, splits: int = 1000
) -> DriftTest | None:
    """One detector's answer at false-alarm rate `alpha`; None when these looks cannot answer it: too few frames for `alpha`
    (`frames_needed`), other versions, or what it looks at is in neither or not in every frame. Raises KeyError for an unknown name."""
    compare = _DETECTORS[name]
    frames = (*reference.frames, *current.frames)
    count = min(blocks, len(reference.frames) // 2, len(current.frames) // 2)
    if count < fewest_blocks(alpha):
        return None
    if reference.version != current.version and name not in ANY_VERSION:
        return None
    enough = max(splits, int(4 / alpha))  # a rare threshold wants many deals
    halves = _halves(len(reference.frames), len(current.frames), count, enough)
    compared = compare(frames, halves)
    if compared is None:
        return None
    chance = threshold_of(compared.distances, alpha) * halves.margin(compared.values, alpha)
    return DriftTest(name=name, statistic=float(compared.distances[0]), threshold=max(FLOORS[name], chance))


@lru_cache(maxsize=16)
def _halves(n_reference: int, n_current: int, blocks: int, splits: int) -> Halves:
    """Kept, because looks are nearly always of the same length and dealing is half of a test's work."""
    return Halves(n_reference=n_reference, n_current=n_current, blocks=blocks, splits=splits)


def frames_needed(alpha: float) -> int:
    """Frames that each look must have for a test at `alpha`."""
    return 2 * fewest_blocks(alpha)


def _class_mix(frames: tuple[FrameLook, ...], halves: Halves) -> _Compared | None:
    """Hellinger distance of two intensities, sqrt(sum (sqrt a - sqrt b)^2 / (sum (a + b))), a, b: objects per frame and class. Unlike
    that of two shares it also sees that there are more objects, and it does not swing when there are next to none."""
    width = max(len(f.class_frac) for f in frames)
    if width == 0:
        return None
    counts = np.array([f.objects * np.resize([*f.class_frac, *[0.0] * width], width) for f in frames])  # (frames, classes)
    reference, current = halves.weights
    common = halves.centred(counts) + counts.mean(axis=0)
    a = np.concatenate([reference[:1] @ counts, np.maximum(0.0, reference[1:] @ common)])  # (1 + S, classes)
    b = np.concatenate([current[:1] @ counts, np.maximum(0.0, current[1:] @ common)])
    apart = ((np.sqrt(a) - np.sqrt(b)) ** 2).sum(axis=1)
    return _Compared(distances=np.sqrt(apart / ((a + b).sum(axis=1) + _FEW_OBJECTS)), values=counts)


def _confidence(frames: tuple[FrameLook, ...], halves: Halves) -> _Compared | None:
    """Difference of mean scores over detections: frames count by their objects, empty ones not at all."""
    objects = np.array([f.objects for f in frames])
    score = np.array([f.confidence for f in frames])
    first = np.arange(len(frames)) < halves.n_reference
    if objects[first].sum() <= 0 or objects[~first].sum() <= 0:
        return None
    means = np.where(
        first, np.average(score[first], weights=objects[first]), np.average(score[~first], weights=objects[~first])
    )
    residual = objects * (score - means)  # linearised ratio: its sums are what a deal's mean score differs by
    per_frame = objects.mean()
    reference, current = halves.weights
    dealt = (reference[1:] - current[1:]) @ residual / per_frame
    distances = np.abs(np.concatenate([[means[0] - means[-1]], dealt]))
    return _Compared(distances=distances, values=(residual / per_frame)[:, None])


def _embedding(frames: tuple[FrameLook, ...], halves: Halves) -> _Compared | None:
    """Maximum mean discrepancy of two samples, biased estimate, kernel exp(-|x - y|^2 / (2 w^2)), w: median distance of two frames of
    one look. (Usually of any two frames; then the width grows with the drift, and the distance may fall when the drift grows.)"""
    sizes = {len(f.embedding) for f in frames}
    if len(sizes) != 1 or 0 in sizes:
        return None
    x = np.array([f.embedding for f in frames])  # (frames, features)
    square = ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=2)
    least2 = max(_LEAST_WIDTH**2 * float((x * x).sum(axis=1).mean()), 1e-12)
    width2 = max(_median_within(square, halves.n_reference), least2)
    kernel = np.exp(-square / (2 * width2))
    centred = _centred_kernel(kernel, halves.n_reference)
    reference, current = halves.weights
    signs = reference - current  # (1 + S, frames)
    true = signs[:1] @ kernel @ signs[0]
    dealt = ((signs[1:] @ centred) * signs[1:]).sum(axis=1)
    return _Compared(distances=np.sqrt(np.maximum(0.0, np.concatenate([true, dealt]))), values=_features_of(centred))


def _image(frames: tuple[FrameLook, ...], halves: Halves) -> _Compared | None:
    values = np.array([(f.brightness, f.contrast, f.sharpness) for f in frames]) / IMAGE_UNITS  # (frames, 3)
    sizes = {len(f.tint) for f in frames}
    if len(sizes) == 1:  # else it is unknown in some frames
        values = np.hstack([values, np.array([f.tint for f in frames]) / TINT_UNIT])  # (frames, 5), or (frames, 3) without tint
    reference, current = halves.weights
    signs = reference - current
    gaps = np.concatenate([signs[:1] @ values, signs[1:] @ halves.centred(values)])  # (1 + S, 3)
    return _Compared(distances=np.sqrt((gaps**2).sum(axis=1)), values=values)


def _median_within(square: np.ndarray, n_reference: int) -> float:
    """Median of the entries between different frames of one look."""
    looks = (square[:n_reference, :n_reference], square[n_reference:, n_reference:])
    return float(np.median(np.concatenate([look[np.triu_indices(len(look), 1)] for look in looks])))


def _centred_kernel(kernel: np.ndarray, n_reference: int) -> np.ndarray:
    """Kernel of features less the mean of their own look."""
    n = len(kernel)
    own = np.zeros((n, n))
    own[:n_reference, :n_reference] = 1.0 / n_reference
    own[n_reference:, n_reference:] = 1.0 / (n - n_reference)
    centre = np.eye(n) - own
    return centre @ kernel @ centre


def _features_of(kernel: np.ndarray) -> np.ndarray:
    """Vectors (frames, frames) whose products are the kernel."""
    values, vectors = np.linalg.eigh(kernel)
    return vectors * np.sqrt(np.maximum(0.0, values))


_DETECTORS: dict[str, Callable[[tuple[FrameLook, ...], Halves], _Compared | None]] = {
    CLASS_MIX: _class_mix,
    CONFIDENCE: _confidence,
    EMBEDDING: _embedding,
    IMAGE: _image,
}
