"""A sample's picture with its labels drawn in: who made them is seen at a glance."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from edge.labels import BoxView
from streams.samples import encode_jpeg

#: RGB by who says so: the golden model, a person, and what the golden model was not sure of.
GOLDEN, PERSON, UNSURE = (0, 220, 255), (60, 230, 60), (255, 150, 0)


def drawn_jpeg(image: np.ndarray, boxes: Sequence[BoxView], unsure: Sequence[BoxView], *, by_person: bool) -> bytes:
    """image: uint8 (H, W, 3) RGB -> JPEG. Boxes are numbered from 1 as in `labels show`; unsure ones carry a question mark."""
    canvas = image.copy()
    for number, box in enumerate(unsure, start=1):
        _draw(canvas, box, UNSURE, f"?{number} {box.class_name} {box.score:.2f}", thickness_px=1)
    for number, box in enumerate(boxes, start=1):
        text = f"{number} {box.class_name}" if by_person else f"{number} {box.class_name} {box.score:.2f}"
        _draw(canvas, box, PERSON if by_person else GOLDEN, text, thickness_px=2)
    return encode_jpeg(canvas, quality=88)


def _draw(canvas: np.ndarray, box: BoxView, colour: tuple[int, int, int], text: str, *, thickness_px: int) -> None:
    left, top, right, bottom = (round(v) for v in box.xyxy)
    cv2.rectangle(canvas, (left, top), (right, bottom), colour, thickness_px, cv2.LINE_AA)
    cv2.putText(canvas, text, (left, max(10, top - 4)), cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1, cv2.LINE_AA)
