"""What the queries of a live camera may run with, and what they really need: the stored profiles `CAMERA/QUERY`, as a menu.

A query begins with the frame that people are shown and the boxes in it, so decoding and the camera's own model are not its demand; what
it asks other models, reads, tracks and counts is. That is metered, frame by frame, and told to the planner where it differs from what
was profiled (mu), or where nothing was profiled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from configs.errors import UsageError
from edge.profiler.profile import HEADROOM, CameraProfile, MeasuredOption
from edge.queries.base import QuerySpec, Setting
from edge.queries.registry import transform_class
from scheduler.ekya.usual_knobs import usual_quality_frac
from scheduler.types import KnobProfile
from scheduler.videostorm.joint import Joint, QueryMenu, QueryOption, join
from scheduler.videostorm.reprofile import ProfileAge, ReprofileRules, reviewed
from scheduler.videostorm.search import pareto

#: How far a measured cost may be from what the planner believes before it is told.
COST_TOLERANCE_FRAC = 0.3
#: Where hardly anything is computed, a part of it is nothing: smaller changes of the demand (pct) are not told.
COST_TOLERANCE_PCT = 0.2
#: Real over profiled demand, at most and at least: a frame that took a minute once is no law.
MU_MAX = 20.0
#: Stands for all queries of a camera of which none was profiled.
UNPROFILED = "queries"
#: Transforms that ask a model: their work is paid from the camera's share.
DEAR: tuple[str, ...] = ("detect", "classify", "read")
#: Those of them that the camera's own model may have answered already (`edge.queries.base.Scene.shown`).
SHOWN: tuple[str, ...] = ("detect", "classify")
#: Knobs of which is known how much of the work a value leaves: (value, frames per second of the camera) -> every how-many-th frame.
STRIDES_OF: Mapping[tuple[str, str], Callable[[float, float], float]] = {
    ("decode", "fps"): lambda value, fps: max(1.0, fps / value) if value > 0 else 1.0,
    ("read", "every"): lambda value, fps: value,
}
#: Transforms with a memory that samples do for, seconds apart as they are: samples keep what moved, and a text is read from one picture.
FROM_SAMPLES = ("motion", "read")


def beside_s(option: MeasuredOption, device: str) -> float:
    """Seconds of the device per second of video that a live box needs for a query's setting, beside the camera's own model and decoder.
    On a CPU box the queries' thread takes it from the same cores."""
    own = max(0.0, option.device_s - option.shown_s)
    return own + max(0.0, option.cpu_s - option.decode_s) if device == "cpu" else own


def query_menu_of(profile: CameraProfile, spec: QuerySpec) -> QueryMenu | None:
    """The front of a query's profile, best first; None: nothing of it can be set as the query is declared today."""
    usable = [o for o in profile.options if o.quality > 0 and _can(spec, o.setting)]
    if not usable:
        return None
    best = max(o.quality for o in usable)
    costs_pct = [100 * HEADROOM * beside_s(o, profile.device) for o in usable]
    front = pareto([(cost, o.quality) for cost, o in zip(costs_pct, usable, strict=True)])
    options = tuple(
        QueryOption(
            setting=dict(usable[i].setting),
            demand_pct=round(costs_pct[i], 4),
            quality=round(usable[i].quality / best, 4),
            fps=usable[i].fps,
        )
        for i in reversed(front)
    )
    return QueryMenu(query=spec.name, options=options, weight=spec.quality_weight)


def _can(spec: QuerySpec, setting: Setting) -> bool:
    try:
        spec.checked(setting)
    except UsageError:
        return False
    return True


def shown_nodes(spec: QuerySpec, setting: Setting) -> tuple[str, ...]:
    """Nodes that a live box answers from what is shown: they ask no model but the camera's own. `classify` after `detect` asks one."""
    detected = {node.id for node in spec.nodes if node.transform == "detect"}
    return tuple(
        node.id
        for node in spec.nodes
        if node.transform in SHOWN and not setting.get(f"{node.id}.model") and not (node.transform == "classify" and detected)
    )


