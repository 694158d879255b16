"""The suite's own runner: what fails beside others is run once more alone, what fails twice fails, and many failures fail at once; where
the time goes; and what a test leaves running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

RUNNER = Path(__file__).parents[2] / "scripts" / "run_tests.py"
FAILS = "def test_b():\n    assert False\n"
#: Fails when it is run for the first time.
UNSTEADY = """
from pathlib import Path
def test_b():
    seen = Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
PASSES = "def test_a():\n    pass\n"
#: Nobody ends what it starts, which notes its id.
FORGETS = """
import subprocess, sys
def test_b():
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open("pid", "w") as file:
        file.write(str(made.pid))
"""


def run(folder: Path, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    code = f"import runpy, sys; main = runpy.run_path({str(RUNNER)!r})['main']; main.__globals__['LEAVE_S'] = 0.5; sys.exit(main([]))"
    environment = {"DRIFTBOX_TEST_REPORTS": str(folder / "reports"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "status", "said", "unsaid"),
    [
        ({"one": PASSES}, 0, "1 passed", "UNSTEADY"),
        ({"one": PASSES, "two": UNSTEADY}, 0, "UNSTEADY", "2 passed"),
        ({"one": PASSES, "two": FAILS}, 1, "run again", "UNSTEADY"),
        ({"one": UNSTEADY, "two": FAILS}, 1, "run again", "UNSTEADY"),
        ({str(i): FAILS for i in range(7)}, 1, "7 failed", "run again"),
        ({"one": PASSES, "two": "import nothing_of_that_name\n"}, 2, "error", "run again"),
    ],
    ids=["green", "unsteady", "red", "unsteady and red", "many", "unreadable"],
)
def test_what_the_runner_makes_of_it(tmp_path: Path, files: dict[str, str], status: int, said: str, unsaid: str) -> None:
    found, text = run(tmp_path, **files)
    assert found == status, text
    assert said in text
    assert unsaid not in text
    assert "LEFT BEHIND" not in text
    if said == "UNSTEADY":
        assert "test_two.py::test_b" in text.split("UNSTEADY")[1]


@pytest.mark.slow
def test_where_the_time_goes_is_told_and_kept_outside(tmp_path: Path) -> None:
    slow = "import threading\ndef test_b():\n    threading.Event().wait(1.1)\n"
    _, text = run(tmp_path, one=PASSES, two=slow)
    assert "slowest 25 durations" in text
    assert "test_two.py::test_b" in text.split("slowest 25 durations")[1]
    report = tmp_path / "reports" / "junit.xml"
    assert str(report) in text
    assert 'name="test_b" time="1.1' in report.read_text()


@pytest.mark.slow
def test_a_process_that_a_test_left_behind_is_named_with_its_test_and_ended(tmp_path: Path) -> None:
    status, text = run(tmp_path, one=PASSES, two=FORGETS)
    pid = int((tmp_path / "pid").read_text())
    left = text.split("LEFT BEHIND")[1]
    assert f"process {pid} of test_two.py::test_b" in left
    assert "time.sleep(600)" in left
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert status == 0
