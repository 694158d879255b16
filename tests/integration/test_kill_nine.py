"""`kill -9` at random moments: every restart is clean and serves the last admitted model (5 rounds; 100 in scripts/kill_nine.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kill_rounds import kill_rounds


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kill_is_followed_by_a_clean_restart(tmp_path: Path) -> None:
    done = kill_rounds(tmp_path, rounds=5, seed=20, most_s=8.0)
    assert len(done) == 5
    assert done[-1].admitted >= 2, "two cameras have had a model from the first start on"
    assert done[-1].replayed_events > 50
