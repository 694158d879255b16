"""What a process per job costs (backend `mps`): a frame through a process against one here, and a standby with and without a spare.

Run: python tests/benchmarks/bench_processes.py [FRAMES]
On the CPU, with the stand-in for NVIDIA's MPS (`edge.gpu.fake_mps`): what CUDA adds (a context, a slower or faster network) is not
in it. `here` and `process`: the same small network on the same 640x360 picture, one after the other in turns, medians. `standby`:
from asking for a process until it has answered two frames: started cold, and from a spare that has torch loaded. Wants a quiet
machine: starting is mostly loading libraries; the ratios stand also on a busy one.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from edge.gpu.mps import MpsBackend
from edge.gpu.mps_daemon import MpsDaemon
from edge.gpu.remote import RemoteDetector
from models.zoo import load_detector

ROOT = Path(__file__).resolve().parents[2]
#: Standbys of each kind.
STANDBYS = 3
#: The issue's limit for a warm standby.
LIMIT_S = 5.0


def backend_in(folder: Path) -> MpsBackend:
    daemon = MpsDaemon(folder / "d", gpu="GPU-fake", owner="bench", control=(sys.executable, "-m", "edge.gpu.fake_mps"))
    return MpsBackend(
        "GPU-fake", data_dir=folder / "data", memory_mib=1e6, daemon=daemon, device="cpu", client="edge.gpu.fake_mps:FakeClient",
        spare=False,
    )  # fmt: skip


def timed(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def frames(backend: MpsBackend, count: int) -> None:
    here, picture = load_detector("tinydet-edge"), np.random.default_rng(0).integers(0, 255, (360, 640, 3), dtype=np.uint8)
    remote = served(backend, "frames")
    here_s, process_s, charged_s = [], [], []
    for number in range(count + 3):
        own = timed(lambda: here.predict([picture]))
        before_s = backend.remote_clock.thread_cpu_s()
        elsewhere = timed(lambda: remote.predict([picture]))
        if number >= 3:
            here_s.append(own)
            process_s.append(elsewhere)
            charged_s.append(backend.remote_clock.thread_cpu_s() - before_s)
    a, b, c = (1000 * statistics.median(values) for values in (here_s, process_s, charged_s))
    print(f"frame   here {a:.2f} ms   process {b:.2f} ms (x{b / a:.2f})   charged {c:.2f} ms   {count} frames in turns")
    # What the way there and back costs, without a network: a request that does nothing.
    worker = remote.worker
    assert worker is not None
    pings = [timed(lambda: worker.ask("ping")) for _ in range(200)]
    print(f"        an empty request {1e6 * statistics.median(pings):.0f} us")


def served(backend: MpsBackend, job: str) -> RemoteDetector:
    backend.open_lane(job, role="infer")
    backend.set_shares({job: 100.0})
    return backend.serve(load_detector("tinydet-edge"), job)


def standbys(backend: MpsBackend) -> None:
    picture = np.zeros((360, 640, 3), np.uint8)
    cold: list[float] = []
    spare: list[float] = []
    for number in range(STANDBYS):
        for kind, seen in (("cold", cold), ("spare", spare)):
            if kind == "spare":
                backend._spare = backend._blank(backend._end_work)
                backend._spare.ask("ping", timeout_s=300.0)  # it has loaded what it loads beforehand
            detector = served(backend, f"{kind}{number}")
            seen.append(timed(lambda detector=detector: [detector.predict([picture]) for _ in range(2)]))  # type: ignore[misc]
            detector.close()
    a, b = statistics.median(cold), statistics.median(spare)
    print(f"standby cold {a:.2f} s   from a spare {b:.2f} s ({b / a:.2f} of it)   to reach: {LIMIT_S:g} s warm, on a GPU")


def main(count: int) -> None:
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        backend = backend_in(Path(folder))
        try:
            frames(backend, count)
            standbys(backend)
        finally:
            backend.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
