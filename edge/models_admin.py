"""`driftbox models ...` on a data folder: lists its versions and their lineage, lets one serve, pins. A box that runs on it follows.

Only the database is written here; files are copied in and out by `edge.models_exchange`. Loads no torch, so that it answers at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from configs.errors import StorageError, UsageError
from configs.files import corrupt, storage_errors
from edge.store.folder import MANIFEST, DataFolder, check_version
from edge.store.store import ModelState, Store, StoredModel

DATABASE = "driftbox.db"
ROLLED_BACK = "rolled back by the operator"
PROMOTED = "promoted by the operator"
#: What reasons of versions begin with that serve because a newer one was no good.
WENT_BACK = ("rolled back", "rollback", "put back")


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a promotion or rollback changed. warning: what the operator should know, '' for nothing."""

    camera: str
    before: str | None
    after: str
    warning: str = ""


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


@contextmanager
def opened(data_dir: Path) -> Iterator[tuple[DataFolder, Store]]:
    """Folder and database, beside a box that may run on them."""
    with open_store(data_dir) as store:
        yield DataFolder(data_dir, beside=True), store


def list_models(data_dir: Path, camera: str | None = None) -> list[dict[str, Any]]:
    """One row per version, oldest first."""
    with open_store(data_dir) as store:
        return [row_of(model) for model in store.models(camera)]


def tree_of(data_dir: Path, camera: str | None = None) -> list[dict[str, Any]]:
    """The same rows, each camera's in the order of their lineage (`tree_rows`)."""
    with open_store(data_dir) as store:
        return tree_rows(store.models(camera))


def tree_rows(models: Sequence[StoredModel]) -> list[dict[str, Any]]:
    """One row per version, each camera's in the order of their lineage: a version before what was made from it. `depth` counts the
    branches on the way to it; the line that leads to the serving version has none."""
    cameras = dict.fromkeys(m.version.stream for m in models)
    return [row for name in sorted(cameras) for row in _tree([m for m in models if m.version.stream == name])]


def show_model(data_dir: Path, version: str) -> dict[str, Any]:
    """Everything known of one version, its lineage, manifest and files included. Raises UsageError for an unknown one, StorageError for
    a manifest that cannot be read."""
    with open_store(data_dir) as store:
        return shown(store, data_dir, version)


def shown(store: Store, data_dir: Path, version: str) -> dict[str, Any]:
    """`show_model` over an open database."""
    model = find(store, version)
    line = lineage(store.models(model.version.stream), version)
    replaced = store.replaced(model.version.stream) if model.state is ModelState.SERVING else None
    folder = data_dir / "models" / model.version.stream / model.version.id
    with storage_errors(folder):
        sizes = {path.name: f"{path.stat().st_size} bytes" for path in sorted(folder.glob("*"))}
    return {
        **row_of(model),
        "reason": model.reason,
        "replaced": replaced,
        "lineage": [m.version.id for m in line],
        "sha256": model.version.sha256,
        "training": model.config,
        "manifest": _manifest(folder / MANIFEST),
        "files": sizes,
    }


def _manifest(path: Path) -> dict[str, Any]:
    """{}: the files are gone."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise corrupt(str(path), "its manifest cannot be read") from error
    if not isinstance(found, dict):
        raise corrupt(str(path), "its manifest is no object")
    return found


def lineage(models: Sequence[StoredModel], version: str) -> list[StoredModel]:
    """A version and its ancestors, newest first, as far back as they are recorded. Raises KeyError for an unknown one."""
    by_id = {m.version.id: m for m in models}
    line = [by_id[version]]
    while (parent := line[-1].version.parent) in by_id and by_id[parent] not in line:
        line.append(by_id[parent])
    return line


def rollback(data_dir: Path, camera: str, version: str | None = None) -> Served:
    """Makes `version` (None: what the serving one replaced, or after a rollback what it was made from) serve. Raises UsageError when
    there is no such version or nothing to go back to. A running box swaps within a second; a stopped one begins with it."""
    with opened(data_dir) as (folder, store):
        serving = _serving(store, camera)
        target = find(store, version or _before(store, camera))
        _check_admitted(target, camera)
        return _serve(folder, store, target, before=serving, reason=ROLLED_BACK)


def promote(data_dir: Path, version: str, *, force: bool = False) -> Served:
    """Makes a version serve its own camera. force: also one that the camera's gate has never admitted, which is then said.
    Raises UsageError as `rollback` does."""
    with opened(data_dir) as (folder, store):
        target = find(store, version)
        camera = target.version.stream
        admitted = target.state is not ModelState.CANDIDATE
        if not (force and target.state is ModelState.CANDIDATE):
            _check_admitted(target, camera)
        before = store.serving(camera).get(camera)
        warning = "" if admitted else f"{version} was never measured against the serving model of '{camera}'; watch its quality"
        reason = PROMOTED if admitted else f"{PROMOTED}, without a gate"
        return _serve(folder, store, target, before=before.id if before else None, reason=reason, warning=warning)


def pin(data_dir: Path, version: str, *, pinned: bool) -> None:
    """Keeps a version's files whatever retention says, or leaves them to it again. Raises UsageError."""
    with opened(data_dir) as (folder, store):
        model = find(store, version)
        if pinned and not folder.version_dir(model.version.stream, version).is_dir():
            raise _gone(version)
        store.pin(version, pinned)


