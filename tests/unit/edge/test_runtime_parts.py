"""Small pieces of the live runtime that need no running box."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import JobCancelled, JobError, StorageError, WeightsError
from edge.live_jobs import stable_seed
from edge.runtime import DEMAND_HEADROOM, _differs, failure_of, infer_job, knob_profiles
from scheduler.ekya.usual_knobs import STRIDES


@given(st.floats(0.1, 120), st.floats(1e-4, 2.0))
def test_knobs_cost_what_their_rate_costs_and_better_ones_cost_more(fps: float, cost_s: float) -> None:
    profiles = knob_profiles(fps, cost_s)
    assert [p.name for p in profiles] == ["every", "1/2", "1/3", "1/4", "1/6", "1/8"]
    assert profiles[0].quality_frac == 1.0
    for profile, (stride, _) in zip(profiles, STRIDES, strict=True):
        assert profile.fps == pytest.approx(fps / stride)
        assert profile.demand_pct == pytest.approx(100 * profile.fps * cost_s * DEMAND_HEADROOM, abs=1e-3)
    assert [p.quality_frac for p in profiles] == sorted((p.quality_frac for p in profiles), reverse=True)


@pytest.mark.parametrize(
    ("cost_s", "profiled_s", "fps", "told"),
    [
        (0.010, 0.010, 5, False), (0.0129, 0.010, 5, False), (0.0135, 0.010, 5, True), (0.006, 0.010, 5, True),
        (0.00001, 0.0003, 5, False), (0.0009, 0.0003, 5, True), (0.0009, 0.0003, 1, False),
    ],
)  # fmt: skip
def test_a_cost_is_told_when_it_changes_what_is_needed(cost_s: float, profiled_s: float, fps: float, told: bool) -> None:
    """By 30 %, and by 0.2 % of a core: next to nothing and half of it are the same to a plan."""
    assert _differs(cost_s, profiled_s, fps) is told


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (JobError("the loss became nan", code="nan", remedy="lower it"), "nan", "the loss became nan (lower it)"),
        (JobCancelled("told to stop"), "cancelled", "told to stop"),
        (MemoryError(), "out_of_memory", "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory", "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory", "out of memory"),
        (WeightsError("model a-1 is damaged", remedy="roll back"), "exception", "model a-1 is damaged (roll back)"),
        (StorageError("no space left", code="full"), "exception", "no space left"),
        (KeyError("a/000001/000000007"), "exception", "KeyError: 'a/000001/000000007'"),
        (OSError("rtsp://bob:hunter2@cam/ went away"), "exception", "OSError: rtsp://***@cam/ went away"),
    ],
)
def test_every_failure_has_a_code_and_a_clean_text(error: Exception, code: str, text: str) -> None:
    assert failure_of(error) == (code, text)


@given(st.integers(0, 2**31 - 1), st.text(max_size=40))
def test_seeds_are_stable_and_fit_every_generator(seed: int, text: str) -> None:
    value = stable_seed(seed, text)
    assert 0 <= value < 2**32
    assert value == stable_seed(seed, text)


def test_jobs_of_one_run_have_different_seeds() -> None:
    jobs = [f"{camera}/train/{window}" for camera in ("a", "b", "gate") for window in range(50)]
    assert len({stable_seed(0, job) for job in jobs}) == len(jobs)
    assert stable_seed(0, "a/train/1") == 1817491179, "the same in every version: a recorded run can be repeated"


def test_the_inference_job_of_a_camera() -> None:
    assert infer_job("gate") == "gate/infer"
