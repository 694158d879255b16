"""A box on real footage, in real time: serves the given videos over RTSP, runs the box until some windows have closed, prints a report.

    .venv/bin/python scripts/real_run.py VIDEO VIDEO --edge yolov8n@320 --golden yolo26l@640 --windows 3

What it reports: predicted and realised quality of each window, retrainings and verdicts, the shares that jobs were promised and
received over spans of ten seconds, and how many frame intervals each swap cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from configs.load import parse_config
from configs.schema import BoxConfig
from edge.evaluate.command import RETRAIN
from edge.logs import set_up_logging
from edge.wiring.box import Box, built
from scheduler.commands import ReportWindow
from streams.rtsp_process import MountSpec, RtspServerProcess

SPAN_S = 10.0
#: A job that had work for nearly all of a span must get what it was promised; an idle one gets less, and that is right.
BACKLOGGED_FRAC = 0.97


@dataclass
class Watch:
    """What is measured while the box runs."""

    closed: int = 0
    deviations_pp: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def look(self, box: Box) -> None:
        for job, report in box.runtime.parts.backend.report(SPAN_S).items():
            now_pct = box.runtime.shares_pct.get(job, 0.0)
            # Only spans over which the promise was one and the same say whether it was kept.
            steady = abs(report.promised_pct - now_pct) < 0.1 and report.span_s >= SPAN_S - 0.01
            if steady and report.promised_pct > 0 and report.backlogged_frac >= BACKLOGGED_FRAC:
                self.deviations_pp[job.split("/")[1]].append(report.received_pct - report.promised_pct)


def config_for(options: argparse.Namespace, addresses: dict[str, str], data_dir: Path) -> BoxConfig:
    retrain = [asdict(config) for config in RETRAIN if config.name in options.retrain.split(",")]
    text = yaml.safe_dump(
        {
            "box": {"id": "real-run", "data_dir": str(data_dir)},
            "gpus": {"capacity_pct": options.capacity_pct},
            "window": {
                "seconds": options.window_s, "first_seconds": 60, "label_frames": options.labels, "gate_frames": options.gate,
                "prep_pct": options.prep_pct, "prep_max_frac": 0.6, "sample_fps": 0.5, "profile_epochs": 2,
                "profile_data_frac": 1.0,
            },
            "scheduler": {"policy": options.policy},
            "models": {"edge": options.edge, "golden": options.golden, "retrain": retrain},
            "web": {"enabled": options.port > 0, "port": options.port or 8080},
            "cameras": [{"id": id, "url": url, "fps": options.fps} for id, url in addresses.items()],
        }
    )  # fmt: skip
    return parse_config(text, source="real_run")


async def watch_box(box: Box, windows: int, watch: Watch) -> None:
    async def looking() -> None:
        while True:
            await asyncio.sleep(1.0)
            watch.look(box)
            if watch.closed > windows:  # the first window only collects
                box.runtime.stop()

    def heard(thing: object) -> None:
        watch.closed += isinstance(thing, ReportWindow)

    box.runtime.parts.listeners.append(heard)
    task = asyncio.create_task(looking())
    try:
        await box.runtime.run(box.watched, box.first_window)
    finally:
        task.cancel()


def report(box: Box, watch: Watch) -> dict[str, Any]:
    windows = [
        {
            "window": outcome.window, "predicted_f1": outcome.predicted_quality, "realised_f1": outcome.realised_quality,
            "cameras": [
                {"id": s.id, "start_f1": s.start_quality, "end_f1": s.end_quality, "retrained": s.retrained,
                 "admitted": s.admitted, "note": s.note}
                for s in outcome.streams
            ],
            "notes": list(outcome.notes),
        }
        for outcome, _, _ in box.runtime.outcomes
    ]  # fmt: skip
    shares = {
        kind: {
            "spans": len(values),
            "worst_pp": round(max(map(abs, values)), 2),
            "mean_pp": round(sum(values) / len(values), 2),
        }
        for kind, values in sorted(watch.deviations_pp.items())
    }
    swaps = [
        {"camera": w.camera.id, "version": s.version, "gap_s": round(s.gap_s, 3), "interval_s": round(s.interval_s, 3),
         "missed_frames": s.missed_frames}
        for w in box.watched
        for s in w.worker.swaps
    ]  # fmt: skip
    frames = {w.camera.id: w.worker.frames for w in box.watched}
    return {"windows": windows, "shares_over_10_s": shares, "swaps": swaps, "frames_analysed": frames}


def show(answer: dict[str, Any]) -> None:
    print("\nwindow  camera                      F1 start -> end   retrained     admitted  predicted  realised")
    for window in answer["windows"]:
        for camera in window["cameras"]:
            print(
                f"{window['window']:6d}  {camera['id']:26s}  {number(camera['start_f1'])} -> {number(camera['end_f1'])}"
                f"     {camera['retrained'] or '-':12s}  {'yes' if camera['admitted'] else 'no':8s}"
                f"  {number(window['predicted_f1']):9s}  {number(window['realised_f1'])}  {camera['note']}"
            )
    print("\nshares over 10 s, jobs that always had work: received minus promised, percentage points")
    for kind, row in answer["shares_over_10_s"].items():
        print(f"  {kind:8s} {row['spans']:4d} spans   mean {row['mean_pp']:+.2f}   worst {row['worst_pp']:.2f}")
    print("\nswaps")
    for swap in answer["swaps"]:
        print(
            f"  {swap['camera']:26s} {swap['version']:30s} gap {swap['gap_s']:.3f} s, usual {swap['interval_s']:.3f} s, "
            f"missed {swap['missed_frames']}"
        )
    print(f"\nframes analysed: {answer['frames_analysed']}")


def number(value: float | None) -> str:
    return "    -" if value is None else f"{value:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--edge", default="yolov8n@320")
    parser.add_argument("--golden", default="yolo26l@640")
    parser.add_argument("--policy", default="lookahead")
    parser.add_argument("--retrain", default="half-short,half-long", help="configurations of `driftbox evaluate` to offer")
    parser.add_argument("--windows", type=int, default=3, help="windows to close after the first, which only collects samples")
    parser.add_argument("--window-s", type=float, default=150.0)
    parser.add_argument("--fps", type=float, default=3.0)
    parser.add_argument("--labels", type=int, default=18)
    parser.add_argument("--gate", type=int, default=8)
    parser.add_argument("--prep-pct", type=int, default=60)
    parser.add_argument("--capacity-pct", type=int, default=150, help="100 is one core; leave room for decoding")
    parser.add_argument("--port", type=int, default=0, help="show the status page there")
    parser.add_argument("--data-dir", type=Path, help="keep the data folder there (for `driftbox replay`)")
    parser.add_argument("--json", type=Path, help="also write the report there")
    options = parser.parse_args()
    set_up_logging()
    mounts = [MountSpec(name=video.stem, file=str(video.resolve())) for video in options.videos]
    with tempfile.TemporaryDirectory() as temporary:
        data_dir = options.data_dir or Path(temporary) / "data"
        server = RtspServerProcess(mounts)
        server.start()
        watch = Watch()
        try:
            config = config_for(options, {m.name: server.url(m.name) for m in mounts}, data_dir)
            with built(config, say=print) as box:
                asyncio.run(watch_box(box, options.windows, watch))
                answer = report(box, watch)
        finally:
            server.stop()
    show(answer)
    if options.json:
        options.json.write_text(json.dumps(answer, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
