"""`bench learning` reads its answers right: what counts as reached, what is left out while it is not measured yet."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.scripts import benchmark

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_learning.py"


@pytest.fixture(scope="module")
def bench_learning() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        yield benchmark("bench_learning", patch)


VIDEOS = ("wide", "narrow")


def answer(f1: dict[str, float], *, gpu_s: float = 100.0, trainings: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    policy = {
        "policy": "any", "mean_f1": sum(f1.values()) / len(f1), "videos": f1, "gpu_s": gpu_s, "trainings": trainings or [],
        "gpu_s_by_kind": {"label": 10.0, "train": gpu_s, "look": 0.0}, "exhaustive_gpu_s": 20.0, "profiles": 0,
        "f1_per_window": {video: [0.4, value - 0.05, value + 0.05] for video, value in f1.items()},
        "retrainings": 7, "admitted": 5,
    }  # fmt: skip
    options = {"gpus": 1.0, "window_s": 250.0, "iou_min": 0.3}
    return {"policies": [policy], "undisturbed": {"wide": 0.5, "narrow": 0.9}, "options": options, "took_s": 30.0}


def filled(module: ModuleType, folder: Path, f1_of: dict[str, float], gpus: dict[int, float]) -> Any:
    """A cache with every main and compute run answered: f1_of per policy (all uniform ones by 'uniform')."""
    bench = module.Bench(data=folder, cache=folder)
    for run in module.main_runs():
        f1 = f1_of.get(run.policy, f1_of["uniform"] + (0.01 if run.policy == module.UNIFORM[0] else 0.0))
        trainings: list[dict[str, Any]] = [
            {"predicted_f1": 0.7, "held_out_f1": 0.73},
            {"predicted_f1": None, "held_out_f1": 0.1},
        ]
        bench.keep(run, answer(dict.fromkeys(VIDEOS, f1), trainings=trainings))
    for at, f1 in gpus.items():
        for run in module.compute_runs(at):
            bench.keep(run, answer(dict.fromkeys(VIDEOS, f1)))
    return bench


def by_what(module: ModuleType, bench: Any, part: str) -> Any:
    return next(row for row in module.rows(bench) if part in row.what)


def test_nothing_is_said_of_what_was_not_measured(bench_learning: ModuleType, tmp_path: Path) -> None:
    assert list(bench_learning.rows(bench_learning.Bench(data=tmp_path, cache=tmp_path))) == []


def test_only_videos_with_a_wide_gap_count_against_no_retraining(bench_learning: ModuleType, tmp_path: Path) -> None:
    f1_of = {"lookahead": 0.7, "thief-repeat": 0.66, "no-retrain": 0.5, "uniform": 0.6}
    bench = filled(bench_learning, tmp_path, f1_of, {2: 0.65, 4: 0.72})
    row = by_what(bench_learning, bench, "no-retrain")
    assert row.ok
    assert "(1 of 2)" in row.what
    assert row.measured.startswith("+20.0 points")


@pytest.mark.parametrize(("uniform", "ok"), [(0.60, True), (0.65, False)])
def test_best_and_worst_uniform(bench_learning: ModuleType, tmp_path: Path, uniform: float, ok: bool) -> None:
    f1_of = {"lookahead": 0.76, "thief-repeat": 0.76, "no-retrain": 0.5, "uniform": uniform}
    row = by_what(bench_learning, filled(bench_learning, tmp_path, f1_of, {2: 0.7, 4: 0.7}), "lookahead against the best")
    assert f"{100 * (0.76 - uniform - 0.01):+.1f} points" in row.measured
    assert row.ok is ok


@pytest.mark.parametrize(
    ("gpus", "said", "ok"),
    [
        ({2: 0.80}, "2x", False),
        ({2: 0.6, 4: 0.8}, "4x", True),
        ({2: 0.6, 4: 0.7}, "more than 4x", True),
        ({2: 0.6}, "more than 2x", None),
    ],
)
def test_compute_for_uniform_to_match(
    bench_learning: ModuleType, tmp_path: Path, gpus: dict[int, float], said: str, ok: bool | None
) -> None:
    f1_of = {"lookahead": 0.76, "thief-repeat": 0.7, "no-retrain": 0.5, "uniform": 0.6}
    row = by_what(bench_learning, filled(bench_learning, tmp_path, f1_of, gpus), "compute for uniform")
    assert row.measured.startswith(said)
    assert row.ok is ok


def test_profile_errors_leave_out_what_was_never_predicted(bench_learning: ModuleType, tmp_path: Path) -> None:
    f1_of = {"lookahead": 0.7, "thief-repeat": 0.66, "no-retrain": 0.5, "uniform": 0.6}
    row = by_what(bench_learning, filled(bench_learning, tmp_path, f1_of, {2: 0.6, 4: 0.7}), "micro-profile error")
    assert row.measured.startswith("3.0 points")
    assert row.ok


@pytest.mark.parametrize(("f1", "gpu_s", "ok"), [(0.64, 100.0, True), (0.61, 100.0, False), (0.60, 45.0, True)])
def test_reuse_wins_by_quality_or_by_compute(
    bench_learning: ModuleType, tmp_path: Path, f1: float, gpu_s: float, ok: bool
) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    alone, reuse = bench_learning.recurring_runs()
    bench.keep(alone, answer({"a": 0.6}))
    bench.keep(reuse, answer({"a": f1}, gpu_s=gpu_s))
    assert by_what(bench_learning, bench, "recurring drift").ok is ok


def kept_seeds(
    module: ModuleType, bench: Any, seed: int, *, box: float, fixed: float, alone: float, reuse: float, part: float
) -> None:
    """What runs of one seed came to, the same on both sets."""
    mark = f".seed{seed}" if seed else ""
    for run in module.seed_runs(seed) if seed else [*module.main_runs(), *module.recurring_runs()]:
        if run.name.startswith("recurring.reuse"):
            bench.keep(run, answer(dict.fromkeys(VIDEOS, reuse), gpu_s=100.0 * part))
        elif run.name.startswith("recurring"):
            bench.keep(run, answer(dict.fromkeys(VIDEOS, alone)))
        else:
            bench.keep(run, answer(dict.fromkeys(VIDEOS, box if f".{module.BOX}{mark}" in run.name else fixed)))


@pytest.mark.parametrize(("others", "ok"), [(0.7, True), (0.6, False)])
def test_over_seeds_the_mean_counts(bench_learning: ModuleType, tmp_path: Path, others: float, ok: bool) -> None:
    """The first seed is lucky: 8 points."""
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    kept_seeds(bench_learning, bench, 0, box=0.68, fixed=0.6, alone=0.5, reuse=0.58, part=0.9)
    assert not [row for row in bench_learning.rows(bench) if "seeds" in row.what], "one alone is the table's own row"
    for seed in bench_learning.SEEDS:
        kept_seeds(bench_learning, bench, seed, box=others - 0.03, fixed=0.6, alone=0.5, reuse=others - 0.1 - 0.02, part=0.9)
    fixed, reuse = (by_what(bench_learning, bench, part) for part in ("both sets, 3 seeds", "drift, 3 seeds"))
    assert (fixed.ok, reuse.ok) == (ok, ok)
    assert fixed.measured.startswith("+7.3 points (+8.0, +7.0, +7.0)" if ok else "+0.7 points (+8.0, -3.0, -3.0)")
    assert "0.90 of the GPU-seconds" in reuse.measured


@pytest.mark.parametrize(("fixed", "ok"), [(0.64, True), (0.68, False)])
def test_more_compute_is_compared_over_seeds_too(bench_learning: ModuleType, tmp_path: Path, fixed: float, ok: bool) -> None:
    """The best split at four times the compute, against the box as it is."""
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    for seed, box in ((0, 0.7), (1, 0.62)):
        kept_seeds(bench_learning, bench, seed, box=box, fixed=0.5, alone=0.5, reuse=0.5, part=0.6)
    assert not [row for row in bench_learning.rows(bench) if "4x compute" in row.what], "nothing was run there"
    for seed in (0, 1):
        for run in bench_learning.compute_seed_runs(4, seed):
            assert run.arguments[run.arguments.index("--gpus") + 1] == "4"
            bench.keep(run, answer(dict.fromkeys(VIDEOS, fixed)))
    row = by_what(bench_learning, bench, "at 4x compute, both sets, 2 seeds")
    assert row.ok is ok
    assert row.measured == ("+2.0 points (+6.0, -2.0)" if ok else "-2.0 points (+2.0, -6.0)")


def test_half_the_compute_over_seeds_is_enough(bench_learning: ModuleType, tmp_path: Path) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    for seed, part in ((0, 0.6), (1, 0.35)):
        kept_seeds(bench_learning, bench, seed, box=0.6, fixed=0.6, alone=0.5, reuse=0.5, part=part)
    assert by_what(bench_learning, bench, "drift, 2 seeds").ok


def test_contention_is_told_of_what_was_run_and_never_mistaken_for_the_issues_own_row(
    bench_learning: ModuleType, tmp_path: Path
) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    slow = {run.policy: run for run in bench_learning.contention_runs(0.5) if run.name.startswith("eight_cameras.")}
    pupil = {"id": "a", "base": "b", "quality": [0.4] * 3, "knobs": [], "lessons": []}
    for policy, f1 in (("lookahead", 0.5), ("uniform(low,50)", 0.42), ("uniform(low,30)", 0.3)):
        found = answer({"a": f1})
        found["policies"][0]["policy"] = policy
        options = {**found["options"], "gpu_speed": 0.5}
        bench.keep(slow[policy], {**found, "pupils": [pupil], "costs": {"golden_gpu_s": 1.0}, "options": options})
    rows = list(bench_learning.rows(bench))
    told = next(row for row in rows if "of 2 uniform at 0.5x" in row.what)
    assert told.measured.startswith("+8.0 points / +20.0 points")
    assert told.ok is None
    assert any("perfect knowledge" in row.what for row in rows)
    needed = next(row for row in rows if "compute for uniform" in row.what)
    assert (needed.measured, needed.ok) == ("more than 1x that", None)


def test_answers_survive_a_second_look_and_half_written_ones_do_not_count(bench_learning: ModuleType, tmp_path: Path) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    run = bench_learning.main_runs()[0]
    assert bench.answer(run) is None
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / f"{run.name}.part").write_text("{")
    assert bench.answer(run) is None
    bench.keep(run, {"a": 1})
    assert bench.answer(run) == {"a": 1}


def test_runs_have_names_of_their_own(bench_learning: ModuleType) -> None:
    compute = [run for gpus in bench_learning.COMPUTE for run in bench_learning.compute_runs(gpus)]
    slow = [run for speed in bench_learning.CONTENTION for run in bench_learning.contention_runs(speed)]
    assert all(run.arguments[run.arguments.index("--gpu-speed") + 1] in ("0.5", "0.25") for run in slow)
    runs = [*bench_learning.main_runs(), *compute, *slow, *bench_learning.recurring_runs()]
    runs += [run for seed in bench_learning.SEEDS for run in bench_learning.seed_runs(seed)]
    runs += [
        run for g in bench_learning.COMPUTE for s in bench_learning.SEEDS for run in bench_learning.compute_seed_runs(g, s)
    ]
    assert len({run.name for run in runs}) == len(runs)


# --- running ----------------------------------------------------------------------------------------------------------


class Commands:
    """Stands in for `driftbox evaluate` and the other benchmarks: answers by policy; keeps what was asked."""

    def __init__(self, fail: str = "") -> None:
        self.asked: list[list[str]] = []
        self._fail = fail

    def run(self, command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        self.asked.append(command)
        if "--policy" not in command:
            return subprocess.CompletedProcess(command, 1, "no answer", "it broke")
        policies = command[command.index("--policy") + 1].replace("),", ")|").replace("no-retrain,", "no-retrain|")
        names = policies.replace("lookahead,", "lookahead|").split("|")
        if self._fail and self._fail in names:
            return subprocess.CompletedProcess(command, 2, "", "out of disk")
        whole = answer(dict.fromkeys(VIDEOS, 0.6))
        rows = [{**whole["policies"][0], "policy": name, "mean_f1": 0.5 + 0.01 * n} for n, name in enumerate(names)]
        return subprocess.CompletedProcess(command, 0, json.dumps({**whole, "policies": rows}), "")


@pytest.fixture
def commands(bench_learning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands()
    monkeypatch.setattr(bench_learning.subprocess, "run", found.run)
    return found


def test_policies_over_the_same_footage_share_a_process_and_each_keeps_its_own_answer(
    bench_learning: ModuleType, commands: Commands, tmp_path: Path
) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path, golden_runtime="openvino")
    runs = bench_learning.main_runs()
    bench_learning.run_all(bench, runs, lambda text: None)
    assert len(commands.asked) == 3 * len(bench_learning.SETS), "the box; dear fixed splits; cheap ones"
    assert all(command[command.index("--golden-runtime") + 1] == "openvino" for command in commands.asked)
    assert [bench.answer(run)["policies"][0]["policy"] for run in runs] == [run.policy for run in runs]
    bench_learning.run_all(bench, runs, lambda text: None)
    assert len(commands.asked) == 3 * len(bench_learning.SETS), "nothing is done twice"


def test_fixed_splits_wait_for_the_labels_of_the_box(bench_learning: ModuleType, commands: Commands, tmp_path: Path) -> None:
    bench_learning.run_all(
        bench_learning.Bench(data=tmp_path, cache=tmp_path, jobs=4), bench_learning.main_runs(), lambda text: None
    )
    for scenario in bench_learning.SETS:
        mine = [c[c.index("--policy") + 1] for c in commands.asked if any(word.endswith(f"/{scenario}.yaml") for word in c)]
        assert mine[0].startswith("no-retrain,lookahead")
        assert sorted(policy[:12] for policy in mine[1:]) == ["uniform(high", "uniform(low,"]


def test_a_failure_names_its_runs_and_loses_no_other(
    bench_learning: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = Commands(fail="uniform(low,90)")
    monkeypatch.setattr(bench_learning.subprocess, "run", broken.run)
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    runs = bench_learning.main_runs()
    with pytest.raises(SystemExit, match=r"uniform-low-90 failed:\nout of disk"):
        bench_learning.run_all(bench, runs, lambda text: None)
    assert all((bench.answer(run) is None) == ("(low" in run.policy) for run in runs)


def test_more_compute_is_tried_only_while_it_is_not_enough(
    bench_learning: ModuleType, commands: Commands, tmp_path: Path
) -> None:
    f1_of = {"lookahead": 0.6, "thief-repeat": 0.6, "no-retrain": 0.5, "uniform": 0.7}
    bench = filled(bench_learning, tmp_path, f1_of, {})
    bench_learning.run_parts(bench, ["main", "compute"], lambda text: None)
    assert commands.asked == []
    assert by_what(bench_learning, bench, "compute for uniform").measured.startswith("1x (1x 0.710)")


def test_only_the_splits_that_came_closest_are_given_more_compute(
    bench_learning: ModuleType, commands: Commands, tmp_path: Path
) -> None:
    f1_of = {"lookahead": 0.76, "thief-repeat": 0.7, "no-retrain": 0.5, "uniform": 0.6}
    bench = filled(bench_learning, tmp_path, f1_of, {})
    closest = {"uniform(high,50)", "uniform(low,30)", "uniform(low,50)"}
    for run in bench_learning.main_runs():
        if run.policy in closest:
            bench.keep(run, answer(dict.fromkeys(VIDEOS, 0.65)))
    bench_learning.run_parts(bench, ["compute"], lambda text: None)
    assert {command[command.index("--gpus") + 1] for command in commands.asked} == {"4"}, "less than too little is not tried"
    words = [" ".join(command) for command in commands.asked]
    assert {policy for policy in bench_learning.UNIFORM if any(policy in text for text in words)} == closest
    assert by_what(bench_learning, bench, "compute for uniform").measured == "more than 4x (1x 0.650, 4x 0.510)"


def test_where_the_most_compute_is_enough_less_is_tried_before_anything_is_said(
    bench_learning: ModuleType, commands: Commands, tmp_path: Path
) -> None:
    f1_of = {"lookahead": 0.6, "thief-repeat": 0.6, "no-retrain": 0.5, "uniform": 0.55}
    bench = filled(bench_learning, tmp_path, f1_of, {4: 0.7})
    assert by_what(bench_learning, bench, "compute for uniform").ok is None, "twice the compute may do, too"
    bench_learning.run_parts(bench, ["compute"], lambda text: None)
    assert {command[command.index("--gpus") + 1] for command in commands.asked} == {"2"}
    row = by_what(bench_learning, bench, "compute for uniform")
    assert (row.measured, row.ok) == ("4x (1x 0.560, 2x 0.520, 4x 0.700)", True)


def test_three_splits_with_more_compute_are_enough_and_two_are_not(bench_learning: ModuleType, tmp_path: Path) -> None:
    f1_of = {"lookahead": 0.76, "thief-repeat": 0.7, "no-retrain": 0.5, "uniform": 0.6}
    bench = filled(bench_learning, tmp_path, f1_of, {2: 0.6})
    for policy, said in (("uniform(high,50)", "2x"), ("uniform(low,50)", "2x"), ("uniform(low,30)", "4x")):
        for run in bench_learning.compute_runs(4, [policy]):
            bench.keep(run, answer(dict.fromkeys(VIDEOS, 0.7)))
        assert by_what(bench_learning, bench, "compute for uniform").measured.startswith(f"more than {said}")


def test_a_benchmark_that_breaks_is_said_and_asked_again(
    bench_learning: ModuleType, commands: Commands, tmp_path: Path
) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    said: list[str] = []
    for _ in range(2):
        bench_learning.run_others(bench, "profiling", said.append)
    assert [Path(command[1]).name for command in commands.asked] == ["bench_profiling.py"] * 2
    assert any("it broke" in text for text in said)


# --- the profiling row ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "times", "ok"), [(4.0, 120.0, True), (6.0, 120.0, False), (4.0, 60.0, False)])
def test_the_profiling_row_needs_both_figures(
    bench_learning: ModuleType, tmp_path: Path, error: float, times: float, ok: bool
) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    settings = [
        {"setting": "box", "error_points": 2.0, "times": 8.0, "unchanged_points": 9.0},
        {"setting": "small", "error_points": error, "times": times, "unchanged_points": 9.0},
    ]
    kept = {"answer": {"settings": settings, "best": "small", "streams": ["a", "b"]}}
    bench.keep(bench_learning.other_run("profiling"), kept)
    row = by_what(bench_learning, bench, "Ekya's 18")
    assert row.ok is ok
    assert f"{error:.1f} points, {times:.0f}x (small)" in row.measured
    assert "2.0 points, 8x" in row.measured


# --- the page and the pictures ----------------------------------------------------------------------------------------

F1_OF = {"lookahead": 0.7, "thief-repeat": 0.66, "no-retrain": 0.5, "uniform": 0.6}


def page_of(module: ModuleType, bench: Any, page: Path, plots: list[tuple[str, Path]] | None = None) -> str:
    table = module.Table(bench)
    module.learning_page.write(page, table, list(module.rows(bench)), took_s=3600.0, plots=plots or [])
    return page.read_text(encoding="utf-8")


def test_only_the_part_between_the_markers_is_written(bench_learning: ModuleType, tmp_path: Path) -> None:
    page, marks = tmp_path / "learning.md", bench_learning.learning_page
    page.write_text(f"# Before\n\n{marks.BEGIN}\nwritten yesterday\n{marks.END}\n\n## After\n", encoding="utf-8")
    bench = filled(bench_learning, tmp_path, F1_OF, {2: 0.65, 4: 0.72})
    text = page_of(bench_learning, bench, page)
    assert text.startswith(f"# Before\n\n{marks.BEGIN}\n")
    assert text.endswith(f"{marks.END}\n\n## After\n")
    assert "yesterday" not in text
    assert page_of(bench_learning, bench, page) == text, "written again, it is the same"


def test_the_page_shows_numbers_anchors_windows_and_cameras(bench_learning: ModuleType, tmp_path: Path) -> None:
    page, marks = tmp_path / "learning.md", bench_learning.learning_page
    page.write_text(f"{marks.BEGIN}{marks.END}", encoding="utf-8")
    text = page_of(bench_learning, filled(bench_learning, tmp_path, F1_OF, {2: 0.65, 4: 0.72}), page)
    assert "60 minutes of runs." in text
    rows = [line for line in text.splitlines() if line.startswith("| mean F1, lookahead against no-retrain")]
    assert len(rows) == 1
    assert "| >= +10 points | +20.0 points" in rows[0]
    assert rows[0].endswith("| reached |")
    assert "**MISSED**" in text, "against the worst uniform +10 is not enough"
    for scenario in bench_learning.SETS:
        assert f"| {scenario}, mean F1 | all | window 0 | window 1 | window 2 | retrainings | admitted | GPU-s |" in text
        assert f"| {scenario}, mean F1 per camera | lookahead | thief-repeat | uniform(high,30) | no-retrain | gap |" in text
    assert text.count("| lookahead | 0.700 | 0.400 | 0.650 | 0.750 | 7 | 5 | 100 |") == 2
    assert text.count("| wide | 0.700 | 0.660 | 0.610 | 0.500 | 0.500 |") == 2
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


@pytest.mark.parametrize("content", ["", "# A page without markers\n"])
def test_a_page_without_markers_is_refused_before_any_work(bench_learning: ModuleType, tmp_path: Path, content: str) -> None:
    page = tmp_path / "learning.md"
    page.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match="put these two lines into it"):
        bench_learning.learning_page.check(page)


def test_pictures_are_drawn_of_what_was_answered_and_the_page_shows_them(bench_learning: ModuleType, tmp_path: Path) -> None:
    bench = filled(bench_learning, tmp_path / "cache", F1_OF, {})
    first = bench_learning.draw_plots(bench, tmp_path / "docs" / "img")
    assert [path.name for _, path in first] == [f"learning_{s}.svg" for s in bench_learning.SETS]
    for run, f1 in zip(bench_learning.recurring_runs(), (0.6, 0.65), strict=True):
        bench.keep(run, answer({"a": f1}))
    drawn = bench_learning.draw_plots(bench, tmp_path / "docs" / "img")
    assert [path.name for _, path in drawn][-1] == "learning_recurring.svg"
    picture = drawn[0][1].read_text(encoding="utf-8")
    assert "lookahead (0.700)" in picture
    assert "no-retrain (0.500)" in picture
    assert "lookahead, no reuse (0.600)" in drawn[-1][1].read_text(encoding="utf-8")
    page, marks = tmp_path / "docs" / "learning.md", bench_learning.learning_page
    page.write_text(f"{marks.BEGIN}{marks.END}", encoding="utf-8")
    text = page_of(bench_learning, bench, page, drawn)
    assert "(img/learning_recurring.svg)" in text


def test_the_project_s_page_has_a_place_for_the_table(bench_learning: ModuleType) -> None:
    bench_learning.learning_page.check(SCRIPT.parents[2] / "docs" / "learning.md")


def test_the_machine_is_told_in_words(bench_learning: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\n", encoding="utf-8")
    said = bench_learning.learning_page.machine(tmp_path / "cpuinfo")
    assert "(Some CPU @ 2 GHz)" in said
    assert "cores" in said


@pytest.mark.parametrize(("computes", "expected"), [(True, "openvino-bf16"), (False, "openvino")])
def test_it_is_labelled_as_a_box_labels(
    bench_learning: ModuleType, computes: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.serving.openvino_runtime.computes_in_bf16", lambda: computes)
    assert bench_learning.golden_runtime() == expected
