"""Networks with random weights that still see something."""

from __future__ import annotations

import torch
from torch import nn

from models.detector import Detector


def settled(detector: Detector) -> Detector:
    """Gives the batch-norm layers of a network with random weights the statistics of some noise: with the initial ones,
    activations vanish layer by layer and nothing in it depends on the picture."""
    net: nn.Module = getattr(detector, "_model", None) or detector.net  # type: ignore[attr-defined]
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    usual = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = None  # plain average of what is seen
    net.train()
    noise = torch.rand(4, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = net.backbone(noise) if hasattr(net, "backbone") else net(noise)
        if hasattr(net, "head") and hasattr(net, "backbone"):
            net.head(list(features.values()))
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
    net.eval()
    return detector
