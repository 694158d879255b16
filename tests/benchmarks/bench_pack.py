"""What several GPUs cost: quality that a plan loses when each share must lie on one, ours beside the paper's powers of two.

Run: python tests/benchmarks/bench_pack.py [INSTANCES] [POLICY]
Points of mean quality against the same policy on one pool of all GPUs, for random problems with 2 to 8 GPUs. `as it is`: plans
that pack unchanged. `halves`: every share rounded down to 1, 1/2, 1/4, ... of a GPU, as the paper does; `refilled`: the same, but
what rounding freed is spent again, which the paper does not do; its finest part is 1/32 of a GPU, finer than the plan's quantum of
5 pct, which alone may be worth something. Memory: 16,000 MiB a GPU; inference takes 1,500, retrainings 3,000 to 9,000.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace

import numpy as np

from scheduler.ekya.pack import placement_problems
from scheduler.registry import make_policy
from scheduler.sim.random_profiles import linear_knobs, random_snapshot, sampled_knobs
from scheduler.types import Gpu, Snapshot
from tests.support.powers_of_two import doubled, quality_of, rounded

SIZES = ((4, 2), (8, 2), (10, 4), (16, 4), (10, 8), (20, 8))
GPU_MIB = 16_000.0
QUANTUM_PCT = 5


def on_gpus(snapshot: Snapshot, gpus: int, seed: int, memory: bool) -> Snapshot:
    """The problem on that many devices, with memory if asked."""
    devices = tuple(Gpu(id=f"gpu{n}", memory_mib=GPU_MIB if memory else None) for n in range(gpus))
    if not memory:
        return replace(snapshot, gpus=devices)
    rng = np.random.default_rng(seed)
    streams = tuple(
        replace(
            view,
            knobs=tuple(replace(k, memory_mib=1500.0) for k in view.knobs),
            retrain=tuple(replace(o, memory_mib=float(rng.choice([3000, 5000, 9000]))) for o in view.retrain),
        )
        for view in snapshot.streams
    )
    return replace(snapshot, streams=streams, gpus=devices)


def main(instances: int, name: str) -> None:
    policy = make_policy(name)
    print(
        f"{name}, shares in {QUANTUM_PCT} pct, {instances} random problems per line; points lost against one pool: mean / max"
    )
    heads = " ".join(f"{head:>13}" for head in ("ours", "halves", "refilled", "with memory"))
    print(f"{'knobs':<8} {'cameras':>7} {'GPUs':>4}  {'as it is':>8} {heads} {'ms':>10}")
    for shape, knobs in (("sampled", sampled_knobs()), ("linear", linear_knobs())):
        for streams, gpus in SIZES:
            lost: dict[str, list[float]] = {"ours": [], "halves": [], "refilled": [], "memory": []}
            kept, taken_ms = 0, []
            for seed in range(instances):
                pool = random_snapshot(seed, streams=streams, gpus=gpus, knobs=knobs, quantum_pct=QUANTUM_PCT)
                wanted = policy(pool)
                given = on_gpus(pool, gpus, seed, memory=False)
                started_s = time.perf_counter()
                made = policy(given)
                taken_ms.append(1000 * (time.perf_counter() - started_s))
                tight = on_gpus(pool, gpus, seed, memory=True)
                held = policy(tight)
                assert not placement_problems(given, made) + placement_problems(tight, held)
                kept += made.streams == wanted.streams
                halves = rounded(wanted)
                for key, quality in (
                    ("ours", made.expected_quality),
                    ("halves", quality_of(pool, halves)),
                    ("refilled", quality_of(pool, doubled(pool, halves))),
                    ("memory", held.expected_quality),
                ):
                    lost[key].append(100 * (wanted.expected_quality - quality))
            cells = " ".join(f"{statistics.mean(v):>6.2f} /{max(v):>5.2f}" for v in lost.values())
            time_ms = f"{statistics.median(taken_ms):.0f} /{max(taken_ms):.0f}"
            print(f"{shape:<8} {streams:>7} {gpus:>4}  {kept / instances:>8.0%} {cells} {time_ms:>10}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2] if len(sys.argv) > 2 else "optimal")
