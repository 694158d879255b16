"""The mean of the weights of models that were trained on from one: again a model, which knows what each of them was taught.

Wortsman et al., "Model soups: averaging weights of multiple fine-tuned models improves accuracy without increasing inference time", ICML
2022, the uniform soup. What may be averaged with what is for others to say (`scheduler.scenes.to_average`, `edge.shelf`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def averaged(states: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor] | None:
    """The mean of each tensor, in its own type; what only counts is the last one's. None where the states are none, or their tensors
    differ in name, shape or type: a pruned model, or a classifier that has learned another class."""
    if not states or any(_kinds(state) != _kinds(states[0]) for state in states):
        return None
    return {name: _mean([state[name] for state in states]) for name in states[0]}


def _kinds(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def _mean(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    last = tensors[-1]
    if not last.is_floating_point():
        return last.clone()
    return torch.stack([tensor.double() for tensor in tensors]).mean(dim=0).to(last.dtype)
