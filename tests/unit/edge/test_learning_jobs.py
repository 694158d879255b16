"""What the four learning jobs do, one iteration at a time, with detectors whose quality is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import JobCancelled, JobError
from configs.units import CLASSES
from edge import jobs
from edge.jobs.train import n_embedded
from models.fake import FakeDetector
from scheduler.types import Detections, EpochReport, RetrainConfig, Traits
from tests.support.memory_samples import MemorySamples

SCORING = jobs.Scoring(golden_score_min=0.4)
GOLDEN = FakeDetector(skill=1.0, arch="golden")
CONFIG = RetrainConfig(name="full", epochs=3, batch=4, lr=0.1)


def label(samples: MemorySamples, serving: FakeDetector, *, window: int = 0, frames: int = 20) -> jobs.LabelResult:
    return jobs.run_at_once(
        jobs.label_steps(samples, GOLDEN, serving, stream="a", window=window, frames=frames, holdout_frac=0.4, scoring=SCORING)
    )


def test_labelling_splits_the_window_and_measures_the_serving_model() -> None:
    samples = MemorySamples({("a", 0): 50})
    result = label(samples, FakeDetector(skill=0.5))
    assert (result.train, result.holdout) == (12, 8)
    assert result.quality is not None
    assert 0.2 < result.quality < 0.8
    assert label(MemorySamples({("a", 0): 50}), FakeDetector(skill=1.0)).quality == pytest.approx(1.0)


def test_labelling_again_costs_nothing_and_keeps_the_splits() -> None:
    samples = MemorySamples({("a", 0): 30})
    first = label(samples, FakeDetector(skill=0.5))
    blind = FakeDetector(skill=0.0)
    again = jobs.run_at_once(
        jobs.label_steps(
            samples, blind, FakeDetector(skill=0.5), stream="a", window=0, frames=20, holdout_frac=0.4, scoring=SCORING
        )
    )
    assert (again.train, again.holdout) == (first.train, first.holdout)
    assert again.quality == first.quality, "the blind golden model was not asked"


def test_a_window_without_frames_is_no_error() -> None:
    nothing = Traits(class_frac=(0.0,) * len(CLASSES), place="a")
    expected = jobs.LabelResult(train=0, holdout=0, new=0, quality=None, traits=nothing)
    assert label(MemorySamples({}), FakeDetector()) == expected


def test_traits_are_what_the_golden_labels_say() -> None:
    def objects(*classes: int) -> Detections:
        n = len(classes)
        boxes, ids = np.tile(np.array([0, 0, 9, 9], np.float32), (n, 1)).reshape(n, 4), np.array(classes, np.int64)
        return Detections(xyxy=boxes, score=np.ones(n, np.float32), class_id=ids)

    traits = jobs.traits_of([objects(0, 0, 2), None, objects(), objects(2)], place="yard", daypart="night")
    assert traits.class_frac[:3] == (0.5, 0.0, 0.5)
    assert sum(traits.class_frac) == pytest.approx(1.0)
    assert traits.objects_per_frame == pytest.approx(4 / 3), "frames without a label do not count"
    assert (traits.place, traits.daypart) == ("yard", "night")
    assert label(MemorySamples({("a", 0): 20}), FakeDetector()).traits.objects_per_frame > 0


def test_retraining_makes_a_better_copy_and_leaves_the_serving_model_alone() -> None:
    samples = MemorySamples({("a", 0): 40})
    serving = FakeDetector(skill=0.4)
    label(samples, serving)
    heard: list[EpochReport] = []
    steps = jobs.retrain_steps(
        samples, serving, job="a/train/1", stream="a", window=0, replay_windows=0, config=CONFIG, seed=1,
        timer=lambda: 0.0, on_epoch=heard.append,
    )  # fmt: skip
    count, better = 0, None
    while better is None:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            better = end.value
    assert serving.skill == pytest.approx(0.4)
    assert better.skill > 0.5
    assert [r.epoch for r in heard] == [1, 2, 3]
    assert count == 12 + 3 * 12, "one picture an iteration: labels are looked at first"


@pytest.mark.parametrize(("epochs", "measured"), [(3, {}), (5, {}), (6, {3}), (9, {4})])
def test_a_long_retraining_is_measured_half_way_on_held_out_frames(epochs: int, measured: set[int]) -> None:
    samples = MemorySamples({("a", 0): 40})
    serving = FakeDetector(skill=0.4)
    start = label(samples, serving).quality
    heard: list[EpochReport] = []
    jobs.run_at_once(
        jobs.retrain_steps(
            samples, serving, job="a/train/1", stream="a", window=0, replay_windows=0, config=replace(CONFIG, epochs=epochs),
            seed=1, timer=lambda: 0.0, on_epoch=heard.append, scoring=SCORING,
        )
    )  # fmt: skip
    assert {r.epoch for r in heard if r.quality is not None} == set(measured)
    assert start is not None
    assert all(r.quality > start for r in heard if r.quality is not None)


def test_the_gate_judges_both_models_on_the_same_new_frames_and_holds_them_out() -> None:
    samples = MemorySamples({("a", 1): 30})
    result = jobs.run_at_once(
        jobs.gate_steps(
            samples, GOLDEN, FakeDetector(skill=0.3), FakeDetector(skill=0.9), stream="a", window=1, frames=10,
            scoring=SCORING,
        )
    )  # fmt: skip
    assert result.frames == 10
    assert result.serving_quality is not None
    assert result.candidate_quality is not None
    assert result.candidate_quality > result.serving_quality
    assert len(samples.labelled("a", [1], "holdout")) == 10
    assert samples.labelled("a", [1], "train") == []


@pytest.mark.parametrize("older", [True, False])
def test_what_the_last_window_held_out_judges_only_where_it_showed_the_same_scene(older: bool) -> None:
    samples = MemorySamples({("a", 0): 20, ("a", 1): 10})
    label(samples, FakeDetector(skill=0.3))
    before = len(samples.labelled("a", [0], "holdout"))
    result = jobs.run_at_once(
        jobs.gate_steps(
            samples, GOLDEN, FakeDetector(skill=0.3), FakeDetector(skill=0.9), stream="a", window=1, frames=10, scoring=SCORING,
            older=older,
        )
    )  # fmt: skip
    assert before == 8
    assert result.frames == (10 + before if older else 10)
    assert result.newest == 10


def test_a_gate_of_known_labels_labels_nothing_and_judges_by_what_was_held_out() -> None:
    samples = MemorySamples({("a", 0): 20, ("a", 1): 10})
    label(samples, FakeDetector(skill=0.3))
    result = jobs.run_at_once(
        jobs.gate_steps(
            samples, None, FakeDetector(skill=0.3), FakeDetector(skill=0.9), stream="a", window=1, frames=10, scoring=SCORING,
            known=True,
        )
    )  # type: ignore[arg-type]  # fmt: skip
    assert result.frames == result.newest == 8
    assert samples.labelled("a", [1], "holdout") == []
    assert result.gain is not None
    assert result.gain > 0


@pytest.mark.parametrize(("frames", "older"), [(3, True), (10, False)])
def test_few_known_labels_decide_nothing(frames: int, older: bool) -> None:
    """Three frames, or none where the last window showed another scene."""
    samples = MemorySamples({("a", 0): 20, ("a", 1): 10})
    label(samples, FakeDetector(skill=0.3))
    result = jobs.run_at_once(
        jobs.gate_steps(
            samples, GOLDEN, FakeDetector(skill=0.3), FakeDetector(skill=0.9), stream="a", window=1, frames=frames, scoring=SCORING,
            older=older, known=True,
        )
    )  # fmt: skip
    assert result.candidate_quality is None
    assert len(jobs.known_refs(samples, "a", 1, frames, older)) == (3 if older else 0)


@pytest.mark.parametrize("least", [1, 3, 4])
def test_where_others_judge_with_it_one_known_frame_may_speak(least: int) -> None:
    samples = MemorySamples({("a", 0): 20, ("a", 1): 10})
    label(samples, FakeDetector(skill=0.3))
    result = jobs.run_at_once(
        jobs.gate_steps(
            samples, GOLDEN, FakeDetector(skill=0.3), FakeDetector(skill=0.9), stream="a", window=1, frames=3, scoring=SCORING,
            known=True, least=least,
        )
    )  # fmt: skip
    assert (result.candidate_quality is None) == (least > 3)
    assert result.frames == 3


def test_a_gate_without_frames_judges_nothing() -> None:
    result = jobs.run_at_once(
        jobs.gate_steps(
            MemorySamples({}), GOLDEN, FakeDetector(), FakeDetector(), stream="a", window=1, frames=10, scoring=SCORING
        )
    )
    assert result == jobs.GateResult(serving_quality=None, candidate_quality=None, frames=0)


@pytest.mark.parametrize(
    ("detector", "code"), [(FakeDetector(nan_loss=True), "nan"), (FakeDetector(fails_with=MemoryError()), "out_of_memory")]
)
def test_a_broken_training_ends_with_its_code(detector: FakeDetector, code: str) -> None:
    samples = MemorySamples({("a", 0): 20})
    label(samples, FakeDetector())
    steps = jobs.retrain_steps(
        samples, detector, job="j", stream="a", window=0, replay_windows=0, config=CONFIG, seed=1, timer=lambda: 0.0,
        on_epoch=lambda report: None,
    )  # fmt: skip
    with pytest.raises(JobError) as caught:
        jobs.run_at_once(steps)
    assert caught.value.code == code


class CountingLane:
    """Lets `allowed` iterations through, then cancels."""

    job = "a/train/1"

    def __init__(self, allowed: int) -> None:
        self.allowed, self.done = allowed, 0

    @contextmanager
    def iteration(self) -> Iterator[None]:
        if self.done >= self.allowed:
            raise JobCancelled("cancelled")
        yield
        self.done += 1

    def checkpoint(self) -> None:
        pass


def test_a_job_is_cancelled_within_one_iteration_and_its_generator_closed() -> None:
    closed = []

    def steps() -> jobs.Steps[int]:
        try:
            for _ in range(10):
                yield
        finally:
            closed.append(True)
        return 1

    lane = CountingLane(allowed=4)
    with pytest.raises(JobCancelled):
        jobs.run_in_lane(steps(), lane)
    assert (lane.done, closed) == (4, [True])
    assert jobs.run_in_lane(steps(), CountingLane(allowed=99)) == 1


@given(st.integers(0, 200), st.integers(0, 60))
def test_spread_takes_as_many_as_asked_in_order_from_first_to_last(n: int, count: int) -> None:
    samples = MemorySamples({("a", 0): n})
    picked = jobs.spread(samples.sampled("a", 0), count)
    assert len(picked) == min(n, count)
    numbers = [p.number for p in picked]  # type: ignore[attr-defined]
    assert numbers == sorted(set(numbers))
    if count > 1 and n > 1:
        assert (numbers[0], numbers[-1]) == (0, n - 1)


@given(st.integers(1, 300), st.floats(0.1, 0.9))
def test_splits_come_close_to_the_wanted_fraction_everywhere(n: int, frac: float) -> None:
    held = [jobs.split_of(i, frac) == "holdout" for i in range(n)]
    for stop in range(1, n + 1):
        assert abs(sum(held[:stop]) - stop * frac) <= 1.0


# --- what a retraining learns from ------------------------------------------------------------------------------------


def labelled(frames: dict[tuple[str, int], int], labels: Detections | None = None) -> MemorySamples:
    """Every frame labelled for training; `labels`: instead of the truth."""
    samples = MemorySamples(frames)
    for stream, window in frames:
        for ref in samples.sampled(stream, window):
            samples.label(ref, samples.truth(ref) if labels is None else labels, golden="g", split="train")
    return samples


def retrained(
    samples: MemorySamples, serving: FakeDetector, config: RetrainConfig = CONFIG, **options: Any
) -> tuple[Any, list[str], int]:
    """(model, notes, iterations)."""
    notes: list[str] = []
    arguments: dict[str, Any] = {
        "job": "a/train/1", "stream": "a", "window": 2, "replay_windows": 2, "config": config, "seed": 1,
        "timer": lambda: 0.0, "on_epoch": lambda report: None, "on_note": notes.append,
    } | options  # fmt: skip
    steps, n = jobs.retrain_steps(samples, serving, **arguments), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, notes, n
        n += 1


class Watched(FakeDetector):
    """Remembers the pictures it learned from, also through its copies."""

    def __init__(self, seen: list[bytes], **options: Any) -> None:
        super().__init__(**options)
        self.seen = seen

    def loss(self, images: Any, targets: Any) -> Any:
        self.seen += [image.tobytes() for image in images]
        return super().loss(images, targets)

    def clone(self) -> Watched:
        twin = Watched(self.seen, ceiling=self._ceiling)
        twin.load_state(self.state())
        return twin


def learned_from(monkeypatch: pytest.MonkeyPatch, samples: MemorySamples, **options: Any) -> tuple[list[str], int]:
    """(camera/window of every picture learned from, iterations)."""
    monkeypatch.setattr("models.retrain.augmented", lambda sample, how, rng: sample)
    where = {
        samples.picture(ref).image.tobytes(): f"{ref.stream}/{ref.window}" for refs in samples._refs.values() for ref in refs
    }
    serving = Watched([], skill=0.4)
    _, _, n = retrained(samples, serving, **options)
    return [where[picture] for picture in serving.seen], n


def test_cameras_learn_together_and_have_an_equal_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of a camera are told apart by their window here, since scripted pictures depend on it alone."""
    samples = labelled({("a", 2): 10})
    other = labelled({("b", 7): 10})
    samples._refs[("b", 2)] = other.sampled("b", 7)
    samples._labels |= other._labels
    where, n = learned_from(monkeypatch, samples, members=("a", "b"), replay_windows=0, config=replace(CONFIG, epochs=1))
    assert sorted(where) == ["a/2"] * 10 + ["b/7"] * 10
    assert n == 20 + 20, "looked at, then learned from"
    alone, _ = learned_from(monkeypatch, samples, replay_windows=0, config=replace(CONFIG, epochs=1))
    assert set(alone) == {"a/2"}


