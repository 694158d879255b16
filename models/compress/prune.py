"""Structured pruning: whole channels go, so that any runtime is faster for it. By torch-pruning (MIT), the only file that imports it.

Which channels: those of least L2 norm over a group, where a group is all layers that must lose the same channel together (Fang et al.,
"DepGraph", CVPR 2023). A pruned model has forgotten something: train it before it serves, with the unpruned one as teacher
(`models.retrain.retrain(..., teacher=...)` with `distill` in the configuration). It is a version like any other: `spec.pruned` goes into
the manifest, and `models.zoo.new_detector` takes the widths from the state.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from configs.errors import EnvironmentLacking, UsageError
from models.detector import Detector, PruningParts
from scheduler.types import RetrainConfig

#: Widths stay multiples of this: the kernels of all runtimes work on eight channels at a time.
ROUND_TO = 8
RATIO_MAX = 0.9


def pruned(detector: Detector, ratio: float) -> Detector:
    """A copy with about `ratio` (0-0.9) of the channels of every group taken out; the detector itself is not changed.
    Raises UsageError for a ratio out of range or a detector that cannot be pruned, EnvironmentLacking without torch-pruning."""
    if not 0 < ratio <= RATIO_MAX:
        raise UsageError(
            f"a part of {ratio:g} of the channels cannot be pruned", subject="ratio", remedy=f"give up to {RATIO_MAX}"
        )
    twin: Any = detector.clone()
    if not hasattr(twin, "pruning_parts"):
        raise UsageError(
            f"{detector.spec.arch} cannot be pruned", subject=detector.spec.arch, remedy="known: tinydet-edge, yolov8n, yolov8s"
        )
    if detector.spec.pruned:
        raise UsageError(
            f"this {detector.spec.arch} is pruned already", subject=detector.spec.arch, remedy="prune the one it was made of"
        )
    parts: PruningParts = twin.pruning_parts()
    _prune(parts, ratio)
    parts.changed()
    pruned_twin: Detector = twin
    return pruned_twin


def lesson(epochs: int) -> RetrainConfig:
    """What teaches a pruned model: all layers, all pictures, and what the whole model says of them counts as much as the labels."""
    return RetrainConfig(name="prune", epochs=epochs, batch=2, layers_frac=1.0, lr=3e-4, replay_frac=0.0, distill=1.0)


def n_weights(detector: Detector) -> int:
    """Numbers in all tensors of its state."""
    return sum(tensor.numel() for tensor in detector.state().values())


def _prune(parts: PruningParts, ratio: float) -> None:
    library = _library()
    with _tracked(parts.network):
        library.pruner.MagnitudePruner(
            parts.network,
            parts.example,
            importance=library.importance.MagnitudeImportance(p=2),
            pruning_ratio=ratio,
            ignored_layers=list(parts.keep),
            round_to=ROUND_TO,
        ).step()
    for parameter in parts.network.parameters():
        parameter.grad = None


class _tracked:
    """Its tracer follows gradients: all parameters have them inside, and only those that had them afterwards."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._without = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}

    def __enter__(self) -> None:
        for parameter in self._network.parameters():
            parameter.requires_grad_(True)

    def __exit__(self, *exception: object) -> None:
        for name, parameter in self._network.named_parameters():
            parameter.requires_grad_(name not in self._without)


def _library() -> Any:
    try:
        import torch_pruning
    except ImportError as error:
        raise EnvironmentLacking(
            "torch-pruning is not installed", subject="torch-pruning", remedy="pip install torch-pruning"
        ) from error
    return torch_pruning
