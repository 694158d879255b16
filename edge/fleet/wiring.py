"""The fleet's part of a running box: starts when the box has joined, ends when it leaves, without a restart of the box.

It looks at `fleet/member.json` every few seconds, so `driftbox fleet join` and `leave` take effect on a box that runs. Whatever fails
here (no disk, no certificate, no broker) is said and tried again; nothing waits for it.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from configs.errors import DriftboxError, redact
from configs.schema import BoxConfig, FleetSection
from edge.clock import Clock
from edge.fleet import joining
from edge.fleet.link import FleetLink, Numbers
from edge.fleet.member import Handlers, Member, Shares
from edge.fleet.membership import OUTBOX, TIMEOUT_S, WISHES, MemberFolder, Membership, moved
from edge.fleet.report import MOST_MEASURED, CameraFacts, Looked, Stamp, measured_of, report_of
from edge.fleet.view import FleetView, sentence
from edge.fleet.wishes import WishBook
from edge.fleet.without import NoOffers, NoSamples, OwnCamerasOnly
from edge.status import StatusSource
from edge.store.outbox import Outbox
from edge.store.store import Store
from scheduler import events as ev
from scheduler.fleet.types import BoxReport, Confirmation
from streams.pulse import Pulse

if TYPE_CHECKING:
    from edge.live_control import LiveControl
    from edge.runtime import BoxRuntime

log = logging.getLogger(__name__)

#: How often it is looked whether the box has joined or left; how often the certificate is looked at; after a failure.
FOLLOW_S, RENEW_LOOK_S, AGAIN_S = 2.0, 3600.0, 60.0


@dataclass(frozen=True, kw_only=True)
class FleetBox:
    """What the fleet's part and its handlers need of the box. config: as it is in force now; tell: a sentence for the operator."""

    runtime: BoxRuntime
    status: StatusSource
    control: LiveControl
    config: Callable[[], BoxConfig]
    folder: MemberFolder
    clock: Clock
    tell: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A membership in use, for handlers. client: speaks to the controller in charge as this box, with so many
    seconds for an answer (close it); controller_utc_s: the
    controller's clock, None: not measured; wake: a handler's words have changed, tell them at once."""

    member: Membership
    box: FleetBox
    client: Callable[[float], httpx.Client]
    controller_utc_s: Callable[[], float | None]
    wake: Callable[[], None]


def without_handlers(seat: Seat) -> Handlers:
    """Of a box that only reports and shares."""
    return Handlers(cameras=OwnCamerasOnly(seat.member.box), offers=NoOffers(), samples=NoSamples())


class EngineShares:
    """`edge.fleet.member.Engine` of a running box."""

    def __init__(self, runtime: BoxRuntime) -> None:
        self._runtime = runtime

    def shares(self) -> Shares:
        return self._runtime.parts.engine.state.shares_pct

    def order_shares(self, shares: Shares) -> None:
        self._runtime.post(lambda at_s: ev.SharesOrdered(at_s=at_s, shares_pct=shares))


class Joined:
    """A membership while it is used: its database, its connection, its thread. Raises DriftboxError when one of them cannot be had."""

    def __init__(self, box: FleetBox, member: Membership, handlers_of: Callable[[Seat], Handlers]) -> None:
        self.membership, self._box = member, box
        self._store = Store(box.folder.path(OUTBOX))
        try:
            outbox = Outbox(self._store)
            self._number, self._boot = Numbers(outbox), secrets.token_hex(8)
            seat = Seat(
                member=member, box=box, client=self.client, controller_utc_s=lambda: self.member.controller_utc_s(),
                wake=lambda: self.member.wake(),
            )  # fmt: skip
            self.handlers = handlers = handlers_of(seat)
            self.member = Member(
                box=member.box, book=WishBook(box.folder.path(WISHES), membership=member.id), engine=EngineShares(box.runtime),
                handlers=handlers, report=self._report, clock=box.clock, report_every_s=member.report_every_s, tell=box.tell,
            )  # fmt: skip
            self.link = FleetLink(
                box.folder.mqtt(member), member, source=box.status, outbox=outbox, hear=self._hear, state=self.member.state,
                utc=box.clock.utc_s,
            )  # fmt: skip
        except BaseException:
            self._store.close()
            raise
        self.member.teller = self.link

    def client(self, timeout_s: float = TIMEOUT_S) -> httpx.Client:
        """Speaks to the controller in charge as this box."""
        url = moved(self.membership, self.member.controller).url
        return self._box.folder.client(url, timeout_s=timeout_s)

    def start(self) -> None:
        self.handlers.start()
        self.link.publisher.start()
        self.member.start()

    def stop(self) -> None:
        self.member.stop()
        self.handlers.stop()
        self.link.publisher.stop()
        self._store.close()

    def _hear(self, topic: str, payload: bytes, retained: bool, again: bool) -> None:
        """Called by the connection's thread."""
        if topic == self.link.wish_topic:
            self.member.hear_wish(payload)
        elif topic == self.link.heartbeat_topic and len(payload) < 10_000:
            try:
                self.member.hear_heartbeat(json.loads(payload), retained=retained or again)
            except ValueError:
                log.warning("fleet: what came as the controller's heartbeat is none")

    def _report(self, said: Confirmation) -> BoxReport:
        member, config = self.membership, self._box.config()
        stamp = Stamp(box=member.box, site=member.site, boot=self._boot, sequence=self._number())
        return report_of(stamp, looked_at(self._box, self.handlers), config.fleet, said)


