"""How much several devices gain is asked of each architecture's batches; a training changes its width between two epochs; one job at a
time has the devices. Virtual time: a batch takes what the test says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from configs.errors import EnvironmentLacking
from configs.schema import GpusSection
from edge.clock import FakeClock
from edge.gpu.nvml import Survey
from edge.gpu.remote import RemoteClock
from edge.wiring.wide import cores_of, gpus_of, wide_of
from models import wide_trials
from models.detector import Detector
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage
from models.microprofile_run import ProfileGroup, microprofile
from models.retrain import Step, retrain
from models.trial_pack import run_packed
from models.wide_trials import EPSILON_S, WARM, WideTrials, Widths
from scheduler.fluid.observe import LEAD_NO, LEAD_YES
from scheduler.types import ProfileTrial, RetrainConfig

CONFIG = RetrainConfig(name="c", epochs=2, batch=4, lr=0.01)
ARCH = FakeDetector(skill=0.4).spec.arch
#: What beginning at another width takes here.
CHANGE_S = 3.0


def data(n: int) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(i) for i in range(n))]


class Machine:
    """A clock that pictures move: one_s each on one device, one_s / width * beta ** (width - 1) on more."""

    def __init__(self, beta: float = 1.1, devices: int = 2, one_s: float = 1.0) -> None:
        self.now_s, self.beta, self.width, self.one_s = 0.0, beta, devices, one_s
        self.ran: list[tuple[str, int, int]] = []  # (configuration, width, epochs that were over)
        self.closed, self.starting = False, False

    def picture_s(self, width: int) -> float:
        return self.one_s / width * self.beta ** (width - 1)

    def here(
        self, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, **how: Any
    ) -> Generator[Step, None, None]:
        return self._trained(1, detector, samples, config, how)

    def _trained(
        self, width: int, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, how: dict[str, Any]
    ) -> Generator[Step, None, None]:
        mark = how.get("bookmark")
        begins = mark.after.epoch if mark is not None and mark.after is not None else 0
        if begins:
            self.now_s += CHANGE_S
        told = False
        for step in retrain(detector, samples, config, **how):
            if not told:
                self.ran.append((config.name, width, begins))
                told = True
            self.now_s += self.picture_s(width)
            yield step

    # --- as `models.wide.Ranks` ---

    def ready(self) -> bool:
        return not self.starting

    def retrain(
        self, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, *, width: int, **how: Any
    ) -> Generator[Step, None, None]:
        return self._trained(width, detector, samples, config, how)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[WideTrials, Machine]]:
    def made(beta: float = 1.1, devices: int = 2, **how: Any) -> tuple[WideTrials, Machine]:
        machine = Machine(beta, devices)
        monkeypatch.setattr(wide_trials, "retrain", machine.here)
        return WideTrials(cast(Any, machine), clock=lambda: machine.now_s, **how), machine

    return made


Made = Callable[..., tuple[WideTrials, Machine]]


def asked(widths: Widths, detector: Detector | None = None) -> int:
    """Iterations that asking took."""
    return len(list(widths.compare(detector or FakeDetector(skill=0.4), data(10), CONFIG, seed=3, replay=data(2))))


# --- what is measured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta", "most"), [(1.0, 2), (1.3, 2), (1.7, 2), (1.85, 1), (2.6, 1)])
def test_two_devices_are_used_where_they_save_a_tenth(
    beta: float, most: int, trials: Made, caplog: pytest.LogCaptureFixture
) -> None:
    box, machine = trials(beta)
    with box.of_a_job() as widths, caplog.at_level(logging.INFO, logger="driftbox"):
        assert widths is not None
        assert (widths.asks(ARCH), widths.width_max(ARCH)) == (True, 1)
        batches = 2 * (WARM + (LEAD_YES if most == 2 else LEAD_NO))
        assert asked(widths) == 4 * batches
        assert (widths.asks(ARCH), widths.width_max(ARCH)) == (False, most)
        assert widths.beta(ARCH) == pytest.approx(beta)
    assert f"may have {most} of 2 devices" in caplog.text
    assert f"(beta {beta:.2f})" in caplog.text
    assert {(width, begun) for _, width, begun in machine.ran} == {(1, 0), (2, 0)}


@pytest.mark.parametrize(("beta", "most"), [(1.1, 4), (1.3, 3), (1.45, 2), (1.9, 1)])
def test_how_wide_follows_from_two_devices(beta: float, most: int, trials: Made) -> None:
    """The card's d: beta < 1 + 1/d; and two where two save a tenth."""
    box, _ = trials(beta, 4)
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths)
        assert widths.width_max(ARCH) == most


