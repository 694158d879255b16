"""A stand-in for NVIDIA's `tensorrt` module with the calls we make, carried out by ONNX Runtime on buffers in host memory. It is
as strict as the library where that matters: engines of another version do not load, addresses must be set before running."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from configs.errors import DriftboxError
from models.serving.onnxruntime_runtime import OnnxForm

_MAGIC = b"engine-1\n"


class FakeTensorRt(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(
            Logger=_Logger, Builder=_Builder, OnnxParser=_Parser, Runtime=_Runtime,
            MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"), BuilderFlag=SimpleNamespace(FP16="fp16"),
            TensorIOMode=SimpleNamespace(INPUT="in", OUTPUT="out"),
            DataType=SimpleNamespace(FLOAT="tensor(float)", UINT8="tensor(uint8)"),
        )  # fmt: skip


class _Logger:
    ERROR = 1

    def __init__(self, level: int) -> None:
        self.level = level


class _Builder:
    def __init__(self, logger: _Logger) -> None: ...

    def create_network(self, flags: int) -> SimpleNamespace:
        return SimpleNamespace(onnx=None)

    def create_builder_config(self) -> Any:
        return SimpleNamespace(set_memory_pool_limit=lambda pool, size: None, set_flag=lambda flag: None)

    def build_serialized_network(self, network: SimpleNamespace, config: Any) -> bytes | None:
        return None if network.onnx is None else _MAGIC + network.onnx


class _Parser:
    def __init__(self, network: SimpleNamespace, logger: _Logger) -> None:
        self._network = network

    def parse(self, content: bytes) -> bool:
        try:
            OnnxForm(content, ["CPUExecutionProvider"], 1)
        except DriftboxError:
            return False
        self._network.onnx = content
        return True

    def get_error(self, number: int) -> str:
        return "not an ONNX file"


class _Runtime:
    def __init__(self, logger: _Logger) -> None: ...

    def deserialize_cuda_engine(self, engine: bytes) -> Any:
        return _Engine(engine.removeprefix(_MAGIC)) if engine.startswith(_MAGIC) else None


class _Engine:
    def __init__(self, onnx: bytes) -> None:
        self.form = OnnxForm(onnx, ["CPUExecutionProvider"], 1)
        session = self.form._session
        self.dtypes = {t.name: t.type for t in [*session.get_inputs(), *session.get_outputs()]}
        self.tensors = [(t.name, tuple(t.shape), "in") for t in session.get_inputs()]
        self.tensors += [(t.name, tuple(t.shape), "out") for t in session.get_outputs()]
        self.num_io_tensors = len(self.tensors)

    def get_tensor_name(self, number: int) -> str:
        return self.tensors[number][0]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return next(shape for n, shape, _ in self.tensors if n == name)

    def get_tensor_dtype(self, name: str) -> str:
        return self.dtypes[name]

    def get_tensor_mode(self, name: str) -> str:
        return next(mode for n, _, mode in self.tensors if n == name)

    def create_execution_context(self) -> Any:
        return _Context(self)


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine, self._addresses = engine, {}

    def set_tensor_address(self, name: str, address: int) -> None:
        self._addresses[name] = address

    def _array(self, name: str) -> np.ndarray:
        shape = self._engine.get_tensor_shape(name)
        pixels = self._engine.get_tensor_dtype(name) == "tensor(uint8)"
        element, dtype = (ctypes.c_uint8, np.uint8) if pixels else (ctypes.c_float, np.float32)
        buffer = (element * int(np.prod(shape))).from_address(self._addresses[name])
        return np.frombuffer(buffer, dtype).reshape(shape)

    def execute_async_v3(self, stream: int) -> bool:
        if len(self._addresses) != self._engine.num_io_tensors:
            return False
        inputs = [name for name, _, mode in self._engine.tensors if mode == "in"]
        outputs = [name for name, _, mode in self._engine.tensors if mode == "out"]
        for name, found in zip(outputs, self._engine.form.run(self._array(inputs[0]).copy()), strict=True):
            self._array(name)[...] = found
        return True
