"""`driftbox calibrate` as a process of its own, with the demo's models, on whatever machine this is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edge.speed_file import read_speed
from edge.store.folder import DataFolder
from scheduler.ekya.estimate import SpeedCurve
from tests.support.running_box import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CONFIG = """
gpus: {capacity_pct: 100}
cameras:
  - {id: street, url: "rendered:street", fps: 2}
"""


def calibrate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "box.yaml").write_text(CONFIG)
    call = [sys.executable, "-m", "edge", "calibrate", str(folder / "box.yaml"), "--data-dir", str(folder / "data"), "--quick"]
    return subprocess.run([*call, *words], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)


def test_it_measures_keeps_and_says_whether_plans_will_use_it(tmp_path: Path) -> None:
    """A busy machine gives a measurement that is not used (exit code 1); it is one all the same."""
    ended = calibrate(tmp_path, "--json")
    assert ended.returncode in (0, 1), ended.stderr
    answer = json.loads(ended.stdout)
    found = read_speed(tmp_path / "data")
    assert found is not None
    assert answer == json.loads(found.model_dump_json())
    assert bool(found.problem) is (ended.returncode == 1)
    assert found.models == ("tinydet-edge", "tinydet-golden")
    assert {(s.job, bool(s.beside)) for s in found.samples} == {
        (job, beside) for job in ("inference", "labelling", "training") for beside in (False, True)
    }
    curve = SpeedCurve(found.speed)
    assert curve.at(100) == pytest.approx(1.0)
    assert 0 < curve.at(25) <= 1


def test_a_folder_on_which_a_box_runs_is_left_alone(tmp_path: Path) -> None:
    with DataFolder(tmp_path / "data"):
        ended = calibrate(tmp_path)
    assert ended.returncode == 3
    assert "in use" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data" / "speed.json").exists()
