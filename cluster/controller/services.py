"""What pages and commands may ask of a controller and have it do. `cluster.controller.http` gives it to the fleet view.

Reading never waits for the controller's own work; the state is a value and stays as it is. An action is written down before the call
returns, and the controller acts on it with its next step (within a second). Thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cluster.rollouts.wishes import RolloutWish
from cluster.types import Customer, FleetState, GroupWeight, SitePlace
from scheduler.fleet.types import CameraKey, ModelOffer


@dataclass(frozen=True, kw_only=True)
class EngineStatus:
    """What placement is carried to. name: `local` means that it stays in the controller; where: address or namespace; nodes: that live;
    boxes: how many of them are boxes of the fleet; problem: why it is not up to date, '' it is."""

    name: str = "local"
    where: str = ""
    nodes: int = 0
    boxes: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class ControllerStatus:
    """id: of this controller; in_charge: it holds the lease and writes; term: of its lease; reason: why it is not in charge, or what is
    wrong, '' all is well; broker_up: connected; last_round_s: UTC of the newest round, 0 none; next_round_s: when the next one is due;
    round_took_ms: how long the newest took; version: counts up with every change of the state (`Services.changed`);
    lease: where it is."""

    id: str
    in_charge: bool
    term: int
    reason: str = ""
    broker_up: bool = False
    broker: str = ""
    url: str = ""
    since_utc_s: float = 0.0
    now_utc_s: float = 0.0
    last_round_s: float = 0.0
    next_round_s: float = 0.0
    round_took_ms: float = 0.0
    version: int = 0
    lease: str = "file"
    engine: EngineStatus = EngineStatus()


@dataclass(frozen=True, kw_only=True)
class ControllerRow:
    """A controller that runs on this data folder, as it told last."""

    id: str
    at_utc_s: float
    status: ControllerStatus


@dataclass(frozen=True, kw_only=True)
class RoundRow:
    """A round of the past. reasons: sentences about the fleet as a whole."""

    round: int
    at_utc_s: float
    policy: str
    capacity_pct: float
    took_ms: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GrantRow:
    """What a customer was given in a round."""

    round: int
    at_utc_s: float
    customer: str
    share_pct: float
    demand_pct: float | None
    predicted: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class PerformanceRow:
    """What a customer got in an interval; fields as `cluster.types.Performance`; goal: its goal then."""

    at_utc_s: float
    customer: str
    alloc_pct: float
    load: float
    value: float
    sigma: float
    goal: float
    proxy: bool


@dataclass(frozen=True, kw_only=True)
class PlacementRow:
    """A camera on its way, one row per phase."""

    at_utc_s: float
    camera: CameraKey
    source: str
    target: str
    term: int
    phase: str
    cause: str
    reason: str
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class AlarmRow:
    """Something that is or was wrong. box: '' the fleet; ended_utc_s: None it still is."""

    box: str
    text: str
    began_utc_s: float
    ended_utc_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class BoxRow:
    """What a box reported around a time, for its course over days."""

    at_utc_s: float
    box: str
    capacity_pct: float
    spare_pct: float
    cameras: int
    mean_quality: float | None
    online: bool


@dataclass(frozen=True, kw_only=True)
class InviteRow:
    """A join code, without its secret. box: the only id that may use it, '' any; used_by: '' nobody yet."""

    ref: str
    made_utc_s: float
    expires_utc_s: float
    tries_left: int
    box: str = ""
    used_by: str = ""
    by: str = ""


@dataclass(frozen=True, kw_only=True)
class MemberRow:
    """A box that has joined. until_utc_s: end of its certificate; revoked: why it is worth nothing, '' it is good."""

    box: str
    site: str
    joined_utc_s: float
    until_utc_s: float
    fingerprint: str
    revoked: str = ""


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """Who had what done."""

    at_utc_s: float
    by: str
    action: str
    subject: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """A join code as it is shown once. code: both parts; command: what to type on the box."""

    code: str = field(repr=False)
    ref: str
    expires_utc_s: float
    command: str = field(repr=False)


class History(Protocol):
    """Newest first, unless it says otherwise; bounded retention (`docs/fleet/controller.md`). since_utc_s: not older."""

    def rounds(self, *, since_utc_s: float = 0.0, limit: int = 500) -> list[RoundRow]: ...

    def grants(self, *, customer: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[GrantRow]: ...

    def performance(self, *, customer: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[PerformanceRow]: ...

    def placements(
        self, *, camera: CameraKey | None = None, since_utc_s: float = 0.0, limit: int = 500
    ) -> list[PlacementRow]: ...

    def alarms(self, *, open_only: bool = False, since_utc_s: float = 0.0, limit: int = 500) -> list[AlarmRow]: ...

    def boxes(self, *, box: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[BoxRow]: ...

    def audit(self, *, limit: int = 500) -> list[AuditRow]: ...


class Actions(Protocol):
    """What the owner may have done. by: who asks, for the audit. UsageError for what does not exist or cannot be."""

    def put_customer(self, customer: Customer, *, by: str) -> None: ...

    def remove_customer(self, customer: str, *, by: str) -> None:
        """UsageError 'in_use' while a camera is watched for it."""

    def weigh_group(self, group: GroupWeight, *, by: str) -> None:
        """What a group of customers counts among its siblings. Also before it has a customer."""

    def put_site(self, place: SitePlace, *, by: str) -> None:
        """Where a site lies, for the map."""

    def remove_site(self, site: str, *, by: str) -> None:
        """The map forgets where it lies. Unknown: nothing happens."""

    def drain(self, box: str, on: bool, *, by: str) -> None:
        """Empties a box: its cameras move to others; off: it may be used again."""

    def pin(self, camera: CameraKey, box: str, *, by: str) -> None:
        """The camera is to be watched by `box` and to stay there; '': the fleet decides again."""

    def offer(self, box: str, offers: Sequence[ModelOffer], *, by: str) -> None:
        """All models offered to a box from now on; () none."""

    def collect(self, box: str, request: str, *, by: str) -> None:
        """Asks a box for samples; '' no more."""

    def put_parcel(self, parcel: str, body: bytes, *, by: str) -> None:
        """Lays a parcel (`TO.REST`) down for a box. The controller's own are not sealed: what is in them is signed."""

    def rollout(self, wish: RolloutWish, *, by: str) -> None:
        """Begins, stops, goes on with or rolls back a staged rollout (`cluster.rollouts.wishes.apply`). Its bundle is put first
        (`put_bundle`)."""

    def put_bundle(self, name: str, file: Path, *, by: str) -> None:
        """Takes a file (it is moved) and keeps it, as long as a rollout names it: a signed model bundle. Boxes to which it is offered
        fetch it as the parcel `cluster.rollouts.rules.parcel_for(box, name)`."""

    def invite(self, *, by: str, box: str = "", days: float = 1.0) -> Invitation: ...

    def revoke_invite(self, ref: str, *, by: str) -> None: ...

    def revoke(self, box: str, *, by: str, reason: str = "") -> None:
        """Its certificate is worth nothing from now on; the box stays known, and its cameras are taken over when they can be."""

    def forget(self, box: str, *, by: str) -> None:
        """The box is no member any more; UsageError 'in_use' while it watches a camera of another box."""


class Services(Protocol):
    """See the module."""

    @property
    def history(self) -> History: ...

    @property
    def actions(self) -> Actions: ...

    def state(self) -> FleetState: ...

    def status(self) -> ControllerStatus: ...

    def changed(self, after: int, timeout_s: float) -> int:
        """The state's version; waits until it is above `after`, at most so long. For pages that follow live."""

    def invites(self) -> list[InviteRow]: ...

    def members(self) -> list[MemberRow]: ...
