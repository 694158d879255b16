"""Which cameras the box has: those of its configuration file, and over them what was changed through the product (`edge.store.cameras`).

The file stays the operator's: nobody writes into it. Of a camera that stands in the file only what was changed here is kept, so that
other lines of the file still count; a camera that was added here is kept whole; one that was removed here is remembered as removed. The
two together are checked by the one schema before anything is kept, and whenever they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from configs.errors import ConfigError, UsageError
from configs.load import with_cameras
from configs.schema import BoxConfig, CameraEntry, CameraUrl
from configs.units import is_camera_id
from edge.cameras.names import proposed_id
from edge.cameras.secrets import SecretFiles, is_same, names_in, refuse_references, same_place, split, with_credentials_of
from edge.store.cameras import CameraRow, CameraRows, read_rows

#: Fields that hold addresses.
ADDRESSES = ("url", "record_url")
#: Most cameras of a box: more is a mistake of a program.
MAX_CAMERAS = 500

Document = dict[str, Any]
Source = Literal["file", "changed", "added"]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A camera that there is. source: as the file has it, changed here, or added here; changed: the fields that are other than in the
    file; etag: changes with it."""

    entry: CameraEntry
    source: Source
    changed: tuple[str, ...] = ()
    revision: int = 0
    changed_by: str = ""
    changed_utc: float | None = None

    @property
    def etag(self) -> str:
        told = json.dumps([document_of(self.entry, hidden=False), self.revision], sort_keys=True, default=repr)
        return hashlib.sha256(told.encode()).hexdigest()[:24]


@dataclass(frozen=True, kw_only=True)
class Shelfful:
    """All cameras. config: the configuration in force; findings: what people should know of how file and product stand to each other;
    removed: those of the file that were removed here."""

    config: BoxConfig
    cameras: tuple[Kept, ...]
    findings: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def find(self, camera: str) -> Kept:
        """Raises UsageError (code 'not_found')."""
        for kept in self.cameras:
            if kept.entry.id == camera:
                return kept
        raise UsageError(
            f"there is no camera {camera}",
            subject=camera,
            code="not_found",
            remedy="driftbox cameras list tells which there are",
        )


def document_of(entry: CameraEntry, *, hidden: bool = True) -> Document:
    """A camera as it stands in YAML, without what is left at its default. hidden: addresses as people may see them; else as they are."""
    document = entry.model_dump(mode="json", exclude_unset=True)
    if not hidden:
        document |= {name: value for name in ADDRESSES if isinstance(value := getattr(entry, name), CameraUrl)}
    return document


def together(config: BoxConfig, rows: Iterable[CameraRow], secrets: SecretFiles) -> Shelfful:
    """The file's cameras with the rows over them. Pure but for the names of secrets. Raises ConfigError naming what does not fit any
    more, and how to drop it."""
    by_id = {row.camera: row for row in rows}
    documents: list[Document] = []
    facts: list[tuple[Source, CameraRow | None]] = []
    for entry in config.cameras:
        row = by_id.get(entry.id)
        if row is None:
            documents.append(document_of(entry, hidden=False))
            facts.append(("file", None))
        elif row.document is not None:
            under = {} if row.whole else document_of(entry, hidden=False)
            documents.append(under | _referred(dict(row.document), secrets))
            facts.append(("added" if row.whole else "changed", row))
    in_file = {entry.id for entry in config.cameras}
    for row in by_id.values():
        if row.whole and row.camera not in in_file:
            documents.append(_referred(dict(row.document or {}), secrets))
            facts.append(("added", row))
    found = _checked(config, documents, facts)
    cameras = tuple(_kept(entry, *fact) for entry, fact in zip(found.cameras, facts, strict=True))
    removed = tuple(i for i, row in by_id.items() if row.document is None and i in in_file)
    return Shelfful(config=found, cameras=cameras, findings=_findings(by_id.values(), in_file), removed=removed)


def with_book(config: BoxConfig) -> Shelfful:
    """What a box on the configuration's data folder watches, for commands beside it. Raises ConfigError, StorageError."""
    data_dir = Path(config.box.data_dir)
    return together(config, read_rows(data_dir / "driftbox.db"), SecretFiles(data_dir))


def _kept(entry: CameraEntry, source: Source, row: CameraRow | None) -> Kept:
    if row is None:
        return Kept(entry=entry, source=source)
    changed = tuple(sorted(set(row.document or {}) - {"id"}))
    return Kept(
        entry=entry,
        source=source,
        changed=changed,
        revision=row.revision,
        changed_by=row.changed_by,
        changed_utc=row.updated_utc,
    )


def _referred(document: Document, secrets: SecretFiles) -> Document:
    return document | {name: secrets.reference(document[name]) for name in ADDRESSES if isinstance(document.get(name), str)}


