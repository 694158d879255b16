"""Pooled training: what a training service asks of a box, and what the box says that it gave. All of it travels in parcels, sealed.

Names of parcels (docs/fleet/controller.md: the first part says whom it is for):

    BOX.collect.REQUEST                       the request, for the box
    TRAINER.samples.REQUEST.BOX.000000        a part of its samples, for the training service; each is one map output
    TRAINER.samples.REQUEST.BOX.end           how many parts there are, or that there is nothing (any more)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scheduler.fleet.types import SCHEMA, CameraKey, checked

#: Most partitions (reducers) of a request: every part has an index of so many offsets.
MOST_PARTITIONS = 100_000
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class CollectRequest:
    """id: as in `Desired.collect`; trainer: who asks, samples are sealed for its certificate; box: who is asked; cameras: of this box,
    empty: all that consent; arch: only of cameras that run it, '' any; partitions: R, training partitions; newest_windows: how far back;
    most_bytes, part_bytes: of all samples, and of one part (a box may give less); since_utc: only what was labelled from then on, by the
    box's own clock (a camera that moves: the rest of what has gone ahead)."""

    id: str
    trainer: str
    box: str
    partitions: int
    cameras: tuple[CameraKey, ...] = ()
    arch: str = ""
    newest_windows: int = 5
    most_bytes: int = 256 * MIB
    part_bytes: int = 8 * MIB
    since_utc: float = 0.0
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        checked(self.id, "a request for samples")
        checked(self.trainer, "a training service")
        checked(self.box, "a box")
        if not 1 <= self.partitions <= MOST_PARTITIONS or self.newest_windows < 1:
            raise ValueError(f"partitions 1 to {MOST_PARTITIONS}, newest_windows at least 1, got {self}")
        if not 0 < self.part_bytes <= self.most_bytes or self.part_bytes > 256 * MIB:
            raise ValueError(f"part_bytes above 0, at most {256 * MIB} and most_bytes, got {self}")


@dataclass(frozen=True, kw_only=True)
class PartSent:
    """sha256: hex, of the block file before it was sealed; samples: pictures in it."""

    sha256: str
    samples: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Collected:
    """A box's last word on a request. stage: given; refused: nothing was given, nothing is (problem says why); withdrawn: the operator
    took the consent back: parts that have come are not used. left_out: pictures that were not given, by reason."""

    request: str
    box: str
    stage: Literal["given", "refused", "withdrawn"]
    parts: tuple[PartSent, ...] = ()
    problem: str = ""
    left_out: dict[str, int]
    schema: int = SCHEMA


def request_parcel(box: str, request: str) -> str:
    return f"{box}.collect.{request}"


def part_parcel(trainer: str, request: str, box: str, part: int) -> str:
    return f"{trainer}.samples.{request}.{box}.{part:06d}"


def end_parcel(trainer: str, request: str, box: str) -> str:
    return f"{trainer}.samples.{request}.{box}.end"
