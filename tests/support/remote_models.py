"""A detector for processes of `edge.gpu.worker` that does what the corner of a picture says. Without torch, so they start at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge.gpu.fake_mps import FakeClient
from edge.gpu.remote import WorkerProcess
from edge.gpu.worker import ModelFile
from models.detector import DetectorSpec, YieldPoint
from scheduler.types import Detections

DIE, HANG, RAISE, FAULT, OUT_OF_MEMORY, WORK = 250, 251, 252, 253, 254, 255
#: Seconds of CPU that WORK takes.
WORK_S = 0.05
_client: list[FakeClient] = []


def client() -> FakeClient:
    """The stand-in for CUDA, where `FAULT` finds it."""
    _client.append(FakeClient())
    return _client[0]


class Rehearsing:
    """Finds one box as wide as `gain` and as high as the picture's brightness; the weights are the gain. As much of
    `models.detector.Detector` as a process answers."""

    def __init__(self, gain: float = 7.0) -> None:
        self.spec = DetectorSpec(arch="rehearsing", input_px=64)
        self.gain = gain

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        for image in images:
            _rehearse(int(image[0, 0, 0]))
        return [self._found(int(image[1, 1, 0]), score_min) for image in images]

    def _found(self, level: int, score_min: float) -> Detections:
        boxes = np.array([[0, 0, self.gain, level]] * (level % 3), np.float32).reshape(-1, 4)
        score = np.full(len(boxes), max(score_min, 0.5), np.float32)
        return Detections(xyxy=boxes, score=score, class_id=np.arange(len(boxes), dtype=np.int64))

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([[image[1, 1, 0], self.gain] for image in images], np.float32)


def _rehearse(what: int) -> None:
    if what == DIE:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == HANG:
        time.sleep(3600)
    if what == RAISE:
        raise ArithmeticError("the model does not like this picture")
    if what == FAULT:
        _client[0].fault()
    if what == OUT_OF_MEMORY:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if what == WORK:
        end_s = time.thread_time() + WORK_S
        while time.thread_time() < end_s:
            pass


def build(spec: DetectorSpec, data: bytes, device: str) -> Rehearsing:
    """Raises ValueError when the data is no number."""
    return Rehearsing(float(data))


class _Hanging(Rehearsing):
    def predict(self, images: Sequence[np.ndarray], **options: Any) -> list[Detections]:
        _rehearse(HANG)
        return []


def build_hanging(spec: DetectorSpec, data: bytes, device: str) -> Rehearsing:
    return _Hanging(float(data))


def model_file(path: Path, gain: float = 7.0) -> ModelFile:
    path.write_text(str(gain))
    return ModelFile(arch="rehearsing", input_px=64, path=str(path), builder="tests.support.remote_models:build")


def blank(before_kill: Callable[[int], Any] = lambda pid: None) -> WorkerProcess:
    """A process that loads nothing beforehand."""
    return WorkerProcess(before_kill=before_kill, preload=())


def picture(what: int = 0, *, level: int = 4) -> np.ndarray:
    """uint8 (48, 64, 3): what shall happen, and what is to be found."""
    image = np.zeros((48, 64, 3), np.uint8)
    image[0, 0], image[1, 1] = what, level
    return image


# --- scripted detectors (`models.fake`) in processes, with torch ------------------------------------------------------

#: An arch whose training kills the process it is in.
DIES = "fake-dies"


def build_fake(spec: DetectorSpec, data: bytes, device: str) -> Any:
    """`models.fake.FakeDetector` from the bytes of its safetensors file."""
    import safetensors.torch

    from models.fake import FakeDetector

    class Dies(FakeDetector):
        def loss(self, images: Any, targets: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        def clone(self) -> Any:
            return build_fake(spec, data, device)

    made = Dies(arch=DIES) if spec.arch == DIES else FakeDetector(arch=spec.arch)
    made.load_state(safetensors.torch.load(data))
    return made
