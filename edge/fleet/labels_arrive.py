"""The labelled pictures that follow a camera to this box (`edge.fleet.labels_leave` sends them): fetched, checked, kept as its samples.

    expect   with the camera's parcel: from whom, under which request; a file until it has all come
    fetch    when the sender has said that all parts lie there: part by part, each opened, checked and kept before it is noted
    keep     each picture once, in the window that its own is here (`streams.sample_arrivals`); a person's word over the golden model's

Killed at any step it goes on with the part that was not noted; a picture that lies here already is not kept again. Windows are
numbered by each box: the newest that was labelled there becomes the newest one that is over here, so the next retraining replays it and
the gate judges by its held-out pictures. A box in its first window waits for its end. Nothing that a sender says is believed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from configs.errors import DriftboxError, EnvironmentLacking, StorageError, UsageError
from edge.fleet.envelope import Member, open_sealed
from edge.fleet.labels_leave import rest_of
from edge.fleet.notes import Notes
from edge.fleet.parcels import ParcelPost
from scheduler.fleet import codec
from scheduler.fleet.pooling import Collected, end_parcel, part_parcel
from scheduler.fleet.types import checked
from streams.sample_arrivals import Arrived, Shift, take_in
from streams.sample_record import digest, unpacked_samples
from streams.samples import SampleStore

log = logging.getLogger("driftbox")

#: Between two looks; in the first minutes, and later, for what may never come.
LOOK_S, SOON_S, LATER_S = 3.0, 300.0, 60.0
#: Nobody keeps parcels longer; a camera that is not here after GONE_S did not come.
KEPT_S, GONE_S = 86_400.0, 600.0
#: Most parts of a request that are fetched.
MOST_PARTS = 1000
#: Windows are numbers of six digits.
MOST_WINDOW = 10**9


class LabelPost(ParcelPost, Protocol):
    def remove(self, parcel: str) -> None:
        """Of this box's own: it is not needed any more. One that is not there: nothing happens."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What keeping samples needs of a box. window: the one that is open; here: whether it has a camera of that id; learned: (camera, the
    version of the sender that came with it, window here that it learned from); require_room: raises StorageError."""

    store: SampleStore
    window: Callable[[], int]
    here: Callable[[str], bool]
    say: Callable[[str, str], None]
    learned: Callable[[str, str, int], None]
    audit: Callable[[str, str, str], None]
    require_room: Callable[[], None]
    utc: Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """camera: its id here; newest: the newest window with labels there, here: what that is here, None: nothing has come yet; learned:
    the window there that its model learned from, version: which model; parts: kept, by request; done: requests that have come."""

    request: str
    sender: str
    camera: str
    since_utc: float
    newest: int
    learned: int | None = None
    version: str = ""
    here: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    done: tuple[str, ...] = ()


def facts(request: str, *, newest: int, learned: int | None) -> dict[str, Any]:
    """What a camera's parcel says of labels that follow it."""
    return {"request": request, "newest": newest, "learned": learned}


