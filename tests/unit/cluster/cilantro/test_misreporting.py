"""Who lies about its performance: gains nothing under NJC, may gain under the welfare objectives, as published (card section 12).

Curves are straight up to the need, so what each objective gives is arithmetic: sw fills whoever needs least for its utility, ew gives
everybody the same part of its need, njc nobody more than the smaller of its need and its part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cilantro.experiment import Told, TrueJob, play
from cluster.cilantro.fairness import Node
from cluster.cilantro.fallbacks import Profiled
from cluster.cilantro.players import Learned, Misreported
from cluster.cilantro.policies import JobView, Objective, Settings, decide
from cluster.cilantro.types import Bounds, IntArray, Sample


def utility_of_first(objective: Objective, needs: list[int], total: int, factor: float) -> float:
    """What the first of these comes to in truth when it tells its performance times `factor`, and everybody else the truth."""
    units = np.arange(total + 1)
    curves = [np.minimum(1.0, (factor if j == 0 else 1.0) * np.minimum(1.0, units / need)) for j, need in enumerate(needs)]
    jobs = [JobView(id=f"j{j}", goal=1.0, curve=Bounds(low=c, middle=c, high=c), least=1) for j, c in enumerate(curves)]
    root = Node(name="", children=tuple(Node(name=job.id) for job in jobs))
    return min(1.0, decide(jobs, root, total, Settings(objective=objective)).units["j0"] / needs[0])


def test_sw_rewards_who_tells_too_much() -> None:
    """50 units, needs 60 and 40: truth fills the other first, 10 are left. Twice the truth looks like a need of 30."""
    assert utility_of_first("sw", [60, 40], 50, 1.0) == pytest.approx(10 / 60)
    assert utility_of_first("sw", [60, 40], 50, 2.0) == pytest.approx(30 / 60)


def test_ew_rewards_who_tells_too_little() -> None:
    """50 units, needs 60 and 40: half of each in truth. Half the truth looks like a need of 120: 120 t + 40 t = 50."""
    assert utility_of_first("ew", [60, 40], 50, 1.0) == pytest.approx(30 / 60)
    assert utility_of_first("ew", [60, 40], 50, 0.5) == pytest.approx(37.5 / 60, abs=0.02)
    assert utility_of_first("ew", [60, 40], 50, 2.0) < 30 / 60


def test_njc_costs_who_tells_too_much() -> None:
    """50 units, needs 20 and 40: all of 20 in truth. Twice the truth looks like a need of 10. Above its part it changes nothing."""
    assert utility_of_first("njc", [20, 40], 50, 1.0) == 1.0
    assert utility_of_first("njc", [20, 40], 50, 2.0) == pytest.approx(0.5)
    assert {utility_of_first("njc", [60, 40], 50, factor) for factor in (0.5, 1.0, 2.0)} == {25 / 60}


@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.floats(0.2, 5.0), st.integers(12, 60))
@settings(max_examples=150, deadline=None)
def test_nobody_gains_by_lying_under_njc(needs: list[int], factor: float, total: int) -> None:
    """But for the unit that rounding may move."""
    assert utility_of_first("njc", needs, total, factor) <= utility_of_first("njc", needs, total, 1.0) + 1.01 / needs[0]


# --- learned ----------------------------------------------------------------------------------------------------------


def job(name: str, need: float, rounds: int) -> TrueJob:
    """At a load of 10 it reaches its goal with `need` units."""
    loads = np.full(rounds * 12, 10.0)
    curve = Profiled.of([(0.0, 0.0), (need / 10, 0.9), (1.2 * need / 10, 1.0)])
    return TrueJob(
        id=name, workload=name, goal=0.9, shape="linear", curve=curve, loads=loads, throughput=False, slope=1.0, x_max=100.0
    )


def learned(objective: Objective, factor: float, needs: tuple[float, ...], rounds: int = 14) -> float:
    """The same with learned curves and noise: mean of the later rounds."""
    jobs = [job(f"j{j}", need, rounds) for j, need in enumerate(needs)]
    honest = Learned(jobs=jobs, settings=Settings(objective=objective), total=50)
    policy = Misreported(policy=honest, liar=jobs[0], number=0, factor=factor)
    true = play(jobs, policy, total=50, rounds=rounds, seed=4).true[6:, 0]
    return float(np.minimum(1.0, true / 0.9).mean())


def test_learned_policies_answer_lies_as_known_curves_do() -> None:
    assert learned("sw", 2.0, (60, 40)) > learned("sw", 1.0, (60, 40)) + 0.1
    assert learned("ew", 0.5, (60, 40)) > learned("ew", 1.0, (60, 40)) + 0.03
    for needs in ((60, 40), (20, 40)):
        truth = learned("njc", 1.0, needs)
        assert max(learned("njc", factor, needs) for factor in (0.5, 2.0)) <= truth + 0.01
    assert learned("njc", 2.0, (20, 40)) < learned("njc", 1.0, (20, 40)) - 0.2


def test_a_lie_stays_a_fraction_and_touches_nobody_else() -> None:
    class Heard:
        told: tuple[Told, ...] = ()

        def units(self, round_index: int, told: tuple[Told, ...]) -> IntArray:
            self.told = tuple(told)
            return np.array([1, 1])

    heard, liar = Heard(), job("a", 20, 1)
    said = Misreported(policy=heard, liar=liar, number=0, factor=2.0)  # type: ignore[arg-type]
    news = Told(
        samples=(Sample(alloc=1, load=10, value=0.3, sigma=0.1), Sample(alloc=1, load=10, value=0.8, sigma=0.1)),
        value=0.55,
        load=10,
    )
    silent = Told(samples=(), value=float("nan"), load=float("nan"))
    said.units(1, [news, news])
    assert [sample.value for sample in heard.told[0].samples] == [0.6, 1.0]
    assert heard.told[0].value == 1.0
    assert heard.told[1] == news
    said.units(2, [silent, silent])
    assert np.isnan(heard.told[0].value)
