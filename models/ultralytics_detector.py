"""Ultralytics' YOLO detectors behind our seam. The only file that imports ultralytics (AGPL-3.0), and only when one is built.

The network is built from the library's own description (yolov8, yolo11, yolo26) and filled from a state dict; pre- and
post-processing, class mapping and the training iteration are ours. The 80-class COCO head stays as it is: labels train it
through the inverse mapping (CLASSES -> first COCO index), so no head surgery is needed and a model can be compared before and
after.

Loss: the library's criterion, normalised per image (the library normalises per batch), so that a batch may be split into
micro-batches without changing the result. yolo26 has two heads; the one-to-one head is served, both train (equal weights: the
one-to-one head is detached from the backbone, so the weights only scale two separate sets of gradients).
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from configs.errors import EnvironmentLacking, WeightsError
from configs.units import CLASSES, COCO_TO_CLASSES
from models import torch_compat
from models.detector import Detector, DetectorSpec, YieldPoint
from models.torch_support import (
    Letterboxed,
    by_shape,
    check_images,
    cpu_state,
    letterbox,
    load_checked_state,
    mean_per_image,
    placed,
    sorted_detections,
    suppressed_per_class,
    to_tensor,
    train_with_frozen_batch_norm,
    yielding_between_layers,
)
from models.weights import cache_dir
from scheduler.types import Detections

#: Library's default for its predictor, applied per class of ours.
NMS_IOU = 0.7
MAX_DETECTIONS = 300
N_COCO = 80
#: Gains of box, class and distribution losses: the library's defaults.
_GAINS = {"box": 7.5, "cls": 0.5, "dfl": 1.5, "epochs": 100}

#: COCO index -> index in CLASSES, -1 for what the box does not watch. int64 (80,)
_TO_CLASSES = np.array([COCO_TO_CLASSES.get(coco, -1) for coco in range(N_COCO)], np.int64)
#: Index in CLASSES -> first COCO index. int64 (7,)
_TO_COCO = np.array([min(c for c, ours in COCO_TO_CLASSES.items() if ours == k) for k in range(len(CLASSES))], np.int64)

# The library ships no types.
_Model: TypeAlias = Any


def _import_library() -> tuple[Any, Any]:
    """(DetectionModel, loss module) of ultralytics, kept offline, quiet and out of the home folder."""
    os.environ.setdefault("YOLO_OFFLINE", "1")
    os.environ.setdefault("YOLO_AUTOINSTALL", "0")
    os.environ.setdefault("YOLO_VERBOSE", "0")
    os.environ.setdefault("YOLO_CONFIG_DIR", _config_dir())
    torch_compat.ensure_torchvision()
    try:
        from ultralytics.nn import tasks
        from ultralytics.utils import loss
    except ImportError as error:
        raise EnvironmentLacking(
            f"the YOLO detectors need ultralytics, which does not import: {error}",
            subject="ultralytics",
            remedy="install it (pip install ultralytics), or configure a torchvision model such as ssdlite320",
        ) from error
    return tasks.DetectionModel, loss


def _config_dir() -> str:
    """A folder for the library's settings file; a temporary one when the cache cannot be written."""
    folder = cache_dir() / "ultralytics"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return tempfile.mkdtemp(prefix="driftbox-ultralytics-")
    return str(folder)


def _build(arch: str) -> _Model:
    detection_model, _ = _import_library()
    try:
        model = detection_model(f"{arch}.yaml", ch=3, nc=N_COCO, verbose=False)
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise WeightsError(
            f"ultralytics has no description of {arch!r}", subject=arch, remedy="check the model's name"
        ) from error
    model.args = SimpleNamespace(**_GAINS)
    return model


