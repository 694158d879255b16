"""Cameras of the fleet on this box: guests that it watches for others, and its own that others watch (`edge.fleet.handlers.CameraHost`).

    orders --> who is told of which frame: at once (`handoff_gate`)
           --> the rest, by one thread: fetch and open a parcel, take the model, bring the camera in, take it out, pack it for another
           --> the state of its objects and counts, by a second one: frames wait for it, and must not wait for a model to be loaded

What an order means is decided purely (`scheduler.fleet.handoff`). What is in force stands in a file, so a box that was restarted, cut
off or both goes on: guests stay, what another box owns stays there. Whatever cannot be done is said in a word, and tried again while it
is ordered; no time-out makes a box take a camera that it was not given.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

from configs.errors import DriftboxError, EnvironmentLacking, JobError, UsageError, redact
from edge.fleet.camera_state import CameraState, packed_state, unpacked_state
from edge.fleet.envelope import Member, Opened, certificate_of, open_sealed, seal
from edge.fleet.handoff_book import HandoffBook
from edge.fleet.handoff_gate import Gate, Tell
from edge.fleet.parcels import CameraParcel, ParcelPost, addressee, packed, unpacked
from scheduler.fleet.handoff import Goal, Here, goal_of, word_for
from scheduler.fleet.types import CameraKey, CameraOrder, CameraWord

log = logging.getLogger("driftbox")

#: Seconds between two tries of what could not be done, and between two looks when nothing is to be done.
RETRY_S, LOOK_S = 3.0, 1.0
#: Longest that frames wait for the state of their camera, that its source tries to send it, and between two tries.
STATE_S, STATE_RETRY_S = 5.0, 0.1
#: A state that was taken so far from the last frame that was told elsewhere is not of it.
STATE_APART_S = 5.0

State = Literal["absent", "idle", "watched"]


class BoxCameras(Protocol):
    """The box's own part (`edge.fleet.handoff_box`). Everything may take seconds; raises DriftboxError."""

    def state(self, camera: str) -> State:
        """See `scheduler.fleet.handoff.Here`. Cheap."""

    def known(self, camera: str) -> bool:
        """Whether the box has a camera of that id at all."""

    def guests(self) -> Sequence[str]:
        """Cameras that were brought in for others."""

    def bring_in(self, camera: str, parcel: CameraParcel | None, sender: str) -> None:
        """Watches a guest (with its parcel) or takes an own camera back (perhaps with what it has learnt elsewhere). One that is watched
        already: nothing happens."""

    def take_out(self, camera: str, why: str) -> None:
        """Ends watching: a guest goes, an own camera stays in the configuration."""

    def pack(self, camera: str, key: CameraKey, parcel: str) -> CameraParcel:
        """All that another box needs to begin. parcel: under which name it travels."""

    def sent(self, camera: str, parcel: str) -> None:
        """That parcel lies at the controller: what may follow it, follows. Returns soon."""

    def leave(self, camera: str, key: CameraKey, to: str, after_s: float) -> CameraState | None:
        """The state of its objects and queries after the last frame that was told, for box `to`; from now on it ends nothing here that
        goes on there. None: there is none. after_s: capture time of that frame."""

    def check_state(self, camera: str, state: CameraState) -> None:
        """UsageError: it speaks of what is another camera's."""

    def take_on(self, camera: str, state: CameraState, base_s: float) -> None:
        """Goes on from it, and says what could not. base_s: when, by this box's clock, the frame was that it was taken after."""

    def say(self, camera: str, text: str) -> None:
        """For people, as one of the box's notes. Returns at once."""


@dataclass(kw_only=True)
class _Camera:
    """One camera that orders speak of. order: in force since ordered_s, None: it is being let go; sent: parcels that lie at the
    controller; problem, final, again_s: of the last try; sender: of the parcel that it began from. Of its state: made: parcel for which
    it was, handed: what was in it; left: parcel that was sent, or given up; taken: parcel that was taken on, or not."""

    key: CameraKey
    local: str
    gate: Gate
    order: CameraOrder | None = None
    goal: Goal = Goal(watch=False, voice="silent")
    kept: str = ""
    sent: frozenset[str] = frozenset()
    problem: str = ""
    final: bool = False
    again_s: float = 0.0
    here: bool | None = None  # as this thread left it; None: not looked yet
    ordered_s: float = 0.0
    sender: str = ""
    made: str = ""
    handed: CameraState | None = None
    left: str = ""
    taken: str = ""


