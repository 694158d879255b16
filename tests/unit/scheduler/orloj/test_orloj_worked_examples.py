"""O1 to O7 of the card, exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from scheduler.orloj.law import BatchLaw, Law, batch_law, expected_longest, longest, mixture
from scheduler.orloj.policy import printed_choice
from scheduler.orloj.score import ScoreTable, score, score_steps


def law(edges: list[float], mass: list[float]) -> Law:
    return Law(edges=np.array(edges, float), mass=np.array(mass, float))


UNIFORM, NARROW = law([0, 10], [1]), law([4, 8], [1])
O3 = law([10, 20, 40, 100], [0.5, 0.3, 0.2])
O4 = law([2, 4, 8], [0.5, 0.5])
O5 = law([2, 4, 16, 20], [0.9, 0.0, 0.1])


@pytest.mark.parametrize(("k", "expected"), [(1, 5.0), (2, 20 / 3), (4, 8.0), (8, 80 / 9)])
def test_o1_the_longest_of_uniform_ones(k: int, expected: float) -> None:
    assert UNIFORM.expected_max(k) == pytest.approx(expected, rel=1e-12)
    assert expected_longest([UNIFORM] * k) == pytest.approx(expected, rel=1e-12)


def test_o1_a_batch() -> None:
    assert batch_law(UNIFORM, 4, 2.0, 0.3).expected == pytest.approx(11.6, rel=1e-12)


def test_o2_the_longest_of_different_ones() -> None:
    assert expected_longest([UNIFORM, NARROW]) == pytest.approx(103 / 15, rel=1e-12)
    assert expected_longest([UNIFORM] * 2) == pytest.approx(20 / 3, rel=1e-12)
    assert expected_longest([NARROW] * 2) == pytest.approx(20 / 3, rel=1e-12)
    assert mixture([UNIFORM, NARROW], [1, 1]).expected_max(2) == pytest.approx(203 / 30, rel=1e-12)


@pytest.mark.parametrize(("k", "expected"), [(1, Fraction(61, 2)), (2, Fraction(1253, 30)), (4, Fraction(277917, 5000))])
def test_o3_a_histogram(k: int, expected: Fraction) -> None:
    assert O3.expected_max(k) == pytest.approx(float(expected), rel=1e-12)


def test_o3_its_batch_and_what_binning_anew_would_lose() -> None:
    batch = batch_law(O3, 2, 5.0, 0.4)
    assert batch.law.edges == pytest.approx([13, 21, 37, 85])
    assert batch.law.mass == pytest.approx([1 / 4, 39 / 100, 9 / 25])
    assert batch.expected == pytest.approx(2881 / 75, rel=1e-12)
    assert batch.law.mean() == pytest.approx(938 / 25, rel=1e-12)  # evenly spread inside the bins: low


O4_SCORES = {20: 0.047915, 12: 0.106636, 8: 0.159082, 6: 0.132803, 4: 0.100705, 3: 0.052868, 2: 0.0, 1: 0.0, -5: 0.0}
O4_SLOW = {20: 0.22187805, 12: 0.22205562, 8: 0.22214446, 6: 0.16662778, 4: 0.11110000}


@pytest.mark.parametrize(("scores", "b", "within"), [(O4_SCORES, 0.1, 5e-7), (O4_SLOW, 1e-4, 5e-9)])
def test_o4_scores_by_slack(scores: dict[float, float], b: float, within: float) -> None:
    slack = np.array(list(scores), float)
    told = list(scores.values())
    assert score(O4, 4.5, slack, b=b) == pytest.approx(told, abs=within)
    assert ScoreTable(BatchLaw(size=1, law=O4, expected=4.5), b).at(slack) == pytest.approx(told, abs=within)


@pytest.mark.parametrize(
    ("deadline", "point"), [(12, (0.106636, 0.0)), (7, (-0.131179, 0.277778)), (3.5, (-0.478171, 0.555556))]
)
def test_o4_between_milestones_a_score_is_alpha_x_plus_beta(deadline: float, point: tuple[float, float]) -> None:
    """The points of the convex hull that we do without: the milestones are where (alpha, beta) changes, and nowhere else."""
    alpha, beta = point
    milestones = [deadline - edge for edge in (8, 4, 2)]
    until = min(m for m in milestones if m > 0)
    for t in (0.0, 0.3 * until, until):
        assert score(O4, 4.5, deadline - t, b=0.1) == pytest.approx(alpha * math.exp(0.1 * t) + beta, abs=2e-6)
    after = until + 0.5
    assert abs(score(O4, 4.5, deadline - after, b=0.1) - (alpha * math.exp(0.1 * after) + beta)) > 1e-4


@pytest.mark.parametrize(("b", "order"), [(1e-4, [20, 60, 5]), (1e-3, [20, 60, 5]), (0.01, [5, 20, 60]), (0.1, [5, 20, 60])])
def test_o5_the_order_depends_on_b(b: float, order: list[float]) -> None:
    slack = np.array([5.0, 20.0, 60.0])
    assert list(slack[np.argsort(-score(O5, 4.5, slack, b=b))]) == order


def test_o5_the_order_flips_where_the_card_says() -> None:
    def first(b: float) -> float:
        return [5.0, 20.0][int(np.argmax(score(O5, 4.5, np.array([5.0, 20.0]), b=b)))]

    assert first(0.00784) == 20.0
    assert first(0.00786) == 5.0


def test_o6_three_deadlines() -> None:
    parts = [float(score(O4, 4.5, d, b=0.1, penalty=c)) for d, c in ((10, 1), (20, 2), (30, 1))]
    assert parts == pytest.approx([0.130246, 0.095829, 0.017627], abs=5e-7)
    assert score_steps(O4, 4.5, 0.0, [(10, 1), (20, 3), (30, 4)], b=0.1) == pytest.approx(0.243702, abs=5e-7)


O7_EST, O7_SIZES = np.array([5.0, 8.0, 14.0]), (1, 2, 4)
O7_DEADLINES = np.array([7.0, 9.0, 15.0, 16.0, 40.0])  # r1 to r5


def prose_choice(deadline_s: np.ndarray, est_s: np.ndarray, sizes: tuple[int, ...], now_s: float) -> int:
    """The card's prose, not served with: the queue that holds the most urgent deadline, of several the largest size that it fills."""
    queues = {size: deadline_s[deadline_s >= now_s + est] for size, est in zip(sizes, est_s, strict=True)}
    filled = {size: queue[0] for size, queue in queues.items() if len(queue) >= size}
    return max(size for size, first in filled.items() if first == min(filled.values()))


