"""The backend `mps` with real processes on the CPU and the stand-in for NVIDIA's control program."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import JobError
from edge import calibrate
from edge.calibrate import Plan, measure
from edge.calibrate_processes import kept_lessons, subjects
from edge.gpu.base import ChangeCost
from edge.gpu.fake_mps import FakeClient
from edge.gpu.mps import GUESSED, POISONED_MAX, MpsBackend, limit_mib, next_pct
from edge.gpu.mps_daemon import MpsDaemon, ServerState
from edge.gpu.remote import WorkerLost
from edge.jobs import HERE, Scoring, run_in_lane
from edge.samples import FileSamples
from models.fake import scripted_image
from models.golden import Labelling
from models.labelled import LabelledImage
from models.tasks.base import Picture
from models.tasks.detection import DETECTION
from models.torch_support import torch_threads
from models.zoo import load_detector
from scheduler.salus.types import MemoryNeed
from scheduler.types import EpochReport, RetrainConfig
from tests.support import remote_models as rm
from tests.support.labelled_samples import labelled_samples
from tests.support.mps_bench import WAIT_S, Bench, Place, frames, keep_gain, until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("edge.gpu.mps.keep", keep_gain)
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        made = Bench(Path(folder))
        yield made
        made.backend.close()
        assert made.daemon.state() is ServerState.GONE
        assert not any(worker.alive for worker in made.made)


def test_a_process_starts_as_a_client_of_its_share(bench: Bench) -> None:
    detector, lane = bench.serve("cam1/infer", 33.0)
    assert bench.made == []
    frames(detector, lane, 3)
    assert bench.pcts() == {bench.made[0].pid: 40.0}
    assert bench.backend.report(60.0)["cam1/infer"].iterations == 3
    held = bench.backend.memory()["cam1/infer"].need
    assert held is not None
    assert bench.backend.change_cost() == GUESSED


def test_what_it_is_promised_is_what_it_receives(bench: Bench) -> None:
    """A job of 30 pct that always wants more gets that, by its processes' own account."""
    detector, lane = bench.serve("cam1/infer", 30.0)
    frames(detector, lane, 1)
    start_s, before = time.monotonic(), bench.backend.ledger("cam1/infer").last()
    frames(detector, lane, 25, rm.WORK)
    spent = bench.backend.ledger("cam1/infer").last()
    seconds = time.monotonic() - start_s
    received_s = spent.received_s - before.received_s
    assert received_s >= 25 * rm.WORK_S * 0.99
    # Never more than promised, whatever the machine is at (it starts with what it saved while its process was made).
    assert received_s <= 0.30 * seconds + 0.25 + 2 * rm.WORK_S


def test_a_spare_process_becomes_the_next_and_another_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("edge.gpu.mps.keep", keep_gain)
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        bench = Bench(Path(folder), spare=True)
        try:
            bench.backend._wake.set()
            assert until(lambda: len(bench.made) == 1)
            detector, lane = bench.serve("cam1/infer", 20.0)
            frames(detector, lane, 1)
            assert detector.worker is bench.made[0]
            assert until(lambda: len(bench.made) == 2)
            assert list(bench.pcts()) == [bench.made[0].pid]  # a spare is nobody's client
            bench.made[1].kill()
            other, other_lane = bench.serve("cam2/infer", 20.0)
            frames(other, other_lane, 1)  # the spare had died
        finally:
            bench.backend.close()
        assert not any(worker.alive for worker in bench.made)


def test_memory_is_limited_by_the_declared_need(bench: Bench) -> None:
    need = MemoryNeed(persistent_mib=400.0, ephemeral_mib=200.0)
    detector, lane = bench.serve("cam1/infer", 20.0, need)
    frames(detector, lane, 1)
    limit = limit_mib(need)
    assert limit is not None
    assert f"0={round(limit)}M" in bench.daemon.ask("ps")
    assert bench.backend._limit_mib("cam1/infer") == limit  # holding less so far is no reason to get less
    with pytest.raises(JobError):
        bench.backend.open_lane("too-large", need=MemoryNeed(persistent_mib=20_000.0, ephemeral_mib=0.0))


