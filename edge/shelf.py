"""The models of every camera: which serves, how a retrained one is kept, admitted, rejected.

Files (`edge.store.folder`, `models.versions`) and database rows (`edge.store.store`) in one place, in the one order that a kill
cannot hurt: files complete first, then the row, then serving.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict

from pydantic import TypeAdapter

from configs.errors import StorageError, WeightsError
from edge.clock import Clock
from edge.status import ModelView
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store, StoredModel
from models.detector import Detector
from models.versions import Manifest, load_version, save_version, version_id
from models.zoo import load_detector, new_detector
from scheduler.types import CachedModel, ModelVersion, RetrainConfig, Traits

log = logging.getLogger("driftbox")

#: Retired versions kept per camera, beside those that serve or are being judged.
KEPT_VERSIONS = 20


class Shelf:
    """Thread-safe. Raises WeightsError for a damaged model, StorageError when it cannot be kept."""

    def __init__(self, folder: DataFolder, store: Store, clock: Clock) -> None:
        self._folder, self._store, self._clock = folder, store, clock
        self._lock = threading.Lock()

    def ensure(self, camera: str, model: str) -> ModelVersion:
        """The camera's serving version; its first one is made from `model` (a zoo name or weights path) when it has none, or when
        the configuration now names another architecture."""
        serving = self._store.serving(camera).get(camera)
        if serving is not None and self._same_arch(serving, model):
            return serving
        detector = load_detector(model)
        version = self._keep(camera, parent=None, detector=detector, config=None, window=None)
        self._store.serve(version.id, at_utc=self._clock.utc_s(), reason=f"first model, from {model}")
        return version

    def serving_version(self, camera: str) -> ModelVersion:
        return self._store.serving(camera)[camera]

    def detector(self, version: str) -> Detector:
        """A fresh detector with the version's weights, checked against their checksum."""
        stored = self._stored(version)
        loaded = load_version(self._folder.version_dir(stored.version.stream, version))
        return new_detector(loaded.manifest.spec, state=loaded.state)

    def keep_candidate(
        self, stream: str, *, parent: str, detector: Detector, config: RetrainConfig, window: int, traits: Traits | None = None
    ) -> ModelVersion:
        """Stores a retrained model that nobody has judged yet. traits: of the window it learned from."""
        return self._keep(stream, parent=parent, detector=detector, config=config, window=window, traits=traits)

    def cached(self, camera: str) -> tuple[CachedModel, ...]:
        """The camera's models that once served and whose window's looks are known, newest first."""
        kept = [m for m in self._store.models(camera) if m.state in (ModelState.SERVING, ModelState.RETIRED)]
        return tuple(
            CachedModel(name=m.version.id, traits=TypeAdapter(Traits).validate_python(m.config["traits"]))
            for m in reversed(kept)
            if m.config.get("traits")
        )

    def admit(self, stream: str, version: str, quality: float | None) -> None:
        """Makes a candidate (or an older version) serve, durably. ValueError: it was rejected meanwhile."""
        with self._lock:
            reason = "better on labels of its window" if quality is not None else "chosen for this window"
            self._store.serve(version, at_utc=self._clock.utc_s(), reason=reason, quality=quality)
            try:
                self._tidy(stream)
            except StorageError as error:  # it serves; old files can go another day
                log.warning("%s: old models are still there: %s", stream, error)

    def reject(self, stream: str, version: str, reason: str) -> None:
        """A candidate that will not serve; its row stays as a record, its files go. One that was admitted a moment before (the
        window ended while it was swapped in) is left serving."""
        with self._lock:
            if self._stored(version).state is not ModelState.CANDIDATE:
                return
            self._store.set_model_state(version, ModelState.REJECTED, reason=reason)
            self._folder.remove_version(stream, version)

    def views(self, *, limit: int) -> list[ModelView]:
        """Newest first, for pages."""
        return [
            ModelView(
                id=m.version.id, camera=m.version.stream, parent=m.version.parent, arch=m.version.arch,
                created_utc=m.created_utc, quality=m.version.quality, serving=m.state is ModelState.SERVING,
                admitted=m.state in (ModelState.SERVING, ModelState.RETIRED, ModelState.ADMITTED),
            )
            for m in reversed(self._store.models(newest=limit))
        ]  # fmt: skip

    def _keep(
        self, stream: str, *, parent: str | None, detector: Detector, config: RetrainConfig | None, window: int | None,
        traits: Traits | None = None,
    ) -> ModelVersion:  # fmt: skip
        with self._lock:
            now_utc = self._clock.utc_s()
            id = version_id(stream, [m.version.id for m in self._store.models(stream)])
            manifest = Manifest(
                id=id, stream=stream, parent=parent, spec=detector.spec, config=config, window=window, created_utc=now_utc
            )
            with self._folder.new_version(stream, id) as folder:
                sha256 = save_version(folder, manifest, detector.state())
            version = ModelVersion(id=id, stream=stream, parent=parent, arch=detector.spec.arch, sha256=sha256)
            about = {"config": config.name if config else None, "window": window, "traits": asdict(traits) if traits else None}
            self._store.add_model(version, at_utc=now_utc, config=about)
            return version

    def _tidy(self, stream: str) -> None:
        """Files of versions that nobody will ask for again; their rows stay."""
        old = [m.version.id for m in self._store.models(stream) if m.state is ModelState.RETIRED]
        for version in sorted(old)[:-KEPT_VERSIONS]:  # ids count up; the wall clock may have jumped
            self._store.set_model_state(version, ModelState.REJECTED, reason="old: files removed")
            self._folder.remove_version(stream, version)

    def _stored(self, version: str) -> StoredModel:
        return self._store.model(version)

    def _same_arch(self, serving: ModelVersion, model: str) -> bool:
        from models.zoo import ZOO, split_size

        arch, input_px = split_size(model)
        if arch not in ZOO:  # a weights file: its architecture is only known when it is read
            return True
        try:
            spec = load_version(self._folder.version_dir(serving.stream, serving.id)).manifest.spec
        except WeightsError:
            return False
        return spec.arch == arch and (input_px is None or spec.input_px == input_px)
