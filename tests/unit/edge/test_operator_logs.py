"""Log lines for operators: redacted, and without tracebacks unless they asked for them."""

from __future__ import annotations

import logging
import sys

import pytest

from edge.logs import PlainFormatter


def record(text: str) -> logging.LogRecord:
    try:
        raise RuntimeError("cannot open rtsp://admin:canary@cam/1")
    except RuntimeError:
        return logging.LogRecord("driftbox", logging.ERROR, "x.py", 1, text, (), sys.exc_info())


@pytest.mark.parametrize("tracebacks", [False, True])
def test_credentials_never_pass_not_even_in_a_traceback(tracebacks: bool) -> None:
    line = PlainFormatter(tracebacks=tracebacks).format(record("camera rtsp://admin:canary@cam/1 failed"))
    assert "canary" not in line
    assert "rtsp://***@cam/1" in line


def test_tracebacks_are_for_those_who_ask() -> None:
    shown = PlainFormatter(tracebacks=True).format(record("failed"))
    plain = PlainFormatter(tracebacks=False).format(record("failed"))
    assert "Traceback" in shown
    assert "Traceback" not in plain
    assert "\n" not in plain


def test_a_record_keeps_its_traceback_for_other_handlers() -> None:
    one = record("failed")
    PlainFormatter(tracebacks=False).format(one)
    assert one.exc_info is not None
