"""Boxes and a training service that exchange parcels, without a controller: certificates of one authority, parcels in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from configs.errors import EnvironmentLacking
from edge.fleet.envelope import Member
from edge.fleet.samples import Box, Giving, SampleGiver
from models.fake import scripted_image
from scheduler.types import Detections, Frame
from streams.samples import SampleRef, SampleStore
from tests.support.authority import Authority

TRAINER = "trainer"


class Post:
    """A `ParcelPost`. away: nobody answers; puts: every parcel ever put, in order."""

    def __init__(self) -> None:
        self.certificates: dict[str, bytes] = {}
        self.parcels: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.away = False

    def certificate_of(self, box: str) -> bytes:
        return self.certificates[box]

    def put(self, parcel: str, data: bytes) -> None:
        self._answers()
        assert self.parcels.get(parcel, data) == data, "the same parcel with other bytes"
        self.parcels[parcel] = data
        self.puts.append(parcel)

    def get(self, parcel: str) -> bytes:
        self._answers()
        if parcel not in self.parcels:
            raise EnvironmentLacking("no such parcel", subject=parcel, code="not_found")
        return self.parcels[parcel]

    def remove(self, parcel: str) -> None:
        self._answers()
        self.parcels.pop(parcel, None)

    def _answers(self) -> None:
        if self.away:
            raise EnvironmentLacking("the controller does not answer", subject="controller", code="away")


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.folder, self.post = folder, Post()
        self._authority = Authority(folder / "authority")
        self.now_utc = time.time()

    def member(self, name: str) -> Member:
        pair = self._authority.issue(name)
        self.post.certificates[name] = pair.cert.read_bytes()
        return Member.of_pem(
            key=pair.key.read_bytes(), certificate=pair.cert.read_bytes(), authority=self._authority.cert.read_bytes()
        )

    def box(self, name: str, cameras: Mapping[str, Giving], *, most_bytes: int = 2**30) -> GivingBox:
        return GivingBox(self, name, dict(cameras), most_bytes)


class GivingBox:
    """cameras: as configured, may be changed at any time; told: the audit log."""

    def __init__(self, fleet: Fleet, name: str, cameras: dict[str, Giving], most_bytes: int) -> None:
        self.name, self.cameras, self.told = name, cameras, list[tuple[str, str, str]]()
        self.root = fleet.folder / name
        self.store = SampleStore(self.root / "samples", utc=lambda: 1000.0)
        self.box = Box(
            member=fleet.member(name), post=fleet.post, store=self.store, cameras=lambda: self.cameras,
            audit=lambda *entry: self.told.append(entry), utc=lambda: fleet.now_utc, most_bytes=most_bytes,
        )  # fmt: skip
        self.giver = self.started()

    def started(self) -> SampleGiver:
        """The same box after a start."""
        return SampleGiver(self.box, self.root / "collect", retry_s=0.01)

    def add(
        self, camera: str, window: int, seq: int, *, image: np.ndarray | None = None, truth: Detections | None = None,
        split: str = "train",
    ) -> SampleRef:  # fmt: skip
        if image is None:
            image, truth = scripted_image(window * 100 + seq)
        ref = self.store.add(Frame(stream=camera, seq=seq, captured_s=0.0, captured_utc=0.0, image=image), window)
        self.store.label(ref, truth if truth is not None else Detections.empty(), "golden", split)
        return ref
