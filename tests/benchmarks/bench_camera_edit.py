"""Cameras added, edited and removed on a box that runs: frames that its other cameras lose meanwhile.

The box is the real one (`edge.wiring.box.built`) with rendered cameras over RTSP and its real models. One camera comes, is changed in
every way (name and zones, masks, rate, another address, another model), stops to learn, is switched off and on, and goes, again and
again. For the others every frame that was decoded counts: one that is not analysed is lost. Beside it stand as many seconds without an
edit, because frames are also late where nothing is changed. Anchor: Frigate reads its configuration at a start, which takes all
cameras away for 10 to 20 s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import save_file

from configs.load import parse_config
from edge.inference import InferenceWorker, Shown
from edge.live_control import LiveControl
from edge.wiring.box import Box, built
from models.serving.served import ServedDetector
from models.zoo import load_detector

ANCHOR = "Frigate: all cameras stop for 10-20 s (50-100 frames each at 5 frames/s)"
FPS = 5.0
WAIT_S = 120.0
#: How long after an edit the others are watched.
AFTER_S = 2.0
ALONE = "nothing, in between"
SCENES = ("street", "yard", "hall")


@dataclass(kw_only=True)
class Heard:
    """What a camera's worker has shown: (number of the decoded frame, when it was shown)."""

    frames: list[tuple[int, float]] = field(default_factory=list)

    def hear(self, shown: Shown) -> None:
        self.frames.append((shown.frame.seq, time.monotonic()))

    def between(self, begin_s: float, end_s: float) -> tuple[int, int, float]:
        """(frames shown, frames lost, longest gap in seconds) in a span; a loss counts where the frame after it was shown."""
        shown = lost = 0
        longest_s = 0.0
        for (seq, at_s), (next_seq, next_s) in zip(self.frames, self.frames[1:], strict=False):
            if begin_s < next_s <= end_s:
                shown += 1
                lost += next_seq - seq - 1
                longest_s = max(longest_s, next_s - at_s)
        return shown, lost, longest_s


Edit = tuple[str, Callable[[LiveControl], object]]


def edits(model: Path) -> list[Edit]:
    url = "rendered:hall?seed=21&fps=5"
    zone = [[0.1, 0.1], [0.9, 0.1], [0.9, 0.9]]
    return [
        ("add", lambda c: c.add({"id": "new", "name": "New", "url": url, "fps": FPS}, by="bench")),
        ("name and zones", lambda c: c.change("new", {"name": "Newer", "zones": {"door": zone}}, by="bench")),
        ("masks", lambda c: c.change("new", {"masks": [zone]}, by="bench")),
        ("rate", lambda c: c.change("new", {"fps": 3.0}, by="bench")),
        ("learning off", lambda c: c.do("camera/learning", {"camera": "new", "on": False}, by="bench")),
        ("another address", lambda c: c.change("new", {"url": "rendered:hall?seed=22&fps=5"}, by="bench")),
        ("another model", lambda c: c.change("new", {"edge": str(model)}, by="bench")),
        ("off", lambda c: c.do("camera/watch", {"camera": "new", "on": False}, by="bench")),
        ("on", lambda c: c.do("camera/watch", {"camera": "new", "on": True}, by="bench")),
        ("remove", lambda c: c.remove("new", by="bench")),
    ]


def config_text(data_dir: Path, cameras: int, serving: str, form: str) -> str:
    lines = [
        f'  - {{id: cam{n}, url: "rendered:{SCENES[n % len(SCENES)]}?seed={n + 1}&fps={FPS:g}", fps: {FPS:g}}}'
        for n in range(cameras)
    ]
    return "\n".join(
        [f"box: {{data_dir: {data_dir}}}", "web: {enabled: false}", "window: {seconds: 3600, first_seconds: 3600}",
         f"scheduler: {{serving: {serving}}}", f"models: {{serving: {form}}}", "cameras:", *lines]
    )  # fmt: skip


