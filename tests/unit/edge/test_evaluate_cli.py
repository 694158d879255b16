"""`driftbox evaluate` as typed: JSON, table, every option, the files it writes, errors without tracebacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge import cli
from models.tasks.classification import ClassificationTask
from scheduler.trace import parse_trace
from tests.support.evaluation import cost_file, scripted_videos
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.moving import ColourGolden, put_classifier_in_the_zoo, write_moving_video

SMALL = ("--windows", "2", "--window-s", "200", "--label-frames", "8", "--judged-frames", "4", "--fps", "20")
MODELS = ("--edge", "fake", "--golden", "fake-other")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    put_fakes_in_the_zoo(monkeypatch)

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["evaluate", *(str(word) for word in words)])
        printed = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), printed.out, printed.err

    return run


def test_json_is_one_document_in_the_published_form(call: Any, tmp_path: Path) -> None:
    videos = scripted_videos(tmp_path, count=2, frames=40)
    code, out, _ = call(
        *videos, *MODELS, *SMALL, "--costs", cost_file(tmp_path), "--policy", "uniform,no-retrain", "--gpus", "0.5",
        "--gpu-speed", "2", "--seed", "3", "--cache", tmp_path / "cache", "--trace", tmp_path / "t.json", "--plot",
        tmp_path / "f1.svg", "--json",
    )  # fmt: skip
    assert code == 0
    answer = json.loads(out)
    names = [row["policy"] for row in answer["policies"]]
    assert names == [f"uniform({c},{w})" for c in ("high", "low") for w in (30, 50, 90)] + ["no-retrain"]
    for row in answer["policies"]:
        assert {"policy", "mean_f1", "retrainings", "gpu_s", "videos"} <= set(row)
        assert set(row["videos"]) == {"cam0", "cam1"}
    assert answer["options"] | {"gpus": 0.5, "gpu_speed": 2.0, "seed": 3, "windows": 2, "fps": 20.0} == answer["options"]
    assert answer["costs"]["golden_gpu_s"] == 0.2, "one GPU does the work of two cores"
    assert parse_trace((tmp_path / "t.json").read_text(encoding="utf-8")).windows == 2
    assert (tmp_path / "f1.svg").read_text(encoding="utf-8").count("uniform") >= 1


def test_the_table_names_every_policy_and_progress_comes_as_plain_lines(call: Any, tmp_path: Path) -> None:
    videos = scripted_videos(tmp_path, count=1, frames=40)
    code, out, err = call(*videos, *MODELS, *SMALL, "--costs", cost_file(tmp_path), "--policy", "thief-repeat,no-retrain")
    assert code == 0
    assert "mean F1" in out
    assert "thief-repeat" in out
    assert "no-retrain" in out
    assert "costs (file costs.json): inference 20.0 ms/frame, golden 400.0 ms/frame" in err, "costs are printed"
    assert "100 %" in err
    assert "\x1b" not in err, "no bars outside a terminal"


def test_a_scenario_with_its_videos_elsewhere(call: Any, tmp_path: Path) -> None:
    footage = tmp_path / "videos"
    footage.mkdir()
    scripted_videos(footage, count=1, frames=40)
    scenario = tmp_path / "s.yaml"
    scenario.write_text("streams: [{id: a, clips: [{video: cam0.mp4, repeat: 2}]}]", encoding="utf-8")
    words = (*MODELS, *SMALL, "--costs", cost_file(tmp_path), "--policy", "no-retrain", "--json")
    code, out, _ = call("--scenario", scenario, "--footage", footage, *words)
    assert (code, list(json.loads(out)["policies"][0]["videos"])) == (0, ["a"])
    code, out, err = call("--scenario", scenario, *words)
    assert code == 1
    assert "cam0.mp4" in out + err


def box_file(folder: Path, sections: str) -> Path:
    """A box's configuration with one camera and these sections."""
    file = folder / "box.yaml"
    file.write_text(f"cameras: [{{id: a, url: 'rtsp://localhost/a'}}]\n{sections}", encoding="utf-8")
    return file


