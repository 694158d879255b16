"""A hundred swaps of real models from disk: no frame missed, memory flat, two models in memory and never more.

The clock is the test's, so nothing is timed; `driftbox bench swap` measures the same with real time and a real camera."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from edge.clock import FakeClock
from edge.inference import InferenceWorker
from edge.shadow import ShadowRules
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.swapping import Swapper
from models.tinydet import TinyDetector
from scheduler.commands import SwapModel
from scheduler.types import RetrainConfig
from tests.support.fakes import FreeLane, StillCamera

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning")]

SWAPS, INTERVAL_S = 100, 0.2


def rss_mib() -> float:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def alive() -> int:
    gc.collect()
    return sum(isinstance(thing, TinyDetector) for thing in gc.get_objects())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_hundred_swaps_miss_no_frame_and_leave_no_memory_behind(tmp_path: Path) -> None:
    clock, camera = FakeClock(), StillCamera("a")
    before = alive()
    with DataFolder(tmp_path / "data") as folder, Store(folder.db_path) as store:
        shelf = Shelf(folder, store, clock)
        first = shelf.ensure("a", "tinydet-edge").id
        others = [
            shelf.keep_candidate(
                "a", parent=first, detector=shelf.detector(first), config=RetrainConfig(name="same"), window=0
            ).id
            for _ in range(3)
        ]
        worker = InferenceWorker(camera, FreeLane(), shelf.detector(first), first, clock=clock, score_min=0.25)
        swapper = Swapper(
            shelf=shelf, store=store, clock=clock, serve=lambda model, _: model, serve_later=lambda model, _: model,
            rules=ShadowRules(),
        )  # fmt: skip
        at_s, seq, memory = 0.0, 0, []

        def frame() -> None:
            nonlocal at_s, seq
            at_s, seq = at_s + INTERVAL_S, seq + 1
            clock.advance_to(at_s)
            camera.show(seq, at_s=at_s)
            worker.step()

        frame()
        frame()
        for number in range(SWAPS):
            version = others[number % 3]
            swapper.take_over(worker, SwapModel(stream="a", version=version, quality=None))
            frame()
            shown = worker.shown()
            assert shown is not None
            assert (shown.version, shown.frame.seq) == (version, seq)
            assert store.serving()["a"].id == version
            if number % 20 == 19:
                assert alive() - before <= 2, "the one that serves and the one before it"
                memory.append(rss_mib())
        assert worker.frames == seq
        assert sum(record.missed_frames for record in worker.swaps) == 0
        assert len(worker.swaps) == worker.swaps.maxlen
        store.check()
    # After the first twenty, what a hundred swaps may add is less than one model of a few MiB each would.
    assert memory[-1] - memory[0] < 25.0, memory
