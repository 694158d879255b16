"""A learning job inside its own process (`edge.gpu.worker`): the same steps as in the box (`edge.jobs`), one iteration per request.

What the box sends is plain data, told apart by the names of the parameters of `edge.jobs` (`edge.gpu.remote_jobs` writes it). Samples
are read, and labels written, where the box keeps them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from edge.gpu.worker import Device, Header, ModelFile, keep
from edge.jobs import HERE
from edge.samples import FileSamples
from models.detector import Detector
from models.golden import Labelling
from models.tasks.base import Scoring
from models.tasks.registry import task_of
from scheduler.types import EpochReport, RetrainConfig
from streams.samples import SampleStore

#: Parameters that are models; the golden one stays in the process for the next job.
GOLDEN, MODELS = "golden", ("serving", "candidate", "model")
#: Parameters that are more than numbers and words.
_PLAIN: dict[str, TypeAdapter[Any]] = {
    "scoring": TypeAdapter(Scoring | None),
    "labelling": TypeAdapter(Labelling),
    "config": TypeAdapter(RetrainConfig),
    "configs": TypeAdapter(tuple[RetrainConfig, ...]),
}
#: (a model's file, whether it stays for the next job) -> the model.
Load = Callable[[ModelFile, bool], Detector]


class RunningJob:
    """kind: which of `edge.jobs.JobSteps`; samples: root of the sample store; arguments: its parameters as plain data; part: of the
    GPU that a busy second is worth (a client of 30 pct: 0.3), so that GPU-seconds mean what they mean in the box; out: where a trained
    model goes. Raises WeightsError, UsageError (no such task)."""

    def __init__(
        self, device: Device, load: Load, *, kind: str, samples: str, arguments: Header, part: float, out: str
    ) -> None:
        self._device, self._part, self._out, self._used_s = device, part, Path(out), 0.0
        self._epochs: list[EpochReport] = []
        self._notes: list[str] = []
        self._builder = ModelFile.builder
        given = {name: self._decoded(name, value, load) for name, value in arguments.items()}
        heard = {"timer": self._so_far_gpu_s, "on_epoch": self._epochs.append, "on_note": self._notes.append}
        wanted = _HEARS[kind]
        self._steps = getattr(HERE, kind)(
            FileSamples(SampleStore(Path(samples))), **given, **{name: heard[name] for name in wanted}
        )

    def step(self) -> tuple[Header, list[np.ndarray]]:
        """One iteration. The answer's `done` is there when it was the last; the result is then the array, as JSON."""
        self._device.begin()
        done, result = False, None
        try:
            next(self._steps)
        except StopIteration as end:
            done, result = True, end.value
        busy_s = self._device.end()
        self._used_s += busy_s
        answer: Header = {"busy_s": busy_s, "epochs": [asdict(epoch) for epoch in self._epochs], "notes": list(self._notes)}
        self._epochs.clear()
        self._notes.clear()
        return (answer | {"done": True}, [self._told(result)]) if done else (answer, [])

    def close(self) -> None:
        self._steps.close()

    def _so_far_gpu_s(self) -> float:
        return self._part * (self._used_s + self._device.end())

    def _told(self, result: Any) -> np.ndarray:
        """JSON as uint8. A model is put into a file, and told as that."""
        if hasattr(result, "predict"):
            result = keep(result, self._out, builder=self._builder)
        plain = TypeAdapter(type(result)).dump_python(result, mode="json")
        return np.frombuffer(json.dumps(plain).encode(), np.uint8)

    def _decoded(self, name: str, value: Any, load: Load) -> Any:
        if name == GOLDEN:
            return load(ModelFile(**value), True)
        if name in MODELS:
            self._builder = value["builder"]
            return load(ModelFile(**value), False)
        if name == "candidates":  # one at a time in memory
            return ((version, load(ModelFile(**file), False)) for version, file in value)
        if name == "task":
            return task_of(value)
        if name in _PLAIN:
            return _PLAIN[name].validate_python(value)
        return value


#: Which of a kind's parameters are made here.
_HEARS: dict[str, tuple[str, ...]] = {
    "look": (),
    "probe": (),
    "label": ("timer",),
    "profile": ("timer",),
    "retrain": ("timer", "on_epoch", "on_note"),
    "gate": ("timer",),
}
