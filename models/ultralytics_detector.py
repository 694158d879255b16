"""Ultralytics' YOLO detectors behind our seam. The only file that imports ultralytics (AGPL-3.0), and only when one is built.

The network is built from the library's own description (yolov8, yolo11, yolo26) and filled from a state dict; pre- and
post-processing, class mapping and the training iteration are ours. The 80-class COCO head stays as it is: labels train it
through the inverse mapping (CLASSES -> first COCO index), so no head surgery is needed and a model can be compared before and
after.

Served: the network as far as its raw head outputs. Boxes are decoded by us, in numpy and for the few anchors that report something,
so that a compiled or quantised form (`body`) has no box arithmetic in it that int8 would spoil, and every form shares one decoding.

Loss: the library's criterion, normalised per image (the library normalises per batch), so that a batch may be split into
micro-batches without changing the result. yolo26 has two heads; the one-to-one head is served, both train (equal weights: the
one-to-one head is detached from the backbone, so the weights only scale two separate sets of gradients).
"""

from __future__ import annotations

import copy
import functools
import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from configs.errors import EnvironmentLacking, UsageError, WeightsError
from configs.units import CLASSES, COCO_TO_CLASSES
from models import torch_compat
from models.detector import Detector, DetectorSpec, PruningParts, ServedBody, YieldPoint
from models.pixels import FromPixels, Levels
from models.torch_support import (
    Letterboxed,
    bernoulli_distance,
    by_shape,
    check_images,
    check_teacher,
    cpu_state,
    letterbox,
    load_checked_state,
    mean_per_image,
    placed,
    resize_to,
    sorted_detections,
    suppressed_per_class,
    to_tensor,
    train_with_frozen_batch_norm,
)
from models.weights import cache_dir
from models.yielding import keeping_means, yielding_between_layers
from scheduler.types import Detections

