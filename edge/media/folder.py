"""Snapshots, thumbnails and clips on disk: `media/<camera>/<yyyy-mm-dd>/`, days in UTC.

A file has its name when it is complete, and a row after that (`edge.store.objects`). On removal the file goes first. So after a kill
there are files without a row: clips, also half-written ones, are taken up again as far as they play; pictures are removed. Names come
from here and from the database only, and are looked at again before anything is opened.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, cast

from configs.errors import StorageError
from configs.files import TEMP_PREFIX, atomic_write, fsync_path, storage_errors, temp_path
from configs.units import is_camera_id
from edge.store.objects import ObjectStore, Pictures, StoredClip
from streams.recording import whole_part

_NAME = re.compile(
    r"[a-z0-9][a-z0-9_-]{0,62}/[0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9]{1,16}-[0-9a-f]{4,16}(-m)?(\.thumb)?\.(jpg|mp4|mkv)"
)
_CLIP = re.compile(r"(?P<ms>[0-9]{1,16})-[0-9a-f]{4,16}(?P<masked>-m)?\.(mp4|mkv)")
_MEDIA_TYPES = {".jpg": "image/jpeg", ".mp4": "video/mp4", ".mkv": "video/x-matroska"}


def media_type(path: str) -> str:
    """For `Content-Type`."""
    return _MEDIA_TYPES[Path(path).suffix]


class MediaFolder:
    """The folder `root`, made when it is not there. Raises StorageError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with storage_errors(root):
            root.mkdir(parents=True, exist_ok=True)

    def file(self, name: str) -> Path:
        """Where a file of that name lies. ValueError: no name of ours."""
        if not _NAME.fullmatch(name):
            raise ValueError("not the name of a media file")
        return self.root / name

    def write_pictures(self, camera: str, id: str, utc: float, *, snapshot: bytes, thumbnail: bytes) -> Pictures:
        """An object's best picture so far, instead of an earlier one. id: the object's; utc: when it was first seen."""
        day = _day(camera, utc)
        names = f"{day}/{id}.jpg", f"{day}/{id}.thumb.jpg"
        with storage_errors(self.root):
            self.file(names[0]).parent.mkdir(parents=True, exist_ok=True)
        for name, data in zip(names, (snapshot, thumbnail), strict=True):
            atomic_write(self.file(name), data, durable=False)
        return Pictures(snapshot=names[0], thumbnail=names[1], size_bytes=len(snapshot) + len(thumbnail))

    def new_clip(self, camera: str, began_utc: float, *, suffix: str, masked: bool) -> str:
        """A name for a clip."""
        return f"{_day(camera, began_utc)}/{int(began_utc * 1000)}-{secrets.token_hex(2)}{'-m' if masked else ''}{suffix}"

    def open_clip(self, name: str) -> BinaryIO:
        """The unfinished file of a clip, open for writing, without a buffer that a kill would empty. Raises OSError."""
        path = self.file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return cast(BinaryIO, self.unfinished(name).open("wb", buffering=0))

    def unfinished(self, name: str) -> Path:
        """Where a clip lies that has not got its name yet."""
        return temp_path(self.file(name))

    def finish_clip(self, name: str) -> int:
        """Gives a written and closed clip its name, and brings it to the disk; its size in bytes. Raises OSError."""
        path = self.file(name)
        part = self.unfinished(name)
        with suppress(OSError):  # a full disk: the name is what counts
            fsync_path(part)
        os.rename(part, path)
        return path.stat().st_size

    def drop_clip(self, name: str) -> None:
        """Removes the unfinished file of a clip."""
        with suppress(OSError):
            self.unfinished(name).unlink(missing_ok=True)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files; those that are gone already are no error."""
        for name in names:
            path = self.file(name)
            with storage_errors(path):
                path.unlink(missing_ok=True)
            for folder in (path.parent, path.parent.parent):
                with suppress(OSError):  # others are in it
                    folder.rmdir()

    # --- after a kill -------------------------------------------------------------------------------------------------

    def recover(self, store: ObjectStore) -> list[str]:
        """Takes up clips that were being written when the box was killed; what was found, in words. Before recording begins."""
        found = []
        for part in self._parts():
            name = f"{part.parent.relative_to(self.root).as_posix()}/{_final_name(part)}"
            played = whole_part(part) if _NAME.fullmatch(name) and not self.file(name).exists() else None
            with storage_errors(part):
                if played is None or not _CLIP.fullmatch(_final_name(part)):
                    part.unlink(missing_ok=True)
                    found.append(f"removed unfinished {name}")
                    continue
                os.rename(part, self.file(name))
            store.add_clip(self._found(name, *played))
            found.append(f"kept the clip {name} up to the moment when the box stopped")
        return found

    def settle(self, store: ObjectStore, *, before_utc: float) -> Iterator[str]:
        """Compares the files from before that moment with the database, one step at a time: yields what was done, in words.

        A clip without a row is taken up; a picture without one is removed; rows without a file let go of it."""
        known = store.paths()
        present = set()
        for path in sorted(self.root.glob("*/*/*")):
            name = path.relative_to(self.root).as_posix()
            if not _NAME.fullmatch(name):
                continue
            present.add(name)
            with suppress(FileNotFoundError):
                if name not in known and path.stat().st_mtime < before_utc:
                    yield self._settle_file(store, name, path)
        for name in sorted(known - present):
            if not self.file(name).exists():
                store.forget_path(name)
                yield f"{name} is gone"

    def _settle_file(self, store: ObjectStore, name: str, path: Path) -> str:
        played = whole_part(path) if _CLIP.fullmatch(path.name) else None
        if played is None:
            self.remove([name])
            return f"removed {name}, which belongs to nothing"
        store.add_clip(self._found(name, *played))
        return f"took up {name}"

    def _found(self, name: str, codec: str, length_s: float) -> StoredClip:
        path = self.file(name)
        match = _CLIP.fullmatch(path.name)
        assert match is not None
        began_utc = int(match["ms"]) / 1000
        return StoredClip(
            camera=name.split("/")[0], path=name, began_utc=began_utc, ended_utc=began_utc + length_s,
            size_bytes=path.stat().st_size, codec=codec, masked=match["masked"] is not None,
        )  # fmt: skip

    def _parts(self) -> list[Path]:
        with storage_errors(self.root):
            return sorted(
                path
                for path in self.root.glob(f"*/*/{TEMP_PREFIX}*")
                if path.is_file() and is_camera_id(path.parent.parent.name)
            )


def _final_name(part: Path) -> str:
    """The name that `configs.files.temp_path` made a temporary one of."""
    return part.name.removeprefix(TEMP_PREFIX).partition("-")[2]


def _day(camera: str, utc: float) -> str:
    """`gate/2026-01-31`. ValueError: no camera id. A time that no calendar has (a clock gone wild) counts as the beginning."""
    if not is_camera_id(camera):
        raise ValueError(f"not a camera id: {camera!r}")
    try:
        return f"{camera}/{datetime.fromtimestamp(utc, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError) as error:
        raise StorageError(
            f"{camera}: the clock shows no usable time", subject=camera, remedy="set the machine's clock"
        ) from error
