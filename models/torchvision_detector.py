"""torchvision's COCO detectors behind our seam: SSDLite (edge) and two larger ones (golden). Works without ultralytics.

SSDLite stretches the picture to a square of input_px, as it was trained; the larger ones scale its longer side to input_px.
Their 91-category head stays as it is; labels train it through the inverse mapping, as with the YOLO detectors.
Only detectors without region proposals are offered: `roi_align` has no fast fallback where torchvision had to be mended.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from configs.errors import WeightsError
from configs.units import CLASSES, COCO_TO_CLASSES
from models import torch_compat
from models.detector import Detector, DetectorSpec, ServedBody, YieldPoint
from models.torch_support import (
    bernoulli_distance,
    check_images,
    check_teacher,
    cpu_state,
    load_checked_state,
    mean_per_image,
    placed,
    sorted_detections,
    suppressed_per_class,
    to_tensor,
    train_with_frozen_batch_norm,
)
from models.yielding import keeping_means, yielding_between_layers
from scheduler.types import Detections

torch_compat.ensure_torchvision()

from torchvision.models import detection  # noqa: E402  (needs the mended torchvision)

#: Classes that become one of ours (cat and dog: animal) may cover one object twice; suppressed above this IoU.
NMS_IOU = 0.55
MIN_SIDE_PX = 1.0
N_CATEGORIES = 91

#: Head outputs by torchvision's names, in the order of a served network's outputs.
_OUTPUTS = ("cls_logits", "bbox_regression", "bbox_ctrness")

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

#: Weight of the box term against the class term when a teacher is imitated; torchvision's losses weigh both alike.
_DISTILL_BOX_GAIN = 1.0

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

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """SSD: the extractor's last map before its extra blocks (stride 32); the others: the deepest map of the ResNet. Averaged."""
        check_images(images)
        self._model.eval()
        rows = []
        with torch.inference_mode():
            for image in images:
                inputs, _ = self._model.transform([to_tensor([image], self._device)[0]])
                rows.append(_deepest(self._model.backbone, inputs.tensors).mean(dim=(2, 3))[0].float().cpu().numpy())
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def keeping_features(self) -> AbstractContextManager[list[np.ndarray]]:
        """See `models.detector.KeepsFeatures`."""
        body = getattr(self._model.backbone, "body", None)
        return keeping_means(self._model.backbone.features[-1] if body is None else body)

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        """Class part: Kullback-Leibler distance of every anchor's classes from the teacher's (over all categories for SSD, category by
        category for the others); box part: distance of the box codes, weighted by how sure the teacher is of the anchor. Both per
        object the teacher sees."""
        check_images(images)
        other = check_teacher(self, teacher)
        train_with_frozen_batch_norm(self._model)
        other._model.eval()
        losses = []
        for image in images:
            with torch.no_grad():
                inputs, _ = other._model.transform([to_tensor([image], self._device)[0]])
                wanted = _raw(other._model, inputs.tensors)
            losses.append(_distance(_raw(self._model, inputs.tensors), wanted, softmax=self._softmax()))
        return mean_per_image(losses)

    def _softmax(self) -> bool:
        """SSD's categories exclude each other and have a background; the others answer each category by itself."""
        return self.spec.arch.startswith("ssd")

    def body(self) -> ServedBody:
        """Backbone and head: class logits (B, A, 91), box codes (B, A, 4), for FCOS centreness (B, A, 1). Scaling and normalising are
        torchvision's own and stay in `encode`, anchors, box decoding and suppression in `decode`."""
        network = _RawNetwork(copy.deepcopy(self._model).to("cpu", memory_format=torch.contiguous_format))
        network.eval().requires_grad_(False)
        network.zero_grad(set_to_none=True)
        decoder = _Decoder(network.model, one_level=self._softmax())

        def encode(image: np.ndarray) -> tuple[np.ndarray, object]:
            check_images([image])
            with torch.inference_mode():
                inputs, _ = network.model.transform([to_tensor([image], torch.device("cpu"))[0]])
            return inputs.tensors.numpy(), _Scaled(image.shape[:2], inputs)

        def decode(outputs: Sequence[np.ndarray], scaled: object, score_min: float) -> Detections:
            assert isinstance(scaled, _Scaled)
            return decoder.detections(outputs, scaled, score_min)

        height, width = encode(np.zeros((360, 640, 3), np.uint8))[0].shape[2:]
        return ServedBody(network=network, encode=encode, decode=decode, example_px=(height, width))

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


