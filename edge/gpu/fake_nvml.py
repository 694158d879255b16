"""A machine with GPUs that is not there: the functions of `pynvml` that `edge.gpu.nvml` uses, answered from a script.

    FakeNvml([FakeGpu(), FakeGpu(temperature_c=91)])                     two GPUs, one of them hot
    fake.fail("nvmlDeviceGetPowerUsage", "NOT_SUPPORTED", device=0)      this value is not offered
    fake.fail("nvmlDeviceGet", "GPU_IS_LOST", device=0, after=3)         gone after three more questions about it

Switched on for a whole program by the environment variable `DRIFTBOX_FAKE_NVML`: a JSON object, or the path of a file that holds
one; keys as the fields of `FakeGpu` and `FakeMig`, faults as the arguments of `fail`:

    {"gpus": [{"name": "NVIDIA H200", "mig": [{"profile": "3g.71gb", "slices": 3, "memory_mib": 71000}]}],
     "faults": [{"function": "nvmlInit", "error": "DRIVER_NOT_LOADED"}]}

Constants and the error class are pynvml's own (importing it needs no driver), so a wrong name here is a failing test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from configs.errors import UsageError

MIB = 2**20


@dataclass(kw_only=True)
class FakeMig:
    """One partition. compute_slices: of its compute instance, when that is smaller than the GPU instance."""

    profile: str = "1g.18gb"
    slices: int = 1
    memory_mib: int = 18_000
    used_mib: int = 0
    compute_slices: int | None = None
    uuid: str = ""


@dataclass(kw_only=True)
class FakeGpu:
    """One device. throttle: NVML's clock event bits; ecc_errors: uncorrected, None: no ECC; mig: its partitions, None: it cannot be
    partitioned or is not; processes: (pid, MiB or None) of those who compute on it."""

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
        """pynvml's constants and errors, nothing that would ask a driver."""
        if name.startswith(("NVML_", "NVMLError")):
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
        return [SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB) for pid, mib in gpu.processes]

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:
        gpu = self._of("nvmlDeviceGetMigMode", device)
        mode = self._real.NVML_DEVICE_MIG_DISABLE if gpu.mig is None else self._real.NVML_DEVICE_MIG_ENABLE
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any) -> int:
        return self._of("nvmlDeviceGetMaxMigDeviceCount", device).mig_slots

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any:
        gpu = self._of("nvmlDeviceGetMigDeviceHandleByIndex", device)
        if index >= len(gpu.mig or ()):
            raise self._real.NVMLError(self._real.NVML_ERROR_NOT_FOUND)
        return SimpleNamespace(gpu=device.gpu, part=index)

    def nvmlDeviceGetAttributes_v2(self, device: Any) -> Any:
        self._of("nvmlDeviceGetAttributes_v2", device)
        part = self._part(device)
        slices = part.slices if part.compute_slices is None else part.compute_slices
        return SimpleNamespace(
            gpuInstanceSliceCount=part.slices, computeInstanceSliceCount=slices, memorySizeMB=part.memory_mib,
            multiprocessorCount=16 * slices,
        )  # fmt: skip

    # --- inside -------------------------------------------------------------------------------------------------------

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
    migs = None if parts is None else [FakeMig(**part) for part in parts]
    processes = [(int(pid), mib) for pid, mib in entry.get("processes", [])]
    return FakeGpu(**{**entry, "mig": migs, "processes": processes})
