"""The models of every camera: which serves, how a retrained one is kept, admitted, rejected.

Files (`edge.store.folder`, `models.versions`) and database rows (`edge.store.store`) in one place, in the one order that a kill
cannot hurt: files complete first, then the row, then serving.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from configs.errors import StorageError, WeightsError
from edge.clock import Clock
from edge.status import ModelView
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store, StoredModel
from models.averaging import averaged
from models.detector import Detector
from models.versions import Manifest, load_version, note_quality, save_version, version_id
from models.zoo import load_detector, new_detector
from scheduler.types import CachedModel, ModelVersion, RetrainConfig, Signature, Traits

log = logging.getLogger("driftbox")

#: Rows of versions whose files are gone that a camera keeps, as a record.
KEPT_ROWS = 500
DAY_S = 86_400.0
#: Origins of versions that only retrainings here separate from their parent. What came from outside begins a line of its own, and so
#: does what was pruned: its channels are others.
TRAINED_ON = ("", "group", "average")


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which files of models that served before stay: the newest keep_versions of each camera, none made more than keep_days ago.
    What serves, what it replaced, what it was made from and what is pinned stays in any case."""

    keep_versions: int = 20
    keep_days: float = 90.0


@dataclass(frozen=True, kw_only=True)
class Made:
    """How a retrained model came to be. samples: names of the frames it was trained on; gpu_s: what that cost; traits and signature: of
    the window it learned from; origin: as in `models.versions.Manifest`."""

    config: RetrainConfig | None
    window: int | None
    samples: Sequence[str] = ()
    gpu_s: float | None = None
    traits: Traits | None = None
    signature: Signature | None = None
    origin: Mapping[str, str] = field(default_factory=dict)