#: Library's default for its predictor, applied per class of ours.
NMS_IOU = 0.7
MAX_DETECTIONS = 300
N_COCO = 80
#: Weight of the box term against the class term when a teacher is imitated (the library's dfl gain over its cls gain).
_DISTILL_BOX_GAIN = 3.0
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
    #: Whether a picture smaller than `input_px` is enlarged to it. False where a resolution knob is turned: less to see then costs less.
    enlarges = True

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
        if spec.pruned:
            self._widths_of(state)
        if state is not None:
            load_checked_state(self._model, state, subject=spec.arch)
        placed(self._model, self._device)
        self._fused: nn.Module | None = None
        self._criteria: list[Any] | None = None

    def _widths_of(self, state: dict[str, torch.Tensor] | None) -> None:
        """Takes the widths of a pruned model's state."""
        if state is None:
            raise WeightsError(f"a pruned {self.spec.arch} cannot be built without its weights", subject=self.spec.arch)
        _split_blocks(self._model)
        resize_to(self._model, state, subject=self.spec.arch)

    def pruning_parts(self) -> PruningParts:
        """See `PruningParts`; blocks whose first convolution makes two branches are split, so that each can lose its own channels.
        Raises UsageError for families whose attention cannot lose channels one by one (yolo11, yolo26)."""
        if not self.spec.arch.startswith("yolov8"):
            raise UsageError(
                f"{self.spec.arch} cannot be pruned: its attention blocks count on their widths", subject=self.spec.arch,
                remedy="prune yolov8n or tinydet-edge, or take a smaller model",
            )  # fmt: skip
        self._model.eval()
        _split_blocks(self._model)
        self._fused = self._criteria = None

        def changed() -> None:
            self.spec = replace(self.spec, pruned=True)

        head = self._model.model[-1]
        keep = tuple(branch[-1] for branch in (*head.cv2, *head.cv3)) + (head.dfl.conv,)
        example = torch.zeros(1, 3, 64, 64, device=self._device)
        return PruningParts(network=_Undecoded(self._model), example=example, keep=keep, changed=changed)

    # --- inference ----------------------------------------------------------------------------------------------------

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        check_images(images)
        boxed = [letterbox(image, input_px=self.spec.input_px, enlarge=self.enlarges) for image in images]
        results = [Detections.empty() for _ in images]
        network = self._serving_network()
        with torch.inference_mode(), yielding_between_layers(network, yield_point):
            for group in by_shape([b.image for b in boxed]):
                boxes, logits = network(to_tensor([boxed[i].image for i in group], self._device))
                for i, *raw in zip(group, boxes.cpu().numpy(), logits.cpu().numpy(), strict=True):
                    results[i] = self._detections(raw, boxed[i], score_min)
        return results

    def _serving_network(self) -> _RawNetwork:
        """A copy with convolution and batch-norm folded into one (about a fifth faster on a CPU), made when first needed after
        the weights changed."""
        if self._fused is None:
            self._fused = placed(self._raw_network(), self._device)
        return self._fused  # type: ignore[return-value]

    def _raw_network(self) -> _RawNetwork:
        self._model.eval()
        folded = copy.deepcopy(self._model)
        folded.zero_grad(set_to_none=True)
        return _RawNetwork(folded.fuse(verbose=False))

    def _detections(self, raw: Sequence[np.ndarray], boxed: Letterboxed, score_min: float) -> Detections:
        """raw: one picture's outputs of the network: boxes (4 * bins, A), class logits (80, A)."""
        heights_widths = boxed.image.shape[:2]
        if self._model.end2end:
            xyxy, score, coco = _decoded_pairs(raw[0], raw[1], self._grid(heights_widths), score_min)
        else:
            xyxy, score, coco = _decoded_best(raw[0], raw[1], self._grid(heights_widths), score_min)
        class_id = _TO_CLASSES[coco]
        watched = class_id >= 0
        xyxy, score, class_id = xyxy[watched], score[watched], class_id[watched]
        if not self._model.end2end:
            kept = suppressed_per_class(xyxy, score, class_id, iou_max=NMS_IOU)[:MAX_DETECTIONS]
            xyxy, score, class_id = xyxy[kept], score[kept], class_id[kept]
        return sorted_detections(boxed.to_original(xyxy), score, class_id)

    def _grid(self, height_width: tuple[int, int]) -> _Grid:
        return _grid_of(height_width, tuple(int(stride) for stride in self._model.stride))

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """The output of the library's backbone (its `backbone:` section: SPPF or C2PSA at stride 32), averaged over the padded
        picture. float32 (N, 256) for the nano models."""
        check_images(images)
        boxed = [letterbox(image, input_px=self.spec.input_px).image for image in images]
        network = self._serving_network()
        found: dict[int, np.ndarray] = {}
        with torch.inference_mode():
            for group in by_shape(boxed):
                features = network.features(to_tensor([boxed[i] for i in group], self._device))
                found.update(zip(group, features.mean(dim=(2, 3)).float().cpu().numpy(), strict=True))
        return np.stack([found[i] for i in range(len(images))]) if found else np.zeros((0, 0), np.float32)

    def keeping_features(self) -> AbstractContextManager[list[np.ndarray]]:
        """See `models.detector.KeepsFeatures`."""
        return keeping_means(self._serving_network().deepest())

    def body(self) -> ServedBody:
        """The folded network with raw head outputs: boxes (B, 4 * bins, A) and class logits (B, 80, A)."""
        stays = copy.copy(self)  # `decode` needs sizes and classes, not the weights of today

        def encode(image: np.ndarray) -> tuple[np.ndarray, object]:
            check_images([image])
            boxed = letterbox(image, input_px=self.spec.input_px, enlarge=self.enlarges)
            return boxed.image[None], boxed

        def decode(outputs: Sequence[np.ndarray], boxed: object, score_min: float) -> Detections:
            assert isinstance(boxed, Letterboxed)
            return stays._detections([outputs[0][0], outputs[1][0]], boxed, score_min)

        wide = letterbox(np.zeros((9, 16, 3), np.uint8), input_px=self.spec.input_px).image
        network = self._raw_network().to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return ServedBody(
            network=FromPixels(network, Levels()).eval().requires_grad_(False),
            encode=encode, decode=decode, example_px=wide.shape[:2], pixels=True,
        )  # fmt: skip

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
        with torch.autocast(self._device.type, enabled=False):  # it decodes boxes: see `_heads`
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

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        """Class part: Kullback-Leibler distance of every anchor's 80 class probabilities from the teacher's; box part: that of the
        box-side distributions (or the distance of the sides themselves for a head without bins), weighted by how sure the teacher is
        of the anchor. Both per object the teacher sees, averaged over heads. After Hinton et al. (2015) and, for the boxes,
        "Localization Distillation" (Zheng et al., CVPR 2022)."""
        check_images(images)
        other = check_teacher(self, teacher)
        train_with_frozen_batch_norm(self._model)
        other._model.eval()
        self._fused = None
        boxed = [letterbox(image, input_px=self.spec.input_px).image for image in images]
        losses: list[torch.Tensor] = []
        for group in by_shape(boxed):
            batch = to_tensor([boxed[i] for i in group], self._device)
            with torch.no_grad():
                wanted = _heads(other._model(batch)[1])
            heads = _heads(self._model(batch))
            losses += [_heads_distance(heads, wanted, row) for row in range(len(group))]
        return mean_per_image(losses)

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
    """Raw predictions of each head: the one-to-many head first. float32, also when the network computed in half precision: boxes of
    eight bits would be pixels off."""
    heads = [output["one2many"], output["one2one"]] if "one2many" in output else [output]
    return [
        {"boxes": head["boxes"].float(), "scores": head["scores"].float(), "feats": [level.float() for level in head["feats"]]}
        for head in heads
    ]


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


