"""What continuous learning is worth on real videos: every number of the learning table, measured, beside its anchor. Resumable.

Run: driftbox bench learning [--data DIR] [--cache DIR] [--jobs 2] [--only main,contention,compute,recurring,seeds,profiling,other]
     [--golden-runtime auto] [--page docs/learning.md] [--plots docs/img]

Each part is a few runs of `driftbox evaluate` (the command is printed), or of another benchmark of this folder, in a process of its own.
Policies over the same footage share a process, and all processes a folder of labels and trainings. What a run answers is kept in the
cache folder: a second call, or one after an interruption, does only what is missing. Virtual time, one GPU as in docs/evaluation.md;
costs are those of `configs/scenarios/eight_cameras_costs.json`, so plans do not depend on this machine.

--page writes the table into a page, between two marker comments, and leaves the rest of it alone; --plots draws F1 over time. Both work
on the kept answers: with `--only none` nothing is run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import learning_contention
import learning_page

from models.weights import cache_dir

ROOT = Path(__file__).resolve().parents[2]

SCENARIOS = ROOT / "configs" / "scenarios"
#: Eight streams each, sixteen videos in all.
SETS = ("eight_cameras", "eight_more_cameras")
EDGE, GOLDEN = "yolov8n@320", "yolo26l@640"
#: The box's default, the paper's thief, the six fixed splits, and nothing.
BOX, THIEF, NONE = "lookahead", "thief-repeat", "no-retrain"
SHARES = (30, 50, 90)
UNIFORM = tuple(f"uniform({config},{share})" for config in ("high", "low") for share in SHARES)
#: The best of the fixed splits on both sets, also with more compute: for runs with other seeds.
FIXED = "uniform(high,50)"
#: Beside 0, of which the table is. One seed says little: it decides what trainings come to, and a small change of one of them is soon
#: another plan.
SEEDS = (1, 2)
#: Times the compute at which uniform is tried, by the splits that came closest without it: the others lie further behind than more
#: compute moves one.
COMPUTE = (2, 4)
CLOSEST = 3
#: ... and at which everybody is: less than a device that is short already.
CONTENTION = (0.5, 0.25)
Answer = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One policy of `driftbox evaluate`. name: unique; lane: its runs follow each other, those with the same `common` arguments in one
    process; after: a lane that must be through before, because its labels and trainings are used again."""

    name: str
    lane: str
    policy: str = ""
    common: tuple[str, ...] = ()
    after: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.common, "--policy", self.policy)


