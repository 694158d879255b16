"""What the box tells Prometheus: a fixed list of metrics (`METRICS`, docs/metrics.md), filled from one look at the box per scrape.

A registry of its own: nothing that a library registers by itself is told. Labels are ids and words from fixed lists, never names,
addresses or texts, and there are at most `CAMERAS_MAX` cameras; so the number of series is bounded and nothing secret can be in them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edge.gpu.nvml import slowed_by
from edge.status import BoxStatus, CameraView
from edge.watchdog.live import Report
from edge.watchdog.rules import Mode

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CAMERAS_MAX = 256
STATES = ("connecting", "live", "stalled", "waiting", "ended", "stopped", "quarantined")
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class About:
    """One metric. A counter's name ends with `_total`."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProcessUse:
    """The box's own process and the children it has."""

    resident_bytes: int = 0
    cpu_s: float = 0.0
    threads: int = 0
    open_files: int = 0


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """One look. disk_bytes: by kind of data; backups_utc: when each was made; outbox: messages that wait, None: no broker is
    configured."""

    status: BoxStatus
    workers: tuple[Report, ...] = ()
    degraded: tuple[str, ...] = ()
    disk_bytes: dict[str, int] = field(default_factory=dict)
    disk_free_bytes: int = 0
    backups_utc: tuple[float, ...] = ()
    outbox: int | None = None
    process: ProcessUse = field(default_factory=ProcessUse)


class MetricsSource(Protocol):
    def gather(self) -> Gathered:
        """Must answer within a moment: Prometheus waits."""


Value = tuple[tuple[str, ...], float]  # label values in order, number
Fill = Callable[[Gathered], Iterable[Value]]

_TABLE: list[tuple[About, Fill]] = []


def metric(name: str, kind: Literal["gauge", "counter"], text: str, *labels: str) -> Callable[[Fill], Fill]:
    """Registers how a metric is filled."""

    def add(fill: Fill) -> Fill:
        _TABLE.append((About(name=name, kind=kind, text=text, labels=labels), fill))
        return fill

    return add


def one(value: float | None) -> list[Value]:
    """A metric without labels; None: there is nothing to tell."""
    return [] if value is None else [((), float(value))]


def cameras(g: Gathered) -> tuple[CameraView, ...]:
    return g.status.cameras[:CAMERAS_MAX]


def per_camera(of: Callable[[CameraView], float | None]) -> Fill:
    def fill(g: Gathered) -> Iterator[Value]:
        for camera in cameras(g):
            value = of(camera)
            if value is not None:
                yield (camera.id,), float(value)

    return fill


# --- the box ----------------------------------------------------------------------------------------------------------


@metric(
    "driftbox_info", "gauge", "Always 1; which software, box, site and backend this is.", "software", "box", "site", "backend"
)
def _info(g: Gathered) -> list[Value]:
    return [((g.status.software, g.status.box, g.status.site, g.status.backend), 1.0)]


metric("driftbox_ready", "gauge", "1: every camera has been tried and inference runs.")(lambda g: one(g.status.ready))
metric("driftbox_degraded", "gauge", "Number of reasons why the box is not as it should be; 0: all is well.")(
    lambda g: one(len(g.degraded))
)
metric("driftbox_start_time_seconds", "gauge", "When the box started, seconds since the epoch.")(
    lambda g: one(g.status.started_utc)
)
metric("driftbox_capacity_percent", "gauge", "Compute that plans may give away; 100 is one GPU, or one core on a box without.")(
    lambda g: one(g.status.capacity_pct)
)
metric("driftbox_spare_percent", "gauge", "Compute that the plan gives to nobody.")(lambda g: one(g.status.spare_pct))

# --- cameras ----------------------------------------------------------------------------------------------------------

metric("driftbox_camera_up", "gauge", "1: frames come.", "camera")(per_camera(lambda c: c.state == "live"))


@metric("driftbox_camera_state", "gauge", "1 for the state a camera is in, 0 for the others.", "camera", "state")
def _state(g: Gathered) -> Iterator[Value]:
    for camera in cameras(g):
        for state in STATES:
            yield (camera.id, state), float(camera.state == state)


@metric(
    "driftbox_camera_frames_per_second",
    "gauge",
    "What comes from the camera, is analysed, and is wanted analysed.",
    "camera",
    "kind",
)
def _rates(g: Gathered) -> Iterator[Value]:
    for c in cameras(g):
        for kind, value in (("camera", c.camera_fps), ("analysed", c.analysed_fps), ("wanted", c.wanted_fps)):
            yield (c.id, kind), value


for _name, _text, _of in (
    ("analysed", "Frames analysed since the start.", lambda c: c.frames_analysed),
    ("dropped", "Packets given up before decoding since the start; the newest wins.", lambda c: c.frames_dropped),
    ("given_up", "Frames given up because their answer would have been late.", lambda c: c.frames_given_up),
    ("skipped", "Analysed frames that queries left out because a newer one was there.", lambda c: c.frames_skipped),
):
    metric(f"driftbox_camera_frames_{_name}_total", "counter", _text, "camera")(per_camera(_of))

