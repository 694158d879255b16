"""The resolution knob: a model is shown a smaller picture, and answers in the pixels of the whole one.

Only what the model sees is reduced. The camera's picture stays as it is for the sampler (a lesson should be as sharp as the camera), for
the background that tells movement (a picture of another size would have to be learnt anew) and for people.

A model that would halve the picture first is given the half, which a live frame has for less than the whole (`Frame.halved`).
"""

from __future__ import annotations

import cv2
import numpy as np

from models.detector import Detector, YieldPoint
from models.tasks.base import Picture, Task
from models.zoo import least_px
from scheduler.types import Detections, Frame
from streams.video import size_for_height


def reduced(picture: Picture, height_px: int) -> Picture:
    """The picture at that height (0, or more than it has: as it is), its regions with it."""
    width, height = picture.size_px
    new_width, new_height = size_for_height(width, height, height_px)
    if (new_width, new_height) == (width, height):
        return picture
    image = cv2.resize(picture.image, (new_width, new_height), interpolation=cv2.INTER_AREA)
    return Picture(image=image, regions=_scaled(picture.regions, new_width / width, new_height / height))


def of_live(task: Task, detector: Detector, frame: Frame, *, height_px: int = 0) -> Picture:
    """The picture of a live frame, halved where the model would begin with that. Regions are looked at as sharp as they are."""
    least = 0 if task.wants_regions or frame.regions is not None else least_px(detector.spec)
    if not least:
        return Picture(image=frame.image, regions=frame.regions)
    to_px = size_for_height(*frame.size_px, height_px)
    return Picture(image=frame.halved(least if to_px == frame.size_px else max(to_px)))


def ask(
    task: Task,
    detector: Detector,
    picture: Picture | Frame,
    *,
    score_min: float,
    height_px: int = 0,
    yield_point: YieldPoint | None = None,
) -> Detections:
    """What a model says of a picture that it sees at most `height_px` high; in pixels of the whole picture."""
    whole_px = picture.size_px
    given = of_live(task, detector, picture, height_px=height_px) if isinstance(picture, Frame) else picture
    small = reduced(given, height_px)
    found = task.predict(detector, [small], score_min=score_min, yield_point=yield_point)[0]
    if small.size_px == whole_px:
        return found
    if task.wants_regions and picture.regions is not None and len(found) == len(picture.regions):
        xyxy = np.asarray(picture.regions, np.float32).reshape(-1, 4)  # exactly those that were asked about
    else:
        scaled = _scaled(found.xyxy, whole_px[0] / small.size_px[0], whole_px[1] / small.size_px[1])
        xyxy = found.xyxy if scaled is None else scaled
    return Detections(xyxy=xyxy, score=found.score, class_id=found.class_id)


def _scaled(xyxy: np.ndarray | None, across: float, down: float) -> np.ndarray | None:
    if xyxy is None:
        return None
    return (np.asarray(xyxy, np.float32).reshape(-1, 4) * np.array([across, down] * 2, np.float32)).astype(np.float32)


#: Where a detector that only carries another one (a served form, a front of a pool) has it.
_CARRIED = ("trained", "current", "behind")


def at_own_size(detector: Detector) -> Detector:
    """Lets a detector, or the one that it carries, show its network a picture that is smaller than its input as it is, instead of
    enlarging it first: only so does a lower resolution cost less. One that cannot stays as it is. Returns the same detector."""
    if hasattr(detector, "enlarges"):
        detector.enlarges = False
    for name in _CARRIED:
        inner = getattr(detector, name, None)
        if inner is not None and inner is not detector:
            at_own_size(inner)
    return detector
