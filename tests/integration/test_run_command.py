"""`driftbox run` as a process: it serves its page, survives bad cameras and a missing broker, never shows a secret, ends politely."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from edge.replay import replay

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CANARY = "c4n4ry"
WITHIN_S = 90.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def eventually(condition: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    """The first true value of `condition`."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    pytest.fail(f"not within {within_s:g} s: {what}")


class RunningBox:
    """`driftbox run CONFIG` with its output in a file."""

    def __init__(self, folder: Path, config: str, *words: str) -> None:
        self.folder, self.port = folder, free_port()
        self.data_dir, self.output = folder / "data", folder / "output.txt"
        path = folder / "box.yaml"
        path.write_text(config)
        self._environment = os.environ | {"CAM_PW": f"{CANARY}/env@", "OMP_NUM_THREADS": "1"}
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
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10)
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
        return self.process.wait(timeout=60)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[RunningBox]:
    (tmp_path / "zero.mp4").write_bytes(b"")
    (tmp_path / "noise.mp4").write_bytes(bytes(range(256)) * 64)
    running = RunningBox(
        tmp_path,
        f"""
window: {{seconds: 20, first_seconds: 10}}
cameras:
  - {{id: scene, url: "rendered:yard?seed=7", fps: 2}}
  - {{id: refused, url: "rtsp://viewer:{CANARY}-pw@127.0.0.1:{free_port()}/live", fps: 1}}
  - {{id: by-env, url: "rtsp://{CANARY}-user:${{env:CAM_PW}}@127.0.0.1:{free_port()}/live?token={CANARY}-token", fps: 1}}
  - {{id: zero, url: "{tmp_path}/zero.mp4", fps: 1}}
  - {{id: noise, url: "{tmp_path}/noise.mp4", fps: 1}}
telemetry: {{mqtt: {{enabled: true, port: {free_port()}, username: box, password: {CANARY}-mqtt}}}}
""",
    )
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()


def test_a_box_among_bad_cameras(box: RunningBox) -> None:
    eventually(lambda: (s := box.status()) and s["cameras"][0], "the status page answers")

    def settled() -> Any:
        cameras = {camera["id"]: camera for camera in (box.status() or {"cameras": []})["cameras"]}
        waits = [cameras.get(id, {}).get("code") for id in ("refused", "by-env", "zero", "noise")]
        return cameras if cameras.get("scene", {}).get("frames_analysed", 0) > 3 and all(waits) else None

    cameras = eventually(settled, "one camera is analysed, the others have said what is wrong")
    assert cameras["scene"]["state"] == "live"
    assert cameras["refused"]["code"] == "network"
    assert cameras["zero"]["code"] == cameras["noise"]["code"] == "codec"
    eventually(lambda: (s := box.status()) and s["outcomes"], "a window closes all the same")
    answer = box.get("/api/v1/cameras/scene/picture.jpg")
    assert answer is not None
    assert answer.content.startswith(b"\xff\xd8\xff")
    seen = "".join(answer.text for path in ("/", "/api/v1/status", "/readyz") if (answer := box.get(path)) is not None)
    processes = " ".join(word for process in box.processes() for word in process.cmdline())
    second = box.again()
    assert second.returncode == 3, second.stderr
    assert "in use" in second.stderr or "another" in second.stderr
    assert box.stop() == 0
    assert "Traceback" not in box.output.read_text()
    assert replay(box.data_dir).exact
    files = [path for path in box.data_dir.rglob("*") if path.is_file()]
    assert {"driftbox.db"} <= {path.name for path in files}
    leaks = [str(path) for path in [*files, box.output] if CANARY.encode() in path.read_bytes()]
    assert leaks == []
    assert CANARY not in seen
    assert CANARY not in processes
    assert CANARY not in second.stdout + second.stderr


def test_a_taken_port_ends_the_run_with_3(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "edge", "run", "--port", str(port), "--data-dir", str(tmp_path / "data"), "--json"],
            cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    assert json.loads(ended.stdout)["error"]["code"] == "port_taken"
    assert "Traceback" not in ended.stderr
