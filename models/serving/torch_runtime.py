"""Torch itself: as trained, and compiled (CPU or CUDA)."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import EnvironmentLacking
from models.serving.base import Files, ShapePx

if TYPE_CHECKING:
    import torch

    from models.detector import ServedBody

#: torch.compile is not safe to run twice at a time.
_COMPILING = threading.Lock()


class TorchForm:
    """Runs a module. memory_mib: its parameters and buffers."""

    def __init__(self, network: Any, module: torch.nn.Module, device: str) -> None:
        self._network, self._device = network, device
        tensors = [*module.parameters(), *module.buffers()]
        self.memory_mib = sum(t.numel() * t.element_size() for t in tensors) / 2**20

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        import torch

        with torch.inference_mode():
            x = torch.from_numpy(array).to(self._device).contiguous(memory_format=torch.channels_last)
            return [output.float().cpu().numpy() for output in self._network(x)]

    def close(self) -> None:
        self._network = None


class TorchRuntime:
    """The network as it was trained, channels last. device: 'cpu' or 'cuda'."""

    name, precision = "torch", "fp32"
    portable, calibrated = False, False
    libraries: tuple[str, ...] = ("torch",)

    def __init__(self, *, device: str = "cpu") -> None:
        self._device = device

    def missing(self) -> str:
        return "" if self._device == "cpu" else _no_cuda()

    def tuned_for(self) -> str:
        return ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        return {}

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> TorchForm:
        module = _placed(body, self._device)
        return TorchForm(module, module, self._device)


class CompiledRuntime:
    """torch.compile. backend: torch's name of the compiler; 'inductor' needs a C++ compiler on a CPU, Triton on a GPU."""

    name, precision = "torch-compiled", "fp32"
    portable, calibrated = False, False
    libraries: tuple[str, ...] = ("torch",)

    def __init__(self, *, device: str = "cpu", backend: str = "inductor") -> None:
        self._device, self._backend = device, backend

    def missing(self) -> str:
        import shutil

        if self._device != "cpu":
            return _no_cuda()
        needs_compiler = self._backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++"))
        return "no C++ compiler is installed" if needs_compiler else ""

    def tuned_for(self) -> str:
        return ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        return {}

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> TorchForm:
        import torch

        module = _placed(body, self._device)
        with _COMPILING:
            form = TorchForm(torch.compile(module, backend=self._backend, dynamic=False), module, self._device)
            try:
                form.run(body.blank(shape_px))  # compiled on the first run, so here and not before people
            except Exception as error:  # whatever the C++ compiler or Triton raises
                raise EnvironmentLacking(
                    f"torch could not compile the network: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
                    subject=self.name, remedy="install a C++ compiler, or serve through onnxruntime or openvino",
                ) from error  # fmt: skip
        return form


def _placed(body: ServedBody, device: str) -> torch.nn.Module:
    import torch

    network = copy.deepcopy(body.network).to(device)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _no_cuda() -> str:
    import torch

    return "" if torch.cuda.is_available() else "torch sees no CUDA GPU"