def test_replay_brings_exemplars_of_earlier_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = labelled({("a", 0): 30, ("a", 1): 30, ("a", 2): 12})
    config = replace(CONFIG, replay_frac=0.25, epochs=5)
    where, n = learned_from(monkeypatch, samples, config=config)
    old = [place for place in where if place != "a/2"]
    assert len(where) == 5 * 16
    assert len(old) == 5 * 4
    assert set(old) == {"a/0", "a/1"}
    limit, looked, embedded = 8, 24, 24  # two epochs' worth; three candidates for each, looked at and embedded
    assert n == 12 + looked + embedded + 5 * 16
    assert limit == 2 * 4
    never, n = learned_from(monkeypatch, samples, config=replace(config, replay_frac=0.0))
    assert set(never) == {"a/2"}
    assert n == 12 + 5 * 12


@pytest.mark.parametrize("at", [1, 8, 14, 30, 45, 62, 70])
def test_a_retraining_is_cancelled_within_one_iteration_wherever_it_is(at: int) -> None:
    """Looking at labels (12), at candidates (24), embedding them (24), training with distillation (from 60 on)."""
    samples = labelled({("a", 0): 30, ("a", 1): 30, ("a", 2): 12})
    config = replace(CONFIG, replay_frac=0.25, epochs=5, distill=1.0, balance=True)
    steps = jobs.retrain_steps(
        samples, FakeDetector(skill=0.4), job="j", stream="a", window=2, replay_windows=2, config=config, seed=1,
        timer=lambda: 0.0, on_epoch=lambda report: None,
    )  # fmt: skip
    lane = CountingLane(allowed=at)
    with pytest.raises(JobCancelled):
        jobs.run_in_lane(steps, lane)
    assert lane.done == at
    with pytest.raises(StopIteration):
        next(steps)