class UltralyticsDetector:
    """A YOLO detector. input_px: longer side of what the network sees, padded to multiples of 32 (no square)."""

    #: Asks `models.retrain` for SGD: see there.
    prefers_sgd = True

    def __init__(
        self, spec: DetectorSpec, *, state: dict[str, torch.Tensor] | None = None, device: str = "cpu", seed: int = 0
    ) -> None:
        """state: tensors under the library's names (None: random weights from `seed`).
        Raises WeightsError for an unknown arch or a state that does not fit; EnvironmentLacking without ultralytics."""
        self.spec = spec
        self._device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model: _Model = _build(spec.arch)
        if state is not None:
            load_checked_state(self._model, state, subject=spec.arch)
        placed(self._model, self._device)
        self._fused: _Model | None = None
        self._criteria: list[Any] | None = None

    # --- inference ----------------------------------------------------------------------------------------------------

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        check_images(images)
        boxed = [letterbox(image, input_px=self.spec.input_px) for image in images]
        results = [Detections.empty() for _ in images]
        network = self._serving_network()
        with torch.inference_mode(), yielding_between_layers(network, yield_point):
            for group in by_shape([b.image for b in boxed]):
                output = network(to_tensor([boxed[i].image for i in group], self._device))[0]
                for i, raw in zip(group, output, strict=True):
                    results[i] = self._detections(raw.cpu(), boxed[i], score_min)
        return results

    def _serving_network(self) -> _Model:
        """A copy with convolution and batch-norm folded into one (about a fifth faster on a CPU), made when first needed after
        the weights changed."""
        if self._fused is None:
            self._model.eval()
            self._fused = placed(copy.deepcopy(self._model).fuse(verbose=False), self._device)
        return self._fused

    def _detections(self, raw: torch.Tensor, boxed: Letterboxed, score_min: float) -> Detections:
        if self._model.end2end:
            xyxy, score, coco = raw[:, :4].numpy(), raw[:, 4].numpy(), raw[:, 5].numpy().astype(np.int64)  # (300, 6)
        else:
            best = raw[4:].max(dim=0)  # raw (84, A)
            xyxy, score, coco = _xyxy(raw[:4].T.numpy()), best.values.numpy(), best.indices.numpy()
        class_id = _TO_CLASSES[coco]
        wanted = (score >= score_min) & (class_id >= 0)
        xyxy, score, class_id = xyxy[wanted], score[wanted], class_id[wanted]
        if not self._model.end2end:
            kept = suppressed_per_class(xyxy, score, class_id, iou_max=NMS_IOU)[:MAX_DETECTIONS]
            xyxy, score, class_id = xyxy[kept], score[kept], class_id[kept]
        return sorted_detections(boxed.to_original(xyxy), score, class_id)

    # --- training -----------------------------------------------------------------------------------------------------

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        check_images(images)
        train_with_frozen_batch_norm(self._model)
        self._fused = None
        boxed = [letterbox(image, input_px=self.spec.input_px) for image in images]
        losses: list[torch.Tensor] = []
        for group in by_shape([b.image for b in boxed]):
            heads = _heads(self._model(to_tensor([boxed[i].image for i in group], self._device)))
            for row, i in enumerate(group):
                losses.append(self._image_loss(heads, row, boxed[i], targets[i]))
        return mean_per_image(losses)

    def _image_loss(self, heads: list[dict[str, Any]], row: int, boxed: Letterboxed, target: Detections) -> torch.Tensor:
        """The criterion of each head on one image of the batch, averaged over heads."""
        batch = _criterion_batch(boxed, target, self._device)
        parts = [
            criterion.loss(_one_image(head, row), batch)[0].sum()
            for criterion, head in zip(self._criterion(), heads, strict=True)
        ]
        return torch.stack(parts).mean()

    def _criterion(self) -> list[Any]:
        """One criterion per head, with the library's assignment widths (many: 10 anchors a box, one-to-one: 7 then 1)."""
        if self._criteria is None:
            _, library = _import_library()
            self._criteria = [library.v8DetectionLoss(self._model, tal_topk=10)]
            if getattr(self._model.model[-1], "one2one_cv2", None) is not None:
                self._criteria.append(library.v8DetectionLoss(self._model, tal_topk=7, tal_topk2=1))
        return self._criteria

    def trainable_layers(self) -> list[nn.Module]:
        """Top-level layers that have parameters: 10 of the backbone, then neck and head."""
        return [layer for layer in self._model.model if any(True for _ in layer.parameters())]

    # --- weights ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        return cpu_state(self._model)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        load_checked_state(self._model, state, subject=self.spec.arch)
        self._fused = None

    def clone(self) -> Detector:
        twin = copy.copy(self)
        # Criteria hold no weights but point at the model; the folded copy belongs to the old one.
        twin._fused, twin._criteria = None, None
        twin._model = copy.deepcopy(self._model)
        twin._model.zero_grad(set_to_none=True)
        return twin


def _heads(output: dict[str, Any]) -> list[dict[str, Any]]:
    """Raw predictions of each head: the one-to-many head first."""
    return [output["one2many"], output["one2one"]] if "one2many" in output else [output]


def _one_image(head: dict[str, Any], row: int) -> dict[str, Any]:
    """The part of a head's output that belongs to one image, still a batch (of one)."""
    return {
        "boxes": head["boxes"][row : row + 1],
        "scores": head["scores"][row : row + 1],
        "feats": [level[row : row + 1] for level in head["feats"]],
    }


def _criterion_batch(boxed: Letterboxed, target: Detections, device: torch.device) -> dict[str, torch.Tensor]:
    """Labels of one image as the criterion wants them: centre and size as fractions of the padded picture."""
    height, width = boxed.image.shape[:2]
    xyxy = boxed.from_original(target.xyxy)
    centre, size = (xyxy[:, :2] + xyxy[:, 2:]) / 2, xyxy[:, 2:] - xyxy[:, :2]
    bboxes = np.concatenate([centre, size], axis=1) / np.array([width, height, width, height], np.float32)
    return {
        "batch_idx": torch.zeros(len(target), device=device),
        "cls": torch.from_numpy(_TO_COCO[target.class_id].astype(np.float32)).to(device),
        "bboxes": torch.from_numpy(bboxes.astype(np.float32)).to(device),
    }


def _xyxy(centre_size: np.ndarray) -> np.ndarray:
    """(N, 4) centre and size -> corners."""
    half = centre_size[:, 2:] / 2
    return np.concatenate([centre_size[:, :2] - half, centre_size[:, :2] + half], axis=1)
