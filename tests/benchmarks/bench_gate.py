"""Which rule of the gate loses least: plain margin, z-test, the box's posterior; in a made-up world, and on recorded gates.

Run: driftbox bench gate [ANSWER.json ...]      ANSWER: what `driftbox evaluate --json` printed (its gates know the true F1)

lost: mean of the gains that a rule let go and of the losses that it took, in points of F1 per gate, against a rule that knows the truth.
bad: gates at which a model was taken that is worse by more than 2 points. The made-up world: objects per frame are Poisson, found with a
chance that is beta-distributed over frames; one retraining in seven is spoilt, a promise is kept to six tenths on average. "with
promise": a rule that takes the profile's word for what it saw; where labels are poisoned, that word is poisoned too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.evaluate import MatchCounts, gain_sd
from scheduler.admission import SEEING, Belief, judge

FRAMES = (3, 5, 8, 16, 32)
BAD = 0.02
#: What retrainings of recorded gates are taken to have promised: the mean gain of those of the eight cameras is about that.
RECORDED = Belief(mean=0.05, sd=0.1)
#: Standard error times the root of the frames, where a recorded gate does not say its own; seen less true gains spread by about that.
UNKNOWN_SD = 0.12


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What a gate saw (qualities 0-1 on `frames` frames) and what was true."""

    old: float
    new: float
    sd: float | None
    frames: int
    true_gain: float
    belief: Belief


Rule = Callable[[Gate], bool]


def rules() -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for margin in (0.0, 0.02, 0.05):
        found[f"margin {margin:g}"] = lambda g, m=margin: g.new - g.old > m
    for z in (0.5, 1.0, 1.64):
        found[f"z-test {z:g}"] = lambda g, z=z: g.new > g.old and g.new - g.old > z * (g.sd or UNKNOWN_SD)
    for risk in (0.5, 0.4, 0.3, 0.25, 0.2, 0.1):
        found[f"posterior, risk {risk:g}"] = lambda g, r=risk: _posterior(g, r, min(0.0, g.belief.mean))
    for risk in (0.4, 0.25):
        found[f"with promise, risk {risk:g}"] = lambda g, r=risk: _posterior(g, r, g.belief.mean)
    return found


def _posterior(gate: Gate, risk: float, expected: float) -> bool:
    belief = Belief(mean=expected, sd=gate.belief.sd)
    return judge(gate.old, gate.new, gain_sd=gate.sd, frames=gate.frames, belief=belief, risk=risk, seeing=SEEING).admitted


def outcome(gates: Sequence[Gate], rule: Rule) -> tuple[float, float, float]:
    """(points lost per gate, part of gates that took a bad model, part that admitted)."""
    admits = np.array([rule(gate) for gate in gates])
    truth = np.array([gate.true_gain for gate in gates])
    lost = np.maximum(truth, 0.0) - truth * admits
    return 100 * float(lost.mean()), float((admits & (truth < -BAD)).mean()), float(admits.mean())


# --- a made-up world --------------------------------------------------------------------------------------------------


def made_up(frames: int, count: int, seed: int = 0) -> list[Gate]:
    rng = np.random.default_rng((seed, frames))
    return [_made_up(rng, frames) for _ in range(count)]


def _made_up(rng: np.random.Generator, frames: int) -> Gate:
    promise = abs(rng.normal(0.03, 0.06))
    gain = -rng.uniform(0.05, 0.5) if rng.random() < 0.15 else rng.normal(0.6 * promise, 0.06)
    old = rng.uniform(0.2, 0.85)
    new = float(np.clip(old + gain, 0.01, 0.98))
    before, after = _counts(rng, old, frames), _counts(rng, new, frames)
    return Gate(
        old=MatchCounts.total(before).f1, new=MatchCounts.total(after).f1, sd=gain_sd(before, after), frames=frames,
        true_gain=new - old, belief=Belief(mean=0.6 * promise, sd=0.1),
    )  # fmt: skip


def _counts(rng: np.random.Generator, right: float, frames: int) -> list[MatchCounts]:
    """Objects that are found with a chance of its own in each frame; as many false alarms as misses."""
    part = rng.beta(3 * right, 3 * (1 - right), frames)
    objects = rng.poisson(4, frames)
    hit, false = rng.binomial(objects, part), rng.binomial(objects, 1 - part)
    return [MatchCounts(int(h), int(f), int(o - h)) for h, f, o in zip(hit, false, objects, strict=True)]


# --- recorded gates ---------------------------------------------------------------------------------------------------


def recorded(answers: Iterable[dict[str, Any]]) -> list[Gate]:
    """Every gate once, however many policies came by it."""
    seen: dict[tuple[Any, ...], Gate] = {}
    for answer in answers:
        for policy in answer.get("policies", []):
            for gate in policy.get("gates", []):
                if gate["serving_f1"] is None or gate["candidate_f1"] is None:
                    continue
                key = (gate["stream"], gate["window"], gate["candidate"], round(gate["serving_f1"], 4), gate["frames"])
                sd = gate.get("gain_sd") or UNKNOWN_SD / math.sqrt(max(2, gate["frames"]))
                gain = gate.get("gain")
                new = gate["candidate_f1"] if gain is None else gate["serving_f1"] + gain
                seen[key] = Gate(
                    old=gate["serving_f1"], new=new, sd=sd, frames=gate["frames"], belief=RECORDED,
                    true_gain=gate["candidate_true_f1"] - gate["serving_true_f1"],
                )  # fmt: skip
    return list(seen.values())


def table(title: str, gates: Sequence[Gate]) -> None:
    print(f"\n{title}: {len(gates)} gates, mean true gain {100 * np.mean([g.true_gain for g in gates]):.1f} points")
    print(f"  {'rule':<22}{'lost':>7}{'bad':>8}{'admitted':>10}")
    for name, rule in rules().items():
        lost, bad, admitted = outcome(gates, rule)
        print(f"  {name:<22}{lost:>7.2f}{bad:>8.1%}{admitted:>10.0%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", nargs="*", type=Path, help="answers of `driftbox evaluate --json`")
    parser.add_argument("--gates", type=int, default=3000, help="of the made-up world, for each number of frames")
    given = parser.parse_args()
    for frames in FRAMES:
        table(f"made-up world, {frames} frames", made_up(frames, given.gates))
    if given.answers:
        table("recorded gates", recorded(json.loads(path.read_text()) for path in given.answers))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
