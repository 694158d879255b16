"""The Live page with eight cameras: time until it can be used, and what each viewer costs the box.

Run: python tests/benchmarks/bench_page.py [SECONDS]

The server is a process of its own with the box's real WebServer and eight cameras of 640x360 whose frames change five times a second and
are encoded as a box encodes them; nothing else runs in it, so its CPU time is what the viewers cost. The browser is Chromium on the same
machine, so on two cores it takes time from the server. Each viewer is a browser context of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from edge.live_pictures import LivePictures  # noqa: E402
from edge.status import BoxStatus, CameraView, QualityPoint  # noqa: E402
from edge.web.fake import EPOCH_UTC, FakeSource  # noqa: E402

CAMERAS, FPS = 8, 5.0
READY_TO_REACH_S, VIEWER_TO_REACH_PCT = 1.5, 10.0
VISITS = 7
TICKS_PER_S = 100.0
READY = "() => document.querySelectorAll('.tile .state.live').length === 8 && document.querySelectorAll('#nav a').length > 5"
A_PICTURE = "() => [...document.querySelectorAll('.tile img')].some(i => i.naturalWidth > 0)"


class EightCameras(FakeSource):
    """Eight live cameras over `FakeSource`'s box."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(7)
        self._pictures = LivePictures()
        self._scenes = [_scene(rng) for _ in range(CAMERAS)]
        self._last: dict[str, tuple[int, Any]] = {}

    def status(self) -> BoxStatus:
        frame = _frame_now()
        cameras = tuple(self._live(number, frame) for number in range(CAMERAS))
        return super().status().model_copy(update={"cameras": cameras})

    def picture(self, camera_id: str, *, width_px: int = 0, boxes: bool = True) -> bytes | None:
        frame = _frame_now()
        known = self._last.get(camera_id)
        if known is None or known[0] != frame:
            known = self._last[camera_id] = (frame, _shown(self._scenes[int(camera_id[1:])], frame))
        return self._pictures.jpeg(camera_id, known[1], width_px=width_px, boxes=boxes)

    def _live(self, number: int, frame: int) -> CameraView:
        points = tuple(
            QualityPoint(at_utc=EPOCH_UTC + 200 * k, f1=0.5 + 0.002 * k, version=f"c{number}-{k // 9}") for k in range(200)
        )
        return CameraView(
            id=f"c{number}", name=f"Camera {number}", state="live", width_px=640, height_px=360, camera_fps=15, analysed_fps=FPS,
            wanted_fps=FPS, knobs="full", objects=5, frames_analysed=frame, quality=0.9, quality_history=points,
            model=f"c{number}-22", activity="inference",
        )  # fmt: skip


def _frame_now() -> int:
    return int(time.monotonic() * FPS)


def _scene(rng: np.random.Generator) -> np.ndarray:
    """A picture about as hard to encode as a street: smooth areas, edges, noise."""
    rows, columns = np.mgrid[0:360, 0:640]
    smooth = np.stack([rows * 0.4, columns * 0.25, (rows + columns) * 0.2], axis=-1)
    blocks = np.kron(rng.integers(0, 90, (18, 32, 3)), np.ones((20, 20, 1)))
    return np.clip(smooth + blocks + rng.normal(0, 5, (360, 640, 3)), 0, 255).astype(np.uint8)


def _shown(scene: np.ndarray, frame: int) -> Any:
    from edge.inference import Shown
    from scheduler.types import Detections, Frame

    left = 20.0 + frame % 60
    boxes = np.array([[left + 90 * k, 100, left + 90 * k + 40, 200] for k in range(5)], np.float32)
    found = Detections(xyxy=boxes, score=np.full(5, 0.8, np.float32), class_id=np.zeros(5, np.int64))
    image = np.roll(scene, frame % 640, axis=1)
    return Shown(
        frame=Frame(stream="c", seq=frame, captured_s=0.0, captured_utc=0.0, image=image),
        detections=found, version="v", cost_s=0.0, lag_s=0.0,
    )  # fmt: skip


def serve() -> None:
    """Child process: prints its address, serves until it is killed."""
    from edge.web.serve import WebServer

    with WebServer(EightCameras(), host="127.0.0.1", port=0) as server:
        print(server.url, flush=True)
        while True:
            time.sleep(60)


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """(address, process id) of a server in a process of its own."""
    child = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip(), child.pid
    finally:
        child.kill()
        child.wait()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def spent_pct(pid: int, seconds: float, page: Any) -> float:
    """Percent of a core that the server takes over so many seconds, while the browser goes on."""
    before, begun = cpu_s(pid), time.monotonic()
    page.wait_for_timeout(1000 * seconds)
    return 100.0 * (cpu_s(pid) - before) / (time.monotonic() - begun)


def time_to_interactive_s(browser: Any, url: str) -> tuple[float, float]:
    """From the first request until the tiles of all cameras and the navigation can be used, and until a picture is there."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(url, wait_until="commit")
    page.wait_for_function(READY, polling="raf")
    ready_s = page.evaluate("performance.now()") / 1000
    page.wait_for_function(A_PICTURE, polling="raf")
    picture_s = page.evaluate("performance.now()") / 1000
    page.close()
    return ready_s, picture_s


def main(seconds: float) -> None:
    from tests.support.visits import launched_browser

    with served() as (url, pid), launched_browser() as browser:
        times = [time_to_interactive_s(browser, url) for _ in range(VISITS)]
        pages, costs = [], []
        idle = spent_pct(pid, 3.0, browser.new_page())
        for _ in range(3):
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.goto(url)
            page.wait_for_function(READY)
            pages.append(page)
            page.wait_for_timeout(2000)
            costs.append(spent_pct(pid, seconds, page))
    report(times, idle, costs)


def report(times: list[tuple[float, float]], idle: float, costs: list[float]) -> None:
    ready = [ready_s for ready_s, _ in times]
    each = [now - before for before, now in zip([idle, *costs], costs, strict=False)]
    print(f"the Live page with {CAMERAS} cameras at {FPS:g} frames/s, server and browser on the same machine\n")
    print(f"{'what':58} {'measured':>22}  to reach")
    print(
        f"{f'interactive, median of {VISITS} visits (slowest)':58} {f'{statistics.median(ready):.2f} s ({max(ready):.2f} s)':>22}"
        f"  <= {READY_TO_REACH_S} s"
    )
    print(f"{'first picture shown, median':58} {f'{statistics.median(p for _, p in times):.2f} s':>22}  -")
    print(f"{'server without viewers, % of a core':58} {idle:22.1f}  -")
    for number, (total, more) in enumerate(zip(costs, each, strict=True), 1):
        print(
            f"{f'viewer {number}: % of a core more (all viewers)':58} {f'{more:.1f} ({total:.1f})':>22}  <= {VIEWER_TO_REACH_PCT:g}"
        )


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 15.0)
