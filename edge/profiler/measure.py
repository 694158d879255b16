"""One setting of a query measured on a clip: how good it is, what it needs. Card: VideoStorm, section 4.

Quality is the task's (F1 at IoU 0.3, accuracy) over *all* frames of the full rate: a frame that the setting skips, or holds
back, is
answered by the last one it analysed, because that is what people see meanwhile. Before the first analysed frame nothing is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from configs.errors import DriftboxError, JobCancelled, JobError, redact
from edge.evaluate.seen import seen_counts
from edge.profiler.graph import SOURCE, Graph, Ledger, Ran
from edge.profiler.profile import MeasuredOption
from edge.queries.base import Cost, Scene, Setting
from edge.shadow import is_finite
from models.evaluate import MatchCounts
from models.tasks.base import Scoring, Task
from scheduler.types import Detections

#: Numbers that differ by this part of the larger are the same answer (a dwell time, say).
TOLD_TOLERANCE = 0.05


class Judge(Protocol):
    """How good a setting's answers are, 0-1. Raises JobError for answers that are none (NaN)."""

    def __call__(self, ran: Ran) -> float: ...


def held(scenes: Sequence[Scene | None]) -> list[tuple[Scene | None, int]]:
    """(what is shown at each frame, its age in frames): the last scene there was; None before the first."""
    shown: list[tuple[Scene | None, int]] = []
    last, at = None, 0
    for number, scene in enumerate(scenes):
        if scene is not None:
            last, at = scene, number
        shown.append((last, number - at if last is not None else 0))
    return shown


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelJudge:
    """Against golden labels, one per frame of the clip, of the sink that detects. sink: its id."""

    sink: str
    task: Task
    labels: Sequence[Detections]
    scoring: Scoring

    def __call__(self, ran: Ran) -> float:
        scenes = ran.sinks[self.sink]
        if len(scenes) != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels for {len(scenes)} frames")
        return MatchCounts.total(map(self._counts, held(scenes), self.labels)).f1

    def _counts(self, shown: tuple[Scene | None, int], labels: Detections) -> MatchCounts:
        scene, age = shown
        said = scene.detections if scene is not None and scene.detections is not None else Detections.empty()
        if not is_finite(said):
            raise JobError("it gives numbers that are none (NaN or infinite)", code="nan")
        judge = partial(seen_counts, self.task) if age else self.task.counts
        return judge(said, labels, self.scoring)


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenJudge:
    """Against the answers of the golden setting: detections as labels, and what a node tells (counts, texts, dwell times) value
    by value.
    The quality of a query is the mean over its sinks."""

    golden: Ran
    task: Task
    scoring: Scoring

    def __call__(self, ran: Ran) -> float:
        found = [self._sink(ran.sinks[sink], scenes) for sink, scenes in self.golden.sinks.items()]
        return sum(found) / len(found)

    def _sink(self, scenes: Sequence[Scene | None], golden: Sequence[Scene | None]) -> float:
        truth = [scene for scene, _ in held(golden)]
        if any(scene is not None and scene.told for scene in truth):
            pairs = zip(held(scenes), truth, strict=True)
            same = [told_quality(_told(shown[0]), _told(scene)) for shown, scene in pairs]
            return sum(same) / len(same)
        labels = [s.detections if s is not None and s.detections is not None else Detections.empty() for s in truth]
        judge = LabelJudge(sink="", task=self.task, labels=labels, scoring=self.scoring)
        return judge(Ran(setting={}, sinks={"": scenes}, costs={}, work={}))


def _told(scene: Scene | None) -> Mapping[str, Any]:
    return scene.told if scene is not None else {}


def told_quality(said: Mapping[str, Any], golden: Mapping[str, Any]) -> float:
    """The part of what the golden setting tells that is told alike (0-1); 1 where both tell nothing. Numbers: as near as they
    are."""
    values = _leaves(golden)
    others = _leaves(said)
    names = values.keys() | others.keys()
    return sum(_alike(others.get(name), values.get(name)) for name in names) / len(names) if names else 1.0


