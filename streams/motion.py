"""What moves in a camera's picture: background subtraction on a small copy, then boxes. OpenCV's MOG2 does the pixels.

Source of the pixel model: Zivkovic 2004, "Improved adaptive Gaussian mixture model for background subtraction" (MOG2); Ekya (section
6.1) crops moving objects in the same way before it classifies them. What we changed: the model learns by time and not by frame, because
a camera is watched at a rate that the plan changes; a change of the light is told from movement.

A thing that stops is learnt as background after about a tenth of `memory_s`: what stands still is not asked about again and again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np

#: Grey level of a moving pixel in OpenCV's mask; a shadow has 127.
_MOVING = 255
#: What is new may weigh so much in one frame: from 0.1 on (1 - MOG2's background ratio) it would be background at first sight.
_RATE_MAX = 0.05
#: What lies so near to something that moves, in pixels of the smaller copy, is not taken for background when a larger copy begins.
_NEAR_PX = 2


@dataclass(frozen=True, kw_only=True)
class MotionOptions:
    """work_px: longer side of the copy that is looked at. memory_s: time constant of the background. threshold: squared distance, in
    standard deviations of a pixel, from which it has changed. open_px, close_px: what is taken for noise, and what gap is closed,
    in pixels of the copy. join_px: boxes nearer than this are one. min_area_frac: smallest region, as a part of the picture.
    max_regions: the largest so many are kept. warmup_frames: how many frames are learnt before anything is said to move.
    all_frac: from this part of the picture on it is the light, not an object. gap_s: after so long without a frame (and five of the
    usual intervals) the background is learnt anew."""

    work_px: int = 320
    memory_s: float = 60.0
    threshold: float = 16.0
    open_px: int = 3
    close_px: int = 7
    join_px: int = 2
    min_area_frac: float = 0.0008
    max_regions: int = 32
    warmup_frames: int = 8
    all_frac: float = 0.5
    gap_s: float = 10.0

    def __post_init__(self) -> None:
        if self.work_px < 16 or not self.memory_s > 0 or self.max_regions < 1 or not 0 < self.all_frac <= 1:
            raise ValueError(f"not usable: {self}")


class Motion:
    """The moving regions of one camera's frames, in order of time. Not thread-safe. The same frames give the same regions.

    options: may be replaced between two frames. When pictures, or the copies that are looked at, have another size and the same shape,
    what was learnt goes on; another shape is another picture.

    cut: regions left out so far because there were more than `max_regions`; relearnt: how often the light changed at once."""

    def __init__(self, options: MotionOptions | None = None) -> None:
        self.options = options or MotionOptions()
        self.cut = 0
        self.relearnt = 0
        self._model: cv2.BackgroundSubtractorMOG2 | None = None
        self._size_px = (0, 0)
        self._seen = 0
        self._last_s = 0.0
        self._interval_s = 0.0

    def reset(self) -> None:
        """Forgets the background: the next frames are learnt before anything moves again."""
        self._model = None

    def fork(self) -> Motion:
        """Another one that goes on from what this one has learnt. Of each pixel's background it knows the middle; how much it varies is
        learnt anew."""
        twin = Motion(self.options)
        twin.cut, twin.relearnt = self.cut, self.relearnt
        twin._size_px, twin._seen, twin._last_s, twin._interval_s = self._size_px, self._seen, self._last_s, self._interval_s
        twin._model = None if self._model is None else self._begun_from(self._model.getBackgroundImage())
        return twin

    def find(self, image: np.ndarray, *, at_s: float) -> np.ndarray:
        """The regions that move in `image`, uint8 (H, W, 3), taken at `at_s` (any clock that rises).

        float32 (N, 4) xyxy px of the image, largest first, N at most `max_regions`, each inside the picture and not empty; (0, 4)
        while the background is learnt."""
        small = _reduced(image, self.options.work_px)
        self._begin(small, at_s)
        mask = self._changed(small, at_s)
        if self._seen <= self.options.warmup_frames:
            return no_regions()
        if np.count_nonzero(mask) >= self.options.all_frac * mask.size:
            self._relearn(small)
            return no_regions()
        boxes = self._boxes(np.where(mask == _MOVING, mask, 0).astype(np.uint8))
        return _enlarged(boxes, small.shape, image.shape)

    # --- the background -----------------------------------------------------------------------------------------------

    def _begin(self, small: np.ndarray, at_s: float) -> None:
        """A new background where the old one says nothing of this frame; one of the frame's size that goes on from it where it does."""
        elapsed_s = at_s - self._last_s
        size_px = (small.shape[1], small.shape[0])
        long_gap = elapsed_s > max(self.options.gap_s, 5 * self._interval_s)
        if self._model is None or not _same_shape(size_px, self._size_px) or elapsed_s < 0 or long_gap:
            self._model = self._new_model()
            # A camera looked at once a minute has gaps only: the gap itself is its interval until the next frame says better.
            self._interval_s = max(0.0, elapsed_s) if long_gap else 0.0
            self._size_px, self._seen, self._last_s = size_px, 0, at_s
        elif size_px != self._size_px:
            self._model = self._begun_from(_background_for(small, self._model))
            self._size_px = size_px

    def _new_model(self) -> cv2.BackgroundSubtractorMOG2:
        return cv2.createBackgroundSubtractorMOG2(varThreshold=self.options.threshold, detectShadows=True)

    def _begun_from(self, background: np.ndarray) -> cv2.BackgroundSubtractorMOG2:
        """A model that has learnt this picture. How much its pixels vary is not known: the most that may be is taken to be usual at
        first, for with OpenCV's own guess the noise of a real camera would move."""
        model = self._new_model()
        usual = model.getVarInit()
        model.setVarInit(model.getVarMax())
        model.apply(background, learningRate=1.0)
        model.setVarInit(usual)
        return model

    def _changed(self, small: np.ndarray, at_s: float) -> np.ndarray:
        """OpenCV's mask, uint8 (h, w): 0 background, 127 shadow, 255 moving; the background learns the frame."""
        assert self._model is not None
        elapsed_s, self._last_s = at_s - self._last_s, at_s
        if self._seen:
            self._interval_s = elapsed_s if self._seen == 1 else 0.9 * self._interval_s + 0.1 * elapsed_s
        self._seen += 1
        # A young background is the mean of what was seen; later it forgets by time, however many frames that is.
        rate = max(1.0 / self._seen, 1.0 - math.exp(-elapsed_s / self.options.memory_s))
        most = 1.0 if self._seen <= self.options.warmup_frames else _RATE_MAX
        return self._model.apply(small, learningRate=min(most, rate))

    def _relearn(self, small: np.ndarray) -> None:
        """The light changed, or the camera was moved: this frame is the background now."""
        assert self._model is not None
        self._model.apply(small, learningRate=1.0)
        self._seen = 1
        self.relearnt += 1

    # --- boxes --------------------------------------------------------------------------------------------------------

    def _boxes(self, mask: np.ndarray) -> np.ndarray:
        """int64 (N, 4) xyxy in pixels of the mask, largest first; the rest of them is counted in `cut`."""
        options = self.options
        mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, _ellipse(options.open_px))
        mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, _ellipse(options.close_px))
        _, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
        left, top, width, height = stats[1:, :4].T.astype(np.int64)  # row 0 is the background
        boxes = joined(np.stack([left, top, left + width, top + height], axis=1), near_px=options.join_px)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        order = np.argsort(-area, kind="stable")
        kept = order[area[order] >= options.min_area_frac * mask.size]
        self.cut += max(0, len(kept) - options.max_regions)
        return boxes[kept[: options.max_regions]]


