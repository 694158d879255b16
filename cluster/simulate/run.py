"""Plays a scenario."""

from __future__ import annotations

import gc
import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cluster.cilantro.utility import utility
from cluster.controller import events as happened
from cluster.controller.services import ControllerStatus
from cluster.rollouts.types import RolloutRules
from cluster.rollouts.wishes import RolloutWish
from cluster.simulate.box import SimulatedBox
from cluster.simulate.controller import SimulatedController
from cluster.simulate.result import Result, Seen, ViewTimes
from cluster.simulate.scenario import HOUR_S, Scenario
from cluster.simulate.world import World, divided, loads_for
from cluster.web.app import EVERY_S
from cluster.web.view import View, fleet_view
from edge.web.json_patch import patch_between
from scheduler.fleet.types import CameraKey

#: UTC of the simulation's second 0.
BEGAN_UTC_S = 1_795_000_000.0
#: The view is measured this often.
VIEW_EVERY_STEPS = 15


def simulate(scenario: Scenario, *, arrivals: Path | None = None) -> Result:
    """arrivals: the recorded load, None: a seeded one."""
    return _Play(scenario, arrivals).play()


@dataclass
class _Play:
    scenario: Scenario
    arrivals: Path | None = None
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        s = self.scenario
        self.world = World(s, loads_for(s, self.arrivals))
        self.boxes = {id: SimulatedBox(id, self.world, s, BEGAN_UTC_S) for id in self.world.boxes}
        self.controller = SimulatedController(s, self.world.customers, BEGAN_UTC_S)
        for id in self.world.boxes:
            site = self.world.site_of[id]
            self.controller.happen(happened.BoxJoined(box=id, site=site, at_utc_s=BEGAN_UTC_S, capacity_pct=s.capacity_pct))
        rng = np.random.default_rng([s.seed, 4])
        self.cut = set(rng.choice(self.world.boxes, round(s.cut_frac * s.boxes), replace=False).tolist())
        self.deaths: defaultdict[int, list[str]] = defaultdict(list)
        for id in rng.choice(self.world.boxes, s.deaths, replace=False).tolist():
            self.deaths[int(rng.integers(1, max(2, s.steps)))].append(id)
        self.back: defaultdict[int, list[str]] = defaultdict(list)
        self.heard: dict[str, int] = dict.fromkeys(self.world.boxes, 0)
        self.connected: set[str] = set()
        self.mail: dict[str, bytes] = {}  # the broker's retained wishes
        self.before: dict[str, tuple[dict[str, float], frozenset[CameraKey]]] = {}
        self.views = ViewTimes(every_s=EVERY_S)
        self._view: View | None = None

    def play(self) -> Result:
        began_s = time.perf_counter()
        for step in range(1, self.scenario.steps + 1):
            self._step(step, step * self.scenario.report_s)
        for box in self.boxes.values():
            self.seen.waiting += len(box.outbox)
            self.seen.produced += box.produced
            self.seen.dropped += box.outbox.lost
        state = self.controller.state
        return Result.made(
            self.scenario, self.seen, self.views, dict(self.controller.cpu_s), dict(self.controller.calls), self.world.customers,
            rollout=next((f"{r.state}: {r.reason}" for r in state.rollouts.values()), ""),
            wall_s=time.perf_counter() - began_s, recorded=self.arrivals is not None,
        )  # fmt: skip

    # --- one step -----------------------------------------------------------------------------------------------------

    def _step(self, step: int, now_s: float) -> None:
        self._deaths(step, now_s)
        for box in self.boxes.values():
            if box.alive:
                box.run(step, now_s)
        self._connections(now_s)
        for id in self.world.boxes:
            if id in self.connected:
                self._talk(self.boxes[id], now_s)
        if step == max(1, round(HOUR_S / self.scenario.report_s)) and self.scenario.rollout:
            rules = RolloutRules(soak_s=HOUR_S)
            wish = RolloutWish(what="begin", id="sim", parcel="sim", rules=rules)
            self.controller.happen(happened.RolloutWished(wish=wish, by="simulation", at_utc_s=BEGAN_UTC_S + now_s))
        if not self.scenario.broker_is_away(now_s):
            self._tell(now_s)
        self._look(step, now_s)

    def _deaths(self, step: int, now_s: float) -> None:
        for id in self.deaths.pop(step, ()):
            self.boxes[id].die()
            self.back[step + max(1, round(self.scenario.dead_h * HOUR_S / self.scenario.report_s))].append(id)
        for id in self.back.pop(step, ()):
            self.boxes[id].start(now_s)

    def _connections(self, now_s: float) -> None:
        """Wills and the controller's own connection: what the broker tells of who is there."""
        away, cut = self.scenario.broker_is_away(now_s), self.scenario.is_cut(now_s)
        there = {id for id, box in self.boxes.items() if box.alive and not away and not (cut and id in self.cut)}
        if away != self.seen.broker_away:
            self.seen.broker_away = away
            self.controller.happen(happened.Listening(on=not away, at_utc_s=BEGAN_UTC_S + now_s))
        if not away:
            told = {view.id for view in self.controller.state.boxes.values() if view.online}
            for id in sorted(told ^ there):
                event = happened.Availability(box=id, online=id in there, at_utc_s=BEGAN_UTC_S + now_s)
                self.controller.happen(event)
        for id in sorted(there - self.connected):
            if id in self.mail:
                self.boxes[id].hear(self.mail[id], now_s)
        self.connected = there

    def _talk(self, box: SimulatedBox, now_s: float) -> None:
        for message in box.outbox.take_all():
            if message.topic != f"e/{box.id}/{self.heard[box.id]}":
                self.seen.lost_or_twice += 1
            self.heard[box.id] += 1
            self.seen.received += 1
        self.controller.hear(box.report(now_s), now_s)
        self.controller.parcels |= box.packed

    def _tell(self, now_s: float) -> None:
        for id, payload in self.controller.step(now_s).items():
            self.mail[id] = payload
            if id in self.connected:
                self.boxes[id].hear(payload, now_s)

    # --- what is measured ---------------------------------------------------------------------------------------------

    def _look(self, step: int, now_s: float) -> None:
        s, dt = self.scenario, self.scenario.report_s
        watched = {key for box in self.boxes.values() for key in box.watching}
        unwatched = [key for key in self.world.by_key if key not in watched]
        self.seen.camera_s += dt * len(self.world.by_key)
        self.seen.unwatched_s += dt * len(unwatched)
        self.seen.unwatched_alive_s += dt * sum(self.boxes[key.home].alive for key in unwatched)
        if s.is_cut(now_s):
            self._cut_off(dt, now_s)
        else:
            self.before = {}
        if now_s > HOUR_S:
            self._goals(step, now_s)
        if step % VIEW_EVERY_STEPS == 0:
            self._measure_view(now_s)

    def _cut_off(self, dt: float, now_s: float) -> None:
        """A box that is cut off is to do exactly what it did when it was heard last."""
        for id in self.cut:
            box = self.boxes[id]
            if not box.alive:
                self.before.pop(id, None)
                continue
            does = (dict(box.shares_pct), frozenset(box.watching))
            if self.before.setdefault(id, does) != does:
                self.seen.changed_alone += 1
            self.seen.cut_box_s += dt
            due = sum(5.0 * one.need_pct / one.camera.need_pct for one in box.watching.values())
            self.seen.cut_frames_due += dt * due
            self.seen.cut_unwatched_s += dt * sum(key.home == id and key not in box.watching for key in self._homes(id))

    def _homes(self, id: str) -> list[CameraKey]:
        """Cameras of the box that it watched when it was cut off."""
        kept = self.before.get(id, ({}, frozenset()))[1]
        return [camera.key for camera in self.world.cameras[id] if camera.key in kept]

    def _goals(self, step: int, now_s: float) -> None:
        """Per customer: its true mean quality, and what it would be with every box divided by weight."""
        got: defaultdict[str, list[float]] = defaultdict(list)
        even: defaultdict[str, list[float]] = defaultdict(list)
        for box in self.boxes.values():
            here = [one for one in box.watching.values() if one.told]
            needs = [(one.camera.customer, one.need_pct) for one in here]
            for one in here:
                got[one.camera.customer].append(one.quality)
            for one, share in zip(here, divided(needs, self.scenario.capacity_pct, self._weights(needs)), strict=True):
                part = share / one.need_pct if one.need_pct > 0 else 1.0
                even[one.camera.customer].append(self.world.quality(one.camera, part, now_s))
        for customer in self.world.customers:
            if got[customer.id] and even[customer.id]:
                value, equal = float(np.mean(got[customer.id])), float(np.mean(even[customer.id]))
                ours = float(utility(value, customer.goal, customer.utility))
                entitled = float(utility(equal, customer.goal, customer.utility))
                self.seen.values.append((customer.id, value, equal, ours, entitled))
        self.seen.rounds += 1

    def _weights(self, needs: list[tuple[str, float]]) -> dict[str, float]:
        """Every customer's entitlement on a box: by weight, whatever it needs (resource-fair, Cilantro's baseline)."""
        weight = {customer.id: customer.weight for customer in self.world.customers}
        names = {name for name, _ in needs}
        total = sum(weight[name] for name in names) or 1.0
        return {name: self.scenario.capacity_pct * weight[name] / total for name in names}

    def _measure_view(self, now_s: float) -> None:
        status = ControllerStatus(id="sim", in_charge=True, term=1, now_utc_s=BEGAN_UTC_S + now_s)
        gc.freeze()  # a thousand boxes and their outboxes lie in this process: a controller's collector would not look through them
        began_s = time.process_time()
        view = fleet_view(self.controller.state, status, now_utc_s=BEGAN_UTC_S + now_s)
        patch = view if self._view is None else patch_between(self._view, view)
        size = len(json.dumps(patch, separators=(",", ":")))
        self.views.made_s.append(time.process_time() - began_s)
        gc.unfreeze()
        self.views.bytes.append(size)
        self._view = view
