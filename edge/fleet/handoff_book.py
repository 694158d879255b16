"""The camera orders in force, as a file of the data folder: after a restart a box goes on as it was told, alone or not."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from configs.errors import DriftboxError, UsageError
from configs.files import atomic_write, storage_errors
from scheduler.fleet.codec import as_dict, decode
from scheduler.fleet.types import CameraOrder

log = logging.getLogger("driftbox")

SCHEMA = 1
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,100}){1,6}")


class HandoffBook:
    """`fleet/cameras.json`, and `fleet/parcels/` with the sealed parcels that this box stands by with. Raises StorageError."""

    def __init__(self, data_dir: Path) -> None:
        self._file, self._parcels = data_dir / "fleet" / "cameras.json", data_dir / "fleet" / "parcels"

    def read(self) -> tuple[CameraOrder, ...]:
        """() where there is none, or what is there cannot be read: the controller says it again."""
        try:
            with storage_errors(self._file):
                if not self._file.is_file():
                    return ()
                return tuple(decode(CameraOrder, order) for order in json.loads(self._file.read_bytes())["orders"])
        except (DriftboxError, ValueError, KeyError, TypeError) as error:
            log.warning("the fleet's camera orders cannot be read, the box's own cameras are watched: %s", error)
            return ()

    def write(self, orders: Sequence[CameraOrder]) -> None:
        """Durable when it returns."""
        with storage_errors(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self._file, json.dumps({"schema": SCHEMA, "orders": [as_dict(order) for order in orders]}).encode())

    def keep(self, parcel: str, data: bytes) -> None:
        """A sealed parcel. UsageError for a name that is none."""
        with storage_errors(self._parcels):
            self._parcels.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(self._path(parcel), data, secret=True)

    def kept(self, parcel: str) -> bytes | None:
        """None: it does not lie here."""
        with storage_errors(self._parcels):
            path = self._path(parcel) if parcel else None
            return path.read_bytes() if path is not None and path.is_file() else None

    def keep_only(self, parcels: set[str]) -> None:
        """All others go."""
        with storage_errors(self._parcels):
            if self._parcels.is_dir():
                for path in self._parcels.iterdir():
                    if path.name not in parcels:
                        path.unlink(missing_ok=True)

    def _path(self, parcel: str) -> Path:
        if not _NAME.fullmatch(parcel):
            raise UsageError(f"{parcel[:80]!r} is no name of a parcel", subject="parcel")
        return self._parcels / parcel
