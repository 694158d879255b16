"""Trainings on two devices: two processes, gloo between them. The result is that of one process; whatever ends one ends both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import JobCancelled, JobError
from edge.clock import SystemClock
from edge.gpu.lanes import LaneBackend
from edge.gpu.remote import RemoteClock
from edge.jobs import profile_steps, run_at_once, run_in_lane
from edge.wiring.wide import profiled_wide
from models.detector import Detector
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage
from models.precision import FLOAT32, Precision
from models.retrain import Bookmark, Step, retrain
from models.tinydet import TinyDetector
from models.wide import Ranks
from models.wide_trials import WideTrials
from scheduler.fluid.observe import LEAD_YES
from scheduler.types import RetrainConfig
from tests.unit.edge.test_profile_at_once import HOW, samples

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
CONFIG = RetrainConfig(name="wide", epochs=2, batch=4, lr=0.01)


def data(n: int) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(i) for i in range(n))]


def weights(detector: Detector) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for layer in detector.trainable_layers() for p in layer.parameters()])


def until(true: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.fixture(scope="module")
def shared() -> Iterator[Ranks]:
    """Two processes for the tests that leave them whole."""
    ranks = Ranks(["cpu", "cpu"], answer_s=PATIENCE_S)
    assert not ranks.ready(), "they are started, and not waited for"
    assert len(ranks.pids) == 2
    until(ranks.ready, 300.0)
    yield ranks
    pids = ranks.pids
    ranks.close()
    assert not [pid for pid in pids if alive(pid)]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """Two processes that a test may break; nothing of them may be left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ranks = Ranks(["cpu", "cpu"], answer_s=PATIENCE_S)
    yield ranks
    ranks.close()
    assert list(tmp_path.iterdir()) == []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, batch=3, layers_frac=0.5, distill=0.3)])
def test_the_result_is_that_of_one_process_and_the_same_each_time(shared: Ranks, config: RetrainConfig) -> None:
    alone, twice = FakeDetector(skill=0.4), [FakeDetector(skill=0.4) for _ in range(2)]
    losses = [s.epoch_loss for s in retrain(alone, data(10), config, seed=5) if s.epoch_loss is not None]
    for detector in twice:
        steps = list(shared.retrain(detector, data(10), config, seed=5))
        assert [s.epoch_loss for s in steps if s.epoch_loss is not None] == pytest.approx(losses, rel=1e-4)
        assert len(steps) == steps[-1].n_iterations == steps[-1].iteration
    np.testing.assert_array_equal(weights(twice[0]), weights(twice[1]))
    np.testing.assert_allclose(weights(twice[0]), weights(alone), rtol=0, atol=2e-5)


def test_a_real_network(shared: Ranks) -> None:
    alone, wide = (TinyDetector("tinydet-edge", seed=1) for _ in range(2))
    config = replace(CONFIG, epochs=1, lr=1e-3)
    list(retrain(alone, data(6), config, seed=5))
    list(shared.retrain(wide, data(6), config, seed=5))
    np.testing.assert_allclose(weights(wide), weights(alone), rtol=0, atol=1e-4)


def epoch(steps: Generator[Step, None, None]) -> float:
    """To the end of an epoch; its loss."""
    return next(step.epoch_loss for step in steps if step.epoch_loss is not None)


@pytest.mark.parametrize("widths", [(None, 2, None), (2, None, 2), (1, 2, 1), (None, 1, 2)])
def test_a_training_moves_to_another_width_between_epochs(shared: Ranks, widths: tuple[int | None, ...]) -> None:
    """None: in this process. It comes to the weights of one that stays, but for rounding."""
    config = replace(CONFIG, epochs=3, distill=0.2)
    serving = FakeDetector(skill=0.4)
    stays, goes = serving.clone(), serving.clone()
    losses = [s.epoch_loss for s in retrain(stays, data(9), config, seed=5, teacher=serving) if s.epoch_loss is not None]
    after, told = None, []
    for width in widths:
        mark = Bookmark(after)
        train = retrain if width is None else partial(shared.retrain, width=width)
        with closing(train(goes, data(9), config, seed=5, teacher=serving, bookmark=mark)) as steps:
            told.append(epoch(steps))
            after = mark.saved()
    assert told == pytest.approx(losses, rel=1e-4)
    np.testing.assert_allclose(weights(goes), weights(stays), rtol=0, atol=2e-5)


