"""What Salus's decisions speak of: a job's two classes of memory, and the lane it was given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

#: `infer`: a live camera's frames, which other jobs may delay by one iteration at most; `learn`: everything else.
Role = Literal["infer", "learn"]

#: Sums are compared with this tolerance, one byte: the rounding of a sum of decimals must not turn "exactly full" into "too much".
BYTE_MIB = 2.0**-20


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
