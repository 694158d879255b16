"""Is what a transform gave usable? What is a little off is mended and counted, nonsense is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from configs.units import CLASSES
from edge.queries.base import Scene
from scheduler.types import Detections

#: Most of what a node tells of a frame, as JSON.
TOLD_BYTES_MAX = 64 * 1024


class Nonsense(Exception):
    """What a transform gave cannot be used; the text says why."""


def checked(given: Any, scene: Scene) -> tuple[Scene | None, int]:
    """What a transform gave for `scene`, safe to hand on, and how many boxes were left out because they lie outside the picture or hold
    nothing. Boxes that stick out are cut. Raises Nonsense for another type or frame, numbers that are none, arrays that do not fit
    together, classes that nobody knows, and what is no JSON."""
    if given is None:
        return None, 0
    if not isinstance(given, Scene):
        raise Nonsense(f"it gave a {type(given).__name__} and no scene")
    if given.frame is not scene.frame or given.size_px != scene.size_px:
        raise Nonsense("it gave the scene of another frame")
    _check_image(given.image, scene.image)
    _check_told(given.told)
    regions, lost = (given.regions, 0) if given.regions is scene.regions else _regions(given.regions, scene)
    if given.detections is scene.detections and given.track_ids is scene.track_ids:
        return (given if regions is given.regions else given.with_(regions=regions, told=given.told)), lost
    detections, track_ids, out = _objects(given, scene)
    return given.with_(regions=regions, detections=detections, track_ids=track_ids, told=given.told), lost + out


def _check_image(image: Any, before: np.ndarray) -> None:
    if image is before:
        return
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise Nonsense("its picture is no uint8 (H, W, 3)")


def _check_told(told: Any) -> None:
    try:
        text = json.dumps(told, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Nonsense(f"what it tells is no JSON with finite numbers ({error})") from None
    if not text.startswith("{") or len(text) > TOLD_BYTES_MAX:
        raise Nonsense(
            "what it tells is no object" if len(text) <= TOLD_BYTES_MAX else f"it tells {len(text)} bytes of one frame"
        )


def _boxes(xyxy: Any, what: str) -> np.ndarray:
    """float32 (N, 4), finite."""
    try:
        boxes = np.asarray(xyxy, np.float32)
    except (TypeError, ValueError):
        raise Nonsense(f"its {what} are no numbers") from None
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.isfinite(boxes).all():
        raise Nonsense(f"its {what} are no finite boxes (N, 4)")
    return boxes


def _inside(boxes: np.ndarray, size_px: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The boxes cut at the picture's border, and which of them have something left."""
    cut = np.clip(boxes, 0.0, np.array([*size_px, *size_px], np.float32))
    return cut, (cut[:, 2:] > cut[:, :2]).all(axis=1)


def _regions(regions: Any, scene: Scene) -> tuple[np.ndarray | None, int]:
    if regions is None:
        return None, 0
    cut, good = _inside(_boxes(regions, "regions"), scene.size_px)
    return cut[good], int((~good).sum())


def _objects(given: Scene, scene: Scene) -> tuple[Detections | None, np.ndarray | None, int]:
    found, ids = given.detections, given.track_ids
    if found is None:
        if ids is not None:
            raise Nonsense("it gave tracks without detections")
        return None, None, 0
    if not isinstance(found, Detections):
        raise Nonsense(f"its detections are a {type(found).__name__}")
    boxes, score = _boxes(found.xyxy, "boxes"), np.asarray(found.score, np.float32)
    if not np.isfinite(score).all():
        raise Nonsense("its scores are no finite numbers")
    class_id = np.asarray(found.class_id)
    if len(class_id) and (class_id.dtype.kind not in "iu" or class_id.min() < 0 or class_id.max() >= len(CLASSES)):
        raise Nonsense("its classes are none of the known ones")
    if ids is not None and (np.shape(ids) != (len(found),) or np.asarray(ids).dtype.kind not in "iu"):
        raise Nonsense("its track numbers do not fit its detections")
    cut, good = _inside(boxes, scene.size_px)
    kept = Detections(xyxy=cut[good], score=score[good], class_id=class_id[good].astype(np.int64))
    return kept, None if ids is None else np.asarray(ids, np.int64)[good], int((~good).sum())
