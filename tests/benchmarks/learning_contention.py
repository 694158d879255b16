"""The box at several amounts of compute: against the fixed splits, against how much more they need, and against perfect knowledge.

Run: python tests/benchmarks/learning_contention.py ANSWER.json... [--box lookahead]

Each ANSWER is what `driftbox evaluate --json` printed for one and the same set of streams, at any `--gpus` and `--gpu-speed`, of one
policy or many. What was retrained in any of them counts as a lesson that perfect knowledge may choose from (`scheduler.ekya.hindsight`),
at every amount of compute. `bench learning` prints the same rows of its own answers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.ekya import hindsight

Answer = Mapping[str, Any]
UNIFORM = "uniform("


@dataclass(frozen=True, kw_only=True)
class Level:
    """One amount of compute. compute: times that of the costs' machine; policies: name -> its result."""

    compute: float
    policies: Mapping[str, Mapping[str, Any]]
    golden_gpu_s: float

    def f1(self, policy: str) -> float:
        return float(self.policies[policy]["mean_f1"])

    def uniform(self) -> list[tuple[float, str]]:
        """(F1, name) of the fixed splits that were run, worst first."""
        return sorted((self.f1(name), name) for name in self.policies if name.startswith(UNIFORM))

    def beside_gpu_s(self, policy: str) -> float:
        """What a retraining of the policy cost beside its own labels and its training: looks, held-out labels, probes, profiles, gates,
        and what was begun for nothing. At 1x."""
        result = self.policies[policy]
        learned = sum(t["labels"] * self.golden_gpu_s + t["gpu_s"] for t in result["trainings"])
        return self.compute * max(0.0, result["gpu_s"] - learned) / max(1, len(result["trainings"]))


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """Mean F1, the least demanding last: found_out pays for what the box pays to find out too; taught for labels and training only."""

    found_out: float
    taught: float
    given: float


def levels(answers: Sequence[Answer]) -> list[Level]:
    """By compute, the least first. Answers about the same policy at the same compute: the last one counts."""
    found: dict[float, dict[str, Any]] = {}
    golden: dict[float, float] = {}
    for answer in answers:
        compute = compute_of(answer)
        golden[compute] = answer["costs"]["golden_gpu_s"]
        found.setdefault(compute, {}).update({p["policy"]: p for p in answer["policies"]})
    return [Level(compute=c, policies=found[c], golden_gpu_s=golden[c]) for c in sorted(found)]


def compute_of(answer: Answer) -> float:
    return float(answer["options"]["gpus"]) * float(answer["options"]["gpu_speed"])


def pupils_at_1x(answers: Sequence[Answer]) -> tuple[hindsight.Pupil, ...]:
    """The lessons of all answers, at the compute of the costs' machine."""
    return hindsight.joined(
        [
            tuple(p.at_speed(1 / answer["options"]["gpu_speed"]) for p in hindsight.pupils_of(answer["pupils"]))
            for answer in answers
            if "pupils" in answer
        ]
    )


def headroom(pupils: Sequence[hindsight.Pupil], level: Level, box: str, *, window_s: float) -> Headroom:
    device = hindsight.Device(window_s=window_s)
    here = [pupil.at_speed(level.compute) for pupil in pupils]
    beside_gpu_s = level.beside_gpu_s(box) / level.compute
    return Headroom(
        found_out=hindsight.foreseen(here, device, beside_gpu_s=beside_gpu_s).quality,
        taught=hindsight.foreseen(here, device).quality, given=hindsight.given(here, device),
    )  # fmt: skip


def told(answers: Sequence[Answer], box: str) -> Iterator[tuple[str, str]]:
    """(what, measured) for each compute at which the box was run."""
    pupils, window_s = pupils_at_1x(answers), answers[0]["options"]["window_s"]
    for level in (found for found in levels(answers) if box in found.policies):
        mine, fixed = level.f1(box), level.uniform()
        if fixed:
            (worst, _), (best, name) = fixed[0], fixed[-1]
            yield (
                f"{box} against the best and the worst of {len(fixed)} uniform at {level.compute:g}x compute",
                f"{points(mine - best)} / {points(mine - worst)} ({mine:.3f} against {best:.3f} of {name}, {worst:.3f})",
            )
        if pupils:
            room = headroom(pupils, level, box, window_s=window_s)
            lessons = sum(len(pupil.lessons) for pupil in pupils)
            yield (
                f"perfect knowledge of {lessons} retrainings at {level.compute:g}x compute",
                f"{box} {mine:.3f}; knowing all of them beforehand, at its price for finding out {room.found_out:.3f}, at that of "
                f"labels and training alone {room.taught:.3f}; all models for nothing {room.given:.3f}",
            )


def needed(answers: Sequence[Answer], box: str) -> Iterator[tuple[float, float, float | None, float]]:
    """(compute, the box's F1 there, times that compute at which a fixed split is as good (None: at none that was run), the most compute
    at which one was run in that measure)."""
    found = levels(answers)
    fixed = [(level.compute, level.uniform()[-1][0]) for level in found if level.uniform()]
    for level in (found_level for found_level in found if box in found_level.policies and fixed):
        enough = next((compute / level.compute for compute, f1 in fixed if f1 >= level.f1(box)), None)
        yield level.compute, level.f1(box), enough, max(compute for compute, _ in fixed) / level.compute


def points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("answers", nargs="+", type=Path)
    parser.add_argument("--box", default="lookahead", help="the policy that is compared")
    args = parser.parse_args()
    answers = [json.loads(path.read_text(encoding="utf-8")) for path in args.answers]
    for level in levels(answers):
        shown = ", ".join(f"{name} {level.f1(name):.3f}" for name in level.policies)
        print(f"{level.compute:g}x: {shown}")
    for what, measured in told(answers, args.box):
        print(f"{what}\n    {measured}")
    for compute, f1, times, most in needed(answers, args.box):
        said = f"more than {most:g} times" if times is None else f"{times:g} times"
        print(f"compute for uniform to match {args.box} at {compute:g}x ({f1:.3f}): {said} that")
    for level in levels(answers):
        if args.box in level.policies:
            spent = level.policies[args.box]["gpu_s_by_kind"]
            total = max(1e-9, sum(spent.values()))
            parts = ", ".join(f"{kind} {100 * gpu_s / total:.0f} %" for kind, gpu_s in spent.items())
            print(f"{args.box} at {level.compute:g}x spent {total:.0f} GPU-s: {parts}")


if __name__ == "__main__":
    main()
