"""OpenVINO (Apache-2.0) on the CPU: fp32, bf16 on processors that compute in it, or int8 quantised by NNCF. The only file
that imports openvino.

Its `infer` runs on the caller's thread when it has one thread and one stream, so the box's account of a job's CPU time stays right
(measured: thread time equals process time). With one stream, a compiled model runs one request at a time, however many requests
there are: two threads that asked one came to 2,290 runs a second, as one thread alone, and two with a model each to 4,540. More streams
would share the weights, but run in threads of the library's own, whose time no job's account sees.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from configs.errors import DriftboxError, EnvironmentLacking
from configs.machine import usable_cores
from models.serving.base import Files, ShapePx

if TYPE_CHECKING:
    from models.detector import ServedBody

XML, BIN = "model.xml", "model.bin"


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Inside, the library's telemetry package cannot be imported, so that openvino and nncf take their own stubs for it: they look for
    a server on import otherwise."""
    before = sys.modules.get("openvino_telemetry")
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    os.environ.setdefault("NNCF_CI", "1")  # nncf's own switch
    try:
        yield
    finally:
        if before is None:
            del sys.modules["openvino_telemetry"]
        else:
            sys.modules["openvino_telemetry"] = before


def library() -> Any:
    """The module. Raises EnvironmentLacking."""
    try:
        with without_telemetry():
            import openvino
    except ImportError as error:
        raise EnvironmentLacking("openvino is not installed", subject="openvino", remedy="pip install openvino") from error
    return openvino


def computes_in_bf16() -> bool:
    """Whether this machine's processor does; else the bf16 form computes in fp32. Raises EnvironmentLacking."""
    return "BF16" in library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def settings(threads: int, *, bf16: bool = False) -> dict[str, Any]:
    """Compile settings: one picture at a time, soon. bf16: where the processor computes in it, else fp32 all the same."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",  # unasked, newer processors would compute the fp32 form in bf16
        "ENABLE_CPU_PINNING": False,  # all cameras would sit on the first core
    }


class _Copy:
    """A compiled model and its one infer request, whose input and outputs are looked at in place: handing an array over for each run,
    and asking for each output, costs a tenth of what a small network does. turn: held by who runs it."""

    def __init__(self, files: Files, threads: int, bf16: bool) -> None:
        ov = library()
        try:
            core = ov.Core()
            self._model = core.compile_model(core.read_model(files[XML], files[BIN]), "CPU", settings(threads, bf16=bf16))
        except RuntimeError as error:
            raise DriftboxError(
                f"openvino cannot load this form: {str(error).strip().splitlines()[-1]}", subject=XML, remedy="make it again"
            ) from error
        self.turn = threading.Lock()
        self._prepare()

    def _prepare(self) -> None:
        self._request = self._model.create_infer_request()
        self._input = self._request.get_input_tensor(0).data
        self._outputs = [self._request.get_output_tensor(i).data for i in range(len(self._model.outputs))]

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        """The turn is the caller's."""
        if array.shape != self._input.shape or array.dtype != self._input.dtype:
            raise DriftboxError(
                f"this form takes {self._input.dtype} {self._input.shape}, got {array.dtype} {array.shape}", subject=XML
            )
        np.copyto(self._input, array)
        try:
            self._request.infer()
        except Exception:
            self._prepare()  # whatever state the run left it in
            raise
        return [output.copy() for output in self._outputs]  # the next to run may be another camera


class _Compiled:
    """A compiled model, several times where several forms use it: see the module's text. Thread-safe; a run waits while as many are at
    work as there are copies."""

    def __init__(self, files: Files, threads: int, bf16: bool) -> None:
        self._files: Files | None = files  # until no more copies are made of them
        self._threads, self._bf16 = threads, bf16
        self._copies = [_Copy(files, threads, bf16)]
        self._next = itertools.count()

    @property
    def copies(self) -> int:
        return len(self._copies)

    def widen(self) -> None:
        """For one more who runs it at the same time: more than there are cores never do."""
        with _COMPILING:
            if len(self._copies) >= usable_cores() // self._threads:
                self._files = None
            elif self._files is not None:
                self._copies = [*self._copies, _Copy(self._files, self._threads, self._bf16)]

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        copy = self._free()
        try:
            return copy.run(array)
        finally:
            copy.turn.release()

    def _free(self) -> _Copy:
        """A copy, its turn taken. The first that is free: what it needs may be in the caches still."""
        copies = self._copies
        for copy in copies:
            if copy.turn.acquire(blocking=False):
                return copy
        copy = copies[next(self._next) % len(copies)]
        copy.turn.acquire()
        return copy


#: Compiled models that are in use, by what they were made of. Cameras with equal weights share one: its weights and work space are in
#: memory, and in the processor's caches, once per core at most.
_COMPILED: WeakValueDictionary[str, _Compiled] = WeakValueDictionary()
_COMPILING = threading.Lock()


def _compiled(files: Files, threads: int, bf16: bool) -> _Compiled:
    key = hashlib.sha256(files[XML] + files[BIN] + f"{threads} {bf16}".encode()).hexdigest()
    with _COMPILING:
        found = _COMPILED.get(key)
        if found is None:
            found = _COMPILED[key] = _Compiled(files, threads, bf16)
            return found
    found.widen()
    return found


class OpenVinoForm:
    """Raises DriftboxError when the files are no model."""

    def __init__(self, files: Files, threads: int, *, bf16: bool = False) -> None:
        self._compiled: _Compiled | None = _compiled(files, threads, bf16)
        self.memory_mib = sum(len(content) for content in files.values()) / 2**20

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        if self._compiled is None:
            raise DriftboxError("this form was closed", subject=XML, remedy="open it again")
        return self._compiled.run(array)

    def widen(self) -> None:
        if self._compiled is not None:
            self._compiled.widen()

    def close(self) -> None:
        self._compiled = None


class OpenVinoRuntime:
    """threads: of one `run`; a job of the box has a core, so one by default."""

    portable = True

    def __init__(self, *, int8: bool = False, bf16: bool = False, threads: int = 1) -> None:
        self.precision = "int8" if int8 else "bf16" if bf16 else "fp32"
        self.name = "openvino" if self.precision == "fp32" else f"openvino-{self.precision}"
        self.calibrated = int8
        self.libraries: tuple[str, ...] = ("openvino", "nncf") if int8 else ("openvino",)
        self._threads = threads

    def missing(self) -> str:
        gone = [name for name in self.libraries if not importlib.util.find_spec(name)]
        return f"{', '.join(gone)} is not installed" if gone else ""

    def tuned_for(self) -> str:
        return ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        model = read_onnx(onnx)
        if self.precision == "int8":
            from models.compress.int8 import openvino_int8

            model = openvino_int8(model, arrays)
        return written(model)

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> OpenVinoForm:
        return OpenVinoForm(files, self._threads, bf16=self.precision == "bf16")


def read_onnx(onnx: bytes) -> Any:
    """An openvino model of an ONNX file. Raises DriftboxError."""
    try:
        return library().Core().read_model(onnx)
    except RuntimeError as error:
        raise DriftboxError(
            f"openvino cannot read this network: {str(error).strip().splitlines()[-1]}", subject="openvino"
        ) from error


def written(model: Any) -> Files:
    """The model as OpenVINO's two files; weights stay fp32 or int8 as they are. OSError when there is no room."""
    with tempfile.TemporaryDirectory(prefix="driftbox-form-") as folder:
        library().save_model(model, str(Path(folder) / XML), compress_to_fp16=False)
        return {name: (Path(folder) / name).read_bytes() for name in (XML, BIN)}
