"""The backend `mps` with real processes on the CPU and the stand-in for NVIDIA's control program: what its tests begin with."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.gpu.base import Lane
from edge.gpu.mps import MpsBackend
from edge.gpu.mps_daemon import MpsDaemon
from edge.gpu.remote import RemoteDetector, WorkerProcess
from edge.gpu.worker import ModelFile
from edge.inference import InferenceWorker
from edge.shadow import ShadowRules
from edge.swapping import Swapper
from models.detector import Detector
from scheduler.salus.types import MemoryNeed
from scheduler.types import Frame
from tests.support import remote_models as rm
from tests.support.fakes import StillCamera

WAIT_S = 60.0
FAKE = (sys.executable, "-m", "edge.gpu.fake_mps")


class Bench:
    """A backend whose processes are real clients of the stand-in."""

    def __init__(self, folder: Path, *, spare: bool = False, **settings: Any) -> None:
        self.folder = folder
        self.daemon = MpsDaemon(folder / "d", gpu="GPU-fake", owner="box", control=FAKE, answer_s=WAIT_S, ready_s=WAIT_S)
        self.made: list[WorkerProcess] = []
        self.places: dict[str, Place] = {}
        self.fail_next = False
        self.backend = MpsBackend(
            "GPU-fake", data_dir=folder / "data", memory_mib=10_000.0, daemon=self.daemon, blank=self.blank, device="cpu",
            client="tests.support.remote_models:client", beat_s=3600.0, spare=spare, builder="tests.support.remote_models:build",
            **settings,
        )  # fmt: skip

    def blank(self, before_kill: Callable[[int], object]) -> WorkerProcess:
        worker = rm.blank(before_kill)
        self.made.append(worker)
        if self.fail_next:
            worker.kill(at_work=False)
        return worker

    def serve(self, job: str, share_pct: float, need: MemoryNeed | None = None) -> tuple[RemoteDetector, Lane]:
        lane = self.backend.open_lane(job, role="infer", need=need)
        self.share(**{job: share_pct})
        model = rm.Rehearsing()
        return self.backend.serve(model, job, builder="tests.support.remote_models:build"), lane  # type: ignore[arg-type]

    def share(self, **shares: float) -> None:
        self.backend.set_shares(self.backend._shares | shares)

    def pcts(self) -> dict[int, float]:
        """Percentage of each client, as the daemon knows it."""
        rows = [line.split() for line in self.daemon.ask("ps").splitlines()[1:]]
        return {int(pid): float(pct) for pid, pct, *_ in rows}


def keep_gain(detector: rm.Rehearsing, path: Path, *, builder: str = "tests.support.remote_models:build") -> ModelFile:
    """Without torch, as the processes are."""
    return replace(rm.model_file(path, detector.gain), builder=builder)


def until(true: Callable[[], bool], within_s: float = WAIT_S) -> bool:
    end_s = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def frames(detector: RemoteDetector, lane: Lane, number: int, what: int = 0) -> None:
    for level in range(number):
        with lane.iteration():
            found = detector.predict([rm.picture(what, level=level)])[0]
        assert len(found) == level % 3


class Place:
    """A camera served by a process of a job, with the box's own worker and swapper, which know nothing of processes."""

    def __init__(self, bench: Bench, share_pct: float, name: str = "cam1") -> None:
        self.bench, self.name, self.camera, self.seq = bench, name, StillCamera(name), 0
        self.first, lane = bench.serve(f"{name}/infer", share_pct)
        clock = bench.backend.remote_clock
        self.worker = InferenceWorker(self.camera, lane, self.first, f"{name}-000001", clock=clock, score_min=0.25)
        nothing: Any = None
        self.swapper = Swapper(
            shelf=nothing, store=nothing, clock=clock, serve=nothing, serve_later=nothing, rules=ShadowRules(frames=0)
        )
        bench.places[f"{name}/infer"] = self
        bench.backend.hand_over = lambda job, make: bench.places[job].hand_over(make)

    def hand_over(self, make: Callable[[Detector], Detector]) -> None:
        self.swapper.hand_over(self.worker, self.name, make)

    def frame(self, level: int = 4) -> float:
        """One frame, which must be shown; how wide its box is."""
        self.seq += 1
        image = rm.picture(level=level)
        self.camera.newest = Frame(stream=self.name, seq=self.seq, captured_s=time.monotonic(), captured_utc=0.0, image=image)
        self.worker.step()
        shown = self.worker.shown()
        assert shown is not None
        assert shown.frame.seq == self.seq, "no frame is missed"
        return float(shown.detections.xyxy[0, 2])

    def serving(self) -> RemoteDetector:
        found = self.worker.serving()[1]
        assert isinstance(found, RemoteDetector)
        return found

    def frames_until(self, true: Callable[[], bool], within_s: float = WAIT_S) -> None:
        end_s = time.monotonic() + within_s
        while not true():
            self.frame()
            assert time.monotonic() < end_s
