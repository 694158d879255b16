"""No poisoned, broken or wrong lesson of several cameras is taken by who loses (a small part of `tests/benchmarks/bad_lessons.py`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.tinydet import load_bundled
from tests.benchmarks import bad_lessons, bad_retrains

pytestmark = pytest.mark.slow


def test_none_of_some_bad_lessons_is_taken() -> None:
    answer = bad_lessons.run(20, trainings=2, cameras=5, seed=7)
    assert answer["tries"] == 20
    assert answer["taken"] == 0, answer["worst"]
    assert len(answer["by_kind"]) > 5


@pytest.mark.parametrize("seed", [5, 6, 7, 8])
def test_a_good_one_is_taken_by_all_who_win_much_by_it_and_a_bad_one_by_nobody(seed: int) -> None:
    """Who wins little, or sees a frame or two with next to nothing on them, may wait for more (`scheduler.admission.SEEING`)."""
    serving = bad_retrains.Remembered(load_bundled(bad_retrains.EDGE))
    judges = bad_lessons.cameras_of(np.random.default_rng(seed), serving, 8)
    weak = [bad_retrains.Weaker(serving, 0.7)] * 8
    strong = [replace(judge, serving=bad_retrains.Weaker(serving, 0.0)) for judge in judges]
    poor = [replace(judge, serving=bad_retrains.Weaker(serving, 0.7)) for judge in judges]
    assert not any(bad_lessons.taken_by(strong, weak))
    much = [camera.gain(serving) > 0.4 for camera in poor]
    took = bad_lessons.taken_by(poor, [serving] * 8)
    assert all(taken for taken, wins in zip(took, much, strict=True) if wins)
    assert any(took)


def test_a_camera_whose_gate_throws_judges_nothing() -> None:
    serving = bad_retrains.Remembered(load_bundled(bad_retrains.EDGE))
    (judge,) = bad_lessons.cameras_of(np.random.default_rng(1), serving, 1)
    broken = bad_retrains.Answers(load_bundled(bad_retrains.EDGE), bad_retrains.ANSWERS["throws"])
    assert not judge.seen(broken).tells()
