"""Whole evaluations with scripted detectors: what policies may do, what they may see, and that the work is done once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.evaluate import run
from edge.evaluate.run import PolicyResult, result_json, run_policy
from edge.evaluate.studio import DAYPARTS, Studio, StudioSamples
from edge.evaluate.studio import Work as WorkDone
from edge.evaluate.world import EvaluateWorld, Stretch
from edge.footage import Clip, Footage, footage_of
from edge.memo import Memo
from models.detector import Detector
from models.evaluate import MatchCounts
from models.fake import FakeDetector
from models.tasks.base import Scoring
from models.tasks.detection import DETECTION, DetectionTask
from scheduler.commands import (
    SetKnobs,
    SetShares,
    StartLabelling,
    StartLook,
    StartProbe,
    StartRetraining,
    SwapModel,
    TurnToScene,
)
from scheduler.ekya import hindsight
from scheduler.ekya.usual_knobs import usual_quality_frac
from scheduler.engine import BoxEngine
from scheduler.events import BoxStarted, CameraAdded, KnobsMeasured, LabelDone, LookDone, ProbeDone, SwapDone
from scheduler.sim.driver import VirtualDriver
from scheduler.types import Detections, RetrainConfig
from streams.drift import DriftSpec
from tests.support.evaluation import COSTS, OPTIONS, POLICIES, results_of, scripted_studio, scripted_videos
from tests.support.scripted_video import write_scripted_video


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return scripted_videos(tmp_path_factory.mktemp("footage"))


@pytest.fixture(scope="module")
def memo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memo")


@pytest.fixture(scope="module")
def studio(videos: list[Path], memo: Path) -> Studio:
    return scripted_studio(videos, memo=Memo(memo))


@pytest.fixture(scope="module")
def results(studio: Studio) -> dict[str, PolicyResult]:
    return results_of(studio)


def test_every_policy_is_answered_in_the_published_form(studio: Studio, results: dict[str, PolicyResult]) -> None:
    answer = json.loads(json.dumps(result_json(list(results.values()), studio)))
    assert [row["policy"] for row in answer["policies"]] == list(POLICIES)
    for row in answer["policies"]:
        assert set(row["videos"]) == {"cam0", "cam1", "cam2"}
        assert row["mean_f1"] == pytest.approx(np.mean(list(row["videos"].values())), abs=1e-4)
        assert all(len(values) == OPTIONS.windows for values in row["f1_per_window"].values())
        assert [w["window"] for w in row["windows"]] == [0, 1, 2], "the last window is closed too"
    assert answer["costs"]["golden_gpu_s"] == 0.4


def test_an_answer_holds_what_every_training_taught_and_what_that_cost(
    studio: Studio, results: dict[str, PolicyResult]
) -> None:
    found = {p.id: p for p in hindsight.pupils_of(run.pupils(list(results.values()), studio))}
    assert set(found) == set(studio.footage)
    trained = {(t.stream, t.version): t for r in results.values() for t in r.record.trainings}
    assert trained
    assert {(p.id, lesson.version) for p in found.values() for lesson in p.lessons} == set(trained)
    for pupil in found.values():
        assert pupil.quality[1] == pytest.approx(studio.window_f1(pupil.id, 1, studio.base_version), abs=1e-4)
        for lesson in pupil.lessons:
            training = trained[pupil.id, lesson.version]
            assert lesson.quality[training.window] == pytest.approx(training.quality, abs=1e-4)
            assert lesson.gpu_s == pytest.approx(training.labels * studio.costs.golden_gpu_s + training.gpu_s, abs=1e-3)
    device = hindsight.Device(window_s=studio.options.window_s)
    ceiling = hindsight.given(list(found.values()), device)
    assert hindsight.foreseen(list(found.values()), device).quality <= ceiling + 1e-9


def test_retraining_helps_and_nobody_retrains_before_there_is_anything_to_learn_from(results: dict[str, PolicyResult]) -> None:
    thief, never = results["thief-repeat"], results["no-retrain"]
    assert thief.mean_f1 > never.mean_f1 + 0.1
    assert thief.admitted > 0
    assert all(t.window >= 1 for r in results.values() for t in r.record.trainings)


def test_no_retrain_never_labels_profiles_or_trains(results: dict[str, PolicyResult]) -> None:
    never = results["no-retrain"]
    assert (never.retrainings, never.admitted, never.gpu_s) == (0, 0, 0.0)
    assert never.record.labelled == {}


def test_admitted_models_were_better_by_the_box_s_own_labels(results: dict[str, PolicyResult]) -> None:
    for policy, result in results.items():
        if policy.startswith("uniform"):
            continue
        last = {g["candidate"]: g for g in result.record.gates}  # what known labels leave in doubt new ones judge
        better = [g for g in last.values() if (g["candidate_f1"] or 0) > (g["serving_f1"] or 0)]
        assert 0 <= len(better) - result.admitted <= 1, "what few frames do not prove is refused as well"
        assert result.finished >= result.admitted


def test_the_paper_s_split_has_no_gate(results: dict[str, PolicyResult]) -> None:
    splits = [result for policy, result in results.items() if policy.startswith("uniform")]
    assert splits
    assert all(not result.record.gates and result.admitted == result.finished > 0 for result in splits)


def test_a_second_evaluation_gives_the_same_bytes(videos: list[Path], studio: Studio, results: dict[str, PolicyResult]) -> None:
    again = scripted_studio(videos)
    first = json.dumps(result_json(list(results.values()), studio))
    assert json.dumps(result_json(list(results_of(again).values()), again)) == first
    assert again.done == replace(studio.done), "no cache, so it did all the work anew"


def test_with_the_memo_a_second_evaluation_does_no_work(
    videos: list[Path], memo: Path, studio: Studio, results: dict[str, PolicyResult]
) -> None:
    again = scripted_studio(videos, memo=Memo(memo))
    repeated = results_of(again)
    assert again.done == WorkDone(golden=0, predictions=0, trials=0, trainings=0)
    assert studio.done.golden > 0
    assert studio.done.trainings > 0
    assert {p: r.as_dict() for p, r in repeated.items()} == {p: r.as_dict() for p, r in results.items()}


def test_each_stream_is_decoded_once_however_often_rates_are_looked_at(
    videos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, looked = list[str](), list[int]()
    load, agreements = Footage.load, Studio.agreements

    def counted(footage: Footage, *args: Any, **how: Any) -> dict[int, np.ndarray]:
        decoded.append(footage.id)
        return load(footage, *args, **how)

    def looks(studio: Studio, stream: str, version: str, index: int, stride: int) -> Any:
        looked.append(index)
        return agreements(studio, stream, version, index, stride)

    monkeypatch.setattr(Footage, "load", counted)
    monkeypatch.setattr(Studio, "agreements", looks)
    results_of(scripted_studio(videos, edge=FakeDetector(skill=0.0)))
    assert sorted(decoded) == ["cam0", "cam1", "cam2"]
    assert looked


def test_trained_models_are_let_go_between_policies_and_read_again_when_asked_for(
    videos: list[Path], memo: Path, studio: Studio, results: dict[str, PolicyResult]
) -> None:
    trained = [t.version for t in results["thief-repeat"].record.trainings]
    assert trained
    assert all(studio.has(version) for version in trained)
    assert not any(version in studio._detectors for version in trained), "all policies are through"
    pixels = studio.image("cam0", 0)
    again = scripted_studio(videos, memo=Memo(memo))
    assert not again.has(trained[0])
    assert again.train(trained[0], lambda: pytest.fail("the memo has it")) is None
    wanted = again.detector(trained[0])
    found = studio.detector(trained[0])
    assert str(found.state()) == str(wanted.state())
    assert found.predict([pixels])[0].xyxy.tolist() == wanted.predict([pixels])[0].xyxy.tolist()
    assert studio.detector(trained[0]) is found, "read once"


def test_without_a_folder_nothing_is_let_go(videos: list[Path]) -> None:
    alone = scripted_studio(videos)
    trained = [t.version for t in results_of(alone, ("uniform(high,50)",))["uniform(high,50)"].record.trainings]
    assert trained
    assert all(version in alone._detectors for version in trained)


def test_policies_share_what_is_the_same(videos: list[Path]) -> None:
    """Same parent, data, configuration: trained once, although both retrain every camera in the first learning window."""
    shared = scripted_studio(videos, options=replace(OPTIONS, windows=2))
    both = results_of(shared, ("uniform(high,30)", "uniform(high,50)"))
    assert [r.finished for r in both.values()] == [3, 3]
    assert shared.done.trainings == 3


def drive(studio: Studio, policy: str) -> tuple[EvaluateWorld, VirtualDriver]:
    knobs = {s: studio.knobs(s) for s in sorted(studio.footage)}
    world = EvaluateWorld(studio, knobs)
    driver = VirtualDriver(BoxEngine(replace(studio.options.engine, policy=policy)), world)
    cameras = [CameraAdded(at_s=0.0, stream=s, knobs=knobs[s], version=studio.base_version) for s in knobs]
    driver.run([*cameras, BoxStarted(at_s=0.0)], until_s=studio.options.windows * studio.options.window_s)
    return world, driver


@pytest.mark.parametrize("policy", ["thief-repeat", "uniform(long,30)", "uniform(short,90)", "no-retrain"])
def test_shares_and_spare_make_up_the_capacity(studio: Studio, policy: str) -> None:
    _, driver = drive(studio, policy)
    shares = [c for _, commands in driver.log for c in commands if isinstance(c, SetShares)]
    assert len(shares) > OPTIONS.windows
    for command in shares:
        assert sum(pct for _, pct in command.shares_pct) + command.spare_pct == pytest.approx(100)
        assert all(pct >= 0 for _, pct in command.shares_pct)


@pytest.mark.parametrize("policy", ["cached(classes)", "cached(place)"])
def test_cached_trains_nothing_on_the_box_and_serves_models_of_earlier_windows(studio: Studio, policy: str) -> None:
    """Every window leaves a model for later ones, for free, as in the paper; the rule chooses among those."""
    world, driver = drive(studio, policy)
    assert driver.used_gpu_s["train"] == driver.used_gpu_s["profile"] == 0.0
    left = {t.version: t.window for t in world.record.trainings}
    served = [
        (c.stream, c.version, int(e.at_s // OPTIONS.window_s)) for e, cs in driver.log for c in cs if isinstance(c, SwapModel)
    ]
    assert served
    assert all(left[version] < window for _, version, window in served), "only what was there already can be chosen"


#: (camera, window) -> whose model it took up, and the window that this had learned from.
Picks = dict[tuple[str, int], tuple[str, int]]


def picks(studio: Studio, policy: str) -> Picks:
    world, driver = drive(studio, policy)
    came = {t.version: (t.stream, t.window - 1) for t in world.record.trainings}
    swaps = [(e.at_s, c) for e, cs in driver.log for c in cs if isinstance(c, SwapModel)]
    found = {(c.stream, int(at_s // OPTIONS.window_s)): came[c.version] for at_s, c in swaps}
    assert len(found) == len(swaps), "one choice a window"
    assert all(learned < window - 1 for (_, window), (_, learned) in found.items()), "never what this very window leaves"
    return found


def five_windows(*footage: Footage) -> Studio:
    return scripted_studio([], options=replace(OPTIONS, windows=5), footage=footage)


def clip_of(folder: Path, name: str, **changes: Any) -> Clip:
    return Clip(path=write_scripted_video(folder / f"{name}.mp4", change_every=3, **{"frames": 100, **changes}))


def test_cached_by_the_time_of_day_takes_turns_with_windows_where_no_light_is_declared(tmp_path: Path) -> None:
    """Three windows make a day: the first that comes again is the fourth, and in it the newest model is of another time."""
    studio = five_windows(*(footage_of(n, [clip_of(tmp_path, n, first_seed=i)]) for i, n in enumerate("ab")))
    assert DAYPARTS == 3
    assert picks(studio, "cached(time)") == {(s, w): (s, w - 3) for s in "ab" for w in (3, 4)}


def test_cached_by_the_time_of_day_goes_by_the_light_that_a_stream_declares(tmp_path: Path) -> None:
    """`a` is in dusk in its third window only; the one model of such a window until then is `b`'s."""
    faint = {"kind": "dusk", "strength": 0.001}  # declared; too weak to be seen
    a = footage_of("a", [clip_of(tmp_path, "a")], [DriftSpec(start=40, end=60, **faint)])  # type: ignore[arg-type]
    b = footage_of("b", [clip_of(tmp_path, "b", first_seed=9)], [DriftSpec(start=0, end=20, **faint)])  # type: ignore[arg-type]
    assert [a.daypart(20 * w + 10) for w in range(5)] == ["day", "day", "dusk", "day", "day"]
    found = picks(five_windows(a, b), "cached(time)")
    assert found == {
        ("a", 2): ("b", 0), ("a", 3): ("a", 1), ("a", 4): ("b", 2),
        ("b", 2): ("a", 0), ("b", 3): ("b", 1), ("b", 4): ("b", 2),
    }  # fmt: skip


