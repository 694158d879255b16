"""ONNX Runtime (MIT): CPU on one thread, CUDA where its provider is installed. The only file that imports it for serving."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import DriftboxError, EnvironmentLacking
from models.serving.base import Files, ShapePx

if TYPE_CHECKING:
    from models.detector import ServedBody

MODEL = "model.onnx"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def library() -> Any:
    """The module, quiet. Raises EnvironmentLacking."""
    try:
        import onnxruntime
    except ImportError as error:
        raise EnvironmentLacking(
            "onnxruntime is not installed", subject="onnxruntime", remedy="pip install onnxruntime"
        ) from error
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


class OnnxForm:
    """providers: in the order in which they are to be used. Raises DriftboxError when the content is no model, or when the first of them
    could not be used: the library itself only logs that, and computes on cores."""

    def __init__(self, content: bytes, providers: list[str], threads: int) -> None:
        ort = library()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a spinning thread burns a neighbour's share
        try:
            self._session = ort.InferenceSession(content, options, providers=providers)
        except Exception as error:  # its own exceptions share no base
            raise DriftboxError(
                f"onnxruntime cannot load this form: {str(error).splitlines()[0]}", subject=MODEL, remedy="make it again"
            ) from error
        if self._session.get_providers()[0] != providers[0]:
            raise DriftboxError(
                f"onnxruntime has no {providers[0]} that works here", subject=MODEL,
                remedy="install the CUDA and cuDNN that its version asks for, or serve through torch-compiled",
            )  # fmt: skip
        self._session.disable_fallback()  # a run that fails on the GPU is not tried again on a core
        self._input = self._session.get_inputs()[0].name
        self.memory_mib = len(content) / 2**20

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        return list(self._session.run(None, {self._input: array}))

    def widen(self) -> None:
        """A session may be run by any number of threads."""

    def close(self) -> None:
        self._session = None


class OnnxRuntime:
    """device: where the trained model is; a box that keeps off the GPU keeps its forms off it, too. threads: of one `run`; a job of the
    box has a core, so one by default."""

    portable = True

    def __init__(self, *, int8: bool = False, threads: int = 1, device: str = "cpu") -> None:
        self.name = "onnxruntime-int8" if int8 else "onnxruntime"
        self.precision = "int8" if int8 else "fp32"
        self.calibrated = int8
        self.libraries: tuple[str, ...] = ("onnxruntime", "onnx")
        self._threads = threads
        self._on_gpu = device != "cpu" and not int8  # int8 of this kind (QDQ) is made for CPUs

    def missing(self) -> str:
        if not importlib.util.find_spec("onnxruntime"):
            return "onnxruntime is not installed"
        if self._on_gpu and self.providers()[0] != CUDA:
            return "this onnxruntime computes on cores only; onnxruntime-gpu computes on a GPU"
        return ""

    def tuned_for(self) -> str:
        return ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        if self.precision == "fp32":
            return {MODEL: onnx}
        from models.compress.int8 import onnxruntime_int8

        return {MODEL: onnxruntime_int8(onnx, arrays)}

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> OnnxForm:
        return OnnxForm(files[MODEL], self.providers(), self._threads)

    def providers(self) -> list[str]:
        """In the order in which they are used, operator by operator."""
        wanted = [CUDA] if self._on_gpu else []
        known = library().get_available_providers()
        return [*(provider for provider in wanted if provider in known), CPU]
