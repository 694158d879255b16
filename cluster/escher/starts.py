"""Of several attempts at one task, only one does the work (card section 5, soft constraints, [C]: "first start wins").

`cluster.escher.policies.soft` begins an attempt when the engine says that the one before has ended. Engines can be wrong about that: a
worker that was cut off, or a pod on a node that was given up, may start late. So the first act of an attempt is a claim: the first start
wins, except that an attempt takes over from an earlier one, which is held to have ended; who starts after a later attempt has started
is turned away. One holder for all attempts: `in_process` here, on a Ray cluster `cluster.engines.ray_starts:in_cluster`.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cluster.engines.base import TaskContext, Work


class Holder(Protocol):
    def claim(self, task: str, attempt: int) -> bool:
        """True: do it. False: a later attempt has started."""


class Starts:
    """A `Holder`. Thread-safe."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}
        self._lock = threading.Lock()

    def claim(self, task: str, attempt: int) -> bool:
        with self._lock:
            latest = self._latest.setdefault(task, attempt)
            self._latest[task] = max(latest, attempt)
            return attempt >= latest

    def forget(self, task: str) -> None:
        """It is over, and its id may be used again."""
        with self._lock:
            self._latest.pop(task, None)


_here = Starts()


def in_process() -> Starts:
    """The holder for engines whose work runs in this process."""
    return _here


def once(work: Work, task: str, *, holder: str = "cluster.escher.starts:in_process") -> Work:
    """`work` for `soft.Soft`, done by one attempt at `task`. holder: 'package.module:function' that gives the `Holder` where it runs."""
    inner = {"entry": work.entry, "arguments": dict(work.arguments), "task": task, "holder": holder}
    return Work(entry="cluster.escher.starts:run_once", arguments=inner)


def run_once(context: TaskContext, *, entry: str, arguments: Mapping[str, Any], task: str, holder: str) -> Any:
    """Claims first; None at once when it is turned away."""
    attempt = int(context.task.rpartition("~a")[2])
    if not _named(holder)().claim(task, attempt):
        return None
    return _named(entry)(context, **arguments)


def _named(entry: str) -> Callable[..., Any]:
    module, _, name = entry.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
