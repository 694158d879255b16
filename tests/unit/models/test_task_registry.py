"""Tasks that packages bring: found, checked at load, refused by name. The packages are real ones (module and dist-info)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import EnvironmentLacking, UsageError
from models.detector import DetectorSpec
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from models.tasks.registry import known_tasks, problems_of, task_of
from models.zoo import ZOO, new_detector, register
from tests.support.plug_ins import installed_example, make_package, on_path

#: A task that does nothing but has everything; `{missing}` is taken out again.
CODE = """
class Counting:
    name = "counting"
    wants_regions = False
    quality_name = "accuracy"

    def load(self, name, *, device="cpu"): ...
    def load_golden(self, name, *, device="cpu"): ...
    def predict(self, model, pictures, *, score_min=0.25, yield_point=None): ...
    def loss(self, model, images, targets): ...
    def distill_loss(self, model, images, targets, teacher): ...
    def labels(self, golden, pictures, *, score_min, yield_point=None): ...
    def counts(self, predicted, labels, scoring): ...
    def shown(self, predicted): ...

TASK = Counting()
"""


def package(folder: Path, name: str, code: str, *, task: str = "counting", target: str = "TASK") -> None:
    module = name.replace("-", "_")
    make_package(folder, name, modules={module: code}, tasks={task: f"{module}:{target}"})


def test_built_in_tasks_need_no_package() -> None:
    assert task_of("detection") is DETECTION
    assert task_of("classification") is CLASSIFICATION
    assert known_tasks()[:2] == ("detection", "classification")


def test_an_unknown_task_is_told_the_known_ones(tmp_path: Path) -> None:
    package(tmp_path, "acme-counting", CODE)
    with on_path(tmp_path), pytest.raises(UsageError) as caught:
        task_of("segmentation")
    assert "'segmentation'" in caught.value.message
    assert all(name in caught.value.remedy for name in ("detection", "classification", "counting"))


def test_a_package_brings_a_task_and_takes_it_away_again(tmp_path: Path) -> None:
    package(tmp_path, "acme-counting", CODE)
    with on_path(tmp_path):
        assert known_tasks() == ("detection", "classification", "counting")
        assert task_of("counting").quality_name == "accuracy"
        assert task_of("counting") is task_of("counting")
    assert known_tasks() == ("detection", "classification")
    with pytest.raises(UsageError):
        task_of("counting")


def test_the_documented_example_is_a_task(tmp_path: Path) -> None:
    with installed_example(tmp_path):
        assert task_of("occupied").name == "occupied"


def test_listing_imports_nothing(tmp_path: Path) -> None:
    package(tmp_path, "acme-counting", "raise RuntimeError('imported')")
    with on_path(tmp_path):
        assert "counting" in known_tasks()
        assert task_of("detection") is DETECTION


def test_two_packages_with_one_name_are_refused_and_both_named(tmp_path: Path) -> None:
    package(tmp_path, "acme-counting", CODE)
    package(tmp_path, "other-counting", CODE)
    with on_path(tmp_path), pytest.raises(UsageError) as caught:
        task_of("counting")
    assert "acme-counting" in caught.value.message
    assert "other-counting" in caught.value.message


def test_nobody_replaces_a_built_in_task(tmp_path: Path) -> None:
    package(tmp_path, "acme-detection", CODE.replace("counting", "detection"), task="detection")
    with on_path(tmp_path):
        assert known_tasks() == ("detection", "classification")
        with pytest.raises(UsageError, match="driftbox, acme-detection"):
            task_of("detection")
        assert task_of("classification") is CLASSIFICATION


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise RuntimeError('no licence')", "cannot be imported (RuntimeError: no licence)"),
        ("import a_library_that_nobody_has", "cannot be imported (ModuleNotFoundError"),
        ("def broken(:", "cannot be imported (SyntaxError"),
        ("TASKS = 1", "cannot be imported (AttributeError"),
        (CODE.replace("    def loss(self, model, images, targets): ...\n", ""), "it has no method loss"),
        (CODE.replace("golden, pictures, *, score_min, yield_point=None", "golden"), "its method labels cannot be called"),
        (CODE.replace("def shown", "shown = 3\n    def other"), "it has no method shown"),
        (CODE.replace("wants_regions = False", "wants_regions = 'no'"), "it has no wants_regions (bool)"),
        (CODE.replace('name = "counting"', 'name = "seeing"'), "calls itself 'seeing'"),
        (CODE.replace("TASK = Counting()", "TASK = Counting"), "names a class"),
    ],
)  # fmt: skip
def test_a_broken_package_is_refused_and_named(code: str, told: str, tmp_path: Path) -> None:
    package(tmp_path, "acme-counting", code)
    with on_path(tmp_path), pytest.raises(EnvironmentLacking) as caught:
        task_of("counting")
    assert "acme-counting" in caught.value.message
    assert told in caught.value.message
    assert caught.value.subject == "acme-counting"
    assert "docs/tasks.md" in caught.value.remedy


def test_every_problem_is_told_at_once() -> None:
    problems = problems_of(object())
    assert len(problems) == 11
    assert problems_of(DETECTION) == []
    assert problems_of(CLASSIFICATION) == []


def test_a_package_seen_through_two_paths_counts_once(tmp_path: Path) -> None:
    package(tmp_path, "acme-counting", CODE)
    with on_path(tmp_path), on_path(tmp_path):
        assert task_of("counting").name == "counting"
        assert known_tasks().count("counting") == 1


#: A package whose task has a network of its own.
WITH_MODEL = (
    CODE
    + """
from models.tinydet import TinyDetector
from models.zoo import ZooEntry, register

def build(spec, state, device, seed):
    model = TinyDetector("tinydet-edge", seed=seed)
    if state is not None:
        model.load_state(state)
    return model

register(ZooEntry(arch="acme-counter", role="edge", input_px=256, build=build, task="counting"))
"""
)


def test_a_package_brings_a_model_that_can_be_built_again(tmp_path: Path) -> None:
    """As the version store does after a restart: it knows the name only."""
    package(tmp_path, "acme-counting", WITH_MODEL)
    (tmp_path / "broken").mkdir()
    package(tmp_path / "broken", "broken-seeing", "raise RuntimeError", task="seeing")
    with on_path(tmp_path), on_path(tmp_path / "broken"):
        model = new_detector(DetectorSpec(arch="acme-counter", input_px=256), seed=1)
        assert new_detector(model.spec, state=model.state()) is not None
        with pytest.raises(UsageError, match="acme-counter is a model for counting, not for detection"):
            DETECTION.load("acme-counter")
    with pytest.raises(UsageError, match="no detector named 'acme-counter'"):
        new_detector(DetectorSpec(arch="acme-counter", input_px=256))


def test_a_model_name_is_taken_once() -> None:
    own = replace(ZOO["resnet18"], arch="resnet18")
    register(own)  # the same again
    with pytest.raises(UsageError, match="another model named 'resnet18'"):
        register(replace(own, input_px=64))
    assert ZOO["resnet18"].input_px == 128