@pytest.mark.parametrize(("size", "members"), [(1, [1, 2, 3, 4, 5]), (2, [2, 3, 4, 5]), (4, [3, 4, 5])])
def test_o7_who_waits_in_which_queue(size: int, members: list[int]) -> None:
    est = O7_EST[[O7_SIZES.index(size)]]
    chosen = printed_choice(O7_DEADLINES, est, (1,), 0.0)  # its queue, where only one is needed to fill it
    assert chosen is not None
    assert list(range(chosen[1] + 1, len(O7_DEADLINES) + 1)) == members


@pytest.mark.parametrize(("left_out", "printed", "prose"), [(0, 2, 1), (1, 2, 2)])
def test_o7_the_printed_and_the_prose_rule(left_out: int, printed: int, prose: int) -> None:
    """They part where one request is tight: size 4 has three of four, and only size 1 can still save r1."""
    deadlines = O7_DEADLINES[left_out:]
    chosen = printed_choice(deadlines, O7_EST, O7_SIZES, 0.0)
    assert chosen is not None
    assert deadlines[chosen[1]] == 9.0  # r2 is the first of size 2's queue
    assert O7_SIZES[chosen[0]] == printed
    assert prose_choice(deadlines, O7_EST, O7_SIZES, 0.0) == prose


def test_o7_nobody_waits() -> None:
    assert printed_choice(O7_DEADLINES[:0], O7_EST, O7_SIZES, 0.0) is None


def test_different_laws_make_the_longest_by_their_product() -> None:
    found = longest([UNIFORM, NARROW])
    assert found.edges == pytest.approx([0, 4, 8, 10])
    assert found.mass == pytest.approx([0.0, 0.8, 0.2])
