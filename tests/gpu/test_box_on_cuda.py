"""`driftbox run` with `gpus.device: cuda`, on each way of keeping shares: a rendered camera by night is labelled, a model retrained,
judged and swapped in, all on the GPU. Needs the packages of a box (docs/gpu.md says which), and a GPU; `-s` prints what was received.

The policy always retrains, so that every step comes whatever a plan would say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from edge.journal import read_segments
from edge.replay import replay
from edge.store.store import Store
from scheduler import events as ev
from scheduler.codec import decode
from tests.support.running_box import RunningBox, eventually, none_left_behind

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

STEPS = (ev.LabelDone, ev.RetrainDone, ev.GateDone, ev.SwapDone)
#: For every wait together; a shorter lease says so.
PATIENCE_S = float(os.environ.get("DRIFTBOX_TEST_BOX_S", "200"))
CONFIG = """
box: {{id: gpu}}
web: {{login: false}}
gpus: {{device: cuda, backend: {backend}}}
window: {{seconds: {window_s}, first_seconds: 12, label_frames: 16, gate_frames: 6, sample_fps: 2.0, shadow: false}}
scheduler: {{policy: "uniform(quick,50)", min_gain: 0.0, min_quality: 0.0, drift: {{enabled: false}}}}
models:
  serving: trained
  retrain: [{{name: quick, epochs: 6, batch: 4, lr: 0.003}}]
cameras:
  - {{id: street, url: "rendered:street?seed=101&fps=10&at=0:night", fps: 10}}
  - {{id: hall, url: "rendered:hall?seed=103&fps=10&at=0:dusk", fps: 10}}
"""


@pytest.fixture
def boxes() -> Iterator[list[RunningBox]]:
    with none_left_behind() as started:
        yield started
    for box in started:
        print(box.output.read_text()[-6000:])


def learnt(box: RunningBox, stream: str) -> set[type[ev.Event]]:
    events = [decode(line) for segment in read_segments(box.data_dir / "events") for line in segment.lines]
    return {type(e) for e in events if isinstance(e, STEPS) and e.stream == stream}


@pytest.mark.parametrize("backend", ["lanes", "green", "mps"])
def test_a_box_learns_on_the_gpu(tmp_path: Path, boxes: list[RunningBox], backend: str) -> None:
    # Under MPS each job is a process, which loads torch first.
    box = RunningBox(tmp_path, CONFIG.format(backend=backend, window_s=40 if backend == "mps" else 20))
    boxes.append(box)
    end_s = time.monotonic() + PATIENCE_S
    eventually(box.status, "the status page answers", PATIENCE_S)
    eventually(
        lambda: learnt(box, "street") == set(STEPS), f"street learns; it did {learnt(box, 'street')}", end_s - time.monotonic()
    )
    status = eventually(lambda: (s := box.status()) and len(s["outcomes"]) > 1 and s, "a window of retraining closes", 60.0)
    frames = {camera["id"]: camera for camera in status["cameras"]}
    print(backend, "cameras:", frames)
    assert box.stop() == 0, "the box ended badly"
    with Store(box.data_dir / "driftbox.db") as store:
        for window in store.windows():
            for share in store.shares(window.outcome.window):
                print(
                    f"{backend}, window {window.outcome.window}, {share.job}: promised {share.promised_pct:.1f}, received "
                    f"{share.received_pct:.1f}, wanted {share.backlogged_frac:.2f} of {share.span_s:.1f} s, {share.iterations} times"
                )
        notes = [(note.code, note.text) for note in store.notes()]
        serving = store.serving()
    print(backend, "notes:", notes)
    assert serving["street"].id != "street-000001", "what it learnt serves"
    assert replay(box.data_dir).exact
    log = box.output.read_text()
    assert "CUDA error" not in log
    assert not [code for code, _ in notes if code in ("compute-crashed", "out-of-memory")], notes
