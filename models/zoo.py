"""The one table of models: name -> how it is built, and for which task. Also what turns a configured name into a model with weights.

A name is an arch of the table or the path of a weights file, optionally with the input size: `yolov8n`, `yolov8n@320`,
`/data/my.pt@480`. Heavy libraries are imported when a model that needs them is built, not before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from configs.errors import UsageError, WeightsError
from models import weights
from models.detector import Detector, DetectorSpec
from models.tinydet import SIZES as TINY_SIZES
from models.unpickle import Checkpoint, read_checkpoint

Role = Literal["edge", "golden"]
EDGE: Role = "edge"
GOLDEN: Role = "golden"
#: Tasks that a model can be for; a package's models may be for a task of its own (`register`).
DETECTION = "detection"
CLASSIFICATION = "classification"
State = dict[str, torch.Tensor]
#: build(spec, state or None for random weights, device, seed)
Builder = Callable[[DetectorSpec, State | None, str, int], Detector]


@dataclass(frozen=True, kw_only=True)
class ZooEntry:
    """role: what the size suits. input_px: default longer side. task: the one that its answers are for (a model of `classification`
    sees crops, not frames). bundled: weights come with Driftbox. resizable: other input sizes are allowed. halves: it halves a picture
    as often as the longer side stays at least the input's, before anything else, and may as well be given the half. weights: names of
    `models.weights` that hold its weights, best first; empty: its own name."""

    arch: str
    role: Role
    input_px: int
    build: Builder
    task: str = DETECTION
    bundled: bool = False
    resizable: bool = True
    halves: bool = False
    weights: tuple[str, ...] = ()


def _pruned_state(spec: DetectorSpec, state: State | None) -> State | None:
    """A pruned model's state, which says how wide its layers are; None for a model that is not pruned."""
    if spec.pruned and state is None:
        raise WeightsError(f"a pruned {spec.arch} cannot be built without its weights", subject=spec.arch)
    return state if spec.pruned else None


def _ultralytics(spec: DetectorSpec, state: State | None, device: str, seed: int) -> Detector:
    from models.ultralytics_detector import UltralyticsDetector

    return UltralyticsDetector(spec, state=state, device=device, seed=seed)


def _torchvision(spec: DetectorSpec, state: State | None, device: str, seed: int) -> Detector:
    from models.torchvision_detector import TorchvisionDetector

    return TorchvisionDetector(spec, state=state, device=device, seed=seed)


def _tinydet(spec: DetectorSpec, state: State | None, device: str, seed: int) -> Detector:
    from models.tinydet import TinyDetector

    detector = TinyDetector(spec.arch, seed=seed, pruned=_pruned_state(spec, state), device=device)
    if state is not None:
        detector.load_state(state)
    return detector


def _classifier(spec: DetectorSpec, state: State | None, device: str, seed: int) -> Detector:
    from models.classifier import Classifier

    return Classifier(spec, state=state, device=device, seed=seed, imagenet_head=ZOO[spec.arch].role == GOLDEN)


#: Side of the square that crops are scaled into: they are small, and a classifier's time grows with its square.
CROP_PX = 128
_CLASSIFIERS = (
    "resnet18",
    "mobilenetv2",
    *(f"mobilenetv2-{multiplier}" for multiplier in ("0.25", "0.35", "0.5", "0.75", "1.4")),
    *(f"shufflenetv2-{multiplier}" for multiplier in ("0.5", "1.0", "1.5", "2.0")),
    "efficientnet-lite0",
)


def _classifiers() -> list[ZooEntry]:
    also = {"mobilenetv2": ("mobilenetv2", "mobilenetv2-features")}
    edge = [
        ZooEntry(arch=arch, role=EDGE, input_px=CROP_PX, build=_classifier, task=CLASSIFICATION, weights=also.get(arch, ()))
        for arch in _CLASSIFIERS
    ]
    golden = ZooEntry(arch="resnext101_32x8d", role=GOLDEN, input_px=224, build=_classifier, task=CLASSIFICATION)
    return [*edge, golden]


def _entries() -> list[ZooEntry]:
    small = [
        ZooEntry(
            arch=arch, role=role, input_px=TINY_SIZES[arch].input_px, build=_tinydet, bundled=True, resizable=False, halves=True
        )
        for arch, role in (("tinydet-edge", EDGE), ("tinydet-golden", GOLDEN))
    ]
    yolo = [
        ZooEntry(arch=f"{family}{size}", role=role, input_px=input_px, build=_ultralytics)
        for family in ("yolov8", "yolo11", "yolo26")
        for sizes, role, input_px in (("ns", EDGE, 320), ("mlx", GOLDEN, 640))
        for size in sizes
    ]
    return [
        *small,
        *yolo,
        ZooEntry(arch="yolov3-tiny", role=EDGE, input_px=416, build=_ultralytics),
        ZooEntry(arch="ssdlite320", role=EDGE, input_px=320, build=_torchvision),
        ZooEntry(arch="fcos_resnet50_fpn", role=GOLDEN, input_px=800, build=_torchvision),
        ZooEntry(arch="retinanet_resnet50_fpn_v2", role=GOLDEN, input_px=800, build=_torchvision),
        *_classifiers(),
    ]


#: arch -> entry.
ZOO: dict[str, ZooEntry] = {entry.arch: entry for entry in _entries()}


def register(entry: ZooEntry) -> None:
    """Adds a package's own model to the table; called by the module that brings its task (docs/tasks.md), so that kept versions of it
    can be built again. Once more for the same entry does nothing. Raises UsageError when another model has the name."""
    if ZOO.setdefault(entry.arch, entry) != entry:
        raise UsageError(f"there is another model named {entry.arch!r}", subject=entry.arch, remedy="choose another name")