def test_cached_by_the_number_of_objects_takes_the_model_of_the_window_that_held_as_many(tmp_path: Path) -> None:
    """Known of the last window: `a` shows 2, 10, 10, 2 objects in its first windows, `b` always 7."""
    a = footage_of("a", [clip_of(tmp_path, "a", objects=(2, 10, 10, 2, 2))])
    b = footage_of("b", [clip_of(tmp_path, "b", objects=(7,))])
    found = picks(five_windows(a, b), "cached(count)")
    assert found[("a", 2)] == ("b", 0), "10 objects are nearer to the 7 of the other camera than to its own 2"
    assert found[("a", 3)] == ("a", 1)
    assert found[("a", 4)] == ("a", 0), "not the newest"
    assert {source for (stream, _), (source, _) in found.items() if stream == "b"} == {"b"}


def test_cached_by_place_takes_the_newest_model_of_where_the_camera_looks(tmp_path: Path) -> None:
    """A camera that turns: street, yard, yard, street, street."""
    street, yard = clip_of(tmp_path, "street"), clip_of(tmp_path, "yard", first_seed=9)
    clips = [replace(street, stop=20), replace(yard, stop=40), replace(street, start=20, stop=60)]
    turning = footage_of("a", clips)
    assert [turning.place(20 * w + 10) for w in range(5)] == ["street", "yard", "yard", "street", "street"]
    assert picks(five_windows(turning), "cached(place)") == {("a", 3): ("a", 0)}, "the fourth window's is the only other"


