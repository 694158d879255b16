"""The profile of a declared query (`cameras[].queries`): its own graph, its own knobs, judged against its golden setting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from configs.errors import JobError, UsageError
from configs.schema import BoxConfig
from edge.profiler.asked import DEAR, SHOWN, shown_nodes
from edge.profiler.clips import Footage
from edge.profiler.graph import Graph, Ledger
from edge.profiler.measure import GoldenJudge, Measurer, Where
from edge.profiler.models import model_mib
from edge.profiler.profile import CameraProfile, ProfilingCost
from edge.profiler.profiler import Plan, Told, exhaustive, greedy, silent
from edge.queries.base import Meter, QuerySpec, Setting, Tools, total
from edge.queries.registry import build_node, query_spec
from models.detector import Detector
from models.serving.cache import machine
from models.tasks.base import Scoring
from models.tasks.detection import DETECTION


@dataclass(kw_only=True)
class QueryModels:
    """The models that a query's nodes ask, each loaded once and warm before it is measured. load: (model, '' for the camera's own)
    -> it; picture: to warm up on."""

    load: Callable[[str], Detector]
    picture: np.ndarray
    _loaded: dict[str, Detector] = field(default_factory=dict)

    def of(self, model: str) -> Detector:
        if model not in self._loaded:
            detector = self._loaded[model] = self.load(model)
            detector.predict([self.picture])
        return self._loaded[model]

    def memory_mib(self, models: Iterable[str]) -> float:
        """Of the tensors of these together."""
        return sum(model_mib(self.of(model)) for model in models)


def asked_models(spec: QuerySpec, setting: Setting) -> frozenset[str]:
    """The models that a setting's nodes ask, '' for the camera's own; what `read` brings itself is not among them."""
    return frozenset(str(setting.get(f"{node.id}.model", "")) for node in spec.nodes if node.transform in SHOWN)


def spec_of_query(config: BoxConfig, camera: str, name: str) -> QuerySpec:
    """Raises UsageError for a camera or a query that is not there, or one without knobs; what `query_spec` raises."""
    entry = next((c for c in config.cameras if c.id == camera), None)
    queries = {} if entry is None else {query.name: query for query in entry.queries}
    if entry is None or name not in queries:
        known = ", ".join(queries) or "none"
        raise UsageError(f"camera {camera} has no query '{name}'", subject=camera, remedy=f"its queries: {known}")
    spec = query_spec(queries[name], task=entry.task, may_lag=entry.may_lag)
    if not spec.turnable:
        raise UsageError(f"query {name} of {camera} has no knob to turn", subject=name, remedy="declare knobs for its nodes")
    return spec


def profile_query(
    spec: QuerySpec, footage: Footage, load: Callable[[str], Detector], *, camera: str, task: str, model: str, scoring: Scoring,
    meter: Meter, on_gpu: bool, watched_fps: float, plan: Plan | None, told: Told = silent,
) -> CameraProfile:  # fmt: skip
    """plan: None: every setting. Raises JobError when the golden setting itself cannot be run, UsageError when nothing could be
    measured."""
    began_s = time.monotonic()
    models = QueryModels(load=load, picture=footage.clip.scenes[0].image)
    for knob, values in spec.knobs.items():
        for value in values.values if knob.endswith(".model") else ():
            models.of(str(value))
    tools = Tools(camera_id=camera, fps=footage.fps, score_min=scoring.score_min, detector=models.of, classifier=models.of)
    dear = [node.id for node in spec.nodes if node.transform in DEAR]
    graph = Graph(spec, footage.clip, lambda node, values: build_node(node, tools, values), meter=meter, dear=dear)
    where = Where(device_nodes=dear, on_gpu=on_gpu)
    told("its golden setting", 0, 1)
    try:
        golden = graph.run(spec.golden_setting())
    except Exception as error:
        raise JobError(
            f"query {spec.name} of {camera} does not run even with its golden setting: {type(error).__name__}: {error}",
            subject=camera,
        ) from error
    measurer = Measurer(
        graph=graph, judge=GoldenJudge(golden=golden, task=DETECTION, scoring=scoring), where=where, ledger=Ledger(),
        memory_mib=lambda setting: models.memory_mib(asked_models(spec, setting)),
        height_px=lambda setting: next((int(v) for k, v in setting.items() if k.endswith(".height_px")), 0),
        shown=lambda setting: shown_nodes(spec, setting),
    )  # fmt: skip
    found = exhaustive(measurer, told=told) if plan is None else greedy(measurer, plan, told=told)
    if not found.options:
        raise UsageError(f"{spec.name} of {camera}: no setting could be measured", subject=camera)
    cost = ProfilingCost(
        search_s=found.spent_s, truth_s=where.spent_s(total(golden.work.values())), settings=found.tried, of_settings=found.of,
        every_s=found.every_s, every_measured=plan is None, took_s=time.monotonic() - began_s,
    )  # fmt: skip
    given: dict[str, Any] = {"assumed": ""} if footage.rates else {"assumed": "samples stand for frames at the full rate"}
    return CameraProfile(
        camera=f"{camera}/{spec.name}", task=task, model=model, golden="its golden setting", quality_name="quality",
        source=footage.source, clip_s=footage.clip.seconds, frames=len(footage.clip.scenes), fps=footage.fps,
        watched_fps=watched_fps, machine=machine(), device="cuda" if on_gpu else "cpu", measured_utc=time.time(),
        beta=plan.beta if plan is not None else 0.0, options=tuple(sorted(found.options, key=lambda o: -o.demand)), cost=cost,
        left_out=found.left_out, **given,
    )  # fmt: skip