def test_three_devices_two_trainings_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One on two devices and one on the third, each in a thread; then one on all, which shares devices with an open one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alone = FakeDetector(skill=0.4)
    list(retrain(alone, data(8), CONFIG, seed=5))
    ranks = Ranks(["cpu"] * 3, answer_s=PATIENCE_S)
    try:
        until(ranks.ready, 300.0)
        detectors = [FakeDetector(skill=0.4) for _ in range(4)]
        both = threading.Barrier(2, timeout=PATIENCE_S)
        failed: list[BaseException] = []

        def train(detector: FakeDetector, width: int) -> None:
            try:
                steps = ranks.retrain(detector, data(8), CONFIG, seed=5, width=width)
                next(steps)
                both.wait()
                list(steps)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=train, args=given) for given in zip(detectors, (2, 1), strict=False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert failed == []
        two, all_three = (
            ranks.retrain(d, data(8), CONFIG, seed=5, width=w) for d, w in zip(detectors[2:], (2, 3), strict=True)
        )
        for _ in zip(two, all_three, strict=False):
            assert sum(ranks._open.values()) == 5
        list(two)
        list(all_three)
        for detector in detectors:
            np.testing.assert_allclose(weights(detector), weights(alone), rtol=0, atol=2e-5)
        assert sum(ranks._open.values()) == 0
    finally:
        ranks.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("narrow_first", [True, False])
def test_groups_of_ranks_that_others_know_nothing_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow_first: bool
) -> None:
    """Ranks 1 and 2 trained together before 0 and 1 do, or the other way round: who was in how many groups differs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alone = FakeDetector(skill=0.4)
    list(retrain(alone, data(8), CONFIG, seed=5))
    with closing(Ranks(["cpu"] * 3, answer_s=PATIENCE_S)) as ranks:
        detectors = [FakeDetector(skill=0.4) for _ in range(5)]

        def begun(width: int) -> Generator[Step, None, None]:
            steps = ranks.retrain(detectors[width], data(8), CONFIG, seed=5, width=width)
            next(steps)
            return steps

        both = [begun(width) for width in ((1, 2) if narrow_first else (2, 1))]
        groups = {group for group in ranks._team._groups if len(group) == 2}
        assert groups == ({(1, 2)} if narrow_first else {(0, 1)})
        for steps in both:
            list(steps)
        ranks._open[2 if narrow_first else 0] += 1  # the next one takes the two others
        list(ranks.retrain(detectors[3], data(8), CONFIG, seed=5, width=2))
        assert {(0, 1), (1, 2)} <= ranks._team._groups
        list(ranks.retrain(detectors[4], data(8), CONFIG, seed=5, width=3))
        for detector in detectors[1:]:
            np.testing.assert_allclose(weights(detector), weights(alone), rtol=0, atol=2e-5)
    assert list(tmp_path.iterdir()) == []


def test_one_that_dies_ends_the_trainings_of_other_threads_too(own: Ranks) -> None:
    """They share processes that have to be started anew: each hears of it, none hangs."""
    until(own.ready, 300.0)
    steps = [own.retrain(FakeDetector(skill=0.4), data(10), replace(CONFIG, epochs=500), seed=5, width=1) for _ in range(2)]
    for each in steps:
        next(each)
    ended: list[str] = []

    def train(each: Generator[Step, None, None]) -> None:
        try:
            list(each)
        except JobError as error:
            ended.append(error.code)

    threads = [threading.Thread(target=train, args=(each,)) for each in steps]
    for thread in threads:
        thread.start()
    os.kill(own.pids[0], signal.SIGKILL)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended == ["process_lost", "process_lost"]
    assert own.pids == ()


def test_the_precision_is_that_of_the_box(shared: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured in the box's process; the others would not know."""
    alone, wide, plain = (TinyDetector("tinydet-edge", seed=1) for _ in range(3))
    config = replace(CONFIG, epochs=1, lr=1e-3)
    list(retrain(plain, data(6), config, seed=5, precision=FLOAT32))  # whatever a test before has measured
    half = Precision(dtype=torch.bfloat16)
    monkeypatch.setattr("models.wide.precision_of", lambda *_: half)
    list(retrain(alone, data(6), config, seed=5, precision=half))
    list(shared.retrain(wide, data(6), config, seed=5))
    apart = np.abs(weights(plain) - weights(alone)).max()
    assert np.abs(weights(wide) - weights(alone)).max() < apart / 2


def test_the_trials_of_a_group_advance_together(shared: Ranks) -> None:
    """Two open trainings, an iteration of each in turns; one is given up in between."""
    alone, detectors = FakeDetector(skill=0.4), [FakeDetector(skill=0.4) for _ in range(3)]
    list(retrain(alone, data(10), CONFIG, seed=5))
    first, second, third = (shared.retrain(detector, data(10), CONFIG, seed=5) for detector in detectors)
    next(third)
    for _ in zip(first, second, strict=False):
        third.close()
    list(second)
    for detector in detectors[:2]:
        np.testing.assert_allclose(weights(detector), weights(alone), rtol=0, atol=2e-5)


