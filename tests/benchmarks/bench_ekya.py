"""Ekya's policies on the recorded traces, beside the published figures: every policy, predicted profiles, noise, figures 2.6 to 2.11b.

Run: driftbox bench ekya [--seeds 3] [--windows 6] [--jobs 1] [--only NAME ...] [--plots DIR] [--json FILE] [--page FILE]
(the tables and pictures of the documentation: --plots docs/img --page docs/scheduler.md)

Needs the authors' table in ../shared/data/traces beside the source tree. Streams: 13 cities, each going round its recorded windows;
k streams are the first k of a shuffled order, figures are means over `--seeds` orders. As the authors' simulator: 2 s of preparation
a window without compute, no floor, one pool of GPUs, no pruning. Published: figures read off the paper's graphics (+-0.003).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from edge.plotting import finish_panel, line_style, picture
from edge.simulate.source import TABLE_OVERHEAD_S, read_source
from edge.simulate.sweep import Setting, engine_config_of, fixed_by_hold_out, link, run_many
from scheduler.registry import UNIFORM_FAMILY
from scheduler.sim.trace_world import simulate
from scheduler.sim.variations import prefix
from scheduler.trace import Trace, TraceWindow

TABLE = Path(__file__).resolve().parents[3] / "shared/data/traces/ekya_cityscapes_microprofiles.csv"
BASE = Setting(profiles="true", min_quality=0.0, overhead_s=TABLE_OVERHEAD_S, prune=False)
TEN = 10
GPUS = (1, 2, 4, 8)
EKYA = "thief-thorough"
OURS = "lookahead"
PLANNERS = ("thief", "thief-repeat", EKYA, "optimal", OURS)
#: The paper names its uniform variants (configuration, percent to inference); 1 is the dear configuration, 2 the cheap one.
VARIANTS = {"(1,50)": "uniform(high,50)", "(2,30)": "uniform(low,30)", "(2,50)": "uniform(low,50)", "(2,90)": "uniform(low,90)"}
THRESHOLD = 0.75

# --- published: streams, GPUs, seconds or noise -> mean accuracy -------------------------------------------------------

FIG_2_6: dict[int, dict[str, tuple[float, ...]]] = {
    1: {
        "Ekya": (0.871, 0.831, 0.749, 0.711), "(1,50)": (0.870, 0.740, 0.688, 0.458), "(2,30)": (0.741, 0.700, 0.630, 0.541),
        "(2,50)": (0.811, 0.670, 0.619, 0.411), "(2,90)": (0.859, 0.768, 0.670, 0.599),
    },
    2: {
        "Ekya": (0.879, 0.850, 0.812, 0.739), "(1,50)": (0.869, 0.811, 0.749, 0.609), "(2,30)": (0.851, 0.769, 0.741, 0.510),
        "(2,50)": (0.869, 0.720, 0.621, 0.542), "(2,90)": (0.860, 0.741, 0.721, 0.649),
    },
}  # fmt: skip
FIG_2_6_STREAMS = (2, 4, 6, 8)
CAPACITY = {"Ekya": (2, 8), "(1,50)": (2, 2), "(2,90)": (2, 4), "(2,50)": (2, 4), "(2,30)": (0, 2)}
FIG_2_8 = {"Ekya": (0.480, 0.662, 0.756, 0.778), "best uniform": (0.460, 0.627, 0.685, 0.686)}
FIG_2_10A_GPUS = (2, 4, 6, 8)
FIG_2_10A = {
    "uniform(low,50)": (0.488, 0.648, 0.685, 0.685), "fixed-resources": (0.623, 0.685, 0.709, 0.721),
    "fixed-config": (0.523, 0.712, 0.733, 0.737), EKYA: (0.661, 0.755, 0.771, 0.778),
}  # fmt: skip
FIG_2_10B_S = (10, 50, 100, 200, 400, 600, 800, 1000)
FIG_2_10B = (0.61, 0.77, 0.85, 0.86, 0.85, 0.81, 0.79, 0.77)
FIG_2_11B = {
    0.0: (0.479, 0.654, 0.757, 0.771), 0.05: (0.473, 0.649, 0.748, 0.762), 0.1: (0.476, 0.648, 0.739, 0.761),
    0.2: (0.471, 0.630, 0.731, 0.749), 0.5: (0.449, 0.599, 0.719, 0.730),
}  # fmt: skip
FIG_2_11B_UNIFORM = (0.302, 0.495, 0.675, 0.721)
#: 8 streams, 4 GPUs, windows of 400 s. name -> (up, down in Mb/s, published accuracy)
CLOUDS = {"cellular": (5.1, 17.5, 0.685), "satellite": (8.5, 15.0, 0.692), "2 x cellular": (10.2, 35.0, 0.712)}
CLOUD_EKYA = 0.778
CLOUD_MB = (160.0, 398.0)


@dataclass
class Study:
    """Means over seeds, each run made once. windows: after the first one."""

    seeds: int
    jobs: int
    windows: int
    known: dict[tuple[int, Setting, str], float] = field(default_factory=dict)
    retrained: dict[tuple[int, Setting, str], int] = field(default_factory=dict)
    runs: int = 0
    taken_s: float = 0.0

    def means(self, wanted: Sequence[tuple[Setting, str]], windows: int | None = None) -> list[float]:
        """Mean quality of each (setting, policy), over the seeds."""
        count = windows or self.windows
        every = [(replace(s, seed=seed), p) for s, p in wanted for seed in range(self.seeds)]
        missing = [w for w in dict.fromkeys(every) if (count, *w) not in self.known]
        started_s = time.perf_counter()
        trace = read_source(TABLE, count).trace
        for (setting, policy), result in zip(missing, run_many(trace, missing, jobs=self.jobs), strict=True):
            self.known[(count, setting, policy)] = result.mean_quality
            self.retrained[(count, setting, policy)] = result.retrainings
        self.taken_s += time.perf_counter() - started_s
        self.runs += len(missing) * (count + 1)
        got = [self.known[(count, *w)] for w in every]
        return [sum(got[i : i + self.seeds]) / self.seeds for i in range(0, len(got), self.seeds)]

    def line(self, settings: Sequence[Setting], policy: str, windows: int | None = None) -> list[float]:
        """One policy along settings."""
        return self.means([(s, policy) for s in settings], windows)


# --- printing ---------------------------------------------------------------------------------------------------------


def heading(text: str) -> None:
    print(f"\n== {text}")


def row(name: str, cells: Sequence[float | str | None], width: int = 8) -> None:
    shown = ["-" if c is None else f"{c:.3f}" if isinstance(c, float) else str(c) for c in cells]
    print(f"{name:<28}" + "".join(f"{c:>{width}}" for c in shown), flush=True)


def points(cells: Sequence[float]) -> list[str]:
    """Accuracy points with a sign."""
    return [f"{100 * c:+.2f}" for c in cells]


# --- the tables -------------------------------------------------------------------------------------------------------


def policies(study: Study, plots: Path | None) -> dict[str, Any]:
    """Every policy on 10 streams, true profiles."""
    heading(f"policies: {TEN} streams, true profiles, mean quality per number of GPUs")
    row("", [f"{g} GPU" for g in GPUS])
    settings = [replace(BASE, streams=TEN, gpus=float(g)) for g in GPUS]
    names = (*PLANNERS, "fixed-resources", "fixed-config", *UNIFORM_FAMILY, "no-retrain")
    table = {}
    for name in names:
        table[name] = study.line(settings, name)
        row(name, table[name])
    cellular = link(*CLOUDS["cellular"][:2], *CLOUD_MB)
    table["cloud"] = study.line([replace(s, network=cellular) for s in settings], "cloud")
    row("cloud (cellular)", table["cloud"])
    best = [max(table[name][i] for name in UNIFORM_FAMILY) for i in range(len(GPUS))]
    row("best uniform", best)
    row(f"{EKYA} - best uniform, points", points([a - b for a, b in zip(table[EKYA], best, strict=True)]))
    row(f"{EKYA} - no-retrain, points", points([a - b for a, b in zip(table[EKYA], table["no-retrain"], strict=True)]))
    return table


def predicted(study: Study, plots: Path | None) -> dict[str, Any]:
    """Recorded predictions against true ones: what wrong beliefs cost, and what calibration saves."""
    out: dict[str, Any] = {}
    for windows, what in ((3, "first pass, nothing repeats"), (12, "12 windows, cities go round 4 times")):
        heading(f"predicted profiles: points against true ones, {TEN} streams, {what}; to reach: -1 or better")
        row("", [f"{g} GPU" for g in GPUS])
        for name in ("thief-repeat", "optimal", OURS):
            exact = study.line([replace(BASE, streams=TEN, gpus=float(g)) for g in GPUS], name, windows)
            for label, calibrate, hold_out, react in (
                ("as predicted", False, False, False),
                ("calibrated", True, False, False),
                ("+ react", True, False, True),
                ("+ hold-out", True, True, True),
            ):
                beliefs = replace(BASE, streams=TEN, profiles="predicted", calibrate=calibrate, hold_out=hold_out, react=react)
                settings = [replace(beliefs, gpus=float(g)) for g in GPUS]
                lost = [a - b for a, b in zip(study.line(settings, name, windows), exact, strict=True)]
                out[f"{name}, {label}, {windows} windows"] = lost
                row(f"{name}, {label}", points(lost))
        out[f"all other cities known, {windows} windows"] = unlucky = _unlucky(study, windows)
        row(f"{OURS}, all other cities known", points(unlucky))
    return out


def _unlucky(study: Study, windows: int) -> list[float]:
    """What is lost without luck: a planner that is told the true start, and of every option what it came to in all *other* cities, but
    not what this window's draw will be."""
    known = told_by_others(read_source(TABLE, windows).trace)
    settings = [replace(BASE, streams=TEN, gpus=float(g), seed=seed) for g in GPUS for seed in range(study.seeds)]
    came = [
        simulate(prefix(known, TEN, s.seed), OURS, engine_config_of(s), overhead_s=s.overhead_s).mean_quality for s in settings
    ]
    exact = study.line([replace(BASE, streams=TEN, gpus=float(g)) for g in GPUS], OURS, windows)
    return [sum(came[i * study.seeds : (i + 1) * study.seeds]) / study.seeds - best for i, best in enumerate(exact)]


