"""What is asked of every camera, and what its knobs are worth: the schema of `/api/v1/queries`, and the seam (`edge.box_queries`)."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import Field

from edge.control import Arguments
from edge.status import QueryNodeView, QueryView, View

KnobValue = bool | int | float | str


class KnobView(View):
    """Something that may be turned while the query runs."""

    name: str = Field(description="`node.knob`.")
    value: KnobValue | None = Field(default=None, description="Now.")
    values: tuple[KnobValue, ...] = Field(description="All it may be, the default first.")
    golden: KnobValue = Field(description="Its value in the golden setting, which quality is measured against.")
    unit: str = ""
    help: str = ""


class GraphNode(QueryNodeView):
    """One step of a query: what it takes, what it costs, what may be turned."""

    inputs: tuple[str, ...] = Field(
        default=(), description="Steps whose result it takes, the main one first; empty: the camera's frame."
    )
    params: dict[str, Any] = Field(default={}, description="Its fixed parameters.")
    answers: bool = Field(default=False, description="No other step takes its result: it is an answer of the query.")
    knobs: tuple[KnobView, ...] = ()


class ProfilePoint(View):
    """One setting as it was measured."""

    name: str
    setting: dict[str, KnobValue] = {}
    quality: float = Field(description="0-1 against the golden setting.")
    demand_pct: float = Field(description="Of the device that models run on and of cores together, percent of one.")
    device_pct: float = Field(description="The part of it that the camera's share pays.")
    memory_mib: float = 0.0
    fps: float = 0.0
    height_px: int = Field(default=0, description="To which the picture is reduced; 0: not.")
    on_front: bool = Field(description="No other setting gives as much for less.")
    in_force: bool = False


class ProfileView(View):
    """A stored resource-quality profile (`driftbox profile`)."""

    version: int
    measured_utc: float
    source: str = Field(description="What it was measured on.")
    clip_s: float = Field(description="Length of that.")
    quality_name: str
    points: tuple[ProfilePoint, ...]
    took_s: float = Field(description="What making it took, on the clock.")
    tried: int = Field(description="Settings that were tried ...")
    of_settings: int = Field(description="... of so many.")
    left_out: tuple[str, ...] = Field(default=(), description="Settings that could not be measured, and why.")
    assumed: str = ""


class PlanSetting(View):
    """What a plan may choose for a camera's own model."""

    name: str
    demand_pct: float = Field(description="Share that keeps up with the camera, percent of one GPU or core.")
    quality_frac: float = Field(description="What it keeps of the model's quality (0-1).")
    fps: float = Field(description="Frames analysed per second.")
    height_px: int = 0
    queries: dict[str, dict[str, KnobValue]] = Field(default={}, description="What it sets in the camera's queries, by name.")
    in_force: bool = False


class QueryGraph(QueryView):
    """A declared query: its steps as a graph, its knobs, its newest answer."""

    graph: tuple[GraphNode, ...] = Field(default=(), description="Its steps, inputs before what uses them.")
    quality_goal: float = Field(default=0.0, description="Least quality (0-1).")
    lag_goal_s: float = Field(default=0.0, description="How old a result may be, seconds.")
    profile: ProfileView | None = None
    planned: bool = Field(
        default=False, description="Its knobs are chosen by the plan; what a person sets holds until the next choice."
    )


class CameraQueriesView(View):
    """One camera."""

    camera: str
    title: str
    quality: float | None = Field(default=None, description="Of its serving model, newest (0-1).")
    share_pct: float = Field(default=0.0, description="What its inference is promised, percent of one GPU or core.")
    settings: tuple[PlanSetting, ...] = Field(default=(), description="What a plan chooses from, dearest first.")
    measured: bool = Field(default=False, description="They come from its stored profile; else they are the usual ones.")
    profile: ProfileView | None = None
    profile_problem: str = Field(default="", description="Why its stored profile is not used.")
    queries: tuple[QueryGraph, ...] = ()
    frames_skipped: int = Field(
        default=0, description="Analysed frames that its queries left out, because a newer one was there."
    )


class QueriesView(View):
    cameras: tuple[CameraQueriesView, ...] = ()


class SettingIn(Arguments):
    setting: dict[str, KnobValue] = Field(
        min_length=1, max_length=50, description="`node.knob` -> value; what is not named keeps its value."
    )


class QueriesSource(Protocol):
    """Called from web threads. Raise UsageError ('not_found'), StorageError."""

    def cameras(self) -> QueriesView: ...

    def camera(self, camera: str) -> CameraQueriesView: ...

    def set_knobs(self, camera: str, query: str, setting: dict[str, KnobValue], *, by: str) -> CameraQueriesView:
        """Takes effect with the next frame. UsageError for a knob or a value that the query does not have."""
