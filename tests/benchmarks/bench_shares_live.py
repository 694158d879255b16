"""A whole box on two real videos over RTSP: what each job was promised and received, per window. Needs videos and weights.

    driftbox bench shares_live VIDEO VIDEO --weights FOLDER [--edge yolov8n@320] [--golden yolo26s@640] [--windows 2] [--window-s 120]
                               [--capacity 150] [--label-frames 20] [--epochs 8] [--always] [--json FILE]

The box runs as `driftbox run` does, in a process of its own; another process serves the videos as two cameras. Printed at the end, from
the box's database: promised and received share of every job in every window, the part of the time in which it wanted to run, and how
long it ran. Beside it, the worst deviation over 10 s spans that its status page showed while it ran (spans in which a job always wanted
to run and its promise did not change). A job that did not always want to run may lawfully receive less than promised.
Anchor: MPS percentages are caps, no shares; to reach: within 3 points over 10 s on a CPU. --always: a policy that always retrains,
so that every kind of job is seen even where a plan would not retrain.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edge.gpu.base import ShareReport
from edge.share_book import owed
from edge.store.store import Store
from streams.rtsp_process import MountSpec, RtspServerProcess
from tests.support.running_box import RunningBox

#: Of a span in which a job rested less than this, all of its promise is owed.
WANTED_FRAC = 0.98
POLL_S = 2.0
#: So that a window of two minutes is enough on two cores.
WINDOW = "gate_frames: 6, sample_fps: 1.0, prep_pct: 70"


@dataclass(frozen=True, kw_only=True)
class Setting:
    edge: str = "yolov8n@320"
    golden: str = "yolo26s@640"
    windows: int = 2
    window_s: float = 120.0
    first_s: float = 40.0
    capacity_pct: int = 150
    always: bool = False
    label_frames: int = 20
    epochs: int = 8
    patience_s: float = 900.0


@dataclass(kw_only=True)
class Seen:
    """windows: number -> what its jobs were promised and received. spans: per kind of job, received - promised in percentage points
    over every 10 s span looked at in which it was owed all of it."""

    windows: dict[int, tuple[ShareReport, ...]] = field(default_factory=dict)
    spans: dict[str, list[float]] = field(default_factory=dict)

    def worst(self, kind: str) -> tuple[float, float]:
        found = self.spans.get(kind, [])
        return min(found, default=0.0), max(found, default=0.0)


@contextmanager
def served(videos: Sequence[Path]) -> Iterator[list[str]]:
    """The videos as cameras over RTSP, looped; their addresses."""
    server = RtspServerProcess([MountSpec(name=f"camera{n}", file=str(video)) for n, video in enumerate(videos)])
    server.start()
    try:
        yield [server.url(f"camera{n}") for n in range(len(videos))]
    finally:
        server.stop()


def config_of(urls: Sequence[str], weights: Path, setting: Setting) -> str:
    cameras = "\n".join(
        f'  - {{id: camera{n}, url: "{url}", fps: 3, height_px: 360, transport: tcp}}' for n, url in enumerate(urls)
    )
    scheduler = (
        '{policy: "uniform(quick,50)", min_gain: 0.0, min_quality: 0.0, drift: {enabled: false}}' if setting.always else "{}"
    )
    return f"""
gpus: {{capacity_pct: {setting.capacity_pct}}}
window: {{seconds: {setting.window_s}, first_seconds: {setting.first_s}, label_frames: {setting.label_frames}, {WINDOW}}}
scheduler: {scheduler}
models:
  serving: trained
  weights_dir: {weights}
  edge: {setting.edge}
  golden: {setting.golden}
  retrain: [{{name: quick, epochs: {setting.epochs}, batch: 2, layers_frac: 0.5, lr: 0.0003}}]
