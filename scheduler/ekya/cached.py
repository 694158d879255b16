"""Reusing models instead of retraining: Ekya section 6.5. Per window, pick one of the models that earlier windows left behind.

Four rules, as the text has them (the released code of three is broken: the first never updates its minimum, the third returns the
first row, the fourth a fixed one):
    classes   least Euclidean distance between the class histograms, each normalised to sum 1
    time      the same time of day (equal label)
    count     least difference in objects per frame
    place     the same place (equal label)
Ties, and the two rules by label, go to the newest model. Nothing is trained; all GPUs serve inference, evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest

from scheduler.ekya.baselines import no_retrain
from scheduler.types import CachedModel, Plan, Snapshot, StreamPlan, StreamView, Traits

#: How far a kept model's window is from the present one; infinite: not to be used.
Distance = Callable[[Traits, Traits], float]


def class_distance(a: Traits, b: Traits) -> float:
    """Euclidean distance of two class histograms; classes that only one has count as 0 in the other."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip_longest(_shares(a), _shares(b), fillvalue=0.0)))


def _shares(traits: Traits) -> list[float]:
    total = sum(traits.class_frac)
    return [x / total for x in traits.class_frac] if total > 0 else list(traits.class_frac)


def count_distance(a: Traits, b: Traits) -> float:
    return abs(a.objects_per_frame - b.objects_per_frame)


def time_distance(a: Traits, b: Traits) -> float:
    return 0.0 if a.daypart and a.daypart == b.daypart else math.inf


def place_distance(a: Traits, b: Traits) -> float:
    return 0.0 if a.place and a.place == b.place else math.inf


RULES: dict[str, Distance] = {
    "classes": class_distance,
    "time": time_distance,
    "count": count_distance,
    "place": place_distance,
}


def select(traits: Traits, kept: Sequence[CachedModel], rule: str) -> CachedModel | None:
    """The model of `kept` (newest first) nearest to `traits` by a rule of `RULES`; None when none may be used."""
    distance = RULES[rule]
    nearest = min(kept, key=lambda model: distance(traits, model.traits), default=None)
    return None if nearest is None or math.isinf(distance(traits, nearest.traits)) else nearest


def cached(snapshot: Snapshot, *, rule: str) -> Plan:
    """Each stream with known traits names the model to serve, source `cached`, no share. What it will show is not predicted by the
    rule, so the expected quality is that of the serving model."""
    plan = no_retrain(snapshot)
    streams = tuple(_reused(view, planned, rule) for view, planned in zip(snapshot.streams, plan.streams, strict=True))
    return replace(plan, policy=f"cached({rule})", streams=streams)


def _reused(view: StreamView, planned: StreamPlan, rule: str) -> StreamPlan:
    model = select(view.traits, view.cached, rule) if view.traits is not None else None
    return replace(planned, retrain=model.name, source="cached") if model is not None else planned
