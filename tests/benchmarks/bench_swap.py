"""1,000 model swaps on a box that runs, and rollbacks by command: missed frame intervals, gaps, memory, time to go back.

The box is the real one (`edge.wiring.box`) with one rendered camera over RTSP and no retraining. Each swap is what a SwapModel of the
engine does: read the version from disk, verify, build, warm, admit it durably, exchange between two frames; the models take turns.
Beside it stands the same camera without swaps, because frames also come late where nothing is swapped. A rollback is what `driftbox
models rollback` does, from the moment the command begins to the first frame of the other model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import DriftboxError
from configs.load import load_config
from edge.inference import InferenceWorker, SwapRecord
from edge.models_admin import rollback
from edge.runtime import BoxRuntime
from edge.wiring.box import built
from scheduler import events as ev
from scheduler.commands import SwapModel
from scheduler.types import RetrainConfig

CAMERA = "one"
#: Swaps before memory is looked at for the first time: pools fill up.
WARM_UP = 50
WAIT_S = 60.0
#: Seconds of the same camera without swaps.
QUIET_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """One model's figures. gaps and intervals in seconds, of all frames while nothing is swapped and while one swap follows the other;
    rss_mib: after every 50th swap."""

    model: str
    fps: float
    swaps: tuple[SwapRecord, ...]
    quiet_gaps_s: tuple[float, ...]
    busy_gaps_s: tuple[float, ...]
    rss_mib: tuple[float, ...]
    swap_s: tuple[float, ...]
    back_s: tuple[float, ...]
    shadow_fps: tuple[float, ...]
    alone_fps: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--fps", type=float, default=5.0, help="of the camera and of its analysis")
    parser.add_argument("--rollbacks", type=int, default=30)
    parser.add_argument("--shadows", type=int, default=5)
    parser.add_argument("--serving", default="trained,auto", help="forms that serve (models.serving), separated by commas")
    parser.add_argument(
        "--models", default="tinydet-edge,yolov8n@320", help="separated by commas; left out where weights are absent"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also written there, for `bench learning`")
    args = parser.parse_args()
    found: list[Numbers] = []
    for model in args.models.split(","):
        for serving in args.serving.split(","):
            try:
                numbers = measure(
                    model, serving, fps=args.fps, swaps=args.swaps, rollbacks=args.rollbacks, shadows=args.shadows
                )
                found.append(numbers)
                report(numbers)
            except DriftboxError as error:
                print(f"{model}: left out: {error}")
    if args.json:
        args.json.write_text(json.dumps([summary(numbers) for numbers in found], indent=1), encoding="utf-8")


def summary(n: Numbers) -> dict[str, Any]:
    """The figures of the learning table. missed: whole frame intervals without a frame, over the exchanges; quiet_missed: the same per
    1,000 gaps while nothing is swapped; late_mib: how much memory the second half of the swaps took (in its first minutes a box grows
    by some MiB without any)."""
    settled = n.rss_mib[WARM_UP // 50 - 1 :]
    return {
        "model": n.model, "swaps": len(n.swaps), "missed": sum(s.missed_frames for s in n.swaps),
        "quiet_missed": 1000 * missed(n.quiet_gaps_s, 1 / n.fps) / max(1, len(n.quiet_gaps_s)),
        "rollback_s": max(n.back_s, default=None), "rss_mib": [settled[0], settled[-1]] if settled else [],
        "late_mib": late_mib(n.rss_mib),
    }  # fmt: skip


def late_mib(rss_mib: Sequence[float]) -> float:
    """By how much a series of readings grew in its second half; NaN: too few."""
    late = rss_mib[len(rss_mib) // 2 :]
    return late[-1] - late[0] if len(late) > 1 else float("nan")


def measure(model: str, serving: str, *, fps: float, swaps: int, rollbacks: int, shadows: int) -> Numbers:
    with tempfile.TemporaryDirectory() as name, running(Path(name), model, serving, fps) as runtime:
        wait(lambda: CAMERA in runtime.watched and runtime.watched[CAMERA].worker.frames > 30, "the camera is analysed")
        worker = runtime.watched[CAMERA].worker
        versions = other_versions(runtime, 3)
        quiet = FrameTimes(worker)
        until_s = time.monotonic() + QUIET_S
        while time.monotonic() < until_s:
            time.sleep(1.0)
            quiet.look()
        alone_fps = worker.rate_fps()
        records, rss, took, busy = [], [], [], FrameTimes(worker)
        for number in range(swaps):
            started_s = time.monotonic()
            records.append(swapped(runtime, versions[number % len(versions)]))
            took.append(time.monotonic() - started_s)
            busy.look()
            if number % 50 == 49:
                rss.append(rss_mib())
        shadow_fps = [shadowed(runtime, versions[number % 2]) for number in range(shadows)]
        swapped(runtime, versions[2])
        back = [went_back(runtime, Path(name) / "data") for _ in range(rollbacks)]
    return Numbers(
        model=f"{model}, serving: {serving}", fps=fps, swaps=tuple(records), quiet_gaps_s=quiet.gaps_s(), busy_gaps_s=busy.gaps_s(),
        rss_mib=tuple(rss), swap_s=tuple(took), back_s=tuple(back), shadow_fps=tuple(shadow_fps), alone_fps=alone_fps,
    )  # fmt: skip


@contextmanager
def running(folder: Path, model: str, serving: str, fps: float) -> Iterator[BoxRuntime]:
    """A box with one camera that never retrains, in a thread of its own."""
    path = folder / "box.yaml"
    path.write_text(
        f"""
