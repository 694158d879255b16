"""Cameras that are configured and not watched: they stay for others, so that they can be switched on again."""

from __future__ import annotations

from configs.errors import StorageError
from configs.schema import CameraEntry
from edge.status import BoxStatus, CameraView
from edge.telemetry.kept import ASK_EVERY_S, WithKept
from edge.web.fake import EPOCH_UTC, FakeSource


class Source(FakeSource):
    def __init__(self, *running: str) -> None:
        super().__init__()
        self.running = running

    def status(self) -> BoxStatus:
        cameras = tuple(CameraView(id=id, state="live") for id in self.running)
        return BoxStatus(box="demo", site="home", now_utc=EPOCH_UTC, started_utc=EPOCH_UTC, cameras=cameras)


class World:
    def __init__(self, *running: str) -> None:
        self.source, self.now_s, self.asked = Source(*running), 0.0, 0
        self.entries = [entry("gate"), entry("yard", enabled=False, learning=False, name="Yard")]
        self.kept = WithKept(self.source, self._configured, monotonic=lambda: self.now_s)

    def _configured(self) -> list[CameraEntry]:
        self.asked += 1
        return self.entries

    def cameras(self) -> dict[str, CameraView]:
        return {camera.id: camera for camera in self.kept.status().cameras}


def entry(id: str, **fields: object) -> CameraEntry:
    return CameraEntry.model_validate({"id": id, "url": "rendered:street", **fields}, strict=False)


def test_a_camera_that_is_switched_off_is_there_and_stopped() -> None:
    found = World("gate").cameras()
    assert list(found) == ["gate", "yard"]
    assert (found["yard"].state, found["yard"].watching, found["yard"].learning, found["yard"].name) == (
        "stopped",
        False,
        False,
        "Yard",
    )
    assert found["gate"].state == "live"


def test_one_that_waits_for_its_time_is_switched_on_all_the_same() -> None:
    world = World("gate")
    world.entries = [entry("gate"), entry("yard")]
    assert (world.cameras()["yard"].state, world.cameras()["yard"].watching) == ("stopped", True)


def test_a_removed_camera_is_gone_at_once_and_a_stopped_one_stays() -> None:
    world = World("gate", "yard")
    assert set(world.cameras()) == {"gate", "yard"}
    world.entries, world.source.running = [entry("gate")], ("gate",)
    assert set(world.cameras()) == {"gate"}
    world.source.running = ()
    assert world.cameras()["gate"].state == "stopped"


def test_the_configuration_is_not_read_at_every_look() -> None:
    world = World("gate")
    for _ in range(10):
        world.cameras()
    assert world.asked == 1
    world.now_s += ASK_EVERY_S
    world.cameras()
    assert world.asked == 2


def test_a_configuration_that_cannot_be_read_changes_nothing() -> None:
    world = World("gate")
    before = world.cameras()

    def fails() -> list[CameraEntry]:
        raise StorageError("the disk is gone")

    world.kept._configured = fails
    world.now_s += ASK_EVERY_S
    assert world.cameras() == before
