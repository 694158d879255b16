"""The seam that turns promised shares into compute: `ComputeBackend` opens lanes, a job runs its iterations through its lane.

100 pct is one GPU; on the CPU backend 100 pct is one core. Implementations, all over one contract test
(`tests/contract/test_compute_backend.py`):

    lanes   one process, iteration by iteration (Salus): on a CPU by tokens (`edge/gpu/lanes.py`), on a GPU by streams
    mps     a process per job under NVIDIA MPS, which fixes a client's percentage when its context is made
    green   SM partitions inside one process (CUDA green contexts)
    mig     the outer split of a device that was partitioned by its operator
    none    no shares at all: jobs run as they come, and only what they received is reported
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from scheduler.salus.types import MemoryNeed

#: `infer`: a live camera's frames, which training may delay by one iteration at most; `learn`: everything else.
Role = Literal["infer", "learn"]

#: Longest that a thread which computes in Python keeps its lock from the others, for `sys.setswitchinterval`. A frame takes it dozens of
#: times, once for each operation of the network; with Python's 5 ms a model that is being built delays a frame by several intervals.
SWITCH_S = 0.0005


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareReport:
    """What a job was promised and got over the last `span_s` seconds. backlogged_frac: part of the span in which it wanted to run."""

    job: str
    promised_pct: float
    received_pct: float
    backlogged_frac: float
    iterations: int
    span_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMemory:
    """What is known of a job's memory. need: declared or measured, None before either; measured: over its first iterations; lane: the
    memory lane it shares (None: waits for memory, or the backend has no lanes); lane_mib: that lane's size; held_mib: what it holds
    now, None where that cannot be seen."""

    job: str
    need: MemoryNeed | None
    measured: bool
    lane: int | None
    lane_mib: float
    held_mib: float | None = None


@dataclass(frozen=True, kw_only=True)
class ChangeCost:
    """What it takes to change the shares of jobs that run. settle_s: seconds until new shares hold; gpu_s: compute that the change
    itself takes, per job whose share changes; blind_s: seconds in which a changed inference job analyses nothing."""

    settle_s: float = 0.0
    gpu_s: float = 0.0
    blind_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """One device as its driver reports it; None where it does not say. ecc_errors: uncorrected since the last reset; throttled: why the
    clocks are held down, empty: they are not; problem: why it cannot be used (lost, wants a reset), empty: it can."""

    index: int
    name: str
    memory_total_mib: float
    memory_used_mib: float
    uuid: str = ""
    utilisation_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    ecc_errors: int | None = None
    mig: bool = False
    problem: str = ""


#: memory: took more than it said; leak: holds more and more; hung: no sign of life inside an iteration; crashed: its process or
#: context died; device: the device itself is in trouble.
FaultCode = Literal["memory", "leak", "hung", "crashed", "device"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What went wrong with a job, for the operator. text: what happened and what was done about it; remedy: what to do; removed: the
    job's lane is of no use any more (its iterations raise JobError), the others go on. job: '' when it is the device's."""

    at_s: float
    job: str
    code: FaultCode
    text: str
    remedy: str
    removed: bool = False


class Lane(Protocol):
    """One job's way to the device. Used by exactly one thread, the one that runs the job."""

    job: str

    def iteration(self) -> AbstractContextManager[None]:
        """Waits until the job's share allows an iteration, lets the body run, charges the compute it used.
        Raises JobCancelled when the job was cancelled (before or while waiting), JobError when it was removed for a fault: the
        message says what to do."""

    def checkpoint(self) -> None:
        """A yield point inside an iteration (between two layers, say): charges what was used so far and waits when the share
        is used up, so that a long iteration neither overdraws nor blocks. Raises JobCancelled like `iteration`."""


@runtime_checkable
class TurnLane(Protocol):
    """A lane of a processor on which frames take turns: all that has to be computed for a frame is done in its turn, by threads that
    serve many cameras and never wait for one of them (`edge.step_pool`)."""

    @property
    def takes_turns(self) -> bool: ...

    def ask(self, wake: Callable[[], None]) -> AbstractContextManager[None] | float:
        """`Lane.iteration` without waiting: one that has begun and has to be entered next, or the seconds after which to ask again;
        `wake` is called when it should be asked sooner, from any thread, and must return at once. Raises as `Lane.iteration`."""

    def beside(self) -> AbstractContextManager[None]:
        """Inside an iteration: what is computed in here is not charged to the job's share."""


class ComputeBackend(Protocol):
    name: str
    capacity_pct: int

    def open_lane(self, job: str, *, role: Role = "learn", need: MemoryNeed | None = None) -> Lane:
        """A lane for `job`, with share 0 until `set_shares` names it. need: declared memory; without it the first iterations measure it.
        A job whose memory does not fit now waits inside its first `iteration`. Raises ValueError when the job has one already, JobError
        when its memory can never fit."""

    def close_lane(self, job: str) -> None: ...

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """Replaces all shares at once; jobs not named get 0 (they wait). Raises ValueError when the sum exceeds capacity_pct."""

    def expect(self, job: str, total_s: float) -> None:
        """How much compute a job will take in all, as far as is known now: for policies that go by it (`srtf`, which runs jobs of
        unknown length last). No-op for an unknown job."""

    def cancel(self, job: str) -> None:
        """Makes the job's next `iteration` or `checkpoint` raise JobCancelled. No-op for an unknown job."""

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        """Promised and received shares over the last `span_s` seconds, per job."""

    def memory(self) -> dict[str, JobMemory]:
        """What is known of each open job's memory."""

    def change_cost(self) -> ChangeCost:
        """What changing shares costs on this backend: measured where it was done before, else a documented guess."""

    def facts(self) -> tuple[DeviceFacts, ...]:
        """The devices behind it; empty on a CPU."""

    def faults(self) -> tuple[Fault, ...]:
        """What went wrong so far, oldest first, the last 50. Asked every second or so: this is also when a job that hangs is noticed."""

    def close(self) -> None:
        """Cancels every job and gives back what the backend holds (daemon, contexts, pools). Idempotent."""
