"""An appliance that nobody looks at: memory of a box with four cameras at 5 fps, and how it grows.

    python tests/benchmarks/bench_idle.py --minutes 60          # the longer, the more the growth means
    python tests/benchmarks/bench_idle.py --explain FILE.jsonl  # counters from inside as well (idle_inside.py), stacks at every jump
    MALLOC_ARENA_MAX=16 python tests/benchmarks/bench_idle.py   # memory as glibc keeps it by itself on two cores

The cameras are rendered and served by a process of their own, which does not count. "Above what the models need" is the box's resident
memory less that of a process that has loaded the same libraries and models and asked each of them once. Growth is the slope of a least
squares fit over all samples after `--settle` minutes, with its standard error: as long as that is above the slope, nothing was seen to
grow.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
CAMERAS = ("street", "yard", "street", "yard")
MIB = 2**20
ABOVE_MIB, GROWTH_MIB_H = 1024.0, 1.0  # to reach
START_S = 600.0

_MODELS_ONLY = """
import torch
torch.set_num_threads(1)
import fastapi, uvicorn, cv2, av, paho.mqtt.client, prometheus_client
from configs.load import load_config
from edge.wiring.models import load_goldens, plain_picture
from edge.wiring.settings import models_of
from models.tasks.registry import task_of
import sys, psutil
from pathlib import Path
config = load_config(Path(sys.argv[1]))
kept = [load_goldens(config)]
for task_name, edge, golden in models_of(config):
    task = task_of(task_name)
    picture = plain_picture(task)
    for _ in config.active_cameras:
        detector = task.load(edge, device="cpu")
        task.predict(detector, [picture], score_min=0.5)
        kept.append(detector)
    task.labels(kept[0][task_name], [picture], score_min=0.5)
print(psutil.Process().memory_info().rss)
"""


def write_config(folder: Path, port: int, *, learning: bool) -> Path:
    cameras = "\n".join(
        f'  - {{id: c{n}, url: "rendered:{kind}?seed={n}&fps=5", fps: 5, learning: {str(learning).lower()}}}'
        for n, kind in enumerate(CAMERAS)
    )
    path = folder / "box.yaml"
    path.write_text(
        f'box: {{data_dir: "{folder}/data"}}\nweb: {{port: {port}, login: false, tls: "off"}}\ncameras:\n{cameras}\n',
        encoding="utf-8",
    )
    return path


def models_mib(config: Path) -> float:
    """What a process needs that does nothing but hold the models."""
    done = subprocess.run(
        [sys.executable, "-c", _MODELS_ONLY, str(config)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1]) / MIB


def ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def resident_mib(process: psutil.Process) -> tuple[float, float]:
    """(all, without pages of files: those of libraries come in as they are first used, and can go again)."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return kib["VmRSS"] / 1024, kib["RssAnon"] / 1024


#: glibc reserves an arena of a thread in pieces that begin at a multiple of this.
ARENA_BYTES = 64 * MIB


def resident_by_class(pid: int) -> dict[str, float]:
    """Resident MiB by what it is: pages of files, the main arena (heap), arenas of threads, and everything else without a file: large
    pieces, Python's own arenas, stacks."""
    found: dict[str, float] = dict.fromkeys(("files", "heap", "arenas of threads", "other"), 0.0)
    name = "other"
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            path = rest[4] if len(rest) > 4 else ""
            of_thread = not path and int(first.split("-")[0], 16) % ARENA_BYTES == 0
            name = (
                "files"
                if path.startswith("/")
                else "heap"
                if path == "[heap]"
                else "arenas of threads"
                if of_thread
                else "other"
            )
        elif first == "Rss:":
            found[name] += int(rest[0]) / 1024
    return found


def watch(process: psutil.Process, seconds: float, every_s: float) -> np.ndarray:
    """Rows of (hours, resident MiB, of that without pages of files)."""
    started_s, rows = time.monotonic(), []
    while (now_s := time.monotonic() - started_s) < seconds:
        rows.append((now_s / 3600, *resident_mib(process)))
        time.sleep(every_s)
    return np.array(rows)


def slope(rows: np.ndarray, column: int) -> tuple[float, float]:
    """(MiB per hour, its standard error) of a straight line through the samples."""
    hours, mib = rows[:, 0] - rows[:, 0].mean(), rows[:, column] - rows[:, column].mean()
    spread = float((hours**2).sum())
    rate = float((hours * mib).sum() / spread)
    left = mib - rate * hours
    # Samples follow each other closely and are not independent: the error counts one per minute.
    minutes = max(3.0, 60 * float(np.ptp(rows[:, 0])))
    return rate, float(np.sqrt((left**2).mean() / (spread * minutes / len(rows))))


