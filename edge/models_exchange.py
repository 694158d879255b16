"""Model versions that leave a data folder or come into it: signed bundles, copies from camera to camera, forms for other programs.

Whatever comes in is a *candidate* that the camera's own gate has to admit, unless the operator promotes it. All of it works beside a
running box: under the lock of the version folders, with ids of a kind that the box never gives.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.errors import UsageError
from configs.files import atomic_write, full, storage_errors
from edge.models_admin import PROMOTED, Served, check_files, find, opened
from edge.shelf import about
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store, StoredModel
from models.bundle import SUFFIX, read_bundle, write_bundle
from models.compress import export
from models.keys import KeyRing
from models.versions import Manifest, load_version, save_version, version_id
from models.zoo import new_detector
from scheduler.types import ModelVersion

#: Kind of id that commands give (`models.versions.version_id`): 'gate-x000001'.
OUTSIDE = "x"
#: Formats of an export; the first is our own.
FORMATS: tuple[str, ...] = ("bundle", *export.FORMATS)
#: Disk that stays free beside a version that comes in.
SPARE_MIB = 64


def export_model(data_dir: Path, version: str, out: Path | None, *, form: str = "bundle") -> dict[str, Any]:
    """Writes a version as a signed bundle, or its network for another program. Raises UsageError (unknown version or format, the file
    is there already), StorageError, WeightsError, EnvironmentLacking (a library or a GPU is missing)."""
    if form not in FORMATS:
        raise UsageError(f"no format '{form}'", subject="format", remedy=f"known: {', '.join(FORMATS)}")
    with opened(data_dir) as (folder, store), folder.files_lock():
        model = find(store, version)
        check_files(folder, model)
        place = folder.version_dir(model.version.stream, version)
        target = _free(out or folder.exports_dir / f"{version}{_suffix(form)}")
        if form != "bundle":
            return {"version": version, "format": form, "file": str(_write_form(place, target, form))}
        signer = KeyRing(data_dir).signer()
        write_bundle(place, target, signer)
    from models.keys import fingerprint

    return {"version": version, "format": form, "file": str(target), "signed_by": fingerprint(signer.public)}


def import_model(
    data_dir: Path, file: Path, *, camera: str | None = None, promote: bool = False, allow_unsigned: bool = False,
    more_origin: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Takes a bundle in as a candidate of `camera` (None: the camera it was made for). more_origin: what else is to be kept of where it
    came from. Raises UsageError, WeightsError (every check of
    `models.bundle`), StorageError."""
    bundle = read_bundle(file, trusts=KeyRing(data_dir).trusts, allow_unsigned=allow_unsigned)
    manifest = bundle.manifest
    with opened(data_dir) as (folder, store):
        target = _camera_for(store, camera or manifest.stream, manifest.spec.arch, said=camera is not None)
        require_room(folder, file.stat().st_size)
        origin = {
            "kind": "import", "version": manifest.id, "camera": manifest.stream, "signed_by": bundle.signed_by,
            "quality_there": ", ".join(f"{name} {value:.3f}" for name, value in manifest.quality.items()), **(more_origin or {}),
        }  # fmt: skip
        taken = take_in(folder, store, target, manifest, origin, lambda part, new: save_version(part, new, bundle.state))
        served = _promote(store, taken.id) if promote else None
    return {
        "version": taken.id, "camera": target, "signed_by": bundle.signed_by or None,
        "state": str(ModelState.SERVING if served else ModelState.CANDIDATE), "warning": served.warning if served else "",
    }  # fmt: skip


def copy_to_camera(data_dir: Path, version: str, camera: str, *, force: bool = False) -> Served:
    """A version of one camera, copied to another of the same architecture, serves there. force: also one that no gate has admitted
    anywhere. Raises UsageError, StorageError."""
    with opened(data_dir) as (folder, store):
        model = find(store, version)
        _check_may_be_copied(model, force)
        with folder.files_lock():
            check_files(folder, model)
            place = folder.version_dir(model.version.stream, version)
            loaded = load_version(place)
        target = _camera_for(store, camera, loaded.manifest.spec.arch, said=True)
        origin = {"kind": "copy", "version": version, "camera": model.version.stream}
        taken = take_in(folder, store, target, loaded.manifest, origin, lambda part, new: save_version(part, new, loaded.state))
        return _promote(store, taken.id)


