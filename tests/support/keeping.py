"""A scripted detector that looks as if its features could be kept: a trunk that does nothing, and a layer that learns."""

from __future__ import annotations

import torch

from models.fake import FakeDetector
from models.kept_features import KeptFeatures


class Layered(FakeDetector):
    """Half of its layers are the head; features are not kept."""

    def trainable_layers(self) -> list[torch.nn.Module]:
        return [torch.nn.Identity(), *super().trainable_layers()]

    def clone(self) -> Layered:
        return type(self)(skill=self.skill, ceiling=self._ceiling)


class Keeping(Layered):
    """Keeps features, as far as anybody can see."""

    def keeping(self, kept: KeptFeatures) -> Keeping:
        return self
