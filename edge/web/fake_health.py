"""A `HealthSource` without a box, for tests of the Health page and for a look."""

from __future__ import annotations

import time

from edge.diagnostics import bundle
from edge.health import BackupView, DiskView, DoctorView, FindingView, HealthView, LogLineView, WorkerView
from edge.metrics import Gathered
from edge.status import NoteView
from edge.web.fake import EPOCH_UTC, FakeSource

GIB = 2**30


class FakeHealth:
    """One camera in quarantine. asked: what was asked of it, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.degraded: tuple[str, ...] = (
            "camera gate is in quarantine: gate/inference: it failed 20 times and did nothing else",
        )
        self.doctor = DoctorView()
        self.backups: list[BackupView] = []

    def health(self) -> HealthView:
        status = FakeSource().status()
        return HealthView(
            ready=True, degraded=self.degraded, doctor=self.doctor,
            workers=(
                WorkerView(name="gate/inference", camera="gate", mode="given_up", silent_s=0, restarts=5, reason="<b>it failed</b>"),
                WorkerView(name="yard/inference", camera="yard", mode="well", silent_s=0.2, restarts=1),
                WorkerView(name="sampler", mode="well", silent_s=0, restarts=0),
            ),
            faults=status.faults, notes=(NoteView(at_utc=EPOCH_UTC, text="the camera is left alone", camera="gate"),),
            disk=(DiskView(what="samples", size_bytes=3 * GIB), DiskView(what="database", size_bytes=5 * 2**20)),
            disk_free_bytes=40 * GIB, backups=tuple(self.backups), software="0.1.0", uptime_s=90_000,
            resident_bytes=700 * 2**20, threads=31, fleet="member of the fleet of https://fleet.example:8470, wish 2.7 in force",
        )  # fmt: skip

    def log(self, *, after: int, level: str, limit: int) -> tuple[LogLineView, ...]:
        lines = (
            LogLineView(number=1, at_utc=EPOCH_UTC, level="INFO", text="driftbox: window 3 closed"),
            LogLineView(number=2, at_utc=EPOCH_UTC, level="WARNING", text="driftbox: <i>dock</i>: no frames"),
        )
        return tuple(x for x in lines if x.number > after and (level == "INFO" or x.level == level))[-limit:]

    def examine(self) -> DoctorView:
        self.asked.append("doctor")
        findings = (
            FindingView(check="disk", level="ok", text="40.0 GiB free"),
            FindingView(check="camera dock", level="bad", text="no frame within 8 s", remedy="is the camera on?"),
        )
        self.doctor = DoctorView(at_utc=time.time(), findings=findings)
        return self.doctor

    def diagnostics(self) -> bytes:
        self.asked.append("diagnostics")
        return bundle({"status.json": lambda: FakeSource().status().model_dump_json()})

    def back_up(self) -> BackupView:
        self.asked.append("backup")
        self.backups.append(
            BackupView(name="20260921-141320-by-hand", created_utc=EPOCH_UTC, reason="by-hand", size_bytes=2**20)
        )
        return self.backups[-1]

    def gather(self) -> Gathered:
        return Gathered(status=FakeSource().status(), degraded=self.degraded)
