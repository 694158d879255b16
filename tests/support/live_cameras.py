"""A live box (`tests.support.live_box`) whose cameras are in a book and are changed by the real live control; cameras and detectors are
scripted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from configs.errors import JobError
from configs.load import parse_config
from configs.schema import CameraEntry
from edge.cameras.book import CameraBook
from edge.cameras.secrets import SecretFiles
from edge.cameras.times import learns_at, local_now
from edge.live_control import LiveControl
from edge.objects.live import CameraObjects
from edge.profiler.live import LiveMenu
from edge.queries.live import CameraQueries
from edge.runtime import Watched, infer_job, knob_profiles
from edge.store.cameras import CameraRows
from scheduler.types import Frame, KnobProfile
from streams.source import Camera
from tests.support.fakes import TickingCamera
from tests.support.live_box import LiveBox

#: Addresses whose camera never gives a picture, and whose model cannot be loaded.
SILENT, WITHOUT_MODEL = "rtsp://192.0.2.99/silent", "fake-missing"


def config_text(root: Path, cameras: dict[str, str], urls: Mapping[str, str] | None = None) -> str:
    where = {id: f"rtsp://192.0.2.1/{id}" for id in cameras} | dict(urls or {})
    lines = [f'  - {{id: {id}, url: "{where[id]}", edge: {arch}}}' for id, arch in cameras.items()]
    return "\n".join([f"box: {{data_dir: {root}}}", "cameras:" if lines else "cameras: []", *lines])


class BookedBox(LiveBox):
    """cameras: id -> its scripted detector. urls: their addresses in the book. now: what the schedules read."""

    def __init__(
        self, root: Path, cameras: dict[str, str], *, urls: Mapping[str, str] | None = None, **options: object
    ) -> None:
        super().__init__(root, cameras, **options)  # type: ignore[arg-type]
        base = parse_config(config_text(root, cameras, urls))
        for entry in base.cameras:
            self.watched[entry.id].entry = entry
        self.book = CameraBook(base, CameraRows(self.store), SecretFiles(root), utc_s=time.time)
        self.maker = ScriptedMaker(self)
        self.now = datetime(2026, 11, 23, 12, tzinfo=UTC)  # a Monday
        self.control = LiveControl(self.runtime, self.book, self.maker, data_dir=root, now=lambda: self.now)

    def seqs(self, camera: str) -> Callable[[], list[int]]:
        """Listens to a camera's analysed frames from now on."""
        heard: list[int] = []
        worker = self.runtime.watched[camera].worker
        inside = worker.on_shown

        def hear(shown: object) -> None:
            heard.append(shown.frame.seq)  # type: ignore[attr-defined]
            inside(shown)  # type: ignore[arg-type]

        worker.on_shown = hear
        return lambda: list(heard)

    def wait_running(self, camera: str, count: int = 3) -> None:
        """Until a camera that is watched now has analysed `count` more frames."""
        self.wait(lambda: camera in self.runtime.watched, f"{camera} is watched")
        worker = self.runtime.watched[camera].worker
        target = worker.frames + count
        self.wait(lambda: worker.frames >= target, f"{camera} analyses {count} more frames")


class ScriptedMaker:
    """See `edge.live_control.Maker`. made: entries that cameras were made of, opened: cameras of other streams."""

    refusal = ""

    def __init__(self, box: LiveBox) -> None:
        self._box = box
        self.made: list[CameraEntry] = []
        self.opened: list[Camera] = []
        self.refuses_once = ""

    def check(self, entry: CameraEntry) -> None:
        if entry.edge == WITHOUT_MODEL:
            raise JobError("there are no weights of that name", subject=entry.id)

    def make(self, entry: CameraEntry) -> Watched:
        self.check(entry)
        if self.refuses_once:
            why, self.refuses_once = self.refuses_once, ""
            raise JobError(why)
        self.made.append(entry)
        box = self._box
        box.cameras[entry.id] = self._camera(entry)
        watched = box._watch(entry.id, entry.edge or "fake", 0.0)
        watched.entry, watched.title = entry, entry.title
        watched.learns = learns_at(entry, local_now(entry))
        return watched

    def stream(self, entry: CameraEntry) -> Camera:
        camera = self._camera(entry)
        self.opened.append(camera)
        return camera

    def queries(self, entry: CameraEntry) -> CameraQueries | None:
        return None

    def objects(self, entry: CameraEntry, camera: Camera) -> CameraObjects | None:
        return None

    def knobs(self, entry: CameraEntry, cost_s: float) -> tuple[LiveMenu | None, tuple[KnobProfile, ...]]:
        return None, knob_profiles(entry.fps, cost_s)

    def _camera(self, entry: CameraEntry) -> TickingCamera:
        camera = Silent(entry.id) if entry.url.resolve() == SILENT else TickingCamera(entry.id)
        camera.slower = self._box.slower
        return camera


class Silent(TickingCamera):
    """Gives no picture, and does not make anybody wait for it."""

    def next_frame(self, *, after_seq: int, timeout_s: float) -> Frame | None:
        return None


def lanes_of(box: LiveBox) -> set[str]:
    """Cameras that have a lane for inference."""
    return {job.partition("/")[0] for job in box.backend.report() if job == infer_job(job.partition("/")[0])}
