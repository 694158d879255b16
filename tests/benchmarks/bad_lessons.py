"""Prints how many bad lessons of several cameras were taken live by cameras that lose by them, and how many good ones by those that win.

python tests/benchmarks/bad_lessons.py [--tries 1000] [--trainings 12] [--cameras 8] [--seed 0]

As `bad_retrains.py`, with the verdict of `scheduler.together`: in every try cameras with scenes, frames and serving models of their own
judge one candidate, each on one or two frames that are labelled already, and where that leaves doubt on new ones, as many as its
window has for a gate. A lesson is bad when it loses in the mean over the cameras; it is counted when a camera takes it that is truly
worth less with it. Good ones: the serving models, finding a little more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configs.schema.planning import WindowSection
from edge import jobs
from models.tinydet import load_bundled
from scheduler import together
from scheduler.admission import SEEING
from tests.benchmarks import bad_retrains as alone

#: Frames of a camera that are labelled already when a lesson ends.
KNOWN = (1, 2)
#: What a good lesson finds again of what a serving model misses, as a part of all objects.
FOUND_AGAIN = 0.12


@dataclass(frozen=True, kw_only=True, eq=False)
class Camera:
    """where: its scene; older: frames that are labelled; newer: those of the window in progress; serving: what it has."""

    where: str
    older: Sequence[alone.Shot]
    newer: Sequence[alone.Shot]
    serving: alone.Weaker

    def seen(self, candidate: Any, *, known: bool = True) -> together.Seen:
        """known: by what is labelled already."""
        try:
            result = jobs.run_at_once(
                jobs.gate_steps(
                    alone.GateSamples(self.newer, self.older), alone.Golden([*self.newer, *self.older]), self.serving, candidate,
                    stream="a", window=1, frames=alone.GATE_FRAMES, scoring=jobs.Scoring(), known=known, least=1,
                )
            )  # type: ignore[arg-type]  # fmt: skip
        except Exception:  # as in the box: a gate that fails judges nothing
            return together.Seen(serving=None, candidate=None, gain=None, gain_sd=None, frames=0)
        return together.Seen(
            serving=result.serving_quality, candidate=result.candidate_quality, gain=result.gain, gain_sd=result.gain_sd,
            frames=result.frames,
        )  # fmt: skip

    def gain(self, candidate: Any) -> float:
        """What it truly wins, on all frames of its scene."""
        shots = alone.scene(self.where)
        return alone.true_f1(shots, candidate) - alone.true_f1(shots, self.serving)


def cameras_of(rng: np.random.Generator, serving: alone.Remembered, count: int) -> list[Camera]:
    found = []
    for _ in range(count):
        where, newer, older, present = alone._draw(rng, serving)
        found.append(Camera(where=where, older=older[: int(rng.choice(KNOWN))], newer=newer, serving=present))
    return found


def taken_by(cameras: Sequence[Camera], candidates: Sequence[Any]) -> list[bool]:
    """candidates: one for each camera; the same, or what it is worth to that camera."""

    def seen(known: bool) -> list[together.Seen]:
        return [camera.seen(candidate, known=known) for camera, candidate in zip(cameras, candidates, strict=True)]

    found = seen(known=True)
    if together.in_doubt(found, margin=0.0, seeing=SEEING):
        found = seen(known=False)
    told = together.verdicts(found, margin=0.0, risk=WindowSection().gate_risk, seeing=SEEING)
    return [verdict.admitted for verdict in told]


def run(tries: int = 1000, *, trainings: int = 12, cameras: int = 8, seed: int = 0) -> dict[str, Any]:
    """JSON-ready: tries, bad lessons; taken, those by which somebody lost who took it; worst, what they were and lost; good and
    good_taken, good lessons and the part of cameras that took one."""
    with alone._one_thread():
        wrong = [(what, alone.Remembered(model)) for what, model in alone.candidates(trainings, seed)]
        serving = alone.Remembered(load_bundled(alone.EDGE))
        tried, taken = Counter[str](), list[dict[str, Any]]()
        number = 0
        while sum(tried.values()) < tries:
            rng = np.random.default_rng((seed, 2, number))
            what, candidate = wrong[number % len(wrong)]
            number += 1
            judges = cameras_of(rng, serving, cameras)
            gains = [judge.gain(candidate) for judge in judges]
            if np.mean(gains) >= 0:
                continue
            tried[what] += 1
            lost = [-g for g, took in zip(gains, taken_by(judges, [candidate] * cameras), strict=True) if took and g < 0]
            if lost:
                taken.append({"what": what, "cameras": len(lost), "lost_f1": round(float(np.mean(lost)), 3)})
        return {
            "tries": sum(tried.values()), "taken": len(taken), "worst": taken, "by_kind": dict(sorted(tried.items())),
            **_good(serving, max(20, tries // 10), cameras, seed),
        }  # fmt: skip


def _good(serving: alone.Remembered, tries: int, cameras: int, seed: int) -> dict[str, Any]:
    took, won = [], []
    for number in range(tries):
        judges = cameras_of(np.random.default_rng((seed, 3, number)), serving, cameras)
        better = [alone.Weaker(serving, max(0.0, judge.serving._missed_frac - FOUND_AGAIN)) for judge in judges]
        took += taken_by(judges, better)
        won += [judge.gain(candidate) for judge, candidate in zip(judges, better, strict=True)]
    return {"good": tries, "good_gain_f1": round(float(np.mean(won)), 3), "good_taken": round(float(np.mean(took)), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=1000)
    parser.add_argument("--trainings", type=int, default=12, help="models really trained on poisoned labels")
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    answer = run(given.tries, trainings=given.trainings, cameras=given.cameras, seed=given.seed)
    if given.json:
        print(json.dumps(answer, indent=1))
    else:
        print(f"bad lessons taken live by who loses: {answer['taken']} of {answer['tries']}   (to reach: 0 in 1,000)")
        for one in answer["worst"][:20]:
            print(f"  {one['what']}: {one['cameras']} cameras, each lost {one['lost_f1']:.3f} F1")
        print(
            f"good lessons (+{answer['good_gain_f1']:.3f} F1 in the mean): taken by {100 * answer['good_taken']:.0f} % of the cameras"
        )
    return 0 if answer["taken"] == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
