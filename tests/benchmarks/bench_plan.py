"""How long planning takes, beside the 9.4 s that the Ekya paper reports for its size: 10 streams, 8 GPUs, 18 configurations.

Run: python tests/benchmarks/bench_plan.py [INSTANCES]
The paper's planner runs a nested simulator at each step; its hardware is another, so only the order of magnitude compares.
"""

from __future__ import annotations

import statistics
import sys
import time

from scheduler.registry import make_policy
from scheduler.sim.random_profiles import linear_knobs, random_snapshot, sampled_knobs

PAPER_MS = 9_400.0
POLICIES = ("thief", "thief-repeat", "optimal", "fixed-config", "uniform(high,50)")


def main(instances: int) -> None:
    print(
        f"10 streams, 8 GPUs, 18 configurations, shares in 10 pct, {instances} random instances; the paper: {PAPER_MS:.0f} ms"
    )
    print(f"{'knobs':<9} {'policy':<17} {'median ms':>10} {'max ms':>8} {'steps':>7} {'quality':>8} {'gap, points':>12}")
    for shape, knobs in (("sampled", sampled_knobs()), ("linear", linear_knobs())):
        snapshots = [random_snapshot(seed, streams=10, gpus=8, configs=18, knobs=knobs) for seed in range(instances)]
        best = [make_policy("optimal")(s).expected_quality for s in snapshots]
        for name in POLICIES:
            policy, taken_ms, plans = make_policy(name), [], []
            for snapshot in snapshots:
                started_s = time.perf_counter()
                plans.append(policy(snapshot))
                taken_ms.append(1000 * (time.perf_counter() - started_s))
            quality = statistics.mean(p.expected_quality for p in plans)
            steps = statistics.median(p.steps for p in plans)
            gap = 100 * (statistics.mean(best) - quality)
            print(
                f"{shape:<9} {name:<17} {statistics.median(taken_ms):>10.1f} {max(taken_ms):>8.1f} {steps:>7.0f} "
                f"{quality:>8.4f} {gap:>12.2f}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