@dataclass(frozen=True, kw_only=True)
class Row:
    """ok: None where nothing is promised or nothing was measured."""

    what: str
    anchor: str
    to_reach: str
    measured: str
    ok: bool | None


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where things are. data: folder of real videos and weights; cache: answers, labels, trained models."""

    data: Path
    cache: Path
    jobs: int = 2
    golden_runtime: str = "torch"

    def answer(self, run: Run) -> Answer | None:
        path = self._path(run)
        return json.loads(path.read_text()) if path.exists() else None

    def keep(self, run: Run, answer: Answer) -> None:
        path = self._path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(answer))
        part.replace(path)

    def command(self, runs: Sequence[Run]) -> list[str]:
        """Of runs that differ in their policies only."""
        return [
            "driftbox",
            "evaluate",
            *runs[0].common,
            "--policy",
            ",".join(run.policy for run in runs),
            "--golden-runtime",
            self.golden_runtime,
            "--footage",
            str(self.data / "videos"),
            "--cache",
            str(self.cache / "memo"),
            "--json",
        ]

    def environment(self) -> dict[str, str]:
        """One thread a process; a weights folder that the caller names wins."""
        weights = {"DRIFTBOX_WEIGHTS": str(self.data / "weights")} | {
            k: v for k, v in os.environ.items() if k == "DRIFTBOX_WEIGHTS"
        }
        return {**os.environ, **weights, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def _path(self, run: Run) -> Path:
        return self.cache / "answers" / f"{run.name}.json"


def evaluate_run(
    name: str, scenario: str, policy: str, *extra: str, lane: str = "", after: str = "", gpus: float = 1, speed: float = 1,
    windows: int = 5, frames: tuple[int, int] = (20, 12),
) -> Run:  # fmt: skip
    """A run of one policy over a scenario file, with the box of docs/learning.md. frames: labelled and judged, per stream and window."""
    return Run(
        name=name, lane=lane or scenario, policy=policy, after=after,
        common=(
            "--scenario", str(SCENARIOS / f"{scenario}.yaml"), "--config", str(SCENARIOS / "learning_box.yaml"),
            "--costs", str(SCENARIOS / "eight_cameras_costs.json"), "--gpu-speed", f"{speed:g}", "--gpus", f"{gpus:g}",
            "--edge", EDGE, "--golden", GOLDEN, "--windows", str(windows), "--window-s", "250",
            "--fps", "12", "--label-frames", f"{frames[0]}", "--judged-frames", f"{frames[1]}", *extra,
        ),
    )  # fmt: skip


def named(policy: str) -> str:
    return policy.replace("(", "-").replace(")", "").replace(",", "-")


def main_runs() -> list[Run]:
    """The box first: the fixed splits find its labels. Dear and cheap ones share no training, so they may go side by side."""
    box = [evaluate_run(f"{s}.{named(policy)}", s, policy) for s in SETS for policy in (NONE, BOX, THIEF)]
    fixed = [
        evaluate_run(f"{s}.{named(policy)}", s, policy, lane=f"{s} {policy[8:12]}", after=s) for s in SETS for policy in UNIFORM
    ]
    return [*box, *fixed]


def compute_runs(gpus: int, policies: Sequence[str] = UNIFORM) -> list[Run]:
    return [
        evaluate_run(f"{s}.{named(policy)}.{gpus}gpus", s, policy, lane=f"{s} {policy[8:12]} {gpus} GPUs", gpus=gpus)
        for s in SETS
        for policy in policies
    ]


def contention_runs(speed: float) -> list[Run]:
    """Everybody on a device that is so much slower (a part of a GPU would be given out in coarser steps)."""
    return [
        evaluate_run(f"{s}.{named(policy)}.{speed:g}x", s, policy, lane=f"{s} {speed:g}x", speed=speed)
        for s in SETS
        for policy in (BOX, NONE, *UNIFORM)
    ]


def seeded(seed: int) -> tuple[str, tuple[str, ...]]:
    """(mark of the names, arguments) of runs with this seed; 0 is that of all others."""
    return (f".seed{seed}", ("--seed", str(seed))) if seed else ("", ())


def recurring_runs(seed: int = 0) -> list[Run]:
    """Eight windows instead of five, so fewer frames of each: the golden model is what takes the time."""
    how = {"windows": 8, "frames": (12, 8)}
    mark, arguments = seeded(seed)
    lane = f"recurring{mark}"
    return [
        evaluate_run(f"recurring.no-reuse{mark}", "recurring", BOX, "--no-reuse", *arguments, lane=lane, **how),  # type: ignore[arg-type]
        evaluate_run(
            f"recurring.reuse{mark}", "recurring", BOX, "--reuse", *arguments, lane=f"{lane} reuse", after=lane, **how,  # type: ignore[arg-type]
        ),
    ]  # fmt: skip


def box_and_fixed_runs(seed: int) -> list[tuple[Run, Run]]:
    """The box and the best fixed split on each set. With seed 0 they are main runs."""
    mark, arguments = seeded(seed)

    def run(scenario: str, policy: str) -> Run:
        return evaluate_run(f"{scenario}.{named(policy)}{mark}", scenario, policy, *arguments, lane=f"{scenario}{mark}")

    return [(run(s, BOX), run(s, FIXED)) for s in SETS]


def compute_seed_runs(gpus: int, seed: int) -> list[Run]:
    """The best fixed split with so much compute. With seed 0 they are compute runs."""
    mark, arguments = seeded(seed)
    return [
        evaluate_run(
            f"{s}.{named(FIXED)}.{gpus}gpus{mark}", s, FIXED, *arguments, lane=f"{s} {gpus} GPUs{mark}", gpus=gpus,
        )
        for s in SETS
    ]  # fmt: skip


def seed_runs(seed: int) -> list[Run]:
    return [*(run for pair in box_and_fixed_runs(seed) for run in pair), *recurring_runs(seed)]


def run_all(bench: Bench, runs: Sequence[Run], say: Callable[[str], None]) -> None:
    """Does what has no answer yet: lanes side by side as far as one does not wait for another, `bench.jobs` at a time."""
    missing = [run for run in runs if bench.answer(run) is None]
    lanes: dict[str, list[Run]] = {}
    for run in missing:
        lanes.setdefault(run.lane, []).append(run)
    say(f"{len(runs) - len(missing)} of {len(runs)} runs are in the cache; {len(missing)} to do in {len(lanes)} lanes")
    slots = threading.Semaphore(bench.jobs)
    begun: dict[str, Future[None]] = {}

    def lane(mine: Sequence[Run]) -> None:
        first = begun.get(mine[0].after)
        if first is not None:
            first.result()
        with slots:
            for together in _together(mine):
                _do(bench, together, say)

    with ThreadPoolExecutor(max(1, len(lanes))) as pool:
        # In order of dependence: whatever a lane waits for is already there.
        for name in sorted(lanes, key=lambda name: bool(lanes[name][0].after)):
            begun[name] = pool.submit(lane, lanes[name])
        _raise_first(list(begun.values()))


def _raise_first(lanes: Sequence[Future[None]]) -> None:
    for each in lanes:
        each.result()


def _together(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that one process can do, in order."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(run.common, []).append(run)
    return list(groups.values())


def _do(bench: Bench, runs: Sequence[Run], say: Callable[[str], None]) -> None:
    command, names = bench.command(runs), ", ".join(run.name for run in runs)
    say(f"{names}: {' '.join(command)}")
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "edge", *command[1:]], capture_output=True, text=True, env=bench.environment(), check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{names} failed:\n{done.stderr[-2000:]}")
    took_s = time.monotonic() - started_s
    for run, answer in zip(runs, one_each(json.loads(done.stdout)), strict=True):
        bench.keep(run, {**answer, "took_s": round(took_s / len(runs), 1)})
    say(f"{names}: done in {took_s:.0f} s")


def one_each(answer: Answer) -> list[Answer]:
    """An answer about several policies as one about each."""
    return [{**answer, "policies": [policy]} for policy in answer["policies"]]


def result(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The one policy of a run's answer."""
    return answer["policies"][0]