def no_regions() -> np.ndarray:
    """Nothing moves. float32 (0, 4)."""
    return np.zeros((0, 4), np.float32)


def joined(boxes: np.ndarray, *, near_px: int) -> np.ndarray:
    """Boxes (N, 4) xyxy, those that overlap or lie nearer than `near_px` made one, until none do. Sorted by their corners."""
    boxes = boxes[np.lexsort(boxes.T[::-1])]
    while len(boxes) > 1:
        wide = boxes + np.array([-near_px, -near_px, 0, 0])
        apart = (wide[:, None, :2] >= boxes[None, :, 2:]).any(axis=2)  # (N, N): i begins right of, or under, j
        touching = ~(apart | apart.T)
        group = _groups(touching)
        if len(np.unique(group)) == len(boxes):
            break
        boxes = np.array([_hull(boxes[group == g]) for g in np.unique(group)])
    return boxes


def _groups(touching: np.ndarray) -> np.ndarray:
    """The smallest index that each one reaches over `touching`, bool (N, N) symmetric. int64 (N,)."""
    group = np.arange(len(touching))
    while True:
        lowest = np.where(touching, group[None, :], len(group)).min(axis=1)
        if (lowest == group).all():
            return group
        group = lowest


def _hull(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])


def _same_shape(size_px: tuple[int, int], other_px: tuple[int, int]) -> bool:
    """Whether sizes (width, height) are those of one picture, but for what rounding does to them."""
    if not max(other_px):
        return False
    scale = max(size_px) / max(other_px)
    return all(abs(scale * other - size) <= (1 + scale) / 2 for size, other in zip(size_px, other_px, strict=True))


def _background_for(small: np.ndarray, model: cv2.BackgroundSubtractorMOG2) -> np.ndarray:
    """The background of `model` in the size of `small`, uint8 (h, w, 3). A larger one has edges that the smaller never saw: these come
    from `small`, where nothing moves in it."""
    known = model.getBackgroundImage()
    size_px = (small.shape[1], small.shape[0])
    if small.size <= known.size:
        return cv2.resize(known, size_px, interpolation=cv2.INTER_AREA)
    mask = model.apply(cv2.resize(small, (known.shape[1], known.shape[0]), interpolation=cv2.INTER_AREA), learningRate=0.0)
    moving = cv2.resize(cv2.dilate(mask, _ellipse(2 * _NEAR_PX + 1)), size_px, interpolation=cv2.INTER_NEAREST)
    return np.where(moving[:, :, None] > 0, cv2.resize(known, size_px), small)


def _ellipse(size_px: int) -> np.ndarray:
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size_px, size_px))


def _reduced(image: np.ndarray, work_px: int) -> np.ndarray:
    height, width = image.shape[:2]
    scale = work_px / max(height, width)
    if scale >= 1:
        return image
    return cv2.resize(image, (max(1, round(width * scale)), max(1, round(height * scale))), interpolation=cv2.INTER_AREA)


def _enlarged(boxes: np.ndarray, small: tuple[int, ...], full: tuple[int, ...]) -> np.ndarray:
    """Boxes of the small copy in pixels of the whole picture. float32 (N, 4)."""
    scale = np.array([full[1] / small[1], full[0] / small[0]] * 2)
    limit = np.array([full[1], full[0]] * 2, np.float32)
    return np.minimum((boxes.reshape(-1, 4) * scale).astype(np.float32), limit)
