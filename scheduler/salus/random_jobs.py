"""Random job sequences for the simulated device: honest jobs, liars, leaks, crashes, jobs that say nothing. Same seed, same jobs."""

from __future__ import annotations

import numpy as np

from scheduler.salus.lanes import LaneRules
from scheduler.salus.policies import POLICIES
from scheduler.salus.simulate import SimJob, SimRules
from scheduler.salus.types import MemoryNeed, Role

#: From a small box to a P100, as in the paper, whose jobs hold 35 MiB to 13.8 GiB at their peak (papers/salus.md section 8).
CAPACITIES_MIB = (4_000.0, 8_000.0, 16_000.0)


def random_sequence(seed: int, *, honest: bool = False, enforced: bool = True) -> tuple[list[SimJob], SimRules]:
    """Up to 12 jobs of 1 to 14 iterations, and a device with random rules. honest: every job declares what it needs, or more, and none
    leaks."""
    rng = np.random.default_rng(seed)
    jobs = [_job(rng, f"J{i}", honest) for i in range(int(rng.integers(1, 13)))]
    lanes = LaneRules(
        capacity_mib=float(rng.choice(CAPACITIES_MIB)),
        max_lanes=None if rng.random() < 0.4 else int(rng.integers(1, 7)),
        age_limit_s=None if rng.random() < 0.5 else float(rng.uniform(0.0, 20.0)),
        unknown=None if rng.random() < 0.7 else MemoryNeed(persistent_mib=1000.0, ephemeral_mib=4000.0),
        apart=bool(rng.random() < 0.3),
    )
    policy = str(rng.choice(sorted(POLICIES)))
    return jobs, SimRules(lanes=lanes, policy=policy, enforced=enforced, width=float(rng.choice([1.0, 2.0, 8.0])))


def _job(rng: np.random.Generator, name: str, honest: bool) -> SimJob:
    truth = MemoryNeed(persistent_mib=_log(rng, 20.0, 3000.0), ephemeral_mib=_log(rng, 20.0, 14_000.0))
    infer = rng.random() < 0.3
    role: Role = "infer" if infer else "learn"
    return SimJob(
        job=name,
        iterations=int(rng.integers(1, 15)),
        iteration_s=float(rng.uniform(0.01, 0.1) if infer else rng.uniform(0.1, 2.0)),
        arrives_s=float(rng.uniform(0.0, 15.0)),
        gap_s=float(rng.uniform(0.0, 1.0)) if infer else 0.0,
        role=role,
        declared=_padded(rng, truth) if honest else _declared(rng, truth),
        truth=truth,
        late_frac=float(rng.uniform(0.0, 0.7)),
        leak_mib=0.0 if honest or rng.random() < 0.85 else _log(rng, 1.0, 500.0),
        share_pct=float(rng.uniform(1.0, 60.0)),
        crashes_in=None if rng.random() < 0.92 else int(rng.integers(0, 10)),
    )


def _padded(rng: np.random.Generator, truth: MemoryNeed) -> MemoryNeed:
    more = float(rng.uniform(1.0, 1.2))
    return MemoryNeed(persistent_mib=more * truth.persistent_mib, ephemeral_mib=more * truth.ephemeral_mib)


def _declared(rng: np.random.Generator, truth: MemoryNeed) -> MemoryNeed | None:
    """The truth, nothing at all, or anything from a tenth of it to twice as much."""
    kind = rng.random()
    if kind < 0.35:
        return truth
    if kind < 0.45:
        return None
    return MemoryNeed(
        persistent_mib=float(rng.uniform(0.1, 2.0)) * truth.persistent_mib,
        ephemeral_mib=float(rng.uniform(0.1, 2.0)) * truth.ephemeral_mib,
    )


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    """Spread evenly over the orders of magnitude."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
