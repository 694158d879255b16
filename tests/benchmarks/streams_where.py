"""Where the time of a frame goes, for `driftbox bench streams --only where`: stage by stage, and what a thread did meanwhile.

The kernel counts for each thread how long it was on a core and how long it waited for one (`/proc/thread-self/schedstat`, Linux). What
is left of a stage's time it was blocked. Inside the decoder, the conversion and the model there is nothing to be blocked on but Python's
lock, so there it is the time in which the thread waited for that. Other programs make both waits longer, but cannot hide which it was:
a thread that holds the lock and is put aside for them keeps all others waiting for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge import inference
from edge.gpu.executor import Executor
from streams import camera
from streams.video import RgbMaker

SCHEDSTAT = "/proc/thread-self/schedstat"
#: What is looked at: (name, object, attribute).
STAGES: tuple[tuple[str, Any, str], ...] = (
    ("packet", camera.PyavCamera, "_take"),
    ("decoder", camera, "_pictures"),
    ("to RGB", RgbMaker, "make"),
    ("turn", Executor, "_begin"),
    ("model", inference, "ask"),
    ("turn's end", Executor, "_end"),
)


@dataclass(frozen=True, kw_only=True)
class Span:
    """Milliseconds of one call. blocked_ms: neither on a core nor waiting for one."""

    wall_ms: float
    core_ms: float
    queued_ms: float

    @property
    def blocked_ms(self) -> float:
        return max(0.0, self.wall_ms - self.core_ms - self.queued_ms)


def can_tell() -> bool:
    return Path(SCHEDSTAT).exists()


class Where:
    """Spans by stage, of all threads, while it is `watching`."""

    def __init__(self) -> None:
        self._spans: dict[str, list[Span]] = {name: [] for name, _, _ in STAGES}
        self._local = threading.local()

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = [getattr(owner, attribute) for _, owner, attribute in STAGES]
        for (name, owner, attribute), function in zip(STAGES, before, strict=True):
            setattr(owner, attribute, self._watched(name, function))
        try:
            yield
        finally:
            for (_, owner, attribute), function in zip(STAGES, before, strict=True):
                setattr(owner, attribute, function)

    def clear(self) -> None:
        for spans in self._spans.values():
            spans.clear()

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **how: Any) -> Any:
            began_s, (core_ms, queued_ms) = time.monotonic(), self._clocks_ms()
            try:
                return function(*args, **how)
            finally:
                core_after_ms, queued_after_ms = self._clocks_ms()
                self._spans[name].append(
                    Span(
                        wall_ms=1000 * (time.monotonic() - began_s), core_ms=core_after_ms - core_ms,
                        queued_ms=queued_after_ms - queued_ms,
                    )
                )  # fmt: skip

        return timed

    def _clocks_ms(self) -> tuple[float, float]:
        """(on a core, waiting for one) of the calling thread so far. The file stays open as long as the thread lives."""
        file = getattr(self._local, "file", None)
        if file is None:
            file = self._local.file = open(SCHEDSTAT, "rb", buffering=0)  # noqa: SIM115
        core_ns, queued_ns, _ = os.pread(file.fileno(), 100, 0).split()
        return int(core_ns) / 1e6, int(queued_ns) / 1e6

    def lines(self) -> Iterator[str]:
        for name, spans in self._spans.items():
            found = list(spans)  # threads go on
            if not found:
                continue
            wall, core, queued, blocked = (
                np.array([getattr(span, field) for span in found])
                for field in ("wall_ms", "core_ms", "queued_ms", "blocked_ms")
            )
            yield (
                f"{name:<10} {len(found):>5} times, mean {wall.mean():7.2f} ms = {core.mean():5.2f} on a core + {queued.mean():6.2f} "
                f"waiting for one + {blocked.mean():7.2f} blocked (p50 {np.median(blocked):.2f}, p99 {np.percentile(blocked, 99):.1f})"
            )