# --- the table --------------------------------------------------------------------------------------------------------


class Table:
    """Reads the answers of the main runs; a set whose runs are not all there is left out."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.sets = [s for s in SETS if all(bench.answer(run) for run in main_runs() if run.name.startswith(f"{s}."))]

    def answer(self, scenario: str, policy: str, *, gpus: int = 1) -> Answer | None:
        suffix = "" if gpus == 1 else f".{gpus}gpus"
        return self._bench.answer(Run(name=f"{scenario}.{named(policy)}{suffix}", lane=scenario))

    def of(self, scenario: str, policy: str, *, gpus: int = 1) -> dict[str, Any] | None:
        answer = self.answer(scenario, policy, gpus=gpus)
        return result(answer) if answer else None

    def f1(self, scenario: str, policy: str, *, gpus: int = 1) -> float:
        found = self.of(scenario, policy, gpus=gpus)
        return found["mean_f1"] if found else float("nan")

    def mean(self, policy: str, *, gpus: int = 1) -> float:
        return statistics.fmean(self.f1(s, policy, gpus=gpus) for s in self.sets)

    def best_uniform(self, scenario: str) -> str:
        return max(UNIFORM, key=lambda policy: self.f1(scenario, policy))

    def uniform_means(self, gpus: int) -> dict[str, float]:
        """Fixed split -> mean over the sets with so much compute, of those that were run."""
        return {policy: mean for policy in UNIFORM if not math.isnan(mean := self.mean(policy, gpus=gpus))}

    def best_at(self, gpus: int) -> float:
        """Of the fixed splits, mean over the sets; NaN while not all were run that are to be."""
        means = self.uniform_means(gpus)
        return max(means.values()) if len(means) >= (len(UNIFORM) if gpus == 1 else CLOSEST) else math.nan

    def closest(self) -> list[str]:
        """The fixed splits that came closest with one GPU."""
        means = self.uniform_means(1)
        return sorted(means, key=lambda policy: -means[policy])[:CLOSEST]

    def reaches(self, gpus: int) -> bool:
        """Whether any fixed split is known to reach with so much compute what the box reaches with one GPU."""
        return self.best_at(gpus) >= self.mean(BOX)

    def enough_gpus(self) -> int | None:
        """The least compute at which one does; None: not among those tried."""
        return next((gpus for gpus in (1, *COMPUTE) if self.reaches(gpus)), None)

    def videos(self, policy: str) -> dict[str, float]:
        """video -> mean F1 over its windows."""
        return {video: f1 for s in self.sets for video, f1 in (self.of(s, policy) or {"videos": {}})["videos"].items()}

    def gaps(self) -> dict[str, float]:
        """video -> what the edge model as delivered misses of the golden one's F1 (which is 1 by definition), every frame analysed."""
        answers = [answer for s in self.sets if (answer := self.answer(s, NONE))]
        return {video: 1 - f1 for answer in answers for video, f1 in answer["undisturbed"].items()}


