"""A training in a client of NVIDIA's MPS: what a box's learning job is under `gpus.backend: mps`. On an H200 both retrainings of a box
ended with a loss of NaN after their first update, where `lanes` and `green` train (docs/gpu.md); this asks what of a client makes the
difference: its percentage, its memory limit, the precision, or that it is a job of `edge.gpu.worker_jobs`
(`tests/support/probed_retraining.py`). `-s` prints the losses, and where the first number was that is none.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from configs.errors import EnvironmentLacking
from edge.gpu.mps_daemon import MpsDaemon
from tests.support.labelled_samples import labelled_samples

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