def wait(condition: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    until_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until_s:
            raise SystemExit(f"not within {limit_s:g} s: {what}")
        time.sleep(0.05)


def other_model(path: Path) -> Path:
    """Weights like those of the usual model, in a file of their own."""
    detector = load_detector("tinydet-edge")
    save_file({k: v.contiguous() for k, v in detector.state().items()}, path, metadata={"arch": detector.spec.arch})
    return path


def measure(box: Box, rounds: int, model: Path) -> None:
    runtime = box.runtime
    control = LiveControl(runtime, box.book, box.maker, data_dir=box.folder.root)
    loop = threading.Thread(target=lambda: asyncio.run(runtime.run(box.watched, box.first_window)), name="box-loop")
    loop.start()
    try:
        wait(lambda: len(runtime.watched) == len(box.watched) and runtime.ready, "the box is ready")
        others = {id: heard_of(runtime.watched[id].worker) for id in runtime.watched}
        time.sleep(5.0)
        spans: dict[str, list[tuple[float, float]]] = {ALONE: []}
        for _ in range(rounds):
            for name, edit in edits(model):
                begin_s = time.monotonic()
                edit(control)
                took_s = time.monotonic() - begin_s
                time.sleep(AFTER_S)
                end_s = time.monotonic()
                spans.setdefault(name, []).append((begin_s, end_s))
                spans.setdefault(f"{name} took", []).append((0.0, took_s))
                # As long without an edit: what else the machine does changes from minute to minute.
                time.sleep(end_s - begin_s)
                spans[ALONE].append((end_s, time.monotonic()))
        time.sleep(1.0)
    finally:
        runtime.stop()
        loop.join()
    report(others, spans, rounds)


def joins(box: Box, rounds: int) -> None:
    """A camera joins and stays until its served form is there, which is made anew each time; as long without follows."""
    runtime = box.runtime
    control = LiveControl(runtime, box.book, box.maker, data_dir=box.folder.root)
    loop = threading.Thread(target=lambda: asyncio.run(runtime.run(box.watched, box.first_window)), name="box-loop")
    loop.start()
    try:
        wait(lambda: len(runtime.watched) == len(box.watched) and runtime.ready, "the box is ready")
        others = {id: heard_of(runtime.watched[id].worker) for id in runtime.watched}
        wait(lambda: all(form_of(box, id) for id in others), "all cameras have their form", 600.0)
        time.sleep(5.0)
        spans: dict[str, list[tuple[float, float]]] = {ALONE: []}
        for number in range(rounds):
            shutil.rmtree(box.folder.root / "forms", ignore_errors=True)
            begin_s = time.monotonic()
            control.add(
                {"id": "new", "name": "New", "url": f"rendered:hall?seed={30 + number}&fps=10", "fps": 10.0}, by="bench"
            )
            wait(lambda: bool(form_of(box, "new")), "the camera that joined has its form", 600.0)
            time.sleep(AFTER_S)
            end_s = time.monotonic()
            print(f"join {number + 1}: {form_of(box, 'new')} after {end_s - AFTER_S - begin_s:.1f} s")
            spans.setdefault("join, until its form serves", []).append((begin_s, end_s))
            spans.setdefault("join, until its form serves took", []).append((0.0, end_s - AFTER_S - begin_s))
            control.remove("new", by="bench")
            time.sleep(AFTER_S)
            alone_s = time.monotonic()
            time.sleep(end_s - begin_s)
            spans[ALONE].append((alone_s, time.monotonic()))
    finally:
        runtime.stop()
        loop.join()
    report(others, spans, rounds)


def heard_of(worker: InferenceWorker) -> Heard:
    """Everything that the worker shows from now on."""
    heard, inside = Heard(), worker.on_shown

    def both(shown: Shown) -> None:
        heard.hear(shown)
        inside(shown)

    worker.on_shown = both
    return heard


def form_of(box: Box, camera: str) -> str:
    """What serves a camera, once that is settled; '' while it is not."""
    _, detector = box.runtime.watched[camera].worker.serving()
    current = getattr(detector, "current", detector)
    if isinstance(current, ServedDetector):
        return current.runtime.name
    return "trained" if any(note.code == "serving" and note.stream == camera for note in box.store.notes()) else ""


def report(others: dict[str, Heard], spans: dict[str, list[tuple[float, float]]], rounds: int) -> None:
    print(f"{len(others)} other cameras at {FPS:g} frames/s, {rounds} rounds\n")
    print(f"{'edit of one camera':<30}{'took s':>8}{'frames of the others':>22}{'lost':>6}{'longest gap, intervals':>24}")
    lost_by_edits = shown_by_edits = 0
    for name in [name for name in spans if not name.endswith(" took")]:
        found = [heard.between(*span) for heard in others.values() for span in spans[name]]
        shown, lost, gap_s = sum(f[0] for f in found), sum(f[1] for f in found), max(f[2] for f in found)
        took = statistics.median(s for _, s in spans[f"{name} took"]) if f"{name} took" in spans else 0.0
        print(f"{name:<30}{took:>8.2f}{shown:>22}{lost:>6}{gap_s * FPS:>24.1f}")
        if f"{name} took" in spans:
            lost_by_edits, shown_by_edits = lost_by_edits + lost, shown_by_edits + shown
    alone = [heard.between(*span) for heard in others.values() for span in spans[ALONE]]
    beside = f"{sum(f[1] for f in alone)} of {sum(f[0] + f[1] for f in alone)}"
    print(f"\nframes lost by the other cameras: {lost_by_edits} of {lost_by_edits + shown_by_edits}; to reach: 0")
    print(f"as long without any edit: {beside}; load of the machine over the last minute: {os.getloadavg()[0]:.1f}")
    print(f"anchor: {ANCHOR}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cameras", type=int, default=3, help="cameras beside the edited one")
    parser.add_argument("--rounds", type=int, default=3, help="how often every edit is made")
    parser.add_argument("--serving", default="own", help="scheduler.serving: own, orloj, ...")
    parser.add_argument(
        "--form", default="trained", help="models.serving; auto: forms are also made meanwhile, for all cameras"
    )
    parser.add_argument(
        "--joins", type=int, default=0, help="instead: so many times a camera joins and gets its served form (--form auto)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config(config_text(Path(folder) / "data", given.cameras, given.serving, given.form))
        with built(config, say=lambda text: None) as box:
            if given.joins:
                joins(box, given.joins)
            else:
                measure(box, given.rounds, other_model(Path(folder) / "other.safetensors"))


if __name__ == "__main__":
    main()
