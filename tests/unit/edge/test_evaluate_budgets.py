"""What a profiling budget buys in virtual time: the order in which the live micro-profiler spends it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edge import jobs
from edge.costs import CostProfile
from edge.evaluate.world import KEPT_COST_FRAC, affordable_epochs, profiling_gpu_s
from models.fake import FakeDetector
from models.microprofile_run import Trials
from scheduler.ekya.microprofile import families
from scheduler.types import RetrainConfig
from tests.support.evaluation import COSTS, OPTIONS
from tests.support.memory_samples import MemorySamples

PROFILE = CostProfile(**COSTS, source="test")  # type: ignore[arg-type]
Bought = tuple[list[tuple[RetrainConfig, int]], float]
CONFIGS = (
    RetrainConfig(name="all", epochs=6, batch=4, lr=0.05),
    RetrainConfig(name="all-short", epochs=2, batch=4, lr=0.05),
    RetrainConfig(name="head", epochs=4, batch=4, lr=0.05, layers_frac=0.3),
)


TRIED = Trials(configs=families(CONFIGS), epochs=3, data_frac=0.5)


def affordable(budget_gpu_s: float, n_train: int = 40, n_holdout: int = 8, tried: Trials = TRIED) -> Bought:
    return affordable_epochs(tried, PROFILE, n_train, n_holdout, budget_gpu_s=budget_gpu_s)


def test_a_large_budget_buys_every_epoch_of_every_family() -> None:
    bought, spent = affordable(1e9)
    assert [(c.name, n) for c, n in bought] == [("all", 3), ("head", 3)]
    assert spent == profiling_gpu_s(CONFIGS, PROFILE, 40, 8, epochs=3, data_frac=0.5)
    # The serving model once, two starts, then three epochs each: 20 frames trained, 8 judged.
    assert abs(spent - (0.16 + 0.6 + 3 * (20 * 0.1 + 0.16) + 3 * (20 * 0.05 + 0.16))) < 1e-9


def test_families_advance_together_and_one_without_an_epoch_is_left_out() -> None:
    bought, _ = affordable(0.8)
    assert [(c.name, n) for c, n in bought] == [("all", 1)], "start-up took 0.76, one epoch began"
    bought, _ = affordable(2.93)
    assert [(c.name, n) for c, n in bought] == [("all", 1), ("head", 1)]
    assert affordable(0.0)[0] == []
    assert affordable(1e9, 0, 8) == ([], 0.0)
    assert affordable(1e9, 12, 0) == ([], 0.0)


def test_trials_that_lend_pay_for_each_picture_once() -> None:
    """Two heads, five epochs: the smaller one's pictures are among the larger one's, and all are judged by the same."""
    head = CONFIGS[2]
    tried = Trials(configs=(replace(head, name="half", data_frac=0.5), head), epochs=5, data_frac=1.0, lending=True)
    bought, spent = affordable(1e9, tried=tried)
    assert [(c.name, n) for c, n in bought] == [("half", 5), ("head", 5)]
    first, again = 40 * 0.05, (5 * (20 + 40) - 40) * 0.05 + 10 * 0.16
    assert abs(spent - (0.16 + 0.6 + first + KEPT_COST_FRAC * again)) < 1e-9
    plain = affordable(1e9, tried=replace(tried, lending=False))[1]
    assert abs(plain - (0.16 + 0.6 + first + again)) < 1e-9


@given(st.floats(0, 20), st.floats(0, 20))
def test_more_budget_never_buys_less(one: float, other: float) -> None:
    low, high = sorted((one, other))
    few, many = (dict(_named(affordable(b)[0])) for b in (low, high))
    assert all(many.get(name, 0) >= n for name, n in few.items())


def _named(bought: list[tuple[RetrainConfig, int]]) -> list[tuple[str, int]]:
    return [(config.name, n) for config, n in bought]


def test_gates_judge_by_held_out_frames_newest_first() -> None:
    samples = MemorySamples({("a", 0): 20, ("a", 1): 5})
    golden = FakeDetector(skill=1.0)
    scoring = OPTIONS.scoring
    jobs.run_at_once(
        jobs.label_steps(samples, golden, FakeDetector(), stream="a", window=0, frames=20, holdout_frac=0.4, scoring=scoring)
    )
    early = jobs.gate_refs(samples, "a", 1, 8, 0.4)
    assert [(r.window, r.number) for r in early][-2:] == [(1, 2), (1, 4)], "the held-out pool of the window in progress"  # type: ignore[attr-defined]
    assert [r.window for r in early] == [0] * 6 + [1] * 2, "filled up with the newest of the last one"  # type: ignore[attr-defined]
    assert all(samples.split(r) != "train" for r in early)
    now = jobs.gate_refs(samples, "a", 1, 8, 0.4, older=False)
    assert now == early[-2:], "where the last window showed another scene, it has no say"
    assert len(jobs.gate_refs(samples, "a", 0, 3, 0.4)) == 3
    assert jobs.gate_refs(samples, "b", 0, 8, 0.4) == []
