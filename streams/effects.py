"""Weather and sensor effects on one picture; shared by rendered cameras (`streams.rendered`) and by drift over real frames.

Every function takes and returns float32 (H, W, 3) in 0-255, is a pure function of its arguments (randomness from `seed`), and
is the identity at strength 0.
"""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

_NOISE_MARGIN_PX = 64


@lru_cache(maxsize=8)
def _noise_sheet(height_px: int, width_px: int) -> np.ndarray:
    """Unit Gaussian noise, larger than the picture: each frame cuts its own window (drawing afresh costs ten times as much)."""
    rng = np.random.default_rng(20_240_117)
    shape = (height_px + _NOISE_MARGIN_PX, width_px + _NOISE_MARGIN_PX, 3)
    return rng.standard_normal(shape, dtype=np.float32)


def sensor_noise(image: np.ndarray, sigma: float, seed: int) -> np.ndarray:
    """Adds Gaussian noise of standard deviation `sigma` (grey levels); other seeds cut another window of one noise sheet."""
    if sigma <= 0:
        return image
    height_px, width_px = image.shape[:2]
    y, x, flip = np.random.default_rng(seed).integers(0, (_NOISE_MARGIN_PX, _NOISE_MARGIN_PX, 4))
    window = _noise_sheet(height_px, width_px)[y : y + height_px, x : x + width_px]
    if flip & 1:
        window = window[:, ::-1]
    if flip & 2:
        window = window[::-1]
    return image + np.float32(sigma) * window


@lru_cache(maxsize=32)
def _glare_map(height_px: int, width_px: int, x_frac: float, y_frac: float) -> np.ndarray:
    """(H, W, 1) in 0-1: a sun disc with its halo, and a veil over the whole picture."""
    ys, xs = np.mgrid[0:height_px, 0:width_px].astype(np.float32)
    distance = np.hypot(xs / width_px - x_frac, (ys / height_px - y_frac) * height_px / width_px)
    veil = 0.7 * np.exp(-((distance / 0.2) ** 2)) + 0.5 * np.exp(-distance / 0.7)
    return np.minimum(veil, 1.0).astype(np.float32)[:, :, None]


def glare(image: np.ndarray, strength: float, x_frac: float = 0.7, y_frac: float = 0.15) -> np.ndarray:
    """Light from a low sun at (x_frac, y_frac): screens the picture towards white, strongest near the sun."""
    if strength <= 0:
        return image
    veil = np.float32(strength) * _glare_map(*image.shape[:2], x_frac, y_frac)
    return image + veil * (np.array((255.0, 246.0, 225.0), np.float32) - image)


def rain(image: np.ndarray, strength: float, seed: int) -> np.ndarray:
    """Dimmer, softer picture with bright slanted streaks; the streaks' places come from `seed`."""
    if strength <= 0:
        return image
    height_px, width_px = image.shape[:2]
    rng = np.random.default_rng(seed)
    count = int(strength * width_px * height_px / 260)
    starts = rng.random((count, 2)) * (width_px, height_px)
    lengths = height_px * (0.04 + 0.10 * rng.random(count)) * (0.5 + 0.5 * strength)
    layer = np.zeros((height_px, width_px), np.uint8)
    ends = starts + np.stack([-0.22 * lengths, lengths], axis=1)
    lines = np.rint(np.stack([starts, ends], axis=1) * 16).astype(np.int32)
    cv2.polylines(layer, list(lines), False, 255, 1, cv2.LINE_AA, 4)
    image = soften(image * np.float32(1 - 0.3 * strength), 0.9 * strength * height_px / 180)
    streaks = layer.astype(np.float32)[:, :, None] * np.float32(0.45 * strength / 255)
    return image + streaks * (np.float32(205.0) - image)


def soften(image: np.ndarray, sigma_px: float) -> np.ndarray:
    """Gaussian blur; below 0.2 px the picture is left alone."""
    return image if sigma_px < 0.2 else cv2.GaussianBlur(image, (0, 0), sigma_px)


def contrast(image: np.ndarray, factor: float, towards: float) -> np.ndarray:
    """Scales the distance of every pixel to the grey level `towards` by `factor` (1 = unchanged)."""
    return image if factor == 1.0 else towards + np.float32(factor) * (image - np.float32(towards))


def to_uint8(image: np.ndarray) -> np.ndarray:
    """Clips and rounds to uint8."""
    return np.clip(image + np.float32(0.5), 0, 255).astype(np.uint8)
