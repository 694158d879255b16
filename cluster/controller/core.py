"""One controller: hears, decides, writes down, tells; in this order, step by step, in one thread. `step` is a whole one.

What is told was committed before, with the state that it came of, under the term of the lease. Killed anywhere, the next controller
finds both and tells again whatever may not have been told, under its own, higher term. While it does not hold the lease it hears, and
does nothing else.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from cluster.cilantro.allocator import observe
from cluster.controller import events as happened
from cluster.controller import history
from cluster.controller.database import NotInCharge
from cluster.controller.feedback import performances
from cluster.controller.lease import LeaseKeeper
from cluster.controller.link import Incoming, Link
from cluster.controller.reduce import Known, reduce
from cluster.controller.round import RoundRules, Settled, iso_utc, place, settle, share, urgent, wishes
from cluster.controller.services import ControllerStatus, EngineStatus
from cluster.controller.store import FleetStore, Kept
from cluster.placement.plan import Intent, carry_out, plan_placement
from cluster.placement.sight import has_listened
from cluster.types import FleetState, Performance
from configs.errors import UsageError
from scheduler.fleet.codec import decode, encode
from scheduler.fleet.types import SCHEMA, BoxReport, Desired

log = logging.getLogger("driftbox")

HEARTBEAT_S = 5.0
#: Least time between two looks at handoffs and rollouts when nothing was heard.
IDLE_S = 1.0
#: What boxes reported is written down so often; in a large fleet seldom, it is much and nothing depends on it.
CHECKPOINT_S, CHECKPOINT_MANY_S, MANY_BOXES = 15.0, 120.0, 100
#: So often at most a box's word makes the controller take a higher term.
SURPASS_S = 600.0
CONTROLLER_TOPIC = "fleet/controller"


class Planner(Protocol):
    """Finds places for cameras. In a fleet of a thousand boxes that takes seconds of a core, so it may go on beside the steps."""

    def begin(self, state: FleetState, rules: RoundRules, now_utc_s: float) -> None:
        """Begins anew with `state`; nothing while it still works on an older one."""
        ...

    def take(self) -> tuple[Intent, ...]:
        """What it found since the last call."""
        ...


class PlannerHere:
    """Has found it when `begin` returns."""

    def __init__(self) -> None:
        self._found: tuple[Intent, ...] = ()

    def begin(self, state: FleetState, rules: RoundRules, now_utc_s: float) -> None:
        self._found = plan_placement(state, rules.placement, now_utc_s)

    def take(self) -> tuple[Intent, ...]:
        found, self._found = self._found, ()
        return found


class PlannerBeside:
    """In a thread of its own. What it found is of a state some seconds old; whoever begins a handoff looks at the newest one, and a
    camera that is on its way already stays so."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleet-plan")
        self._working: Future[tuple[Intent, ...]] | None = None

    def begin(self, state: FleetState, rules: RoundRules, now_utc_s: float) -> None:
        if self._working is None:
            self._working = self._pool.submit(plan_placement, state, rules.placement, now_utc_s)

    def take(self) -> tuple[Intent, ...]:
        if self._working is None or not self._working.done():
            return ()
        found, self._working = self._working.result(), None
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a controller is made of. planner: finds places; parcels: names of those that lie here; blocked: boxes whose certificate was
    revoked: they are not heard; utc_s, monotonic_s: clocks; url: where it is reached, told to boxes and other controllers; lease_told,
    engine: what is used, for people."""

    store: FleetStore
    lease: LeaseKeeper
    link: Link
    utc_s: Callable[[], float]
    monotonic_s: Callable[[], float]
    parcels: Callable[[], frozenset[str]] = frozenset
    blocked: Callable[[], Collection[str]] = tuple
    rules: RoundRules = field(default_factory=RoundRules)
    planner: Planner = field(default_factory=PlannerHere)
    url: str = ""
    broker: str = ""
    lease_told: str = "file"
    engine: Callable[[], EngineStatus] = EngineStatus


class Controller:
    """`step` belongs to one thread; `state`, `status`, `changed` may be asked by any."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._kept = Kept()
        self._settled: Settled | None = None
        self._alarms: frozenset[tuple[str, str]] = frozenset()
        self._performances: dict[str, Performance] = {}
        self._connection = 0
        self._to_tell: set[str] = set()
        self._to_clear: set[str] = set()
        self._urgent: frozenset[str] = frozenset()
        self._shared: object = None
        self._since_utc_s = self._took_ms = 0.0
        self._due = dict.fromkeys(("heartbeat", "idle", "feedback", "urgent", "checkpoint", "surpass"), 0.0)
        self._online: dict[str, bool] = {}  # by topic: what boxes' wills and births said, also while we stood by
        self._reason = "it has not begun"
        self._version, self._changed = 0, threading.Condition()
        self._listened = False

    # --- asked by others ----------------------------------------------------------------------------------------------

    def known(self) -> Known:
        """Of the newest step, with the wishes that wait already taken in; of what was written down while another one is in charge."""
        kept, store = self._kept, self._parts.store
        return store.with_waiting(kept.known, kept.acted) if kept.known.state.term else store.known()

    def state(self) -> FleetState:
        return self._kept.known.state

    def performances(self) -> dict[str, Performance]:
        """The newest of each customer."""
        return dict(self._performances)

    def status(self) -> ControllerStatus:
        kept, parts = self._kept, self._parts
        return ControllerStatus(
            id=parts.lease.id, in_charge=self.holds(), term=kept.known.state.term, reason=self._reason,
            broker_up=parts.link.connection() > 0, broker=parts.broker, url=parts.url, since_utc_s=self._since_utc_s,
            now_utc_s=parts.utc_s(), last_round_s=kept.round_utc_s, next_round_s=kept.round_utc_s + parts.rules.round_s,
            round_took_ms=self._took_ms, version=self._version, lease=parts.lease_told, engine=parts.engine(),
        )  # fmt: skip

    def changed(self, after: int, timeout_s: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._version > after, timeout_s)
            return self._version

    def holds(self) -> bool:
        """Whether it may write, now, and has begun to."""
        return self._parts.lease.holds() and self._kept.known.state.term == self._parts.lease.term

    # --- one step -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Raises StorageError when it cannot write; nothing is told then, and the next step tries again."""
        heard = self._parts.link.take()
        self._note(heard)
        lease = self._parts.lease
        lease.look()
        if not lease.holds():
            self._stand_by()
            return
        try:
            if self._kept.known.state.term != lease.term:
                self._take_over(lease.term)
            self._decide(heard)
        except NotInCharge as error:
            lease.heard("(database)", self._kept.known.state.term + 1, live=False)
            self._stand_by()
            self._reason = error.message
            return
        self._tell()

    def _stand_by(self) -> None:
        if self._kept.known.state.term:
            log.warning("this controller is not in charge any more: %s", self._parts.lease.why)
            self._kept, self._settled = Kept(), None
            self._publish_state()
        elif self._reason != self._parts.lease.why:
            log.info("this controller stands by: %s", self._parts.lease.why)
        self._reason = self._parts.lease.why
        # What is heard now would be old by the time we are in charge; reports come every few seconds.

    def _take_over(self, term: int) -> None:
        parts, now_s = self._parts, self._parts.utc_s()
        kept = parts.store.load()
        known = replace(kept.known, handoffs=parts.rules.placement.handoff)
        self._kept = replace(kept, known=replace(known, state=replace(known.state, term=term)))
        self._alarms = parts.store.open_alarms()
        self._to_tell, self._to_clear, self._settled, self._urgent = set(), set(), None, frozenset()
        self._since_utc_s, self._connection, self._reason = now_s, -1, ""
        self._due, self._listened = dict.fromkeys(self._due, 0.0), False
        log.info("this controller is in charge, term %d", term)

    def _note(self, heard: list[Incoming]) -> None:
        """What counts whether we are in charge or not: other controllers, and who is there."""
        for message in heard:
            if message.topic.endswith("/availability"):
                self._online[message.topic.removesuffix("/availability")] = message.payload == b"online"
            if message.topic == CONTROLLER_TOPIC and message.payload:
                try:
                    body = json.loads(message.payload)
                    other, term = str(body["controller"]), int(body["term"])
                except (ValueError, TypeError, KeyError):
                    continue
                self._parts.lease.heard(other, term, live=not message.retained)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self, heard: list[Incoming]) -> None:
        parts, before = self._parts, self._kept
        now_s, mono_s = parts.utc_s(), parts.monotonic_s()
        connection = parts.link.connection()
        after, rows, fresh = self._events(before, heard, connection, now_s)
        if not (fresh or self._is_due("idle", mono_s, IDLE_S) or self._settled is None):
            return
        after, settled, more = self._decisions(after, now_s, mono_s)
        rows += more
        told = wishes(settled, after.told, parts.rules, now_s, version=after.version + 1)
        gone = before.told.keys() - settled.state.boxes.keys()
        newest = {box: wish for box, wish in {**after.told, **told}.items() if box not in gone}
        wished = {box: wish.order for box, wish in newest.items()}
        version = max([after.version, *(wish.version for wish in told.values())])
        known = replace(after.known, state=settled.state, wished=wished)
        after = replace(after, told=newest, version=version, known=known)
        alarms = history.alarms_of(settled.state)
        rows += history.placement_rows(before.known.state.handoffs, settled.state.handoffs)
        rows += history.alarm_rows(self._alarms, alarms, now_s)
        every_s = CHECKPOINT_MANY_S if len(settled.state.boxes) > MANY_BOXES else CHECKPOINT_S
        parts.store.commit(before, after, checkpoint=self._is_due("checkpoint", mono_s, every_s), rows=rows)
        self._to_clear |= {f"{before.known.state.boxes[box].site}/{box}" for box in gone if box in before.known.state.boxes}
        self._to_tell = (self._to_tell | told.keys()) - gone
        for sentence in settled.said:
            log.info("%s", sentence)
        self._kept, self._settled, self._alarms, self._connection = after, settled, alarms, connection
        self._publish_state()

    def _events(self, kept: Kept, heard: list[Incoming], connection: int, now_s: float) -> tuple[Kept, list[history.Row], bool]:
        """Everything that happened, taken in. Whether there was anything."""
        parts, known, rows = self._parts, kept.known, list[history.Row]()
        found: list[happened.Event] = []
        if connection != self._connection:
            found.append(happened.Listening(on=connection > 0, at_utc_s=now_s))
            found += self._who_is_there(known.state, now_s) if self._connection < 0 else []
            self._to_tell |= kept.told.keys() if connection else set()
        blocked = frozenset(parts.blocked())
        found += [event for message in heard if (event := self._event(message, known, blocked, now_s)) is not None]
        lying = parts.parcels()
        if lying != known.state.parcels:
            found.append(happened.ParcelsSeen(parcels=lying))
        for event in found:
            known = reduce(known, event)
        acted = kept.acted
        for waiting in parts.store.waiting(kept.acted):
            acted = waiting.number
            try:
                known = reduce(known, waiting.event)
            except UsageError as error:
                log.warning("a wish could not be carried out: %s", error.message)
                rows.append(history.audit_row(now_s, "controller", "refused", error.subject, error.message))
        return replace(kept, known=known, acted=acted), rows, bool(found) or acted != kept.acted

    def _who_is_there(self, state: FleetState, now_s: float) -> list[happened.Event]:
        boxes = {f"{view.site}/{box}": box for box, view in state.boxes.items()}
        return [
            happened.Availability(box=boxes[topic], online=online, at_utc_s=now_s)
            for topic, online in sorted(self._online.items())
            if topic in boxes
        ]

    def _event(self, message: Incoming, known: Known, blocked: Collection[str], now_s: float) -> happened.Event | None:
        site, _, rest = message.topic.partition("/")
        box, _, what = rest.partition("/")
        view = known.state.boxes.get(box)
        gone = what == "availability" and message.payload != b"online"
        if view is None or view.site != site or (box in blocked and not gone):  # that one was sent away is told by its will
            return None
        if what == "availability":
            return happened.Availability(box=box, online=message.payload == b"online", at_utc_s=now_s)
        if what == "desired":
            self._check_told(box, message)
            return None
        if what != "report" or message.retained:  # nobody should have kept a report; what is kept is old
            return None
        try:
            report = decode(BoxReport, message.payload)
        except UsageError as error:
            return happened.Unreadable(box=box, why=error.message, at_utc_s=now_s)
        if report.box != box or report.site != site:
            return happened.Unreadable(box=box, why=f"it is of box {report.box}", at_utc_s=now_s)
        self._check_confirmed(report)
        return happened.ReportHeard(report=report, at_utc_s=now_s)

    def _check_told(self, box: str, message: Incoming) -> None:
        """What the broker has for a box; told again where that is not the newest."""
        ours = self._kept.told.get(box)
        if ours is None:
            return
        try:
            theirs = decode(Desired, message.payload).order if message.payload else (0, 0)
        except UsageError:
            theirs = (0, 0)
        if theirs > ours.order:
            self._parts.lease.surpass(theirs[0])
        elif theirs < ours.order and (message.retained or theirs[0] < ours.term):
            self._to_tell.add(box)  # else it is our own of a moment ago, and the newer one follows it

    def _check_confirmed(self, report: BoxReport) -> None:
        """Our folder may have been put back from an old copy: boxes that have seen a higher term obey no lower one. Seldom looked at,
        for a box may lie."""
        term = report.confirmation.term
        if self._kept.known.state.term < term < 2**53 and self._is_due("surpass", self._parts.monotonic_s(), SURPASS_S):
            self._parts.lease.surpass(term)

    def _decisions(self, kept: Kept, now_s: float, mono_s: float) -> tuple[Kept, Settled, list[history.Row]]:
        rules, rows = self._parts.rules, list[history.Row]()
        settled = settle(kept.known.state, rules, now_s)
        state, allocator, began_s = settled.state, kept.allocator, self._parts.monotonic_s()
        if self._is_due("feedback", mono_s, rules.feedback_s):
            found = performances(state, wished=kept.known.wished, now_utc_s=now_s, fresh_s=rules.fresh_s)
            allocator = observe(allocator, *found, settings=rules.cilantro)
            self._performances |= {performance.customer: performance for performance in found}
        since_s, who = now_s - kept.round_utc_s, _who_shares(state)
        news = who != self._shared and since_s >= min(rules.feedback_s, rules.round_s)
        round_due = news or since_s >= rules.round_s or since_s < 0
        pressing = urgent(state, rules, now_s)
        placed, intents = state, tuple[Intent, ...]()
        if pressing and (pressing != self._urgent or self._is_due("urgent", mono_s, rules.urgent_s)):
            placed, intents = place(state, rules, now_s, only_urgent=True)
        if round_due:
            self._parts.planner.begin(placed, rules, now_s)
        # Takeovers are urgent, so they were decided on the newest state: meanwhile the box may be back.
        planned = tuple(intent for intent in self._parts.planner.take() if intent.what != "takeover")
        if planned:
            placed = carry_out(placed, planned, rules.placement, now_s)
        for intent in (*intents, *planned):
            log.info("%s: %s %s (%s)", intent.camera, intent.what, intent.box, intent.reason)
        self._urgent = pressing
        if round_due:
            placed, allocator, reasons = share(placed, allocator, rules, now_s)
            kept, self._shared = replace(kept, round=kept.round + 1, round_utc_s=now_s), who
            self._took_ms = (self._parts.monotonic_s() - began_s) * 1000.0
            rows += self._round_rows(kept.round, now_s, placed, reasons)
        if placed is not state:
            settled = replace(settle(placed, rules, now_s), said=settled.said)
        return replace(kept, allocator=allocator), settled, rows

    def _round_rows(self, number: int, now_s: float, state: FleetState, reasons: tuple[str, ...]) -> list[history.Row]:
        fresh = [p for p in self._performances.values() if now_s - p.end_utc_s < self._parts.rules.round_s]
        return [
            *history.round_rows(
                number, now_s, policy=self._parts.rules.policy, capacity_pct=sum(v.capacity_pct for v in state.boxes.values()),
                took_ms=self._took_ms, reasons=reasons, grants=state.grants,
            ),
            *history.performance_rows(fresh, state.customers), *history.box_rows(state, now_s), *history.prune_rows(now_s),
        ]  # fmt: skip

    # --- telling ------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """What was committed and may not have been told."""
        parts = self._parts
        if not parts.link.connection():
            self._reason = "the broker is away: boxes go on with what they were told last"
            return
        self._reason = ""
        if parts.lease.holds() and self._is_due("heartbeat", parts.monotonic_s(), HEARTBEAT_S):
            parts.link.say(CONTROLLER_TOPIC, self._heartbeat())
        # Its data may be an old copy: boxes know better who watches what (`cluster.placement.handoff`), so they are heard first.
        self._listened = self._listened or has_listened(self._kept.known.state, parts.utc_s())
        if not self._listened:
            self._reason = "it has just begun: boxes are heard before they are told anything"
            return
        for topic in sorted(self._to_clear):
            if parts.lease.holds() and parts.link.say(f"{topic}/desired", b""):
                self._to_clear.discard(topic)
        for box in sorted(self._to_tell):
            wish, view = self._kept.told.get(box), self._kept.known.state.boxes.get(box)
            # Looked at for each: a machine that slept in between has lost the lease.
            if wish is None or view is None or not parts.lease.holds():
                continue
            if parts.link.say(f"{view.site}/{box}/desired", encode(wish)):
                self._to_tell.discard(box)

    def _heartbeat(self) -> bytes:
        parts = self._parts
        body = {
            "schema": SCHEMA, "controller": parts.lease.id, "term": self._kept.known.state.term, "utc": iso_utc(parts.utc_s()),
            "url": parts.url,
        }  # fmt: skip
        return json.dumps(body).encode()

    # --- small ones ---------------------------------------------------------------------------------------------------

    def _is_due(self, name: str, mono_s: float, every_s: float) -> bool:
        """True once every so often."""
        if mono_s < self._due[name]:
            return False
        self._due[name] = mono_s + every_s
        return True

    def _publish_state(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()


def _who_shares(state: FleetState) -> object:
    """Between whom, and of what, shares are divided: when it changes the next round need not be waited for."""
    boxes = frozenset((box, view.capacity_pct) for box, view in state.boxes.items() if view.report is not None)
    customers = frozenset((c.id, c.goal, c.weight, c.path, c.measure) for c in state.customers.values())
    groups = frozenset((group.path, group.weight) for group in state.groups.values())
    return (
        boxes,
        customers,
        groups,
        frozenset((camera.customer, box) for box, view in state.boxes.items() for camera in view.cameras),
    )
