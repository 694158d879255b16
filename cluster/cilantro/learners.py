"""The table of learners, and learners from what was kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.cilantro.bins import BinLearner
from cluster.cilantro.fallbacks import Profiled, Proxy, Stated
from cluster.cilantro.monotone import MonotoneLearner
from cluster.cilantro.tree import TreeLearner
from cluster.cilantro.types import Learner


def _proxy(data: dict[str, Any]) -> Proxy:
    points = tuple((float(metric), float(value)) for metric, value in data["to_value"])
    return Proxy(to_value=points, learner=from_dict(data["learner"]))


#: Name in `as_dict()["made"]` -> inverse of `as_dict`.
LEARNERS: dict[str, Callable[[dict[str, Any]], Learner]] = {
    "tree": TreeLearner.from_dict,
    "bins": BinLearner.from_dict,
    "monotone": MonotoneLearner.from_dict,
    "profiled": Profiled.from_dict,
    "proxy": _proxy,
    "stated": Stated.from_dict,
}


def from_dict(data: dict[str, Any]) -> Learner:
    """The learner that `as_dict` wrote. ValueError for anything else."""
    made = data.get("made") if isinstance(data, dict) else None
    if made not in LEARNERS:
        raise ValueError(f"unknown learner {made!r}, known: {', '.join(LEARNERS)}")
    try:
        return LEARNERS[made](data)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"a {made} learner cannot be read: {type(error).__name__}: {error}") from None
