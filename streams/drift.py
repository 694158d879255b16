"""Graded, seeded drift laid over real frames: what `evaluate` scenarios use to make a clip drift.

`apply` is a pure function of its arguments: strength 0 is the identity, strength 1 the full effect, in between the picture
moves steadily away from the original. `DriftSpec` says when a drift comes and goes, in frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import cv2
import numpy as np

from configs.errors import ConfigError
from streams import effects

_Effect = Callable[[np.ndarray, float, int, int], np.ndarray]


def _dusk(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """Light falls to a ninth and turns blue, the sensor's noise shows."""
    tint = 1 + strength * (np.array((0.82, 0.93, 1.15), np.float32) - 1)
    dim = image * (tint * np.float32((1 - strength) + strength / 9))
    return effects.sensor_noise(dim, 6.0 * strength, _moment(seed, frame))


def _fog(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """Thicker towards the top of the picture, where things are far away, and patchy; contrast and sharpness go."""
    height_px, width_px = image.shape[:2]
    patches = np.random.default_rng(seed).uniform(0.75, 1.25, (4, 6)).astype(np.float32)
    patches = cv2.resize(patches, (width_px, height_px), interpolation=cv2.INTER_CUBIC)
    depth = np.linspace(2.6, 0.9, height_px, dtype=np.float32)[:, None] * patches
    through = np.exp(-strength * depth)[:, :, None]
    soft = effects.soften(image, 1.2 * strength * height_px / 360)
    return np.float32(198.0) + through * (soft - np.float32(198.0))


def _noise(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """Gaussian sensor noise, standard deviation up to 55 grey levels."""
    return effects.sensor_noise(image, 55.0 * strength, _moment(seed, frame))


def _overexposure(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """Exposure up to four times too long: bright parts burn out."""
    return image * np.float32(4.0**strength) + np.float32(12.0 * strength)


def _underexposure(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """Exposure down to a tenth, without the noise of dusk."""
    return image * np.float32(10.0**-strength)


def _glare(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """A low sun, its place drawn from the seed."""
    x_frac, y_frac = np.random.default_rng(seed).uniform((0.25, 0.1), (0.75, 0.4))
    return effects.glare(image, strength, float(x_frac), float(y_frac))


def _rain(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """Streaks, dimmer and softer."""
    return effects.rain(image, strength, _moment(seed, frame))


def _blur(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """Out of focus, up to a Gaussian of 1.2 % of the picture's height."""
    return effects.soften(image, 0.012 * strength * image.shape[0])


def _greyness(image: np.ndarray, strength: float, seed: int, frame: int) -> np.ndarray:
    """Infrared mode: colour goes."""
    grey = image @ np.array((0.299, 0.587, 0.114), np.float32)
    return image + np.float32(strength) * (grey[:, :, None] - image)


#: Every kind of drift.
KINDS: dict[str, _Effect] = {
    "dusk": _dusk,
    "fog": _fog,
    "noise": _noise,
    "overexposure": _overexposure,
    "underexposure": _underexposure,
    "glare": _glare,
    "rain": _rain,
    "blur": _blur,
    "greyness": _greyness,
}


def _moment(seed: int, frame: int) -> int:
    return seed * 1_000_003 + frame


def apply(image: np.ndarray, kind: str, strength: float, seed: int, frame: int = 0) -> np.ndarray:
    """`image` (uint8 (H, W, 3) RGB, left untouched) under drift `kind` of `strength` 0-1.

    What stays in place (fog patches, the sun) follows from `seed`, what flickers (noise, rain) from `seed` and `frame`. Raises
    ConfigError for an unknown kind, ValueError for a strength outside 0-1."""
    _check_kind(kind)
    if not 0.0 <= strength <= 1.0:
        raise ValueError(f"strength must be in 0-1, got {strength}")
    if strength == 0.0:
        return image.copy()
    return effects.to_uint8(KINDS[kind](image.astype(np.float32), strength, seed, frame))


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"no drift is called {kind!r}", subject=kind, remedy=f"use one of {', '.join(KINDS)}")


@dataclass(frozen=True, kw_only=True)
class DriftSpec:
    """One drift over a stretch of frames [start, end): it grows from 0 to `strength` over the first `ramp` frames and fades
    over the last `ramp_out`. end None: it stays for ever."""

    kind: str
    start: int = 0
    end: int | None = None
    strength: float = 1.0
    ramp: int = 0
    ramp_out: int = 0

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        if not 0.0 <= self.strength <= 1.0:
            raise ConfigError(f"drift {self.kind}: strength must be in 0-1, got {self.strength}", subject=self.kind)
        if self.start < 0 or self.ramp < 0 or self.ramp_out < 0 or (self.end is not None and self.end <= self.start):
            remedy = "use 0 <= start < end and ramps of 0 or more frames"
            raise ConfigError(f"drift {self.kind}: its frames make no sense", subject=self.kind, remedy=remedy)

    @staticmethod
    def of(table: Mapping[str, Any]) -> DriftSpec:
        """From a mapping, as in a scenario file. Raises ConfigError naming unknown and missing keys."""
        known = {field.name for field in fields(DriftSpec)}
        unknown = sorted(set(table) - known)
        if unknown or "kind" not in table:
            problem = f"unknown keys {', '.join(unknown)}" if unknown else "the key 'kind' is missing"
            raise ConfigError(f"a drift has {problem}", remedy=f"known keys: {', '.join(sorted(known))}")
        return DriftSpec(**table)

    def strength_at(self, frame: int) -> float:
        """0-1 at a frame index."""
        if frame < self.start or (self.end is not None and frame >= self.end):
            return 0.0
        level = 1.0
        if self.ramp:
            level = min(level, (frame - self.start + 1) / self.ramp)
        if self.ramp_out and self.end is not None:
            level = min(level, (self.end - frame) / self.ramp_out)
        return self.strength * level


def apply_all(image: np.ndarray, specs: Iterable[DriftSpec], frame: int, seed: int) -> np.ndarray:
    """`image` under all of `specs` at frame index `frame`, one after the other; the same object when none is active."""
    for place, spec in enumerate(specs):
        strength = spec.strength_at(frame)
        if strength > 0:
            image = apply(image, spec.kind, strength, seed + 7919 * place, frame)
    return image
