"""What tuners ask for, carried out with real trainings on lanes: each epoch once, goes on where it was, scores whatever ran at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from configs.errors import JobError, UsageError
from models import retrain as retrain_module
from models import wide_trials
from models.detector import Detector
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage
from models.microprofile_run import judged
from models.retrain import Step, retrain
from models.trial_pack import run_packed
from models.tuned import TunedGroup
from models.wide_trials import WideTrials
from scheduler.fluid.groups import Asha, Ask, Grid, Hyperband, Pbt, Report, SuccessiveHalving, Tuner, random_search
from scheduler.fluid.observe import LEAD_YES
from scheduler.types import RetrainConfig

BASE = RetrainConfig(name="base", epochs=1, batch=4, lr=0.02)
SERVING_SKILL = 0.4


def data(n: int, first: int = 0) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(first + i) for i in range(n))]


TRAIN, HOLDOUT = data(8), data(4, 100)


class Lane:
    def iteration(self) -> AbstractContextManager[None]:
        return nullcontext()

    def checkpoint(self) -> None: ...


def configs(names: Sequence[str]) -> dict[str, RetrainConfig]:
    return {name: replace(BASE, name=name, lr=0.002 * 1.7**i) for i, name in enumerate(names)}


def group_of(tuner: Tuner, names: Sequence[str], *, epochs: int, lanes: int = 1, **how: Any) -> TunedGroup:
    return TunedGroup(
        tuner,
        configs(names),
        FakeDetector(skill=SERVING_SKILL),
        TRAIN,
        judged(HOLDOUT),
        epochs=epochs,
        seed=3,
        lanes=lanes,
        **how,
    )


def run(group: TunedGroup, lanes: int = 1) -> TunedGroup:
    run_packed(group, [Lane() for _ in range(lanes)], share=lanes)
    group.close()
    return group


@pytest.fixture
def epochs_done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Epochs that were really trained, by configuration."""
    done: Counter[str] = Counter()

    def counted(
        detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, **how: Any
    ) -> Generator[Step, None, None]:
        for step in retrain(detector, samples, config, **how):
            done[config.name] += step.epoch_loss is not None
            yield step

    monkeypatch.setattr(wide_trials, "retrain", counted)
    return done


def score_after(name: str, names: Sequence[str], epochs: int, of: int) -> float:
    """Of a training that nobody ever stopped."""
    detector = FakeDetector(skill=SERVING_SKILL)
    steps = retrain(detector, TRAIN, replace(configs(names)[name], epochs=of), seed=3)
    for step in steps:
        if step.epoch_loss is not None and step.epoch == epochs:
            break
    judging = judged(HOLDOUT)(detector)
    while True:
        try:
            next(judging)
        except StopIteration as end:
            return float(end.value)


def told(group: TunedGroup) -> set[tuple[str, float, float]]:
    return {(r.trial, r.budget, r.score) for r in group.told}


NAMES = tuple("abcdefghi")


def test_a_grid_is_one_group_of_full_budgets(epochs_done: Counter[str]) -> None:
    group = run(group_of(Grid(trials=NAMES[:3], budget=2), NAMES, epochs=2))
    assert told(group) == {(n, 2, score_after(n, NAMES, 2, 2)) for n in NAMES[:3]}
    assert epochs_done == dict.fromkeys(NAMES[:3], 2)


