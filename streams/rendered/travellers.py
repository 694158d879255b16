"""Who is where at time t, in closed form: every lane sends off travellers at jittered moments, each drawn from its own seed.

Nothing is stepped: the travellers of any moment follow from (scene seed, lane, departure number), so that frames can be made
in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from streams.rendered.conditions import Schedule
from streams.rendered.shapes import Look, random_look

#: Walking, pedalling, driving speed in adult heights per second, and stride (gait radians per adult height travelled).
_SPEED = {"person": 0.75, "cyclist": 1.9, "car": 3.2, "animal": 1.0}
_STRIDE = {"person": 7.0, "cyclist": 3.0, "car": 5.0, "animal": 9.0}
_NUMBER_OFFSET = 1_000_000  # departure numbers may be negative, seeds may not


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A way across the picture. start, end: ground points as picture fractions; period_s: mean time between departures;
    usual, other: (kind, weight) mixes between which `Condition.mix` moves; parked: one traveller who never moves."""

    start: tuple[float, float]
    end: tuple[float, float]
    period_s: float
    usual: tuple[tuple[str, float], ...]
    other: tuple[tuple[str, float], ...] = ()
    sway_frac: float = 0.0
    parked: bool = False

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, weight in (*self.usual, *self.other) if weight > 0}


@dataclass(frozen=True, kw_only=True)
class Traveller:
    """One figure at one moment. x_frac, y_frac: ground point; forward: heads right; phase: of its gait (0 = standing)."""

    kind: str
    look: Look
    x_frac: float
    y_frac: float
    forward: bool
    phase: float


@dataclass(frozen=True, kw_only=True)
class _Trip:
    """What is drawn once per departure."""

    depart_s: float
    draw: float
    look: Look
    speed_factor: float
    y_offset: float
    pause_at: float
    pause_s: float
    sway_phase: float


@lru_cache(maxsize=4096)
def _trip(seed: int, lane_index: int, number: int, period_s: float) -> _Trip:
    rng = np.random.default_rng((seed, lane_index, number + _NUMBER_OFFSET))
    depart_s = (number + 0.7 * float(rng.random())) * period_s
    pauses = float(rng.random()) < 0.35
    return _Trip(
        depart_s=depart_s,
        draw=float(rng.random()),
        look=random_look(rng),
        speed_factor=float(rng.uniform(0.85, 1.2)),
        y_offset=float(rng.uniform(-0.018, 0.018)),
        pause_at=float(rng.uniform(0.25, 0.75)),
        pause_s=float(rng.uniform(3, 9)) if pauses else 0.0,
        sway_phase=float(rng.uniform(0, 2 * math.pi)),
    )


def choose(usual: tuple[tuple[str, float], ...], other: tuple[tuple[str, float], ...], mix: float, draw: float) -> str:
    """The kind that `draw` (0-1) falls on when the weights are `usual` moved by `mix` towards `other`."""
    weights: dict[str, float] = {}
    for table, share in ((usual, 1 - mix), (other or usual, mix)):
        total = sum(weight for _, weight in table)
        for kind, weight in table:
            weights[kind] = weights.get(kind, 0.0) + share * weight / total
    edge = 0.0
    for kind, weight in sorted(weights.items()):
        edge += weight
        if draw < edge:
            return kind
    return max(weights, key=lambda kind: weights[kind])


def travellers(
    lanes: tuple[Lane, ...], seed: int, t_s: float, schedule: Schedule, adult_frac_at: tuple[float, float], aspect: float
) -> list[Traveller]:
    """Everyone on the lanes at t_s. adult_frac_at: (horizon, factor): an adult at ground row y is factor * (y - horizon)
    picture heights tall; aspect: picture width / height. A traveller's class is settled by the mix at its departure."""
    present: list[Traveller] = []
    for index, lane in enumerate(lanes):
        if lane.parked:
            present.append(_parked(lane, _trip(seed, index, 0, lane.period_s)))
            continue
        for number in _numbers(lane, t_s, adult_frac_at, aspect):
            trip = _trip(seed, index, number, lane.period_s)
            kind = choose(lane.usual, lane.other, schedule.at(trip.depart_s).mix, trip.draw)
            traveller = _on_the_way(lane, trip, kind, t_s, adult_frac_at, aspect)
            if traveller is not None:
                present.append(traveller)
    return present


def _parked(lane: Lane, trip: _Trip) -> Traveller:
    kind = choose(lane.usual, lane.usual, 0.0, trip.draw)
    return Traveller(
        kind=kind, look=trip.look, x_frac=lane.start[0], y_frac=lane.start[1], forward=trip.sway_phase > math.pi, phase=0.0
    )


def _lane_heights(lane: Lane, adult_frac_at: tuple[float, float], aspect: float) -> float:
    """Length of the lane in adult heights (taken at the middle of the lane)."""
    horizon, factor = adult_frac_at
    middle = factor * (0.5 * (lane.start[1] + lane.end[1]) - horizon)
    length = math.hypot((lane.end[0] - lane.start[0]) * aspect, lane.end[1] - lane.start[1])
    return length / max(middle, 0.02)


def _numbers(lane: Lane, t_s: float, adult_frac_at: tuple[float, float], aspect: float) -> range:
    """Departure numbers that can still be on the way at t_s."""
    slowest = min(_SPEED[kind] for kind in lane.kinds) * 0.85
    longest_s = _lane_heights(lane, adult_frac_at, aspect) / slowest + 9.0
    return range(math.floor((t_s - longest_s) / lane.period_s) - 1, math.floor(t_s / lane.period_s) + 1)


def _on_the_way(
    lane: Lane, trip: _Trip, kind: str, t_s: float, adult_frac_at: tuple[float, float], aspect: float
) -> Traveller | None:
    heights = _lane_heights(lane, adult_frac_at, aspect)
    steady = trip.speed_factor if kind != "car" else 1.0  # cars of one lane keep their distance
    moving_s = heights / (_SPEED[kind] * steady)
    age_s = t_s - trip.depart_s
    pause_s = trip.pause_s if kind in ("person", "animal") else 0.0
    pause_from_s = trip.pause_at * moving_s
    walked_s = age_s if age_s < pause_from_s else max(pause_from_s, age_s - pause_s)
    progress = walked_s / moving_s
    if not 0.0 <= progress <= 1.0:
        return None
    standing = pause_from_s <= age_s < pause_from_s + pause_s
    sway = lane.sway_frac * math.sin(2 * math.pi * progress + trip.sway_phase)
    return Traveller(
        kind=kind,
        look=trip.look,
        x_frac=lane.start[0] + progress * (lane.end[0] - lane.start[0]),
        y_frac=lane.start[1] + progress * (lane.end[1] - lane.start[1]) + trip.y_offset + sway,
        forward=lane.end[0] >= lane.start[0],
        phase=0.0 if standing else progress * heights * _STRIDE[kind],
    )
