"""Model versions as files: `model.safetensors` and `manifest.json` in one folder per version.

Writing the folder as a whole (temporary name, fsync, rename) and the database rows are `edge.store`'s; this module knows what is
in it. Weights are safetensors, never pickles, and are checked against the manifest's SHA-256 whenever they are read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from configs.errors import WeightsError
from models.detector import DetectorSpec
from scheduler.types import RetrainConfig

WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
_NUMBER = re.compile(r"-(\d{6,})$")
_REMEDY = "roll back with 'driftbox models rollback', or delete the version's folder"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """How a version came to be. parent: version it was retrained from, None for a camera's first; config, window: the retraining
    and the window whose labels it learned from; quality: on held-out labels, by name of the measure."""

    id: str
    stream: str
    parent: str | None
    spec: DetectorSpec
    created_utc: float
    config: RetrainConfig | None = None
    window: int | None = None
    quality: Mapping[str, float] | None = None
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class LoadedVersion:
    manifest: Manifest
    state: dict[str, torch.Tensor]


def version_id(stream: str, existing: Iterable[str]) -> str:
    """The next id of a camera: 'gate-000001', 'gate-000002', ..."""
    numbers = [int(found[1]) for id in existing if id.startswith(f"{stream}-") and (found := _NUMBER.search(id))]
    return f"{stream}-{max(numbers, default=0) + 1:06d}"


def save_version(folder: Path, manifest: Manifest, state: Mapping[str, torch.Tensor]) -> str:
    """Writes both files into `folder`, which exists and is nobody else's yet. Returns the SHA-256 of the weights."""
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
    sha256 = hashlib.sha256(data).hexdigest()
    body = {**asdict(manifest), "arch": manifest.spec.arch, "input_px": manifest.spec.input_px, "sha256": sha256}
    del body["spec"]
    (folder / WEIGHTS).write_bytes(data)
    (folder / MANIFEST).write_text(json.dumps(body, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return sha256


def load_manifest(folder: Path) -> Manifest:
    """Raises WeightsError naming the version when the manifest is missing or damaged."""
    try:
        body: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        spec = DetectorSpec(arch=body.pop("arch"), input_px=body.pop("input_px"))
        config = body.pop("config")
        return Manifest(**body, spec=spec, config=RetrainConfig(**config) if config else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"the manifest of model {folder.name} cannot be read: {type(error).__name__}"
        raise WeightsError(text, subject=folder.name, remedy=_REMEDY) from error


def load_version(folder: Path) -> LoadedVersion:
    """Reads a version and checks its weights. Raises WeightsError when anything is missing, cut short or changed."""
    manifest = load_manifest(folder)
    try:
        data = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        text = f"the weights of model {folder.name} cannot be read: {error.strerror}"
        raise WeightsError(text, subject=folder.name, remedy=_REMEDY) from error
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        text = f"the weights of model {folder.name} do not have the checksum of their manifest"
        raise WeightsError(text, subject=folder.name, remedy=_REMEDY)
    try:
        return LoadedVersion(manifest=manifest, state=load(data))
    except SafetensorError as error:
        text = f"the weights of model {folder.name} are no safetensors: {error}"
        raise WeightsError(text, subject=folder.name, remedy=_REMEDY) from error
