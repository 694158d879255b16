"""What every job was promised and received over a window, kept while jobs come and go.

A backend reports a span that ends now and forgets a job when its lane closes; a window is longer than its memory. So the book is
brought up to date now and then, before a lane closes, and when the window ends, and adds up what was reported since the last time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from configs.errors import redact
from edge.gpu.base import ShareReport

log = logging.getLogger("driftbox")

#: A book that was not brought up to date for longer than backends remember has a gap; what is kept says how long it covers.
UPDATE_S = 5.0
#: Spans shorter than this say nothing: clocks and accounts are no finer.
LEAST_S = 0.001


@dataclass(kw_only=True)
class _Sum:
    """Seconds of compute promised and received, seconds in which the job wanted to run, iterations, seconds covered."""

    promised_s: float = 0.0
    received_s: float = 0.0
    backlogged_s: float = 0.0
    iterations: int = 0
    span_s: float = 0.0

    def add(self, report: ShareReport) -> None:
        self.promised_s += report.promised_pct / 100.0 * report.span_s
        self.received_s += report.received_pct / 100.0 * report.span_s
        self.backlogged_s += report.backlogged_frac * report.span_s
        self.iterations += report.iterations
        self.span_s += report.span_s


class ShareBook:
    """Thread-safe. report: `ComputeBackend.report`; it is asked with the lock held, so that no span is counted twice."""

    def __init__(self, report: Callable[[float], Mapping[str, ShareReport]], now_s: float) -> None:
        self._report = report
        self._seen_s = now_s
        self._sums: dict[str, _Sum] = {}
        self._failed = False
        self._lock = threading.Lock()

    def update(self, now_s: float, *, at_least_s: float = LEAST_S) -> None:
        """Adds what happened since the last call, unless that is less than `at_least_s` ago."""
        with self._lock:
            self._update(now_s, at_least_s)

    def close_window(self, now_s: float) -> tuple[ShareReport, ...]:
        """The window's shares of every job that was promised or took something in it, by job; the book begins anew. promised_pct and
        received_pct are means over the time for which the job had its lane (`span_s`), which may be shorter than the window."""
        with self._lock:
            self._update(now_s, LEAST_S)
            sums, self._sums = self._sums, {}
        return tuple(
            _mean(job, total) for job, total in sorted(sums.items()) if total.promised_s > 0 or total.received_s >= LEAST_S
        )

    def _update(self, now_s: float, at_least_s: float) -> None:
        elapsed_s = now_s - self._seen_s
        if elapsed_s < at_least_s:
            return
        try:
            reports = self._report(elapsed_s)
        except Exception as error:  # a device that is gone, say: accounts must not end the jobs they are about
            if not self._failed:
                log.warning("what jobs received is not known: %s", redact(f"{type(error).__name__}: {error}"))
            self._failed = True
            return  # the next update covers this time, as far as the backend remembers
        self._seen_s, self._failed = now_s, False
        for job, report in reports.items():
            if report.span_s > 0:
                self._sums.setdefault(job, _Sum()).add(report)


def _mean(job: str, total: _Sum) -> ShareReport:
    return ShareReport(
        job=job, promised_pct=100.0 * total.promised_s / total.span_s, received_pct=100.0 * total.received_s / total.span_s,
        backlogged_frac=min(1.0, total.backlogged_s / total.span_s), iterations=total.iterations, span_s=total.span_s,
    )  # fmt: skip


def described(report: ShareReport) -> str:
    """One line for the log."""
    return (
        f"{report.job}: promised {report.promised_pct:.1f} %, received {report.received_pct:.1f} %, wanted to run "
        f"{100 * report.backlogged_frac:.0f} % of {report.span_s:.0f} s, {report.iterations} iterations"
    )


def owed(reports: Sequence[ShareReport], *, wanted_frac: float) -> dict[str, float]:
    """received - promised, percentage points, of the jobs that wanted to run at least `wanted_frac` of the time; the others may
    lawfully have received less."""
    return {r.job: r.received_pct - r.promised_pct for r in reports if r.backlogged_frac >= wanted_frac}
