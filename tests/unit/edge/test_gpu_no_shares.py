"""The backend that keeps no shares: everybody runs, and what each received is measured beside what was promised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.gpu.base import DeviceFacts, Lane, Role
from edge.gpu.none import NoShares
from scheduler.salus.types import MemoryNeed

NEED = MemoryNeed(persistent_mib=10, ephemeral_mib=20)


class ClockSeat:
    """Measures the job's thread by the clock, as on a CPU."""

    def __init__(self, clock: FakeClock, lanes: list[int | None]) -> None:
        self._clock, self._lanes = clock, lanes
        self._ident: int | None = None
        self.closed = False
        self.found: MemoryNeed | None = None

    @contextmanager
    def iteration(self, lane: int | None, *, measure: bool) -> Iterator[None]:
        import threading

        self._ident = threading.get_ident()
        self._lanes.append(lane)
        yield
        self.found = NEED if measure else None

    def settle(self) -> None: ...

    def used_s(self) -> float:
        assert not self.closed, "a closed seat is not asked"
        return 0.0 if self._ident is None else self._clock.thread_cpu_s(self._ident)

    def usage(self) -> MemoryNeed | None:
        return self.found

    def close(self) -> None:
        self.closed = True


class ClockDevice:
    name, capacity_pct, memory_mib, parallel, job_max_pct, measures_always = "fake", 200, 1000.0, 2, 100.0, True

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.lanes: list[int | None] = []

    def seat(self, job: str, role: Role) -> ClockSeat:
        return ClockSeat(self._clock, self.lanes)

    def used_mib(self) -> float | None:
        return None

    def facts(self) -> tuple[DeviceFacts, ...]:
        return (DeviceFacts(index=0, name="fake", memory_total_mib=1000.0, memory_used_mib=0.0),)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(start_s=50.0)


@pytest.fixture
def backend(clock: FakeClock) -> Iterator[NoShares]:
    backend = NoShares(ClockDevice(clock), clock=clock)
    yield backend
    backend.close()
    clock.advance_to(clock.monotonic_s() + 5.0)
    clock.join()


def busy(backend: NoShares, clock: FakeClock, job: str, *, rest_s: float = 0.0) -> Lane:
    lane = backend.open_lane(job)

    def body() -> None:
        try:
            while True:
                with lane.iteration():
                    clock.work(0.1)
                clock.sleep(rest_s)
        except JobCancelled:
            return

    clock.spawn(body)
    return lane


def test_everybody_runs_whatever_was_promised(backend: NoShares, clock: FakeClock) -> None:
    backend.set_shares({"a": 20.0})
    busy(backend, clock, "a")
    busy(backend, clock, "b", rest_s=0.3)
    clock.advance_to(clock.monotonic_s() + 20.0)
    report = backend.report(10.0)
    assert report["a"].promised_pct == pytest.approx(20.0)
    assert report["a"].received_pct == pytest.approx(100.0, abs=2.0)
    assert report["a"].iterations == pytest.approx(100, abs=2)
    assert (report["b"].promised_pct, report["b"].received_pct) == (0.0, pytest.approx(25.0, abs=2.0))
    assert report["b"].backlogged_frac == pytest.approx(0.25, abs=0.02)
    assert report["b"].span_s == pytest.approx(10.0)


def test_promises_are_booked_as_they_were_at_the_time(backend: NoShares, clock: FakeClock) -> None:
    busy(backend, clock, "a")
    backend.set_shares({"a": 100.0})
    clock.advance_to(clock.monotonic_s() + 5.0)
    backend.set_shares({"a": 20.0})
    clock.advance_to(clock.monotonic_s() + 5.0)
    assert backend.report(10.0)["a"].promised_pct == pytest.approx(60.0)


def test_each_job_has_a_stream_of_its_own_and_its_memory_is_told(clock: FakeClock) -> None:
    device = ClockDevice(clock)
    backend = NoShares(device, clock=clock)
    declared = MemoryNeed(persistent_mib=1, ephemeral_mib=1)
    lanes = [backend.open_lane("a", need=declared), backend.open_lane("b")]
    assert backend.memory()["a"].need == declared
    assert backend.memory()["b"].need is None
    for lane in lanes:
        with lane.iteration():
            pass
    assert device.lanes == [0, 1]
    memory = backend.memory()["a"]
    assert (memory.need, memory.measured, memory.lane, memory.held_mib) == (NEED, True, None, 10)
    assert backend.facts()[0].name == "fake"
    assert backend.faults() == ()


def test_a_lane_that_is_closed_while_it_runs_ends_its_job(clock: FakeClock) -> None:
    backend = NoShares(ClockDevice(clock), clock=clock)
    busy(backend, clock, "a")
    clock.advance_to(clock.monotonic_s() + 1.05)
    backend.close_lane("a")
    clock.advance_to(clock.monotonic_s() + 1.0)
    clock.join()
    assert backend.report() == {}


@pytest.mark.parametrize("shares", [{"a": -1.0}, {"a": float("nan")}, {"a": 150.0, "b": 51.0}])
def test_wrong_plans_are_refused_as_elsewhere(backend: NoShares, shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="share"):
        backend.set_shares(shares)


def test_a_span_must_be_positive_and_a_new_job_has_none(backend: NoShares) -> None:
    with pytest.raises(ValueError, match="span_s"):
        backend.report(0.0)
    backend.open_lane("a")
    assert backend.report(5.0)["a"].span_s == 0.0
