"""`driftbox run` as a process: cameras added by command and over HTTP, a kill, a restart, and a password that is seen nowhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import psutil
import pytest

from streams.rendered.serve import CameraScript
from streams.rtsp_process import RtspServerProcess
from tests.support.running_box import ROOT, RunningBox, asking_headers, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CANARY = "zzTYPEDzz/1@"
CONFIG = """
window: {seconds: 3600, first_seconds: 3600}
cameras:
  - {id: gate, url: "rendered:street?seed=3&fps=5", objects: {enabled: false}}
"""


@pytest.fixture
def camera() -> Iterator[RtspServerProcess]:
    """A camera with a password."""
    script = CameraScript(id="door", kind="hall", seed=5)
    server = RtspServerProcess([script.mount()], user="viewer", password=CANARY)
    server.start()
    yield server
    server.stop()


class Site:
    """A box, and what its operator types."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pw.txt").write_text(CANARY + "\n")
        self.start()

    def start(self) -> None:
        self.box = RunningBox(self.folder, CONFIG)
        self.config = self.folder / "cli.yaml"
        self.config.write_text(CONFIG + f"web: {{port: {self.box.port}}}\nbox: {{data_dir: {self.box.data_dir}}}\n")
        eventually(lambda: self.states().get("gate") == "live", "the box is up")

    def states(self) -> dict[str, str]:
        status = self.box.status()
        return {camera["id"]: camera["state"] for camera in status["cameras"]} if status else {}

    def frames(self, camera: str) -> int:
        status = self.box.status()
        return next((c["frames_analysed"] for c in status["cameras"] if c["id"] == camera), 0) if status else 0

    def brightness(self, camera: str) -> tuple[float, float]:
        """Of the left and the right half of its newest picture, 0-255."""
        path = f"cameras/{camera}/picture.jpg?boxes=false"
        jpeg = eventually(lambda: (got := self.ask("GET", path)).status_code == 200 and got.content, "a picture")
        image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_GRAYSCALE)
        middle = image.shape[1] // 2
        return float(image[:, : middle - 8].mean()), float(image[:, middle + 8 :].mean())

    def command(self, *words: str, about: str = "cameras") -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "edge", about, *words, "--config", str(self.config), "--json"], cwd=ROOT, capture_output=True,
            text=True, timeout=600, check=False,
        )  # fmt: skip
        assert CANARY not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout)

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(
            method,
            f"http://127.0.0.1:{self.box.port}/api/v1/{path}",
            json=body,
            timeout=300,
            headers=asking_headers(self.box.data_dir),
        )

    def setting(self, key: str) -> str:
        view = self.ask("GET", "settings").json()
        return next(one["value"] for section in view["sections"] for one in section["settings"] if one["key"] == key)

    def token(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "edge", "accounts", "token", "held", *words, "--config", str(self.config), "--json"], cwd=ROOT,
            capture_output=True, text=True, timeout=600, check=True,
        )  # fmt: skip
        return str(json.loads(done.stdout)["token"])

    def seen_with(self, token: str) -> list[str]:
        """Cameras in the status that a program with this token gets."""
        told = httpx.get(
            f"http://127.0.0.1:{self.box.port}/api/v1/status", timeout=300, headers={"Authorization": f"Bearer {token}"}
        )
        return [camera["id"] for camera in told.json()["cameras"]]

    def kill(self) -> None:
        processes = self.box.processes()
        self.box.process.send_signal(signal.SIGKILL)
        self.box.process.wait()
        psutil.wait_procs(processes, timeout=60)


