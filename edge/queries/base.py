"""What an operator asks of a camera: a query is a DAG of transforms with knobs. Card: VideoStorm, sections 2 to 4.

A *node* is one transform with its parameters. It takes the `Scene` of a frame from each of its inputs and gives a scene on. A *knob* is
a parameter that may change while the query runs; a *setting* says the value of every knob of a query, by the name `node.knob`.

State and caching. What a node gives for a frame follows from its transform, its parameters, the values of its knobs, its inputs and,
where it is `stateful` (a tracker, a background model), the frames it saw since its last `reset`. So

- the outputs of a node over a *whole clip*, from a fresh transform on, are a pure function of (clip, `node_key`): the key holds
  the transform, parameters and knob values of the node and of all its ancestors. That is what the profiler caches (section 4,
  improvement 2).
- a cached clip is used as a whole or not at all: a stateful node that is not in the cache is run over the clip from its start
  (`run_over`), fed from its inputs' cached outputs.
- live, `update` changes a knob and keeps the state: tracks go on, since all coordinates are in `Scene.size_px`, whatever the picture's
  resolution.

Changed from the paper: a transform gets and gives typed scenes, not bytes; it may be forked, so that two queries share it until their
knobs part.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar, Protocol

import numpy as np

from configs.errors import UsageError
from models.detector import Detector
from scheduler.types import Detections, Frame
from scheduler.videostorm.types import Utility

KnobValue = str | int | float | bool
#: `node.knob` -> value.
Setting = Mapping[str, KnobValue]
#: What a transform tells of a frame: JSON values with finite numbers.
Told = Mapping[str, Any]


# --- what a query is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A parameter that may change while the query runs. values: all it may be, the default first; golden: its value in the golden
    configuration (costly, known to be good), None: the default. Raises ValueError for no values, or a golden that is none of them."""

    name: str
    values: tuple[KnobValue, ...]
    unit: str = ""
    help: str = ""
    golden: KnobValue | None = None

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"knob {self.name} needs values, each once, got {self.values}")
        if self.golden is not None and self.golden not in self.values:
            raise ValueError(f"knob {self.name}: {self.golden!r} is none of its values {self.values}")

    @property
    def default(self) -> KnobValue:
        return self.values[0]

    @property
    def best(self) -> KnobValue:
        """Its value in the golden configuration."""
        return self.values[0] if self.golden is None else self.golden


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node. inputs: ids of the nodes whose scenes it takes, the main one first; empty: it takes the camera's frame. params: JSON
    values, fixed; knobs: what may change."""

    id: str
    transform: str
    inputs: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    knobs: tuple[Knob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QuerySpec:
    """A query. quality_goal: Q_M, 0-1 against the golden configuration; lag_goal_s: L_M; quality_weight, lag_weight_per_s: a_Q and a_L;
    quality_penalty: b_Q (below the goal; not in the paper, see `scheduler.videostorm.types.Utility`). may_lag: a recording that may be
    worked off later; else the newest frame wins. Raises ValueError for no nodes, an id twice, an unknown input, a cycle."""

    name: str
    nodes: tuple[NodeSpec, ...]
    quality_goal: float = 0.0
    lag_goal_s: float = 1.0
    quality_weight: float = 1.0
    lag_weight_per_s: float = 1.0
    quality_penalty: float = 1.0
    may_lag: bool = False

    def __post_init__(self) -> None:
        ids = [node.id for node in self.nodes]
        if not ids or len(set(ids)) != len(ids):
            raise ValueError(f"query {self.name} needs nodes with an id of their own each, got {ids}")
        unknown = [f"{i} of {node.id}" for node in self.nodes for i in node.inputs if i not in ids]
        if unknown:
            raise ValueError(f"query {self.name} has no node for the inputs {', '.join(unknown)}")
        self.order  # noqa: B018  (a cycle is found here, not while frames come)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Node ids, inputs before what uses them, otherwise as they were written."""
        sorter = TopologicalSorter({node.id: node.inputs for node in self.nodes})
        try:
            return tuple(sorter.static_order())
        except CycleError as error:
            raise ValueError(f"query {self.name} runs in a circle: {' -> '.join(error.args[1])}") from None

    @cached_property
    def _by_id(self) -> dict[str, NodeSpec]:
        return {node.id: node for node in self.nodes}

    def node(self, id: str) -> NodeSpec:
        """Raises KeyError for an id that it does not have."""
        return self._by_id[id]

    @property
    def sinks(self) -> tuple[str, ...]:
        """Nodes that no other takes: the query's answers, as written."""
        used = {i for node in self.nodes for i in node.inputs}
        return tuple(node.id for node in self.nodes if node.id not in used)

    @cached_property
    def knobs(self) -> dict[str, Knob]:
        """`node.knob` -> knob, as written."""
        return {f"{node.id}.{knob.name}": knob for node in self.nodes for knob in node.knobs}

    @property
    def turnable(self) -> bool:
        """Whether a knob of it may be anything else than it is."""
        return any(len(knob.values) > 1 for knob in self.knobs.values())

    def default_setting(self) -> dict[str, KnobValue]:
        """What a new query begins with."""
        return {name: knob.default for name, knob in self.knobs.items()}

    def golden_setting(self) -> dict[str, KnobValue]:
        """What quality is measured against."""
        return {name: knob.best for name, knob in self.knobs.items()}

    def checked(self, setting: Setting) -> dict[str, KnobValue]:
        """`setting` with the defaults of what it does not name. Raises UsageError for an unknown knob or a value it cannot have."""
        for name, value in setting.items():
            knob = self.knobs.get(name)
            if knob is None:
                known = ", ".join(self.knobs) or "none"
                raise UsageError(f"query {self.name} has no knob {name}", subject=self.name, remedy=f"known: {known}")
            if value not in knob.values or isinstance(value, bool) != isinstance(knob.default, bool):
                raise UsageError(
                    f"query {self.name}: {name} cannot be {value!r}", subject=self.name,
                    remedy=f"it can be {', '.join(map(str, knob.values))}",
                )  # fmt: skip
        return {**self.default_setting(), **setting}

    def utility(self, *, base: float = 0.0) -> Utility:
        """U(Q, L) of this query (section 5)."""
        return Utility(
            base=base, quality_weight=self.quality_weight, quality_goal=self.quality_goal, lag_weight_per_s=self.lag_weight_per_s,
            lag_goal_s=self.lag_goal_s, quality_penalty=self.quality_penalty,
        )  # fmt: skip


