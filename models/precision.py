"""Mixed precision, where it pays: half-precision arithmetic in the forward pass, weights and optimiser in float32.

On CUDA, bfloat16 where the GPU has it (it keeps float32's range, so gradients need no scaling), else float16 with a gradient scaler that
steps over updates whose scaled gradients overflow. On a CPU float32, unless a measurement of the very model when the box starts finds
bfloat16 clearly faster (`measure_cpu`): CPUs with matrix units gain on wide convolutions, others emulate it and lose. On an H200
models learn in it as in float32 (docs/gpu.md).

`evaluate` and the tests do not measure, so they compute in float32 and give the same numbers on every day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

#: bfloat16 must be so many times as fast as float32 on a CPU to be worth its rounding.
CPU_GAIN_MIN = 1.3


@dataclass(frozen=True, kw_only=True)
class Precision:
    """device: 'cpu' or 'cuda'; dtype: of the forward pass."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def forward(self) -> AbstractContextManager[Any]:
        """Around a forward pass and its loss. A backward pass stays outside."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device, dtype=self.dtype)

    def updates(self, optimiser: torch.optim.Optimizer, *, max_norm: float) -> Updates:
        """What one training does its backward passes and steps with."""
        scaler = torch.amp.GradScaler(self.device) if self.dtype is torch.float16 else None
        return Updates(optimiser, max_norm=max_norm, scaler=scaler)


class Updates:
    """Backward passes and clipped steps of one training, with a gradient scaler or without one (None)."""

    def __init__(self, optimiser: torch.optim.Optimizer, *, max_norm: float, scaler: Any | None) -> None:
        self._optimiser, self._max_norm, self._scaler = optimiser, max_norm, scaler

    def backward(self, loss: torch.Tensor) -> None:
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def step(self) -> float:
        """One clipped update, gradients zeroed afterwards. Returns the norm that they had: when it is not finite nothing was changed
        (a scaler then lowers its scale, and the next update may work)."""
        if self._scaler is not None:
            self._scaler.unscale_(self._optimiser)
        norm = float(nn.utils.clip_grad_norm_(self._parameters(), self._max_norm))
        if self._scaler is not None:
            self._scaler.step(self._optimiser)  # leaves the weights alone when it found infinities
            self._scaler.update()
        elif torch.isfinite(torch.tensor(norm)):
            self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return norm

    @property
    def scaler(self) -> Any | None:
        """None: gradients are not scaled."""
        return self._scaler

    @property
    def skips(self) -> bool:
        """Whether an update that overflowed is no failure yet."""
        return self._scaler is not None

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self._optimiser.param_groups for p in group["params"]]


FLOAT32 = Precision()
#: Architectures that train in another precision than float32 on this machine's CPU, by measurement.
_on_cpu: dict[str, Precision] = {}


def precision_of(device: torch.device | str, arch: str) -> Precision:
    """What to train a model of that architecture in on that device."""
    kind = torch.device(device).type
    if kind == "cuda":
        return Precision(device="cuda", dtype=torch.bfloat16 if _has_bfloat16() else torch.float16)
    return _on_cpu.get(arch, FLOAT32) if kind == "cpu" else FLOAT32


def _has_bfloat16() -> bool:
    """In its matrix units: torch also answers for GPUs that emulate it, which are slower for it than in float32."""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def device_of(layers: Sequence[nn.Module]) -> torch.device:
    """Where the first parameter of the layers lies; the CPU when there is none."""
    return next((p.device for layer in layers for p in layer.parameters()), torch.device("cpu"))


def measure_cpu(arch: str, step_s: Callable[[Precision], float]) -> Precision:
    """Decides for this process what models of `arch` train in on a CPU from now on. step_s: seconds of a training step."""
    half = Precision(dtype=torch.bfloat16)
    whole_s, half_s = step_s(FLOAT32), step_s(half)
    _on_cpu[arch] = half if math.isfinite(whole_s) and whole_s >= CPU_GAIN_MIN * half_s else FLOAT32
    return _on_cpu[arch]


def is_measured(arch: str) -> bool:
    return arch in _on_cpu


def forget_measurements() -> None:
    """Back to float32 everywhere (for tests)."""
    _on_cpu.clear()
