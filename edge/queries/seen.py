"""Transforms that look at the picture: decode, motion, detect, classify. The models behind them come from `Tools`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from configs.errors import EnvironmentLacking
from configs.units import CLASSES, NOTHING
from edge.queries.base import BaseTransform, KnobValue, Scene, Tools, Transform, scaled
from edge.queries.facts import knobs_of, params_of
from models.detector import Detector
from models.tasks.base import Picture
from models.tasks.classification import CLASSIFICATION
from scheduler.types import Detections
from streams.motion import Motion, MotionOptions

#: A frame may come so much early, and this part of the interval at most, and still count as due: cameras tremble.
EARLY_S, EARLY_FRAC = 0.02, 0.1
#: Regions and boxes under this area hold no pixel that could be shown to a model.
LEAST_AREA_PX = 1.0


class Decode(BaseTransform):
    """The front of a query: frames at a rate and a resolution. What it leaves out costs the rest nothing.

    Time is cut into intervals of the rate, and the first frame of each is taken. So which frames are taken depends on when they came and
    not on what was taken before: a rate that changes takes effect at once, and two queries of one rate take the same frames."""

    name = "decode"
    knobs, params = knobs_of("decode"), params_of("decode")

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        super().__init__(params, tools)
        self._last_s: float | None = None  # of the frame before, taken or not

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene | None:
        last_s, self._last_s = self._last_s, scene.at_s
        if not is_due(scene.at_s, last_s, float(self.values["fps"])):
            return None
        return scene.with_(image=reduced(scene.image, int(self.values["height_px"])))

    def reset(self) -> None:
        self._last_s = None


def is_due(at_s: float, last_s: float | None, fps: float) -> bool:
    """Whether the frame of `at_s` is the first of its interval. last_s: of the frame before, None: there is none. fps 0: all are."""
    if fps <= 0 or last_s is None or at_s < last_s:
        return True
    early_s = min(EARLY_S, EARLY_FRAC / fps)
    return math.floor((at_s + early_s) * fps) > math.floor((last_s + early_s) * fps)


def reduced(image: np.ndarray, height_px: int) -> np.ndarray:
    """The picture at most `height_px` high (0: as it is), its shape kept."""
    height, width = image.shape[:2]
    if height_px <= 0 or height_px >= height:
        return image
    return cv2.resize(image, (max(1, round(width * height_px / height)), height_px), interpolation=cv2.INTER_AREA)


class MotionRegions(BaseTransform):
    """What moves (`streams.motion`). A frame whose camera has looked already is taken as it is."""

    name = "motion"
    knobs, params = knobs_of("motion"), params_of("motion")
    stateful = True

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        super().__init__(params, tools)
        self._motion = Motion(self._options())

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        if scene.regions is not None:
            return scene.with_()
        found = self._motion.find(scene.image, at_s=scene.at_s)
        return scene.with_(regions=scaled(found, _size(scene.image), scene.size_px))

    def update(self, knob: str, value: KnobValue) -> None:
        """The background goes on in the new size of the copy."""
        super().update(knob, value)
        self._motion.options = self._options()

    def reset(self) -> None:
        self._motion.reset()

    def fork(self) -> Transform:
        """With the background; OpenCV's model itself cannot be copied."""
        twin = MotionRegions(self.given, self.tools)
        twin.values = dict(self.values)
        twin._motion = self._motion.fork()
        return twin

    def _options(self) -> MotionOptions:
        wanted = {name: self.given[name] for name in self.params if name in self.given}
        return MotionOptions(work_px=int(self.values["work_px"]), **wanted)


