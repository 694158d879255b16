"""A camera's model that answers through the pool: `predict` goes into the queue, everything else to the model behind it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from configs.errors import JobError
from edge.pool.pool import ASIDE_S, Make, Pool
from edge.pool.turn import Turn, current
from models.detector import Detector, DetectorSpec, ServedBody, YieldPoint
from scheduler.types import Detections

if TYPE_CHECKING:
    import torch


class PoolFront:
    """Implements `Detector`. trained: the model as trained; make: (it, camera) -> what serves, when no camera has these weights loaded.
    app: whose run times follow one law: the camera; job: whose share pays.

    A prediction outside any turn (`edge.pool.turn`) of a model that has not answered yet is its first run: slow, perhaps endless. It is
    made by the caller itself, so that no frame waits behind it."""

    def __init__(self, pool: Pool, trained: Detector, *, app: str, job: str, make: Make) -> None:
        self._pool, self._app, self._job = pool, app, job
        self._model = pool.share(trained, app, make)
        self.spec: DetectorSpec = self._model.detector.spec
        self._lock = threading.Lock()
        self._closed = False

    @property
    def behind(self) -> Detector:
        """The loaded model, which other cameras may share."""
        return self._model.detector

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """As the model's own. yield_point is called before and after, not between layers: those run in another thread. Raises
        `edge.pool.turn.TooLate` when a frame was given up, JobCancelled, JobError (closed, hung), and what the model raised."""
        if self._closed:
            raise JobError(f"{self.spec.arch} is out of use", subject=self.spec.arch, remedy="ask the model that replaced it")
        if not len(images):
            return []
        if yield_point:
            yield_point()
        found = self._asked(images, score_min)
        if yield_point:
            yield_point()
        return found

    def _asked(self, images: Sequence[np.ndarray], score_min: float) -> list[Detections]:
        turn = current()
        if turn is None and not self._model.ran:
            return self._first_run(images, score_min)
        turn = turn or Turn(deadline_s=self._pool.now_s() + ASIDE_S)
        return self._pool.ask(self._model, self._app, self._job, images, score_min, turn)

    def _first_run(self, images: Sequence[np.ndarray], score_min: float) -> list[Detections]:
        """Of every copy; the answers of the last, which are those of all."""
        found: list[Detections] = []
        for copy in self._model.copies:
            with copy.running:
                found = copy.detector.predict(images, score_min=score_min)
        return found

    def abandon(self) -> None:
        """Gives the batch up in which a picture of this camera is, from any thread; the model is left alone for a while."""
        self._pool.abandon(self._app, self._model)

    def close(self) -> None:
        """The camera needs it no more. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._pool.leave(self._model)

    # --- the model behind it ------------------------------------------------------------------------------------------

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        return self.behind.loss(images, targets)

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        return self.behind.distill_loss(images, teacher)

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self.behind.embed(images)

    def body(self) -> ServedBody:
        return self.behind.body()

    def trainable_layers(self) -> list[torch.nn.Module]:
        return self.behind.trainable_layers()

    def state(self) -> dict[str, torch.Tensor]:
        return self.behind.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Refused: other cameras may share the model."""
        raise JobError(
            f"{self.spec.arch} is shared by cameras and cannot be changed",
            subject=self.spec.arch,
            remedy="change a `clone` of it",
        )

    def clone(self) -> Detector:
        return self.behind.clone()
