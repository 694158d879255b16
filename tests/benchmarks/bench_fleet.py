"""1,000 boxes in virtual time: a 24 h partition, dying boxes, the broker away, a staged rollout; the controller's CPU, the view's age.

    driftbox bench fleet [--boxes 1000] [--hours 26] [--report-s 600] [--seed 0] [--quick]

Load: the recorded arrivals of ../shared/data/traces where they are, else a seeded day. The controller runs its own pure code; its cores
are those of a live one (reports every 5 s), from the CPU time of each part. Left out: broker, database, TLS. --quick: 100 boxes, 4 h.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cluster.simulate.run import simulate
from cluster.simulate.scenario import Scenario

ARRIVALS = Path(__file__).resolve().parents[3] / "shared/data/traces/cilantro_twitter_arrivals_1s.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=26.0)
    parser.add_argument("--report-s", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    boxes, hours = (100, 4.0) if args.quick else (args.boxes, args.hours)
    scenario = Scenario(
        boxes=boxes,
        hours=hours,
        seed=args.seed,
        report_s=args.report_s,
        deaths=max(1, boxes // 50),
        cut_h=max(0.5, hours - 2.0),
    )
    arrivals = ARRIVALS if ARRIVALS.exists() else None
    result = simulate(scenario, arrivals=arrivals)
    load = "recorded arrivals" if arrivals else "a seeded day (no recorded traces here)"
    cut = f"{scenario.cut_frac:.0%} cut off for {scenario.cut_h:g} h"
    print(f"{boxes} boxes, {scenario.cameras} cameras each, {hours:g} h, {cut}; load: {load}")
    for target in result.targets():
        mark = {True: "reached", False: "MISSED", None: "-"}[target.ok]
        print(f"{mark:<8} {target.what}\n           to reach: {target.to_reach}\n           measured: {target.measured}")
    print("\npart of the controller   ms a call")
    for part, ms in result.cpu_ms.items():
        print(f"{part:<24} {ms:9.2f}")
    print(f"\nthe staged rollout is {result.rollout}\nplayed in {result.wall_s:.0f} s")


if __name__ == "__main__":
    main()