def rows(bench: Bench) -> Iterator[Row]:
    """Every number of the issue that has been measured so far."""
    table = Table(bench)
    if table.sets:
        yield _against_nothing(table)
        yield from _against_uniform(table)
        yield _compute(table)
        yield from _micro_profile(table)
    yield from _contention(bench)
    yield from _reuse(bench)
    yield from _seeds(bench)
    yield from _bad_retrains(bench)
    yield from _swaps(bench)
    yield from _profiling(bench)
    yield from _int8(bench)


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def _against_nothing(table: Table) -> Row:
    box, none, gaps = table.videos(BOX), table.videos(NONE), table.gaps()
    wide = [video for video in box if gaps[video] > 0.2]
    gain = statistics.fmean(box[v] - none[v] for v in wide)
    everywhere = statistics.fmean(box[v] - none[v] for v in box)
    return Row(
        what=f"mean F1, {BOX} against {NONE}, videos where golden and edge differ by more than 20 points ({len(wide)} of {len(box)})",
        anchor="up to +22 points (Ekya, continuous against one-off)", to_reach=">= +10 points",
        measured=f"{_points(gain)}; all videos {_points(everywhere)}", ok=gain >= 0.10,
    )  # fmt: skip


def _against_uniform(table: Table) -> Iterator[Row]:
    for policy in (BOX, THIEF):
        against = {s: sorted(table.f1(s, u) for u in UNIFORM) for s in table.sets}
        best = statistics.fmean(table.f1(s, policy) - f1s[-1] for s, f1s in against.items())
        worst = statistics.fmean(table.f1(s, policy) - f1s[0] for s, f1s in against.items())
        each = "; ".join(f"{s}: {table.f1(s, policy):.3f} against {f1s[0]:.3f}-{f1s[-1]:.3f}" for s, f1s in against.items())
        yield Row(
            what=f"{policy} against the best and the worst uniform, 8 streams, 1 GPU", anchor="+11 / +29 points",
            to_reach=">= +5 / >= +15", measured=f"{_points(best)} / {_points(worst)} ({each})", ok=best >= 0.05 and worst >= 0.15,
        )  # fmt: skip


def _compute(table: Table) -> Row:
    enough = table.enough_gpus()
    best = {gpus: f1 for gpus in (1, *COMPUTE) if not math.isnan(f1 := table.best_at(gpus))}
    shown = ", ".join(f"{gpus}x {f1:.3f}" for gpus, f1 in best.items())
    # Where the most is not enough less is not either; where something is, whatever is less must have been tried.
    known = max(best) == max(COMPUTE) if enough is None else all(gpus in best for gpus in (1, *COMPUTE) if gpus < enough)
    return Row(
        what=f"compute for uniform to match {BOX} at 1x ({table.mean(BOX):.3f})", anchor="4x", to_reach=">= 4x",
        measured=f"{f'{enough}x' if enough else f'more than {max(best)}x'} ({shown})",
        ok=(enough is None or enough >= 4) if known else None,
    )  # fmt: skip


def _contention(bench: Bench) -> Iterator[Row]:
    """Each set at each compute at which the box was run, also where not all was."""
    runs = [
        *main_runs(),
        *(run for s in CONTENTION for run in contention_runs(s)),
        *(run for g in COMPUTE for run in compute_runs(g)),
    ]
    for scenario in SETS:
        kept = (bench.answer(run) for run in runs if run.name.startswith(f"{scenario}."))
        answers = [answer for answer in kept if answer and "pupils" in answer]
        if not answers:
            continue
        for what, measured in learning_contention.told(answers, BOX):
            yield Row(what=f"{scenario}: {what}", anchor="-", to_reach="-", measured=measured, ok=None)
        for compute, f1, times, most in learning_contention.needed(answers, BOX):
            yield Row(
                what=f"{scenario}: compute for uniform to match {BOX} at {compute:g}x ({f1:.3f})", anchor="4x", to_reach=">= 4x",
                measured=f"more than {most:g}x that" if times is None else f"{times:g}x that",
                ok=times >= 4 if times is not None else True if most >= 4 else None,
            )  # fmt: skip


