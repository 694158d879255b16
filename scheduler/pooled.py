"""What a camera's retrainings are worth, told by other cameras' profiles: no profile of its own. Ours.

Ekya profiles every camera in every window (section 4). Where a window's sample is small a profile costs as much as the retraining
that it decides on (on real video 4 to 7 GPU-s for a retraining of 3 to 8, and three times that where training is dear). What it
tells has two parts: *how much* a retraining wins (Ekya's a_gamma - a_0), which its own history and the other cameras' tell as well
(`scheduler.prep.expected_gain`), and *which configuration* wins how much of it at what cost, which is alike for cameras with one
model and one list of configurations. So some cameras are profiled, and for the others

    end_quality(c) = quality + gain * part(c) / best part
    part(c)        = mean over profiles of (their gain of c / their best gain), and PRIOR_WEIGHT times what its epochs say
    cost(c)        = mean over profiles of (their cost of c for one label that teaches) * labels that teach

What epochs say is measured: of the same labels five epochs won 0.82 of what fifteen won (62 pairs of retrainings on sixteen real
videos, judged on frames that nobody learned from; docs/decisions/0113), which is e / (e + h) with h = 2. That is of cameras that had
never learned: of later retrainings five won 0.68 (h = 4). And ten epochs that train a tenth of the layers won 0.76 of what fifteen
won that train half of them, no more than five such (docs/decisions/0115), so epochs count by the root of the layers that they train:

    e(c) = epochs * sqrt(min(1, layers_frac / HALF_OF_LAYERS))

The first profiles alone say that all win alike: they are of the cameras with most to win, which any retraining wins. A profile
counts for LASTS_WINDOWS windows; then somebody is profiled again. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.types import RetrainConfig, RetrainOption

#: So many cameras are profiled before the others are told by them.
ENOUGH = 2
#: So long a camera's profile speaks for the others.
LASTS_WINDOWS = 12
#: So many epochs win half of what endless ones would, of a first retraining and of a later one.
HALF_EPOCHS, HALF_EPOCHS_LATER = 2.0, 4.0
#: ... and of one that cameras share (`scheduler.together`): many scenes take longer to learn than one.
HALF_TOGETHER, HALF_TOGETHER_LATER = 5.0, 10.0
#: Of a model's layers, from which on training more of them wins nothing more.
HALF_OF_LAYERS = 0.5
#: What epochs say counts as much as so many profiles: without regard to layers, and with it.
PRIOR_WEIGHT, LAYERED_WEIGHT = 4, 8
#: A profile whose best configuration wins less has no shape: it is noise.
LEAST_GAIN = 0.02


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """options: as predicted for a camera of quality `start` (0-1) with `taught` labels to learn from."""

    options: tuple[RetrainOption, ...]
    start: float
    taught: int

    def best_gain(self) -> float:
        return max((o.end_quality - self.start for o in self.options), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Prior:
    """What is known of configurations without a profile. parts: of what endless training wins, by name; weight: in profiles."""

    parts: Mapping[str, float]
    weight: float


def by_epochs(configs: Sequence[RetrainConfig]) -> Prior:
    """What epochs alone say."""
    return Prior(parts={c.name: c.epochs / (c.epochs + HALF_EPOCHS) for c in configs}, weight=PRIOR_WEIGHT)


def by_layers(configs: Sequence[RetrainConfig], *, later: bool, together: bool = False) -> Prior:
    """What epochs and the layers that they train say. later: of a camera that has learned; together: of a lesson that cameras share."""
    first, then = (HALF_TOGETHER, HALF_TOGETHER_LATER) if together else (HALF_EPOCHS, HALF_EPOCHS_LATER)
    half = then if later else first
    worth = {c.name: c.epochs * math.sqrt(min(1.0, c.layers_frac / HALF_OF_LAYERS)) for c in configs}
    return Prior(parts={name: epochs / (epochs + half) for name, epochs in worth.items()}, weight=LAYERED_WEIGHT)


def options(
    known: Sequence[Profiled], *, quality: float, gain: float, taught: int, least_sd: float, prior: Prior | None = None
) -> tuple[RetrainOption, ...]:  # fmt: skip
    """What each configuration is worth to a camera of this quality (0-1) that should win `gain` with its best one, with `taught` labels
    to learn from; none where no profile has a shape. least_sd: how sure such a promise is at most."""
    shaped = [p for p in known if p.best_gain() >= LEAST_GAIN]
    parts = {name: _mean_part(shaped, name, prior) for name in _names(shaped)}
    best = max(parts.values(), default=0.0)
    if best <= 0:
        return ()
    return tuple(
        RetrainOption(
            name=name, end_quality=min(1.0, max(0.0, quality + gain * part / best)), cost_gpu_s=_mean_cost(known, name) * max(1, taught),
            quality_sd=max(least_sd, abs(gain) / 2),
        )
        for name, part in parts.items()
    )  # fmt: skip


def label_gpu_s(known: Sequence[Profiled]) -> dict[str, float]:
    """What a retraining by each configuration costs for one label that teaches, the mean over profiles; empty where there is none."""
    return {name: _mean_cost(known, name) for name in _names(known)}


def _names(known: Sequence[Profiled]) -> list[str]:
    return list(dict.fromkeys(o.name for p in known for o in p.options))


def _mean_part(known: Sequence[Profiled], name: str, prior: Prior | None) -> float:
    parts = [(o.end_quality - p.start) / p.best_gain() for p in known for o in p.options if o.name == name]
    if prior is None or name not in prior.parts:
        return sum(parts) / len(parts)
    return (sum(parts) + prior.weight * prior.parts[name]) / (len(parts) + prior.weight)


def _mean_cost(known: Sequence[Profiled], name: str) -> float:
    costs = [o.cost_gpu_s / max(1, p.taught) for p in known for o in p.options if o.name == name]
    return sum(costs) / len(costs)
