"""What the scheduling core of `lanes` (`edge.gpu.executor`) asks of a machine: where work runs, how long it took, what memory it took.

The core owns threads, lane tokens, pacing, admission and accounts, and knows no torch. A `Device` is a CPU (`edge.gpu.lanes`) or a GPU
(`edge.gpu.cuda_lanes`); a `Seat` is one job's place on it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from edge.gpu.base import DeviceFacts, Role
from scheduler.salus.types import MemoryNeed


class Seat(Protocol):
    """One job's place on a device. Called by the job's own thread, outside the core's lock, unless said otherwise."""

    def iteration(self, lane: int | None, *, measure: bool) -> AbstractContextManager[None]:
        """Surrounds the body of an iteration. lane: the memory lane it runs in (its stream), None: not admitted yet, it runs
        aside to be measured. measure: this iteration's memory is wanted. On leaving, whatever the body launched is done, also when the
        body raised. May raise: the core then ends the iteration and passes the error on."""

    def settle(self) -> None:
        """At a checkpoint: waits until what was launched so far is done, so that `used_s` is exact. Nothing to do on a CPU."""

    def resume(self) -> None:
        """After a checkpoint, outside the lock, when the job may go on: what it waited there is not compute. Nothing to do on a CPU."""

    def used_s(self) -> float:
        """Seconds of compute at 100 pct that the job has used since it has the seat; never falls, stands still between iterations. From
        any thread, under the core's lock: never waits, and may lag behind while the device works."""

    def usage(self) -> MemoryNeed | None:
        """What the last measured iteration found: persistent, held after its end (with what the job brought along); ephemeral, its peak
        beyond that. None when it was not measured. Under the core's lock."""

    def close(self) -> None:
        """The job has gone. Under the core's lock, from any thread."""


@runtime_checkable
class Sparing(Protocol):
    """A seat that can leave a part of an iteration out of its account."""

    def beside(self) -> AbstractContextManager[None]:
        """Inside an iteration: `used_s` stands still."""


class Device(Protocol):
    """memory_mib: what the jobs may hold together; parallel: pieces that run at the same time without slowing one another down;
    job_max_pct: most that one job can receive; measures_always: memory of every iteration is known for nothing. promised_mib: what the
    admitted jobs may hold together; written by the core, before an iteration is measured."""

    name: str
    capacity_pct: int
    memory_mib: float
    parallel: int
    job_max_pct: float
    measures_always: bool
    promised_mib: float

    def seat(self, job: str, role: Role) -> Seat: ...

    def used_mib(self) -> float | None:
        """What the whole process holds there, for comparison with the sum of the jobs; None: unknown."""

    def facts(self) -> tuple[DeviceFacts, ...]: ...