def test_the_operators_bound_holds(trials: Made) -> None:
    box, _ = trials(1.0, 4, width_max=2)
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths)
        assert (widths.devices, widths.most, widths.width_max(ARCH)) == (4, 2, 2)


def test_where_a_trial_may_have_one_device_nothing_is_asked(trials: Made) -> None:
    box, _ = trials(1.0, 4, width_max=1)
    with box.of_a_job() as widths:
        assert widths is not None
        assert not widths.asks(ARCH)


def test_each_architecture_is_asked_once(trials: Made) -> None:
    box, _ = trials()
    other = FakeDetector(skill=0.4)
    other.spec = replace(other.spec, arch="another")
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths)
        assert (widths.asks(ARCH), widths.asks("another")) == (False, True)
        asked(widths, other)
    with box.of_a_job() as widths:
        assert widths is not None
        assert not widths.asks("another"), "the box remembers"


def test_asking_changes_no_model(trials: Made) -> None:
    box, _ = trials()
    detector = FakeDetector(skill=0.4)
    before = [p.detach().clone() for layer in detector.trainable_layers() for p in layer.parameters()]
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths, detector)
    after = [p for layer in detector.trainable_layers() for p in layer.parameters()]
    assert all(bool((a == b).all()) for a, b in zip(before, after, strict=True))


def test_asking_that_is_given_up_decides_nothing(trials: Made) -> None:
    box, _ = trials()
    with box.of_a_job() as widths:
        assert widths is not None
        steps = widths.compare(FakeDetector(skill=0.4), data(10), CONFIG, seed=3)
        next(steps)
        steps.close()
        assert widths.asks(ARCH)


# --- who has the devices ----------------------------------------------------------------------------------------------


def test_while_one_job_has_the_devices_another_has_none(trials: Made) -> None:
    box, machine = trials()
    with box.of_a_job() as first, box.of_a_job() as second:
        assert first is not None
        assert second is None
    with box.of_a_job() as third:
        assert third is not None
    box.close()
    assert machine.closed


# --- trainings that change their width --------------------------------------------------------------------------------


def losses(steps: Iterator[Step], epochs: int) -> list[float]:
    found: list[float] = []
    while len(found) < epochs:
        step = next(steps)
        found += [step.epoch_loss] if step.epoch_loss is not None else []
    return found


@pytest.mark.parametrize("plan", [(1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 2)])
def test_a_training_comes_to_the_same_whatever_its_widths(plan: tuple[int, ...], trials: Made) -> None:
    box, machine = trials()
    config = replace(CONFIG, epochs=3)
    stays, goes = FakeDetector(skill=0.4), FakeDetector(skill=0.4)
    told = losses(retrain(stays, data(6), config, seed=3), 3)
    with box.of_a_job() as widths:
        assert widths is not None
        steps = widths.train(goes, data(6), config, seed=3)
        found = []
        for width in plan:
            steps.width = width
            found += losses(steps, 1)
        steps.close()
    assert found == told
    for one, other in zip(stays.trainable_layers(), goes.trainable_layers(), strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
    changes = [i for i in range(1, 3) if plan[i] != plan[i - 1]]
    assert machine.ran == [("c", plan[0], 0), *(("c", plan[i], i) for i in changes)], "nothing is done twice"
    assert box.epsilon_s == pytest.approx(CHANGE_S if changes else EPSILON_S)


def test_what_real_epochs_gain_corrects_what_was_measured(trials: Made) -> None:
    """Asking said that two devices pay. They do not any more, as the trials themselves show."""
    box, machine = trials(1.05)
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths)
        machine.beta = 2.2
        for _ in range(8):
            steps = widths.train(FakeDetector(skill=0.4), data(6), CONFIG, seed=3)
            for width in (1, 2):
                steps.width = width
                losses(steps, 1)
            steps.close()
        assert widths.width_max(ARCH) == 1
        assert widths.beta(ARCH) == pytest.approx(2.2)


