"""Our own small detector for the demo and the tests: anchor-free, centre-based, trained in minutes on one core.

After Zhou et al., "Objects as Points" (CenterNet: class heat maps of object centres, peaks are detections, focal loss with a
Gaussian around each centre) and Tian et al., "FCOS" (distances to the four box sides, IoU loss). Changed from both: the heat
map's Gaussian follows the box's own width and height, box sides are learnt in a few cells around the centre, and batch-norm
statistics are frozen in `loss`, so that a retraining may use micro-batches of one image (models.detector.Detector).

`tinydet-edge` is the small model that serves, `tinydet-golden` the larger one that labels. Weights come with the package
(`models/assets`); `docs/demo-models.md` says how they were made.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from configs.errors import WeightsError
from configs.units import CLASSES
from models.detector import Detector, DetectorSpec, PruningParts, ServedBody, YieldPoint
from models.pixels import FromPixels, Levels, normalised
from models.torch_support import bernoulli_distance, check_images, check_teacher, placed, resize_to
from models.yielding import keeping_means
from scheduler.types import Detections

ASSETS = Path(__file__).parent / "assets"

_OUT_STRIDE = 4  # net pixels per heat-map cell
#: About -2 to 2; zeros up to multiples of the deepest features' stride.
_LEVELS = Levels(shift=127.5, spread=64.0, multiple=16)
#: Up to here shrinking by linear interpolation still looks at every pixel.
_LINEAR_UP_TO = 1.5
_SIDE_UNIT_PX = 8.0  # box sides are exp(output) * this many net pixels
_MAX_PEAKS = 64
_SAME_CLASS_IOU, _ANY_CLASS_IOU = 0.5, 0.75
_STEPS = np.array([[-1], [0], [1]])  # to the neighbours of a cell
_PREDICT_BATCH = 4
_DISTILL_BOX_GAIN = 2.0  # as the boxes' weight in `picture_loss`


@dataclass(frozen=True, kw_only=True)
class Size:
    """widths: channels at strides 2, 4, 8, 16; blocks: residual blocks at strides 4, 8, 16; head: channels of the head."""

    input_px: int
    widths: tuple[int, int, int, int]
    blocks: tuple[int, int, int]
    head: int
    separable: bool


SIZES: dict[str, Size] = {
    "tinydet-edge": Size(input_px=256, widths=(16, 24, 40, 56), blocks=(1, 2, 2), head=24, separable=True),
    "tinydet-golden": Size(input_px=320, widths=(24, 40, 64, 96), blocks=(1, 2, 2), head=48, separable=False),
}


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class _Block(nn.Module):
    """Residual: depthwise-separable (two rounds) or two plain 3x3 convolutions."""

    def __init__(self, width: int, separable: bool) -> None:
        super().__init__()
        if separable:
            parts = [_conv(width, width, groups=width), _conv(width, width, 1), _conv(width, width, groups=width)]
        else:
            parts = [_conv(width, width)]
        last = 1 if separable else 3
        self.body = nn.Sequential(*parts, nn.Conv2d(width, width, last, padding=last // 2, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.body(x))


class _Up(nn.Module):
    """Brings deep features up by 2 and adds them to the shallower ones."""

    def __init__(self, deep: int, shallow: int) -> None:
        super().__init__()
        self.lateral = _conv(deep, shallow, 1)
        self.mix = _conv(shallow, shallow)

    def forward(self, deep: torch.Tensor, shallow: torch.Tensor) -> torch.Tensor:
        up = functional.interpolate(self.lateral(deep), scale_factor=2.0, mode="nearest")
        return self.mix(up + shallow)


class _Head(nn.Module):
    """Class heat map (logits) and box sides (left, top, right, bottom; log units)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.stem = _conv(inputs, width)
        self.heat = nn.Conv2d(width, len(CLASSES), 1)
        self.sides = nn.Conv2d(width, 4, 1)
        nn.init.constant_(self.heat.bias, -4.0)  # type: ignore[arg-type]  # few cells hold a centre

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        return self.heat(x), self.sides(x)


