"""Looks at windows that never were: a scene whose numbers wander as an AR(1) sequence about a mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.types import FrameLook, Look


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a scene's frames are drawn about. phi: autocorrelation from frame to frame; objects: mean number, `cars` of them cars and
    the others people; turn: angle of the embedding, in radians; tint: as in `FrameLook`."""

    phi: float = 0.0
    brightness: float = 120.0
    contrast: float = 45.0
    sharpness: float = 5.0
    confidence: float = 0.6
    objects: float = 4.0
    cars: float = 0.75
    turn: float = 0.0
    tint: tuple[float, ...] = (0.53, 0.5)


def wander(rng: np.random.Generator, phi: float, frames: int) -> np.ndarray:
    """A stationary AR(1) sequence of mean 0 and variance 1."""
    steps = rng.normal(size=frames)
    values = np.empty(frames)
    for k in range(frames):
        values[k] = steps[k] if k == 0 else phi * values[k - 1] + np.sqrt(1 - phi**2) * steps[k]
    return values


def look(scene: Scene, seed: int, *, frames: int = 24, version: str = "v1") -> Look:
    """`frames` frames of the scene; the same for the same seed."""
    rng = np.random.default_rng(seed)
    light, more, far, sure, *place = (wander(rng, scene.phi, frames) for _ in range(8))
    cars = np.maximum(0, np.round(scene.objects * scene.cars * (1 + 0.3 * more)))
    people = np.maximum(0, np.round(scene.objects * (1 - scene.cars) * (1 + 0.3 * far)))
    shots = []
    for k in range(frames):
        total = float(cars[k] + people[k])
        share = (people[k] / total, 0.0, cars[k] / total, 0.0, 0.0, 0.0, 0.0) if total else (0.0,) * 7
        angle = scene.turn + 0.1 * place[0][k]
        shots.append(
            FrameLook(
                brightness=scene.brightness + 3 * light[k], contrast=scene.contrast + 2 * place[1][k],
                sharpness=scene.sharpness + 0.1 * place[2][k], objects=total,
                confidence=float(np.clip(scene.confidence + 0.05 * sure[k], 0, 1)) if total else 0.0,
                class_frac=share, embedding=(float(np.cos(angle)), float(np.sin(angle)), 0.05 * float(place[3][k])),
                tint=scene.tint, layout=(scene.brightness / 255,) * 16,
            )
        )  # fmt: skip
    return Look(version=version, frames=tuple(shots))
