"""Tracked objects and their media in the database: search, what has files, what is old.

A row of `objects` is the newest state of one object; its id never changes and is never used again. Snapshot and thumbnail belong to one
object; a clip belongs to all objects of its camera that were there meanwhile. Paths are relative to the media folder. Files are complete
before their row is written, and rows let go of files before these are removed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from configs.errors import UsageError
from edge.objects.types import ObjectEvent
from edge.store.store import Store

#: What began so long before the time that is looked for is not looked at.
LONGEST_S = 86_400.0
#: Rows of one answer at most.
MAX_PAGE = 200


@dataclass(frozen=True, kw_only=True)
class ObjectQuery:
    """What is looked for; None and empty: whatever. cameras: one of these, an empty set: nothing. zone: it was in that zone. from_utc,
    to_utc: it was there between them, and began at most `LONGEST_S` before. after: the cursor of the page before."""

    camera: str | None = None
    cameras: frozenset[str] | None = None
    class_name: str | None = None
    zone: str | None = None
    from_utc: float | None = None
    to_utc: float | None = None
    score_min: float = 0.0
    with_clip: bool = False
    with_snapshot: bool = False
    favourite: bool = False
    open: bool = False
    limit: int = 50
    after: str | None = None


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object as it is known. event: its newest state (`what` is `end` or `update`); snapshot, thumbnail: paths, empty: none."""

    event: ObjectEvent
    favourite: bool = False
    snapshot: str = ""
    thumbnail: str = ""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Files of one object, relative to the media folder, and what they take together."""

    snapshot: str = ""
    thumbnail: str = ""
    size_bytes: int = 0


NO_PICTURES = Pictures()


@dataclass(frozen=True, kw_only=True)
class ObjectPage:
    """objects: newest first; next: cursor of the following page, None: this was the last."""

    objects: tuple[StoredObject, ...]
    next: str | None = None


@dataclass(frozen=True, kw_only=True)
class StoredClip:
    """A clip. path: relative to the media folder; began_utc, ended_utc: of its first and last picture."""

    id: int = 0
    camera: str
    path: str
    began_utc: float
    ended_utc: float
    size_bytes: int
    codec: str = ""
    masked: bool = False


@dataclass(frozen=True, kw_only=True)
class MediaItem:
    """Something on disk that may be deleted: the pictures of an object (key: its id), or a clip (key: its number). classes: of the
    objects in it."""

    kind: Literal["snapshot", "clip"]
    key: str
    camera: str
    at_utc: float
    size_bytes: int
    classes: tuple[str, ...] = ()
    favourite: bool = False


class ObjectStore:
    """Over the box's database; from any thread. Raises StorageError from every method."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- events -------------------------------------------------------------------------------------------------------

    def put(self, events: Sequence[ObjectEvent], pictures: Mapping[str, Pictures] | None = None) -> None:
        """Writes objects' states, all or none, in their order. What ended stays ended, unless it is seen again later (its camera was on
        another box meanwhile). pictures: new ones, by object."""
        made = pictures or {}
        with self._store.transaction() as db:
            db.executemany(_UPSERT, [_row(event, made.get(event.id, NO_PICTURES)) for event in events])
            zones = [(zone, event.started_utc, event.id) for event in events for zone in event.zones_been]
            if zones:
                db.executemany("INSERT OR IGNORE INTO object_zones (zone, started_utc, object) VALUES (?, ?, ?)", zones)

    def touch(self, seen_utc: dict[str, float]) -> None:
        """Open objects that are still seen, of which nothing is told."""
        with self._store.transaction() as db:
            db.executemany(
                "UPDATE objects SET seen_utc = max(seen_utc, ?) WHERE id = ? AND ended_utc IS NULL",
                [(utc, id) for id, utc in seen_utc.items()],
            )

    def end_open(self) -> tuple[ObjectEvent, ...]:
        """Ends what a box that was killed left open, when it was last seen; returns the ends."""
        with self._store.transaction() as db:
            rows = db.execute("SELECT * FROM objects WHERE ended_utc IS NULL ORDER BY started_utc, id").fetchall()
            db.execute("UPDATE objects SET ended_utc = seen_utc WHERE ended_utc IS NULL")
        ended = (_stored(row).event for row in rows)
        return tuple(replace(event, what="end", ended_utc=event.seen_utc, zones=()) for event in ended)

    def of_others(self, ids: Sequence[str], camera: str) -> tuple[str, ...]:
        """Those of the ids that are known, and of other cameras."""
        found = (self._store.rows("SELECT id FROM objects WHERE id = ? AND camera <> ?", (id, camera)) for id in ids)
        return tuple(row["id"] for rows in found for row in rows)

    def search(self, query: ObjectQuery) -> ObjectPage:
        """One page. UsageError: a cursor that is none."""
        where, values = _conditions(query)
        join, order = "", "o.started_utc DESC, o.id DESC"
        if query.zone is not None:
            # In the order of the zone's own index, so that a page reads no more than it gives.
            join, order = "JOIN object_zones z ON z.object = o.id AND z.zone = ?", "z.started_utc DESC, z.object DESC"
            values = [query.zone, *values]
        limit = max(1, min(MAX_PAGE, query.limit))
        rows = self._store.rows(
            f"SELECT o.* FROM objects o {join} WHERE {' AND '.join(where) or '1'} ORDER BY {order} LIMIT ?",
            [*values, limit + 1],
        )
        found = tuple(_stored(row) for row in rows[:limit])
        last = found[-1].event if len(rows) > limit else None
        return ObjectPage(objects=found, next=cursor_of(last.started_utc, last.id) if last is not None else None)

    def get(self, id: str) -> StoredObject:
        """UsageError 'not_found': no such object, or not any more."""
        rows = self._store.rows("SELECT * FROM objects WHERE id = ?", (id,))
        if not rows:
            raise no_object(id)
        return _stored(rows[0])

    def favour(self, id: str, favourite: bool) -> StoredObject:
        """A favourite and its files stay until it is none any more. UsageError 'not_found'."""
        with self._store.transaction(durable=True) as db:
            db.execute("UPDATE objects SET favourite = ? WHERE id = ?", (int(favourite), id))
        return self.get(id)

    def remove(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Forgets objects; the paths that nobody needs any more, for the caller to remove."""
        with self._store.transaction(durable=True) as db:
            paths: list[str] = []
            for id in ids:
                rows = db.execute("DELETE FROM objects WHERE id = ? RETURNING snapshot, thumbnail", (id,)).fetchall()
                paths += [path for row in rows for path in (row["snapshot"], row["thumbnail"]) if path]
            return tuple(paths)

    def classes(self) -> tuple[str, ...]:
        """Classes of which there are events."""
        return tuple(
            row["class_name"] for row in self._store.rows("SELECT DISTINCT class_name FROM objects ORDER BY class_name")
        )

    def zones(self) -> tuple[str, ...]:
        """Zones in which something was."""
        return tuple(row["zone"] for row in self._store.rows("SELECT DISTINCT zone FROM object_zones ORDER BY zone"))

    # --- media --------------------------------------------------------------------------------------------------------

    def add_clip(self, clip: StoredClip) -> int:
        """A clip whose file is complete; all objects of its camera that were there meanwhile have it. Its number."""
        with self._store.transaction() as db:
            number = db.execute(
                "INSERT INTO clips (camera, path, began_utc, ended_utc, size_bytes, codec, masked) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (clip.camera, clip.path, clip.began_utc, clip.ended_utc, clip.size_bytes, clip.codec, int(clip.masked)),
            ).lastrowid
            db.execute(
                "UPDATE objects SET has_clip = 1 WHERE camera = ? AND started_utc <= ? AND seen_utc >= ?",
                (clip.camera, clip.ended_utc, clip.began_utc),
            )
        assert number is not None
        return int(number)

    def clips_of(self, id: str) -> tuple[StoredClip, ...]:
        """The clips an object is in, oldest first: one, or several when it was there for long. UsageError 'not_found'."""
        event = self.get(id).event
        rows = self._store.rows(
            "SELECT * FROM clips WHERE camera = ? AND began_utc <= ? AND ended_utc >= ? ORDER BY began_utc",
            (event.camera, event.seen_utc, event.started_utc),
        )
        return tuple(_clip(row) for row in rows)

    def clip(self, number: int) -> StoredClip | None:
        """None: not any more."""
        rows = self._store.rows("SELECT * FROM clips WHERE id = ?", (number,))
        return _clip(rows[0]) if rows else None

    def objects_in(self, clip: StoredClip) -> tuple[str, ...]:
        """Ids of the objects that are in a clip."""
        rows = self._store.rows(
            "SELECT id FROM objects WHERE camera = ? AND started_utc <= ? AND seen_utc >= ?",
            (clip.camera, clip.ended_utc, clip.began_utc),
        )
        return tuple(row["id"] for row in rows)

    def remove_clip(self, number: int) -> str:
        """Lets go of a clip; its path for the caller to remove, empty: there was none."""
        with self._store.transaction() as db:
            row = db.execute(
                "DELETE FROM clips WHERE id = ? RETURNING camera, path, began_utc, ended_utc", (number,)
            ).fetchone()
            if row is None:
                return ""
            db.execute(_FORGET_CLIP, (row["camera"], row["ended_utc"], row["began_utc"]))
            return str(row["path"])

    def remove_pictures(self, id: str) -> tuple[str, ...]:
        """Lets go of an object's snapshot and thumbnail; the paths for the caller to remove."""
        with self._store.transaction() as db:
            row = db.execute("SELECT snapshot, thumbnail FROM objects WHERE id = ?", (id,)).fetchone()
            db.execute("UPDATE objects SET snapshot = '', thumbnail = '', picture_bytes = 0 WHERE id = ?", (id,))
        return tuple(path for path in (row or ("", "")) if path)

    def used_bytes(self) -> int:
        """What all snapshots, thumbnails and clips take."""
        sql = "SELECT (SELECT coalesce(sum(size_bytes), 0) FROM clips) + (SELECT coalesce(sum(picture_bytes), 0) FROM objects) AS n"
        return int(self._store.rows(sql)[0]["n"])

    def media(self, *, batch: int = 200) -> Iterator[MediaItem]:
        """What lies on disk, oldest first; read in batches, so that nobody waits for a long list."""
        clips = self._batches(self._clips_after, batch)
        pictures = self._batches(self._pictures_after, batch)
        clip, picture = next(clips, None), next(pictures, None)
        while clip is not None or picture is not None:
            if picture is None or (clip is not None and clip.at_utc <= picture.at_utc):
                assert clip is not None
                yield clip
                clip = next(clips, None)
            else:
                yield picture
                picture = next(pictures, None)

    def paths(self) -> set[str]:
        """Every file that a row names."""
        rows = self._store.rows(
            "SELECT path FROM clips UNION ALL SELECT snapshot FROM objects WHERE snapshot != ''"
            " UNION ALL SELECT thumbnail FROM objects WHERE thumbnail != ''"
        )
        return {str(row[0]) for row in rows}

    def forget_path(self, path: str) -> None:
        """A file that is gone: whatever names it lets go of it."""
        for row in self._store.rows("SELECT id FROM clips WHERE path = ?", (path,)):
            self.remove_clip(row["id"])
        for row in self._store.rows("SELECT id FROM objects WHERE snapshot = ? OR thumbnail = ?", (path, path)):
            self.remove_pictures(row["id"])

    def old_events(self, *, before_utc: float, keep: int, limit: int = 500) -> tuple[str, ...]:
        """Ids of the oldest `limit` ended events that may go: no favourites, ended before that or beyond the newest `keep`."""
        count = int(self._store.rows("SELECT count(*) AS n FROM objects")[0]["n"])
        rows = self._store.rows(
            "SELECT id, ended_utc FROM objects WHERE favourite = 0 AND ended_utc IS NOT NULL ORDER BY started_utc, id LIMIT ?",
            (limit,),
        )
        surplus = max(0, count - keep)
        return tuple(row["id"] for place, row in enumerate(rows) if place < surplus or row["ended_utc"] < before_utc)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _batches(
        self, read: Callable[[float, str, int], list[MediaItem]], batch: int
    ) -> Iterator[MediaItem]:  # fmt: skip
        at_utc, key = float("-inf"), ""
        while True:
            found = read(at_utc, key, batch)
            yield from found
            if len(found) < batch:
                return
            at_utc, key = found[-1].at_utc, found[-1].key

    def _clips_after(self, at_utc: float, key: str, limit: int) -> list[MediaItem]:
        rows = self._store.rows(
            "SELECT c.*, (SELECT group_concat(DISTINCT o.class_name) FROM objects o WHERE o.camera = c.camera"
            " AND o.started_utc <= c.ended_utc AND o.seen_utc >= c.began_utc) AS classes,"
            " EXISTS (SELECT 1 FROM objects o WHERE o.favourite = 1 AND o.camera = c.camera"
            " AND o.started_utc <= c.ended_utc AND o.seen_utc >= c.began_utc) AS favourite"
            " FROM clips c WHERE (c.began_utc, c.id) > (?, ?) ORDER BY c.began_utc, c.id LIMIT ?",
            (max(at_utc, -1e300), int(key or 0), limit),
        )
        return [
            MediaItem(
                kind="clip", key=str(row["id"]), camera=row["camera"], at_utc=row["began_utc"], size_bytes=row["size_bytes"],
                classes=tuple(sorted((row["classes"] or "").split(","))) if row["classes"] else (), favourite=bool(row["favourite"]),
            )
            for row in rows
        ]  # fmt: skip

    def _pictures_after(self, at_utc: float, key: str, limit: int) -> list[MediaItem]:
        rows = self._store.rows(
            "SELECT id, camera, started_utc, picture_bytes, class_name, favourite FROM objects"
            " WHERE picture_bytes > 0 AND (started_utc, id) > (?, ?) ORDER BY started_utc, id LIMIT ?",
            (max(at_utc, -1e300), key, limit),
        )
        return [
            MediaItem(
                kind="snapshot", key=row["id"], camera=row["camera"], at_utc=row["started_utc"], size_bytes=row["picture_bytes"],
                classes=(row["class_name"],), favourite=bool(row["favourite"]),
            )
            for row in rows
        ]  # fmt: skip


_COLUMNS = (
    "id", "camera", "class_name", "score", "started_utc", "seen_utc", "ended_utc", "box", "zones", "zones_been", "lines", "version",
    "extra", "snapshot", "thumbnail", "picture_bytes", "has_clip",
)  # fmt: skip
_UPSERT = (
    f"INSERT INTO objects ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(
        f"{name} = excluded.{name}"
        for name in ("class_name", "score", "box", "zones", "zones_been", "lines", "version", "extra")
    )
    # Seen after its end: its camera has been on another box meanwhile, and is back.
    + ", seen_utc = max(seen_utc, excluded.seen_utc), ended_utc = CASE WHEN excluded.seen_utc > coalesce(ended_utc, -1)"
    + " THEN excluded.ended_utc ELSE coalesce(ended_utc, excluded.ended_utc) END"
    + "".join(
        f", {name} = CASE WHEN excluded.picture_bytes > 0 THEN excluded.{name} ELSE {name} END"
        for name in ("snapshot", "thumbnail", "picture_bytes")
    )
    + ", has_clip = max(has_clip, excluded.has_clip)"
)