def told_by_others(trace: Trace) -> Trace:
    """The trace with predictions by least squares over the other streams: gain = part of the option + part of the headroom."""
    names = trace.option_names()
    rows = [
        (s.id, [float(o.name == n) for n in names] + [1 - w.start_quality], (o.measured_quality or 0.0) - w.start_quality)
        for s in trace.streams
        for w in s.windows
        for o in w.options
    ]
    told = []
    for stream in trace.streams:
        others = [(x, y) for id, x, y in rows if id != stream.id]
        fitted = np.linalg.lstsq(np.array([x for x, _ in others]), np.array([y for _, y in others]), rcond=None)[0]
        gains, headroom = dict(zip(names, fitted, strict=False)), float(fitted[-1])
        told.append(stream.model_copy(update={"windows": tuple(_told(w, gains, headroom) for w in stream.windows)}))
    return trace.model_copy(update={"streams": tuple(told)})


def _told(window: TraceWindow, gains: Mapping[str, float], headroom: float) -> TraceWindow:
    def end(name: str) -> float:
        start = window.start_quality
        return min(1.0, max(0.0, start + float(gains[name]) + headroom * (1 - start)))

    options = tuple(o.model_copy(update={"predicted_quality": end(o.name)}) for o in window.options)
    return window.model_copy(update={"options": options, "predicted_start_quality": window.start_quality})


