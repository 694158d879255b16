"""`edge.models_view.ModelShelf` over a data folder, and over the box that runs on it.

Promotions and rollbacks go through the box's own control where there is one (`edge.control`); else they are written into the database
as `driftbox models` does, and a box that runs on the folder follows within a fraction of a second.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import UsageError, redact
from configs.files import TEMP_PREFIX, full
from edge import models_admin, models_exchange
from edge.control import BoxControl
from edge.models_view import (
    Difference,
    ImportedView,
    LiveQuality,
    ModelComparison,
    ModelList,
    ModelRow,
    ModelShown,
    ServedView,
)
from edge.store.store import Store, StoredModel

#: Measurements of a camera that are looked through for those of one version.
QUALITY_POINTS = 5000
_UNITS = {"gpu_s": "GPU-s", "data_frac": "part of the labels", "layers_frac": "part of the layers", "lr": "learning rate"}
_NOT_SHOWN = frozenset({"name"})


class BoxModels:
    """store: of the running box, or opened for it; control: None: none runs here."""

    def __init__(self, data_dir: Path, store: Store, control: BoxControl | None = None) -> None:
        self._data_dir, self._store, self._control = data_dir, store, control

    # --- read ---------------------------------------------------------------------------------------------------------

    def list(self, camera: str | None) -> ModelList:
        models = self._store.models(camera)
        if camera is not None and not models:
            raise UsageError(f"camera '{camera}' has no model", subject=camera, code="not_found", remedy="see the Models page")
        reasons = {m.version.id: m.reason for m in models}
        rows = models_admin.tree_rows(models)
        return ModelList(models=tuple(ModelRow(**row, reason=reasons.get(row["id"], "")) for row in rows))

    def show(self, version: str) -> ModelShown:
        told = models_admin.shown(self._store, self._data_dir, version)
        manifest = told.pop("manifest")
        told.pop("training")
        return ModelShown(
            **(told | {"lineage": tuple(told["lineage"])}), window=manifest.get("window"), samples=len(manifest.get("samples") or ()),
            config=_config(manifest), quality_on=_quality_on(told, manifest), live=self._live(told["camera"], version),
        )  # fmt: skip

    def compare(self, first: str, second: str) -> ModelComparison:
        one, other = self.show(first), self.show(second)
        ancestor, steps = common_ancestor(one.lineage, other.lineage)
        return ModelComparison(
            first=one, second=other, same_camera=one.camera == other.camera, ancestor=ancestor, steps=steps,
            differences=differences(one, other), remark=_remark(one, other),
        )  # fmt: skip

    def _live(self, camera: str, version: str) -> LiveQuality:
        points = [p for p in self._store.quality(camera, limit=QUALITY_POINTS) if p.version == version]
        if not points:
            return LiveQuality()
        values = [p.value for p in points]
        return LiveQuality(
            points=len(points), mean=sum(values) / len(values), worst=min(values), first_utc=points[0].at_utc,
            last_utc=points[-1].at_utc,
        )  # fmt: skip

    # --- write --------------------------------------------------------------------------------------------------------

    def promote(self, version: str, *, force: bool, by: str) -> ServedView:
        camera = models_admin.find(self._store, version).version.stream
        if self._control is None:
            return _served(models_admin.promote(self._data_dir, version, force=force))
        return self._told(camera, "model/promote", {"version": version, "force": force}, by)

    def rollback(self, camera: str, version: str | None, *, by: str) -> ServedView:
        if camera not in self._store.serving():
            raise UsageError(f"camera '{camera}' has no serving model", subject=camera, code="not_found", remedy="")
        if self._control is None:
            return _served(models_admin.rollback(self._data_dir, camera, version))
        return self._told(camera, "model/rollback", {"camera": camera, "version": version}, by)

    def pin(self, version: str, *, pinned: bool) -> ModelRow:
        models_admin.pin(self._data_dir, version, pinned=pinned)
        return self._row(models_admin.find(self._store, version))

    def _told(self, camera: str, command: str, arguments: Mapping[str, Any], by: str) -> ServedView:
        """What the box did, in its own words where it has some, else as it stands afterwards."""
        assert self._control is not None
        before = self._serving(camera)
        told = self._control.do(command, arguments, by=by)
        slow = "it is still being loaded" if told.get("serves") is False else ""
        return ServedView(
            camera=camera, before=told.get("before", before), after=told.get("after") or self._serving(camera) or "",
            warning="; ".join(filter(None, (str(told.get("warning") or ""), slow))),
        )  # fmt: skip

    def _serving(self, camera: str) -> str | None:
        serving = self._store.serving(camera).get(camera)
        return serving.id if serving else None

    def _row(self, model: StoredModel) -> ModelRow:
        return ModelRow(**models_admin.row_of(model), reason=model.reason)

    # --- in and out ---------------------------------------------------------------------------------------------------

    def bundle(self, version: str) -> Path:
        file = self._new_file()
        try:
            models_exchange.export_model(self._data_dir, version, file)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        return file

    def upload(self) -> Path:
        return self._new_file()

    def take_in(self, file: Path, camera: str | None) -> ImportedView:
        told = models_exchange.import_model(self._data_dir, file, camera=camera)
        return ImportedView(version=told["version"], camera=told["camera"], signed_by=told["signed_by"], state=told["state"])

    def _new_file(self) -> Path:
        """A name that the next start removes, should this process end before."""
        folder = self._data_dir / "exports"
        free_mib = shutil.disk_usage(folder).free / 2**20
        if free_mib < models_exchange.SPARE_MIB:
            raise full(f"{folder} ({free_mib:.0f} MiB left)")
        return folder / f"{TEMP_PREFIX}{uuid.uuid4().hex}{models_exchange.SUFFIX}"


# --- pieces -----------------------------------------------------------------------------------------------------------


def common_ancestor(first: Sequence[str], second: Sequence[str]) -> tuple[str | None, int | None]:
    """Of two lineages, newest first: the newest version in both, and the retrainings on the way by it."""
    places = {version: number for number, version in enumerate(second)}
    for number, version in enumerate(first):
        if version in places:
            return version, number + places[version]
    return None, None


def differences(first: ModelShown, second: ModelShown) -> tuple[Difference, ...]:
    """What tells two versions apart, how they were made first."""
    pairs: dict[str, tuple[Any, Any]] = {
        "configuration": (first.config.get("name"), second.config.get("name")),
        **{
            key: (first.config.get(key), second.config.get(key))
            for key in dict.fromkeys((*first.config, *second.config))
            if key not in _NOT_SHOWN
        },
        "architecture": (first.arch, second.arch),
        "labels of window": (first.window, second.window),
        "pictures": (first.samples, second.samples),
        "gpu_s": (first.gpu_s, second.gpu_s),
    }
    return tuple(
        Difference(name=name, unit=_UNITS.get(name, ""), first=one, second=other)
        for name, (one, other) in pairs.items()
        if one != other
    )


def _config(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return dict(manifest.get("config") or {})


def _quality_on(told: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    if told["quality"] is None:
        return "never judged by a gate of this camera"
    window = manifest.get("window")
    if window is None:
        return "held-out labels of the window in which it was last judged"
    return f"held-out labels of the window in which it was made (it learned from window {window})"


def _remark(first: ModelShown, second: ModelShown) -> str:
    if first.camera != second.camera:
        return "They are of different cameras: their qualities do not compare."
    return (
        "Each quality was measured on the labels of its own time; an easier hour gives a higher number. To see both on the "
        "same pictures look at before and after."
    )


def _served(served: models_admin.Served) -> ServedView:
    return ServedView(camera=served.camera, before=served.before, after=served.after, warning=redact(served.warning))