def test_what_did_not_pay_is_asked_again_some_day(trials: Made) -> None:
    box, machine = trials(2.5)
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths)
        machine.beta = 1.0
        begun = 0
        while not widths.asks(ARCH):
            widths.train(FakeDetector(skill=0.4), data(6), CONFIG, seed=3).close()
            begun += 1
            assert begun < 100
        asked(widths)
        assert widths.width_max(ARCH) == 2
    assert begun > 1


def test_narrow_trials_have_a_device_of_their_own_where_the_box_computes_elsewhere(trials: Made) -> None:
    """GPUs for trials: also those of width 1 are trained there, unless the processes are not there yet."""
    box, machine = trials(narrow_here=False)
    with box.of_a_job() as widths:
        assert widths is not None
        machine.starting = True
        losses(widths.train(FakeDetector(skill=0.4), data(3), CONFIG, seed=3), 2)
        machine.starting = False
        machine.picture_s = lambda width: 7.0  # type: ignore[method-assign]
        before_s = machine.now_s
        losses(widths.train(FakeDetector(skill=0.4), data(3), CONFIG, seed=3), 2)
        assert machine.now_s - before_s == pytest.approx(6 * 7.0)


# --- a profile's trials -----------------------------------------------------------------------------------------------


def profiled(
    box: WideTrials, configs: Sequence[RetrainConfig], *, epochs: int = 3, timer: Callable[[], float] | None = None
) -> tuple[ProfileTrial, ...]:
    """One trial at a time."""
    with box.of_a_job() as widths:
        steps = microprofile(
            FakeDetector(skill=0.4), data(12), data(4), configs, epochs=epochs, data_frac=1.0, budget_gpu_s=1e9, seed=1,
            timer=timer or box.clock, widths=widths,
        )  # fmt: skip
        return _all(steps)


