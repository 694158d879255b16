"""Third parties' checkpoints (`.pt`, `.pth`) become safetensors, without running anything they contain.

A pickle can call any function it names. Ours is read ONCE with torch's restricted unpickler, and the classes that a detector's
checkpoint names are not given to it either: an allow-list maps each name to an inert stand-in that only collects attributes.
So no code of the file, of ultralytics or of a look-alike package runs, nothing is imported by name (a YOLOv5 checkpoint
naming a top-level `models` package would otherwise find ours), and reading needs no ultralytics. Parameters and buffers are
then gathered from the stand-ins in the order torch would, and written as safetensors to the cache, beside their SHA-256; from
then on only that is read.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from configs.errors import WeightsError
from configs.files import sha256_of
from models.weights import CACHE_VARIABLE, cache_dir


class _Node:
    """Stand-in for a module of a checkpoint: the unpickler fills its `__dict__`, nothing else happens."""


#: Every class that an allowed checkpoint may name, besides tensors and plain containers. All become `_Node`.
ALLOWED: tuple[str, ...] = (
    "torch.nn.modules.activation.SiLU",
    "torch.nn.modules.batchnorm.BatchNorm2d",
    "torch.nn.modules.container.ModuleList",
    "torch.nn.modules.container.Sequential",
    "torch.nn.modules.conv.Conv2d",
    "torch.nn.modules.linear.Identity",
    "torch.nn.modules.padding.ZeroPad2d",
    "torch.nn.modules.pooling.MaxPool2d",
    "torch.nn.modules.upsampling.Upsample",
    "ultralytics.nn.modules.block.Attention",
    "ultralytics.nn.modules.block.Bottleneck",
    "ultralytics.nn.modules.block.C2PSA",
    "ultralytics.nn.modules.block.C2f",
    "ultralytics.nn.modules.block.C3k",
    "ultralytics.nn.modules.block.C3k2",
    "ultralytics.nn.modules.block.DFL",
    "ultralytics.nn.modules.block.PSABlock",
    "ultralytics.nn.modules.block.SPPF",
    "ultralytics.nn.modules.conv.Concat",
    "ultralytics.nn.modules.conv.Conv",
    "ultralytics.nn.modules.conv.DWConv",
    "ultralytics.nn.modules.head.Detect",
    "ultralytics.nn.tasks.DetectionModel",
)

#: What a truncated or foreign file makes the reader raise; it differs from file to file.
_READER_ERRORS = (RuntimeError, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError)

# torch keeps its allow-list per process, so two readers take turns.
_reading = threading.Lock()


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """What is kept of a checkpoint. state: float32 and integer tensors under torch's state-dict names; meta: text about it
    (`arch` such as 'yolov8n' if the file tells, `names`: JSON list of class names, `source_sha256`)."""

    state: dict[str, torch.Tensor]
    meta: dict[str, str]


def read_checkpoint(path: Path) -> Checkpoint:
    """The weights in a `.pt`, `.pth` or `.safetensors` file. A pickle is converted once (see the module's text), the copy is
    checked against its own SHA-256 and made again when it was damaged. Raises WeightsError, naming the file and what to do."""
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    digest = sha256_of(path)
    kept = cache_dir() / "converted" / f"{digest}.safetensors"
    if not _is_intact(kept):
        _keep(restricted_load(path, source_sha256=digest), kept)
    return read_safetensors(kept)


def read_safetensors(path: Path) -> Checkpoint:
    """A safetensors file with its metadata. Raises WeightsError when it is not one."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            return Checkpoint(state={name: file.get_tensor(name) for name in file.keys()}, meta=dict(file.metadata() or {}))  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise _unreadable(path, "not a whole safetensors file") from error


def restricted_load(path: Path, *, source_sha256: str = "") -> Checkpoint:
    """Reads a pickle of tensors, plain containers and the `ALLOWED` classes; anything else raises WeightsError and has no
    effect."""
    try:
        with _reading, torch.serialization.safe_globals([(_Node, name) for name in ALLOWED]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _refused(path, error) from error
    except _READER_ERRORS as error:
        raise _unreadable(path, "not a whole torch checkpoint") from error
    return _gathered(content, path, source_sha256)


def _gathered(content: Any, path: Path, source_sha256: str) -> Checkpoint:
    meta = {"source_sha256": source_sha256} if source_sha256 else {}
    model = _model_of(content)
    if isinstance(model, _Node):
        state = dict(_tensors(model, prefix=""))
        meta |= _described(model)
    elif isinstance(model, Mapping) and all(isinstance(t, torch.Tensor) for t in model.values()):
        state = dict(model)
    else:
        raise _unreadable(path, "neither a detector nor a dictionary of tensors is in it")
    if not state:
        raise _unreadable(path, "it holds no tensors")
    return Checkpoint(state={name: _plain(t) for name, t in state.items()}, meta=meta)


def _model_of(content: Any) -> Any:
    """The moving average if the checkpoint has one (what the publisher evaluates), else the model, else the content itself."""
    if isinstance(content, dict) and "model" in content:
        return content.get("ema") or content["model"]
    return content


def _tensors(node: _Node, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, persistent buffers, then children: the order and names of `torch.nn.Module.state_dict`."""
    fields = node.__dict__
    transient = fields.get("_non_persistent_buffers_set") or ()
    for name, tensor in {**(fields.get("_parameters") or {}), **(fields.get("_buffers") or {})}.items():
        if isinstance(tensor, torch.Tensor) and name not in transient:
            yield prefix + name, tensor
    for name, child in (fields.get("_modules") or {}).items():
        if isinstance(child, _Node):
            yield from _tensors(child, prefix=f"{prefix}{name}.")


def _described(model: _Node) -> dict[str, str]:
    """Architecture and class names, where the checkpoint tells them."""
    yaml = model.__dict__.get("yaml") or {}
    names = model.__dict__.get("names") or {}
    file = str(yaml.get("yaml_file") or model.__dict__.get("yaml_file") or "")
    described = {}
    if match := re.fullmatch(r"(yolo[\w-]+)\.ya?ml", Path(file).name):
        described["arch"] = match[1]
    if isinstance(names, dict) and names:
        described["names"] = json.dumps([str(names[i]) for i in sorted(names)])
    return described


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """float32 or integer, dense, contiguous, its own memory (checkpoints hold half precision and shared storages)."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()


def _keep(checkpoint: Checkpoint, kept: Path) -> None:
    """Writes the copy and its SHA-256, each under a temporary name first."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
        safetensors.torch.save_file(checkpoint.state, str(part), metadata=checkpoint.meta)
        digest = sha256_of(part)
        part.replace(kept)
        part.write_text(digest + "\n")
        part.replace(_digest_file(kept))
    except (OSError, safetensors.SafetensorError) as error:
        raise WeightsError(
            f"cannot write converted weights to {kept.parent}",
            subject=str(kept.parent),
            remedy=f"make the folder writable, or name another one in {CACHE_VARIABLE}",
        ) from error


def _digest_file(kept: Path) -> Path:
    return kept.with_suffix(".safetensors.sha256")


def _is_intact(kept: Path) -> bool:
    try:
        return _digest_file(kept).read_text().strip() == sha256_of(kept)
    except OSError:
        return False


def _refused(path: Path, error: Exception) -> WeightsError:
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    what = f"it names {found[1]}, which is not on the allow-list" if found else "its pickle does more than hold a detector"
    return WeightsError(
        f"{path} was refused: {what}",
        subject=str(path),
        remedy="nothing in it was run; use a detection checkpoint of yolov8, yolo11 or yolo26, a state dict, or safetensors",
    )


def _unreadable(path: Path, why: str) -> WeightsError:
    remedy = "get the file again; it may be cut short or not be weights"
    return WeightsError(f"{path} cannot be read: {why}", subject=str(path), remedy=remedy)
