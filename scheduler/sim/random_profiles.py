"""Random but plausible planning problems: for property tests, for comparing planners, for benchmarks. Seeded, hypothetical.

Shapes follow what Ekya reports: retraining costs spread over two orders of magnitude, dearer ones tend to end higher with
falling returns, some end below the serving model.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamView

#: Measured multiplier for processing one of k frames (one ResNet18 camera of the authors' table).
FRAME_SAMPLING: tuple[tuple[int, float], ...] = (
    (1, 1.0), (2, 0.78), (3, 0.64), (4, 0.60), (5, 0.44), (6, 0.42), (7, 0.41), (8, 0.33), (9, 0.28), (10, 0.15), (15, 0.12),
    (20, 0.04),
)  # fmt: skip

#: Share that inference on every frame needs.
NEED_PCT = 25.0


def sampled_knobs(
    need_pct: float = NEED_PCT, sampling: tuple[tuple[int, float], ...] = FRAME_SAMPLING
) -> tuple[KnobProfile, ...]:
    """One knob setting per frame sampling rate: a k-th of the need for the measured part of the quality."""
    return tuple(KnobProfile(name=f"1/{k}", demand_pct=need_pct / k, quality_frac=frac) for k, frac in sampling)


def interpolated_knobs(
    need_pct: float = NEED_PCT, sampling: tuple[tuple[int, float], ...] = FRAME_SAMPLING, step_pct: int = 1
) -> tuple[KnobProfile, ...]:
    """One knob setting per `step_pct` of share: with a share x, one of need/x frames is analysed, a fraction too; quality is linear
    between the measured rates and 0 beyond the last, as in the authors' simulator (a share of 10 carries 0.71)."""
    rates, kept = [k for k, _ in sampling], [frac for _, frac in sampling]
    shares = [*(float(x) for x in range(step_pct, math.ceil(need_pct), step_pct)), need_pct]
    fracs = np.interp([need_pct / x for x in shares], rates, kept, right=0.0)
    return tuple(
        KnobProfile(name=f"1/{need_pct / x:.4g}", demand_pct=x, quality_frac=float(frac))
        for x, frac in zip(shares, fracs, strict=True)
        if frac > 0
    )


def linear_knobs(step_pct: int = 10) -> tuple[KnobProfile, ...]:
    """Quality linear in the share up to one GPU."""
    return tuple(
        KnobProfile(name=f"{pct}", demand_pct=float(pct), quality_frac=pct / 100) for pct in range(step_pct, 101, step_pct)
    )


def random_options(rng: np.random.Generator, quality: float, count: int) -> tuple[RetrainOption, ...]:
    """`count` retraining options for a model of `quality`."""
    cost = np.exp(rng.uniform(np.log(4.0), np.log(400.0), count))
    reach = rng.uniform(0.05, 0.35)
    gain = reach * (1 - np.exp(-cost / rng.uniform(10.0, 80.0))) + rng.normal(0.0, 0.04, count)
    end = np.clip(quality + gain, 0.02, 0.98)
    return tuple(
        RetrainOption(name=f"c{n}", end_quality=float(q), cost_gpu_s=float(c))
        for n, (q, c) in enumerate(zip(end, cost, strict=True))
    )


def random_snapshot(
    seed: int,
    *,
    streams: int,
    gpus: float,
    configs: int | None = None,
    knobs: tuple[KnobProfile, ...] = (),
    quantum_pct: int = 10,
    window_s: float = 200.0,
    min_quality: float = 0.0,
    estimate: Literal["static", "hand-back"] = "static",
    running_frac: float = 0.0,
) -> Snapshot:
    """A planning problem. configs: options per stream (None: 6 to 18); knobs: the same for all (none: `sampled_knobs`);
    running_frac: part of the streams whose retraining is already in progress."""
    rng = np.random.default_rng(seed)
    profile = knobs or sampled_knobs()
    views = tuple(_random_view(rng, f"s{n}", configs, profile, running_frac) for n in range(streams))
    return Snapshot(
        remaining_s=window_s,
        capacity_pct=round(100 * gpus),
        quantum_pct=quantum_pct,
        min_quality=min_quality,
        streams=views,
        estimate=estimate,
    )


def _random_view(
    rng: np.random.Generator, name: str, configs: int | None, profile: tuple[KnobProfile, ...], running_frac: float
) -> StreamView:
    quality = float(rng.uniform(0.35, 0.8))
    options = random_options(rng, quality, int(rng.integers(6, 19)) if configs is None else configs)
    if options and rng.random() < running_frac:
        chosen = options[int(rng.integers(len(options)))]
        return StreamView(id=name, quality=quality, knobs=profile, retrain=(chosen,), running=chosen.name)
    return StreamView(id=name, quality=quality, knobs=profile, retrain=options)
