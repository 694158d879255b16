"""100 random `kill -9` during a run: 100 clean restarts, or the round in which one was not.

.venv/bin/python scripts/kill_nine.py [--rounds 100] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.kill_rounds import kill_rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = kill_rounds(Path(folder), rounds=options.rounds, seed=options.seed)
    last = done[-1]
    print(
        f"{len(done)} kills, {len(done)} clean restarts; {last.admitted} models admitted, {last.windows} windows closed, "
        f"{last.replayed_events} events replayed exactly"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
