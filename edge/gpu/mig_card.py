"""A GPU that can be divided (MIG), through NVML: what it offers, what is on it, who computes there; makes and removes single partitions.

NVML's own words: a *GPU instance* holds memory and multiprocessors; a *compute instance* in it is what a process can use; only then is
there a MIG device with a UUID. Here a partition is a GPU instance with one compute instance as large as it is. Which partitions may be
touched is decided in `edge.gpu.mig_division`; nothing here asks whose they are.

Every error of NVML comes out as EnvironmentLacking that names the GPU and the remedy.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from configs.errors import DriftboxError, EnvironmentLacking
from edge.gpu.nvml import MigInstance, lacking, mig_instances, nvml_library

log = logging.getLogger("driftbox")

#: Most GPU instances of a profile that are listed (NVML knows 7 or 8).
LISTED_MOST = 16

#: NVML's error when something is to be made or removed -> (our code, what is wrong, what to do about it).
_REFUSED: dict[str, tuple[str, str, str]] = {
    "NVML_ERROR_NO_PERMISSION": (
        "no_permission", "this user may not divide it",
        "run the box as root or give it /proc/driver/nvidia/capabilities/mig/config, or make the partition yourself "
        "(sudo nvidia-smi mig -i {index} -cgi PROFILE -C) and leave out gpus.mig_reconfigure",
    ),
    "NVML_ERROR_INSUFFICIENT_RESOURCES": (
        "no_room", "there is no room for another partition of that profile",
        "remove partitions that nobody needs (nvidia-smi mig -lgi lists them), or set gpus.mig_profile to a smaller one",
    ),
    "NVML_ERROR_IN_USE": (
        "gpu_busy", "a partition of it is in use", "end what computes there (nvidia-smi lists it), then start the box again",
    ),
    "NVML_ERROR_NOT_SUPPORTED": (
        "not_supported", "it cannot be divided from here", "divide it where its driver runs (on the host of a virtual machine)",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A kind of GPU instance that a GPU offers. id: the driver's number for it."""

    id: int
    name: str
    slices: int
    memory_mib: float


