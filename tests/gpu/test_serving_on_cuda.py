"""Forms on a CUDA GPU say what the network says on the CPU. Needs torch and numpy only (and tensorrt and onnxruntime-gpu for their
parts)."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from models.detector import ServedBody
from models.serving.base import Runtime
from models.serving.onnx_form import to_onnx
from models.serving.onnxruntime_runtime import OnnxRuntime
from models.serving.tensorrt_runtime import TensorRtRuntime
from models.serving.torch_runtime import CompiledRuntime, GraphRuntime, TorchRuntime

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

SHAPE_PX = (192, 320)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128)
        layers = [
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.SiLU())
            for a, b in zip(widths, widths[1:], strict=False)
        ]
        self.trunk, self.head = nn.Sequential(*layers), nn.Conv2d(128, 12, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.head(self.trunk(x))
        return found[:, :4], found[:, 4:]


def body() -> ServedBody:
    torch.manual_seed(0)
    return ServedBody(
        network=Net().eval().requires_grad_(False),
        encode=lambda image: (np.zeros((1, 3, *SHAPE_PX), np.float32), None),
        decode=lambda outputs, context, score_min: None,  # type: ignore[arg-type,return-value]
        example_px=SHAPE_PX,
    )


@pytest.mark.parametrize(
    "runtime",
    [
        TorchRuntime(device="cuda"), CompiledRuntime(device="cuda"), GraphRuntime(), TensorRtRuntime(), TensorRtRuntime(fp16=True),
        OnnxRuntime(device="cuda"),
    ],
    ids=["torch", "compiled", "graph-fp16", "tensorrt", "tensorrt-fp16", "onnxruntime"],
)  # fmt: skip
def test_a_form_on_the_gpu_says_what_the_network_says_on_the_cpu(runtime: Runtime) -> None:
    if runtime.missing():
        pytest.skip(runtime.missing())
    served = body()
    array = np.random.default_rng(0).random((1, 3, *SHAPE_PX), np.float32)
    expected = [output.numpy() for output in served.network(torch.from_numpy(array))]
    files = runtime.convert(to_onnx(served, SHAPE_PX), []) if runtime.portable else {}
    started_s = time.perf_counter()
    form = runtime.start(files, served, SHAPE_PX)
    print(f"{runtime.name}: started in {time.perf_counter() - started_s:.1f} s")
    got = form.run(array)
    for g, e in zip(got, expected, strict=True):
        assert np.abs(g - e).max() <= 2e-2 * np.abs(e).max()  # TF32 and fp16 round
    taken = []
    for _ in range(50):
        started_s = time.perf_counter()
        form.run(array)
        taken.append(1000 * (time.perf_counter() - started_s))
    print(f"{runtime.name}: {np.median(taken):.2f} ms a picture, {form.memory_mib:.2f} MiB")
