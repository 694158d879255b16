"""How the suite runs: in what order, and hypothesis on the same examples on any machine and without judging by the clock.

A property that fails must do so where it was broken, not on somebody's machine months later. To look for new examples:
`pytest --hypothesis-profile=explore`, after a change of what is generated or of what it tests.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.turns import RAY, in_turns, turn_of

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=(HealthCheck.too_slow,))
settings.register_profile("explore", deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _our_log_is_heard() -> Iterator[None]:
    """Whatever a library, or a test before, has done to it; and what a command that a test calls sets up ends with that test: its
    output, to which all later ones would go on writing, is closed then."""
    logging.disable(logging.NOTSET)
    log, root = logging.getLogger("driftbox"), logging.getLogger()
    log.propagate = True
    for known in logging.root.manager.loggerDict.values():  # import-linter switches off all that are there before it
        if isinstance(known, logging.Logger):
            known.disabled = False
    log.setLevel(logging.NOTSET)
    root.setLevel(logging.WARNING)
    before, hook = list(root.handlers), threading.excepthook
    yield
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)
    threading.excepthook = hook


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Beside a failure of a test that listens to the log: who could have heard it, and who kept it from being said."""
    report: Any = yield
    if call.when == "call" and report.failed and "caplog" in getattr(item, "fixturenames", ()):
        report.sections.append(
            ("our log", f"{_described('driftbox')}\n{_described(None)}\nmanager: {logging.root.manager.disable}")
        )
    return report


def _described(name: str | None) -> str:
    log = logging.getLogger(name)
    heard = [(type(handler).__name__, handler.level, handler.filters) for handler in log.handlers]
    own = {key: value for key, value in vars(log).items() if key in ("warning", "info", "log", "_log", "handle")}
    return (
        f"{log!r}: level {log.level}, disabled {log.disabled}, propagates {log.propagate} to {log.parent!r}, filters {log.filters}, "
        f"handlers {heard}, replaced {own}"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`: files, but for what `tests.support.turns` says."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class InTurns(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return turn_of(nodeid)

    return InTurns(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_turns(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Three idle nodes cost what another worker could use. Within a file they stay: its fixtures still hold them, and end with it."""
    if nextitem is not None and nextitem.path == item.path:
        return
    if turn_of(item.nodeid) == RAY and (nextitem is None or turn_of(nextitem.nodeid) != RAY):
        from tests.support.ray_cluster import end

        end()
