"""Sections `box`, `gpus`, `web`, `storage`, `fleet`: the box itself and the machine it stands on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.units import is_camera_id


class BoxSection(Section):
    """Who this box is and where it keeps its data."""

    id: str = setting("box", text="Name of the box in MQTT topics and pages: lower case letters, digits, `_`, `-`.")
    site: str = setting("site", text="Name of the place it stands in; same letters as `id`.")
    data_dir: Path = setting(
        Path("driftbox-data"),
        text="Data folder: database, samples, models, journal. Relative: to the folder `driftbox` is started in.",
    )

    @field_validator("id", "site")
    @classmethod
    def _names_a_topic(cls, value: str) -> str:
        return checked_id(value)


def checked_id(value: str) -> str:
    """`value` when it may name folders, topics and addresses."""
    if not is_camera_id(value):
        raise PydanticCustomError(
            "id", "must begin with a lower case letter or a digit; then those, '_' and '-', at most 63 characters"
        )
    return value


class GpusSection(Section):
    """The compute that inference and retraining share. 100 pct is one GPU; on a CPU-only box, one core."""

    backend: Literal["lanes"] = setting("lanes", text="How shares are kept. `lanes`: one process, iteration by iteration.")
    capacity_pct: int = setting(
        100, unit="pct", ge=10, le=1600, text="Compute that the plan may give away; 100 is one GPU (or one core)."
    )
    work_conserving: bool = setting(
        False, text="Let a job use what others leave idle. Off: shares are kept exactly, and results do not depend on luck."
    )


class WebSection(Section):
    """The status page and the HTTP interface."""

    enabled: bool = setting(True, text="Serve the status page.")
    host: str = setting(
        "127.0.0.1", text="Address to listen on. `0.0.0.0` shows the cameras to the whole network, without login."
    )
    port: int = setting(8080, unit="port", ge=1, le=65535, text="TCP port to listen on.")


class StorageSection(Section):
    """How much of the disk the box may use."""

    retention_windows: int = setting(
        50, unit="windows", ge=1, le=100_000, text="Samples older than this many windows are deleted."
    )
    max_gib: float = setting(20.0, unit="GiB", gt=0, le=100_000, text="Most that samples may take; the oldest go first.")
    min_free_mib: int = setting(
        512, unit="MiB", ge=16, le=1_000_000, text="Below this much free disk nothing is sampled or trained; inference goes on."
    )
    keep_versions: int = setting(
        20,
        unit="versions",
        ge=1,
        le=10_000,
        text="Earlier models of a camera that are kept, beside the serving one, what it replaced and what is pinned.",
    )
    keep_versions_days: float = setting(
        90.0, unit="days", gt=0, le=10_000, text="Earlier models older than this are removed although they are few."
    )
    journal_mib: int = setting(
        256, unit="MiB", ge=1, le=100_000, text="Size of the event journal that `driftbox replay` reads; then it begins anew."
    )


class FleetSection(Section):
    """Joining boxes to a fleet: not in this release."""

    enabled: Literal[False] = setting(False, strict=False, text="Reserved; only `false` is possible in this release.")
