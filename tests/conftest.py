"""How the suite runs: in what order, and hypothesis on the same examples on any machine and without judging by the clock.

A property that fails must do so where it was broken, not on somebody's machine months later. To look for new examples:
`pytest --hypothesis-profile=explore`, after a change of what is generated or of what it tests.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=(HealthCheck.too_slow,))
settings.register_profile("explore", deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _our_log_is_heard() -> None:
    """Whatever a library, or a test before, has done to it."""
    logging.disable(logging.NOTSET)
    log = logging.getLogger("driftbox")
    log.disabled, log.propagate = False, True
    log.setLevel(logging.NOTSET)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spreads the integration tests over the run, the longest files first: they wait more than they compute, the others compute, so
    that workers at once leave no core idle and none of them ends with minutes to go."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = sorted((path for path in files if "integration" in path.parts), key=lambda path: -_patience_s(files[path]))
    computing = [path for path in files if "integration" not in path.parts]
    places = [((n + 0.5) / len(kind), path) for kind in (waiting, computing) for n, path in enumerate(kind)]
    items[:] = [item for _, path in sorted(places, key=lambda place: place[0]) for item in files[path]]


def _patience_s(items: list[pytest.Item]) -> float:
    """The longest that a test of a file may take by its own mark, 0: none has one."""
    marks = (item.get_closest_marker("timeout") for item in items)
    return max((float(mark.args[0]) for mark in marks if mark is not None and mark.args), default=0.0)
