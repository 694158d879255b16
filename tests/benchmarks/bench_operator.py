"""The numbers that the operator's product was asked to reach: each beside its anchor and its target, measured now.

driftbox bench operator                      # each shortened: about ten minutes
driftbox bench operator --full               # as long as each wants: hours, most of them of watching the memory
driftbox bench operator --only page,secrets
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Row:
    """bench: its name; short: its words when it is to be brief, `full` when it is not."""

    what: str
    anchor: str
    to_reach: str
    bench: str
    short: tuple[str, ...] = ()
    full: tuple[str, ...] = ()


ROWS = (
    Row(what="clean machine to first live picture", anchor="Frigate: write YAML, restart", to_reach="3 minutes, no file edited",
        bench="first_picture", short=("--environment", "here")),
    Row(what="camera edited", anchor="Frigate stops all for 10 to 20 s", to_reach="0 frames lost elsewhere", bench="camera_edit",
        short=("--rounds", "1")),
    Row(what="page ready on 2 cores with 8 cameras live", anchor="no figure published", bench="page", short=("5",),
        to_reach="1.5 s to interactive; 10 % of a core per viewer"),
    Row(what="MQTT events through an outage of an hour; events/s through database and MQTT", anchor="paho alone, see below",
        to_reach="none lost, none twice, in order; 2,000", bench="mqtt", short=("6000",)),
    Row(what="events/s through the objects' table, database and MQTT", anchor="as above", to_reach="2,000", bench="events",
        short=("6000",)),
    Row(what="accessibility and security of pages and answers", anchor="-", to_reach="0 serious findings", bench="web_checks"),
    Row(what="10,000 made-up requests", anchor="-", to_reach="0 server errors", bench="api_fuzz", short=("--cases", "1000")),
    Row(what="credentials in any log, page, metric, bundle, process list", anchor="Frigate had five such issues", to_reach="0",
        bench="secrets"),
    Row(what="memory of an idle box, 4 cameras at 5 frames/s", anchor="-", to_reach="1 GiB above the models; growth below 1 MiB/h",
        bench="idle", short=("--minutes", "4", "--settle", "2"), full=("--minutes", "148", "--settle", "65")),
)  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--full", action="store_true", help="as long as each wants")
    options.add_argument("--only", default="", help=f"some of them, separated by commas: {', '.join(r.bench for r in ROWS)}")
    given = options.parse_args()
    wanted = [name for name in given.only.split(",") if name]
    unknown = set(wanted) - {row.bench for row in ROWS}
    if unknown:
        options.error(f"unknown: {', '.join(sorted(unknown))}")
    return run([row for row in ROWS if not wanted or row.bench in wanted], full=given.full)


def run(rows: Sequence[Row], *, full: bool, folder: Path = FOLDER) -> int:
    """1 when one of them failed. What they print is theirs."""
    failed = []
    for row in rows:
        words = row.full if full else row.short
        print(
            f"\n=== {row.what}\n    anchor: {row.anchor}; to reach: {row.to_reach}\n    driftbox bench {' '.join((row.bench, *words))}"
        )
        print(f"    load of the machine over the last minute: {os.getloadavg()[0]:.1f}\n", flush=True)
        begun_s = time.perf_counter()
        done = subprocess.run([sys.executable, str(folder / f"bench_{row.bench}.py"), *words], check=False)
        print(f"    ({time.perf_counter() - begun_s:.0f} s)", flush=True)
        if done.returncode != 0:
            failed.append(
                f"{row.bench} ({'the machine lacks something' if done.returncode == 3 else f'code {done.returncode}'})"
            )
    print(f"\nended badly: {', '.join(failed) or 'none'}")
    if not full and any(row.bench == "idle" for row in rows):
        print("growth of memory means nothing after minutes: driftbox bench operator --full --only idle")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
