"""Which pictures are due, and when keyframes are enough: times in, answers out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.rates import WantedRate


def shown(arrivals: list[float], wanted_fps: float, *, fps: float = 0.0, keyframe_every: int = 10_000) -> list[float]:
    """The arrivals that become pictures when each is looked at as it comes."""
    rate = WantedRate()
    rate.wanted_fps = wanted_fps
    rate.restart(fps)
    out = []
    for index, at_s in enumerate(arrivals):
        rate.saw(at_s, keyframe=index % keyframe_every == 0)
        if rate.due(at_s):
            rate.produced(at_s)
            out.append(at_s)
    return out


def steady(fps: float, count: int, *, jitter_s: float = 0.0, seed: int = 1) -> list[float]:
    rng = np.random.default_rng(seed)
    return sorted(1000.0 + index / fps + float(rng.uniform(-jitter_s, jitter_s)) for index in range(count))


def test_zero_means_every_picture() -> None:
    arrivals = steady(25, 50)
    assert shown(arrivals, 0.0) == arrivals


def test_wanting_as_much_as_the_camera_gives_loses_nothing_to_jitter() -> None:
    arrivals = steady(25, 500, jitter_s=0.008)
    assert len(shown(arrivals, 25.0, fps=25.0)) >= 495


def test_wanting_more_than_the_camera_gives_is_every_picture() -> None:
    arrivals = steady(10, 50)
    assert shown(arrivals, 60.0) == arrivals


@given(wanted=st.floats(0.5, 24), camera=st.floats(5, 60), jitter=st.floats(0, 0.2), seed=st.integers(0, 99))
def test_the_rate_is_kept_over_time(wanted: float, camera: float, jitter: float, seed: int) -> None:
    seconds = 60.0
    arrivals = steady(camera, int(seconds * camera), jitter_s=jitter / camera, seed=seed)
    count = len(shown(arrivals, wanted, fps=camera))
    expected = min(wanted, camera) * seconds
    assert 0.93 * expected - 2 <= count <= 1.02 * expected + 2


def test_after_a_pause_the_rate_goes_on_and_nothing_is_caught_up() -> None:
    arrivals = [*steady(20, 100), *(at_s + 100 for at_s in steady(20, 100))]
    out = shown(arrivals, 5.0)
    assert len(out) == pytest.approx(50, abs=3)
    assert min(np.diff(out)) > 0.09


def test_keyframes_are_enough_when_they_come_as_often_as_wanted() -> None:
    rate = WantedRate()
    rate.restart(10.0)
    for index in range(25):  # a keyframe each second
        rate.saw(1000 + index / 10, keyframe=index % 10 == 0, media_s=index / 10)
    answers = {}
    for wanted in (0.0, 0.5, 1.0, 1.05, 1.2, 5.0):
        rate.wanted_fps = wanted
        answers[wanted] = rate.keyframes_only()
    assert answers == {0.0: False, 0.5: True, 1.0: True, 1.05: True, 1.2: False, 5.0: False}


def keyframes(*seen: tuple[float, float | None]) -> WantedRate:
    """A rate of 0.5 wanted, after keyframes at (arrival, stamp)."""
    rate = WantedRate()
    rate.wanted_fps = 0.5
    for at_s, media_s in seen:
        rate.saw(at_s, keyframe=True, media_s=media_s)
    return rate


def test_before_two_keyframes_nothing_is_known_of_their_rate() -> None:
    assert not keyframes((0.0, 0.0)).keyframes_only()
    rate = keyframes((0.0, 0.0), (1.0, 1.0))
    assert rate.keyframes_only()
    rate.restart(0.0)
    assert not rate.keyframes_only()


def test_a_burst_does_not_pass_for_a_high_rate_of_keyframes() -> None:
    assert not keyframes((100.0, 50.0), (100.2, 60.0)).keyframes_only(), "ten seconds apart, sent at once"
    assert not keyframes((100.0, None), (100.2, 60.0)).keyframes_only(), "the first packet of a session may have no stamp"
    assert not keyframes((100.0, 50.0), (110.0, 50.04)).keyframes_only(), "invented stamps"
    assert keyframes((100.0, None), (100.2, 60.0), (102.2, 62.0)).keyframes_only()


def test_the_seen_rate_follows_the_camera() -> None:
    rate = WantedRate()
    assert rate.seen_fps() == 0.0
    for at_s in steady(12.5, 100):
        rate.saw(at_s, keyframe=False)
    assert rate.seen_fps() == pytest.approx(12.5, rel=0.02)
    for at_s in steady(5, 100):
        rate.saw(2000 + at_s, keyframe=False)
    assert rate.seen_fps() == pytest.approx(5, rel=0.02)


def test_from_one_picture_to_the_next_is_the_wanted_period_or_the_cameras_own() -> None:
    rate = WantedRate()
    assert rate.step_s() == 0.0
    rate.restart(10.0)
    assert rate.step_s() == pytest.approx(0.1)
    rate.wanted_fps = 2.0
    assert rate.step_s() == pytest.approx(0.5)
    rate.wanted_fps = 50.0
    assert rate.step_s() == pytest.approx(0.1)


def test_a_packet_is_waited_for_one_and_a_half_of_the_sources_periods() -> None:
    rate = WantedRate()
    rate.wanted_fps = 0.1
    assert rate.grace_s() == pytest.approx(0.15), "nothing is known yet"
    rate.restart(25.0)
    assert rate.grace_s() == pytest.approx(0.06), "however seldom a picture is wanted"


def test_waiting_never_exceeds_one_period() -> None:
    rate = WantedRate()
    rate.wanted_fps = 0.01
    rate.produced(1000.0)
    rate.wanted_fps = 10.0
    assert rate.wait_s(1000.0) <= 0.1, "a higher wish is heard at once"