def find(store: Store, version: str) -> StoredModel:
    """Raises UsageError for an unknown version."""
    try:
        return store.model(version)
    except KeyError:
        raise UsageError(
            f"no model version '{version}'", subject=version, code="not_found", remedy="see `driftbox models list`"
        ) from None


def check_files(folder: DataFolder, model: StoredModel) -> None:
    """Raises StorageError when the files of a version are gone or damaged."""
    version = model.version
    place = folder.version_dir(version.stream, version.id)
    if not place.is_dir():
        raise _gone(version.id)
    problem = check_version(place, True)
    if problem is not None:
        raise StorageError(
            f"{version.id} is damaged: {problem}", subject=version.id, code="corrupt", remedy="choose another version"
        )


def row_of(model: StoredModel) -> dict[str, Any]:
    version = model.version
    return {
        "camera": version.stream,
        "id": version.id,
        "state": str(model.state),
        "quality": version.quality,
        "gpu_s": model.config.get("gpu_s"),
        "parent": version.parent,
        "pinned": model.pinned,
        "arch": version.arch,
        "origin": origin_in_words(model.origin),
        "created": datetime.fromtimestamp(model.created_utc, UTC).isoformat(timespec="seconds"),
    }


def origin_in_words(origin: Mapping[str, Any]) -> str:
    """Where a version comes from when it was not made by a retraining of its camera."""
    kind = origin.get("kind", "")
    if kind == "group":
        return f"trained together: {origin.get('cameras', '')}"
    if kind == "average":
        return f"mean of {origin.get('of', '')}"
    if kind in ("import", "copy"):
        return f"{kind} of {origin.get('version', '?')}"
    return kind


def _serve(
    folder: DataFolder, store: Store, target: StoredModel, *, before: str | None, reason: str, warning: str = ""
) -> Served:  # fmt: skip
    check_files(folder, target)
    version = target.version
    try:
        store.serve(version.id, at_utc=time.time(), reason=reason)
    except ValueError as error:  # the box rejected it a moment ago
        raise UsageError(str(error), subject=version.id, remedy="choose another version") from error
    return Served(camera=version.stream, before=before, after=version.id, warning=warning)


def _serving(store: Store, camera: str) -> str:
    serving = store.serving().get(camera)
    if serving is None:
        known = ", ".join(sorted(store.serving())) or "none"
        raise UsageError(f"camera '{camera}' has no serving model", subject=camera, remedy=f"cameras with one: {known}")
    return serving.id


def _before(store: Store, camera: str) -> str:
    serving = store.model(_serving(store, camera))
    # Going back twice goes further back, and not to and fro.
    replaced = None if serving.reason.startswith(WENT_BACK) else store.replaced(camera)
    target = replaced or serving.version.parent
    if target is None:
        raise UsageError(
            f"camera '{camera}' still has its first model", subject=camera, remedy="there is nothing to go back to"
        )
    return target


def _check_admitted(model: StoredModel, camera: str) -> None:
    if model.version.stream != camera:
        raise UsageError(
            f"{model.version.id} is a model of camera '{model.version.stream}'",
            subject=model.version.id,
            remedy=f"see `driftbox models list --camera {camera}`, or copy it with `models promote --camera`",
        )
    if model.state is ModelState.CANDIDATE:
        raise UsageError(
            f"{model.version.id} was never admitted", subject=model.version.id,
            remedy="`driftbox models promote --force` serves it all the same",
        )  # fmt: skip
    if model.state is ModelState.REJECTED:
        why = f": {model.reason}" if model.reason else ""
        raise UsageError(
            f"{model.version.id} was rejected{why}", subject=model.version.id, remedy="choose a version that has served"
        )


def _gone(version: str) -> StorageError:
    return StorageError(f"the files of {version} are gone", subject=version, code="corrupt", remedy="choose another version")


# --- the tree -----------------------------------------------------------------------------------------------------------


def _tree(models: list[StoredModel]) -> list[dict[str, Any]]:
    """One camera's rows in the order of lineage, without recursion: a camera may have hundreds of generations."""
    known = {m.version.id for m in models}
    children: dict[str | None, list[StoredModel]] = {}
    for model in models:
        parent = model.version.parent
        children.setdefault(parent if parent in known and parent != model.version.id else None, []).append(model)
    serving = next((m.version.id for m in models if m.state is ModelState.SERVING), None)
    main = {m.version.id for m in lineage(models, serving)} if serving else set()
    rows: list[dict[str, Any]] = []
    stack = [(root, 0) for root in reversed(children.get(None, []))]
    while stack:
        model, depth = stack.pop()
        rows.append({**row_of(model), "depth": depth})
        below = children.get(model.version.id, [])
        line = next((m for m in below if m.version.id in main), below[-1] if below else None)
        # What goes on in line comes last and at the same depth; what branched off stands before it, one deeper.
        stack += [(m, depth + (m is not line)) for m in sorted(below, key=lambda m: m is not line)]
    return rows
