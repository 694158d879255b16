"""The profiler's worked example (VideoStorm card, V6) as a query of two made-up transforms, and a clock that only they advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from edge.profiler.graph import Clip, Graph, Ledger, Ran
from edge.profiler.measure import Measurer, Where
from edge.queries.base import BaseTransform, Cost, Knob, NodeSpec, QuerySpec, Scene, Setting, Tools, Transform, scene_of
from scheduler.types import Frame

RESOLUTIONS, RATES, STEPS = (240, 480, 720), (0.25, 0.5, 1.0), (2, 1)
WORK = {240: 1.0, 480: 2.0, 720: 4.0}
SHARPNESS = {240: 0.0, 480: 0.20, 720: 0.30}
FREQUENCY = {0.25: 0.0, 0.5: 0.15, 1.0: 0.25}
FACTOR, CARE = {2: 1.0, 1: 2.0}, {2: 0.0, 1: 0.10}
#: (demand in cores, quality) of the Pareto front.
FRONT = ((0.5, 0.35), (0.75, 0.45), (1.0, 0.55), (1.5, 0.65), (2.0, 0.70), (3.0, 0.80), (6.0, 0.90), (12.0, 1.0))
#: One second of clip, all 18 settings, in core-seconds: nothing kept; decoded seconds kept.
UNCACHED_S, CACHED_S = 61.25, 49.0

SPEC = QuerySpec(
    name="v6",
    nodes=(
        NodeSpec(id="decode", transform="v6-decode", knobs=(Knob(name="r", values=RESOLUTIONS), Knob(name="f", values=RATES))),
        NodeSpec(id="detect", transform="v6-detect", inputs=("decode",), knobs=(Knob(name="s", values=STEPS),)),
    ),
)  # fmt: skip


class Clock:
    """Seconds that transforms say they have used."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    def read(self) -> Cost:
        return Cost(cpu_s=self.cpu_s)


class Decode(BaseTransform):
    """One second of video: f * w core-seconds."""

    name: ClassVar[str] = "v6-decode"

    def __init__(self, values: Setting, clock: Clock, faults: Mapping[str, Any]) -> None:
        super().__init__({}, Tools(camera_id="a"))
        self.values, self._clock, self.runs, self._faults = dict(values), clock, 0, faults

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        work = float(self.values["f"]) * WORK[int(self.values["r"])]
        self._clock.cpu_s += work
        quality = 0.35 + SHARPNESS[int(self.values["r"])] + FREQUENCY[float(self.values["f"])]
        return scene.with_(told={"work": work, "quality": quality})


class Detect(Decode):
    """f * w * g core-seconds."""

    name: ClassVar[str] = "v6-detect"

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        step = int(self.values["s"])
        if step == self._faults.get("throws_at"):
            raise RuntimeError("a made-up fault of rtsp://user:secret@camera/1")
        self._clock.cpu_s += float(scene.told["work"]) * FACTOR[step]
        quality = float("nan") if step == self._faults.get("nan_at") else float(scene.told["quality"]) + CARE[step]
        return scene.with_(told={"quality": quality})


def seconds_of_video(count: int = 1, *, key: str = "clip") -> Clip:
    """`count` frames, a second each, that cost nothing to decode: the example's decoder is a node."""
    image = np.zeros((4, 4, 3), np.uint8)
    frames = [Frame(stream="a", seq=i, captured_s=float(i), captured_utc=float(i), image=image) for i in range(count)]
    return Clip(key=key, scenes=[scene_of(frame) for frame in frames], seconds=float(count))


def told_quality(ran: Ran) -> float:
    """The mean of what the last node tells."""
    scenes = [scene for scene in ran.sinks["detect"] if scene is not None]
    return sum(float(scene.told["quality"]) for scene in scenes) / len(scenes)


class Example:
    """Measures V6. faults: see `Detect`."""

    def __init__(self, count: int = 1, **faults: Any) -> None:
        self.clock, self.faults = Clock(), faults
        self.ledger = Ledger()
        self.graph = Graph(SPEC, seconds_of_video(count), self.make, meter=self.clock.read, dear=("decode", "detect"))

    def make(self, node: NodeSpec, values: Setting) -> Transform:
        return (Decode if node.id == "decode" else Detect)(values, self.clock, self.faults)

    def measurer(self, ledger: Ledger | None = None) -> Measurer:
        return Measurer(
            graph=self.graph, judge=told_quality, where=Where(device_nodes=("detect",)), ledger=ledger or self.ledger
        )
