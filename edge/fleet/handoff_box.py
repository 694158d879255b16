"""What handoffs do to a running box: guests become cameras of its book, own cameras are withheld, models and profiles travel, labels
follow (`edge.fleet.labels_leave`, `edge.fleet.labels_arrive`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from configs.errors import UsageError
from configs.schema import CameraEntry
from edge.cameras.book import ADDRESSES, document_of
from edge.fleet.camera_state import CameraState
from edge.fleet.guests import State
from edge.fleet.labels import HANDOFF, came_as
from edge.fleet.labels_arrive import facts
from edge.fleet.labels_leave import request_of
from edge.fleet.parcels import TRAVELS, CameraParcel, is_of_journey
from edge.fleet.samples import Giving
from edge.live_control import LiveControl
from edge.models_exchange import OUTSIDE
from edge.runtime import BoxRuntime
from edge.shelf import about
from edge.store.folder import DataFolder
from edge.store.objects import ObjectStore
from edge.store.store import Store
from models.bundle import SUFFIX, Bundle, read_bundle, write_bundle
from models.keys import KeyRing
from models.versions import save_version, version_id
from models.zoo import ZOO, split_size
from scheduler.commands import Note
from scheduler.fleet.types import CameraKey
from scheduler.types import ModelVersion
from streams.masks import masks_from
from streams.samples import SampleStore

#: Who is said to have added a guest, in the book.
BY = "fleet"
#: Longest that a camera's last frame may take those who follow its objects, and answer its queries.
STEP_S = 1.0


#: Most pictures of a camera, the newest, whose labels are counted.
MOST_COUNTED = 2000


#: Why labels do not follow their camera, as a parcel says it -> in words.
STAY = {"consent": "its operator does not let its samples leave a box", "standby": "they were not sent ahead"}


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What there is of a camera's labels: labelled pictures, of them a person's, and those held out to judge by."""

    labelled: int
    by_person: int
    held_out: int


class Follow(Protocol):
    """What sends labels after a camera, and takes in those that follow one. Returns at once; raises StorageError."""

    def begin(self, camera: str, parcel: str, giving: Giving) -> None: ...

    def close(self, camera: str) -> None: ...

    def expect(self, camera: str, known: Mapping[str, Any], sender: str) -> bool:
        """Whether any follow."""


