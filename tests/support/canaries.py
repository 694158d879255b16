"""A box with a canary in every credential, and everything it shows: every route of its interface, pages, metrics, MQTT, the diagnostics
bundle, back-ups, every file of the data folder but those made for secrets, the log, what commands print, the process list.

Shared by `tests/integration/test_credentials_canary_everywhere.py` and `driftbox bench secrets`.
"""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.sync.client import connect

from streams.rendered.serve import CameraScript
from streams.rtsp_process import RtspServerProcess
from tests.support.mosquitto import MOSQUITTO, Broker, Listener
from tests.support.ports import free_port
from tests.support.running_box import ROOT, WITHIN_S, eventually

CANARY = "yyKANARIyy"
PASSWORD, WRONG, TYPED, BROKER, ACCOUNT = (f"{CANARY}/{word}@:1" for word in ("right", "wrong", "typed", "mqtt", "account"))
#: Made to hold secrets, readable by the box's user only.
MADE_FOR_SECRETS = re.compile(r"/data/(?:backups/[^/]+/)?(?:secrets|web|keys)/")


def forms(text: str) -> list[bytes]:
    """A secret as it might travel: plain, in base64, percent-encoded, as JSON."""
    plain = text.encode()
    return [plain, base64.b64encode(plain), quote(text, safe="").encode(), json.dumps(text)[1:-1].encode()]


def own_certificate(folder: Path) -> tuple[Path, Path, list[str]]:
    """(certificate, key, words of the key) of 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=90))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False).sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "given.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "given.key").write_bytes(pem)
    (folder / "given.key").chmod(0o600)
    return folder / "given.crt", folder / "given.key", [line for line in pem.decode().splitlines() if not line.startswith("-")]


def written_config(folder: Path, cameras: RtspServerProcess, port: int, mqtt_port: int, certificate: Path, key: Path) -> Path:
    for name, text in (("password", PASSWORD), ("broker", BROKER)):
        (folder / name).write_text(text)
    path = folder / "box.yaml"
    path.write_text(f"""
box: {{data_dir: "{folder}/data"}}
web: {{port: {port}, tls: given, cert_file: "{certificate}", key_file: "{key}"}}
window: {{seconds: 20, first_seconds: 8, label_frames: 4, gate_frames: 2}}
telemetry: {{mqtt: {{enabled: true, host: 127.0.0.1, port: {mqtt_port}, username: box, password: "file:{folder}/broker"}}}}
cameras:
  - {{id: gate, url: "rtsp://viewer:${{file:{folder}/password}}@127.0.0.1:{cameras.port}/gate", fps: 2}}
  - {{id: refused, url: "rtsp://viewer:{quote(WRONG, safe="")}@127.0.0.1:{cameras.port}/gate?token={CANARY}-token", fps: 2}}
