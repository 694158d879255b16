"""OpenVINO (Apache-2.0) on the CPU: fp32, or int8 quantised by NNCF. The only file that imports openvino.

Its `infer` runs on the caller's thread when it has one thread and one stream, so the box's account of a job's CPU time stays right
(measured: thread time equals process time).
"""

from __future__ import annotations

import hashlib
import importlib.util
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


def settings(threads: int) -> dict[str, Any]:
    """Compile settings: one picture at a time, soon."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",  # bf16 on newer processors would change the answers of the fp32 form
        "ENABLE_CPU_PINNING": False,  # all cameras would sit on the first core
    }


class _Request:
    """An infer request with its own input and outputs, which are looked at in place: handing an array over for each run, and asking for
    each output, costs a tenth of what a small network does."""

    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._input = self._request.get_input_tensor(0).data
        self._outputs = [self._request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        if array.shape != self._input.shape or array.dtype != self._input.dtype:
            raise DriftboxError(
                f"this form takes {self._input.dtype} {self._input.shape}, got {array.dtype} {array.shape}", subject=XML
            )
        np.copyto(self._input, array)
        self._request.infer()
        return [output.copy() for output in self._outputs]  # the next to run may be another camera


class _Compiled:
    """A compiled model and the infer requests of it that are idle. Thread-safe; never more requests than runs at a time."""

    def __init__(self, files: Files, threads: int) -> None:
        ov = library()
        try:
            core = ov.Core()
            self._model = core.compile_model(core.read_model(files[XML], files[BIN]), "CPU", settings(threads))
            self._idle = [_Request(self._model)]
        except RuntimeError as error:
            raise DriftboxError(
                f"openvino cannot load this form: {str(error).strip().splitlines()[-1]}", subject=XML, remedy="make it again"
            ) from error

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        try:
            request = self._idle.pop()  # the one that was used last: what it needs may be in the caches still
        except IndexError:
            request = _Request(self._model)
        outputs = request.run(array)
        self._idle.append(request)  # unless its run threw
        return outputs


#: Compiled models that are in use, by what they were made of. Cameras with equal weights share one: its weights and work space are in
#: memory, and in the processor's caches, once.
_COMPILED: WeakValueDictionary[str, _Compiled] = WeakValueDictionary()
_COMPILING = threading.Lock()


def _compiled(files: Files, threads: int) -> _Compiled:
    key = hashlib.sha256(files[XML] + files[BIN] + str(threads).encode()).hexdigest()
    with _COMPILING:
        found = _COMPILED.get(key)
        if found is None:
            found = _COMPILED[key] = _Compiled(files, threads)
        return found


class OpenVinoForm:
    """Raises DriftboxError when the files are no model."""

    def __init__(self, files: Files, threads: int) -> None:
        self._compiled: _Compiled | None = _compiled(files, threads)
        self.memory_mib = sum(len(content) for content in files.values()) / 2**20

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        if self._compiled is None:
            raise DriftboxError("this form was closed", subject=XML, remedy="open it again")
        return self._compiled.run(array)

    def close(self) -> None:
        self._compiled = None


class OpenVinoRuntime:
    """threads: of one `run`; a job of the box has a core, so one by default."""

    portable = True

    def __init__(self, *, int8: bool = False, threads: int = 1) -> None:
        self.name = "openvino-int8" if int8 else "openvino"
        self.precision = "int8" if int8 else "fp32"
        self.calibrated = int8
        self.libraries: tuple[str, ...] = ("openvino", "nncf") if int8 else ("openvino",)
        self._threads = threads

    def missing(self) -> str:
        gone = [name for name in self.libraries if not importlib.util.find_spec(name)]
        return f"{', '.join(gone)} is not installed" if gone else ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        model = read_onnx(onnx)
        if self.precision == "int8":
            from models.compress.int8 import openvino_int8

            model = openvino_int8(model, arrays)
        return written(model)

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> OpenVinoForm:
        return OpenVinoForm(files, self._threads)


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
