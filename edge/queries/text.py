"""The transform that reads text in zones. rapidocr does it, with the models of its own package; it is loaded when first used."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from configs.errors import EnvironmentLacking
from edge.queries.base import BaseTransform, Scene, Told, Tools
from edge.queries.facts import knobs_of, params_of

#: Texts of which the reader is less sure are not told.
SCORE_MIN = 0.6
#: Longer side at which text is looked for; the reader's own choice would blow small zones up to 736 px.
LOOK_PX = 640
#: A zone smaller than this, at working resolution, holds no letters.
LEAST_PX = 8
#: Texts of a zone that are told, and letters of each.
MOST_TEXTS, MOST_LETTERS = 20, 100


@dataclass(frozen=True, kw_only=True)
class Text:
    """A line of text. xyxy: px of the picture it was read in."""

    text: str
    score: float
    xyxy: tuple[float, float, float, float]


class Reader:
    """rapidocr behind one method. May be asked from several threads, one at a time."""

    def __init__(self) -> None:
        try:
            from rapidocr import RapidOCR
        except ImportError as error:
            raise EnvironmentLacking(
                f"text cannot be read: {error}", subject="rapidocr", remedy="pip install rapidocr, or remove the query"
            ) from error
        self._lock = threading.Lock()
        threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
        sizes = {"Det.limit_type": "max", "Det.limit_side_len": LOOK_PX}
        self._ocr = RapidOCR(params={"Global.log_level": "error", **threads, **sizes})

    def read(self, image: np.ndarray) -> list[Text]:
        """Texts of a picture, uint8 (H, W, 3) RGB, from the top."""
        with self._lock:
            found = self._ocr(np.ascontiguousarray(image[:, :, ::-1]))
        if found.txts is None:
            return []
        return [
            Text(text=text, score=float(score), xyxy=(*map(float, box.min(axis=0)), *map(float, box.max(axis=0))))  # type: ignore[arg-type]
            for text, score, box in zip(found.txts, found.scores, np.asarray(found.boxes).reshape(-1, 4, 2), strict=True)
        ]


@cache
def usual_reader() -> Reader:
    """One for the whole process: its networks are the same for everybody."""
    return Reader()


class Read(BaseTransform):
    """Text in zones, or in the whole picture; every `every`-th frame, in between what was read last. params: score_min: surer than this.
    Tells per zone a list of `text`, `score`, `xyxy` (px of the camera's picture); `read_utc`: when that picture was taken."""

    name = "read"
    knobs, params = knobs_of("read"), params_of("read")
    stateful = True

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        super().__init__(params, tools)
        self.reset()

    def reset(self) -> None:
        self._frames = 0
        self._last: Told = {}
        self._read_utc = 0.0

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        if self._frames % int(self.values["every"]) == 0:
            zones = self.given.get("zones") or {"picture": ((0, 0), (1, 0), (1, 1), (0, 1))}
            self._last = {name: self._texts(scene, corners) for name, corners in zones.items()}
            self._read_utc = scene.frame.captured_utc
        self._frames += 1
        return scene.with_(told={"texts": self._last, "read_utc": round(self._read_utc, 3)})

    def _texts(self, scene: Scene, corners: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
        height, width = scene.image.shape[:2]
        ends = np.array(corners, np.float64) * [width, height]
        (left, top), (right, bottom) = np.floor(ends.min(axis=0)).astype(int), np.ceil(ends.max(axis=0)).astype(int)
        if right - left < LEAST_PX or bottom - top < LEAST_PX:
            return []
        read = self.tools.read_text or usual_reader().read
        across, down = scene.scale
        least = float(self.given.get("score_min", SCORE_MIN))
        return [
            {"text": found.text[:MOST_LETTERS], "score": round(found.score, 3),
             "xyxy": [round((found.xyxy[i] + (left, top)[i % 2]) / (across, down)[i % 2], 1) for i in range(4)]}
            for found in read(scene.image[top:bottom, left:right]) if found.score >= least
        ][:MOST_TEXTS]  # fmt: skip
