"""What one worker of pytest-xdist does in one go: a file, and all that needs Ray, whatever file it stands in, so that one worker begins
one cluster and ends it after the last of them. Each that begins costs a small machine a minute."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

RAY = "ray"
#: Files, and single tests, that need Ray; beside them all with the parameter `ray`.
NEED_RAY = (
    "tests/integration/test_pooled_training.py::",
    "tests/integration/test_ray_engine.py::",
    "tests/integration/test_fluid_in_ray_tune.py::",
    "tests/integration/test_fleet_lease_and_engine.py::test_the_lease_and_the_engine_of_ray",
)
_PARAMETER = re.compile(r"[\[-]ray[\]-]")


def turn_of(nodeid: str) -> str:
    """The name of what is done in one go with this test."""
    path, _, test = nodeid.partition("::")
    return RAY if nodeid.startswith(NEED_RAY) or _PARAMETER.search(test) else path


def in_turns(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """What needs Ray first, for it takes longest. The other integration tests are spread over the run, the longest files first: they
    wait more than they compute, the others compute, so that workers at once leave no core idle and none of them ends with minutes to
    go."""
    turns: dict[str, list[pytest.Item]] = {}
    for item in items:
        turns.setdefault(turn_of(item.nodeid), []).append(item)
        if item.get_closest_marker("ray") and turn_of(item.nodeid) != RAY:
            raise pytest.UsageError(f"{item.nodeid} needs Ray: tests/support/turns.py must know it")
    first = turns.pop(RAY, [])
    waiting = sorted((turn for turn in turns if "integration" in turn.split("/")), key=lambda turn: -_patience_s(turns[turn]))
    computing = [turn for turn in turns if "integration" not in turn.split("/")]
    places = [((n + 0.5) / len(some), turn) for some in (waiting, computing) for n, turn in enumerate(some)]
    return first + [item for _, turn in sorted(places, key=lambda place: place[0]) for item in turns[turn]]


def _patience_s(items: list[pytest.Item]) -> float:
    """The longest that a test of a file may take by its own mark, 0: none has one."""
    marks = (item.get_closest_marker("timeout") for item in items)
    return max((float(mark.args[0]) for mark in marks if mark is not None and mark.args), default=0.0)
