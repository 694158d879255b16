"""A canary in every password of a running box is seen nowhere: output, status, page, data folder, process list, thread names,
`doctor`, `cameras list`, MQTT; nor what opens the box itself (passwords, sessions, tokens, the claim code). One camera accepts its
password (from a file), one refuses a plain wrong one."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from streams.rendered.serve import CameraScript
from streams.rtsp_process import RtspServerProcess
from tests.support.ports import free_port
from tests.support.running_box import asking_headers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
CANARY = "zzCANARYzz"
#: With what people forget to quote, and in the forms in which it travels.
PASSWORD, WRONG, BROKER = f"{CANARY}/1@2:3", f"{CANARY}-wrong", f"{CANARY}-mqtt"
ACCOUNT = f"{CANARY} of an account"
FORMS = [CANARY.encode(), CANARY.lower().encode()] + [base64.b64encode(f"viewer:{word}".encode()) for word in (PASSWORD, WRONG)]
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
WITHIN_S = 300.0


def eventually(condition: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    pytest.fail(f"not within {WITHIN_S:g} s: {what}")


def leaks(where: dict[str, bytes]) -> list[str]:
    """Names of the things in which the canary sits."""
    return [name for name, data in where.items() if any(form in data for form in FORMS)]


@pytest.fixture
def cameras() -> Iterator[RtspServerProcess]:
    script = CameraScript(id="gate", kind="street", seed=3)
    server = RtspServerProcess([script.mount()], user="viewer", password=PASSWORD)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def messages(tmp_path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """(port, everything published) of a broker with a password; (0, []) where mosquitto is not installed."""
    if MOSQUITTO is None or shutil.which("mosquitto_passwd") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("mosquitto is not installed")
        yield 0, []
        return
    port, users, config = free_port(), tmp_path / "users", tmp_path / "mosquitto.conf"
    subprocess.run(["mosquitto_passwd", "-b", "-c", users, "box", BROKER], check=True, capture_output=True)
    users.chmod(0o644)
    lines = [f"listener {port} 127.0.0.1", "persistence false", "allow_anonymous false", f"password_file {users}"]
    config.write_text("\n".join(lines + (["user root"] if os.geteuid() == 0 else [])) + "\n")
    broker = subprocess.Popen([MOSQUITTO, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    heard: list[bytes] = []
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set("box", BROKER)
    client.on_message = lambda _client, _data, message: heard.append(message.topic.encode() + b" " + message.payload)
    client.on_connect = lambda listener, *_: listener.subscribe("#")
    client.connect_async("127.0.0.1", port)
    client.loop_start()
    yield port, heard
    client.loop_stop()
    broker.terminate()
    broker.wait()


def write_config(folder: Path, cameras: RtspServerProcess, mqtt_port: int) -> Path:
    (folder / "password").write_text(PASSWORD + "\n")
    (folder / "broker-password").write_text(BROKER)
    config = folder / "box.yaml"
    config.write_text(f"""
box: {{data_dir: "{folder}/data"}}
web: {{port: {free_port()}}}
window: {{seconds: 10, first_seconds: 5, label_frames: 4, gate_frames: 2}}
telemetry: {{mqtt: {{enabled: {str(mqtt_port > 0).lower()}, host: 127.0.0.1, port: {mqtt_port or 1883}, username: box,
  password: "file:{folder}/broker-password"}}}}
cameras:
  - {{id: gate, url: "rtsp://viewer:${{file:{folder}/password}}@127.0.0.1:{cameras.port}/gate", fps: 2}}
  - {{id: refused, url: "rtsp://viewer:{WRONG}@127.0.0.1:{cameras.port}/gate", fps: 2}}
