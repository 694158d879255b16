"""The suite's own runner: what fails beside others is run once more alone, what fails twice fails, and many failures fail at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def run(folder: Path, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, RUNNER, "-p", "no:xdist", "-p", "no:hypothesispytest"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
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
    if said == "UNSTEADY":
        assert "test_two.py::test_b" in text.split("UNSTEADY")[1]
