"""A live box under every policy of lanes (`gpus.policy`): cameras are shown, and learn, although they never end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge.clock import Clock
from edge.gpu.lanes import LaneBackend
from scheduler import events as ev
from tests.support.live_box import CONFIG, LiveBox

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]

#: Long enough for what two cameras prepare, one after the other.
ONE_CORE = replace(CONFIG, window_s=6.0, first_window_s=1.5)


class Noting(LaneBackend):
    """Keeps what it was told of jobs' lengths."""

    told: dict[str, float]

    def expect(self, job: str, total_s: float) -> None:
        self.told[job] = total_s
        super().expect(job, total_s)


@pytest.mark.parametrize("policy", ["plan", "fair", "pack", "srtf"])
def test_both_cameras_learn_and_the_journal_replays(tmp_path: Path, policy: str) -> None:
    told: dict[str, float] = {}

    def backend(clock: Clock) -> LaneBackend:
        made = Noting(capacity_pct=100, policy=policy, clock=clock)
        made.told = told
        return made

    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=ONE_CORE, backend=backend) as box:
        for camera in ("a", "b"):
            box.wait_for(ev.SwapDone, camera)
        assert box.replayed().exact
        retrained = {event.job for camera in ("a", "b") for event in box.seen(ev.RetrainDone, camera)}
        box.backend.close()
    assert retrained <= told.keys(), "the length of a retraining is known before it ends"
    assert all(told[job] > 0 for job in retrained)