def command_of(config: Path, explain: Path | None) -> list[str]:
    if explain is None:
        return [sys.executable, "-m", "edge", "run", str(config)]
    inside = Path(__file__).with_name("idle_inside.py")
    return [sys.executable, str(inside), str(explain.resolve()), "20", "--", "run", str(config)]


def measure(minutes: float, settle: float, *, learning: bool, every_s: float, explain: Path | None = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="driftbox-idle-") as name:
        folder = Path(name)
        port = 8987 + os.getpid() % 1000
        config = write_config(folder, port, learning=learning)
        needed = models_mib(config)
        with (folder / "output").open("wb") as out:
            box = subprocess.Popen(
                command_of(config, explain), cwd=ROOT, stdout=out, stderr=out, env=os.environ | {"PYTHONPATH": str(ROOT)}
            )
        try:
            until_s = time.monotonic() + START_S
            while not ready(port) and box.poll() is None and time.monotonic() < until_s:
                time.sleep(1)
            if not ready(port):
                sys.exit((folder / "output").read_text()[-3000:])
            process = psutil.Process(box.pid)
            rows = watch(process, 60 * settle, every_s)
            before = resident_by_class(box.pid)
            more = watch(process, 60 * (minutes - settle), every_s)
            more[:, 0] += settle / 60
            rows, after = np.vstack([rows, more]), resident_by_class(box.pid)
            threads, files = process.num_threads(), process.num_fds()
            cpu_s = sum(process.cpu_times()[:2])
            told = httpx.get(f"http://127.0.0.1:{port}/api/v1/status", timeout=30).json()
        finally:
            box.send_signal(signal.SIGTERM)
            stopped_s = time.monotonic()
            box.wait(120)
            stopped_s = time.monotonic() - stopped_s
    settled = rows[rows[:, 0] >= settle / 60]
    (rate, error), (own_rate, own_error) = slope(settled, 1), slope(settled, 2)
    return {
        "needed": needed, "begin": settled[0, 1], "end": settled[-1, 1], "most": rows[:, 1].max(), "rate": rate, "error": error,
        "own_rate": own_rate, "own_error": own_error, "classes": {name: (before[name], after[name]) for name in before},
        "samples": len(settled), "threads": threads, "files": files, "cpu_s": cpu_s, "stopped_s": stopped_s,
        "fps": [round(camera["analysed_fps"], 1) for camera in told["cameras"]], "degraded": told["degraded"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the box is watched")
    parser.add_argument("--settle", type=float, default=5.0, help="minutes at the beginning that do not count for growth")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--explain", type=Path, help="file for counters from inside the box, a JSON line every 20 s")
    parser.add_argument("--learning", action="store_true", help="with retraining windows; default: inference only")
    given = parser.parse_args()
    if given.minutes <= given.settle + 1:
        parser.error("--minutes must be more than a minute above --settle")
    found = measure(given.minutes, given.settle, learning=given.learning, every_s=given.every, explain=given.explain)
    above = found["end"] - found["needed"]
    print(
        f"4 cameras at 5 fps, {given.minutes:g} min, learning {'on' if given.learning else 'off'}; analysed fps {found['fps']}"
    )
    print(f"libraries and models alone      {found['needed']:8.0f} MiB")
    print(f"box at the end                  {found['end']:8.0f} MiB   (most {found['most']:.0f})")
    print(f"above what the models need      {above:8.0f} MiB   to reach: <= {ABOVE_MIB:.0f}")
    print(
        f"growth after {given.settle:g} min          {found['rate']:+8.2f} MiB/h +- {found['error']:.2f}   to reach: < {GROWTH_MIB_H:g}"
    )
    print(f"  without pages of files        {found['own_rate']:+8.2f} MiB/h +- {found['own_error']:.2f}")
    classes = ", ".join(f"{name} {before:.0f} -> {after:.0f}" for name, (before, after) in found["classes"].items())
    print(f"  MiB by class, settled -> end: {classes}")
    print(
        f"threads {found['threads']}, open files {found['files']}, CPU {found['cpu_s']:.0f} s, ended in {found['stopped_s']:.1f} s"
    )
    print(f"degraded: {'; '.join(found['degraded']) or 'no'}")


if __name__ == "__main__":
    main()
