"""Run the test suite; what fails is run once more, alone, and what passes then is named as unsteady instead of failing the suite.

    python scripts/run_tests.py [arguments of pytest]

Four workers share two cores with brokers, browsers, cameras and Ray, and a wait that is long enough on any quiet machine can be too
short here. Alone, a test has the machine for itself: a real fault fails again (hypothesis tries the same examples). Never more than a
few: many failures are not bad luck. Why: docs/decisions/0069-unsteady-tests.md.

At the end stand the slowest tests, where every test's seconds are (a junit file, outside of the repository), and every process that the
tests have started and left behind, with the test that did; it is ended then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import psutil

#: So many may fail at first. More are a fault of the code or of the machine, and are told at once.
MOST_UNSTEADY = 6
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
TESTS_FAILED = 1
SLOWEST = 25
#: Inherited by whatever a test starts, so that it can be found when its test is long over.
RUN = "DRIFTBOX_TEST_RUN"
#: What is on its way out when the last test ends may take so long.
LEAVE_S = 30.0


def unsteady(failed: list[str]) -> bool:
    """Whether it is worth to run these again: some, few, and tests rather than files that cannot be read."""
    return 0 < len(failed) <= MOST_UNSTEADY and all("::" in name for name in failed)


def run_pytest(arguments: list[str], environment: Mapping[str, str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], check=False, env=environment).returncode


def run_suite(arguments: list[str], environment: Mapping[str, str], report: Path) -> int:
    LAST_FAILED.unlink(missing_ok=True)
    durations = [f"--durations={SLOWEST}", "--durations-min=1", f"--junitxml={report}"]
    status = run_pytest([*durations, *arguments], environment)
    if status != TESTS_FAILED or not LAST_FAILED.exists():
        return status
    failed = sorted(json.loads(LAST_FAILED.read_text()))
    if not unsteady(failed):
        return status
    print(f"\n{len(failed)} failed; each is run again, alone:", *failed, sep="\n  ", flush=True)
    again = run_pytest(["-p", "no:cacheprovider", *failed], environment)
    if again == 0:
        print("\nUNSTEADY (failed beside others, passed alone; each wants mending):", *failed, sep="\n  ", flush=True)
    return again


def left_behind(run: str) -> list[psutil.Process]:
    """Processes of that run that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):  # gone meanwhile, or somebody else's
            continue
    return found


def told(process: psutil.Process) -> str:
    """What it is and which test began it."""
    try:
        test = process.environ().get("PYTEST_CURRENT_TEST", "no test that is known").removesuffix(" (call)")
        return f"process {process.pid} of {test}: {' '.join(process.cmdline())[:200]}"
    except (psutil.Error, OSError):
        return f"process {process.pid}, which has ended by now"


def end_what_is_left(run: str, leave_s: float) -> list[str]:
    """Waits until nothing of the run is there; what stays is ended. Returns what that was."""
    until_s = time.monotonic() + leave_s
    while left := left_behind(run):
        if time.monotonic() > until_s:
            break
        time.sleep(0.2)
    names = [told(process) for process in left]
    for process in left:
        try:
            process.kill()
        except psutil.Error:
            continue
    return names


def main(arguments: list[str]) -> int:
    run = uuid.uuid4().hex
    folder = Path(os.environ.get("DRIFTBOX_TEST_REPORTS") or Path(tempfile.gettempdir()) / f"driftbox-tests-{os.getuid()}")
    report = folder / "junit.xml"
    status = run_suite(arguments, os.environ | {RUN: run}, report)
    left = end_what_is_left(run, LEAVE_S)
    if report.exists():
        print(f"\nevery test's seconds: {report}", flush=True)
    if left:
        print("\nLEFT BEHIND (ended now; each wants mending):", *left, sep="\n  ", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