@pytest.mark.parametrize("policy", ["thief-repeat", "uniform(long,30)"])
def test_evaluation_frames_are_never_labelled_and_gates_do_not_eat_training_frames(studio: Studio, policy: str) -> None:
    world, _ = drive(studio, policy)
    judged = {(s, i) for s in studio.footage for w in range(OPTIONS.windows) for _, i in studio.judged(s, w)}
    labelled = world.samples.labelled_indices()
    assert labelled
    assert not labelled & judged
    for stream in studio.footage:
        train = {id(x.image) for x in world.samples.labelled(stream, [0], "train")}
        held = {id(x.image) for x in world.samples.labelled(stream, [0], "holdout")}
        assert (len(train), len(held)) == (6, 4)
        assert not train & held


def test_a_window_in_progress_shows_only_its_past(studio: Studio) -> None:
    samples = StudioSamples(studio)
    everything = studio.candidates("cam1", 1)
    start, stop = studio.bounds("cam1", 1)
    for now_s in (0.0, 200.0, 260.0, 399.0, 400.0, 500.0):
        samples.set_time(now_s)
        seen = samples.sampled("cam1", 1)
        captured = [c for c in everything if 200.0 + 200.0 * (c.index - start) / (stop - start) <= now_s]
        assert [c.index for c in seen] == [c.index for c in captured]
    assert len(samples.sampled("cam1", 1)) == len(everything)