# --- inside -------------------------------------------------------------------------------------------------------------


def take_in(
    folder: DataFolder, store: Store, camera: str, manifest: Manifest, origin: Mapping[str, str],
    save: Callable[[Path, Manifest], str], *, parent: str | None = None, offered: bool = True,
) -> ModelVersion:  # fmt: skip
    """Files first, then the row, as with the box's own; both under the lock, so that a box that starts meanwhile does not take the files
    for those of an unfinished admission. parent: the camera's version that it was made of; offered: to the camera's gate, else it waits
    until somebody promotes it."""
    with folder.files_lock():
        id = version_id(camera, [m.version.id for m in store.models(camera)], kind=OUTSIDE)
        new = replace(
            manifest, id=id, stream=camera, parent=parent, window=None, samples=(), quality={}, origin=dict(origin), sha256="",
            created_utc=time.time(),
        )  # fmt: skip
        with folder.new_version(camera, id) as part:
            sha256 = save(part, new)
        version = ModelVersion(id=id, stream=camera, parent=parent, arch=new.spec.arch, sha256=sha256)
        store.add_model(version, at_utc=new.created_utc, config={**about(new), "offered": offered})
        return version


def _promote(store: Store, version: str) -> Served:
    camera = store.model(version).version.stream
    before = store.serve(version, at_utc=time.time(), reason=f"{PROMOTED}, without a gate")
    warning = f"{version} was never measured on camera '{camera}'; watch its quality"
    return Served(camera=camera, before=before, after=version, warning=warning)


def _camera_for(store: Store, camera: str, arch: str, *, said: bool) -> str:
    """`camera`, when the box has it and it runs this architecture."""
    serving = store.serving()
    if camera not in serving:
        known = ", ".join(sorted(serving)) or "none"
        what = f"camera '{camera}' has no serving model here" if said else f"it was made for a camera '{camera}'"
        raise UsageError(what, subject=camera, remedy=f"name one with --camera: {known}")
    if serving[camera].arch != arch:
        raise UsageError(
            f"it is a {arch}, and camera '{camera}' runs {serving[camera].arch}", subject=camera,
            remedy="choose a camera that runs the same architecture",
        )  # fmt: skip
    return camera


def _check_may_be_copied(model: StoredModel, force: bool) -> None:
    version = model.version.id
    if model.state is ModelState.REJECTED:
        raise UsageError(f"{version} was rejected: {model.reason}", subject=version, remedy="choose another version")
    if model.state is ModelState.CANDIDATE and not force:
        raise UsageError(f"{version} was never admitted anywhere", subject=version, remedy="--force serves it all the same")


def require_room(folder: DataFolder, size: int) -> None:
    wanted_mib = size / 2**20 + SPARE_MIB
    if folder.free_mib() < wanted_mib:
        raise full(f"{folder.root} ({folder.free_mib():.0f} MiB left, {wanted_mib:.0f} MiB wanted)")


def _free(path: Path) -> Path:
    """`path`, when nothing would be overwritten and its folder is there."""
    if path.exists():
        raise UsageError(f"{path} is there already", subject=str(path), remedy="remove it, or choose another name with --out")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", subject=str(path.parent), remedy="make it first")
    return path


def _suffix(form: str) -> str:
    return {"bundle": SUFFIX, "onnx": ".onnx"}.get(form, f"-{form}")


def _write_form(place: Path, out: Path, form: str) -> Path:
    """The network alone, for a picture of the camera's shape; boxes are decoded from its outputs as in `models.detector.ServedBody`."""
    loaded = load_version(place)
    done = export.exported(new_detector(loaded.manifest.spec, state=loaded.state).body(), form)
    if form == "onnx":
        [content] = done.files.values()
        atomic_write(out, content)
        return out
    with storage_errors(out):
        out.mkdir()
        try:
            for name, data in done.files.items():
                atomic_write(out / name, data)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
    return out
