"""`driftbox replay DATA_DIR`: feeds the journal's events to a fresh engine and compares its commands with the recorded ones.

Each journal segment begins with a checkpoint, so each is replayed on its own. Commands are compared as bytes. A journal of an earlier
version lacks the fields that commands have been given since: they count as written with their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.errors import StorageError
from edge.journal import journal_of
from scheduler.codec import decode, encode
from scheduler.engine import BoxEngine, Checkpoint
from scheduler.events import Event


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first command that differs. line: 1-based line of the segment; '' for a command that only one side has."""

    segment: str
    line: int
    event: str
    recorded: str
    replayed: str


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    segments: int
    events: int
    commands: int
    difference: Difference | None = None

    @property
    def exact(self) -> bool:
        return self.difference is None


def replay(data_dir: Path) -> ReplayResult:
    """Replays everything under `data_dir`/events, oldest first, up to the first difference.

    Raises StorageError when there is no journal or a line cannot be read."""
    segments = journal_of(data_dir)
    events = commands = 0
    for segment in segments:
        result = replay_lines(segment.lines, name=segment.path.name)
        events, commands = events + result.events, commands + result.commands
        if result.difference is not None:
            return ReplayResult(segments=len(segments), events=events, commands=commands, difference=result.difference)
    return ReplayResult(segments=len(segments), events=events, commands=commands)


def replay_lines(lines: Sequence[str], *, name: str = "segment") -> ReplayResult:
    """Replays one segment: a checkpoint, then events, each followed by the commands it led to."""
    if not lines:
        return ReplayResult(segments=1, events=0, commands=0)
    start = decode(lines[0])
    if not isinstance(start, Checkpoint):
        raise StorageError(f"{name} does not begin with a checkpoint", code="corrupt", remedy="move it out of events/")
    engine = BoxEngine(start.config, start.state)
    events = commands = 0
    for number, line, recorded, last in _groups(lines):
        replayed = [encode(command) for command in engine.handle(decode(line))]
        events, commands = events + 1, commands + len(recorded)
        # A box that was killed may not have written all commands of its last event.
        if last:
            replayed = replayed[: len(recorded)]
        difference = _first_difference(name, number, line, recorded, replayed)
        if difference is not None:
            return ReplayResult(segments=1, events=events, commands=commands, difference=difference)
    return ReplayResult(segments=1, events=events, commands=commands)


def _groups(lines: Sequence[str]) -> Iterable[tuple[int, str, list[str], bool]]:
    """(line number, event line, its command lines, is it the last event) of a segment."""
    starts = [i for i in range(1, len(lines)) if isinstance(decode(lines[i]), Event)]
    for place, start in enumerate(starts):
        stop = starts[place + 1] if place + 1 < len(starts) else len(lines)
        yield start + 1, lines[start], list(lines[start + 1 : stop]), place + 1 == len(starts)


def _first_difference(
    name: str, number: int, event: str, recorded: Sequence[str], replayed: Sequence[str]
) -> Difference | None:
    for offset in range(max(len(recorded), len(replayed))):
        old = recorded[offset] if offset < len(recorded) else ""
        new = replayed[offset] if offset < len(replayed) else ""
        if old != new and not _same_since(old, new):
            return Difference(segment=name, line=number + 1 + offset, event=event, recorded=old, replayed=new)
    return None


def _same_since(old: str, new: str) -> bool:
    """Is `old`, which lacks a field or more, the same command? A field that commands have no longer is a difference."""
    return bool(old and new) and json.loads(old).keys() < json.loads(new).keys() and encode(decode(old)) == new
