"""A live box whose profiling trials may have two cores: measured in its own lane, on to a new model, and no process is left behind."""

from __future__ import annotations

import logging
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from configs.schema import GpusSection
from edge.clock import SystemClock
from edge.gpu.nvml import Survey
from edge.wiring.wide import wide_of
from scheduler import events as ev
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import CONFIG, LiveBox

pytestmark = pytest.mark.slow


def no_gpus() -> Survey:
    raise AssertionError("cores have no driver to be asked")


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_window_with_trials_on_two_cores(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """at_once: trials that the box may run at once; its window has one, which then has both cores for itself."""
    put_fakes_in_the_zoo(monkeypatch)
    wide = wide_of(GpusSection(trial_width=2, capacity_pct=200), SystemClock(), no_gpus)
    assert wide is not None
    monkeypatch.setattr("tests.support.live_box.here", wide.steps)
    monkeypatch.setattr("tests.support.live_box.SettableClock", lambda: wide.clock)
    before = set(multiprocessing.active_children())
    try:
        with (
            caplog.at_level(logging.INFO, logger="driftbox"),
            LiveBox(tmp_path / "data", {"a": "fake"}, config=replace(CONFIG, capacity_pct=200)) as box,
        ):
            box.runtime.parts.trials_at_once, box.runtime.parts.widths = at_once, wide.widths
            box.wait_for(ev.SwapDone, "a")
            box.wait(lambda: "trials of fake may have" in caplog.text, "the processes have started, and were measured")
            seen = len(box.seen(ev.ProfileDone))
            box.wait(lambda: len(box.seen(ev.ProfileDone)) > seen, "a profile is done after that")
            profiled = box.seen(ev.ProfileDone)[-1]
            box.wait_frames("a")
            ranks = set(multiprocessing.active_children()) - before
            assert box.replayed().exact
        assert profiled.trials
        assert profiled.gpu_s > 0
        assert len(ranks) == 2, "they wait for the next window"
    finally:
        wide.close()
    assert set(multiprocessing.active_children()) == before
