"""What is under way, a JSON file for each in a folder: there whole or as before, and read back after a kill."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from configs.errors import UsageError
from configs.files import atomic_write, storage_errors
from scheduler.fleet.types import checked

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger("driftbox")

T = TypeVar("T", bound="DataclassInstance")


class Notes(Generic[T]):
    """what: a name is of, in words; made: a note of its JSON object, with ValueError, TypeError or KeyError where it is none. Every
    method raises StorageError, and UsageError for a name that is none."""

    def __init__(self, folder: Path, what: str, made: Callable[[dict[str, Any]], T]) -> None:
        self._folder, self._what, self._made = folder, what, made

    def read(self, name: str) -> T | None:
        """None: there is none, or what is there cannot be read, which costs that one only."""
        path = self._path(name)
        try:
            with storage_errors(path):
                said = json.loads(path.read_bytes()) if path.is_file() else None
            return self._made(said) if said is not None else None
        except (ValueError, TypeError, KeyError) as error:
            log.warning("what is noted of %s %s cannot be read: %s", self._what, name, error)
            return None

    def all(self) -> list[T]:
        """By name."""
        with storage_errors(self._folder):
            names = sorted(path.stem for path in self._folder.glob("*.json"))
        return [note for name in names if (note := self.read(name)) is not None]

    def write(self, name: str, note: T) -> T:
        """Durable when it returns."""
        path = self._path(name)
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(path, json.dumps(asdict(note)).encode())
        return note

    def forget(self, name: str) -> None:
        path = self._path(name)
        with storage_errors(path):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        try:
            return self._folder / f"{checked(name, self._what)}.json"
        except ValueError as error:
            raise UsageError(str(error), subject=name[:80]) from None
