"""Green contexts by the CUDA driver itself: one split of a device's SMs in equal groups, contexts made of some of them.

Through ctypes, because neither torch (see `edge.gpu.green`) nor another of our libraries offers a split whose parts are disjoint. Seven
functions of the driver API (CUDA 12.4 and later; cuGreenCtxStreamCreate 12.5), whose structures are opaque but for three numbers:
`CUdevResource` is 144 bytes, its type at 0, its SM count at 96 (cuda.h, RESOURCE_ABI_VERSION 1, unchanged up to 13.x).
Not run by the tests of this repository: docs/gpu.md.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from typing import Any

from configs.errors import EnvironmentLacking
from edge.gpu.cuda import URGENT, TorchCudaDevice
from scheduler.partitions import granularity

_TYPE_SM = 1
_DEFAULT_STREAM = 1  # flag of cuGreenCtxCreate, required
_NON_BLOCKING = 1  # flag of cuGreenCtxStreamCreate, required
_LIBRARY = "libcuda.so.1"

INSTEAD = "or set gpus.backend to lanes"


class _Resource(ctypes.Structure):
    _fields_ = [("type", c_uint), ("_padding", ctypes.c_ubyte * 92), ("sm_count", c_uint), ("_rest", ctypes.c_ubyte * 44)]


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetDevResource": (c_int, POINTER(_Resource), c_int),
    "cuDevSmResourceSplitByCount": (
        POINTER(_Resource), POINTER(c_uint), POINTER(_Resource), POINTER(_Resource), c_uint, c_uint,
    ),  # fmt: skip
    "cuDevResourceGenerateDesc": (POINTER(c_void_p), POINTER(_Resource), c_uint),
    "cuGreenCtxCreate": (POINTER(c_void_p), c_void_p, c_int, c_uint),
    "cuGreenCtxStreamCreate": (POINTER(c_void_p), c_void_p, c_uint, c_int),
    "cuGreenCtxDestroy": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
}  # fmt: skip


class Driver:
    """The functions, checked. library: the loaded driver (None: the system's)."""

    def __init__(self, library: Any | None = None) -> None:
        self._functions: dict[str, Any] = {}
        loaded = _load() if library is None else library
        for name, arguments in _FUNCTIONS.items():
            try:
                function = getattr(loaded, name)
            except AttributeError:
                raise EnvironmentLacking(
                    f"the NVIDIA driver has no green contexts ({name} is missing)",
                    subject="gpus.backend",
                    remedy=f"install a driver for CUDA 12.8 or later (570 or later), {INSTEAD}",
                    code="green",
                ) from None
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function

    def call(self, name: str, *arguments: Any) -> None:
        """EnvironmentLacking with the driver's own name of the error."""
        result = self._functions[name](*arguments)
        if result != 0:
            raise EnvironmentLacking(
                f"the NVIDIA driver refused {name}: {self._name_of(result)}",
                subject="gpus.backend",
                remedy=f"see that nobody else divides this GPU (MIG, MPS), {INSTEAD}",
                code="green",
            )

    def _name_of(self, result: int) -> str:
        text = c_char_p()
        known = self._functions["cuGetErrorName"](result, byref(text)) == 0 and text.value
        return text.value.decode() if known and text.value else f"error {result}"


class DriverPartition:
    """A green context and a stream in it; see `edge.gpu.green.SmPartition`."""

    def __init__(self, driver: Driver, context: c_void_p, stream: c_void_p, handle: Any) -> None:
        self.stream = handle
        self._driver, self._context, self._raw = driver, context, stream

    def close(self) -> None:
        self._driver.call("cuStreamDestroy_v2", self._raw)
        self._driver.call("cuGreenCtxDestroy", self._context)


class DriverSplitter:
    """See `edge.gpu.green.SmSplitter`. cuda: the device to split; driver: for tests."""

    def __init__(self, cuda: TorchCudaDevice, driver: Driver | None = None) -> None:
        self._cuda = cuda
        self._driver = driver or Driver()
        self._device = c_int()
        self._driver.call("cuDeviceGet", byref(self._device), cuda.index)
        self._resources = self._split()

    def groups(self) -> tuple[int, int]:
        return len(self._resources), self._resources[0].sm_count

    def make(self, groups: tuple[int, ...], *, urgent: bool) -> DriverPartition:
        chosen = (_Resource * len(groups))(*(self._resources[group] for group in groups))
        description, context, stream = c_void_p(), c_void_p(), c_void_p()
        self._driver.call("cuDevResourceGenerateDesc", byref(description), chosen, len(groups))
        self._driver.call("cuGreenCtxCreate", byref(context), description, self._device, _DEFAULT_STREAM)
        try:
            self._driver.call("cuGreenCtxStreamCreate", byref(stream), context, _NON_BLOCKING, URGENT if urgent else 0)
        except EnvironmentLacking:
            self._driver.call("cuGreenCtxDestroy", context)
            raise
        return DriverPartition(self._driver, context, stream, self._cuda.foreign_stream(stream.value or 0))

    def _split(self) -> list[_Resource]:
        """As many of the smallest groups as the driver makes of the device."""
        found = self._cuda.properties()
        smallest = granularity(*found.capability).minimum_sms
        whole, rest, count = _Resource(), _Resource(), c_uint(0)
        self._driver.call("cuDeviceGetDevResource", self._device, byref(whole), _TYPE_SM)
        self._driver.call("cuDevSmResourceSplitByCount", None, byref(count), byref(whole), None, 0, smallest)
        if count.value < 2:
            raise EnvironmentLacking(
                f"{found.name} cannot be divided: {found.sms} SMs make {count.value} groups of {smallest}",
                subject="gpus.backend",
                remedy=INSTEAD.removeprefix("or "),
                code="green",
            )
        groups = (_Resource * count.value)()
        self._driver.call("cuDevSmResourceSplitByCount", groups, byref(count), byref(whole), byref(rest), 0, smallest)
        return list(groups)[: count.value]


def _load() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        raise EnvironmentLacking(
            "the NVIDIA driver's library is not installed",
            subject="gpus.backend",
            remedy=f"install the NVIDIA driver, {INSTEAD}",
            code="green",
        ) from None