metric("driftbox_camera_reconnects_total", "counter", "How often the camera was opened anew.", "camera")(
    per_camera(lambda c: c.reconnects)
)
metric("driftbox_camera_finish_ratio", "gauge", "Part of this window's frames answered by their deadline, 0 to 1.", "camera")(
    per_camera(lambda c: c.finish_frac)
)
metric("driftbox_camera_deadline_seconds", "gauge", "From capture to answer; later is late.", "camera")(
    per_camera(lambda c: c.deadline_ms / 1000)
)
metric("driftbox_camera_lag_seconds", "gauge", "Of a recording that waits to be analysed; nothing of a live camera.", "camera")(
    per_camera(lambda c: c.lag_s)
)
metric("driftbox_camera_objects", "gauge", "Objects in the newest analysed frame.", "camera")(per_camera(lambda c: c.objects))
metric("driftbox_camera_learning", "gauge", "1: its model may learn.", "camera")(per_camera(lambda c: c.learning))


@metric("driftbox_camera_quality_ratio", "gauge", "Newest measured quality of the serving model, 0 to 1.", "camera", "measure")
def _quality(g: Gathered) -> Iterator[Value]:
    for c in cameras(g):
        if c.quality is not None:
            yield (c.id, c.quality_name), c.quality


@metric("driftbox_camera_model_age_seconds", "gauge", "Since the serving model was made.", "camera")
def _model_age(g: Gathered) -> Iterator[Value]:
    made = {m.id: m.created_utc for m in g.status.models}
    for c in cameras(g):
        created_utc = made.get(c.model)
        if created_utc is not None:
            yield (c.id,), max(0.0, g.status.now_utc - created_utc)


# --- windows and shares -----------------------------------------------------------------------------------------------


@metric("driftbox_window_number", "gauge", "The window in progress, counted since the data folder was made.")
def _window(g: Gathered) -> list[Value]:
    return one(g.status.window.number if g.status.window else None)


@metric("driftbox_window_elapsed_seconds", "gauge", "Since the window opened.")
def _elapsed(g: Gathered) -> list[Value]:
    return one(g.status.window.elapsed_s if g.status.window else None)


@metric("driftbox_window_length_seconds", "gauge", "Length of the window.")
def _length(g: Gathered) -> list[Value]:
    return one(g.status.window.length_s if g.status.window else None)


@metric("driftbox_window_quality_ratio", "gauge", "Quality of the last closed window over its cameras, 0 to 1.", "kind")
def _window_quality(g: Gathered) -> Iterator[Value]:
    if g.status.outcomes:
        last = g.status.outcomes[0]
        for kind, value in (("predicted", last.predicted_quality), ("realised", last.realised_quality)):
            if value is not None:
                yield (kind,), value


@metric("driftbox_window_models", "gauge", "Of the last closed window: cameras retrained, and models admitted.", "kind")
def _window_models(g: Gathered) -> Iterator[Value]:
    if g.status.outcomes:
        streams = g.status.outcomes[0].streams
        yield ("retrained",), float(sum(s.retrained is not None for s in streams))
        yield ("admitted",), float(sum(s.admitted for s in streams))


@metric("driftbox_plan_expected_quality_ratio", "gauge", "What the plan in force expects of the window, 0 to 1.")
def _plan(g: Gathered) -> list[Value]:
    return one(g.status.plan.expected_quality if g.status.plan else None)


@metric(
    "driftbox_share_percent", "gauge", "Compute promised to and received by the jobs of a camera, percent of one GPU or core.",
    "camera", "work", "kind",
)  # fmt: skip
def _shares(g: Gathered) -> Iterator[Value]:
    sums: dict[tuple[str, str, str], float] = defaultdict(float)
    known = {c.id for c in cameras(g)}
    for share in g.status.shares:
        camera = share.camera if share.camera in known else ""
        sums[camera or "", share.kind, "promised"] += share.promised_pct
        sums[camera or "", share.kind, "received"] += share.received_pct
    yield from sorted(sums.items())


@metric("driftbox_jobs_memory_bytes", "gauge", "Memory of all jobs on the device they share.", "part")
def _memory(g: Gathered) -> Iterator[Value]:
    for part, mib in (
        ("persistent", sum(m.persistent_mib or 0.0 for m in g.status.memory)),
        ("ephemeral", max((m.ephemeral_mib or 0.0 for m in g.status.memory), default=0.0)),
    ):
        yield (part,), mib * MIB


# --- devices and faults -----------------------------------------------------------------------------------------------


@metric("driftbox_device_memory_bytes", "gauge", "Memory of a GPU: all, and what everybody together uses.", "device", "kind")
def _device_memory(g: Gathered) -> Iterator[Value]:
    for d in g.status.devices:
        yield (str(d.index), "total"), d.memory_total_mib * MIB
        yield (str(d.index), "used"), d.memory_used_mib * MIB