def test_a_glance_sees_and_labels_what_was_captured_by_then_and_is_charged_for_that(studio: Studio) -> None:
    stream, last, window_s = next(iter(studio.footage)), studio.options.windows - 1, studio.options.window_s
    world = EvaluateWorld(studio, {s: studio.knobs(s) for s in studio.footage})
    begun_s, version = (last + 0.5) * window_s, studio.base_version
    captured = [c for c in studio.kept(stream, last) if c.at_frac <= 0.5]
    candidates = studio.candidates(stream, last)
    assert len(candidates) / 2 < len(captured) < len(candidates) + len(studio.early(stream, last))
    work = world.start(StartLook(job="g", stream=stream, window=last, version=version, frames=100), begun_s)
    assert work.gpu_s == pytest.approx(len(captured) * studio.costs.infer_gpu_s)
    seen = work.finish(begun_s + 0.4 * window_s)
    assert isinstance(seen, LookDone)
    assert len(seen.look.frames) == len(captured), "not what came while it looked"
    asked = StartLabelling(job="s", stream=stream, window=last, frames=100, holdout_frac=1.0, version=version)
    labelled = world.start(asked, begun_s).finish(begun_s + 1)
    assert isinstance(labelled, LabelDone)
    assert (labelled.train, labelled.holdout) == (0, len(captured))
    world.samples.set_time((last + 1) * window_s)
    assert {c.index for c in captured} < {c.index for c in world.samples.sampled(stream, last)}, "what was labelled stays"
    assert (stream, last + 1) not in world.record.opened_with, "nobody knows yet what the next window opens with"
    chosen = StartProbe(job="c", stream=stream, window=last, version=version, candidates=(version,))
    found = world.start(chosen, begun_s + 1).finish(begun_s + 2)
    assert isinstance(found, ProbeDone)
    assert found.frames == len(captured)
    assert world.record.probes[-1]["window"] == last


