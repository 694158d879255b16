"""What a profiling budget buys in virtual time: the order in which the live micro-profiler spends it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge import jobs
from edge.costs import CostProfile
from edge.evaluate.world import affordable_epochs, profiling_gpu_s
from models.fake import FakeDetector
from scheduler.commands import StartProfiling
from scheduler.types import RetrainConfig
from tests.support.evaluation import COSTS, OPTIONS
from tests.support.memory_samples import MemorySamples

PROFILE = CostProfile(**COSTS, source="test")  # type: ignore[arg-type]
CONFIGS = (
    RetrainConfig(name="all", epochs=6, batch=4, lr=0.05),
    RetrainConfig(name="all-short", epochs=2, batch=4, lr=0.05),
    RetrainConfig(name="head", epochs=4, batch=4, lr=0.05, layers_frac=0.3),
)


def command(budget_gpu_s: float, epochs: int = 3) -> StartProfiling:
    return StartProfiling(
        job="a/profile/1", stream="a", window=0, version="v", configs=CONFIGS, epochs=epochs, data_frac=0.5,
        budget_gpu_s=budget_gpu_s,
    )  # fmt: skip


def test_a_large_budget_buys_every_epoch_of_every_family() -> None:
    bought, spent = affordable_epochs(command(1e9), PROFILE, 40, 8)
    assert [(c.name, n) for c, n in bought] == [("all", 3), ("head", 3)]
    assert spent == profiling_gpu_s(CONFIGS, PROFILE, 40, 8, epochs=3, data_frac=0.5)
    # The serving model once, two starts, then three epochs each: 20 frames trained, 8 judged.
    assert abs(spent - (0.16 + 0.6 + 3 * (20 * 0.1 + 0.16) + 3 * (20 * 0.05 + 0.16))) < 1e-9


def test_families_advance_together_and_one_without_an_epoch_is_left_out() -> None:
    bought, _ = affordable_epochs(command(0.8), PROFILE, 40, 8)
    assert [(c.name, n) for c, n in bought] == [("all", 1)], "start-up took 0.76, one epoch began"
    bought, _ = affordable_epochs(command(2.93), PROFILE, 40, 8)
    assert [(c.name, n) for c, n in bought] == [("all", 1), ("head", 1)]
    assert affordable_epochs(command(0.0), PROFILE, 40, 8)[0] == []
    assert affordable_epochs(command(1e9), PROFILE, 0, 8) == ([], 0.0)
    assert affordable_epochs(command(1e9), PROFILE, 12, 0) == ([], 0.0)


@given(st.floats(0, 20), st.floats(0, 20))
def test_more_budget_never_buys_less(one: float, other: float) -> None:
    low, high = sorted((one, other))
    few, many = (dict(_named(affordable_epochs(command(b), PROFILE, 40, 8)[0])) for b in (low, high))
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
    assert len(jobs.gate_refs(samples, "a", 0, 3, 0.4)) == 3
    assert jobs.gate_refs(samples, "b", 0, 8, 0.4) == []
