"""What one test sets up for its output does not reach into the next: two tests, in this order."""

from __future__ import annotations

import logging
import threading

import pytest

from edge.logs import set_up_logging

_HOOK = threading.excepthook


def test_a_command_sets_up_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    logging.getLogger("driftbox").info("as a box says it")
    assert "as a box says it" in capsys.readouterr().err
    assert threading.excepthook is not _HOOK


def test_the_next_one_finds_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    assert not [handler for handler in logging.getLogger().handlers if type(handler) is logging.StreamHandler]
    assert threading.excepthook is _HOOK
    caplog.set_level(logging.INFO)
    logging.getLogger("driftbox").info("heard")
    assert "heard" in caplog.text