def slaq(study: Study, plots: Path | None) -> dict[str, Any]:
    """Does moving the training budget between plans help? Ekya's plans alone against each objective."""
    heading(f"SLAQ between plans: {TEN} streams, true profiles; points against Ekya's plans alone")
    row("", [f"{g} GPU" for g in GPUS])
    out: dict[str, Any] = {}
    for name in ("thief-repeat", "optimal", OURS, "uniform(high,50)"):
        settings = [replace(BASE, streams=TEN, gpus=float(g)) for g in GPUS]
        alone = out[name] = study.line(settings, name)
        row(f"{name} alone", alone)
        for objective in ("sum", "minmax", "finish"):
            moved = study.line([replace(s, slaq=objective) for s in settings], name)
            out[f"{name}, {objective}"] = moved
            row(f"{name}, {objective}", points([a - b for a, b in zip(moved, alone, strict=True)]))
    return out


def noise(study: Study, plots: Path | None) -> dict[str, Any]:
    """Figure 2.11b: Gaussian noise on true predictions."""
    heading(f"figure 2.11b: noise on predictions, {TEN} streams; points lost against none (published; to reach at 20 %: -2)")
    row("", [f"{g} GPU" for g in GPUS])
    out: dict[str, Any] = {}
    row("published, without noise", list(FIG_2_11B[0.0]))
    for eps, published in FIG_2_11B.items():
        if eps:
            row(f"published, {eps:.0%}", points([a - b for a, b in zip(published, FIG_2_11B[0.0], strict=True)]))
    for policy, told in itertools.product((EKYA, OURS), ("as told", "calibrated", "calibrated, hold-out")):
        what = f"{policy}, {told}"
        for eps in FIG_2_11B:
            beliefs = replace(
                BASE, noise=eps, calibrate=told != "as told" and eps > 0, hold_out="hold-out" in told, react=False
            )
            settings = [replace(beliefs, streams=TEN, gpus=float(g)) for g in GPUS]
            cells = out[f"{what}, {eps:g}"] = study.line(settings, policy)
            if eps:
                row(f"{what}, {eps:.0%}", points([a - b for a, b in zip(cells, out[f"{what}, 0"], strict=True)]))
            else:
                row(f"{policy}, without noise", cells)
    if plots:
        with picture(plots / "ekya_noise.svg", 2) as (ours, theirs):
            for eps, published in FIG_2_11B.items():
                ours.plot(GPUS, out[f"{EKYA}, as told, {eps:g}"], label=f"noise {eps:.0%}", marker="o", ms=4)
                theirs.plot(GPUS, published, label=f"noise {eps:.0%}", marker="x", ms=5, ls=":")
            theirs.plot(GPUS, FIG_2_11B_UNIFORM, label="uniform(2,50)", ls="--", marker="x", ms=5, color="gray")
            uniform = study.line([replace(BASE, streams=TEN, gpus=float(g)) for g in GPUS], "uniform(low,50)")
            ours.plot(GPUS, uniform, label="uniform(low,50)", ls="--", marker="o", ms=4, color="gray")
            finish_panel(ours, "GPUs", f"recorded traces, {EKYA}")
            finish_panel(theirs, "GPUs", "published, figure 2.11b")
    return out


