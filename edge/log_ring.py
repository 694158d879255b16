"""The last lines of the log, kept in memory for the Health page and for diagnostics. Redacted before they are kept."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from configs.errors import redact

KEPT, LINE_MAX = 1000, 1000


@dataclass(frozen=True, kw_only=True)
class Line:
    """number: rises by one with each line, so that a reader sees what it missed. level: INFO, WARNING, ..."""

    number: int
    at_utc: float
    level: str
    logger: str
    text: str


class LogRing(logging.Handler):
    """The newest `kept` lines of whatever logger it is added to. Tracebacks are left out: they stand in the service's own log."""

    def __init__(self, *, kept: int = KEPT) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[Line] = deque(maxlen=kept)
        self._number = 0
        self._lines_lock = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = redact(record.getMessage())[:LINE_MAX]
        except Exception:  # arguments that do not fit the message: the line is lost, and nothing else
            text = "(a line that could not be put together)"
        with self._lines_lock:
            self._number += 1
            self._lines.append(
                Line(number=self._number, at_utc=record.created, level=record.levelname, logger=record.name, text=text)
            )

    def lines(self, *, after: int = 0, level: str = "INFO", limit: int = KEPT) -> list[Line]:
        """The newest `limit` lines of at least this level with a number above `after`, oldest first."""
        least = logging.getLevelNamesMapping().get(level, logging.INFO)
        with self._lines_lock:
            known = list(self._lines)
        fit = [x for x in known if x.number > after and logging.getLevelNamesMapping().get(x.level, logging.INFO) >= least]
        return fit[-limit:] if limit > 0 else []


#: Of this process.
RING = LogRing()