_FORGET_CLIP = (
    "UPDATE objects SET has_clip = 0 WHERE camera = ? AND started_utc <= ? AND seen_utc >= ? AND NOT EXISTS (SELECT 1 FROM clips c"
    " WHERE c.camera = objects.camera AND c.began_utc <= objects.seen_utc AND c.ended_utc >= objects.started_utc)"
)


def _row(event: ObjectEvent, pictures: Pictures) -> tuple[Any, ...]:
    return (
        event.id, event.camera, event.class_name, event.score, event.started_utc, event.seen_utc, event.ended_utc,
        json.dumps(event.box), json.dumps(event.zones), json.dumps(event.zones_been), json.dumps(event.lines, sort_keys=True),
        event.version, json.dumps(event.extra, sort_keys=True), pictures.snapshot, pictures.thumbnail, pictures.size_bytes,
        int(event.has_clip),
    )  # fmt: skip


def _stored(row: Any) -> StoredObject:
    ended_utc = row["ended_utc"]
    event = ObjectEvent(
        id=row["id"], camera=row["camera"], what="update" if ended_utc is None else "end", class_name=row["class_name"],
        score=row["score"], box=tuple(json.loads(row["box"])), started_utc=row["started_utc"], seen_utc=row["seen_utc"],
        ended_utc=ended_utc, zones=tuple(json.loads(row["zones"])), zones_been=tuple(json.loads(row["zones_been"])),
        lines=json.loads(row["lines"]), version=row["version"], has_snapshot=bool(row["snapshot"]), has_clip=bool(row["has_clip"]),
        extra=json.loads(row["extra"]),
    )  # fmt: skip
    return StoredObject(event=event, favourite=bool(row["favourite"]), snapshot=row["snapshot"], thumbnail=row["thumbnail"])


