"""A simulated box: it judges wishes, follows camera orders and answers offers with the code that real boxes have (`scheduler.fleet`),
and keeps to its last wish when it is alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster.controller.round import iso_utc
from cluster.simulate.outbox import SimulatedOutbox
from cluster.simulate.scenario import Scenario
from cluster.simulate.world import FPS, TrueCamera, World, divided
from edge.store.outbox import Message
from scheduler.fleet.codec import decode, encode
from scheduler.fleet.desire import Known, judged
from scheduler.fleet.handoff import Goal, Here, goal_of, word_for
from scheduler.fleet.types import (
    BoxReport,
    CameraKey,
    CameraOrder,
    CameraReport,
    CameraWord,
    Confirmation,
    Desired,
    Measured,
    OfferWord,
)

_PAYLOAD = b"x" * 300
#: Held-out pictures behind a measurement, and the standard error that so few leave.
LABELS, LABEL_SD = 8, 0.06
#: What a box calls a version that was offered to it.
OFFERED = "v2"


@dataclass
class Watching:
    """A camera that is watched here. told: the box tells of it (it owns it, as far as it knows)."""

    camera: TrueCamera
    since_s: float
    told: bool
    got_pct: float = 0.0
    need_pct: float = 0.0
    quality: float = 0.0
    in_time: float = 1.0
    measured: tuple[Measured, ...] = ()


class SimulatedBox:
    """See the module. utc_s: of the simulation's second 0."""

    def __init__(self, id: str, world: World, scenario: Scenario, utc_s: float) -> None:
        self.id, self._world, self._scenario, self._utc_s = id, world, scenario, utc_s
        self.site, self.outbox = world.site_of[id], SimulatedOutbox()
        self._rng = np.random.default_rng([scenario.seed, 3, world.boxes.index(id)])
        self._known = Known()
        self._boot, self._sequence, self.produced = "boot-0", 0, 0
        self.alive = True
        self.watching: dict[CameraKey, Watching] = {}
        self._orders: dict[CameraKey, CameraOrder] = {}
        self.shares_pct: dict[str, float] = {}
        self.packed: set[str] = set()  # parcels that it was asked to make
        self._served: dict[tuple[str, CameraKey], OfferWord] = {}
        self._refused = ""
        self._follow(0.0)

    # --- what it does -------------------------------------------------------------------------------------------------

    def run(self, step: int, now_s: float) -> None:
        """Watches until `now_s`: everybody's share, quality, events into the outbox."""
        here = list(self.watching.values())
        needs = [(one.camera.customer, self._world.need_pct(one.camera, step)) for one in here]
        for one, (_, need), got in zip(here, needs, divided(needs, self._scenario.capacity_pct, self.shares_pct), strict=True):
            part = got / need if need > 0 else 1.0
            one.need_pct, one.got_pct, one.in_time = need, got, min(1.0, part)
            one.quality = self._world.quality(one.camera, part, now_s)
            one.measured = (self._labels(one, now_s),)
        self._events(here, step)

    def _labels(self, one: Watching, now_s: float) -> Measured:
        """What labels of a window say of the model: no share has a part in that."""
        served = any(word.camera == one.camera.key and word.stage == "serving" for word in self._served.values())
        found = float(np.clip(self._world.quality(one.camera, 1.0, now_s) + self._rng.normal(0, LABEL_SD), 0, 1))
        number = one.measured[-1].number + 1 if one.measured else 1
        return Measured(number=number, version=OFFERED if served else "v1", quality=found, frames=LABELS, error=LABEL_SD)

    def _events(self, here: list[Watching], step: int) -> None:
        mean = sum(self._world.load(one.camera.customer, step) for one in here if one.told)
        count = int(self._rng.poisson(mean * self._scenario.events_per_h * self._scenario.report_s / 3600))
        made = [Message(topic=f"e/{self.id}/{self.produced + k}", payload=_PAYLOAD) for k in range(count)]
        self.produced += count
        self.outbox.put(made)

    def die(self) -> None:
        self.alive = False
        self.watching = {}

    def start(self, now_s: float) -> None:
        """After it has died: with what it remembers on its disk, and a boot of its own."""
        self.alive, self._boot = True, f"boot-{now_s:.0f}"
        self._follow(now_s)

    # --- what it is told ----------------------------------------------------------------------------------------------

    def hear(self, payload: bytes, now_s: float) -> None:
        """A wish."""
        wish = decode(Desired, payload)
        answer = judged(wish, self._known, box=self.id, now_utc_s=self._utc_s + now_s, offset_s=0.0)
        self._refused = answer.why
        if answer.verdict != "apply":
            self._known = answer.known
            return
        self._known = Known(applied=wish, highest=answer.known.highest)
        self._follow(now_s)

    def _follow(self, now_s: float) -> None:
        wish = self._known.applied
        orders = wish.cameras if wish else ()
        self.shares_pct = {share.customer: share.share_pct for share in wish.shares} if wish else {}
        self._orders = {order.camera: order for order in orders}
        goals = {
            camera.key: goal_of(self._orders.get(camera.key), self.id, camera.key) for camera in self._world.cameras[self.id]
        }
        goals |= {order.camera: goal_of(order, self.id, order.camera) for order in orders}
        self.watching = {key: self._watch(key, goal, now_s) for key, goal in sorted(goals.items()) if goal.watch}
        self.packed = {goal.pack for goal in goals.values() if goal.pack}
        for offer in wish.offers if wish else ():
            for camera in offer.cameras:
                stage = "withdrawn" if offer.withdraw else "serving" if self._rng.random() < 0.9 else "refused"
                known = self._served.get((offer.rollout, camera))
                if known is None or (offer.withdraw and known.stage != "withdrawn"):
                    self._served[offer.rollout, camera] = OfferWord(
                        rollout=offer.rollout, camera=camera, stage=stage, version=OFFERED  # type: ignore[arg-type]
                    )  # fmt: skip

    def _watch(self, key: CameraKey, goal: Goal, now_s: float) -> Watching:
        known = self.watching.get(key)
        if known is None:
            return Watching(camera=self._world.by_key[key], since_s=now_s, told=goal.voice == "tell")
        known.told = goal.voice == "tell"
        return known

    # --- what it says -------------------------------------------------------------------------------------------------

    def report(self, now_s: float) -> bytes:
        self._sequence += 1
        cameras = tuple(self._camera(one) for one in self.watching.values())
        applied = self._known.applied
        confirmation = Confirmation(
            term=applied.term if applied else 0, version=applied.version if applied else 0, refused=self._refused,
            cameras=tuple(self._word(order, now_s) for order in self._orders.values()), offers=tuple(self._served.values()),
        )  # fmt: skip
        return encode(
            BoxReport(
                box=self.id, site=self.site, boot=self._boot, sequence=self._sequence, sent_utc=iso_utc(self._utc_s + now_s),
                software="simulated", capacity_pct=self._scenario.capacity_pct,
                spare_pct=max(0.0, self._scenario.capacity_pct - sum(c.got_pct for c in cameras)), memory_mib=None,
                networks=(self.site,), cameras=cameras, confirmation=confirmation,
            )
        )  # fmt: skip

    def _camera(self, one: Watching) -> CameraReport:
        load = one.need_pct / one.camera.need_pct
        return CameraReport(
            camera=one.camera.key, customer=one.camera.customer, networks=(one.camera.network,), demand_pct=one.need_pct,
            got_pct=one.got_pct, quality=float(np.clip(one.quality + self._rng.normal(0, 0.01), 0, 1)), finish_frac=one.in_time,
            fps=FPS * load, version="v1", arch="tiny", measured=one.measured,
        )  # fmt: skip

    def _word(self, order: CameraOrder, now_s: float) -> CameraWord:
        one = self.watching.get(order.camera)
        if one is None:
            return word_for(order, Here(state="absent", kept=goal_of(order, self.id, order.camera).keep))
        for_s = now_s - one.since_s
        return word_for(
            order, Here(state="watched", frames=int(for_s * FPS) + 1, clock=True, for_s=for_s, last_s=self._utc_s + now_s)
        )