class Card:
    """One GPU, for as long as it is entered. index: as nvidia-smi counts; library: pynvml or something like it."""

    def __init__(self, index: int, library: Any = None) -> None:
        self.index, self.name, self.uuid = index, f"GPU {index}", ""
        self._library = library

    def __enter__(self) -> Self:
        self._nvml = nvml = nvml_library() if self._library is None else self._library
        self._asked(nvml.nvmlInit)
        try:
            self._handle = self._asked(nvml.nvmlDeviceGetHandleByIndex, self.index)
            self.uuid = str(self._asked(nvml.nvmlDeviceGetUUID, self._handle))
            self.name = f"GPU {self.index} ({self._asked(nvml.nvmlDeviceGetName, self._handle)})"
        except DriftboxError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as problem:
            log.debug("nvml: %s", problem)

    # --- looking ------------------------------------------------------------------------------------------------------

    def must_be_on(self) -> None:
        """EnvironmentLacking: MIG mode is off. It is not switched from here: that wants an idle GPU, on some models a reset."""
        now, then = self._asked(self._nvml.nvmlDeviceGetMigMode, self._handle)
        on = self._nvml.NVML_DEVICE_MIG_ENABLE
        if now == then == on:
            return
        if then == on:
            text, remedy = (
                "MIG mode is on only after a reset",
                f"sudo nvidia-smi --gpu-reset -i {self.index}, or restart the machine",
            )
        else:
            text, remedy = "MIG mode is off, and the box does not switch it", f"sudo nvidia-smi -i {self.index} -mig 1"
        raise EnvironmentLacking(
            f"{self.name}: {text}", subject="gpus.backend", code="mig_off", remedy=f"stop everything that uses the GPU, then: {remedy}"
        )  # fmt: skip

    def profiles(self) -> dict[str, Profile]:
        """By name ('3g.71gb'), in the driver's order."""
        nvml, found = self._nvml, {}
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = self._if_there(nvml.nvmlDeviceGetGpuInstanceProfileInfo, self._handle, number, version=2)
            if info is not None:
                name = _text(info.name).removeprefix("MIG ")
                found[name] = Profile(
                    id=int(info.id), name=name, slices=int(info.sliceCount), memory_mib=float(info.memorySizeMB)
                )
        return found

    def would_be(self, profile: Profile) -> MigInstance:
        """The partition that the profile makes."""
        return MigInstance(
            uuid="", gpu=self.index, name=profile.name, slices=profile.slices, of_slices=self._slots(),
            memory_total_mib=profile.memory_mib,
        )  # fmt: skip

    def instances(self, profile: Profile) -> set[int]:
        """Numbers of the GPU instances of a profile, whoever made them."""
        nvml = self._nvml
        listed, count = (nvml.c_nvmlGpuInstance_t * LISTED_MOST)(), ctypes.c_uint(0)
        self._asked(nvml.nvmlDeviceGetGpuInstances, self._handle, profile.id, listed, ctypes.byref(count))
        return {self._number(listed[n]) for n in range(count.value)}

    def uuid_of(self, number: int) -> str:
        """Of the MIG device in a GPU instance; empty while it has no compute instance."""
        part = self._device_in(number)
        return "" if part is None else str(self._asked(self._nvml.nvmlDeviceGetUUID, part))

    def must_have_room(self, profile: Profile) -> None:
        """EnvironmentLacking: there is none for one more."""
        if not self.has_room(profile):
            listed = ", ".join(part.name for part in mig_instances(self._nvml, self._handle, self.index)) or "none"
            raise self._refusal("NVML_ERROR_INSUFFICIENT_RESOURCES", f" ({profile.name}); there are: {listed}")

    def has_room(self, profile: Profile) -> bool:
        ask = self._nvml.nvmlDeviceGetGpuInstanceRemainingCapacity
        return int(self._asked(ask, self._handle, profile.id)) > 0

    def nobody_computes(self) -> None:
        """EnvironmentLacking: a process other than this one does, or the driver does not say. The GPU and each partition are asked: who
        may not see all processes is shown those of a partition only."""
        ask, found = self._nvml.nvmlDeviceGetComputeRunningProcesses, set()
        for place in (self._handle, *self._devices()):
            found |= {int(process.pid) for process in self._asked(ask, place)}
        found.discard(os.getpid())
        if found:
            raise EnvironmentLacking(
                f"{self.name} is to be divided, and others compute on it: process {', '.join(map(str, sorted(found)))}",
                subject=f"gpu {self.index}", code="gpu_busy",
                remedy="end them (nvidia-smi lists them), then start the box again; the GPU is as it was",
            )  # fmt: skip

    # --- changing -----------------------------------------------------------------------------------------------------

    def create(self, profile: Profile) -> int:
        """A GPU instance without a compute instance; its number."""
        return self._number(self._asked(self._nvml.nvmlDeviceCreateGpuInstance, self._handle, profile.id))

    def complete(self, number: int) -> str:
        """Sees to it that a GPU instance has its compute instance; the UUID of the MIG device."""
        if self._device_in(number) is None:
            nvml, instance = self._nvml, self._instance(number)
            whole = self._whole(instance)
            self._asked(nvml.nvmlGpuInstanceCreateComputeInstance, instance, whole)
        uuid = self.uuid_of(number)
        if not uuid:
            raise EnvironmentLacking(
                f"{self.name}: the driver has made a partition and does not list it", subject=f"gpu {self.index}", code="nvml",
                remedy="run nvidia-smi -L: when it is there, start the box again",
            )  # fmt: skip
        return uuid

    def destroy(self, number: int) -> None:
        """Compute instance, then GPU instance; when the second stays, the first is made again, so that the partition works as before."""
        nvml, instance, part = self._nvml, self._instance(number), self._device_in(number)
        if part is not None:
            inner = self._asked(nvml.nvmlDeviceGetComputeInstanceId, part)
            computing = self._asked(nvml.nvmlGpuInstanceGetComputeInstanceById, instance, inner)
            self._asked(nvml.nvmlComputeInstanceDestroy, computing)
        try:
            self._asked(nvml.nvmlGpuInstanceDestroy, instance)
        except DriftboxError:
            if part is not None:
                self.complete(number)
            raise

    # --- inside -------------------------------------------------------------------------------------------------------

    def _slots(self) -> int:
        return int(self._asked(self._nvml.nvmlDeviceGetMaxMigDeviceCount, self._handle))

    def _devices(self) -> list[Any]:
        """Handles of the MIG devices; their numbers may have holes."""
        ask = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex
        found = [self._if_there(ask, self._handle, slot) for slot in range(self._slots())]
        return [device for device in found if device is not None]

    def _device_in(self, number: int) -> Any | None:
        ask = self._nvml.nvmlDeviceGetGpuInstanceId
        return next((part for part in self._devices() if self._if_there(ask, part) == number), None)

    def _instance(self, number: int) -> Any:
        return self._asked(self._nvml.nvmlDeviceGetGpuInstanceById, self._handle, number)

    def _number(self, instance: Any) -> int:
        return int(self._asked(self._nvml.nvmlGpuInstanceGetInfo, instance).id)

    def _whole(self, instance: Any) -> int:
        """The driver's number for the largest compute instance of a GPU instance."""
        nvml, sizes = self._nvml, dict[int, int]()
        shared, ask = nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            info = self._if_there(ask, instance, number, shared, version=2)
            if info is not None:
                sizes.setdefault(int(info.sliceCount), int(info.id))
        if not sizes:
            raise self._refusal("NVML_ERROR_NOT_SUPPORTED", " (the driver offers no compute instance)")
        return sizes[max(sizes)]

    def _if_there(self, ask: Callable[..., Any], *of: Any, **how: Any) -> Any | None:
        """The driver's answer; None: there is no such thing on this GPU."""
        nvml = self._nvml
        try:
            return ask(*of, **how)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED):
                return None
            raise self._mapped(error) from None

    def _asked(self, ask: Callable[..., Any], *of: Any) -> Any:
        try:
            return ask(*of)
        except self._nvml.NVMLError as error:
            raise self._mapped(error) from None

    def _mapped(self, error: Exception) -> EnvironmentLacking:
        value = getattr(error, "value", None)
        name = next((name for name in _REFUSED if getattr(self._nvml, name) == value), None)
        if name is not None:
            return self._refusal(name)
        other = lacking(self._nvml, error)
        remedy = other.remedy.replace("INDEX", str(self.index))
        return EnvironmentLacking(f"{self.name}: {other.message}", subject=f"gpu {self.index}", code=other.code, remedy=remedy)

    def _refusal(self, name: str, more: str = "") -> EnvironmentLacking:
        code, text, remedy = _REFUSED[name]
        return EnvironmentLacking(
            f"{self.name}: {text}{more}", subject=f"gpu {self.index}", code=code, remedy=remedy.format(index=self.index)
        )


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
