"""A pool in virtual time: the real queue, policies and lanes; cameras and models that a test scripts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from edge.clock import FakeClock
from edge.gpu.lanes import LaneBackend
from edge.gpu.pooled import PooledBackend
from edge.pool.asides import Asides
from edge.pool.batch_times import SIZES
from edge.pool.front import PoolFront
from edge.pool.pool import Pool
from edge.pool.turn import Turn, taken
from models.detector import Detector
from models.fake import FakeDetector
from scheduler.orloj.registry import make_batch_policy
from scheduler.orloj.types import ModelCost
from scheduler.types import Detections


def picture(number: int) -> np.ndarray:
    """A picture that its answer can be known by."""
    return np.full((4, 4, 3), number % 256, np.uint8)


def seen(found: Detections) -> int:
    """The number of the picture that an answer is about."""
    return int(found.xyxy[0, 0])


def answer(number: int, *, score: float = 0.9) -> Detections:
    return Detections(
        xyxy=np.array([[number, 0, number + 1, 1]], np.float32),
        score=np.array([score], np.float32),
        class_id=np.zeros(1, np.int64),
    )


class Beside:
    """Threads that are in a model and its clones. most: at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def enter(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def leave(self) -> None:
        with self._lock:
            self.now -= 1


class TimedModel(FakeDetector):
    """Answers with the picture's number after `c0_s` + `each_s` per picture of compute. on: picture number -> what happens instead
    of its answer (an exception to raise, a Detections, anything that is none)."""

    def __init__(
        self, clock: FakeClock, *, each_s: float = 0.02, c0_s: float = 0.0, skill: float = 0.5, arch: str = "fake"
    ) -> None:
        super().__init__(skill=skill, arch=arch)
        self.clock, self.each_s, self.c0_s = clock, each_s, c0_s
        self.on: dict[int, object] = {}
        self.batches: list[list[int]] = []
        self.beside = Beside()  # shared by its clones
        self.closed = False
        self._busy = False

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, **_: object) -> list[Detections]:  # type: ignore[override]
        numbers = [int(image[0, 0, 0]) for image in images]
        assert not self._busy, "a detector is for one thread at a time"
        self.batches.append(numbers)
        self._busy = True
        self.beside.enter()
        self.clock.work(self.c0_s + self.each_s * len(images))
        self.beside.leave()
        self._busy = False
        found = []
        for number in numbers:
            scripted = self.on.get(number, answer(number))
            if isinstance(scripted, Exception):
                raise scripted
            if callable(scripted):
                scripted = scripted()
            found.append(scripted)
        return found  # type: ignore[return-value]

    def clone(self) -> TimedModel:
        """Another that writes into the same lists."""
        other = TimedModel(
            self.clock, each_s=self.each_s, c0_s=self.c0_s, skill=float(self.state()["skill"]), arch=self.spec.arch
        )
        other.on, other.batches, other.beside = self.on, self.batches, self.beside
        return other

    def close(self) -> None:
        self.closed = True


class PoolBench:
    """policy: a name of `scheduler.orloj.registry`. workers: of the pool. batches: the policy makes them from the beginning, before
    it is known whether they pay."""

    def __init__(
        self, policy: str = "fifo", *, capacity_pct: int = 100, asides: Asides | None = None, hangs_s: float = 10.0,
        workers: int = 1, batches: bool = True,
    ) -> None:  # fmt: skip
        self.batches = batches
        self.clock = FakeClock(start_s=100.0)
        self.inside = LaneBackend(capacity_pct=capacity_pct, clock=self.clock)
        self.backend = PooledBackend(self.inside, clock=self.clock, workers=workers)
        self.pool = Pool(
            make_batch_policy(policy), self.backend, self.clock, hangs_s=hangs_s, asides=asides or Asides(frac=0.0),
            start=self.clock.spawn,
        )  # fmt: skip
        self.shares: dict[str, float] = {}

    def front(self, model: Detector, camera: str, *, share_pct: float | None = 50.0) -> PoolFront:
        job = f"{camera}/infer"
        if share_pct is not None:
            if job not in self.shares:
                self.backend.open_lane(job, role="infer")
            self.shares[job] = share_pct
            self.backend.set_shares(self.shares)
        front = PoolFront(self.pool, model, app=camera, job=job, make=lambda trained, _: trained)
        if self.batches and not front._model.times.typical_s():
            self.pool._policy.add_model(front._model.name, ModelCost(sizes=SIZES))
        return front

    def ask(
        self, front: PoolFront, numbers: Sequence[int], results: list[object], *, within_s: float = 1.0, turn: Turn | None = None,
        score_min: float = 0.25,
    ) -> None:  # fmt: skip
        """Asks in a thread of its own; what came of it (numbers seen, or the exception) is appended to `results`."""
        turn = turn or Turn(deadline_s=self.clock.monotonic_s() + within_s)

        def body() -> None:
            try:
                with taken(turn):
                    found = front.predict([picture(n) for n in numbers], score_min=score_min)
                results.append([seen(one) for one in found])
            except Exception as error:
                results.append(error)

        self.clock.spawn(body)

    def spawn_camera(
        self, front: PoolFront, *, every_s: float, frames: int, goal_s: float, told: Callable[[float], None]
    ) -> None:
        """A camera that hands in a frame every `every_s`; told: lag of each answer (infinite: given up)."""

        def body() -> None:
            start_s = self.clock.monotonic_s()
            for n in range(frames):
                due_s = start_s + n * every_s
                if due_s > self.clock.monotonic_s():
                    self.clock.sleep(due_s - self.clock.monotonic_s())
                try:
                    with taken(Turn(deadline_s=due_s + goal_s, next_s=due_s + every_s)):
                        front.predict([picture(n)])
                    told(self.clock.monotonic_s() - due_s)
                except Exception:
                    told(float("inf"))

        self.clock.spawn(body)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + seconds)

    def end(self) -> None:
        """Every thread comes home."""
        self.pool.close()
        self.backend.close()
        self.pass_time(100.0)  # what cameras still had to hand in is refused at once
        self.clock.join()
