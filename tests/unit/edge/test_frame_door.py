"""The door in front of the executor, in virtual time: so many are inside, the others come in as they came, and nobody is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.gpu.base import Role, TurnLane
from edge.gpu.door import Door, Pass
from edge.gpu.executor import TURN_S
from edge.gpu.lanes import LaneBackend
from scheduler.salus.types import MemoryNeed

NEED = MemoryNeed(persistent_mib=1.0, ephemeral_mib=1.0)


class Street:
    """People who come to a door at given times and stay inside for so long; `visits` says (name, in, out) of each."""

    def __init__(self, width: int, *, turn_s: float = 1.0) -> None:
        self.clock = FakeClock()
        self.door = Door(width, self.clock, turn_s=turn_s)
        self.visits: list[tuple[str, float, float]] = []
        self.came: dict[str, float] = {}
        self.passes: dict[str, Pass] = {}

    def comes(self, name: str, at_s: float, stays_s: float) -> None:
        one = self.passes[name] = self.door.pass_for()

        def body() -> None:
            self.clock.sleep(at_s)
            self.came[name] = self.clock.monotonic_s()
            if not self.door.enter_if_free(one):
                self.door.enter(one)
            begun_s = self.clock.monotonic_s()
            self.clock.sleep(stays_s)
            self.visits.append((name, round(begun_s, 6), round(self.clock.monotonic_s(), 6)))
            self.door.leave(one)

        self.clock.spawn(body)

    def run(self, until_s: float) -> dict[str, float]:
        """Who came in, when."""
        self.clock.advance_to(until_s)
        return {name: at_s for name, at_s, _ in self.visits}

    def end(self) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + 10_000.0)
        self.clock.join()


def test_they_come_in_as_they_came_and_never_more_than_the_door_is_wide() -> None:
    street = Street(2)
    for n, name in enumerate("abcd"):
        street.comes(name, 0.01 * n, 0.1)
    assert street.run(5.0) == {"a": 0.0, "b": 0.01, "c": 0.1, "d": 0.11}
    street.end()


def test_who_comes_while_somebody_waits_does_not_slip_in() -> None:
    street = Street(1)
    street.comes("a", 0.0, 0.1)
    street.comes("b", 0.05, 0.1)
    street.clock.advance_to(0.07)
    assert not street.door.enter_if_free(street.door.pass_for())
    street.end()
    assert [name for name, _, _ in street.visits] == ["a", "b"]


def test_one_that_hangs_inside_keeps_the_others_waiting_for_a_turn_only() -> None:
    street = Street(1, turn_s=1.0)
    street.comes("hangs", 0.0, 500.0)
    street.comes("a", 0.1, 0.1)
    street.comes("b", 0.2, 0.1)
    assert street.run(10.0) == {"a": 1.0, "b": 1.1}
    street.end()


def test_when_the_one_that_hung_comes_back_the_door_is_as_wide_as_before() -> None:
    street = Street(1, turn_s=1.0)
    street.comes("hangs", 0.0, 1.05)
    for n, name in enumerate("abc"):
        street.comes(name, 0.1 + 0.01 * n, 0.1)
    assert street.run(10.0) == {"hangs": 0.0, "a": 1.0, "b": 1.1, "c": 1.2}
    street.end()


def test_who_is_hurried_comes_in_at_once_and_takes_nobodys_place() -> None:
    street = Street(1)
    for n, name in enumerate("abc"):
        street.comes(name, 0.01 * n, 0.5)
    street.clock.advance_to(0.1)
    street.door.hurry(street.passes["b"])
    inside = street.run(5.0)
    assert inside["b"] == pytest.approx(0.1)
    assert inside["c"] == 0.5, "after a, as if b had never come"
    street.end()


def test_leaving_twice_or_without_having_come_in_lets_nobody_in() -> None:
    street = Street(1)
    street.comes("a", 0.0, 1.0)
    street.comes("b", 0.1, 1.0)
    street.clock.advance_to(0.2)
    stranger = street.door.pass_for()
    street.door.leave(stranger)
    street.door.leave(stranger)
    assert street.run(5.0) == {"a": 0.0, "b": 1.0}
    street.end()


def test_a_door_that_lets_nobody_in_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Door(0, FakeClock(), turn_s=1.0)


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 3),
    people=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=9),
)
def test_whoever_comes_gets_in_in_order_and_there_is_never_a_crowd(width: int, people: list[tuple[int, int]]) -> None:
    street = Street(width, turn_s=1000.0)
    for n, (at_ms, stays_ms) in enumerate(people):
        street.comes(f"{n}", at_ms / 100 + n * 1e-4, stays_ms / 100)  # no two at the same moment
    street.run(1000.0)
    assert len(street.visits) == len(people)
    for _, at_s, _ in street.visits:
        assert sum(1 for _, begin_s, end_s in street.visits if begin_s <= at_s + 1e-9 < end_s - 1e-9) <= width
    begun = {name: begin_s for name, begin_s, _ in street.visits}
    by_coming = sorted(begun, key=street.came.__getitem__)
    assert [begun[name] for name in by_coming] == sorted(begun.values())
    street.end()


# --- in front of the executor -----------------------------------------------------------------------------------------


class Box:
    """Jobs on a CPU where one frame is in work at a time."""

    def __init__(self, *, max_lanes: int | None = None) -> None:
        self.clock = FakeClock()
        self.backend = LaneBackend(capacity_pct=400, memory_mib=100.0, clock=self.clock, infer_width=1, max_lanes=max_lanes)
        self.begun: dict[str, float] = {}
        self.ended: list[str] = []

    def add(self, name: str, at_s: float, decode_s: float, frame_s: float, *, role: Role = "infer") -> TurnLane:
        """A frame that is decoded in its turn, then looked at."""
        lane = self.backend.open_lane(name, role=role, need=NEED)
        assert isinstance(lane, TurnLane)

        def body() -> None:
            self.clock.sleep(at_s)
            try:
                with lane.iteration():  # type: ignore[attr-defined]
                    self.begun[name] = round(self.clock.monotonic_s(), 6)
                    with lane.beside():
                        self.clock.work(decode_s)
                    self.clock.work(frame_s)
            except JobCancelled:
                self.ended.append(name)

        self.clock.spawn(body)
        return lane

    def end(self) -> None:
        self.backend.close()
        self.clock.advance_to(self.clock.monotonic_s() + 10_000.0)
        self.clock.join()
        self.backend.check()


def test_a_decoder_that_hangs_in_its_turn_keeps_the_others_waiting_for_a_moment_only() -> None:
    box = Box()
    box.add("hangs", 0.0, 900.0, 0.1)
    box.add("a", 0.1, 0.02, 0.1)
    box.add("b", 0.2, 0.02, 0.1)
    box.backend.set_shares(dict.fromkeys(("hangs", "a", "b"), 100.0))
    box.clock.advance_to(5.0)
    assert box.begun == {"hangs": 0.0, "a": TURN_S, "b": pytest.approx(TURN_S + 0.12)}
    box.end()


def test_what_is_decoded_in_a_turn_is_not_charged_to_the_share_at_any_moment() -> None:
    box = Box()
    box.add("cam", 0.0, 2.0, 0.5)
    box.backend.set_shares({"cam": 100.0})
    received = []
    for at_s in (1.0, 1.9, 2.25, 4.0):
        box.clock.advance_to(at_s)
        received.append(box.backend.ledger("cam").last().received_s)
    assert received == [0.0, 0.0, pytest.approx(0.25, abs=0.26), pytest.approx(0.5)]
    box.end()


def test_who_waits_outside_counts_as_wanting_to_run() -> None:
    box = Box()
    box.add("a", 0.0, 0.0, 0.9)
    box.add("b", 0.01, 0.0, 0.1)
    box.backend.set_shares({"a": 100.0, "b": 100.0})
    box.clock.advance_to(1.0)
    assert box.backend.report(1.0)["b"].backlogged_frac == pytest.approx(1.0, abs=0.02)
    box.end()


def test_who_waits_for_its_share_or_its_memory_lets_the_next_one_in() -> None:
    box = Box(max_lanes=1)
    box.add("lesson", 0.0, 0.0, 0.5, role="learn")  # in the only memory lane there is
    box.add("waits", 0.1, 0.0, 0.1)
    box.add("poor", 0.2, 0.0, 0.1)
    box.backend.set_shares({"lesson": 100.0, "waits": 100.0, "poor": 0.0})
    box.clock.advance_to(5.0)
    assert box.begun == {"lesson": 0.0, "waits": 0.5}, "a share of nothing keeps nobody from the door"
    box.backend.set_shares({"poor": 50.0})
    box.clock.advance_to(6.0)
    assert box.begun["poor"] == 5.0
    box.end()


@pytest.mark.parametrize("how", ["cancel", "close_lane"])
def test_who_is_ended_outside_is_told_so_and_the_next_one_goes(how: str) -> None:
    box = Box()
    for n, name in enumerate("abc"):
        box.add(name, 0.01 * n, 0.0, 0.2)
    box.backend.set_shares(dict.fromkeys("abc", 100.0))
    box.clock.advance_to(0.1)
    getattr(box.backend, how)("b")
    box.clock.advance_to(2.0)
    assert box.ended == ["b"]
    assert box.begun == {"a": 0.0, "c": 0.2}
    box.end()


def test_only_frames_on_a_processor_with_turns_take_turns() -> None:
    turns = LaneBackend(infer_width=2, clock=FakeClock())
    free = LaneBackend(clock=FakeClock())
    told = {
        "a frame": turns.open_lane("cam", role="infer"),
        "a lesson": turns.open_lane("train"),
        "a frame without turns": free.open_lane("cam", role="infer"),
    }
    assert {what: isinstance(lane, TurnLane) and lane.takes_turns for what, lane in told.items()} == {
        "a frame": True,
        "a lesson": False,
        "a frame without turns": False,
    }
