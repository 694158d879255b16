"""A window's families as a group: at once or one by one they show the same; they advance together; what is clearly worse stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from configs.errors import JobError
from models.detector import YieldPoint
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage
from models.microprofile_run import ProfileGroup, microprofile
from models.trial_pack import run_packed
from scheduler.types import Detections, ProfileTrial, RetrainConfig


def data(n: int, first: int = 0) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(first + i) for i in range(n))]


TRAIN, HOLDOUT, OLDER = data(40), data(6, first=500), data(12, first=900)
BASE = RetrainConfig(name="base", epochs=12, batch=8, lr=0.02)
FAMILIES = [
    BASE,
    replace(BASE, name="half", data_frac=0.5),
    replace(BASE, name="slow", lr=0.002),
    replace(BASE, name="replay", replay_frac=0.25),
    replace(BASE, name="distil", distill=0.3),
]
HOW: dict[str, Any] = {"epochs": 3, "data_frac": 0.2, "seed": 1, "replay": OLDER}


class OpenGate:
    @contextmanager
    def iteration(self) -> Iterator[None]:
        yield

    def checkpoint(self) -> None: ...


def sequential(configs: Sequence[RetrainConfig], **how: Any) -> tuple[ProfileTrial, ...]:
    steps = microprofile(
        FakeDetector(skill=0.4), TRAIN, HOLDOUT, configs, **{**HOW, "budget_gpu_s": 1e9, "timer": lambda: 0.0, **how}
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def group_of(configs: Sequence[RetrainConfig], **how: Any) -> ProfileGroup:
    group = ProfileGroup(
        FakeDetector(skill=0.4), TRAIN, HOLDOUT, configs,
        **{**HOW, "budget_gpu_s": 1e9, "timer": lambda: 0.0, "apart": True, **how},
    )  # fmt: skip
    for _ in group.prelude():
        pass
    return group


def packed(configs: Sequence[RetrainConfig], lanes: int, **how: Any) -> tuple[ProfileTrial, ...]:
    group = group_of(configs, **how)
    run_packed(group, [OpenGate() for _ in range(lanes)], share=lanes)
    group.close()
    return group.results()


def shown(trials: Sequence[ProfileTrial]) -> dict[str, tuple[float, ...]]:
    return {t.config.name: t.quality for t in trials}


@pytest.mark.parametrize("lanes", [1, 2, 3, 6])
def test_what_trials_show_does_not_depend_on_how_many_run_at_once(lanes: int) -> None:
    assert shown(packed(FAMILIES, lanes)) == shown(sequential(FAMILIES))


@pytest.mark.parametrize("lanes", [1, 3])
def test_with_halving_too(lanes: int) -> None:
    options = {"halving": True, "epochs": 5}
    assert shown(packed(FAMILIES, lanes, **options)) == shown(sequential(FAMILIES, **options))


def test_a_family_alone_shows_what_it_shows_in_the_group() -> None:
    together = shown(sequential(FAMILIES))
    for config in FAMILIES:
        assert shown(sequential([config])) == {config.name: together[config.name]}


def taken(group: ProfileGroup) -> list[str]:
    """Whose epochs begin, when all run to their end one after the other."""
    order = []
    while (piece := group.take()) is not None:
        order.append(piece.trial)
        while piece.step():
            pass
        group.ended(piece)
    return order


def test_families_advance_together_and_the_longest_go_first() -> None:
    order = taken(group_of(FAMILIES[:3], data_frac=0.9))
    assert [sorted(order[i : i + 3]) for i in (0, 3, 6)] == [sorted(c.name for c in FAMILIES[:3])] * 3
    assert order[2] == "half", "it has the shortest epoch"
    assert taken(group_of(FAMILIES[:3], apart=False)) == ["base", "half", "slow"] * 3


def test_nobody_runs_further_ahead_than_one_epoch() -> None:
    """One family's first epoch never ends: the others begin their second, and no third."""
    group = group_of(FAMILIES[:3])
    stuck = group.take()
    assert stuck is not None
    order = taken(group)
    assert sorted(order) == sorted(2 * [c.name for c in FAMILIES[:3] if c.name != stuck.trial])
    assert group.take() is None
    assert not group.done
    while stuck.step():
        pass
    group.ended(stuck)
    taken(group)
    assert group.done
    assert all(len(t.quality) == 4 for t in group.results())