@dataclass(frozen=True, kw_only=True)
class DefaultMenu:
    """What a query may run with before it has a profile. menu: best first; demands are parts of what all such queries of the camera need
    together when each looks at every frame; usual: the one of its settings that it begins with."""

    menu: QueryMenu
    usual: Setting

    def demand_at(self, running: Joint, fps: float) -> float:
        """Of what runs, where the camera analyses `fps` frames per second."""
        setting = running.settings.get(self.menu.query, self.usual)
        found = next((o for o in self.menu.options if o.setting == setting), None)
        return found.demand_at(fps) if found is not None else 0.0


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """setting: of the knobs that say how often; stride: every how-many-th frame the model is asked; fps: frames per second that the
    query takes."""

    setting: Setting
    stride: float
    fps: float


def default_menus(specs: Iterable[QuerySpec], fps: float) -> dict[str, DefaultMenu]:
    """Of queries that nobody has profiled. fps: the camera's full rate. Only where there is something to save: a query that asks one
    model beside the camera's own, and has a knob that says how often; all other knobs stay. What an answer is worth that is some frames
    old is taken from the usual curve; what each needs is not known apart, so all are taken for equal."""
    paces = {spec.name: (spec, found) for spec in specs if len(found := _paces(spec, fps)) > 1}
    return {
        name: DefaultMenu(menu=_default_menu(spec, found, 1 / len(paces)), usual=found[0].setting)
        for name, (spec, found) in paces.items()
    }


def _default_menu(spec: QuerySpec, paces: Iterable[_Pace], part: float) -> QueryMenu:
    ordered = sorted(paces, key=lambda pace: pace.stride)
    best = usual_quality_frac(ordered[0].stride)
    options = tuple(
        QueryOption(
            setting=pace.setting, demand_pct=part / pace.stride, fps=pace.fps,
            quality=round(usual_quality_frac(pace.stride) / best, 4),
        )
        for pace in ordered
    )  # fmt: skip
    return QueryMenu(query=spec.name, options=options, weight=spec.quality_weight)


def _paces(spec: QuerySpec, fps: float) -> list[_Pace]:
    """What a query begins with, then other strides that its knobs allow, each once. Empty: nothing is known of it."""
    shown = shown_nodes(spec, spec.default_setting())
    fronts = [node for node in spec.nodes if node.transform == "decode"]
    dear = [node for node in spec.nodes if node.transform in DEAR and node.id not in shown]
    if len(dear) != 1 or len(fronts) > 1:
        return []
    knobs = [(node, knob) for node in (*fronts, *dear) for knob in node.knobs if (node.transform, knob.name) in STRIDES_OF]
    found: dict[float, _Pace] = {}
    for values in itertools.product(*(knob.values for _, knob in knobs)):
        chosen = [(node, knob.name, value) for (node, knob), value in zip(knobs, values, strict=True)]
        strides = {node.transform: STRIDES_OF[node.transform, knob](float(value), fps) for node, knob, value in chosen}
        pace = _Pace(
            setting={f"{node.id}.{knob}": value for node, knob, value in chosen}, stride=math.prod(strides.values()),
            fps=fps / strides.get("decode", 1.0),
        )  # fmt: skip
        found.setdefault(round(pace.stride, 6), pace)
    return list(found.values())


def by_itself(spec: QuerySpec, *, every_frame: bool) -> bool:
    """Whether a box can profile a query on what it has: there is a knob to turn, and, where samples are all that it has of the camera,
    nothing is followed from frame to frame (by a tracker, or a package's transform with a memory)."""
    follows = (n for n in spec.nodes if transform_class(n.transform).stateful and n.transform not in FROM_SAMPLES)
    return spec.turnable and (every_frame or not any(follows))


