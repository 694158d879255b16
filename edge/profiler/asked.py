"""What the queries of a live camera may run with, and what they really need: the stored profiles `CAMERA/QUERY`, as a menu.

A query begins with the frame that people are shown and the boxes in it, so decoding and the camera's own model are not its demand; what
it asks other models, reads, tracks and counts is. That is metered, frame by frame, and told to the planner where it differs from what
was profiled (mu), or where nothing was profiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from configs.errors import UsageError
from edge.profiler.profile import HEADROOM, CameraProfile, MeasuredOption
from edge.queries.base import QuerySpec, Setting
from scheduler.types import KnobProfile
from scheduler.videostorm.joint import Joint, QueryMenu, QueryOption, join
from scheduler.videostorm.search import pareto

#: How far a measured cost may be from what the planner believes before it is told.
COST_TOLERANCE_FRAC = 0.3
#: Where hardly anything is computed, a part of it is nothing: smaller changes of the demand (pct) are not told.
COST_TOLERANCE_PCT = 0.2
#: Real over profiled demand, at most and at least: a frame that took a minute once is no law.
MU_MAX = 20.0
#: Stands for all queries of a camera of which none was profiled.
UNPROFILED = "queries"


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


@dataclass(kw_only=True)
class Asked:
    """A camera's queries, as the planner sees them. versions: of the profiles in use, by query; menus: what they offer, by query; mu:
    real over profiled demand of all of them together; flat_pct: demand at the full rate where none was profiled."""

    versions: Mapping[str, int] = field(default_factory=dict)
    menus: Mapping[str, QueryMenu] = field(default_factory=dict)
    mu: float = 1.0
    flat_pct: float = 0.0

    def joined(self, base: tuple[KnobProfile, ...], fps: float) -> tuple[Joint, ...]:
        """The camera's menu with its queries. base: its own knobs; fps: its full rate."""
        if self.menus:
            return join(base, self.menus.values(), mu=self.mu)
        if self.flat_pct <= 0:
            return join(base, ())
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
            demand_pct = round(100 * HEADROOM * cost_s * fps, 4)
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

    def _profiled_pct(self, query: str, setting: Setting, fps: float) -> float:
        menu = self.menus.get(query)
        found = next((o for o in menu.options if o.setting == setting), None) if menu is not None else None
        return found.demand_at(fps) if found is not None else 0.0


def _differs(real_pct: float, believed_pct: float) -> bool:
    return abs(real_pct - believed_pct) > max(COST_TOLERANCE_FRAC * believed_pct, COST_TOLERANCE_PCT)
