"""What the micro-profiler's errors cost: recorded predictions against measured ones, raw and corrected; noise; pruning.

Run: python tests/benchmarks/bench_profile.py [BOXES] [TABLE.csv]
The table is the authors' (Cityscapes, ResNet18, 666 rows: 13 cities, 37 city-windows, 18 configurations). A box is a random set of
its cities as cameras; when the cities' three windows are through, other cities take the cameras' places and the box keeps what it
has learnt. The box observes only what it chose to train: one option a camera and window. Planned is on predictions, realised with
what was measured; the gate keeps the old model when the new one is not better. "hold-out" boxes begin with the 54 rows of each of
two cities that are not among their cameras, as the paper measures its fixed configurations on two hold-out streams.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from scheduler.ekya import microprofile
from scheduler.ekya.calibration import correct, present
from scheduler.ekya.timeline import Completion, Held, held_by, play_window
from scheduler.registry import make_policy
from scheduler.sim.random_profiles import sampled_knobs
from scheduler.types import Observation, Plan, RetrainOption, Snapshot, StreamView

TABLE = Path(__file__).resolve().parents[2].parent / "shared/data/traces/ekya_cityscapes_microprofiles.csv"
WINDOWS = 3
REMAINING_S = 198.0
#: (cameras, GPUs, sets of cities one after the other)
BOXES = ((2, 1, 6), (4, 2, 3), (8, 4, 1), (8, 4, 3), (6, 2, 2))
POLICY = "thief-repeat"
#: Published: median |error| of the profiler; points lost under 20 % noise.
PAPER_ERROR, PAPER_NOISE = 5.8, 3.0

Predict = Callable[["CityWindow", np.random.Generator], tuple[RetrainOption, ...]]


@dataclass(frozen=True, kw_only=True)
class CityWindow:
    """One camera in one window. quality: of the serving model, measured; labelled: what the profiler's few labels said of it;
    options: as predicted; measured: name -> end quality (0-1); epochs, hp: name -> number;
    trial_gpu_s: hp -> GPU-seconds of a trial of 5 epochs on a tenth of its data."""

    city: str
    window: int
    quality: float
    labelled: float
    options: tuple[RetrainOption, ...]
    measured: dict[str, float]
    epochs: dict[str, int]
    hp: dict[str, str]
    trial_gpu_s: dict[str, float]


def read_table(path: Path) -> dict[tuple[str, int], CityWindow]:
    """The cities that have all three windows."""
    rows: dict[tuple[str, int], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            rows.setdefault((row["city"], int(row["task_id"])), []).append(row)
    whole = [city for city in dict.fromkeys(c for c, _ in rows) if all((city, w) in rows for w in range(1, WINDOWS + 1))]
    return {(city, w): _city_window(city, w, rows[city, w]) for city in whole for w in range(1, WINDOWS + 1)}


def _city_window(city: str, window: int, rows: Sequence[dict[str, str]]) -> CityWindow:
    names = [f"hp{r['hp_id']}-e{r['epochs']}" for r in rows]
    return CityWindow(
        city=city,
        window=window,
        quality=statistics.median(float(r["default_inference_acc_actual"]) for r in rows),
        labelled=statistics.median(float(r["default_inference_acc_pred"]) for r in rows),
        options=tuple(
            RetrainOption(
                name=name,
                end_quality=min(1.0, max(0.0, float(r["accuracy_pred"]))),
                cost_gpu_s=float(r["runtime_actual"]),
            )
            for name, r in zip(names, rows, strict=True)
        ),
        measured={name: float(r["accuracy_actual"]) for name, r in zip(names, rows, strict=True)},
        epochs={name: int(r["epochs"]) for name, r in zip(names, rows, strict=True)},
        hp={name: r["hp_id"] for name, r in zip(names, rows, strict=True)},
        trial_gpu_s={
            r["hp_id"]: float(r["runtime_inittime_actual"]) + 0.5 * float(r["runtime_timeperepoch_actual"]) for r in rows
        },
    )


# --- one window -------------------------------------------------------------------------------------------------------


def play(cameras: Sequence[CityWindow], believed: Sequence[Sequence[RetrainOption]], gpus: int) -> tuple[float, dict[int, str]]:
    """(mean quality that came, camera number -> option that was trained) when planned on `believed`."""
    plan_of = make_policy(POLICY)
    known = [{o.name: o for o in options} for options in believed]
    chosen: dict[int, str] = {}

    def held(snapshot: Snapshot) -> tuple[Held, ...]:
        plan: Plan = plan_of(replace(snapshot, streams=tuple(map(told, range(len(known)), snapshot.streams))))
        chosen.update({n: s.retrain for n, s in enumerate(plan.streams) if s.retrain and s.train_pct})
        return held_by(plan)

    def told(number: int, view: StreamView) -> StreamView:
        mine = known[number]
        return replace(view, retrain=tuple(_believed(mine[o.name], o) for o in view.retrain if o.name in mine))

    def rule(completion: Completion) -> tuple[Held, ...]:
        return held(completion.snapshot)

    truth = Snapshot(
        remaining_s=REMAINING_S, capacity_pct=100 * gpus, quantum_pct=10, min_quality=0.0,
        streams=tuple(
            StreamView(id=f"c{n}", quality=camera.quality, knobs=sampled_knobs(), retrain=_gated(camera))
            for n, camera in enumerate(cameras)
        ),
    )  # fmt: skip
    return play_window(truth, held(truth), rule).quality, chosen


def _believed(predicted: RetrainOption, true: RetrainOption) -> RetrainOption:
    return replace(true, end_quality=predicted.end_quality, quality_sd=predicted.quality_sd)


def _gated(camera: CityWindow) -> tuple[RetrainOption, ...]:
    return tuple(replace(o, end_quality=max(camera.quality, camera.measured[o.name])) for o in camera.options)


def true_options(camera: CityWindow) -> tuple[RetrainOption, ...]:
    return tuple(replace(o, end_quality=camera.measured[o.name]) for o in camera.options)


# --- what is predicted ------------------------------------------------------------------------------------------------


def recorded(camera: CityWindow, rng: np.random.Generator) -> tuple[RetrainOption, ...]:
    return camera.options


def noisy(sd: float) -> Predict:
    """The truth with Gaussian noise of `sd`, clipped to 0-1."""

    def predict(camera: CityWindow, rng: np.random.Generator) -> tuple[RetrainOption, ...]:
        return tuple(
            replace(o, end_quality=float(np.clip(o.end_quality + rng.normal(0.0, sd), 0.0, 1.0))) for o in true_options(camera)
        )

    return predict


def observed(camera: CityWindow, stream: str, window: int, option: RetrainOption) -> Observation:
    return Observation(
        stream=stream, window=window, option=option.name, start_quality=camera.quality,
        predicted_quality=option.end_quality, realised_quality=camera.measured[option.name],
        predicted_gpu_s=option.cost_gpu_s, realised_gpu_s=option.cost_gpu_s,
    )  # fmt: skip


def labelled(camera: CityWindow) -> Observation:
    """What a gate tells of the serving model, for `present`."""
    seen = observed(camera, camera.city, camera.window, camera.options[0])
    return replace(seen, start_quality=camera.labelled, serving_quality=camera.quality)


# --- a box over many windows ------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What a box went through: quality lost per window (points), errors of what it planned on, GPU-seconds of its trials."""

    lost: list[float] = field(default_factory=list)
    errors: list[tuple[float, float, int]] = field(default_factory=list)  # (predicted - measured, sd, epochs)
    trials_gpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Box:
    """How a box is run. prune: what `microprofile.prune` judges: nothing, the raw or the corrected profiles."""

    cameras: int
    gpus: int
    sets: int
    corrected: bool = True
    hold_out: int = 0
    predict: Predict = recorded
    prune: str = "no"
    whole_families: bool = False


