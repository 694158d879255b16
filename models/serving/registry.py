"""The one table of runtimes."""

from __future__ import annotations

from collections.abc import Callable

from configs.errors import UsageError
from models.serving.base import Runtime
from models.serving.onnxruntime_runtime import OnnxRuntime
from models.serving.openvino_runtime import OpenVinoRuntime
from models.serving.tensorrt_runtime import TensorRtRuntime
from models.serving.torch_runtime import CompiledRuntime, TorchRuntime

RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "torch": TorchRuntime,
    "torch-compiled": CompiledRuntime,
    "onnxruntime": OnnxRuntime,
    "onnxruntime-int8": lambda: OnnxRuntime(int8=True),
    "openvino": OpenVinoRuntime,
    "openvino-int8": lambda: OpenVinoRuntime(int8=True),
    "tensorrt": TensorRtRuntime,
    "tensorrt-fp16": lambda: TensorRtRuntime(fp16=True),
}

#: Those that compute where the trained model is; the others have a device of their own.
_WHERE_THE_MODEL_IS: dict[str, Callable[[str], Runtime]] = {
    "torch": lambda device: TorchRuntime(device=device),
    "torch-compiled": lambda device: CompiledRuntime(device=device),
    "onnxruntime": lambda device: OnnxRuntime(device=device),
}
#: Those that use a processor's cores on every machine.
ON_CORES = frozenset({"onnxruntime-int8", "openvino", "openvino-int8"})


def runtime_of(name: str, *, device: str = "cpu") -> Runtime:
    """device: where the trained model is. Raises UsageError listing the known names."""
    if name not in RUNTIMES:
        raise UsageError(f"no runtime is called {name!r}", subject=name, remedy=f"known: {', '.join(RUNTIMES)}")
    return _WHERE_THE_MODEL_IS[name](device) if name in _WHERE_THE_MODEL_IS else RUNTIMES[name]()
