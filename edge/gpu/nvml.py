"""What the NVIDIA driver says of the GPUs, through NVML: the one place that imports `pynvml` (package nvidia-ml-py).

`DeviceReader.read` answers with a `Survey` and never raises: a machine without a driver has no devices and a reason; a value that a
device does not offer is None; a GPU that is lost keeps its place in the list with a `problem`. Trouble is told once, not at every
look, and told again when it is over. `DeviceWatch` looks now and then from a thread of its own, because a sick driver may take
seconds to answer and a status may not.

The seam is the module itself: anything with pynvml's functions will do, and `edge.gpu.fake_nvml` is one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from configs.errors import DriftboxError, EnvironmentLacking
from edge.gpu.base import DeviceFacts

log = logging.getLogger("driftbox")
T = TypeVar("T")

#: A script for the fake (JSON, or a file that holds it) stands in this variable: then no driver is asked.
FAKE_VARIABLE = "DRIFTBOX_FAKE_NVML"
MIB = 2**20
LOOK_EVERY_S = 5.0
#: Hotter than this is worth a word although the driver does not slow the GPU yet.
HOT_C = 85.0

#: Bits of NVML's clock event reasons -> words. Idle (bit 0) is no throttling. `BY_CHOICE`: somebody has set it so.
THROTTLE_WORDS: tuple[tuple[int, str], ...] = (
    (0x002, "clocks set by the operator"),
    (0x004, "power limit"),
    (0x008, "hardware slowdown"),
    (0x010, "waits for a slower GPU (sync boost)"),
    (0x020, "too warm (driver)"),
    (0x040, "too hot (hardware)"),
    (0x080, "power brake of the power supply"),
    (0x100, "clocks of the display"),
    (0x200, "limit of the board"),
    (0x400, "limit for reliability"),
)
BY_CHOICE = frozenset({"clocks set by the operator", "clocks of the display"})
#: What holds a GPU back that is well and works hard: its power limit, and its neighbours.
_ORDINARY = BY_CHOICE | {"power limit", "waits for a slower GPU (sync boost)"}

_ASK_DRIVER = "run nvidia-smi: what it says is wrong there is wrong here too"
#: NVML's error -> (our code, what is wrong, what to do about it).
_TROUBLE: dict[str, tuple[str, str, str]] = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": (
        "no_driver", "there is no NVIDIA driver (its library libnvidia-ml.so.1 is not found)",
        "install the NVIDIA driver; in a container, start it with the GPUs (--gpus all)",
    ),
    "NVML_ERROR_DRIVER_NOT_LOADED": (
        "no_driver", "the NVIDIA driver is not loaded",
        "load it (sudo modprobe nvidia) or restart the machine; nvidia-smi must list the GPU",
    ),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "driver_mismatch", "the NVIDIA driver was updated while it was in use",
        "restart the machine: library and driver must be of one version",
    ),
    "NVML_ERROR_NO_PERMISSION": (
        "no_permission", "this user may not ask the NVIDIA driver",
        "give it read and write access to /dev/nvidia* (group video or render; in a container, its devices)",
    ),
    "NVML_ERROR_OPERATING_SYSTEM": (
        "no_permission", "the operating system does not let us ask the NVIDIA driver",
        "give this process access to /dev/nvidia* (in a container, its devices and control groups)",
    ),
    "NVML_ERROR_GPU_IS_LOST": (
        "gpu_lost", "the GPU is lost: it no longer answers on its bus",
        "restart the machine; when it happens again, look for Xid in the kernel's log, at power, seat and cooling of the card",
    ),
    "NVML_ERROR_RESET_REQUIRED": (
        "gpu_reset", "the GPU wants a reset before it computes again",
        "stop everything that uses it, then: sudo nvidia-smi --gpu-reset -i INDEX, or restart the machine",
    ),
    "NVML_ERROR_TIMEOUT": ("nvml", "the NVIDIA driver does not answer in time", _ASK_DRIVER),
    "NVML_ERROR_IRQ_ISSUE": ("nvml", "the NVIDIA driver has trouble with the GPU's interrupts", _ASK_DRIVER),
    "NVML_ERROR_INSUFFICIENT_POWER": ("nvml", "the GPU's power cables are not connected", "connect them, then restart the machine"),
}  # fmt: skip
#: These say that the device is gone, whatever was asked; any other error of a single value means that the value is not offered.
_GONE = ("gpu_lost", "gpu_reset")


@dataclass(frozen=True, kw_only=True)
class DeviceProcess:
    """Somebody who computes on a device. used_mib: None where the driver does not say (in a container, say)."""

    pid: int
    used_mib: float | None


@dataclass(frozen=True, kw_only=True)
class MigInstance:
    """One partition of a GPU that its operator has made. gpu: index of the GPU; slices: compute slices, of the GPU's `of_slices`;
    name: as the driver says it, its profile at the end ('NVIDIA H200 MIG 3g.71gb')."""

    uuid: str
    gpu: int
    name: str
    slices: int
    of_slices: int
    memory_total_mib: float
    memory_used_mib: float = 0.0

    @property
    def size_pct(self) -> float:
        """Its part of the whole GPU's compute, in percent of one GPU."""
        return 100.0 * self.slices / self.of_slices


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU and what is on it. code: short name of its problem ('gpu_lost', ...), empty: none; remedy: what to do about it."""

    facts: DeviceFacts
    processes: tuple[DeviceProcess, ...] = ()
    instances: tuple[MigInstance, ...] = ()
    code: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one look found. reason, remedy, code: why no device can be named at all; empty when the driver answered.
    driver: its version."""

    devices: tuple[Gpu, ...] = ()
    driver: str = ""
    code: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def facts(self) -> tuple[DeviceFacts, ...]:
        return tuple(device.facts for device in self.devices)

    @property
    def instances(self) -> tuple[MigInstance, ...]:
        return tuple(instance for device in self.devices for instance in device.instances)

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """Devices without a problem."""
        return tuple(device for device in self.devices if not device.code)