class Detect(BaseTransform):
    """Objects in the picture. params: classes: only these; score_min: only what the model is so sure of.

    The camera's own model is not asked again about a frame that it has answered already (`Scene.shown`)."""

    name = "detect"
    knobs, params = knobs_of("detect"), params_of("detect")

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        if scene.shown is not None and not self.values["model"]:
            found = _of_classes(scene.shown.above(_score_min(self)), self.given.get("classes"))
            return scene.with_(detections=found, track_ids=None)
        image = reduced(scene.image, int(self.values["height_px"]))
        found = self._model().predict([image], score_min=_score_min(self))[0]
        found = _of_classes(found, self.given.get("classes"))
        boxes = scaled(found.xyxy, _size(image), scene.size_px)
        return scene.with_(detections=Detections(xyxy=boxes, score=found.score, class_id=found.class_id), track_ids=None)

    def _model(self) -> Detector:
        if self.tools.detector is None:
            raise EnvironmentLacking("this box gives queries no detector", subject=self.tools.camera_id)
        return self.tools.detector(str(self.values["model"]))


class Classify(BaseTransform):
    """What detections, or else moving regions, show: crops go to a classifier, the largest first, `crop_limit` of them.

    A region of which the classifier is not sure is no object. A detection of which it is not sure keeps the class it had, as does one
    beyond the limit, so that what was tracked stays tracked. Boxes without area are left out. Tells: `crops`, `left_out`."""

    name = "classify"
    knobs, params = knobs_of("classify"), params_of("classify")

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        if scene.shown is not None and scene.detections is None and not self.values["model"]:
            found = _of_classes(scene.shown.above(_score_min(self)), self.given.get("classes"))
            return scene.with_(detections=found, track_ids=None, told={"crops": len(scene.shown), "left_out": 0})
        boxes = scene.detections.xyxy if scene.detections is not None else scene.regions
        if boxes is None:
            raise ValueError("classify got neither detections nor regions")
        chosen = self._largest(boxes)
        found = self._classified(scene, boxes[chosen])
        told = {"crops": len(chosen), "left_out": len(boxes) - len(chosen)}
        if scene.detections is None:
            objects = _of_classes(CLASSIFICATION.shown(found), self.given.get("classes"))
            return scene.with_(detections=objects, track_ids=None, told=told)
        return scene.with_(detections=_renamed(scene.detections, chosen, found), track_ids=scene.track_ids, told=told)

    def _largest(self, boxes: np.ndarray) -> np.ndarray:
        """Indices of the largest boxes that have an area, in the order they came in."""
        area = np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None).prod(axis=1)
        order = np.argsort(-area, kind="stable")
        return np.sort(order[area[order] >= LEAST_AREA_PX][: int(self.values["crop_limit"])])

    def _classified(self, scene: Scene, boxes: np.ndarray) -> Detections:
        """One answer per box, in their order and in the scene's px."""
        if not len(boxes):
            return Detections.empty()
        if self.tools.classifier is None:
            raise EnvironmentLacking("this box gives queries no classifier", subject=self.tools.camera_id)
        model = self.tools.classifier(str(self.values["model"]))
        picture = Picture(image=scene.image, regions=scaled(boxes, scene.size_px, _size(scene.image)))
        found = CLASSIFICATION.predict(model, [picture], score_min=_score_min(self))[0]
        return Detections(xyxy=np.asarray(boxes, np.float32), score=found.score, class_id=found.class_id)


def _renamed(before: Detections, chosen: np.ndarray, found: Detections) -> Detections:
    """`before` with the classes and scores of the `chosen` ones of which the classifier is sure."""
    score, class_id = before.score.copy(), before.class_id.copy()
    sure = found.class_id != NOTHING
    score[chosen[sure]], class_id[chosen[sure]] = found.score[sure], found.class_id[sure]
    return Detections(xyxy=before.xyxy, score=score, class_id=class_id)


def _of_classes(found: Detections, classes: Sequence[str] | None) -> Detections:
    if not classes:
        return found
    keep = np.isin(found.class_id, [CLASSES.index(name) for name in classes])
    return Detections(xyxy=found.xyxy[keep], score=found.score[keep], class_id=found.class_id[keep])


def _score_min(transform: BaseTransform) -> float:
    return float(transform.given.get("score_min", transform.tools.score_min))


def _size(image: np.ndarray) -> tuple[int, int]:
    """(width, height)."""
    return image.shape[1], image.shape[0]
