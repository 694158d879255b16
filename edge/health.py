"""What the Health page asks: the seam between the web interface and what looks after the box. `edge.box_health` is the real one."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from edge.status import FaultView, NoteView, View


class FindingView(View):
    """One line of `driftbox doctor`."""

    check: str
    level: str = Field(description="ok, warn (the box runs, but something will be missed) or bad.")
    text: str
    remedy: str = Field(default="", description="What to do about it.")


class DoctorView(View):
    """What doctor has found last."""

    running: bool = Field(default=False, description="It looks just now.")
    at_utc: float | None = Field(default=None, description="When it looked last; null: not since the start.")
    findings: tuple[FindingView, ...] = ()


class WorkerView(View):
    """A worker of the box in the watchdog's care."""

    name: str
    camera: str = Field(default="", description="Whose it is; empty: the box's own.")
    mode: str = Field(
        description="well, pausing (is to be started anew), tried (was started anew just now) or given_up (until somebody lifts that)."
    )
    silent_s: float = Field(description="Seconds for which nothing was heard although something should have been.")
    restarts: int = Field(description="How often it was started anew since the box started.")
    reason: str = Field(default="", description="What is or was wrong.")


class DiskView(View):
    """What the box takes of the disk."""

    what: str = Field(description="database, samples, models, events, media, forms, backups, exports or other.")
    size_bytes: int


class BackupView(View):
    """One back-up."""

    name: str
    created_utc: float
    reason: str = Field(description="by-hand, daily, before-upgrade, before-restore.")
    size_bytes: int = Field(description="Files that it shares with the box included.")


class HealthView(View):
    """How the box is."""

    ready: bool
    degraded: tuple[str, ...] = Field(default=(), description="Why the box is not as it should be; empty: all is well.")
    doctor: DoctorView = DoctorView()
    workers: tuple[WorkerView, ...] = ()
    faults: tuple[FaultView, ...] = ()
    notes: tuple[NoteView, ...] = ()
    disk: tuple[DiskView, ...] = ()
    disk_free_bytes: int = 0
    backups: tuple[BackupView, ...] = ()
    software: str = ""
    uptime_s: float = 0.0
    resident_bytes: int = Field(default=0, description="Memory of the box's process.")
    threads: int = 0
    fleet: str = Field(default="", description="The box as a member of its fleet, in a sentence; empty: it has joined none.")


class LogLineView(View):
    """One line of the log."""

    number: int = Field(description="Rises by one with each line.")
    at_utc: float
    level: str
    text: str


class HealthSource(Protocol):
    """Called from worker threads."""

    def health(self) -> HealthView:
        """Answers at once."""

    def log(self, *, after: int, level: str, limit: int) -> tuple[LogLineView, ...]: ...

    def examine(self) -> DoctorView:
        """Lets doctor look, beside everything else; returns at once. One look at a time."""

    def diagnostics(self) -> bytes:
        """A zip for whoever helps, without any secret. Takes seconds."""

    def back_up(self) -> BackupView:
        """Makes a back-up. Raises StorageError."""
