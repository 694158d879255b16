"""What can happen to a fleet, as values. `at_utc_s`: when, on the controller's clock."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.rollouts.wishes import RolloutWish
from cluster.types import Customer, GroupWeight, SitePlace
from scheduler.fleet.types import BoxReport, CameraKey, ModelOffer


@dataclass(frozen=True, kw_only=True)
class ReportHeard:
    """offset_s: not known to the sender of the event; the reducer measures it."""

    report: BoxReport
    at_utc_s: float


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A message under a box's topic that is no message. why: in words."""

    box: str
    why: str
    at_utc_s: float


@dataclass(frozen=True, kw_only=True)
class Availability:
    box: str
    online: bool
    at_utc_s: float


@dataclass(frozen=True, kw_only=True)
class Listening:
    """The controller hears the boxes again (on=True), or does not."""

    on: bool
    at_utc_s: float


@dataclass(frozen=True, kw_only=True)
class BoxJoined:
    """capacity_pct: what was agreed on; None: nothing was."""

    box: str
    site: str
    at_utc_s: float
    capacity_pct: float | None = None


@dataclass(frozen=True, kw_only=True)
class BoxForgotten:
    box: str
    at_utc_s: float


@dataclass(frozen=True, kw_only=True)
class CustomerPut:
    customer: Customer


@dataclass(frozen=True, kw_only=True)
class CustomerRemoved:
    customer: str


@dataclass(frozen=True, kw_only=True)
class DrainWished:
    box: str
    on: bool


@dataclass(frozen=True, kw_only=True)
class PinWished:
    """box: '' no wish any more."""

    camera: CameraKey
    box: str
    by: str
    at_utc_s: float


@dataclass(frozen=True, kw_only=True)
class OffersSet:
    box: str
    offers: tuple[ModelOffer, ...]


@dataclass(frozen=True, kw_only=True)
class CollectSet:
    box: str
    request: str


@dataclass(frozen=True, kw_only=True)
class ParcelsSeen:
    """All parcels that lie at the controller now."""

    parcels: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class RolloutWished:
    wish: RolloutWish
    by: str
    at_utc_s: float


@dataclass(frozen=True, kw_only=True)
class SitePut:
    """place: None: the map forgets it."""

    site: str
    place: SitePlace | None


@dataclass(frozen=True, kw_only=True)
class GroupWeighed:
    """With the weight 1, which every group has, nothing needs to be kept of it."""

    group: GroupWeight


Event = (
    ReportHeard
    | Unreadable
    | Availability
    | Listening
    | BoxJoined
    | BoxForgotten
    | CustomerPut
    | CustomerRemoved
    | DrainWished
    | PinWished
    | OffersSet
    | CollectSet
    | ParcelsSeen
    | RolloutWished
    | SitePut
    | GroupWeighed
)
