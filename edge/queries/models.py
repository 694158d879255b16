"""Models that queries of a running box ask beside the camera's own: a cascade's classifier, say. They answer through the box's queue, on
the camera's inference share, under the deadline of the frame; without a queue there is no lane they could run on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from configs.errors import EnvironmentLacking
from models.detector import Detector

#: (model's name, '' for the usual one; its task) -> a detector that answers through the queue.
OpenModel = Callable[[str, str], Detector]


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> None: ...


class QueryModels:
    """One camera's. Each model is opened when it is first asked for, in the queries' thread.

    open: None where nothing but cameras' own models may run."""

    def __init__(self, camera_id: str, open: OpenModel | None) -> None:
        self._camera_id, self._open = camera_id, open
        self._opened: dict[tuple[str, str], Detector] = {}

    def of(self, task: str) -> Callable[[str], Detector]:
        """What `edge.queries.base.Tools` wants for models of a task. In which form they serve is not a query's choice."""
        return lambda model: self._of(model, task)

    def _of(self, model: str, task: str) -> Detector:
        if (model, task) not in self._opened:
            if self._open is None:
                raise EnvironmentLacking(
                    f"a query of {self._camera_id} asks a {task} model of its own, which runs through the box's queue only",
                    subject=self._camera_id,
                    remedy="set scheduler.serving to orloj and start the box again, or leave the model to the camera",
                )  # fmt: skip
            self._opened[model, task] = self._open(model, task)
        return self._opened[model, task]

    def close(self) -> None:
        """Gives back what they hold."""
        opened, self._opened = self._opened, {}
        for detector in opened.values():
            if isinstance(detector, _Closable):
                detector.close()
