"""Profiler: what the greedy search costs beside measuring every setting, and what quality it misses, on real videos with real
models.

    python tests/benchmarks/bench_profiler.py [--videos DIR] [--cache DIR] [--models A,B] [--clip-s 12] [--runs 8] [--plots DIR]
    [--quick]

Every setting of a camera's query (model, resolution, form, every how-many-th frame) is measured once against golden labels; the
search
is then run with many seeds on what was measured, each run paying for its own work. Pictures answered once are kept in the cache
folder:
an interrupted run goes on where it was. Costs are CPU seconds of one core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import torch

from configs.errors import EnvironmentLacking
from edge.memo import Memo
from edge.plotting import picture
from edge.profiler import chain, clips
from edge.profiler.graph import Graph, Ledger
from edge.profiler.measure import LabelJudge, Measurer, Where
from edge.profiler.models import ReadyModels
from edge.profiler.profile import MeasuredOption, pareto
from edge.profiler.profiler import Found, Plan, exhaustive, greedy, quality_lost
from edge.queries.base import Cost, Tools
from models.tasks.base import Picture, Scoring
from models.tasks.detection import DETECTION
from models.weights import cache_dir
from models.zoo import split_size

DATA = Path(__file__).resolve().parents[2].parent / "shared/data"
VIDEOS: tuple[str, ...] = ("brt_avenue", "pets09_s2l1_view1", "supermarket_aisle", "ua_detrac_mvi40201")
MODELS, GOLDEN, FORMS = ("yolo26n@320", "yolov8n@320"), "yolo26s@640", ("trained", "openvino")
FPS, START_S = 5.0, 1.0
ANCHOR = "3.5x less than its baseline (the paper's own earlier search)"
TIMES_LESS, LOST = 5.0, 0.02


@dataclass(frozen=True, kw_only=True)
class Row:
    """One video. runs: of the search, one per seed; lost: (mean, largest) quality of each."""

    video: str
    every: Found
    runs: tuple[Found, ...]
    lost: tuple[tuple[float, float], ...]
    truth_s: float

    @property
    def spent_s(self) -> float:
        return statistics.mean(run.spent_s for run in self.runs)


class Studied:
    """One video with its truth, measured as often as wanted."""

    def __init__(self, path: Path, models: Sequence[str], forms: Sequence[str], clip_s: float, memo: Memo) -> None:
        self.memo = memo
        self.footage = clips.of_video(path, camera=path.stem, fps=FPS, start_s=START_S, seconds=clip_s)
        golden = DETECTION.load_golden(GOLDEN)
        self.truth = clips.truth_of(
            self.footage, DETECTION, golden, score_min=Scoring().golden_score_min, memo=memo, name=GOLDEN
        )
        width, height = self.footage.size_px
        input_px = max(split_size(model)[1] or 320 for model in models)
        heights = chain.heights_for(height, width, input_px)
        self.spec = chain.Space(models=tuple(models), forms=tuple(forms), heights_px=heights).spec(path.stem)
        pictures = [Picture(image=scene.image) for scene in self.footage.clip.scenes]
        self.ready = ReadyModels(DETECTION, DETECTION.load, pictures, own_size=len(heights) > 1)

    def measurer(self) -> Measurer:
        """With books of its own."""
        make = chain.make_with(DETECTION, Tools(camera_id="bench", fps=FPS), self.ready.ready)
        graph = Graph(
            self.spec,
            self.footage.clip,
            make,
            meter=lambda: Cost(cpu_s=time.thread_time()),
            memo=self.memo,
            dear=(chain.ANSWER,),
        )
        judge = LabelJudge(sink=chain.ANSWER, task=DETECTION, labels=self.truth.labels, scoring=Scoring())
        return Measurer(graph=graph, judge=judge, where=Where(device_nodes=(chain.ANSWER,)), ledger=Ledger())

    def row(self, runs: int) -> Row:
        every = exhaustive(self.measurer())
        found = [greedy(self.measurer(), Plan(seed=seed)) for seed in range(runs)]
        lost = tuple(quality_lost(run.options, every.options) for run in found)
        return Row(video=self.spec.name, every=every, runs=tuple(found), lost=lost, truth_s=self.truth.cost_s)


def print_rows(rows: Sequence[Row]) -> None:
    print(
        f"{'video':22} {'settings':>8} {'every, no cache':>15} {'every':>8} {'search':>8} {'tried':>6} {'less':>6} {'than kept':>9}"
        f" {'lost, mean':>10} {'worst':>6}"
    )
    for row in rows:
        less, less_kept = row.every.every_s / row.spent_s, row.every.spent_s / row.spent_s
        print(
            f"{row.video:22} {row.every.of:8} {row.every.every_s:13.1f} s {row.every.spent_s:6.1f} s {row.spent_s:6.1f} s"
            f" {statistics.mean(r.tried for r in row.runs):6.0f} {less:5.1f}x {less_kept:8.1f}x"
            f" {100 * statistics.mean(m for m, _ in row.lost):8.2f} pt {100 * statistics.mean(w for _, w in row.lost):5.1f}"
        )


def print_targets(rows: Sequence[Row], *, quick: bool) -> None:
    """The issue's figure beside its anchor."""
    less = statistics.mean(row.every.every_s / row.spent_s for row in rows)
    kept = statistics.mean(row.every.spent_s / row.spent_s for row in rows)
    lost = statistics.mean(mean for row in rows for mean, _ in row.lost)
    reached = less >= TIMES_LESS and lost <= LOST
    mark = "-      " if quick else "reached" if reached else "MISSED "
    print(f"\n{mark}  profiler cost against exhaustive{' (a small space, nothing is promised)' if quick else ''}")
    print(f"           anchor: {ANCHOR}; to reach: {TIMES_LESS:g}x less at {100 * LOST:g} points of quality or less")
    print(
        f"           measured: {less:.1f}x less ({kept:.1f}x less than an exhaustive search that keeps outputs, too), "
        f"{100 * lost:.2f} points, mean of {len(rows)} videos and {len(rows[0].runs)} searches each"
    )
    print(
        f"           (golden labels, which both need: {statistics.mean(row.truth_s for row in rows):.0f} s per clip, not counted)"
    )


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Quality over demand: every setting, the front of all of them, what one search found."""
    shown = rows[:3]
    with picture(path, panels=len(shown)) as panels:
        for panel, row in zip(panels, shown, strict=True):
            panel.plot(*_points(row.every.options), ".", color="0.75", label=f"every setting ({row.every.of})")
            panel.plot(*_points(pareto(row.every.options)), "-", color="0.4", lw=1.2, label="their front")
            names = {option.name for option in row.runs[0].front()}
            mine = [option for option in row.every.options if option.name in names]
            panel.plot(
                *_points(mine), "o", color="C3", ms=6, mfc="none", label=f"found with {row.runs[0].tried} settings tried"
            )
            panel.set_xscale("log")
            panel.set_xlabel("demand, cores")
            panel.set_title(row.video, fontsize=10)
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7)
        panels[0].set_ylabel("F1 against golden labels")


def _points(options: Sequence[MeasuredOption]) -> tuple[list[float], list[float]]:
    return [option.demand for option in options], [option.quality for option in options]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=Path, default=DATA / "videos")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "bench-profiler")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--only", default=",".join(VIDEOS), help="names of videos")
    parser.add_argument("--clip-s", type=float, default=12.0)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--plots", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="one video, 8 s, 18 settings")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    os.environ.setdefault("DRIFTBOX_WEIGHTS", str(given.videos.parent / "weights"))
    if not given.videos.is_dir():
        print(f"the videos are not at {given.videos}", file=sys.stderr)
        sys.exit(EnvironmentLacking.exit_code)
    names = given.only.split(",")[:1] if given.quick else given.only.split(",")
    models, forms = given.models.split(","), ("trained",) if given.quick else FORMS
    rows = []
    for name in names:
        began_s = time.monotonic()
        clip_s = 8.0 if given.quick else given.clip_s
        study = Studied(given.videos / f"{name}.mp4", models[:1] if given.quick else models, forms, clip_s, Memo(given.cache))
        rows.append(study.row(given.runs))
        print(f"{name}: measured in {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    print_rows(rows)
    print_targets(rows, quick=given.quick)
    if given.plots is not None:
        given.plots.mkdir(parents=True, exist_ok=True)
        draw(given.plots / "profiler_front.svg", rows)


if __name__ == "__main__":
    main()
