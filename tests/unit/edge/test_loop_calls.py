"""Work in the loop's thread: whoever waits is told what came of it, and never that nothing was done while it is being done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from configs.errors import JobError, UsageError
from edge import loop_calls
from edge.loop_calls import ask_loop

PATIENCE_S = 60.0


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def test_it_is_done_in_the_loops_thread_and_gives_what_it_gives(loop: asyncio.AbstractEventLoop) -> None:
    assert ask_loop(loop, threading.get_ident, within_s=PATIENCE_S) != threading.get_ident()


@pytest.mark.parametrize("error", [UsageError("no"), TimeoutError("its own"), RuntimeError("its own")])
def test_its_error_is_raised(loop: asyncio.AbstractEventLoop, error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        ask_loop(loop, work, within_s=PATIENCE_S)
    assert raised.value is error


def test_without_a_loop_it_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    ended = asyncio.new_event_loop()
    ended.close()
    for none in (None, ended):
        with pytest.raises(JobError, match="does not take this now"):
            ask_loop(none, lambda: None, within_s=PATIENCE_S)


def test_what_has_not_begun_in_time_is_refused_and_never_done(loop: asyncio.AbstractEventLoop) -> None:
    held, done = threading.Event(), threading.Event()
    loop.call_soon_threadsafe(held.wait, PATIENCE_S)
    with pytest.raises(JobError):
        ask_loop(loop, done.set, within_s=0.0)
    held.set()
    ask_loop(loop, lambda: None, within_s=PATIENCE_S)  # it comes after what was refused
    assert not done.is_set()


def test_what_has_begun_is_waited_for(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A camera whose change took the loop longer than that was put away although the box had it: it stood there, stopped, for ever."""
    begun, given_up = threading.Event(), threading.Event()

    class Watched(Future[Any]):
        """Whoever waits has had enough as soon as the work has begun, which ends when it is to be called off."""

        def result(self, timeout: float | None = None) -> Any:
            assert begun.wait(PATIENCE_S)
            return super().result(timeout)

        def cancel(self) -> bool:
            could = super().cancel()
            given_up.set()
            return could

    def work() -> str:
        begun.set()
        assert given_up.wait(PATIENCE_S)
        return "taken in"

    monkeypatch.setattr(loop_calls, "Future", Watched)
    assert ask_loop(loop, work, within_s=0.0) == "taken in"


def test_work_that_hangs_is_not_waited_for_for_ever(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(loop_calls, "BEGUN_S", 0.0)
    with pytest.raises(JobError):
        ask_loop(loop, lambda: ended.wait(PATIENCE_S), within_s=0.0)
    ended.set()
