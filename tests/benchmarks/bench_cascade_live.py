"""A cascade on real video on a live box: frames and query answers by their deadlines, without and with a retraining beside them.

    driftbox bench cascade_live [--seconds 40] [--slower 0] [--data DIR]

Two cameras (files that play in real time) detect with yolov8n at 320 px; a query of each sends the crops of what was found to a
classifier and counts the result. `scheduler.serving: orloj`: detections and crops go through one queue under their deadlines. One box
lives through both: first nothing is learnt, then real retrainings run (golden labels by yolo26n at 640 px before them do not count).

frames   answered within the camera's deadline, of those due
answers  of the query, within its lag goal, of the camera's frames due: a frame that was given up is missing here too

A busy machine is slower for everybody: the box then lives that much slower (`tests.support.pace`; --slower to say it), and the factor
and the load average are printed beside.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from configs.load import parse_config
from edge.queries.live import CameraQueries
from edge.queries.runner import Outcome
from edge.wiring.box import Box, built
from tests.benchmarks.bench_serving_live import DATA, LACKING, eventually, share
from tests.support.box_in_process import while_it_runs
from tests.support.pace import slowness

CAMERAS = (("street", "overhead_street_parking.mp4"), ("kerb", "london_kerbside.mp4"))
SETTLE_S = 8.0
TO_REACH = 0.95


def configuration(folder: Path, data: Path, options: argparse.Namespace, slower: float) -> str:
    cameras = "\n".join(
        f"""  - id: {id}
    url: "{data / "videos" / video}"
    fps: {options.fps / slower:.4g}
    height_px: 240
    loop: true
    deadline_ms: {options.deadline_ms * slower:.0f}
    queries:
      - name: what
        lag_goal_s: {options.lag_goal_s * slower:.4g}
        nodes:
          - {{transform: decode}}
          - {{transform: detect}}
          - {{transform: classify, knobs: {{crop_limit: [{options.crops}]}}}}
          - {{transform: count}}"""
        for id, video in CAMERAS
    )
    first_s = 600 if options.seconds <= 0 else 2 * SETTLE_S * slower + options.seconds + 30
    return f"""
box: {{data_dir: "{folder}"}}
web: {{enabled: false}}
gpus: {{capacity_pct: {options.capacity_pct}}}
window:
  {{seconds: 1200, first_seconds: {first_s:.0f}, label_frames: 8, gate_frames: 4, sample_fps: {1 / slower:.4g}, prep_pct: 60,
   prep_max_frac: 0.5}}
scheduler:
  {{policy: "uniform(long,60)", serving: {options.serving}, knobs: plan, min_gain: 0.0, min_quality: 0.0, drift: {{enabled: false}}}}
models:
  weights_dir: {data / "weights"}
  edge: yolov8n@320
  golden: yolo26n@640
  retrain: [{{name: long, epochs: 120, batch: 4, layers_frac: 0.5, lr: 0.0005}}]
cameras:
{cameras}
"""


@dataclass
class Answers:
    """How late the answers of one camera's query were, in seconds after capture."""

    lags_s: list[float] = field(default_factory=list)

    def listen(self, queries: CameraQueries) -> None:
        before = queries.on_outcome

        def outcome(one: Outcome) -> None:
            self.lags_s.append(time.time() - one.at_utc)
            before(one)

        queries.on_outcome = outcome

    def take(self) -> list[float]:
        lags_s, self.lags_s = self.lags_s, []
        return lags_s