def _clip(row: Any) -> StoredClip:
    return StoredClip(
        id=row["id"], camera=row["camera"], path=row["path"], began_utc=row["began_utc"], ended_utc=row["ended_utc"],
        size_bytes=row["size_bytes"], codec=row["codec"], masked=bool(row["masked"]),
    )  # fmt: skip


def _conditions(query: ObjectQuery) -> tuple[list[str], list[Any]]:
    """What must hold of `o`, and its values."""
    found: list[tuple[str, list[Any]]] = [
        (sql, [value])
        for sql, value in (
            ("o.camera = ?", query.camera), ("o.class_name = ?", query.class_name), ("o.seen_utc >= ?", query.from_utc),
            ("o.started_utc <= ?", query.to_utc), ("o.score >= ?", query.score_min or None),
        )
        if value is not None
    ]  # fmt: skip
    flags = (
        ("o.has_clip = 1", query.with_clip), ("o.snapshot != ''", query.with_snapshot), ("o.favourite = 1", query.favourite),
        ("o.ended_utc IS NULL", query.open),
    )  # fmt: skip
    found += [(sql, []) for sql, wanted in flags if wanted]
    if query.cameras is not None:
        found.append(("o.camera IN (SELECT value FROM json_each(?))", [json.dumps(sorted(query.cameras))]))
    if query.from_utc is not None:
        # Or else every older row would be read to find that nothing more is there.
        found.append(("o.started_utc >= ?", [query.from_utc - LONGEST_S]))
    if query.after is not None:
        place = "(z.started_utc, z.object)" if query.zone is not None else "(o.started_utc, o.id)"
        found.append((f"{place} < (?, ?)", list(_cursor(query.after))))
    return [sql for sql, _ in found], [value for _, values in found for value in values]


def no_object(id: str) -> UsageError:
    """There is none of this id, or none for who asks."""
    return UsageError(f"there is no event {id}", subject=id, code="not_found", remedy="it may have been deleted by now")


def cursor_of(started_utc: float, id: str) -> str:
    """Opaque to whoever gets it: where the following page begins."""
    return base64.urlsafe_b64encode(json.dumps([started_utc, id]).encode()).decode().rstrip("=")


def _cursor(text: str) -> tuple[float, str]:
    try:
        utc, id = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return float(utc), str(id)
    except (binascii.Error, ValueError, TypeError, UnicodeError):
        raise UsageError("'after' is no cursor of this list", remedy="leave it out to begin with the newest") from None