def throttle_words(bits: int) -> tuple[str, ...]:
    """NVML's clock event reasons in words; empty: the clocks are free (or the GPU idles)."""
    return tuple(words for bit, words in THROTTLE_WORDS if bits & bit)


def slowed_by(throttled: tuple[str, ...]) -> tuple[str, ...]:
    """Of what holds clocks down, what somebody should see to: heat, the supply, the hardware. Empty: nothing."""
    return tuple(words for words in throttled if words not in _ORDINARY)


def lacking(library: Any, error: Exception) -> EnvironmentLacking:
    """An error of NVML as one of ours."""
    value = getattr(error, "value", None)
    for name, (code, text, remedy) in _TROUBLE.items():
        if getattr(library, name) == value:
            return EnvironmentLacking(text, subject="gpu", remedy=remedy, code=code)
    return EnvironmentLacking(f"the NVIDIA driver answers: {error}", subject="gpu", remedy=_ASK_DRIVER, code="nvml")


def nvml_library() -> Any:
    """`pynvml`, or the fake when the environment names a script for it. Raises EnvironmentLacking when the package is missing."""
    script = os.environ.get(FAKE_VARIABLE)
    if script:
        from edge.gpu.fake_nvml import machine_of

        return machine_of(script)
    try:
        import pynvml
    except ImportError:
        raise EnvironmentLacking(
            "the Python package nvidia-ml-py is missing, so GPUs cannot be asked", subject="gpu", code="no_nvml",
            remedy="install it beside Driftbox: pip install nvidia-ml-py",
        ) from None  # fmt: skip
    return pynvml


def _told_to_the_log(text: str) -> None:
    log.warning("%s", text)


