"""Labels on the way to and from other boxes, as a running box has them: those that leave and those that arrive, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edge.fleet.envelope import Member
from edge.fleet.labels_arrive import ArrivingLabels, LabelPost, Place, expected
from edge.fleet.labels_leave import LeavingLabels
from edge.fleet.samples import Box, Giving
from edge.runtime import BoxRuntime
from edge.store.store import Store
from scheduler import events as ev
from scheduler.commands import Note

#: Kind of origin of a model that came with a camera.
HANDOFF = "handoff"


class FollowingLabels:
    """`edge.fleet.handoff_box.Follow`. leaving, arriving: their two threads."""

    def __init__(self, leaving: LeavingLabels, arriving: ArrivingLabels, utc_s: Callable[[], float]) -> None:
        self.leaving, self.arriving, self._utc_s = leaving, arriving, utc_s

    def begin(self, camera: str, parcel: str, giving: Giving) -> None:
        self.leaving.begin(camera, parcel, giving, now_utc=self._utc_s())

    def close(self, camera: str) -> None:
        self.leaving.close(camera)

    def expect(self, camera: str, known: Mapping[str, Any], sender: str) -> bool:
        coming = expected(known, sender, camera, now_utc=self._utc_s())
        if coming is not None:
            self.arriving.expect(coming)
        return coming is not None

    def start(self) -> None:
        self.leaving.start()
        self.arriving.start()

    def stop(self) -> None:
        self.leaving.stop()
        self.arriving.stop()


def following_labels(
    box: Callable[[], Box], folder: Path, runtime: BoxRuntime, store: Store, *, post: LabelPost, member: Callable[[], Member],
    known: Callable[[str], bool], require_room: Callable[[], None],
) -> FollowingLabels:  # fmt: skip
    """box: as it gives samples now (`edge.fleet.samples.Box`); folder: theirs; known: whether a camera is in the box's book."""

    def say(camera: str, text: str) -> None:
        runtime.note_from_anywhere(Note(stream=camera, code="camera", text=text))

    def learned(camera: str, version: str, window: int) -> None:
        """The window that came is told to the engine as that of the version here which is the one that came with the camera."""
        serving = store.serving(camera).get(camera)
        if serving is not None and version in (serving.id, came_as(store, serving.id)):
            runtime.post(lambda at_s: ev.LearnedFrom(at_s=at_s, stream=camera, version=serving.id, window=window))

    now = box()
    place = Place(
        store=now.store, window=lambda: runtime.parts.sampler.window, here=known, say=say, learned=learned, audit=now.audit,
        require_room=require_room, utc=now.utc,
    )  # fmt: skip
    leaving = LeavingLabels(box, folder / "leaving", watched=lambda camera: camera in runtime.watched, say=say)
    arriving = ArrivingLabels(place, folder / "arriving", member=member, post=post)
    return FollowingLabels(leaving, arriving, now.utc)


def came_as(store: Store, version: str) -> str:
    """The id under which a version that came with a camera was known where it came from; '': it did not come so."""
    origin = store.model(version).origin
    return str(origin.get("version", "")) if origin.get("kind") == HANDOFF else ""
