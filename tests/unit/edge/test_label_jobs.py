"""Labelling within a budget: who comes first, what is held out, what is never asked twice, what it cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import StorageError
from configs.units import CLASSES, NOTHING
from edge import jobs
from edge.jobs.label import GoldenWork, frames_to_label, golden_label_steps
from models.fake import FakeDetector
from models.golden import Labelling, class_table
from scheduler.split import MIN_HOLDOUT
from scheduler.types import Detections
from tests.support.memory_samples import MemorySamples, Ref

SCORING = jobs.Scoring(golden_score_min=0.4)


class Golden(FakeDetector):
    """Counts what it is asked."""

    def __init__(self, *, skill: float = 1.0) -> None:
        super().__init__(skill=skill, arch="golden")
        self.asked = 0

    def predict(self, images, *, score_min=0.25, yield_point=None):  # type: ignore[no-untyped-def]
        self.asked += len(images)
        return super().predict(images, score_min=score_min, yield_point=yield_point)


def label(
    samples: MemorySamples, golden: FakeDetector | None = None, *, frames: int = 20, holdout_frac: float = 0.4, window: int = 0,
    **options: object,
) -> jobs.LabelResult:  # fmt: skip
    return jobs.run_at_once(
        jobs.label_steps(
            samples, golden or Golden(), FakeDetector(skill=0.6), stream="a", window=window, frames=frames,
            holdout_frac=holdout_frac, scoring=SCORING, **options,  # type: ignore[arg-type]
        )
    )  # fmt: skip


# --- how many, which ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "frac", "expected"),
    [(0, 0.4, (0, 0)), (1, 0.4, (1, 0)), (2, 0.4, (1, 1)), (4, 0.25, (2, 2)), (8, 0.1, (4, 4)), (8, 0.4, (4, 4)), (20, 0.4, (12, 8)),
     (20, 0.1, (16, 4)), (40, 0.4, (24, 16)), (100, 0.1, (90, 10))],
)  # fmt: skip
def test_small_samples_still_hold_out_enough_to_measure(frames: int, frac: float, expected: tuple[int, int]) -> None:
    assert jobs.label_split(frames, frac) == expected


@given(st.integers(0, 500), st.floats(0.1, 0.9))
def test_a_split_adds_up_and_never_starves_either_side(frames: int, frac: float) -> None:
    train, holdout = jobs.label_split(frames, frac)
    assert train + holdout == frames
    assert holdout >= min(MIN_HOLDOUT, frames // 2)
    assert holdout <= max(frames * frac + 1e-6, MIN_HOLDOUT)


@settings(max_examples=60)
@given(
    sampled=st.integers(0, 40), frames=st.integers(0, 50), frac=st.floats(0.1, 0.9),
    judges=st.none() | st.integers(0, 12),
    persons=st.sets(st.integers(0, 39)), ignored=st.sets(st.integers(0, 39)), golden=st.sets(st.integers(0, 39)),
)  # fmt: skip
def test_the_frames_of_a_window_are_chosen_once_persons_first_and_within_the_budget(
    sampled: int, frames: int, frac: float, judges: int | None, persons: set[int], ignored: set[int], golden: set[int]
) -> None:
    samples = MemorySamples({("a", 0): sampled})
    refs = samples.sampled("a", 0)
    for n, ref in enumerate(refs):
        split = jobs.split_of(n, frac)
        if n in ignored:
            samples.ignore(ref, split=split)
        elif n in persons:
            samples.correct(ref, Detections.empty(), split=split)
        elif n in golden:
            samples.label(ref, Detections.empty(), golden="g", split=split)
    train, holdout = frames_to_label(samples, "a", 0, frames, frac, judges)
    names = [ref.name for ref in [*train, *holdout]]
    mine = {refs[n].name for n in persons - ignored if n < sampled}
    assert len(names) == len(set(names))
    assert not {refs[n].name for n in ignored if n < sampled} & set(names)
    assert mine <= set(names), "a person's labels are always used"
    usable = sampled - len([n for n in ignored if n < sampled])
    assert len(names) <= max(min(frames, usable), 0) + len(mine)
    for part, split in ((train, "train"), (holdout, "holdout")):
        assert [r.number for r in part] == sorted(r.number for r in part)  # type: ignore[attr-defined]
        assert all(samples.split(ref) in (None, split) for ref in part), "nothing that is labelled changes sides"


@pytest.mark.parametrize(("judges", "expected"), [(None, (8, 4)), (1, (11, 1)), (0, (12, 0)), (20, (0, 12))])
def test_how_many_judge_can_be_said(judges: int | None, expected: tuple[int, int]) -> None:
    """Of twelve; twenty are more than there are."""
    train, holdout = frames_to_label(MemorySamples({("a", 0): 30}), "a", 0, 12, 0.4, judges)
    assert (len(train), len(holdout)) == expected


@pytest.mark.parametrize("frames", [2, 4, 8, 12])
def test_a_small_budget_in_a_short_window_still_judges(frames: int) -> None:
    samples = MemorySamples({("a", 0): 12})
    result = label(samples, frames=frames, holdout_frac=0.1)
    assert result.holdout == jobs.label_split(frames, 0.1)[1] > 0
    assert result.train + result.holdout == frames
    assert result.quality is not None


def test_frames_that_taught_are_never_lent_to_judge() -> None:
    samples = MemorySamples({("a", 0): 8})
    for ref in samples.sampled("a", 0)[:7]:
        samples.label(ref, Detections.empty(), golden="g", split="train")
    _, holdout = frames_to_label(samples, "a", 0, 8, 0.4)
    assert [ref.number for ref in holdout] == [7]  # type: ignore[attr-defined]


# --- persons ------------------------------------------------------------------------------------------------------------


def test_a_person_is_not_asked_about_again_and_counts_within_the_budget() -> None:
    samples, golden = MemorySamples({("a", 0): 40}), Golden()
    refs = samples.sampled("a", 0)
    for n in (1, 3, 5):
        samples.correct(refs[n], samples.truth(refs[n]), split=jobs.split_of(n, 0.4))
    result = label(samples, golden, frames=20)
    assert (result.train + result.holdout, result.new, result.corrected) == (20, 17, 3)
    assert golden.asked == 17
    assert label(samples, golden, frames=20).new == 0
    assert golden.asked == 17


def test_more_corrections_than_the_budget_are_all_used() -> None:
    samples, golden = MemorySamples({("a", 0): 40}), Golden()
    for n, ref in enumerate(samples.sampled("a", 0)[:15]):
        samples.correct(ref, samples.truth(ref), split=jobs.split_of(n, 0.4))
    result = label(samples, golden, frames=8)
    assert (result.corrected, result.new, golden.asked) == (15, 0, 0)


def test_what_a_person_took_out_neither_teaches_nor_judges() -> None:
    samples, golden = MemorySamples({("a", 0): 10}), Golden()
    for n, ref in enumerate(samples.sampled("a", 0)):
        if n % 2:
            samples.ignore(ref, split=jobs.split_of(n, 0.4))
    result = label(samples, golden, frames=10)
    assert (result.train + result.holdout, golden.asked) == (5, 5)
    assert len(samples.labelled("a", [0], "train")) + len(samples.labelled("a", [0], "holdout")) == 5


def test_corrected_labels_are_marked_where_they_are_learned_from() -> None:
    samples = MemorySamples({("a", 0): 4})
    first, second, *_ = samples.sampled("a", 0)
    samples.correct(first, samples.truth(first), split="train")
    samples.label(second, samples.truth(second), golden="g", split="train")
    assert [image.by_person for image in samples.labelled("a", [0], "train")] == [True, False]


# --- the golden model ---------------------------------------------------------------------------------------------------


class OneSided(Golden):
    """Sees less in a mirror than without: every mirrored picture looks empty to it."""

    def predict(self, images, *, score_min=0.25, yield_point=None):  # type: ignore[no-untyped-def]
        found = super().predict(images, score_min=score_min, yield_point=yield_point)
        return [f if self.asked % 2 else Detections.empty() for f in found]


def test_frames_the_golden_model_is_unsure_of_are_counted_and_left_out() -> None:
    samples = MemorySamples({("a", 0): 10})
    result = label(samples, OneSided(), frames=10, labelling=Labelling(agreement="flip"))
    assert (result.train, result.holdout, result.new, result.left_out, result.quality) == (0, 0, 10, 10, None)
    assert result.unsure == sum(len(found) for found in samples.unsure.values()) > 0
    again = label(samples, OneSided(), frames=10, labelling=Labelling(agreement="flip"))
    assert again.new == 0, "they were paid for: nobody asks again"


def test_the_class_map_reaches_the_labels() -> None:
    samples = MemorySamples({("a", 0): 10})
    label(samples, frames=10, labelling=Labelling(classes=class_table({name: "car" for name in CLASSES if name != "car"})))
    classes = {int(k) for image in samples.labelled("a", [0], "train") for k in image.labels.class_id}
    assert classes == {CLASSES.index("car")}


class Empty(Golden):
    def predict(self, images, *, score_min=0.25, yield_point=None):  # type: ignore[no-untyped-def]
        return [Detections.empty() for _ in images]


def test_a_window_in_which_the_golden_model_sees_nothing_is_labelled_and_says_so() -> None:
    result = label(MemorySamples({("a", 0): 20}), Empty(), frames=20)
    assert (result.train, result.holdout, result.objects) == (12, 8, 0)
    assert result.quality is None, "its false alarms would be worth 0, and a model that sees nothing 1"
    assert sum(result.traits.class_frac) == 0.0


class Broken(Golden):
    """NaN scores, infinite corners, boxes far outside."""

    def predict(self, images, *, score_min=0.25, yield_point=None):  # type: ignore[no-untyped-def]
        xyxy = np.array([[1, 1, 20, 20], [0, 0, np.inf, 9], [900, 900, 950, 950]], np.float32)
        score = np.array([np.nan, 0.9, 0.9], np.float32)
        return [Detections(xyxy=xyxy, score=score, class_id=np.zeros(3, np.int64)) for _ in images]


def test_nonsense_of_the_golden_model_is_no_label() -> None:
    samples = MemorySamples({("a", 0): 10})
    result = label(samples, Broken(), frames=10)
    assert result.objects == 0
    assert all(len(image.labels) == 0 for image in samples.labelled("a", [0], "train"))


def test_every_label_says_what_it_cost_and_judging_costs_no_label() -> None:
    samples = MemorySamples({("a", 0): 20})
    clock = {"used": 0.0}

    class Paid(Golden):
        def predict(self, images, *, score_min=0.25, yield_point=None):  # type: ignore[no-untyped-def]
            clock["used"] += 2.0 * len(images)
            return super().predict(images, score_min=score_min, yield_point=yield_point)

    class Serving(FakeDetector):
        def predict(self, images, *, score_min=0.25, yield_point=None):  # type: ignore[no-untyped-def]
            clock["used"] += 100.0
            return super().predict(images, score_min=score_min, yield_point=yield_point)

    result = jobs.run_at_once(
        jobs.label_steps(
            samples, Paid(), Serving(skill=0.5), stream="a", window=0, frames=10, holdout_frac=0.4, scoring=SCORING,
            labelling=Labelling(agreement="flip"), timer=lambda: clock["used"],
        )
    )  # fmt: skip
    assert result.golden_gpu_s == pytest.approx(10 * 2 * 2.0), "two looks each"
    assert set(samples.costs_gpu_s.values()) == {4.0}


@pytest.mark.parametrize(("batch", "agreement", "iterations"), [(1, "off", 10), (4, "off", 3), (1, "flip", 20), (4, "flip", 6)])
def test_an_iteration_is_one_pass_over_a_batch(batch: int, agreement: str, iterations: int) -> None:
    samples, golden = MemorySamples({("a", 0): 10}), Golden()
    steps = golden_label_steps(
        samples, golden, [(ref, "train") for ref in samples.sampled("a", 0)], scoring=SCORING,
        labelling=Labelling(batch=batch, agreement=agreement),  # type: ignore[arg-type]
    )  # fmt: skip
    asked: list[int] = []
    while True:
        before = golden.asked
        try:
            next(steps)
            asked.append(golden.asked - before)
        except StopIteration as end:
            work: GoldenWork = end.value
            break
    assert len(asked) == iterations
    assert max(asked) <= batch, "no iteration is longer than its batch"
    assert work.new == 10


class Vanishing(MemorySamples):
    """Frame 2 is gone when it is looked at, frame 3 cannot be decoded, frame 4 is gone when its labels come."""

    def picture(self, ref):  # type: ignore[no-untyped-def]
        if ref.number == 2:
            raise KeyError(ref.name)
        if ref.number == 3:
            raise StorageError("damaged", code="corrupt")
        return super().picture(ref)

    def label(self, ref, labels, **marks):  # type: ignore[no-untyped-def]
        if ref.number == 4:
            raise KeyError(ref.name)
        super().label(ref, labels, **marks)


def test_samples_that_are_pruned_or_damaged_cost_themselves_and_are_counted() -> None:
    samples = Vanishing({("a", 0): 10})
    result = label(samples, frames=10)
    assert (result.new, result.unreadable) == (7, 3)
    assert result.train + result.holdout == 7


def test_a_full_disk_is_no_missing_sample() -> None:
    class Full(MemorySamples):
        def picture(self, ref):  # type: ignore[no-untyped-def]
            raise StorageError("no space", code="full")

    with pytest.raises(StorageError):
        label(Full({("a", 0): 10}), frames=10)


def test_the_gate_asks_only_about_frames_nobody_has_labelled() -> None:
    samples, golden = MemorySamples({("a", 1): 20}), Golden()
    refs: Sequence[Ref] = samples.sampled("a", 1)
    samples.correct(refs[0], samples.truth(refs[0]), split="holdout")
    samples.ignore(refs[19], split="holdout")
    result = jobs.run_at_once(
        jobs.gate_steps(
            samples, golden, FakeDetector(skill=0.3), FakeDetector(skill=0.9), stream="a", window=1, frames=20, scoring=SCORING
        )
    )
    assert golden.asked == 18
    assert result.frames == 19, "what a person took out judges nobody"


def test_regions_without_an_object_are_no_objects() -> None:
    boxes, scores = np.tile(np.array([0, 0, 9, 9], np.float32), (4, 1)), np.ones(4, np.float32)
    labels = Detections(xyxy=boxes, score=scores, class_id=np.array([0, NOTHING, 2, NOTHING]))
    traits = jobs.traits_of([labels], place="a")
    assert len(traits.class_frac) == len(CLASSES)
    assert (traits.class_frac[0], traits.class_frac[2], traits.objects_per_frame) == (0.5, 0.5, 2.0)
