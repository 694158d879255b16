"""One menu of a camera and of what is asked of it: its own knobs times those of its queries, what nobody would choose left out.

The paper's queries each own their decoder and detector, so each is allocated by itself. Here several queries look at what the camera's
model has found; what they need beside it is spent on the frames that the camera analyses, out of the camera's share. So the camera is
what is allocated, with joint options:

    quality  that of the camera's knobs x the weighted mean of its queries' (each relative to its best setting)
    demand   that of the camera's knobs + mu x the sum of its queries', each in proportion to the frames it gets at the camera's rate

That a lower rate and a query's own knobs spoil quality independently is an assumption. Both rise with each part, so of the queries'
combinations, and then of the products, only the Pareto front is kept, and nothing is lost.

Plans, the knob loop, commands and the journal know such an option as any other `KnobProfile`: a name, a demand, a quality.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.types import KnobProfile
from scheduler.videostorm.search import pareto

#: Most options of a camera that has queries; of more, some in between are left out.
MOST_OPTIONS = 24

Setting = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, kw_only=True)
class QueryOption:
    """One setting of a query on a camera that analyses every frame. demand_pct: what it needs beside the camera's own model; quality:
    relative to the query's best (1.0); fps: frames per second that it takes (0: all)."""

    setting: Setting
    demand_pct: float
    quality: float
    fps: float = 0.0

    def demand_at(self, fps: float) -> float:
        """Where the camera analyses `fps` frames per second."""
        return self.demand_pct * min(1.0, fps / self.fps) if self.fps > 0 and fps > 0 else self.demand_pct


@dataclass(frozen=True, kw_only=True)
class QueryMenu:
    """What a query may run with. options: its best first; weight: what its quality counts beside the other queries'."""

    query: str
    options: tuple[QueryOption, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.options:
            raise ValueError(f"query {self.query} has no options")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"query {self.query}: its weight must be 0 or more, got {self.weight}")


@dataclass(frozen=True, kw_only=True)
class Joint:
    """An option of the camera and its queries. knobs: as plans know it; base: the camera's own knobs; settings: query -> setting."""

    knobs: KnobProfile
    base: KnobProfile
    settings: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Combined:
    """One option of each query. fine: their names beside the camera's, "": all at their best; quality: weighted mean."""

    options: tuple[tuple[str, QueryOption], ...]
    fine: str
    quality: float

    def demand_at(self, fps: float) -> float:
        return math.fsum(option.demand_at(fps) for _, option in self.options)


def join(base: Sequence[KnobProfile], menus: Iterable[QueryMenu], *, mu: float = 1.0) -> tuple[Joint, ...]:
    """The joint menu, dearest first. mu: real over profiled demand of the queries. Without menus: `base` as it is. Raises ValueError
    unless mu is a number above 0, and for a query named twice."""
    if not (math.isfinite(mu) and mu > 0):
        raise ValueError(f"mu must be above 0, got {mu}")
    asked = sorted(menus, key=lambda menu: menu.query)
    if len({menu.query for menu in asked}) < len(asked):
        raise ValueError("a query has two menus")
    if not asked:
        return tuple(Joint(knobs=knobs, base=knobs) for knobs in base)
    joint = [_joint(knobs, one, mu) for knobs in base for one in _combined(asked, max((k.fps for k in base), default=0.0))]
    front = pareto([(one.knobs.demand_pct, one.knobs.quality_frac) for one in joint])
    return _thinned([joint[i] for i in reversed(front)])


def in_force(menu: Sequence[Joint], name: str | None) -> Joint | None:
    """What `name` stands for in a menu that may be newer than the name: itself, else the camera's own knobs of that name, else the
    dearest there is. None: nothing runs."""
    if name is None or not menu:
        return None
    exact = next((one for one in menu if one.knobs.name == name), None)
    own = name.partition(" ")[0]
    return exact or next((one for one in menu if one.base.name == own), menu[0])


def _combined(menus: Sequence[QueryMenu], fps: float) -> list[_Combined]:
    """The front of all combinations of the queries' options, at the camera's full rate."""
    weights = math.fsum(menu.weight for menu in menus)
    found = [_Combined(options=(), fine="", quality=0.0)]
    for menu in menus:
        part = menu.weight / weights if weights > 0 else 1.0 / len(menus)
        more = [_with(one, menu, rank, part) for one in found for rank in range(len(menu.options))]
        kept = pareto([(one.demand_at(fps), one.quality) for one in more])
        found = [more[i] for i in reversed(kept)]
    return found


def _with(one: _Combined, menu: QueryMenu, rank: int, part: float) -> _Combined:
    option = menu.options[rank]
    fine = f"{menu.query}:{rank + 1}" if rank else ""
    return _Combined(
        options=(*one.options, (menu.query, option)), fine=",".join(filter(None, (one.fine, fine))),
        quality=one.quality + part * option.quality,
    )  # fmt: skip


def _joint(base: KnobProfile, queries: _Combined, mu: float) -> Joint:
    knobs = replace(
        base, name=f"{base.name} {queries.fine}".rstrip(), quality_frac=round(base.quality_frac * min(1.0, queries.quality), 4),
        demand_pct=round(base.demand_pct + mu * queries.demand_at(base.fps), 4),
    )  # fmt: skip
    return Joint(knobs=knobs, base=base, settings={query: option.setting for query, option in queries.options})


def _thinned(menu: Sequence[Joint]) -> tuple[Joint, ...]:
    """At most `MOST_OPTIONS` of them, the first and the last among them."""
    if len(menu) <= MOST_OPTIONS:
        return tuple(menu)
    step = (len(menu) - 1) / (MOST_OPTIONS - 1)
    return tuple(menu[round(n * step)] for n in range(MOST_OPTIONS))