class DeviceReader:
    """Reads all devices. library: pynvml or something like it, None: found at the first look. tell: hears of each trouble once, and
    when it is over. Thread-safe; `close` gives the driver back, the next `read` takes it again."""

    def __init__(self, library: Any = None, *, tell: Callable[[str], None] = _told_to_the_log) -> None:
        self._library, self._tell = library, tell
        self._open = False
        self._lock = threading.Lock()
        self._known: dict[int, DeviceFacts] = {}  # newest good answer of each device
        self._troubles: dict[str, str] = {}  # subject -> code that was told

    def read(self) -> Survey:
        with self._lock:
            survey = self._read()
            self._tell_news(survey)
            return survey

    def close(self) -> None:
        with self._lock:
            self._shut_down()

    def _read(self) -> Survey:
        try:
            self._init()
            nvml = self._library
            driver = str(nvml.nvmlSystemGetDriverVersion())
            count = int(nvml.nvmlDeviceGetCount())
        except DriftboxError as error:
            return Survey(code=error.code, reason=error.message, remedy=error.remedy)
        except Exception as error:  # whatever a broken driver raises: no devices, and the reason
            self._shut_down()
            problem = lacking(self._library, error)
            return Survey(code=problem.code, reason=problem.message, remedy=problem.remedy)
        # A device that was there before and is not counted any more is lost, too.
        devices = [self._device(index) for index in range(max(count, max(self._known, default=-1) + 1))]
        return Survey(devices=tuple(devices), driver=driver)

    def _init(self) -> None:
        if self._library is None:
            self._library = nvml_library()
        if not self._open:
            self._library.nvmlInit()
            self._open = True

    def _shut_down(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError as error:
            log.debug("nvml: %s", error)

    def _device(self, index: int) -> Gpu:
        try:
            device = read_device(self._library, index)
        except self._library.NVMLError as error:
            return self._lost_device(index, error)
        self._known[index] = device.facts
        return device

    def _lost_device(self, index: int, error: Exception) -> Gpu:
        problem = lacking(self._library, error)
        nobody = (self._library.NVML_ERROR_INVALID_ARGUMENT, self._library.NVML_ERROR_NOT_FOUND)
        if index in self._known and getattr(error, "value", None) in nobody:  # it was there, and its number is nobody's now
            problem = _lost()
        facts = self._known.get(index) or DeviceFacts(
            index=index, name=f"GPU {index}", memory_total_mib=0.0, memory_used_mib=0.0
        )
        silent = replace(facts, utilisation_pct=None, temperature_c=None, power_w=None, throttled=(), problem=problem.message)
        return Gpu(facts=silent, code=problem.code, remedy=problem.remedy.replace("INDEX", str(index)))

    def _tell_news(self, survey: Survey) -> None:
        # Without a driver there is nothing to tell: that is how most boxes are. One that was there and is not any more is news.
        now = {f"GPU {d.facts.index} ({d.facts.name})": d for d in survey.devices if d.code}
        for subject, device in now.items():
            if self._troubles.get(subject) != device.code:
                self._tell(f"{subject}: {device.facts.problem}; {device.remedy}")
        if survey.reason and self._known and "driver" not in self._troubles:
            self._tell(f"the GPUs cannot be asked any more: {survey.reason}; {survey.remedy}")
        over = [] if survey.reason else [subject for subject in self._troubles if subject not in now]
        for subject in over:
            self._tell(f"{subject}: answers again")
        kept = self._troubles if survey.reason else {}
        self._troubles = {**kept, **{subject: device.code for subject, device in now.items()}}
        if survey.reason and self._known:
            self._troubles["driver"] = survey.code


def _lost() -> EnvironmentLacking:
    code, text, remedy = _TROUBLE["NVML_ERROR_GPU_IS_LOST"]
    return EnvironmentLacking(text, subject="gpu", remedy=remedy, code=code)


def read_device(nvml: Any, index: int) -> Gpu:
    """One device. Raises NVML's error when there is no such device or when it is gone."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _offered(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    mig = (_offered(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)) or [0, 0])[0] == nvml.NVML_DEVICE_MIG_ENABLE
    power_mw = _offered(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    utilisation = _offered(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    celsius = _offered(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    facts = DeviceFacts(
        index=index, name=str(nvml.nvmlDeviceGetName(handle)), uuid=str(_offered(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)) or ""),
        memory_total_mib=memory.total / MIB if memory else 0.0, memory_used_mib=memory.used / MIB if memory else 0.0,
        utilisation_pct=None if utilisation is None else float(utilisation),
        temperature_c=None if celsius is None else float(celsius), power_w=None if power_mw is None else power_mw / 1000.0,
        throttled=throttle_words(_throttle_bits(nvml, handle)), ecc_errors=_ecc_errors(nvml, handle), mig=mig,
    )  # fmt: skip
    instances = mig_instances(nvml, handle, index) if mig else ()
    return Gpu(facts=facts, processes=_processes(nvml, handle), instances=instances)


def _offered(nvml: Any, ask: Callable[[], T]) -> T | None:
    """The value; None when this device, driver or user does not get it. Raises NVML's error when the device is gone."""
    try:
        return ask()
    except nvml.NVMLError as error:
        if lacking(nvml, error).code in _GONE:
            raise
        return None


def _throttle_bits(nvml: Any, handle: Any) -> int:
    bits = _offered(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if bits is None:  # drivers before 535 know it by its older name
        bits = _offered(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return int(bits or 0)


def _ecc_errors(nvml: Any, handle: Any) -> int | None:
    """Uncorrected errors since the driver was loaded; corrected ones are what ECC is for. None: no ECC, or switched off."""
    mode = _offered(nvml, lambda: nvml.nvmlDeviceGetEccMode(handle))
    if not mode or mode[0] != nvml.NVML_FEATURE_ENABLED:
        return None
    kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return _offered(nvml, lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, since)))


def _processes(nvml: Any, handle: Any) -> tuple[DeviceProcess, ...]:
    found = _offered(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    return tuple(
        DeviceProcess(pid=int(p.pid), used_mib=None if p.usedGpuMemory is None else p.usedGpuMemory / MIB) for p in found
    )


def mig_instances(nvml: Any, handle: Any, gpu: int) -> tuple[MigInstance, ...]:
    """The partitions of a device whose MIG mode is on. Numbers may have holes: an instance that was destroyed leaves one."""
    slots = _offered(nvml, lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
    found = []
    for slot in range(slots):
        part = _offered(nvml, lambda slot=slot: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot))  # type: ignore[misc]
        if part is None:
            continue
        instance = _offered(nvml, lambda part=part: _instance(nvml, part, gpu, slots))  # type: ignore[misc]
        if instance is not None:  # None: destroyed while we looked
            found.append(instance)
    return tuple(found)


def _instance(nvml: Any, part: Any, gpu: int, of_slices: int) -> MigInstance:
    about = nvml.nvmlDeviceGetAttributes_v2(part)
    memory = _offered(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(part))
    return MigInstance(
        uuid=str(nvml.nvmlDeviceGetUUID(part)), gpu=gpu, name=str(nvml.nvmlDeviceGetName(part)),
        # What computes is the compute instance, which may be a part of its GPU instance.
        slices=int(about.computeInstanceSliceCount), of_slices=of_slices,
        memory_total_mib=memory.total / MIB if memory else float(about.memorySizeMB),
        memory_used_mib=memory.used / MIB if memory else 0.0,
    )  # fmt: skip


class DeviceWatch:
    """Keeps the newest survey. `newest` returns at once; the thread of `start` looks every `every_s`."""

    def __init__(self, reader: DeviceReader, *, every_s: float = LOOK_EVERY_S) -> None:
        self._reader, self._every_s = reader, every_s
        self._newest = reader.read()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def newest(self) -> Survey:
        return self._newest

    def facts(self) -> tuple[DeviceFacts, ...]:
        return self._newest.facts

    def look(self) -> Survey:
        self._newest = self._reader.read()
        return self._newest

    def start(self) -> None:
        """Without a device there is nothing to watch: no thread."""
        if self._newest.devices:
            self._thread.start()

    def stop(self) -> None:
        """Bounded: a driver that hangs is left behind (the thread is a daemon)."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        if not self._thread.is_alive():
            self._reader.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self.look()
