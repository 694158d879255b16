"""A box and its fleet: who is meant, what the fleet wishes of a box, what the box says of it.

A camera belongs to the box whose configuration names it, its *home*; the fleet knows it as (home, camera), wherever it is watched now.
A box that watches another's camera keeps it under `CameraKey.guest_id`.

Time: a box's clock may be wrong by hours. What must be ordered has a number: `term` of the controller's lease first, `version` second.
Times in messages are for people and for `Desired.expires_utc`, which is on the controller's clock: a box corrects it by the
difference that it has measured.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

#: Letters of a box, a camera, a customer (as `configs.schema.base.checked_id`).
_ID = re.compile(r"[a-z0-9_-]{1,63}")
#: Raised when a field changes its meaning or goes.
SCHEMA = 1

#: What a box is to do with a camera. own: watch it, and be the one that tells of it; warm: watch it beside its owner and tell nothing,
#: to take over at once; standby: have its model and settings at hand, open nothing; release: another box owns it now, let go.
Role = Literal["own", "warm", "standby", "release"]


def checked(value: str, what: str) -> str:
    """`value` if it can be an id. ValueError otherwise."""
    if not _ID.fullmatch(value):
        raise ValueError(f"{what} must be 1 to 63 of a-z, 0-9, '_', '-', got {value[:80]!r}")
    return value


@dataclass(frozen=True, kw_only=True, order=True)
class CameraKey:
    """A camera in the fleet. home: the box whose configuration names it; camera: its id there."""

    home: str
    camera: str

    def __post_init__(self) -> None:
        checked(self.home, "a camera's home box")
        checked(self.camera, "a camera")

    def __str__(self) -> str:
        return f"{self.home}/{self.camera}"

    @property
    def guest_id(self) -> str:
        """Its id on a box that is not its home."""
        return f"{self.home}--{self.camera}"

    @staticmethod
    def parse(text: str) -> CameraKey:
        """The inverse of str(). ValueError for anything else."""
        home, slash, camera = text.partition("/")
        if not slash:
            raise ValueError(f"a camera of the fleet is written HOME/CAMERA, got {text[:80]!r}")
        return CameraKey(home=home, camera=camera)


@dataclass(frozen=True, kw_only=True)
class ShareOrder:
    """A customer's part of a box (Cilantro's a_j on it). share_pct: of one GPU (of one core without), as everywhere; it is a floor
    under contention: what a customer leaves idle, others may use. 0 is refused by boxes: a camera is never starved by a number."""

    customer: str
    share_pct: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.share_pct) and self.share_pct > 0):
            raise ValueError(f"the share of customer {self.customer} must be above 0 pct, got {self.share_pct}")


@dataclass(frozen=True, kw_only=True)
class CameraOrder:
    """What a box is to do with a camera. term: of the camera's lease, counts up with every change of owner: a box that holds a lower
    one lets go. parcel: id of what is needed to begin (settings, model; sealed for this box), '' where nothing is; state: id of the
    parcel with its tracked objects and counts, as they were after the last frame that was told before: release: pack it under this
    name before you say `released`; own: go on from it; '': none. reason: in words, for people."""

    camera: CameraKey
    role: Role
    term: int
    parcel: str = ""
    reason: str = ""
    after_s: float | None = 0.0
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelOffer:
    """A model version made elsewhere for cameras of this box (fleet training, a staged rollout). The box measures it by its own gate
    and serves it only if it is better. parcel: id of the signed bundle; rollout: id, the answer (`OfferWord`) names it; withdraw: the
    fleet takes it back: a camera that serves it serves what it served before. An offer that is not there any more changes nothing."""

    rollout: str
    parcel: str
    cameras: tuple[CameraKey, ...]
    withdraw: bool = False


@dataclass(frozen=True, kw_only=True)
class Desired:
    """What the fleet wishes of a box, complete: what is not in it is not wished any more. A box applies it when (term, version) is
    above all it has seen and it has not expired; what it has applied holds until something newer comes, however long it is alone.

    term: of the controller's lease; version: counts up with every change within it; shares: empty: no limits; cameras: only those
    that are not simply watched at home; draining: the box is to be emptied; collect: id of a request for samples, '' none."""

    box: str
    term: int
    version: int
    made_utc: str
    expires_utc: str
    shares: tuple[ShareOrder, ...] = ()
    cameras: tuple[CameraOrder, ...] = ()
    offers: tuple[ModelOffer, ...] = ()
    draining: bool = False
    collect: str = ""
    schema: int = SCHEMA

    @property
    def order(self) -> tuple[int, int]:
        """Later wishes compare higher."""
        return (self.term, self.version)


@dataclass(frozen=True, kw_only=True)
class CameraWord:
    """How far a box is with a `CameraOrder`. stage: what is true now; problem: why it is not as ordered, '' it is or will be.
    first_s, last_s: capture time (the camera's own clock, seconds) of the first and last frame that this box has told of it in this
    stay (warming, warm: analysed); None: none. parcel: with `standby`, the one it has at hand; with `owning`, its order's. leaving: it
    tells nothing more, and packs the camera's state for the next owner."""

    camera: CameraKey
    term: int
    stage: Literal["owning", "warming", "warm", "standby", "leaving", "released", "failed"]
    problem: str = ""
    first_s: float | None = None
    last_s: float | None = None
    parcel: str = ""


@dataclass(frozen=True, kw_only=True)
class OfferWord:
    """What a box did with a `ModelOffer` for one of its cameras; it says so as long as the offer stands. stage: judging: not decided
    yet; serving: its gate let it in and it serves; refused: the gate found it no better; failed: it could not be judged (problem says
    why); withdrawn: the offer was withdrawn and the camera does not serve it (any more). before, after: the gate's quality of the
    serving model and of the offered one on the same pictures, None not judged; version: what the offered model is called on this camera,
    '' not known (`Measured.version`)."""

    rollout: str
    camera: CameraKey
    stage: Literal["judging", "serving", "refused", "failed", "withdrawn"]
    before: float | None = None
    after: float | None = None
    problem: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """A box on its newest `Desired`; part of its retained `state`. applied: (term, version) in force, (0, 0) none; refused: why a
    newer one is not in force, '' there is none; problems: what of it could not be done; offers: answers to those that stand."""

    term: int
    version: int
    refused: str = ""
    problems: tuple[str, ...] = ()
    cameras: tuple[CameraWord, ...] = ()
    offers: tuple[OfferWord, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model's quality (0-1) on a camera's held-out labels; no knob has a part in it. number: rises with every measurement on the box;
    version: of the model that was measured; frames: pictures behind it; error: its standard error. over: version that was measured on
    the same pictures, because the measured one had taken its place; '' none; gain, gain_error: over that."""

    number: int
    version: str
    quality: float
    frames: int
    error: float
    over: str = ""
    gain: float | None = None
    gain_error: float | None = None


@dataclass(frozen=True, kw_only=True)
class CameraReport:
    """A camera as its box tells of it, in `BoxReport`. customer: who it is watched for; networks: those from which it can be reached,
    empty: only from its home; demand_pct: share it needs for full quality (of its knobs' profile, mu applied); got_pct: received;
    quality: what people see, 0-1: measured against golden labels, times what the knobs in force keep; None not measured yet; measured:
    the newest measurements behind it, oldest first (older boxes tell none); finish_frac: frames answered by their deadline; fps: frames
    due per second; lag_goal_s; memory_mib: GPU memory of its inference; version: serving model; consent: its samples may leave the
    box, masked; drift: signature of its last window (`scheduler.types.Signature`)."""

    camera: CameraKey
    customer: str
    name: str = ""
    state: str = "live"
    networks: tuple[str, ...] = ()
    demand_pct: float = 0.0
    got_pct: float = 0.0
    quality: float | None = None
    finish_frac: float | None = None
    fps: float = 0.0
    lag_goal_s: float = 1.0
    memory_mib: float = 0.0
    version: str = ""
    arch: str = ""
    consent: bool = False
    drift: tuple[float, ...] = ()
    measured: tuple[Measured, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BoxReport:
    """A box on itself, `<prefix>/<site>/<box>/report`, not retained, QoS 1, every few seconds. sequence: counts up over the box's
    life, so that a replayed message is known; boot: random per start, so that two boxes with one id are known; sent_utc: the box's
    clock; networks: those that it can reach cameras in; spare_pct: promised to nobody; alarms: sentences."""

    box: str
    site: str
    boot: str
    sequence: int
    sent_utc: str
    software: str
    capacity_pct: float
    spare_pct: float
    memory_mib: float | None
    networks: tuple[str, ...]
    cameras: tuple[CameraReport, ...]
    confirmation: Confirmation
    alarms: tuple[str, ...] = ()
    schema: int = SCHEMA
