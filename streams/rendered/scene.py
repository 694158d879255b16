"""A rendered camera: `RenderedScene.render(t_s)` gives the picture and the exact truth, in any order of moments.

Truth: the box around the *visible* part of every figure, counted on an id mask that is painted with the same polygons, in the
same depth order, as the picture. A figure is left out of the truth when it is too hidden or small to be asked of a detector:
fewer than `MIN_VISIBLE_PX` visible pixels, a visible box less than `MIN_SIDE_PX` high or wide (both at 320x180, scaled with the
picture), less than `MIN_VISIBLE_FRAC` of its pixels inside the picture not hidden by nearer things, or less than
`MIN_INSIDE_FRAC` of its outline's box inside the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from configs.units import CLASSES
from scheduler.types import Detections
from streams import effects
from streams.rendered import shapes
from streams.rendered.conditions import Condition, Schedule
from streams.rendered.layouts import Layout, make_layout, optical_depth
from streams.rendered.travellers import Traveller, travellers

MIN_VISIBLE_PX = 40
MIN_SIDE_PX = 5
MIN_VISIBLE_FRAC = 0.35
MIN_INSIDE_FRAC = 0.35

_FIGURES: dict[str, tuple[tuple[str, Callable[[shapes.Look, float], list[shapes.Part]]], ...]] = {
    "person": (("person", shapes.person),),
    "cyclist": (("bicycle", shapes.bicycle), ("person", shapes.rider)),
    "car": (("car", shapes.car),),
    "animal": (("animal", shapes.animal),),
}
_FOG_COLOUR = np.array((192.0, 196.0, 200.0), np.float32)
_NIGHT_TINT = np.array((0.84, 0.94, 1.16), np.float32)
_LAMP_TINT = np.array((1.0, 0.84, 0.58), np.float32)
_HEADLIGHT_TINT = np.array((1.0, 0.97, 0.86), np.float32)
_NIGHT_AMBIENT = 0.22
_BUMP_SHIFT_FRAC, _BUMP_TURN_DEG = 0.13, 9.0


@dataclass
class _Figure:
    """A figure or a post in picture pixels. class_id: -1 for posts. outline: (x0, y0, x1, y1) before clipping."""

    ground_y: float
    class_id: int
    parts: list[tuple[np.ndarray, shapes.Colour]]
    depth: float
    outline: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    painted_px: int = 0


class RenderedScene:
    """One procedural camera; a pure function of (kind, seed, size, schedule) and the moment.

    kind: 'street', 'yard' or 'hall'. `render` costs about 5-10 ms at 320x180 on one core."""

    def __init__(
        self, kind: str, seed: int, width_px: int = 320, height_px: int = 180, schedule: Schedule | None = None
    ) -> None:
        self.kind, self.seed, self.width_px, self.height_px = kind, seed, width_px, height_px
        self.schedule = schedule or Schedule()
        self.layout: Layout = make_layout(kind, seed, width_px, height_px)
        rng = np.random.default_rng((seed, 77))
        angle = float(rng.uniform(0, 2 * math.pi))
        self._bump_direction = (math.cos(angle), 0.6 * math.sin(angle), 1.0 if rng.random() < 0.5 else -1.0)
        self._sun = (float(rng.uniform(0.2, 0.8)), float(rng.uniform(0.05, 0.3)))
        self._lamp_light = _lamp_light(self.layout, width_px, height_px)
        self._ground = lru_cache(maxsize=8)(self._make_ground)

    def render(self, t_s: float) -> tuple[np.ndarray, Detections]:
        """The picture at t_s, uint8 (H, W, 3) RGB, and its truth (score 1.0). t_s may be any number, in any order."""
        condition = self.schedule.at(t_s)
        view = self._view(condition.bump)
        people = travellers(
            self.layout.lanes, self.seed, t_s, self.schedule, self.layout.adult_frac_at, self.width_px / self.height_px
        )
        figures = self._figures(people, view)
        image = self._ground(round(condition.fog, 3), round(condition.bump, 3)).copy()
        self._cast_shadows(image, figures, condition)
        ids = np.zeros(image.shape[:2], np.uint8)
        for number, figure in enumerate(figures, start=1):
            self._paint(image, ids, figure, number, condition.fog)
        truth = self._truth(figures, ids)
        return self._finish(image, people, condition, view, t_s), truth

    # --- geometry -----------------------------------------------------------------------------------------------------

    def _view(self, bump: float) -> np.ndarray:
        """Affine (2, 3) from the unbumped picture to the camera's present view."""
        turn = _BUMP_TURN_DEG * bump * self._bump_direction[2]
        view = cv2.getRotationMatrix2D((self.width_px / 2, self.height_px / 2), turn, 1.0 + 0.06 * bump)
        view[:, 2] += np.array(self._bump_direction[:2]) * bump * _BUMP_SHIFT_FRAC * self.width_px
        return view

    def _adult_px(self, y_frac: float) -> float:
        horizon, factor = self.layout.adult_frac_at
        return max(factor * (y_frac - horizon), 0.02) * self.height_px

    def _figures(self, people: list[Traveller], view: np.ndarray) -> list[_Figure]:
        """Everything that can hide something, back to front."""
        figures = [figure for who in people for figure in self._place(who, view)]
        horizon = self.layout.adult_frac_at[0]
        for post in self.layout.posts:
            parts = [(_transform(points * (self.width_px, self.height_px), view), colour) for points, colour in post.parts]
            figures.append(_Figure(post.y_frac * self.height_px, -1, parts, optical_depth(post.y_frac - horizon)))
        figures.sort(key=lambda figure: figure.ground_y)
        return figures[:254]

    def _place(self, who: Traveller, view: np.ndarray) -> list[_Figure]:
        scale = self._adult_px(who.y_frac) * who.look.size
        foot = np.array((who.x_frac * self.width_px, who.y_frac * self.height_px))
        flip = np.array((scale if who.forward else -scale, -scale))
        depth = optical_depth(who.y_frac - self.layout.adult_frac_at[0])
        placed = []
        for order, (class_name, draw) in enumerate(_FIGURES[who.kind]):
            parts = [(_transform(points * flip + foot, view), colour) for points, colour in draw(who.look, who.phase)]
            everything = np.concatenate([points for points, _ in parts])
            (x0, y0), (x1, y1) = everything.min(0), everything.max(0)
            if x1 < 0 or y1 < 0 or x0 > self.width_px or y0 > self.height_px:
                continue
            figure = _Figure(float(foot[1]) + 0.01 * order, CLASSES.index(class_name), parts, depth, (x0, y0, x1, y1))
            placed.append(figure)
        return placed

    # --- painting -----------------------------------------------------------------------------------------------------

    def _make_ground(self, fog: float, bump: float) -> np.ndarray:
        ground, depth = self.layout.background, self.layout.fog_depth
        if bump > 0:
            size = (self.width_px, self.height_px)
            view = self._view(bump)
            ground = cv2.warpAffine(ground, view, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
            depth = cv2.warpAffine(depth, view, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)[:, :, None]
        if fog <= 0:
            return ground
        through = np.exp(-fog * depth)
        return effects.to_uint8(_FOG_COLOUR + through * (ground.astype(np.float32) - _FOG_COLOUR))

    def _cast_shadows(self, image: np.ndarray, figures: list[_Figure], condition: Condition) -> None:
        strength = (
            0.42 * (1 - condition.dark) * (1 - condition.fog) * (1 - 0.7 * condition.rain) * (0.5 if self.layout.indoor else 1)
        )
        if strength < 0.02:
            return
        mask = np.zeros(image.shape[:2], np.uint8)
        for figure in figures:
            if figure.class_id < 0:
                continue
            x0, y0, x1, y1 = figure.outline
            height = 0.09 * (y1 - y0) + 1
            centre = (round((x0 + x1 + 0.25 * (y1 - y0)) * 8), round((y1 - 0.3 * height) * 16))
            axes = (round((x1 - x0) * 0.58 * 16), round(height * 16))
            cv2.ellipse(mask, centre, axes, 0, 0, 360, 255, -1, cv2.LINE_AA, 4)
        keep = 255 - cv2.convertScaleAbs(mask, alpha=strength)
        cv2.multiply(image, cv2.merge([keep, keep, keep]), image, 1 / 255)

    def _paint(self, image: np.ndarray, ids: np.ndarray, figure: _Figure, number: int, fog: float) -> None:
        through = math.exp(-fog * figure.depth)
        for points, colour in figure.parts:
            scaled = [np.rint(points * 16).astype(np.int32)]
            seen = _FOG_COLOUR + through * (np.array(colour) - _FOG_COLOUR) if fog > 0 else colour
            cv2.fillPoly(image, scaled, tuple(float(c) for c in seen), cv2.LINE_AA, 4)
            cv2.fillPoly(ids, scaled, number, cv2.LINE_8, 4)
        if figure.class_id >= 0:
            figure.painted_px = int(np.count_nonzero(self._window(ids, figure) == number))

    def _window(self, ids: np.ndarray, figure: _Figure) -> np.ndarray:
        x0, y0, x1, y1 = figure.outline
        return ids[max(0, math.floor(y0) - 1) : math.ceil(y1) + 2, max(0, math.floor(x0) - 1) : math.ceil(x1) + 2]

    # --- truth --------------------------------------------------------------------------------------------------------

    def _truth(self, figures: list[_Figure], ids: np.ndarray) -> Detections:
        boxes, classes = [], []
        for number, figure in enumerate(figures, start=1):
            box = self._visible_box(figure, ids, number) if figure.class_id >= 0 else None
            if box is not None:
                boxes.append(box)
                classes.append(figure.class_id)
        if not boxes:
            return Detections.empty()
        return Detections(
            xyxy=np.array(boxes, np.float32), score=np.ones(len(boxes), np.float32), class_id=np.array(classes, np.int64)
        )

    def _visible_box(self, figure: _Figure, ids: np.ndarray, number: int) -> tuple[float, float, float, float] | None:
        mine = self._window(ids, figure) == number
        rows, columns = np.flatnonzero(mine.any(1)), np.flatnonzero(mine.any(0))
        if not len(rows):
            return None
        size = math.sqrt(self.width_px * self.height_px / (320 * 180))
        height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
        visible = int(np.count_nonzero(mine))
        too_small = visible < MIN_VISIBLE_PX * size**2 or min(height, width) < MIN_SIDE_PX * size
        if too_small or visible < MIN_VISIBLE_FRAC * figure.painted_px or self._inside_frac(figure) < MIN_INSIDE_FRAC:
            return None
        left, top = max(0, math.floor(figure.outline[0]) - 1), max(0, math.floor(figure.outline[1]) - 1)
        return (left + float(columns[0]), top + float(rows[0]), left + float(columns[-1]) + 1, top + float(rows[-1]) + 1)

    def _inside_frac(self, figure: _Figure) -> float:
        x0, y0, x1, y1 = figure.outline
        inside = (min(x1, self.width_px) - max(x0, 0.0)) * (min(y1, self.height_px) - max(y0, 0.0))
        return inside / max((x1 - x0) * (y1 - y0), 1e-6)

    # --- light and weather --------------------------------------------------------------------------------------------

    def _finish(
        self, image: np.ndarray, people: list[Traveller], condition: Condition, view: np.ndarray, t_s: float
    ) -> np.ndarray:
        moment = (self.seed * 1_000_003 + round(t_s * 1000) * 7919) % (1 << 40)
        lit = image.astype(np.float32)
        if condition.dark > 0:
            lit = self._light(lit, people, condition, view)
        lit = effects.rain(lit, condition.rain, moment)
        lit = effects.glare(lit, condition.glare, *self._sun)
        lit = effects.sensor_noise(lit, 1.5 + 7.5 * condition.dark + 1.0 * condition.fog, moment)
        return effects.to_uint8(lit)

    def _light(self, lit: np.ndarray, people: list[Traveller], condition: Condition, view: np.ndarray) -> np.ndarray:
        """Ambient light falls and turns blue; lamps and headlights come on."""
        dark = condition.dark
        on = min(1.0, max(0.0, (dark - 0.3) / 0.4))
        ambient = (1 - dark * (1 - _NIGHT_AMBIENT)) * (1 + dark * (_NIGHT_TINT - 1))
        size = (self.width_px, self.height_px)
        lamps = self._lamp_light if condition.bump == 0 else cv2.warpAffine(self._lamp_light, view, size)
        light = ambient + (0.8 * on * lamps)[:, :, None] * _LAMP_TINT
        if self.layout.indoor or on == 0:
            return lit * light
        beams, spots = self._headlights(people, view)
        light += (0.85 * on * beams)[:, :, None] * _HEADLIGHT_TINT
        return lit * light + (255 * on * spots)[:, :, None] * _HEADLIGHT_TINT

    def _headlights(self, people: list[Traveller], view: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Beams on the ground and the glowing lamps themselves, each float32 (H, W) in 0-1; drawn at a quarter of the size."""
        small = (max(1, self.height_px // 4), max(1, self.width_px // 4))
        beams, spots = np.zeros(small, np.uint8), np.zeros(small, np.uint8)
        for who in people:
            if who.kind not in ("car", "cyclist") or who.phase == 0.0:
                continue
            lamp, reach = ((1.05, 0.38), 1.0) if who.kind == "car" else ((0.34, 0.5), 0.45)
            scale = self._adult_px(who.y_frac) * who.look.size
            flip = np.array((scale if who.forward else -scale, -scale))
            foot = np.array((who.x_frac * self.width_px, who.y_frac * self.height_px))
            cone = np.array([lamp, (lamp[0] + 2.4 * reach, 0.3), (lamp[0] + 2.2 * reach, -0.2), (lamp[0] + 0.2, 0.0)])
            points = _transform(np.vstack([[lamp], cone]) * flip + foot, view) * 4
            cv2.fillPoly(beams, [np.rint(points[1:]).astype(np.int32)], 255, cv2.LINE_AA, 4)
            radius = max(8, round(0.07 * scale * 4 * reach))
            cv2.circle(spots, (round(points[0, 0]), round(points[0, 1])), radius, 255, -1, cv2.LINE_AA, 4)
        size = (self.width_px, self.height_px)
        soft = self.height_px / 4 / 45
        beams = cv2.GaussianBlur(beams, (0, 0), 1.6 * soft)
        spots = cv2.GaussianBlur(spots, (0, 0), 0.8 * soft)
        wide = [cv2.resize(layer, size, interpolation=cv2.INTER_LINEAR).astype(np.float32) / 255 for layer in (beams, spots)]
        return wide[0], wide[1]


def _transform(points: np.ndarray, view: np.ndarray) -> np.ndarray:
    return points @ view[:, :2].T + view[:, 2]


def _lamp_light(layout: Layout, width_px: int, height_px: int) -> np.ndarray:
    """Cones under the lamps, float32 (H, W) in 0-1."""
    light = np.zeros((height_px, width_px), np.float32)
    for lamp in layout.lamps:
        cone = np.zeros((height_px, width_px), np.uint8)
        x, top, ground = lamp.x_frac * width_px, lamp.y_frac * height_px, lamp.ground_frac * height_px
        reach = lamp.radius_frac * width_px
        wedge = np.array([(x, top), (x + reach, ground), (x - reach, ground)])
        cv2.fillPoly(cone, [np.rint(wedge * 16).astype(np.int32)], 120, cv2.LINE_AA, 4)
        cv2.ellipse(cone, (round(x), round(ground)), (round(reach), round(0.3 * reach)), 0, 0, 360, 255, -1)
        cv2.circle(cone, (round(x), round(top)), max(2, height_px // 60), 255, -1)
        light = np.maximum(light, cv2.GaussianBlur(cone, (0, 0), height_px / 22).astype(np.float32) / 255)
    return light