def node_key(spec: QuerySpec, node_id: str, setting: Setting) -> str:
    """What a node's outputs over a clip depend on beside the clip: transform, parameters, knob values and the keys of its inputs.
    Ids and the query's name do not count, so queries share equal prefixes. setting: must name every knob (`QuerySpec.checked`)."""
    return node_keys(spec, setting)[node_id]


def node_keys(spec: QuerySpec, setting: Setting) -> dict[str, str]:
    """`node_key` of every node."""
    keys: dict[str, str] = {}
    for id in spec.order:
        node = spec.node(id)
        values = {knob.name: setting[f"{id}.{knob.name}"] for knob in node.knobs}
        about = [node.transform, dict(node.params), values, [keys[i] for i in node.inputs]]
        text = json.dumps(about, sort_keys=True, default=str)
        keys[id] = hashlib.sha256(text.encode()).hexdigest()[:32]
    return keys


# --- what flows -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """What is known of one frame on one way through the DAG. Never changed in place: a transform gives a new one (`with_`).

    frame: as it came. size_px: (width, height) in which all coordinates are, the camera's own picture: it stays when the resolution knob
    changes, so that tracks, zones and lines go on. image: uint8 (h, w, 3) RGB, the picture at working resolution. regions: float32
    (N, 4) xyxy of what moves, None: nobody looked. detections: None before anything was detected. track_ids: int64, one per
    detection, -1: no track (yet); None: nobody tracked. told: what the node that gave this scene says of the frame. shown: live, what
    the camera's own model said of the frame already; None: it was not asked."""

    frame: Frame
    size_px: tuple[int, int]
    image: np.ndarray
    regions: np.ndarray | None = None
    detections: Detections | None = None
    track_ids: np.ndarray | None = None
    told: Told = field(default_factory=dict)
    shown: Detections | None = None

    @property
    def at_s(self) -> float:
        """When the frame was taken."""
        return self.frame.captured_s

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels of `image` per pixel of `size_px`, across and down."""
        height, width = self.image.shape[:2]
        return width / self.size_px[0], height / self.size_px[1]

    def with_(self, **changes: Any) -> Scene:
        """A copy with other fields; `told` is empty unless given."""
        return replace(self, **{"told": {}, **changes})


def scene_of(frame: Frame, *, size_px: tuple[int, int] | None = None, shown: Detections | None = None) -> Scene:
    """The scene that a query begins with. size_px: None: the frame's own size. shown: in px of the frame."""
    own = frame.size_px
    size = size_px or own
    if shown is not None and size != own:
        shown = Detections(xyxy=scaled(shown.xyxy, own, size), score=shown.score, class_id=shown.class_id)
    regions = frame.regions if size == own else scaled(frame.regions, own, size)
    return Scene(frame=frame, size_px=size, image=frame.image, regions=regions, shown=shown)


