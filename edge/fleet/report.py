"""The box on itself, for its fleet: `BoxReport` from what its pages show, its configuration and its engine. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from configs.schema import CameraEntry, FleetSection
from edge.fleet.parcels import TRAVELS
from edge.status import BoxStatus, CameraView
from edge.store.store import QualityPoint
from edge.telemetry.topics import iso_utc
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, Confirmation, Measured
from scheduler.types import KnobProfile

MOST_ALARMS = 20
#: Measurements of a camera that a report tells: those of a few windows, so that a controller which was away misses none.
MOST_MEASURED = 6


@dataclass(frozen=True, kw_only=True)
class CameraFacts:
    """What a status does not say of a camera. knobs: what plans may choose from, costs as measured; drift: signature of its last
    window; measured: its newest measurements on labels, oldest first."""

    knobs: tuple[KnobProfile, ...] = ()
    arch: str = ""
    drift: tuple[float, ...] = ()
    measured: tuple[Measured, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Who reports, and what makes the message this one (`BoxReport`)."""

    box: str
    site: str
    boot: str
    sequence: int


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A look at the box. entries: cameras as configured; guests: id here -> who it is in the fleet, of other boxes' cameras."""

    status: BoxStatus
    entries: Mapping[str, CameraEntry] = field(default_factory=dict)
    facts: Mapping[str, CameraFacts] = field(default_factory=dict)
    guests: Mapping[str, CameraKey] = field(default_factory=dict)


def report_of(stamp: Stamp, looked: Looked, fleet: FleetSection, confirmation: Confirmation) -> BoxReport:
    """A box that takes no guests can reach no network of other boxes' cameras: the fleet then places none on it."""
    status = looked.status
    memory = [device.memory_total_mib for device in status.devices if not device.problem]
    return BoxReport(
        box=stamp.box, site=stamp.site, boot=stamp.boot, sequence=stamp.sequence, sent_utc=iso_utc(status.now_utc),
        software=status.software, capacity_pct=status.capacity_pct, spare_pct=max(0.0, status.spare_pct),
        memory_mib=sum(memory) if memory else None, networks=fleet.networks if fleet.accept_guests else (),
        cameras=tuple(_camera(stamp.box, camera, looked, fleet) for camera in status.cameras), confirmation=confirmation,
        alarms=alarms_of(status),
    )  # fmt: skip


def alarms_of(status: BoxStatus) -> tuple[str, ...]:
    """Why the box is not as it should be, and cameras that are left alone."""
    return tuple(status.degraded[:MOST_ALARMS])


def received_pct(status: BoxStatus, camera: str) -> float:
    """What all jobs of a camera received: it is watched and it learns, and both are paid from its customer's share."""
    return sum(share.received_pct for share in status.shares if share.camera == camera)


def demand_pct(knobs: Sequence[KnobProfile]) -> float:
    """The share that the best quality needs (VideoStorm's demand of the best configuration, as measured here)."""
    best = max((knob.quality_frac for knob in knobs), default=0.0)
    return min((knob.demand_pct for knob in knobs if knob.quality_frac >= best), default=0.0)


def may_leave(entry: CameraEntry | None, fleet: FleetSection) -> bool:
    """Whether a camera's samples may leave the box: its own word, else the box's."""
    return fleet.consent if entry is None or entry.consent is None else entry.consent


def travels(entry: CameraEntry) -> bool:
    """Whether another box could open it: a file, a device and a rendered scene are of this box."""
    return all(url is None or url.scheme in TRAVELS for url in (entry.url, entry.record_url))


def seen_quality(camera: CameraView, knobs: Sequence[KnobProfile]) -> float | None:
    """What people see, as Ekya counts it (card section 2): the model's quality on golden labels times what the knobs in force keep of
    it; 0 while it is paused for want of a share. None: not measured yet. Without this a customer's quality would not depend on its
    share between two retrainings, and nothing could be learned."""
    if camera.quality is None or not knobs or camera.state != "live":
        return camera.quality
    kept = {knob.name: knob.quality_frac for knob in knobs}
    return camera.quality * (0.0 if camera.knobs is None else kept.get(camera.knobs, 1.0))


def measured_of(points: Sequence[QualityPoint]) -> tuple[Measured, ...]:
    """What a report tells of measurements: those of which it is known how many pictures are behind them."""
    return tuple(
        Measured(
            number=p.number, version=p.version, quality=p.value, frames=p.frames, error=p.error, over=p.over, gain=p.gain,
            gain_error=p.gain_error,
        )
        for p in points if p.frames and p.error is not None
    )  # fmt: skip


def _camera(box: str, camera: CameraView, looked: Looked, fleet: FleetSection) -> CameraReport:
    entry, facts = looked.entries.get(camera.id), looked.facts.get(camera.id, CameraFacts())
    return CameraReport(
        camera=looked.guests.get(camera.id) or CameraKey(home=box, camera=camera.id),
        customer=entry.customer if entry else "house", name=camera.name, state=camera.state,
        networks=entry.networks if entry is not None and travels(entry) else (), demand_pct=demand_pct(facts.knobs),
        got_pct=received_pct(looked.status, camera.id), quality=seen_quality(camera, facts.knobs), finish_frac=camera.finish_frac,
        fps=_due_fps(camera, entry, facts), lag_goal_s=max(0.001, camera.deadline_ms / 1000.0),
        memory_mib=sum(
            (about.held_mib if about.held_mib is not None else (about.persistent_mib or 0.0) + (about.ephemeral_mib or 0.0))
            for about in looked.status.memory if about.job == f"{camera.id}/infer"
        ),
        version=camera.model, arch=facts.arch, consent=may_leave(entry, fleet), drift=facts.drift,
        measured=facts.measured,
    )  # fmt: skip


def _due_fps(camera: CameraView, entry: CameraEntry | None, facts: CameraFacts) -> float:
    """Frames per second that are due at full quality: as configured, else as its best knobs say, else as it gives."""
    wanted = entry.fps if entry else 0.0
    return wanted or max((knob.fps for knob in facts.knobs), default=0.0) or camera.camera_fps
