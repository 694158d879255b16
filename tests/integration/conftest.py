"""Boxes that run as a process of their own: whatever a test does, none is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.running_box import RunningBox


@pytest.fixture
def boxes() -> Iterator[list[RunningBox]]:
    running: list[RunningBox] = []
    yield running
    for box in running:
        if box.process.poll() is None:
            box.process.kill()
            box.process.wait()