def test_what_is_learned_of_the_window_in_progress_is_a_training_of_that_window(studio: Studio) -> None:
    stream, last, window_s = next(iter(studio.footage)), studio.options.windows - 1, studio.options.window_s
    world = EvaluateWorld(studio, {s: studio.knobs(s) for s in studio.footage})
    version, now_s, config = studio.base_version, (last + 0.5) * window_s, RetrainConfig(name="full", epochs=1)
    for window in (last, last - 1):
        asked = StartLabelling(job="l", stream=stream, window=window, frames=8, holdout_frac=0.4, version=version)
        labelled = world.start(asked, now_s).finish(now_s + 1)
        assert isinstance(labelled, LabelDone)
        train = StartRetraining(job="t", stream=stream, window=window, version=version, config=config)
        world.start(train, now_s + 1).finish(now_s + 2)
        made = world.record.trainings[-1]
        assert (made.window, made.labels) == (last, labelled.train)
        assert made.quality == studio.window_f1(stream, last, made.version)


def test_the_mean_of_versions_serves_as_a_version_of_its_own(studio: Studio) -> None:
    world = EvaluateWorld(studio, {s: studio.knobs(s) for s in studio.footage})
    for skill in (0.2, 0.8):
        assert studio.train(f"skill {skill}", lambda skill=skill: FakeDetector(skill=skill)) is None
    asked = SwapModel(stream="cam0", version="skill 0.2", quality=1.0, cause="reuse", mean_of=("skill 0.2", "skill 0.8"))
    told = world.swap(asked, 3.0)
    assert isinstance(told, SwapDone)
    assert told.asked == "skill 0.2"
    assert float(studio.detector(told.version).state()["skill"]) == pytest.approx(0.5)
    assert world.record.swaps[-1]["mean_of"] == ["skill 0.2", "skill 0.8"]
    again = world.swap(replace(asked, stream="cam1"), 4.0)
    assert again == replace(told, stream="cam1", at_s=4.0), "the same mean of the same versions"
    plain = world.swap(replace(asked, mean_of=()), 5.0)
    assert plain == SwapDone(at_s=5.0, stream="cam0", version="skill 0.2")


def test_a_training_that_fails_leaves_the_camera_its_model(videos: list[Path]) -> None:
    """The loss is NaN: no trial, so the thief finds no option; the uniform policy tries and keeps what it had."""
    failing = scripted_studio(videos, edge=FakeDetector(skill=0.4, nan_loss=True), options=replace(OPTIONS, windows=2))
    found = results_of(failing, ("thief-repeat", "uniform(high,50)", "no-retrain"))
    uniform = found["uniform(high,50)"]
    assert (found["thief-repeat"].retrainings, uniform.retrainings, uniform.finished, uniform.admitted) == (0, 3, 0, 0)
    assert any("nan" in s["note"] or "failed" in s["note"] for s in uniform.as_dict()["windows"][1]["videos"].values())
    assert all(0 < f1 < 1 for f1 in uniform.videos.values()), "inference went on"


