"""A machine with GPUs that is not there: the functions of `pynvml` that `edge.gpu.nvml` uses, answered from a script.

    FakeNvml([FakeGpu(), FakeGpu(temperature_c=91)])                     two GPUs, one of them hot
    fake.fail("nvmlDeviceGetPowerUsage", "NOT_SUPPORTED", device=0)      this value is not offered
    fake.fail("nvmlDeviceGet", "GPU_IS_LOST", device=0, after=3)         gone after three more questions about it

Switched on for a whole program by the environment variable `DRIFTBOX_FAKE_NVML`: a JSON object, or the path of a file that holds
one; keys as the fields of `FakeGpu` and `FakeMig`, faults as the arguments of `fail`:

    {"gpus": [{"name": "NVIDIA H200", "mig": [{"profile": "3g.71gb", "slices": 3, "memory_mib": 71000}]}],
     "faults": [{"function": "nvmlInit", "error": "DRIVER_NOT_LOADED"}]}

It can be divided: GPU instances and compute instances are made and removed as a driver does, in the slices of compute and memory that
`PROFILES` names. Constants, structures and the error class are pynvml's own (importing it needs no driver), so a wrong name here is a
failing test.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from configs.errors import UsageError

MIB = 2**20
#: What a divided GPU offers (an H200's): NVML's number of the profile, its id for the driver, name, slices of compute (of 7) and of
#: memory (of 8), MiB.
PROFILES = (
    (0x0, 19, "1g.18gb", 1, 1, 18_000),
    (0x1, 14, "2g.35gb", 2, 2, 35_000),
    (0x2, 9, "3g.71gb", 3, 4, 71_000),
    (0x3, 5, "4g.71gb", 4, 4, 71_000),
    (0x4, 0, "7g.141gb", 7, 8, 141_000),
)
COMPUTE_SLICES, MEMORY_SLICES = 7, 8


@dataclass(kw_only=True)
class FakeMig:
    """One partition. compute_slices: of its compute instance, when that is smaller than the GPU instance; number: of the GPU instance,
    0: one more than its place in the list; bare: it has no compute instance (and is no MIG device); processes: as of a GPU."""

    profile: str = "1g.18gb"
    slices: int = 1
    memory_mib: int = 18_000
    used_mib: int = 0
    compute_slices: int | None = None
    uuid: str = ""
    number: int = 0
    bare: bool = False
    processes: list[tuple[int, int | None]] = field(default_factory=list)


@dataclass(kw_only=True)
class FakeGpu:
    """One device. throttle: NVML's clock event bits; ecc_errors: uncorrected, None: no ECC; mig: its partitions, None: it cannot be
    partitioned or is not; mig_pending: MIG mode is switched at the next reset; processes: (pid, MiB or None) of those who
    compute on it."""

    name: str = "NVIDIA Fake 80GB"
    uuid: str = ""
    memory_mib: int = 81_920
    used_mib: int = 1_024
    utilisation_pct: int = 37
    temperature_c: int = 45
    power_w: float = 120.5
    throttle: int = 0
    ecc_errors: int | None = 0
    mig: list[FakeMig] | None = None
    mig_slots: int = 7
    mig_pending: bool = False
    processes: list[tuple[int, int | None]] = field(default_factory=list)


@dataclass(kw_only=True)
class Fault:
    """function: name, or the beginning of names; error: pynvml's, without NVML_ERROR_; device: of which GPU, None: any;
    after: questions that are still answered; times: how many fail then, None: all."""

    function: str
    error: str
    device: int | None = None
    after: int = 0
    times: int | None = None


class FakeNvml:
    """See above. calls: names of the functions that were asked, in order."""

    def __init__(self, gpus: Sequence[FakeGpu] = (), *, driver: str = "580.65.06") -> None:
        import pynvml

        self._real = pynvml
        self.gpus = list(gpus)
        self.driver = driver
        self.calls: list[str] = []
        self.faults: list[Fault] = []
        self.users = 0  # inits without shutdown

    def __getattr__(self, name: str) -> Any:
        """pynvml's constants, structures and errors, nothing that would ask a driver."""
        if name.startswith(("NVML_", "NVMLError", "c_nvml")):
            return getattr(self._real, name)
        raise AttributeError(f"the fake NVML has no {name}")

    @classmethod
    def from_script(cls, text: str) -> FakeNvml:
        """From JSON, or from the file it names. Raises UsageError naming what is wrong with it."""
        try:
            script = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
            fake = cls([_gpu(entry) for entry in script.pop("gpus", [])], driver=script.pop("driver", "580.65.06"))
            for entry in script.pop("faults", []):
                fake.fail(**entry)
            if script:
                raise TypeError(f"unknown keys: {', '.join(sorted(script))}")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"the script of the fake NVML cannot be used: {error}", subject="DRIFTBOX_FAKE_NVML",
                remedy=f"correct it, or unset the variable; a GPU's keys: {', '.join(f.name for f in fields(FakeGpu))}",
            ) from None  # fmt: skip
        return fake

    def fail(self, function: str, error: str, *, device: int | None = None, after: int = 0, times: int | None = None) -> None:
        """Adds a fault. ValueError: pynvml knows no such error."""
        if not hasattr(self._real, f"NVML_ERROR_{error}"):
            raise ValueError(f"NVML has no error {error!r}")
        self.faults.append(Fault(function=function, error=error, device=device, after=after, times=times))

    def heal(self) -> None:
        """All faults are over."""
        self.faults.clear()

    # --- pynvml's functions, by their names ---------------------------------------------------------------------------

    def nvmlInit(self) -> None:
        self._asked("nvmlInit")
        self.users += 1

    def nvmlShutdown(self) -> None:
        self._asked("nvmlShutdown")
        self.users -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._asked("nvmlSystemGetDriverVersion")
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        self._asked("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._asked("nvmlDeviceGetHandleByIndex", index)
        if index >= len(self.gpus):
            raise self._real.NVMLError(self._real.NVML_ERROR_INVALID_ARGUMENT)
        return SimpleNamespace(gpu=index, part=None)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        gpu = self._of("nvmlDeviceGetName", handle)
        return gpu.name if handle.part is None else f"{gpu.name} MIG {self._part(handle).profile}"

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        gpu = self._of("nvmlDeviceGetUUID", handle)
        if handle.part is None:
            return gpu.uuid or f"GPU-fake-{handle.gpu}"
        return self._part(handle).uuid or f"MIG-fake-{handle.gpu}-{handle.part}"

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        gpu = self._of("nvmlDeviceGetMemoryInfo", handle)
        owner: FakeGpu | FakeMig = gpu if handle.part is None else self._part(handle)
        total, used = owner.memory_mib * MIB, owner.used_mib * MIB
        return SimpleNamespace(total=total, used=used, free=total - used)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        gpu = self._of("nvmlDeviceGetUtilizationRates", handle)
        if gpu.mig is not None:  # as on a real one: no utilisation of a partitioned GPU
            raise self._real.NVMLError(self._real.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=gpu.utilisation_pct, memory=0)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return self._of("nvmlDeviceGetTemperature", handle).temperature_c

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return round(1000 * self._of("nvmlDeviceGetPowerUsage", handle).power_w)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return self._of("nvmlDeviceGetCurrentClocksEventReasons", handle).throttle

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return self._of("nvmlDeviceGetCurrentClocksThrottleReasons", handle).throttle

    def nvmlDeviceGetEccMode(self, handle: Any) -> list[int]:
        gpu = self._of("nvmlDeviceGetEccMode", handle)
        if gpu.ecc_errors is None:
            raise self._real.NVMLError(self._real.NVML_ERROR_NOT_SUPPORTED)
        return [self._real.NVML_FEATURE_ENABLED, self._real.NVML_FEATURE_ENABLED]

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, errorType: int, counterType: int) -> int:
        errors = self._of("nvmlDeviceGetTotalEccErrors", handle).ecc_errors or 0
        # Corrected ones are usual: more of them, so that who reads the wrong counter is found out.
        return errors if errorType == self._real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED else errors + 1000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        gpu = self._of("nvmlDeviceGetComputeRunningProcesses", handle)
        found = gpu.processes if handle.part is None else self._part(handle).processes
        return [SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB) for pid, mib in found]

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:
        gpu = self._of("nvmlDeviceGetMigMode", device)
        now = int(gpu.mig is not None)  # NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE
        return [now, 1 - now if gpu.mig_pending else now]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any) -> int:
        return self._of("nvmlDeviceGetMaxMigDeviceCount", device).mig_slots

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any:
        gpu = self._of("nvmlDeviceGetMigDeviceHandleByIndex", device)
        parts = gpu.mig or []
        if index >= len(parts) or parts[index].bare:
            raise self._error("NOT_FOUND")
        return SimpleNamespace(gpu=device.gpu, part=index)

    def nvmlDeviceGetAttributes_v2(self, device: Any) -> Any:
        self._of("nvmlDeviceGetAttributes_v2", device)
        part = self._part(device)
        slices = part.slices if part.compute_slices is None else part.compute_slices
        return SimpleNamespace(
            gpuInstanceSliceCount=part.slices, computeInstanceSliceCount=slices, memorySizeMB=part.memory_mib,
            multiprocessorCount=16 * slices,
        )  # fmt: skip

    # --- pynvml's functions that divide a GPU -------------------------------------------------------------------------

    def nvmlDeviceGetGpuInstanceId(self, device: Any) -> int:
        self._of("nvmlDeviceGetGpuInstanceId", device)
        return self._number(device.gpu, self._part(device))

    def nvmlDeviceGetComputeInstanceId(self, device: Any) -> int:
        self._of("nvmlDeviceGetComputeInstanceId", device)
        return 0  # one compute instance in each

    def nvmlDeviceGetGpuInstanceProfileInfo(self, device: Any, profile: int, version: int = 2) -> Any:
        self._divided("nvmlDeviceGetGpuInstanceProfileInfo", device)
        if version != 2:
            raise self._error("FUNCTION_NOT_FOUND")
        found = next((p for p in PROFILES if p[0] == profile), None)
        if found is None:
            raise self._error("NOT_SUPPORTED")
        info = self._real.c_nvmlGpuInstanceProfileInfo_v2_t()
        info.id, info.sliceCount, info.memorySizeMB, info.name = found[1], found[3], found[5], f"MIG {found[2]}".encode()
        info.instanceCount = COMPUTE_SLICES // found[3]
        return info

    def nvmlDeviceGetGpuInstanceRemainingCapacity(self, device: Any, profileId: int) -> int:
        gpu = self._divided("nvmlDeviceGetGpuInstanceRemainingCapacity", device)
        return _room(gpu, _profile(profileId))

    def nvmlDeviceGetGpuInstances(self, device: Any, profileId: int, gpuInstancesRef: Any, countRef: Any) -> int:
        gpu = self._divided("nvmlDeviceGetGpuInstances", device)
        found = [part for part in gpu.mig or () if part.profile == _profile(profileId)[2]]
        for place, part in enumerate(found):
            gpuInstancesRef[place] = self._handle_of(device.gpu, part)
        countRef._obj.value = len(found)
        return int(self._real.NVML_SUCCESS)

    def nvmlDeviceGetGpuInstanceById(self, device: Any, gpuInstanceId: int) -> Any:
        gpu = self._divided("nvmlDeviceGetGpuInstanceById", device)
        part = next((part for part in gpu.mig or () if self._number(device.gpu, part) == gpuInstanceId), None)
        if part is None:
            raise self._error("NOT_FOUND")
        return self._handle_of(device.gpu, part)

    def nvmlGpuInstanceGetInfo(self, gpuInstance: Any) -> Any:
        gpu, part = self._instance("nvmlGpuInstanceGetInfo", gpuInstance)
        info = self._real.c_nvmlGpuInstanceInfo_t()
        info.id = self._number(gpu, part)
        info.profileId = next(p[1] for p in PROFILES if p[2] == part.profile)
        return info

    def nvmlDeviceCreateGpuInstance(self, device: Any, profileId: int) -> Any:
        gpu = self._divided("nvmlDeviceCreateGpuInstance", device)
        profile = _profile(profileId)
        if not _room(gpu, profile):
            raise self._error("INSUFFICIENT_RESOURCES")
        parts = gpu.mig
        assert parts is not None
        taken = {self._number(device.gpu, part) for part in parts}
        number = min(set(range(1, len(parts) + 2)) - taken)
        # As a driver does: the UUID follows from GPU and numbers, so that the same partition, made again, has the same.
        uuid = f"MIG-fake-{device.gpu}-gi{number}-{profile[2]}"
        made = FakeMig(profile=profile[2], slices=profile[3], memory_mib=profile[5], number=number, bare=True, uuid=uuid)
        for place, part in enumerate(parts):  # the numbers of the others stay what they are
            part.number = self._number(device.gpu, part, place)
        parts.append(made)
        return self._handle_of(device.gpu, made)

    def nvmlGpuInstanceDestroy(self, gpuInstance: Any) -> int:
        gpu, part = self._instance("nvmlGpuInstanceDestroy", gpuInstance)
        if not part.bare:
            raise self._error("IN_USE")
        parts = self.gpus[gpu].mig
        assert parts is not None
        for place, other in enumerate(parts):
            other.number = self._number(gpu, other, place)
            other.uuid = other.uuid or f"MIG-fake-{gpu}-{place}"
        parts.remove(part)
        return int(self._real.NVML_SUCCESS)

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, device: Any, profile: int, engProfile: int, version: int = 2) -> Any:
        """device: the GPU instance; pynvml calls it so."""
        _, part = self._instance("nvmlGpuInstanceGetComputeInstanceProfileInfo", device)
        sizes = {0x0: 1, 0x1: 2, 0x2: 3, 0x3: 4, 0x4: 7}  # NVML_COMPUTE_INSTANCE_PROFILE_n_SLICE
        if engProfile != self._real.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED or version != 2:
            raise self._error("INVALID_ARGUMENT")
        if sizes.get(profile, 99) > part.slices:
            raise self._error("NOT_SUPPORTED")
        info = self._real.c_nvmlComputeInstanceProfileInfo_v2_t()
        info.id, info.sliceCount = 100 + profile, sizes[profile]  # not the profile's number, so that the two are not mixed up
        return info

    def nvmlGpuInstanceCreateComputeInstance(self, gpuInstance: Any, profileId: int) -> Any:
        gpu, part = self._instance("nvmlGpuInstanceCreateComputeInstance", gpuInstance)
        slices = {100: 1, 101: 2, 102: 3, 103: 4, 104: 7}.get(profileId)
        if slices is None or slices > part.slices:
            raise self._error("INVALID_ARGUMENT")
        if not part.bare:
            raise self._error("INSUFFICIENT_RESOURCES")
        part.bare, part.compute_slices = False, slices
        return ctypes.cast(self._handle_of(gpu, part), self._real.c_nvmlComputeInstance_t)

    def nvmlGpuInstanceGetComputeInstanceById(self, gpuInstance: Any, computeInstanceId: int) -> Any:
        _, part = self._instance("nvmlGpuInstanceGetComputeInstanceById", gpuInstance)
        if part.bare or computeInstanceId != 0:
            raise self._error("NOT_FOUND")
        return ctypes.cast(gpuInstance, self._real.c_nvmlComputeInstance_t)

    def nvmlComputeInstanceDestroy(self, computeInstance: Any) -> int:
        _, part = self._instance("nvmlComputeInstanceDestroy", computeInstance)
        if part.processes:
            raise self._error("IN_USE")
        part.bare = True
        return int(self._real.NVML_SUCCESS)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _error(self, name: str) -> Exception:
        made: Exception = self._real.NVMLError(getattr(self._real, f"NVML_ERROR_{name}"))
        return made

    def _divided(self, function: str, handle: Any) -> FakeGpu:
        gpu = self._of(function, handle)
        if gpu.mig is None:
            raise self._error("NOT_SUPPORTED")
        return gpu

    def _number(self, gpu: int, part: FakeMig, place: int | None = None) -> int:
        parts = self.gpus[gpu].mig or []
        return part.number or 1 + (next(n for n, p in enumerate(parts) if p is part) if place is None else place)

    def _handle_of(self, gpu: int, part: FakeMig) -> Any:
        """A pointer as a driver gives it out (to nothing): what it is about is in the number."""
        address = (gpu + 1) * 1000 + self._number(gpu, part)
        return ctypes.cast(ctypes.c_void_p(address), self._real.c_nvmlGpuInstance_t)

    def _instance(self, function: str, pointer: Any) -> tuple[int, FakeMig]:
        gpu, number = divmod(ctypes.cast(pointer, ctypes.c_void_p).value or 0, 1000)
        self._asked(function, gpu - 1)
        part = next((p for p in self.gpus[gpu - 1].mig or () if self._number(gpu - 1, p) == number), None)
        if part is None:
            raise self._error("INVALID_ARGUMENT")
        return gpu - 1, part

    def _part(self, handle: Any) -> FakeMig:
        parts = self.gpus[handle.gpu].mig
        if parts is None or handle.part is None or handle.part >= len(parts):
            raise self._real.NVMLError(self._real.NVML_ERROR_NOT_FOUND)
        return parts[handle.part]

    def _of(self, function: str, handle: Any) -> FakeGpu:
        self._asked(function, handle.gpu)
        return self.gpus[handle.gpu]

    def _asked(self, function: str, device: int | None = None) -> None:
        """Books the question; raises the scripted error when its time has come."""
        self.calls.append(function)
        if function not in ("nvmlInit", "nvmlShutdown") and not self.users:
            raise self._real.NVMLError(self._real.NVML_ERROR_UNINITIALIZED)
        for fault in self.faults:
            if not function.startswith(fault.function) or fault.device not in (None, device):
                continue
            if fault.after > 0:
                fault.after -= 1
            elif fault.times is None or fault.times > 0:
                fault.times = None if fault.times is None else fault.times - 1
                raise self._real.NVMLError(getattr(self._real, f"NVML_ERROR_{fault.error}"))


