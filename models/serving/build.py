"""Makes a form's files in a process of its own: `python -m models.serving.build RUNTIME FOLDER`.

Converting and quantising take seconds, hold Python's lock, use every core they find and can crash in native code. In a child they are
niced, kept to one core, ended at their deadline, and cost the live cameras nothing but their place behind them in the queue.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from configs.errors import DriftboxError, JobCancelled, JobError, redact
from models.serving.base import Files, Runtime

NICE = 10
_NETWORK, _ARRAYS, _OUT, _WHY = "network.onnx", "arrays.npy", "out", "why.txt"


def in_process(runtime: Runtime, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
    """Here and now. For tests, commands and runtimes that only copy."""
    return runtime.convert(onnx, arrays)


class ChildBuilder:
    """A `Builder` that gives up after max_s seconds. One child at a time per builder. Raises JobError 'exception' when the child failed
    or took too long, 'cancelled' after `close`; OSError when there is no room for what it is handed."""

    def __init__(self, max_s: float, *, start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen) -> None:
        self._max_s, self._start = max_s, start
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def __call__(self, runtime: Runtime, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        with tempfile.TemporaryDirectory(prefix="driftbox-build-") as name:
            folder = Path(name)
            (folder / _NETWORK).write_bytes(onnx)
            np.save(folder / _ARRAYS, np.concatenate(list(arrays)) if len(arrays) else np.zeros((0, 3, 1, 1), np.float32))
            self._run(runtime.name, folder)
            return {path.name: path.read_bytes() for path in sorted((folder / _OUT).iterdir())}

    def close(self) -> None:
        """Ends a child that is at work and starts no more: for the end of the box."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                _kill(self._child)

    def _run(self, name: str, folder: Path) -> None:
        with self._lock:
            if self._closed:
                raise JobCancelled("the box is stopping", subject=name)
            child = self._child = self._start(
                [sys.executable, "-m", "models.serving.build", name, str(folder)],
                env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
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
            raise JobError(f"the {name} form could not be made: {_why(folder, code)}", subject=name)


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "NNCF_CI": "1"}


def _why(folder: Path, code: int) -> str:
    why = folder / _WHY
    return redact(why.read_text(encoding="utf-8")) if why.is_file() else f"its process ended with code {code}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and what it started, if it still runs."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def main(name: str, folder: Path) -> int:
    """The child: reads what the parent wrote, writes the files, or why it could not."""
    from models.serving.registry import runtime_of

    _stand_back()
    try:
        arrays = np.load(folder / _ARRAYS)
        files = runtime_of(name).convert((folder / _NETWORK).read_bytes(), [array[None] for array in arrays])
        (folder / _OUT).mkdir()
        for file, content in files.items():
            (folder / _OUT / file).write_bytes(content)
    except Exception as error:
        text = error.message if isinstance(error, DriftboxError) else f"{type(error).__name__}: {error}"
        (folder / _WHY).write_text(text[:500], encoding="utf-8")
        return 1
    return 0


def _stand_back() -> None:
    """Behind the live cameras, on one core."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
