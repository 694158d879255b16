"""`services.Services` for a running controller, and the owner's actions, also for commands beside it.

An action is tried on the newest state first (the reducer is pure), so that who asks hears at once what cannot be; then it is written
into the inbox with its line of the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.controller import events as happened
from cluster.controller import history, inbox
from cluster.controller.core import Controller
from cluster.controller.database import FleetDatabase
from cluster.controller.history import FleetHistory
from cluster.controller.membership import CONTROLLER, Membership
from cluster.controller.parcels import Parcel, Parcels
from cluster.controller.reduce import Known, reduce
from cluster.controller.services import ControllerStatus, Invitation, InviteRow, MemberRow
from cluster.placement.sight import lease_of
from cluster.rollouts.wishes import RolloutWish
from cluster.types import Customer, FleetState, GroupWeight, SitePlace
from configs.errors import UsageError
from scheduler.fleet.types import CameraKey, ModelOffer


class FleetActions:
    """`services.Actions`. known: the newest state; wake: lets the controller look at once; url: told with join codes."""

    def __init__(
        self, db: FleetDatabase, membership: Membership, parcels: Parcels, *, known: Callable[[], Known], utc_s: Callable[[], float],
        wake: Callable[[], None] = lambda: None, url: str = "",
    ) -> None:  # fmt: skip
        self._db, self._membership, self._parcels = db, membership, parcels
        self._known, self._utc_s, self._wake, self._url = known, utc_s, wake, url

    # --- customers, boxes, cameras ------------------------------------------------------------------------------------

    def put_customer(self, customer: Customer, *, by: str) -> None:
        self._wish(happened.CustomerPut(customer=customer), by, "customer.put", customer.id)

    def remove_customer(self, customer: str, *, by: str) -> None:
        self._wish(happened.CustomerRemoved(customer=customer), by, "customer.remove", customer)

    def weigh_group(self, group: GroupWeight, *, by: str) -> None:
        self._wish(happened.GroupWeighed(group=group), by, "group.weigh", group.id, f"{group.weight:g}")

    def put_site(self, place: SitePlace, *, by: str) -> None:
        self._wish(happened.SitePut(site=place.site, place=place), by, "site.put", place.site)

    def remove_site(self, site: str, *, by: str) -> None:
        self._wish(happened.SitePut(site=site, place=None), by, "site.remove", site)

    def drain(self, box: str, on: bool, *, by: str) -> None:
        self._wish(happened.DrainWished(box=box, on=on), by, "box.drain" if on else "box.use", box)

    def pin(self, camera: CameraKey, box: str, *, by: str) -> None:
        event = happened.PinWished(camera=camera, box=box, by=by, at_utc_s=self._utc_s())
        self._wish(event, by, "camera.pin", str(camera), box)

    def offer(self, box: str, offers: Sequence[ModelOffer], *, by: str) -> None:
        self._wish(
            happened.OffersSet(box=box, offers=tuple(offers)), by, "box.offer", box, ", ".join(o.rollout for o in offers)
        )

    def collect(self, box: str, request: str, *, by: str) -> None:
        self._wish(happened.CollectSet(box=box, request=request), by, "box.collect", box, request)

    def rollout(self, wish: RolloutWish, *, by: str) -> None:
        event = happened.RolloutWished(wish=wish, by=by, at_utc_s=self._utc_s())
        self._wish(event, by, f"rollout.{wish.what}", wish.id, wish.reason)

    # --- parcels ------------------------------------------------------------------------------------------------------

    def put_parcel(self, parcel: str, body: bytes, *, by: str) -> None:
        self._parcels.put(parcel, body, CONTROLLER)
        self._wake()

    def put_bundle(self, name: str, file: Path, *, by: str) -> None:
        self._parcels.put_bundle(name, file)
        self._note(by, "bundle.put", name)

    def find_parcel(self, parcel: str) -> Parcel:
        """One that lies here, of the controller itself (`fleet.REST`), say: where its bytes are. UsageError 'not_found'."""
        return self._parcels.find(parcel)

    def remove_parcel(self, parcel: str) -> None:
        """Unknown: nothing happens."""
        self._parcels.remove(parcel)

    # --- members ------------------------------------------------------------------------------------------------------

    def invite(self, *, by: str, box: str = "", days: float = 1.0) -> Invitation:
        made = self._membership.invite(by=by, box=box, days=days, now_utc_s=self._utc_s(), url=self._url)
        self._note(by, "invite", made.ref, box)
        return made

    def revoke_invite(self, ref: str, *, by: str) -> None:
        self._membership.revoke_invite(ref)
        self._note(by, "invite.revoke", ref)

    def revoke(self, box: str, *, by: str, reason: str = "") -> None:
        self._membership.revoke(box, reason or f"revoked by {by}")
        self._note(by, "box.revoke", box, reason)

    def forget(self, box: str, *, by: str) -> None:
        state = self._known().state
        guests = [
            key for key in state.leases if key.home != box and lease_of(state, key).box == box and key.home in state.boxes
        ]
        if guests:
            raise UsageError(
                f"box {box} watches cameras of others: {', '.join(map(str, sorted(guests)[:5]))}", subject=box, code="in_use",
                remedy=f"driftbox fleet drain {box}, then wait until it is empty",
            )  # fmt: skip
        self._membership.forget(box, f"it was taken out of the fleet by {by}", now_utc_s=self._utc_s())
        self._note(by, "box.forget", box)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _wish(self, event: happened.Event, by: str, action: str, subject: str, text: str = "") -> None:
        reduce(self._known(), event)
        now_s = self._utc_s()
        with self._db.transaction() as db:
            inbox.put(db, event, at_utc_s=now_s)
            db.execute(*history.audit_row(now_s, by, action, subject, text))
        self._wake()

    def _note(self, by: str, action: str, subject: str, text: str = "") -> None:
        with self._db.transaction() as db:
            db.execute(*history.audit_row(self._utc_s(), by, action, subject, text))
        self._wake()


class LiveServices:
    """`services.Services` over a running controller."""

    def __init__(self, controller: Controller, actions: FleetActions, past: FleetHistory, membership: Membership) -> None:
        self._controller, self._actions, self._history, self._membership = controller, actions, past, membership

    @property
    def history(self) -> FleetHistory:
        return self._history

    @property
    def actions(self) -> FleetActions:
        return self._actions

    def state(self) -> FleetState:
        return self._controller.state()

    def status(self) -> ControllerStatus:
        return self._controller.status()

    def changed(self, after: int, timeout_s: float) -> int:
        return self._controller.changed(after, timeout_s)

    def invites(self) -> list[InviteRow]:
        return self._membership.invites()

    def members(self) -> list[MemberRow]:
        return self._membership.members()
