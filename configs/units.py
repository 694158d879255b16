"""Ids, the box-wide class vocabulary and the rules for both. Units live in names: see the suffixes below.

Suffixes: `_s` monotonic seconds, `_utc` seconds since the epoch, `_ms`, `_pct` percent points of one GPU (100 = one GPU; on a
CPU box 100 = one core), `_gpu_s` GPU-seconds at 100 pct, `_mib`, `_px`, `_frac` 0-1. Quality is 0-1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Object classes every detector of the box is mapped to; `Detections.class_id` indexes this tuple.
CLASSES: tuple[str, ...] = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "animal")

#: Class index of a region that moved but holds no object: only in labels and predictions of classification, never shown.
NOTHING = len(CLASSES)

#: COCO class index -> index in CLASSES (COCO 14-23 are bird, cat, dog, ... giraffe: all "animal").
COCO_TO_CLASSES: dict[int, int] = {0: 0, 1: 1, 2: 2, 3: 3, 5: 4, 7: 5} | dict.fromkeys(range(14, 24), 6)

#: Class map: what is written for a class that gets no labels.
IGNORE = "ignore"

CAMERA_ID = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")


def is_camera_id(text: str) -> bool:
    """Camera ids name folders, MQTT topics and URLs: lower case letters, digits, `_`, `-`, at most 63 characters."""
    return CAMERA_ID.fullmatch(text) is not None


def class_map_problem(mapping: Mapping[str, str]) -> str | None:
    """What is wrong with a class map (golden class -> our class or IGNORE), None: nothing. A target that is itself mapped elsewhere is
    refused: mapping twice would change what mapping once made."""
    for golden, ours in mapping.items():
        if golden not in CLASSES or (ours not in CLASSES and ours != IGNORE):
            return f"{golden}: {ours} is unknown; classes are {', '.join(CLASSES)}, and {IGNORE} on the right"
        if mapping.get(ours, ours) != ours:
            return f"{golden}: {ours}, but {ours}: {mapping[ours]}; name the last class at once"
    return None
