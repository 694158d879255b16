"""Few threads that do the steps of many: who is next, who is woken, who hangs. In virtual time, with real threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.clock import FakeClock, SystemClock
from edge.gpu.executor import TURN_S
from edge.step_pool import Entry, StepPool

PATIENCE_S = 60.0


class Bench:
    """A pool in virtual time. did: (who, when) each step began."""

    def __init__(self, width: int = 2) -> None:
        self.clock = FakeClock()
        self.pool = StepPool(width, self.clock, spawn=self._spawn)
        self.did: list[tuple[str, float]] = []
        self.at_work = self.most = self.spawned = 0
        self.entries: dict[str, Entry] = {}

    def _spawn(self, body: Callable[[], None]) -> None:
        self.spawned += 1
        self.clock.spawn(body)

    def add(self, name: str, *, takes_s: float = 0.0, again_s: float = math.inf) -> Entry:
        def step() -> float:
            self.did.append((name, self.clock.monotonic_s()))
            self.at_work += 1
            self.most = max(self.most, self.at_work)
            if takes_s:
                self.clock.work(takes_s)
            self.at_work -= 1
            return again_s

        self.entries[name] = entry = self.pool.add(name, step)
        entry.wake()
        return entry

    def times(self, name: str) -> list[float]:
        return [round(at_s, 6) for who, at_s in self.did if who == name]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.pool.close()
    made.clock.join()


def test_a_step_is_done_when_it_is_woken_and_when_it_said(bench: Bench) -> None:
    a = bench.add("a", again_s=1.0)
    bench.clock.advance_to(2.5)
    assert bench.times("a") == [0.0, 1.0, 2.0]
    a.wake()
    bench.clock.advance_to(3.4)
    assert bench.times("a") == [0.0, 1.0, 2.0, 2.5], "and 3.0 is forgotten"
    bench.clock.advance_to(3.5)
    assert bench.times("a")[-1] == 3.5


def test_as_many_are_at_work_as_there_are_threads_and_the_first_who_came_is_next(bench: Bench) -> None:
    for name in "abcde":
        bench.add(name, takes_s=0.1)
    bench.clock.advance_to(1.0)
    assert [who for who, _ in bench.did] == list("abcde")
    assert [round(at_s, 6) for _, at_s in bench.did] == [0.0, 0.0, 0.1, 0.1, 0.2]
    assert (bench.most, bench.spawned) == (2, 2)


def test_one_thread_is_enough_for_those_who_come_one_after_the_other(bench: Bench) -> None:
    a, b = bench.add("a"), bench.add("b")
    bench.clock.advance_to(0.1)
    for n in range(10):
        (a, b)[n % 2].wake()
        bench.clock.advance_to(0.2 + n)
    assert bench.spawned <= 2


def test_who_is_woken_in_its_step_has_another_one_and_never_two_at_a_time(bench: Bench) -> None:
    a = bench.add("a", takes_s=0.5)
    for at_s in (0.1, 0.2, 0.3):
        bench.clock.advance_to(at_s)
        a.wake()
    bench.clock.advance_to(5.0)
    assert bench.times("a") == [0.0, 0.5]
    assert bench.most == 1


def test_who_had_its_turn_in_the_line_goes_before_those_who_wait(bench: Bench) -> None:
    waits = bench.add("waits")
    bench.clock.advance_to(0.1)
    for name in "abcd":
        bench.add(name, takes_s=0.2)
    bench.clock.advance_to(0.2)
    waits.wake_first()
    bench.clock.advance_to(1.0)
    assert [who for who, _ in bench.did] == ["waits", "a", "b", "waits", "c", "d"]


def test_who_has_left_has_no_step_and_its_last_one_is_waited_for() -> None:
    pool, go, inside = StepPool(1, SystemClock()), threading.Event(), threading.Event()
    did = []

    def step() -> float:
        did.append(1)
        inside.set()
        assert go.wait(PATIENCE_S)
        return 0.0

    entry = pool.add("a", step)
    entry.wake()
    assert inside.wait(PATIENCE_S)
    entry.leave()
    assert entry.works
    assert not entry.ended
    assert not entry.join(0.01)
    go.set()
    assert entry.join(PATIENCE_S)
    assert entry.ended
    entry.wake()
    other = threading.Event()
    pool.add("b", lambda: other.set() or math.inf).wake()  # type: ignore[func-returns-value]
    assert other.wait(PATIENCE_S)
    assert did == [1]
    pool.close()


def test_a_step_that_raises_ends_its_own_and_no_others(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def breaks() -> float:
        raise ZeroDivisionError("broken")

    broken = bench.pool.add("broken", breaks)
    broken.wake()
    bench.add("well", again_s=1.0)
    bench.clock.advance_to(2.0)
    assert isinstance(broken.error, ZeroDivisionError)
    assert broken.ended
    assert bench.times("well") == [0.0, 1.0, 2.0]
    assert not bench.entries["well"].ended


@pytest.mark.parametrize("width", [1, 2])
def test_those_who_hang_keep_the_others_waiting_for_one_turn_at_most(width: int) -> None:
    bench = Bench(width)
    for n in range(width):
        bench.add(f"hangs{n}", takes_s=500.0)
    well = bench.add("well", takes_s=0.01)
    for n in range(40):  # as packets go on coming
        bench.clock.advance_to(0.1 * n)
        well.wake()
    assert bench.times("well")[0] == pytest.approx(TURN_S, abs=0.11)
    assert len(bench.times("well")) > 20
    assert bench.spawned == 2 * width if width == 1 else bench.spawned <= 2 * width
    bench.clock.advance_to(600.0)
    assert bench.pool._threads, "who replaced them goes on"
    assert len(bench.pool._threads) <= width, "and those who came back went"
    well.wake()
    bench.clock.advance_to(601.0)
    assert bench.times("well")[-1] == 600.0
    bench.pool.close()
    bench.clock.join()


def test_nothing_is_done_after_the_end() -> None:
    bench = Bench()
    a = bench.add("a", again_s=1.0)
    bench.clock.advance_to(0.5)
    bench.pool.close()
    bench.clock.advance_to(5.0)
    a.wake()
    bench.clock.advance_to(6.0)
    assert bench.times("a") == [0.0]
    bench.clock.join()


def test_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="at least one"):
        StepPool(0, FakeClock())


works = st.lists(
    st.tuples(st.floats(0.0, 0.4), st.one_of(st.just(math.inf), st.floats(0.05, 0.5)), st.lists(st.floats(0.0, 3.0), max_size=5)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=40)
@given(width=st.integers(1, 3), works=works)
def test_no_wake_is_lost_and_no_thread_idles_while_somebody_waits(
    width: int, works: list[tuple[float, float, list[float]]]
) -> None:
    bench = Bench(width)
    spans: dict[str, list[tuple[float, float]]] = {}
    for n, (takes_s, again_s, _) in enumerate(works):
        name, mine = f"e{n}", spans.setdefault(f"e{n}", [])

        def step(takes_s: float = takes_s, again_s: float = again_s, mine: list[tuple[float, float]] = mine) -> float:
            began_s = bench.clock.monotonic_s()
            if takes_s > 0:
                bench.clock.work(takes_s)
            mine.append((began_s, bench.clock.monotonic_s()))
            return again_s

        bench.entries[name] = bench.pool.add(name, step)
        bench.entries[name].wake()
    wakes = sorted((at_s, f"e{n}") for n, (_, _, woken) in enumerate(works) for at_s in woken)
    for at_s, name in wakes:
        bench.clock.advance_to(at_s)
        bench.entries[name].wake()
    bench.clock.advance_to(3.0 + 0.4 * len(works) * 8)
    for at_s, name in wakes:
        assert any(began_s >= at_s for began_s, _ in spans[name]), f"{name} was woken at {at_s}"
    for mine in spans.values():
        assert all(b[0] >= a[1] for a, b in zip(mine, mine[1:], strict=False)), "one at a time"
    starts = sorted((began_s, ended_s) for mine in spans.values() for began_s, ended_s in mine)
    for began_s, _ in starts:
        assert sum(b <= began_s < e for b, e in starts) <= width
    bench.pool.close()
    bench.clock.advance_to(1000.0)
    bench.clock.join()
