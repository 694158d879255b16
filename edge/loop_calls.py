"""Work in the thread of an event loop, asked for by any other thread, which waits for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from configs.errors import JobError

T = TypeVar("T")

#: Longest that work is waited for once it has begun. It takes milliseconds, but a machine that is far more than busy may stand still.
BEGUN_S = 120.0


def ask_loop(loop: asyncio.AbstractEventLoop | None, work: Callable[[], T], *, within_s: float) -> T:
    """Does `work` in the loop's thread and gives what it gives. Raises what it raises, and JobError (code 'not_running') when the loop
    does not run (yet, any more), or has not begun after `within_s`: then it never will. Work that has begun is waited for: whoever is
    told that nothing was done puts away what it was done with."""
    asked = Future[T]()

    def run() -> None:
        if not asked.set_running_or_notify_cancel():
            return
        try:
            asked.set_result(work())
        except BaseException as error:
            asked.set_exception(error)

    try:
        if loop is None:
            raise RuntimeError
        loop.call_soon_threadsafe(run)
    except RuntimeError as error:
        raise _not_now() from error
    try:
        return asked.result(within_s)
    except TimeoutError as error:
        if asked.cancel():
            raise _not_now() from error
    try:
        return asked.result(BEGUN_S)
    except TimeoutError as error:
        if asked.done():  # the work's own
            raise
        raise _not_now() from error


def _not_now() -> JobError:
    return JobError("the box does not take this now", remedy="it starts, ends, or is very busy: try again", code="not_running")
