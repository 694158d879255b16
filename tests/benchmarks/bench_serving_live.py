"""Three real cameras on a live box while a retraining goes on: frames answered by their deadline, lag and shares, by way of serving.

Two cameras detect with one model, the third finds what moves and classifies it (a cascade). Each way of serving (`scheduler.serving`)
runs a box of its own (`edge.wiring.box`: real decoding, real models, real training) in turns, several rounds, so that what else the
machine does hits all of them alike. Counted from the moment the first retraining runs.

--virtual: the same question without the machine (`tests.support.serving_race`): real workers, lanes, shares and policies in virtual
time, cameras whose pictures take 10 or 50 ms, a retraining beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs.load import parse_config
from edge.wiring import compute
from edge.wiring.box import Box, built

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
LACKING = 3
WAIT_S = 240.0
CAMERAS = (("street", "overhead_street_parking.mp4", "detection"), ("kerb", "london_kerbside.mp4", "detection"),
           ("avenue", "brt_avenue.mp4", "classification"))  # fmt: skip


def configuration(folder: Path, data: Path, serving: str, form: str, fps: float, deadline_ms: float, capacity_pct: int) -> str:
    cameras = "\n".join(
        f'  - {{id: {id}, url: "{data / "videos" / video}", fps: {fps}, height_px: 240, loop: true, task: {task}, '
        f"deadline_ms: {deadline_ms}}}"
        for id, video, task in CAMERAS
    )
    return f"""
box: {{data_dir: "{folder}"}}
web: {{enabled: false}}
gpus: {{capacity_pct: {capacity_pct}}}
window: {{seconds: 600, first_seconds: 20, label_frames: 8, gate_frames: 4, sample_fps: 2.0, prep_pct: 60, prep_max_frac: 0.5}}
scheduler: {{policy: "uniform(long,50)", serving: {serving}, knobs: plan, min_gain: 0.0, min_quality: 0.0, drift: {{enabled: false}}}}
models:
  serving: {form}
  weights_dir: {data / "weights"}
  edge: yolov8n@320
  golden: yolo26n@640
  retrain: [{{name: long, epochs: 60, batch: 4, layers_frac: 0.5, lr: 0.0005}}]
