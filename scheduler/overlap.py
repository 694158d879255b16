"""Whose time it was when several jobs ran on one device at once: each instant is divided equally among those in flight.

A GPU runs streams at the same time and nobody can say which part of it each had: an event pair says how long an iteration *took*,
which grows with every neighbour. Charging that would charge an instant once per job in flight, and shares would not add up to a device.
So with k(t) iterations in flight an iteration from s to e is charged

    integral from s to e of dt / k(t)

which is its length when it is alone, and adds up over all jobs to the time the device was busy. It is what a fair processor would have
done, the same that an operating system does with threads on one core (and which `scheduler.pacing` then measures in CPU time).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class _Piece:
    """One iteration. end_s: None while it is in flight."""

    job: str
    start_s: float
    end_s: float | None = None

    def until(self, now_s: float) -> float:
        return now_s if self.end_s is None else min(self.end_s, now_s)


class Overlap:
    """The account of one device. One iteration per job at a time. Ends may be told late and out of order: what is in flight counts as
    running until its end is known, so the charge of a neighbour that ended in between may be too low by its part of the delay, never
    too high. Not thread-safe."""

    def __init__(self) -> None:
        self._done_s: dict[str, float] = {}
        self._told_s: dict[str, float] = {}
        self._pieces: list[_Piece] = []
        self._running: dict[str, _Piece] = {}

    def begin(self, job: str, at_s: float) -> None:
        """ValueError: the job has a piece in flight."""
        if job in self._running:
            raise ValueError(f"job {job!r} is in flight already")
        piece = self._running[job] = _Piece(job=job, start_s=at_s)
        self._pieces.append(piece)

    def end(self, job: str, at_s: float) -> float:
        """The piece ended at `at_s` (not before its start). Returns its charge in seconds."""
        piece = self._running.pop(job)
        piece.end_s = max(at_s, piece.start_s)
        charge_s = self._charge_s(piece, piece.end_s)
        self._done_s[job] = self._done_s.get(job, 0.0) + charge_s
        self._forget()
        return charge_s

    def used_s(self, job: str, now_s: float) -> float:
        """All the job was charged up to `now_s`, the piece in flight included. Never falls."""
        total_s = self._done_s.get(job, 0.0) + self.running_s(job, now_s)
        self._told_s[job] = max(total_s, self._told_s.get(job, 0.0))
        return self._told_s[job]

    def running_s(self, job: str, now_s: float) -> float:
        """What the piece in flight would be charged if it ended at `now_s`; 0 when there is none."""
        piece = self._running.get(job)
        return 0.0 if piece is None else self._charge_s(piece, max(now_s, piece.start_s))

    def forget(self, job: str) -> None:
        """The job has gone; its account begins at 0 when it comes back. What it has in flight ends unaccounted."""
        self._running.pop(job, None)
        self._pieces = [piece for piece in self._pieces if piece.job != job or piece.end_s is not None]
        self._done_s.pop(job, None)
        self._told_s.pop(job, None)
        self._forget()

    def in_flight(self) -> tuple[str, ...]:
        return tuple(self._running)

    def _charge_s(self, piece: _Piece, until_s: float) -> float:
        others = [
            (max(other.start_s, piece.start_s), min(other.until(until_s), until_s))
            for other in self._pieces
            if other is not piece and other.start_s < until_s and other.until(until_s) > piece.start_s
        ]
        edges = sorted({piece.start_s, until_s, *(edge for span in others for edge in span)})
        return sum(
            (right - left) / (1 + sum(start <= left and right <= end for start, end in others))
            for left, right in zip(edges, edges[1:], strict=False)
        )

    def _forget(self) -> None:
        """Pieces that ended before everything in flight began can no longer overlap with anything."""
        oldest_s = min((piece.start_s for piece in self._running.values()), default=None)
        self._pieces = [
            piece for piece in self._pieces if piece.end_s is None or (oldest_s is not None and piece.end_s > oldest_s)
        ]
