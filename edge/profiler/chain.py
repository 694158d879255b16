"""What every camera of the box runs, as a query: every so-many-th frame, its model at a resolution, in a form.

The two transforms do what `edge.inference.InferenceWorker` does with a frame, through the same function (`edge.resolution.ask`);
the
profiler measures them in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edge.queries.base import BaseTransform, Knob, NodeSpec, QuerySpec, Scene, Setting, Tools, Transform
from edge.resolution import ask
from models.detector import Detector
from models.tasks.base import Picture, Task

RATE, ANSWER = "rate", "answer"
STRIDE, HEIGHT, MODEL, FORM, CROPS = "rate.stride", "answer.height_px", "answer.model", "answer.form", "answer.crops"
#: Every how-many-th frame a camera may analyse.
STRIDES: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
#: Heights that are tried, as parts of what the model sees of a whole picture.
HEIGHT_FRACS: tuple[float, ...] = (0.75, 0.5)
#: Most regions of a frame that a classifier is asked about; 0: all.
CROP_LIMITS: tuple[int, ...] = (0, 8, 4)
TRAINED = "trained"


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be chosen. Each ascending in cost's opposite, the golden value first: strides 1 first, height 0 (as it is) first,
    models and
    forms as they were named. crops: empty where the task cuts none."""

    strides: tuple[int, ...] = STRIDES
    heights_px: tuple[int, ...] = (0,)
    models: tuple[str, ...] = ("",)
    forms: tuple[str, ...] = (TRAINED,)
    crops: tuple[int, ...] = ()

    def spec(self, name: str) -> QuerySpec:
        """The camera's own query over this space. Raises ValueError for a knob without values, or one value twice."""
        answer = [Knob(name="height_px", values=self.heights_px, unit="px"), Knob(name="model", values=self.models)]
        answer += [Knob(name="form", values=self.forms)]
        answer += [Knob(name="crops", values=self.crops)] if self.crops else []
        return QuerySpec(
            name=name,
            nodes=(
                NodeSpec(id=RATE, transform="profiled-rate", knobs=(Knob(name="stride", values=self.strides),)),
                NodeSpec(id=ANSWER, transform="profiled-answer", inputs=(RATE,), knobs=tuple(answer)),
            ),
        )  # fmt: skip


def heights_for(height_px: int, width_px: int, input_px: int) -> tuple[int, ...]:
    """Heights worth trying for pictures of that size and a model whose network sees `input_px` at most: 0 (as it is), then lower
    ones
    that really are less for the network. A picture that is smaller than that already has none."""
    longest = max(height_px, width_px)
    if longest < input_px:
        return (0,)
    seen_px = height_px * input_px / longest
    return (0, *(2 * max(8, round(frac * seen_px / 2)) for frac in HEIGHT_FRACS))


class EveryNth(BaseTransform):
    """Knob stride: every so-many-th frame goes on, the first among them."""

    name: ClassVar[str] = "profiled-rate"
    knobs: ClassVar[tuple[Knob, ...]] = (Knob(name="stride", values=STRIDES),)
    params: ClassVar[tuple[str, ...]] = ()
    stateful: ClassVar[bool] = True

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        super().__init__(params, tools)
        self._seen = 0

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene | None:
        goes_on = self._seen % int(self.values["stride"]) == 0
        self._seen += 1
        return scene if goes_on else None

    def reset(self) -> None:
        self._seen = 0


#: (model, form, height_px) -> a detector that is ready to be measured on pictures of that height.
Ready = Callable[[str, str, int], Detector]


class Answer(BaseTransform):
    """What a model says of a frame. values: model, form, height_px, crops (`Space`). The model is made ready when a clip begins,
    so that
    loading it is not measured."""

    name: ClassVar[str] = "profiled-answer"
    knobs: ClassVar[tuple[Knob, ...]] = ()
    params: ClassVar[tuple[str, ...]] = ()
    stateful: ClassVar[bool] = False

    def __init__(self, task: Task, tools: Tools, values: Setting, ready: Ready) -> None:
        super().__init__({}, tools)
        self.values = dict(values)
        self._task, self._ready = task, ready
        self._detector: Detector | None = None

    @property
    def _height_px(self) -> int:
        return int(self.values["height_px"])

    def reset(self) -> None:
        self._detector = self._ready(str(self.values["model"]), str(self.values["form"]), self._height_px)

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene | None:
        if self._detector is None:
            self.reset()
        assert self._detector is not None
        most, regions = int(self.values.get("crops", 0)), scene.regions
        if most and regions is not None:
            regions = regions[:most]  # the largest come first
        picture = Picture(image=scene.image, regions=regions)
        found = ask(self._task, self._detector, picture, score_min=self.tools.score_min, height_px=self._height_px)
        return scene.with_(detections=found)


def make_with(task: Task, tools: Tools, ready: Ready) -> Callable[[NodeSpec, Setting], Transform]:
    """What `Graph` makes the nodes of a camera's own query by."""

    def make(node: NodeSpec, values: Setting) -> Transform:
        if node.transform == Answer.name:
            return Answer(task, tools, values, ready)
        rate = EveryNth(node.params, tools)
        for knob, value in values.items():
            rate.update(knob, value)
        return rate

    return make
