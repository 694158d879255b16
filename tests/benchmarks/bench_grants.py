"""What planning by customers costs, and what its left-overs lose: one box, its cameras divided among 1 to 16 customers.

Run: python tests/benchmarks/bench_grants.py [INSTANCES]
No paper measured this: the anchor is the same box planned whole by the same policy. Beside it, what every customer's cameras would be
worth on its share alone (the floor that is promised), with left-overs given away, and with no shares at all.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace

from scheduler.fleet.grants import Division, parts_of, whole
from scheduler.registry import make_policy
from scheduler.sim.random_profiles import random_snapshot, sampled_knobs
from scheduler.types import Snapshot

#: Cameras on 4 GPUs: more than they can carry, and about what they can.
CAMERAS, GPUS = (24, 12), 4
POLICIES = ("thief-repeat", "lookahead")
CUSTOMERS = (1, 2, 4, 8, 16)


def division(snapshot: Snapshot, customers: int) -> Division:
    """Equal shares of unequal numbers of cameras: customer n has every camera whose number's square leaves n."""
    of = {view.id: f"c{(number * number + number // 3) % customers:02d}" for number, view in enumerate(snapshot.streams)}
    names = sorted(set(of.values()))
    return Division(shares_pct={name: snapshot.capacity_pct / len(names) for name in names}, customers=of)


def measured(policy_name: str, cameras: int, customers: int, instances: int) -> tuple[float, float, float, float]:
    """(median ms, mean quality with left-overs given away, on the floors alone, without shares)."""
    policy, taken_ms, given, floors, free = make_policy(policy_name), [], [], [], []
    for number in range(instances):
        snapshot = random_snapshot(number, streams=cameras, gpus=GPUS, configs=6, knobs=sampled_knobs(), quantum_pct=10)
        began_s = time.perf_counter()
        parts = parts_of(snapshot, policy, division(snapshot, customers))
        plan = whole(snapshot, parts)
        taken_ms.append(1000 * (time.perf_counter() - began_s))
        plan.check(snapshot.capacity_pct)
        given.append(plan.expected_quality)
        alone = [policy(replace(part.snapshot, capacity_pct=part.floor_pct)) for part in parts]
        floors.append(sum(entry.expected_quality for made in alone for entry in made.streams) / cameras)
        free.append(policy(snapshot).expected_quality)
    return statistics.median(taken_ms), statistics.mean(given), statistics.mean(floors), statistics.mean(free)


def main() -> None:
    instances = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for cameras in CAMERAS:
        print(f"\n{cameras} cameras, {100 * GPUS} pct, 6 configurations, shares in 10 pct, {instances} instances")
        print(
            f"{'policy':<14} {'customers':>9} {'median ms':>10} {'over whole':>10} {'quality':>8} {'floors alone':>13} {'no shares':>10}"
        )
        for policy in POLICIES:
            print_policy(policy, cameras, instances)


def print_policy(policy: str, cameras: int, instances: int) -> None:
    whole_ms = 0.0
    for customers in CUSTOMERS:
        took_ms, given, floors, free = measured(policy, cameras, customers, instances)
        whole_ms = whole_ms or took_ms
        print(
            f"{policy:<14} {customers:>9} {took_ms:>10.1f} {took_ms / whole_ms:>9.1f}x {given:>8.4f} {floors:>13.4f} {free:>10.4f}"
        )


if __name__ == "__main__":
    main()