def test_more_compute_never_shows_fewer_frames(studio: Studio) -> None:
    world, full_pct = EvaluateWorld(studio, {}), studio.full_pct("cam0")
    strides = [
        world.stride(Stretch(at_s=0, version="v", knobs="every", infer_pct=share), full_pct) for share in (5, 10, 20, 40, 80)
    ]
    assert strides == [8, 4, 2, 1, 1]
    assert world.stride(Stretch(at_s=0, version="v", knobs="1/4", infer_pct=80), full_pct) == 4, "knobs may ask for less"
    assert world.stride(Stretch(at_s=0, version="v", knobs="1/2", infer_pct=5), full_pct) == 8, (
        "the share may carry less than asked"
    )
    assert world.stride(Stretch(at_s=0, version="v", knobs=None, infer_pct=50), full_pct) is None
    assert world.stride(Stretch(at_s=0, version="v", knobs="every", infer_pct=0), full_pct) is None


def test_a_first_model_that_finds_nothing_gives_usual_knobs_not_proportional_ones(videos: list[Path]) -> None:
    blind = scripted_studio(videos, edge=FakeDetector(skill=0.0))
    assert blind.first_quality("cam0") == 0.0
    kept = {profile.name: profile.quality_frac for profile in blind.knobs("cam0")}
    assert kept == {
        "every" if n == 1 else f"1/{n}": pytest.approx(usual_quality_frac(n), abs=1e-4) for n in (1, 2, 3, 4, 6, 8, 12)
    }
    assert min(kept.values()) > 1 / 8


def test_where_knobs_could_not_be_profiled_rates_follow_the_model_that_serves(videos: list[Path]) -> None:
    """Pictures change every 3 frames, so answers of the frame before mostly agree."""
    blind = scripted_studio(videos, edge=FakeDetector(skill=0.0))
    assert not blind.is_profiled("cam0")
    usual = {stream: blind.knobs(stream) for stream in blind.footage}
    world = EvaluateWorld(blind, usual)
    assert blind.train("sees", lambda: FakeDetector(skill=1.0)) is None
    world.swap(SwapModel(stream="cam0", version="sees", quality=1.0), 0.0)
    world.observe(SetKnobs(stream="cam0", knobs="every"), 0.0)
    assert world.observe(SetShares(shares_pct=(("cam0/infer", 100.0),), spare_pct=0.0), 0.0) == []
    told = world.observe(SetKnobs(stream="cam1", knobs=None), OPTIONS.window_s)
    assert [type(event) for event in told] == [KnobsMeasured] * 3
    event, *others = (event for event in told if isinstance(event, KnobsMeasured))
    assert (event.stream, event.at_s) == ("cam0", OPTIONS.window_s)
    assert all(usual_quality_frac(2) < other.knobs[1].quality_frac <= event.knobs[1].quality_frac for other in others), (
        "the others' model says nothing, so they are taken to be like it"
    )
    kept = {knob.name: knob.quality_frac for knob in event.knobs}
    assert kept["every"] == 1.0
    assert kept["1/2"] > usual_quality_frac(2) + 0.02
    assert world.observe(SetKnobs(stream="cam1", knobs=None), OPTIONS.window_s) == [], "once"


def test_a_profile_that_was_measured_is_believed(studio: Studio) -> None:
    world = EvaluateWorld(studio, {stream: studio.knobs(stream) for stream in studio.footage})
    world.observe(SetKnobs(stream="cam0", knobs="every"), 0.0)
    world.observe(SetShares(shares_pct=(("cam0/infer", 100.0),), spare_pct=0.0), 0.0)
    assert world.observe(SetKnobs(stream="cam1", knobs=None), OPTIONS.window_s) == []