def _checked(config: BoxConfig, documents: Sequence[Document], facts: Sequence[tuple[Source, CameraRow | None]]) -> BoxConfig:
    try:
        return with_cameras(config, documents, source="cameras")
    except ConfigError as error:
        ids = [str(document.get("id")) for document in documents]
        here = [i for i, (source, _) in zip(ids, facts, strict=True) if source != "file"]
        raise ConfigError(
            "the cameras do not fit the configuration file any more, together with what was changed through the product",
            problems=tuple((_by_name(path, ids), text) for path, text in error.problems), subject="cameras",
            remedy=f"correct the file, or drop what was changed: driftbox cameras reset {here[0] if here else 'CAMERA'}",
        ) from None  # fmt: skip


def _by_name(path: str, ids: Sequence[str]) -> str:
    """`cameras[1].fps` -> `cameras[gate].fps`: a place in a list that nobody has seen says nothing."""
    head, bracket, rest = path.partition("[")
    number, _, tail = rest.partition("]")
    if head != "cameras" or not bracket or not number.isdigit() or int(number) >= len(ids):
        return path
    return f"cameras[{ids[int(number)]}]{tail}"


def _findings(rows: Iterable[CameraRow], in_file: set[str]) -> tuple[str, ...]:
    found = []
    for row in rows:
        if row.whole and row.camera in in_file:
            found.append(
                f"camera {row.camera} stands in the configuration file and was added through the product too: the product's counts"
            )
        elif row.document is not None and not row.whole and row.camera not in in_file:
            found.append(
                f"camera {row.camera} was changed through the product, but is no longer in the configuration file: it is not there"
            )
    return tuple(found)


class CameraBook:
    """Reads and changes it, for one process at a time (the box, or a command while none runs). utc_s: the clock. Every change is checked
    first and durable when it returns. Raises ConfigError (with problems by field), UsageError (`not_found`, `exists`, `changed`),
    StorageError."""

    def __init__(self, base: BoxConfig, rows: CameraRows, secrets: SecretFiles, *, utc_s: Callable[[], float]) -> None:
        self._base, self._rows, self._secrets, self._utc_s = base, rows, secrets, utc_s

    def read(self) -> Shelfful:
        return together(self._base, self._rows.all(), self._secrets)

    def row(self, camera: str) -> CameraRow | None:
        """What was changed here about a camera, None: nothing."""
        return next((row for row in self._rows.all() if row.camera == camera), None)

    def tidy(self) -> list[str]:
        """Removes secrets that nobody names (any more): after changes, and what a kill left."""
        return self._secrets.remove_unnamed({name for row in self._rows.all() for name in _named(row)})

    def add(self, document: Mapping[str, Any], *, by: str) -> Shelfful:
        """A new camera. Without `id` one is made from its name. Raises UsageError (code 'exists')."""
        before = self.read()
        given = dict(document)
        taken = {kept.entry.id for kept in before.cameras} | set(before.removed)
        if not given.get("id"):
            given["id"] = proposed_id(str(given.get("name") or ""), taken)
        camera = str(given["id"])
        if camera in {kept.entry.id for kept in before.cameras}:
            raise UsageError(
                f"there is a camera {camera} already",
                subject=camera,
                code="exists",
                remedy="choose another id, or change that one",
            )
        if len(before.cameras) >= MAX_CAMERAS:
            raise UsageError(f"a box has at most {MAX_CAMERAS} cameras", subject=camera)
        return self._put(camera, given, None, by)

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> Shelfful:
        """Some fields of a camera get other values; null: the default, or what the file says. etag: of what was seen, None: whatever is
        there. Raises UsageError (codes 'not_found', 'changed')."""
        kept = self.read().find(camera)
        _same(kept, etag)
        if "id" in patch and patch["id"] != camera:
            raise ConfigError(
                "a camera keeps its id", problems=(("id", "cannot be changed: models and samples are kept under it"),), subject=camera,
                remedy="change its name, or add another camera",
            )  # fmt: skip
        row = self.row(camera)
        over = dict(row.document or {}) if row is not None else {}
        for name, value in patch.items():
            if name == "id":
                continue
            if value is None and not _may_be_none(name):
                over.pop(name, None)
            else:
                over[name] = value
        return self._put(camera, over, kept.entry, by)

    def remove(self, camera: str, *, by: str, etag: str | None = None) -> Shelfful:
        """A camera is no longer watched, though the file may name it; its models and samples stay. Raises UsageError."""
        _same(self.read().find(camera), etag)
        if any(entry.id == camera for entry in self._base.cameras):
            self._rows.put(camera, None, at_utc=self._utc_s(), by=by)
        else:
            self._rows.forget(camera)
        return self.read()

    def reset(self, camera: str) -> Shelfful:
        """Drops what was changed here: the camera is as the file says, or gone when the file does not name it. Raises UsageError."""
        if self.row(camera) is None:
            raise UsageError(f"nothing was changed about camera {camera}", subject=camera, code="not_found")
        self._rows.forget(camera)
        return self.read()

    def put_back(self, camera: str, row: CameraRow | None) -> Shelfful:
        """Undoes a change: the camera's row is as `row` again."""
        if row is None:
            self._rows.forget(camera)
        else:
            self._rows.put(camera, row.document, at_utc=row.updated_utc, by=row.changed_by)
        return self.read()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _put(self, camera: str, document: Document, before: CameraEntry | None, by: str) -> Shelfful:
        if not is_camera_id(camera):
            raise ConfigError(
                "the camera's id cannot be used", problems=(("id", "a-z, 0-9, '_', '-', at most 63 characters, no '-' or '_' first"),),
                remedy="leave it out: one is made from the name",
            )  # fmt: skip
        row = self.row(camera)
        document, values = self._without_secrets(camera, document, row, before)
        planned = CameraRow(
            camera=camera, document=document, revision=row.revision + 1 if row else 1, updated_utc=self._utc_s(), changed_by=by
        )
        _plain_json(document)
        others = [row for row in self._rows.all() if row.camera != camera]
        try:
            found = together(self._base, [*others, planned], self._secrets)
        except ConfigError as error:
            raise _of_this(error, camera) from None
        if not planned.whole:
            document = self._other_than_file(found.find(camera).entry, document)
        # Secrets, then the row that names them, and later (`tidy`) what no row names: whenever we are killed, every name has its file.
        named = _named_in(document)
        self._secrets.keep({name: value for name, value in values.items() if name in named})
        if document:
            self._rows.put(camera, document, at_utc=planned.updated_utc, by=by)
        else:
            self._rows.forget(camera)
        return self.read()

    def _other_than_file(self, after: CameraEntry, document: Document) -> Document:
        """What of a patch says something else than the file."""
        in_file = next(entry for entry in self._base.cameras if entry.id == after.id)
        return {name: value for name, value in document.items() if getattr(after, name) != getattr(in_file, name)}

    def _without_secrets(
        self, camera: str, document: Document, row: CameraRow | None, before: CameraEntry | None
    ) -> tuple[Document, dict[str, str]]:
        """The document with names in the places of credentials, and these by name."""
        values: dict[str, str] = {}
        stored = (row.document if row is not None else None) or {}
        prefix = self._secrets.new_prefix(camera)
        for name in ADDRESSES:
            text = document.get(name)
            if not isinstance(text, str) or text == stored.get(name):
                continue
            if before is not None and text == str(getattr(before, name)):  # as it was shown: nothing was typed
                document = _unchanged(document, name, stored)
            elif is_same(refuse_references(text)):
                document = document | {name: self._with_kept(name, text, stored, before)}
            else:
                found = split(text, f"{prefix}-{name.replace('_', '-')}")
                document, values = document | {name: found.text}, values | dict(found.values)
        return document, values

    def _with_kept(self, name: str, text: str, stored: Mapping[str, Any], before: CameraEntry | None) -> str:
        """An address whose credentials are the ones that are known. They go nowhere else: who may type addresses need not know them."""
        known = stored.get(name)
        if isinstance(known, str) and names_in(known) and same_place(text, known):
            return with_credentials_of(text, known)
        shown = str(getattr(before, name)) if before is not None else ""
        raise ConfigError(
            f"the address needs its password: the known one belongs to {shown or 'no address'}",
            problems=((name, "type user and password again: kept ones are used only for the host and kind they were typed for"),),
        )  # fmt: skip