class FleetCameras:
    """See the module. box: this box's id; member: as which it seals, None: it has not joined, so parcels wait; post: what carries them.
    offset_s: this box's clock minus the controller's; utc_s, now_s: clocks. `start` begins work; before that words and gates hold."""

    def __init__(
        self, box: str, cameras: BoxCameras, book: HandoffBook, *, member: Callable[[], Member | None], post: ParcelPost,
        offset_s: Callable[[], float] = lambda: 0.0, utc_s: Callable[[], float] = time.time, now_s: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._box, self._cameras, self._book, self._member, self._post = box, cameras, book, member, post
        self._offset_s, self._utc_s, self._now_s, self.changed = offset_s, utc_s, now_s, changed
        self._lock = threading.Lock()
        self._gates: dict[str, Gate] = {}
        self._by_key: dict[CameraKey, _Camera] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fleet-cameras", daemon=True)
        self._wake_states = threading.Event()
        self._states = threading.Thread(target=self._run_states, name="fleet-states", daemon=True)
        self._said: tuple[CameraWord, ...] = ()
        self._orders: tuple[CameraOrder, ...] = ()
        self._take(book.read())
        for camera in self._by_key.values():
            camera.taken = camera.goal.take  # of before the restart: what was told since is not in it

    # --- the seam (edge.fleet.handlers.CameraHost) --------------------------------------------------------------------

    def apply(self, orders: Sequence[CameraOrder]) -> None:
        """Durable, and in force for every frame from now on, when it returns. Raises StorageError: then the orders before stay."""
        given = tuple(orders)
        with self._lock:
            if given != self._orders:
                self._book.write(given)
        self._take(given)

    def words(self) -> tuple[CameraWord, ...]:
        with self._lock:
            cameras = [c for c in self._by_key.values() if c.order is not None]
        return tuple(word_for(c.order, self._here(c)) for c in cameras if c.order is not None)

    def guests(self) -> Mapping[str, CameraKey]:
        with self._lock:
            return {c.local: c.key for c in self._by_key.values() if c.key.home != self._box}

    # --- the box's seams ----------------------------------------------------------------------------------------------

    def through(self, camera: str, tell: Tell, behind: Callable[[], bool]) -> Tell:
        """For `BoxRuntime.stand_between`."""
        return self._gate(camera).through(tell, behind)

    def start(self) -> None:
        self._thread.start()
        self._states.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self._wake_states.set()
        for thread in (self._thread, self._states):
            if thread.ident is not None:
                thread.join(10.0)

    # --- orders -------------------------------------------------------------------------------------------------------

    def _take(self, orders: Sequence[CameraOrder]) -> None:
        with self._lock:
            self._orders = tuple(orders)
            now = {order.camera: order for order in orders}
            for key in {*now, *self._by_key}:
                camera = self._by_key.get(key) or self._new(key)
                self._order(camera, now.get(key))
        self._wake.set()
        self._wake_states.set()

    def _new(self, key: CameraKey) -> _Camera:
        local = key.camera if key.home == self._box else key.guest_id
        camera = self._by_key[key] = _Camera(key=key, local=local, gate=self._gate_of(local))
        return camera

    def _order(self, camera: _Camera, order: CameraOrder | None) -> None:
        """Lock held. A lower term than one that was heard is of the past. The gate changes here, before anything slow."""
        before = camera.order
        if before == order or (before is not None and order is not None and order.term < before.term):
            return
        camera.order, camera.goal = order, goal_of(order, self._box, camera.key)
        camera.problem, camera.final, camera.again_s, camera.ordered_s = "", False, 0.0, self._now_s()
        match camera.goal.voice:
            case "silent":
                camera.gate.silence()
            case "hold":
                camera.gate.hold(owned=order is not None and order.role == "own")
            case "tell":
                self._tell(camera, before)
        if camera.goal.voice == "silent" and not camera.goal.leave:
            camera.handed = None  # it is the other's by now, and grows old

    def _tell(self, camera: _Camera, before: CameraOrder | None) -> None:
        """Lock held. Frames are told from now on: after its state has come, or the state that nobody has taken over is there again."""
        goal, gate = camera.goal, camera.gate
        if goal.take and camera.taken != goal.take and gate.await_state(goal.after_s, STATE_S):
            return
        handed, camera.handed = camera.handed, None
        if handed is not None and camera.order is not None:
            gate.tell_after(handed.after_s, partial(self._cameras.take_on, camera.local, handed))
        elif gate.tell_after(goal.after_s) and before is not None and camera.order is not None:
            self._cameras.say(camera.local, "its objects and counts begin anew: the box before has not handed them over")

    def _gate_of(self, local: str) -> Gate:
        return self._gates.setdefault(local, Gate(offset_s=self._offset_s, now_s=self._now_s))

    def _gate(self, local: str) -> Gate:
        with self._lock:
            return self._gate_of(local)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            try:
                self.look()
            except Exception:  # a camera's trouble is in its word; this would be ours
                log.exception("the fleet's cameras cannot be looked after")

    def look(self) -> None:
        """Brings cameras closer to what is ordered. For the own thread (tests call it)."""
        with self._lock:
            cameras = list(self._by_key.values())
        for camera in cameras:
            if self._stopping:
                return
            if self._now_s() >= camera.again_s:
                self._try(camera)
        self._let_strangers_go(cameras)
        said = tuple(replace(word, first_s=None, last_s=None) for word in self.words())
        if said != self._said:
            self._said = said
            self.changed()

    def _try(self, camera: _Camera) -> None:
        goal = camera.goal
        try:
            self._follow(camera, goal)
        except DriftboxError as error:
            if goal is not camera.goal:
                return
            camera.problem, camera.final = redact(str(error)), not _passes(error)
            camera.again_s = self._now_s() + RETRY_S
            log.warning("camera %s, ordered by the fleet: %s", camera.key, camera.problem)
            return
        if goal is camera.goal:
            camera.problem, camera.final = "", False

    def _follow(self, camera: _Camera, goal: Goal) -> None:
        state = self._cameras.state(camera.local)
        if goal.watch and state == "absent":
            self._bring_in(camera, goal)
        elif not goal.watch and self._is_here(camera, state):
            if goal.leave and camera.made != goal.leave and self._now_s() < camera.ordered_s + STATE_S:
                return  # its state is made first; then this is looked at again
            self._cameras.take_out(camera.local, camera.order.reason if camera.order else "the fleet has taken it back")
        camera.here = goal.watch
        if goal.keep and camera.kept != goal.keep:
            self._fetched(camera, goal.keep)
            camera.kept = goal.keep
        if goal.pack and goal.pack not in camera.sent:
            self._send(camera, goal.pack)
        if camera.order is None:
            self._forget(camera)

    def _is_here(self, camera: _Camera, state: State) -> bool:
        """A camera that its schedule keeps closed is still ours, until it was taken out once."""
        return state != "absent" and not (state == "idle" and camera.here is False)

    def _bring_in(self, camera: _Camera, goal: Goal) -> None:
        guest = camera.key.home != self._box
        if not guest and not self._cameras.known(camera.local):
            raise UsageError(f"this box has no camera {camera.local}", subject=camera.local, code="not_found")
        found = self._fetched(camera, goal.begin) if goal.begin else None
        if guest and found is None:
            raise EnvironmentLacking(
                "nothing to begin from: no parcel was named", subject=str(camera.key), remedy="the controller names one"
            )
        camera.gate.begin()
        camera.sender = found.sender if found is not None else ""
        parcel = unpacked(found.content, camera.key) if found is not None else None
        self._cameras.bring_in(camera.local, parcel, found.sender if found is not None else "")

    def _fetched(self, camera: _Camera, name: str) -> Opened:
        """A parcel, opened; sealed it is kept here, for the next start."""
        member = self._require_member()
        data = self._book.kept(name)
        if data is not None:
            return open_sealed(data, parcel=name, member=member, now_utc_s=self._fleet_utc_s())
        data = self._post.get(name)
        opened = open_sealed(data, parcel=name, member=member, now_utc_s=self._fleet_utc_s())
        unpacked(opened.content, camera.key)  # what is not usable is not kept
        self._book.keep(name, data)
        return opened

    def _send(self, camera: _Camera, name: str) -> None:
        self._seal_and_put(name, packed(self._cameras.pack(camera.local, camera.key, name)))
        self._cameras.sent(camera.local, name)
        camera.sent |= {name}

    # --- states -------------------------------------------------------------------------------------------------------

    def _run_states(self) -> None:
        while not self._stopping:
            self._wake_states.wait(STATE_RETRY_S if self._has_states() else LOOK_S)
            self._wake_states.clear()
            try:
                self.look_at_states()
            except Exception:  # a state that is lost costs counts, never the camera
                log.exception("the states of the fleet's cameras cannot be looked after")

    def _has_states(self) -> bool:
        with self._lock:
            return any(
                c.goal.leave != c.left or c.goal.take != c.taken for c in self._by_key.values() if c.goal.leave or c.goal.take
            )

    def look_at_states(self) -> None:
        """Hands states over and takes them on, as ordered. For the second thread (tests call it)."""
        with self._lock:
            cameras = [camera for camera in self._by_key.values() if camera.order is not None]
        for camera in cameras:
            goal = camera.goal
            if goal.leave and camera.left != goal.leave:
                self._leave(camera, goal)
            if goal.take and camera.taken != goal.take:
                self._take_state(camera, goal)

    def _leave(self, camera: _Camera, goal: Goal) -> None:
        """The state as it was after the last frame that was told, made once; sent, or given up with a word."""
        problem = ""
        try:
            if camera.made != goal.leave:
                self._make_state(camera, goal)
            if camera.handed is not None:
                self._seal_and_put(goal.leave, packed_state(camera.handed))
        except DriftboxError as error:
            if _passes(error) and self._now_s() < camera.ordered_s + STATE_S:
                return
            problem = redact(str(error))
        if goal is not camera.goal:
            return
        camera.left = goal.leave
        if problem:
            self._cameras.say(camera.local, f"its objects and counts begin anew on box {addressee(goal.leave)}: {problem}")
        self.changed()

    def _make_state(self, camera: _Camera, goal: Goal) -> None:
        try:
            told = camera.gate.settled(1.0) and camera.gate.span_s
            state = self._cameras.leave(camera.local, camera.key, addressee(goal.leave), told[1]) if told else None
            with self._lock:
                camera.handed = state if goal is camera.goal else None
        finally:
            camera.made = goal.leave
            self._wake.set()  # now it may be closed

    def _take_state(self, camera: _Camera, goal: Goal) -> None:
        """Frames wait at the gate meanwhile, for `STATE_S`."""
        problem = ""
        try:
            state = self._opened_state(camera, goal)
        except DriftboxError as error:
            state, problem = None, redact(str(error))
            if _passes(error) and camera.gate.awaits:
                return
        if goal is not camera.goal:
            return
        camera.taken = goal.take
        if state is None:
            camera.gate.tell_after(goal.after_s)
        elif not camera.gate.tell_after(max(goal.after_s, state.after_s), partial(self._cameras.take_on, camera.local, state)):
            problem = "their state came too late"
        if problem:
            self._cameras.say(camera.local, f"its objects and counts begin anew: {problem}")

    def _opened_state(self, camera: _Camera, goal: Goal) -> CameraState:
        """From whom the camera came, of the last frame that was told there, and of this camera. UsageError otherwise."""
        member = self._require_member()
        data, now_utc_s = self._post.get(goal.take), self._fleet_utc_s()
        opened = open_sealed(data, parcel=goal.take, member=member, now_utc_s=now_utc_s, sender=camera.sender or None)
        state = unpacked_state(opened.content, camera.key)
        if abs(state.after_s - goal.after_s) > STATE_APART_S:
            raise UsageError("the state was taken after another frame than the last one told", subject=str(camera.key))
        self._cameras.check_state(camera.local, state)
        return state

    def _seal_and_put(self, name: str, content: bytes) -> None:
        member, to = self._require_member(), addressee(name)
        certificate = certificate_of(self._post.certificate_of(to))
        self._post.put(
            name, seal(content, parcel=name, sender=member, addressee=certificate, to=to, now_utc_s=self._fleet_utc_s())
        )

    def _require_member(self) -> Member:
        member = self._member()
        if member is None:
            raise EnvironmentLacking("this box is not a member of a fleet (yet)", remedy="driftbox fleet join")
        return member

    def _fleet_utc_s(self) -> float:
        """What the time is in the fleet: a certificate has not expired because this box's clock is wrong."""
        return self._utc_s() - self._offset_s()

    def _forget(self, camera: _Camera) -> None:
        with self._lock:
            if camera.order is None and camera.goal.watch == (camera.key.home == self._box):
                self._by_key.pop(camera.key, None)
                if camera.key.home != self._box:
                    self._gates.pop(camera.local, None)

    def _let_strangers_go(self, cameras: Sequence[_Camera]) -> None:
        """Guests of whom no order speaks (any more), and parcels that nobody needs: left by a kill."""
        with self._lock:
            ordered = {c.local for c in self._by_key.values()}
            wanted = {name for c in self._by_key.values() for name in (c.goal.keep, c.goal.begin) if name}
        for local in self._cameras.guests():
            if local not in ordered:
                self._gate(local).silence()
                self._quietly(partial(self._cameras.take_out, local, "no order speaks of it"))
        self._quietly(partial(self._book.keep_only, wanted))

    def _quietly(self, work: Callable[[], None]) -> None:
        try:
            work()
        except DriftboxError as error:
            log.warning("fleet: %s", error)

    def _here(self, camera: _Camera) -> Here:
        gate, state = camera.gate, self._cameras.state(camera.local)
        span_s = gate.span_s
        return Here(
            state=state if state == "watched" or camera.here else "absent", frames=gate.frames, clock=gate.has_clock,
            for_s=self._now_s() - gate.began_s, first_s=span_s[0] if span_s else None, last_s=span_s[1] if span_s else None,
            kept=camera.kept, left=camera.left, problem=camera.problem, final=camera.final,
        )  # fmt: skip


def _passes(error: DriftboxError) -> bool:
    """Whether it may well work in a moment: the controller is away, the box is busy or starts."""
    return type(error) is EnvironmentLacking or (isinstance(error, JobError) and error.code in ("busy", "not_running"))