def test_random_search_is_a_grid_of_what_was_drawn() -> None:
    drawn = random_search({"lr": (0.001, 0.01, 0.05), "batch": (2, 4)}, 3, seed=5)
    given = {f"r{i}": replace(BASE, name=f"r{i}", **found) for i, found in enumerate(drawn)}  # type: ignore[arg-type]
    group = TunedGroup(
        Grid(trials=tuple(given), budget=1), given, FakeDetector(skill=SERVING_SKILL), TRAIN, judged(HOLDOUT), epochs=1, seed=3
    )
    assert {r.trial for r in run(group).told} == set(given)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_successive_halving_goes_on_where_it_was(lanes: int, epochs_done: Counter[str]) -> None:
    """9 trials for an epoch, the best 3 for three in all, the best for nine."""
    group = run(group_of(SuccessiveHalving(trials=NAMES, r=1, eta=3), NAMES, epochs=9, lanes=lanes), lanes)
    assert Counter(r.budget for r in group.told) == {1: 9, 3: 3, 9: 1}
    assert sum(epochs_done.values()) == 9 + 3 * 2 + 6
    assert told(group) == {(r.trial, r.budget, score_after(r.trial, NAMES, int(r.budget), 9)) for r in group.told}
    name, detector = group.best()
    assert max(r.score for r in group.told) == max(r.score for r in group.told if r.trial == name)
    assert detector.spec.arch == FakeDetector().spec.arch


@pytest.mark.parametrize("lanes", [1, 2])
def test_hyperband_runs_every_rung_of_every_bracket(lanes: int, epochs_done: Counter[str]) -> None:
    tuner = Hyperband(budget_max=3, eta=3)
    names = [t for bracket in tuner.brackets() for t in bracket.trials]
    group = run(group_of(tuner, names, epochs=3, lanes=lanes), lanes)
    assert Counter(r.budget for r in group.told) == {1: 3, 3: 1 + 2}
    assert sum(epochs_done.values()) == 3 + 2 + 2 * 3
    assert told(group) == {(r.trial, r.budget, score_after(r.trial, names, int(r.budget), 3)) for r in group.told}


@pytest.mark.parametrize("lanes", [1, 2])
def test_asha_promotes_while_others_still_begin(lanes: int, epochs_done: Counter[str]) -> None:
    tuner = Asha(trials=NAMES, r=1, budget_max=3, eta=3, concurrency=2)
    group = run(group_of(tuner, NAMES, epochs=3, lanes=lanes), lanes)
    rungs = Counter(r.budget for r in group.told)
    assert rungs[1] == 9
    assert rungs[3] >= 3
    assert sum(epochs_done.values()) == 9 + 2 * rungs[3]
    assert told(group) == {(r.trial, r.budget, score_after(r.trial, NAMES, int(r.budget), 3)) for r in group.told}


@pytest.mark.parametrize("lanes", [1, 2])
def test_pbts_worst_goes_on_as_a_copy_of_the_best(lanes: int, epochs_done: Counter[str]) -> None:
    """Four trials, perturbed after each epoch: one copies one, and goes on at 1.2 or 0.8 times its learning rate."""
    tuner = Pbt(population=NAMES[:4], interval=1, budget=3, seed=7)
    group = group_of(tuner, NAMES, epochs=3, lanes=lanes)
    copied: list[tuple[Ask, RetrainConfig, RetrainConfig]] = []
    copy = group._copy

    def noted(ask: Ask) -> Any:
        assert ask.like is not None
        found = copy(ask)
        copied.append((ask, group._trials[ask.like].config, found.config))
        for one, other in zip(
            group._trials[ask.like].detector.trainable_layers(), found.detector.trainable_layers(), strict=True
        ):
            for a, b in zip(one.parameters(), other.parameters(), strict=True):
                np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
        return found

    group._copy = noted  # type: ignore[method-assign]
    run(group, lanes)
    assert Counter(r.budget for r in group.told) == {1: 4, 2: 4, 3: 4}
    assert len(copied) == 2
    for ask, theirs, own in copied:
        assert own.lr == pytest.approx(theirs.lr * ask.factor)
        assert ask.factor in (1.2, 0.8)
    assert sum(epochs_done.values()) == 12, "a copy does no epoch again"


@pytest.mark.parametrize(
    "tuner",
    [SuccessiveHalving(trials=NAMES, r=1), Hyperband(budget_max=3), Pbt(population=NAMES[:4], interval=1, budget=3, seed=7)],
)
def test_scores_do_not_depend_on_how_many_run_at_once(tuner: Tuner) -> None:
    names = [t for b in tuner.brackets() for t in b.trials] if isinstance(tuner, Hyperband) else NAMES
    one, three = (told(run(group_of(tuner, names, epochs=9, lanes=n), n)) for n in (1, 3))
    assert one == three


