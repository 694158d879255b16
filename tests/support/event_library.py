"""A library of events with real pictures and real clips, for the page and the HTTP interface."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge.media.folder import MediaFolder
from edge.media.library import Library
from edge.media.pictures import snapshot_jpeg, thumbnail_jpeg
from edge.objects.types import ObjectEvent
from edge.store.objects import ObjectStore, StoredClip
from edge.store.store import Store
from streams.recording import ClipFile
from tests.support.packets import packets

UTC = 1_790_000_000.0
SIZE = (320, 240)
BOX = (0.3, 0.3, 0.6, 0.8)


def id_of(n: int) -> str:
    return f"{int((UTC + 10 * n) * 1000)}-{n:08x}"


def object_of(
    n: int, *, camera: str = "gate", class_name: str = "person", open: bool = False, zones: tuple[str, ...] = ()
) -> ObjectEvent:
    """Object n, there for 4 s from 10 n seconds after UTC on."""
    begun = UTC + 10 * n
    return ObjectEvent(
        id=id_of(n), camera=camera, what="update" if open else "end", class_name=class_name, score=0.87, box=BOX, started_utc=begun,
        seen_utc=begun + 4, ended_utc=None if open else begun + 4, zones=zones if open else (), zones_been=zones,
        lines={"mid": "in"} if zones else {}, version=f"{camera}-2", extra={"dwell_s": dict.fromkeys(zones, 2.5), "still": False},
    )  # fmt: skip


class Shelf:
    """The library and how it is filled."""

    def __init__(self, root: Path) -> None:
        self.store = ObjectStore(Store(root / "driftbox.db"))
        self.library = Library(self.store, MediaFolder(root / "media"))

    def add(self, event: ObjectEvent, *, picture: bool = True) -> None:
        image = np.full((SIZE[1], SIZE[0], 3), (90, 120, 90), np.uint8)
        image[72:192, 96:192] = (200, 60, 60)
        made = {}
        if picture:
            made[event.id] = self.library.folder.write_pictures(
                event.camera, event.id, event.started_utc, snapshot=snapshot_jpeg(image, event.box, f"{event.class_name} 0.87"),
                thumbnail=thumbnail_jpeg(image, event.box),
            )  # fmt: skip
        self.store.put([event], made)

    def add_clip(self, camera: str, began_utc: float, *, seconds: float = 8.0) -> StoredClip:
        """A clip of a moving square."""
        folder = self.library.folder
        name = folder.new_clip(camera, began_utc, suffix=".mp4", masked=False)
        items = packets(round(5 * seconds), size=SIZE)
        with folder.open_clip(name) as file:
            clip = ClipFile(file, items[0].format)
            for item in items:
                clip.add(item)
            clip.close()
        made = StoredClip(
            camera=camera,
            path=name,
            began_utc=began_utc,
            ended_utc=began_utc + seconds,
            size_bytes=folder.finish_clip(name),
            codec="h264",
        )
        self.store.add_clip(made)
        return made


def filled(root: Path, *, events: int = 30) -> Shelf:
    """Events 0 to events - 1; 1 with a clip, 2 without a picture, 3 a car at the yard in a zone, the last still there."""
    shelf = Shelf(root)
    for n in range(events):
        shelf.add(
            object_of(
                n, camera="yard" if n == 3 else "gate", class_name="car" if n == 3 else "person", open=n == events - 1,
                zones=("door",) if n == 3 else (),
            ),
            picture=n != 2,
        )  # fmt: skip
    shelf.add_clip("gate", UTC + 8.0, seconds=8.0)
    return shelf
