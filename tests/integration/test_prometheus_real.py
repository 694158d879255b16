"""What Prometheus itself says to our metrics, rules and configuration. Skipped where it is not installed (`apt-get install prometheus`);
`tests/unit/edge/test_monitoring_files.py` and `test_metrics.py` hold names, labels and expressions everywhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edge.metrics import render
from tests.support.running_box import ROOT
from tests.unit.edge.test_metrics import gathered

FOLDER = ROOT / "configs" / "monitoring"
PROMTOOL = shutil.which("promtool") or ""

pytestmark = pytest.mark.skipif(not PROMTOOL, reason="needs promtool (apt-get install prometheus)")


def said(*words: str, folder: Path, given: bytes = b"") -> tuple[int, str]:
    """(exit code, all that it prints)."""
    done = subprocess.run([PROMTOOL, *words], cwd=folder, input=given, capture_output=True, timeout=120, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


def test_the_metrics_of_a_box_that_has_everything_please_its_linter(tmp_path: Path) -> None:
    assert said("check", "metrics", folder=tmp_path, given=render(gathered())) == (0, "")
    wrong = b"# HELP x_total A counter.\n# TYPE x_total gauge\nx_total 1\n"
    assert said("check", "metrics", folder=tmp_path, given=wrong)[0] != 0, "it does look"


def test_rules_and_configuration_can_be_loaded(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "monitoring")
    code, words = said("check", "config", "--syntax-only", "prometheus.yaml", folder=tmp_path / "monitoring")
    assert (code, "SUCCESS" in words) == (0, True), words
    code, words = said("check", "rules", "alerts.yaml", folder=tmp_path / "monitoring")
    assert (code, "15 rules found" in words) == (0, True), words


def test_alerts_come_when_they_should(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "alerts.yaml", tmp_path)
    shutil.copy(ROOT / "tests" / "support" / "alerts_tests.yaml", tmp_path)
    code, words = said("test", "rules", "alerts_tests.yaml", folder=tmp_path)
    assert code == 0, words
