"""How good an allocation was: as published, and as the released code reports it, with different names (card section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from cluster.cilantro.types import FloatArray


@dataclass(frozen=True, kw_only=True)
class Published:
    """social: W_S, mean utility; egalitarian: W_E, smallest utility; fairness: F_NJC, smallest ratio of a utility to the one with an
    equal (entitled) part, at most 1; useful: part of the units that somebody needed (1/R sum min(a_j, d_j))."""

    social: float
    egalitarian: float
    fairness: float
    useful: float

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Released:
    """allocation_fairness: 1 - max over j of max(0, min(d_j, e_j) - a_j) / e_j, and the same with the mean and the sum in place of the
    maximum; resource_loss: min(unallocated + over-allocated, unmet) / R."""

    allocation_fairness: float
    allocation_fairness_mean: float
    allocation_fairness_sum: float
    resource_loss: float

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


M = TypeVar("M", Published, Released)


def published(utilities: FloatArray, entitled: FloatArray, units: FloatArray, demands: FloatArray, total: float) -> Published:
    """One moment. utilities: with the units given; entitled: with the entitlement in place of them. A job whose utility is 0 with its
    entitlement cannot complain."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(entitled > 0, utilities / entitled, 1.0)
    return Published(
        social=float(utilities.mean()),
        egalitarian=float(utilities.min()),
        fairness=float(min(1.0, ratio.min())),
        useful=float(np.minimum(units, demands).sum() / total),
    )


def released(units: FloatArray, demands: FloatArray, entitlements: FloatArray, total: float) -> Released:
    """One moment. entitlements: in units."""
    complaint = np.maximum(0.0, np.minimum(demands, entitlements) - units) / entitlements
    unmet = float(np.maximum(0.0, demands - units).sum())
    idle = float(total - units.sum() + np.maximum(0.0, units - demands).sum())
    return Released(
        allocation_fairness=float(1 - complaint.max()),
        allocation_fairness_mean=float(1 - complaint.mean()),
        allocation_fairness_sum=float(1 - complaint.sum()),
        resource_loss=min(idle, unmet) / total,
    )


def mean_of(moments: Sequence[M]) -> M:
    """Time average of each."""
    rows = [moment.as_dict() for moment in moments]
    return type(moments[0])(**{name: float(np.mean([row[name] for row in rows])) for name in rows[0]})
