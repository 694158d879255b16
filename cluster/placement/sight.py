"""What the controller can see of boxes and cameras: who is there, who owns, what was said last. Pure; asked by plan and handoff."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.types import BoxView, CameraLease, FleetState, Handoff
from scheduler.fleet.types import CameraKey, CameraReport, CameraWord

#: Phases in which a camera is on its way.
UNDER_WAY = ("prepare", "warm", "switch", "release")


#: Boxes report every few seconds; whoever has said nothing after so long is not waited for.
LISTEN_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """gone_s: silence after which a box whose will says `offline` is taken for dead; hung_s: the same while its connection still
    stands; doubt_s: silence after which nothing new is given to it."""

    gone_s: float = 20.0
    hung_s: float = 90.0
    doubt_s: float = 30.0

    def __post_init__(self) -> None:
        if not (0 < self.gone_s <= self.hung_s and self.doubt_s > 0):
            raise ValueError(f"patience must be positive seconds, gone_s at most hung_s; got {self}")


def silence_s(state: FleetState, box: BoxView, now_utc_s: float) -> float:
    """How long the box has not been heard by a controller that listened."""
    return max(0.0, now_utc_s - max(box.seen_utc_s, state.listens_utc_s))


def has_listened(state: FleetState, now_utc_s: float) -> bool:
    """Whether every box that is there was heard since this controller listens, or had the time to be."""
    since_s = state.listens_utc_s
    return now_utc_s - since_s >= LISTEN_S or all(box.seen_utc_s >= since_s for box in state.boxes.values() if box.online)


def is_dead(state: FleetState, box_id: str, patience: Patience, now_utc_s: float) -> bool:
    """Whether nobody can count on the box any more: its will came (or it left the fleet) and it has been silent since, or it is silent
    for long. A box that never reported watches nothing yet and is not dead."""
    box = state.boxes.get(box_id)
    if box is None:
        return True
    silent_s = silence_s(state, box, now_utc_s)
    return silent_s > patience.hung_s or (not box.online and silent_s > patience.gone_s)


def is_fit(state: FleetState, box_id: str, patience: Patience, now_utc_s: float) -> str:
    """Why nothing new is to be given to a box, '': it may be."""
    away = is_away(state, box_id, patience, now_utc_s)
    return f"box {box_id} is being emptied" if not away and state.boxes[box_id].draining else away


def is_away(state: FleetState, box_id: str, patience: Patience, now_utc_s: float) -> str:
    """Why nothing can be given to a box, whatever its owner wishes, '': it is there and believed."""
    box = state.boxes.get(box_id)
    if box is None:
        return f"box {box_id} is not in the fleet"
    if box.report is None:
        return f"box {box_id} has not reported yet"
    if not box.online:
        return f"box {box_id} is offline"
    silent_s = silence_s(state, box, now_utc_s)
    if silent_s > patience.doubt_s:
        return f"box {box_id} has been silent for {silent_s:.0f} s"
    if box.doubts:
        return f"box {box_id} is doubted: {box.doubts[0]}"
    return ""


def lease_of(state: FleetState, camera: CameraKey) -> CameraLease:
    """The camera's lease; one that nobody moved yet is its home's, with term 0."""
    return state.leases.get(camera) or CameraLease(camera=camera, box=camera.home, term=0, since_utc_s=0.0)


def word_of(state: FleetState, box_id: str, camera: CameraKey) -> CameraWord | None:
    """What a box said last about a camera."""
    box = state.boxes.get(box_id)
    if box is None or box.report is None:
        return None
    return next((word for word in box.report.confirmation.cameras if word.camera == camera), None)


def under_way(state: FleetState, camera: CameraKey) -> Handoff | None:
    """The handoff that the camera is in, None: it stays where it is."""
    handoff = state.handoffs.get(camera)
    return handoff if handoff is not None and handoff.phase in UNDER_WAY else None


def cameras_of(state: FleetState) -> dict[CameraKey, CameraReport]:
    """Every camera with what is known of it: by its owner, else by whoever tells of it; those of boxes that left the fleet are gone
    with them, unless somebody else watches them."""
    found: dict[CameraKey, CameraReport] = {}
    for box_id, box in sorted(state.boxes.items()):
        for report in box.cameras:
            if report.camera not in found or lease_of(state, report.camera).box == box_id:
                found[report.camera] = report
    return found


#: Stages in which `CameraWord.last_s` is of a frame that was told.
_TELLS = ("owning", "leaving", "released")


def told_up_to_s(state: FleetState, box_id: str, camera: CameraKey) -> float:
    """Capture time of the last frame that a box is known to have told of a camera; 0: nothing is known."""
    word = word_of(state, box_id, camera)
    return word.last_s if word is not None and word.last_s is not None and word.stage in _TELLS else 0.0


def labels_stay(state: FleetState, handoff: Handoff) -> str:
    """Why a camera's labels do not follow it on this way, '': they do, or nothing is known of it. A box decides that for itself; here
    it is only told."""
    if handoff.cause == "takeover":
        return f"its labels stay on box {handoff.source}, which is gone"
    source = state.boxes.get(handoff.source)
    told = next((report for report in source.cameras if report.camera == handoff.camera), None) if source is not None else None
    return f"without consent its labels stay on box {handoff.source}" if told is not None and not told.consent else ""


def parcel_id(target: str, camera: CameraKey, term: int, more: str = "") -> str:
    """Name of a parcel for `target` (docs/fleet/controller.md)."""
    tail = f".{more}" if more else ""
    return f"{target}.{camera.home}.{camera.camera}.{term}{tail}"
