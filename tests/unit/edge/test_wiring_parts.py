"""What the wiring reads out of a configuration; no camera, no server, no weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs.errors import ConfigError, DriftboxError
from configs.load import load_demo, parse_config
from configs.schema import BoxConfig, CameraEntry
from edge.clock import SystemClock
from edge.gpu.fake_nvml import FakeGpu, FakeNvml
from edge.gpu.lanes import LaneBackend
from edge.profiler.command import ProfileOptions
from edge.profiler.profiler import Told
from edge.serving import ON_CPU, ON_GPU
from edge.store.store import Store
from edge.wiring import compute, models
from edge.wiring.box import next_window
from edge.wiring.cameras import reprofiling_of, watching_of
from edge.wiring.compute import watched_devices
from edge.wiring.models import cost_s, load_goldens, plain_lesson, plain_picture, suited, tries_of
from edge.wiring.rendered import rendered_server
from edge.wiring.settings import (
    device_of_models,
    engine_config,
    retrain_configs,
    scoring_of,
    serving_form,
    settled_serving,
    speed_of,
    with_serving,
)
from models.fake import FakeDetector
from models.tasks.registry import task_of
from scheduler.commands import Note
from scheduler.engine import EngineConfig
from scheduler.types import RetrainConfig, WindowOutcome
from scheduler.videostorm.rules import Objective
from streams.rendered.address import script_of
from streams.rendered.serve import DEMO_CAMERAS
from streams.samples import SampleStore
from tests.support.fakes import scripted_frame


def config_of(text: str) -> BoxConfig:
    return parse_config(text)


def script(url: str, id: str = "cam"):  # type: ignore[no-untyped-def]
    (entry,) = config_of(f'cameras: [{{id: {id}, url: "{url}"}}]').cameras
    return script_of(entry.id, entry.url.resolve())


def test_a_rendered_address_says_everything() -> None:
    made = script("rendered:yard?seed=8&fps=3&at=0:day,60:day,90:rain+dusk")
    assert (made.kind, made.seed, made.fps) == ("yard", 8, 3.0)
    assert made.schedule == ((0.0, "day"), (60.0, "day"), (90.0, "rain+dusk"))


def test_a_bare_scene_is_seeded_and_a_demo_camera_keeps_its_schedule() -> None:
    assert (script("rendered:hall").seed, script("rendered:hall").schedule) == (1, ((0.0, "day"),))
    demo = DEMO_CAMERAS[0]
    assert script(f"rendered:{demo.kind}", id=demo.id) == demo
    assert script(f"rendered:{demo.kind}?seed=5", id=demo.id).seed == 5
    assert script(f"rendered:{demo.kind}?seed=5", id=demo.id).schedule == ((0.0, "day"),)


@pytest.mark.parametrize(
    "url",
    [
        "rendered:street?seed=x",
        "rendered:street?seed=-1",
        "rendered:street?fps=fast",
        "rendered:street?fps=0",
        "rendered:street?fps=nan",
        "rendered:street?fps=1e9",
        "rendered:street?at=nan:day",
        "rendered:street?at=inf:day",
        "rendered:street?at=soon:day",
        "rendered:street?at=10",
        "rendered:street?at=0:day,20:pitch-black",
        "rendered:moon",
    ],
)
def test_a_wrong_rendered_address_is_a_configuration_error(url: str) -> None:
    with pytest.raises(DriftboxError) as caught:
        script(url)
    assert caught.value.exit_code == 2
    assert "camera cam" in caught.value.message


def test_every_demo_camera_can_be_made() -> None:
    demo = load_demo()
    scripts = [script_of(entry.id, entry.url.resolve()) for entry in demo.active_cameras if entry.url.scheme == "rendered"]
    assert [s.id for s in scripts] == [c.id for c in DEMO_CAMERAS]
    assert all(len(s.schedule) > 1 for s in scripts), "the demo drifts"


def test_the_engine_is_told_what_the_configuration_says() -> None:
    config = config_of(
        "gpus: {capacity_pct: 150}\nscheduler: {policy: optimal, min_gain: 0.2}\n"
        "window: {seconds: 77, label_frames: 9}\nmodels: {retrain: [{name: x, epochs: 3, lr: 0.01}]}"
    )
    engine = engine_config(config, golden_cost_s=0.25)
    assert (engine.capacity_pct, engine.policy, engine.min_gain, engine.window_s) == (150, "optimal", 0.2, 77.0)
    assert (engine.label_frames, engine.golden_gpu_s) == (9, 0.25)
    assert engine.say_lag, "a box says when a recording is late"
    assert [(c.name, c.epochs, c.lr) for c in engine.retrain] == [("x", 3, 0.01)]
    scoring = scoring_of(config_of("models: {iou_min: 0.5, golden_score_min: 0.6, edge_score_min: 0.2}"))
    assert (scoring.iou_min, scoring.golden_score_min, scoring.score_min) == (0.5, 0.6, 0.2)


@pytest.mark.parametrize(("said", "objective"), [("{}", "sum"), ("{knob_objective: maxmin}", "maxmin")])
def test_the_objective_of_the_knobs_is_the_only_rule_of_theirs_that_is_configured(said: str, objective: Objective) -> None:
    rules = engine_config(config_of(f"scheduler: {said}"), golden_cost_s=0.25).knob_rules
    assert rules == replace(EngineConfig().knob_rules, objective=objective)


def test_an_objective_that_nobody_knows_is_named_with_its_path() -> None:
    with pytest.raises(ConfigError) as caught:
        config_of("scheduler: {knob_objective: fair}")
    ((path, text),) = caught.value.problems
    assert path == "scheduler.knob_objective"
    assert "sum, maxmin" in text


@pytest.mark.parametrize(("capacity_pct", "share_pct", "speed"), [(200, 150, 1.0), (200, 50, 0.5), (150, 100, 1.0)])
def test_a_job_is_one_thread_and_gains_nothing_above_one_core(capacity_pct: int, share_pct: int, speed: float) -> None:
    points = speed_of(capacity_pct)
    (x0, y0), (x1, y1) = next((a, b) for a, b in zip(points, points[1:], strict=False) if a[0] <= share_pct <= b[0])
    assert y0 + (y1 - y0) * (share_pct - x0) / (x1 - x0) == pytest.approx(speed)


@pytest.mark.parametrize("capacity_pct", [50, 100])
def test_up_to_one_core_speed_is_proportional(capacity_pct: int) -> None:
    assert speed_of(capacity_pct) == ()


def test_a_new_window_begins_after_every_window_and_every_sample(tmp_path: Path) -> None:
    samples = SampleStore(tmp_path / "samples")
    with Store(tmp_path / "driftbox.db") as store:
        assert next_window(store, samples) == 0
        outcome = WindowOutcome(window=4, opened_s=0, closed_s=1, streams=(), predicted_quality=None, realised_quality=None)
        store.add_window(outcome, opened_utc=0, closed_utc=1)
        assert next_window(store, samples) == 5
        samples.add(scripted_frame("gone", 0), 5)  # sampled, then killed before the window closed
        assert next_window(store, samples) == 6, "also when that camera is not watched any more"


def test_the_cost_of_a_prediction_is_positive() -> None:
    assert cost_s(lambda: FakeDetector().predict([np.zeros((96, 128, 3), np.uint8)]), SystemClock()) >= 1e-4


def test_a_box_without_rendered_cameras_starts_no_server() -> None:
    with rendered_server(config_of("cameras: [{id: a, url: 'rtsp://192.0.2.1/x'}]")) as addresses:
        assert addresses == {}


def test_two_scenes_with_a_fault_are_told_before_a_server_starts() -> None:
    config = config_of("cameras: [{id: a, url: 'rendered:street'}, {id: b, url: 'rendered:street?at=0:never'}]")
    with pytest.raises(ConfigError), rendered_server(config):
        pass


def test_each_model_has_the_configurations_of_its_catalogue() -> None:
    config = config_of(
        "cameras: []\nmodels: {catalog: {yolov8n: {grid: {epochs: [3, 6], replay_frac: [0.25], distill: [1.0], balance: [true]}}}}"
    )
    short, long = retrain_configs(config, "yolov8n@320")
    assert short == RetrainConfig(name="e3-r25-k1-bal", epochs=3, replay_frac=0.25, distill=1.0, balance=True)
    assert long.epochs == 6
    assert retrain_configs(config) == retrain_configs(config, config.models.edge)


def test_an_added_layer_is_offered_to_classifiers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(models.log, "warning", lambda text, *values: said.append(text % values))
    configs = (RetrainConfig(name="plain"), RetrainConfig(name="wide", head_neurons=64))

    class Classifies(FakeDetector):
        head_neurons = 0

    assert suited(configs, Classifies(), "mobilenetv2") == configs
    assert said == []
    assert suited(configs, FakeDetector(), "yolov8n") == configs[:1]
    assert said == ["yolov8n is no classifier: 1 configurations with head_neurons are left out"]
    with pytest.raises(ConfigError, match="no retraining configuration is left for yolov8n") as caught:
        suited(configs[1:], FakeDetector(), "yolov8n")
    assert "models.catalog" in caught.value.remedy


@pytest.mark.parametrize("name", ["detection", "classification"])
def test_the_plain_picture_holds_something_to_learn_for_every_task(name: str) -> None:
    lesson = plain_lesson(plain_picture(task_of(name)))
    assert len(lesson.labels) > 0
    assert lesson.image.shape == (360, 640, 3)


def test_a_gpu_that_goes_while_the_box_runs_is_told_once_in_log_database_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, logged = FakeNvml([FakeGpu(name="X1")]), list[str]()
    monkeypatch.setattr(compute.log, "warning", lambda text, *args: logged.append(text % args))
    monkeypatch.setattr("edge.gpu.nvml.nvml_library", lambda: fake)
    heard: list[Callable[[Note], None]] = []
    told: list[Note] = []
    with Store(tmp_path / "box.db") as store, watched_devices(store, SystemClock(), heard) as gpus:
        heard.append(told.append)
        fake.fail("nvmlDeviceGetHandleByIndex", "GPU_IS_LOST")
        for _ in range(3):
            gpus.look()
        assert gpus.facts()[0].problem
        assert [note.code for note in told] == ["device"]
        assert "GPU 0 (X1): the GPU is lost" in told[0].text
        assert "restart the machine" in told[0].text
        assert [note.text for note in store.notes()] == [told[0].text]
    assert fake.users == 0
    assert [text for text in logged if "is lost" in text] == [told[0].text]


def test_models_live_where_the_jobs_compute() -> None:
    devices = {
        text: device_of_models(config_of(f"gpus: {text}"))
        for text in (
            "{}",
            "{backend: none}",
            "{device: cuda}",
            "{device: cuda, backend: green}",
            "{device: cuda, backend: mps}",
        )
    }
    assert list(devices.values()) == ["cpu", "cpu", "cuda", "cuda", "cpu"], "under MPS the jobs' processes have them"


def test_the_goldens_go_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def load(name: str, *, device: str = "cpu", **_: object) -> FakeDetector:
        asked.append((name, device))
        return FakeDetector()

    monkeypatch.setattr("models.zoo.load_detector", load)
    load_goldens(config_of("gpus: {device: cuda}\nmodels: {golden: big}"))
    assert asked == [("big", "cuda")]


def test_on_a_gpu_no_form_that_only_cores_can_run_serves() -> None:
    asked = ("{}", "{serving: openvino}")
    assert [serving_form(config_of(f"models: {models}")) for models in asked] == ["auto", "openvino"]
    named = ("auto", "tensorrt", "torch-compiled", "onnxruntime", "openvino", "openvino-int8", "onnxruntime-int8", "trained")
    on_gpu = [serving_form(config_of(f"gpus: {{device: cuda}}\nmodels: {{serving: {name}}}")) for name in named]
    assert on_gpu == ["auto", "tensorrt", "torch-compiled", "onnxruntime", *["trained"] * 4]


def test_where_a_queue_lets_the_gpu_compute_pictures_together_no_form_is_chosen_by_itself() -> None:
    queued = "scheduler: {{serving: orloj}}\ngpus: {{device: {device}}}\nmodels: {{serving: {form}}}"
    asked = [("cuda", "auto"), ("cuda", "tensorrt"), ("cpu", "auto")]
    assert [serving_form(config_of(queued.format(device=device, form=form))) for device, form in asked] == [
        "trained",
        "tensorrt",
        "auto",
    ]


CASCADE = "{name: kinds, nodes: [{transform: decode}, {transform: detect}, {transform: classify}, {transform: count}]}"
PLAIN = "{name: seen, template: count}"


@pytest.mark.parametrize(
    ("asked", "queries", "more", "way"),
    [
        ("auto", "", "", "own"),
        ("auto", PLAIN, "", "own"),
        ("auto", f"{PLAIN}, {CASCADE}", "", "orloj"),
        ("auto", CASCADE, ", enabled: false", "own"),
        ("edf", PLAIN, "", "edf"),
        ("orloj", "", "", "orloj"),
        ("own", PLAIN, "", "own"),
    ],
)
def test_there_is_a_queue_for_those_who_need_it(asked: str, queries: str, more: str, way: str) -> None:
    cameras = f'[{{id: yard, url: "/v.mp4"}}, {{id: gate, url: "/v.mp4", queries: [{queries}]{more}}}]'
    config = config_of(f"scheduler: {{serving: {asked}}}\ncameras: {cameras}")
    settled, why = settled_serving(config)
    assert settled.scheduler.serving == way
    assert ("gate/kinds" in why) == (asked == "auto" and way == "orloj")
    assert "seen" not in why
    assert with_serving(settled, asked) == config, "nothing else has changed"


@pytest.mark.parametrize(
    ("device", "serving", "cores", "workers"),
    [
        ("cpu", "own", 4, 1),
        ("cpu", "orloj", 1, 1),
        ("cpu", "orloj", 4, 4),
        ("cpu", "edf", 64, compute.POOL_WORKERS_MAX),
        ("cuda", "orloj", 16, 1),
    ],
)
def test_a_queue_has_a_worker_for_each_core_that_computes_frames(
    monkeypatch: pytest.MonkeyPatch, device: str, serving: str, cores: int, workers: int
) -> None:
    monkeypatch.setattr(compute, "usable_cores", lambda: cores)
    config = config_of(f"gpus: {{device: {device}}}\nscheduler: {{serving: {serving}}}")
    assert compute.pool_workers(config) == workers
    pool = compute.pool_of(config, LaneBackend(capacity_pct=100), SystemClock())
    assert (pool is None) == (serving == "own")
    assert pool is None or pool.backend.workers == workers


def test_a_form_that_computes_outside_a_green_context_is_not_tried_there() -> None:
    tries = {backend: tries_of(config_of(f"gpus: {{device: cuda, backend: {backend}}}")) for backend in ("lanes", "green")}
    assert tries == {"lanes": ON_GPU, "green": ("tensorrt-fp16", "tensorrt", "torch-compiled")}
    assert tries_of(config_of("{}")) == ON_CPU


@pytest.mark.parametrize(
    ("how", "device", "backend", "by_itself"),
    [
        ("auto", "cpu", "lanes", True),
        ("auto", "cuda", "green", True),
        ("auto", "cuda", "mps", False),
        ("note", "cpu", "lanes", False),
    ],
)
def test_a_box_profiles_a_camera_anew_only_where_it_measures_on_the_device_of_its_models(
    how: str, device: str, backend: str, by_itself: bool
) -> None:
    config = BoxConfig.model_validate({"scheduler": {"reprofile": how}, "gpus": {"device": device, "backend": backend}})
    assert (reprofiling_of(config) is not None) == by_itself


def test_a_box_profiles_the_cameras_and_queries_that_there_are_today(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[BoxConfig, str, str | None, float | None]] = []

    def command(config: BoxConfig, camera: str, options: ProfileOptions, *, told: Told, **_: object) -> None:
        assert options.live
        asked.append((config, camera, options.query, options.budget_s))
        told("its golden setting", 0, 1)

    monkeypatch.setattr("edge.profiler.command.profile_command", command)
    at_start = BoxConfig.model_validate({"scheduler": {"reprofile": "auto"}})
    today, looks = at_start.model_copy(), list[None]()
    again = reprofiling_of(at_start, lambda: today)
    assert again is not None
    again("gate", "plate", 3.0, lambda: looks.append(None))
    again("gate", "", 4.0, lambda: looks.append(None))
    assert [(camera, query, budget_s) for _, camera, query, budget_s in asked] == [("gate", "plate", 3.0), ("gate", None, 4.0)]
    assert all(config is today for config, *_ in asked)
    assert len(looks) == 2, "a job that is to end, or to wait, hears of it"


@pytest.mark.parametrize(
    ("url", "every_frame"),
    [("night.mp4", True), ("file:///clips/night.mp4", True), ("rtsp://192.0.2.1/a", True), ("rendered:yard", False)],
)
def test_whose_pictures_can_be_profiled_one_after_the_other(url: str, every_frame: bool) -> None:
    entry = CameraEntry.model_validate({"id": "a", "url": url})
    assert watching_of(entry, BoxConfig()).every_frame == every_frame
