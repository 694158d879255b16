"""`driftbox run` as a process of its own, for tests that look at it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from edge.web.accounts.local import read_local_token
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
CANARY = "c4n4ry"
WITHIN_S = 270.0


def eventually(condition: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    """The first true value of `condition`."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    pytest.fail(f"not within {within_s:g} s: {what}")


def asking_headers(data_dir: Path) -> dict[str, str]:
    """As a program that may read the box's data folder; {}: it has no accounts, or is not that far yet."""
    token = read_local_token(data_dir)
    return {"Authorization": f"Bearer {token}"} if token is not None else {}


class RunningBox:
    """`driftbox run CONFIG` with its output in a file. environment: variables beside those of this process."""

    def __init__(self, folder: Path, config: str, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self.port = folder, free_port()
        self.data_dir, self.output = folder / "data", folder / "output.txt"
        path = folder / "box.yaml"
        path.write_text(config)
        self._environment = os.environ | {"CAM_PW": f"{CANARY}/env@", "OMP_NUM_THREADS": "1"} | dict(environment or {})
        self._call = [
            sys.executable,
            "-m",
            "edge",
            "run",
            str(path),
            "--data-dir",
            str(self.data_dir),
            "--port",
            str(self.port),
        ]
        with self.output.open("ab") as out:
            self.process = subprocess.Popen([*self._call, *words], cwd=ROOT, env=self._environment, stdout=out, stderr=out)

    def get(self, path: str) -> httpx.Response | None:
        if self.process.poll() is not None:
            pytest.fail(f"the box ended with {self.process.returncode}: {self.output.read_text()[-2000:]}")
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=60, headers=asking_headers(self.data_dir))
        except httpx.TransportError:
            return None

    def status(self) -> dict[str, Any] | None:
        answer = self.get("/api/v1/status")
        return answer.json() if answer is not None and answer.status_code == 200 else None

    def again(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same call a second time."""
        return subprocess.run(
            [*self._call, *words],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    def processes(self) -> list[psutil.Process]:
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=WITHIN_S)


@contextmanager
def none_left_behind() -> Iterator[list[RunningBox]]:
    """Whatever a test does, those that it puts into the list have ended afterwards."""
    running: list[RunningBox] = []
    try:
        yield running
    finally:
        for box in running:
            if box.process.poll() is None:
                box.process.kill()
                box.process.wait()


def write_classifier(path: Path) -> Path:
    """A small classifier that has learnt nothing yet: whatever it is taught must come from the box."""
    import torch  # a box of its own is started without it
    from safetensors.torch import save_file

    from models.zoo import new_detector, spec_of

    torch.manual_seed(7)
    spec = spec_of("mobilenetv2-0.25")
    save_file({k: v.contiguous() for k, v in new_detector(spec, seed=7).state().items()}, path, metadata={"arch": spec.arch})
    return path
