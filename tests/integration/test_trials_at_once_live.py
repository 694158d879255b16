"""Profiling trials at once on a live box: the window goes its way, shares add up, the journal replays, no lane stays behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler import events as ev
from scheduler.types import RetrainConfig
from tests.support.live_box import CONFIG, LiveBox

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]

QUICK = RetrainConfig(name="quick", epochs=4, batch=4, lr=0.1)
FAMILIES = (QUICK, replace(QUICK, name="half", data_frac=0.5), replace(QUICK, name="slow", lr=0.02))
#: Long enough for three families also where much else is running.
CONFIG_OF_THREE = replace(CONFIG, retrain=FAMILIES, window_s=12.0, first_window_s=2.0, capacity_pct=200, prep_pct=150)


def test_a_window_with_trials_at_once_ends_in_a_better_model(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=CONFIG_OF_THREE) as box:
        box.runtime.parts.trials_at_once = 3
        box.runtime.parts.profile_halving = True
        box.wait(lambda: any(len(e.trials) > 1 for e in box.seen(ev.ProfileDone, "a")), "several families are profiled")
        profiled = next(e for e in box.seen(ev.ProfileDone, "a") if len(e.trials) > 1)
        assert {t.config.name for t in profiled.trials} <= {c.name for c in FAMILIES}
        assert all(len({t.quality[0] for t in e.trials}) <= 1 for e in box.seen(ev.ProfileDone, "a"))
        assert profiled.gpu_s > 0
        box.wait_for(ev.SwapDone, "a")
        box.wait(
            lambda: not [job for job in box.runtime.parts.backend.report() if "profile" in job], "the profile's lanes close"
        )
        assert box.replayed().exact
    assert box.seen(ev.JobFailed) == []
