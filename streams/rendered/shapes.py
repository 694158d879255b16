"""Vector figures: people, cyclists, cars and animals as coloured polygons, posed by a gait phase.

A figure is a list of parts, back to front. A part is (points float (N, 2), colour RGB). Coordinates: x forward (to the right),
y up, the ground at y = 0, and 1.0 = the height of a standing adult, so that one scale in pixels places every class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Colour = tuple[float, float, float]
Part = tuple[np.ndarray, Colour]
Point = tuple[float, float]

_CIRCLE = np.stack(
    [np.cos(np.linspace(0, 2 * np.pi, 14, endpoint=False)), np.sin(np.linspace(0, 2 * np.pi, 14, endpoint=False))], 1
)

_SHIRTS: tuple[Colour, ...] = (
    (196, 44, 44), (40, 84, 190), (232, 232, 226), (42, 44, 50), (224, 180, 40), (48, 138, 74), (226, 118, 38), (128, 66, 148),
    (120, 170, 210), (150, 100, 66),
)  # fmt: skip
_TROUSERS: tuple[Colour, ...] = ((36, 44, 78), (46, 46, 48), (110, 96, 74), (78, 88, 98), (150, 140, 120), (70, 40, 34))
_SKINS: tuple[Colour, ...] = ((236, 196, 166), (206, 154, 116), (150, 104, 74), (96, 66, 48))
_HAIRS: tuple[Colour, ...] = ((40, 30, 24), (96, 62, 34), (190, 156, 96), (150, 150, 150), (20, 20, 22))
_PAINTS: tuple[Colour, ...] = (
    (190, 32, 36), (34, 62, 140), (226, 228, 230), (34, 36, 40), (150, 154, 160), (214, 172, 40), (44, 100, 66), (116, 44, 52),
    (90, 140, 180),
)  # fmt: skip
_FURS: tuple[Colour, ...] = ((132, 88, 48), (206, 178, 128), (48, 42, 40), (228, 222, 212), (168, 122, 78), (104, 100, 98))


@dataclass(frozen=True, kw_only=True)
class Look:
    """What stays the same about one traveller: colours and build. variant: 0-1, picks among body forms."""

    top: Colour
    bottom: Colour
    skin: Colour
    hair: Colour
    paint: Colour
    fur: Colour
    build: float
    variant: float
    size: float


def random_look(rng: np.random.Generator) -> Look:
    """A look drawn from `rng`."""

    def pick(palette: tuple[Colour, ...]) -> Colour:
        base = palette[int(rng.integers(len(palette)))]
        jitter = rng.normal(0, 8, 3)
        return tuple(float(np.clip(c + j, 8, 248)) for c, j in zip(base, jitter, strict=True))  # type: ignore[return-value]

    return Look(
        top=pick(_SHIRTS), bottom=pick(_TROUSERS), skin=pick(_SKINS), hair=pick(_HAIRS), paint=pick(_PAINTS), fur=pick(_FURS),
        build=float(rng.uniform(0.85, 1.25)), variant=float(rng.random()), size=float(rng.uniform(0.88, 1.1)),
    )  # fmt: skip


def shade(colour: Colour, factor: float) -> Colour:
    return (min(255.0, colour[0] * factor), min(255.0, colour[1] * factor), min(255.0, colour[2] * factor))


def _ellipse(cx: float, cy: float, rx: float, ry: float) -> np.ndarray:
    return _CIRCLE * (rx, ry) + (cx, cy)


def _ring(cx: float, cy: float, radius: float, width: float) -> np.ndarray:
    """A wheel one can see through: the outer circle, then the inner one backwards, as one polygon."""
    closed = np.vstack([_CIRCLE, _CIRCLE[:1]])
    return np.vstack([closed * radius, closed[::-1] * (radius - width)]) + (cx, cy)


def _limb(start: Point, end: Point, width_start: float, width_end: float) -> np.ndarray:
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy) or 1.0
    nx, ny = -dy / length / 2, dx / length / 2
    return np.array(
        [
            (start[0] + nx * width_start, start[1] + ny * width_start),
            (end[0] + nx * width_end, end[1] + ny * width_end),
            (end[0] - nx * width_end, end[1] - ny * width_end),
            (start[0] - nx * width_start, start[1] - ny * width_start),
        ]
    )


def _swing(origin: Point, length: float, angle: float) -> Point:
    """End of a limb that hangs from `origin`, `angle` radians forward of straight down."""
    return origin[0] + length * math.sin(angle), origin[1] - length * math.cos(angle)


def _leg(hip: Point, angle: float, bend: float, width: float, cloth: Colour) -> list[Part]:
    knee = _swing(hip, 0.25, angle)
    foot = _swing(knee, 0.23, angle - bend)
    shoe = np.array([(foot[0] - 0.03, foot[1] - 0.03), (foot[0] + 0.09, foot[1] - 0.03), (foot[0] + 0.02, foot[1] + 0.03)])
    return [
        (_limb(hip, knee, width, width * 0.8), cloth),
        (_limb(knee, foot, width * 0.8, width * 0.5), cloth),
        (shoe, (30, 26, 26)),
    ]


def _arm(shoulder: Point, angle: float, width: float, cloth: Colour, skin: Colour) -> list[Part]:
    elbow = _swing(shoulder, 0.16, angle)
    hand = _swing(elbow, 0.15, angle + 0.35)
    return [(_limb(shoulder, elbow, width, width), cloth), (_limb(elbow, hand, width * 0.9, width * 0.7), skin)]


def _head(cx: float, cy: float, look: Look) -> list[Part]:
    head = [(_ellipse(cx, cy, 0.062, 0.078), look.skin)]
    if look.variant > 0.75:
        brim = np.array([(cx - 0.08, cy + 0.02), (cx + 0.12, cy + 0.02), (cx + 0.05, cy + 0.09), (cx - 0.06, cy + 0.09)])
        return [*head, (brim, look.paint)]
    return [*head, (_ellipse(cx - 0.015, cy + 0.035, 0.062, 0.05), look.hair)]


def person(look: Look, phase: float) -> list[Part]:
    """A walking adult; phase in radians, one step per pi. Phase 0 = standing."""
    swing, width = math.sin(phase), 0.105 * look.build
    hip, shoulder = (0.0, 0.5), (0.01, 0.79)
    parts = _arm(shoulder, -0.55 * swing, 0.06, shade(look.top, 0.7), shade(look.skin, 0.8))
    parts += _leg(hip, -0.5 * swing, 0.6 * max(0.0, math.cos(phase)) * abs(swing), width, shade(look.bottom, 0.75))
    parts += _leg(hip, 0.5 * swing, 0.6 * max(0.0, -math.cos(phase)) * abs(swing), width, look.bottom)
    half = 0.1 * look.build
    torso = np.array(
        [(-half * 0.8, 0.46), (half * 0.8, 0.46), (half, 0.78), (half * 0.5, 0.84), (-half * 0.5, 0.84), (-half, 0.78)]
    )
    if look.variant < 0.2:
        skirt = np.array([(-half * 0.8, 0.52), (half * 0.8, 0.52), (half * 1.5, 0.26), (-half * 1.5, 0.26)])
        parts.append((skirt, look.bottom))
    if 0.2 <= look.variant < 0.4:
        parts.append((_ellipse(-half - 0.04, 0.68, 0.07, 0.13), look.paint))  # backpack
    parts.append((torso, look.top))
    parts += _head(0.02, 0.915, look)
    return parts + _arm(shoulder, 0.55 * swing, 0.06, shade(look.top, 0.88), look.skin)


def bicycle(look: Look, phase: float) -> list[Part]:
    """A bicycle without its rider."""
    tyre, frame = (28, 28, 30), look.paint
    rear, front, crank, saddle, bar = (-0.33, 0.2), (0.33, 0.2), (-0.02, 0.2), (-0.13, 0.5), (0.24, 0.54)
    parts: list[Part] = [(_ring(*rear, 0.2, 0.035), tyre), (_ring(*front, 0.2, 0.035), tyre)]
    tubes = ((rear, crank), (rear, saddle), (crank, saddle), (crank, (0.23, 0.47)), (saddle, (0.23, 0.47)), (bar, front))
    parts += [(_limb(a, b, 0.032, 0.032), frame) for a, b in tubes]
    spoke = _swing(rear, 0.17, phase)
    parts += [(_limb(rear, spoke, 0.015, 0.015), (150, 150, 150)), (_ellipse(*crank, 0.045, 0.045), (60, 60, 62))]
    parts.append((_limb((-0.2, 0.52), (-0.06, 0.52), 0.045, 0.03), tyre))
    return [*parts, (_limb(bar, (0.3, 0.58), 0.035, 0.03), tyre)]


def rider(look: Look, phase: float) -> list[Part]:
    """The person on `bicycle`, pedalling."""
    hip, shoulder, hand = (-0.12, 0.56), (0.06, 0.86), (0.27, 0.6)
    parts: list[Part] = []
    for turn, cloth in ((phase + math.pi, shade(look.bottom, 0.75)), (phase, look.bottom)):
        foot = (-0.02 + 0.09 * math.cos(turn), 0.2 + 0.09 * math.sin(turn))
        knee = (0.5 * (hip[0] + foot[0]) + 0.13, 0.5 * (hip[1] + foot[1]) + 0.05)
        parts += [
            (_limb(hip, knee, 0.1, 0.08), cloth),
            (_limb(knee, foot, 0.08, 0.05), cloth),
            (_ellipse(*foot, 0.06, 0.03), (30, 26, 26)),
        ]
    torso = np.array([(-0.2, 0.54), (-0.04, 0.5), (0.14, 0.82), (0.06, 0.9), (-0.04, 0.86)])
    parts.append((torso, look.top))
    parts.append((_limb(shoulder, hand, 0.06, 0.045), shade(look.top, 0.85)))
    return parts + _head(0.12, 0.98, look)


def car(look: Look, phase: float) -> list[Part]:
    """A car seen from the side: saloon, hatchback or van by `variant`. About 2.2 long and 0.75-0.95 high."""
    paint, glass, trim = look.paint, (70, 88, 104), shade(look.paint, 0.6)
    if look.variant < 0.45:
        roof, panes, nose = [(-0.66, 0.5), (-0.36, 0.78), (0.22, 0.78), (0.52, 0.5)], ((-0.55, -0.06), (0.0, 0.42)), 1.1
    elif look.variant < 0.8:
        roof, panes, nose = [(-0.98, 0.48), (-0.86, 0.8), (0.16, 0.8), (0.5, 0.5)], ((-0.86, -0.2), (-0.14, 0.4)), 1.02
    else:
        roof, panes, nose = [(-1.04, 0.46), (-1.02, 0.95), (0.5, 0.95), (0.84, 0.52)], ((-0.1, 0.2), (0.26, 0.7)), 1.08
    top_y = roof[1][1]
    body = np.array([(-nose, 0.18), (-nose, 0.46), (-nose + 0.08, 0.54), (nose - 0.3, 0.52), (nose, 0.4), (nose, 0.18)])
    parts: list[Part] = [(np.array(roof), shade(paint, 0.95)), (body, paint)]
    for left, right in panes:
        slope_l = 0.16 if left == panes[0][0] and look.variant < 0.8 else 0.0
        slope_r = 0.2 if right == panes[-1][1] else 0.0
        pane = [(left, 0.53), (left + slope_l, top_y - 0.06), (right - slope_r, top_y - 0.06), (right, 0.53)]
        parts.append((np.array(pane), glass))
    sill = np.array([(-nose, 0.18), (-nose, 0.25), (nose, 0.25), (nose, 0.18)])
    parts.append((sill, trim))
    parts.append(
        (np.array([(nose - 0.12, 0.36), (nose - 0.12, 0.44), (nose - 0.01, 0.4), (nose - 0.01, 0.34)]), (250, 244, 214))
    )
    parts.append((np.array([(-nose, 0.38), (-nose, 0.47), (-nose + 0.09, 0.47), (-nose + 0.09, 0.38)]), (180, 30, 30)))
    for x in (-0.66, 0.66):
        parts += [(_ellipse(x, 0.18, 0.19, 0.19), (24, 24, 26)), (_ellipse(x, 0.18, 0.1, 0.1), (150, 152, 156))]
        parts.append((_limb((x, 0.18), _swing((x, 0.18), 0.09, phase), 0.03, 0.03), (90, 90, 94)))
    return parts


def animal(look: Look, phase: float) -> list[Part]:
    """A dog-like animal (or a longer-legged one, by `variant`), walking. About 0.75 long and 0.55 high."""
    fur, dark = look.fur, shade(look.fur, 0.7)
    tall = 0.08 if look.variant > 0.6 else 0.0
    back = 0.3 + tall
    parts: list[Part] = []
    for x, offset, cloth in ((-0.2, 0.0, dark), (0.17, math.pi, dark), (-0.24, math.pi, fur), (0.21, 0.0, fur)):
        foot = _swing((x, back), back - 0.01, 0.45 * math.sin(phase + offset))
        parts.append((_limb((x, back), foot, 0.085, 0.05), cloth))
    wag = 0.12 * math.sin(2.1 * phase)
    parts.append((_limb((-0.28, back + 0.06), (-0.42, back + 0.2 + wag), 0.05, 0.03), fur))
    parts.append((_ellipse(-0.02, back + 0.04, 0.3, 0.11), fur))
    parts.append((_limb((0.2, back + 0.06), (0.32, back + 0.22), 0.13, 0.1), fur))
    parts.append((_ellipse(0.35, back + 0.23, 0.1, 0.075), fur))
    parts.append((_limb((0.38, back + 0.21), (0.5, back + 0.18), 0.08, 0.05), shade(fur, 0.85)))
    ear = np.array([(0.27, back + 0.26), (0.34, back + 0.27), (0.28, back + (0.4 if tall else 0.2))])
    return [*parts, (ear, dark)]
