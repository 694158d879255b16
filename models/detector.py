"""The seam to detectors. One instance per job; not thread-safe. Ultralytics, torchvision and our own demo detector implement it.

Every implementation maps its own classes to `configs.units.CLASSES` and boxes to the pixels of the image it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from scheduler.types import Detections

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class DetectorSpec:
    """arch: name known to `models.zoo` (e.g. 'yolov8n', 'ssdlite320', 'tinydet-edge'); input_px: longer side the image is scaled to.
    pruned: channels were taken out of it (`models.compress.prune`); how many stay where is what its state's shapes say."""

    arch: str
    input_px: int
    pruned: bool = False


#: Called between layers of a long forward pass, so that a share can be kept inside it (see `edge.gpu.base.Lane.checkpoint`).
YieldPoint = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class ServedBody:
    """A detector cut in three, so that only its network needs another form to be served faster: `decode(network(encode(image)))` is
    what `predict([image])` says.

    network: from one tensor to a tuple of tensors, in evaluation mode, on the CPU, free to be exported or quantised (a copy, not the
    detector's own). pixels: it takes a picture's pixels, uint8 (B, H, W, 3), and normalises them itself (`models.pixels`), which is
    cheaper than float32 (B, 3, H, W), what it takes otherwise. encode: a picture -> (that array for a batch of one, whatever `decode`
    needs of it). decode: the network's outputs for that picture as float32 arrays, that context and a score threshold -> Detections.
    example_px: (H, W) of what `encode` makes of a 16:9 picture; a fixed-shape form is built per shape really met."""

    network: torch.nn.Module
    encode: Callable[[np.ndarray], tuple[np.ndarray, object]]
    decode: Callable[[Sequence[np.ndarray], object, float], Detections]
    example_px: tuple[int, int]
    pixels: bool = False

    def blank(self, shape_px: tuple[int, int]) -> np.ndarray:
        """What `encode` makes of a black picture of this shape, or nearly: to trace or warm the network with."""
        return np.zeros((1, *shape_px, 3), np.uint8) if self.pixels else np.zeros((1, 3, *shape_px), np.float32)


def encoded_px(array: np.ndarray) -> tuple[int, int]:
    """(H, W) of what a body's `encode` made, pixels or not."""
    height, width = array.shape[1:3] if array.dtype == np.uint8 else array.shape[2:4]
    return int(height), int(width)


@dataclass(frozen=True, kw_only=True)
class PruningParts:
    """What `models.compress.prune` needs of a detector. network: the detector's own, from `example` to tensors, to be changed in place;
    keep: layers whose outputs mean something (classes, box sides) and stay as wide as they are; changed: to be called afterwards."""

    network: torch.nn.Module
    example: torch.Tensor
    keep: tuple[torch.nn.Module, ...]
    changed: Callable[[], None]


@runtime_checkable
class KeepsFeatures(Protocol):
    """A detector whose `predict` computes what `embed` says on its way."""

    def keeping_features(self) -> AbstractContextManager[list[np.ndarray]]:
        """While the body runs, what it says of each picture that `predict` sees: float32 (D,), as `embed` does. So one pass is enough
        where both are wanted."""


class Detector(Protocol):
    spec: DetectorSpec

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """images: uint8 (H, W, 3) RGB, sizes may differ. One Detections per image, sorted by falling score."""

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        """Scalar training loss with gradients (mean per image), for ONE micro-batch. Batch-norm statistics stay frozen, so that a
        batch may be split into micro-batches of one or two images without changing the result."""

    def trainable_layers(self) -> list[torch.nn.Module]:
        """Top-level layers from input to output; `layers_frac` of a RetrainConfig counts from the end of this list."""

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors of the whole model (CPU), as written to safetensors."""

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Raises WeightsError naming the first tensor that is missing, extra or of another shape."""

    def clone(self) -> Detector:
        """An independent copy (for training while the original serves)."""

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """float32 (N, D): the deepest features of the backbone, averaged over the picture. What drift is seen in
        (`scheduler.drift`); two models' embeddings do not compare."""

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        """Scalar, mean per image: how far this model's answers are from those of `teacher` (same arch, not changed). Zero when the
        two agree. Raises ValueError for a teacher of another kind, or the model itself."""

    def body(self) -> ServedBody:
        """The part that may be served in another form (ONNX, OpenVINO, int8, compiled): see `ServedBody`. Raises UsageError for a
        model that has none."""
