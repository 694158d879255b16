"""Profiling several families at once on a backend's lanes: the same trials as an iteration at a time, and cancelled as a whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import JobCancelled, JobError
from edge import jobs
from edge.gpu.lanes import LaneBackend
from edge.gpu.members import Members
from edge.jobs.profile import ProfiledAtOnce, profile_at_once
from edge.live_jobs import LiveJobs
from models.fake import FakeDetector
from models.microprofile_run import LENDING_EPOCHS
from models.retrain import Step, retrain
from models.tasks.detection import DETECTION
from models.wide_trials import WideTrials
from scheduler.commands import StartProfiling
from scheduler.events import ProfileDone
from scheduler.fluid.observe import LEAD_YES
from scheduler.types import Detections, RetrainConfig
from tests.support.keeping import Keeping
from tests.support.memory_samples import MemorySamples

BASE = RetrainConfig(name="base", epochs=6, batch=4, lr=0.02)
HEAD = replace(BASE, name="head", layers_frac=0.5)
FAMILIES = [BASE, replace(BASE, name="half", data_frac=0.5), replace(BASE, name="replay", replay_frac=0.25), HEAD]


def samples(labels: Detections | None = None) -> MemorySamples:
    made = MemorySamples({("a", 1): 20, ("a", 2): 24})
    for window in (1, 2):
        for number, ref in enumerate(made.sampled("a", window)):
            split = "holdout" if window == 2 and number < 6 else "train"
            made.label(ref, made.truth(ref) if labels is None else labels, golden="g", split=split)
    return made


HOW: dict[str, Any] = {
    "stream": "a", "window": 2, "configs": FAMILIES, "epochs": 2, "data_frac": 0.5, "budget_gpu_s": 1e9, "seed": 3,
    "timer": time.thread_time, "scoring": jobs.Scoring(), "replay_windows": 1,
}  # fmt: skip


def at_once(backend: LaneBackend, count: int, **how: Any) -> ProfiledAtOnce:
    members, own = Members(backend), backend.open_lane("p")
    members.set_shares({"p": float(backend.capacity_pct)})
    try:
        with members.lanes("p", own, count) as lanes:
            return profile_at_once(
                samples(), FakeDetector(skill=0.4), lanes, on_turn=lambda turn: members.divide("p", turn), **{**HOW, **how}
            )
    finally:
        backend.close_lane("p")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_same_trials_as_an_iteration_at_a_time(count: int) -> None:
    backend = LaneBackend(capacity_pct=400)
    found = at_once(backend, count)
    trials, n_train = jobs.run_at_once(jobs.profile_steps(samples(), FakeDetector(skill=0.4), **HOW))
    assert [(t.config.name, t.quality, t.n_profiled) for t in found.trials] == [
        (t.config.name, t.quality, t.n_profiled) for t in trials
    ]
    assert found.n_train == n_train
    assert found.gpu_s > 0
    assert found.report is not None
    assert 1 <= found.report.share_max <= count
    assert backend.report() == {}
    backend.close()


def test_nothing_to_learn_from_opens_no_work() -> None:
    backend = LaneBackend(capacity_pct=200)
    found = at_once(backend, 2, configs=[])
    assert (found.trials, found.n_train, found.report) == ((), 18, None)
    backend.close()


def test_labels_that_nothing_should_learn_from_are_said() -> None:
    backend = LaneBackend(capacity_pct=200)
    own = backend.open_lane("p")
    backend.set_shares({"p": 100.0})
    with pytest.raises(JobError) as caught:
        profile_at_once(samples(Detections.empty()), FakeDetector(), [own], **HOW)
    assert caught.value.code == "no_objects"
    backend.close()


def test_cancelling_stops_every_lane() -> None:
    """Cancelled from outside, while nothing may run: all threads come back, and the job ends as one."""
    backend = LaneBackend(capacity_pct=200)
    members, own = Members(backend), backend.open_lane("p")
    members.set_shares({"p": 100.0})
    begun = threading.Event()

    def turn(running: Any) -> None:
        members.divide("p", running)
        if len(running) == 1 and running[0] == 1:
            begun.set()

    ended: list[BaseException] = []

    def run() -> None:
        try:
            with members.lanes("p", own, 2) as lanes:
                profile_at_once(samples(), FakeDetector(skill=0.4), lanes, on_turn=turn, **{**HOW, "epochs": 400})
        except BaseException as error:
            ended.append(error)

    before = threading.active_count()
    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(120.0)
    members.cancel("p")
    thread.join(120.0)
    assert [type(e) for e in ended] == [JobCancelled]
    assert threading.active_count() == before
    backend.close()


def profiled(trials_at_once: int, members: bool = True, lend: bool = False, widths: Any = nullcontext) -> ProfileDone:
    """The command that the engine gives, carried out on a live box's lanes."""
    backend = LaneBackend(capacity_pct=200)
    given = Members(backend) if members else None
    parts = SimpleNamespace(
        samples=samples(), shelf=SimpleNamespace(detector=lambda version: Keeping(skill=0.4)), scoring=jobs.Scoring(),
        seed=1, replay_windows=1, trials_at_once=trials_at_once, profile_halving=False, steps=jobs.here,
        widths=widths,
    )  # fmt: skip
    live: Any = LiveJobs(parts, on_epoch=lambda *_: None, task_of=lambda _: DETECTION, members=given)  # type: ignore[arg-type]
    command = StartProfiling(
        job="p",
        stream="a",
        window=2,
        version="v",
        configs=tuple(FAMILIES),
        epochs=2,
        data_frac=0.5,
        budget_gpu_s=1e9,
        lend=lend,
    )
    lane = backend.open_lane("p")
    (given or backend).set_shares({"p": 200.0})
    started_s = time.thread_time()
    event = live.body(command)(lane, lambda: time.thread_time() - started_s)(5.0)
    assert set(backend.report()) == {"p"}
    backend.close()
    return event


