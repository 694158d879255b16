"""Run the test suite; what fails is run once more, alone, and what passes then is named as unsteady instead of failing the suite.

    python scripts/run_tests.py [arguments of pytest]

Four workers share two cores with brokers, browsers, cameras and Ray, and a wait that is long enough on any quiet machine can be too
short here. Alone, a test has the machine for itself: a real fault fails again (hypothesis tries the same examples). Never more than a
few: many failures are not bad luck. Why: docs/decisions/0069-unsteady-tests.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

#: So many may fail at first. More are a fault of the code or of the machine, and are told at once.
MOST_UNSTEADY = 6
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
TESTS_FAILED = 1


def unsteady(failed: list[str]) -> bool:
    """Whether it is worth to run these again: some, few, and tests rather than files that cannot be read."""
    return 0 < len(failed) <= MOST_UNSTEADY and all("::" in name for name in failed)


def run_pytest(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], check=False).returncode


def main(arguments: list[str]) -> int:
    LAST_FAILED.unlink(missing_ok=True)
    status = run_pytest(arguments)
    if status != TESTS_FAILED or not LAST_FAILED.exists():
        return status
    failed = sorted(json.loads(LAST_FAILED.read_text()))
    if not unsteady(failed):
        return status
    print(f"\n{len(failed)} failed; each is run again, alone:", *failed, sep="\n  ", flush=True)
    again = run_pytest(["-p", "no:cacheprovider", *failed])
    if again == 0:
        print("\nUNSTEADY (failed beside others, passed alone; each wants mending):", *failed, sep="\n  ", flush=True)
    return again


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