def _micro_profile(table: Table) -> Iterator[Row]:
    """Of the runs above, where there is little to choose and to sub-sample; the issue's row is `_profiling`."""
    trainings = [t for s in table.sets for p in (BOX, THIEF) for t in (table.of(s, p) or {})["trainings"]]
    errors = [abs(t["predicted_f1"] - t["held_out_f1"]) for t in trainings if t.get("predicted_f1") is not None]
    if not errors:
        return
    median = statistics.median(errors)
    found = [answer for s in table.sets for p in (BOX, THIEF) if (answer := table.of(s, p)) and answer["profiles"]]
    cost = ""
    if found:
        profile, exhaustive = (sum(values) for values in zip(*map(_profile_gpu_s, found), strict=True))
        cost = f"; {exhaustive / profile:.0f}x cheaper ({profile:.0f} against {exhaustive:.0f} GPU-s: few configurations, few pictures)"
    yield Row(
        what=f"micro-profile error, median over these {len(errors)} retrainings (same held-out labels)", anchor="5.8 points",
        to_reach="<= 5 points", measured=f"{100 * median:.1f} points (mean {100 * statistics.fmean(errors):.1f}){cost}",
        ok=median <= 0.05,
    )  # fmt: skip


def _profile_gpu_s(answer: Mapping[str, Any]) -> tuple[float, float]:
    return answer["gpu_s_by_kind"]["profile"], answer["exhaustive_gpu_s"]


def _profiling(bench: Bench) -> Iterator[Row]:
    if (found := bench.answer(other_run("profiling"))) is None:
        return
    answer = found["answer"]
    best = next(v for v in answer["settings"] if v["setting"] == answer["best"])
    box = next(v for v in answer["settings"] if v["setting"] == "box")
    yield Row(
        what=f"micro-profile, error (median) and cost: Ekya's 18 configurations, {len(answer['streams'])} streams, crops",
        anchor="5.8 points, 100x cheaper than exhaustive", to_reach="<= 5 points, >= 100x",
        measured=f"{best['error_points']:.1f} points, {best['times']:.0f}x ({best['setting']}); as the box is shipped "
        f"{box['error_points']:.1f} points, {box['times']:.0f}x; saying that nothing changes errs by {best['unchanged_points']:.1f}",
        ok=best["error_points"] <= 5 and best["times"] >= 100,
    )  # fmt: skip


def _reuse(bench: Bench) -> Iterator[Row]:
    answers = {run.name: bench.answer(run) for run in recurring_runs()}
    if not all(answers.values()):
        return
    alone, reuse = (result(answer) for answer in answers.values() if answer)
    trained = [_trained_gpu_s(alone), _trained_gpu_s(reuse)]
    gain, part = reuse["mean_f1"] - alone["mean_f1"], trained[1] / max(trained[0], 1e-9)
    yield Row(
        what="reuse + retrain against retrain alone, recurring drift", anchor="RECL; AdaInf +21 % accuracy",
        to_reach=">= +3 points or half the GPU-seconds",
        measured=f"{_points(gain)} ({alone['mean_f1']:.3f} -> {reuse['mean_f1']:.3f}), "
        f"{part:.2f} of the GPU-seconds after labelling ({trained[0]:.0f} -> {trained[1]:.0f})",
        ok=gain >= 0.03 or part <= 0.5,
    )  # fmt: skip


def _trained_gpu_s(answer: Mapping[str, Any]) -> float:
    """What learning took beside labels and looks."""
    return sum(answer["gpu_s_by_kind"].get(kind, 0.0) for kind in ("profile", "train", "gate", "probe"))


