"""What Salus's decisions speak of: a job's two classes of memory, and the lane it was given."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """A job's memory (card, section 2). persistent_mib: P_i, what it holds as long as it lives (parameters, optimizer state,
    bookkeeping); ephemeral_mib: E_i, most that one of its iterations takes beyond that and gives back at the end.
    Raises ValueError for a number that is negative or not finite."""

    persistent_mib: float
    ephemeral_mib: float

    def __post_init__(self) -> None:
        for name in ("persistent_mib", "ephemeral_mib"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} must be a number of MiB, 0 or more, got {value}")

    @property
    def peak_mib(self) -> float:
        """P_i + E_i."""
        return self.persistent_mib + self.ephemeral_mib