@dataclass(kw_only=True)
class Asked:
    """A camera's queries, as the planner sees them. versions: of the stored profiles, by query; menus: what those in use offer, by
    query; mu: real over profiled demand of all of them together; flat_pct: demand at the full rate where none was profiled. defaults:
    what is offered until one is, from when it is known what they need. ages: what is remembered of each query's profile; by_itself:
    queries that the box can profile."""

    versions: Mapping[str, int] = field(default_factory=dict)
    menus: Mapping[str, QueryMenu] = field(default_factory=dict)
    mu: float = 1.0
    flat_pct: float = 0.0
    defaults: Mapping[str, DefaultMenu] = field(default_factory=dict)
    ages: dict[str, ProfileAge] = field(default_factory=dict)
    by_itself: frozenset[str] = frozenset()

    def due(self, rules: ReprofileRules, *, at_s: float, drifted: bool, missing: bool) -> dict[str, str]:
        """Queries that should be profiled, and why. missing: among them those that the box can profile and that have no profile in use.
        What is metered is of all queries together, so it speaks against a profile only where each has one."""
        mu = self.mu if self.menus.keys() == self.ages.keys() else None
        due: dict[str, str] = {}
        for query in sorted(self.ages):
            none = query not in self.menus
            if none and not (missing and query in self.by_itself):
                continue
            self.ages[query], why = reviewed(
                self.ages[query], rules, at_s=at_s, mu=mu, drifted=drifted and not none, missing=none
            )
            due.update({query: why} if why else {})
        return due

    def joined(self, base: tuple[KnobProfile, ...], fps: float) -> tuple[Joint, ...]:
        """The camera's menu with its queries. base: its own knobs; fps: its full rate."""
        if self.menus:
            return join(base, self.menus.values(), mu=self.mu)
        if self.flat_pct <= 0:
            return join(base, ())
        if self.defaults:
            return join(base, [one.menu for one in self.defaults.values()], mu=self.flat_pct)
        flat = QueryOption(setting={}, demand_pct=self.flat_pct, quality=1.0, fps=fps)
        return tuple(
            Joint(knobs=one.knobs, base=one.base) for one in join(base, [QueryMenu(query=UNPROFILED, options=(flat,))])
        )  # fmt: skip

    def measured(self, cost_s: float, *, running: Joint | None, fps: float) -> bool:
        """A frame that the camera analyses costs its queries `cost_s`; whether that changes what is offered. running: with what; fps:
        the camera's full rate."""
        if running is None:
            return False
        if not self.menus:
            demand_pct = round(100 * HEADROOM * cost_s * fps * self._as_at_every_frame(running, fps), 4)
            if not _differs(demand_pct, self.flat_pct):
                return False
            self.flat_pct = demand_pct
            return True
        rate = running.base.fps or fps
        profiled_pct = sum(self._profiled_pct(query, setting, rate) for query, setting in running.settings.items())
        real_pct = 100 * HEADROOM * cost_s * rate
        if profiled_pct <= 0 or real_pct <= 0 or not _differs(real_pct, self.mu * profiled_pct):
            return False
        self.mu = min(MU_MAX, max(1 / MU_MAX, real_pct / profiled_pct))
        return True

    def planned(self) -> frozenset[str]:
        """Queries whose knobs plans choose."""
        return frozenset(self.menus or (self.defaults if self.flat_pct > 0 else ()))

    def usual(self) -> dict[str, Setting]:
        """What queries are to run with that are not planned with: what they begin with, where a default menu has turned it."""
        return {query: one.usual for query, one in self.defaults.items()}

    def _as_at_every_frame(self, running: Joint, fps: float) -> float:
        """How many times more a frame would cost if each query with a default menu looked at every frame that the camera analyses."""
        if not self.defaults:
            return 1.0
        rate = running.base.fps or fps
        part = math.fsum(one.demand_at(running, rate) for one in self.defaults.values())
        return rate / fps / part if part > 0 else 1.0

    def _profiled_pct(self, query: str, setting: Setting, fps: float) -> float:
        menu = self.menus.get(query)
        found = next((o for o in menu.options if o.setting == setting), None) if menu is not None else None
        return found.demand_at(fps) if found is not None else 0.0


def _differs(real_pct: float, believed_pct: float) -> bool:
    return abs(real_pct - believed_pct) > max(COST_TOLERANCE_FRAC * believed_pct, COST_TOLERANCE_PCT)
