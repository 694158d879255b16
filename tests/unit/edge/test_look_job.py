"""The look job: a window through the eyes of the model that serves, one frame an iteration, without a label."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from configs.errors import JobError
from configs.units import NOTHING
from edge import jobs
from models.fake import FakeDetector
from models.tasks.base import Picture
from models.tasks.detection import DETECTION, DetectionTask
from scheduler.drift import drift, signature
from scheduler.types import Detections, Look
from streams.drift import apply
from tests.support.memory_samples import MemorySamples


def look(samples: Any, model: FakeDetector, *, window: int = 0, frames: int = 12, version: str = "v1", **more: Any) -> Look:
    return jobs.run_at_once(
        jobs.look_steps(samples, DETECTION, model, stream="a", window=window, frames=frames, version=version, **more)
    )


class Dusky(MemorySamples):
    """Samples at dusk."""

    def picture(self, ref: Any) -> Picture:
        return Picture(image=apply(super().picture(ref).image, "overexposure", 0.6, seed=1))


def test_a_look_is_one_frame_an_iteration_spread_over_the_window() -> None:
    asked: list[int] = []

    class Counting(MemorySamples):
        def picture(self, ref: Any) -> Picture:
            asked.append(ref.number)
            return super().picture(ref)

    steps = jobs.look_steps(
        Counting({("a", 0): 50}), DETECTION, FakeDetector(), stream="a", window=0, frames=10, version="v7"
    )  # fmt: skip
    iterations = 0
    result = None
    while result is None:
        try:
            next(steps)
            iterations += 1
            assert len(asked) == iterations, "no frame is read ahead"
        except StopIteration as end:
            result = end.value
    assert iterations == 10
    assert (asked[0], asked[-1]) == (0, 49)
    assert result.version == "v7"
    assert len(result.frames) == 10


def test_a_look_needs_no_label_and_makes_none() -> None:
    samples = MemorySamples({("a", 0): 20})
    seen = look(samples, FakeDetector(skill=0.9))
    assert all(samples.labels(ref) is None for ref in samples.sampled("a", 0))
    assert np.mean([f.objects for f in seen.frames]) == pytest.approx(6, abs=1)
    assert all(len(f.embedding) == 16 for f in seen.frames)
    assert all(0.3 <= f.confidence <= 1 for f in seen.frames)


def test_the_same_window_looks_the_same_and_another_light_does_not() -> None:
    there, model = MemorySamples({("a", 0): 40, ("a", 1): 40}), FakeDetector(skill=0.9)
    first = look(there, model, frames=24)
    assert look(there, model, frames=24) == first
    assert not drift(first, look(there, model, window=1, frames=24)).drifted
    dusk = look(Dusky({("a", 1): 40}), model, window=1, frames=24)
    changed = drift(first, dusk)
    assert changed.drifted
    assert "image" in {t.name for t in changed.tests if t.fired}
    assert signature(dusk) != signature(first)


def test_an_empty_window_is_an_empty_look() -> None:
    assert look(MemorySamples({}), FakeDetector()) == Look(version="v1", frames=())


def test_a_frame_that_was_pruned_meanwhile_is_left_out() -> None:
    class Pruned(MemorySamples):
        def picture(self, ref: Any) -> Picture:
            if ref.number % 2:
                raise KeyError(ref.name)
            return super().picture(ref)

    assert len(look(Pruned({("a", 0): 12}), FakeDetector()).frames) == 6


def test_the_score_threshold_is_the_callers() -> None:
    samples, model = MemorySamples({("a", 0): 12}), FakeDetector(skill=0.5)
    assert sum(f.objects for f in look(samples, model, score_min=0.5).frames) < sum(
        f.objects for f in look(samples, model).frames
    )


def test_a_model_whose_features_are_nan_is_a_job_that_failed() -> None:
    class Broken(FakeDetector):
        def embed(self, images: Any) -> np.ndarray:
            return np.full((len(images), 9), np.nan, np.float32)

    with pytest.raises(JobError, match="not finite") as error:
        look(MemorySamples({("a", 0): 12}), Broken())
    assert error.value.code == "nan"
    assert error.value.subject == "v1"


def test_the_yield_point_goes_into_the_model() -> None:
    calls: list[int] = []
    look(MemorySamples({("a", 0): 12}), FakeDetector(), frames=5, yield_point=lambda: calls.append(1))
    assert len(calls) == 5


class Regions(DetectionTask):
    """Stands for a camera that classifies what moves: an answer for each region, some of them no object."""

    def predict(self, model: Any, pictures: Any, *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        return [_answers(p.regions) for p in pictures]

    def shown(self, predicted: Detections) -> Detections:
        keep = predicted.class_id != NOTHING
        return Detections(xyxy=predicted.xyxy[keep], score=predicted.score[keep], class_id=predicted.class_id[keep])


def _answers(regions: np.ndarray | None) -> Detections:
    boxes = np.zeros((0, 4), np.float32) if regions is None else regions
    classes = np.where(np.arange(len(boxes)) % 2, NOTHING, 2).astype(np.int64)
    return Detections(xyxy=boxes, score=np.full(len(boxes), 0.8, np.float32), class_id=classes)


def test_a_classifying_camera_is_looked_at_by_its_regions() -> None:
    class Moving(MemorySamples):
        def picture(self, ref: Any) -> Picture:
            regions = np.tile(np.array([4, 4, 20, 20], np.float32), (4, 1)) if ref.number else None
            return Picture(image=super().picture(ref).image, regions=regions)

    seen = jobs.run_at_once(
        jobs.look_steps(
            Moving({("a", 0): 4}), Regions(), FakeDetector(), stream="a", window=0, frames=4, version="v1"
        )  # fmt: skip
    )
    assert [f.objects for f in seen.frames] == [0, 2, 2, 2], "regions without an object are not shown"
    assert seen.frames[1].class_frac[2] == 1.0
    assert all(len(f.embedding) == 16 for f in seen.frames), "also where nothing moved"


class Keeping(FakeDetector):
    """A detector that says its features on the way of a prediction."""

    def __init__(self, *, per_picture: int = 1) -> None:
        super().__init__(skill=0.9)
        self._per_picture, self.embedded, self._kept = per_picture, 0, list[np.ndarray]()

    def predict(self, images: Any, **more: Any) -> list[Detections]:
        self._kept += [row for row in super().embed(images) for _ in range(self._per_picture)]
        return super().predict(images, **more)

    def embed(self, images: Any) -> np.ndarray:
        self.embedded += 1
        return super().embed(images)

    @contextmanager
    def keeping_features(self) -> Iterator[list[np.ndarray]]:
        self._kept = []
        yield self._kept


def test_one_pass_says_objects_and_features() -> None:
    samples, keeping = MemorySamples({("a", 0): 12}), Keeping()
    assert jobs.passes_of(DETECTION) == 1
    assert look(samples, keeping) == look(samples, FakeDetector(skill=0.9))
    assert keeping.embedded == 0


def test_features_of_anything_but_the_one_picture_are_not_taken_for_its_own() -> None:
    """Somebody else asks the same model meanwhile, or its answers are of parts of the picture."""
    samples, twice = MemorySamples({("a", 0): 12}), Keeping(per_picture=2)
    assert look(samples, twice) == look(samples, FakeDetector(skill=0.9))
    assert twice.embedded == 12


def test_a_camera_that_is_asked_about_regions_takes_two_passes() -> None:
    keeping, task = Keeping(), Regions()
    task.wants_regions = True
    assert jobs.passes_of(task) == 2
    jobs.run_at_once(
        jobs.look_steps(MemorySamples({("a", 0): 12}), task, keeping, stream="a", window=0, frames=3, version="v1")
    )
    assert keeping.embedded == 3
