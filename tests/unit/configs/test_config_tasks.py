"""A camera's task and the models of a task: known names only, known without importing what is behind them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.load import parse_config
from configs.schema.models import ModelsSection
from configs.schema.tasks import SHIPPED
from configs.tasks import BUILT_IN, GROUP, known_tasks
from models.tasks import registry
from models.zoo import is_classifier
from tests.support.plug_ins import installed_example

ROOT = Path(__file__).parents[3]


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return dict(caught.value.problems)


def camera(task: str) -> str:
    return f"cameras: [{{id: a, url: /v.mp4, task: {task}}}]"


def test_names_are_those_of_the_registry() -> None:
    assert GROUP == registry.GROUP
    assert tuple(registry.BUILT_IN) == BUILT_IN
    assert known_tasks() == registry.known_tasks()


def test_a_camera_detects_unless_it_says_otherwise() -> None:
    assert parse_config("cameras: [{id: a, url: /v.mp4}]").cameras[0].task == "detection"
    assert parse_config(camera("classification")).cameras[0].task == "classification"


def test_an_unknown_task_is_refused_naming_the_known_ones() -> None:
    text = problems_of(camera("clasification"))["cameras[0].task"]
    assert "'clasification'" in text
    assert "detection, classification" in text
    assert "line 1" in text
    assert "models.tasks" in problems_of("models: {tasks: {segmentation: {edge: x}}}")


def test_a_task_that_a_package_brings_is_known_while_it_is_installed(tmp_path: Path) -> None:
    with installed_example(tmp_path):
        assert known_tasks() == (*BUILT_IN, "occupied")
        config = parse_config("models: {tasks: {occupied: {edge: resnet18}}}\n" + camera("occupied"))
        assert config.models.for_task("occupied").edge == "resnet18"
    assert "cameras[0].task" in problems_of(camera("occupied"))


def test_models_of_a_task() -> None:
    """What is written, else what comes with Driftbox, else those of detection; without a golden one, detection's."""
    models = ModelsSection(edge="e", golden="g")
    assert (models.for_task("detection").edge, models.for_task("detection").golden) == ("e", "g")
    assert (models.for_task("classification").edge, models.for_task("classification").golden) == ("mobilenetv2", "g")
    assert (models.for_task("other").edge, models.for_task("other").golden) == ("e", "g")
    own = parse_config("models: {golden: g, tasks: {classification: {edge: resnet18, golden: resnext101_32x8d}}}").models
    assert (own.for_task("classification").edge, own.for_task("classification").golden) == ("resnet18", "resnext101_32x8d")


def test_the_shipped_classifier_is_one() -> None:
    assert all(is_classifier(SHIPPED[task].edge) for task in SHIPPED)


def test_detection_has_its_models_in_one_place_only() -> None:
    text = problems_of("models: {tasks: {detection: {edge: yolov8n}}}")["models.tasks"]
    assert "models.edge" in text


@pytest.mark.parametrize("wrong", ["{edge: 3}", "{}", "{edge: x, gold: y}", "[]"])
def test_models_of_a_task_have_two_names(wrong: str) -> None:
    problems = problems_of(f"models: {{tasks: {{classification: {wrong}}}}}")
    assert any(path.startswith("models.tasks.classification") for path in problems)


@pytest.mark.slow
def test_validation_imports_neither_torch_nor_a_package_s_task(tmp_path: Path) -> None:
    with installed_example(tmp_path):
        code = (
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
            "from configs.load import parse_config\n"
            f"assert parse_config({camera('occupied')!r}).cameras[0].task == 'occupied'\n"
            "heavy = {'torch', 'models', 'driftbox_occupied'} & set(sys.modules)\n"
            "assert not heavy, heavy"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
