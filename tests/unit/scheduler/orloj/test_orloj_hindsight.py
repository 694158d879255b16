"""What could have been finished by whoever had known everything beforehand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.orloj.hindsight import least_s, most_in_time, possible
from scheduler.orloj.registry import POLICIES, make_batch_policy
from scheduler.orloj.simulate import Job, Stage, World, simulate
from scheduler.orloj.types import ModelCost

CASCADE = {"detect": ModelCost(c0_s=0.2, c1=0.5, sizes=(1, 2, 4)), "classify": ModelCost(c0_s=0.1, c1=0.4, sizes=(1, 2, 4, 8))}


def drawn(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whole numbers, so that ends and deadlines meet exactly."""
    rng = np.random.default_rng(seed)
    released_s = np.sort(rng.integers(0, 14, n)).astype(float)
    return released_s, released_s + float(rng.integers(2, 10)), rng.integers(1, 7, n).astype(float)


def by_trying(released_s: np.ndarray, deadline_s: np.ndarray, work_s: np.ndarray) -> int:
    """The largest subset that is in time in order of deadlines."""
    for size in range(len(work_s), 0, -1):
        for chosen in itertools.combinations(range(len(work_s)), size):
            end_s, fits = 0.0, True
            for i in chosen:
                end_s = max(end_s, float(released_s[i])) + float(work_s[i])
                fits = fits and end_s <= deadline_s[i]
            if fits:
                return size
    return 0


@settings(max_examples=150)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 9))
def test_it_is_the_best_of_all_subsets(seed: int, n: int) -> None:
    assert most_in_time(*drawn(seed, n)) == by_trying(*drawn(seed, n))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_more_time_never_hurts_and_the_order_of_the_jobs_does_not_matter(seed: int) -> None:
    released_s, deadline_s, work_s = drawn(seed, 40)
    found = most_in_time(released_s, deadline_s, work_s)
    assert most_in_time(released_s, deadline_s + 1, work_s) >= found
    mixed = np.random.default_rng(seed).permutation(40)
    assert most_in_time(released_s[mixed], deadline_s[mixed], work_s[mixed]) == found


def test_after_an_idle_moment_nothing_earlier_is_given_up() -> None:
    """The long one at 0 is over before 10; of the two that come then only one has time."""
    assert most_in_time(np.array([0.0, 10.0, 10.0]), np.array([9.0, 12.0, 12.0]), np.array([8.0, 2.0, 2.0])) == 2


def test_an_earlier_release_with_a_later_deadline_is_refused() -> None:
    with pytest.raises(ValueError, match="wanted later"):
        most_in_time(np.array([0.0, 1.0]), np.array([9.0, 5.0]), np.array([1.0, 1.0]))


def test_nothing_is_asked() -> None:
    nothing = np.empty(0)
    assert most_in_time(nothing, nothing, nothing) == 0


def test_a_requests_part_of_a_batch_is_never_less() -> None:
    cost = CASCADE["classify"]
    rng = np.random.default_rng(5)
    for size in cost.sizes:
        alone_s = rng.uniform(0.1, 2.0, size)
        batch_s = cost.c0_s + cost.c1 * size * alone_s.max()
        assert sum(least_s(cost, float(one)) for one in alone_s) <= batch_s + 1e-12


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**31))
def test_no_policy_finishes_more(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = tuple(
        Job(
            app="a",
            released_s=float(t),
            deadline_s=float(t) + 3.0,
            stages=(
                Stage(model="detect", alone_s=(float(rng.uniform(0.2, 1.0)),)),
                Stage(model="classify", alone_s=tuple(rng.uniform(0.1, 0.6, rng.integers(0, 6)).tolist())),
            ),
        )
        for t in np.sort(rng.uniform(0, 12, 25))
    )
    world = World(costs=CASCADE, told={("detect", "a"): (0.6,) * 10, ("classify", "a"): (0.3,) * 10})
    assert simulate(make_batch_policy(name), world, jobs).finished <= possible(world, jobs) <= len(jobs)
