"""When a camera is watched and learns by its schedule: the configuration's times, read off a clock of its place."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from configs.schedule import active_at
from configs.schema import CameraEntry


def local_now(entry: CameraEntry, now: datetime | None = None) -> datetime:
    """Now on the wall clock of a camera's time zone (the machine's without one). now: with a time zone, None: the machine's clock."""
    zone = entry.schedule.time_zone
    return (now or datetime.now().astimezone()).astimezone(ZoneInfo(zone) if zone else None)


def watches_at(entry: CameraEntry, local: datetime) -> bool:
    """Whether it is to be watched at a local time."""
    return entry.enabled and active_at(entry.schedule.spans("watch"), local)


def learns_at(entry: CameraEntry, local: datetime) -> bool:
    """Whether its model is to learn at a local time."""
    return entry.learning and active_at(entry.schedule.spans("learn"), local)