def _seeds(bench: Bench) -> Iterator[Row]:
    """The two rows that compare runs, over all seeds that were run."""

    def results(runs: Sequence[Run]) -> list[dict[str, Any]]:
        """Of all of them, or none while one is missing."""
        answers = [answer for run in runs if (answer := bench.answer(run))]
        return [result(answer) for answer in answers] if len(answers) == len(runs) else []

    ahead, won, part = [], [], []
    over: dict[int, list[float]] = {gpus: [] for gpus in COMPUTE}
    for seed in (0, *SEEDS):
        pairs = [results(pair) for pair in box_and_fixed_runs(seed)]
        if all(pairs):
            ahead.append(statistics.fmean(box["mean_f1"] - fixed["mean_f1"] for box, fixed in pairs))
            for gpus in COMPUTE:
                if more := results(compute_seed_runs(gpus, seed)):
                    at_1x = [box for box, _ in pairs]
                    over[gpus].append(statistics.fmean(b["mean_f1"] - up["mean_f1"] for b, up in zip(at_1x, more, strict=True)))
        if both := results(recurring_runs(seed)):
            alone, reuse = both
            won.append(reuse["mean_f1"] - alone["mean_f1"])
            part.append(_trained_gpu_s(reuse) / max(_trained_gpu_s(alone), 1e-9))
    if len(ahead) > 1:
        yield Row(
            what=f"{BOX} against {FIXED}, both sets, {len(ahead)} seeds", anchor="+11 points", to_reach=">= +5",
            measured=_over_seeds(ahead), ok=statistics.fmean(ahead) >= 0.05,
        )  # fmt: skip
    for gpus, gains in over.items():
        if len(gains) > 1:
            yield Row(
                what=f"{BOX} at 1x against {FIXED} at {gpus}x compute, both sets, {len(gains)} seeds", anchor="4x",
                to_reach=">= +0 at less than 4x", measured=_over_seeds(gains), ok=statistics.fmean(gains) >= 0,
            )  # fmt: skip
    if len(won) > 1:
        yield Row(
            what=f"reuse + retrain against retrain alone, recurring drift, {len(won)} seeds", anchor="RECL; AdaInf +21 % accuracy",
            to_reach=">= +3 points or half the GPU-seconds",
            measured=f"{_over_seeds(won)}; {statistics.fmean(part):.2f} of the GPU-seconds after labelling",
            ok=statistics.fmean(won) >= 0.03 or statistics.fmean(part) <= 0.5,
        )  # fmt: skip


def _over_seeds(values: Sequence[float]) -> str:
    return f"{_points(statistics.fmean(values))} ({', '.join(f'{100 * value:+.1f}' for value in values)})"


def print_rows(found: Sequence[Row]) -> None:
    for row in found:
        mark = {True: "reached", False: "MISSED", None: "-"}[row.ok]
        print(
            f"{mark:<8} {row.what}\n           anchor: {row.anchor}; to reach: {row.to_reach}\n           measured: {row.measured}"
        )


# --- other benchmarks of this folder ----------------------------------------------------------------------------------

#: part -> name -> script and arguments; each writes JSON, to a file where {file} stands, else to its output.
OTHERS: dict[str, dict[str, tuple[str, ...]]] = {
    "profiling": {
        "profiling": ("bench_profiling.py", "--data", "{data}", "--cache", "{cache}/profiling", "--jobs", "{jobs}", "--json", "{file}")
    },
    "other": {
        "bad_retrains": ("bad_retrains.py", "--tries", "1000", "--json"),
        "bad_lessons": ("bad_lessons.py", "--tries", "1000", "--json"),
        "models": ("bench_models.py", "--models", "yolov8n@320", "--variants", "torch,openvino,openvino-int8", "--json", "{file}"),
        "swap": ("bench_swap.py", "--swaps", "1000", "--serving", "trained", "--models", "tinydet-edge", "--json", "{file}"),
    },
}  # fmt: skip

#: Of these, what measures no time.
COUNTING = ("bad_retrains", "bad_lessons")


def other_run(name: str) -> Run:
    return Run(name=f"other.{name}", lane="other")


def run_others(bench: Bench, part: str, say: Callable[[str], None]) -> None:
    """Those that only count, side by side; then one after the other and nothing beside, for the others measure speed."""
    missing = {name: words for name, words in OTHERS[part].items() if bench.answer(other_run(name)) is None}
    with ThreadPoolExecutor(bench.jobs) as pool:
        list(pool.map(lambda name: _do_other(bench, name, missing[name], say), [n for n in missing if n in COUNTING]))
    for name, words in missing.items():
        if name not in COUNTING:
            _do_other(bench, name, words, say)


