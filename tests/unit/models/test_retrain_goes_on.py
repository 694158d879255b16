"""A training that goes on elsewhere after an epoch comes to the weights of one that was never moved."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from models.detector import Detector
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage
from models.precision import Precision
from models.retrain import Bookmark, Saved, Step, retrain
from models.tinydet import TinyDetector
from scheduler.types import RetrainConfig
from tests.unit.models.test_retrain_team import Member, Table

CONFIG = RetrainConfig(name="c", epochs=4, batch=3, lr=0.01)
CONFIGS = [
    CONFIG,
    replace(CONFIG, replay_frac=0.3, data_frac=0.6),
    replace(CONFIG, layers_frac=0.5, distill=0.5),
    replace(CONFIG, balance=True),
]


def data(n: int, first: int = 0) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(first + i) for i in range(n))]


def weights(detector: Detector) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for layer in detector.trainable_layers() for p in layer.parameters()])


def moved(detector: Detector, config: RetrainConfig, moves: list[int], **how: object) -> tuple[list[Step], list[Saved]]:
    """Trains it, elsewhere after each of the epochs `moves`: another process would unpickle what was saved."""
    steps: list[Step] = []
    saved: list[Saved] = []
    after = None
    for until in [*moves, config.epochs]:
        bookmark = Bookmark(after)
        run = retrain(detector, data(7), config, seed=4, replay=data(5, 20), bookmark=bookmark, **how)  # type: ignore[arg-type]
        for step in run:
            steps.append(step)
            if step.epoch_loss is not None and step.epoch == until:
                break
        found = bookmark.saved()
        assert found is not None
        run.close()
        after = pickle.loads(pickle.dumps(found))
        saved.append(found)
    return steps, saved


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("moves", [[1], [3], [1, 2, 3]])
def test_the_weights_and_the_losses_are_the_same(config: RetrainConfig, moves: list[int]) -> None:
    serving = FakeDetector(skill=0.4)
    stays, goes = serving.clone(), serving.clone()
    told = list(retrain(stays, data(7), config, seed=4, replay=data(5, 20), teacher=serving))
    steps, _ = moved(goes, config, moves, teacher=serving)
    assert steps == told
    np.testing.assert_array_equal(weights(goes), weights(stays))


def test_a_real_network_with_momentum() -> None:
    stays, goes = (TinyDetector("tinydet-edge", seed=1) for _ in range(2))
    config = replace(CONFIG, epochs=3, lr=1e-3)
    list(retrain(stays, data(7), config, seed=4, replay=data(5, 20)))
    moved(goes, config, [1, 2])
    np.testing.assert_array_equal(weights(goes), weights(stays))


def test_what_is_saved_is_not_changed_by_what_follows() -> None:
    detector, bookmark = FakeDetector(skill=0.4), Bookmark()
    run = retrain(detector, data(7), CONFIG, seed=4, bookmark=bookmark)
    while next(run).epoch_loss is None:
        pass
    saved = bookmark.saved()
    before = pickle.dumps(saved)
    list(run)
    assert pickle.dumps(saved) == before
    assert isinstance(saved, Saved)
    assert saved.epoch == 1


def test_before_anything_was_trained_there_is_nothing_to_save() -> None:
    assert Bookmark().saved() is None
    bookmark = Bookmark()
    retrain(FakeDetector(skill=0.4), data(3), CONFIG, seed=4, bookmark=bookmark).close()
    assert bookmark.saved() is None


def test_the_teacher_must_be_given_again() -> None:
    config = replace(CONFIG, distill=0.5)
    _, saved = moved(FakeDetector(skill=0.4), config, [1], teacher=FakeDetector(skill=0.4))
    with pytest.raises(ValueError, match="teacher"):
        retrain(FakeDetector(skill=0.4), data(7), config, seed=4, bookmark=Bookmark(saved[0]))


def test_the_scale_of_gradients_goes_along() -> None:
    """float16 scales gradients; what it has learnt of the scale is not learnt again."""
    half = Precision(dtype=torch.float16)
    config = replace(CONFIG, epochs=2, lr=1e-4)
    stays, goes = FakeDetector(skill=0.4), FakeDetector(skill=0.4)
    list(retrain(stays, data(7), config, seed=4, replay=data(5, 20), precision=half))
    _, saved = moved(goes, config, [1], precision=half)
    assert saved[0].scaler is not None
    np.testing.assert_array_equal(weights(goes), weights(stays))


def test_from_one_member_to_two() -> None:
    """One epoch alone, the others as a team: the weights are those of one process, but for rounding."""
    import threading

    alone, first = FakeDetector(skill=0.4), FakeDetector(skill=0.4)
    list(retrain(alone, data(7), CONFIG, seed=4))
    bookmark = Bookmark()
    run = retrain(first, data(7), CONFIG, seed=4, bookmark=bookmark)
    while next(run).epoch_loss is None:
        pass
    saved = bookmark.saved()
    table, models = Table(2), [first.clone() for _ in range(2)]
    told: dict[int, list[Step]] = {}

    def member(rank: int) -> None:
        team = Member(rank, 2, table)
        told[rank] = list(retrain(models[rank], data(7), CONFIG, seed=4, team=team, bookmark=Bookmark(saved)))

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert told[0][-1].iteration == told[0][-1].n_iterations
    for model in models:
        np.testing.assert_allclose(weights(model), weights(alone), rtol=0, atol=2e-5)
