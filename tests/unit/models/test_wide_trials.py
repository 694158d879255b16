"""Whether trials are trained on several devices is measured once per architecture; one job at a time has the devices."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from configs.schema import GpusSection
from edge.clock import FakeClock
from edge.wiring.wide import wide_of
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage
from models.microprofile_run import microprofile
from models.retrain import Step, retrain
from models.wide_trials import COUNTED, WARM, WideTrials
from scheduler.types import RetrainConfig

CONFIG = RetrainConfig(name="c", epochs=2, batch=4, lr=0.01)


def data(n: int) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(i) for i in range(n))]


class Times:
    """A clock that a batch moves, by so much on one device and so much on all."""

    def __init__(self, one_s: float, all_s: float) -> None:
        self.now_s, self.one_s, self.all_s = 0.0, one_s, all_s

    def batches(self, steps: Generator[Step, None, None], batch_s: float, start_s: float = 0.0) -> Generator[Step, None, None]:
        self.now_s += start_s
        for step in steps:
            self.now_s += batch_s / 4 if step.epoch_loss is None else batch_s - 3 * batch_s / 4
            yield step


class FakeRanks:
    """Trains in this process, and takes the time that it is told."""

    width = 2

    def __init__(self, times: Times) -> None:
        self.times, self.trained, self.closed, self.starting = times, list[tuple[str, int]](), False, False

    def ready(self) -> bool:
        return not self.starting

    def retrain(
        self, detector: FakeDetector, samples: Sequence[LabelledImage], config: RetrainConfig, **how: Any
    ) -> Generator[Step, None, None]:
        self.trained.append((config.name, config.epochs))
        return self.times.batches(retrain(detector, samples, config, **how), self.times.all_s, start_s=100.0)

    def close(self) -> None:
        self.closed = True


def trials_of(monkeypatch: pytest.MonkeyPatch, one_s: float, all_s: float) -> tuple[WideTrials, FakeRanks]:
    times = Times(one_s, all_s)
    monkeypatch.setattr(
        "models.wide_trials.retrain", lambda *given, **named: times.batches(retrain(*given, **named), times.one_s)
    )
    ranks = FakeRanks(times)
    return WideTrials(ranks, clock=lambda: times.now_s), ranks


@pytest.mark.parametrize(
    ("one_s", "all_s", "pays", "beta"),
    [(1.0, 0.5, True, 1.0), (1.0, 0.85, True, 1.7), (1.0, 0.95, False, 1.9), (1.0, 1.3, False, 2.6), (1.0, 0.3, True, 1.0)],
)
def test_all_devices_are_used_where_they_save_a_tenth(
    one_s: float, all_s: float, pays: bool, beta: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trials, ranks = trials_of(monkeypatch, one_s, all_s)
    detector = FakeDetector(skill=0.4)
    with caplog.at_level(logging.INFO, logger="driftbox"), trials.of_a_job() as trainer:
        steps = list(trainer(detector, data(10), CONFIG, seed=3))
        list(trainer(FakeDetector(skill=0.4), data(10), CONFIG, seed=3))
    measured = [step for step in steps if step.iteration == 0]
    assert len(measured) == 2 * 4 * (WARM + COUNTED), "pictures of a few batches, each way, one micro-batch a step"
    assert all(step.epoch_loss is None for step in measured)
    assert [step.iteration for step in steps[len(measured) :]] == list(range(1, 21))
    assert ranks.trained == [("c", WARM + COUNTED), *([("c", 2)] * 2 if pays else [])], "measured once, start-up not counted"
    assert f"(beta {beta:.2f})" in caplog.text
    assert ("trained on 2 devices" in caplog.text) is pays


def test_each_architecture_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, ranks = trials_of(monkeypatch, 1.0, 0.6)
    other = FakeDetector(skill=0.4)
    other.spec = replace(other.spec, arch="another")
    with trials.of_a_job() as trainer:
        list(trainer(FakeDetector(skill=0.4), data(5), CONFIG, seed=3))
        list(trainer(other, data(5), CONFIG, seed=3))
    assert [epochs for _, epochs in ranks.trained] == [WARM + COUNTED, 2, WARM + COUNTED, 2]


def test_while_one_job_has_the_devices_another_trains_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, ranks = trials_of(monkeypatch, 1.0, 0.5)
    with trials.of_a_job() as first:
        with trials.of_a_job() as second:
            assert list(second(FakeDetector(skill=0.4), data(5), CONFIG, seed=3))
            assert ranks.trained == []
        assert list(first(FakeDetector(skill=0.4), data(5), CONFIG, seed=3))
        assert ranks.trained
    with trials.of_a_job() as third:
        assert third == trials._train
    trials.close()
    assert ranks.closed


def test_no_job_waits_for_the_processes_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, ranks = trials_of(monkeypatch, 1.0, 0.5)
    ranks.starting = True
    with trials.of_a_job() as trainer:
        assert list(trainer(FakeDetector(skill=0.4), data(5), CONFIG, seed=3))
    assert ranks.trained == []
    ranks.starting = False
    with trials.of_a_job() as trainer:
        assert list(trainer(FakeDetector(skill=0.4), data(5), CONFIG, seed=3))
    assert ranks.trained


def test_a_trial_that_is_given_up_while_it_is_measured_leaves_nothing_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, _ = trials_of(monkeypatch, 1.0, 0.5)
    with trials.of_a_job() as trainer, closing(trainer(FakeDetector(skill=0.4), data(5), CONFIG, seed=3)) as steps:
        next(steps)
    assert trials._pays == {}


def test_measuring_costs_no_trial_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan takes a trial's epoch for what a retraining's costs; measuring is the group's."""
    trials, ranks = trials_of(monkeypatch, 1.0, 0.5)
    steps = iter(range(10_000))
    with trials.of_a_job() as trainer:
        found = _all(
            microprofile(
                FakeDetector(skill=0.4),
                data(12),
                data(4),
                [CONFIG, replace(CONFIG, name="d", lr=0.02)],
                epochs=2,
                data_frac=1.0,
                budget_gpu_s=1e9,
                seed=1,
                timer=lambda: float(next(steps)),
                trainer=trainer,
            )  # fmt: skip
        )
    assert [len(trial.quality) for trial in found] == [3, 3]
    assert len({trial.gpu_s_per_epoch for trial in found}) == 1, "the first one, in which it was measured, costs no more"
    assert [name for name, _ in ranks.trained] == ["c", "c", "d"]


def _all(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_a_box_has_them_only_when_it_is_told_to() -> None:
    assert wide_of(GpusSection(), FakeClock()) is None
    wide = wide_of(GpusSection(trial_width=2, capacity_pct=200), FakeClock())
    assert wide is not None
    assert wide.steps("profile/a") is wide.steps("profile/b")
    assert wide.clock.thread_cpu_s() == 0.0
    wide.close()
