"""What the torch detectors share: letterboxing, checked states, frozen batch-norm, threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import cv2
import numpy as np
import torch
from torch import nn

from configs.errors import WeightsError
from models import torch_compat
from models.pixels import Levels, normalised
from scheduler.types import Detections

#: Grey that fills the border of a letterboxed picture (the value of the YOLO family).
BORDER = 114

T = TypeVar("T")
D = TypeVar("D")


@contextmanager
def torch_threads(n: int = 1) -> Iterator[None]:
    """Runs the body with `n` torch threads and restores the number. The number is the process's, not the thread's: call it once
    around a process's work (the box uses one thread per job), not around every call. Library code never calls it."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- pictures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Letterboxed:
    """image: uint8 (H, W, 3), both sides multiples of the stride. A point of the original is at point * scale + (left, top)."""

    image: np.ndarray
    scale: float
    left_px: int
    top_px: int
    width_px: int
    height_px: int

    def to_original(self, xyxy: np.ndarray) -> np.ndarray:
        """Boxes in the letterboxed picture -> float32 boxes in the original's pixels, cut at its border. (N, 4) -> (N, 4)."""
        shift = np.array([self.left_px, self.top_px, self.left_px, self.top_px], np.float32)
        limit = np.array([self.width_px, self.height_px, self.width_px, self.height_px], np.float32)
        return np.clip((xyxy.astype(np.float32) - shift) / np.float32(self.scale), 0, limit)

    def from_original(self, xyxy: np.ndarray) -> np.ndarray:
        """The inverse of `to_original`. (N, 4) -> float32 (N, 4)."""
        shift = np.array([self.left_px, self.top_px, self.left_px, self.top_px], np.float32)
        return xyxy.astype(np.float32) * np.float32(self.scale) + shift


def letterbox(image: np.ndarray, *, input_px: int, stride: int = 32, enlarge: bool = True) -> Letterboxed:
    """Scales the longer side to `input_px` and pads both sides evenly to the next multiple of `stride` (not to a square). enlarge=False:
    a smaller picture keeps its size."""
    height, width = image.shape[:2]
    scale = input_px / max(height, width)
    scale = scale if enlarge else min(1.0, scale)
    new_width, new_height = max(1, round(width * scale)), max(1, round(height * scale))
    if (new_width, new_height) != (width, height):
        image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    pad_x, pad_y = -new_width % stride, -new_height % stride
    left, top = pad_x // 2, pad_y // 2
    image = cv2.copyMakeBorder(image, top, pad_y - top, left, pad_x - left, cv2.BORDER_CONSTANT, value=(BORDER, BORDER, BORDER))
    return Letterboxed(image=image, scale=scale, left_px=left, top_px=top, width_px=width, height_px=height)


def to_tensor(images: Sequence[np.ndarray], device: torch.device) -> torch.Tensor:
    """uint8 (H, W, 3) pictures of one size -> float32 (B, 3, H, W), 0-1, on `device`; channels last in memory, as they came."""
    return normalised(torch.from_numpy(np.stack(images)).to(device), Levels())


def by_shape(images: Sequence[np.ndarray]) -> list[list[int]]:
    """Indices grouped by picture size, so that each group can be one batch; groups and members keep their order."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(image.shape, []).append(i)
    return list(groups.values())


def sorted_detections(xyxy: np.ndarray, score: np.ndarray, class_id: np.ndarray) -> Detections:
    """Detections by falling score, boxes without area dropped, dtypes as the type asks."""
    solid = (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    order = np.argsort(-score[solid], kind="stable")
    return Detections(
        xyxy=np.ascontiguousarray(xyxy[solid][order], np.float32),
        score=score[solid][order].astype(np.float32),
        class_id=class_id[solid][order].astype(np.int64),
    )


def suppressed_per_class(xyxy: np.ndarray, score: np.ndarray, class_id: np.ndarray, *, iou_max: float) -> np.ndarray:
    """Indices that survive suppression within their own class, best first. int64 (K,)"""
    torch_compat.ensure_torchvision()
    from torchvision.ops import nms  # only once it is mended

    if not len(xyxy):
        return np.zeros(0, np.int64)
    # Classes are moved apart, so that one pass suppresses within each class only.
    apart = xyxy + (class_id * (float(xyxy.max()) + 1.0)).astype(np.float32)[:, None]
    return nms(torch.from_numpy(apart), torch.from_numpy(score), iou_max).numpy()


def check_images(images: Sequence[np.ndarray]) -> None:
    """Raises ValueError for anything but uint8 (H, W, 3)."""
    for image in images:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(f"a detector takes uint8 (H, W, 3) RGB pictures, got {image.dtype} {image.shape}")


# --- states -----------------------------------------------------------------------------------------------------------


def cpu_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the module's state on the CPU, contiguous, as safetensors needs it."""
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in module.state_dict().items()}


