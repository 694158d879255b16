"""Full collections of garbage: whose time they are not, and what they look at. Only CPU time is measured, which load does not change."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import AbstractContextManager, nullcontext

import pytest

from edge.clock import SystemClock
from edge.garbage import Collections, kept_from_collections, watch
from edge.gpu.lanes import LaneBackend
from scheduler.salus.types import MemoryNeed


@pytest.fixture
def many() -> list[list[int]]:
    """So much that a full collection takes some tens of milliseconds."""
    return [[n] for n in range(400_000)]


def collect_s() -> float:
    """What a full collection takes of this thread."""
    began_s = time.thread_time()
    gc.collect()
    return time.thread_time() - began_s


def test_only_full_collections_are_counted_and_by_thread() -> None:
    counted, burnt = Collections(), []

    def burn() -> None:
        began_s = time.thread_time()
        while time.thread_time() - began_s < 0.01:
            pass
        burnt.append(threading.get_ident())

    for generation in (0, 1):
        counted("start", {"generation": generation})
        burn()
        counted("stop", {"generation": generation})
    assert counted.spent_s(threading.get_ident()) == 0.0

    def full() -> None:
        counted("start", {"generation": 2})
        burn()
        counted("stop", {"generation": 2})

    full()
    full()
    assert counted.spent_s(threading.get_ident()) == pytest.approx(0.02, rel=0.5)
    thread = threading.Thread(target=full)
    thread.start()
    thread.join()
    assert counted.spent_s(burnt[-1]) >= 0.01
    assert counted.spent_s(-1) == 0.0


def test_a_process_watches_once(many: list[list[int]]) -> None:
    assert watch() is watch()
    assert gc.callbacks.count(watch()) == 1
    before_s = watch().spent_s(threading.get_ident())
    took_s = collect_s()
    assert watch().spent_s(threading.get_ident()) - before_s == pytest.approx(took_s, rel=0.3)


def test_what_a_thread_used_is_told_without_them(many: list[list[int]]) -> None:
    clock = SystemClock()
    me = threading.get_ident()
    before_s, began_s = clock.thread_cpu_s(), time.thread_time()
    gc.collect()
    used_s, took_s = clock.thread_cpu_s(me) - before_s, time.thread_time() - began_s
    assert 0.0 <= used_s < 0.3 * took_s


class NoMeter:
    """What an iteration takes of memory is not looked at: that goes through all objects, too."""

    def measuring(self) -> AbstractContextManager[None]:
        return nullcontext()

    def usage(self) -> None:
        return None


def test_a_job_in_whose_iteration_one_falls_does_not_pay_for_it(many: list[list[int]]) -> None:
    backend = LaneBackend(infer_width=1, meter=NoMeter)
    lane = backend.open_lane("cam", role="infer", need=MemoryNeed(persistent_mib=1.0, ephemeral_mib=1.0))
    backend.set_shares({"cam": 1.5})
    with lane.iteration():
        took_s = collect_s()
    assert backend.ledger("cam").last().received_s < 0.3 * took_s
    backend.check()


def test_what_is_there_when_the_box_has_been_built_is_not_looked_at_again(many: list[list[int]]) -> None:
    before_s = min(collect_s() for _ in range(2))
    with kept_from_collections():
        assert gc.get_freeze_count() >= len(many)
        assert min(collect_s() for _ in range(2)) < 0.3 * before_s
    assert gc.get_freeze_count() == 0, "another box in this process is as the first one"


def test_what_is_set_aside_is_freed_when_nobody_holds_it() -> None:
    gone = threading.Event()

    class Held:
        def __del__(self) -> None:
            gone.set()

    held = Held()
    with kept_from_collections():
        del held
        assert gone.is_set()
