"""Model versions as files: `models/<camera>/<version>/{model.safetensors, manifest.json}`.

`save_version` fills a folder that the caller moves to its name in one rename (`edge.store.folder.DataFolder.new_version`), so a
version is there whole or not at all. The manifest holds the weights' SHA-256 and is written last; `load_version` verifies it. No
database here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from pydantic import TypeAdapter

from configs.errors import WeightsError
from configs.files import atomic_write, fsync_path, sha256_of
from models.detector import DetectorSpec
from scheduler.types import RetrainConfig, Signature, Traits

MODEL_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is known of a version. config: the retraining that made it from `parent` (None: a camera's first model), for gpu_s
    GPU-seconds. window and samples: the labelled data it was trained on; traits and signature: what that window looked like.
    quality: measures on held-out labels by name (0-1), written when they are known. origin: where it comes from when not from a
    retraining of its own camera ('import', 'copy', 'group', 'prune' and 'average', with what belongs to it)."""

    id: str
    stream: str
    parent: str | None
    spec: DetectorSpec
    config: RetrainConfig | None
    window: int | None
    created_utc: float
    samples: tuple[str, ...] = ()
    quality: Mapping[str, float] = field(default_factory=dict)
    sha256: str = ""
    gpu_s: float | None = None
    traits: Traits | None = None
    signature: Signature | None = None
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedVersion:
    manifest: Manifest
    state: dict[str, torch.Tensor]


def version_id(stream: str, existing: Iterable[str], *, kind: str = "") -> str:
    """The id after all of `existing`: 'cam1' with 'cam1-000002' -> 'cam1-000003'. Ids of other streams do not count. kind: letters
    before the number; numbers of each kind are counted apart, so that a command beside a running box never takes the box's next
    id ('cam1-x000001')."""
    pattern = re.compile(re.escape(f"{stream}-{kind}") + r"(\d+)")
    numbers = [int(match[1]) for id in existing if (match := pattern.fullmatch(id))]
    return f"{stream}-{kind}{max(numbers, default=0) + 1:06d}"


def save_version(folder: Path, manifest: Manifest, state: Mapping[str, torch.Tensor]) -> str:
    """Writes weights, then the manifest with their SHA-256 (returned), into an existing folder; both have reached the disk.
    OSError passes through: the owner of the folder says what a full disk means."""
    weights = folder / MODEL_FILE
    meta = {"arch": manifest.spec.arch, "input_px": str(manifest.spec.input_px), "version": manifest.id}
    weights.write_bytes(safetensors.torch.save(dict(state), metadata=meta))
    fsync_path(weights)
    digest = sha256_of(weights)
    (folder / MANIFEST_FILE).write_text(_text(_as_json(manifest, digest)), encoding="utf-8")
    fsync_path(folder / MANIFEST_FILE)
    fsync_path(folder)
    return digest


def note_quality(folder: Path, quality: Mapping[str, float]) -> None:
    """Adds measures to a version's manifest, whole or not at all. Raises WeightsError (no readable manifest) or StorageError."""
    manifest = read_manifest(folder)
    data = _as_json(manifest, manifest.sha256)
    data["quality"] = {**manifest.quality, **quality}
    atomic_write(folder / MANIFEST_FILE, _text(data).encode())


def load_version(folder: Path) -> LoadedVersion:
    """Manifest and verified weights. Raises WeightsError when anything is missing, half written or changed since."""
    manifest = read_manifest(folder)
    weights = folder / MODEL_FILE
    try:
        data = weights.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest != manifest.sha256:
            raise _damaged(folder, f"its weights have SHA-256 {digest[:12]}, its manifest says {manifest.sha256[:12]}")
        # Not load_file: in safetensors 0.8.0 each call leaves the names of all tensors behind (6 KB for a nano detector), and a box
        # that runs for a year loads models all the time.
        return LoadedVersion(manifest=manifest, state=safetensors.torch.load(data))
    except (OSError, safetensors.SafetensorError) as error:
        raise _damaged(folder, "its weights cannot be read") from error


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone, weights not looked at. Raises WeightsError when it is missing or not one of ours."""
    try:
        data = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        return _from_json(data)
    except OSError as error:
        raise _damaged(folder, "its manifest is missing") from error
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(folder, "its manifest is not readable") from error


def manifest_of(data: bytes) -> Manifest:
    """A manifest from its file's content. Raises ValueError, TypeError or KeyError when it is none, ValueError 'written by a newer
    Driftbox' when it is of a later schema."""
    return _from_json(json.loads(data))


def not_finite(state: Mapping[str, torch.Tensor]) -> str | None:
    """The name of the first tensor that holds a NaN or an infinity; None: all are finite."""
    return next((name for name, tensor in state.items() if not bool(tensor.isfinite().all())), None)


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _as_json(manifest: Manifest, sha256: str) -> dict[str, Any]:
    data = asdict(manifest)
    spec = data.pop("spec")
    if data["signature"] is not None:
        del data["signature"]["view"]  # told apart while the box runs (`scheduler.scenes`); older boxes do not know it
    return {
        **data,
        "schema": SCHEMA,
        "arch": spec["arch"],
        "input_px": spec["input_px"],
        "pruned": spec["pruned"],
        "sha256": sha256,
    }


def _from_json(data: dict[str, Any]) -> Manifest:
    if not isinstance(data, dict):
        raise ValueError("not an object")
    if data["schema"] > SCHEMA:
        raise ValueError("written by a newer Driftbox")
    needed = ("id", "stream", "parent", "window", "created_utc", "sha256")
    return Manifest(
        spec=DetectorSpec(arch=str(data["arch"]), input_px=int(data["input_px"]), pruned=bool(data.get("pruned", False))),
        config=_optional(RetrainConfig, data["config"]),
        samples=tuple(data.get("samples", ())),
        quality=dict(data.get("quality", {})),
        gpu_s=data.get("gpu_s"),
        traits=_optional(Traits, data.get("traits")),
        signature=_optional(Signature, data.get("signature")),
        origin=dict(data.get("origin", {})),
        **{name: data[name] for name in needed},
    )


def _optional(kind: Any, data: dict[str, Any] | None) -> Any:
    """A small type of `scheduler.types` from its JSON; what it does not know is left out."""
    return None if data is None else TypeAdapter(kind).validate_python(data)


def _damaged(folder: Path, why: str) -> WeightsError:
    return WeightsError(
        f"model version {folder.name} is damaged: {why}",
        subject=folder.name,
        remedy="roll the camera back to another version (driftbox models rollback)",
    )
