"""Model versions as files: `models/<camera>/<version>/{model.safetensors, manifest.json}`.

`save_version` fills a folder that the caller moves to its name in one rename (`edge.store.folder.DataFolder.new_version`) and
`write_version` does both for those without a data folder; so a version is there whole or not at all. The manifest holds the
weights' SHA-256 and is written last; `load_version` verifies it. No database here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from configs.errors import WeightsError
from configs.files import fsync_path, sha256_of
from models.detector import DetectorSpec
from scheduler.types import RetrainConfig

MODEL_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
SCHEMA = 1
_TEMPORARY = ".part-"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is known of a version. config: the retraining that made it from `parent` (None: a camera's first model).
    window and samples: the labelled data it was trained on. quality: measures on the held-out split by name (0-1)."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedVersion:
    manifest: Manifest
    state: dict[str, torch.Tensor]


def version_id(stream: str, existing: Iterable[str]) -> str:
    """The id after all of `existing`: 'cam1' with 'cam1-000002' -> 'cam1-000003'. Ids of other streams do not count."""
    pattern = re.compile(re.escape(stream) + r"-(\d+)")
    numbers = [int(match[1]) for id in existing if (match := pattern.fullmatch(id))]
    return f"{stream}-{max(numbers, default=0) + 1:06d}"


def save_version(folder: Path, manifest: Manifest, state: Mapping[str, torch.Tensor]) -> str:
    """Writes weights, then the manifest with their SHA-256 (returned), into an existing folder; both have reached the disk.
    OSError passes through: the owner of the folder says what a full disk means."""
    weights = folder / MODEL_FILE
    meta = {"arch": manifest.spec.arch, "input_px": str(manifest.spec.input_px), "version": manifest.id}
    weights.write_bytes(safetensors.torch.save(dict(state), metadata=meta))
    fsync_path(weights)
    digest = sha256_of(weights)
    text = json.dumps(_as_json(manifest, digest), indent=2, sort_keys=True)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")
    fsync_path(folder / MANIFEST_FILE)
    fsync_path(folder)
    return digest


def write_version(root: Path, manifest: Manifest, state: Mapping[str, torch.Tensor]) -> Path:
    """Writes `root/<stream>/<id>` under a temporary name and renames it. Raises ValueError when it is there already."""
    final = root / manifest.stream / manifest.id
    if final.exists():
        raise ValueError(f"version {manifest.id} of {manifest.stream} exists already")
    part = final.with_name(f"{_TEMPORARY}{os.getpid()}-{manifest.id}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        save_version(part, manifest, state)
        part.rename(final)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    fsync_path(final.parent)
    return final


def load_version(folder: Path) -> LoadedVersion:
    """Manifest and verified weights. Raises WeightsError when anything is missing, half written or changed since."""
    manifest = read_manifest(folder)
    weights = folder / MODEL_FILE
    try:
        digest = sha256_of(weights)
        if digest != manifest.sha256:
            raise _damaged(folder, f"its weights have SHA-256 {digest[:12]}, its manifest says {manifest.sha256[:12]}")
        return LoadedVersion(manifest=manifest, state=safetensors.torch.load_file(str(weights)))
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


def list_versions(root: Path, stream: str) -> list[Manifest]:
    """Manifests of a camera's complete versions, by id. Folders that are temporary, half written or damaged are left out."""
    found = []
    for folder in sorted((root / stream).glob("*")) if (root / stream).is_dir() else []:
        if folder.name.startswith(".") or not (folder / MODEL_FILE).is_file():
            continue
        try:
            manifest = read_manifest(folder)
        except WeightsError:
            continue
        if manifest.id == folder.name:
            found.append(manifest)
    return found


def lineage(versions: Iterable[Manifest], id: str) -> list[Manifest]:
    """A version and its ancestors, newest first, as far back as they are among `versions`. Raises KeyError for an unknown
    id."""
    by_id = {manifest.id: manifest for manifest in versions}
    line = [by_id[id]]
    while (parent := line[-1].parent) is not None and parent in by_id and by_id[parent] not in line:
        line.append(by_id[parent])
    return line


def _as_json(manifest: Manifest, sha256: str) -> dict[str, Any]:
    data = asdict(manifest)
    spec = data.pop("spec")
    return {**data, "schema": SCHEMA, "arch": spec["arch"], "input_px": spec["input_px"], "sha256": sha256}


def _from_json(data: dict[str, Any]) -> Manifest:
    if data["schema"] > SCHEMA:
        raise ValueError("written by a newer Driftbox")
    known = {f.name for f in fields(Manifest)} - {"spec", "config", "samples", "quality"}
    return Manifest(
        spec=DetectorSpec(arch=str(data["arch"]), input_px=int(data["input_px"])),
        config=RetrainConfig(**data["config"]) if data["config"] is not None else None,
        samples=tuple(data.get("samples", ())),
        quality=dict(data.get("quality", {})),
        **{name: data[name] for name in known},
    )


def _damaged(folder: Path, why: str) -> WeightsError:
    return WeightsError(
        f"model version {folder.name} is damaged: {why}",
        subject=folder.name,
        remedy="roll the camera back to another version (driftbox models rollback)",
    )
