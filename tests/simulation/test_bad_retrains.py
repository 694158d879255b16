"""No poisoned, broken or wrong model gets through the real gate (a small part of `tests/benchmarks/bad_retrains.py`)."""

from __future__ import annotations

import numpy as np
import pytest

from models.tinydet import load_bundled
from tests.benchmarks import bad_retrains

pytestmark = pytest.mark.slow


def test_no_bad_retraining_is_taken_live() -> None:
    answer = bad_retrains.run(60, trainings=2, seed=7)
    assert answer["tries"] == 60
    assert answer["worst"] == []
    assert len(answer["by_kind"]) == 12, "every kind was tried"


def test_a_good_retraining_gets_through_the_same_gate() -> None:
    """Else the figure above would be worth nothing."""
    serving = bad_retrains.Remembered(load_bundled(bad_retrains.EDGE))
    shots = bad_retrains.scene("day")[:16]
    weak = bad_retrains.Weaker(serving, 0.6)
    assert bad_retrains.true_f1(shots, serving) > bad_retrains.true_f1(shots, weak) + 0.3
    assert bad_retrains.is_taken(shots, weak, serving, 0.3)
    assert not bad_retrains.is_taken(shots, serving, weak, 0.3)


def test_a_dead_model_is_not_taken_where_there_is_nothing_to_find() -> None:
    """It makes no false alarms there: on empty frames it looks perfect."""
    from scheduler.types import Detections

    empty = [
        bad_retrains.Shot(name=str(n), image=shot.image, truth=Detections.empty())
        for n, shot in enumerate(bad_retrains.scene("day")[:16])
    ]
    serving = bad_retrains.Remembered(load_bundled(bad_retrains.EDGE))
    dead = bad_retrains.Remembered(
        bad_retrains.Answers(load_bundled(bad_retrains.EDGE), bad_retrains.ANSWERS["nothing at all"])
    )
    assert bad_retrains.true_f1(empty, serving) < bad_retrains.true_f1(empty, dead) == 1.0
    assert not bad_retrains.is_taken(empty, serving, dead, 0.3)


def test_the_poisons_are_poison() -> None:
    day = bad_retrains.scene("day")
    good = bad_retrains.true_f1(day, load_bundled(bad_retrains.EDGE))
    for how in bad_retrains.BROKEN:
        assert bad_retrains.true_f1(day, bad_retrains.broken(how)) < 0.2 < good
    rng = np.random.default_rng(0)
    one = bad_retrains.LabelledImage(image=day[0].image, labels=day[0].truth)
    for poison in bad_retrains.POISONS.values():
        wrong = poison(one, [bad_retrains.LabelledImage(image=s.image, labels=s.truth) for s in day[1:5]], rng)
        assert bad_retrains.match_counts(wrong, day[0].truth).f1 < 0.7
