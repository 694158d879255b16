"""Whether there is room for snapshots and clips. They are the first to rest when the disk fills; inference and learning go on."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from configs.errors import redact


def free_mib_of(folder: Path) -> float:
    """Free room for this user on the disk of a folder."""
    return shutil.disk_usage(folder).free / 2**20


#: Seconds that nothing is tried after a write has failed, however much room there seems to be.
FAILED_S = 60.0


class Space:
    """From any thread. say: told when recording rests and when it goes on."""

    def __init__(
        self, folder: Path, *, free_mib: Callable[[Path], float] = free_mib_of, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._free_mib, self._clock_s = folder, free_mib, clock_s
        self._lock = threading.Lock()
        self._problem = ""
        self._until_s = float("-inf")
        self.say: Callable[[str], None] = lambda text: None

    @property
    def problem(self) -> str:
        """Why nothing is recorded, empty: there is room."""
        return self._problem

    def free_mib(self) -> float:
        return self._free_mib(self._folder)

    def failed(self, why: str) -> None:
        """A write has failed: nothing is recorded for a while."""
        with self._lock:
            self._until_s = self._clock_s() + FAILED_S
        self.rest(why)

    def rest(self, why: str) -> None:
        """Nothing is recorded until `go_on`. Said once."""
        with self._lock:
            known, self._problem = self._problem, redact(why)
        if not known:
            self.say(f"no snapshots and clips are kept until there is room again: {redact(why)}")

    def go_on(self) -> None:
        """There is room."""
        with self._lock:
            if self._clock_s() < self._until_s:
                return
            known, self._problem = self._problem, ""
        if known:
            self.say("snapshots and clips are kept again")
