"""Which compute backend a box gets: from its configuration (`gpus`) and what its GPUs say. Used when a box starts, and by `doctor`.

`driftbox check` looks at the configuration alone; that a GPU is there, is sound and can keep shares in the configured way is only known
here. `why_not` says what is lacking, with its remedy, before anything is built; `doctor` shows it, a start ends with it (exit code 3).

The one place that imports the backends. CUDA is imported only when the configuration asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import EnvironmentLacking
from configs.schema import GpusSection
from edge.clock import Clock
from edge.gpu.base import ComputeBackend, DeviceFacts
from edge.gpu.device import Device
from edge.gpu.device_clock import DeviceClock, timed
from edge.gpu.nvml import Gpu, MigInstance, Survey
from scheduler.pacing import PacingMode

if TYPE_CHECKING:
    from edge.gpu.mig_card import Profile
    from edge.gpu.mig_division import Division

CPU_INSTEAD = "or compute on the CPU: gpus.device: cpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Newest answer about the devices; must return at once.
Look = Callable[[], Survey]


def why_not(gpus: GpusSection, survey: Survey) -> EnvironmentLacking | None:
    """What keeps this machine from doing what `gpus` asks; None: nothing that can be seen from here. Of a partition that the box is to
    make itself only the GPU is looked at, until it is named (`divided`)."""
    if gpus.device == "cpu":
        return None
    lacking = _no_gpu(gpus, survey) or no_trial_gpu(gpus, survey)
    if lacking is not None or (gpus.mig_reconfigure and not gpus.mig_instance):
        return lacking
    gpu = survey.devices[gpus.index]
    return _divided(gpus, gpu) if gpus.backend == "mig" else _whole(gpus, gpu)


def _no_gpu(gpus: GpusSection, survey: Survey) -> EnvironmentLacking | None:
    """Whether the configured one is there and sound."""
    if survey.reason:
        return EnvironmentLacking(
            f"gpus.device is cuda, but {survey.reason}",
            subject="gpus.device",
            remedy=f"{survey.remedy}; {CPU_INSTEAD}",
            code=survey.code,
        )
    if gpus.index >= len(survey.devices):
        count = len(survey.devices)
        return EnvironmentLacking(
            f"gpus.index is {gpus.index}, and this machine has {count or 'no'} GPU{'' if count == 1 else 's'}", subject="gpus.index",
            remedy=f"count from 0, as nvidia-smi does; {CPU_INSTEAD}", code="no_gpu",
        )  # fmt: skip
    gpu = survey.devices[gpus.index]
    if gpu.code:
        return EnvironmentLacking(
            f"GPU {gpus.index} ({gpu.facts.name}): {gpu.facts.problem}",
            subject=f"gpu {gpus.index}",
            remedy=gpu.remedy,
            code=gpu.code,
        )
    return None


def no_trial_gpu(gpus: GpusSection, survey: Survey) -> EnvironmentLacking | None:
    """Whether the further ones that trials may have are there, sound and whole."""
    for index in gpus.trial_gpus:
        if index >= len(survey.devices):
            return EnvironmentLacking(
                f"gpus.trial_gpus names GPU {index}, and this machine has {len(survey.devices) or 'no'}", subject="gpus.trial_gpus",
                remedy="count from 0, as nvidia-smi does, or leave it out: then trials run on the box's own GPU", code="no_gpu",
            )  # fmt: skip
        gpu = survey.devices[index]
        if gpu.code or gpu.facts.mig:
            problem = gpu.facts.problem or "it is divided (MIG)"
            return EnvironmentLacking(
                f"GPU {index} ({gpu.facts.name}) cannot train trials: {problem}", subject="gpus.trial_gpus",
                remedy=gpu.remedy or "name one that is whole, or leave it out", code=gpu.code or "mig_on",
            )  # fmt: skip
    return None


def _whole(gpus: GpusSection, gpu: Gpu) -> EnvironmentLacking | None:
    if gpu.facts.mig:
        return EnvironmentLacking(
            f"GPU {gpus.index} ({gpu.facts.name}) is divided (MIG): a process can use one partition only", subject="gpus.backend",
            remedy=f"set gpus.backend to mig, or undo the division: sudo nvidia-smi -i {gpus.index} -mig 0", code="mig_on",
        )  # fmt: skip
    total_mib = gpu.facts.memory_total_mib
    if gpus.memory_mib is not None and 0 < total_mib < gpus.memory_mib:
        return _too_much_memory(gpus, f"GPU {gpus.index}", total_mib)
    return None


def _divided(gpus: GpusSection, gpu: Gpu) -> EnvironmentLacking | None:
    where = f"GPU {gpus.index} ({gpu.facts.name})"
    if not gpu.instances:
        state = "has no partition" if gpu.facts.mig else "is not divided"
        return EnvironmentLacking(
            f"{where} {state}, and gpus.backend is mig", subject="gpus.backend", code="no_partition",
            remedy=f"divide it yourself (sudo nvidia-smi -i {gpus.index} -mig 1, then sudo nvidia-smi mig -cgi PROFILE -C), let the box "
            "do it (gpus.mig_reconfigure, gpus.mig_profile), or set gpus.backend to lanes",
        )  # fmt: skip
    part = chosen_instance(gpus, gpu)
    if part is None:
        return EnvironmentLacking(
            f"{where} has no partition {gpus.mig_instance}", subject="gpus.mig_instance", code="no_partition",
            remedy=f"name one of {', '.join(i.uuid for i in gpu.instances)}; without gpus.mig_instance the largest is used",
        )  # fmt: skip
    return too_small(gpus, part)


def too_small(gpus: GpusSection, part: MigInstance) -> EnvironmentLacking | None:
    """What is promised and a partition does not have."""
    if gpus.capacity_pct > part.size_pct:
        return EnvironmentLacking(
            f"gpus.capacity_pct is {gpus.capacity_pct}, and the partition {part.name} is {part.size_pct:.0f} pct of its GPU",
            subject="gpus.capacity_pct", remedy=f"set it to {int(part.size_pct)} or less, or make a larger partition", code="capacity",
        )  # fmt: skip
    if gpus.memory_mib is not None and gpus.memory_mib > part.memory_total_mib:
        return _too_much_memory(gpus, f"the partition {part.name}", part.memory_total_mib)
    return None


def _too_much_memory(gpus: GpusSection, where: str, total_mib: float) -> EnvironmentLacking:
    return EnvironmentLacking(
        f"gpus.memory_mib is {gpus.memory_mib}, and {where} has {total_mib:.0f} MiB", subject="gpus.memory_mib", code="memory",
        remedy="set it to less, or leave it out: then what is free is used",
    )  # fmt: skip


def chosen_instance(gpus: GpusSection, gpu: Gpu) -> MigInstance | None:
    """The partition that is configured, else the largest (by compute, then memory); None: there is no such partition."""
    named = [i for i in gpu.instances if gpus.mig_instance in ("", i.uuid)]
    return max(named, key=lambda i: (i.slices, i.memory_total_mib, i.uuid), default=None)


@contextmanager
def division(gpus: GpusSection, data_dir: Path, library: Any = None) -> Iterator[tuple[Division, Profile]]:
    """For a box that may divide its GPU: who does it, and the profile that is wanted. Raises EnvironmentLacking where that cannot be
    made or would not be enough."""
    from edge.gpu.mig_card import Card
    from edge.gpu.mig_division import Division

    with Card(gpus.index, library) as card:
        card.must_be_on()
        own = Division(card, data_dir)
        profile = own.profile(gpus.mig_profile)
        lacking = too_small(gpus, card.would_be(profile))
        if lacking is not None:
            raise lacking
        yield own, profile


def divided(gpus: GpusSection, data_dir: Path, library: Any = None) -> GpusSection:
    """Sees to the box's own partition, and names it. Raises EnvironmentLacking, StorageError; the GPU is then as it was."""
    with division(gpus, data_dir, library) as (own, profile):
        return gpus.model_copy(update={"mig_instance": own.carry_out(profile)})