for _name, _kind, _text, _of_device in (
    (
        "utilisation_ratio",
        "gauge",
        "Part of the time in which a GPU computed, 0 to 1.",
        lambda d: _over(d.utilisation_pct, 100.0),
    ),
    ("temperature_celsius", "gauge", "Of a GPU.", lambda d: d.temperature_c),
    ("power_watts", "gauge", "Of a GPU.", lambda d: d.power_w),
    ("ecc_errors_total", "counter", "Uncorrected memory errors since the driver was loaded.", lambda d: d.ecc_errors),
    ("throttled", "gauge", "Number of reasons why a GPU's clocks are held down.", lambda d: len(d.throttled)),
    (
        "slowed",
        "gauge",
        "1: heat, its supply or its hardware hold a GPU's clocks down (not its power limit, nor what somebody has set).",
        lambda d: bool(slowed_by(d.throttled)),
    ),
    ("usable", "gauge", "1: the GPU can be used.", lambda d: not d.problem),
):
    metric(f"driftbox_device_{_name}", _kind, _text, "device")(  # type: ignore[arg-type]
        lambda g, of=_of_device: (((str(d.index),), float(v)) for d in g.status.devices if (v := of(d)) is not None)  # type: ignore[misc]
    )


@metric("driftbox_faults", "gauge", "Faults of jobs and devices that are remembered, by code.", "code")
def _faults(g: Gathered) -> Iterator[Value]:
    for code, count in sorted(Counter(f.code for f in g.status.faults).items()):
        yield (code,), float(count)


# --- disk, outbox, watchdog, process ----------------------------------------------------------------------------------


@metric("driftbox_disk_bytes", "gauge", "What the box's data take, by kind.", "what")
def _disk(g: Gathered) -> Iterator[Value]:
    for what, size in sorted(g.disk_bytes.items()):
        yield (what,), float(size)


metric("driftbox_disk_free_bytes", "gauge", "Room left on the disk of the data folder.")(lambda g: one(g.disk_free_bytes))
metric("driftbox_backups", "gauge", "Back-ups that are kept.")(lambda g: one(len(g.backups_utc)))
metric("driftbox_backup_age_seconds", "gauge", "Since the newest back-up; nothing when there is none.")(
    lambda g: one(max(0.0, g.status.now_utc - max(g.backups_utc)) if g.backups_utc else None)
)
metric("driftbox_outbox_messages", "gauge", "Messages that wait for the MQTT broker; nothing without a broker.")(
    lambda g: one(g.outbox)
)
metric("driftbox_cameras_quarantined", "gauge", "Cameras that are left alone until somebody lifts that.")(
    lambda g: one(sum(c.state == "quarantined" for c in g.status.cameras))
)


@metric("driftbox_watchdog_restarts_total", "counter", "How often a worker was started anew.", "worker")
def _restarts(g: Gathered) -> Iterator[Value]:
    for worker in _workers(g):
        yield (worker.name,), float(worker.restarts)


@metric("driftbox_watchdog_given_up", "gauge", "1: the worker is given up until somebody lifts that.", "worker")
def _given_up(g: Gathered) -> Iterator[Value]:
    for worker in _workers(g):
        yield (worker.name,), float(worker.mode is Mode.GIVEN_UP)


@metric(
    "driftbox_watchdog_silent_seconds",
    "gauge",
    "For how long nothing was heard of a worker that should have said something.",
    "worker",
)
def _silent(g: Gathered) -> Iterator[Value]:
    for worker in _workers(g):
        yield (worker.name,), worker.silent_s


metric("driftbox_process_resident_bytes", "gauge", "Memory of the box's process.")(lambda g: one(g.process.resident_bytes))
metric("driftbox_process_cpu_seconds_total", "counter", "CPU time of the box's process.")(lambda g: one(g.process.cpu_s))
metric("driftbox_process_threads", "gauge", "Threads of the box's process.")(lambda g: one(g.process.threads))
metric("driftbox_process_open_files", "gauge", "Files and sockets that the box's process has open.")(
    lambda g: one(g.process.open_files)
)

#: Every metric, in the order in which it is told.
METRICS: tuple[About, ...] = tuple(about for about, _ in _TABLE)


def _over(value: float | None, whole: float) -> float | None:
    return None if value is None else value / whole


def _workers(g: Gathered) -> Iterator[Report]:
    known = {c.id for c in cameras(g)}
    yield from (w for w in g.workers if not w.camera or w.camera in known)


class _Look(Collector):
    def __init__(self, gathered: Gathered) -> None:
        self._gathered = gathered

    def collect(self) -> Iterator[Metric]:
        for about, fill in _TABLE:
            family: Any = (CounterMetricFamily if about.kind == "counter" else GaugeMetricFamily)(
                about.name, about.text, labels=about.labels
            )
            for labels, value in fill(self._gathered):
                family.add_metric(labels, value)
            if family.samples:
                yield family


def render(gathered: Gathered) -> bytes:
    """Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Look(gathered))
    return generate_latest(registry)