""")
    return config


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "edge", *map(str, words)]


def answered(*words: str | Path) -> bytes:
    """Everything a command prints."""
    done = subprocess.run(command(*words), cwd=ROOT, capture_output=True, timeout=WITHIN_S, check=False)
    return done.stdout + done.stderr


def of_processes(pid: int) -> dict[str, bytes]:
    """Command lines, environments and thread names of a process and its children."""
    main = psutil.Process(pid)
    found: dict[str, bytes] = {}
    for process in [main, *main.children(recursive=True)]:
        folder = Path(f"/proc/{process.pid}")
        files = [folder / "cmdline", folder / "environ", *folder.glob("task/*/comm")]
        found |= {str(file): file.read_bytes() for file in files if file.exists()}
    return found


def of_folder(folder: Path) -> dict[str, bytes]:
    """Names and bytes of every file: database, its WAL, journal, samples, models."""
    return {str(path): str(path).encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def claim_and_try(web: str, data_dir: Path, output: Path) -> dict[str, bytes]:
    """Claims the box with a canary as the password, makes accounts and tokens with it, guesses wrong ones; everything that came back.
    The claim code itself stands in the output once, for whoever started the box."""
    code = re.findall(r"claim code: ([0-9A-Z-]{19})", output.read_text())
    assert len(code) == 1
    seen: dict[str, bytes] = {}
    with httpx.Client(base_url=web, timeout=60, headers={"X-Driftbox": "page"}) as client:
        bodies: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", "claim", {"code": CANARY, "name": "kim", "password": ACCOUNT}),
            ("POST", "claim", {"code": code[0], "name": "kim", "password": ACCOUNT}),
            ("POST", "sign-in", {"name": CANARY, "password": ACCOUNT}),
            ("POST", "sign-in", {"name": "kim", "password": WRONG}),
            ("POST", "sign-in", {"name": "kim", "password": ACCOUNT}),
            ("POST", "accounts/users", {"name": "bo", "password": f"{ACCOUNT} too"}),
            ("PUT", "me/password", {"old": WRONG, "new": f"{ACCOUNT} again"}),
        ]
        answers = [client.request(method, f"/api/v1/{path}", json=body) for method, path, body in bodies]
        assert [answer.status_code for answer in answers] == [401, 201, 401, 401, 200, 201, 403]
        token = client.post("/api/v1/accounts/tokens", json={"name": "prog"}).json()["token"]
        answers += [client.get(f"/api/v1/accounts/{path}") for path in ("users", "sessions", "tokens", "audit")]
        answers.append(httpx.get(f"{web}/api/v1/status", headers={"Authorization": f"Bearer {token[:-3]}xyz"}, timeout=60))
        session = client.cookies["driftbox"]
    added = subprocess.run(
        command("accounts", "add", "eve", "--password-stdin", "--data-dir", data_dir), cwd=ROOT, input=f"{ACCOUNT} eve\n".encode(),
        capture_output=True, timeout=WITHIN_S, check=True,
    )  # fmt: skip
    seen = {f"answer {number}": answer.content for number, answer in enumerate(answers)}
    seen["accounts add"] = added.stdout + added.stderr
    seen["accounts audit"] = answered("accounts", "audit", "--data-dir", data_dir)
    opened = [token.split("_", 2)[2].encode(), session.encode(), code[0].encode(), code[0].replace("-", "").encode()]
    everywhere = seen | of_folder(data_dir)
    assert [name for name, data in everywhere.items() if any(word in data for word in opened)] == []
    assert output.read_bytes().count(code[0].encode()) == 1
    assert not any(word in output.read_bytes() for word in opened[:2])
    return seen


def test_the_canary_is_seen_nowhere(tmp_path: Path, cameras: RtspServerProcess, messages: tuple[int, list[bytes]]) -> None:
    port, heard = messages
    config = write_config(tmp_path, cameras, port)
    web = f"http://127.0.0.1:{config.read_text().partition('web: {port: ')[2].partition('}')[0]}"
    output = tmp_path / "output"
    with output.open("wb") as out:
        box = subprocess.Popen(command("run", config, "--debug"), cwd=ROOT, stdout=out, stderr=out)
    seen: dict[str, bytes] = {}
    try:

        def states() -> dict[str, Any]:
            assert box.poll() is None, output.read_text()[-3000:]
            try:
                answer = httpx.get(f"{web}/api/v1/status", timeout=60, headers=asking_headers(tmp_path / "data"))
            except httpx.TransportError:
                return {}
            if answer.status_code != 200:
                return {}
            status = answer.json()
            return {camera["id"]: camera for camera in status["cameras"]} | {"outcomes": status["outcomes"]}

        eventually(lambda: states().get("gate", {}).get("frames_analysed"), "the right password lets frames through")
        eventually(lambda: states().get("refused", {}).get("code") == "auth", "the wrong password is refused as such")
        eventually(lambda: states().get("outcomes"), "a window closes")
        seen |= claim_and_try(web, tmp_path / "data", output)
        if port:
            eventually(lambda: any(b"/camera/refused/" in message for message in heard), "MQTT tells of the camera")
        known = asking_headers(tmp_path / "data")
        paths = ("/", "/api/v1/status", "/healthz", "/readyz")
        seen |= {path: httpx.get(web + path, timeout=60, headers=known).content for path in paths}
        seen |= of_processes(box.pid) | of_folder(tmp_path / "data")
        seen["doctor"] = answered("doctor", config)
        seen["doctor --json"] = answered("doctor", config, "--json")
        seen["cameras list"] = answered("cameras", "list", config)
        seen["check"] = answered("check", config, "--json")
        seen["second box"] = answered("run", config, "--debug")
        box.send_signal(signal.SIGINT)
        assert box.wait(timeout=WITHIN_S) == 0
    finally:
        box.kill()
        box.wait()
    seen |= of_folder(tmp_path / "data")
    seen["output"] = output.read_bytes()
    seen["mqtt"] = b"\n".join(heard)
    assert leaks(seen) == []
    # That the net has no hole: what must be there is there, and a canary would be caught.
    assert b"refused" in seen["output"]
    assert b"gate" in seen["doctor"]
    assert any(name.endswith("driftbox.db-wal") for name in seen)
    assert leaks({"config": config.read_bytes(), "none": b""}) == ["config"]
