"""The labelled pictures of a camera that goes to another box, sent after it: by consent, masked, sealed, bounded, as samples are given.

How one is chosen, checked, sealed and sent, and what a kill cannot hurt, is `edge.fleet.samples`; here it is said what is given to whom:

    PARCEL has been sent     all that is labelled: a person's first, then the newest windows        request h<digest of PARCEL>
    the camera is closed     what was labelled since, by the last jobs, or corrected meanwhile      request h<digest>-rest

A thread of its own does it, beside the change of boxes, and goes on with it afterwards; nothing waits for it. The pictures stay here
too. What is under way stands in a file for each camera; a newer journey of the camera takes its place.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.errors import DriftboxError, EnvironmentLacking
from edge.fleet.notes import Notes
from edge.fleet.parcels import addressee
from edge.fleet.samples import Box, Giving, SampleGiver
from scheduler.fleet.pooling import MIB, CollectRequest
from scheduler.fleet.types import CameraKey
from streams.masks import masks_from

log = logging.getLogger("driftbox")

#: Of all that goes ahead, of the rest, and of a part.
AHEAD_BYTES, REST_BYTES, PART_BYTES = 48 * MIB, 16 * MIB, 4 * MIB
#: What the golden model labelled is sent from so many windows: those that a retraining replays, and one more to judge by.
NEWEST_WINDOWS = 8
#: Between two tries, and between two looks whether a camera was closed.
RETRY_S, LOOK_S = 10.0, 1.0
#: What was labelled so long before the first request was made is sent twice rather than not: clocks are set.
MARGIN_S = 60.0
#: A journey that did not end is forgotten after that.
KEPT_S = 86_400.0


def request_of(parcel: str) -> str:
    """The request under which the labels of the camera in a parcel travel."""
    return f"h{hashlib.sha256(parcel.encode()).hexdigest()[:32]}"


def rest_of(request: str) -> str:
    """The same for what was labelled after the first had gone."""
    return f"{request}-rest"


@dataclass(frozen=True, kw_only=True)
class Journey:
    """A camera's labels on their way. camera: its id here; began_utc: this box's clock; consent, masks: as they were when it left, of a
    guest, of whom this box knows nothing any more when it has gone; rest: the camera is being closed."""

    camera: str
    to: str
    request: str
    began_utc: float
    consent: bool
    masks: tuple[tuple[tuple[float, ...], ...], ...] = ()
    rest: bool = False

    @property
    def giving(self) -> Giving:
        return Giving(consent=self.consent, masks=masks_from(self.masks))


class LeavingLabels:
    """See the module. box: its `cameras` are those that it knows now; folder: its own; watched: whether a camera is open here; say:
    (camera, text) to people."""

    def __init__(
        self, box: Callable[[], Box], folder: Path, *, watched: Callable[[str], bool], say: Callable[[str, str], None]
    ) -> None:
        self._box, self._folder, self._watched, self._say = box, folder, watched, say
        self._notes = Notes(folder, "a camera", _made)
        self._lock = threading.Lock()
        self._wake, self._stopping = threading.Event(), False
        self._giver: SampleGiver | None = None
        self._thread = threading.Thread(target=self._run, name="fleet-labels-leave", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        giver = self._giver
        if giver is not None:
            giver.close()
        if self._thread.ident is not None:
            self._thread.join(10.0)

    def begin(self, camera: str, parcel: str, giving: Giving, *, now_utc: float) -> None:
        """The camera in that parcel sets out. Durable; the same again changes nothing. Raises StorageError."""
        found = Journey(
            camera=camera, to=addressee(parcel), request=request_of(parcel), began_utc=now_utc, consent=giving.consent,
            masks=tuple(mask.points for mask in giving.masks),
        )  # fmt: skip
        with self._lock:
            before = self._notes.read(camera)
            if before is None or before.request != found.request:
                self._notes.write(camera, found)
        self._wake.set()

    def close(self, camera: str) -> None:
        """The camera is about to be closed here: what was labelled since it set out follows. One that did not set out: nothing happens.
        Durable. Raises StorageError."""
        with self._lock:
            journey = self._notes.read(camera)
            if journey is not None and not journey.rest:
                self._notes.write(camera, replace(journey, rest=True))
        self._wake.set()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            waits = self._quietly()
            self._wake.wait(RETRY_S if waits else LOOK_S)
            self._wake.clear()

    def _quietly(self) -> bool:
        """Whether somebody is to be tried again in a while."""
        try:
            return self.look()
        except EnvironmentLacking as error:
            log.info("labels of cameras that went wait: %s", error)
        except Exception:  # labels that stay cost learning there, never a camera
            log.exception("labels of cameras that went cannot be sent")
        return True

    def look(self) -> bool:
        """Sends what is to be sent. For the own thread (tests call it). Whether something waits for the fleet."""
        waits = False
        with self._lock:
            journeys = self._notes.all()
        for journey in journeys:
            if self._stopping:
                break
            try:
                self._serve(journey)
            except EnvironmentLacking as error:
                log.info("labels of camera %s wait: %s", journey.camera, error)
                waits = True
            except DriftboxError as error:
                self._say(journey.camera, f"its labels do not follow it to box {journey.to}: {error.message}")
                self._forget(journey)
        return waits

    def _serve(self, journey: Journey) -> None:
        box = self._box()
        self._give(box, journey, rest=False)
        with self._lock:
            now = self._notes.read(journey.camera)
        if now is None or now.request != journey.request:
            return
        if now.rest and not self._watched(journey.camera):
            self._give(box, now, rest=True)
            self._forget(now)
        elif box.utc() > journey.began_utc + KEPT_S:
            self._forget(journey)

    def _give(self, box: Box, journey: Journey, *, rest: bool) -> None:
        giver = self._giver = SampleGiver(self._box_for(box, journey), self._folder / "given")
        request = rest_of(journey.request) if rest else journey.request
        if giver.ended(request):
            return
        giver.begin(
            CollectRequest(
                id=request, trainer=journey.to, box=box.member.box, partitions=1, newest_windows=NEWEST_WINDOWS,
                cameras=(CameraKey(home=box.member.box, camera=journey.camera),), part_bytes=PART_BYTES,
                most_bytes=REST_BYTES if rest else AHEAD_BYTES, since_utc=journey.began_utc - MARGIN_S if rest else 0.0,
            )
        )  # fmt: skip
        word = giver.serve(request)
        if word.stage == "withdrawn":
            self._say(journey.camera, f"its labels do not follow it to box {journey.to}: {word.problem}")

    def _box_for(self, box: Box, journey: Journey) -> Box:
        """A guest that has gone is given by what its home had said; of a camera that is here, what its operator says now counts."""
        cameras = box.cameras

        def now() -> Mapping[str, Giving]:
            return {journey.camera: journey.giving} | dict(cameras())

        return replace(box, cameras=now, whole=True)

    # --- files --------------------------------------------------------------------------------------------------------

    def _forget(self, journey: Journey) -> None:
        """Unless the camera has set out anew."""
        with self._lock:
            now = self._notes.read(journey.camera)
            if now is not None and now.request == journey.request:
                self._notes.forget(journey.camera)


def _made(said: dict[str, Any]) -> Journey:
    return Journey(**said)