def streams(study: Study, plots: Path | None) -> dict[str, Any]:
    """Figure 2.6: quality along the number of streams, and the capacity table that goes with it."""
    out: dict[str, Any] = {}
    ours = {"Ekya": EKYA, **VARIANTS}
    more = (OURS, "no-retrain")
    for gpus, published in FIG_2_6.items():
        heading(f"figure 2.6: {gpus} GPU, mean quality along the number of streams")
        row("", [str(n) for n in FIG_2_6_STREAMS])
        settings = [replace(BASE, streams=n, gpus=float(gpus)) for n in FIG_2_6_STREAMS]
        for name, policy in ours.items():
            cells = out[f"{gpus} {name}"] = study.line(settings, policy)
            row(policy, cells)
            row(f"  published {name}", list(published[name]))
        for policy in more:
            out[f"{gpus} {policy}"] = study.line(settings, policy)
            row(policy, out[f"{gpus} {policy}"])
    if plots:
        for gpus, published in FIG_2_6.items():
            with picture(plots / f"ekya_streams_{gpus}gpu.svg", 2) as (recorded, paper):
                for number, (name, policy) in enumerate(ours.items()):
                    cells, color = out[f"{gpus} {name}"], f"C{number}"
                    recorded.plot(FIG_2_6_STREAMS, cells, label=policy, color=color, **line_style(policy))
                    paper.plot(FIG_2_6_STREAMS, published[name], label=name, color=color, **line_style("paper"))
                for policy, color in zip(more, ("black", "gray"), strict=True):
                    recorded.plot(FIG_2_6_STREAMS, out[f"{gpus} {policy}"], label=policy, color=color, **line_style(policy))
                finish_panel(recorded, "streams", f"recorded traces, {gpus} GPU")
                finish_panel(paper, "streams", f"published, figure 2.6, {gpus} GPU")
    out["capacity"] = capacity(study, ours)
    return out


def capacity(study: Study, ours: Mapping[str, str]) -> dict[str, Any]:
    """Most streams with a mean of at least 0.75; also at 0.85, because the recorded models begin higher than the paper's."""
    heading("capacity: most streams (of 2, 4, ..., 12) whose mean reaches a threshold; 1 GPU / 2 GPUs")
    row("", [f">= {THRESHOLD}", ">= 0.85", "published"], 12)
    counts, out = range(2, 13, 2), {}
    for name, policy in {**ours, " ": OURS, "": "no-retrain"}.items():
        found: dict[tuple[float, int], int] = {}
        for gpus in (1, 2):
            cells = study.line([replace(BASE, streams=n, gpus=float(gpus)) for n in counts], policy)
            for threshold in (THRESHOLD, 0.85):
                found[threshold, gpus] = max((n for n, q in zip(counts, cells, strict=True) if q >= threshold), default=0)
        shown = [f"{found[t, 1]} / {found[t, 2]}" for t in (THRESHOLD, 0.85)]
        row(policy, [*shown, "{} / {}".format(*CAPACITY[name]) if name in CAPACITY else "-"], 12)
        out[policy] = {f"{t:g} {g}": n for (t, g), n in found.items()}
    return out