def is_known(arch: str) -> bool:
    """Whether the table has that name, once installed packages have added theirs."""
    if arch not in ZOO:
        from models.tasks.registry import meet_packages  # above us: tasks are made of models

        meet_packages()
    return arch in ZOO


def entry_of(arch: str) -> ZooEntry:
    """Raises UsageError listing the known names."""
    if not is_known(arch):
        raise UsageError(
            f"no detector named {arch!r}", subject=arch, remedy=f"known: {', '.join(ZOO)}; or the path of a weights file"
        )
    return ZOO[arch]


def is_classifier(arch: str) -> bool:
    """Whether a model of that arch answers about crops. Archs that the table does not know (test doubles) are detectors."""
    entry = ZOO.get(arch)
    return entry is not None and entry.task == CLASSIFICATION


def _fits_task(arch: str, task: str | None) -> None:
    if task is None or ZOO[arch].task == task:
        return
    known = ", ".join(entry.arch for entry in ZOO.values() if entry.task == task)
    raise UsageError(
        f"{arch} is a model for {ZOO[arch].task}, not for {task}", subject=arch, remedy=f"models for {task}: {known}"
    )


def split_size(name: str) -> tuple[str, int | None]:
    """'yolov8n@320' -> ('yolov8n', 320); without '@', no size. Raises UsageError for a size that is not 32-4096."""
    base, at, size = name.rpartition("@")
    if not at:
        return name, None
    if not size.isdigit():
        return name, None  # an '@' inside a path
    if not 32 <= int(size) <= 4096:
        raise UsageError(f"input size of {name!r} is out of range", subject=name, remedy="give 32 to 4096 pixels")
    return base, int(size)


def spec_of(arch: str, input_px: int | None = None) -> DetectorSpec:
    """The spec of a known arch. Raises UsageError for an unknown one, or a size that the arch cannot have."""
    entry = entry_of(arch)
    if input_px is not None and input_px != entry.input_px and not entry.resizable:
        raise UsageError(f"{arch} works at {entry.input_px} px only", subject=arch, remedy=f"write {arch} without @{input_px}")
    return DetectorSpec(arch=arch, input_px=input_px or entry.input_px)


def least_px(spec: DetectorSpec) -> int:
    """The longer side below which a picture must not be halved before a detector of this kind is shown it; 0: it wants all of it."""
    entry = ZOO.get(spec.arch)
    return spec.input_px if entry is not None and entry.halves else 0


def new_detector(spec: DetectorSpec, *, state: State | None = None, device: str = "cpu", seed: int = 0) -> Detector:
    """A detector with the weights `state`, or random ones from `seed`. Raises UsageError for an unknown arch, WeightsError when
    the state does not fit."""
    return entry_of(spec.arch).build(spec, state, device, seed)


def load_detector(
    name_or_path: str, input_px: int | None = None, device: str = "cpu", *, download: bool = True, task: str | None = None
) -> Detector:
    """A pretrained model by name or weights path. A size written in the name wins over `input_px`; `task`: what it must be for.
    Raises UsageError (unknown name, impossible size, a model of another task), WeightsError (weights missing, wrong, corrupt) or
    EnvironmentLacking (a library is missing)."""
    base, size = split_size(name_or_path)
    size = size or input_px
    if weights.is_path(base):
        return _from_file(weights.locate(base), size, device, task)
    spec = spec_of(base, size)
    _fits_task(base, task)
    if ZOO[base].bundled:
        return new_detector(spec, state=_bundled_state(base), device=device)
    checkpoint = read_checkpoint(weights.locate_any(ZOO[base].weights or (base,), download=download))
    return new_detector(spec, state=_checked(checkpoint, base, ZOO[base].task).state, device=device)


def _bundled_state(arch: str) -> State:
    from models.tinydet import bundled_weights

    return read_checkpoint(bundled_weights(arch)).state


#: Name in a publisher's checkpoint -> arch, where they differ.
_OTHER_NAMES = {"yolov3-tinyu": "yolov3-tiny"}


def _from_file(path: Path, input_px: int | None, device: str, task: str | None) -> Detector:
    """A weights file that says itself which model it is for, or an ImageNet classifier's, known by its tensors."""
    checkpoint = read_checkpoint(path)
    arch = checkpoint.meta.get("arch", "") or _recognised(checkpoint.state)
    arch = _OTHER_NAMES.get(arch, arch)
    if not is_known(arch):
        known = f"its arch {arch!r} is not known" if arch else "it does not say which detector it is for"
        raise WeightsError(
            f"{path} cannot be used: {known}",
            subject=str(path),
            remedy=f"use a checkpoint or safetensors (metadata 'arch') of one of {', '.join(ZOO)}",
        )
    _fits_task(arch, task)
    return new_detector(spec_of(arch, input_px), state=_checked(checkpoint, str(path), ZOO[arch].task).state, device=device)


def _recognised(state: State) -> str:
    from models.classifier_nets import arch_of

    return arch_of(state)


def _checked(checkpoint: Checkpoint, subject: str, task: str) -> Checkpoint:
    """Only heads with COCO's classes can be mapped to ours; a classifier's head says itself how many it has."""
    names = json.loads(checkpoint.meta.get("names", "[]"))
    if task == CLASSIFICATION:
        return checkpoint
    if names and (len(names) != 80 or names[0] != "person"):
        raise WeightsError(
            f"{subject} detects {len(names)} classes of its own; only COCO's 80 can be mapped",
            subject=subject,
            remedy="use weights trained on COCO",
        )
    return checkpoint
