"""The seam to runtimes: what carries out a network when it serves frames.

A runtime turns the body of a detector (`models.detector.ServedBody`) into a `Form` for one picture shape, in two steps. `convert` is the
slow one (seconds); it works on bytes and arrays alone, so that it can run in a process of its own and its files can be kept
(`models.serving.cache`). `start` loads those files and is quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from configs.errors import UsageError

if TYPE_CHECKING:
    from models.detector import ServedBody

#: A form as it lies on a disk: file name -> content.
Files = Mapping[str, bytes]
#: (H, W) of what the network sees.
ShapePx = tuple[int, int]
#: Pictures that a form is calibrated on are as many at most: more cost seconds each and change little (docs/compression.md).
MAX_CALIBRATION = 40


class Form(Protocol):
    """A network ready to run on pictures of one shape, on one thread, and on one more for every `widen`. memory_mib: its files, or its
    weights where it has none."""

    memory_mib: float

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        """array: as the body's `encode` made it -> the network's outputs as float32 arrays, valid until the next `run`."""

    def widen(self) -> None:
        """One more thread will run it beside the others. May take as long as `start`. Raises UsageError for a form that one thread at a
        time runs, whatever is done."""

    def close(self) -> None:
        """Frees what it holds; `run` must not be called any more."""


class Runtime(Protocol):
    """name: as configured ('openvino-int8'). precision: 'fp32', 'bf16', 'fp16' or 'int8'. portable: it has a `convert` step with files.
    calibrated: `convert` needs pictures. libraries: whose versions decide whether kept files still fit."""

    name: str
    precision: str
    portable: bool
    calibrated: bool
    libraries: tuple[str, ...]

    def missing(self) -> str:
        """Why it cannot be used on this machine; empty when it can."""

    def tuned_for(self) -> str:
        """What its files fit beside the processor and the libraries: the name of the GPU that an engine is made for. Empty: nothing, or
        there is none."""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        """onnx: the network for one shape; arrays: what `ServedBody.encode` made of calibration pictures.
        Raises JobError 'no_data' when it needs pictures and there are none, EnvironmentLacking when a library is missing."""

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> Form:
        """Raises EnvironmentLacking when a library is missing, DriftboxError when the files cannot be loaded."""


def one_at_a_time(form: Form) -> UsageError:
    """The refusal of a form that lies at fixed places on a GPU, which no more than one thread computes on."""
    name = type(form).__name__
    return UsageError(f"a {name} is run by one thread at a time", subject=name, remedy="open another one for the other thread")