def test_the_same_seed_gives_the_same_model_with_every_knob_on() -> None:
    samples = labelled({("a", 0): 20, ("a", 1): 20, ("a", 2): 12, ("b", 1): 9, ("b", 2): 9})
    config = replace(CONFIG, replay_frac=0.25, distill=0.3, balance=True)
    one, other = (retrained(samples, FakeDetector(skill=0.4), config, members=("a", "b"))[0] for _ in range(2))
    assert one.state()["skill"].equal(other.state()["skill"])
    assert one.skill != pytest.approx(0.4)


def test_what_comes_before_the_first_epoch_is_part_of_a_trials_cost() -> None:
    """A clock that goes one second on with every picture that is read or embedded."""
    clock = [0.0]

    class Slow(MemorySamples):
        def picture(self, ref: Any) -> Any:
            clock[0] += 1.0
            return super().picture(ref)

    samples = Slow({("a", 0): 30, ("a", 1): 30, ("a", 2): 16})
    for window in (0, 1, 2):
        for number, ref in enumerate(samples.sampled("a", window)):
            samples.label(ref, samples.truth(ref), golden="g", split="holdout" if number < 4 and window == 2 else "train")
    plain, replays = (replace(CONFIG, name=str(frac), replay_frac=frac) for frac in (0.0, 0.25))

    def trials(budget_gpu_s: float) -> Any:
        clock[0] = 0.0
        steps = jobs.profile_steps(
            samples, FakeDetector(skill=0.4), stream="a", window=2, configs=[plain, replays], epochs=2, data_frac=1.0,
            budget_gpu_s=budget_gpu_s, seed=0, timer=lambda: clock[0], scoring=SCORING, replay_windows=2,
        )  # fmt: skip
        return jobs.run_at_once(steps)[0]

    one, other = trials(1e9)
    assert one.init_gpu_s > 0, "labels are looked at"
    assert other.init_gpu_s > one.init_gpu_s, "and what is replayed is chosen"
    assert trials(other.init_gpu_s) == (), "it is part of the budget too"