class RunningCameras:
    """See `edge.fleet.guests.BoxCameras`. consents: whether a camera's samples may leave the box, as its home decides; follow: None:
    labels stay where they are (the box is in no fleet)."""

    def __init__(
        self, runtime: BoxRuntime, control: LiveControl, folder: DataFolder, store: Store,
        consents: Callable[[CameraEntry], bool] = lambda entry: bool(entry.consent), follow: Follow | None = None,
    ) -> None:  # fmt: skip
        self._runtime, self._control, self._folder, self._store, self._consents = runtime, control, folder, store, consents
        self._follow = follow

    def state(self, camera: str) -> State:
        if camera in self._runtime.watched:
            return "watched"
        kept = next((k for k in self._control.cameras().cameras if k.entry.id == camera), None)
        if kept is None or self._control.state(kept)[0] in ("elsewhere", "failed"):
            return "absent"
        return "idle"

    def known(self, camera: str) -> bool:
        return any(kept.entry.id == camera for kept in self._control.cameras().cameras)

    def guests(self) -> Sequence[str]:
        return [kept.entry.id for kept in self._control.cameras().cameras if kept.changed_by == BY and kept.source == "added"]

    def bring_in(self, camera: str, parcel: CameraParcel | None, sender: str) -> None:
        if parcel is not None and parcel.model:
            self._take_model(camera, parcel, sender)
        if parcel is not None:
            follows = self._follow is not None and self._follow.expect(camera, parcel.known, sender)
            self._say_of_labels(camera, parcel.known, sender, follows=follows)
        if not self.known(camera):
            if parcel is None:
                raise UsageError(f"nothing is known of camera {camera}", subject=camera)
            self._control.add(dict(parcel.document) | {"id": camera}, by=BY)
            self._take_profile(camera, parcel.known)
            return
        self._control.give_back(camera)

    def take_out(self, camera: str, why: str) -> None:
        if self._follow is not None:
            self._follow.close(camera)  # first: a box that is killed in between closes it again
        if camera in self.guests():
            self._control.remove(camera, by=BY)
        elif self.known(camera):
            self._control.withhold(camera, why)

    def pack(self, camera: str, key: CameraKey, parcel: str) -> CameraParcel:
        entry = self._control.cameras().find(camera).entry
        serving = self._store.serving(camera).get(camera)
        model = self._bundle(camera, serving) if serving is not None else b""
        known: dict[str, Any] = {}
        if serving is not None:
            known = {
                "version": came_as(self._store, serving.id) or serving.id,
                "quality": serving.quality,
                "arch": serving.arch,
            }
        labels, newest = self._labels(camera)
        known["labels"] = asdict(labels)
        known |= self._following(entry, serving, parcel, newest)
        profile = self._store.profile(camera)
        if profile is not None:
            known["profile"] = profile[1]
        return CameraParcel(camera=key, document=self._document(entry, serving), model=model, known=known)

    def sent(self, camera: str, parcel: str) -> None:
        entry = self._control.cameras().find(camera).entry
        if self._follow is not None and is_of_journey(parcel) and self._consents(entry):
            self._follow.begin(camera, parcel, Giving(consent=True, masks=masks_from(entry.masks)))

    def leave(self, camera: str, key: CameraKey, to: str, after_s: float) -> CameraState | None:
        watched = self._runtime.watched.get(camera)
        if watched is None:
            return None
        try:
            objects = watched.objects.hand_over(to, STEP_S) if watched.objects is not None else None
            queries = watched.queries.hand_over(STEP_S) if watched.queries is not None else None
            return CameraState.of(key, after_s, objects, queries)
        except ValidationError as error:  # more zones, or longer names, than anybody takes on
            raise UsageError(f"its state is not one that travels: {error.errors()[0]['msg'][:100]}", subject=camera) from None

    def check_state(self, camera: str, state: CameraState) -> None:
        ids = [one.id for one in state.objects.book.objects] if state.objects is not None else []
        others = ObjectStore(self._store).of_others(ids, camera)
        if others:
            raise UsageError(f"the state speaks of objects of other cameras: {', '.join(others[:3])}", subject=camera)

    def take_on(self, camera: str, state: CameraState, base_s: float) -> None:
        watched = self._runtime.watched.get(camera)
        if watched is None:
            return
        anew = []
        if watched.objects is not None:
            why = watched.objects.take_on(state.objects, base_s) if state.objects is not None else "nothing came of them"
            anew += [f"objects: {why}"] if why else []
        if watched.queries is not None:
            anew += (
                watched.queries.take_on(state.queries, base_s)
                if state.queries is not None
                else ["queries: nothing came of them"]
            )
        if anew:
            self.say(camera, f"what it has counted goes on, but these begin anew: {'; '.join(anew)[:600]}")
        else:
            seen = len(state.objects.book.objects) if state.objects is not None else 0
            self.say(camera, f"its objects ({seen} in the picture) and counts go on where the box before has left them")

    def say(self, camera: str, text: str) -> None:
        self._runtime.note_from_anywhere(Note(stream=camera, code="camera", text=text))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _document(self, entry: CameraEntry, serving: ModelVersion | None) -> dict[str, Any]:
        """The entry with its real addresses: sealed, and for a box that reaches the same camera. Raises UsageError where it cannot be
        watched from elsewhere."""
        document = document_of(entry)
        for name in ADDRESSES:
            url = getattr(entry, name)
            if url is None:
                continue
            if url.scheme not in TRAVELS:
                raise UsageError(
                    f"camera {entry.id} cannot be watched from another box: its address is of kind {url.scheme}", subject=entry.id,
                    remedy="network cameras can; pin this one to its box",
                )  # fmt: skip
            document[name] = url.resolve()
        if entry.edge is not None and split_size(entry.edge)[0] not in ZOO and serving is not None and serving.arch in ZOO:
            document["edge"] = serving.arch  # a file of weights of this box; what it has become travels as the model
        document.pop("id", None)
        return document | {"name": entry.title, "consent": self._consents(entry)}

    def _labels(self, camera: str) -> tuple[Labels, int]:
        """Of the newest pictures of a camera, and the newest window that has labels (0: none has)."""
        store = SampleStore(self._folder.samples_dir)
        refs = store.list(camera)[-MOST_COUNTED:]
        found = [(ref.window, labels) for ref in refs if (labels := store.labels_or_none(ref)) is not None]
        counted = Labels(
            labelled=len(found), by_person=sum(labels.by == "person" for _, labels in found),
            held_out=sum(labels.split == "holdout" for _, labels in found),
        )  # fmt: skip
        return counted, max((window for window, _ in found), default=0)

    def _following(self, entry: CameraEntry, serving: ModelVersion | None, parcel: str, newest: int) -> dict[str, Any]:
        """What the parcel says of the labelled pictures themselves."""
        if not self._consents(entry):
            return {"stay": "consent"}
        if self._follow is None or not is_of_journey(parcel):
            return {"stay": "standby"}
        return {"pictures": facts(request_of(parcel), newest=newest, learned=self._learned_in(entry.id, serving))}

    def _learned_in(self, camera: str, serving: ModelVersion | None) -> int | None:
        """The window here that the serving model learned from, or was last judged on: the engine knows, else how it was made."""
        stream = self._runtime.parts.engine.state.streams.get(camera)
        if stream is not None and stream.learned is not None:
            return stream.learned
        made_in = self._store.model(serving.id).config.get("window") if serving is not None else None
        return made_in if isinstance(made_in, int) else None

    def _say_of_labels(self, camera: str, known: Mapping[str, Any], sender: str, *, follows: bool) -> None:
        """Labels belong to pictures, and pictures are not in the parcel: nobody is to look for their corrections here in vain."""
        try:
            labels = Labels(**known["labels"])
        except (KeyError, TypeError):
            return
        if not all(isinstance(number, int) and number >= 0 for number in astuple(labels)) or not labels.labelled:
            return
        many = f"{labels.labelled} pictures, {labels.by_person} of them corrected by a person, {labels.held_out} held out"
        if follows:
            self.say(camera, f"its labels follow it from box {sender}: {many}")
        else:
            why = STAY.get(str(known.get("stay", "")), STAY["standby"])
            self.say(
                camera,
                f"its labels stay on box {sender} ({why}): {many}; here it learns from, and is judged by, what is labelled here",
            )

    def _bundle(self, camera: str, serving: ModelVersion) -> bytes:
        with tempfile.TemporaryDirectory(dir=self._folder.root, prefix=".handoff-") as scratch:
            out = Path(scratch) / f"model{SUFFIX}"
            with self._folder.files_lock():
                write_bundle(self._folder.version_dir(camera, serving.id), out, KeyRing(self._folder.root).signer())
            return out.read_bytes()

    def _take_model(self, camera: str, parcel: CameraParcel, sender: str) -> None:
        """The model serves from the first frame on: it served until now. None is taken twice, nor one that this
        box has sent away itself."""
        came = str(parcel.known.get("version", ""))
        known = {m.version.id for m in self._store.models(camera)}
        if came and came in known | {came_as(self._store, version) for version in known}:
            return
        with tempfile.TemporaryDirectory(dir=self._folder.root, prefix=".handoff-") as scratch:
            path = Path(scratch) / f"model{SUFFIX}"
            path.write_bytes(parcel.model)
            # Who sent it is known from the envelope: a member of this fleet. The bundle's own signature has still to be right.
            bundle = read_bundle(path, trusts=lambda name: True)
        taken = self._adopted(camera, bundle, came, sender)
        quality = parcel.known.get("quality")
        self._store.serve(
            taken.id, at_utc=self._runtime.parts.clock.utc_s(), reason=f"came with the camera from box {sender}",
            quality=float(quality) if isinstance(quality, (int, float)) and 0 <= quality <= 1 else None,
        )  # fmt: skip

    def _adopted(self, camera: str, bundle: Bundle, came: str, sender: str) -> ModelVersion:
        """Files first, then the row, as with the box's own."""
        with self._folder.files_lock():
            id = version_id(camera, [m.version.id for m in self._store.models(camera)], kind=OUTSIDE)
            manifest = replace(
                bundle.manifest, id=id, stream=camera, parent=None, window=None, samples=(), sha256="",
                created_utc=self._runtime.parts.clock.utc_s(),
                origin={"kind": HANDOFF, "version": came or bundle.manifest.id, "box": sender, "signed_by": bundle.signed_by},
            )  # fmt: skip
            with self._folder.new_version(camera, id) as part:
                sha256 = save_version(part, manifest, bundle.state)
            version = ModelVersion(id=id, stream=camera, parent=None, arch=manifest.spec.arch, sha256=sha256)
            self._store.add_model(version, at_utc=manifest.created_utc, config=about(manifest))
            return version

    def _take_profile(self, camera: str, known: Mapping[str, Any]) -> None:
        """What was measured for it elsewhere; whether it fits this machine is checked where it is used."""
        body = known.get("profile")
        if isinstance(body, str) and self._store.profile(camera) is None:
            self._store.add_profile(camera, body, self._runtime.parts.clock.utc_s())
