"""The handlers of a running box, put together: its cameras and others', models made elsewhere, samples (`edge.fleet.handlers`)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from configs.errors import DriftboxError, EnvironmentLacking
from configs.schema import CameraEntry
from edge.fleet.envelope import Member
from edge.fleet.guests import FleetCameras
from edge.fleet.handoff_book import HandoffBook
from edge.fleet.handoff_box import RunningCameras
from edge.fleet.labels import FollowingLabels, following_labels
from edge.fleet.member import Handlers
from edge.fleet.membership import CA, CERTIFICATE, KEY, MemberFolder
from edge.fleet.offers import OfferBook
from edge.fleet.parcels import HttpsPost
from edge.fleet.report import may_leave
from edge.fleet.samples import Box as SampleBox
from edge.fleet.samples import Giving, SampleGiver
from edge.fleet.wiring import FleetBox, Seat
from edge.store.accounts import AccountStore
from scheduler.fleet.types import CameraKey
from streams.masks import masks_from
from streams.samples import SampleStore

log = logging.getLogger(__name__)

#: Longest that a parcel may take to be carried.
PARCEL_S = 300.0
#: Longest that leaving waits for cameras to come home; what is not done by then is done beside.
SETTLE_S = 5.0
#: Longest that the end of the box waits for parcels on their way.
STOP_S = 4.0
#: Who is said to have asked, in the audit log.
BY = "fleet"


class SeatPost:
    """`edge.fleet.parcels.ParcelPost` by the controller in charge: a connection for each parcel, with the certificate as it is then."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def certificate_of(self, box: str) -> bytes:
        with self._seat.client(PARCEL_S) as client:
            return HttpsPost(client).certificate_of(box)

    def put(self, parcel: str, data: bytes) -> None:
        with self._seat.client(PARCEL_S) as client:
            HttpsPost(client).put(parcel, data)

    def get(self, parcel: str) -> bytes:
        with self._seat.client(PARCEL_S) as client:
            return HttpsPost(client).get(parcel)

    def remove(self, parcel: str) -> None:
        with self._seat.client(PARCEL_S) as client:
            HttpsPost(client).remove(parcel)


class Samples:
    """`edge.fleet.handlers.SampleDesk`: seals with the certificate that is good when a request comes."""

    def __init__(self, make: Callable[[Member], SampleGiver], member: Callable[[], Member]) -> None:
        self._make, self._member = make, member
        self._giver: tuple[bytes, SampleGiver] | None = None

    def collect(self, request: str) -> None:
        member = self._member()
        serial = member.certificate.serial_number.to_bytes(20, "big")
        if self._giver is None or self._giver[0] != serial:
            self.close()
            self._giver = serial, self._make(member)
        self._giver[1].collect(request)

    def close(self) -> None:
        if self._giver is not None:
            self._giver[1].close()


def member_of(folder: MemberFolder) -> Member:
    """The box as it proves itself now. UsageError, EnvironmentLacking: its files cannot be used."""
    try:
        key, certificate, authority = (folder.path(name).read_bytes() for name in (KEY, CERTIFICATE, CA))
    except OSError as error:
        raise EnvironmentLacking(f"the box's membership cannot be read: {error.strerror}", subject=str(folder.root)) from None
    return Member.of_pem(key=key, certificate=certificate, authority=authority)


