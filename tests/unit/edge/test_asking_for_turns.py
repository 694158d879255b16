"""A lane that is asked for an iteration without waiting for it: the executor's answers are those that a waiting thread would get."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import pytest

from configs.errors import JobCancelled, JobError
from edge.clock import FakeClock
from edge.gpu.base import TurnLane
from edge.gpu.lanes import LaneBackend
from edge.step_pool import StepPool
from scheduler.salus.types import MemoryNeed

NEED = MemoryNeed(persistent_mib=1.0, ephemeral_mib=40.0)


class Box:
    """memory_mib: of two jobs of NEED, both have a lane of their own with 200, and share one with 60."""

    def __init__(self, *, memory_mib: float = 200.0, max_lanes: int | None = None) -> None:
        self.clock = FakeClock()
        self.backend = LaneBackend(
            capacity_pct=200, memory_mib=memory_mib, clock=self.clock, infer_width=2, max_lanes=max_lanes
        )
        self.woken: list[str] = []
        self.lanes: dict[str, TurnLane] = {}

    def open(self, name: str, share_pct: float) -> TurnLane:
        lane = self.backend.open_lane(name, role="infer", need=NEED)
        assert isinstance(lane, TurnLane)
        self.lanes[name] = lane
        self.backend.set_shares(dict.fromkeys(self.lanes, share_pct))
        return lane

    def ask(self, name: str) -> AbstractContextManager[None] | float:
        return self.lanes[name].ask(lambda: self.woken.append(name))

    def begun(self, name: str) -> AbstractContextManager[None]:
        found = self.ask(name)
        assert not isinstance(found, float), f"{name} has to wait {found} s"
        return found


def by_thread(box: Box, work: list[tuple[str, float]]) -> None:
    """Each in turn asks, computes for so long and waits as it is told to, in one thread of virtual time."""

    def body() -> None:
        for name, compute_s in work:
            while isinstance(found := box.ask(name), float):
                box.clock.sleep(min(found, 1.0))
            with found:
                box.clock.work(compute_s)

    box.clock.spawn(body)


def test_one_that_may_begin_has_begun_and_is_charged_for_what_it_does() -> None:
    box = Box()
    box.open("a", 50.0)
    by_thread(box, [("a", 0.2)])
    box.clock.advance_to(1.0)
    assert box.backend.ledger("a").last().received_s == pytest.approx(0.2)
    assert box.backend.report(1.0)["a"].iterations == 1
    box.backend.check()


def test_who_asks_twice_inside_is_told_that_this_is_wrong() -> None:
    box = Box()
    box.open("a", 50.0)
    with box.begun("a"), pytest.raises(RuntimeError, match="inside an iteration"):
        box.ask("a")
    with box.begun("a"):
        pass


def test_a_share_is_kept_by_those_who_ask_as_by_those_who_wait() -> None:
    done = {}
    for how in ("asks", "waits"):
        box = Box()
        lane = box.open("a", 25.0)

        def waits(lane: TurnLane = lane, box: Box = box) -> None:
            for _ in range(1000):
                with lane.iteration():  # type: ignore[attr-defined]
                    box.clock.work(0.02)

        if how == "asks":
            by_thread(box, [("a", 0.02)] * 1000)
        else:
            box.clock.spawn(waits)
        box.clock.advance_to(20.0)
        report = box.backend.report(10.0)["a"]
        assert report.received_pct == pytest.approx(25.0, abs=0.5)
        assert report.backlogged_frac == pytest.approx(1.0, abs=0.05), "it wants to run all the time"
        done[how] = report.iterations
        box.backend.cancel("a")
    assert abs(done["asks"] - done["waits"]) <= 1


def test_of_two_in_one_memory_lane_one_waits_and_is_woken_when_the_other_is_done() -> None:
    box = Box(memory_mib=60.0)
    box.open("a", 50.0)
    box.open("b", 50.0)
    first = box.begun("a")
    with first:
        found = box.ask("b")
        assert isinstance(found, float)
        assert found > 0
        assert box.woken == []
    assert box.woken == ["b"]
    with box.begun("b"):
        box.backend.check()


def test_of_those_in_two_memory_lanes_neither_waits() -> None:
    box = Box()
    box.open("a", 50.0)
    box.open("b", 50.0)
    with box.begun("a"), box.begun("b"):
        box.backend.check()
    assert box.woken == []


def test_a_new_share_wakes_one_that_waits_for_the_old_one() -> None:
    box = Box()
    box.open("a", 1.0)
    by_thread(box, [("a", 0.5)])
    box.clock.advance_to(1.0)
    found = box.ask("a")
    assert isinstance(found, float)
    assert found > 10.0
    box.woken.clear()
    box.backend.set_shares({"a": 100.0})
    assert box.woken == ["a"]
    found = box.ask("a")
    assert isinstance(found, float)
    assert found < 1.0


@pytest.mark.parametrize("how", ["cancel", "close_lane"])
def test_one_that_was_ended_is_woken_and_told_so(how: str) -> None:
    box = Box()
    box.open("a", 0.0)
    assert isinstance(box.ask("a"), float)
    box.woken.clear()
    getattr(box.backend, how)("a")
    assert box.woken == ["a"]
    with pytest.raises(JobCancelled):
        box.ask("a")
    with pytest.raises(JobCancelled):
        box.ask("a")


def test_a_job_that_was_removed_for_a_fault_is_told_why() -> None:
    box = Box()
    box.open("a", 50.0)
    box.backend._tenants.expel("a", JobError("it took too much", subject="a"), 0.0)
    with pytest.raises(JobError, match="took too much"):
        box.ask("a")


def test_an_iteration_that_fails_gives_its_lane_back() -> None:
    box = Box(memory_mib=60.0)
    box.open("a", 50.0)
    box.open("b", 50.0)
    with pytest.raises(ZeroDivisionError), box.begun("a"):
        _ = 1 / 0
    with box.begun("b"):
        pass


def test_those_who_wait_in_threads_of_their_own_and_those_who_ask_share_memory_lanes() -> None:
    """A recording that may lag has a thread of its own; cameras are asked for by a pool. Nobody is in two places, all come round."""
    box = Box(memory_mib=100.0)
    pool = StepPool(2, box.clock, spawn=box.clock.spawn)
    done = dict.fromkeys("abcxy", 0)
    inside, lock, most = [0], threading.Lock(), [0]

    def compute(name: str) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        box.clock.work(0.01)
        with lock:
            inside[0] -= 1
        done[name] += 1

    for name in "abcxy":
        box.open(name, 30.0)
    entries = {}
    for name in "abc":

        def step(name: str = name) -> float:
            found = box.lanes[name].ask(lambda: entries[name].wake_first())
            if isinstance(found, float):
                return found
            with found:
                compute(name)
            return 0.05

        entries[name] = pool.add(name, step)
        entries[name].wake()
    for name in "xy":

        def body(name: str = name) -> None:
            try:
                while True:
                    with box.lanes[name].iteration():  # type: ignore[attr-defined]
                        compute(name)
                    box.clock.sleep(0.05)
            except JobCancelled:
                return

        box.clock.spawn(body)
    box.clock.advance_to(10.0)
    box.backend.check()
    assert min(done.values()) > 100
    assert most[0] <= 4
    for entry in entries.values():
        entry.leave()
    box.backend.close()
    pool.close()
    box.clock.advance_to(11.0)
    box.clock.join()
