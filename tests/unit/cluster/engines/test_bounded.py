"""A call that never comes back ends for who asked; all others are as if nothing were around them."""

from __future__ import annotations

import threading

import pytest

from cluster.engines.bounded import bounded


class Library:
    def __init__(self, call_s: float) -> None:
        self.call_s = call_s
        self.head_is_back = threading.Event()
        self.finished = threading.Event()

    def unanswered(self) -> Exception:
        return ConnectionError("away")

    @bounded
    def hangs(self) -> None:
        self.head_is_back.wait()
        self.finished.set()

    @bounded
    def thread(self) -> int:
        return threading.get_ident()

    @bounded
    def nested(self) -> bool:
        return self.thread() == threading.get_ident()

    @bounded
    def refuses(self, *, why: str) -> None:
        raise TimeoutError(why)


def test_a_call_that_hangs_ends_and_may_still_have_its_effect_later() -> None:
    library = Library(call_s=0.01)
    with pytest.raises(ConnectionError, match="away"):
        library.hangs()
    library.head_is_back.set()
    assert library.finished.wait(timeout=60)


def test_answers_and_errors_pass_and_nested_calls_share_a_thread() -> None:
    library = Library(call_s=60)
    assert library.thread() != threading.get_ident()
    assert library.nested()  # it may hold a lock that only its own thread takes twice
    with pytest.raises(TimeoutError, match="its own"):  # an error of the call, not of the limit
        library.refuses(why="its own")