@pytest.mark.parametrize("trials_at_once", [1, 3])
def test_the_box_tries_what_is_cheap_alone_where_the_others_may_borrow(trials_at_once: int) -> None:
    found = profiled(trials_at_once, lend=True)
    (cheap,) = found.trials
    assert found.lend, "the engine is told that it speaks for the others"
    assert (cheap.config.name, len(cheap.quality) - 1, cheap.n_profiled) == ("head", LENDING_EPOCHS, 18)
    plain = profiled(trials_at_once)
    assert not plain.lend
    assert [t.config.name for t in plain.trials] == ["base", "half", "replay", "head"]


def test_the_box_hears_the_same_whatever_ran_at_once() -> None:
    plain, packed, alone = profiled(1), profiled(3), profiled(3, members=False)
    shown = [[(t.config.name, t.quality) for t in event.trials] for event in (plain, packed, alone)]
    assert shown[0] == shown[1] == shown[2]
    assert {event.n_train for event in (plain, packed, alone)} == {18}
    assert all(event.gpu_s > 0 for event in (plain, packed, alone))


class HereTwice:
    """As `models.wide.Ranks` of two devices, training in this process."""

    width = 2

    def __init__(self) -> None:
        self.widths: list[int] = []

    def ready(self) -> bool:
        return True

    def retrain(self, *given: Any, width: int, **how: Any) -> Generator[Step, None, None]:
        self.widths.append(width)
        return retrain(*given, **how)

    def close(self) -> None: ...


@pytest.mark.parametrize("trials_at_once", [2, 3])
def test_the_box_hears_the_same_whatever_the_widths(trials_at_once: int) -> None:
    """Two devices that pay: the trial that is left alone has both, and every family ends as it would on one."""
    devices = HereTwice()
    trials = WideTrials(devices)
    for _ in range(LEAD_YES):
        trials.scaling(Keeping(skill=0.4).spec.arch).compared(1.0, 0.5)
    wide = profiled(trials_at_once, widths=trials.of_a_job)
    plain = profiled(1)
    assert [(t.config.name, t.quality) for t in wide.trials] == [(t.config.name, t.quality) for t in plain.trials]
    assert set(devices.widths) <= {2}
    with trials.of_a_job() as again:
        assert again is not None, "the job gave them back"


def test_a_wide_lane_has_the_share_of_all_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LaneBackend(capacity_pct=300)
    told: list[dict[str, float]] = []
    monkeypatch.setattr(backend, "set_shares", lambda shares: told.append(dict(shares)))
    members, own = Members(backend), backend.open_lane("p")
    with members.lanes("p", own, 3):
        members.set_shares({"p": 300.0})
        members.divide("p", (1, 1, 2))
        assert told[-1] == {"p": 0.0, "p+1": pytest.approx(200.0), "p+2": pytest.approx(100.0)}
        members.divide("p", (0, 0))
        assert told[-1] == {"p": 300.0, "p+1": 0.0, "p+2": 0.0}
    backend.close()
