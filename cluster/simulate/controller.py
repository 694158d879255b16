"""The controller in virtual time: its pure functions in the order in which the live one calls them, with the CPU time of each part."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from cluster.cilantro.allocator import AllocatorState, observe
from cluster.controller import events as happened
from cluster.controller.feedback import performances
from cluster.controller.reduce import Known, reduce
from cluster.controller.round import RoundRules, place, settle, share, urgent, wishes
from cluster.placement.handoff import HandoffRules
from cluster.placement.plan import FleetRules
from cluster.placement.sight import Patience
from cluster.simulate.scenario import Scenario
from cluster.types import Customer, FleetState
from scheduler.fleet.codec import decode, encode
from scheduler.fleet.types import BoxReport, Desired


def rules_for(scenario: Scenario) -> RoundRules:
    """The live rules, with all patience stretched as reports are rarer than live (every 5 s)."""
    s = scenario.report_s / 5.0
    patience = Patience(gone_s=20 * s, hung_s=90 * s, doubt_s=30 * s)
    handoff = HandoffRules(
        patience=patience, prepare_s=60 * s, warm_s=60 * s, switch_s=20 * s, release_s=15 * s, kept_s=600 * s
    )
    return RoundRules(
        round_s=max(120.0, scenario.report_s), feedback_s=max(10.0, scenario.report_s), fresh_s=30 * s,
        valid_s=max(3600.0, 60 * scenario.report_s),
        placement=FleetRules(handoff=handoff, settle_s=max(600.0, 10 * scenario.report_s), home_s=max(120.0, 2 * scenario.report_s)),
    )  # fmt: skip


class SimulatedController:
    """cpu_s: process time per part; calls: of each."""

    def __init__(self, scenario: Scenario, customers: Iterable[Customer], utc_s: float) -> None:
        self.rules, self._utc_s = rules_for(scenario), utc_s
        state = FleetState(term=1, customers={customer.id: customer for customer in customers})
        self.known = Known(state=state, handoffs=self.rules.placement.handoff)
        self.allocator = AllocatorState()
        self.told: dict[str, Desired] = {}
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.parcels: set[str] = set()
        self._shared_s = self._observed_s = -1e9
        self._version = 0
        self._urgent: frozenset[str] = frozenset()

    @property
    def state(self) -> FleetState:
        return self.known.state

    def happen(self, event: happened.Event) -> None:
        with self._counted("events"):
            self.known = reduce(self.known, event)

    def hear(self, payload: bytes, now_s: float) -> None:
        """A box's report as it comes from the broker."""
        with self._counted("reports"):
            report = decode(BoxReport, payload)
            self.known = reduce(self.known, happened.ReportHeard(report=report, at_utc_s=self._utc_s + now_s))

    def step(self, now_s: float) -> dict[str, bytes]:
        """What is to be told to boxes now."""
        now_utc_s, rules = self._utc_s + now_s, self.rules
        if self.parcels != self.state.parcels:
            self.happen(happened.ParcelsSeen(parcels=frozenset(self.parcels)))
        with self._counted("settle"):
            settled = settle(self.state, rules, now_utc_s)
        state = settled.state
        self._feedback(state, now_s)
        placed = self._placed(state, now_s)
        if placed is not state:
            with self._counted("settle again"):
                settled = settle(placed, rules, now_utc_s)
        with self._counted("wishes"):
            found = wishes(settled, self.told, rules, now_utc_s, version=self._version + 1)
            self.told |= found
            self._version = max([self._version, *(wish.version for wish in found.values())])
            wished = {box: wish.order for box, wish in self.told.items()}
            self.known = replace(self.known, state=settled.state, wished=wished)
            return {box: encode(wish) for box, wish in found.items()}

    def _feedback(self, state: FleetState, now_s: float) -> None:
        if now_s - self._observed_s < self.rules.feedback_s:
            return
        self._observed_s = now_s
        with self._counted("feedback"):
            wished, fresh_s = self.known.wished, self.rules.fresh_s
            found = performances(state, wished=wished, now_utc_s=self._utc_s + now_s, fresh_s=fresh_s)
            self.allocator = observe(self.allocator, *found, settings=self.rules.cilantro)

    def _placed(self, state: FleetState, now_s: float) -> FleetState:
        """Places and shares: with the round, and places at once when somebody new is in need."""
        now_utc_s, rules = self._utc_s + now_s, self.rules
        round_due = now_s - self._shared_s >= rules.round_s
        with self._counted("urgent"):
            pressing = urgent(state, rules, now_utc_s)
        if round_due or (pressing and pressing != self._urgent):
            with self._counted("places" if round_due else "urgent places"):
                state, _ = place(state, rules, now_utc_s, only_urgent=not round_due)
        self._urgent = pressing
        if round_due:
            self._shared_s = now_s
            with self._counted("shares"):
                state, self.allocator, _ = share(state, self.allocator, rules, now_utc_s)
        return state

    @contextmanager
    def _counted(self, part: str) -> Iterator[None]:
        began_s = time.process_time()
        try:
            yield
        finally:
            self.cpu_s[part] += time.process_time() - began_s
            self.calls[part] += 1
