"""How a running box is: `edge.health.HealthSource` and `edge.metrics.MetricsSource` over what looks after it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from configs.errors import DriftboxError, redact
from configs.schema import BoxConfig
from edge.clock import Clock
from edge.diagnostics import bundle, config_text, database_text, journal_text, versions_text
from edge.disk_use import DiskUse
from edge.doctor import CHECKS, Finding, check_camera, guarded
from edge.health import BackupView, DiskView, DoctorView, FindingView, HealthView, LogLineView, WorkerView
from edge.log_ring import LogRing
from edge.metrics import Gathered, ProcessUse, render
from edge.software import software_version
from edge.status import BoxStatus, StatusSource
from edge.store.backup import DATABASE, Backup, list_backups, make_backup, prune
from edge.watchdog.live import Report, Watchdog

log = logging.getLogger("driftbox")

#: Reason of the back-ups that the box makes by itself, and how often it looks whether one is due.
DAILY = "daily"
LOOK_S = 600.0
DAY_S = 86_400.0
#: A back-up list is read from the disk at most so often.
LIST_S = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Sources:
    """What it is asked of. config: as it is in force now; outbox: messages that wait, None: no broker is configured;
    fleet: a line about the fleet, '' the box has joined none."""

    status: StatusSource
    root: Path
    config: Callable[[], BoxConfig]
    watchdog: Watchdog
    ring: LogRing
    clock: Clock
    outbox: Callable[[], int | None] = lambda: None
    fleet: Callable[[], str] = str


class BoxHealth:
    """See the module. Every method may be called from any thread."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._disk = DiskUse(sources.root, sources.clock.monotonic_s)
        self._process = psutil.Process()
        self._lock = threading.Lock()
        self._doctor = DoctorView()
        self._backups: tuple[Backup, ...] = ()
        self._backups_s = float("-inf")

    # --- the page -----------------------------------------------------------------------------------------------------

    def health(self) -> HealthView:
        status, use = self._from.status.status(), self._use()
        with self._lock:
            doctor = self._doctor
        return HealthView(
            ready=status.ready, degraded=self._from.watchdog.degraded(), doctor=doctor,
            workers=tuple(worker_view(report) for report in self._from.watchdog.reports()), faults=status.faults, notes=status.notes,
            disk=tuple(DiskView(what=what, size_bytes=size) for what, size in self._disk.bytes().items()),
            disk_free_bytes=self._disk.free_bytes(), backups=tuple(backup_view(b) for b in reversed(self._list())),
            software=software_version(), uptime_s=max(0.0, status.now_utc - status.started_utc), resident_bytes=use.resident_bytes,
            threads=use.threads, fleet=self._from.fleet(),
        )  # fmt: skip

    def log(self, *, after: int, level: str, limit: int) -> tuple[LogLineView, ...]:
        lines = self._from.ring.lines(after=after, level=level, limit=limit)
        return tuple(LogLineView(number=x.number, at_utc=x.at_utc, level=x.level, text=f"{x.logger}: {x.text}") for x in lines)

    def examine(self) -> DoctorView:
        with self._lock:
            if not self._doctor.running:
                self._doctor = self._doctor.model_copy(update={"running": True})
                threading.Thread(target=self._examine, name="doctor", daemon=True).start()
            return self._doctor

    def _examine(self) -> None:
        findings: list[Finding] = []
        try:
            findings = examine_running(self._from.config())
        finally:
            found = tuple(FindingView(**{k: v for k, v in asdict(f).items() if k != "exit_code"}) for f in findings)
            with self._lock:
                self._doctor = DoctorView(at_utc=self._from.clock.utc_s(), findings=found)

    def back_up(self) -> BackupView:
        made = make_backup(self._from.root, reason="by-hand", at_utc=self._from.clock.utc_s(), software=software_version())
        self._backups_s = float("-inf")
        return backup_view(made)

    def diagnostics(self) -> bytes:
        with self._lock:
            doctor = self._doctor
        lines = self._from.ring.lines()
        return bundle({
            "status.json": lambda: self._from.status.status().model_dump_json(indent=1),
            "health.json": lambda: self.health().model_dump_json(indent=1),
            "config.json": lambda: config_text(self._from.config()),
            "doctor.json": lambda: doctor.model_dump_json(indent=1),
            "versions.txt": versions_text,
            "log.txt": lambda: "".join(f"{x.at_utc:.3f} {x.level} {x.logger}: {x.text}\n" for x in lines),
            "journal.jsonl": lambda: journal_text(self._from.root / "events"),
            "database.txt": lambda: database_text(self._from.root / DATABASE),
            "metrics.txt": lambda: render(self.gather()).decode(),
        })  # fmt: skip

    # --- Prometheus ---------------------------------------------------------------------------------------------------

    def gather(self) -> Gathered:
        watchdog = self._from.watchdog
        return Gathered(
            status=self._from.status.status(), workers=watchdog.reports(), degraded=watchdog.degraded(), disk_bytes=self._disk.bytes(),
            disk_free_bytes=self._disk.free_bytes(), backups_utc=tuple(b.created_utc for b in self._list()), outbox=self._outbox(),
            process=self._use(),
        )  # fmt: skip

    def _outbox(self) -> int | None:
        try:
            return self._from.outbox()
        except DriftboxError:  # the database is in trouble, which others tell
            return None

    def _use(self) -> ProcessUse:
        try:
            with self._process.oneshot():
                times = self._process.cpu_times()
                return ProcessUse(
                    resident_bytes=self._process.memory_info().rss, cpu_s=times.user + times.system,
                    threads=self._process.num_threads(), open_files=self._process.num_fds(),
                )  # fmt: skip
        except psutil.Error:
            return ProcessUse()

    def _list(self) -> tuple[Backup, ...]:
        now_s = self._from.clock.monotonic_s()
        with self._lock:
            if now_s - self._backups_s > LIST_S:
                self._backups, self._backups_s = tuple(list_backups(self._from.root)), now_s
            return self._backups


