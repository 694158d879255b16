"""The states of a camera, without a camera and without waiting: events and times in, actions out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import StreamErrorCode
from streams.reconnect import (
    Ended,
    Event,
    Failed,
    Finish,
    Open,
    Opened,
    Packet,
    Read,
    Reconnect,
    ReconnectPolicy,
    Start,
    Stop,
    Wait,
    Waited,
)
from streams.source import CameraState

REFUSED = Failed(StreamErrorCode.NETWORK, "connection refused")
POLICY = ReconnectPolicy()


def machine(*events: Event, at_s: float = 100.0, seed: int = 0) -> Reconnect:
    made = Reconnect(seed=seed)
    for event in events:
        made.handle(event, at_s)
    return made


def waits_of(code: StreamErrorCode, count: int, seed: int = 0) -> list[float]:
    """The waits of a camera that fails `count` times in a row."""
    made = machine(Start(), seed=seed)
    waits = []
    for _ in range(count):
        action = made.handle(Failed(code, ""), 50.0)
        assert isinstance(action, Wait)
        waits.append(action.until_s - 50.0)
        made.handle(Waited(), 50.0)
    return waits


def test_the_way_to_a_live_camera() -> None:
    made = Reconnect()
    assert made.state(0.0)[0] is CameraState.STOPPED
    assert made.handle(Start(), 10.0) == Open(POLICY.open_timeout_s)
    assert made.state(10.1) == (CameraState.CONNECTING, 10.0, None)
    assert made.handle(Opened(), 10.2) == Read()
    assert made.state(10.3)[0] is CameraState.CONNECTING, "an answer is not yet a picture"
    assert made.handle(Packet(), 10.4) == Read()
    assert made.state(10.5) == (CameraState.LIVE, 10.4, None)
    assert made.handle(Packet(), 12.0) == Read()
    assert made.state(12.0) == (CameraState.LIVE, 10.4, None), "since_s is the change of state, not the last packet"
    assert made.reconnects == 0


def test_a_failure_is_kept_with_its_code_until_the_camera_lives_again() -> None:
    made = machine(Start(), Opened(), Packet())
    action = made.handle(Failed(StreamErrorCode.TIMEOUT, "rtsp://joe:QZcanary@cam/live is silent"), 101.0)
    assert isinstance(action, Wait)
    assert made.state(101.0) == (CameraState.WAITING, 101.0, StreamErrorCode.TIMEOUT)
    assert made.error == "rtsp://***@cam/live is silent"
    made.handle(Waited(), 102.0)
    assert made.state(102.0) == (CameraState.CONNECTING, 102.0, StreamErrorCode.TIMEOUT)
    made.handle(Opened(), 103.0)
    made.handle(Packet(), 103.5)
    assert made.state(103.5) == (CameraState.LIVE, 103.5, None)
    assert made.error == ""
    assert made.reconnects == 1


def test_silence_is_seen_without_an_event() -> None:
    made = machine(Start(), Opened(), Packet(), at_s=100.0)
    assert made.state(100.0 + POLICY.stall_s - 0.01)[0] is CameraState.LIVE
    assert made.state(100.0 + POLICY.stall_s) == (CameraState.STALLED, 103.0, StreamErrorCode.TIMEOUT)
    made.handle(Packet(), 103.5)
    assert made.state(103.5) == (CameraState.LIVE, 100.0, None)


def test_a_stuck_attempt_to_connect_shows_a_timeout() -> None:
    made = machine(Start(), at_s=100.0)
    assert made.state(102.0) == (CameraState.CONNECTING, 100.0, None)
    assert made.state(109.0) == (CameraState.CONNECTING, 100.0, StreamErrorCode.TIMEOUT)


def test_a_stall_is_noticed_and_given_up_within_five_seconds() -> None:
    assert POLICY.stall_s < POLICY.give_up_s < 5.0


@given(seed=st.integers(0, 10_000))
def test_waits_grow_to_a_cap_that_lets_a_returning_camera_show_within_three_seconds(seed: int) -> None:
    waits = waits_of(StreamErrorCode.NETWORK, 8, seed)
    full = [min(POLICY.cap_s, POLICY.first_wait_s * 2**k) for k in range(8)]
    assert all(0.5 * most <= wait <= most for wait, most in zip(waits, full, strict=True))
    assert max(waits) <= 1.5


def test_jitter_is_seeded_and_differs_between_cameras() -> None:
    assert waits_of(StreamErrorCode.NETWORK, 5, seed=1) == waits_of(StreamErrorCode.NETWORK, 5, seed=1)
    assert waits_of(StreamErrorCode.NETWORK, 5, seed=1) != waits_of(StreamErrorCode.NETWORK, 5, seed=2)


def test_a_refused_password_is_tried_seldom() -> None:
    waits = waits_of(StreamErrorCode.AUTH, 12)
    assert 0.5 * POLICY.auth_cap_s <= waits[-1] <= POLICY.auth_cap_s
    assert sum(waits[:4]) < 5


def test_a_camera_that_lived_is_asked_again_soon() -> None:
    made = machine(Start())
    for _ in range(10):
        made.handle(REFUSED, 100.0)
    made.handle(Waited(), 101.0)
    made.handle(Opened(), 101.0)
    made.handle(Packet(), 101.0)
    action = made.handle(REFUSED, 102.0)
    assert isinstance(action, Wait)
    assert action.until_s - 102.0 <= POLICY.first_wait_s


def test_years_of_absence_do_no_harm() -> None:
    assert max(waits_of(StreamErrorCode.NETWORK, 5000)) <= POLICY.cap_s


def test_every_third_timeout_in_a_row_is_answered_with_patience() -> None:
    made = machine()
    patience = [made.handle(Start(), 0.0)]
    for _ in range(5):
        made.handle(Failed(StreamErrorCode.TIMEOUT, ""), 0.0)
        patience.append(made.handle(Waited(), 0.0))
    short, long = Open(POLICY.open_timeout_s), Open(POLICY.long_open_timeout_s)
    assert patience == [short, short, long, short, short, long]


def test_the_end_of_a_recording() -> None:
    made = machine(Start(), Opened(), Packet())
    assert made.handle(Ended(finite=True), 105.0) == Finish()
    assert made.state(200.0) == (CameraState.ENDED, 105.0, StreamErrorCode.ENDED)


def test_a_recording_that_repeats_stays_live() -> None:
    made = machine(Start(), Opened(), Packet())
    assert isinstance(made.handle(Ended(finite=True, repeat=True), 105.0), Open)
    made.handle(Opened(), 105.0)
    made.handle(Packet(), 105.0)
    assert made.state(105.0) == (CameraState.LIVE, 100.0, None)
    assert made.reconnects == 0


@pytest.mark.parametrize("ended", [Ended(finite=True), Ended(finite=True, repeat=True), Ended(finite=False)])
def test_a_source_without_a_picture_is_a_fault_and_never_a_busy_loop(ended: Ended) -> None:
    made = machine(Start(), Opened(), Packet(), Ended(finite=True, repeat=True), Opened())
    assert isinstance(made.handle(ended, 105.0), Wait)
    assert made.state(105.0) == (CameraState.WAITING, 105.0, StreamErrorCode.CODEC)


def test_a_stream_that_just_ends_is_a_network_fault() -> None:
    made = machine(Start(), Opened(), Packet())
    assert isinstance(made.handle(Ended(finite=False), 105.0), Wait)
    assert made.state(105.0) == (CameraState.WAITING, 105.0, StreamErrorCode.NETWORK)


EVENTS: list[Event] = [Opened(), Packet(), REFUSED, Ended(finite=True), Ended(finite=False), Waited()]


@given(before=st.lists(st.sampled_from(EVENTS), max_size=8), after=st.lists(st.sampled_from(EVENTS), max_size=4))
def test_a_stopped_camera_stays_stopped_until_it_is_started(before: list[Event], after: list[Event]) -> None:
    made = machine(Start(), *before)
    assert made.handle(Stop(), 110.0) == Finish()
    for event in after:
        assert made.handle(event, 111.0) == Finish()
        assert made.state(111.0)[0] is CameraState.STOPPED
    assert made.handle(Start(), 112.0) == Open(POLICY.open_timeout_s)
    assert made.state(112.0)[0] is CameraState.CONNECTING
