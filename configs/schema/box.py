"""Sections `box`, `gpus`, `web`, `storage`, `fleet`: the box itself and the machine it stands on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator
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
    """The compute that inference and retraining share (docs/sharing.md). 100 pct is one GPU; on a CPU-only box, one core."""

    device: Literal["cpu", "cuda"] = setting(
        "cpu", text="What the jobs compute on. `cuda`: the NVIDIA GPU `index`; `driftbox doctor` says whether it can be used."
    )
    index: int = setting(0, unit="GPU", ge=0, le=15, text="Which GPU, counted as nvidia-smi does. Means nothing on a CPU.")
    backend: Literal["lanes", "mps", "green", "mig", "none"] = setting(
        "lanes",
        text="How shares are kept. `lanes`: one process, iteration by iteration. `mps`: a process per job (NVIDIA MPS). `green`: parts "
        "of the GPU's multiprocessors. `mig`: in a partition that you have made. `none`: not at all. All but `lanes` and `none` need a "
        "GPU.",
    )
    policy: Literal["plan", "fair", "pack", "srtf"] = setting(
        "plan",
        text="Who runs next where jobs share a memory lane. `plan`: the planner's shares. `fair`: equal time, weighted by the shares. "
        "`pack`: everybody who fits at once. `srtf`: the job that is nearest to its end. Only for `lanes` and `mig`.",
    )
    capacity_pct: int = setting(
        100, unit="pct", ge=10, le=1600, text="Compute that the plan may give away; 100 is one GPU (or one core)."
    )
    work_conserving: bool = setting(
        False, text="Let a job use what others leave idle. Off: shares are kept exactly, and results do not depend on luck."
    )
    max_lanes: int | None = setting(
        None,
        unit="lanes",
        ge=1,
        le=64,
        default_text="the backend's own",
        range_text="1 to 64",
        text="Most memory lanes; iterations in different lanes run at the same time. Few lanes leave more memory to later jobs.",
    )
    memory_mib: int | None = setting(
        None,
        unit="MiB",
        ge=64,
        le=4_000_000,
        default_text="what is free",
        range_text="64 to 4000000",
        text="Memory that the jobs may hold together. A job whose memory does not fit waits.",
    )
    mig_instance: str = setting(
        "",
        text="`mig`: UUID of the partition to use, as `nvidia-smi -L` lists it (`MIG-...`).",
        default_text="the largest",
        max_length=100,
    )
    mig_reconfigure: Literal[False] = setting(
        False,
        strict=False,
        text="Whether the box may make or remove MIG partitions. It never does in this release: divide the GPU with nvidia-smi.",
    )

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        problem = next((text for wrong, text in self._rules() if wrong), None)
        if problem:
            raise PydanticCustomError("gpus", problem)
        return self

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        """What one can know without asking the machine."""
        on_cpu, own = self.device == "cpu", self.backend in ("mps", "green", "none")
        return (
            (on_cpu and self.backend not in ("lanes", "none"),
             f"backend {self.backend} keeps shares of a GPU: set device to cuda, or backend to lanes"),
            (not on_cpu and self.capacity_pct > 100,
             f"capacity_pct {self.capacity_pct} cannot be kept: one GPU is 100 pct, and a box uses one in this release"),
            (own and self.policy != "plan", f"policy {self.policy} is for backend lanes or mig; {self.backend} has no lanes"),
            (own and self.max_lanes is not None, f"max_lanes is for backend lanes or mig; {self.backend} has no lanes"),
            (self.policy == "srtf" and self.max_lanes not in (None, 1),
             f"policy srtf runs one job at a time, so it has one lane, not {self.max_lanes}: leave max_lanes out"),
            (bool(self.mig_instance) and self.backend != "mig", "mig_instance is for backend mig"),
            (bool(self.mig_instance) and not self.mig_instance.startswith("MIG-"),
             "mig_instance must be the UUID of a partition (MIG-...), as nvidia-smi -L lists it"),
        )  # fmt: skip


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
