"""Torch itself: as trained, compiled (CPU or CUDA), and as a graph that a GPU carries out in one launch."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import EnvironmentLacking
from models.serving.base import Files, ShapePx, one_at_a_time

if TYPE_CHECKING:
    import torch

    from models.detector import ServedBody

#: torch.compile is not safe to run twice at a time.
_COMPILING = threading.Lock()


class TorchForm:
    """Runs a module. memory_mib: its parameters and buffers."""

    def __init__(self, network: Any, module: torch.nn.Module, device: str) -> None:
        self._network, self._device = network, device
        self.memory_mib = _mib(module)

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        import torch

        with torch.inference_mode():
            x = torch.from_numpy(array).to(self._device).contiguous(memory_format=torch.channels_last)
            return [output.float().cpu().numpy() for output in self._network(x)]

    def widen(self) -> None:
        """On a processor a network that has run once keeps nothing from one run to the next."""
        if self._device != "cpu":
            raise one_at_a_time(self)

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
                    f"torch could not compile the network: {_first_line(error)}",
                    subject=self.name, remedy="install a C++ compiler, or serve through onnxruntime or openvino",
                ) from error  # fmt: skip
        return form


#: Runs a function that launches work on tensors at fixed places -> (what it returned, what does the same work again, at these places).
Capture = Callable[[Callable[[], Any]], tuple[Any, Callable[[], None]]]


class GraphForm:
    """A network's kernels as they were launched once, launched again by one call. The input and the outputs lie at fixed places, so one
    thread at a time uses it. memory_mib: as `TorchForm`."""

    def __init__(self, module: torch.nn.Module, example: torch.Tensor, capture: Capture) -> None:
        import torch

        self.memory_mib = _mib(module)
        self._x = example
        self._outputs: Any = None
        self._replay: Any = None
        with torch.inference_mode():
            self._outputs, self._replay = capture(lambda: module(example))

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        import torch

        with torch.inference_mode():
            self._x.copy_(torch.from_numpy(array))
            self._replay()
            return [output.float().cpu().numpy() for output in self._outputs]

    def widen(self) -> None:
        raise one_at_a_time(self)

    def close(self) -> None:
        self._replay = self._outputs = None


class GraphRuntime:
    """The network in half precision, captured once (CUDA graphs): a single picture is bound by launches, of which one is left. On an
    H200 a ResNet18 took 0.49 ms of 1.49, compiled 1.15 (docs/gpu.md). capture: tests do without a GPU by another."""

    name, precision = "torch-graph-fp16", "fp16"
    portable, calibrated = False, False
    libraries: tuple[str, ...] = ("torch",)

    def __init__(self, *, device: str = "cuda", capture: Capture | None = None) -> None:
        self._device, self._capture = device, capture

    def missing(self) -> str:
        if self._capture is not None:
            return ""
        return "graphs are captured on CUDA GPUs only" if self._device == "cpu" else _no_cuda()

    def tuned_for(self) -> str:
        return ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        return {}

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> GraphForm:
        import torch

        dtype = torch.float32 if self._device == "cpu" else torch.float16
        try:
            module = _placed(body, self._device).to(dtype)
            blank = torch.from_numpy(body.blank(shape_px)).to(self._device, dtype)
            return GraphForm(module, blank.contiguous(memory_format=torch.channels_last), self._capture or _captured)
        except RuntimeError as error:  # an operation that waits for the device, or knows no half precision
            raise EnvironmentLacking(
                f"the network cannot be captured: {_first_line(error)}",
                subject=self.name, remedy="serve through torch-compiled or tensorrt",
            ) from error  # fmt: skip


def _captured(launch: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    import torch

    # Libraries choose their kernels in the first runs, by measuring, which cannot be captured.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            launch()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Other threads of the box go on allocating meanwhile, which the usual mode would take for a part of it.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = launch()
    return outputs, graph.replay


def _mib(module: torch.nn.Module) -> float:
    """Of its parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers())) / 2**20


def _placed(body: ServedBody, device: str) -> torch.nn.Module:
    import torch

    network = copy.deepcopy(body.network).to(device)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _no_cuda() -> str:
    import torch

    return "" if torch.cuda.is_available() else "torch sees no CUDA GPU"