cameras:
{cameras}
"""


def run(videos: Sequence[Path], weights: Path, setting: Setting, folder: Path) -> Seen:
    """Runs the box until so many windows after the first have closed. Raises TimeoutError when they do not."""
    seen = Seen()
    with served(videos) as urls:
        box = RunningBox(folder, config_of(urls, weights, setting))
        try:
            watch(box, setting, seen)
            if box.stop() != 0:
                raise RuntimeError(f"the box ended badly: {box.output.read_text()[-2000:]}")
        finally:
            if box.process.poll() is None:
                box.process.kill()
                box.process.wait()
        with Store(box.data_dir / "driftbox.db") as store:
            seen.windows = {w.outcome.window: store.shares(w.outcome.window) for w in store.windows()}
    return seen


def watch(box: RunningBox, setting: Setting, seen: Seen) -> None:
    """Reads the status page until enough windows are closed."""
    until_s = time.monotonic() + setting.patience_s
    promises: dict[str, list[float]] = {}
    while time.monotonic() < until_s:
        status = box.status()
        if status is not None:
            note_spans(status, promises, seen)
            if len(status["outcomes"]) > setting.windows:
                return
        time.sleep(POLL_S)
    raise TimeoutError(
        f"{setting.windows} windows did not close within {setting.patience_s:.0f} s: {box.output.read_text()[-2000:]}"
    )


def note_spans(status: dict, promises: dict[str, list[float]], seen: Seen) -> None:
    """Keeps the deviation of every job that was promised the same over two looks or more and wanted all of it."""
    shares = {share["job"]: share for share in status["shares"]}
    for job in [job for job in promises if job not in shares]:
        del promises[job]
    for job, share in shares.items():
        history = promises.setdefault(job, [])
        history.append(share["promised_pct"])
        steady = len(history) * POLL_S > status["shares_span_s"] and max(history[-6:]) - min(history[-6:]) < 0.05
        if steady and share["wanted_frac"] >= WANTED_FRAC:
            seen.spans.setdefault(share["kind"], []).append(share["received_pct"] - share["promised_pct"])


def show(seen: Seen, setting: Setting) -> None:
    print(
        f"{'window':>6}  {'job':32} {'promised':>8} {'received':>8} {'wanted':>6} {'seconds':>7}  difference where it always wanted"
    )
    for window, reports in sorted(seen.windows.items()):
        differences = owed(reports, wanted_frac=WANTED_FRAC)
        for r in reports:
            always = f"{differences[r.job]:+.2f}" if r.job in differences else "-"
            shares = f"{r.promised_pct:8.1f} {r.received_pct:8.1f} {r.backlogged_frac:6.2f}"
            print(f"{window:6}  {r.job:32} {shares} {r.span_s:7.1f}  {always}")
        print(f"{window:6}  {'promised in all, at most':32} {setting.capacity_pct:8.1f}")
    for kind in sorted(seen.spans):
        low, high = seen.worst(kind)
        print(f"10 s spans, {kind}: {len(seen.spans[kind])} looked at, worst {low:+.2f} .. {high:+.2f} points (to reach: 3)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", nargs=2, type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--edge", default=Setting.edge)
    parser.add_argument("--golden", default=Setting.golden)
    parser.add_argument("--windows", type=int, default=Setting.windows)
    parser.add_argument("--window-s", type=float, default=Setting.window_s)
    parser.add_argument("--capacity", type=int, default=Setting.capacity_pct)
    parser.add_argument("--label-frames", type=int, default=Setting.label_frames)
    parser.add_argument("--epochs", type=int, default=Setting.epochs)
    parser.add_argument("--always", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    setting = Setting(
        edge=args.edge, golden=args.golden, windows=args.windows, window_s=args.window_s, capacity_pct=args.capacity,
        always=args.always, label_frames=args.label_frames, epochs=args.epochs, patience_s=300.0 + 3 * args.windows * args.window_s,
    )  # fmt: skip
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        seen = run([v.resolve() for v in args.videos], args.weights.resolve(), setting, Path(folder))
    print(f"{len(os.sched_getaffinity(0))} cores, load before {load_before:.1f}, after {os.getloadavg()[0]:.1f}")
    show(seen, setting)
    if args.json:
        rows = {str(w): [asdict(r) for r in reports] for w, reports in seen.windows.items()}
        args.json.write_text(json.dumps({"windows": rows, "spans_10s_points": seen.spans}, indent=1))


if __name__ == "__main__":
    main()
