"""The same cameras on a quiet machine in virtual time, answered by each one's own thread or through the queue: real workers, lanes,
shares and policies; only the time that a picture takes is made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.finish import Finished
from edge.gpu.base import ComputeBackend, ShareReport
from edge.gpu.lanes import LaneBackend
from edge.gpu.pooled import PooledBackend
from edge.inference import InferenceWorker
from edge.pool.asides import Asides
from edge.pool.front import PoolFront
from edge.pool.pool import Pool
from models.detector import Detector
from models.fake import FakeDetector
from scheduler.orloj.registry import make_batch_policy
from scheduler.types import Detections, Frame, KnobProfile
from tests.support.fakes import StillCamera


@dataclass(frozen=True, kw_only=True)
class Load:
    """fps of each camera; goal_s: from capture to answer; quick_s, slow_s, slow_frac: what a picture takes alone, and how often it is a
    slow one; c0_s: fixed part of a batch beside its pictures; share_pct: of each camera; train_pct: what a retraining gets beside them
    (0: none), in pieces of train_piece_s. cores: for all shares together, and as many workers has the queue."""

    cameras: int = 4
    fps: float = 5.0
    goal_s: float = 0.4
    quick_s: float = 0.01
    slow_s: float = 0.05
    slow_frac: float = 0.3
    c0_s: float = 0.0
    share_pct: float = 12.0
    train_pct: float = 40.0
    train_piece_s: float = 0.02
    cores: int = 1


#: Loads that the bench shows. Pictures of a camera take 11 % of a core on average.
LOADS: dict[str, Load] = {
    "4 cameras, 15 % each": Load(share_pct=15.0),
    "4 cameras, 11 % each": Load(share_pct=11.0),
    "4 cameras, 9 % each": Load(share_pct=9.0),
    "4 cameras, 15 % each, deadline 200 ms": Load(share_pct=15.0, goal_s=0.2),
    "4 cameras, 11 % each, batches save 8 ms a picture": Load(share_pct=11.0, c0_s=0.008),
    "8 cameras, 6.5 % each, batches save 8 ms a picture": Load(cameras=8, share_pct=6.5, c0_s=0.008, train_pct=30.0),
    "12 cameras, 11 % each, two cores": Load(cameras=12, share_pct=11.0, cores=2),
    "12 cameras, 9 % each, two cores": Load(cameras=12, share_pct=9.0, cores=2),
}


class ClockCamera(StillCamera):
    """A frame every 1/fps of virtual time, from `offset_s` on; the first pixel of its picture says how hard it is (0 or 1)."""

    def __init__(self, id: str, clock: FakeClock, load: Load, offset_s: float, seed: int) -> None:
        super().__init__(id)
        self._clock, self._load, self._offset_s = clock, load, offset_s
        self._slow = np.random.default_rng(seed).random(100_000) < load.slow_frac

    def next_frame(self, *, after_seq: int, timeout_s: float) -> Frame | None:
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            now_s = self._clock.monotonic_s()
            seq = int((now_s - self._offset_s) * self._load.fps + 1e-6)
            if seq > after_seq:
                image = np.full((2, 2, 3), int(self._slow[seq]), np.uint8)
                at_s = self._offset_s + seq / self._load.fps
                return Frame(stream=self.id, seq=seq, captured_s=at_s, captured_utc=at_s, image=image)
            next_s = self._offset_s + (max(seq, after_seq) + 1) / self._load.fps
            if now_s >= until_s:
                return None
            self._clock.sleep(min(next_s, until_s) - now_s)


class ContentModel(FakeDetector):
    """Takes as long as its pictures are hard: a batch c0 + size * its longest."""

    def __init__(self, clock: FakeClock, load: Load) -> None:
        super().__init__(skill=1.0)
        self._clock, self._load = clock, load

    def clone(self) -> ContentModel:
        return ContentModel(self._clock, self._load)

    def predict(self, images: Sequence[np.ndarray], **_: object) -> list[Detections]:  # type: ignore[override]
        alone_s = [self._load.slow_s if image[0, 0, 0] else self._load.quick_s for image in images]
        fixed_s = self._load.c0_s
        self._clock.work(fixed_s + len(images) * max(max(alone_s) - fixed_s, 0.0))
        return [Detections.empty() for _ in images]


@dataclass(frozen=True, kw_only=True)
class Raced:
    """What came of it. finished: by camera; shares: of every job, over the last 50 s."""

    finished: dict[str, Finished]
    shares: dict[str, ShareReport]

    @property
    def frac(self) -> float:
        return sum(f.in_time for f in self.finished.values()) / sum(f.due for f in self.finished.values())


def race(way: str, load: Load, *, seconds: float = 120.0, seed: int = 1) -> Raced:
    """way: `own`, or a policy of `scheduler.orloj.registry`. The first 20 s are not counted."""
    clock = FakeClock(start_s=100.0)
    backend: ComputeBackend = LaneBackend(capacity_pct=100 * load.cores, clock=clock)
    pool = None
    if way != "own":
        wrapped = PooledBackend(backend, clock=clock, workers=load.cores)
        pool, backend = Pool(make_batch_policy(way), wrapped, clock, asides=Asides(), start=clock.spawn), wrapped
    workers = {}
    for n in range(load.cameras):
        id = f"cam{n}"
        camera = ClockCamera(id, clock, load, 100.0 + 0.037 * n, seed * 100 + n)
        lane = backend.open_lane(f"{id}/infer", role="infer")
        model: Detector = ContentModel(clock, load)
        if pool is not None:
            model = PoolFront(pool, model, app=id, job=f"{id}/infer", make=lambda trained, _: trained)
        worker = InferenceWorker(camera, lane, model, f"{id}-1", clock=clock, score_min=0.25, goal_s=load.goal_s)
        worker.set_knobs(KnobProfile(name="k", demand_pct=load.share_pct, quality_frac=1.0, fps=load.fps))
        workers[id] = worker
    shares = {f"{id}/infer": load.share_pct for id in workers}
    if load.train_pct:
        train = backend.open_lane("cam0/train")
        shares["cam0/train"] = load.train_pct
        clock.spawn(lambda: _trains(train, clock, load))
    backend.set_shares(shares)
    for worker in workers.values():
        clock.spawn(lambda worker=worker: _watches(worker, clock))  # type: ignore[misc]
    clock.advance_to(120.0)
    for worker in workers.values():
        worker.finish.close_window()
    clock.advance_to(120.0 + seconds)
    raced = Raced(finished={id: w.finish.close_window() for id, w in workers.items()}, shares=backend.report(50.0))
    for job in shares:
        backend.cancel(job)
    if pool is not None:
        pool.close()
    clock.advance_to(200.0 + seconds)
    clock.join()
    return raced


def _watches(worker: InferenceWorker, clock: FakeClock) -> None:
    try:
        while True:
            rest_s = worker.step()
            if rest_s > 0:
                clock.sleep(rest_s)
    except JobCancelled:
        return


def _trains(lane, clock: FakeClock, load: Load) -> None:  # type: ignore[no-untyped-def]
    try:
        while True:
            with lane.iteration():
                clock.work(load.train_piece_s)
    except JobCancelled:
        return