def _heads_distance(heads: list[dict[str, Any]], wanted: list[dict[str, Any]], row: int) -> torch.Tensor:
    """Distance of one image's raw head outputs from the teacher's, averaged over heads."""
    pairs = zip(heads, wanted, strict=True)
    return torch.stack([_head_distance(_one_image(own, row), _one_image(other, row)) for own, other in pairs]).mean()


def _head_distance(head: dict[str, Any], wanted: dict[str, Any]) -> torch.Tensor:
    sure = wanted["scores"].sigmoid()  # (1, 80, A)
    weight = sure.amax(dim=1)  # (1, A)
    per_object = weight.sum().clamp(min=1.0)
    classes = bernoulli_distance(head["scores"], wanted["scores"]).sum() / per_object
    own, other = _sides(head["boxes"]), _sides(wanted["boxes"])  # (1, 4, bins, A)
    if own.shape[2] > 1:
        difference = nn.functional.kl_div(own.log_softmax(2), other.log_softmax(2), reduction="none", log_target=True).sum(2)
    else:
        difference = nn.functional.smooth_l1_loss(own, other, reduction="none").sum(2)
    boxes = (difference.mean(1) * weight).sum() / per_object
    return classes + _DISTILL_BOX_GAIN * boxes


def _sides(boxes: torch.Tensor) -> torch.Tensor:
    """(B, 4 * bins, A) -> (B, 4, bins, A)."""
    return boxes.view(boxes.shape[0], 4, -1, boxes.shape[2])


# --- from raw outputs to boxes ----------------------------------------------------------------------------------------