def provisioning(study: Study, plots: Path | None) -> dict[str, Any]:
    """Figure 2.8: quality along the number of GPUs."""
    heading(f"figure 2.8: {TEN} streams, mean quality along the number of GPUs")
    row("", [f"{g} GPU" for g in GPUS])
    settings = [replace(BASE, streams=TEN, gpus=float(g)) for g in GPUS]
    ekya = study.line(settings, EKYA)
    family = [study.line(settings, name) for name in UNIFORM_FAMILY]
    best = [max(cells) for cells in zip(*family, strict=True)]
    idle, ours = study.line(settings, "no-retrain"), study.line(settings, OURS)
    for name, cells in ((EKYA, ekya), (OURS, ours), ("best uniform", best), ("no-retrain", idle)):
        row(name, cells)
    for name, published in FIG_2_8.items():
        row(f"  published {name}", list(published))
    more = [replace(BASE, streams=TEN, gpus=float(g)) for g in (16, 32)]
    far = [max(cells) for cells in zip(*(study.line(more, name) for name in UNIFORM_FAMILY), strict=True)]
    print(
        f"best uniform at 16 and 32 GPUs: {far[0]:.3f} {far[1]:.3f}; at 4: {EKYA} {ekya[2]:.3f}, {OURS} {ours[2]:.3f} (paper: beats 16)"
    )
    if plots:
        with picture(plots / "ekya_gpus.svg") as (panel,):
            for number, (name, cells) in enumerate((("Ekya", ekya), ("best uniform", best))):
                label = EKYA if name == "Ekya" else name
                panel.plot(GPUS, cells, label=label, color=f"C{number}", **line_style(label))
                panel.plot(GPUS, FIG_2_8[name], label=f"paper {name}", color=f"C{number}", **line_style("paper"))
            panel.plot(GPUS, ours, label=OURS, color="black", **line_style(OURS))
            panel.plot(GPUS, idle, label="no-retrain", color="gray", **line_style("no-retrain"))
            finish_panel(panel, "GPUs", f"{TEN} streams")
    return {EKYA: ekya, OURS: ours, "best uniform": best, "no-retrain": idle, "best uniform at 16, 32": far}


def factors(study: Study, plots: Path | None) -> dict[str, Any]:
    """Figure 2.10a: which half of Ekya brings what."""
    heading(f"figure 2.10a: {TEN} streams, mean quality along the number of GPUs")
    row("", [f"{g} GPU" for g in FIG_2_10A_GPUS])
    settings = [replace(BASE, streams=TEN, gpus=float(g)) for g in FIG_2_10A_GPUS]
    out = {}
    for policy, published in FIG_2_10A.items():
        out[policy] = study.line(settings, policy)
        row(policy, out[policy])
        row("  published", list(published))
    out[OURS] = study.line(settings, OURS)
    row(OURS, out[OURS])
    if plots:
        with picture(plots / "ekya_factors.svg", 2) as (ours, theirs):
            for policy, published in FIG_2_10A.items():
                ours.plot(FIG_2_10A_GPUS, out[policy], label=policy, **line_style(policy))
                theirs.plot(FIG_2_10A_GPUS, published, label=policy, **line_style("paper"))
            ours.plot(FIG_2_10A_GPUS, out[OURS], label=OURS, color="black", **line_style(OURS))
            finish_panel(ours, "GPUs", "recorded traces")
            finish_panel(theirs, "GPUs", "published, figure 2.10a")
    return out