def examine_running(config: BoxConfig) -> list[Finding]:
    """Doctor's looks beside a running box: all but loading the models a second time, which would cost their memory again."""
    findings = [guarded(name, check, config) for name, check in CHECKS.items()]
    for camera in config.active_cameras:
        findings.append(guarded(f"camera {camera.id}", lambda _, camera=camera: check_camera(camera), config))  # type: ignore[misc]
    return findings


def worker_view(report: Report) -> WorkerView:
    return WorkerView(
        name=report.name, camera=report.camera, mode=report.mode.value, silent_s=report.silent_s, restarts=report.restarts,
        reason=report.reason,
    )  # fmt: skip


def backup_view(backup: Backup) -> BackupView:
    return BackupView(name=backup.name, created_utc=backup.created_utc, reason=backup.reason, size_bytes=backup.size_bytes)


def command_bundle(config: BoxConfig, status: BoxStatus | None, findings: list[Finding]) -> bytes:
    """What `driftbox diagnostics` writes beside a box, running or not. status: None when none answers."""
    root = config.box.data_dir
    return bundle({
        "status.json": lambda: status.model_dump_json(indent=1) if status is not None else "no box answers\n",
        "config.json": lambda: config_text(config),
        "doctor.json": lambda: json.dumps([asdict(f) for f in findings], indent=1),
        "versions.txt": versions_text,
        "journal.jsonl": lambda: journal_text(root / "events"),
        "database.txt": lambda: database_text(root / DATABASE),
    })  # fmt: skip


class DailyBackup:
    """Backs a running box up every `every_days` and keeps the newest `keep`. tell: what went wrong, said once until it works again."""

    def __init__(
        self, root: Path, clock: Clock, *, every_days: float, keep: int, tell: Callable[[str], None], look_s: float = LOOK_S
    ) -> None:
        self._root, self._clock, self._every_s, self._keep, self._tell = root, clock, every_days * DAY_S, keep, tell
        self._look_s, self._told = look_s, False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backup", daemon=True)

    def start(self) -> None:
        if self._every_s > 0:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._look_s):
            self.look()

    def look(self) -> None:
        """Makes a back-up when one is due. A clock that was set back makes one due as well."""
        try:
            made_utc = max((b.created_utc for b in list_backups(self._root) if b.reason == DAILY), default=float("-inf"))
            if 0 <= self._clock.utc_s() - made_utc < self._every_s:
                return
            make_backup(self._root, reason=DAILY, at_utc=self._clock.utc_s(), software=software_version())
            prune(self._root, reason=DAILY, keep=self._keep)
            self._told = False
        except DriftboxError as error:
            if not self._told:
                self._tell(redact(f"the box could not be backed up: {error}"))
            self._told = True
