"""A detector in a process of its own: real processes on the CPU."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs.errors import JobError, WeightsError
from edge.clock import SystemClock
from edge.gpu.remote import RemoteClock, RemoteDetector, WorkerLost, WorkerProcess
from edge.gpu.worker import SHARED_BYTES, ModelFile, Settings, keep
from models.zoo import load_detector
from tests.support import remote_models as rm

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
CPU = Settings(env={})


def gone(pid: int, within_s: float = 60.0) -> bool:
    """Whether a process ended (and left no zombie) in time."""
    end_s = time.monotonic() + within_s
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    return rm.model_file(tmp_path / "weights")


class Bench:
    def __init__(self, model: ModelFile) -> None:
        self.model, self.clock = model, RemoteClock(SystemClock())
        self.blank: Callable[[], WorkerProcess] = rm.blank
        self.made: list[WorkerProcess] = []
        self.lost: list[WorkerLost] = []

    def start(self) -> WorkerProcess:
        worker = self.blank()
        self.made.append(worker)
        worker.become(self.model, CPU)
        return worker

    def detector(self, **settings: object) -> RemoteDetector:
        return RemoteDetector(
            rm.Rehearsing(), self.start, clock=self.clock, lost=lambda d, error: self.lost.append(error), **settings,  # type: ignore[arg-type]
        )  # fmt: skip


@pytest.fixture
def bench(model: ModelFile) -> Iterator[Bench]:
    made = Bench(model)
    yield made
    for worker in made.made:
        worker.kill()


def test_it_answers_as_the_model_does_here(bench: Bench) -> None:
    remote, here = bench.detector(), rm.Rehearsing()
    pictures = [*(rm.picture(level=level) for level in range(5)), np.zeros((40, 30, 3), np.uint8)]
    for found, expected in zip(remote.predict(pictures, score_min=0.3), here.predict(pictures, score_min=0.3), strict=True):
        np.testing.assert_array_equal(found.xyxy, expected.xyxy)
        np.testing.assert_array_equal(found.score, expected.score)
        np.testing.assert_array_equal(found.class_id, expected.class_id)
        found.xyxy[...] = 0  # ours to change
    assert remote.predict([]) == []
    np.testing.assert_allclose(remote.embed(pictures), here.embed(pictures))
    assert remote.spec == here.spec
    assert len(bench.made) == 1


def test_a_real_network_answers_alike_and_pictures_larger_than_the_shared_memory_go_through(
    bench: Bench, tmp_path: Path
) -> None:
    here = load_detector("tinydet-edge")
    bench.model, bench.blank = keep(here, tmp_path / "tiny.safetensors"), WorkerProcess
    remote = RemoteDetector(here, bench.start, clock=bench.clock)
    rng = np.random.default_rng(0)
    large = rng.integers(0, 255, (2400, 3200, 3), dtype=np.uint8)
    pictures = [large, large[:360, :640], large, large]
    assert sum(p.nbytes for p in pictures) > SHARED_BYTES
    for found, expected in zip(remote.predict(pictures), here.predict(pictures), strict=True):
        np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=1e-3)
        np.testing.assert_allclose(found.score, expected.score, atol=1e-5)


def test_what_it_computes_is_charged_to_who_waits(bench: Bench) -> None:
    remote = bench.detector()
    remote.predict([rm.picture()])
    before_s, own_s = bench.clock.thread_cpu_s(), time.thread_time()
    remote.predict([rm.picture(rm.WORK)])
    charged_s, own_s = bench.clock.thread_cpu_s() - before_s, time.thread_time() - own_s
    assert charged_s >= rm.WORK_S > own_s
    other: list[float] = []
    thread = threading.Thread(target=lambda: other.append(bench.clock.thread_cpu_s()))
    thread.start()
    thread.join()
    assert other[0] < rm.WORK_S


def test_a_client_of_a_part_of_the_device_is_charged_that_part(bench: Bench) -> None:
    worker = bench.start()
    worker.thread_pct = 30.0
    answer = worker.ask("predict", [rm.picture(rm.WORK)], score_min=0.25)
    assert answer.gpu_s == pytest.approx(0.3 * answer.busy_s)
    assert answer.busy_s >= rm.WORK_S


def test_a_process_killed_while_it_predicts_is_our_error_and_is_replaced(bench: Bench) -> None:
    remote = bench.detector()
    remote.predict([rm.picture()])
    with pytest.raises(WorkerLost, match="ended while it was at 'predict'.*SIGKILL") as caught:
        remote.predict([rm.picture(rm.DIE)])
    assert not caught.value.poisoned
    assert len(remote.predict([rm.picture()])[0]) == 1
    assert len(bench.made) == 2
    assert len(bench.lost) == 1
    assert gone(bench.made[0].pid)


def test_a_process_that_dies_again_and_again_is_left_to_rest(bench: Bench) -> None:
    remote = bench.detector()
    for _ in range(2):
        with pytest.raises(WorkerLost):
            remote.predict([rm.picture(rm.DIE)])
    with pytest.raises(JobError, match="2 times in a row"):
        remote.predict([rm.picture()])
    remote._not_before_s = 0.0
    assert remote.predict([rm.picture()])
    assert len(bench.made) == 3


def test_a_process_that_hangs_is_ended_and_replaced(bench: Bench) -> None:
    remote = bench.detector(answer_s=1.0)
    with pytest.raises(WorkerLost, match="no answer to 'predict' within 1 s"):
        remote.predict([rm.picture(rm.HANG)])
    assert gone(bench.made[0].pid)
    remote._answer_s = 60.0
    assert remote.predict([rm.picture()])


def test_an_error_of_the_model_is_told_and_the_process_stays(bench: Bench) -> None:
    remote = bench.detector()
    with pytest.raises(JobError, match="does not like this picture"):
        remote.predict([rm.picture(rm.RAISE)])
    with pytest.raises(JobError) as caught:
        remote.predict([rm.picture(rm.OUT_OF_MEMORY)])
    assert caught.value.code == "out_of_memory"
    assert remote.predict([rm.picture()])
    assert len(bench.made) == 1


def test_weights_that_are_missing_changed_or_damaged_are_said(bench: Bench) -> None:
    whole = bench.model
    for broken in (replace(whole, path=whole.path + ".gone"), replace(whole, sha256="0" * 64)):
        bench.model = broken
        with pytest.raises(WeightsError, match="weights"):
            bench.detector().predict([rm.picture()])
    Path(whole.path).write_text("no number")
    bench.model = replace(whole, sha256="")
    with pytest.raises(WeightsError, match="holds no weights"):
        bench.detector().predict([rm.picture()])


def test_the_process_ends_with_the_last_reference_to_its_detector(bench: Bench) -> None:
    remote = bench.detector()
    remote.predict([rm.picture()])
    pid = bench.made[0].pid
    del remote
    gc.collect()
    assert gone(pid)


def test_a_closed_detector_starts_nothing(bench: Bench) -> None:
    remote = bench.detector()
    remote.predict([rm.picture()])
    remote.close()
    with pytest.raises(JobError, match="closed"):
        remote.predict([rm.picture()])
    assert all(gone(worker.pid) for worker in bench.made)


def test_it_can_be_started_before_it_is_asked(bench: Bench) -> None:
    remote = bench.detector()
    remote.prepare()
    assert [worker.alive for worker in bench.made] == [True]
    remote.predict([rm.picture()])
    assert len(bench.made) == 1


def test_a_prediction_that_hangs_is_broken_off_from_another_thread(bench: Bench) -> None:
    remote = bench.detector()
    remote.prepare()
    broken_off = threading.Event()

    def break_off() -> None:
        while not broken_off.wait(0.5):  # again where the prediction had not begun yet
            remote.abandon()

    thread = threading.Thread(target=break_off)
    thread.start()
    with pytest.raises(WorkerLost, match="SIGKILL"):
        remote.predict([rm.picture(rm.HANG)])
    broken_off.set()
    thread.join()
    assert remote.predict([rm.picture()])


def test_an_idle_process_that_died_is_replaced_by_the_heartbeat(bench: Bench) -> None:
    remote = bench.detector()
    assert remote.beat()  # not started yet: nothing to say
    remote.predict([rm.picture()])
    assert remote.beat()
    os.kill(bench.made[0].pid, signal.SIGKILL)
    assert not remote.beat()
    assert remote.beat()
    assert len(bench.made) == 2
    assert remote.predict([rm.picture()])


def test_a_process_stopped_for_good_fails_the_heartbeat(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.gpu.remote.BEAT_S", 0.3)
    remote = bench.detector()
    remote.predict([rm.picture()])
    os.kill(bench.made[0].pid, signal.SIGSTOP)
    assert not remote.beat()
    assert gone(bench.made[0].pid)


def test_others_go_on_while_one_dies(bench: Bench) -> None:
    dying, other = bench.detector(), bench.detector()
    other.predict([rm.picture()])
    with pytest.raises(WorkerLost):
        dying.predict([rm.picture(rm.DIE)])
    assert other.predict([rm.picture()])
    assert bench.lost == bench.lost[:1]
    assert len(bench.made) == 2


PARENT = """
import json, sys, threading, time
from edge.clock import SystemClock
from edge.gpu.worker import ModelFile, Settings
from tests.support import remote_models as rm
workers = [rm.blank() for _ in range(2)]
for worker in workers:
    worker.become(ModelFile(**json.loads(sys.argv[1])), Settings(env={}))