class _RawHead(nn.Module):
    """The head of a folded network without its box decoding: (boxes (B, 4 * bins, A), class logits (B, 80, A))."""

    def __init__(self, head: _Model) -> None:
        super().__init__()
        self.head = head
        self.f, self.i = head.f, head.i  # where the library's forward pass looks for its inputs

    def forward(self, x: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        raw = self.head.forward_head(x, box_head=self.head.cv2, cls_head=self.head.cv3)
        return raw["boxes"], raw["scores"]


class _SplitBlock(nn.Module):
    """The library's C2f with its first convolution cut into the two whose outputs it would chunk: the same answers."""

    def __init__(self, block: _Model) -> None:
        super().__init__()
        self.first, self.second = (_half(block.cv1, part) for part in (slice(0, block.c), slice(block.c, 2 * block.c)))
        self.cv2, self.m = block.cv2, block.m
        self.f, self.i = block.f, block.i

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [self.first(x), self.second(x)]
        for block in self.m:
            found.append(block(found[-1]))
        return self.cv2(torch.cat(found, 1))


def _half(conv: _Model, part: slice) -> _Model:
    """A convolution with batch-norm that makes only some of its output channels."""
    half = copy.deepcopy(conv)
    resize_to(half, {name: tensor[part] for name, tensor in conv.state_dict().items() if tensor.ndim}, subject="block")
    half.load_state_dict({name: tensor[part] if tensor.ndim else tensor for name, tensor in conv.state_dict().items()})
    return half


def _split_blocks(model: _Model) -> None:
    """Splits every C2f that is not split yet."""
    for i, layer in enumerate(model.model):
        if type(layer).__name__ == "C2f":
            model.model[i] = _SplitBlock(layer)
    model.eval()


class _Undecoded(nn.Module):
    """The network as far as its head's raw maps, layer by layer and without the library's bookkeeping, for a tracer."""

    def __init__(self, model: _Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> list[torch.Tensor]:
        made: list[Any] = []
        head = self.model.model[-1]
        for layer in self.model.model[:-1]:
            source = [layer.f] if isinstance(layer.f, int) else layer.f
            inputs = [x if j == -1 else made[j] for j in source]
            x = layer(inputs if isinstance(layer.f, list) else inputs[0])
            made.append(x)
        pairs = zip(head.f, head.cv2, head.cv3, strict=True)
        return [branch(made[j]) for j, *branches in pairs for branch in branches]


class _RawNetwork(nn.Module):
    """(B, 3, H, W) -> what `_RawHead` says. model: folded, so that only the head that serves is left."""

    def __init__(self, model: _Model) -> None:
        super().__init__()
        model.model[-1] = _RawHead(model.model[-1])
        self._last_of_backbone = len(model.yaml["backbone"]) - 1
        self.model: _Model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model(x)

    def deepest(self) -> nn.Module:
        """The backbone's last layer."""
        last: nn.Module = self.model.model[self._last_of_backbone]
        return last

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the backbone (B, D, H/32, W/32)."""
        for layer in self.model.model[: self._last_of_backbone + 1]:  # one after the other in every description we build
            x = layer(x)
        return x


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """centres: float32 (A, 2) x and y of every anchor in net pixels; stride: float32 (A, 1)."""

    centres: np.ndarray
    stride: np.ndarray


@functools.lru_cache(maxsize=32)
def _grid_of(height_width: tuple[int, int], strides: tuple[int, ...]) -> _Grid:
    centres, widths = [], []
    for stride in strides:
        rows, columns = np.mgrid[0 : height_width[0] // stride, 0 : height_width[1] // stride]
        level = (np.stack([columns.ravel(), rows.ravel()], axis=1) + 0.5) * stride
        centres.append(level.astype(np.float32))
        widths.append(np.full((len(level), 1), stride, np.float32))
    return _Grid(centres=np.concatenate(centres), stride=np.concatenate(widths))


def _decoded_best(
    boxes: np.ndarray, logits: np.ndarray, grid: _Grid, score_min: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best class of every anchor that reaches score_min -> (xyxy (N, 4) net px, score (N,), COCO index (N,))."""
    best = logits.max(axis=0)
    anchors = np.flatnonzero(_sigmoid(best) >= score_min)
    return _corners(boxes, anchors, grid), _sigmoid(best[anchors]), logits[:, anchors].argmax(axis=0)


def _decoded_pairs(
    boxes: np.ndarray, logits: np.ndarray, grid: _Grid, score_min: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As the library's end-to-end heads choose: the MAX_DETECTIONS best anchors, of these the MAX_DETECTIONS best (anchor, class)
    pairs; those that reach score_min."""
    best = logits.max(axis=0)
    anchors = np.flatnonzero(_sigmoid(best) >= score_min)
    anchors = anchors[np.argsort(-best[anchors], kind="stable")[:MAX_DETECTIONS]]
    score = _sigmoid(logits[:, anchors].T)  # (K, 80)
    row, coco = np.nonzero(score >= score_min)
    order = np.argsort(-score[row, coco], kind="stable")[:MAX_DETECTIONS]
    row, coco = row[order], coco[order]
    return _corners(boxes, anchors, grid)[row], score[row, coco], coco


def _corners(boxes: np.ndarray, anchors: np.ndarray, grid: _Grid) -> np.ndarray:
    """Box sides of the given anchors (expected value of each side's distribution, where there are bins) -> xyxy (K, 4) net px."""
    sides = boxes[:, anchors].astype(np.float32).reshape(4, boxes.shape[0] // 4, len(anchors))  # (4, bins, K)
    if sides.shape[1] > 1:
        weights = np.exp(sides - sides.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        sides = np.einsum("sbk,b->sk", weights, np.arange(sides.shape[1], dtype=np.float32))[:, None]
    reach = sides[:, 0].T * grid.stride[anchors]  # (K, 4) left, top, right, bottom
    centres = grid.centres[anchors]
    return np.concatenate([centres - reach[:, :2], centres + reach[:, 2:]], axis=1)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1.0 / (1.0 + np.exp(-np.clip(x, -80, 80).astype(np.float32)))).astype(np.float32)
