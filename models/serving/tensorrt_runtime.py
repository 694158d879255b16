"""TensorRT (NVIDIA's licence, not shipped) on CUDA. Written against TensorRT 10's API; not run on a GPU by us, see docs/compression.md.

An engine belongs to the GPU and the library version that made it: the cache key holds both.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import DriftboxError, EnvironmentLacking
from models.serving.base import Files, ShapePx, one_at_a_time
from models.serving.cache import gpu_name

if TYPE_CHECKING:
    from models.detector import ServedBody

ENGINE = "model.engine"
WORKSPACE_MIB = 512


def library() -> Any:
    """Raises EnvironmentLacking."""
    try:
        import tensorrt  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise EnvironmentLacking(
            "tensorrt is not installed", subject="tensorrt", remedy="install NVIDIA's TensorRT 10, or serve through openvino"
        ) from error
    return tensorrt


def build_engine(onnx: bytes, *, fp16: bool) -> bytes:
    """A serialised engine. Raises EnvironmentLacking, DriftboxError with the parser's complaint."""
    trt = library()
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(onnx):
        raise DriftboxError(f"tensorrt cannot read this network: {parser.get_error(0)}", subject="tensorrt")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_MIB * 2**20)
    if fp16:
        config.set_flag(trt.BuilderFlag.FP16)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise DriftboxError(
            "tensorrt could not build an engine", subject="tensorrt", remedy="see its log; give the GPU more room"
        )
    return bytes(engine)


class TensorRtForm:
    """Inputs and outputs live in torch's CUDA tensors, so that no further library is needed for device memory. device: where they
    live; anything but 'cuda' is for tests.

    It runs on the caller's stream, so that it has the urgency and the part of the GPU that its lane has (`edge.gpu.cuda_lanes`,
    `edge.gpu.green`); on one of its own where the caller's is the default one, which TensorRT would wait for twice a run."""

    def __init__(self, engine: bytes, *, device: str = "cuda") -> None:
        import torch

        trt = library()
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        self._engine = self._runtime.deserialize_cuda_engine(engine)
        if self._engine is None:
            raise DriftboxError("tensorrt cannot load this engine: made for another GPU or version", subject=ENGINE)
        self._context = self._engine.create_execution_context()
        self._stream: Any = torch.cuda.Stream() if device == "cuda" else None
        self._input: Any = None
        dtypes = {trt.DataType.FLOAT: torch.float32, trt.DataType.UINT8: torch.uint8}
        self._outputs: list[Any] = []
        for i in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(i)
            dtype = dtypes[self._engine.get_tensor_dtype(name)]
            tensor = torch.empty(tuple(self._engine.get_tensor_shape(name)), dtype=dtype, device=device)
            self._context.set_tensor_address(name, tensor.data_ptr())
            if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                self._input = tensor
            else:
                self._outputs.append(tensor)
        self.memory_mib = len(engine) / 2**20

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        import torch

        self._input.copy_(torch.from_numpy(array))
        if self._stream is None:
            done = self._context.execute_async_v3(0)
        else:
            stream = self._stream_of_run(torch.cuda.current_stream(), torch.cuda.default_stream())
            done = self._context.execute_async_v3(stream.cuda_stream)
            stream.synchronize()
        if not done:
            raise DriftboxError("tensorrt did not run the network", subject=ENGINE)
        return [output.cpu().numpy().copy() for output in self._outputs]

    def _stream_of_run(self, current: Any, default: Any) -> Any:
        """Behind what the caller's stream was given."""
        if current != default:
            return current
        self._stream.wait_stream(current)
        return self._stream

    def widen(self) -> None:
        raise one_at_a_time(self)

    def close(self) -> None:
        self._context = self._engine = self._runtime = None
        self._outputs = []


class TensorRtRuntime:
    portable, calibrated = True, False
    libraries: tuple[str, ...] = ("tensorrt", "torch")

    def __init__(self, *, fp16: bool = False, device: str = "cuda") -> None:
        self.name = "tensorrt-fp16" if fp16 else "tensorrt"
        self.precision = "fp16" if fp16 else "fp32"
        self._device = device

    def missing(self) -> str:
        if not importlib.util.find_spec("tensorrt"):
            return "tensorrt is not installed"
        import torch

        return "" if torch.cuda.is_available() else "torch sees no CUDA GPU"

    def tuned_for(self) -> str:
        return gpu_name(self._device)

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        return {ENGINE: build_engine(onnx, fp16=self.precision == "fp16")}

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> TensorRtForm:
        return TensorRtForm(files[ENGINE], device=self._device)
