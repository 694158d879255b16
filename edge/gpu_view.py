"""How a box's compute is shared: the schema of `/api/v1/gpu`, and the seam to whoever knows (`edge.box_gpu`)."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from edge.status import DeviceView, FaultView, JobMemoryView, ShareView, View

#: Most closed windows of one answer.
MAX_WINDOWS = 100


class JobSeries(View):
    """One job over time; the retrainings of a camera's windows are one job here. Without a camera: all jobs of a kind together. The
    lists are as long as the history's `at_utc`; null: the job did not run then."""

    job: str = Field(description="Without the window's number: gate/train. All of a kind: its kind.")
    camera: str | None = None
    kind: str = Field(description="inference, retraining, preparation, gate or other.")
    promised_pct: tuple[float | None, ...]
    received_pct: tuple[float | None, ...]
    wanted_frac: tuple[float | None, ...] = Field(
        description="Part of the time in which it had work; of several that which had most."
    )
    held_mib: tuple[float | None, ...] = Field(description="Memory it held; null also where that cannot be seen.")


class DeviceSeries(View):
    """One GPU over time."""

    index: int
    name: str
    memory_used_mib: tuple[float | None, ...] = Field(description="By everybody, not only this box.")
    utilisation_pct: tuple[float | None, ...]
    temperature_c: tuple[float | None, ...]
    power_w: tuple[float | None, ...]
    throttled: tuple[bool, ...] = Field(description="Its clocks were held down.")


class LaneView(View):
    """A memory lane: jobs in it take turns, so one iteration's memory serves them all."""

    lane: int
    size_mib: float
    jobs: tuple[str, ...]


class WindowShares(View):
    """A closed window: means over the time for which each job ran in it."""

    window: int
    closed_utc: float
    shares: tuple[ShareView, ...]


class GpuView(View):
    """Everything about compute."""

    backend: str = Field(description="How shares are kept: lanes, mps, green, mig or none.")
    capacity_pct: float = Field(description="What may be promised, percent of one GPU (on a box without one: of one core).")
    spare_pct: float = Field(description="What nobody is promised now.")
    unit: str = Field(description="What 100 percent are.")
    every_s: float = Field(description="Seconds between two points of the history.")
    span_s: float = Field(description="Seconds over which `shares` are measured.")
    shares: tuple[ShareView, ...] = ()
    memory: tuple[JobMemoryView, ...] = ()
    lanes: tuple[LaneView, ...] = ()
    devices: tuple[DeviceView, ...] = ()
    faults: tuple[FaultView, ...] = ()
    at_utc: tuple[float, ...] = Field(default=(), description="Times of the history, oldest first.")
    jobs: tuple[JobSeries, ...] = Field(
        default=(), description="Of the camera that was asked for; else one for each kind of job."
    )
    device_history: tuple[DeviceSeries, ...] = ()
    windows: tuple[WindowShares, ...] = Field(default=(), description="Newest first.")
    change_settle_s: float = Field(description="Seconds until changed shares hold.")
    change_gpu_s: float = Field(description="Compute that a change takes, per job.")
    change_blind_s: float = Field(description="Seconds in which a changed inference job analyses nothing.")


class GpuSource(Protocol):
    """Called from web threads. Raises StorageError."""

    def gpu(self, windows: int, camera: str | None = None) -> GpuView:
        """camera: whose jobs the history is about; None: all together, by kind."""
