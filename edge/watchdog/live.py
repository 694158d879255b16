"""The watchdog of a running box: looks at every worker about once a second, starts anew what can be, gives up what cannot be helped.

A worker brings a `Charge`: how to look at it, how to start it anew, what to do when it is given up. Decisions are in
`edge.watchdog.rules`. The watchdog has a thread of its own and touches nothing else; it must outlive whatever it watches. The thread
that cannot be started anew from inside is the box's loop: when that is silent, systemd is not told that we live, and restarts the box.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from configs.errors import redact
from edge.clock import Clock
from edge.watchdog.rules import Act, Mode, Rules, Seen, State, could_not_restart, judge, lifted, sentence
from edge.watchdog.systemd import ServiceManager

log = logging.getLogger("driftbox")

LOOK_S = 1.0
#: A loop that has not come round for so long is told to nobody as alive.
LOOP_SILENT_S = 30.0


def nothing(reason: str) -> None:
    """For workers without which the box does the rest of its work."""


def cannot() -> None:
    """For workers that only a restart of the box can bring back."""
    raise RuntimeError("only a restart of the box brings it back")


@dataclass(frozen=True, kw_only=True, eq=False)
class Charge:
    """A worker in the watchdog's care. name: 'gate/inference', 'sampler'; camera: whose it is, '' for the box's own. look: must answer
    at once; restart: may take seconds, and may raise; give_up: told the reason, once. rules: see there."""

    name: str
    look: Callable[[], Seen]
    restart: Callable[[], None] = cannot
    give_up: Callable[[str], None] = nothing
    camera: str = ""
    rules: Rules = Rules()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What pages and metrics are told of a worker. silent_s: as of now; reason: what is or was wrong, redacted."""

    name: str
    camera: str
    mode: Mode
    silent_s: float
    restarts: int
    reason: str


class Watchdog:
    """Looks until `stop`. tell: what it did, in words, for the log and the notes: (camera or '', text). loop_silent_s: of the box's
    loop. conditions: other reasons why the box is degraded, each a sentence; asked with every look, must answer at once."""

    def __init__(
        self,
        *,
        clock: Clock,
        loop_silent_s: Callable[[], float] = lambda: 0.0,
        tell: Callable[[str, str], None] = lambda camera, text: log.warning("%s", text),
        conditions: Callable[[], tuple[str, ...]] = tuple,
        manager: ServiceManager | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        #: Called before each look: brings the list of workers up to date.
        self.before_look: Callable[[], None] = lambda: None
        self._clock, self._loop_silent_s, self._tell, self._conditions = clock, loop_silent_s, tell, conditions
        #: Like `conditions`, of parts that come later.
        self.more_conditions: list[Callable[[], tuple[str, ...]]] = []
        self._manager = manager or ServiceManager({})
        self._look_s = look_s
        self._lock = threading.Lock()
        self._charges: dict[str, Charge] = {}
        self._states: dict[str, State] = {}
        self._seen: dict[str, Seen] = {}
        self._degraded: tuple[str, ...] = ()
        self._told = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    # --- who is looked after ------------------------------------------------------------------------------------------

    def take(self, charge: Charge) -> None:
        """Looks after a worker from now on; one of the same name is replaced, with a full budget."""
        with self._lock:
            self._charges[charge.name] = charge
            self._states[charge.name] = State(since_s=self._clock.monotonic_s())

    def drop(self, camera: str) -> None:
        """Forgets all workers of a camera that is watched no more."""
        with self._lock:
            for name in [n for n, c in self._charges.items() if c.camera == camera]:
                del self._charges[name]
                self._states.pop(name, None)
                self._seen.pop(name, None)

    def lift(self, camera: str) -> bool:
        """A camera is to be tried again: its workers have a full budget. Whether one of them had been given up."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            names = [n for n, c in self._charges.items() if c.camera == camera]
            had_given_up = any(self._states[n].mode is Mode.GIVEN_UP for n in names)
            self._states |= {n: lifted(self._states[n], at_s=now_s) for n in names}
        return had_given_up

    # --- what it knows ------------------------------------------------------------------------------------------------

    def degraded(self) -> tuple[str, ...]:
        """Why the box is not as it should be, a sentence each; empty: all is well."""
        with self._lock:
            return self._degraded

    def reports(self) -> tuple[Report, ...]:
        """All workers, by name."""
        with self._lock:
            states, seen, charges = dict(self._states), dict(self._seen), dict(self._charges)
        return tuple(_report(charges[name], states[name], seen.get(name)) for name in sorted(charges))

    # --- its work -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._look_s):
            try:
                self.look()
            except Exception:  # it must outlive whatever it watches
                log.exception("the watchdog's look failed")

    def look(self) -> None:
        """One round over all workers. For its own thread (tests call it instead of starting one)."""
        self.before_look()
        with self._lock:
            charges = list(self._charges.values())
        for charge in charges:
            if not self._stopping.is_set():
                self._look_at(charge)
        self._sum_up()

    def _look_at(self, charge: Charge) -> None:
        seen = _look(charge)
        now_s = self._clock.monotonic_s()
        with self._lock:
            before = self._states.get(charge.name)
            if before is None or self._charges.get(charge.name) is not charge:  # dropped or replaced meanwhile
                return
            after, act = judge(before, seen, charge.rules, at_s=now_s)
            self._states[charge.name], self._seen[charge.name] = after, seen
        if act is Act.RESTART:
            self._restart(charge, after)
        elif act is Act.GIVE_UP:
            self._tell(charge.camera, redact(sentence(charge.name, after)))
            self._do(charge, lambda: charge.give_up(redact(f"{charge.name}: {after.reason}")))

    def _restart(self, charge: Charge, state: State) -> None:
        self._tell(charge.camera, redact(f"{charge.name} is started anew: {state.reason}"))
        self._do(charge, charge.restart)

    def _do(self, charge: Charge, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            why = redact(f"{type(error).__name__}: {error}")
            log.warning("%s: %s", charge.name, why)
            with self._lock:
                state = self._states.get(charge.name)
                if state is not None and state.mode is not Mode.GIVEN_UP:
                    self._states[charge.name] = could_not_restart(state, why, at_s=self._clock.monotonic_s())

    def _sum_up(self) -> None:
        loop_silent_s = self._loop_silent_s()
        with self._lock:
            sentences = [sentence(name, state) for name, state in sorted(self._states.items())]
        found = [redact(text) for text in sentences if text]
        hangs = loop_silent_s > LOOP_SILENT_S
        if hangs:
            # Without the number, which would be another sentence every second.
            found.append(f"the box's loop has not come round for more than {LOOP_SILENT_S:.0f} s")
        found += self._conditions()
        for ask in self.more_conditions:
            found += ask()
        with self._lock:
            self._degraded = tuple(found)
        if not hangs:
            self._manager.alive()
        word = "degraded: " + "; ".join(found) if found else "all is well"
        if word != self._told:
            self._told = word
            self._manager.status(word)


def _look(charge: Charge) -> Seen:
    """A worker that cannot even be looked at is no reason to look away from the others."""
    try:
        return charge.look()
    except Exception as error:
        return Seen(alive=False, fault=redact(f"{type(error).__name__}: {error}"))


def _report(charge: Charge, state: State, seen: Seen | None) -> Report:
    return Report(
        name=charge.name, camera=charge.camera, mode=state.mode, silent_s=seen.silent_s if seen else 0.0,
        restarts=state.total_restarts, reason=redact(state.reason),
    )  # fmt: skip