def _leaves(told: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in told.items():
        path = f"{prefix}{name}"
        found.update(_leaves(value, f"{path}.") if isinstance(value, Mapping) else {path: value})
    return found


def _alike(said: Any, golden: Any) -> float:
    numbers = [x for x in (said, golden) if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) < 2:
        return float(said == golden)
    if not all(map(math.isfinite, numbers)):
        raise JobError("it gives numbers that are none (NaN or infinite)", code="nan")
    largest = max(map(abs, numbers))
    apart = abs(said - golden) / largest if largest > 0 else 0.0
    return 1.0 if apart <= TOLD_TOLERANCE else 1.0 - apart


# --- a setting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Seconds per second of video; see `MeasuredOption`."""

    device_s: float
    cpu_s: float
    decode_s: float

    @property
    def both_s(self) -> float:
        return self.device_s + self.cpu_s


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which work goes where. device_nodes: ids of nodes whose work needs the camera's share; on_gpu: that is a GPU's time, else a
    core's."""

    device_nodes: Collection[str] = ()
    on_gpu: bool = False

    def demand(self, ran: Ran, seconds: float) -> Demand:
        """Of a setting, per second of video."""
        device, everything = ran.cost(self.device_nodes), ran.cost()
        device_s = device.gpu_s if self.on_gpu else device.cpu_s
        cpu_s = everything.cpu_s - (0.0 if self.on_gpu else device.cpu_s)
        return Demand(
            device_s=device_s / seconds, cpu_s=max(0.0, cpu_s) / seconds, decode_s=ran.costs[SOURCE].cpu_s / seconds
        )  # fmt: skip

    def spent_s(self, cost: Cost) -> float:
        """Seconds of device and cores together."""
        return cost.cpu_s + (cost.gpu_s if self.on_gpu else 0.0)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A setting: what it is worth; new_s: what measuring it added to what had been done; ran: its answers."""

    option: MeasuredOption
    demand: Demand
    new_s: float


class CannotMeasure(DriftboxError):
    """A setting that throws or gives nonsense. The search goes on without it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurer:
    """Measures settings of a query on one clip, one after the other. memory_mib, height_px: of a setting, the memory of the models it
    needs and the height to which its pictures are reduced (0: not). shown: ids of its nodes that a live box answers from what is shown.
    fps: frames per second that it analyses in the long run, where that is known: a short clip holds a few more of a low rate, and the
    demand is corrected for that; None: as counted."""

    graph: Graph
    judge: Judge
    where: Where
    ledger: Ledger
    memory_mib: Callable[[Setting], float] = lambda setting: 0.0
    height_px: Callable[[Setting], int] = lambda setting: 0
    shown: Callable[[Setting], Collection[str]] = lambda setting: ()
    fps: Callable[[Setting], float] | None = None

    def measure(self, setting: Setting) -> Measured:
        """Raises CannotMeasure, JobCancelled; UsageError for a setting that the query cannot have."""
        name = name_of(setting)
        whole = self.graph.spec.checked(setting)
        try:
            ran = self.graph.run(whole)
            quality = float(self.judge(ran))
        except JobCancelled:
            raise
        except Exception as error:  # whatever a transform, or a plug-in's, raises
            said = str(error) if isinstance(error, DriftboxError) else redact(f"{type(error).__name__}: {error}")
            raise CannotMeasure(f"{name} is left out: {said}", subject=name) from error
        if not math.isfinite(quality) or not 0 <= quality <= 1:
            raise CannotMeasure(f"{name} is left out: its quality is {quality}, which is none", subject=name)
        fps, demand = self._rated(whole, ran)
        if not all(map(math.isfinite, (demand.device_s, demand.cpu_s))):
            raise CannotMeasure(f"{name} is left out: what it costs is no number", subject=name)
        option = MeasuredOption(
            name=name, setting=dict(whole), quality=quality, device_s=demand.device_s, cpu_s=demand.cpu_s,
            decode_s=demand.decode_s, memory_mib=self.memory_mib(whole), fps=fps,
            height_px=self.height_px(whole), shown_s=min(demand.device_s, self._shown_s(whole, ran)),
        )  # fmt: skip
        return Measured(option=option, demand=demand, new_s=self.where.spent_s(self.ledger.charge(ran)))

    def _shown_s(self, setting: Setting, ran: Ran) -> float:
        cost = ran.cost(self.shown(setting))
        return (cost.gpu_s if self.where.on_gpu else cost.cpu_s) / self.graph.clip.seconds

    def _rated(self, setting: Setting, ran: Ran) -> tuple[float, Demand]:
        """(frames analysed per second of video, what that needs)."""
        seconds = self.graph.clip.seconds
        demand, counted = self.where.demand(ran, seconds), self._analysed(ran) / seconds
        if self.fps is None or counted <= 0:
            return counted, demand
        fps = self.fps(setting)
        part = fps / counted
        cpu_s = demand.decode_s + part * (demand.cpu_s - demand.decode_s)
        return fps, Demand(device_s=part * demand.device_s, cpu_s=cpu_s, decode_s=demand.decode_s)

    def is_free(self, setting: Setting) -> bool:
        """Whether measuring it needs nothing dear that was not done yet. A setting that throws on the way is not."""
        try:
            return self.graph.is_free(setting, self.ledger)
        except JobCancelled:
            raise
        except Exception:  # it will be said when it is measured
            return False

    def _analysed(self, ran: Ran) -> int:
        """Frames that came to an answer, of the sink that gave most."""
        return max((sum(scene is not None for scene in scenes) for scenes in ran.sinks.values()), default=0)


def name_of(setting: Setting) -> str:
    """`fps=2.5 height_px=180`: knobs by their short names, as long as those differ."""
    short = [name.rpartition(".")[2] for name in setting]
    names = short if len(set(short)) == len(short) else list(setting)
    return " ".join(f"{name}={value}" for name, value in zip(names, setting.values(), strict=True)) or "as it is"
