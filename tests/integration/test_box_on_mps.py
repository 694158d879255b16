"""A whole box on the backend `mps`: real processes as clients of the stand-in for NVIDIA's MPS, scripted cameras and networks.

What takes long is loading torch in each process, so windows last as long as a few of those do on this machine just now.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from edge.clock import Clock
from edge.gpu.mps import MpsBackend
from edge.gpu.mps_daemon import MpsDaemon, ServerState
from edge.gpu.remote import RemoteDetector, WorkerProcess
from edge.inference import InferenceWorker
from models.fake import FakeDetector
from scheduler import events as ev
from tests.support import remote_models as rm
from tests.support.fakes import FAKE_ARCHS, put_fakes_in_the_zoo
from tests.support.live_box import CONFIG, LiveBox
from tests.support.pace import slowness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PICTURES = "driftbox-pictures"  # name of the memory that a process and the box share


@pytest.fixture
def daemon() -> Iterator[MpsDaemon]:
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        made = MpsDaemon(Path(folder) / "d", gpu="GPU-fake", owner="box", control=(sys.executable, "-m", "edge.gpu.fake_mps"))
        yield made
        made.stop()


def backend_on(data_dir: Path, daemon: MpsDaemon, clock: Clock) -> MpsBackend:
    return MpsBackend(
        "GPU-fake", data_dir=data_dir, memory_mib=10_000.0, clock=clock, daemon=daemon, device="cpu",
        client="edge.gpu.fake_mps:FakeClient", builder="tests.support.remote_models:build_fake", spare=False, step_pct=50,
    )  # fmt: skip


def start_s() -> float:
    """What a process takes to be there, just now."""
    started_s = time.monotonic()
    process = WorkerProcess()
    process.ask("ping", timeout_s=300.0)
    process.close()
    return time.monotonic() - started_s


class OnlyElsewhere:
    """From now on scripted networks compute in processes only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here: list[str] = []
        for name in ("predict", "loss", "embed"):
            monkeypatch.setattr(FakeDetector, name, partial(self._refused, name))

    def _refused(self, name: str, *given: object, **named: object) -> None:
        self.here.append(name)
        raise AssertionError(f"{name} was computed in the box's own process")


def clients(daemon: MpsDaemon) -> set[int]:
    return {int(line.split()[0]) for line in daemon.ask("ps").splitlines()[1:]}


def serves(worker: InferenceWorker, version: str) -> bool:
    return worker.version() == version


def priced(box: LiveBox, settle_s: float) -> bool:
    """Whether plans reckon with that."""
    told = box.seen(ev.ChangePriced)
    return bool(told) and told[-1].price.settle_s == settle_s == box.runtime.parts.engine.config.change.settle_s


def gone(pid: int) -> bool:
    end_s = time.monotonic() + 120.0
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end_s:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def test_a_window_with_a_process_per_job_one_of_which_dies_and_nothing_is_left_behind(
    tmp_path: Path, daemon: MpsDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAKE_ARCHS, rm.DIES, lambda: FakeDetector(skill=0.4, arch=rm.DIES))
    put_fakes_in_the_zoo(monkeypatch)
    root, config = tmp_path / "data", replace(CONFIG, window_s=5 * start_s() / slowness())
    with LiveBox(root, {"a": "fake", "b": rm.DIES}, config=config, backend=partial(backend_on, root, daemon)) as box:
        only = OnlyElsewhere(monkeypatch)
        assert isinstance(box.backend, MpsBackend)
        # a: labels, profile, retraining, gate, swap, each in a process. b: whatever trains it dies.
        done = box.wait_for(ev.SwapDone, "a")
        failed = box.wait_for(ev.JobFailed, "b")
        worker = box.watched["a"].worker
        box.wait(partial(serves, worker, done.version), "the new model serves")
        box.wait_frames("a")
        box.wait_frames("b")
        serving = worker.serving()[1]
        assert isinstance(serving, RemoteDetector)
        assert serving.worker is not None
        assert {serving.worker.pid} < clients(daemon)
        box.backend._changes.extend([(3.0, 0.2)] * 20)  # as if standbys were made, as in tests/integration/test_mps_backend.py
        closed = len(box.runtime.outcomes)
        box.wait_windows(closed + 1)
        box.wait(partial(priced, box, 3.0), "the price is what was measured")
        shares = [report for _, reports in box.runtime.window_shares for report in reports]
        pids = clients(daemon) | {worker.pid for worker in box.backend._all_workers()}
        quality = box.seen(ev.GateDone, "a")[0]
        assert box.replayed().exact
        box.backend.close()
    assert only.here == []
    for event in (ev.LabelDone, ev.ProfileDone, ev.RetrainDone, ev.GateDone):
        assert box.seen(event, "a"), f"no {event.__name__}"
    assert quality.candidate_quality is not None
    assert quality.candidate_quality > (quality.serving_quality or 0.0)
    # The plan's shares were kept by what processes computed.
    for kind in ("infer", "label", "profile", "train", "gate"):
        # One of them: a later one may be waiting for its process when its window ends.
        reports = [r for r in shares if r.job.startswith("a/") and kind in r.job]
        assert any(r.iterations > 0 and r.promised_pct > 0 and r.received_pct > 0 for r in reports), reports
    # The faulty job was removed, and the operator told what to do.
    assert "SIGKILL" in failed.text
    (told, *_) = box.noted("compute-crashed")
    assert told.startswith("b: ")
    assert "the others go on, and its camera keeps its model" in told
    assert box.watched["b"].worker.version() == "b-000001"
    assert box.watched["b"].worker.errors == 0
    # Nothing is left.
    assert daemon.state() is ServerState.GONE
    assert len(pids) >= 3
    assert os.getpid() not in pids
    assert all(gone(pid) for pid in pids)
    assert not (root / "mps" / "weights").exists()
    del serving, worker, box
    gc.collect()
    assert PICTURES not in Path("/proc/self/maps").read_text()
