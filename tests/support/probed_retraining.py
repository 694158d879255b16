"""A retraining as a process of the box does it, looked into: `python -m tests.support.probed_retraining SAMPLES OUT DEVICE`.

SAMPLES: root of a sample store whose window 1 is labelled; OUT: a folder to write to. Prints JSON: the loss of each epoch, and the first
gradient, parameter or moment of the optimiser that was no finite number, with its update.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from configs.errors import DriftboxError
from edge.gpu.worker import CpuDevice, CudaDevice, Device, keep, load_model
from edge.gpu.worker_jobs import RunningJob
from models import precision
from models.tasks.base import Scoring
from models.zoo import load_detector
from scheduler.types import RetrainConfig

CONFIG = RetrainConfig(name="c", epochs=6, batch=4, lr=0.003, replay_frac=0.3)


class Probe:
    """Looks at every update's numbers before and after it. odd: what was found first."""

    def __init__(self) -> None:
        self.odd = ""
        self._updates = 0
        self._step = precision.Updates.step

    def step(self, updates: precision.Updates) -> float:
        self._updates += 1
        self._note("gradients before", [p.grad for p in updates._parameters()])
        norm = self._step(updates)
        self._note(f"parameters after (norm {norm})", list(updates._parameters()))
        for p in updates._parameters():
            self._note(
                "moments of the optimiser after", [v for v in updates._optimiser.state[p].values() if torch.is_tensor(v)]
            )
        return norm

    def _note(self, what: str, tensors: list[Any]) -> None:
        odd = [n for n, tensor in enumerate(tensors) if tensor is not None and not bool(torch.isfinite(tensor).all())]
        if odd and not self.odd:
            self.odd = f"{what} update {self._updates}: numbers {odd} of {len(tensors)}"


def main(samples: str, out: str, device: str) -> None:
    torch.set_num_threads(1)
    probe = Probe()
    precision.Updates.step = lambda updates: probe.step(updates)  # type: ignore[method-assign]
    given = {
        "serving": asdict(keep(load_detector("tinydet-edge"), Path(out, "serving.w"))), "job": "gate/retrain", "stream": "gate",
        "window": 1, "replay_windows": 1, "config": asdict(CONFIG), "seed": 5, "task": "detection", "scoring": asdict(Scoring()),
    }  # fmt: skip
    own: Device = CpuDevice() if device == "cpu" else CudaDevice(device)
    job = RunningJob(
        own, lambda file, stays: load_model(file, device), kind="retrain", samples=samples, arguments=given, part=1.0,
        out=str(Path(out, "trained.w")),
    )  # fmt: skip
    losses: list[float] = []
    try:
        while True:
            answer, _ = job.step()
            losses += [epoch["loss"] for epoch in answer["epochs"]]
            if "done" in answer:
                break
    except DriftboxError as error:
        probe.odd += f" {error}"
    print(json.dumps({"losses": losses, "odd": probe.odd}))


if __name__ == "__main__":
    main(*sys.argv[1:])
