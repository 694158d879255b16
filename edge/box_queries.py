"""`edge.queries_view.QueriesSource` over a running box: its queries as they run, its profiles as they are stored."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from configs.errors import StorageError, UsageError, redact
from edge.box_status import node_view, query_view
from edge.profiler.profile import CameraProfile, MeasuredOption, live_options, read_profile
from edge.queries.base import QuerySpec, Setting
from edge.queries.live import QueryReport
from edge.queries_view import (
    CameraQueriesView,
    GraphNode,
    KnobValue,
    KnobView,
    PlanSetting,
    ProfilePoint,
    ProfileView,
    QueriesView,
    QueryGraph,
)
from edge.runtime import BoxRuntime, Watched
from scheduler.videostorm.joint import Joint

log = logging.getLogger("driftbox")


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A profile as it lies in the database; problem: why it cannot be read."""

    version: int
    profile: CameraProfile | None
    problem: str = ""


class BoxQueries:
    """See the module."""

    def __init__(self, runtime: BoxRuntime) -> None:
        self._runtime = runtime

    def cameras(self) -> QueriesView:
        return QueriesView(cameras=tuple(self._view(id, w) for id, w in sorted(dict(self._runtime.watched).items())))

    def camera(self, camera: str) -> CameraQueriesView:
        return self._view(camera, self._watched(camera))

    def set_knobs(self, camera: str, query: str, setting: dict[str, KnobValue], *, by: str) -> CameraQueriesView:
        entry = self._watched(camera)
        known = {report.name for report in entry.queries.reports()} if entry.queries is not None else set()
        if entry.queries is None or query not in known:
            told = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"camera {camera} has no query '{query}'", subject=camera, code="not_found", remedy=f"its queries: {told}"
            )
        entry.queries.set_knobs(query, setting)
        log.info("%s: %s set %s of the query %s", camera, by, ", ".join(sorted(setting)), query)
        return self._view(camera, entry)

    def _watched(self, camera: str) -> Watched:
        entry = self._runtime.watched.get(camera)
        if entry is None:
            raise UsageError(f"no camera has the id '{camera}'", subject=camera, code="not_found", remedy="see the Live page")
        return entry

    def _view(self, camera: str, entry: Watched) -> CameraQueriesView:
        stream = self._runtime.parts.engine.state.streams.get(camera)
        knob, stored = stream.knob if stream else None, self._stored(camera)
        own = entry.running.base.name if entry.running is not None else None
        return CameraQueriesView(
            camera=camera, title=entry.title, quality=stream.quality if stream else None,
            share_pct=stream.infer_pct if stream else 0.0,
            settings=tuple(
                _setting(joint, in_force=joint.knobs.name == knob)
                for joint in entry.joined()
            ),
            measured=entry.menu is not None, profile=_camera_profile(stored, own if entry.menu is not None else None),
            profile_problem=_problem(stored, entry), queries=self._queries(entry),
            frames_skipped=entry.queries.skipped if entry.queries is not None else 0,
        )  # fmt: skip

    def _queries(self, entry: Watched) -> tuple[QueryGraph, ...]:
        if entry.queries is None:
            return ()
        states = entry.queries.runner.queries
        return tuple(
            self._graph(entry, report, states[report.name].spec if report.name in states else None)
            for report in entry.queries.reports()
        )

    def _graph(self, entry: Watched, report: QueryReport, spec: QuerySpec | None) -> QueryGraph:
        about = query_view(report)
        if spec is None:
            return QueryGraph(**about.model_dump())
        return QueryGraph(
            **about.model_dump(exclude={"nodes"}), nodes=about.nodes, graph=_nodes(report, spec), quality_goal=spec.quality_goal,
            lag_goal_s=spec.lag_goal_s, planned=report.name in entry.asked.planned(),
            profile=_query_profile(self._stored(f"{entry.camera.id}/{report.name}"), report.setting),
        )  # fmt: skip

    def _stored(self, subject: str) -> _Stored | None:
        found = self._runtime.parts.store.profile(subject)
        if found is None:
            return None
        version, text = found
        try:
            return _Stored(version=version, profile=read_profile(text, subject=subject))
        except StorageError as error:
            return _Stored(version=version, profile=None, problem=str(error))


def _setting(joint: Joint, *, in_force: bool) -> PlanSetting:
    knobs = joint.knobs
    return PlanSetting(
        name=knobs.name, demand_pct=knobs.demand_pct, quality_frac=knobs.quality_frac, fps=knobs.fps, height_px=knobs.height_px,
        queries={name: dict(setting) for name, setting in joint.settings.items()}, in_force=in_force,
    )  # fmt: skip


def _nodes(report: QueryReport, spec: QuerySpec) -> tuple[GraphNode, ...]:
    done = {node.id: node for node in report.nodes}
    found = []
    for id in spec.order:
        node = spec.node(id)
        knobs = tuple(
            KnobView(
                name=f"{id}.{knob.name}", value=report.setting.get(f"{id}.{knob.name}"), values=knob.values, golden=knob.best,
                unit=knob.unit, help=knob.help,
            )
            for knob in node.knobs
        )  # fmt: skip
        about = node_view(done[id]).model_dump() if id in done else {"id": id, "transform": node.transform}
        found.append(GraphNode(**about, inputs=node.inputs, params=_plain(node.params), answers=id in spec.sinks, knobs=knobs))
    return tuple(found)


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON, with nothing secret in it; what a package put there that is no JSON is told as text."""
    told: dict[str, Any] = json.loads(redact(json.dumps(dict(params), default=str)))
    return told


def _problem(stored: _Stored | None, entry: Watched) -> str:
    if stored is None or entry.menu is not None:
        return ""
    return stored.problem or "it was made for something else than this camera is watched with now; the notes say what"


def _camera_profile(stored: _Stored | None, knob: str | None) -> ProfileView | None:
    if stored is None or stored.profile is None:
        return None
    profile = stored.profile
    # A live camera turns rate and height only: of several settings with the same name the one that serves is in force.
    current = live_options(profile).get(knob or "")
    return _profile_view(stored.version, profile, current.name if current is not None else None)


def _query_profile(stored: _Stored | None, setting: Setting) -> ProfileView | None:
    if stored is None or stored.profile is None:
        return None
    same = (o for o in stored.profile.options if o.setting and all(setting.get(k) == v for k, v in o.setting.items()))
    current = next((o.name for o in same), None)
    return _profile_view(stored.version, stored.profile, current)


def _profile_view(version: int, profile: CameraProfile, current: str | None) -> ProfileView:
    front = {o.name for o in profile.front()}
    return ProfileView(
        version=version, measured_utc=profile.measured_utc, source=redact(profile.source), clip_s=profile.clip_s,
        quality_name=profile.quality_name, points=tuple(_point(o, front, current) for o in profile.options),
        took_s=profile.cost.took_s, tried=profile.cost.settings, of_settings=profile.cost.of_settings,
        left_out=tuple(redact(f"{one.name}: {one.reason}") for one in profile.left_out), assumed=profile.assumed,
    )  # fmt: skip


def _point(option: MeasuredOption, front: set[str], current: str | None) -> ProfilePoint:
    return ProfilePoint(
        name=option.name, setting=dict(option.setting), quality=option.quality, demand_pct=round(100 * option.demand, 4),
        device_pct=round(100 * option.device_s, 4), memory_mib=option.memory_mib, fps=option.fps, height_px=option.height_px,
        on_front=option.name in front, in_force=option.name == current,
    )  # fmt: skip
