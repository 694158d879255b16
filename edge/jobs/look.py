"""Looking: what a window was like to the model that serves, without any label. What drift is told from (`scheduler.drift`)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from configs.errors import JobError
from edge.jobs.base import Samples, Steps, no_yield, spread
from models.detector import Detector, KeepsFeatures, YieldPoint
from models.embedding import FrameStats, edges, reduced, view
from models.tasks.base import Picture, Task
from scheduler.types import Detections, FrameLook, Look

#: Score from which on a look counts a detection: what the box shows.
SCORE_MIN = 0.25


def look_steps(
    samples: Samples, task: Task, model: Detector, *, stream: str, window: int, frames: int, version: str,
    score_min: float = SCORE_MIN, yield_point: YieldPoint = no_yield,
) -> Steps[Look]:  # fmt: skip
    """Looks at up to `frames` of a window's sampled frames, evenly spread, one an iteration: `passes_of` passes each.

    A frame that is gone by now (pruned) is left out. Raises JobError 'nan' when the model's features are not finite. On a camera that
    classifies what moves, the objects are the classified regions and the embedding is the classifier's of the whole frame."""
    stats = FrameStats(model.spec.arch)
    found: list[FrameLook] = []
    edges_found: list[np.ndarray] = []
    for ref in spread(samples.sampled(stream, window), frames):
        try:
            picture = samples.picture(ref)
        except KeyError:
            continue
        seen, embedding = _seen(task, model, picture, score_min, yield_point)
        small = Picture(image=reduced(picture.image))
        try:
            found.append(stats.look_at(small, task.shown(seen), embedding))
        except ValueError as error:
            raise JobError(f"{stream}: {error}", code="nan", subject=version, remedy="roll the model back") from error
        edges_found.append(edges(small.image))
        yield
    return Look(version=version, frames=tuple(found), view=view(edges_found))


def passes_of(task: Task) -> int:
    """Passes of a frame through the model: one says the objects and the features, unless the model is asked about parts of the frame."""
    return 2 if task.wants_regions else 1


def _seen(
    task: Task, model: Detector, picture: Picture, score_min: float, yield_point: YieldPoint
) -> tuple[Detections, np.ndarray]:
    """What the model finds in a picture, and its features of it."""
    keeping: AbstractContextManager[list[np.ndarray]] = nullcontext([])
    if passes_of(task) == 1 and isinstance(model, KeepsFeatures):
        keeping = model.keeping_features()
    with keeping as kept:
        found = task.predict(model, [picture], score_min=score_min, yield_point=yield_point)[0]
    # More than one: somebody else asked the same model meanwhile, or the task asks about parts after all.
    return found, kept[0] if len(kept) == 1 else model.embed([picture.image])[0]