def phase(box: Box, answers: dict[str, Answers], seconds: float, goal_s: float) -> dict[str, Any]:
    """Counts for so long."""
    runtime = box.runtime
    workers = {w.camera.id: w.worker for w in box.watched}
    for id, worker in workers.items():
        worker.finish.close_window()
        answers[id].take()
    started_s, trained_s, received = time.monotonic(), 0.0, []
    while (now_s := time.monotonic()) < started_s + seconds:
        time.sleep(1.0)
        trained_s += (time.monotonic() - now_s) * learning(box)
        received.append({job: (r.promised_pct, r.received_pct) for job, r in runtime.parts.backend.report(10.0).items()})
    rows = {}
    for id, worker in workers.items():
        told, lags_s = worker.finish.close_window(), sorted(answers[id].take())
        rows[id] = {
            "due": told.due, "in_time": told.in_time, "given_up": told.dropped, "lag_p50_s": told.lag_p50_s, "errors": worker.errors,
            "answers": len(lags_s), "answers_in_time": sum(lag <= goal_s for lag in lags_s),
            "answer_p50_s": lags_s[len(lags_s) // 2] if lags_s else None, "share": share(received, f"{id}/infer"),
        }  # fmt: skip
    jobs = {job for row in received for job in row if "/train" in job}
    return {
        "cameras": rows, "trained_frac": trained_s / seconds, "training": [share(received, job) for job in sorted(jobs)],
        "load": os.getloadavg()[0],
    }  # fmt: skip


def learning(box: Box) -> bool:
    return any(job.kind == "retraining" for job in list(box.runtime.jobs.values()))


def watch(box: Box, options: argparse.Namespace, slower: float) -> dict[str, Any]:
    answers: dict[str, Answers] = {}
    for watched in box.watched:
        assert watched.queries is not None, "its query cannot run"
        answers[watched.camera.id] = Answers()
        answers[watched.camera.id].listen(watched.queries)
    eventually(lambda: all(one.lags_s for one in answers.values()), "every query has answered once")
    time.sleep(SETTLE_S * slower)  # forms, batches, shares
    goal_s = options.lag_goal_s * slower
    alone = phase(box, answers, options.seconds, goal_s)
    eventually(lambda: learning(box), "a retraining runs")
    time.sleep(5.0)
    beside = phase(box, answers, options.seconds, goal_s)
    return {"alone": alone, "beside a retraining": beside}


def run(options: argparse.Namespace, slower: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        text = configuration(Path(folder), options.data, options, slower)
        with built(parse_config(text), say=lambda _: None) as box:

            def body() -> dict[str, Any]:
                try:
                    return watch(box, options, slower)
                except Exception as error:
                    return {"error": f"{type(error).__name__}: {error}"}

            return while_it_runs(box, body)


def table(found: dict[str, Any]) -> str:
    columns = ("", "camera", "due", "frames by deadline", "given up", "answers by lag goal", "lag p50 frame / answer ms")
    columns += ("share promised / received pct",)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, told in found.items():
        for id, row in told["cameras"].items():
            due = max(1, row["due"])
            lags = " / ".join("-" if row[k] is None else f"{1000 * row[k]:.0f}" for k in ("lag_p50_s", "answer_p50_s"))
            lines.append(
                f"| {name} | {id} | {row['due']} | {100 * row['in_time'] / due:.1f} % | {row['given_up']} "
                f"| {100 * min(row['answers_in_time'], due) / due:.1f} % | {lags} | {row['share'][0]:.0f} / {row['share'][1]:.1f} |"
            )
        frames, answers = rates(told)
        shares = ", ".join(f"{promised:.0f} / {received:.1f}" for promised, received in told["training"]) or "-"
        lines.append(
            f"| {name} | **all** | | **{100 * frames:.1f} %** | | **{100 * answers:.1f} %** | load average {told['load']:.1f} "
            f"| retraining ran {100 * told['trained_frac']:.0f} % of the time: {shares} |"
        )
    return "\n".join(lines)


def rates(told: dict[str, Any]) -> tuple[float, float]:
    """(frames by their deadline, answers by their goal), of all due."""
    rows = told["cameras"].values()
    due = max(1, sum(row["due"] for row in rows))
    return sum(r["in_time"] for r in rows) / due, min(1.0, sum(r["answers_in_time"] for r in rows) / due)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with videos/ and weights/")
    parser.add_argument("--seconds", type=float, default=40.0, help="counted with and without")
    parser.add_argument("--serving", default="orloj", help="scheduler.serving")
    parser.add_argument("--fps", type=float, default=2.0)
    parser.add_argument("--crops", type=int, default=8, help="most crops of a frame")
    parser.add_argument("--deadline-ms", type=float, default=1000.0)
    parser.add_argument("--lag-goal-s", type=float, default=1.5)
    parser.add_argument("--capacity-pct", type=int, default=160)
    parser.add_argument("--slower", type=float, default=0.0, help="how much slower the box lives (0: as the machine is)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.data / "weights").is_dir():
        print(f"no videos and weights in {options.data}", file=sys.stderr)
        sys.exit(LACKING)
    os.environ.setdefault("DRIFTBOX_WEIGHTS", str(options.data / "weights"))
    torch.set_num_threads(1)
    slower = options.slower or slowness()
    print(f"load average {os.getloadavg()[0]:.1f}; the box lives {slower:.2f} times slower", file=sys.stderr)
    found = run(options, slower)
    if "error" in found:
        print(found["error"], file=sys.stderr)
        sys.exit(1)
    if options.json:
        print(json.dumps(found))
        return
    print(table(found))
    frames, _ = rates(found["beside a retraining"])
    print(f"{'reached' if frames >= TO_REACH else 'MISSED'}: {100 * frames:.1f} % of the frames by their deadline beside a retraining, "
          f"to reach {100 * TO_REACH:.0f} %")  # fmt: skip


if __name__ == "__main__":
    main()
