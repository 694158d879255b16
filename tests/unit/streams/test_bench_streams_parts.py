"""What `bench streams` measures with: times in pixels that survive an encoder, and CPU time inside a function."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from streams.encode import write_video
from streams.video import read_frames
from tests.support.scripts import benchmark


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        yield benchmark("bench_streams", patch)


def test_a_time_in_pixels_survives_the_encoder_and_the_microseconds_with_it(bench: ModuleType, tmp_path: Path) -> None:
    times_s = [0.0, 1.000001, 12345.678901, 2.0**27, 4_000_000.123456]
    rng = np.random.default_rng(1)

    def picture(at_s: float) -> np.ndarray:
        image = rng.integers(0, 255, (360, 640, 3), np.uint8)
        bench.write_time(image, at_s)
        return image

    write_video(tmp_path / "t.mp4", (picture(at_s) for at_s in times_s), fps=5)
    found = [bench.read_time(image) for _, image in read_frames(tmp_path / "t.mp4")]
    assert found == pytest.approx(times_s, abs=2e-6)


def test_time_inside_a_function_is_summed_over_threads(bench: ModuleType) -> None:
    useful = bench.Useful()

    def work(until_s: float) -> str:
        started_s = time.thread_time()
        while time.thread_time() - started_s < until_s:
            pass
        return "done"

    timed = useful(work)
    threads = [threading.Thread(target=timed, args=(0.02,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(0.05)  # outside
    assert timed(0.01) == "done"
    assert 0.07 <= useful.total_s() < 0.12


def test_bare_libav_decodes_every_picture_it_is_asked_for(bench: ModuleType, tmp_path: Path) -> None:
    write_video(tmp_path / "t.mp4", (np.full((48, 64, 3), 9 * k, np.uint8) for k in range(10)), fps=5)
    used_s, pictures = bench.bare(str(tmp_path / "t.mp4"), {}, seconds=5, fps=5, paced=False)
    assert pictures == 25, "the file begins again"
    assert used_s > 0


def test_the_bound_is_what_the_cores_can_do_with_nothing_else_to_do(bench: ModuleType) -> None:
    assert bench.bound_of(1.0, 1.0, 2) == pytest.approx(200.0)  # 5 fps: 10 ms of each camera's second
    assert bench.bound_of(0.5, 1.5, 1) == pytest.approx(100.0)
