"""Makes and checks a served form in a process of its own: `python -m edge.form_child FOLDER SOCKET`.

Predictions, export, quantising, compiling and the check take seconds, hold Python's lock, use every core they find and can crash in
native code. In a child they are niced, kept to one core, ended at their deadline or with the box, and cost the live cameras nothing but
their place behind them in the queue. What is handed over either way lies in a folder: arrays, JSON and the form's own files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import DriftboxError, JobCancelled, JobError, redact
from edge.environment import importing_from
from edge.form_making import Checked, Made, Wanted, make_form, spent_on
from edge.gpu.worker import ModelFile, end_with_the_box, keep, load_model
from models.serving.base import ShapePx
from models.tasks.base import Picture

NICE = 10
_ORDER, _MODEL, _PICTURES, _REGIONS = "order.json", "model.safetensors", "picture-{}.npy", "regions-{}.npy"
_ANSWER, _WHY, _FORM, _SAMPLE = "answer.json", "why.txt", "form-{}x{}", "sample-{}x{}.npy"


class ChildMaker:
    """A `Maker` that gives up after max_s seconds; one child at a time. kept: folder of kept forms; device: where the model is loaded;
    builder: as in `ModelFile`. Raises JobError when the child failed or took too long, JobCancelled after `close`; OSError and
    StorageError when there is no room for what it is handed."""

    def __init__(
        self, kept: Path, max_s: float, *, device: str = "cpu", builder: str = ModelFile.builder,
        start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:  # fmt: skip
        self._kept, self._max_s, self._device, self._builder, self._start = kept, max_s, device, builder, start
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def __call__(self, wanted: Wanted) -> Made:
        with self._turn, tempfile.TemporaryDirectory(prefix="driftbox-form-") as name:
            folder = Path(name)
            model = keep(wanted.detector, folder / _MODEL, builder=self._builder)
            write_order(folder, wanted, model, device=self._device, kept=self._kept)
            self._run(wanted.runtime, folder)
            try:
                return read_answer(folder)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise JobError(
                    f"the process that made the {wanted.runtime} form gave no answer", subject=wanted.runtime
                ) from error

    def close(self) -> None:
        """Ends a child that is at work and starts no more: for the end of the box."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                _kill(self._child)

    def _run(self, name: str, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with self._lock:
                if self._closed:
                    raise JobCancelled("the box is stopping", subject=name)
                child = self._child = self._start(
                    [sys.executable, "-m", "edge.form_child", str(folder), str(theirs.fileno())],
                    env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True, pass_fds=(theirs.fileno(),),
                )  # fmt: skip
            theirs.close()
            try:
                code = child.wait(timeout=self._max_s)
            except subprocess.TimeoutExpired:
                raise JobError(
                    f"making the {name} form took longer than {self._max_s:.0f} s",
                    subject=name,
                    remedy="raise models.serving_build_s",
                ) from None
            finally:
                _kill(child)
                child.wait()
        if self._closed:
            raise JobCancelled("the box is stopping", subject=name)
        if code != 0:
            raise JobError(_why(folder, name, code), subject=name)


def _environment() -> dict[str, str]:
    return importing_from(Path(__file__).resolve().parents[1]) | {"OMP_NUM_THREADS": "1", "NNCF_CI": "1"}


def _why(folder: Path, name: str, code: int) -> str:
    why = folder / _WHY
    if why.is_file():
        return redact(why.read_text(encoding="utf-8"))
    return f"the {name} form could not be made: its process ended with code {code}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and what it started, if it still runs."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


# --- what is handed over ----------------------------------------------------------------------------------------------


def write_order(folder: Path, wanted: Wanted, model: ModelFile, *, device: str, kept: Path) -> None:
    for n, picture in enumerate(wanted.pictures):
        np.save(folder / _PICTURES.format(n), picture.image)
        if picture.regions is not None:
            np.save(folder / _REGIONS.format(n), picture.regions)
    order = {
        "runtime": wanted.runtime, "task": wanted.task.name if wanted.task else "", "shape_px": wanted.shape_px,
        "pictures": len(wanted.pictures), "model": asdict(model), "device": device, "kept": str(kept),
        "agreement_min": wanted.agreement_min,
    }  # fmt: skip
    (folder / _ORDER).write_text(json.dumps(order), encoding="utf-8")


def read_order(folder: Path) -> tuple[Wanted, Path, str]:
    """(what is wanted, folder of kept forms, where the model is). Raises WeightsError, and UsageError for a task that this process does
    not know."""
    from models.tasks.registry import task_of

    order: dict[str, Any] = json.loads((folder / _ORDER).read_text(encoding="utf-8"))
    wanted = Wanted(
        runtime=order["runtime"],
        detector=load_model(ModelFile(**order["model"]), order["device"]),
        pictures=[_picture(folder, n) for n in range(order["pictures"])],
        task=task_of(order["task"]) if order["task"] else None,
        shape_px=_shape(order["shape_px"]) if order["shape_px"] else None,
        agreement_min=order["agreement_min"],
    )
    return wanted, Path(order["kept"]), order["device"]


def _picture(folder: Path, n: int) -> Picture:
    regions = folder / _REGIONS.format(n)
    return Picture(image=np.load(folder / _PICTURES.format(n)), regions=np.load(regions) if regions.is_file() else None)


def write_answer(folder: Path, made: Made) -> None:
    for shape_px, files in made.files.items():
        place = folder / _FORM.format(*shape_px)
        place.mkdir()
        for name, content in files.items():
            (place / name).write_bytes(content)
    for shape_px, array in made.samples.items():
        np.save(folder / _SAMPLE.format(*shape_px), array)
    answer = {
        "files": list(made.files), "samples": list(made.samples), "checked": asdict(made.checked) if made.checked else None,
    }  # fmt: skip
    (folder / _ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def read_answer(folder: Path) -> Made:
    answer: dict[str, Any] = json.loads((folder / _ANSWER).read_text(encoding="utf-8"))
    shapes = [_shape(pair) for pair in answer["files"]]
    return Made(
        files={s: {p.name: p.read_bytes() for p in sorted((folder / _FORM.format(*s)).iterdir())} for s in shapes},
        samples={s: np.load(folder / _SAMPLE.format(*s)) for s in map(_shape, answer["samples"])},
        checked=Checked(**answer["checked"]) if answer["checked"] else None,
    )


def _shape(pair: list[int]) -> ShapePx:
    height, width = pair
    return int(height), int(width)


# --- the child --------------------------------------------------------------------------------------------------------


def main(folder: Path) -> int:
    """Reads what the box wrote, writes the form, or why there is none."""
    from models.serving.cache import FormCache
    from models.serving.registry import runtime_of

    try:
        wanted, kept, device = read_order(folder)
        runtime = runtime_of(wanted.runtime, device=device)
        write_answer(folder, make_form(wanted, runtime, cache=FormCache(kept), spent_s=spent_on(device)))
    except Exception as error:
        text = error.message if isinstance(error, DriftboxError) else f"{type(error).__name__}: {error}"
        (folder / _WHY).write_text(text[:500], encoding="utf-8")
        return 1
    return 0


def stand_back() -> None:
    """Behind the live cameras, on one core, with one thread of torch's."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    end_with_the_box(socket.socket(fileno=int(sys.argv[2])), grace_s=0.0)
    stand_back()
    sys.exit(main(Path(sys.argv[1])))
