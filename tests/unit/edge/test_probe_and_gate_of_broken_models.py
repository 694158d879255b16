"""The probe's measurement, and what gate and probe say of models that are none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from edge import jobs
from edge.jobs.base import is_sound, tells
from models.detector import Detector
from models.fake import FakeDetector
from scheduler.types import Detections
from tests.support.memory_samples import MemorySamples

SCORING = jobs.Scoring(golden_score_min=0.4)
GOLDEN = FakeDetector(skill=1.0, arch="golden")


def labelled_samples(frames: int = 30) -> MemorySamples:
    samples = MemorySamples({("a", 0): 60, ("a", 1): 30})
    jobs.run_at_once(
        jobs.label_steps(
            samples, GOLDEN, FakeDetector(skill=0.5), stream="a", window=0, frames=frames, holdout_frac=0.4, scoring=SCORING
        )
    )
    return samples


def probed(samples: MemorySamples, candidates: list[tuple[str, Detector]], skill: float = 0.5) -> jobs.ProbeResult:
    return jobs.run_at_once(
        jobs.probe_steps(samples, FakeDetector(skill=skill), candidates, stream="a", window=0, scoring=SCORING)
    )


def not_a_number(value: float = float("nan")) -> FakeDetector:
    broken = FakeDetector(skill=0.9)
    broken.load_state({"skill": torch.tensor([value])})
    return broken


def test_a_probe_measures_all_on_the_held_out_labels_of_the_window() -> None:
    samples = labelled_samples()
    result = probed(samples, [("good", FakeDetector(skill=0.95)), ("bad", FakeDetector(skill=0.1))])
    assert result.frames == 12 == len(jobs.probe_refs(samples, "a", 0))
    assert result.serving_quality is not None
    good, bad = result.found
    assert (good.version, bad.version) == ("good", "bad")
    assert good.quality > result.serving_quality > bad.quality
    assert good.gain_sd is not None
    assert 0 < good.gain_sd < 0.3
    assert result.serving_error is not None
    assert 0 < result.serving_error < 0.3


def test_candidates_are_drawn_one_at_a_time_and_one_frame_is_an_iteration() -> None:
    samples, alive = labelled_samples(), list[str]()

    def drawn() -> Iterator[tuple[str, Detector]]:
        for name in ("x", "y"):
            alive.append(name)
            yield name, FakeDetector(skill=0.5)

    steps = jobs.probe_steps(samples, FakeDetector(), drawn(), stream="a", window=0, scoring=SCORING)
    for _ in range(12):
        next(steps)
    assert alive == []
    next(steps)
    assert alive == ["x"]
    for _ in range(11):
        next(steps)
    assert alive == ["x"]
    next(steps)
    assert alive == ["x", "y"]


def test_a_window_without_held_out_labels_says_nothing() -> None:
    result = probed(MemorySamples({("a", 0): 9}), [("good", FakeDetector(skill=1.0))])
    assert (result.serving_quality, result.found, result.frames) == (None, (), 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_numbers_are_worth_nothing_to_probe_and_gate(value: float) -> None:
    samples = labelled_samples()
    assert not is_sound(not_a_number(value))
    assert [f.version for f in probed(samples, [("broken", not_a_number(value)), ("fine", FakeDetector())]).found] == ["fine"]
    result = gated(samples, not_a_number(value))
    assert result.candidate_quality is None
    assert result.serving_quality is not None


def gated(samples: MemorySamples, candidate: Detector, serving_skill: float = 0.5) -> jobs.GateResult:
    return jobs.run_at_once(
        jobs.gate_steps(
            samples, GOLDEN, FakeDetector(skill=serving_skill), candidate, stream="a", window=1, frames=10, scoring=SCORING,
            holdout_frac=0.4,
        )
    )  # fmt: skip


class EmptyScene(MemorySamples):
    """Nobody comes by; the serving model sees somebody all the same."""

    def labels(self, ref: object) -> Detections | None:
        known = super().labels(ref)
        return Detections.empty() if known is not None else None


def test_on_frames_without_objects_nobody_is_better_than_anybody() -> None:
    samples = EmptyScene({("a", 1): 30})
    blind = FakeDetector(skill=0.0)
    result = gated(samples, blind)
    assert result.frames == 10
    assert result.serving_quality is None
    assert result.candidate_quality is None
    for ref in samples.sampled("a", 1):
        if samples.split(ref) is None:
            samples.label(ref, Detections.empty(), golden="g", split="holdout")
    assert not tells(samples, samples.sampled("a", 1))
    found = jobs.run_at_once(
        jobs.probe_steps(samples, FakeDetector(skill=0.5), [("blind", blind)], stream="a", window=1, scoring=SCORING)
    ).found
    assert found == ()


class Infinite(FakeDetector):
    """Sound weights, but answers that are not numbers."""

    def predict(self, images, **options):  # type: ignore[no-untyped-def]
        boxes = np.full((2, 4), [np.nan, np.inf, np.nan, np.inf], np.float32).reshape(2, 4)
        return [Detections(xyxy=boxes, score=np.ones(2, np.float32), class_id=np.zeros(2, np.int64)) for _ in images]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_answers_that_are_not_numbers_find_nothing() -> None:
    result = gated(labelled_samples(), Infinite(skill=0.9))
    assert result.candidate_quality == 0.0