def load_checked_state(module: nn.Module, state: dict[str, torch.Tensor], *, subject: str) -> None:
    """Loads `state`, converted to the module's dtypes. Raises WeightsError naming the first missing, extra or misshapen tensor,
    before anything is changed."""
    own = module.state_dict()
    problem = _first_difference(own, state)
    if problem:
        raise WeightsError(
            f"weights do not fit {subject}: {problem}", subject=subject, remedy="use the weights that were made for this model"
        )
    module.load_state_dict({name: state[name].to(own[name].dtype) for name in own})


def resize_to(module: nn.Module, state: dict[str, torch.Tensor], *, subject: str) -> None:
    """Makes convolutions and batch-norm layers as wide as the tensors of a pruned model's `state` are, their values to be loaded
    afterwards. Raises WeightsError for a state whose tensors cannot belong to these layers."""
    for name, layer in module.named_modules():
        weight = state.get(f"{name}.weight")
        if weight is None or not isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
            continue
        if (
            weight.ndim != layer.weight.ndim
            or weight.shape[2:] != layer.weight.shape[2:]
            or not 0 < len(weight) <= len(layer.weight)
        ):
            raise WeightsError(
                f"weights do not fit a pruned {subject}: tensor {name}.weight has shape {tuple(weight.shape)}", subject=subject,
                remedy="use the weights that were made for this model",
            )  # fmt: skip
        _resize(layer, weight)


def _resize(layer: nn.Conv2d | nn.BatchNorm2d, weight: torch.Tensor) -> None:
    n, device = len(weight), layer.weight.device
    layer.weight = nn.Parameter(torch.empty(weight.shape, device=device))
    if layer.bias is not None:
        layer.bias = nn.Parameter(torch.empty(n, device=device))
    if isinstance(layer, nn.BatchNorm2d):
        layer.num_features = n
        layer.running_mean, layer.running_var = torch.zeros(n, device=device), torch.ones(n, device=device)
        return
    depthwise = layer.groups > 1 and layer.groups == layer.in_channels
    layer.groups = n if depthwise else layer.groups
    layer.in_channels, layer.out_channels = weight.shape[1] * layer.groups, n


def _first_difference(own: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> str:
    for name, tensor in own.items():
        if name not in state:
            return f"tensor {name} is missing"
        if state[name].shape != tensor.shape:
            return f"tensor {name} has shape {tuple(state[name].shape)}, expected {tuple(tensor.shape)}"
    extra = [name for name in state if name not in own]
    return f"tensor {extra[0]} is not part of it" if extra else ""


# --- training ---------------------------------------------------------------------------------------------------------


def placed(module: nn.Module, device: torch.device) -> nn.Module:
    """The module on its device with channels last in memory: a tenth faster on a CPU, and no slower elsewhere."""
    return module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def train_with_frozen_batch_norm(module: nn.Module) -> None:
    """Training mode, except that batch-norm layers keep using and not updating their running statistics."""
    module.train()
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.eval()


def mean_per_image(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Mean of one scalar per image. Raises ValueError for an empty batch."""
    if not losses:
        raise ValueError("a training loss needs at least one image")
    return torch.stack(list(losses)).mean()


def check_teacher(student: D, teacher: object) -> D:
    """The teacher, known to be of the student's kind. Raises ValueError when it is not, or is the student itself."""
    if not isinstance(teacher, type(student)):
        raise ValueError(f"a {type(student).__name__} cannot imitate a {type(teacher).__name__}")
    if teacher is student:
        raise ValueError("a model cannot be its own teacher: give a copy of it")
    return teacher


def bernoulli_distance(logits: torch.Tensor, wanted_logits: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of independent yes-or-no answers from the wanted ones, element by element, not negative, 0 where the
    two agree. From logits, so that it stays finite however sure they are."""
    wanted = wanted_logits.sigmoid()
    own_yes, own_no = nn.functional.logsigmoid(logits), nn.functional.logsigmoid(-logits)
    yes, no = nn.functional.logsigmoid(wanted_logits), nn.functional.logsigmoid(-wanted_logits)
    return wanted * (yes - own_yes) + (1 - wanted) * (no - own_no)