def build_backend(
    gpus: GpusSection, *, data_dir: Path, clock: Clock, look: Look, look_anew: Look | None = None,
    environ: MutableMapping[str, str] | None = None, library: Any = None,
) -> ComputeBackend:  # fmt: skip
    """The backend, started. look: what the GPUs say; look_anew: the same, asked now (default: look); data_dir: where a daemon or a
    partition of ours is noted; library: pynvml or something like it. Raises EnvironmentLacking (exit code 3) when the machine cannot do
    what is configured. Must run before CUDA is used: which device the process sees is set in its environment, by UUID, because CUDA
    counts devices in another order than the driver."""
    survey = look()
    problem = why_not(gpus, survey)
    if problem is None and gpus.mig_reconfigure:
        gpus = divided(gpus, data_dir, library)
        survey = (look_anew or look)()
        problem = why_not(gpus, survey)
    if problem is not None:
        raise problem
    if gpus.device == "cpu":
        return _on_cpu(gpus, clock)
    gpu = survey.devices[gpus.index]
    environ = os.environ if environ is None else environ
    if gpus.backend == "mps":
        return _mps(gpus, gpu, data_dir, clock, look)
    if gpus.backend == "mig":
        part = chosen_instance(gpus, gpu)
        assert part is not None  # `why_not` has looked
        return _in_partition(gpus, part, clock, look, environ)
    _see_only(gpu.facts.uuid, environ)
    if gpus.backend == "green":
        return _green(gpus, clock, look)
    return _on_gpu(gpus, clock, look)


def clock_for(gpus: GpusSection, clock: Clock) -> Clock:
    """The clock by which the box's jobs are measured: on a GPU, what a thread cost is what the device spent on it. To be given to
    `build_backend`. (`mps` brings its own, which knows the jobs' processes.)"""
    return DeviceClock(clock) if gpus.device == "cuda" and gpus.backend != "mps" else clock