def test_a_profile_is_of_the_scene_that_it_was_measured_in_and_elsewhere_rates_follow(videos: list[Path]) -> None:
    glances = replace(OPTIONS, engine=replace(OPTIONS.engine, glance=True, reuse=True))
    turning = scripted_studio(videos, options=glances)
    assert turning.is_profiled("cam0")
    profile, window_s = turning.knobs("cam0"), OPTIONS.window_s
    world = EvaluateWorld(turning, {stream: turning.knobs(stream) for stream in turning.footage})
    world.observe(SetKnobs(stream="cam0", knobs="every"), 0.0)
    world.observe(SetShares(shares_pct=(("cam0/infer", 100.0),), spare_pct=0.0), 0.0)
    assert world.observe(SetKnobs(stream="cam1", knobs=None), 1.4 * window_s) == [], "as profiled, whatever is seen"
    (told,) = world.observe(TurnToScene(stream="cam0", scene=1), 1.4 * window_s)
    assert isinstance(told, KnobsMeasured)
    assert told.stream == "cam0"
    assert told.knobs not in (profile, turning.usual_knobs("cam0")), "what was seen since the window opened is of the new scene"
    (back,) = world.observe(TurnToScene(stream="cam0", scene=0), 2.4 * window_s)
    assert isinstance(back, KnobsMeasured)
    assert back.knobs == profile


def test_stale_detections_are_a_mean_over_their_ages(studio: Studio) -> None:
    """Pictures change every 3 frames: of the ages 0..5 those that reach back behind the change see other objects."""
    index = studio.judged("cam0", 1)[2][1]
    ages = [studio.counts("cam0", studio.base_version, index, stride) * stride for stride in (1, 2, 3)]
    assert ages[1] - ages[0] == pytest.approx(studio._counts_at("cam0", studio.base_version, index, 1))
    assert ages[2] - ages[1] == pytest.approx(studio._counts_at("cam0", studio.base_version, index, 2))
    deep = studio.counts("cam0", studio.base_version, index, 12) * 12
    parts = {0: 1, 1: 1, 2: 2, 4: 4, 8: 4}
    expected = sum(n * studio._counts_at("cam0", studio.base_version, index, age) for age, n in parts.items())
    assert deep == pytest.approx(expected)


def test_a_dearer_golden_model_shrinks_the_sample(videos: list[Path]) -> None:
    slow = scripted_studio(videos, costs={**COSTS, "golden_gpu_s": 2.0}, options=replace(OPTIONS, windows=2))
    notes = run_policy(slow, "thief-repeat", "thief-repeat").as_dict()["windows"][1]["notes"]
    assert any("golden model needs 2.00 GPU-s a frame" in note for note in notes)


def test_one_configuration_with_replay_learns_from_earlier_windows_too(videos: list[Path]) -> None:
    seen: list[int] = []

    class Spy(FakeDetector):
        def loss(self, images, targets):  # type: ignore[no-untyped-def]
            seen.append(len(images))
            return super().loss(images, targets)

        def clone(self) -> Detector:
            return Spy(skill=self.skill)

    plain = (RetrainConfig(name="plain", epochs=1, batch=4, lr=0.05),)
    replay = (RetrainConfig(name="replay", epochs=1, batch=4, lr=0.05, replay_frac=0.5),)
    counts = []
    for retrain in (plain, replay):
        seen.clear()
        results_of(scripted_studio(videos[:1], edge=Spy(skill=0.4), retrain=retrain), ("uniform(high,50)",))
        counts.append(sum(seen))
    assert counts == [6 + 6, 6 + 12]


class Counting(DetectionTask):
    """A task that a package could bring: detection whose quality is the part of objects that are found."""

    name, quality_name = "counting", "recall"

    def counts(self, predicted: Detections, labels: Detections, scoring: Scoring) -> MatchCounts:
        found = super().counts(predicted, labels, scoring)
        return MatchCounts(tp=found.tp, fp=found.fn, fn=found.fn)


def test_a_task_that_a_package_brings_is_judged_by_its_own_measure(videos: list[Path], memo: Path, studio: Studio) -> None:
    own = scripted_studio(videos, options=replace(OPTIONS, task=Counting()), memo=Memo(memo))
    quality = own.window_f1("cam0", 1, own.base_version)
    counts = MatchCounts.total(
        DETECTION.counts(studio.predictions("cam0", studio.base_version, i), studio.truth("cam0", i), OPTIONS.scoring)
        for _, i in studio.judged("cam0", 1)
    )
    assert quality == pytest.approx(counts.recall)
    assert own.done.golden == 0, "golden boxes are those that detection asked for"
    assert own.done.predictions > 0, "answers are kept by task"
    results = results_of(own, ("thief-repeat", "no-retrain"))
    assert results["thief-repeat"].mean_f1 > results["no-retrain"].mean_f1 + 0.1