""")
    return path


def of_folder(folder: Path) -> dict[str, bytes]:
    found = {str(path): str(path).encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not MADE_FOR_SECRETS.search(name)}


def of_processes(pid: int) -> dict[str, bytes]:
    main = psutil.Process(pid)
    files = [Path(f"/proc/{p.pid}/{name}") for p in [main, *main.children(recursive=True)] for name in ("cmdline", "environ")]
    return {str(file): file.read_bytes() for file in files if file.exists()}


def got(client: httpx.Client, path: str) -> httpx.Response:
    """Asked again when the box has just closed the connection because nothing came for some seconds: this machine may be busy."""
    try:
        return client.get(path)
    except httpx.RemoteProtocolError:
        return client.get(path)


def every_route(client: httpx.Client) -> dict[str, bytes]:
    """What every GET of the interface answers, with ids that exist where a path wants some."""
    described = got(client, "/api/v1/openapi.json").json()
    values = {"camera": "gate", "camera_id": "gate", "stream": "gate", "window": "0", "seq": "0", "version": "gate-000001"}
    found = {}
    for path, methods in described["paths"].items():
        if "get" in methods:
            filled = re.sub(r"\{(\w+)(?::path)?\}", lambda m: values.get(m[1], "1"), path)
            answer = got(client, filled)
            assert answer.status_code < 500, (filled, answer.text)
            found[f"GET {filled}"] = answer.content + str(answer.headers).encode()
    return found


def of_bundle(data: bytes) -> dict[str, bytes]:
    archive = zipfile.ZipFile(io.BytesIO(data))
    return {f"bundle: {name}": archive.read(name) for name in archive.namelist()}


@dataclass
class Shown:
    """seen: what the box showed, by where; secrets: what must not stand there."""

    seen: dict[str, bytes] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)

    def leaks(self) -> list[str]:
        """Where a secret stands, in whatever form."""
        words = {form for secret in self.secrets for form in forms(secret)}
        return sorted(name for name, data in self.seen.items() if any(word in data for word in words))

    def by_kind(self) -> dict[str, list[str]]:
        """The places by what they are."""
        found: dict[str, list[str]] = {}
        for name in self.seen:
            kind = next((kind for kind, marks in KINDS.items() if any(mark in name for mark in marks)), "answers and commands")
            found.setdefault(kind, []).append(name)
        return found


#: Kind of place -> what its names contain, the first that fits.
KINDS = {
    "process list": ("/proc/",), "bundles": ("bundle: ", "beside, "), "back-ups": ("/backups/",), "data folder": ("/data/",),
    "log": ("output",), "metrics": ("metrics",), "routes and pages": ("GET ", "live updates"), "MQTT": ("mqtt",),
}  # fmt: skip


def shown_by_a_box(folder: Path) -> Shown:
    """Runs a box over real RTSP and, where mosquitto is installed, with a real broker; claims it, adds a camera, and looks at all."""
    with _cameras() as cameras, _broker(folder) as (mqtt_port, listener):
        shown = _shown(folder, cameras, mqtt_port)
        if listener is not None:
            eventually(lambda: listener.of("camera/refused/status"), "MQTT tells of the camera")
            shown.seen["mqtt"] = b"\n".join(topic.encode() + b" " + payload for topic, payload, _ in listener.seen)
    return shown


@contextmanager
def _cameras() -> Iterator[RtspServerProcess]:
    server = RtspServerProcess([CameraScript(id="gate", kind="street", seed=3).mount()], user="viewer", password=PASSWORD)
    server.start()
    yield server
    server.stop()


@contextmanager
def _broker(folder: Path) -> Iterator[tuple[int, Listener | None]]:
    """(port, consumer); without mosquitto a port at which nobody is."""
    if MOSQUITTO is None:
        yield free_port(), None
        return
    (kept := folder / "mosquitto").mkdir()
    broker = Broker(kept, password=BROKER)
    broker.start()
    listener = Listener(broker.port, username="box", password=BROKER)
    yield broker.port, listener
    listener.close()
    broker.stop()


def _shown(folder: Path, cameras: RtspServerProcess, mqtt_port: int) -> Shown:
    port = free_port()
    certificate, key, key_words = own_certificate(folder)
    config = written_config(folder, cameras, port, mqtt_port, certificate, key)
    output = folder / "output"
    with output.open("wb") as out:
        command = [sys.executable, "-m", "edge", "run", str(config), "--debug"]
        box = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    trust = ssl.create_default_context(cafile=str(certificate))
    shown = Shown()
    seen = shown.seen
    try:
        with httpx.Client(
            base_url=f"https://localhost:{port}", verify=trust, timeout=WITHIN_S, headers={"X-Driftbox": "page"}
        ) as client:
            eventually(lambda: _claimed(client, box, output), "the box can be claimed")
            answer = client.post("/api/v1/sign-in", json={"name": "kim", "password": ACCOUNT})
            assert answer.status_code == 200, answer.text
            session = client.cookies[next(iter(client.cookies))]
            token = client.post("/api/v1/accounts/tokens", json={"name": "prog"}).json()["token"]
            shown.secrets = [
                CANARY, PASSWORD, WRONG, TYPED, BROKER, ACCOUNT, session, token, token.split("_", 2)[2], *key_words
            ]  # fmt: skip
            _ask_for_all(client, seen)
        live = f"wss://localhost:{port}/api/v1/live"
        with connect(live, ssl=trust, additional_headers={"Authorization": f"Bearer {token}"}, open_timeout=WITHIN_S) as feed:
            seen["live updates"] = "".join(str(feed.recv(WITHIN_S)) for _ in range(2)).encode()
        bundle = [sys.executable, "-m", "edge", "diagnostics", str(config), str(folder / "beside.zip")]
        done = subprocess.run(bundle, cwd=ROOT, capture_output=True, timeout=WITHIN_S, check=False)
        seen["diagnostics"] = done.stdout + done.stderr
        seen |= {f"beside, {name}": data for name, data in of_bundle((folder / "beside.zip").read_bytes()).items()}
        seen |= of_processes(box.pid) | of_folder(folder / "data")
        box.send_signal(signal.SIGTERM)
        assert box.wait(WITHIN_S) == 0
    finally:
        box.kill()
        box.wait()
    seen |= {f"{name} at the end": data for name, data in of_folder(folder / "data").items()}
    seen["output"] = output.read_bytes()
    return shown


def _claimed(client: httpx.Client, box: subprocess.Popen[bytes], output: Path) -> bool:
    assert box.poll() is None, output.read_text()[-3000:]
    code = re.search(r"claim code: ([0-9A-Z-]{19})", output.read_text())
    if code is None:
        return False
    try:
        return client.post("/api/v1/claim", json={"code": code[1], "name": "kim", "password": ACCOUNT}).status_code == 201
    except httpx.TransportError:
        return False


def _ask_for_all(client: httpx.Client, seen: dict[str, bytes]) -> None:
    typed = {"id": "typed", "url": f"rtsp://viewer:{quote(TYPED, safe='')}@127.0.0.1:9/x"}
    seen["add a camera"] = client.post("/api/v1/cameras", json=typed).content

    def states() -> dict[str, Any]:
        told = got(client, "/api/v1/status").json()
        return {camera["id"]: camera for camera in told.get("cameras", ())}  # none: the box is not that far yet

    eventually(lambda: states().get("gate", {}).get("frames_analysed"), "the right password lets frames through")
    eventually(lambda: states().get("refused", {}).get("code") == "auth", "the wrong one is refused")
    seen["doctor"] = client.post("/api/v1/health/doctor", json={}).content
    seen["back-up"] = client.post("/api/v1/health/backups", json={}).content
    eventually(lambda: got(client, "/api/v1/health").json()["doctor"]["findings"], "doctor has looked")
    seen |= every_route(client)
    seen["/metrics"] = got(client, "/metrics").content
    seen["GET /"] = got(client, "/").content
    seen |= of_bundle(got(client, "/api/v1/health/diagnostics.zip").content)