def _raw(model: _Model, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Head outputs of a batch (B, 3, H, W), by torchvision's names."""
    return model.head(list(model.backbone(x).values()))


def _deepest(backbone: _Model, x: torch.Tensor) -> torch.Tensor:
    """(B, D, h, w): for a pyramid, what goes into its deepest level; for SSD, the last map that is not an extra block's."""
    body = getattr(backbone, "body", None)
    if body is not None:
        return list(body(x).values())[-1]
    for block in backbone.features:
        x = block(x)
    return x


def _distance(own: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], *, softmax: bool) -> torch.Tensor:
    """Distance of one picture's head outputs from the teacher's; see `distill_loss`."""
    classes = wanted["cls_logits"]  # (1, A, categories)
    sure = 1 - classes.softmax(2)[..., 0] if softmax else classes.sigmoid().amax(dim=2)  # (1, A)
    per_object = sure.sum().clamp(min=1.0)
    boxes = nn.functional.smooth_l1_loss(own["bbox_regression"], wanted["bbox_regression"], reduction="none").mean(2)
    total = _class_distance(own["cls_logits"], classes, softmax).sum() + _DISTILL_BOX_GAIN * (boxes * sure).sum()
    if "bbox_ctrness" in wanted:
        total = total + (bernoulli_distance(own["bbox_ctrness"], wanted["bbox_ctrness"])[..., 0] * sure).sum()
    return total / per_object


def _class_distance(logits: torch.Tensor, wanted: torch.Tensor, softmax: bool) -> torch.Tensor:
    if not softmax:
        return bernoulli_distance(logits, wanted)
    own, other = logits.log_softmax(2), wanted.log_softmax(2)
    return nn.functional.kl_div(own, other, reduction="none", log_target=True)


class _RawNetwork(nn.Module):
    """(B, 3, H, W), scaled and normalised -> head outputs as a tuple."""

    def __init__(self, model: _Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raw = _raw(self.model, x)
        return tuple(raw[name] for name in _OUTPUTS if name in raw)


@dataclass(frozen=True)
class _Scaled:
    """original_px: (H, W) of the picture; inputs: torchvision's ImageList made of it."""

    original_px: tuple[int, int]
    inputs: Any


class _Decoder:
    """torchvision's own anchors, box decoding and suppression on head outputs that came from elsewhere."""

    def __init__(self, model: _Model, *, one_level: bool) -> None:
        self._model, self._one_level = model, one_level
        self._maps: dict[tuple[int, ...], list[torch.Tensor]] = {}  # input shape -> stand-ins of the feature maps' sizes

    def detections(self, outputs: Sequence[np.ndarray], scaled: _Scaled, score_min: float) -> Detections:
        raw = {
            name: torch.from_numpy(np.ascontiguousarray(output, np.float32))
            for name, output in zip(_OUTPUTS, outputs, strict=False)  # only FCOS has the third
        }
        _set_score_min(self._model, score_min)
        with torch.inference_mode():
            maps = self._feature_maps(scaled.inputs.tensors)
            anchors = self._model.anchor_generator(scaled.inputs, maps)
            sizes = scaled.inputs.image_sizes
            found = self._found(raw, anchors, maps, sizes)
            found = self._model.transform.postprocess(found, sizes, [scaled.original_px])
        return _detections(found[0], score_min)

    def _found(self, raw: dict[str, torch.Tensor], anchors: list[torch.Tensor], maps: list[torch.Tensor], sizes: Any) -> Any:
        if self._one_level:  # SSD takes all levels at once
            return self._model.postprocess_detections(raw, anchors, sizes)
        cells = [m.shape[2] * m.shape[3] for m in maps]
        per_cell = raw["cls_logits"].shape[1] // sum(cells)
        levels = [n * per_cell for n in cells]
        split = {name: list(tensor.split(levels, dim=1)) for name, tensor in raw.items()}
        return self._model.postprocess_detections(split, [list(a.split(levels)) for a in anchors], sizes)

    def _feature_maps(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Empty tensors of the sizes the backbone's maps have for this input: the anchors need the sizes only."""
        shape = tuple(x.shape)
        if shape not in self._maps:
            self._maps[shape] = [m.new_empty((1, 1, *m.shape[2:])) for m in self._model.backbone(x).values()]
        return self._maps[shape]


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