def handlers(seat: Seat, box: Any) -> Handlers:
    """Of a membership of a built box (`edge.wiring.box.Box`). Raises StorageError, and what `member_of` raises."""
    folder, root, me = seat.box.folder, box.folder.root, seat.member.box
    post = SeatPost(seat)

    def offset_s() -> float:
        """The box's clock minus the controller's."""
        controller_s = seat.controller_utc_s()
        return 0.0 if controller_s is None else seat.box.clock.utc_s() - controller_s

    def audit(action: str, outcome: str, detail: str) -> None:
        AccountStore(box.store).add_audit(
            at_utc=seat.box.clock.utc_s(), who=BY, address="", action=action, outcome=outcome, detail=detail, known=True
        )

    def giving_as(member: Member, guests: Callable[[], Mapping[str, CameraKey]]) -> SampleBox:
        return SampleBox(
            member=member, post=post, store=SampleStore(box.folder.samples_dir), audit=audit, utc=seat.box.clock.utc_s,
            cameras=lambda: givings(seat.box, guests=guests()),
        )  # fmt: skip

    labels = following_labels(
        # Of a guest its home has said whether its samples may leave a box; they go where it goes.
        lambda: giving_as(member_of(folder), dict), _made(folder.path("labels")), box.runtime, box.store, post=post,
        member=lambda: member_of(folder), known=lambda camera: running.known(camera),
        require_room=lambda: box.folder.require_free(seat.box.config().storage.min_free_mib),
    )  # fmt: skip
    running = _cameras(seat.box, box, labels)
    cameras = FleetCameras(
        me, running, HandoffBook(root), member=lambda: member_of(folder), post=post, offset_s=offset_s, utc_s=seat.box.clock.utc_s,
        changed=seat.wake,
    )  # fmt: skip

    def local_id(key: CameraKey) -> str | None:
        local = key.camera if key.home == me else key.guest_id
        return local if local in box.runtime.watched else None

    def givers(member: Member) -> SampleGiver:
        return SampleGiver(giving_as(member, cameras.guests), _made(folder.path("samples")))

    offers = OfferBook(root, _made(folder.path("offers")), post, local_id=local_id)
    samples = Samples(givers, lambda: member_of(folder))
    # Before any camera runs: what another box owns is told by nobody here, not even for a second.
    box.runtime.stand_between(cameras.through)

    def stop() -> None:
        """What is on its way may take minutes; the box ends in seconds, and goes on with it at its next start."""
        ending = [threading.Thread(target=end, daemon=True) for end in (cameras.stop, labels.stop, offers.close, samples.close)]
        for thread in ending:
            thread.start()
        until_s = time.monotonic() + STOP_S
        for thread in ending:
            thread.join(max(0.0, until_s - time.monotonic()))

    def settle() -> None:
        """The thread of `cameras` lets guests go and takes its own back."""
        until_s = time.monotonic() + SETTLE_S
        while (running.guests() or _elsewhere(seat.box)) and time.monotonic() < until_s:
            time.sleep(0.05)

    def start() -> None:
        cameras.start()
        labels.start()

    return Handlers(cameras=cameras, offers=offers, samples=samples, start=start, stop=stop, settle=settle)


def alone(seen: FleetBox, box: Any) -> bool:
    """The box is in no fleet: guests that a kill, or leaving while it was off, has left behind go, and all of its own are watched.
    Whether all of that is so."""
    running = _cameras(seen, box)
    try:
        for camera in running.guests():
            running.take_out(camera, "this box is in no fleet")
        for camera in _elsewhere(seen):
            seen.control.give_back(camera)
    except DriftboxError as error:
        log.debug("fleet: guests stay for now: %s", error)
        return False
    return True


def _elsewhere(seen: FleetBox) -> list[str]:
    """Own cameras that are withheld because another box watches them."""
    return [kept.entry.id for kept in seen.control.cameras().cameras if seen.control.state(kept)[0] == "elsewhere"]


def givings(seen: FleetBox, *, guests: Mapping[str, CameraKey]) -> Mapping[str, Giving]:
    """The box's own cameras, as they are configured now: a guest's samples are its home's to give."""
    fleet, watched = seen.config().fleet, dict(seen.runtime.watched)
    entries: list[CameraEntry] = [kept.entry for kept in seen.control.cameras().cameras if kept.entry.id not in guests]
    return {
        entry.id: Giving(
            consent=may_leave(entry, fleet), masks=tuple(masks_from(entry.masks)),
            arch=watched[entry.id].arch if entry.id in watched else "",
        )
        for entry in entries
    }  # fmt: skip


def _cameras(seen: FleetBox, box: Any, labels: FollowingLabels | None = None) -> RunningCameras:
    def consents(entry: CameraEntry) -> bool:
        return may_leave(entry, seen.config().fleet)

    return RunningCameras(seen.runtime, seen.control, box.folder, box.store, consents, labels)


def _made(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
