"""The three places: a street, a yard and a hall. A layout is everything that stands still, drawn once from the scene's seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from configs.errors import ConfigError
from streams.rendered.shapes import Colour
from streams.rendered.travellers import Lane


@dataclass(frozen=True, kw_only=True)
class Lamp:
    """A lamp head at (x_frac, y_frac) whose light falls on ground_frac; picture fractions."""

    x_frac: float
    y_frac: float
    ground_frac: float
    radius_frac: float


@dataclass(frozen=True, kw_only=True)
class Post:
    """A standing thing that hides what passes behind it: polygons in picture fractions, ground row y_frac."""

    y_frac: float
    parts: tuple[tuple[np.ndarray, Colour], ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """background: uint8 (H, W, 3). adult_frac_at: (horizon, factor), see `travellers`. fog_depth: float32 (H, W, 1)."""

    background: np.ndarray
    adult_frac_at: tuple[float, float]
    lanes: tuple[Lane, ...]
    lamps: tuple[Lamp, ...]
    posts: tuple[Post, ...]
    fog_depth: np.ndarray
    indoor: bool = False


def optical_depth(scale: float) -> float:
    """Fog between the camera and a thing whose ground row lies `scale` picture heights below the horizon."""
    return 0.36 / max(scale, 0.13)


def make_layout(kind: str, seed: int, width_px: int, height_px: int) -> Layout:
    """Raises ConfigError for an unknown kind, listing the known ones."""
    if kind not in LAYOUTS:
        raise ConfigError(f"no rendered scene is called {kind!r}", subject=kind, remedy=f"use one of {', '.join(LAYOUTS)}")
    rng = np.random.default_rng((seed, sorted(LAYOUTS).index(kind)))
    return LAYOUTS[kind](rng, width_px, height_px)


class _Canvas:
    """Draws in picture fractions."""

    def __init__(self, rng: np.random.Generator, width_px: int, height_px: int) -> None:
        self.rng, self.width_px, self.height_px = rng, width_px, height_px
        self.image = np.zeros((height_px, width_px, 3), np.uint8)

    def polygon(self, points: list[tuple[float, float]], colour: Colour) -> None:
        scaled = np.rint(np.array(points) * (self.width_px, self.height_px) * 16).astype(np.int32)
        cv2.fillPoly(self.image, [scaled], colour, cv2.LINE_AA, 4)

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        self.polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], colour)

    def grade(self, y0: float, y1: float, top: Colour, bottom: Colour) -> None:
        rows = slice(round(y0 * self.height_px), round(y1 * self.height_px))
        count = len(range(*rows.indices(self.height_px)))
        frac = np.linspace(0, 1, max(count, 1))[:count, None, None]
        self.image[rows] = np.array(top) * (1 - frac) + np.array(bottom) * frac

    def textured(self, fine: float, coarse: float) -> np.ndarray:
        """The picture with fine grain and coarse blotches (grey levels)."""
        shape = (self.height_px, self.width_px)
        grain = self.rng.normal(0, fine, shape).astype(np.float32)
        blotch = cv2.GaussianBlur(self.rng.normal(0, 1, shape).astype(np.float32), (0, 0), self.height_px / 22)
        blotch *= coarse / max(float(blotch.std()), 1e-6)
        return np.clip(self.image + (grain + blotch)[:, :, None], 0, 255).astype(np.uint8)


def _grey(rng: np.random.Generator, low: float, high: float, tint: float = 8) -> Colour:
    level = rng.uniform(low, high)
    r, g, b = (float(np.clip(level + rng.normal(0, tint), 5, 250)) for _ in range(3))
    return r, g, b


def _fog_depth(horizon: float, width_px: int, height_px: int) -> np.ndarray:
    rows = (np.arange(height_px) + 0.5) / height_px
    depth = np.array([optical_depth(row - horizon) for row in rows], np.float32)
    return np.repeat(depth[:, None, None], width_px, axis=1)


def _facades(canvas: _Canvas, foot: float) -> None:
    rng, x = canvas.rng, -0.05
    while x < 1.0:
        width = rng.uniform(0.16, 0.34)
        top = rng.uniform(0.0, 0.12)
        wall = _grey(rng, 95, 190, 14)
        canvas.box(x, top, x + width, foot, wall)
        columns, rows = int(rng.integers(2, 5)), int(rng.integers(2, 4))
        glass = _grey(rng, 50, 100, 8)
        for c in range(columns):
            for r in range(rows):
                left = x + width * (c + 0.25) / columns
                upper = top + (foot - top) * (r + 0.2) / (rows + 0.3)
                canvas.box(left, upper, left + width * 0.5 / columns, upper + (foot - top) * 0.5 / (rows + 0.3), glass)
        x += width


def _pole(x: float, ground: float, top: float, width: float, colour: Colour) -> Post:
    shaft = np.array([(x - width, ground), (x - width * 0.7, top), (x + width * 0.7, top), (x + width, ground)])
    return Post(y_frac=ground, parts=((shaft, colour),))


def _street(rng: np.random.Generator, width_px: int, height_px: int) -> Layout:
    canvas, horizon = _Canvas(rng, width_px, height_px), float(rng.uniform(0.24, 0.32))
    canvas.grade(0, horizon, (150, 180, 215), (205, 215, 225))
    _facades(canvas, 0.44)
    walk, road = _grey(rng, 140, 175, 5), _grey(rng, 80, 112, 4)
    canvas.box(0, 0.43, 1, 0.53, walk)
    canvas.box(0, 0.53, 1, 0.78, road)
    canvas.box(0, 0.525, 1, 0.54, _grey(rng, 175, 200, 3))
    canvas.box(0, 0.78, 1, 1, walk)
    canvas.box(0, 0.775, 1, 0.79, _grey(rng, 180, 205, 3))
    for i in range(9):
        canvas.box(i * 0.125, 0.638, i * 0.125 + 0.06, 0.648, (215, 212, 196))
    for i in range(14):
        canvas.polygon(
            [(i / 13 - 0.02, 0.79), (i / 13 - 0.017, 0.79), (i * 1.3 / 13 - 0.15, 1), (i * 1.3 / 13 - 0.156, 1)],
            _grey(rng, 115, 130, 3),
        )
    flip = bool(rng.random() < 0.5)
    west, east = (1.18, -0.18) if flip else (-0.18, 1.18)
    walkers = (("person", 0.9), ("animal", 0.1))
    others = (("person", 0.25), ("animal", 0.35), ("cyclist", 0.4))
    drivers, cyclists = (("car", 0.85), ("cyclist", 0.15)), (("car", 0.15), ("cyclist", 0.85))
    y_far, y_near, y_walk = rng.uniform(0.6, 0.62), rng.uniform(0.735, 0.76), rng.uniform(0.9, 0.95)
    lanes = (
        Lane(start=(-0.08, 0.5), end=(1.08, 0.5), period_s=float(rng.uniform(14, 20)), usual=(("person", 1.0),), other=others),
        Lane(
            start=(1.08, 0.515), end=(-0.08, 0.515), period_s=float(rng.uniform(14, 20)), usual=(("person", 1.0),), other=others
        ),
        Lane(start=(west, y_far), end=(east, y_far), period_s=float(rng.uniform(6, 9)), usual=drivers, other=cyclists),
        Lane(start=(east, y_near), end=(west, y_near), period_s=float(rng.uniform(6, 9)), usual=drivers, other=cyclists),
        Lane(
            start=(-0.1, y_walk),
            end=(1.1, y_walk),
            period_s=float(rng.uniform(8, 12)),
            usual=walkers,
            other=others,
            sway_frac=0.02,
        ),
        Lane(
            start=(1.1, 0.86), end=(-0.1, 0.86), period_s=float(rng.uniform(8, 12)), usual=walkers, other=others, sway_frac=0.02
        ),
    )
    xs = sorted(float(x) for x in rng.uniform(0.08, 0.92, 3))
    iron = _grey(rng, 50, 75, 4)
    posts = (_pole(xs[0], 0.83, 0.12, 0.006, iron), _pole(xs[2], 0.53, 0.16, 0.004, iron), _bin(xs[1], 0.98, rng))
    lamps = (
        Lamp(x_frac=xs[0], y_frac=0.12, ground_frac=0.84, radius_frac=0.2),
        Lamp(x_frac=xs[2], y_frac=0.16, ground_frac=0.55, radius_frac=0.17),
    )
    return Layout(
        background=canvas.textured(4, 5), adult_frac_at=(horizon, 0.62), lanes=lanes, lamps=lamps, posts=posts,
        fog_depth=_fog_depth(horizon, width_px, height_px),
    )  # fmt: skip


def _bin(x: float, ground: float, rng: np.random.Generator) -> Post:
    body = np.array([(x - 0.025, ground - 0.16), (x + 0.025, ground - 0.16), (x + 0.021, ground), (x - 0.021, ground)])
    lid = np.array(
        [(x - 0.03, ground - 0.18), (x + 0.03, ground - 0.18), (x + 0.03, ground - 0.155), (x - 0.03, ground - 0.155)]
    )
    colour = _grey(rng, 50, 110, 20)
    return Post(y_frac=ground, parts=((body, colour), (lid, _grey(rng, 35, 60, 4))))


def _bush(x: float, ground: float, size: float, rng: np.random.Generator) -> Post:
    green: Colour = (float(rng.uniform(40, 75)), float(rng.uniform(85, 125)), float(rng.uniform(35, 60)))
    angles = np.linspace(0, 2 * np.pi, 13)[:-1]
    parts = []
    for dx in (-0.6, 0.5, 0.0):
        radius = size * rng.uniform(0.75, 1.1, 12)
        leaf = np.stack(
            [x + 0.6 * size * dx + 0.56 * radius * np.cos(angles), ground - size * 0.8 + radius * np.sin(angles)], 1
        )
        parts.append((leaf, (green[0] + 14 * dx, green[1] + 18 * dx, green[2] + 10 * dx)))
    return Post(y_frac=ground, parts=tuple(parts))


def _yard(rng: np.random.Generator, width_px: int, height_px: int) -> Layout:
    canvas, horizon = _Canvas(rng, width_px, height_px), float(rng.uniform(0.16, 0.24))
    canvas.grade(0, horizon + 0.1, (160, 188, 218), (200, 212, 222))
    fence = _grey(rng, 110, 160, 14)
    canvas.box(0, horizon + 0.02, 1, horizon + 0.2, fence)
    for i in range(26):
        canvas.box(i / 25 - 0.003, horizon + 0.01, i / 25 + 0.003, horizon + 0.2, _grey(rng, 85, 110, 4))
    shed = rng.uniform(0.05, 0.6)
    canvas.box(shed, 0.06, shed + 0.3, horizon + 0.22, _grey(rng, 110, 180, 22))
    canvas.polygon([(shed - 0.03, 0.07), (shed + 0.15, -0.04), (shed + 0.33, 0.07)], _grey(rng, 80, 110, 15))
    canvas.box(shed + 0.1, 0.2, shed + 0.2, horizon + 0.22, _grey(rng, 60, 90, 8))
    lawn = bool(rng.random() < 0.5)
    ground: Colour = (98.0, 128.0, 78.0) if lawn else _grey(rng, 120, 160, 6)
    canvas.grade(horizon + 0.2, 1.0, tuple(0.9 * c for c in ground), tuple(1.05 * c for c in ground))  # type: ignore[arg-type]
    left = rng.uniform(0.1, 0.4)
    canvas.polygon(
        [(left + 0.2, horizon + 0.2), (left + 0.32, horizon + 0.2), (left + 0.6, 1), (left - 0.05, 1)], _grey(rng, 140, 170, 5)
    )
    people = (("person", 0.75), ("animal", 0.25))
    beasts = (("person", 0.2), ("animal", 0.5), ("cyclist", 0.3))
    riders = (("cyclist", 0.6), ("person", 0.3), ("animal", 0.1))
    park = horizon + 0.3
    lanes = (
        Lane(
            start=(-0.1, 0.58), end=(1.1, 0.66), period_s=float(rng.uniform(9, 13)), usual=people, other=beasts, sway_frac=0.04
        ),
        Lane(
            start=(1.1, 0.9), end=(-0.1, 0.72), period_s=float(rng.uniform(9, 13)), usual=people, other=beasts, sway_frac=0.03
        ),
        Lane(
            start=(float(shed + 0.15), horizon + 0.26),
            end=(float(rng.uniform(0.2, 0.8)), 1.3),
            period_s=18.0,
            usual=people,
            other=beasts,
        ),
        Lane(start=(-0.15, 0.8), end=(1.15, 0.8), period_s=float(rng.uniform(12, 18)), usual=riders, other=beasts),
        Lane(start=(1.25, 0.68), end=(-0.25, 0.68), period_s=float(rng.uniform(16, 24)), usual=(("car", 1.0),), other=beasts),
        Lane(start=(float(rng.uniform(0.08, 0.3)), park), end=(0, 0), period_s=60.0, usual=(("car", 1.0),), parked=True),
        Lane(
            start=(float(rng.uniform(0.65, 0.92)), park + 0.03), end=(0, 0), period_s=60.0, usual=(("car", 1.0),), parked=True
        ),
    )
    pole = float(rng.uniform(0.3, 0.7))
    posts = (_bush(float(rng.uniform(0.02, 0.98)), 0.99, 0.12, rng), _pole(pole, 0.62, 0.05, 0.005, _grey(rng, 60, 90, 5)))
    lamps = (
        Lamp(x_frac=pole, y_frac=0.05, ground_frac=0.66, radius_frac=0.26),
        Lamp(x_frac=float(shed + 0.15), y_frac=0.15, ground_frac=horizon + 0.3, radius_frac=0.16),
    )
    return Layout(
        background=canvas.textured(6, 6), adult_frac_at=(horizon, 0.56), lanes=lanes, lamps=lamps, posts=posts,
        fog_depth=_fog_depth(horizon, width_px, height_px),
    )  # fmt: skip


def _hall(rng: np.random.Generator, width_px: int, height_px: int) -> Layout:
    canvas, horizon = _Canvas(rng, width_px, height_px), float(rng.uniform(0.18, 0.26))
    foot = horizon + 0.2
    canvas.grade(0, foot, _grey(rng, 165, 205, 6), _grey(rng, 150, 190, 6))
    door = rng.uniform(0.1, 0.7)
    canvas.box(door, 0.12, door + 0.16, foot, _grey(rng, 70, 130, 16))
    canvas.box(door + 0.078, 0.12, door + 0.082, foot, (60, 60, 60))
    for _ in range(3):
        x = rng.uniform(0, 0.85)
        canvas.box(x, 0.06, x + rng.uniform(0.06, 0.12), 0.06 + rng.uniform(0.08, 0.14), _grey(rng, 80, 200, 35))
    tile = _grey(rng, 140, 185, 6)
    canvas.grade(foot, 1.0, tuple(0.88 * c for c in tile), tile)  # type: ignore[arg-type]
    seam: Colour = tuple(0.85 * c for c in tile)  # type: ignore[assignment]
    for row in np.geomspace(0.03, 1 - foot, 9):
        canvas.box(0, foot + row - 0.003, 1, foot + row, seam)
    for i in range(-8, 21):
        canvas.polygon(
            [
                (0.5 + (i - 6) * 0.055, foot),
                (0.502 + (i - 6) * 0.055, foot),
                (0.505 + (i - 6) * 0.2, 1),
                (0.5 + (i - 6) * 0.2, 1),
            ],
            seam,
        )
    crowd, others = (("person", 0.95), ("animal", 0.05)), (("animal", 0.45), ("cyclist", 0.4), ("person", 0.15))
    lanes = (
        Lane(
            start=(-0.08, 0.55), end=(1.08, 0.57), period_s=float(rng.uniform(9, 13)), usual=crowd, other=others, sway_frac=0.02
        ),
        Lane(
            start=(1.08, 0.66), end=(-0.08, 0.64), period_s=float(rng.uniform(9, 13)), usual=crowd, other=others, sway_frac=0.03
        ),
        Lane(start=(-0.1, 0.8), end=(1.1, 0.74), period_s=float(rng.uniform(9, 13)), usual=crowd, other=others, sway_frac=0.03),
        Lane(
            start=(1.12, 0.9), end=(-0.12, 0.93), period_s=float(rng.uniform(10, 15)), usual=crowd, other=others, sway_frac=0.02
        ),
        Lane(
            start=(float(door + 0.08), foot + 0.05),
            end=(float(rng.uniform(0.2, 0.8)), 1.35),
            period_s=14.0,
            usual=crowd,
            other=others,
        ),
    )
    stone = _grey(rng, 150, 195, 5)
    xs = (float(rng.uniform(0.12, 0.35)), float(rng.uniform(0.65, 0.9)))
    posts = (_pole(xs[0], 0.7, 0.0, 0.022, stone), _pole(xs[1], 0.6, 0.0, 0.018, stone))
    lamps = (Lamp(x_frac=float(door + 0.08), y_frac=0.1, ground_frac=foot + 0.1, radius_frac=0.2),)
    return Layout(
        background=canvas.textured(3, 4), adult_frac_at=(horizon, 0.56), lanes=lanes, lamps=lamps, posts=posts,
        fog_depth=_fog_depth(horizon, width_px, height_px), indoor=True,
    )  # fmt: skip


LAYOUTS: dict[str, Callable[[np.random.Generator, int, int], Layout]] = {"street": _street, "yard": _yard, "hall": _hall}
