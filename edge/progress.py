"""Progress of long work: a bar on a terminal, plain lines elsewhere (a log, a pipe), nothing with `--json`.

with make_progress(enabled=True) as progress:
    task = progress.task("labelling", total=40)
    task.advance()
    task.note("kept 12 frames")
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from configs.errors import redact

if TYPE_CHECKING:
    from rich.progress import TaskID

#: Plain lines come at most this often per task, besides the first and the last.
PLAIN_INTERVAL_S = 5.0


class Task(Protocol):
    """One piece of work. total: how many steps it has, None when unknown."""

    def advance(self, steps: float = 1) -> None: ...

    def set(self, done: float, total: float | None = None) -> None: ...

    def note(self, text: str) -> None: ...


class Progress(Protocol):
    """Where tasks are shown. A context manager; leaving it ends the display."""

    def task(self, name: str, total: float | None = None) -> Task: ...

    def note(self, text: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None: ...


def make_progress(*, enabled: bool = True, stream: TextIO | None = None) -> Progress:
    """A bar when `stream` (default: stderr) is a terminal, else lines; silence when not enabled."""
    out = stream or sys.stderr
    if not enabled:
        return SilentProgress()
    return BarProgress(out) if out.isatty() else PlainProgress(out)


class _Base:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        return None


class SilentProgress(_Base):
    """For machines: says nothing."""

    def task(self, name: str, total: float | None = None) -> Task:
        return _SilentTask()

    def note(self, text: str) -> None:
        return None


class _SilentTask:
    def advance(self, steps: float = 1) -> None:
        return None

    def set(self, done: float, total: float | None = None) -> None:
        return None

    def note(self, text: str) -> None:
        return None


class PlainProgress(_Base):
    """Lines such as `labelling: 12 of 40 (30 %)`: at the start, every few seconds, and at the end."""

    def __init__(self, stream: TextIO, *, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._stream, self.interval_s = stream, interval_s

    def task(self, name: str, total: float | None = None) -> Task:
        return _PlainTask(self, name, total)

    def note(self, text: str) -> None:
        print(redact(text), file=self._stream, flush=True)


class _PlainTask:
    def __init__(self, progress: PlainProgress, name: str, total: float | None) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._done = 0.0
        self._said: float | None = None
        self._said_s = 0.0

    def advance(self, steps: float = 1) -> None:
        self.set(self._done + steps)

    def set(self, done: float, total: float | None = None) -> None:
        self._done, self._total = done, total if total is not None else self._total
        now = time.monotonic()
        finished = self._total is not None and done >= self._total
        due = self._said is None or now - self._said_s >= self._progress.interval_s
        if (due or finished) and self._said != done:
            self._said, self._said_s = done, now
            self._progress.note(self._line())

    def _line(self) -> str:
        if not self._total:
            return f"{self._name}: {self._done:g}"
        return f"{self._name}: {self._done:g} of {self._total:g} ({100 * self._done / self._total:.0f} %)"

    def note(self, text: str) -> None:
        self._progress.note(f"{self._name}: {text}")


class BarProgress:
    """A bar per task, drawn by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=stream),
            transient=False,
        )

    def __enter__(self) -> Self:
        self.rich.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.rich.stop()

    def task(self, name: str, total: float | None = None) -> Task:
        number = self.rich.add_task(name, total=total)
        return _BarTask(self, number)

    def note(self, text: str) -> None:
        self.rich.console.print(redact(text), markup=False, highlight=False)


class _BarTask:
    def __init__(self, progress: BarProgress, number: TaskID) -> None:
        self._progress, self._number = progress, number

    def advance(self, steps: float = 1) -> None:
        self._progress.rich.advance(self._number, steps)

    def set(self, done: float, total: float | None = None) -> None:
        self._progress.rich.update(self._number, completed=done, total=total)

    def note(self, text: str) -> None:
        self._progress.note(text)
