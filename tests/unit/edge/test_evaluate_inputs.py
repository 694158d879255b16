"""What `evaluate` refuses, before any long work, and what it says then; which frames it takes of a video."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError, DriftboxError, StorageError, StreamError, UsageError
from edge.costs import CostProfile, load_costs, measure_costs
from edge.evaluate import evaluate_command
from edge.evaluate.command import RETRAIN
from edge.evaluate.run import engine_config, fixed_configs
from edge.evaluate.studio import EARLY, EARLY_FRAC, EvaluateOptions, Studio
from edge.footage import Clip, Footage, footage_of, footage_of_videos, load_scenario
from edge.memo import Memo
from models.fake import FakeDetector, scripted_image
from scheduler.types import Detections, RetrainConfig
from tests.support.evaluation import COSTS, OPTIONS, cost_file
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.scripted_video import write_scripted_video

PROFILE = CostProfile(**COSTS, source="test")  # type: ignore[arg-type]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_scripted_video(tmp_path / "cam.mp4", frames=30)


def evaluate(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> dict[str, Any]:
    put_fakes_in_the_zoo(monkeypatch)
    return evaluate_command(**{"edge": "fake", "golden": "fake-other", "options": OPTIONS, **arguments})


# --- costs ------------------------------------------------------------------------------------------------------------


def test_a_cost_file_is_read_and_scaled(tmp_path: Path) -> None:
    profile = load_costs(cost_file(tmp_path))
    assert profile.golden_gpu_s == 0.4
    assert profile.source == "file costs.json"
    half = profile.scaled(2.0)
    assert (half.golden_gpu_s, half.infer_gpu_s, half.head_frac) == (0.2, 0.01, 0.3)
    assert "one GPU = 2 cores" in half.describe()


def test_the_answer_of_an_earlier_evaluation_is_a_cost_file(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps({"policies": [], "costs": {**COSTS, "source": "measured there"}}), encoding="utf-8")
    assert load_costs(path).source == "measured there"


def test_every_wrong_cost_is_named_at_once(tmp_path: Path) -> None:
    body = {**COSTS, "golden_gpu_s": -1, "head_frac": 2.0, "infer_gpu_s": "fast", "train_gpu_s": True, "speed": 3}
    del body["init_gpu_s"]
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(body), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_costs(path)
    assert {field for field, _ in caught.value.problems} == {
        "golden_gpu_s", "head_frac", "infer_gpu_s", "train_gpu_s", "speed", "init_gpu_s"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3", '{"infer_gpu_s": NaN}'])
def test_a_file_that_holds_no_costs_is_an_error_of_ours(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="cost"):
        load_costs(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_costs(tmp_path / "nowhere.json")


def test_costs_of_fewer_layers_lie_between_the_measured_points() -> None:
    assert PROFILE.sample_gpu_s(1.0) == 0.1
    assert PROFILE.sample_gpu_s(0.3) == pytest.approx(0.05)
    assert PROFILE.sample_gpu_s(0.65) == pytest.approx(0.075)
    assert PROFILE.sample_gpu_s(0.0) >= PROFILE.infer_gpu_s
    config = RetrainConfig(name="x", epochs=3, data_frac=0.5)
    assert PROFILE.retrain_gpu_s(config, 20) == pytest.approx(0.3 + 3 * 10 * 0.1)
    assert PROFILE.epoch_gpu_s(replace(config, replay_frac=0.5), 10) == pytest.approx(2 * PROFILE.epoch_gpu_s(config, 10))


def test_measured_costs_are_positive() -> None:
    profile = measure_costs(FakeDetector(), FakeDetector(skill=1.0), [scripted_image(1)[0]])
    assert all(value > 0 for name, value in profile.as_dict().items() if name.endswith("_gpu_s"))


def test_high_and_low_are_the_dearest_and_the_cheapest() -> None:
    config = engine_config(EvaluateOptions(candidates=20), PROFILE, RETRAIN)
    costs = {o.name: o.cost_gpu_s for o in config.reference}
    fixed = fixed_configs(config)
    assert costs[fixed["high"]] == max(costs.values())
    assert costs[fixed["low"]] == min(costs.values())
    assert config.gate_frames == 8, "no more than are held out"


# --- footage ----------------------------------------------------------------------------------------------------------


def test_a_video_too_short_for_its_windows(monkeypatch: pytest.MonkeyPatch, video: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cam has 30 frames: too few for 8 windows"):
        evaluate(monkeypatch, videos=[video], options=replace(OPTIONS, windows=8), costs=cost_file(tmp_path))


def test_videos_or_a_scenario_but_not_both(monkeypatch: pytest.MonkeyPatch, video: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="either videos or a scenario"):
        evaluate(monkeypatch)
    with pytest.raises(UsageError, match="either videos or a scenario"):
        evaluate(monkeypatch, videos=[video], scenario=tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"policies": "theif"}, UsageError),
        ({"policies": ""}, UsageError),
        ({"edge": "yolo99"}, UsageError),
        ({"plot": Path("f1.jpeg2000")}, UsageError),
        ({"retrain": ()}, UsageError),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, video: Path, arguments: dict[str, Any], error: type[DriftboxError]
) -> None:
    monkeypatch.setattr(Studio, "_load", lambda *_: pytest.fail("work began"))
    with pytest.raises(error):
        evaluate(monkeypatch, videos=[video], **arguments)


def test_files_that_are_no_videos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.mp4", tmp_path / "text.mp4"
    empty.touch()
    text.write_text("not a video", encoding="utf-8")
    for path in (empty, text, tmp_path / "missing.mp4"):
        with pytest.raises(StreamError):
            evaluate(monkeypatch, videos=[path])


def test_answers_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, video: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(StorageError):
        evaluate(monkeypatch, videos=[video], costs=cost_file(tmp_path), cache=blocked / "cache")
    with pytest.raises(StorageError):
        evaluate(monkeypatch, videos=[video], costs=cost_file(tmp_path), trace=blocked / "trace.json", policies="no-retrain")


def test_one_file_twice_gives_two_streams(video: Path) -> None:
    assert [f.id for f in footage_of_videos([video, video])] == ["cam", "cam-2"]


def scenario(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_scenario_joins_repeats_and_drifts(tmp_path: Path, video: Path) -> None:
    text = """