def _unchanged(document: Document, name: str, stored: Mapping[str, Any]) -> Document:
    rest = {key: value for key, value in document.items() if key != name}
    return rest | {name: stored[name]} if name in stored else rest


def _plain_json(document: Document) -> None:
    try:
        json.dumps(document, allow_nan=False)
    except (ValueError, TypeError):
        raise ConfigError("a camera holds something that is no JSON", subject="camera") from None


def _of_this(error: ConfigError, camera: str) -> ConfigError:
    """What is wrong with a camera that is to be kept, by its fields; what is wrong elsewhere is told as it is."""
    head = f"cameras[{camera}]."
    own = tuple((path.removeprefix(head), text) for path, text in error.problems if path.startswith(head))
    if not own:
        return error
    fields = "; ".join(f"{path}: {text}" for path, text in own)
    return ConfigError(
        f"camera {camera} cannot be like that: {fields}",
        problems=own,
        subject=camera,
        remedy="docs/configuration.md describes every key",
    )


def _named(row: CameraRow | None) -> list[str]:
    return _named_in((row.document if row is not None else None) or {})


def _named_in(document: Mapping[str, Any]) -> list[str]:
    return [name for field in ADDRESSES if isinstance(text := document.get(field), str) for name in names_in(text)]


def _may_be_none(name: str) -> bool:
    field = CameraEntry.model_fields.get(name)
    return field is not None and not field.is_required() and field.default is None


def _same(kept: Kept, etag: str | None) -> None:
    if etag is not None and etag != kept.etag:
        raise UsageError(
            f"camera {kept.entry.id} was changed by somebody else meanwhile", subject=kept.entry.id, code="changed",
            remedy="look at it again, then change it",
        )  # fmt: skip