def test_a_configuration_gives_its_retrainings_and_scheduler(call: Any, tmp_path: Path) -> None:
    config = box_file(
        tmp_path,
        "scheduler: {min_quality: 0.1}\nmodels: {retrain: [{name: mine, epochs: 2}, {name: dearer, epochs: 4}]}\n",
    )
    videos = scripted_videos(tmp_path, count=1, frames=40)
    words = (*MODELS, *SMALL, "--costs", cost_file(tmp_path), "--policy", "uniform(high,50)", "--json")
    code, out, err = call(*videos, *words, "--config", config)
    assert code == 0, err
    assert json.loads(out)["fixed_configs"] == {"high": "dearer", "low": "mine"}


def test_switches_of_the_command_overrule_the_configuration_and_change_what_is_done(call: Any, tmp_path: Path) -> None:
    config = box_file(
        tmp_path,
        "scheduler: {drift: {enabled: true}, reuse: {enabled: true, group: true}}\n"
        "models: {retrain: [{name: mine, epochs: 2}]}\n",
    )
    videos = scripted_videos(tmp_path, count=2, frames=40)
    words = (*videos, *MODELS, *SMALL, "--costs", cost_file(tmp_path), "--policy", "thief-repeat", "--json")

    def told(*switches: str | Path) -> tuple[tuple[bool, bool, bool], float]:
        code, out, err = call(*words, *switches)
        assert code == 0, err
        answer = json.loads(out)
        said = answer["options"]
        return (said["drift"], said["reuse"], said["group"]), answer["policies"][0]["gpu_s_by_kind"]["look"]

    off = ("--no-drift", "--no-reuse", "--no-group")
    assert told()[0] == (False, False, False), "without a configuration"
    assert told("--config", config)[0] == (True, True, True)
    assert told("--config", config, *off) == ((False, False, False), 0.0), "nobody looks at a window"
    for switch, on in (("--drift", (True, False, False)), ("--reuse", (False, True, False)), ("--group", (False, False, True))):
        switches, look_gpu_s = told(*(word for word in off if word != f"--no-{switch[2:]}"), switch)
        assert switches == on
        assert look_gpu_s > 0


def test_the_task_of_the_command_is_that_of_the_run(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_classifier_in_the_zoo(monkeypatch)
    monkeypatch.setattr(ClassificationTask, "load_golden", lambda self, name, device="cpu": ColourGolden())
    video = write_moving_video(tmp_path / "cam0.mp4", frames=60)
    words = (video, *SMALL, "--costs", cost_file(tmp_path), "--policy", "no-retrain", "--json")
    code, out, err = call(*words, "--edge", "colour-classifier", "--golden", "colour-golden", "--task", "classification")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["task"], answer["quality"], answer["edge"]) == ("classification", "accuracy", "colour-classifier")
    assert 0 < answer["policies"][0]["mean_f1"] < 1
    code, out, err = call(*words, "--edge", "colour-classifier", "--golden", "fake-other")
    assert code == 2, "the usual task is detection, and this is no detector"
    assert "colour-classifier" in out + err
    code, out, err = call(*words, "--task", "clasification")
    assert code == 2
    assert "'clasification'" in out + err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--policy", "theif"), 2, "unknown policy 'theif'"),
        (("--costs", "nowhere.json"), 2, "nowhere.json"),
        (("--scenario", "nowhere.yaml"), 2, "either videos or a scenario"),
        (("--windows", "9"), 2, "too few for 9 windows"),
        (("--golden", "yolo99"), 2, "yolo99"),
    ],
)
def test_mistakes_are_told_in_a_line(call: Any, tmp_path: Path, words: tuple[str, ...], code: int, text: str) -> None:
    videos = scripted_videos(tmp_path, count=1, frames=20)
    got, _, err = call(*videos, *MODELS, *SMALL, *words)
    assert got == code
    assert text in err
    assert "Traceback" not in err
