"""The wish in force, on disk before anything is done about it: whenever the box is killed, it comes up with the last one in force."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from configs.errors import UsageError
from configs.files import Write, atomic_write, storage_errors
from scheduler.fleet.codec import as_dict, decode
from scheduler.fleet.desire import Known
from scheduler.fleet.types import Desired

log = logging.getLogger(__name__)

SCHEMA = 1


class WishBook:
    """`known`: what the box remembers of the fleet's wishes. membership: its id; what another membership has left is forgotten. Raises
    StorageError when its file cannot be read at all; one that is damaged is put aside, and the box waits for the next wish."""

    def __init__(self, path: Path, *, membership: str, write: Write = os.write) -> None:
        self._path, self._membership, self._write = path, membership, write
        self.known = self._read()

    def keep(self, known: Known) -> None:
        """On disk, also after a power cut, when it returns. StorageError: it is not, and `known` is what it was."""
        if known == self.known:
            return
        body = {
            "schema": SCHEMA, "membership": self._membership, "highest": list(known.highest),
            "applied": as_dict(known.applied) if known.applied is not None else None,
        }  # fmt: skip
        atomic_write(self._path, json.dumps(body).encode(), write=self._write, secret=True)
        self.known = known

    def _read(self) -> Known:
        with storage_errors(self._path):
            text = self._path.read_text(errors="replace") if self._path.exists() else ""
        if not text:
            return Known()
        try:
            return _known(json.loads(text), self._membership)
        except (UsageError, ValueError, KeyError, TypeError) as error:
            log.warning("fleet: what was wished last cannot be read (%s); it is put aside, the next wish counts", error)
            with storage_errors(self._path):
                os.replace(self._path, self._path.with_suffix(".damaged"))
            return Known()


def _known(body: dict[str, Any], membership: str) -> Known:
    if body["schema"] != SCHEMA:
        raise ValueError(f"schema {body['schema']!r}")
    if body["membership"] != membership:
        return Known()
    term, version = body["highest"]
    applied = decode(Desired, body["applied"]) if body["applied"] is not None else None
    return Known(applied=applied, highest=(int(term), int(version)))