cameras:
{cameras}
"""


def measure(box: Box, seconds: float) -> dict[str, Any]:
    """Waits for a retraining, then counts."""
    runtime = box.runtime
    eventually(lambda: any(job.kind == "retraining" for job in list(runtime.jobs.values())), "a retraining runs")
    workers = {w.camera.id: w.worker for w in box.watched}
    time.sleep(5.0)  # forms and shares settle
    for worker in workers.values():
        worker.finish.close_window()
    started_s, trained_s, received = time.monotonic(), 0.0, []
    while (now_s := time.monotonic()) < started_s + seconds:
        time.sleep(1.0)
        trained_s += (time.monotonic() - now_s) * any(job.kind == "retraining" for job in list(runtime.jobs.values()))
        received.append({job: (r.promised_pct, r.received_pct) for job, r in runtime.parts.backend.report(10.0).items()})
    told = {id: worker.finish.close_window() for id, worker in workers.items()}
    rows: dict[str, Any] = {
        id: {
            "due": f.due, "in_time": f.in_time, "answered": f.answered, "dropped": f.dropped, "lag_p50_s": f.lag_p50_s,
            "lag_p99_s": f.lag_p99_s, "errors": workers[id].errors, "share": share(received, f"{id}/infer"),
        }
        for id, f in told.items()
    }  # fmt: skip
    train = [job for job in {j for row in received for j in row} if "/train" in job]
    return {"cameras": rows, "training": [share(received, job) for job in train], "trained_frac": trained_s / seconds}


def share(received: list[dict[str, tuple[float, float]]], job: str) -> tuple[float, float]:
    """Mean promised and received pct of a job."""
    rows = [row[job] for row in received[9:] if job in row] or [row[job] for row in received if job in row]
    return (sum(r[0] for r in rows) / len(rows), sum(r[1] for r in rows) / len(rows)) if rows else (0.0, 0.0)


def eventually(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")
        time.sleep(0.2)


def run_one(options: argparse.Namespace) -> None:
    """One box with one way of serving; prints JSON."""
    serving, _, workers = options.one.partition(":")
    if workers:
        compute.POOL_WORKERS_MAX = int(workers)
    with tempfile.TemporaryDirectory() as folder:
        text = configuration(
            Path(folder), options.data, serving, options.form, options.fps, options.deadline_ms, options.capacity_pct
        )
        with built(parse_config(text), say=lambda _: None) as box:
            found: dict[str, Any] = {}

            def watch() -> None:
                try:
                    found.update(measure(box, options.seconds))
                except Exception as error:
                    found["error"] = str(error)
                finally:
                    box.runtime.stop()

            async def live() -> None:
                threading.Thread(target=watch, daemon=True).start()
                await box.runtime.run(box.watched, box.first_window)

            asyncio.run(live())
            print(json.dumps(found))


def child(options: argparse.Namespace, serving: str) -> dict[str, Any]:
    words = [sys.executable, __file__, "--one", serving, "--data", str(options.data), "--form", options.form,
             "--fps", str(options.fps), "--deadline-ms", str(options.deadline_ms), "--seconds", str(options.seconds),
             "--capacity-pct", str(options.capacity_pct)]  # fmt: skip
    done = subprocess.run(
        words, env=os.environ | {"OMP_NUM_THREADS": "1", "DRIFTBOX_WEIGHTS": str(options.data / "weights")}, check=True,
        text=True, stdout=subprocess.PIPE,
        stderr=None if options.debug else subprocess.DEVNULL,
    )  # fmt: skip
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    lines = ["| serving | camera | due | by deadline | answered | given up | lag p50 / p99 ms | share promised / received pct |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for serving, rounds in results.items():
        for id, _, _ in CAMERAS:
            rows = [r["cameras"][id] for r in rounds]
            due, in_time, answered, dropped = (sum(r[k] for r in rows) for k in ("due", "in_time", "answered", "dropped"))
            p50, p99 = (max((r[k] or 0.0) for r in rows) for k in ("lag_p50_s", "lag_p99_s"))
            promised, got = (sum(r["share"][n] for r in rows) / len(rows) for n in (0, 1))
            rate = 100 * in_time / due if due else 0.0
            lines.append(
                f"| {serving} | {id} | {due} | {rate:.1f} % | {answered} | {dropped} | {1000 * p50:.0f} / {1000 * p99:.0f} "
                f"| {promised:.1f} / {got:.1f} |"
            )
        due, in_time = (sum(r["cameras"][id][k] for r in rounds for id, _, _ in CAMERAS) for k in ("due", "in_time"))
        training = [t for r in rounds for t in r["training"]]
        shares = " / ".join(f"{sum(t[n] for t in training) / max(1, len(training)):.1f}" for n in (0, 1))
        lines.append(
            f"| {serving} | **all** | {due} | **{100 * in_time / max(1, due):.1f} %** | | | | a retraining: {shares} |"
        )
    return "\n".join(lines)


def virtual(seconds: float) -> str:
    """Finish rates of every way of serving, and what inference and the retraining received."""
    from tests.support.serving_race import LOADS, race

    ways = ("own", "fifo", "edf", "clockwork", "orloj")
    lines = [f"| load | {' | '.join(ways)} | inference / retraining received, pct |", "|---" * (len(ways) + 2) + "|"]
    for name, load in LOADS.items():
        raced = [race(way, load, seconds=seconds) for way in ways]
        infer = [sum(s.received_pct for job, s in one.shares.items() if "infer" in job) for one in raced]
        train = [one.shares["cam0/train"].received_pct for one in raced]
        rates = " | ".join(f"{100 * one.frac:.1f} %" for one in raced)
        lines.append(f"| {name} | {rates} | {min(infer):.0f}-{max(infer):.0f} / {min(train):.0f}-{max(train):.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with videos/ and weights/")
    parser.add_argument("--ways", default="own,orloj", help="values of scheduler.serving; orloj:1 has one worker")
    parser.add_argument("--seconds", type=float, default=60.0, help="counted in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--form", default="trained", help="models.serving")
    parser.add_argument("--fps", type=float, default=3.0)
    parser.add_argument("--deadline-ms", type=float, default=500.0)
    parser.add_argument("--capacity-pct", type=int, default=120)
    parser.add_argument("--virtual", action="store_true", help="in virtual time, without videos")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--debug", action="store_true", help="show the boxes' logs")
    options = parser.parse_args()
    if options.virtual:
        print(virtual(options.seconds))
        return
    if not (options.data / "weights").is_dir():
        print(f"no videos and weights in {options.data}", file=sys.stderr)
        sys.exit(LACKING)
    if options.one:
        run_one(options)
        return
    ways = options.ways.split(",")
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):  # nobody is always first
            found = child(options, way)
            if "error" in found:
                print(f"{way}, round {number + 1}: {found['error']}", file=sys.stderr)
                continue
            results[way].append(found)
            print(f"round {number + 1}, {way}: training ran {100 * found['trained_frac']:.0f} % of the time", file=sys.stderr)
    results = {way: rounds for way, rounds in results.items() if rounds}
    print(json.dumps(results) if options.json else table(results))


if __name__ == "__main__":
    main()
