"""A controller that is not there: `Services` over a fleet made up here, for the fleet view's tests and pictures.

What the owner does goes through the controller's own reducer (`cluster.controller.reduce`); nothing is sent anywhere and no round runs.
`hear` lets a box say something, `advance` moves the clock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster.controller import events as happened
from cluster.controller.reduce import Known, reduce
from cluster.controller.services import (
    AlarmRow,
    AuditRow,
    BoxRow,
    ControllerStatus,
    GrantRow,
    Invitation,
    InviteRow,
    MemberRow,
    PerformanceRow,
    PlacementRow,
    RoundRow,
)  # fmt: skip
from cluster.rollouts.rules import advance
from cluster.rollouts.wishes import RolloutWish
from cluster.types import BoxView, CameraLease, Customer, FleetState, Grant, GroupWeight, Handoff, SitePlace
from configs.errors import UsageError
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, Confirmation, ModelOffer, OfferWord

NOW_UTC_S = 1_795_392_000.0  # 22 Nov 2026, 20:00 UTC
HOUR_S = 3600.0
#: site -> (words, degrees north, degrees east, boxes)
_SITES = {
    "harbour": ("Harbour", 53.54, 9.97, 4), "airport": ("Airport", 52.36, 13.50, 3), "centre": ("City centre", 52.52, 13.40, 3),
    "depot": ("Tram depot", 51.05, 13.74, 2), "stadium": ("Stadium", 48.22, 11.62, 3),
}  # fmt: skip
_CUSTOMERS = (
    Customer(id="city", name="City of Elbe", goal=0.8, weight=2.0, at_least_pct=50.0),
    Customer(id="port", name="Port authority", goal=0.75),
    Customer(id="transit", name="Transit company", goal=0.95, measure="deadline", utility="quadratic"),
)
_QUALITY = {"city": 0.84, "port": 0.69, "transit": 0.8}


def fake_state(now_utc_s: float = NOW_UTC_S) -> FleetState:
    """Fifteen boxes at five sites, sixty cameras of three customers; one box away, one doubted, one with an alarm."""
    boxes: dict[str, BoxView] = {}
    for number, (site, (_, _, _, count)) in enumerate(_SITES.items()):
        for k in range(count):
            id = f"{site}-{k + 1}"
            boxes[id] = _box(id, site, number * 5 + k, now_utc_s)
    boxes["depot-2"] = replace(boxes["depot-2"], online=False, seen_utc_s=now_utc_s - 540)
    boxes["harbour-3"] = replace(boxes["harbour-3"], doubts=("its clock is 62 min ahead",), offset_s=3720.0)
    boxes["centre-2"] = _with_alarm(boxes["centre-2"], "GPU has throttled for 12 min (heat)")
    boxes["airport-3"] = replace(boxes["airport-3"], draining=True)
    moved = CameraKey(home="depot-2", camera="cam-2")
    moving = CameraKey(home="airport-3", camera="cam-1")
    pinned = CameraKey(home="centre-1", camera="cam-3")
    boxes = _moved(boxes, moved, "depot-1")
    leases = {
        moved: CameraLease(camera=moved, box="depot-1", term=4, since_utc_s=now_utc_s - 500, standby="",
                           cause="box depot-2 is offline and was not heard for 21 s: taken over by its standby"),
        moving: CameraLease(camera=moving, box="airport-3", term=2, since_utc_s=now_utc_s - 90_000, standby="airport-1"),
        pinned: CameraLease(camera=pinned, box="centre-1", term=1, since_utc_s=now_utc_s - 9000, standby="centre-3", pinned=True),
    }  # fmt: skip
    handoff = Handoff(
        camera=moving, source="airport-3", target="airport-1", term=3, phase="warm", cause="drain",
        reason="airport-3 is being emptied; airport-1 reaches its network and has 41 % spare", began_utc_s=now_utc_s - 6,
        phase_utc_s=now_utc_s - 2, parcel="airport-1.airport-3.cam-1.3",
    )  # fmt: skip
    state = FleetState(
        term=7, customers={one.id: one for one in _CUSTOMERS}, boxes=boxes, leases=leases, handoffs={moving: handoff},
        grants=_grants(boxes),
        sites={s: SitePlace(site=s, name=name, latitude_deg=n, longitude_deg=e) for s, (name, n, e, _) in _SITES.items()},
    )  # fmt: skip
    return _with_rollout(state, now_utc_s)


def _box(id: str, site: str, seed: int, now_utc_s: float) -> BoxView:
    cameras = tuple(_camera(id, site, k, seed) for k in range(4))
    spare = 100.0 - sum(camera.got_pct for camera in cameras)
    report = BoxReport(
        box=id, site=site, boot="a", sequence=1, sent_utc="2026-11-22T20:00:00Z", software="0.7.0", capacity_pct=100.0,
        spare_pct=max(0.0, spare), memory_mib=16_000.0, networks=(f"{site}-lan",), cameras=cameras,
        confirmation=Confirmation(term=7, version=3),
    )  # fmt: skip
    return BoxView(
        id=id, site=site, joined_utc_s=now_utc_s - 30 * 24 * HOUR_S, report=report, seen_utc_s=now_utc_s - 1, online=True,
        online_utc_s=now_utc_s - 24 * HOUR_S,
    )  # fmt: skip


def _camera(box: str, site: str, k: int, seed: int) -> CameraReport:
    customer = ("port" if site == "harbour" else "transit" if site == "depot" else "city") if k else "transit"
    wave = 0.05 * math.sin(seed * 1.7 + k * 2.3)
    return CameraReport(
        camera=CameraKey(home=box, camera=f"cam-{k + 1}"), customer=customer, name=f"{('Gate', 'Yard', 'Ramp', 'Hall')[k]} of {box}",
        networks=(f"{site}-lan",), demand_pct=24.0 + k, got_pct=round(15.0 + 20 * wave, 1), quality=round(_QUALITY[customer] + wave, 3),
        finish_frac=round(0.97 + 0.3 * wave, 3), fps=5.0, memory_mib=900.0, version=f"{box}-cam-{k + 1}-v{3 + seed % 4}",
        arch=("tiny", "small")[seed % 2], consent=k == 0,
    )  # fmt: skip


def _with_alarm(view: BoxView, text: str) -> BoxView:
    assert view.report is not None
    return replace(view, report=replace(view.report, alarms=(text,)))


def _moved(boxes: dict[str, BoxView], camera: CameraKey, to: str) -> dict[str, BoxView]:
    here, there = boxes[camera.home].report, boxes[to].report
    assert here is not None
    assert there is not None
    told = next(one for one in here.cameras if one.camera == camera)
    return boxes | {
        to: replace(boxes[to], report=replace(there, cameras=(*there.cameras, told))),
        camera.home: replace(
            boxes[camera.home], report=replace(here, cameras=tuple(one for one in here.cameras if one.camera != camera))
        ),
    }


def _grants(boxes: dict[str, BoxView]) -> dict[str, Grant]:
    found = {}
    for customer in _CUSTOMERS:
        by_box = {
            id: round(sum(c.got_pct for c in view.cameras if c.customer == customer.id) + 2, 1)
            for id, view in boxes.items()
            if any(c.customer == customer.id for c in view.cameras)
        }
        total = sum(by_box.values())
        found[customer.id] = Grant(
            customer=customer.id, share_pct=total, by_box=by_box, demand_pct=round(total * (1.2 if customer.id == "port" else 0.9), 1),
            predicted=round(_QUALITY[customer.id] + 0.01, 3),
            reason="as much as its goal needs, learned from 214 windows" if customer.id != "port" else
            "below its goal: its share was raised by 38 % this round, as far as the boxes at its site reach",
        )  # fmt: skip
    return found


def _with_rollout(state: FleetState, now_utc_s: float) -> FleetState:
    """One that has come to its second step: the first box took it an hour ago."""
    wish = RolloutWish(what="begin", id="night-1", parcel="night-1", name="Night scenes, pooled training of 21 Nov")
    began_s = now_utc_s - 2 * HOUR_S
    state = reduce(Known(state=state), happened.RolloutWished(wish=wish, by="anna", at_utc_s=began_s)).state
    for minutes in (0, 1, 2, 63, 64):
        rollouts, offers = advance(state.rollouts, state, began_s + 60.0 * minutes)
        state = _answered(replace(state, rollouts=rollouts), offers, minutes)
    rollouts, _ = advance(state.rollouts, state, began_s + 3900.0)
    return replace(state, rollouts=rollouts)


def _answered(state: FleetState, offers: dict[str, tuple[ModelOffer, ...]], minutes: int) -> FleetState:
    boxes = dict(state.boxes)
    for id in sorted(offers)[: 1 if minutes > 60 else None]:
        report = boxes[id].report
        assert report is not None
        words = tuple(
            OfferWord(rollout=o.rollout, camera=c, stage="serving", before=0.8, after=0.83)
            for o in offers[id]
            for c in o.cameras
        )
        better = tuple(
            replace(c, quality=None if c.quality is None else round(c.quality + (0.02 if minutes == 1 else 0.001), 4))
            for c in report.cameras
        )
        told = replace(report, confirmation=replace(report.confirmation, offers=words), cameras=better)
        boxes[id] = replace(boxes[id], report=told)
    return replace(state, boxes=boxes)


# --- services ---------------------------------------------------------------------------------------------------------


class FakeHistory:
    """A day of rounds every ten minutes, made of the state's own numbers."""

    def __init__(self, owner: FakeServices) -> None:
        self._owner = owner
        self.told: list[AuditRow] = []

    def _times(self, since_utc_s: float) -> list[float]:
        now = self._owner.now_utc_s
        return [t for t in (now - 600.0 * k for k in range(144)) if t >= since_utc_s]

    def rounds(self, *, since_utc_s: float = 0.0, limit: int = 500) -> list[RoundRow]:
        return [
            RoundRow(round=900 - k, at_utc_s=t, policy="sw", capacity_pct=1500.0, took_ms=180.0, reasons=("port is below its goal",))
            for k, t in enumerate(self._times(since_utc_s)[:limit])
        ]  # fmt: skip

    def grants(self, *, customer: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[GrantRow]:
        grants = [g for g in self._owner.state().grants.values() if customer in ("", g.customer)]
        return [
            GrantRow(
                round=900 - k, at_utc_s=t, customer=g.customer, share_pct=g.share_pct * (1 + 0.1 * math.sin(k / 9)),
                demand_pct=g.demand_pct, predicted=g.predicted, reason=g.reason,
            )
            for k, t in enumerate(self._times(since_utc_s))
            for g in grants
        ][:limit]  # fmt: skip

    def performance(self, *, customer: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[PerformanceRow]:
        state = self._owner.state()
        return [
            PerformanceRow(
                at_utc_s=t, customer=c.id, alloc_pct=state.grants[c.id].share_pct * 0.93, load=100.0,
                value=_QUALITY.get(c.id, 0.8) + (0.15 if c.measure == "deadline" else 0.0) + 0.04 * math.sin(k / 11), sigma=0.02,
                goal=c.goal, proxy=False,
            )
            for k, t in enumerate(self._times(since_utc_s))
            for c in state.customers.values()
            if customer in ("", c.id) and c.id in state.grants
        ][:limit]  # fmt: skip

    def placements(self, *, camera: CameraKey | None = None, since_utc_s: float = 0.0, limit: int = 500) -> list[PlacementRow]:
        rows = [
            PlacementRow(
                at_utc_s=h.phase_utc_s, camera=h.camera, source=h.source, target=h.target, term=h.term, phase=h.phase, cause=h.cause,
                reason=h.reason, problem=h.problem,
            )
            for h in self._owner.state().handoffs.values()
        ] + [
            PlacementRow(
                at_utc_s=lease.since_utc_s, camera=lease.camera, source=lease.camera.home, target=lease.box, term=lease.term,
                phase="done", cause="takeover", reason=lease.cause,
            )
            for lease in self._owner.state().leases.values() if lease.box != lease.camera.home
        ]  # fmt: skip
        return [row for row in rows if camera in (None, row.camera) and row.at_utc_s >= since_utc_s][:limit]

    def alarms(self, *, open_only: bool = False, since_utc_s: float = 0.0, limit: int = 500) -> list[AlarmRow]:
        now = self._owner.now_utc_s
        rows = [
            AlarmRow(box="depot-2", text="not heard since its will came", began_utc_s=now - 540),
            AlarmRow(box="centre-2", text="GPU has throttled for 12 min (heat)", began_utc_s=now - 720),
            AlarmRow(box="harbour-1", text="disk is 91 % full", began_utc_s=now - 30_000, ended_utc_s=now - 20_000),
        ]
        return [r for r in rows if not (open_only and r.ended_utc_s) and r.began_utc_s >= since_utc_s][:limit]

    def boxes(self, *, box: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[BoxRow]:
        return []

    def audit(self, *, limit: int = 500) -> list[AuditRow]:
        return list(reversed(self.told))[:limit]


class FakeActions:
    """Everything is noted in `FakeHistory.told`."""

    def __init__(self, owner: FakeServices) -> None:
        self._owner = owner
        self.bundles: dict[str, bytes] = {}

    def _note(self, by: str, action: str, subject: str) -> None:
        self._owner.history.told.append(AuditRow(at_utc_s=self._owner.now_utc_s, by=by, action=action, subject=subject))

    def put_customer(self, customer: Customer, *, by: str) -> None:
        self._owner.happen(happened.CustomerPut(customer=customer))
        self._note(by, "customer.put", customer.id)

    def remove_customer(self, customer: str, *, by: str) -> None:
        self._owner.happen(happened.CustomerRemoved(customer=customer))
        self._note(by, "customer.remove", customer)

    def drain(self, box: str, on: bool, *, by: str) -> None:
        self._owner.happen(happened.DrainWished(box=box, on=on))
        self._note(by, "drain" if on else "drain.end", box)

    def pin(self, camera: CameraKey, box: str, *, by: str) -> None:
        self._owner.happen(happened.PinWished(camera=camera, box=box, by=by, at_utc_s=self._owner.now_utc_s))
        self._note(by, "pin", str(camera))

    def weigh_group(self, group: GroupWeight, *, by: str) -> None:
        self._owner.happen(happened.GroupWeighed(group=group))
        self._note(by, "group.weigh", group.id)

    def put_site(self, place: SitePlace, *, by: str) -> None:
        self._owner.happen(happened.SitePut(site=place.site, place=place))
        self._note(by, "site.put", place.site)

    def remove_site(self, site: str, *, by: str) -> None:
        self._owner.happen(happened.SitePut(site=site, place=None))
        self._note(by, "site.remove", site)

    def offer(self, box: str, offers: Sequence[ModelOffer], *, by: str) -> None:
        self._owner.happen(happened.OffersSet(box=box, offers=tuple(offers)))

    def collect(self, box: str, request: str, *, by: str) -> None:
        self._owner.happen(happened.CollectSet(box=box, request=request))

    def put_parcel(self, parcel: str, body: bytes, *, by: str) -> None:
        self._note(by, "parcel.put", parcel)

    def put_bundle(self, name: str, file: Path, *, by: str) -> None:
        self.bundles[name] = file.read_bytes()
        file.unlink()
        self._note(by, "bundle.put", name)

    def rollout(self, wish: RolloutWish, *, by: str) -> None:
        if wish.what == "begin" and wish.parcel not in self.bundles:
            raise UsageError(f"there is no bundle {wish.parcel}", subject=wish.parcel, code="not_found", remedy="put it first")
        self._owner.happen(happened.RolloutWished(wish=wish, by=by, at_utc_s=self._owner.now_utc_s))
        self._note(by, f"rollout.{wish.what}", wish.id)

    def invite(self, *, by: str, box: str = "", days: float = 1.0) -> Invitation:
        if not 0 < days <= 30:
            raise UsageError("a join code is good for up to 30 days", subject=str(days))
        code = "ABCD-EFGH-IJKL-MNOP." + "5e" * 16
        self._note(by, "invite", box)
        until_s = self._owner.now_utc_s + 86_400 * days
        return Invitation(
            code=code, ref="r1", expires_utc_s=until_s, command=f"driftbox fleet join https://fleet.example:8470 --code {code}"
        )

    def revoke_invite(self, ref: str, *, by: str) -> None:
        self._note(by, "invite.revoke", ref)

    def revoke(self, box: str, *, by: str, reason: str = "") -> None:
        self._note(by, "revoke", box)

    def forget(self, box: str, *, by: str) -> None:
        self._owner.happen(happened.BoxForgotten(box=box, at_utc_s=self._owner.now_utc_s))
        self._note(by, "forget", box)


class FakeServices:
    """See the module."""

    def __init__(self, state: FleetState | None = None, *, now_utc_s: float = NOW_UTC_S) -> None:
        self.now_utc_s = now_utc_s
        state = fake_state(now_utc_s) if state is None else state
        self._known, self._version = Known(state=state, wished=dict.fromkeys(state.boxes, (7, 3))), 1
        self._turn = threading.Condition()
        self.history, self.actions = FakeHistory(self), FakeActions(self)

    def happen(self, event: happened.Event) -> None:
        with self._turn:
            self._known = reduce(self._known, event)
            self._version += 1
            self._turn.notify_all()

    def hear(self, report: BoxReport) -> None:
        """A box reports."""
        self.happen(happened.ReportHeard(report=report, at_utc_s=self.now_utc_s))

    def happen_all_withdrawn(self, rollout: str) -> None:
        """Every box that served the version gives it back."""
        for view in self.state().boxes.values():
            if view.report is None or not view.report.confirmation.offers:
                continue
            words = tuple(
                replace(word, stage="withdrawn") if word.rollout == rollout else word
                for word in view.report.confirmation.offers
            )
            told = replace(view.report.confirmation, offers=words)
            self.hear(replace(view.report, sequence=view.report.sequence + 1, confirmation=told))

    def advance(self, seconds: float) -> None:
        """Time passes; rollouts move on."""
        with self._turn:
            self.now_utc_s += seconds
            state = self._known.state
            rollouts, _ = advance(state.rollouts, state, self.now_utc_s)
            self._known = replace(self._known, state=replace(state, rollouts=rollouts))
            self._version += 1

    def state(self) -> FleetState:
        return self._known.state

    def status(self) -> ControllerStatus:
        now = self.now_utc_s
        return ControllerStatus(
            id="north", in_charge=True, term=7, broker_up=True, broker="127.0.0.1:8883", url="https://fleet.example:8470/",
            since_utc_s=now - 90_000, now_utc_s=now, last_round_s=now - 40, next_round_s=now + 80, round_took_ms=180.0,
            version=self._version,
        )  # fmt: skip

    def changed(self, after: int, timeout_s: float) -> int:
        with self._turn:
            self._turn.wait_for(lambda: self._version > after, timeout_s)
            return self._version

    def invites(self) -> list[InviteRow]:
        return [
            InviteRow(
                ref="r0", made_utc_s=self.now_utc_s - 600, expires_utc_s=self.now_utc_s + 80_000, tries_left=10, by="anna"
            )
        ]

    def members(self) -> list[MemberRow]:
        return [
            MemberRow(
                box=id,
                site=view.site,
                joined_utc_s=view.joined_utc_s,
                until_utc_s=self.now_utc_s + 60 * 86_400,
                fingerprint="ab" * 32,
            )
            for id, view in sorted(self.state().boxes.items())
        ]
