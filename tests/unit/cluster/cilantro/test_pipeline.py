"""Stages of one application: the process behind, and that it finds a better split than the baselines."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from cluster.cilantro.gp import GaussianProcess, matern
from cluster.cilantro.pipeline import StageRound, StageSettings, baseline_units, next_units
from cluster.cilantro.types import IntArray

WORK = np.array([1.0, 2.0, 8.0, 6.0])
TOTAL = 40
FEW = StageSettings(least=3, iterations=400)


def play(choose: Callable[[list[StageRound]], IntArray], rounds: int = 20) -> tuple[float, list[StageRound]]:
    """(mean latency over the later rounds, history)."""
    rng, history, later = np.random.default_rng(2), list[StageRound](), []
    for index in range(rounds):
        units = choose(history)
        assert units.sum() <= TOTAL
        assert units.min() >= 3
        latency = float((WORK / units).sum())
        later += [latency] if index >= 10 else []
        value = -latency * float(1 + 0.02 * rng.normal())
        history.append(StageRound(units=tuple(int(u) for u in units), load=3000.0 + index, value=value))
    return (float(np.mean(later)) if later else 0.0), history


def test_finds_a_better_split_than_every_baseline() -> None:
    learned, _ = play(lambda h: next_units(h, stages=4, total=TOTAL, load=3000.0, seed=1, settings=FEW))
    others = {
        name: play(lambda h, name=name: baseline_units(name, h, stages=4, total=TOTAL, seed=1))[0]  # type: ignore[misc]
        for name in ("resource-fair", "eps-greedy", "evoalg")
    }
    assert learned < min(others.values())
    best = float(np.sqrt(WORK).sum() ** 2 / TOTAL)
    assert learned < best + 0.5 * (others["resource-fair"] - best)


def test_the_first_rounds_and_the_box() -> None:
    boxed = StageSettings(least=3, box=2, iterations=200)
    _, history = play(lambda h: next_units(h, stages=4, total=TOTAL, load=3000.0, seed=1, settings=boxed), rounds=8)
    assert [h.units for h in history[:2]] == [(10, 10, 10, 10)] * 2
    for before, after in zip(history, history[1:], strict=False):
        assert max(abs(a - b) for a, b in zip(before.units, after.units, strict=True)) <= 2


def test_the_same_history_gives_the_same_answer() -> None:
    _, history = play(lambda h: baseline_units("eps-greedy", h, stages=4, total=TOTAL, seed=3), rounds=6)
    one, two = (next_units(history, stages=4, total=TOTAL, load=3000.0, seed=1, settings=FEW) for _ in range(2))
    assert one.tolist() == two.tolist()


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="stages"):
        next_units([], stages=4, total=10, load=1.0, seed=0)
    with pytest.raises(ValueError, match="stages"):
        next_units([StageRound(units=(9, 9), load=1, value=0)], stages=4, total=40, load=1.0, seed=0)


# --- the process ------------------------------------------------------------------------------------------------------


def test_matern_by_hand() -> None:
    """(1 + s + s^2/3) exp(-s) at s = sqrt 5: (1 + 2.2361 + 1.6667) 0.10688 = 0.52399."""
    assert matern(np.array([[0.0]]), np.array([[0.0], [1.0]]), 1.0)[0].tolist() == pytest.approx([1.0, 0.52399], abs=1e-4)


def test_the_process_learns_a_surface_and_knows_where_it_does_not() -> None:
    rng = np.random.default_rng(5)
    inputs = rng.uniform(0, 3, (120, 3))

    def truth(x: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.sin(x[:, 0]) + 0.3 * x[:, 1] ** 2 - x[:, 2]

    values = truth(inputs) + 0.02 * rng.normal(size=120)
    model = GaussianProcess().updated(list(zip(inputs.tolist(), values.tolist(), strict=True)))
    asked = rng.uniform(0.5, 2.5, (50, 3))
    mean, sd = model.predict(asked)
    assert np.abs(mean - truth(asked)).mean() < 0.1
    assert model.predict(np.array([[30.0, 30.0, 30.0]]))[1][0] > 3 * sd.mean()


def test_the_process_is_a_value_that_goes_through_json() -> None:
    empty = GaussianProcess()
    assert empty.predict(np.zeros((2, 3)))[1].tolist() == [1.0, 1.0]
    model = empty.updated([((1.0, 2.0), 3.0), ((1.0, float("nan")), 1.0), ((2.0, 2.0), float("inf")), ((2.0, 1.0), 4.0)])
    assert len(model.points) == 2
    assert empty.points == ()
    again = GaussianProcess.from_dict(json.loads(json.dumps(model.as_dict())))
    assert np.array_equal(again.predict(np.ones((1, 2)))[0], model.predict(np.ones((1, 2)))[0])


def test_one_point_and_equal_points_are_no_trouble() -> None:
    model = GaussianProcess().updated([((1.0,), 2.0)] * 5)
    assert model.predict(np.array([[1.0], [9.0]]))[0].tolist() == pytest.approx([2.0, 2.0])