def _gpu(entry: dict[str, Any]) -> FakeGpu:
    parts = entry.get("mig")
    migs = None if parts is None else [FakeMig(**{**part, "processes": _processes(part)}) for part in parts]
    return FakeGpu(**{**entry, "mig": migs, "processes": _processes(entry)})


def _processes(entry: dict[str, Any]) -> list[tuple[int, int | None]]:
    return [(int(pid), mib) for pid, mib in entry.get("processes", [])]


def _profile(id: int) -> tuple[int, int, str, int, int, int]:
    return next(profile for profile in PROFILES if profile[1] == id)


def _room(gpu: FakeGpu, profile: tuple[int, int, str, int, int, int]) -> int:
    """How many more of a profile fit beside what is there."""
    memory = {name: slices for _, _, name, _, slices, _ in PROFILES}
    parts = gpu.mig or []
    compute = COMPUTE_SLICES - sum(part.slices for part in parts)
    return max(
        0,
        min(
            compute // profile[3], (MEMORY_SLICES - sum(memory.get(part.profile, part.slices) for part in parts)) // profile[4]
        ),
    )


@functools.cache
def machine_of(script: str) -> FakeNvml:
    """The fake of a script, the same one for the whole process: what one part of the program changes, the others see."""
    return FakeNvml.from_script(script)