class TinyNet(nn.Module):
    """(B, 3, H, W) -> heat (B, classes, H/4, W/4), sides (B, 4, H/4, W/4); H and W multiples of 16."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        w2, w4, w8, w16 = size.widths
        self.stem = _conv(3, w2, stride=2)
        self.stage4 = self._stage(w2, w4, size.blocks[0], size.separable)
        self.stage8 = self._stage(w4, w8, size.blocks[1], size.separable)
        self.stage16 = self._stage(w8, w16, size.blocks[2], size.separable)
        self.up8 = _Up(w16, w8)
        self.up4 = _Up(w8, w4)
        self.head = _Head(w4, size.head)

    @staticmethod
    def _stage(inputs: int, outputs: int, blocks: int, separable: bool) -> nn.Sequential:
        return nn.Sequential(_conv(inputs, outputs, stride=2), *(_Block(outputs, separable) for _ in range(blocks)))

    def layers(self) -> list[nn.Module]:
        return [self.stem, self.stage4, self.stage8, self.stage16, self.up8, self.up4, self.head]

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The deepest features (B, widths[3], H/16, W/16)."""
        deepest: torch.Tensor = self.stage16(self.stage8(self.stage4(self.stem(x))))
        return deepest

    def forward(self, x: torch.Tensor, yield_point: YieldPoint | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        pause = yield_point or _no_pause
        at4 = self.stage4(_paused(pause, self.stem(x)))
        at8 = self.stage8(_paused(pause, at4))
        at16 = self.stage16(_paused(pause, at8))
        at8 = self.up8(_paused(pause, at16), at8)
        at4 = self.up4(_paused(pause, at8), at4)
        heat, sides = self.head(_paused(pause, at4))
        return heat, sides


def _no_pause() -> None:
    return None


def _paused(pause: YieldPoint, x: torch.Tensor) -> torch.Tensor:
    pause()
    return x


# --- pictures in, boxes out -------------------------------------------------------------------------------------------


def _scaled_size(height_px: int, width_px: int, input_px: int) -> tuple[int, int]:
    """Net (height, width) of a picture whose longer side becomes input_px, before padding."""
    scale = input_px / max(height_px, width_px)
    return max(1, round(height_px * scale)), max(1, round(width_px * scale))


def scaled(image: np.ndarray, input_px: int) -> np.ndarray:
    """uint8 (H, W, 3) -> uint8 (h, w, 3), contiguous: the longer side is input_px. Shrinks by halves first: the mean of four pixels
    costs a tenth of a mean over parts of pixels, for which no processor has instructions (640x360 to 256x144: 0.1 ms, else 0.5)."""
    height, width = _scaled_size(image.shape[0], image.shape[1], input_px)
    while not (image.shape[0] % 2 or image.shape[1] % 2) and image.shape[0] >= 2 * height and image.shape[1] >= 2 * width:
        image = cv2.resize(image, (image.shape[1] // 2, image.shape[0] // 2), interpolation=cv2.INTER_AREA)
    if image.shape[:2] == (height, width):
        return np.ascontiguousarray(image)
    linear = image.shape[0] < _LINEAR_UP_TO * height  # enlarges, too
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR if linear else cv2.INTER_AREA)


def to_input(image: np.ndarray, input_px: int, device: torch.device) -> torch.Tensor:
    """uint8 (H, W, 3) -> float32 (3, h, w) on `device`: scaled, and normalised there, since pixels are a quarter of the bytes."""
    return normalised(torch.from_numpy(scaled(image, input_px))[None].to(device), _LEVELS)[0]


def _together(inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Inputs of one shape as the batch that the net is given."""
    return torch.stack(list(inputs)).contiguous(memory_format=torch.channels_last)


@dataclass
class Targets:
    """What the net should say about one picture: heat (C, h, w) in 0-1; at `cells` (K,) flat indices, boxes (K, 4) in net px
    with weights (K,); count: objects in the picture."""

    heat: torch.Tensor
    cells: torch.Tensor
    boxes: torch.Tensor
    weights: torch.Tensor
    count: int

    def to(self, device: torch.device) -> Targets:
        heat, cells, boxes, weights = (t.to(device) for t in (self.heat, self.cells, self.boxes, self.weights))
        return Targets(heat=heat, cells=cells, boxes=boxes, weights=weights, count=self.count)


def make_targets(labels: Detections, scale_x: float, scale_y: float, grid: tuple[int, int]) -> Targets:
    """A Gaussian per object in the heat map; cells near the centre (heat above 0.5) learn the box. grid: (h, w) cells."""
    height, width = grid
    heat = np.zeros((len(CLASSES), height, width), np.float32)
    owner = np.full((height, width), -1, np.int64)
    best = np.zeros((height, width), np.float32)
    boxes = labels.xyxy * np.array([scale_x, scale_y, scale_x, scale_y], np.float32)
    ys, xs = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)[None, :]
    for index in np.argsort(-_areas(boxes), kind="stable"):  # smaller objects are drawn last and win their cells
        x0, y0, x1, y1 = boxes[index] / _OUT_STRIDE
        column = min(width - 1, max(0, int((x0 + x1) / 2)))
        row = min(height - 1, max(0, int((y0 + y1) / 2)))
        spread_x, spread_y = max(0.6, 0.11 * (x1 - x0)), max(0.6, 0.11 * (y1 - y0))
        blob = np.exp(-0.5 * (((xs - column) / spread_x) ** 2 + ((ys - row) / spread_y) ** 2))
        class_id = int(labels.class_id[index])
        np.maximum(heat[class_id], blob, out=heat[class_id])
        near = (blob > 0.5) & (blob >= best)
        owner[near], best[near] = index, blob[near]
    cells = np.flatnonzero(owner.ravel() >= 0)
    owners = owner.ravel()[cells]
    return Targets(
        heat=torch.from_numpy(heat),
        cells=torch.from_numpy(cells),
        boxes=torch.from_numpy(boxes[owners].astype(np.float32)),
        weights=torch.from_numpy(best.ravel()[cells]),
        count=len(labels),
    )


def _areas(xyxy: np.ndarray) -> np.ndarray:
    return (xyxy[:, 2] - xyxy[:, 0]) * (xyxy[:, 3] - xyxy[:, 1])


def _cell_boxes(sides: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """sides (4, h, w) at flat `cells` -> xyxy (K, 4) in net pixels."""
    width = sides.shape[2]
    x = (cells % width).float() * _OUT_STRIDE + _OUT_STRIDE / 2
    y = torch.div(cells, width, rounding_mode="floor").float() * _OUT_STRIDE + _OUT_STRIDE / 2
    reach = sides.flatten(1)[:, cells].clamp(-6, 5).exp() * _SIDE_UNIT_PX  # (4, K)
    return torch.stack([x - reach[0], y - reach[1], x + reach[2], y + reach[3]], dim=1)


def _giou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Generalised IoU of paired boxes (K, 4) -> (K,), in -1 to 1 (Rezatofighi et al.)."""
    common = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - common
    return common / union - (hull - union) / hull


def picture_loss(heat: torch.Tensor, sides: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Loss of one picture, per object: focal loss on the heat map (alpha 2, beta 4) plus GIoU loss on the boxes."""
    probability = heat.sigmoid().clamp(1e-4, 1 - 1e-4)
    centre = (targets.heat > 0.999).float()
    hit = centre * (1 - probability) ** 2 * probability.log()
    miss = (1 - centre) * (1 - targets.heat) ** 4 * probability**2 * (1 - probability).log()
    loss = -(hit + miss).sum() / max(1, targets.count)
    if not len(targets.cells):
        return loss
    overlap = _giou(_cell_boxes(sides, targets.cells), targets.boxes)
    return loss + 2.0 * ((1 - overlap) * targets.weights).sum() / targets.weights.sum()


def batch_loss(heat: torch.Tensor, sides: torch.Tensor, targets: Sequence[Targets]) -> torch.Tensor:
    """Mean of `picture_loss` over the batch."""
    heat, sides = heat.float(), sides.float()  # in half precision a sure answer's logarithm is infinite
    losses = [picture_loss(heat[i], sides[i], target) for i, target in enumerate(targets)]
    return torch.stack(losses).mean()


def picture_distance(
    heat: torch.Tensor, sides: torch.Tensor, wanted_heat: torch.Tensor, wanted_sides: torch.Tensor
) -> torch.Tensor:
    """How far one picture's answers are from a teacher's, per object it sees: Kullback-Leibler distance of the class heat maps, and
    of the box sides (log units) where the teacher is sure of something. Zero when they agree."""
    heat, sides, wanted_heat, wanted_sides = heat.float(), sides.float(), wanted_heat.float(), wanted_sides.float()
    sure = wanted_heat.sigmoid().amax(dim=0)  # (h, w)
    per_object = sure.sum().clamp(min=1.0)
    classes = bernoulli_distance(heat, wanted_heat).sum() / per_object
    difference = functional.smooth_l1_loss(sides, wanted_sides, reduction="none").mean(dim=0)
    return classes + _DISTILL_BOX_GAIN * (difference * sure).sum() / per_object


def _decode(heat: np.ndarray, sides: np.ndarray, score_min: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Peaks of one picture -> boxes (N, 4) in net pixels, scores (N,), classes (N,), by falling score, duplicates removed.
    heat: logits (C, h, w). A NaN is no peak."""
    # A few dozen cells are looked at, so what counts is how often numpy is called, and how: its `clip` alone costs more than two calls
    # of `maximum` and `minimum`.
    cells = np.stack(np.unravel_index(np.flatnonzero(heat >= _logit(score_min)), heat.shape))  # (3, K) class, row, column
    levels = heat[cells[0], cells[1], cells[2]]
    peaks = levels >= _highest_around(heat, *cells)
    cells, found = cells[:, peaks], 1.0 / (1.0 + np.exp(-np.maximum(np.minimum(levels[peaks], 80.0), -80.0)))
    best = np.argsort(-found, kind="stable")[:_MAX_PEAKS]
    best = best[found[best] >= score_min]
    (classes, rows, columns), found = cells[:, best], found[best]
    boxes = _boxes_of(sides, rows, columns)
    kept = _suppress(boxes, classes)
    return boxes[kept], found[kept], classes[kept]


def _logit(score: float) -> np.float32:
    """What the net says of a cell with this score, or a little less: whoever asks looks at the scores again."""
    if not 0 < score < 1:
        return np.float32(-np.inf if score <= 0 else 80.0)
    return np.float32(np.log(score / (1 - score)) - 1e-3)


def _boxes_of(sides: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """What `_cell_boxes` says of these cells, (K, 4), for who needs no gradient. A handful: torch takes longer to call."""
    x = columns.astype(np.float32) * _OUT_STRIDE + _OUT_STRIDE / 2
    y = rows.astype(np.float32) * _OUT_STRIDE + _OUT_STRIDE / 2
    reach = np.exp(np.maximum(np.minimum(sides[:, rows, columns], 5), -6)) * np.float32(_SIDE_UNIT_PX)
    return np.array([x - reach[0], y - reach[1], x + reach[2], y + reach[3]], np.float32).T


def _highest_around(logits: np.ndarray, classes: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The largest logit of the 3x3 around each cell in its class's map, NaN if there is one. Looks at the given cells only: they are
    few. Beyond the border the border is seen again, which is in the 3x3 already."""
    across = np.maximum(np.minimum(columns + _STEPS, logits.shape[2] - 1), 0)
    down = np.maximum(np.minimum(rows + _STEPS, logits.shape[1] - 1), 0)
    around = logits[classes, down[:, None], across[None, :]]  # (3, 3, K)
    return np.asarray(around.max(axis=(0, 1)))


def _suppress(boxes: np.ndarray, classes: np.ndarray) -> list[int]:
    """Greedy non-maximum suppression; boxes come by falling score."""
    if len(boxes) < 2:
        return list(range(len(boxes)))
    areas = _areas(boxes)
    sides = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    sides = np.maximum(sides, 0)
    common = sides[:, :, 0] * sides[:, :, 1]
    iou = common / (areas[:, None] + areas[None, :] - common)
    over = iou > np.where(classes[:, None] == classes[None, :], _SAME_CLASS_IOU, _ANY_CLASS_IOU)
    kept: list[int] = []
    gone = np.zeros(len(boxes), bool)
    for i in range(len(boxes)):
        if not gone[i]:
            kept.append(i)
            gone |= over[i]
    return kept


# --- the detector -----------------------------------------------------------------------------------------------------


class TinyDetector:
    """Implements `models.detector.Detector`."""

    def __init__(self, arch: str, *, seed: int = 0, pruned: dict[str, torch.Tensor] | None = None, device: str = "cpu") -> None:
        """Random weights drawn from `seed`, the same for every device. pruned: a pruned model's state, whose widths the net takes (load
        it afterwards).
        Raises ValueError for an unknown arch, WeightsError for a state that no pruned net of this arch can have."""
        if arch not in SIZES:
            raise ValueError(f"unknown tinydet {arch!r}; known: {', '.join(SIZES)}")
        self.spec = DetectorSpec(arch=arch, input_px=SIZES[arch].input_px)
        self._device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = TinyNet(SIZES[arch])
            _settle_statistics(self.net)
        if pruned is not None:
            resize_to(self.net, pruned, subject=arch)
            self.spec = replace(self.spec, pruned=True)
        placed(self.net, self._device)
        self.net.eval()

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """See `Detector.predict`. Pictures of one padded size share a pass, at most four at a time."""
        inputs = [to_input(image, self.spec.input_px, self._device) for image in images]
        results: list[Detections] = [Detections.empty()] * len(images)
        for chunk in _chunks([tuple(x.shape) for x in inputs]):
            with torch.inference_mode():
                heat, sides = (answer.cpu() for answer in self.net(_together([inputs[i] for i in chunk]), yield_point))
                for place, i in enumerate(chunk):
                    results[i] = self._detections(heat[place].numpy(), sides[place].numpy(), images[i].shape[:2], score_min)
        return results

    def _detections(self, heat: np.ndarray, sides: np.ndarray, size: tuple[int, int], score_min: float) -> Detections:
        boxes, scores, classes = _decode(heat, sides, score_min)
        height, width = _scaled_size(size[0], size[1], self.spec.input_px)
        boxes = boxes * np.array([size[1] / width, size[0] / height] * 2, np.float32)
        limits = np.array([size[1], size[0]] * 2, np.float32)
        boxes = np.maximum(np.minimum(boxes, limits), 0)
        whole = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        return Detections(
            xyxy=boxes[whole].astype(np.float32),
            score=scores[whole].astype(np.float32),
            class_id=classes[whole].astype(np.int64),
        )

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        """See `Detector.loss`. Raises ValueError when the numbers of images and targets differ."""
        if len(images) != len(targets) or not images:
            raise ValueError(f"loss needs as many targets as images and at least one, got {len(targets)} and {len(images)}")
        self.net.eval()  # batch-norm statistics stay as they are
        pairs = [self.encode(image, labels) for image, labels in zip(images, targets, strict=True)]
        if len({tuple(x.shape) for x, _ in pairs}) > 1:
            return torch.stack([self._loss_of([pair]) for pair in pairs]).mean()
        return self._loss_of(pairs)

    def _loss_of(self, pairs: Sequence[tuple[torch.Tensor, Targets]]) -> torch.Tensor:
        heat, sides = self.net(_together([x for x, _ in pairs]))
        return batch_loss(heat, sides, [target for _, target in pairs])

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """See `Detector.embed`: the features at stride 16, averaged over the padded picture. (N, widths[3]) unless pruned."""
        inputs = [to_input(image, self.spec.input_px, self._device) for image in images]
        found: dict[int, np.ndarray] = {}
        self.net.eval()
        for chunk in _chunks([tuple(x.shape) for x in inputs]):
            with torch.inference_mode():
                features = self.net.features(_together([inputs[i] for i in chunk]))
                found.update(zip(chunk, features.mean(dim=(2, 3)).cpu().numpy(), strict=True))
        return np.stack([found[i] for i in range(len(images))]) if found else np.zeros((0, 0), np.float32)

    def keeping_features(self) -> AbstractContextManager[list[np.ndarray]]:
        """See `models.detector.KeepsFeatures`."""
        return keeping_means(self.net.stage16)

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        """See `Detector.distill_loss` and `picture_distance`."""
        other = check_teacher(self, teacher)
        if not images:
            raise ValueError("a training loss needs at least one image")
        self.net.eval()  # batch-norm statistics stay as they are
        other.net.eval()
        losses: list[torch.Tensor] = []
        inputs = [to_input(image, self.spec.input_px, self._device) for image in images]
        for chunk in _chunks([tuple(x.shape) for x in inputs]):
            batch = _together([inputs[i] for i in chunk])
            with torch.no_grad():
                wanted_heat, wanted_sides = other.net(batch)
            heat, sides = self.net(batch)
            losses += [picture_distance(heat[k], sides[k], wanted_heat[k], wanted_sides[k]) for k in range(len(chunk))]
        return torch.stack(losses).mean()

    def body(self) -> ServedBody:
        """The whole net; peaks are found while decoding."""
        network = copy.deepcopy(self.net).to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        network.zero_grad(set_to_none=True)
        stays = copy.copy(self)  # `decode` needs sizes, not the weights of today

        def encode(image: np.ndarray) -> tuple[np.ndarray, object]:
            check_images([image])
            return scaled(image, self.spec.input_px)[None], image.shape[:2]

        def decode(outputs: Sequence[np.ndarray], size: object, score_min: float) -> Detections:
            assert isinstance(size, tuple)
            heat, sides = (np.asarray(output[0], np.float32) for output in outputs)
            return stays._detections(heat, sides, size, score_min)

        return ServedBody(
            network=FromPixels(network, _LEVELS).eval().requires_grad_(False),
            encode=encode, decode=decode, example_px=_scaled_size(9, 16, self.spec.input_px), pixels=True,
        )  # fmt: skip

    def pruning_parts(self) -> PruningParts:
        """See `PruningParts`."""

        def changed() -> None:
            self.spec = replace(self.spec, pruned=True)

        example = torch.zeros(1, 3, 64, 64, device=self._device)
        return PruningParts(network=self.net, example=example, keep=(self.net.head.heat, self.net.head.sides), changed=changed)

    def encode(self, image: np.ndarray, labels: Detections) -> tuple[torch.Tensor, Targets]:
        """The net's input and targets of one labelled picture, on its device."""
        x = to_input(image, self.spec.input_px, self._device)
        height, width = _scaled_size(image.shape[0], image.shape[1], self.spec.input_px)
        grid = (x.shape[1] // _OUT_STRIDE, x.shape[2] // _OUT_STRIDE)
        return x, make_targets(labels, width / image.shape[1], height / image.shape[0], grid).to(self._device)

    def trainable_layers(self) -> list[nn.Module]:
        return self.net.layers()

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and batch-norm statistics, float32, copies on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {name: t for name, t in self.net.state_dict().items() if not name.endswith("num_batches_tracked")}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Takes over `state` (any float precision). Raises WeightsError naming the first tensor that does not fit; the detector
        then keeps the weights it had."""
        own = self._tensors()
        for name, tensor in own.items():
            if name not in state:
                raise self._misfit(f"tensor {name!r} is missing")
            if state[name].shape != tensor.shape:
                raise self._misfit(f"tensor {name!r} has shape {tuple(state[name].shape)}, expected {tuple(tensor.shape)}")
        for name in state:
            if name not in own:
                raise self._misfit(f"tensor {name!r} is not part of it")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def _misfit(self, problem: str) -> WeightsError:
        arch = self.spec.arch
        return WeightsError(f"weights do not fit {arch}: {problem}", subject=arch, remedy=f"use weights made for {arch}")

    def clone(self) -> TinyDetector:
        twin = copy.copy(self)
        twin.net = copy.deepcopy(self.net)
        for parameter in twin.net.parameters():
            parameter.grad = None
        return twin


def _settle_statistics(net: TinyNet) -> None:
    """Batch-norm statistics from one pass of blotchy noise: frozen at mean 0 and variance 1 a random net would hardly learn."""
    noise = functional.interpolate(torch.randn(2, 3, 16, 16), scale_factor=8.0, mode="bilinear") * 1.5
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    net.train()
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        net(noise)
    for norm in norms:
        norm.momentum = 0.1


def _chunks(shapes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Indices grouped by equal shape, at most `_PREDICT_BATCH` per group."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(index)
    return [group[i : i + _PREDICT_BATCH] for group in groups.values() for i in range(0, len(group), _PREDICT_BATCH)]


def bundled_weights(arch: str) -> Path:
    """Where the package keeps the weights of a tinydet arch."""
    return ASSETS / f"{arch}.safetensors"


def load_bundled(arch: str) -> TinyDetector:
    """The detector with the weights that come with the package. Raises WeightsError when they are missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = bundled_weights(arch)
    detector = TinyDetector(arch)
    try:
        detector.load_state(load_file(path))
    except (OSError, SafetensorError) as error:
        raise WeightsError(
            f"the weights of {arch} that come with the package cannot be read", subject=arch, remedy="install the package again"
        ) from error
    return detector