class Shelf:
    """Thread-safe. device: where models are put when they are taken off it ('cpu', 'cuda'). Raises WeightsError for a damaged model,
    StorageError when it cannot be kept."""

    def __init__(
        self, folder: DataFolder, store: Store, clock: Clock, retention: Retention | None = None, *, device: str = "cpu"
    ) -> None:
        self._device = device
        self._folder, self._store, self._clock = folder, store, clock
        self._retention = retention or Retention()
        self._lock = threading.Lock()

    def ensure(
        self, camera: str, model: str, load: Callable[[str], Detector] = load_detector, *, anew: bool = False
    ) -> ModelVersion:
        """The camera's serving version; its first one is made from `model` (a zoo name or weights path) by `load`, that of the
        camera's task, when it has none, when the configuration now names another architecture, or when it is to begin anew."""
        serving = self._store.serving(camera).get(camera)
        if serving is not None and not anew and self._same_arch(serving, model):
            return serving
        detector = load(model)
        version = self._keep(camera, parent=None, detector=detector, made=None)
        self._store.serve(version.id, at_utc=self._clock.utc_s(), reason=f"first model, from {model}")
        return version

    def serving_version(self, camera: str) -> ModelVersion:
        return self._store.serving(camera)[camera]

    def detector(self, version: str, *, device: str | None = None) -> Detector:
        """A fresh detector with the version's weights, checked against their checksum. device: None: where the box's models are.
        KeyError: no such version."""
        stored = self._stored(version)
        loaded = load_version(self._folder.version_dir(stored.version.stream, version))
        return new_detector(loaded.manifest.spec, state=loaded.state, device=device or self._device)

    def keep_candidate(
        self, stream: str, *, parent: str, detector: Detector, config: RetrainConfig, window: int, traits: Traits | None = None,
        signature: Signature | None = None, gpu_s: float | None = None, samples: Sequence[str] = (), group: Sequence[str] = (),
    ) -> ModelVersion:  # fmt: skip
        """Stores a retrained model that nobody has judged yet; samples, gpu_s, traits, signature: see `Made`. group: the cameras whose
        labels were pooled for one training; it is kept once for each member, with the member's own serving version as parent, so
        each admits, retires and removes its own."""
        origin = {"kind": "group", "cameras": ", ".join(group)} if group else {}
        made = Made(
            config=config, window=window, traits=traits, signature=signature, gpu_s=gpu_s, samples=tuple(samples), origin=origin
        )
        return self._keep(stream, parent=parent, detector=detector, made=made)

    def average(self, stream: str, versions: Sequence[str], *, instead_of: str) -> ModelVersion | None:
        """Stores the mean of the weights of these as a new version that nobody has judged yet; None where they have none: they do not
        all go back to one model, or their tensors are not alike. instead_of: the version whose place it takes, which it counts as a
        child of and whose looks it has."""
        known = {m.version.id: m for m in self._store.models(stream)}
        lines = {
            _first_of(known, version, lambda model: model.origin.get("kind", "") not in TRAINED_ON) for version in versions
        }
        if None in lines or len(lines) != 1:
            return None
        loaded = [load_version(self._folder.version_dir(stream, version)) for version in versions]
        state = averaged([version.state for version in loaded])
        if state is None or len({version.manifest.spec for version in loaded}) != 1:
            return None
        looks = _cached(known[instead_of]) if instead_of in known else None
        made = Made(
            config=None, window=None, origin={"kind": "average", "of": ", ".join(versions)},
            traits=looks.traits if looks else None, signature=looks.signature if looks else None,
        )  # fmt: skip
        detector = new_detector(loaded[0].manifest.spec, state=state, device=self._device)
        return self._keep(stream, parent=instead_of, detector=detector, made=made)

    def cached(self, camera: str) -> tuple[CachedModel, ...]:
        """The camera's models that may serve again, newest first: those that once served and whose window's looks are known, and
        those offered from outside that no label has judged yet. Only of the architecture that serves: a camera that was given another
        task or model keeps its old line, but cannot go back to it."""
        usable, serving = (ModelState.SERVING, ModelState.RETIRED), self._store.serving(camera).get(camera)
        kept = [
            m
            for m in self._store.models(camera)
            if (serving is None or m.version.arch == serving.arch) and (m.offered or (m.state in usable and _looks_known(m)))
        ]
        return tuple(_cached(m) for m in reversed(kept))

    def delivered(self, camera: str) -> str:
        """The version that the serving one goes back to: what the camera came with; '' where its row is gone."""
        return _root(self._store.models(camera)) or ""

    def offered(self, camera: str) -> tuple[str, ...]:
        """Versions from outside that wait for the camera's gate, newest first."""
        return tuple(m.version.id for m in reversed(self._store.models(camera)) if m.offered)

    def admit(self, stream: str, version: str, quality: float | None, reason: str = "") -> None:
        """Makes a candidate, or a version that served before, serve, durably. reason: why, for people. ValueError: it was rejected
        meanwhile."""
        with self._lock:
            default = "better on labels of its window" if quality is not None else "chosen for this window"
            self._store.serve(version, at_utc=self._clock.utc_s(), reason=reason or default, quality=quality)
        if quality is not None:
            with suppress(StorageError, WeightsError):  # the database has it; the manifest is for those who have only the files
                note_quality(self._folder.version_dir(stream, version), {"f1": quality})
        try:
            self.tidy(stream)
        except StorageError as error:  # it serves; old files can go another day
            log.warning("%s: old models are still there: %s", stream, error)

    def replaced(self, camera: str) -> str | None:
        """The version that the camera's serving one replaced, None when there is none to go back to."""
        return self._store.replaced(camera)

    def put_back(self, stream: str, *, failed: str, version: str, reason: str) -> bool:
        """`version` serves again because `failed` did not work on live frames; `failed` is rejected in the same step, so that a box
        that is killed now does not come up with it. False: something else serves by now, nothing is changed."""
        with self._lock:
            if self._store.serving(stream)[stream].id != failed:
                return False
            self._store.serve(version, at_utc=self._clock.utc_s(), reason=f"put back: {reason}", reject_previous=reason)
            pinned = self._stored(failed).pinned
        with suppress(StorageError):  # the next start removes them
            if not pinned:
                self._folder.remove_version(stream, failed)
        return True

    def reject(self, stream: str, version: str, reason: str) -> None:
        """A candidate that will not serve; its row stays as a record, its files go unless they are pinned. One that was admitted a
        moment before (the window ended while it was swapped in), or that has served and was only tried again, stays what it is."""
        with self._lock:
            model = self._stored(version)
            if model.state is not ModelState.CANDIDATE:
                return
            if self._store.reject_unless_used(version, reason=reason, though_pinned=True) and not model.pinned:
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

    def _keep(self, stream: str, *, parent: str | None, detector: Detector, made: Made | None) -> ModelVersion:
        with self._lock:
            now_utc = self._clock.utc_s()
            id = version_id(stream, [m.version.id for m in self._store.models(stream)])
            manifest = _manifest(id, stream, parent, detector, made, now_utc)
            with self._folder.new_version(stream, id) as folder:
                sha256 = save_version(folder, manifest, detector.state())
            version = ModelVersion(id=id, stream=stream, parent=parent, arch=detector.spec.arch, sha256=sha256)
            self._store.add_model(version, at_utc=now_utc, config=about(manifest))
            return version

    def tidy(self, stream: str) -> list[str]:
        """Removes the files of versions that nobody will ask for again (`Retention`) and returns their ids; their rows stay for a
        while. Raises StorageError; 'in_use': a command is at work on the models, another time will do."""
        gone = []
        with self._lock, self._folder.files_lock(wait_s=0.0):
            for model in outlived(
                self._store.models(stream), self._retention, now_utc=self._clock.utc_s(), replaced=self._store.replaced(stream)
            ):
                version = model.version.id
                if self._store.reject_unless_used(version, reason="old: files removed"):
                    self._folder.remove_version(stream, version)
                    gone.append(version)
            self._store.forget_rejected(stream, keep=KEPT_ROWS)
        return gone

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