def test_the_budget_counts_the_compute_of_all_threads() -> None:
    """Each thread has a clock of its own, one second an iteration."""
    local = threading.local()

    class Counting(FakeDetector):
        def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
            local.s = getattr(local, "s", 0.0) + 1.0
            return super().loss(images, targets)

        def clone(self) -> Counting:
            return Counting(skill=self.skill, ceiling=0.9)

        def predict(
            self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
        ) -> list[Detections]:
            return super().predict(images, score_min=score_min, yield_point=yield_point)

    for lanes in (1, 2, 4):
        group = ProfileGroup(
            Counting(skill=0.4), TRAIN, HOLDOUT, FAMILIES[:3], epochs=50, data_frac=0.3, seed=0, budget_gpu_s=100.0,
            timer=lambda: getattr(local, "s", 0.0), apart=True,
        )  # fmt: skip
        for _ in group.prelude():
            pass
        run_packed(group, [OpenGate() for _ in range(lanes)], share=lanes)
        assert 100.0 <= group.spent_gpu_s <= 100.0 + lanes * 12
        epochs = [len(t.quality) - 1 for t in group.results()]
        assert max(epochs) - min(epochs) <= 2


def test_a_family_that_fails_is_said_from_any_thread() -> None:
    class Nan(FakeDetector):
        def clone(self) -> Nan:
            return Nan(skill=self.skill, nan_loss=True)

    group = ProfileGroup(
        Nan(skill=0.4), TRAIN, HOLDOUT, FAMILIES[:3], **{**HOW, "budget_gpu_s": 1e9, "timer": lambda: 0.0, "apart": True}
    )
    for _ in group.prelude():
        pass
    with pytest.raises(JobError) as caught:
        run_packed(group, [OpenGate() for _ in range(3)], share=3)
    assert caught.value.code == "nan"
    group.close()


def test_without_anything_to_do_it_is_done() -> None:
    for train, holdout, configs in (([], HOLDOUT, FAMILIES), (TRAIN, [], FAMILIES), (TRAIN, HOLDOUT, [])):
        group = ProfileGroup(
            FakeDetector(), train, holdout, configs, **{**HOW, "budget_gpu_s": 1e9, "timer": lambda: 0.0, "apart": True}
        )
        assert list(group.prelude()) == []
        assert group.done
        assert group.take() is None
        report = run_packed(group, [OpenGate()])
        assert (report.iterations, group.results()) == (0, ())


def test_a_family_that_is_clearly_worse_stops_at_a_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is clearly worse is tested beside the rule; here, that it is asked at each rung and obeyed."""
    from models import microprofile_run

    asked: list[int] = []

    def judge(runs: Sequence[tuple[RetrainConfig, Sequence[float]]], *, n_holdout: int) -> tuple[int, ...]:
        asked.append(n_holdout)
        return tuple(i for i, (config, _) in enumerate(runs) if config.name != "slow")

    monkeypatch.setattr(microprofile_run, "survivors", judge)
    trials = shown(sequential(FAMILIES[:3], halving=True, epochs=5))
    assert {name: len(q) - 1 for name, q in trials.items()} == {"base": 5, "half": 5, "slow": 1}
    assert asked == [6, 6, 6], "after 1, 2 and 4 epochs, with the number of held-out pictures"
    assert shown(sequential(FAMILIES[:3], epochs=5))["slow"][:2] == trials["slow"], "it is what it was until then"


def test_pieces_count_their_iterations() -> None:
    group = group_of([BASE])
    piece = group.take()
    assert piece is not None
    kinds = []
    while piece.step():
        kinds.append(piece.doing)
    assert kinds == ["train"] * 12 + ["judge"] * len(HOLDOUT)