def test_a_profiling_job_on_two_cores_comes_to_the_same_trials(shared: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a lane of a box, as `edge.wiring.wide` does it; that it pays is taken for granted here."""
    clock = RemoteClock(SystemClock())
    monkeypatch.setattr(shared, "_elsewhere", clock.elsewhere)
    trials = WideTrials(shared)
    for _ in range(LEAD_YES):
        trials.scaling(FakeDetector().spec.arch).compared(1.0, 0.5)
    backend = LaneBackend(capacity_pct=200, clock=clock)
    lane = backend.open_lane("p")
    backend.set_shares({"p": 200.0})
    how = {**HOW, "timer": clock.thread_cpu_s}
    before_s = clock.thread_cpu_s()
    found, n_train = run_in_lane(
        profiled_wide(trials, samples(), FakeDetector(skill=0.4), yield_point=lane.checkpoint, **how), lane
    )
    charged_s = clock.thread_cpu_s() - before_s
    alone, n_alone = run_at_once(profile_steps(samples(), FakeDetector(skill=0.4), **HOW))
    assert [(t.config.name, t.n_profiled) for t in found] == [(t.config.name, t.n_profiled) for t in alone]
    for one, other in zip(found, alone, strict=True):
        assert one.quality == pytest.approx(other.quality, abs=0.02)
    assert n_train == n_alone
    assert sum(t.gpu_s_per_epoch for t in found) <= charged_s
    assert backend.report(3600.0)["p"].received_pct > 0
    backend.close()


def test_what_the_ranks_compute_is_charged_to_who_waits(shared: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []
    monkeypatch.setattr(shared, "_elsewhere", lambda: nullcontext(spent.append))
    steps = list(shared.retrain(TinyDetector("tinydet-edge"), data(4), replace(CONFIG, epochs=1), seed=1))
    assert len(spent) == len(steps) + 1
    assert sum(spent) > 0.01


def test_a_rank_that_dies_ends_the_training_with_its_name(own: Ranks) -> None:
    detector = FakeDetector(skill=0.4)
    steps = own.retrain(detector, data(10), replace(CONFIG, epochs=50), seed=5)
    other = own.retrain(FakeDetector(skill=0.4), data(10), CONFIG, seed=5)
    next(steps), next(other)
    pids = own.pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(JobError, match="process 2 of 2 was killed by signal 9") as caught:
        list(steps)
    assert (caught.value.code, caught.value.subject) == ("process_lost", "wide")
    assert not [pid for pid in pids if alive(pid)], "the first one waited for it, and has gone too"
    with pytest.raises(JobError, match="its processes have ended"):
        list(other)
    with pytest.raises(JobError, match="loss became nan") as caught:  # the next training gets new ones, and fails in them
        list(own.retrain(FakeDetector(nan_loss=True), data(4), CONFIG, seed=5))
    assert (caught.value.code, caught.value.subject, own.pids) == ("nan", "wide", ())


def test_a_rank_that_hangs_ends_the_training(own: Ranks) -> None:
    steps = own.retrain(FakeDetector(skill=0.4), data(10), replace(CONFIG, epochs=50), seed=5)
    next(steps)
    pids = own.pids
    own._answer_s = 0.5
    os.kill(pids[0], signal.SIGSTOP)
    with pytest.raises(JobError, match="process 1 of 2 gave no answer"):
        list(steps)
    assert not [pid for pid in pids if alive(pid)]


def test_a_job_that_is_cancelled_is_left_within_the_iteration(own: Ranks) -> None:
    """One rank stands still, so this iteration would never end."""
    cancelled = threading.Event()

    def checkpoint() -> None:
        if cancelled.is_set():
            raise JobCancelled("job p was cancelled", subject="p")

    steps = own.retrain(FakeDetector(skill=0.4), data(10), replace(CONFIG, epochs=50), seed=5, yield_point=checkpoint)
    next(steps)
    pids = own.pids
    os.kill(pids[1], signal.SIGSTOP)
    cancelled.set()
    before_s = time.monotonic()
    with pytest.raises(JobCancelled):
        list(steps)
    assert time.monotonic() - before_s < PATIENCE_S / 2
    assert not [pid for pid in pids if alive(pid)]


def test_the_ranks_end_with_a_box_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom tests.integration.test_wide_trials_in_processes import *\n"
        "if __name__ == '__main__':\n"
        "    ranks = Ranks(['cpu', 'cpu'])\n    steps = ranks.retrain(FakeDetector(skill=0.4), data(10), CONFIG, seed=1)\n"
        "    next(steps)\n    print(*ranks.pids, flush=True)\n    sys.stdin.read()\n"
    )
    (tmp_path / "box.py").write_text(script)
    command = [sys.executable, str(tmp_path / "box.py")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ) as box:
        assert box.stdout is not None
        pids = [int(pid) for pid in box.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        box.kill()
    until(lambda: not [pid for pid in pids if alive(pid)])


def test_nothing_to_train_on_starts_no_process() -> None:
    ranks = Ranks(["cpu", "cpu"])
    with pytest.raises(JobError) as caught:
        ranks.retrain(FakeDetector(), [], CONFIG, seed=5)
    assert (caught.value.code, ranks.pids) == ("no_data", ())


@pytest.mark.parametrize("devices", [[], ["cpu", "GPU-a"]])
def test_devices_of_two_kinds_are_no_team(devices: list[str]) -> None:
    with pytest.raises(ValueError, match="one kind"):
        Ranks(devices)