def serving_detector(data_dir: Path, camera: str, *, device: str = "cpu") -> Detector | None:
    """The model that serves a camera by a data folder, for a command beside its box; None: none yet. Raises StorageError,
    WeightsError."""
    if not (data_dir / "driftbox.db").is_file():
        return None
    folder = DataFolder(data_dir, beside=True)
    with Store(folder.db_path) as store:
        version = store.serving(camera).get(camera)
    if version is None:
        return None
    loaded = load_version(folder.version_dir(camera, version.id))
    return new_detector(loaded.manifest.spec, state=loaded.state, device=device)


def outlived(models: Sequence[StoredModel], retention: Retention, *, now_utc: float, replaced: str | None) -> list[StoredModel]:
    """Which of a camera's models (oldest first) have files that may go, oldest first. The order in which they were made counts; the
    wall clock only for the age."""
    serving = _serving(models)
    spared = {replaced, serving.parent if serving else None, _root(models)}
    states = (ModelState.RETIRED, ModelState.ADMITTED)
    old = [m for m in models if (m.state in states or m.offered) and not m.pinned and m.version.id not in spared]
    oldest_utc = now_utc - retention.keep_days * DAY_S
    many = max(0, len(old) - retention.keep_versions)
    return [m for number, m in enumerate(old) if number < many or m.created_utc < oldest_utc]


def _serving(models: Sequence[StoredModel]) -> ModelVersion | None:
    return next((m.version for m in models if m.state is ModelState.SERVING), None)


def _root(models: Sequence[StoredModel]) -> str | None:
    """The version that the serving one goes back to; None where a row between them is gone."""
    serving = _serving(models)
    return _first_of({m.version.id: m for m in models}, serving.id, lambda model: False) if serving is not None else None


def _first_of(known: Mapping[str, StoredModel], version: str, begins: Callable[[StoredModel], bool]) -> str | None:
    """The version that one goes back to: without a parent, or the nearest that `begins` a line of its own. None: a row between them is
    gone."""
    while version in known:
        model = known[version]
        if model.version.parent is None or begins(model):
            return version
        version = model.version.parent
    return None


def about(manifest: Manifest) -> dict[str, object]:
    """What the database's row says of how a version was made (`StoredModel.config`), read without opening its files."""
    return {
        "config": manifest.config.name if manifest.config else None,
        "window": manifest.window,
        "traits": asdict(manifest.traits) if manifest.traits else None,
        "signature": list(manifest.signature.values) if manifest.signature else None,
        "gpu_s": manifest.gpu_s,
        "samples": len(manifest.samples),
        "origin": dict(manifest.origin),
    }


def _manifest(id: str, stream: str, parent: str | None, detector: Detector, made: Made | None, now_utc: float) -> Manifest:
    first = Manifest(id=id, stream=stream, parent=parent, spec=detector.spec, config=None, window=None, created_utc=now_utc)
    if made is None:
        return first
    return replace(
        first, config=made.config, window=made.window, samples=tuple(made.samples), gpu_s=made.gpu_s, traits=made.traits,
        signature=made.signature, origin=made.origin,
    )  # fmt: skip


def _looks_known(model: StoredModel) -> bool:
    return bool(model.config.get("traits") or model.config.get("signature"))


def _cached(model: StoredModel) -> CachedModel:
    traits, signature = model.config.get("traits"), model.config.get("signature")
    return CachedModel(
        name=model.version.id,
        traits=TypeAdapter(Traits).validate_python(traits) if traits else Traits(),
        signature=Signature(values=tuple(signature)) if signature else None,
    )
