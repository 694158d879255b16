"""How much of the disk a box takes, by kind of data. Walking the folder takes a while, so an answer is kept for a minute."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

#: Kinds that are told always; whatever else lies in the folder is `other`.
KINDS = ("database", "samples", "models", "events", "media", "forms", "backups", "exports", "other")
#: Folders that are counted with another.
COUNTED_AS = {"golden-forms": "forms"}
KEPT_S = 60.0


class DiskUse:
    """now_s: a monotonic clock."""

    def __init__(self, root: Path, now_s: Callable[[], float]) -> None:
        self._root, self._now_s = root, now_s
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._seen_s = float("-inf")

    def bytes(self) -> dict[str, int]:
        """Bytes by kind; a file with several names (a back-up's link) counts once, where it is found first."""
        with self._lock:
            if self._now_s() - self._seen_s > KEPT_S:
                self._seen, self._seen_s = _sizes(self._root), self._now_s()
            return dict(self._seen)

    def free_bytes(self) -> int:
        try:
            return shutil.disk_usage(self._root).free
        except OSError:
            return 0


def _sizes(root: Path) -> dict[str, int]:
    found = dict.fromkeys(KINDS, 0)
    counted: set[tuple[int, int]] = set()
    for name in sorted(_names(root), key=lambda n: n == "backups"):  # back-ups last: what they share is counted elsewhere
        kind = "database" if name.startswith("driftbox.db") else COUNTED_AS.get(name, name)
        kind = kind if kind in KINDS else "other"
        found[kind] += _size(root / name, counted)
    return found


def _names(root: Path) -> list[str]:
    try:
        return os.listdir(root)
    except OSError:
        return []


def _size(path: Path, counted: set[tuple[int, int]]) -> int:
    files = [path] if not path.is_dir() else [Path(folder) / n for folder, _, names in os.walk(path) for n in names]
    total = 0
    for file in files:
        try:
            about = file.lstat()
        except OSError:  # removed meanwhile
            continue
        if about.st_nlink > 1:
            if (about.st_dev, about.st_ino) in counted:
                continue
            counted.add((about.st_dev, about.st_ino))
        total += about.st_size
    return total