def mode_of(gpus: GpusSection) -> PacingMode:
    return "work-conserving" if gpus.work_conserving else "capped"


def lanes_on_gpu(gpus: GpusSection) -> int | None:
    """Most memory lanes; None: as many as the policy is meant for (`srtf` is right in one only)."""
    from edge.gpu.cuda_lanes import MAX_LANES

    return gpus.max_lanes or (MAX_LANES if gpus.policy == "plan" else None)


def facts_of(gpus: GpusSection, look: Look) -> tuple[DeviceFacts, ...]:
    """The facts of the one device that is configured, as of the newest look."""
    return tuple(facts for facts in look().facts if facts.index == gpus.index)


def _see_only(uuid: str, environ: MutableMapping[str, str]) -> None:
    if uuid:
        environ[VISIBLE] = uuid


def _on_cpu(gpus: GpusSection, clock: Clock) -> ComputeBackend:
    from edge.gpu.lanes import CpuDevice, LaneBackend, usable_cores
    from edge.gpu.none import NoShares

    if gpus.backend == "none":
        return NoShares(CpuDevice(clock=clock), capacity_pct=gpus.capacity_pct, clock=clock)
    return LaneBackend(
        capacity_pct=gpus.capacity_pct, mode=mode_of(gpus), policy=gpus.policy, clock=clock, memory_mib=gpus.memory_mib,
        max_lanes=gpus.max_lanes, infer_width=usable_cores(),
    )  # fmt: skip


def _on_gpu(gpus: GpusSection, clock: Clock, look: Look) -> ComputeBackend:
    from edge.gpu.executor import Executor
    from edge.gpu.none import NoShares

    device = timed(cuda_device(gpus, clock, lambda: facts_of(gpus, look)), clock)
    if gpus.backend == "none":
        return NoShares(device, capacity_pct=gpus.capacity_pct, clock=clock)
    return Executor(
        device, capacity_pct=gpus.capacity_pct, mode=mode_of(gpus), policy=gpus.policy,
        max_lanes=lanes_on_gpu(gpus), clock=clock,
    )  # fmt: skip


def _in_partition(
    gpus: GpusSection, part: MigInstance, clock: Clock, look: Look, environ: MutableMapping[str, str]
) -> ComputeBackend:
    """One partition, in this process: CUDA lets a process see no more than one."""
    from edge.gpu.executor import Executor
    from edge.gpu.mig import MigBackend, Part

    _see_only(part.uuid, environ)
    device = timed(cuda_device(gpus, clock, lambda: facts_of(gpus, look)), clock)
    if isinstance(clock, DeviceClock):
        clock.part = part.size_pct / 100.0
    inside = Executor(device, mode=mode_of(gpus), policy=gpus.policy, max_lanes=lanes_on_gpu(gpus), clock=clock)
    one = Part(id=part.uuid, name=part.name, size_pct=part.size_pct, memory_mib=device.memory_mib, inside=inside)
    return MigBackend([one], clock=clock, facts=lambda: facts_of(gpus, look), capacity_pct=gpus.capacity_pct)


def cuda_device(gpus: GpusSection, clock: Clock, facts: Callable[[], tuple[DeviceFacts, ...]]) -> Device:
    """The one device that this process sees. EnvironmentLacking: torch cannot use it."""
    from edge.gpu.cuda import TorchCudaDevice, cuda_missing
    from edge.gpu.cuda_lanes import CudaLanes

    missing = cuda_missing()
    if missing:
        raise EnvironmentLacking(
            f"gpus.device is cuda, but {missing}", subject="gpus.device", code="torch_cuda",
            remedy=f"install the CUDA build of torch and torchvision; {CPU_INSTEAD}",
        )  # fmt: skip
    return CudaLanes(TorchCudaDevice(0), clock=clock, memory_mib=gpus.memory_mib, facts=facts)


def _green(gpus: GpusSection, clock: Clock, look: Look) -> ComputeBackend:
    from edge.gpu.green import GreenBackend

    made = GreenBackend(
        index=0, capacity_pct=gpus.capacity_pct, mode=mode_of(gpus), memory_mib=gpus.memory_mib, clock=clock,
        facts=lambda: facts_of(gpus, look),
    )  # fmt: skip
    made.device = timed(made.device, clock)
    return made


def _mps(gpus: GpusSection, gpu: Gpu, data_dir: Path, clock: Clock, look: Look) -> ComputeBackend:
    from edge.gpu.mps import MpsBackend

    return MpsBackend(
        gpu.facts.uuid, data_dir=data_dir, capacity_pct=gpus.capacity_pct, mode=mode_of(gpus), memory_mib=gpus.memory_mib, clock=clock,
        facts=lambda: facts_of(gpus, look), static=gpus.mps_static,
    )  # fmt: skip
