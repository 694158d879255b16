"""A training in a client of NVIDIA's MPS: what a box's learning job is under `gpus.backend: mps`. On an H200 both retrainings of a box
ended with a loss of NaN after their first update, where `lanes` and `green` train (docs/gpu.md); this asks what of a client makes the
difference: its percentage, its memory limit, the precision, that it is a job of `edge.gpu.worker_jobs`
(`tests/support/probed_retraining.py`), the pictures, another client that analyses frames meanwhile, or a process that was used before.
`-s` prints the losses, and where the first number was that is none.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import EnvironmentLacking
from edge.gpu.mps import MpsBackend
from edge.gpu.mps_daemon import MpsDaemon
from edge.jobs import Steps, run_in_lane
from models.detector import Detector
from models.fake import scripted_image
from models.zoo import load_detector
from scheduler.types import Detections, RetrainConfig
from streams.rendered import RenderedScene, Schedule
from tests.support.labelled_samples import Picture, labelled_samples

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

#: argv: name of a dtype. Prints the mean loss of each epoch.
TRAIN = """
import json, sys
import torch
from models.fake import scripted_image
from models.labelled import LabelledImage
from models.precision import Precision
from models.retrain import retrain, student
from models.zoo import load_detector, new_detector
from scheduler.types import RetrainConfig
near = load_detector("tinydet-edge")
config = RetrainConfig(name="c", epochs=6, batch=4, lr=0.003)
model = student(new_detector(near.spec, state=near.state(), device="cuda"), config)
samples = [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(seed, n_objects=4) for seed in range(10))]
precision = Precision(device="cuda", dtype=getattr(torch, sys.argv[1]))
try:
    print(json.dumps([s.epoch_loss for s in retrain(model, samples, config, seed=0, precision=precision) if s.epoch_loss is not None]))
except Exception as error:
    print(json.dumps([float("nan"), str(error)]))
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[MpsDaemon]:
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        made = MpsDaemon(Path(folder) / "d", gpu=uuid, owner="test")
        try:
            made.start()
        except EnvironmentLacking as error:
            pytest.skip(str(error))
        yield made
        made.stop()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("thread_pct", "memory_mib"), [(100.0, None), (25.0, None), (100.0, 4096.0), (25.0, 4096.0)])
def test_a_client_learns(daemon: MpsDaemon, thread_pct: float, memory_mib: float | None, dtype: str) -> None:
    env = os.environ | daemon.client_env(thread_pct=thread_pct, memory_mib=memory_mib, below_normal=True)
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, dtype], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    losses = json.loads(done.stdout.splitlines()[-1])
    print(f"{thread_pct:g} %, {memory_mib} MiB, {dtype}: {losses}")
    assert all(isinstance(loss, float) and math.isfinite(loss) for loss in losses), losses
    assert min(losses[-2:]) < losses[0]


@pytest.mark.parametrize("client", [None, 100.0, 25.0], ids=["no client", "100 %", "25 %"])
def test_a_job_of_a_process_learns(daemon: MpsDaemon, tmp_path: Path, client: float | None) -> None:
    samples = labelled_samples(tmp_path / "samples")
    settings = {} if client is None else daemon.client_env(thread_pct=client, below_normal=True)
    command = [sys.executable, "-m", "tests.support.probed_retraining", str(samples.root), str(tmp_path), "cuda:0"]
    env = os.environ | settings | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    print(f"a job, client of {client} %: {said}")
    assert not said["odd"], said
    assert min(said["losses"][-2:]) < said["losses"][0]


def night(number: int) -> tuple[np.ndarray, Detections]:
    """As the camera of `test_box_on_cuda.py` sees it."""
    scene = RenderedScene("street", 101, 320, 180, Schedule.always("night"))
    image, truth = scene.render(0.9 * number)
    return image, truth


@pytest.mark.parametrize("beside", ["nothing", "frames of another client"])
@pytest.mark.parametrize("process", ["a new process", "one in which a retraining was cancelled"])
@pytest.mark.parametrize("picture", [scripted_image, night], ids=["by day", "by night"])
def test_a_job_of_the_backend_learns(tmp_path: Path, picture: Picture, process: str, beside: str) -> None:
    """All that the box does with a retraining, but for the box: the daemon, a process of the job's share, its lane."""
    samples = labelled_samples(tmp_path / "samples", picture=picture)
    near = load_detector("tinydet-edge")
    config = RetrainConfig(name="quick", epochs=6, batch=4, lr=0.003)
    losses: list[float] = []
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        try:
            backend = MpsBackend(uuid, data_dir=Path(folder), memory_mib=20_000.0)
        except EnvironmentLacking as error:
            pytest.skip(str(error))
        stop = threading.Event()
        with closing(backend):
            frames = backend.open_lane("other/infer", role="infer")
            backend.open_lane("gate/train")
            backend.set_shares({"other/infer": 50.0, "gate/train": 25.0})
            serves = backend.serve(near, "other/infer")

            def watch() -> None:
                while not stop.wait(0.1):
                    with frames.iteration():
                        serves.predict([picture(3)[0]])

            thread = threading.Thread(target=watch, daemon=True)
            if beside != "nothing":
                thread.start()
            lane = backend._lanes["gate/train"]

            def steps() -> Steps[Detector]:
                return backend.steps("gate/train").retrain(
                    samples, near, job="gate/train", stream="gate", window=1, replay_windows=1, config=config, seed=5,
                    timer=backend.remote_clock.thread_cpu_s, on_epoch=lambda report: losses.append(report.loss),
                )  # fmt: skip

            try:
                if process != "a new process":
                    cancelled = steps()
                    while len(losses) < 2:
                        with lane.iteration():
                            next(cancelled)
                    cancelled.close()
                    losses.clear()
                run_in_lane(steps(), lane)
            finally:
                stop.set()
                if thread.ident is not None:
                    thread.join(20.0)
    print(f"a job of the backend in {process}, {beside} beside it: {losses}")
    assert len(losses) == config.epochs
    assert all(math.isfinite(loss) for loss in losses)
    assert min(losses[-2:]) < losses[0]
