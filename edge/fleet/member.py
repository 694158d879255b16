"""The box as a member: hears what the fleet wishes, keeps it, carries it out, tells how far it is.

    broker --> heard --> judged (`scheduler.fleet.desire`) --> on disk (`WishBook`) --> shares to the engine, orders to the handlers
    status, configuration, handlers' words --> confirmation and report --> broker

One thread does all of it (`step`); what comes in is only noted down. Nothing here can stop the box from watching its own cameras: shares
are floors under contention, a handler that fails is a problem in the confirmation, a fleet that is silent changes nothing for as long as
it is silent, and an error that nobody foresaw costs one step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from configs.errors import DriftboxError, StorageError, redact
from edge.clock import Clock
from edge.fleet.controller_clock import ControllerClock
from edge.fleet.handlers import CameraHost, OfferDesk, SampleDesk
from edge.fleet.view import FleetView, OrderView, ShareView
from edge.fleet.wishes import WishBook
from scheduler.fleet.codec import as_dict, decode
from scheduler.fleet.desire import Answer, Known, judged, utc_s
from scheduler.fleet.types import BoxReport, CameraWord, Confirmation, Desired, OfferWord
from streams.pulse import Pulse

log = logging.getLogger(__name__)

#: Seconds between two looks; least time between two reports; how often what failed is tried again.
LOOK_S, LEAST_S, AGAIN_S = 0.5, 0.2, 30.0

Shares = tuple[tuple[str, float], ...]


class Engine(Protocol):
    """What the member needs of the running box."""

    def shares(self) -> Shares:
        """In force now, by customer."""

    def order_shares(self, shares: Shares) -> None:
        """To be in force soon; may be lost while the box starts or ends."""


class Teller(Protocol):
    """What carries reports: `edge.fleet.link.FleetLink`."""

    def report(self, report: BoxReport) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """What carries orders out (`edge.fleet.handlers`). start, stop: of their threads; settle: waits, not long, until what was
    ordered last is done."""

    cameras: CameraHost
    offers: OfferDesk
    samples: SampleDesk
    start: Callable[[], None] = lambda: None
    stop: Callable[[], None] = lambda: None
    settle: Callable[[], None] = lambda: None


class Member:
    """See the module. box: its id in the fleet; report: makes a report of a confirmation (StorageError, and whatever a look at the box
    raises, cost that report); tell: a sentence for the operator's notes."""

    def __init__(
        self, *, box: str, book: WishBook, engine: Engine, handlers: Handlers, report: Callable[[Confirmation], BoxReport],
        clock: Clock, report_every_s: float, tell: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self._box, self._book, self._engine, self._handlers = box, book, engine, handlers
        self._report, self._clock, self._every_s, self._tell = report, clock, report_every_s, tell
        self.teller: Teller | None = None
        self._lock = threading.Lock()
        self._message: bytes | None = None  # the newest wish that was heard, not looked at yet
        self._waiting: Desired | None = None  # judged, and may be applied later
        self._time = ControllerClock()
        self._controller = ""
        self._refused, self._doubt, self._problems = "", "", {}  # type: ignore[var-annotated]
        self._carried_out: Desired | None = None
        self._failed_s: float | None = None
        self._told: Confirmation | None = None
        self._reported_s = float("-inf")
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._pulse = Pulse(clock.monotonic_s)
        self._thread = threading.Thread(target=self._run, name="fleet-member", daemon=True)

    # --- from any thread ----------------------------------------------------------------------------------------------

    def hear_wish(self, payload: bytes) -> None:
        """A `desired` came. An empty one (the broker forgot it) wishes nothing new: what is in force holds."""
        if payload:
            with self._lock:
                self._message = payload
            self._wake.set()

    def hear_heartbeat(self, body: Any, *, retained: bool) -> None:
        """The controller's own message. One that the broker kept says nothing of what time it is now."""
        if not isinstance(body, dict) or retained:
            return
        said_s = utc_s(str(body.get("utc", "")))
        if said_s is not None:
            with self._lock:
                self._time.heard(said_s, self._clock.monotonic_s())
                self._controller = str(body.get("url") or self._controller)[:300]
            self._wake.set()

    @property
    def controller(self) -> str:
        """Address of the controller in charge, as it says; '' it was not heard yet."""
        return self._controller

    def controller_utc_s(self) -> float | None:
        """The controller's clock; None: not measured."""
        with self._lock:
            return self._time.now_utc_s(self._clock.monotonic_s())

    def confirmation(self) -> Confirmation:
        """How far the box is with the newest wish."""
        applied = self._book.known.applied
        return Confirmation(
            term=applied.term if applied else 0, version=applied.version if applied else 0, refused=self._refused,
            problems=tuple(self._problems.values()), cameras=self._camera_words(), offers=self._offer_words(),
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """For the retained `state`: the confirmation, without what changes with every frame."""
        return {"fleet": as_dict(_steady(self.confirmation()))}

    def view(self) -> FleetView:
        """For people; without what only the link knows."""
        now_s, applied = self._clock.monotonic_s(), self._book.known.applied
        with self._lock:
            controller_s, silent_s = self._time.now_utc_s(now_s), self._time.silent_s(now_s)
        said = self.confirmation()
        words = {word.camera: word for word in said.cameras}
        orders = applied.cameras if applied else ()
        return FleetView(
            joined=True, box=self._box, controller=self._controller, silent_s=silent_s,
            offset_s=None if controller_s is None else round(controller_s - self._clock.utc_s(), 3),
            term=said.term, version=said.version, refused=said.refused, problems=said.problems,
            draining=bool(applied and applied.draining),
            shares=tuple(ShareView(customer=s.customer, share_pct=s.share_pct) for s in (applied.shares if applied else ())),
            cameras=tuple(
                OrderView(
                    camera=str(o.camera), role=o.role, term=o.term, reason=o.reason,
                    stage=words[o.camera].stage if o.camera in words else "",
                    problem=words[o.camera].problem if o.camera in words else "",
                )
                for o in orders
            ),
        )  # fmt: skip

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look now: a handler's words have changed."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def is_alive(self) -> bool:
        return self._stopping.is_set() or self._thread.ident is None or self._thread.is_alive()

    def silent_s(self) -> float:
        return 0.0 if self._stopping.is_set() else self._pulse.silent_s()

    def begin_anew(self) -> None:
        """RuntimeError: its thread hangs, and two may not apply wishes."""
        if self._thread.is_alive():
            raise RuntimeError("the fleet's thread hangs; only a restart of the box replaces it")
        self._thread = threading.Thread(target=self._run, name="fleet-member", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """The box has left its fleet: guests go, its own cameras are its own, nobody has a share. Ends the thread first."""
        self.stop()
        self._engine.order_shares(())
        for name, work in self._work(Desired(box=self._box, term=0, version=0, made_utc="", expires_utc="")).items():
            self._guarded(name, work)

    # --- our thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._pulse.beat()
            try:
                self.step()
            except Exception:  # a fleet must never end anything here
                log.exception("fleet: a step failed")
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def step(self) -> None:
        """One round: what was heard is judged, what is in force is carried out, what is new is told."""
        self._judge_what_came()
        self._carry_out()
        self._speak()

    def _judge_what_came(self) -> None:
        with self._lock:
            payload, self._message = self._message, None
        waiting = self._waiting
        if payload is not None:
            try:
                self._judge(decode(Desired, payload))
            except DriftboxError as error:
                self._refuse(error.message)
        if waiting is not None and waiting is self._waiting:
            self._judge(waiting)

    def _judge(self, wish: Desired) -> None:
        """A wish that may not be applied yet, or cannot be kept, is looked at again in the next step."""
        now_s, controller_s = self._clock.utc_s(), self.controller_utc_s()
        offset_s = None if controller_s is None else controller_s - now_s
        answer = judged(wish, self._book.known, box=self._box, now_utc_s=now_s, offset_s=offset_s)
        try:
            self._settle(wish, answer)
        except StorageError as error:
            self._waiting = wish
            self._refuse(f"it cannot be kept: {error.message}")

    def _settle(self, wish: Desired, answer: Answer) -> None:
        if answer.verdict == "apply":
            self._book.keep(Known(applied=wish, highest=wish.order))  # on disk first, then in force
        else:
            self._book.keep(replace(answer.known, applied=self._book.known.applied))
        if answer.verdict == "wait":
            self._waiting = wish
        elif answer.verdict == "apply" or wish == self._waiting:
            self._waiting = None
        if answer.verdict in ("refuse", "wait"):
            level = logging.INFO if answer.verdict == "wait" else logging.WARNING
            self._refuse(f"version {wish.version} of term {wish.term}: {answer.why}", split=answer.split, level=level)
        elif answer.verdict == "apply":
            self._refused = self._doubt = ""
            log.info("fleet: wish %d.%d is in force", wish.term, wish.version)

    def _refuse(self, why: str, *, split: bool = False, level: int = logging.WARNING) -> None:
        text = redact(why)[:500]
        if text != self._refused:
            log.log(level, "fleet: a wish is not in force: %s", text)
        self._refused = text
        if split and text != self._doubt:
            self._doubt = text
            self._tell(f"the fleet: {text}")

    def _carry_out(self) -> None:
        """What is in force, until it is done: after a start too, and again when something failed."""
        applied = self._book.known.applied
        if applied is None:
            return
        wanted = tuple(sorted((s.customer, s.share_pct) for s in applied.shares))
        if self._engine.shares() != wanted:
            self._engine.order_shares(wanted)
        now_s = self._clock.monotonic_s()
        due = self._failed_s is not None and now_s >= self._failed_s + AGAIN_S
        if applied == self._carried_out and not due:
            return
        self._problems = {}
        for name, work in self._work(applied).items():
            self._guarded(name, work)
        self._carried_out, self._failed_s = applied, now_s if self._problems else None

    def _work(self, wish: Desired) -> dict[str, Callable[[], None]]:
        handlers = self._handlers
        return {
            "cameras": lambda: handlers.cameras.apply(wish.cameras),
            "offers": lambda: handlers.offers.take(wish.offers),
            "samples": lambda: handlers.samples.collect(wish.collect),
        }

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        """One handler's failure is no other's."""
        try:
            work()
        except DriftboxError as error:
            self._problems[name] = f"{name}: {redact(error.message)}"[:500]
        except Exception as error:  # a handler's mistake must not keep the others from working
            log.exception("fleet: %s failed", name)
            self._problems[name] = f"{name}: {redact(f'{type(error).__name__}: {error}')}"[:500]

    def _speak(self) -> None:
        """A report every `report_every_s`, and at once when the box is further with what is wished."""
        now_s, said = self._clock.monotonic_s(), self.confirmation()
        news = self._told is None or _steady(said) != self._told
        if self.teller is None or now_s < self._reported_s + (LEAST_S if news else self._every_s):
            return
        self._reported_s = now_s
        try:
            self.teller.report(self._report(said))
            self._told = _steady(said)
        except DriftboxError as error:
            log.warning("fleet: no report: %s", error)

    def _camera_words(self) -> tuple[CameraWord, ...]:
        return _safely(self._handlers.cameras.words, "cameras")

    def _offer_words(self) -> tuple[OfferWord, ...]:
        return _safely(self._handlers.offers.words, "offers")


def _steady(said: Confirmation) -> Confirmation:
    """Without the times that every frame moves on."""
    return replace(said, cameras=tuple(replace(word, first_s=None, last_s=None) for word in said.cameras))


def _safely(ask: Callable[[], tuple[Any, ...]], name: str) -> tuple[Any, ...]:
    try:
        return ask()
    except Exception:  # a handler's mistake must not silence the box
        log.exception("fleet: no words of %s", name)
        return ()
