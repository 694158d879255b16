"""Salus on a simulated device: out of memory in 10,000 random job sequences, the card's admission numbers, policies side by side.

    driftbox bench salus [--sequences 10000] [--seed 0] [--part sequences|resident|policies|cost]

sequences: random jobs (honest, lying, leaking, crashing, silent) on devices of 4 to 16 GB through the same tables, policies and verdicts
as live; the invariants are asserted after every event. Enforced: nobody can take more than it was granted (a counting allocator, MPS's
limit). Not enforced: what a lie costs where nothing holds a job to its grant.
resident: how many identical models stay resident for each cap on lanes.
policies: 100 jobs in the sizes of the paper's trace, one device.
cost: what the table costs per iteration, as a part of an iteration of 10 ms. Processor time, so a busy machine matters little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.salus import POLICIES, LaneRules, LaneTable, MemoryNeed, best_cap
from scheduler.salus.random_jobs import random_sequence
from scheduler.salus.simulate import SimJob, SimRules, simulate

ITERATION_S = 0.010


@dataclass
class Tally:
    """Over many sequences. with_oom: sequences in which the device had no memory left at least once."""

    sequences: int = 0
    with_oom: int = 0
    iterations: int = 0
    refused: int = 0
    fates: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int, *, honest: bool, enforced: bool) -> None:
        result = simulate(*random_sequence(seed, honest=honest, enforced=enforced))
        self.sequences += 1
        self.with_oom += bool(result.out_of_memory)
        self.refused += result.refused_allocations
        self.iterations += sum(job.iterations for job in result.jobs)
        self.fates.update(job.fate for job in result.jobs)


def sequences(count: int, seed: int) -> None:
    cases = (
        ("liars, leaks and crashes; grants enforced", count, False, True),
        ("honest jobs; grants not enforced", max(1, count // 10), True, False),
        ("liars, leaks and crashes; grants not enforced", max(1, count // 10), False, False),
    )
    print("sequences of up to 12 random jobs         out of memory (to reach: 0 in 10,000)")
    for name, n, honest, enforced in cases:
        tally = Tally()
        for s in range(seed, seed + n):
            tally.add(s, honest=honest, enforced=enforced)
        fates = ", ".join(f"{fate} {jobs:,}" for fate, jobs in tally.fates.most_common())
        print(f"  {name}: {tally.with_oom:,} in {n:,}")
        print(f"    jobs: {fates}; iterations {tally.iterations:,}, allocations refused {tally.refused:,}")


def resident(count: int, seed: int) -> None:
    need, capacity_mib = MemoryNeed(persistent_mib=0.25, ephemeral_mib=0.4), 16.0
    print("models of P 0.25 and E 0.4 resident on C = 16, by cap on lanes (papers/salus.md T3; the paper keeps 42)")
    for cap in (None, 14, 13, 4, 2, 1):
        table = LaneTable(rules=LaneRules(capacity_mib=capacity_mib, max_lanes=cap))
        for i in range(70):
            table = table.admit(f"m{i}", need).table
        print(f"  {cap or 'no cap':>7}: {len(table.residents)} models, {len(table.lanes)} lanes")
    best = best_cap([need] * 42, capacity_mib)
    print(f"  best cap for 42: {best.max_lanes} lanes, {best.admitted} admitted")


def policies(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [trace_job(rng, i) for i in range(100)]
    print(
        "100 jobs, mean minutes (paper, other jobs: JCT FIFO 170.6, SRTF 53.4, FAIR 96.6, PACK 145.5; SRTF 3.19x better than FIFO)"
    )
    fifo_s = 0.0
    for name in sorted(POLICIES, key=lambda n: n != "fifo"):
        lanes = LaneRules(capacity_mib=16_000.0, max_lanes=None if name == "pack" else 1)
        result = simulate(jobs, SimRules(lanes=lanes, policy=name))
        jct_s = result.mean_jct_s or 0.0
        fifo_s = fifo_s or jct_s
        print(
            f"  {name:>4}: JCT {jct_s / 60:6.1f} min ({fifo_s / jct_s:.2f}x), all done after {result.makespan_s / 60:6.1f} min"
        )


def trace_job(rng: np.random.Generator, i: int) -> SimJob:
    """Most are short, some very long, as in a production cluster; memory as measured by the paper's authors."""
    length_s = float(np.clip(rng.lognormal(4.3, 1.2), 20, 3600))
    return SimJob(
        job=f"J{i:02}",
        arrives_s=float(rng.uniform(0, 7200)),
        iterations=max(1, int(length_s / 2.0)),
        iteration_s=2.0,
        declared=MemoryNeed(persistent_mib=float(rng.uniform(110.9, 822.2)), ephemeral_mib=float(rng.uniform(35, 13_000))),
    )


def cost(count: int, seed: int) -> None:
    print("beginning and ending an iteration in the table, invariants asserted (to reach: executor overhead <= 2 % of 10 ms)")
    for jobs, cap in ((4, 2), (8, 4), (42, 13)):
        table = LaneTable(rules=LaneRules(capacity_mib=16.0, max_lanes=cap))
        for i in range(jobs):
            table = table.admit(f"m{i}", MemoryNeed(persistent_mib=0.25, ephemeral_mib=0.4)).table
        us = [1e6 * timed(lambda table=table: table.begin("m0").table.end("m0")) for _ in range(200)]  # type: ignore[misc]
        us_median = statistics.median(us)
        print(f"  {jobs:>3} jobs, {cap:>2} lanes: {us_median:6.0f} us, {100 * us_median / 1e6 / ITERATION_S:.2f} % of 10 ms")


def timed(call: Callable[[], object]) -> float:
    started_s = time.process_time()
    call()
    return time.process_time() - started_s


PARTS: dict[str, Callable[[int, int], None]] = {
    "resident": resident,
    "policies": policies,
    "cost": cost,
    "sequences": sequences,
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=10_000, help="random job sequences (default 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first sequence")
    parser.add_argument("--part", choices=sorted(PARTS), help="this part only")
    chosen = parser.parse_args(words)
    for name in [chosen.part] if chosen.part else PARTS:
        PARTS[name](chosen.sequences, chosen.seed)
        print()


if __name__ == "__main__":
    main()