streams:
  - id: a
    clips: [{video: cam.mp4, start: 10, stop: 20}, {video: cam.mp4, repeat: 2}]
    drift: [{kind: underexposure, start: 5, ramp: 2, strength: 1.0}]
  - id: b
    clips: [{video: cam.mp4}]
"""
    elsewhere = tmp_path / "scenarios"
    elsewhere.mkdir()
    a, b = load_scenario(scenario(elsewhere, text), folder=tmp_path)
    assert (a.frames, b.frames) == (10 + 2 * 30, 30)
    clear, dark = a.load([0, 12, 40], longest_px=640), b.load([10, 2], longest_px=640)
    assert np.array_equal(clear[0], dark[10]), "the joined footage begins with frame 10 of the clip"
    assert clear[12].mean() < 0.3 * dark[2].mean(), "frame 12 is frame 2 of the repeated clip, in the dark"
    assert np.array_equal(clear[12], a.load([12], longest_px=640)[12])
    with pytest.raises(StreamError):
        load_scenario(elsewhere / "scenario.yaml")  # without the folder, the file's own


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("streams: []", "wrong"),
        ("streams: [{id: a, clips: [{video: cam.mp4, spead: 2}]}]", "wrong"),
        ("streams: [{id: a, clips: [{video: cam.mp4}], drift: [{kind: snow}]}]", "snow"),
        ("streams: [{id: a, clips: [{video: cam.mp4}], drift: [{kind: fog, strength: 2}]}]", "wrong"),
        ("streams: [{id: a, clips: [{video: cam.mp4}], drift: [{kind: fog, start: 9, end: 3}]}]", "no sense"),
        ("streams: [{id: a, clips: [{video: cam.mp4}]}, {id: a, clips: [{video: cam.mp4}]}]", "two streams"),
        ("streams: {", "cannot be read"),
        ("", "wrong"),
    ],
)
def test_scenarios_that_are_wrong(tmp_path: Path, video: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_scenario(scenario(tmp_path, text))


def test_a_scenario_s_empty_clip_and_missing_video(tmp_path: Path, video: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        load_scenario(scenario(tmp_path, "streams: [{id: a, clips: [{video: cam.mp4, start: 30}]}]"))
    with pytest.raises(StreamError):
        load_scenario(scenario(tmp_path, "streams: [{id: a, clips: [{video: gone.mp4}]}]"))


def test_frames_are_reduced_never_enlarged(video: Path) -> None:
    footage = footage_of("a", [Clip(path=video)])
    assert footage.load([3], longest_px=64)[3].shape == (48, 64, 3)
    assert footage.load([3], longest_px=640)[3].shape == (96, 128, 3)


class _Frames(Footage):
    """Footage without a file."""

    def load(self, indices: Any, *, longest_px: int) -> dict[int, np.ndarray]:
        return {i: np.zeros((4, 4, 3), np.uint8) for i in indices if i < self.seed}


def studio_of(frames: int, options: EvaluateOptions, decodable: int = 10**9) -> Studio:
    footage = _Frames(id="s", clips=(Clip(path=Path("x")),), lengths=(frames,), fps=10, seed=decodable)
    return Studio([footage], FakeDetector(), FakeDetector(), PROFILE, options, Memo(), lambda text: None)


@settings(max_examples=60, deadline=None)
@given(
    frames=st.integers(4, 400), windows=st.integers(1, 8), candidates=st.integers(1, 40), judged=st.integers(1, 30)
)  # fmt: skip
def test_what_is_judged_is_never_sampled(frames: int, windows: int, candidates: int, judged: int) -> None:
    windows = min(windows, frames // 4)
    studio = studio_of(frames, EvaluateOptions(windows=windows, candidates=candidates, judged=judged))
    for window in range(windows):
        start, stop = studio.bounds("s", window)
        shown = [i for _, i in studio.judged("s", window)]
        sampled = [c.index for c in studio.candidates("s", window)]
        assert not set(shown) & set(sampled)
        assert shown == sorted(set(shown))
        assert sampled == sorted(set(sampled))
        assert all(start <= i < stop for i in [*shown, *sampled])
        assert len(sampled) == min(candidates, stop - start - len(shown))
        early = [c.index for c in studio.early("s", window)]
        assert not {*shown, *sampled} & set(early)
        assert early == sorted(set(early))
        assert all(start <= i < start + EARLY_FRAC * (stop - start) for i in early)
        assert len(early) <= EARLY
        assert [c.index for c in studio.kept("s", window)] == sorted([*sampled, *early])
        assert all(0 <= position < 1 for position, _ in studio.judged("s", window))


def test_a_file_that_ends_early_repeats_its_last_picture() -> None:
    studio = studio_of(100, EvaluateOptions(windows=2, candidates=5, judged=4), decodable=60)
    assert studio.image("s", studio.judged("s", 1)[-1][1]).shape == (4, 4, 3)
    with pytest.raises(StreamError, match="none of its frames"):
        studio_of(100, EvaluateOptions(windows=2, candidates=5, judged=4), decodable=0)


# --- memo -------------------------------------------------------------------------------------------------------------


def test_the_memo_keeps_detections_exactly(tmp_path: Path) -> None:
    found = Detections(
        xyxy=np.array([[1.1, 2.2, 3.3, 4.4]], np.float32), score=np.array([0.123], np.float32), class_id=np.array([4])
    )
    Memo(tmp_path).keep_detections("ab" * 32, found)
    read = Memo(tmp_path).detections("ab" * 32)
    assert read is not None
    for name in ("xyxy", "score", "class_id"):
        assert np.array_equal(getattr(read, name), getattr(found, name))
        assert getattr(read, name).dtype == getattr(found, name).dtype
    assert Memo(tmp_path).detections("cd" * 32) is None
    assert Memo().state("ab" * 32) is None


def test_a_model_s_digest_follows_its_tensors() -> None:
    one, other = FakeDetector(skill=0.4), FakeDetector(skill=0.41)
    assert Memo.digest_of(one.state()) == Memo.digest_of(one.clone().state())
    assert Memo.digest_of(one.state()) != Memo.digest_of(other.state())
