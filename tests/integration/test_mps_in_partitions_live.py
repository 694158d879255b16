"""Static partitions of MPS with real processes on the CPU and the stand-in for NVIDIA's control program."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edge.gpu.mps import REFUSED_MAX
from edge.gpu.mps_daemon import ServerState
from edge.gpu.remote import WorkerLost
from tests.support import remote_models as rm
from tests.support.mps_bench import WAIT_S, Bench, Place, frames, keep_gain, until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]

Make = Callable[..., Bench]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("edge.gpu.mps.keep", keep_gain)
    with ExitStack() as over:

        def bench(flaws: str = "", **settings: Any) -> Bench:
            monkeypatch.setenv("FAKE_MPS", flaws)
            made = Bench(
                Path(over.enter_context(tempfile.TemporaryDirectory(prefix="mps", dir="/tmp"))), static="on", **settings
            )
            over.callback(ended, made)
            return made

        yield bench


def ended(bench: Bench) -> None:
    bench.backend.close()
    assert bench.daemon.state() is ServerState.GONE
    assert not any(worker.alive for worker in bench.made)


def chunks(bench: Bench) -> list[int]:
    """Of all partitions, as the daemon lists them."""
    return sorted(row.chunks for row in bench.daemon.partitions().rows)


def rooms(bench: Bench) -> list[int]:
    """The same, as the backend knows them: nobody is asked, so that frames can come as fast as they do."""
    static = bench.backend._static
    return [] if static is None else sorted(room.groups for room in static.rooms())


def told(bench: Bench) -> list[str]:
    return [fault.text for fault in bench.backend.faults()]


def test_a_new_share_is_a_new_partition_and_the_old_one_goes_when_it_has_drained(make: Make) -> None:
    bench = make()
    place = Place(bench, 30.0)
    for _ in range(3):
        place.frame()
    assert (chunks(bench), bench.pcts()) == ([5], {bench.made[0].pid: 31.25})
    bench.share(**{"cam1/infer": 40.0})
    place.frames_until(lambda: place.serving() is not place.first)
    place.frames_until(lambda: rooms(bench) == [7])
    assert chunks(bench) == [7]
    assert list(bench.pcts().values()) == [43.75]
    assert (place.worker.frames, place.worker.errors, place.worker.last_error) == (place.seq, 0, "")
    assert not any("static partitions" in text for text in told(bench))


def test_shares_that_do_not_fit_beside_those_there_are_come_about_by_a_detour(make: Make) -> None:
    bench = make()
    one, two = Place(bench, 50.0, "cam1"), Place(bench, 50.0, "cam2")
    for place in (one, two):
        place.frame()
    assert chunks(bench) == [8, 8]
    bench.share(**{"cam1/infer": 20.0, "cam2/infer": 80.0})

    def come_about() -> bool:
        two.frame()
        static = bench.backend._static
        assert static is not None
        return rooms(bench) == [3, 13] and all(len(room.jobs) == 1 for room in static.rooms())

    one.frames_until(come_about, 5 * WAIT_S)  # a standby each for five moves
    assert bench.daemon.static
    for place in (one, two):
        assert (place.worker.frames, place.worker.errors, place.worker.last_error) == (place.seq, 0, "")
    assert chunks(bench) == rooms(bench)
    assert sum(bench.pcts().values()) == 100.0, "everybody has its own"
    assert not any("static partitions" in text for text in told(bench))


def test_a_standby_whose_partition_is_refused_leaves_the_old_process_and_in_the_end_there_are_percentages(make: Make) -> None:
    bench = make("no-add-more")
    place = Place(bench, 30.0)
    place.frame()
    bench.share(**{"cam1/infer": 60.0})
    for number in range(REFUSED_MAX - 1):
        place.frames_until(lambda number=number: len(told(bench)) > number)  # type: ignore[misc]
        assert "does not go on in another process" in told(bench)[-1]
        assert "Failed to fulfill" in told(bench)[-1]
        assert place.serving() is place.first, "it goes on where it is"
        bench.backend._retry_s.clear()
        bench.backend._wake.set()
    assert until(lambda: any("static partitions cannot be used" in text for text in told(bench)))
    assert not bench.daemon.static

    place.frame()
    assert set(bench.pcts().values()) == {60.0}


def test_a_daemon_without_partitions_keeps_shares_by_percentages(make: Make) -> None:
    bench = make("old")
    detector, lane = bench.serve("cam1/infer", 30.0)
    frames(detector, lane, 3)
    assert bench.pcts() == {bench.made[0].pid: 30.0}
    assert "they came with CUDA 13.1" in told(bench)[0]


@pytest.mark.parametrize("flaws", ["no-static", "no-chunks", "no-add"])
def test_whatever_the_daemon_cannot_do_the_first_frame_comes(make: Make, flaws: str) -> None:
    bench = make(flaws)
    detector, lane = bench.serve("cam1/infer", 30.0)
    frames(detector, lane, 3)
    assert bench.pcts() == {bench.made[0].pid: 30.0}
    (text,) = told(bench)
    assert text.startswith("static partitions cannot be used")


def test_a_fault_on_the_device_ends_all_processes_and_all_come_back_in_partitions(make: Make) -> None:
    bench = make()
    faulty, faulty_lane = bench.serve("bad/infer", 30.0)
    other, other_lane = bench.serve("cam2/infer", 30.0)
    frames(faulty, faulty_lane, 1)
    frames(other, other_lane, 1)
    with pytest.raises(WorkerLost) as caught, faulty_lane.iteration():
        faulty.predict([rm.picture(rm.FAULT)])
    assert caught.value.poisoned
    frames(other, other_lane, 2)
    frames(faulty, faulty_lane, 2)
    assert chunks(bench) == [5, 5]
    (text,) = told(bench)
    assert "illegal memory access" in text


def test_a_process_that_is_killed_leaves_its_partition_to_its_successor(make: Make) -> None:
    bench = make()
    detector, lane = bench.serve("cam1/infer", 30.0)
    frames(detector, lane, 1)
    bench.made[0].kill()
    frames(detector, lane, 2)
    assert until(lambda: chunks(bench) == [5])
    assert list(bench.pcts()) == [bench.made[1].pid]