def _all(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


FAMILIES = [CONFIG, replace(CONFIG, name="d", lr=0.02), replace(CONFIG, name="e", data_frac=0.5)]


def plain(configs: Sequence[RetrainConfig], epochs: int = 3) -> list[tuple[str, tuple[float, ...]]]:
    found = _all(
        microprofile(
            FakeDetector(skill=0.4), data(12), data(4), configs, epochs=epochs, data_frac=1.0, budget_gpu_s=1e9, seed=1,
            timer=lambda: 0.0,
        )
    )  # fmt: skip
    return [(trial.config.name, trial.quality) for trial in found]


@pytest.mark.parametrize(("beta", "wide"), [(1.1, True), (2.5, False)])
def test_one_at_a_time_each_trial_is_as_wide_as_pays(beta: float, wide: bool, trials: Made) -> None:
    box, machine = trials(beta)
    found = profiled(box, FAMILIES)
    assert [(t.config.name, t.quality) for t in found] == plain(FAMILIES), "the qualities do not depend on it"
    real = [(name, width) for name, width, begun in machine.ran if name in "cde"][2:]  # the first two: asking
    assert {width for _, width in real} == ({2} if wide else {1})
    assert len(real) == 3, "no trial is begun twice"


def test_asking_costs_no_trial_its_epoch(trials: Made) -> None:
    """The plan takes a trial's epoch for what a retraining's costs; asking is the group's."""
    box, _ = trials(1.1)
    ticks = iter(range(100_000))
    found = profiled(box, FAMILIES[:2], timer=lambda: float(next(ticks)))
    assert len({trial.gpu_s_per_epoch for trial in found}) == 1


def test_until_the_processes_are_there_trials_have_one_device(trials: Made) -> None:
    box, machine = trials(1.1)
    machine.starting = True
    profiled(box, FAMILIES)
    assert {width for _, width, _ in machine.ran} == {1}
    machine.starting = False
    profiled(box, FAMILIES)
    assert {width for _, width, _ in machine.ran} == {1, 2}


class Gate:
    """A lane of the whole machine."""

    def iteration(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()

    def checkpoint(self) -> None: ...


def grouped(
    box: WideTrials,
    configs: Sequence[RetrainConfig],
    *,
    epochs: int,
    lanes: int,
    share: int | None = None,
    devices: int | None = None,
) -> tuple[ProfileGroup, list[tuple[int, ...]]]:
    """Several at once. -> (the group, the lanes that ran, a wide one as often as it is wide)."""
    turns: list[tuple[int, ...]] = []
    with box.of_a_job() as widths:
        assert widths is not None
        group = ProfileGroup(
            FakeDetector(skill=0.4), data(12), data(4), configs, epochs=epochs, data_frac=1.0, budget_gpu_s=1e9, seed=1,
            timer=box.clock, apart=True, widths=widths, lanes=lanes,
        )  # fmt: skip
        _all(group.prelude())
        run_packed(
            group, [Gate() for _ in range(lanes)], share=share, seats=devices or widths.devices, clock=box.clock,
            on_turn=lambda turn: turns.append(tuple(turn)),
        )  # fmt: skip
        group.close()
    return group, turns


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_single_trial_has_all_devices_from_its_beginning(lanes: int, trials: Made) -> None:
    box, machine = trials(1.1)
    group, turns = grouped(box, FAMILIES[:1], epochs=3, lanes=lanes, share=lanes)
    assert [(t.config.name, t.quality) for t in group.results()] == plain(FAMILIES[:1])
    assert [width for name, width, begun in machine.ran][2:] == [2]
    assert (0, 0) in turns or (1, 1) in turns, "its lane has the whole share"


def test_as_many_trials_as_devices_have_one_each(trials: Made) -> None:
    box, machine = trials(1.1)
    group, _ = grouped(box, FAMILIES[:2], epochs=1, lanes=2, share=2)
    assert [(t.config.name, t.quality) for t in group.results()] == plain(FAMILIES[:2], epochs=1)
    assert len(group.results()) == 2


def test_the_last_of_a_group_grows_when_it_begins_its_last_epoch(trials: Made) -> None:
    """One lane at a time takes what `take` gives, as two devices would: three trials, two epochs; the last epoch of all is alone."""
    box, machine = trials(1.1)
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths)
        machine.ran.clear()
        group = ProfileGroup(
            FakeDetector(skill=0.4), data(12), data(4), FAMILIES, epochs=2, data_frac=1.0, budget_gpu_s=1e9, seed=1,
            timer=box.clock, apart=True, widths=widths, lanes=2,
        )  # fmt: skip
        _all(group.prelude())
        given: list[tuple[str, int]] = []
        running: list[Any] = []
        while not group.done:
            free = 2 - sum(piece.width for piece in running)
            piece = group.take(free) if free else None
            if piece is None:
                over = running.pop(0)
                while over.step():
                    pass
                group.ended(over)
                continue
            given.append((piece.trial, piece.width))
            running.append(piece)
        group.close()
    names = [name for name, _ in given]
    assert sorted(names) == sorted([c.name for c in FAMILIES] * 2)
    assert [width for _, width in given[:-1]] == [1] * 5, "as long as another waits or runs"
    assert given[-1][1] == 1, "the fifth still runs when the sixth begins: one device is free"
    assert [(t.config.name, t.quality) for t in group.results()] == plain(FAMILIES, epochs=2)


def test_a_trial_that_is_left_alone_between_two_epochs_grows(trials: Made) -> None:
    """The others of the group are over (here: stopped at a rung); what is left has both devices, and goes on where it was."""
    box, machine = trials(1.1)
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths)
        machine.ran.clear()
        group = ProfileGroup(
            FakeDetector(skill=0.4), data(12), data(4), FAMILIES[:2], epochs=4, data_frac=1.0, budget_gpu_s=1e9, seed=1,
            timer=box.clock, apart=True, widths=widths, lanes=2,
        )  # fmt: skip
        _all(group.prelude())
        for _ in range(2):
            pair = [group.take(1), group.take(1)]
            for piece in pair:
                assert piece is not None
                assert piece.width == 1
                while piece.step():
                    pass
                group.ended(piece)
        group._trials[1].alive = False
        given = []
        while (piece := group.take(2)) is not None:
            given.append((piece.trial, piece.width))
            while piece.step():
                pass
            group.ended(piece)
        group.close()
    assert given == [("c", 2), ("c", 2)]
    assert ("c", 2, 2) in machine.ran, "from its third epoch on"
    assert group.results()[0].quality == plain(FAMILIES[:2], epochs=4)[0][1]


