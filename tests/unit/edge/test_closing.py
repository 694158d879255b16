"""Ending in bounded time: one deadline for all, and nobody is waited for after a second signal."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
from collections.abc import Mapping

import pytest

from edge.closing import Closing, Signals


def waiting(event: threading.Event, name: str) -> threading.Thread:
    thread = threading.Thread(target=event.wait, name=name, daemon=True)
    thread.start()
    return thread


def test_all_together_have_one_deadline() -> None:
    now_s, calls = [0.0], [0]

    def clock() -> float:
        calls[0] += 1
        now_s[0] += 1.0  # each look at the clock takes a second
        return now_s[0]

    event = threading.Event()
    threads = [waiting(event, f"t{n}") for n in range(5)]
    assert Closing(6.0, now_s=clock).join(threads) == [t.name for t in threads]
    assert now_s[0] < 20, "the deadline counts for all of them, not for each"
    event.set()


def test_who_is_done_is_not_named_and_what_fails_does_not_keep_the_others() -> None:
    done: list[str] = []

    def bad() -> None:
        raise RuntimeError("made up")

    assert Closing(60.0).all_at_once({"a": lambda: done.append("a"), "bad": bad, "b": lambda: done.append("b")}) == []
    assert sorted(done) == ["a", "b"]


def test_a_hurry_ends_the_waiting() -> None:
    closing, event = Closing(3600.0), threading.Event()
    thread = waiting(event, "slow")
    threading.Timer(0.05, closing.hurry).start()
    assert closing.join([thread]) == ["slow"]
    assert closing.left_s() == 0.0
    event.set()


def test_a_start_that_fails_because_it_was_told_to_end_has_not_failed() -> None:
    with pytest.raises(SystemExit) as ended, Signals():
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:  # as compiled modules do whose import is interrupted
            raise ImportError("initialization failed") from None
    assert ended.value.code == 0


def test_a_start_that_fails_by_itself_has_failed() -> None:
    with pytest.raises(ImportError), Signals():
        raise ImportError("initialization failed")


def test_a_box_that_came_up_although_it_was_told_to_end_is_stopped() -> None:
    happened: list[str] = []
    with Signals() as signals:
        with contextlib.suppress(SystemExit):  # as a library does that swallows everything
            signal.raise_signal(signal.SIGTERM)
        signals.runs(stop=lambda: happened.append("stop"), hurry=lambda: happened.append("hurry"))
        assert happened == ["stop"]
        signal.raise_signal(signal.SIGTERM)
    assert happened == ["stop", "hurry"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_start_is_told_again_where_nothing_can_be_raised(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a callback of Python's collector: what is raised in there is printed with its traceback, and forgotten."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # pytest's would fail this test by itself

    def told(phase: str, info: Mapping[str, int]) -> None:
        gc.callbacks.remove(told)
        signal.raise_signal(number)

    came_up = threading.Event()
    with pytest.raises(SystemExit) as ended, Signals():
        gc.callbacks.append(told)
        gc.collect()
        assert not came_up.wait(60), "nothing sets it"
    assert (ended.value.code, sys.unraisablehook) == (code, sys.__unraisablehook__)
    assert capsys.readouterr().err == ""


def test_what_else_cannot_be_raised_is_printed_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(str(found.exc_value)))

    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    with Signals():
        Broken()
    assert seen == ["broken"]


def test_a_failure_while_it_runs_is_one() -> None:
    with pytest.raises(ValueError, match="broken"), Signals() as signals:
        with contextlib.suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        signals.runs(stop=lambda: None, hurry=lambda: None)
        raise ValueError("broken")


def test_signals_end_the_start_then_stop_then_hurry() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        assert ended.value.code == 0
    assert signal.getsignal(signal.SIGTERM) is before
    happened: list[str] = []
    with Signals() as signals:
        signals.runs(stop=lambda: happened.append("stop"), hurry=lambda: happened.append("hurry"))
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert happened == ["stop", "hurry"]


def test_who_does_not_end_in_time_is_left() -> None:
    """As a broker that hangs while the box says farewell to it: ten seconds hold all the same."""
    ended, codes = threading.Event(), []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with Signals(leave_after_s=0.0, end=end) as signals:
        signals.runs(stop=lambda: None, hurry=lambda: None)
        signal.raise_signal(signal.SIGTERM)
        assert ended.wait(60), "something hangs in here"
    assert codes == [0]


def test_who_ends_in_time_is_not() -> None:
    codes: list[int] = []
    with Signals(leave_after_s=3600.0, end=codes.append) as signals:
        signals.runs(stop=lambda: None, hurry=lambda: None)
        signal.raise_signal(signal.SIGTERM)
        assert signals._timer is not None
    signals._timer.join(60)
    assert codes == []
