"""Calls of a library that may wait for ever, with an end (here: Ray's, when the head of its cluster dies under them)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


class Bounded(Protocol):
    """Whose methods are marked. call_s: the longest that one may take."""

    call_s: float

    def unanswered(self) -> Exception:
        """What is raised after that."""


_here = threading.local()


def bounded(method: Method) -> Method:
    """The method, run in a thread of its own and left to it when it takes longer than `call_s`: nobody can end a call inside a library,
    and a thread that waits costs nothing but its place. It may still have its effect later. Called by another such method, it is part
    of that one's time."""

    @functools.wraps(method)
    def call(self: Bounded, *args: Any, **more: Any) -> Any:
        if getattr(_here, "inside", False):
            return method(self, *args, **more)
        answer: Future[Any] = Future()

        def run() -> None:
            _here.inside = True
            try:
                answer.set_result(method(self, *args, **more))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, name=f"bounded-{method.__name__}", daemon=True).start()
        if not wait([answer], timeout=self.call_s).done:
            raise self.unanswered()
        return answer.result()

    return call  # type: ignore[return-value]