def test_a_day_with_cameras(tmp_path: Path, camera: RtspServerProcess) -> None:
    site = Site(tmp_path)
    try:
        url = camera.url("door")
        code, added = site.command(
            "add", url, "--name", "Tür \N{DOOR}", "--user", "viewer", "--password-file", str(tmp_path / "pw.txt"),
            "--zone", "mat=0.1,0.1;0.9,0.1;0.9,0.9", "--keep-days", "7", "--picture", str(tmp_path / "seen.jpg"),
        )  # fmt: skip
        assert (code, added["id"], added["has_credentials"]) == (0, "tur", ["url"])
        assert (tmp_path / "seen.jpg").read_bytes().startswith(b"\xff\xd8"), "the picture that the box saw"
        eventually(lambda: site.states().get("tur") == "live" and site.frames("tur") > 3, "the new camera is watched")
        seen = site.ask("POST", "cameras/probe", {"url": url, "user": "viewer", "password": CANARY}).json()["url"]
        assert seen["ok"]
        assert site.ask("GET", seen["picture_url"].removeprefix("/api/v1/")).content.startswith(b"\xff\xd8")
        refused = site.ask("POST", "cameras/probe", {"url": url, "user": "viewer", "password": CANARY + "x"})
        assert refused.json()["url"]["code"] == "auth"
        assert site.ask("PATCH", "cameras/tur", {"fps": 2, "learning": False}).status_code == 200
        code, changed = site.command("change", "tur", "--zone", "step=0.1,0.1;0.5,0.1;0.5,0.5", "--pre-s", "2")
        assert (code, set(changed["entry"]["zones"]), changed["entry"]["recording"]["keep_days"]) == (0, {"mat", "step"}, 7)
        assert site.ask("PATCH", "cameras/gate", {"name": "<i>Gate</i>"}).status_code == 200
        left = [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]
        assert site.brightness("gate")[0] > 20
        assert site.ask("PATCH", "cameras/gate", {"masks": [left]}).status_code == 200
        eventually(lambda: site.brightness("gate")[0] < 5, "the mask is in the picture")
        assert site.brightness("gate")[1] > 20
        assert site.command("add", "/etc/hostname", "--yes", "--set", "fps=-1")[0] == 2
        drawn = site.ask("POST", "cameras/probe", {"url": "rendered:yard?seed=2"}).json()["url"]
        assert site.ask("GET", drawn["picture_url"].removeprefix("/api/v1/")).content.startswith(b"\xff\xd8")
        assert site.ask("PATCH", "settings/media", {"clip_days": 2, "max_events": 1000}).status_code == 200
        assert site.setting("storage.media.clip_days") == "2.0"
        assert site.command("set", "event_days=33", about="settings")[0] == 0
        assert site.setting("storage.media.event_days") == "33.0", "the box that runs was asked"
        token = site.token("--camera", "tur")
        assert site.seen_with(token) == ["tur"]

        site.kill()
        site.start()
        eventually(lambda: site.states().get("tur") == "live", "the camera is there after a kill")
        told = {c["id"]: c for c in site.ask("GET", "cameras").json()["cameras"]}
        assert (told["tur"]["entry"]["fps"], told["tur"]["entry"]["learning"], told["tur"]["source"]) == (2, False, "added")
        assert (told["gate"]["title"], told["gate"]["source"]) == ("<i>Gate</i>", "changed")
        assert (site.setting("storage.media.clip_days"), site.setting("storage.media.max_events")) == ("2.0", "1000")
        assert site.seen_with(token) == ["tur"]

        lines = [" ".join(process.cmdline()) for process in site.box.processes()]
        pages = [site.ask("GET", path).text for path in ("cameras", "cameras/tur", "status", "settings", "openapi.json")]
        site.box.stop()
        texts = [*lines, *pages, site.box.output.read_text()]
        kept = {
            p.relative_to(tmp_path).parts[1]
            for p in (tmp_path / "data").rglob("*")
            if p.is_file() and CANARY.encode() in p.read_bytes()
        }
        assert not [text for text in texts if CANARY in text or "zzTYPEDzz" in text]
        assert kept == {"secrets"}

        code, _ = site.command("remove", "tur", "--yes")
        assert code == 0, "without a box, in its folder"
        assert not list((tmp_path / "data" / "secrets").iterdir())
    finally:
        if site.box.process.poll() is None:
            site.box.stop()
