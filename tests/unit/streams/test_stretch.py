"""Some seconds of a live camera in memory: what is in them, when they end early, and that nothing of them stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from configs.errors import StreamError, StreamErrorCode
from streams.recording import Coded, Ring
from streams.source import CameraState, CameraStatus
from streams.stretch import PATIENCE_S, recorded
from tests.support.packets import decoded, packets, read_clip


class Sending:
    """A camera that sends what came by a clock which the waiting moves."""

    id = "gate"

    def __init__(
        self, items: list[Coded], *, ends: CameraState = CameraState.LIVE, code: StreamErrorCode | None = None
    ) -> None:
        self._items, self._ends, self._code = items, ends, code
        self._ring: Ring | None = None
        self.clock_s = items[0].at_s if items else 0.0
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")
        self.sleep(0.0)

    def stop(self) -> None:
        self.calls.append("stop")

    def record_to(self, ring: Ring | None) -> None:
        self._ring = ring

    def status(self) -> CameraStatus:
        state = CameraState.LIVE if self._items else self._ends
        return CameraStatus(state=state, since_s=0.0, code=self._code, error="it is not there" if self._code else "")

    def now_s(self) -> float:
        return self.clock_s

    def sleep(self, seconds: float) -> None:
        self.clock_s += seconds
        while self._items and self._items[0].at_s <= self.clock_s:
            assert self._ring is not None
            self._ring.put(self._items.pop(0))


def seen(camera: Sending, seconds: float, look: Callable[[Path], object]) -> object:
    with recorded(camera, seconds, now_s=camera.now_s, sleep=camera.sleep) as path:
        return look(path)


def held() -> list[str]:
    """Stretches that this process has."""
    links = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
    return [link for link in links if "driftbox-stretch" in link]


def test_it_is_a_video_of_so_many_seconds_from_a_keyframe_on() -> None:
    items = packets(60, fps=5.0)
    camera = Sending(list(items[2:]))  # the first keyframe was before
    _, times_s, keys = seen(camera, 4.0, read_clip)  # type: ignore[misc]
    assert keys[0]
    assert times_s[-1] - times_s[0] == pytest.approx(4.0, abs=0.25)
    assert camera.calls == ["start", "stop"]


def test_its_packets_are_the_cameras_own_and_can_be_decoded() -> None:
    items = packets(30, fps=5.0)
    found = seen(Sending(list(items)), 3.0, decoded)
    assert 15 <= len(found) <= 18  # type: ignore[arg-type]


def test_it_is_gone_afterwards_and_was_never_on_a_disk() -> None:
    camera = Sending(packets(20))
    with recorded(camera, 2.0, now_s=camera.now_s, sleep=camera.sleep) as path:
        assert "memfd:driftbox-stretch" in str(path.readlink())
        assert path.stat().st_size > 0
        assert len(held()) == 1
    assert not held()


@pytest.mark.parametrize("ends", [CameraState.ENDED, CameraState.STOPPED])
def test_what_ends_early_is_shorter(ends: CameraState) -> None:
    _, times_s, _ = seen(Sending(packets(10, fps=5.0), ends=ends), 20.0, read_clip)  # type: ignore[misc]
    assert times_s[-1] == pytest.approx(1.8, abs=0.01)


def test_a_camera_that_falls_silent_is_not_waited_for_without_end() -> None:
    camera = Sending(packets(10, fps=5.0))
    began_s = camera.clock_s
    _, times_s, _ = seen(camera, 20.0, read_clip)  # type: ignore[misc]
    assert len(times_s) == 10
    assert camera.clock_s - began_s <= 20.0 + PATIENCE_S + 0.2


def test_another_picture_size_ends_it() -> None:
    items = [*packets(10, fps=5.0), *packets(10, fps=5.0, begin_s=1002.0, size=(96, 64))]
    _, times_s, _ = seen(Sending(items), 3.0, read_clip)  # type: ignore[misc]
    assert len(times_s) == 10


def test_nothing_is_said_with_what_the_camera_says_of_it() -> None:
    camera = Sending([])
    with pytest.raises(StreamError, match="camera gate: no keyframe came within 20 s") as raised:
        seen(camera, 5.0, read_clip)
    assert camera.clock_s < PATIENCE_S + 1.0
    assert raised.value.stream_code is StreamErrorCode.TIMEOUT


@pytest.mark.parametrize("code", [StreamErrorCode.AUTH, StreamErrorCode.NETWORK, StreamErrorCode.CODEC])
def test_a_camera_that_says_that_it_failed_is_not_waited_for(code: StreamErrorCode) -> None:
    camera = Sending([], ends=CameraState.WAITING, code=code)
    with pytest.raises(StreamError, match="it is not there") as raised:
        seen(camera, 5.0, read_clip)
    assert raised.value.stream_code is code
    assert camera.clock_s < 1.0
    assert camera.calls == ["start", "stop"]


def test_who_waits_may_give_up() -> None:
    camera = Sending([])

    def give_up(_: float) -> None:
        raise InterruptedError("the job was cancelled")

    with pytest.raises(InterruptedError, match="cancelled"), recorded(camera, 5.0, now_s=camera.now_s, sleep=give_up):
        pass
    assert camera.calls == ["start", "stop"]


def test_who_gives_up_in_the_middle_leaves_nothing_open() -> None:
    camera = Sending(packets(10, fps=5.0))

    def give_up(seconds: float) -> None:
        camera.sleep(seconds)
        if camera.clock_s > 1001.0:
            raise InterruptedError("the job was cancelled")

    with pytest.raises(InterruptedError), recorded(camera, 5.0, now_s=camera.now_s, sleep=give_up):
        pass
    assert not held()


def test_packets_of_which_none_is_a_keyframe_are_nothing() -> None:
    items = [item for item in packets(100, fps=5.0, keyframe_s=60.0) if not item.keyframe]
    with pytest.raises(StreamError, match="no keyframe"):
        seen(Sending(items), 2.0, read_clip)