def test_a_change_that_costs_more_than_it_brings_is_not_made(trials: Made) -> None:
    box, machine = trials(1.1)
    for _ in range(5):
        box.changed(1e6)
    with box.of_a_job() as widths:
        assert widths is not None
        asked(widths)
        machine.ran.clear()
        group = ProfileGroup(
            FakeDetector(skill=0.4), data(12), data(4), FAMILIES[:1], epochs=2, data_frac=1.0, budget_gpu_s=1e9, seed=1,
            timer=box.clock, apart=True, widths=widths, lanes=2,
        )  # fmt: skip
        _all(group.prelude())
        for room, expected in ((1, 1), (2, 1)):
            piece = group.take(room)
            assert piece is not None
            assert piece.width == expected
            while piece.step():
                pass
            group.ended(piece)
        group.close()
    assert {width for _, width, _ in machine.ran} == {1}


# --- which devices a box has ------------------------------------------------------------------------------------------


def none() -> Survey:
    raise AssertionError("nobody asks the GPUs")


def survey(*gpus: Any) -> Survey:
    return cast(Survey, SimpleNamespace(devices=list(gpus)))


def gpu(uuid: str, *, problem: str = "", mig: bool = False, code: str = "") -> Any:
    return SimpleNamespace(facts=SimpleNamespace(uuid=uuid, name="X", problem=problem, mig=mig), code=code, remedy="")


def test_a_box_has_them_only_when_it_is_told_to() -> None:
    assert wide_of(GpusSection(), FakeClock(), none) is None
    wide = wide_of(GpusSection(trial_width=2, capacity_pct=200), FakeClock(), none)
    assert wide is not None
    assert wide.steps("profile/a") is wide.steps("profile/b")
    assert wide.clock.thread_cpu_s() == 0.0
    assert wide.paces is wide.clock, "a share pays for its cores"
    wide.close()


def test_as_many_cores_as_the_plan_may_give_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.wiring.wide.usable_cores", lambda: 4)
    assert len(cores_of(GpusSection(trial_width=0))) == 1, "100 pct is one core"
    assert len(cores_of(GpusSection(trial_width=0, capacity_pct=300))) == 3
    assert len(cores_of(GpusSection(trial_width=0, capacity_pct=900))) == 4
    assert wide_of(GpusSection(trial_width=0), FakeClock(), none) is None


@pytest.mark.parametrize(("width", "most"), [(0, 2), (1, 1), (2, 2)])
def test_further_gpus_are_named_by_their_uuid_and_paid_by_nobodys_share(width: int, most: int) -> None:
    made: list[Any] = []

    def ranks(devices: Sequence[str], **how: Any) -> Any:
        made.append((list(devices), how))
        return Machine(devices=len(devices))

    clock = FakeClock()
    given = GpusSection(device="cuda", trial_gpus=(2, 1), trial_width=width)
    wide = wide_of(given, clock, partial(survey, gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")), ranks=ranks)
    assert wide is not None
    [(devices, _)] = made
    assert devices == ["GPU-c", "GPU-b"]
    assert wide.paces is clock
    assert isinstance(wide.clock, RemoteClock), "what a trial costs is known all the same"
    with wide.widths() as widths:
        assert widths is not None
        assert (widths.devices, widths.most) == (2, most)


@pytest.mark.parametrize(
    ("third", "words"),
    [
        (None, "names GPU 2, and this machine has 2"),
        (gpu("GPU-c", problem="is lost", code="lost"), "is lost"),
        (gpu("GPU-c", mig=True), "divided"),
    ],
)
def test_a_gpu_that_cannot_be_had_is_said(third: Any, words: str) -> None:
    look = partial(survey, gpu("GPU-a"), gpu("GPU-b"), *([third] if third else []))
    with pytest.raises(EnvironmentLacking, match=words) as caught:
        gpus_of(GpusSection(device="cuda", trial_gpus=(2,)), look)
    assert caught.value.subject == "gpus.trial_gpus"
    assert caught.value.remedy
