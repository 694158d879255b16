"""torchvision's COCO detectors behind our seam: SSDLite (edge) and two larger ones (golden). Works without ultralytics.

SSDLite stretches the picture to a square of input_px, as it was trained; the larger ones scale its longer side to input_px.
Their 91-category head stays as it is; labels train it through the inverse mapping, as with the YOLO detectors.
Only detectors without region proposals are offered: `roi_align` has no fast fallback where torchvision had to be mended.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from configs.errors import WeightsError
from configs.units import CLASSES, COCO_TO_CLASSES
from models import torch_compat
from models.detector import Detector, DetectorSpec, YieldPoint
from models.torch_support import (
    check_images,
    cpu_state,
    load_checked_state,
    mean_per_image,
    placed,
    sorted_detections,
    suppressed_per_class,
    to_tensor,
    train_with_frozen_batch_norm,
    yielding_between_layers,
)
from scheduler.types import Detections

torch_compat.ensure_torchvision()

from torchvision.models import detection  # noqa: E402  (needs the mended torchvision)

#: Classes that become one of ours (cat and dog: animal) may cover one object twice; suppressed above this IoU.
NMS_IOU = 0.55
MIN_SIDE_PX = 1.0
N_CATEGORIES = 91

# torchvision ships no types for its detection models.
_Model: TypeAlias = Any


def _category(coco: int) -> int:
    """COCO index (0-79) -> category id of the original annotation (1-90), which skips 12; enough for the classes we watch."""
    return coco + 1 if coco <= 10 else coco + 2


#: Category id -> index in CLASSES, -1 for what the box does not watch. int64 (91,)
_TO_CLASSES = np.full(N_CATEGORIES, -1, np.int64)
for _coco, _ours in COCO_TO_CLASSES.items():
    _TO_CLASSES[_category(_coco)] = _ours
#: Index in CLASSES -> category id of its first COCO class. int64 (7,)
_TO_CATEGORY = np.array([_category(min(c for c, o in COCO_TO_CLASSES.items() if o == k)) for k in range(len(CLASSES))])

#: arch -> maker of the network with random weights.
BUILDERS: dict[str, Callable[..., _Model]] = {
    "ssdlite320": detection.ssdlite320_mobilenet_v3_large,
    "fcos_resnet50_fpn": detection.fcos_resnet50_fpn,
    "retinanet_resnet50_fpn_v2": detection.retinanet_resnet50_fpn_v2,
}


class TorchvisionDetector:
    """A torchvision detector. input_px: see the module's text."""

    def __init__(
        self, spec: DetectorSpec, *, state: dict[str, torch.Tensor] | None = None, device: str = "cpu", seed: int = 0
    ) -> None:
        """state: tensors under torchvision's names (None: random weights from `seed`).
        Raises WeightsError for an unknown arch or a state that does not fit."""
        if spec.arch not in BUILDERS:
            raise WeightsError(
                f"torchvision has no detector {spec.arch!r}", subject=spec.arch, remedy=f"known: {', '.join(BUILDERS)}"
            )
        self.spec = spec
        self._device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model: _Model = BUILDERS[spec.arch](weights=None, weights_backbone=None)
        _set_input(self._model, spec)
        if state is not None:
            load_checked_state(self._model, state, subject=spec.arch)
        placed(self._model, self._device)

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        check_images(images)
        self._model.eval()
        _set_score_min(self._model, score_min)
        results: list[Detections] = []
        with torch.inference_mode(), yielding_between_layers(self._model, yield_point):
            for image in images:  # one by one: a batch of different sizes would be padded, and so change the result
                output = self._model([to_tensor([image], self._device)[0]])[0]
                results.append(_detections(output, score_min))
        return results

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        check_images(images)
        train_with_frozen_batch_norm(self._model)
        losses = []
        for image, target in zip(images, targets, strict=True):
            parts = self._model([to_tensor([image], self._device)[0]], [self._target(target)])
            losses.append(torch.stack(list(parts.values())).sum())
        return mean_per_image(losses)

    def _target(self, target: Detections) -> dict[str, torch.Tensor]:
        """Labels as torchvision wants them; it refuses boxes without area."""
        solid = (target.xyxy[:, 2:] - target.xyxy[:, :2] >= MIN_SIDE_PX).all(axis=1)
        return {
            "boxes": torch.from_numpy(target.xyxy[solid].astype(np.float32)).to(self._device),
            "labels": torch.from_numpy(_TO_CATEGORY[target.class_id[solid]].astype(np.int64)).to(self._device),
        }

    def trainable_layers(self) -> list[nn.Module]:
        """Blocks of the backbone, then what is built on it, then the head."""
        return [layer for layer in _flattened(self._model) if any(True for _ in layer.parameters())]

    def state(self) -> dict[str, torch.Tensor]:
        return cpu_state(self._model)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        load_checked_state(self._model, state, subject=self.spec.arch)

    def clone(self) -> Detector:
        twin = copy.copy(self)
        twin._model = copy.deepcopy(self._model)
        twin._model.zero_grad(set_to_none=True)
        return twin


def _set_input(model: _Model, spec: DetectorSpec) -> None:
    size = spec.input_px
    model.transform.min_size, model.transform.max_size = (size,), size
    if spec.arch.startswith("ssd"):
        model.transform.fixed_size = (size, size)


def _set_score_min(model: _Model, score_min: float) -> None:
    """Lets the network drop weak boxes early: its own suppression takes most of the time otherwise."""
    model.score_thresh = score_min


def _detections(output: dict[str, torch.Tensor], score_min: float) -> Detections:
    """torchvision's answer for one image -> ours."""
    xyxy, score = output["boxes"].cpu().numpy(), output["scores"].cpu().numpy()
    class_id = _TO_CLASSES[output["labels"].cpu().numpy()]
    wanted = (score >= score_min) & (class_id >= 0)
    xyxy, score, class_id = xyxy[wanted], score[wanted], class_id[wanted]
    kept = suppressed_per_class(xyxy, score, class_id, iou_max=NMS_IOU)
    return sorted_detections(xyxy[kept], score[kept], class_id[kept])


def _flattened(model: _Model) -> list[nn.Module]:
    """Backbone blocks one by one, everything else whole. Plain containers are opened, blocks are not."""
    layers: list[nn.Module] = []
    for name, child in model.named_children():
        layers += _opened(child) if name == "backbone" else [child]
    return layers


def _opened(module: nn.Module) -> list[nn.Module]:
    plain = type(module) in (nn.Sequential, nn.ModuleList) or isinstance(module, nn.ModuleDict)
    is_extractor = hasattr(module, "body") or hasattr(module, "features")
    if not (plain or is_extractor):
        return [module]
    return [layer for child in module.children() for layer in _opened(child)]