def _do_other(bench: Bench, name: str, words: Sequence[str], say: Callable[[str], None]) -> None:
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        known = {"file": file, "data": bench.data, "cache": bench.cache, "jobs": bench.jobs}
        script, *arguments = (word.format(**known) for word in words)
        say(f"{script} {' '.join(arguments)}")
        command = [sys.executable, str(ROOT / "tests" / "benchmarks" / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=bench.environment(), check=False)
        text = file.read_text() if file.exists() else done.stdout
    try:
        answer = json.loads(text)
    except ValueError:
        say(f"{script} ended with code {done.returncode} and no answer: {done.stderr[-500:]}")
        return
    bench.keep(other_run(name), {"answer": answer, "took_s": round(time.monotonic() - started_s, 1)})


def _bad_retrains(bench: Bench) -> Iterator[Row]:
    for name, whose in (("bad_retrains", "one camera's"), ("bad_lessons", "of several cameras, by one that loses by it")):
        if (found := bench.answer(other_run(name))) is None:
            continue
        answer = found["answer"]
        yield Row(
            what=f"bad retrains (poisoned labels, NaN, wrong classes) taken live: {whose}", anchor="-", to_reach="0 in 1,000",
            measured=f"{answer['taken']} in {answer['tries']} (the gate alone; shadow and rollback come on top)",
            ok=answer["taken"] == 0 and answer["tries"] >= 1000,
        )  # fmt: skip


#: What the second half of 1,000 swaps may take: 10 KiB a swap.
LATE_MIB = 5.0


def _swaps(bench: Bench) -> Iterator[Row]:
    for n in (bench.answer(other_run("swap")) or {"answer": []})["answer"]:
        growth_mib = n["rss_mib"][1] - n["rss_mib"][0] if n["rss_mib"] else float("nan")
        late_mib = n.get("late_mib", growth_mib)
        yield Row(
            what=f"swaps on a running box: {n['model']}", anchor="kills and restarts its actor (Ekya)",
            to_reach="no frame interval missed, rollback <= 1 s, 1,000 swaps with flat memory",
            measured=f"{n['missed']} intervals missed in {n['swaps']} exchanges ({n['quiet_missed']:.1f} per 1,000 without swaps), "
            f"rollback {n['rollback_s']:.2f} s at most, memory {growth_mib:+.1f} MiB, {late_mib:+.1f} of it in the second half",
            ok=n["missed"] == 0 and n["rollback_s"] <= 1.0 and late_mib < LATE_MIB,
        )  # fmt: skip


def _int8(bench: Bench) -> Iterator[Row]:
    if (found := bench.answer(other_run("models"))) is None:
        return
    for row in found["answer"]:
        if row["variant"] != "openvino-int8":
            continue
        whole = next(r for r in found["answer"] if r["model"] == row["model"] and r["variant"] == "torch")
        speed, lost = row["fps"] / whole["fps"], whole["f1"] - row["f1"]
        yield Row(
            what=f"int8 on CPU, {row['model']}", anchor="fp32 torch", to_reach=">= 2.5x frames/s, <= 1 point of F1 lost",
            measured=f"{speed:.2f}x, {100 * lost:+.1f} points lost", ok=speed >= 2.5 and lost <= 0.01,
        )  # fmt: skip


# --- the command ------------------------------------------------------------------------------------------------------

PARTS = ("main", "contention", "compute", "recurring", "seeds", "profiling", "other")
#: Not run unasked: what is more than one row of the table asks for, and takes as long as the rest of it.
ASKED_FOR = ("contention", "seeds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder with videos/ and weights/")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "bench-learning")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument(
        "--only",
        default=",".join(part for part in PARTS if part not in ASKED_FOR),
        help=f"parts to run, of {', '.join(PARTS)} (all but {' and '.join(ASKED_FOR)}); none: print what is kept",
    )
    parser.add_argument(
        "--golden-runtime", default="auto", help="torch, openvino, openvino-bf16, or auto: as a box labels here"
    )
    parser.add_argument("--page", type=Path, help="Markdown page whose part between the markers is written anew")
    parser.add_argument("--plots", type=Path, help="folder for the pictures of F1 over time")
    args = parser.parse_args()
    parts = [] if args.only == "none" else args.only.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        raise SystemExit(f"no part is called {', '.join(unknown)}; known: {', '.join(PARTS)}, or none")
    if parts and not (args.data / "videos").is_dir():
        raise SystemExit(f"{args.data} holds no videos: name the folder of videos/ and weights/ with --data")
    if args.page:
        learning_page.check(args.page)
    runtime = golden_runtime() if args.golden_runtime == "auto" else args.golden_runtime
    bench = Bench(data=args.data.resolve(), cache=args.cache, jobs=args.jobs, golden_runtime=runtime)
    started_s = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started_s:6.0f} s] {text}", file=sys.stderr, flush=True)

    run_parts(bench, parts, say)
    found = list(rows(bench))
    print_videos(bench)
    print_rows(found)
    print(f"\nthe runs took {took_s(bench):.0f} s in all; this call {time.monotonic() - started_s:.0f} s")
    plots = draw_plots(bench, args.plots) if args.plots else []
    if args.page:
        learning_page.write(args.page, Table(bench), found, took_s=took_s(bench), plots=plots)


