"""Looking: what a window was like to the model that serves, without any label. What drift is told from (`scheduler.drift`)."""

from __future__ import annotations

from configs.errors import JobError
from edge.jobs.base import Samples, Steps, no_yield, spread
from models.detector import Detector, YieldPoint
from models.embedding import FrameStats
from models.tasks.base import Task
from scheduler.types import FrameLook, Look

#: Score from which on a look counts a detection: what the box shows.
SCORE_MIN = 0.25


def look_steps(
    samples: Samples, task: Task, model: Detector, *, stream: str, window: int, frames: int, version: str,
    score_min: float = SCORE_MIN, yield_point: YieldPoint = no_yield,
) -> Steps[Look]:  # fmt: skip
    """Looks at up to `frames` of a window's sampled frames, evenly spread, one an iteration: one inference and one `embed` each.

    A frame that is gone by now (pruned) is left out. Raises JobError 'nan' when the model's features are not finite. On a camera that
    classifies what moves, the objects are the classified regions and the embedding is the classifier's of the whole frame."""
    stats = FrameStats(model.spec.arch)
    found: list[FrameLook] = []
    for ref in spread(samples.sampled(stream, window), frames):
        try:
            picture = samples.picture(ref)
        except KeyError:
            continue
        seen = task.predict(model, [picture], score_min=score_min, yield_point=yield_point)[0]
        embedding = model.embed([picture.image])[0]
        try:
            found.append(stats.look_at(picture, task.shown(seen), embedding))
        except ValueError as error:
            raise JobError(f"{stream}: {error}", code="nan", subject=version, remedy="roll the model back") from error
        yield
    return Look(version=version, frames=tuple(found))
