"""Listening between a network's layers: yield points, so that a frame need not wait for a whole pass; features that a pass computes
anyhow. Needs torch, numpy and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


@contextmanager
def yielding_between_layers(module: nn.Module, yield_point: Callable[[], None] | None) -> Iterator[None]:
    """Calls `yield_point` after every convolution and linear layer run in the body. What it raises ends the forward pass and
    passes through; the hooks are gone afterwards in any case."""
    if yield_point is None:
        yield
        return
    call = yield_point
    with _after_layers([module], lambda output: call()):
        yield


@contextmanager
def yielding_in_training(modules: Sequence[nn.Module], yield_point: Callable[[], None] | None) -> Iterator[None]:
    """Calls `yield_point` after every convolution and linear layer on the way forward, and again when the gradient of its output has
    come back to it. Nothing of what is computed changes, not in one bit. What the yield point raises ends the pass and passes through.
    The way back runs in the thread that calls `backward`, as it does for tensors of a CPU."""
    if yield_point is None:
        yield
        return
    call = yield_point

    def on_gradient(gradient: torch.Tensor) -> None:
        call()

    def on_output(output: object) -> None:
        call()
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(on_gradient)

    with _after_layers(modules, on_output):
        yield


@contextmanager
def keeping_means(layer: nn.Module) -> Iterator[list[np.ndarray]]:
    """What `layer` says while the body runs, averaged over the picture: float32 (D,) for each picture that passes it. A layer that says
    several maps by name counts with the last one."""
    kept: list[np.ndarray] = []

    def hear(output: torch.Tensor | dict[str, torch.Tensor]) -> None:
        deepest = list(output.values())[-1] if isinstance(output, dict) else output
        kept.extend(deepest.mean(dim=(2, 3)).float().cpu().numpy())

    with _hearing([layer], hear):
        yield kept


def _after_layers(modules: Sequence[nn.Module], hear: Callable[[object], None]) -> AbstractContextManager[None]:
    """`hear` is told the output of every convolution and linear layer in `modules`, once where two of them share one."""
    layers = {m: None for module in modules for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    return _hearing(layers, hear)


@contextmanager
def _hearing(layers: Iterable[nn.Module], hear: Callable[[Any], None]) -> Iterator[None]:
    """`hear` is told what these say while the body runs; the hooks are gone afterwards in any case."""

    def hook(layer: nn.Module, inputs: object, output: object) -> None:
        hear(output)

    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
