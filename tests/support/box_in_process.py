"""A built box that runs in this process while something is done with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from edge.wiring.box import Box

T = TypeVar("T")
#: A box that ended by itself leaves what is done with it so long to notice.
NOTICES_S = 10.0


def while_it_runs(box: Box, body: Callable[[], T]) -> T:
    """Runs the box in this thread and `body` in another; the box stops when that returns. Returns or raises what `body` does."""
    found: Future[T] = Future()

    def work() -> None:
        try:
            found.set_result(body())
        except BaseException as error:
            found.set_exception(error)
        finally:
            box.runtime.stop()

    async def live() -> None:
        threading.Thread(target=work, daemon=True).start()
        await box.runtime.run(box.watched, box.first_window)

    asyncio.run(live())
    return found.result(NOTICES_S)
