"""Scenes of the cameras (`scheduler.scenes`) over a restart: a box that comes back knows day and night as it did before."""

from __future__ import annotations

import logging
from dataclasses import replace

from configs.errors import StorageError
from edge.store.store import Store
from scheduler.codec import decode, encode
from scheduler.scenes import Scenes
from scheduler.types import Signature

log = logging.getLogger("driftbox")

#: What of a camera's scenes makes them worth writing anew. Their signatures follow the light from window to window, and a disk is not
#: to be written for that.
Mark = tuple[object, ...]


def _mark(scenes: Scenes) -> Mark:
    return (scenes.newest, *(replace(scene, signature=Signature(), gains=(), quality=None) for scene in scenes.known))


class SceneBook:
    """Used by one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, Mark] = {}

    def of(self, camera: str) -> Scenes:
        """What is known of a camera; nothing where nothing was kept, or where it cannot be read (then the camera learns it again)."""
        body = self._store.scenes(camera)
        if body is None:
            return Scenes()
        try:
            scenes = decode(body)
        except StorageError:
            scenes = None
        if not isinstance(scenes, Scenes):
            log.warning("%s: its scenes cannot be read, they are learned again", camera)
            return Scenes()
        self._kept[camera] = _mark(scenes)
        return scenes

    def keep(self, camera: str, scenes: Scenes) -> None:
        """Writes them where a scene came, went, was taught or changed its model. Raises StorageError."""
        mark = _mark(scenes)
        if mark != self._kept.get(camera, _mark(Scenes())):
            self._store.keep_scenes(camera, encode(scenes))
            self._kept[camera] = mark
