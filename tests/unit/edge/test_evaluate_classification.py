"""`driftbox evaluate --task classification` with scripted models: regions of footage, accuracy, stale answers, work done once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs.units import NOTHING
from edge.costs import CostProfile, measure_costs
from edge.evaluate.command import run_all, usual_frame
from edge.evaluate.run import PolicyResult, engine_config, result_json
from edge.evaluate.seen import carried_over, seen_counts
from edge.evaluate.studio import EvaluateOptions, FromMemo, Studio, StudioSamples
from edge.footage import footage_of_videos
from edge.memo import Memo
from models.evaluate import MatchCounts
from models.tasks.base import Scoring
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from scheduler.types import Detections, RetrainConfig
from tests.support.evaluation import COSTS
from tests.support.moving import ColourClassifier, ColourGolden, moving_image, write_moving_video

RETRAIN = (RetrainConfig(name="long", epochs=6, batch=4, lr=0.05), RetrainConfig(name="short", epochs=2, batch=4, lr=0.05))
OPTIONS = EvaluateOptions(windows=3, window_s=200.0, fps=10.0, candidates=24, judged=6, task=CLASSIFICATION)
POLICIES = ("thief-repeat", "no-retrain")
PROFILE = CostProfile(**COSTS, source="test")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("footage")
    return [write_moving_video(folder / f"cam{n}.mp4", frames=120, seed=n) for n in range(2)]


def studio_of(videos: list[Path], memo: Memo | None = None, options: EvaluateOptions = OPTIONS, skill: float = 0.4) -> Studio:
    ready = replace(options, engine=engine_config(options, PROFILE, RETRAIN))
    return Studio(
        footage_of_videos(videos),
        ColourClassifier(skill=skill),
        ColourGolden(),
        PROFILE,
        ready,
        memo or Memo(),
        lambda text: None,
    )


@pytest.fixture(scope="module")
def memo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memo")


@pytest.fixture(scope="module")
def studio(videos: list[Path], memo_dir: Path) -> Studio:
    return studio_of(videos, Memo(memo_dir))


@pytest.fixture(scope="module")
def results(studio: Studio) -> dict[str, PolicyResult]:
    return {r.policy: r for r in run_all(studio, POLICIES)}


def test_the_footage_says_what_moves(studio: Studio) -> None:
    counts = [len(studio.truth("cam0", index)) for _, index in studio.judged("cam0", 1)]
    assert np.mean(counts) == pytest.approx(4, abs=0.7), "three squares and a branch, but where two touch"
    classes = {int(c) for _, i in studio.judged("cam0", 1) for c in studio.truth("cam0", i).class_id}
    assert classes == {0, 2, 4, NOTHING}


def test_the_first_frames_are_learnt_and_hold_nothing(studio: Studio) -> None:
    assert min(studio.candidates("cam0", 0), key=lambda c: c.index).index < 6
    first = min(studio.candidates("cam0", 0), key=lambda c: c.index)
    picture = StudioSamples(studio).picture(first)
    assert picture.regions is not None
    assert len(picture.regions) == 0
    samples = StudioSamples(studio)
    samples.set_time(OPTIONS.window_s)
    names = {ref.name for ref in samples.sampled("cam0", 0)}
    assert first.name not in names, "nothing moves in it: no sample"
    assert len(names) >= 8


def test_a_stream_in_which_more_moves_needs_more_compute(videos: list[Path], tmp_path: Path) -> None:
    still = tmp_path / "still.mp4"
    write_moving_video(still, frames=120, still=True)
    studio = studio_of([videos[0], still])
    usual_pct = 100 * OPTIONS.fps * PROFILE.infer_gpu_s
    assert studio.full_pct("cam0") > 1.8 * usual_pct
    assert studio.full_pct("still") == pytest.approx(0.05 * usual_pct), "hardly anything, but not nothing"
    demand_pct = {stream: studio.knobs(stream)[0].demand_pct for stream in ("cam0", "still")}
    assert demand_pct["cam0"] > 10 * demand_pct["still"]
    detecting = studio_of([videos[0], still], options=replace(OPTIONS, task=DETECTION))
    assert detecting.full_pct("cam0") == detecting.full_pct("still") == pytest.approx(usual_pct)


def test_quality_is_the_accuracy_of_the_classifier(videos: list[Path]) -> None:
    for skill in (0.0, 0.5, 1.0):
        studio = studio_of(videos, skill=skill)
        quality = np.mean([studio.window_f1(s, w, studio.base_version) for s in ("cam0", "cam1") for w in range(3)])
        assert quality == pytest.approx(skill, abs=0.1 if 0 < skill < 1 else 0.02)


def test_retraining_helps_through_the_whole_box(results: dict[str, PolicyResult]) -> None:
    thief, never = results["thief-repeat"], results["no-retrain"]
    assert thief.admitted > 0
    assert thief.mean_f1 > never.mean_f1 + 0.1
    assert never.retrainings == 0


def test_the_answer_has_the_published_form(studio: Studio, results: dict[str, PolicyResult]) -> None:
    answer = json.loads(json.dumps(result_json(list(results.values()), studio)))
    assert [row["policy"] for row in answer["policies"]] == list(POLICIES)
    assert all(0 <= f1 <= 1 for row in answer["policies"] for values in row["f1_per_window"].values() for f1 in values)


def test_a_second_evaluation_with_the_memo_does_no_work(
    videos: list[Path], memo_dir: Path, results: dict[str, PolicyResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.footage.Motion.find", lambda *_, **__: pytest.fail("looked for movement again"))
    again = studio_of(videos, Memo(memo_dir))
    repeated = {r.policy: r for r in run_all(again, POLICIES)}
    assert (again.done.golden, again.done.predictions, again.done.trials, again.done.trainings) == (0, 0, 0, 0)
    assert {p: r.as_dict() for p, r in repeated.items()} == {p: r.as_dict() for p, r in results.items()}


def test_golden_detections_are_shared_with_an_evaluation_of_detection(videos: list[Path], tmp_path: Path) -> None:
    memo = Memo(tmp_path)
    first = studio_of(videos, memo)
    index = first.candidates("cam0", 1)[0].index
    first.truth("cam0", index)
    other = studio_of(videos, memo, replace(OPTIONS, task=DETECTION))
    assert len(other.truth("cam0", index)) > 0
    assert (first.done.golden, other.done.golden) == (1, 0)


def test_a_job_asks_the_memory_and_gets_what_the_model_would_say(studio: Studio) -> None:
    sample = studio.candidates("cam1", 2)[3]
    picture = StudioSamples(studio).picture(sample)
    remembered = FromMemo(studio, "cam1", studio.base_version)
    done = studio.done.predictions
    (first,) = studio.task.predict(remembered, [picture], score_min=0.25)  # type: ignore[arg-type]
    (again,) = studio.task.predict(remembered, [picture], score_min=0.25)  # type: ignore[arg-type]
    (real,) = CLASSIFICATION.predict(studio.detector(studio.base_version), [picture], score_min=0.25)
    assert studio.done.predictions <= done + 1
    np.testing.assert_array_equal(first.class_id, real.class_id)
    np.testing.assert_array_equal(again.class_id, real.class_id)
    assert len(real) >= 2
    (mirrored,) = studio.task.predict(remembered, [replace(picture, image=picture.image[:, ::-1].copy())])  # type: ignore[arg-type]
    assert len(mirrored) == len(real), "no frame of the footage: the model itself is asked"


def test_knobs_that_skip_frames_lose_quality_because_squares_move_on(videos: list[Path]) -> None:
    studio = studio_of(videos, skill=1.0)
    profile = {k.name: k.quality_frac for k in studio.knobs("cam0")}
    assert profile["every"] == 1.0
    assert profile["1/2"] < 1.0
    assert profile["1/8"] < profile["1/2"], "7 px a frame, squares of 20 px"


# --- stale answers ----------------------------------------------------------------------------------------------------


def found(*boxes: tuple[float, float, float, float, int], score: float = 0.9) -> Detections:
    array = np.array(boxes, np.float32).reshape(-1, 5)
    return Detections(
        xyxy=array[:, :4].copy(), score=np.full(len(array), score, np.float32), class_id=array[:, 4].astype(np.int64)
    )


def test_old_answers_go_to_the_regions_they_lie_over() -> None:
    """A car that moved a little, a person that went away, a branch where nothing is claimed, a bus that appeared."""
    old = found((0, 0, 20, 20, 2), (100, 0, 120, 20, 0), (50, 50, 60, 60, NOTHING))
    now = found((4, 0, 24, 20, 2), (50, 50, 60, 60, NOTHING), (150, 80, 190, 110, 4))
    shown = CLASSIFICATION.shown(old)
    carried, over = carried_over(shown, now, 0.3)
    assert carried.class_id.tolist() == [2, NOTHING, NOTHING]
    assert over == 1
    counts = seen_counts(CLASSIFICATION, old, now, Scoring())
    assert counts == MatchCounts(tp=2, fp=1 + 1, fn=1), "the bus is missed; the person is a ghost"


def test_a_wrong_class_is_wrong_once() -> None:
    counts = seen_counts(CLASSIFICATION, found((0, 0, 20, 20, 0)), found((2, 0, 22, 20, 2)), Scoring())
    assert counts == MatchCounts(tp=0, fp=1, fn=1)


def test_on_the_frame_s_own_regions_it_is_the_task_s_own_count() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        n = int(rng.integers(0, 6))
        boxes = np.array([(40 * i, 10, 40 * i + 20, 40) for i in range(n)], np.float32).reshape(-1, 4)
        labels, said = (
            Detections(xyxy=boxes, score=np.ones(n, np.float32), class_id=rng.choice([0, 2, NOTHING], n).astype(np.int64))
            for _ in range(2)
        )
        assert seen_counts(CLASSIFICATION, said, labels, Scoring()) == CLASSIFICATION.counts(said, labels, Scoring())


def test_nothing_old_and_nothing_new() -> None:
    none = Detections.empty()
    assert seen_counts(CLASSIFICATION, none, none, Scoring()) == MatchCounts()
    assert seen_counts(CLASSIFICATION, found((0, 0, 9, 9, 2)), none, Scoring()) == MatchCounts(fp=1)
    assert seen_counts(CLASSIFICATION, none, found((0, 0, 9, 9, 2)), Scoring()) == MatchCounts(fp=1, fn=1)


def test_for_detection_old_boxes_are_judged_as_they_are() -> None:
    old, now = found((0, 0, 20, 20, 2), (60, 0, 80, 20, 0)), found((4, 0, 24, 20, 2))
    assert seen_counts(DETECTION, old, now, Scoring()) == DETECTION.counts(old, now, Scoring()) == MatchCounts(tp=1, fp=1)


# --- costs ------------------------------------------------------------------------------------------------------------


def test_the_usual_frame_has_about_the_mean_number_of_regions() -> None:
    moving = {i: np.zeros((n, 4), np.float32) for i, n in enumerate([0, 0, 9, 3, 4, 3])}
    assert usual_frame(moving) == 3


def test_costs_are_measured_on_crops() -> None:
    edge, golden = ColourClassifier(), ColourGolden()
    regions = np.array([(10, 10, 40, 40), (50, 50, 90, 90)], np.float32)
    profile = measure_costs(edge, golden, [moving_image(3)], task=CLASSIFICATION, regions=[regions])
    assert profile.infer_gpu_s > 0
    assert profile.train_gpu_s > 0
    assert edge.crops % 2 == 0
    assert edge.crops > 0
    assert golden.calls > 0