def run_parts(bench: Bench, parts: Sequence[str], say: Callable[[str], None]) -> None:
    """Evaluations of all parts side by side; then more compute; what measures speed last, alone."""
    side_by_side = {
        "main": main_runs, "contention": lambda: [run for speed in CONTENTION for run in contention_runs(speed)],
        "recurring": recurring_runs, "seeds": lambda: [run for seed in SEEDS for run in seed_runs(seed)],
    }  # fmt: skip
    run_all(bench, [run for part in parts if part in side_by_side for run in side_by_side[part]()], say)
    if "compute" in parts:
        run_compute(bench, SEEDS if "seeds" in parts else (), say)
    for part in parts:
        if part in OTHERS:
            run_others(bench, part, say)


def run_compute(bench: Bench, seeds: Sequence[int], say: Callable[[str], None]) -> None:
    """The most of it first: where that is not enough, less is not either."""
    *lesser, most = COMPUTE
    for gpus in (most, *lesser):
        table = Table(bench)
        if not table.sets or any(map(table.reaches, (1, *lesser))):
            return
        more = [run for seed in seeds for run in compute_seed_runs(gpus, seed)]
        run_all(bench, [*compute_runs(gpus, table.closest()), *more], say)
        if not Table(bench).reaches(most):
            return


def golden_runtime() -> str:
    """As a box would label here (`edge.golden_form`)."""
    from models.serving.openvino_runtime import computes_in_bf16
    from models.serving.registry import runtime_of

    if runtime_of("openvino").missing():
        return "torch"
    return "openvino-bf16" if computes_in_bf16() else "openvino"


def took_s(bench: Bench) -> float:
    """Of all kept answers together."""
    known = [*main_runs(), *(run for gpus in COMPUTE for run in compute_runs(gpus)), *recurring_runs()]
    known += [run for speed in CONTENTION for run in contention_runs(speed)]
    known += [run for seed in SEEDS for run in seed_runs(seed)]
    known += [run for gpus in COMPUTE for seed in SEEDS for run in compute_seed_runs(gpus, seed)]
    others = [other_run(name) for part in OTHERS.values() for name in part]
    return sum(answer.get("took_s", 0.0) for run in [*known, *others] if (answer := bench.answer(run)))


def draw_plots(bench: Bench, folder: Path) -> list[tuple[str, Path]]:
    """F1 over time of everything that has answers; (title, file) of each picture."""
    from edge.evaluate.plot import draw_lines

    folder.mkdir(parents=True, exist_ok=True)
    table, drawn = Table(bench), []
    found: dict[str, dict[str, Answer | None]] = {
        s: {p: table.answer(s, p) for p in (BOX, table.best_uniform(s), NONE)} for s in table.sets
    }
    recurring = {name: bench.answer(run) for name, run in zip((f"{BOX}, no reuse", BOX), recurring_runs(), strict=True)}
    for scenario, answers in {**found, "recurring": recurring}.items():
        whole = {name: answer for name, answer in answers.items() if answer}
        if len(whole) < len(answers):
            continue
        options = next(iter(whole.values()))["options"]
        f1 = {name: result(answer)["f1_per_window"] for name, answer in whole.items()}
        title = f"{scenario.replace('_', ' ')}: {len(next(iter(f1.values())))} streams, {options['gpus']:g} GPU"
        path = folder / f"learning_{scenario}.svg"
        y_label = f"F1 against golden labels (IoU {options['iou_min']:g})"
        draw_lines(path, f1, window_s=options["window_s"], y_label=y_label, title=title)
        drawn.append((title, path))
    return drawn


def print_videos(bench: Bench) -> None:
    """Every video, every policy."""
    table = Table(bench)
    policies, gaps = (BOX, THIEF, *UNIFORM, NONE), table.gaps()
    for scenario in table.sets:
        print(f"\n{scenario}: mean F1 over windows 1-4; gap: what the edge model as delivered misses, every frame analysed")
        print(f"{'':<28}{'gap':>7}" + "".join(f"{p.replace('uniform', 'u'):>13}" for p in policies))
        found = {p: table.of(scenario, p) for p in policies}
        for video in sorted((found[NONE] or {"videos": {}})["videos"]):
            values = "".join(f"{(found[p] or {})['videos'][video]:>13.3f}" for p in policies)
            print(f"{video:<28}{gaps[video]:>7.3f}{values}")
        print(f"{'mean':<35}" + "".join(f"{table.f1(scenario, p):>13.3f}" for p in policies))
    print()


if __name__ == "__main__":
    main()
