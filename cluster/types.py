"""What the controller knows and decides, as values. The store keeps them, the round changes them, the fleet view shows them.

Everything that decides takes a `FleetState` (or a part of it) and gives back values; the only shells are `cluster.controller` (MQTT,
HTTP, SQLite), `cluster.engines` (Ray, Kubernetes) and what moves bytes in `cluster.riffle`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cluster.rollouts.types import Rollout
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, ModelOffer, checked

Measure = Literal["quality", "deadline"]
Utility = Literal["linear", "quadratic", "sqrt", "identity"]


@dataclass(frozen=True, kw_only=True)
class Customer:
    """Whose cameras are watched: Cilantro's job. goal: SLO, 0-1, of `measure` (mean quality of the customer's cameras, or the part of
    their frames answered by the deadline); weight: among its siblings; path: from the root of the tree of weights to its parent,
    () directly under the root (hierarchical sharing, card section 2); stated_pct: what it says it needs, used while nothing can be
    learned; at_least_pct: never less, as long as the fleet has it."""

    id: str
    name: str = ""
    weight: float = 1.0
    path: tuple[str, ...] = ()
    goal: float = 0.8
    measure: Measure = "quality"
    utility: Utility = "linear"
    stated_pct: float | None = None
    at_least_pct: float = 1.0

    def __post_init__(self) -> None:
        checked(self.id, "a customer")
        if not (0 < self.goal <= 1 and 0 < self.weight < math.inf and 0 < self.at_least_pct < math.inf):
            raise ValueError(f"customer {self.id}: goal in (0, 1], weight and at_least_pct above 0, got {self}")


@dataclass(frozen=True, kw_only=True)
class GroupWeight:
    """Weight of a group of customers among its siblings (an inner edge of Cilantro's tree, card section 2); 1 unless the owner says
    otherwise. path: from the root to it, as `Customer.path` names it."""

    path: tuple[str, ...]
    weight: float

    def __post_init__(self) -> None:
        if not self.path or not all(name and "/" not in name for name in self.path):
            raise ValueError(f"a group is named as its customers name it, NAME or NAME/NAME, got {'/'.join(self.path)[:80]!r}")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"the weight of a group must be above 0, got {self.weight}")

    @property
    def id(self) -> str:
        """As people write it."""
        return "/".join(self.path)


@dataclass(frozen=True, kw_only=True)
class BoxView:
    """A box as the controller sees it. report: the newest believed one; seen_utc_s: when the controller last heard of it, on the
    controller's clock (seconds since 1970); online: by its will; online_utc_s: since when it is online without a break; offset_s: its
    clock minus ours, as measured; draining: being emptied by the owner's wish; doubts: why it, or some of what it says, is not
    believed (sentences; `cluster.controller.belief`); enrolled_pct: capacity that was agreed on when it joined, None: none was."""

    id: str
    site: str
    joined_utc_s: float
    report: BoxReport | None = None
    seen_utc_s: float = 0.0
    online: bool = False
    online_utc_s: float = 0.0
    offset_s: float = 0.0
    draining: bool = False
    doubts: tuple[str, ...] = ()
    enrolled_pct: float | None = None

    @property
    def capacity_pct(self) -> float:
        """Percent of one GPU that it may give away; 0 while it has not reported."""
        return self.report.capacity_pct if self.report else 0.0

    @property
    def cameras(self) -> tuple[CameraReport, ...]:
        """What it said it watches."""
        return self.report.cameras if self.report else ()


@dataclass(frozen=True, kw_only=True)
class CameraLease:
    """Who owns a camera. term: counts up with every change of owner, over the fleet's life; standby: a box that is ready to take over
    ('' none); pinned: the owner's wish that it stays; since_utc_s: controller's clock; parcel, standby_parcel: what `box` and `standby`
    begin from, '' nothing; after_s: what the owner before has told of it ends here (`CameraOrder.after_s`);
    cause: why it is where it is, '' nobody moved it."""

    camera: CameraKey
    box: str
    term: int
    since_utc_s: float
    standby: str = ""
    pinned: bool = False
    parcel: str = ""
    standby_parcel: str = ""
    after_s: float | None = 0.0
    cause: str = ""


#: A live migration (start before stop). prepare: the source packs settings, model and state for the target; warm: the target watches
#: beside the source; switch: the lease has changed hands, the target owns, the source goes on until the target says so; release: the
#: target has said so, the source stops and says up to where it has told; done; undone: the source stays the owner. A takeover of a dead
#: box's camera has no prepare and no source that could release.
Phase = Literal["prepare", "warm", "switch", "release", "done", "undone"]


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """A camera on its way between boxes. term: of the lease that the target gets; cause: move, drain, takeover, return."""

    camera: CameraKey
    source: str
    target: str
    term: int
    phase: Phase
    cause: Literal["move", "drain", "takeover", "return"]
    reason: str
    began_utc_s: float
    phase_utc_s: float
    parcel: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Cilantro's answer for a customer: share_pct over all boxes, by_box: where it lies; reason: in words; demand_pct: what was
    thought to be needed; predicted: performance expected with it, None nothing is known."""

    customer: str
    share_pct: float
    by_box: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    demand_pct: float | None = None
    predicted: float | None = None


@dataclass(frozen=True, kw_only=True)
class Performance:
    """What a customer got in an interval: Cilantro's feedback. alloc_pct: received; load: frames due per second; value: its measure
    (0-1), sigma: standard deviation of that; end_utc_s: controller's clock; proxy: value was not measured but stands for it."""

    customer: str
    alloc_pct: float
    load: float
    value: float
    sigma: float
    end_utc_s: float
    proxy: bool = False


@dataclass(frozen=True, kw_only=True)
class SitePlace:
    """Where a site lies, as the owner said; only the map needs it. Degrees north and east (WGS 84)."""

    site: str
    latitude_deg: float
    longitude_deg: float
    name: str = ""

    def __post_init__(self) -> None:
        checked(self.site, "a site")
        if not (-90 <= self.latitude_deg <= 90 and -180 <= self.longitude_deg <= 180):
            raise ValueError(f"site {self.site}: degrees -90 to 90 north, -180 to 180 east, got {self}")


@dataclass(frozen=True, kw_only=True)
class FleetState:
    """All that a controller knows. term: of its own lease; offers: models that are offered to a box now; collects: id of the request for
    samples that a box has now; parcels: ids of those that lie at the controller; listens_utc_s: since when this controller hears the
    boxes without a break (before that their silence says nothing); groups: weights that are not 1, by `GroupWeight.id`. It is a
    value: `dataclasses.replace` makes the next one."""

    term: int = 0
    customers: Mapping[str, Customer] = field(default_factory=dict)
    boxes: Mapping[str, BoxView] = field(default_factory=dict)
    leases: Mapping[CameraKey, CameraLease] = field(default_factory=dict)
    handoffs: Mapping[CameraKey, Handoff] = field(default_factory=dict)
    grants: Mapping[str, Grant] = field(default_factory=dict)
    offers: Mapping[str, tuple[ModelOffer, ...]] = field(default_factory=dict)
    collects: Mapping[str, str] = field(default_factory=dict)
    parcels: frozenset[str] = frozenset()
    rollouts: Mapping[str, Rollout] = field(default_factory=dict)
    sites: Mapping[str, SitePlace] = field(default_factory=dict)
    groups: Mapping[str, GroupWeight] = field(default_factory=dict)
    listens_utc_s: float = 0.0