def looked_at(box: FleetBox, handlers: Handlers) -> Looked:
    """A look at the running box. From any thread: it only reads."""
    watched = dict(box.runtime.watched)
    streams = box.runtime.parts.engine.state.streams
    facts = {}
    for id, entry in watched.items():
        stream = streams.get(id)
        drift = stream.signature.values if stream is not None and stream.signature is not None else ()
        measured = measured_of(box.runtime.parts.store.quality(id, kind="f1", limit=MOST_MEASURED))
        facts[id] = CameraFacts(knobs=entry.offered(), arch=entry.arch, drift=drift, measured=measured)
    entries = {id: entry.entry for id, entry in watched.items() if entry.entry is not None}
    return Looked(status=box.status.status(), entries=entries, facts=facts, guests=handlers.cameras.guests())


class FleetPart:
    """See the module. Thread-safe."""

    def __init__(
        self,
        box: FleetBox,
        *,
        handlers_of: Callable[[Seat], Handlers] = without_handlers,
        alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """alone: cleans up in a box that is in no fleet, again until it says that all is clean."""
        self._box, self._handlers_of, self._alone_is_clean = box, handlers_of, alone
        self._clean = False
        self._joined: Joined | None = None
        self._trouble, self._certificate, self._renewal = "", "", ""
        self._renew_s = float("-inf")
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._pulse = Pulse(box.clock.monotonic_s)
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    # --- what is shown ------------------------------------------------------------------------------------------------

    def fleet(self) -> FleetView:
        """See `edge.fleet.view.FleetSource`."""
        joined, enabled = self._joined, self._section().enabled
        if joined is None:
            return self._alone(enabled)
        publisher, member = joined.link.publisher, joined.membership
        troubles = [self._trouble, publisher.trouble, self._certificate, self._renewal]
        seen = joined.member.view()
        return seen.model_copy(
            update={
                "site": member.site, "controller": seen.controller or member.url, "connected": publisher.connected,
                "trouble": "; ".join(text for text in troubles if text), "certificate_until_utc": self._until(),
            }
        )  # fmt: skip

    def _alone(self, enabled: bool) -> FleetView:
        try:
            member = self._box.folder.read()
        except DriftboxError as error:
            return FleetView(joined=True, enabled=enabled, trouble=error.message)
        if member is None:
            return FleetView(joined=False, enabled=enabled)
        return FleetView(
            joined=True, enabled=enabled, box=member.box, site=member.site, controller=member.url, trouble=self._trouble,
            certificate_until_utc=self._until(),
        )  # fmt: skip

    def sentence(self) -> str:
        """For the Health page."""
        return sentence(self.fleet())

    # --- running ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.follow()
        self._thread.start()

    def stop(self) -> None:
        """The box ends: it stays a member."""
        self._stopping.set()
        with self._lock:
            self._end()

    def is_alive(self) -> bool:
        joined = self._joined
        own = self._stopping.is_set() or self._thread.ident is None or self._thread.is_alive()
        return own and (joined is None or (joined.member.is_alive() and joined.link.publisher.is_alive()))

    def silent_s(self) -> float:
        joined = self._joined
        if self._stopping.is_set():
            return 0.0
        theirs = [joined.member.silent_s(), joined.link.publisher.silent_s()] if joined is not None else []
        return max([self._pulse.silent_s(), *theirs])

    def begin_anew(self) -> None:
        """Another thread for what has died. RuntimeError: it hangs."""
        joined = self._joined
        if joined is not None:
            for worker in (joined.member, joined.link.publisher):
                if not worker.is_alive():
                    worker.begin_anew()
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(FOLLOW_S):
            self._pulse.beat()
            try:
                self.follow()
                self.look_at_certificate()
            except Exception:  # a fleet must never end anything here
                log.exception("fleet: a look failed")

    def follow(self) -> None:
        """Brings what runs in line with `fleet/member.json`."""
        with self._lock:
            if self._stopping.is_set():
                return
            try:
                member = self._box.folder.read() if self._section().enabled else None
                self._follow(member)
                self._trouble = ""
            except DriftboxError as error:
                self._say(error.message)

    def _follow(self, member: Membership | None) -> None:
        joined = self._joined
        if joined is not None and (member is None or member.id != joined.membership.id):
            left = self._box.folder.read() is None
            self._end(leave=left)
            if left:
                self._box.folder.forget()  # what was still written while the command took it away
        if member is None and self._joined is None and not self._clean:
            self._clean = self._alone_is_clean()
        if member is not None and self._joined is None:
            self._clean = False
            self._joined = Joined(self._box, member, self._handlers_of)
            self._joined.start()
            self._renew_s = float("-inf")

    def _end(self, *, leave: bool = False) -> None:
        joined, self._joined = self._joined, None
        if joined is None:
            return
        if leave:
            joined.member.release()
            try:
                joined.handlers.settle()
            except DriftboxError as error:
                log.warning("fleet: cameras come home beside: %s", error)
        joined.stop()
        if leave:
            self._box.tell("the box has left its fleet; it watches its own cameras")

    def look_at_certificate(self) -> None:
        """Renews it when less than a third of its time is left, by the controller's clock where that is known."""
        joined, now_s = self._joined, self._box.clock.monotonic_s()
        if joined is None or now_s < self._renew_s:
            return
        self._renew_s = now_s + RENEW_LOOK_S
        try:
            now_utc_s = joined.member.controller_utc_s() or self._box.clock.utc_s()
            began_s, ends_s = self._box.folder.began_utc_s(), self._box.folder.expires_utc_s()
            self._certificate = "the box's certificate has expired" if ends_s <= now_utc_s else ""
            if renewal_is_due(began_s, ends_s, now_utc_s):
                joining.renew(self._box.folder, joined.membership, client=joined.client())
                self._certificate = ""
                log.info("fleet: the box's certificate was renewed")
            self._renewal = ""
        except DriftboxError as error:
            self._renew_s = now_s + AGAIN_S
            text = f"the box's certificate cannot be renewed: {redact(error.message)}"
            if text != self._renewal:
                self._box.tell(f"{text}. {error.remedy}".strip())
            self._renewal = text

    def _until(self) -> float | None:
        try:
            return self._box.folder.expires_utc_s()
        except DriftboxError:
            return None

    def _section(self) -> FleetSection:
        return self._box.config().fleet

    def _say(self, why: str) -> None:
        if why != self._trouble:
            log.warning("fleet: %s", why)
            self._box.tell(f"the fleet: {redact(why)}")
        self._trouble = why


def renewal_is_due(began_s: float, ends_s: float, now_s: float) -> bool:
    """Less than a third of a certificate's time is left."""
    return ends_s - now_s < (ends_s - began_s) / 3


def fleet_part(box: Any, status: StatusSource, control: LiveControl, *, tell: Callable[[str], None]) -> FleetPart:
    """Of a built box (`edge.wiring.box.Box`)."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request; what matters is said here
    seen = FleetBox(
        runtime=box.runtime, status=status, control=control, config=lambda: box.config, folder=MemberFolder(box.folder.root),
        clock=box.runtime.parts.clock, tell=tell,
    )  # fmt: skip
    from edge.fleet import live

    return FleetPart(seen, handlers_of=partial(live.handlers, box=box), alone=partial(live.alone, seen, box))
