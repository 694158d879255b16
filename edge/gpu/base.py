"""The seam that turns promised shares into compute: `ComputeBackend` opens lanes, a job runs its iterations through its lane.

100 pct is one GPU; on the CPU backend 100 pct is one core. Implementations: `edge/gpu/lanes.py` (CPU now; CUDA streams later).
One contract test (`tests/contract/test_compute_backend.py`) runs over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ShareReport:
    """What a job was promised and got over the last `span_s` seconds. backlogged_frac: part of the span in which it wanted to run."""

    job: str
    promised_pct: float
    received_pct: float
    backlogged_frac: float
    iterations: int
    span_s: float


class Lane(Protocol):
    """One job's way to the device. Used by exactly one thread, the one that runs the job."""

    job: str

    def iteration(self) -> AbstractContextManager[None]:
        """Waits until the job's share allows an iteration, lets the body run, charges the compute it used.
        Raises JobCancelled when the job was cancelled (before or while waiting)."""

    def checkpoint(self) -> None:
        """A yield point inside an iteration (between two layers, say): charges what was used so far and waits when the share
        is used up, so that a long iteration neither overdraws nor blocks. Raises JobCancelled like `iteration`."""


class ComputeBackend(Protocol):
    name: str
    capacity_pct: int

    def open_lane(self, job: str) -> Lane:
        """A lane for `job`, with share 0 until `set_shares` names it. Raises ValueError when the job has one already."""

    def close_lane(self, job: str) -> None: ...

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """Replaces all shares at once; jobs not named get 0 (they wait). Raises ValueError when the sum exceeds capacity_pct."""

    def cancel(self, job: str) -> None:
        """Makes the job's next `iteration` or `checkpoint` raise JobCancelled. No-op for an unknown job."""

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        """Promised and received shares over the last `span_s` seconds, per job."""
