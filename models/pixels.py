"""From a picture's pixels to the numbers that a network computes with, inside the network.

A form of a network that is handed uint8 pixels moves a quarter of the bytes of one that is handed floats, and its runtime melts the
steps into the first layer. Training uses the same function, so there is one place that says what a network sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Levels:
    """How grey levels (0-255) become the network's numbers: (level - shift) / spread. multiple: zeros are added right and below until
    both sides are multiples of it; 1: the pictures come in sizes that fit."""

    shift: float = 0.0
    spread: float = 255.0
    multiple: int = 1


def normalised(pixels: torch.Tensor, levels: Levels) -> torch.Tensor:
    """uint8 (B, h, w, 3) -> float32 (B, 3, H, W), channels last in memory, as they came."""
    height, width = int(pixels.shape[1]), int(pixels.shape[2])
    planes = pixels.permute(0, 3, 1, 2).float()
    if levels.shift:
        planes = planes - levels.shift
    planes = planes / levels.spread
    right, below = -width % levels.multiple, -height % levels.multiple
    return functional.pad(planes, (0, right, 0, below)) if right or below else planes


class FromPixels(nn.Module):
    """A network that takes uint8 (B, h, w, 3) and says what `network` says of their `normalised`."""

    def __init__(self, network: nn.Module, levels: Levels) -> None:
        super().__init__()
        self.network, self.levels = network, levels

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.network(normalised(pixels, self.levels))