def expected(known: Mapping[str, Any], sender: str, camera: str, *, now_utc: float) -> Expected | None:
    """What a parcel says of labels that follow; None: nothing, or nothing that can be meant."""
    said = known.get("pictures")
    try:
        newest, learned = int(said["newest"]), said["learned"]  # type: ignore[index]
        learned = None if learned is None else int(learned)
        if not 0 <= newest < MOST_WINDOW or (learned is not None and not 0 <= learned < MOST_WINDOW):
            return None
        return Expected(
            request=checked(str(said["request"]), "a request"), sender=checked(sender, "a box"), camera=camera, since_utc=now_utc,  # type: ignore[index]
            newest=newest, learned=learned, version=str(known.get("version", ""))[:200],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return None


class ArrivingLabels:
    """See the module. member: as which parcels are opened; folder: its own."""

    def __init__(self, place: Place, folder: Path, *, member: Callable[[], Member], post: LabelPost) -> None:
        self._place, self._notes, self._member, self._post = place, Notes(folder, "a request", _made), member, post
        self._lock = threading.Lock()
        self._wake, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="fleet-labels-arrive", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)

    def expect(self, coming: Expected) -> None:
        """Durable; the same again changes nothing. Raises StorageError."""
        with self._lock:
            if self._notes.read(coming.request) is None:
                self._write(coming)
        self._wake.set()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            wait_s = LATER_S
            try:
                wait_s = self.look()
            except Exception:  # labels that do not come cost learning, never a camera
                log.exception("labels that follow cameras cannot be fetched")
            self._wake.wait(wait_s)
            self._wake.clear()

    def look(self) -> float:
        """Takes in what has come. For the own thread (tests call it). Seconds until it is worth looking again."""
        now_utc, young = self._place.utc(), False
        with self._lock:
            under_way = self._notes.all()
        for coming in under_way:
            if self._stopping:
                break
            young |= now_utc < coming.since_utc + SOON_S
            try:
                self._follow(coming, now_utc)
            except (EnvironmentLacking, StorageError) as error:
                log.info("labels of camera %s wait: %s", coming.camera, error)
        return LOOK_S if young else LATER_S

    def _follow(self, coming: Expected, now_utc: float) -> None:
        if not self._place.here(coming.camera):
            if now_utc > coming.since_utc + GONE_S:
                self._forget(coming)
            return
        if self._place.window() < 1:
            return
        if coming.here is None:
            coming = self._write(replace(coming, here=self._place.window() - 1))
        for request in (coming.request, rest_of(coming.request)):
            if request not in coming.done:
                word = self._word(coming, request)
                if word is None:
                    break
                coming = self._take(coming, request, word)
        if len(coming.done) == 2:
            self._forget(coming)
        elif now_utc > coming.since_utc + KEPT_S:
            if not coming.done:
                self._place.say(coming.camera, f"its labels have not come from box {coming.sender}: they stay there")
            self._forget(coming)

    def _word(self, coming: Expected, request: str) -> Collected | None:
        """The sender's last word; None: it has not come yet."""
        me = self._member()
        try:
            word = codec.decode(Collected, self._opened(me, end_parcel(me.box, request, coming.sender), coming.sender))
        except EnvironmentLacking:
            return None
        except UsageError as error:
            return Collected(request=request, box=coming.sender, stage="refused", problem=error.message, left_out={})
        if (word.request, word.box) != (request, coming.sender) or len(word.parts) > MOST_PARTS:
            return replace(word, stage="refused", problem="its sender says that they are others")
        return word

    def _take(self, coming: Expected, request: str, word: Collected) -> Expected:
        """All parts of a request, from the first one that was not kept on."""
        me, total, problems = self._member(), Arrived(), list[str]()
        parts = word.parts if word.stage == "given" else ()
        for part in range(coming.parts.get(request, 0), len(parts)):
            self._place.require_room()
            name = part_parcel(me.box, request, coming.sender, part)
            try:
                data = self._opened(me, name, coming.sender)
                if digest(data) != parts[part].sha256:
                    raise UsageError("it is not what its sender said", subject=name)
                records = unpacked_samples(data, name, home=coming.sender)
            except (UsageError, StorageError) as error:
                problems.append(error.message)
            else:
                total += take_in(self._place.store, coming.camera, records, self._shift(coming))
            coming = self._write(replace(coming, parts={**coming.parts, request: part + 1}))
        self._tell(coming, request, word, total, problems)
        coming = self._write(replace(coming, done=(*coming.done, request)))
        for part in range(len(parts)):
            self._remove(part_parcel(me.box, request, coming.sender, part))
        self._remove(end_parcel(me.box, request, coming.sender))
        return coming

    def _tell(self, coming: Expected, request: str, word: Collected, total: Arrived, problems: list[str]) -> None:
        """People, the audit log, and whoever compares windows with the one that the model learned from."""
        stay = ", ".join(f"{count} {why}" for why, count in sorted(word.left_out.items()))
        first = request == coming.request
        if word.stage != "given":
            if first and (stay or word.stage == "withdrawn"):  # else there was nothing to send
                self._place.say(coming.camera, f"its labels stay on box {coming.sender}: {stay or word.problem[:300]}")
            return
        self._place.audit(
            "fleet.labels.taken", "ok",
            f"{coming.camera} from {coming.sender}: {total.new} new, {total.known} here already, {len(problems)} parts refused",
        )  # fmt: skip
        text = f"{total.new} labelled pictures have followed it from box {coming.sender}"
        text += f", {total.known} lay here already" if total.known else ""
        text += f"; a person labelled {total.by_person} of them" if total.by_person else ""
        text += f"; left there: {stay}" if stay else ""
        text += f"; parts that cannot be used: {'; '.join(problems)[:300]}" if problems else ""
        if first or total.new or problems:
            self._place.say(coming.camera, text)
        if first and coming.learned is not None and coming.version:
            self._place.learned(coming.camera, coming.version, self._shift(coming).window(coming.learned))

    @staticmethod
    def _shift(coming: Expected) -> Shift:
        assert coming.here is not None
        return Shift(newest=coming.newest, here=coming.here)

    def _opened(self, me: Member, parcel: str, sender: str) -> bytes:
        data = self._post.get(parcel)
        return open_sealed(data, parcel=parcel, member=me, now_utc_s=self._place.utc(), sender=sender).content

    def _remove(self, parcel: str) -> None:
        """What is not removed is swept there in a day."""
        try:
            self._post.remove(parcel)
        except DriftboxError as error:
            log.debug("parcel %s stays for now: %s", parcel, error)

    # --- files --------------------------------------------------------------------------------------------------------

    def _write(self, coming: Expected) -> Expected:
        return self._notes.write(coming.request, coming)

    def _forget(self, coming: Expected) -> None:
        self._notes.forget(coming.request)


def _made(said: dict[str, Any]) -> Expected:
    return Expected(**said | {"done": tuple(said["done"])})