threading.Thread(target=lambda: workers[1].ask("predict", [rm.picture(rm.HANG)], score_min=0.2), daemon=True).start()
print(*(worker.pid for worker in workers), flush=True)
time.sleep(600)
"""


def test_no_process_outlives_a_parent_that_is_killed(model: ModelFile) -> None:
    """One is idle, one is in the middle of a prediction that never ends."""
    told = json.dumps(model.__dict__)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, told], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.5)  # the prediction is under way
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert [gone(pid) for pid in pids] == [True, True]


def test_what_a_dying_process_printed_is_in_the_message(bench: Bench) -> None:
    worker = bench.start()
    with pytest.raises(JobError, match="KeyError"):
        worker.ask("no such request")
    assert worker.ask("ping").header["pid"] == worker.pid


@pytest.mark.parametrize("fault", ["too long", "no json"])
def test_nonsense_from_a_process_is_not_believed(bench: Bench, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = bench.start()
    answers: dict[str, Callable[[], object]] = {
        "too long": lambda: _raise(ValueError("a frame of 9 + 9 bytes")),
        "no json": lambda: json.loads("{"),
    }
    monkeypatch.setattr(worker._channel, "receive", answers[fault])
    with pytest.raises(WorkerLost, match="no answer"):
        worker.ask("ping")
    assert gone(worker.pid)


def _raise(error: Exception) -> object:
    raise error
