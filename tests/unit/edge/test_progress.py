"""Progress: a bar on a terminal, few plain lines elsewhere, nothing for machines."""

from __future__ import annotations

import io

import pytest

from edge import progress as module
from edge.progress import BarProgress, PlainProgress, SilentProgress, make_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Ticks:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_the_kind_follows_the_stream() -> None:
    assert isinstance(make_progress(stream=io.StringIO()), PlainProgress)
    assert isinstance(make_progress(stream=Terminal()), BarProgress)
    assert isinstance(make_progress(enabled=False, stream=Terminal()), SilentProgress)


def test_plain_lines_are_few_and_hold_first_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks()
    monkeypatch.setattr(module, "time", ticks)
    out = io.StringIO()
    with make_progress(stream=out) as progress:
        task = progress.task("labelling", total=100)
        for _ in range(100):
            ticks.now_s += 0.11
            task.advance()
    assert out.getvalue().splitlines() == [
        "labelling: 1 of 100 (1 %)",
        "labelling: 47 of 100 (47 %)",
        "labelling: 93 of 100 (93 %)",
        "labelling: 100 of 100 (100 %)",
    ]


def test_plain_lines_without_a_total_and_notes_without_secrets() -> None:
    out = io.StringIO()
    progress = PlainProgress(out, interval_s=0)
    task = progress.task("frames")
    task.set(3)
    task.note("from rtsp://u:pw@h/x")
    assert out.getvalue() == "frames: 3\nframes: from rtsp://***@h/x\n"


def test_the_end_is_said_once() -> None:
    out = io.StringIO()
    task = PlainProgress(out).task("x", total=1)
    task.set(1)
    task.set(1)
    assert out.getvalue() == "x: 1 of 1 (100 %)\n"


def test_a_terminal_sees_name_count_and_notes() -> None:
    out = Terminal()
    with make_progress(stream=out) as progress:
        task = progress.task("labelling [gate]", total=4)
        task.advance()
        task.set(4)
        task.note("kept [2] of rtsp://u:pw@h/x")
    text = out.getvalue()
    assert "labelling" in text
    assert "4/4" in text
    assert "kept [2] of rtsp://***@h/x" in text


def test_silence_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress(enabled=False) as progress:
        task = progress.task("x", total=2)
        task.advance()
        task.set(2)
        task.note("x")
        progress.note("x")
    assert capsys.readouterr() == ("", "")