@pytest.mark.parametrize(("n_older", "embedded"), [(0, 0), (8, 0), (9, 9), (24, 24), (600, 24)])
def test_how_many_older_pictures_are_embedded(n_older: int, embedded: int) -> None:
    config = replace(CONFIG, replay_frac=0.25)
    assert n_embedded(config, 12, n_older) == embedded  # four of them an epoch: eight exemplars of 24 candidates
    assert n_embedded(CONFIG, 12, n_older) == 0


def boxes(*xyxy: tuple[float, ...]) -> Detections:
    n = len(xyxy)
    return Detections(
        xyxy=np.array(xyxy, np.float32).reshape(-1, 4), score=np.ones(n, np.float32), class_id=np.zeros(n, np.int64)
    )


def test_what_was_dropped_from_the_labels_is_told() -> None:
    bad = boxes((1, 1, 15, 15), (17, 1, 31, 15), (np.nan, 1, 9, 9))
    config = replace(CONFIG, replay_frac=0.2, balance=True)
    _, notes, _ = retrained(labelled({("a", 1): 6, ("a", 2): 20}, bad), FakeDetector(), config)
    assert notes == [
        "20 of 60 labelled boxes are not trained on: 20 broken",
        "only one class is labelled (person): there is nothing to balance",
        "earlier windows: 6 of 18 labelled boxes are not trained on: 6 broken",
    ]