class Simulation:
    """Runs boxes over the table; remembers what true profiles would have brought."""

    def __init__(self, table: dict[tuple[str, int], CityWindow]) -> None:
        self.table = table
        self.cities = sorted({city for city, _ in table})
        self.families = next(iter(table.values())).hp
        self._best: dict[tuple[tuple[str, ...], int, int], float] = {}

    def best(self, cities: Sequence[str], window: int, gpus: int) -> float:
        key = (tuple(cities), window, gpus)
        if key not in self._best:
            cameras = [self.table[city, window] for city in cities]
            self._best[key] = play(cameras, [true_options(c) for c in cameras], gpus)[0]
        return self._best[key]

    def run(self, box: Box, seed: int) -> Run:
        rng = np.random.default_rng(seed)
        order = [str(city) for city in rng.permutation(self.cities)]
        history = [seen for city in order[: box.hold_out] for seen in self._everything(city)]
        order = order[box.hold_out :]
        while len(order) < box.cameras * box.sets:
            order += [str(city) for city in rng.permutation(sorted(set(order)))]
        run, pruners = Run(), [_Pruner(box.prune, self.families if box.whole_families else None) for _ in range(box.cameras)]
        for number in range(box.sets * WINDOWS):
            first = number // WINDOWS * box.cameras
            self._window(box, order[first : first + box.cameras], number, history, pruners, run, rng)
        return run

    def _everything(self, city: str) -> list[Observation]:
        rows = [self.table[city, w] for w in range(1, WINDOWS + 1)]
        return [observed(row, f"hold-out {city}", row.window - WINDOWS, option) for row in rows for option in row.options]

    def _window(
        self, box: Box, cities: Sequence[str], number: int, history: list[Observation], pruners: Sequence[_Pruner], run: Run,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        window = number % WINDOWS + 1
        cameras = [self.table[city, window] for city in cities]
        raw = [pruner.kept(box.predict(camera, rng)) for pruner, camera in zip(pruners, cameras, strict=True)]
        believed = [
            correct(options, stream=city, quality=camera.quality, history=history, families=camera.hp)
            if box.corrected
            else options
            for city, camera, options in zip(cities, cameras, raw, strict=True)
        ]
        quality, chosen = play(cameras, believed, box.gpus)
        run.lost.append(100 * (self.best(cities, window, box.gpus) - quality))
        for camera, options, told, pruner in zip(cameras, raw, believed, pruners, strict=True):
            run.errors += [(o.end_quality - camera.measured[o.name], o.quality_sd, camera.epochs[o.name]) for o in told]
            run.trials_gpu_s += sum(camera.trial_gpu_s[hp] for hp in {camera.hp[o.name] for o in options})
            pruner.judge(options, told)
        for n, name in chosen.items():
            option = next(o for o in raw[n] if o.name == name)
            history.append(observed(cameras[n], cities[n], number, option))


class _Pruner:
    """History pruning of one camera, every two windows."""

    def __init__(self, on: str, families: Mapping[str, str] | None) -> None:
        self.on = on
        self.families = families
        self.profiles: list[Sequence[RetrainOption]] = []
        self.names: tuple[str, ...] | None = None

    def kept(self, options: tuple[RetrainOption, ...]) -> tuple[RetrainOption, ...]:
        return options if self.names is None else tuple(o for o in options if o.name in self.names)

    def judge(self, raw: Sequence[RetrainOption], corrected: Sequence[RetrainOption]) -> None:
        self.profiles.append(corrected if self.on == "corrected" else raw)
        if self.on != "no" and microprofile.prune_due(len(self.profiles)):
            self.names = microprofile.prune(self.profiles, families=self.families)


# --- tables -----------------------------------------------------------------------------------------------------------


def print_errors(simulation: Simulation, boxes: int) -> None:
    """(a) how wrong the raw and the corrected predictions are."""
    print(f"Predictions, points (raw is what the paper's {PAPER_ERROR} median speaks of)")
    print(f"  {'':<42}{'median |e|':>10} {'mean |e|':>8}  {'bias at 5/15/30':>18} {'in 1 sd':>8} {'in 2 sd':>8}")
    raw = [(o.end_quality - c.measured[o.name], 0.0, c.epochs[o.name]) for c in simulation.table.values() for o in c.options]
    _print_error("raw", raw)
    for label, hold_out in (("corrected, box of 8, what it chose", 0), ("the same, two hold-out cameras", 2)):
        runs = [simulation.run(Box(cameras=8, gpus=4, sets=2, hold_out=hold_out), seed) for seed in range(boxes)]
        _print_error(label, [e for run in runs for e in run.errors])
    left_out = []
    for city in simulation.cities:
        history = [seen for other in simulation.cities if other != city for seen in simulation._everything(other)]
        for window in range(1, WINDOWS + 1):
            c = simulation.table[city, window]
            options = correct(c.options, stream=city, quality=c.quality, history=history, families=c.hp)
            left_out += [(o.end_quality - c.measured[o.name], o.quality_sd, c.epochs[o.name]) for o in options]
    _print_error("corrected by all other cities' rows", left_out)
    windows = list(simulation.table.values())
    believed = [
        present(c.labelled, stream=c.city, history=[labelled(other) for other in windows if other.city != c.city])
        for c in windows
    ]
    _print_error("serving quality, as few labels say", [(c.labelled - c.quality, 0.0, 0) for c in windows])
    _print_error(
        "the same, believed (other cities' gates)", [(b - c.quality, 0.0, 0) for b, c in zip(believed, windows, strict=True)]
    )


def _print_error(label: str, errors: Sequence[tuple[float, float, int]]) -> None:
    error, sd, epochs = (np.array(column) for column in zip(*errors, strict=True))
    bias = "/".join(f"{100 * np.median(error[epochs == e]):+.1f}" for e in (5, 15, 30)) if epochs.any() else "-"
    inside = [f"{np.mean(np.abs(error) <= m * sd):>8.0%}" if sd.any() else f"{'-':>8}" for m in (1, 2)]
    print(
        f"  {label:<42}{100 * np.median(np.abs(error)):>10.1f} {100 * np.mean(np.abs(error)):>8.1f}  {bias:>18} {' '.join(inside)}"
    )


def print_lost(title: str, simulation: Simulation, boxes: int, variants: Sequence[tuple[str, dict[str, object]]]) -> None:
    """(b) points lost against planning on true profiles: mean, and over the first and the last three windows."""
    print(f"\n{title}\n  {'cameras, GPUs, windows':<24}" + "".join(f"{label:>30}" for label, _ in variants))
    totals: dict[str, list[float]] = {}
    for cameras, gpus, sets in BOXES:
        cells = []
        for label, how in variants:
            box = Box(cameras=cameras, gpus=gpus, sets=sets, **how)  # type: ignore[arg-type]
            lost = np.array([simulation.run(box, seed).lost for seed in range(boxes)])
            totals.setdefault(label, []).append(float(lost.mean()))
            cells.append(f"{lost.mean():.2f} ({lost[:, :3].mean():.2f} .. {lost[:, -3:].mean():.2f})")
        print(f"  {f'{cameras}, {gpus}, {sets * WINDOWS}':<24}" + "".join(f"{cell:>30}" for cell in cells))
    print(f"  {'mean':<24}" + "".join(f"{statistics.mean(totals[label]):>30.2f}" for label, _ in variants))


def print_pruning(simulation: Simulation, boxes: int) -> None:
    """(d) what pruning saves and costs over a long run."""
    print(
        "\nPruning every two windows, 4 cameras, 2 GPUs, 9 windows: points lost against true profiles, trial GPU-seconds a window"
    )
    for hold_out in (0, 2):
        for prune, whole in (("no", False), ("raw", False), ("corrected", False), ("raw", True), ("corrected", True)):
            box = Box(cameras=4, gpus=2, sets=3, prune=prune, whole_families=whole, hold_out=hold_out)
            runs = [simulation.run(box, seed) for seed in range(boxes)]
            lost = np.array([run.lost for run in runs])
            spent = statistics.mean(run.trials_gpu_s for run in runs) / lost.shape[1]
            label = f"judged on {prune} {'families' if whole else 'names'}" if prune != "no" else "no pruning"
            windows = f"(first three {lost[:, :3].mean():.2f}, last three {lost[:, -3:].mean():.2f})"
            print(f"  {label:<30} hold-out {hold_out}: lost {lost.mean():.2f} {windows}, trials {spent:.1f} GPU-s")


def main(boxes: int, path: Path) -> None:
    if not path.exists():
        print(f"no table at {path.name}: give its path (see docs/scheduler.md)")
        return
    simulation = Simulation(read_table(path))
    print(f"{len(simulation.cities)} cities, {boxes} random boxes each, policy {POLICY}, {REMAINING_S:.0f} s to plan for")
    print_errors(simulation, boxes)
    how: list[tuple[str, dict[str, object]]] = [
        ("raw", {"corrected": False}),
        ("corrected", {}),
        ("corrected, 2 hold-out", {"hold_out": 2}),
    ]
    print_lost(
        "Points lost against planning on true profiles, recorded predictions (to reach: 1): mean (first 3 .. last 3 windows)",
        simulation, boxes, how,
    )  # fmt: skip
    print_lost(
        f"The same, truth with 20 % noise (paper: <= {PAPER_NOISE:.0f}; to reach: 2)",
        simulation, boxes, [(label, {**more, "predict": noisy(0.2)}) for label, more in how[:2]],
    )  # fmt: skip
    print_pruning(simulation, boxes)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, Path(sys.argv[2]) if len(sys.argv) > 2 else TABLE)
