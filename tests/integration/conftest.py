"""Boxes that run as a process of their own: whatever a test does, none is left behind. A browser, one for a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.running_box import RunningBox, none_left_behind
from tests.support.visits import launched_browser


@pytest.fixture
def boxes() -> Iterator[list[RunningBox]]:
    with none_left_behind() as running:
        yield running


@pytest.fixture
def fake_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The box finds models that cost nothing, and learn as they are told."""
    put_fakes_in_the_zoo(monkeypatch)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched_browser() as launched:
        yield launched