@pytest.mark.parametrize(
    ("labels", "frames", "code"),
    [
        (Detections.empty(), 20, "no_objects"),
        (boxes((np.nan, 1, 9, 9)), 20, "bad_labels"),
        (boxes((1, 1, 9, 9)), 3, "too_few"),
        (boxes((1, 1, 9, 9)), 0, "no_data"),
    ],
)  # fmt: skip
def test_labels_that_nothing_should_learn_from_end_the_job_with_their_code(labels: Detections, frames: int, code: str) -> None:
    with pytest.raises(JobError) as caught:
        retrained(labelled({("a", 2): frames}, labels), FakeDetector())
    assert (caught.value.code, caught.value.subject) == (code, "a")


def test_trials_learn_from_looked_at_labels_and_replay_as_a_retraining_would() -> None:
    config = replace(CONFIG, replay_frac=0.25, distill=0.3, balance=True, batch=4)

    def profiled(samples: MemorySamples, replay_windows: int) -> tuple[Any, int, int]:
        for ref in samples.sampled("a", 2)[:4]:
            samples.label(ref, samples.truth(ref), golden="g", split="holdout")
        steps, n = jobs.profile_steps(
            samples, FakeDetector(skill=0.4), stream="a", window=2, configs=[config, replace(config, name="x", epochs=9)],
            epochs=2, data_frac=1.0, budget_gpu_s=1e9, seed=0, timer=lambda: 0.0, scoring=SCORING, replay_windows=replay_windows,
        ), 0  # fmt: skip
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return *end.value, n
            n += 1

    frames = {("a", 0): 30, ("a", 1): 30, ("a", 2): 16}
    trials, n_train, n = profiled(labelled(frames), 2)
    assert [t.config.name for t in trials] == ["x"], "one family"
    assert (n_train, trials[0].n_profiled) == (12, 12)
    assert n == 12 + 24 + 24 + 3 * 4 + 2 * (12 + 4), "looks, candidates, embeddings, judgements, two epochs with replay"
    _, _, without = profiled(labelled(frames), 0)
    assert without == 12 + 3 * 4 + 2 * 12
    with pytest.raises(JobError) as caught:
        profiled(labelled({("a", 2): 30}, Detections.empty()), 0)
    assert caught.value.code == "no_objects"
