"""`driftbox run` as a process: it serves its page, survives bad cameras and a missing broker, never shows a secret, ends politely."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.replay import replay
from tests.support.ports import free_port
from tests.support.running_box import CANARY, ROOT, WITHIN_S, RunningBox, eventually

pytestmark = pytest.mark.slow


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
    eventually(lambda: (s := box.status()) and s["cameras"], "the status page answers")

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
