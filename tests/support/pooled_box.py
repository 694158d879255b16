"""A whole box in this process (`tests.support.live_box`) whose live frames go through the pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.clock import Clock
from edge.finish import FinishBook
from edge.gpu.lanes import LaneBackend
from edge.gpu.pooled import PooledBackend
from edge.pool.pool import Pool
from edge.runtime import Watched, trained_form
from edge.wiring.compute import serve_in_pool
from models.detector import Detector
from scheduler.orloj.registry import make_batch_policy
from tests.support.live_box import CONFIG, LiveBox


class PooledBox(LiveBox):
    """policy: a name of `scheduler.orloj.registry`. make: (a model as trained, its camera) -> the form that is loaded; may be exchanged.
    goal_s: from capture to answer, on a quick machine. workers: of the pool."""

    def __init__(
        self, root: Path, cameras: dict[str, str], *, policy: str = "orloj", goal_s: float = 2.0, workers: int = 1,
        **options: Any,
    ) -> None:  # fmt: skip
        self.make: Callable[[Detector, str], Detector] = trained_form
        self._goal_s = goal_s
        capacity_pct = options.get("config", CONFIG).capacity_pct
        self._policy = policy

        def backend(clock: Clock) -> PooledBackend:
            wrapped = PooledBackend(LaneBackend(capacity_pct=capacity_pct, clock=clock), clock=clock, workers=workers)
            self.pool = Pool(make_batch_policy(policy), wrapped, clock)
            return wrapped

        super().__init__(root, cameras, backend=backend, **options)

    def _watch(self, id: str, arch: str, cost_s: float) -> Watched:
        def serve(trained: Detector, camera: str) -> Detector:
            return serve_in_pool(self.pool, lambda model, id: self.make(model, id), trained, camera)

        self._serve = self.runtime.parts.serve = self.runtime.parts.serve_later = serve
        watched = super()._watch(id, arch, cost_s)
        watched.worker.finish = FinishBook(self._goal_s * self.slower)
        return watched

    def __exit__(self, *words: object) -> None:
        super().__exit__(*words)
        self.pool.close()
        self.backend.close()