def scaled(xyxy: Any, from_px: tuple[int, int], to_px: tuple[int, int]) -> Any:
    """Boxes (N, 4) of a picture of size `from_px` (width, height) in pixels of one of `to_px`. None stays None."""
    if xyxy is None:
        return None
    across, down = to_px[0] / from_px[0], to_px[1] / from_px[1]
    return (np.asarray(xyxy, np.float32).reshape(-1, 4) * np.array([across, down] * 2, np.float32)).astype(np.float32)


# --- who works --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What transforms are built with. camera_id: whose; fps: the rate its frames usually come in; score_min: detections below it are not
    given. detector: model name, or '' for the camera's own -> a detector; classifier: the same for crops; both may take
    long the first time and raise WeightsError or UsageError. None: this box gives none. read_text: picture -> texts
    (`edge.queries.text`), None: the usual reader."""

    camera_id: str
    fps: float = 5.0
    score_min: float = 0.25
    detector: Callable[[str], Detector] | None = None
    classifier: Callable[[str], Detector] | None = None
    read_text: Callable[[np.ndarray], Sequence[Any]] | None = None


class Transform(Protocol):
    """One step of a query. Not thread-safe: its runner calls it from one thread at a time.

    The class is what a plug-in announces (entry point group `driftbox.transforms`): it is called with (params, tools) to make one.
    name; knobs: with their usual values; params: names of its parameters; stateful: what it gives depends on earlier frames too."""

    name: ClassVar[str]
    knobs: ClassVar[tuple[Knob, ...]]
    params: ClassVar[tuple[str, ...]]
    stateful: ClassVar[bool]

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene | None:
        """The frame's scene with what this step adds. scene: of the main input; others: of the further ones. None: this frame goes no
        further (a rate knob). Arrays that were handed in stay as they are."""

    def update(self, knob: str, value: KnobValue) -> None:
        """A knob's new value, one that was declared. What was learnt from earlier frames stays."""

    def reset(self) -> None:
        """Forgets everything it learnt: as new, but for the knobs."""

    def interrupt(self) -> None:
        """The next frame does not follow the last one (the picture changed its shape, time ran backwards): what was counted stays, who
        is where is forgotten."""

    def fork(self) -> Transform:
        """An independent copy with the same state and knobs; what is large and never changes (a model) is shared."""


class TransformKind(Protocol):
    """The class of a transform, as it is announced and called."""

    name: str
    knobs: tuple[Knob, ...]
    params: tuple[str, ...]
    stateful: bool

    def __call__(self, params: Mapping[str, Any], tools: Tools) -> Transform: ...


class BaseTransform:
    """What most transforms have in common. A subclass declares the class fields and writes `process`; one with state also `reset`."""

    name: ClassVar[str] = ""
    knobs: ClassVar[tuple[Knob, ...]] = ()
    params: ClassVar[tuple[str, ...]] = ()
    stateful: ClassVar[bool] = False

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        self.given = dict(params)
        self.tools = tools
        self.values: dict[str, KnobValue] = {knob.name: knob.default for knob in self.knobs}

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene | None:
        raise NotImplementedError

    def update(self, knob: str, value: KnobValue) -> None:
        self.values[knob] = value

    def reset(self) -> None:
        """Nothing to forget."""

    def interrupt(self) -> None:
        self.reset()

    def fork(self) -> Transform:
        shared = {id(self.tools): self.tools, id(self.given): self.given}
        return copy.deepcopy(self, shared)


# --- what it costs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Compute of a node: CPU seconds of its thread, GPU seconds."""

    cpu_s: float = 0.0
    gpu_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(cpu_s=self.cpu_s + other.cpu_s, gpu_s=self.gpu_s + other.gpu_s)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(cpu_s=self.cpu_s - other.cpu_s, gpu_s=self.gpu_s - other.gpu_s)


#: What the calling thread has used so far. Read before and after each node.
Meter = Callable[[], Cost]


@dataclass(frozen=True, kw_only=True, eq=False)
class Output:
    """What a node gave for one frame. scene None: the frame went no further; cost: what this node took, zero where it did not run."""

    scene: Scene | None
    cost: Cost = field(default_factory=Cost)


def run_over(transform: Transform, feeds: Sequence[Sequence[Scene | None]], *, meter: Meter) -> list[Output]:
    """A node over a whole clip, from its start: what the profiler caches. feeds: per input, one scene or None per frame of the clip,
    all equally long. One output per frame. Whatever the transform raises passes through; its knobs are set by the caller before."""
    transform.reset()
    outputs: list[Output] = []
    for scenes in zip(*feeds, strict=True):
        present = [scene for scene in scenes if scene is not None]
        if len(present) < len(scenes):
            outputs.append(Output(scene=None))
            continue
        before = meter()
        scene = transform.process(present[0], present[1:])
        outputs.append(Output(scene=scene, cost=meter() - before))
    return outputs


def total(costs: Iterable[Cost]) -> Cost:
    """The sum."""
    return sum(costs, Cost())