def test_a_process_that_is_killed_is_replaced_and_told_and_others_go_on(bench: Bench) -> None:
    detector, lane = bench.serve("cam1/infer", 30.0)
    other, other_lane = bench.serve("cam2/infer", 30.0)
    frames(detector, lane, 1)
    frames(other, other_lane, 1)
    os.kill(bench.made[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerLost), lane.iteration():
        detector.predict([rm.picture()])
    frames(other, other_lane, 2)
    frames(detector, lane, 2)
    (fault,) = bench.backend.faults()
    assert (fault.job, fault.code, fault.removed) == ("cam1/infer", "crashed", False)
    assert len(bench.made) == 3


def test_a_fault_on_the_device_ends_all_processes_and_all_come_back(bench: Bench) -> None:
    faulty, faulty_lane = bench.serve("bad/infer", 30.0)
    other, other_lane = bench.serve("cam2/infer", 30.0)
    frames(faulty, faulty_lane, 1)
    frames(other, other_lane, 1)
    with pytest.raises(WorkerLost) as caught, faulty_lane.iteration():
        faulty.predict([rm.picture(rm.FAULT)])
    assert caught.value.poisoned
    assert bench.daemon.state() is ServerState.ACTIVE
    assert not any(worker.alive for worker in bench.made)  # the innocent one was in the same boat
    frames(other, other_lane, 2)  # it was idle: no frame is lost
    frames(faulty, faulty_lane, 2)
    (fault,) = bench.backend.faults()  # told once, not by everybody
    assert fault.job == "bad/infer"
    assert "illegal memory access" in fault.text


def test_a_model_that_faults_again_and_again_gets_no_process_until_it_changes(bench: Bench) -> None:
    faulty, lane = bench.serve("bad/infer", 30.0)
    for _ in range(POISONED_MAX):
        with pytest.raises(WorkerLost), lane.iteration():
            faulty.predict([rm.picture(rm.FAULT)])
        faulty._not_before_s = 0.0
    with pytest.raises(JobError, match="gets no process any more"), lane.iteration():
        faulty.predict([rm.picture()])
    next_version = bench.backend.serve(rm.Rehearsing(), "bad/infer", builder="tests.support.remote_models:build")  # type: ignore[arg-type]
    frames(next_version, lane, 2)


def test_learning_processes_stand_behind_inference_and_files_go(bench: Bench) -> None:
    bench.backend.open_lane("cam1/retrain", role="learn")
    bench.backend.open_lane("cam1/infer", role="infer")
    _, learn = bench.backend._blank_for("cam1/retrain", 50.0)
    _, infer = bench.backend._blank_for("cam1/infer", 50.0)
    assert learn.env["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert infer.env["CUDA_MPS_CLIENT_PRIORITY"] == "0"
    detector = bench.backend.serve(rm.Rehearsing(), "cam1/infer", builder="tests.support.remote_models:build")  # type: ignore[arg-type]
    assert len(list(bench.backend._weights_dir.iterdir())) == 1
    del detector
    assert list(bench.backend._weights_dir.iterdir()) == []


def test_the_stand_in_keeps_a_client_to_its_percentage(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bench.daemon.client_env(thread_pct=50.0).items():
        monkeypatch.setenv(name, value)
    client = FakeClient()
    client.begin()
    np.linalg.svd(np.random.default_rng(0).random((120, 120)))
    used_s, start_s = time.thread_time(), time.monotonic()
    busy_s = client.end()
    assert busy_s > 0
    assert time.monotonic() - start_s >= busy_s / 2 - (time.thread_time() - used_s) - 0.01


# --- the box's own loop and jobs over it ------------------------------------------------------------------------------


def test_a_new_share_is_followed_by_a_standby_and_no_frame_is_missed(bench: Bench) -> None:
    place = Place(bench, 30.0)
    for _ in range(3):
        place.frame()
    bench.share(**{"cam1/infer": 31.0})  # a point: no process for that
    for _ in range(3):
        place.frame()
    assert len(bench.made) == 1
    bench.share(**{"cam1/infer": 80.0})
    place.frames_until(lambda: place.serving() is not place.first)
    assert place.serving().worker is not None
    place.frames_until(lambda: list(bench.pcts().values()) == [80.0])  # it has held its own: the old one has gone
    assert (place.worker.frames, place.worker.errors, place.worker.last_error) == (place.seq, 0, "")
    assert (place.worker.cost_s() or 0.0) > 0.0  # what the process computed is what a frame costs
    assert place.worker.version() == "cam1-000001"
    assert bench.backend.faults() == ()
    assert until(lambda: bench.backend.change_cost() != GUESSED)
    assert bench.backend.change_cost().blind_s == 0


def test_a_standby_that_cannot_be_made_leaves_the_old_process(bench: Bench) -> None:
    place = Place(bench, 30.0)
    place.frame()
    bench.fail_next = True
    bench.share(**{"cam1/infer": 80.0})
    place.frames_until(lambda: any("it goes on where it is" in fault.remedy for fault in bench.backend.faults()))
    place.frame()
    assert place.serving() is place.first
    assert place.first.worker is bench.made[0]
    bench.fail_next = False
    bench.backend._retry_s.clear()
    bench.backend._wake.set()
    place.frames_until(lambda: place.serving() is not place.first)


def test_a_model_change_goes_through_the_usual_swap(bench: Bench) -> None:
    place = Place(bench, 50.0)
    better = bench.backend.serve(rm.Rehearsing(gain=9.0), "cam1/infer", builder="tests.support.remote_models:build")  # type: ignore[arg-type]
    better.predict([rm.picture()])  # warm, as edge.swapping leaves it
    assert [place.frame() for _ in range(3)] == [7.0] * 3
    place.worker.swap(better, "cam1-000002")
    assert [place.frame() for _ in range(3)] == [9.0] * 3
    assert place.worker.kept("cam1-000001") is place.first
    assert place.first.worker is not None  # warm, to go back to


# --- learning jobs in processes ---------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the processes have it: sums come out the same."""
    with torch_threads():
        yield


@pytest.fixture
def learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[MpsBackend]:
    """Processes as the box has them, slow to start as torch is."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        daemon = MpsDaemon(Path(folder) / "d", gpu="GPU-fake", owner="box", control=(sys.executable, "-m", "edge.gpu.fake_mps"))
        backend = MpsBackend(
            "GPU-fake", data_dir=tmp_path / "data", memory_mib=10_000.0, daemon=daemon, device="cpu",
            client="edge.gpu.fake_mps:FakeClient", beat_s=3600.0, spare=False,
        )  # fmt: skip
        yield backend
        backend.close()
        assert daemon.state() is ServerState.GONE


def test_a_learning_job_that_hangs_is_removed_and_its_process_ended(tmp_path: Path, bench: Bench) -> None:
    bench.backend._builder, bench.backend._hung_s = "tests.support.remote_models:build_hanging", 0.5
    other, other_lane = bench.serve("cam2/infer", 30.0)
    lane = bench.backend.open_lane("gate/look/1")
    bench.share(**{"gate/look/1": 50.0})
    steps = bench.backend.steps("gate/look/1").look(
        labelled_samples(tmp_path, newest=False), DETECTION, rm.Rehearsing(), stream="gate", window=1, frames=4, version="v1"
    )
    caught: list[Exception] = []

    def run() -> None:
        try:
            run_in_lane(steps, lane)
        except JobError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert until(lambda: bool(bench.backend.faults()))
    (fault,) = bench.backend.faults()
    assert (fault.job, fault.code, fault.removed) == ("gate/look/1", "hung", True)
    assert "its process is ended" in fault.text
    assert "the others go on" in fault.remedy
    thread.join(WAIT_S)
    assert isinstance(caught[0], WorkerLost)
    assert not bench.made[-1].alive
    assert len(bench.backend.faults()) == 1, "told once"
    frames(other, other_lane, 2)


def test_work_conserving_gives_every_process_the_whole_gpu_and_changes_cost_nothing(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        daemon = MpsDaemon(Path(folder) / "d", gpu="GPU-fake", owner="box", control=(sys.executable, "-m", "edge.gpu.fake_mps"))
        backend = MpsBackend(
            "GPU-fake", data_dir=tmp_path, memory_mib=10_000.0, daemon=daemon, device="cpu", blank=rm.blank, spare=False,
            client="tests.support.remote_models:client", mode="work-conserving",
        )  # fmt: skip
        try:
            lane = backend.open_lane("cam1/infer", role="infer")
            backend.open_lane("cam2/infer", role="infer")
            backend.set_shares({"cam1/infer": 2.0, "cam2/infer": 98.0})  # less than is left on any machine
            worker, settings = backend._blank_for("cam1/infer", next_pct(None, 2.0, backend._step_pct))
            assert settings.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
            worker.kill()
            assert backend.change_cost() == ChangeCost()
            for _ in range(4):  # cam2 wants nothing: cam1 may have it all
                with lane.iteration():
                    rm._rehearse(rm.WORK)
            report = backend.report(60.0)["cam1/infer"]
            assert report.received_pct > report.promised_pct
        finally:
            backend.close()


def test_every_kind_of_job_makes_in_a_process_what_it_makes_here(tmp_path: Path, learning: MpsBackend) -> None:
    """The real loops over real files, with real (small) networks."""
    serving, golden = load_detector("tinydet-edge"), load_detector("tinydet-golden")
    config = RetrainConfig(name="short", epochs=2, batch=2, lr=1e-3, replay_frac=0.4)
    epochs: dict[str, list[EpochReport]] = {"here": [], "there": []}
    clock = learning.remote_clock

    def run(where: str, kind: str, samples: FileSamples, *given: object, **named: object) -> Any:
        job = f"gate/{kind}"
        lane = learning.open_lane(job)
        learning.set_shares({job: 90.0})
        how = learning.steps(job) if where == "there" else HERE
        started_s = clock.thread_cpu_s()
        timer = {"timer": lambda: clock.thread_cpu_s() - started_s} if kind not in ("look", "probe") else {}
        found = run_in_lane(getattr(how, kind)(samples, *given, stream="gate", window=1, **named, **timer), lane)
        assert learning.ledger(job).last().received_s > 0, "it is charged"
        learning.close_lane(job)
        return found

    about: dict[str, dict[str, Any]] = {}
    scoring = {"scoring": Scoring()}
    for where in ("here", "there"):
        bare, full = (labelled_samples(tmp_path / where / str(labelled), newest=labelled) for labelled in (False, True))
        made = about[where] = {}
        made["look"] = run(where, "look", full, DETECTION, serving, frames=4, version="v1")
        made["label"] = run(
            where, "label", bare, golden, serving, frames=8, holdout_frac=0.5, labelling=Labelling(agreement="flip"), **scoring
        )
        made["labels"] = [(bare.split(ref), bare.labels(ref)) for ref in bare.sampled("gate", 1)]
        made["profile"] = run(
            where, "profile", full, serving, configs=(config,), epochs=1, data_frac=1.0, budget_gpu_s=60.0, seed=1,
            replay_windows=1, **scoring,
        )  # fmt: skip
        made["trained"] = run(
            where, "retrain", full, serving, job="gate/retrain", replay_windows=1, config=config, seed=5,
            on_epoch=epochs[where].append, **scoring,
        )  # fmt: skip
        made["gate"] = run(where, "gate", bare, golden, serving, made["trained"], frames=4, **scoring)
        made["probe"] = run(where, "probe", full, serving, iter([("old", made["trained"])]), **scoring)
    here, there = about["here"], about["there"]
    assert there["look"] == here["look"]
    assert there["label"] == replace(here["label"], golden_gpu_s=there["label"].golden_gpu_s)
    assert there["label"].golden_gpu_s > 0
    for (split_a, a), (split_b, b) in zip(here["labels"], there["labels"], strict=True):
        assert split_a == split_b
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            np.testing.assert_allclose(a.xyxy, b.xyxy, atol=1e-3)
    assert (there["gate"].frames, there["probe"].frames) == (here["gate"].frames, here["probe"].frames)
    assert there["gate"].candidate_quality == pytest.approx(here["gate"].candidate_quality, abs=0.02)
    ((a_trial,), a_n), ((b_trial,), b_n) = here["profile"], there["profile"]
    assert (a_n, a_trial.config, a_trial.n_profiled) == (b_n, b_trial.config, b_trial.n_profiled)
    assert b_trial.quality == pytest.approx(a_trial.quality, abs=0.02)
    assert b_trial.gpu_s_per_epoch > 0
    assert [(e.job, e.epoch) for e in epochs["there"]] == [(e.job, e.epoch) for e in epochs["here"]]
    assert [e.loss for e in epochs["there"]] == pytest.approx([e.loss for e in epochs["here"]], rel=1e-3)
    assert 0 < epochs["there"][0].gpu_s < epochs["there"][1].gpu_s
    for name, tensor in here["trained"].state().items():
        np.testing.assert_allclose(there["trained"].state()[name].numpy(), tensor.numpy(), rtol=0, atol=1e-5)
    # One process for those that need the golden model, one for the others; the golden weights alone are still there.
    assert len(learning._idle) == 2
    assert [path.name for path in learning._weights_dir.iterdir()] == [Path(learning.keep_golden(golden).path).name]


def test_calibrate_measures_what_processes_do(tmp_path: Path, learning: MpsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, golden = load_detector("tinydet-edge"), load_detector("tinydet-golden")
    image, truth = scripted_image(3)
    lessons = kept_lessons(learning.scratch_dir, [LabelledImage(image=image, labels=truth)] * 4)
    found = subjects(
        learning, DETECTION, edge, golden, [Picture(image=image)], lessons, names=("edge", "golden"), score_min=0.25
    )
    for model in (edge, golden):
        for name in ("predict", "loss"):
            monkeypatch.delattr(type(model), name, raising=False)  # nothing of it is computed here
    plan = Plan(shares_pct=(50.0,), repeats=1, span_s=0.3, most_s=WAIT_S, iterations=4)
    bench = calibrate.Bench(learning, learning.remote_clock)
    seen = [measure(bench, subject, 50.0, None, plan) for subject in found]
    assert [(one.job, one.model) for one in seen if one] == [
        ("inference", "edge"), ("training", "edge"), ("labelling", "golden"),
    ]  # fmt: skip
    assert all(one.throughput > 0 and 0 < one.received_pct <= 60.0 for one in seen if one)
    assert learning.report() == {}, "no lane is left"
