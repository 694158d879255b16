"""Sections `box`, `gpus`, `web`, `storage`: the box itself and the machine it stands on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, checked_id, setting
from configs.schema.media import MediaSection

#: What a certificate and a `Host` header can name.
HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)

#: A GPU instance profile ('3g.71gb', '1g.18gb+me', '1g.24gb+me.all'); those of compute instances ('1c.3g.71gb') are none.
MIG_PROFILE = re.compile(r"[1-9]g\.\d{1,4}gb(?:[+-][a-z]+(?:\.[a-z]+)*)*")


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


class GpusSection(Section):
    """The compute that inference and retraining share (docs/sharing.md). 100 pct is one GPU; on a CPU-only box, one core."""

    device: Literal["cpu", "cuda"] = setting(
        "cpu", text="What the jobs compute on. `cuda`: the NVIDIA GPU `index`; `driftbox doctor` says whether it can be used."
    )
    index: int = setting(0, unit="GPU", ge=0, le=15, text="Which GPU, counted as nvidia-smi does. Means nothing on a CPU.")
    backend: Literal["lanes", "mps", "green", "mig", "none"] = setting(
        "lanes",
        text="How shares are kept. `lanes`: one process, iteration by iteration. `mps`: a process per job (NVIDIA MPS). `green`: parts "
        "of the GPU's multiprocessors. `mig`: in a partition of a divided GPU. `none`: not at all. All but `lanes` and `none` need a "
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
    trial_width: int = setting(
        1,
        unit="devices",
        ge=0,
        le=16,
        text="Most devices that one micro-profiling trial is trained on, by a process each (260 MiB or more); as many as measuring "
        "shows to pay, and as the other trials leave (docs/trials.md). Devices are cores on a CPU, `trial_gpus` on a GPU. 0: as many as "
        "there are. Only for `lanes`.",
    )
    trial_gpus: tuple[int, ...] = setting(
        (),
        text="Further GPUs for micro-profiling trials and nothing else, counted as nvidia-smi does; the box's own does the rest. "
        "Only for `device: cuda` with `lanes`.",
        max_length=15,
    )
    mps_static: Literal["off", "auto", "on"] = setting(
        "off",
        text="`mps`: static partitions of multiprocessors instead of percentages of threads (CUDA 13.1 and later; docs/sharing.md). "
        "`auto`: where the driver has them. `on`: the same, and their absence is told. Not verified on a GPU yet.",
    )
    mig_instance: str = setting(
        "",
        text="`mig`: UUID of the partition to use, as `nvidia-smi -L` lists it (`MIG-...`).",
        default_text="the largest",
        max_length=100,
    )
    mig_reconfigure: bool = setting(
        False,
        text="`mig`: let the box make its own partition, of `mig_profile`, when it starts, and remove it when another is wanted. It "
        "touches no partition that it did not make, and nothing while others compute on the GPU. Needs root, and MIG mode on.",
    )
    mig_profile: str = setting(
        "",
        text="Size of the partition that the box makes, as `nvidia-smi mig -lgip` names it, for instance `3g.71gb`.",
        default_text="none",
        max_length=40,
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
            ((self.trial_width != 1 or bool(self.trial_gpus)) and self.backend != "lanes",
             f"trials on several devices are for backend lanes, not {self.backend}: leave trial_width and trial_gpus out"),
            (on_cpu and self.capacity_pct < 100 * self.trial_width and self.trial_width > 1,
             f"trial_width {self.trial_width} means that many cores at once: capacity_pct must be {100 * self.trial_width} or more"),
            (on_cpu and bool(self.trial_gpus), "trial_gpus are GPUs: set device to cuda, or use trial_width for cores"),
            (not on_cpu and self.trial_width > max(1, len(self.trial_gpus)),
             f"trial_width {self.trial_width} is more than there are in trial_gpus: a box computes all else on one GPU"),
            (self.index in self.trial_gpus, f"GPU {self.index} is the box's own (index): trial_gpus are further ones"),
            (len(set(self.trial_gpus)) < len(self.trial_gpus) or any(not 0 <= gpu <= 15 for gpu in self.trial_gpus),
             "trial_gpus must be different numbers from 0 to 15"),
            (self.mps_static != "off" and self.backend != "mps", "mps_static is for backend mps"),
            (self.mps_static != "off" and self.work_conserving,
             "mps_static gives every job multiprocessors of its own, and work_conserving lends them: set one of both to off"),
            (bool(self.mig_instance) and self.backend != "mig", "mig_instance is for backend mig"),
            (bool(self.mig_instance) and not self.mig_instance.startswith("MIG-"),
             "mig_instance must be the UUID of a partition (MIG-...), as nvidia-smi -L lists it"),
            (self.mig_reconfigure and self.backend != "mig", "mig_reconfigure is for backend mig"),
            (self.mig_reconfigure and not self.mig_profile,
             "mig_reconfigure needs mig_profile: the size of the partition that the box makes, for instance 3g.71gb"),
            (bool(self.mig_profile) and not self.mig_reconfigure,
             "mig_profile is what the box makes: set mig_reconfigure to true, or leave it out"),
            (bool(self.mig_profile) and not MIG_PROFILE.fullmatch(self.mig_profile),
             "mig_profile must be a profile as nvidia-smi mig -lgip names it, for instance 3g.71gb"),
            (self.mig_reconfigure and bool(self.mig_instance),
             "mig_instance names a partition that you have made, and with mig_reconfigure the box makes its own: leave one out"),
        )  # fmt: skip


class WebSection(Section):
    """The status page and the HTTP interface."""

    enabled: bool = setting(True, text="Serve the status page.")
    host: str = setting(
        "127.0.0.1",
        text="Address to listen on. `0.0.0.0`: the whole network; whoever is in it must sign in, unless `login` is off.",
    )
    port: int = setting(8080, unit="port", ge=1, le=65535, text="TCP port to listen on.")
    login: bool = setting(
        True,
        text="Whether one must sign in (docs/accounts.md). Off: whoever reaches the port may look, and only this machine may change "
        "something.",
    )
    tls: Literal["auto", "off", "own", "given"] = setting(
        "auto",
        text="`own`: the box makes its certificate at the first start and renews it. `given`: that of `cert_file`. `auto`: `own`, but "
        "`off` where `host` is a loopback address.",
    )
    cert_file: Path | None = setting(
        None,
        text="`tls: given`: the certificate, with those that signed it, as PEM. A newer file is taken up while the box runs.",
        default_text="none",
    )
    key_file: Path | None = setting(None, text="`tls: given`: its private key, as PEM without a password.", default_text="none")
    hostnames: tuple[str, ...] = setting(
        (),
        text="Names of the internet or of a company under which the box is asked: for its certificate, and because requests under "
        "any other such name are refused. Addresses, this machine's name and names of private networks (`.local`, `.lan`) need none.",
        max_length=32,
    )

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach the port."""
        return not (self.host in ("localhost", "::1") or self.host.startswith("127."))

    @property
    def tls_kind(self) -> Literal["off", "own", "given"]:
        """What `tls` comes to."""
        if self.tls == "auto":
            return "own" if self.is_open else "off"
        return self.tls

    @field_validator("hostnames")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((name for name in value if HOST_NAME.fullmatch(name) is None), None)
        if wrong is not None:
            raise PydanticCustomError(
                "hostname", "must be names such as box.example: letters, digits, '-' and '.', no scheme or port"
            )
        return value

    @model_validator(mode="after")
    def _files_belong_together(self) -> Self:
        given = self.cert_file is not None or self.key_file is not None
        if self.tls == "given" and (self.cert_file is None or self.key_file is None):
            raise PydanticCustomError("tls", "tls given needs both cert_file and key_file")
        if self.tls != "given" and given:
            raise PydanticCustomError("tls", "cert_file and key_file are for tls given")
        return self


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
        text="Earlier models of a camera that are kept, beside the serving one, the first one, what it replaced and what is pinned.",
    )
    keep_versions_days: float = setting(
        90.0, unit="days", gt=0, le=10_000, text="Earlier models older than this are removed although they are few."
    )
    journal_mib: int = setting(
        256, unit="MiB", ge=1, le=100_000, text="Size of the event journal that `driftbox replay` reads; then it begins anew."
    )
    backup_days: float = setting(
        1.0,
        unit="days",
        ge=0,
        le=365,
        text="How often the running box backs itself up: database, serving models, keys. 0: never. `driftbox backup` lists them.",
    )
    backups_kept: int = setting(
        7, unit="back-ups", ge=1, le=1000, text="Back-ups of that kind that are kept; the oldest go first."
    )
    media: MediaSection = setting(default_factory=MediaSection, text="How long events, snapshots and clips are kept.")
