"""`driftbox models ...`: lists a data folder's versions and puts an older one back; a box that runs on it follows."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from configs.errors import StorageError, UsageError
from edge.store.folder import MANIFEST
from edge.store.store import ModelState, Store, StoredModel

DATABASE = "driftbox.db"


def open_store(data_dir: Path) -> Store:
    """The database of a data folder that exists; never makes one. Raises StorageError."""
    path = data_dir / DATABASE
    if not path.is_file():
        raise StorageError(
            f"no box has run in {data_dir}",
            subject=str(data_dir),
            code="missing",
            remedy="name its folder with --data-dir or --config",
        )
    return Store(path)


def list_models(data_dir: Path, camera: str | None = None) -> list[dict[str, Any]]:
    """One row per version, oldest first."""
    with open_store(data_dir) as store:
        return [_row(model) for model in store.models(camera)]


def show_model(data_dir: Path, version: str) -> dict[str, Any]:
    """Everything known of one version, its manifest and its files included. Raises UsageError for an unknown one."""
    with open_store(data_dir) as store:
        model = _find(store, version)
    folder = data_dir / "models" / model.version.stream / model.version.id
    manifest = folder / MANIFEST
    return {
        **_row(model),
        "reason": model.reason,
        "sha256": model.version.sha256,
        "training": model.config,
        "manifest": json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {},
        "files": {path.name: f"{path.stat().st_size} bytes" for path in sorted(folder.glob("*"))},
    }


def rollback(data_dir: Path, camera: str, version: str | None = None) -> tuple[str | None, str]:
    """Makes `version` (None: the parent of the serving one) serve; (before, after). Raises UsageError when there is no such
    version or nothing to go back to. Only the database is written: a running box sees it within a second and swaps; a stopped
    one begins with it."""
    with open_store(data_dir) as store:
        serving = store.serving().get(camera)
        if serving is None:
            known = ", ".join(sorted(store.serving())) or "none"
            raise UsageError(f"camera '{camera}' has no serving model", subject=camera, remedy=f"cameras with one: {known}")
        target = _find(store, version) if version is not None else _before(store, serving.parent, camera)
        _may_serve(target, camera)
        if not (data_dir / "models" / camera / target.version.id).is_dir():
            raise StorageError(
                f"the files of {target.version.id} are gone",
                subject=target.version.id,
                code="corrupt",
                remedy="choose another version",
            )
        store.serve(target.version.id, at_utc=time.time(), reason="rolled back by the operator")
        return serving.id, target.version.id


def _before(store: Store, parent: str | None, camera: str) -> StoredModel:
    if parent is None:
        raise UsageError(
            f"camera '{camera}' still has its first model", subject=camera, remedy="there is nothing to go back to"
        )
    return _find(store, parent)


def _find(store: Store, version: str) -> StoredModel:
    try:
        return store.model(version)
    except KeyError:
        raise UsageError(f"no model version '{version}'", subject=version, remedy="see `driftbox models list`") from None


def _may_serve(model: StoredModel, camera: str) -> None:
    if model.version.stream != camera:
        raise UsageError(
            f"{model.version.id} is a model of camera '{model.version.stream}'",
            subject=model.version.id,
            remedy=f"see `driftbox models list --camera {camera}`",
        )
    if model.state in (ModelState.REJECTED, ModelState.CANDIDATE):
        reason = f": {model.reason}" if model.reason else ""
        raise UsageError(
            f"{model.version.id} was never admitted ({model.state}{reason})",
            subject=model.version.id,
            remedy="choose a version that has served",
        )


def _row(model: StoredModel) -> dict[str, Any]:
    version = model.version
    return {
        "camera": version.stream,
        "id": version.id,
        "state": str(model.state),
        "quality": version.quality,
        "parent": version.parent,
        "arch": version.arch,
        "created": datetime.fromtimestamp(model.created_utc, UTC).isoformat(timespec="seconds"),
    }