def test_a_copys_learning_rate_is_its_own() -> None:
    detector, bookmark = FakeDetector(skill=0.4), retrain_module.Bookmark()
    steps = retrain(detector, TRAIN, replace(BASE, epochs=2), seed=3, bookmark=bookmark)
    while next(steps).epoch_loss is None:
        pass
    saved = bookmark.saved()
    assert saved is not None
    half = retrain_module.scaled(saved, 0.5)
    rates = [[g["lr"] for g in s.optimiser["param_groups"]] for s in (saved, half)]
    assert rates[1] == pytest.approx([0.5 * rate for rate in rates[0]])
    assert half.schedule["base_lrs"] == pytest.approx([0.5 * rate for rate in saved.schedule["base_lrs"]])
    plain, slower = detector.clone(), detector.clone()
    before = np.concatenate([p.detach().numpy().ravel() for layer in detector.trainable_layers() for p in layer.parameters()])
    moved = []
    for model, after in ((plain, saved), (slower, half)):
        list(retrain(model, TRAIN, replace(BASE, epochs=2), seed=3, bookmark=retrain_module.Bookmark(after)))
        now = np.concatenate([p.detach().numpy().ravel() for layer in model.trainable_layers() for p in layer.parameters()])
        moved.append(float(np.abs(now - before).mean()))
    assert moved[1] < 0.75 * moved[0]


def test_a_trial_whose_loss_is_no_number_is_told_so_and_the_others_go_on() -> None:
    class Breaks(FakeDetector):
        def clone(self) -> FakeDetector:
            return FakeDetector(skill=SERVING_SKILL, nan_loss=next(calls) == 1)

    calls = iter(range(100))
    group = TunedGroup(
        SuccessiveHalving(trials=NAMES[:3], r=1),
        configs(NAMES),
        Breaks(skill=SERVING_SKILL),
        TRAIN,
        judged(HOLDOUT),
        epochs=3,
        seed=3,
    )
    run(group)
    failed = [r.trial for r in group.told if math.isnan(r.score)]
    assert failed == ["b"]
    assert {r.trial for r in group.told if r.budget == 3} <= {"a", "c"}
    assert group.best()[0] != "b"


def test_nothing_that_came_to_a_score_is_said() -> None:
    group = group_of(Grid(trials=("a",), budget=1), NAMES, epochs=1)
    group.told = [Report(trial="a", budget=1, score=math.nan)]
    with pytest.raises(JobError, match="no trial"):
        group.best()


@pytest.mark.parametrize("budget", [1.5, 4])
def test_budgets_are_whole_epochs(budget: float) -> None:
    with pytest.raises(UsageError, match="whole epochs up to 3"):
        group_of(Grid(trials=("a",), budget=budget), NAMES, epochs=3).take()


def test_what_is_left_alone_has_all_devices() -> None:
    """Two devices that pay: the last rung's one trial moves to both, and scores as it would on one."""

    class Devices:
        width = 2

        def __init__(self) -> None:
            self.used: list[tuple[str, int]] = []

        def ready(self) -> bool:
            return True

        def retrain(
            self, detector: Detector, samples: Any, config: RetrainConfig, *, width: int, **how: Any
        ) -> Generator[Step, None, None]:
            self.used.append((config.name, width))
            return retrain(detector, samples, config, **how)

        def close(self) -> None: ...

    devices = Devices()
    box = WideTrials(devices)
    box.changed(0.0)
    for _ in range(LEAD_YES):
        box.scaling(FakeDetector().spec.arch).compared(1.0, 0.5)
    tuner = SuccessiveHalving(trials=NAMES[:3], r=1, eta=3)
    with box.of_a_job() as widths:
        group = run(group_of(tuner, NAMES, epochs=3, lanes=2, widths=widths), 2)
    winner = next(r.trial for r in group.told if r.budget == 3)
    assert (winner, 2) in devices.used
    assert told(group) == told(run(group_of(tuner, NAMES, epochs=3)))
