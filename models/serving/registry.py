"""The one table of runtimes."""

from __future__ import annotations

from collections.abc import Callable

from configs.errors import UsageError
from models.serving.base import Runtime
from models.serving.onnxruntime_runtime import OnnxRuntime
from models.serving.openvino_runtime import OpenVinoRuntime
from models.serving.tensorrt_runtime import TensorRtRuntime
from models.serving.torch_runtime import CompiledRuntime, GraphRuntime, TorchRuntime

#: name -> made for models on a device ('cpu', 'cuda'). Only the first four compute where the model is; the others have one device.
RUNTIMES: dict[str, Callable[[str], Runtime]] = {
    "torch": lambda device: TorchRuntime(device=device),
    "torch-compiled": lambda device: CompiledRuntime(device=device),
    "torch-graph-fp16": lambda device: GraphRuntime(device=device),
    "onnxruntime": lambda device: OnnxRuntime(device=device),
    "onnxruntime-int8": lambda _: OnnxRuntime(int8=True),
    "openvino": lambda _: OpenVinoRuntime(),
    "openvino-bf16": lambda _: OpenVinoRuntime(bf16=True),
    "openvino-int8": lambda _: OpenVinoRuntime(int8=True),
    "tensorrt": lambda _: TensorRtRuntime(),
    "tensorrt-fp16": lambda _: TensorRtRuntime(fp16=True),
}
#: Those that use a processor's cores on every machine.
ON_CORES = frozenset({"onnxruntime-int8", "openvino", "openvino-bf16", "openvino-int8"})


def runtime_of(name: str, *, device: str = "cpu") -> Runtime:
    """device: where the trained model is. Raises UsageError listing the known names."""
    if name not in RUNTIMES:
        raise UsageError(f"no runtime is called {name!r}", subject=name, remedy=f"known: {', '.join(RUNTIMES)}")
    return RUNTIMES[name](device)