def window_length(study: Study, plots: Path | None) -> dict[str, Any]:
    """Figure 2.10b: quality along the window's length; costs stay."""
    heading(f"figure 2.10b: {TEN} streams, 4 GPUs, mean quality along the window's length")
    row("", [f"{s} s" for s in FIG_2_10B_S])
    settings = [replace(BASE, streams=TEN, gpus=4.0, window_s=float(s), overhead_s=min(2.0, 0.01 * s)) for s in FIG_2_10B_S]
    out = {name: study.line(settings, name) for name in (EKYA, "no-retrain")}
    for name, cells in out.items():
        row(name, cells)
    row("  published Ekya", list(FIG_2_10B))
    print("  published, no retraining: .59 to .63")
    if plots:
        with picture(plots / "ekya_window.svg") as (panel,):
            panel.plot(FIG_2_10B_S, out[EKYA], label=EKYA, color="C0", **line_style(EKYA))
            panel.plot(FIG_2_10B_S, FIG_2_10B, label="paper Ekya", color="C0", **line_style("paper"))
            panel.plot(FIG_2_10B_S, out["no-retrain"], label="no-retrain", color="gray", **line_style("no-retrain"))
            finish_panel(panel, "window, s", f"{TEN} streams, 4 GPUs")
    return out


def cloud(study: Study, plots: Path | None) -> dict[str, Any]:
    """Retraining in a cloud over three links: 8 streams, 4 GPUs, windows of 400 s."""
    heading("cloud: 8 streams, 4 GPUs, windows of 400 s (published)")
    setting = replace(BASE, streams=8, gpus=4.0, window_s=400.0)
    out: dict[str, Any] = {}
    for name, (up, down, published) in CLOUDS.items():
        arrives_s = 8 * CLOUD_MB[0] / up + 8 * CLOUD_MB[1] / down
        (out[name],) = study.line([replace(setting, network=link(up, down, *CLOUD_MB))], "cloud")
        row(f"cloud, {name}", [out[name], f"({published:.3f})", f"models back after {arrives_s:.1f} s"], 12)
    (out["no-retrain"],) = study.line([setting], "no-retrain")
    (out[EKYA],), (out[OURS],) = study.line([setting], EKYA), study.line([setting], OURS)
    row("no-retrain", [out["no-retrain"]], 12)
    row(EKYA, [out[EKYA], f"({CLOUD_EKYA:.3f})"], 12)
    row(OURS, [out[OURS]], 12)
    return out


SECTIONS: dict[str, Callable[[Study, Path | None], dict[str, Any]]] = {
    "policies": policies, "predicted": predicted, "noise": noise, "slaq": slaq, "streams": streams, "gpus": provisioning,
    "factors": factors, "window": window_length, "cloud": cloud,
}  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="driftbox bench ekya", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="orders of the streams to average over")
    parser.add_argument("--windows", type=int, default=6, help="windows after the first one")
    parser.add_argument("--jobs", type=int, default=1, choices=(1, 2), help="processes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="these tables only")
    parser.add_argument("--plots", type=Path, help="folder for the figures (SVG)")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--page", type=Path, help="Markdown page whose tables are replaced by these")
    return parser


class Tee(io.StringIO):
    """Keeps what is written, and passes it on."""

    def __init__(self, onward: TextIO) -> None:
        super().__init__()
        self._onward = onward

    def write(self, text: str) -> int:
        self._onward.write(text)
        self._onward.flush()
        return super().write(text)


def into_page(page: str, name: str, table: str) -> str:
    """The page with the block between `<!-- table: NAME -->` and `<!-- end -->` replaced. Raises ValueError when there is none."""
    begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no '{begin.strip()}' ... '{end}'")
    return f"{before}{begin}```\n{table.strip()}\n```\n{end}{after}"


def main(arguments: Sequence[str]) -> int:
    asked = make_parser().parse_args(arguments)
    if not TABLE.exists():
        print("bench ekya needs the authors' table: ../shared/data/traces/ekya_cityscapes_microprofiles.csv", file=sys.stderr)
        return 3
    if asked.plots:
        asked.plots.mkdir(parents=True, exist_ok=True)
    study = Study(seeds=asked.seeds, jobs=asked.jobs, windows=asked.windows)
    fixed = fixed_by_hold_out(read_source(TABLE, asked.windows).trace, 0)
    print(
        f"{asked.seeds} orders of the streams, {asked.windows} windows; seed 0: high is {fixed['high']}, low is {fixed['low']}"
    )
    numbers = {}
    for name in asked.only:
        with contextlib.redirect_stdout(Tee(sys.stdout)) as printed:
            numbers[name] = SECTIONS[name](study, asked.plots)
        if asked.page:
            asked.page.write_text(into_page(asked.page.read_text(encoding="utf-8"), name, printed.getvalue()), encoding="utf-8")
    rate = 60 * study.runs / max(study.taken_s, 1e-9)
    print(f"\n{study.runs} windows of the box in {study.taken_s:.0f} s: {rate:.0f} windows a minute")
    if asked.json:
        asked.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
