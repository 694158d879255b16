"""The newest analysed picture of each camera as JPEG, for pages: drawn and encoded once, however many look.

Encoding is most of what a viewer costs the box. A page asks for a picture no wider than it shows it; widths are rounded up to a few, so
that viewers share what was made; what belongs to an older frame is forgotten.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field

import cv2
import numpy as np

from configs.units import CLASSES
from edge.inference import Shown
from scheduler.types import Detections

#: What a wanted width is rounded up to; above the last, and for 0: as the frame is.
WIDTHS_PX = (240, 320, 480, 640, 960, 1280, 1920)
JPEG_QUALITY = 80
#: Boxes narrower than so many pixels beside their text would be covered by it.
_TEXT_FROM_PX = 300
#: One colour per class (RGB), easy to tell apart also with colour-blind eyes.
_COLOURS = ((255, 214, 10), (86, 180, 233), (0, 200, 140), (230, 159, 0), (204, 121, 167), (213, 94, 0), (240, 228, 200))


@dataclass(kw_only=True)
class _Made:
    """What was encoded of one camera's newest frame, by (width, with boxes)."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    shown: Shown | None = None
    jpegs: dict[tuple[int, bool], bytes | None] = field(default_factory=dict)


class LivePictures:
    """May be asked from any thread; two who want the same wait for one encoding."""

    def __init__(self) -> None:
        self._made: defaultdict[str, _Made] = defaultdict(_Made)

    def jpeg(self, camera_id: str, shown: Shown, *, width_px: int = 0, boxes: bool = True) -> bytes | None:
        """The frame with its boxes, or without. width_px: no wider than needed for it, 0: as the frame is. None: it cannot be
        encoded."""
        made = self._made[camera_id]
        key = (rounded_width(width_px, shown.frame.size_px[0]), boxes)
        with made.lock:
            if made.shown is not shown:
                made.shown, made.jpegs = shown, {}
            if key not in made.jpegs:
                made.jpegs[key] = draw_jpeg(shown, width_px=key[0], boxes=boxes)
            return made.jpegs[key]

    def forget(self, present: set[str]) -> None:
        """Drops the pictures of cameras that are not there any more."""
        for camera_id in [known for known in list(self._made) if known not in present]:
            self._made.pop(camera_id, None)


def rounded_width(wanted_px: int, frame_px: int) -> int:
    """The width in which a picture is made: one of WIDTHS_PX, never more than the frame has."""
    if wanted_px <= 0:
        return frame_px
    return min(frame_px, next((width for width in WIDTHS_PX if width >= wanted_px), frame_px))


def draw_jpeg(shown: Shown, *, width_px: int = 0, boxes: bool = True, quality: int = JPEG_QUALITY) -> bytes | None:
    """The frame, with its boxes, class names and scores, as JPEG."""
    image = np.ascontiguousarray(shown.frame.image[:, :, ::-1])  # cv2 wants BGR
    height, width = image.shape[:2]
    scale = 1.0
    if 0 < width_px < width:
        scale = width_px / width
        image = cv2.resize(image, (width_px, max(1, round(height * scale))), interpolation=cv2.INTER_AREA)
    if boxes:
        _draw(image, shown.detections, scale)
    done, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return data.tobytes() if done else None


def _draw(image: np.ndarray, found: Detections, scale: float) -> None:
    for box, score, class_id in zip(found.xyxy, found.score, found.class_id, strict=True):
        left, top, right, bottom = (round(float(v) * scale) for v in box)
        colour = _COLOURS[int(class_id) % len(_COLOURS)][::-1]
        cv2.rectangle(image, (left, top), (right, bottom), colour, 1, cv2.LINE_AA)
        if image.shape[1] >= _TEXT_FROM_PX:
            label = f"{CLASSES[int(class_id)]} {float(score):.2f}"
            cv2.putText(image, label, (left, max(9, top - 3)), cv2.FONT_HERSHEY_SIMPLEX, 0.33, colour, 1, cv2.LINE_AA)
