"""The threads of a camera under a clock of the test's own: nothing here waits for real time to pass."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from configs.errors import StreamErrorCode
from streams.camera import DEMAND_S, PyavCamera
from streams.encode import write_video
from streams.rates import Pace
from streams.reconnect import ReconnectPolicy
from streams.source import CameraState
from streams.url import SourceUrl

FPS = 10.0
PATIENCE_S = 20.0


class JumpingClock:
    """Time that passes only when somebody waits, at once. After `waits` waits it sets the event that it is asked to wait for."""

    def __init__(self, waits: int = 10**9) -> None:
        self.time_s = 1000.0
        self.waited_s: list[float] = []
        self.done = threading.Event()
        self._waits = waits

    def now_s(self) -> float:
        return self.time_s

    def utc(self) -> float:
        return 1_700_000_000.0 + self.time_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waited_s.append(timeout_s)
        self.time_s += max(0.0, timeout_s)
        if len(self.waited_s) >= self._waits:
            self.done.set()
            event.set()
        return event.is_set()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    write_video(path, (np.full((48, 64, 3), 8 * k, np.uint8) for k in range(20)), fps=FPS)
    return path


def test_a_camera_that_stays_away_is_asked_ever_more_seldom_up_to_the_cap() -> None:
    clock = JumpingClock(waits=30)
    camera = PyavCamera("cam", SourceUrl("/nowhere/clip.mp4"), clock=clock, seed=7)
    camera.start()
    assert clock.done.wait(PATIENCE_S)
    camera.stop()
    policy = ReconnectPolicy()
    full = [min(policy.cap_s, policy.first_wait_s * 2**k) for k in range(30)]
    assert all(0.5 * most - 1e-6 <= waited <= most + 1e-6 for waited, most in zip(clock.waited_s, full, strict=True))
    assert len(set(np.round(clock.waited_s, 6))) == 30, "jittered"


def test_the_same_seed_waits_the_same() -> None:
    waits = []
    for seed in (7, 7, 8):
        clock = JumpingClock(waits=6)
        camera = PyavCamera("cam", SourceUrl("/nowhere/clip.mp4"), clock=clock, seed=seed)
        camera.start()
        assert clock.done.wait(PATIENCE_S)
        camera.stop()
        waits.append([round(waited, 6) for waited in clock.waited_s])
    assert waits[0] == waits[1]
    assert waits[0] != waits[2]


def test_a_recording_in_real_time_is_paced_by_its_own_stamps(clip: Path) -> None:
    clock = JumpingClock()
    camera = PyavCamera("cam", SourceUrl(str(clip)), clock=clock)
    camera.start()
    for thread in camera._threads[:1]:
        thread.join(PATIENCE_S)
    assert camera.status().state is CameraState.ENDED
    assert camera.status().code is StreamErrorCode.ENDED
    camera.stop()
    assert clock.time_s - 1000.0 == pytest.approx(19 / FPS, abs=0.01), "twenty pictures last nineteen intervals"
    assert max(clock.waited_s) == pytest.approx(1 / FPS, abs=0.01)


def test_demand_is_forgotten_and_an_old_picture_is_not_given_for_a_new_one(clip: Path) -> None:
    clock = JumpingClock()
    camera = PyavCamera("cam", SourceUrl(str(clip)), clock=clock)
    assert not camera._is_wanted(camera._clock.now_s())
    assert camera.next_frame(after_seq=-1, timeout_s=0.0) is None
    assert camera._is_wanted(camera._clock.now_s())
    clock.time_s += DEMAND_S + 0.1
    assert not camera._is_wanted(camera._clock.now_s())


class Stamped:
    """As much of a packet as the pace looks at."""

    time_base = 0.001

    def __init__(self, milliseconds: int | None) -> None:
        self.pts = self.dts = milliseconds


def pace(at_ms: int | None, now_s: float, made: Pace) -> float:
    return made.wait_s(Stamped(at_ms), now_s)  # type: ignore[arg-type]


def test_the_pace_holds_back_what_is_early_and_lets_through_what_is_late() -> None:
    made = Pace(realtime=True, base_s=100.0)
    assert pace(5000, 100.0, made) == 0.0
    assert pace(5100, 100.02, made) == pytest.approx(0.08)
    assert pace(5200, 100.9, made) == 0.0
    assert pace(6000, 100.95, made) == pytest.approx(0.05), "a little late is caught up"


def test_the_pace_starts_anew_after_a_gap_or_a_long_delay() -> None:
    made = Pace(realtime=True, base_s=100.0)
    pace(0, 100.0, made)
    assert pace(3_600_000, 100.1, made) == 0.0, "an hour is missing in the file"
    assert pace(3_600_100, 100.1, made) == pytest.approx(0.1)
    assert pace(3_600_200, 150.0, made) == 0.0, "the machine slept"
    assert pace(3_600_300, 150.0, made) == pytest.approx(0.1)
    assert pace(None, 150.0, made) == 0.0, "no stamp, no wait"


def test_nothing_is_held_back_from_who_reads_as_fast_as_he_can() -> None:
    made = Pace(realtime=False, base_s=100.0)
    assert pace(0, 0.0, made) == pace(9000, 0.0, made) == 0.0
    assert made.media_s(Stamped(0)) == 100.0  # type: ignore[arg-type]
    assert made.media_s(Stamped(9000)) == pytest.approx(109.0)  # type: ignore[arg-type]
