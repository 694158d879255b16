"""Cameras' frames take turns: never more at a time than `infer_width`, in the order in which they asked, whatever one of them does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.gpu.executor import TURN_S
from edge.gpu.lanes import LaneBackend
from scheduler.salus.types import MemoryNeed

NEED = MemoryNeed(persistent_mib=1.0, ephemeral_mib=1.0)


class Cameras:
    """Jobs that each begin at a given second and compute frames of a given length; `runs` says (job, begin, end) of each."""

    def __init__(self, width: int | None, *, capacity_pct: int = 400, max_lanes: int | None = None) -> None:
        self.clock = FakeClock()
        self.backend = LaneBackend(
            capacity_pct=capacity_pct, memory_mib=100.0, clock=self.clock, infer_width=width, max_lanes=max_lanes
        )
        self.runs: list[tuple[str, float, float]] = []
        self.cancelled: list[str] = []

    def add(self, name: str, at_s: float, frame_s: float, *, frames: int = 1, role: str = "infer") -> None:
        lane = self.backend.open_lane(name, role=role, need=NEED)  # type: ignore[arg-type]

        def body() -> None:
            self.clock.sleep(at_s)
            try:
                for _ in range(frames):
                    with lane.iteration():
                        begun_s = self.clock.monotonic_s()
                        self.clock.work(frame_s)
                        self.runs.append((name, begun_s, self.clock.monotonic_s()))
            except JobCancelled:
                self.cancelled.append(name)
            finally:
                self.backend.close_lane(name)

        self.clock.spawn(body)

    def run(self, until_s: float) -> list[tuple[str, float, float]]:
        self.clock.advance_to(until_s)
        self.backend.check()
        return self.runs

    def end(self) -> None:
        self.backend.close()
        self.clock.advance_to(self.clock.monotonic_s() + 1000.0)
        self.clock.join()


def begun(cameras: Cameras) -> dict[str, float]:
    return {name: round(at_s, 6) for name, at_s, _ in cameras.runs}


def test_one_at_a_time_in_the_order_in_which_they_asked() -> None:
    cameras = Cameras(1)
    for name, at_s in (("c", 0.00), ("a", 0.01), ("b", 0.02)):
        cameras.add(name, at_s, 0.1)
    cameras.backend.set_shares(dict.fromkeys("abc", 100.0))
    cameras.run(1.0)
    assert begun(cameras) == {"c": 0.0, "a": 0.1, "b": 0.2}
    cameras.end()


def test_two_at_a_time() -> None:
    cameras = Cameras(2)
    for name, at_s in (("a", 0.00), ("b", 0.01), ("c", 0.02), ("d", 0.03)):
        cameras.add(name, at_s, 0.1)
    cameras.backend.set_shares(dict.fromkeys("abcd", 100.0))
    cameras.run(1.0)
    assert begun(cameras) == {"a": 0.0, "b": 0.01, "c": 0.1, "d": 0.11}
    cameras.end()


def test_without_a_width_all_that_come_begin_at_once() -> None:
    cameras = Cameras(None)
    for name in "abc":
        cameras.add(name, 0.0, 0.1)
    cameras.backend.set_shares(dict.fromkeys("abc", 100.0))
    cameras.run(1.0)
    assert set(begun(cameras).values()) == {0.0}
    cameras.end()


def test_learning_does_not_stand_in_line() -> None:
    cameras = Cameras(1)
    cameras.add("cam", 0.0, 0.5)
    for name in ("train1", "train2"):
        cameras.add(name, 0.6, 0.5, role="learn")
    cameras.backend.set_shares(dict.fromkeys(("cam", "train1", "train2"), 100.0))
    cameras.run(2.0)
    assert begun(cameras) == {"cam": 0.0, "train1": 0.6, "train2": 0.6}
    cameras.end()


def test_a_frame_that_hangs_keeps_the_others_waiting_for_a_moment_only() -> None:
    cameras = Cameras(1)
    cameras.add("hangs", 0.0, 500.0)
    cameras.add("a", 0.1, 0.1)
    cameras.add("b", 0.2, 0.1)
    cameras.backend.set_shares(dict.fromkeys(("hangs", "a", "b"), 100.0))
    cameras.run(5.0)
    assert begun(cameras) == {"a": TURN_S, "b": TURN_S + 0.1}
    cameras.end()


def test_who_is_in_debt_does_not_hold_a_place_in_the_line() -> None:
    cameras = Cameras(1)
    cameras.add("poor", 0.0, 0.1, frames=2)  # 10 pct: after a frame of 0.1 s it owes for a second
    cameras.add("rich", 0.05, 0.1, frames=4)
    cameras.backend.set_shares({"poor": 10.0, "rich": 100.0})
    cameras.run(3.0)
    poor = [at_s for name, at_s, _ in cameras.runs if name == "poor"]
    rich = [round(at_s, 3) for name, at_s, _ in cameras.runs if name == "rich"]
    assert rich == [0.1, 0.2, 0.3, 0.4]
    assert poor[1] >= 0.5
    cameras.end()


@pytest.mark.parametrize("how", ["cancel", "close_lane"])
def test_who_is_ended_in_the_line_passes_its_turn_on(how: str) -> None:
    cameras = Cameras(1)
    for name, at_s in (("a", 0.0), ("b", 0.01), ("c", 0.02)):
        cameras.add(name, at_s, 0.1)
    cameras.backend.set_shares(dict.fromkeys("abc", 100.0))
    cameras.run(0.05)
    getattr(cameras.backend, how)("b")
    cameras.run(1.0)
    assert cameras.cancelled == ["b"]
    assert begun(cameras) == {"a": 0.0, "c": 0.1}
    cameras.end()


def test_waiting_in_line_costs_no_share() -> None:
    cameras = Cameras(1)
    for name in "abcd":
        cameras.add(name, 0.0, 0.1, frames=5)
    cameras.backend.set_shares(dict.fromkeys("abcd", 25.0))
    cameras.run(20.0)
    assert sum(end_s - at_s for _, at_s, end_s in cameras.runs) == pytest.approx(2.0)
    assert {name: sum(1 for n, _, _ in cameras.runs if n == name) for name in "abcd"} == dict.fromkeys("abcd", 5)
    cameras.end()


def test_who_waited_for_a_memory_lane_keeps_its_place_in_the_line() -> None:
    cameras = Cameras(1, max_lanes=2)
    # a and c share a lane, b and d the other one: c may not even stand in line before a is done, d not before b is.
    for name, at_s in (("a", 0.00), ("b", 0.03), ("c", 0.01), ("d", 0.02)):
        cameras.add(name, at_s, 0.1)
    cameras.backend.set_shares(dict.fromkeys("abcd", 100.0))
    cameras.run(1.0)
    assert begun(cameras) == {"a": 0.0, "c": 0.1, "d": 0.2, "b": 0.3}
    cameras.end()


def test_cameras_that_share_a_memory_lane_come_to_as_many_frames_as_the_others() -> None:
    cameras = Cameras(2, max_lanes=8, capacity_pct=1200)
    names = [f"cam{n:02}" for n in range(12)]  # four lanes have one camera, four have two
    for n, name in enumerate(names):
        cameras.add(name, 0.01 * n, 0.1, frames=1000)
    cameras.backend.set_shares(dict.fromkeys(names, 100.0))
    cameras.run(60.0)
    done = [sum(1 for name, _, _ in cameras.runs if name == each) for each in names]
    assert max(done) - min(done) <= 2, dict(zip(names, done, strict=True))
    cameras.end()


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 3),
    jobs=st.lists(
        st.tuples(st.floats(0, 0.5), st.floats(0.001, 0.3), st.integers(1, 4), st.floats(20, 60)), min_size=1, max_size=6
    ),
)
def test_never_more_than_the_width_and_every_frame_gets_its_turn(
    width: int, jobs: list[tuple[float, float, int, float]]
) -> None:
    cameras = Cameras(width, capacity_pct=400)
    for n, (at_s, frame_s, frames, _) in enumerate(jobs):
        cameras.add(f"cam{n}", at_s, frame_s, frames=frames)
    cameras.backend.set_shares({f"cam{n}": share for n, (_, _, _, share) in enumerate(jobs)})
    runs = cameras.run(200.0)
    assert len(runs) == sum(frames for _, _, frames, _ in jobs)
    for _, at_s, _ in runs:
        assert sum(1 for _, begin_s, end_s in runs if begin_s <= at_s + 1e-9 < end_s - 1e-9) <= width
    cameras.end()