box: {{data_dir: {folder / "data"}}}
scheduler: {{policy: no-retrain}}
window: {{seconds: 86400, first_seconds: 86400, sample_fps: 0.01}}
models: {{edge: "{model}", serving: {serving}}}
web: {{enabled: false}}
cameras: [{{id: {CAMERA}, url: "rendered:street?seed=7&fps={fps:.0f}", fps: {fps:.0f}}}]
"""
    )
    with built(load_config(path), say=lambda text: None) as box:
        runtime = box.runtime
        box.media.start(lambda text: None)  # else the events of objects wait in memory for somebody to write them
        thread = threading.Thread(target=lambda: asyncio.run(runtime.run(box.watched, box.first_window)))
        thread.start()
        try:
            yield runtime
        finally:
            runtime.stop()
            thread.join()
            box.media.stop()


def other_versions(runtime: BoxRuntime, count: int) -> list[str]:
    """Stored versions that differ by a little noise."""
    import torch

    serving = runtime.parts.shelf.serving_version(CAMERA).id
    found = []
    for seed in range(count):
        detector = runtime.parts.shelf.detector(serving)
        chance = torch.Generator().manual_seed(seed)
        state = {
            name: t + 1e-4 * torch.randn(t.shape, generator=chance) if t.is_floating_point() and t.ndim > 1 else t
            for name, t in detector.state().items()
        }
        detector.load_state(state)
        config = RetrainConfig(name="noise")
        kept = runtime.parts.shelf.keep_candidate(CAMERA, parent=serving, detector=detector, config=config, window=0)
        found.append(kept.id)
    return found


def swapped(runtime: BoxRuntime, version: str, *, shadow: bool = False) -> SwapRecord:
    """Swaps to a version that is read from disk, and waits for the first frame of it."""
    worker = runtime.watched[CAMERA].worker
    worker._previous = None  # nothing is warm: the next one is read and built
    before = worker.swaps[-1] if worker.swaps else None
    command = SwapModel(stream=CAMERA, version=version, quality=None, reason="bench", shadow=shadow)
    failures: list[BaseException] = []

    def take_over() -> None:
        try:
            runtime.swapper.take_over(worker, command)
        except BaseException as error:
            failures.append(error)

    helper = threading.Thread(target=take_over, name="swap")  # as the runtime does it
    helper.start()
    helper.join()
    if failures:
        raise failures[0]
    runtime.post(lambda at_s: ev.ModelRolledBack(at_s=at_s, stream=CAMERA, version=version))  # the engine did not ask for it
    wait(lambda: bool(worker.swaps) and worker.swaps[-1] is not before, "a frame of the new model")
    return worker.swaps[-1]


def shadowed(runtime: BoxRuntime, version: str) -> float:
    """Frames per second that people see while a model is in the shadow."""
    worker = runtime.watched[CAMERA].worker
    frames, started_s = worker.frames, time.monotonic()
    swapped(runtime, version, shadow=True)
    return (worker.frames - frames) / (time.monotonic() - started_s)


def went_back(runtime: BoxRuntime, data_dir: Path) -> float:
    """Seconds from the command to the first frame of the model that it put back."""
    worker = runtime.watched[CAMERA].worker
    other = runtime.parts.store.replaced(CAMERA)
    started_s = time.monotonic()
    after = rollback(data_dir, CAMERA, other).after
    wait(lambda: shown_version(worker) == after, "a frame of the model before", every_s=0.002)
    taken_s = time.monotonic() - started_s
    time.sleep(0.3)
    return taken_s


def shown_version(worker: InferenceWorker) -> str:
    shown = worker.shown()
    return shown.version if shown else ""


class FrameTimes:
    """When a worker finished its frames, as long as it is looked at often enough."""

    def __init__(self, worker: InferenceWorker) -> None:
        self._worker = worker
        self._times_s: dict[float, None] = {}

    def look(self) -> None:
        with self._worker._lock:
            self._times_s.update(dict.fromkeys(self._worker._times_s))

    def gaps_s(self) -> tuple[float, ...]:
        ordered = sorted(self._times_s)
        return tuple(b - a for a, b in zip(ordered, ordered[1:], strict=False))


def wait(condition: Callable[[], bool], what: str, *, every_s: float = 0.01) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")
        time.sleep(every_s)


def rss_mib() -> float:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def missed(gaps_s: Sequence[float], interval_s: float) -> int:
    return sum(SwapRecord(version="", at_s=0, gap_s=g, interval_s=interval_s).missed_frames for g in gaps_s)


def at(values: Sequence[float], frac: float) -> float:
    return sorted(values)[min(len(values) - 1, int(frac * len(values)))]


def report(n: Numbers) -> None:
    interval_s = 1 / n.fps
    print(f"\n{n.model}, camera and analysis at {n.fps:.0f} frames/s, {len(n.swaps)} swaps, each read from disk and built")
    print("                         gap p50   p99   max  (in intervals)   missed intervals per 1,000 gaps")
    across = [record.gap_s for record in n.swaps]
    for what, gaps in (
        ("without swaps", n.quiet_gaps_s),
        ("while swaps go on", n.busy_gaps_s),
        ("from model to model", across),
    ):
        p50, p99, most = (at(gaps, f) / interval_s for f in (0.5, 0.99, 1.0))
        print(
            f"  {what:<22} {p50:6.2f} {p99:6.2f} {most:6.2f}                    {1000 * missed(gaps, interval_s) / len(gaps):6.1f}"
        )
    middle, most = 1000 * statistics.median(n.swap_s), 1000 * max(n.swap_s)
    print(f"  to prepare a swap: median {middle:.0f} ms, longest {most:.0f} ms (in front of nobody)")
    settled = n.rss_mib[WARM_UP // 50 - 1 :]
    if len(settled) > 1:
        first, last = settled[0], settled[-1]
        swaps = 50 * len(n.rss_mib)
        print(
            f"  memory: {first:.1f} MiB after {WARM_UP} swaps, {last:.1f} MiB after {swaps}, most {max(settled):.1f}; "
            f"{late_mib(n.rss_mib):+.1f} MiB in the second half"
        )
    if n.shadow_fps:
        print(f"  frames/s: {n.alone_fps:.2f} alone, {min(n.shadow_fps):.2f} at least with a shadow of share 0.25 beside it")
    if n.back_s:
        middle, most = statistics.median(n.back_s), max(n.back_s)
        print(f"  rollback by command, to its first frame: median {middle:.3f} s, longest {most:.3f} s (to reach: 1 s)")


if __name__ == "__main__":
    main()
