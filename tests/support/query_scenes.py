"""Queries without a camera: scripted frames, a detector that is told what to find, transforms that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from configs.load import parse_config
from configs.queries import TRANSFORMS
from configs.schema.queries import QueryEntry
from edge.queries.base import BaseTransform, Cost, Knob, NodeSpec, QuerySpec, Scene, Tools, scene_of
from edge.queries.facts import knob_of
from edge.queries.registry import query_spec
from scheduler.types import Detections, Frame

WIDTH, HEIGHT = 320, 200


def frame_at(at_s: float, *, seq: int = 0, size: tuple[int, int] = (WIDTH, HEIGHT), grey: int = 90) -> Frame:
    """A plain frame taken at `at_s`; size: (width, height)."""
    image = np.full((size[1], size[0], 3), grey, np.uint8)
    return Frame(stream="gate", seq=seq, captured_s=at_s, captured_utc=1.7e9 + at_s, image=image)


def boxes(*rows: Sequence[float], class_id: int = 2, score: float = 0.9) -> Detections:
    """Detections of one class at these xyxy."""
    xyxy = np.array(rows, np.float32).reshape(-1, 4)
    return Detections(xyxy=xyxy, score=np.full(len(xyxy), score, np.float32), class_id=np.full(len(xyxy), class_id, np.int64))


def at_centre(x: float, y: float, side: float = 40.0) -> tuple[float, float, float, float]:
    """A square box around a point."""
    return (x - side / 2, y - side / 2, x + side / 2, y + side / 2)


LINES = "{name: lines, template: lines, lines: {mid: [[0, 0.5], [1, 0.5]]}}"
COUNT = "{name: count, template: count}"
DWELL = "{name: dwell, template: dwell, zones: {all: [[0, 0], [1, 0], [1, 1], [0, 1]]}}"


class TellingDetector:
    """Finds what `says` tells for the picture it is given; `asked`: (width, height) of each picture."""

    def __init__(self, says: Callable[[np.ndarray], Detections]) -> None:
        self.says = says
        self.asked: list[tuple[int, int]] = []

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        self.asked += [(image.shape[1], image.shape[0]) for image in images]
        return [self.says(image).above(score_min) for image in images]


def tools_of(says: Callable[[np.ndarray], Detections] | None = None, **more: Any) -> tuple[Tools, TellingDetector]:
    """Tools with one detector, whatever model is asked for."""
    detector = TellingDetector(says or (lambda image: Detections.empty()))
    return Tools(camera_id="gate", fps=10.0, detector=lambda name: detector, **more), detector


def entries_of(*queries: str, task: str = "detection") -> tuple[QueryEntry, ...]:
    """Queries as a configuration has them, each in YAML's flow form."""
    listed = "".join(f"\n      - {query}" for query in queries)
    text = f"cameras:\n  - id: gate\n    url: /v.mp4\n    task: {task}\n    queries:{listed}\n"
    return parse_config(text).cameras[0].queries


def moving_scene(index: int, *, per_s: float = 10.0, **more: Any) -> Scene:
    return scene_of(frame_at(index / per_s, seq=index), **more)


class Scripted(BaseTransform):
    """A transform that does what its class is told: `does` gets (the transform, scene)."""

    name = "scripted"
    knobs = (Knob(name="gain", values=(1, 2, 3)),)
    params = ("tag",)
    stateful = True
    does: Callable[[Any, Scene], Any] = staticmethod(lambda self, scene: scene.with_(told={"seen": self.seen}))

    def __init__(self, params: Any, tools: Tools) -> None:
        super().__init__(params, tools)
        self.seen = 0
        self.interruptions = 0

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene | None:
        self.seen += 1
        return type(self).does(self, scene)

    def reset(self) -> None:
        self.seen = 0

    def interrupt(self) -> None:
        self.interruptions += 1


def specs(*queries: str) -> list[QuerySpec]:
    return [query_spec(entry, task="detection") for entry in entries_of(*queries)]


def scripted_spec(name: str = "odd", *, tag: str = "") -> QuerySpec:
    knobs = tuple(knob_of(facts) for facts in TRANSFORMS["decode"].knobs)
    return QuerySpec(
        name=name,
        nodes=(
            NodeSpec(id="decode", transform="decode", knobs=knobs),
            NodeSpec(id="odd", transform="scripted", inputs=("decode",), params={"tag": tag}, knobs=Scripted.knobs),
        ),
    )


def free_meter() -> Cost:
    """Nothing costs anything."""
    return Cost()
