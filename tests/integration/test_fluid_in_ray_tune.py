"""Fluid's widths in a real Ray Tune: the trial that is left gets the GPU of the one that has ended, and goes on where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.tune_run import SHORT, WIDE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.ray


def test_a_trial_grows_into_the_gpu_of_one_that_has_ended() -> None:
    """In a process and a Ray of their own, so that no other test's cluster is joined."""
    pytest.importorskip("ray.tune")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="tune", dir="/tmp") as folder:
        command = [sys.executable, "-m", "tests.support.tune_run", folder]
        ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=580, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [trial["error"] for trial in told] == ["None", "None"]
    long, short = sorted(told, key=lambda trial: -max(trial["gpus"]))
    assert (short["at"], short["gpus"]) == (list(range(1, SHORT + 1)), [1.0] * SHORT)
    at, gpus = long["at"], long["gpus"]
    assert at == sorted(set(at)), "no iteration is done twice"
    # Tune leaves out what it has not heard of a trial when it stops it to change it; the trial goes on from its newest checkpoint.
    gaps = [n for n in range(1, len(at)) if at[n] != at[n - 1] + 1]
    assert (at[0], [n for n in gaps if gpus[n] == gpus[n - 1]]) == (1, []), "no iteration is lost"
    assert long["gpus"] == [1.0] * (len(long["at"]) - WIDE) + [2.0] * WIDE
