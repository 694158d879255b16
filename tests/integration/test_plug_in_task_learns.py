"""A package's task through every learning job of the box - labels, quality, micro-profile, retraining, gate - and the same jobs over
classification. The package is the example of docs/tasks.md, installed for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from configs.units import CLASSES, NOTHING
from edge.jobs import gate_steps, label_steps, profile_steps, retrain_steps, run_at_once
from models.classifier import Classifier
from models.detector import Detector, DetectorSpec
from models.evaluate import MatchCounts
from models.labelled import predicted
from models.tasks.base import Picture, Scoring, Task
from models.tasks.classification import CLASSIFICATION
from models.tasks.registry import task_of
from models.zoo import new_detector
from scheduler.types import Detections, EpochReport, RetrainConfig
from tests.support.memory_samples import MemorySamples, Ref
from tests.support.networks import settled
from tests.support.plug_ins import installed_example, occupied_picture

PERSON = CLASSES.index("person")
SCORING = Scoring()


class BrightGolden:
    """Finds the bright upright shape of `occupied_picture`."""

    spec = DetectorSpec(arch="bright-golden", input_px=128)

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Callable[[], None] | None = None
    ) -> list[Detections]:
        return [self._found(image) for image in images]

    def _found(self, image: np.ndarray) -> Detections:
        columns = np.flatnonzero(image[20:80].mean(axis=(0, 2)) > 120)
        if not len(columns):
            return Detections.empty()
        box = np.array([[columns[0], 20, columns[-1] + 1, 80]], np.float32)
        return Detections(xyxy=box, score=np.full(1, 0.9, np.float32), class_id=np.array([PERSON]))


class Pictures(MemorySamples):
    """Every second picture has somebody in it. Two regions move in each: that one (or where nobody is), and a corner."""

    def picture(self, ref: Any) -> Picture:
        image = occupied_picture(1000 * ref.window + ref.number)[0].image
        columns = np.flatnonzero(image[20:80].mean(axis=(0, 2)) > 120)
        left = float(columns[0]) if len(columns) else 40.0
        regions = np.array([[left, 20, left + 24, 80], [100, 0, 120, 16]], np.float32)
        return Picture(image=image, regions=regions)


@pytest.fixture(params=["occupied", "classification"])
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Task]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    if request.param == "classification":
        yield CLASSIFICATION
    else:
        with installed_example(tmp_path_factory.mktemp("site")):
            yield task_of("occupied")
    torch.set_num_threads(before)


@pytest.fixture
def samples() -> Pictures:
    return Pictures({("door", 0): 32, ("door", 1): 16})


def serving() -> Detector:
    return settled(new_detector(DetectorSpec(arch="shufflenetv2-0.5", input_px=32), seed=3))


def labelled(samples: Pictures, task: Task, model: Detector) -> Any:
    return run_at_once(
        label_steps(
            samples, BrightGolden(), model, stream="door", window=0, frames=32, holdout_frac=0.25, scoring=SCORING, task=task,  # type: ignore[arg-type]
        )
    )  # fmt: skip


def test_labels_are_the_golden_models_and_quality_is_counted(task: Task, samples: Pictures) -> None:
    model = serving()
    result = labelled(samples, task, model)
    assert (result.train, result.holdout, result.new) == (24, 8, 32)
    for number in range(32):
        labels = samples.labels(Ref("door", 0, number))
        assert labels is not None
        assert labels.class_id[0] == (PERSON if number % 2 == 0 else NOTHING)
    pairs = predicted(model, samples.labelled("door", [0], "holdout"), task=task)
    counted = MatchCounts.total(task.counts(found, wanted, SCORING) for found, wanted in pairs)
    assert result.quality == pytest.approx(counted.f1)


def test_a_micro_profile_tries_every_kind_of_head(task: Task, samples: Pictures) -> None:
    model = serving()
    labelled(samples, task, model)
    before = model.state()
    configs = [
        RetrainConfig(name="head", epochs=2, batch=8, layers_frac=0.05, lr=1e-2),
        RetrainConfig(name="added", epochs=2, batch=8, layers_frac=0.05, lr=1e-2, head_neurons=16),
        RetrainConfig(name="kept", epochs=2, batch=8, lr=1e-3, distill=0.5, balance=True),
    ]
    trials, n_train = run_at_once(
        profile_steps(
            samples, model, stream="door", window=0, configs=configs, epochs=2, data_frac=0.5, budget_gpu_s=1e9, seed=0,
            timer=lambda: 0.0, scoring=SCORING, task=task,
        )
    )  # fmt: skip
    assert n_train == 24
    assert {trial.config.name for trial in trials} == {"head", "added", "kept"}
    assert all(len(trial.quality) == 3 and min(trial.quality) >= 0 and max(trial.quality) <= 1 for trial in trials)
    assert all(torch.equal(t, before[name]) for name, t in model.state().items())


@pytest.mark.parametrize("head_neurons", [0, 16])
def test_a_retrained_model_passes_its_gate(task: Task, samples: Pictures, head_neurons: int) -> None:
    model, epochs = serving(), list[EpochReport]()
    labelled(samples, task, model)
    config = RetrainConfig(name="all", epochs=12, batch=8, lr=2e-3, head_neurons=head_neurons)
    better = run_at_once(
        retrain_steps(
            samples, model, job="j", stream="door", window=0, replay_windows=0, config=config, seed=0, timer=lambda: 0.0,
            on_epoch=epochs.append, task=task,
        )
    )  # fmt: skip
    assert isinstance(better, Classifier)
    assert better.head_neurons == head_neurons
    assert [report.epoch for report in epochs] == list(range(1, 13))
    assert epochs[-1].loss < epochs[0].loss
    gate = run_at_once(
        gate_steps(
            samples, BrightGolden(), model, better, stream="door", window=1, frames=16, scoring=SCORING, task=task,  # type: ignore[arg-type]
        )
    )  # fmt: skip
    assert gate.frames >= 16  # held-out frames of the window before count too
    assert gate.serving_quality is not None
    assert gate.candidate_quality is not None
    assert gate.candidate_quality > max(0.9, gate.serving_quality)
    again = new_detector(better.spec, state=better.state())
    [a], [b] = (task.predict(m, [samples.picture(Ref("door", 1, 0))]) for m in (better, again))
    assert np.array_equal(a.class_id, b.class_id)
