"""Canaries of a box with accounts and TLS, looked for in everything it shows: every route of its interface, pages, metrics, the
diagnostics bundle, back-ups, every file of the data folder but those made for secrets, the log, what commands print, the process list.

Beside `test_credentials_canary.py`, which looks at MQTT and at what opens the box itself."""

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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.sync.client import connect

from streams.rendered.serve import CameraScript
from streams.rtsp_process import RtspServerProcess
from tests.support.ports import free_port
from tests.support.running_box import ROOT, WITHIN_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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


def written_config(folder: Path, cameras: RtspServerProcess, port: int, certificate: Path, key: Path) -> Path:
    for name, text in (("password", PASSWORD), ("broker", BROKER)):
        (folder / name).write_text(text)
    path = folder / "box.yaml"
    path.write_text(f"""
box: {{data_dir: "{folder}/data"}}
web: {{port: {port}, tls: given, cert_file: "{certificate}", key_file: "{key}"}}
window: {{seconds: 20, first_seconds: 8, label_frames: 4, gate_frames: 2}}
telemetry: {{mqtt: {{enabled: true, host: 127.0.0.1, port: {free_port()}, username: box, password: "file:{folder}/broker"}}}}
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


def every_route(client: httpx.Client) -> dict[str, bytes]:
    """What every GET of the interface answers, with ids that exist where a path wants some."""
    described = client.get("/api/v1/openapi.json").json()
    values = {"camera": "gate", "camera_id": "gate", "stream": "gate", "window": "0", "seq": "0", "version": "gate-000001"}
    found = {}
    for path, methods in described["paths"].items():
        if "get" in methods:
            filled = re.sub(r"\{(\w+)(?::path)?\}", lambda m: values.get(m[1], "1"), path)
            answer = client.get(filled)
            assert answer.status_code < 500, (filled, answer.text)
            found[f"GET {filled}"] = answer.content + str(answer.headers).encode()
    return found


def of_bundle(data: bytes) -> dict[str, bytes]:
    archive = zipfile.ZipFile(io.BytesIO(data))
    return {f"bundle: {name}": archive.read(name) for name in archive.namelist()}


def test_no_canary_is_shown_anywhere(tmp_path: Path) -> None:
    script = CameraScript(id="gate", kind="street", seed=3)
    cameras = RtspServerProcess([script.mount()], user="viewer", password=PASSWORD)
    cameras.start()
    port = free_port()
    certificate, key, key_words = own_certificate(tmp_path)
    config = written_config(tmp_path, cameras, port, certificate, key)
    output = tmp_path / "output"
    with output.open("wb") as out:
        command = [sys.executable, "-m", "edge", "run", str(config), "--debug"]
        box = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    seen: dict[str, bytes] = {}
    trust = ssl.create_default_context(cafile=str(certificate))
    client = httpx.Client(base_url=f"https://localhost:{port}", verify=trust, timeout=WITHIN_S, headers={"X-Driftbox": "page"})
    try:

        def claimed() -> Any:
            assert box.poll() is None, output.read_text()[-3000:]
            code = re.search(r"claim code: ([0-9A-Z-]{19})", output.read_text())
            if code is None:
                return None
            try:
                return (
                    client.post("/api/v1/claim", json={"code": code[1], "name": "kim", "password": ACCOUNT}).status_code == 201
                )
            except httpx.TransportError:
                return None

        eventually(claimed, "the box can be claimed")
        answer = client.post("/api/v1/sign-in", json={"name": "kim", "password": ACCOUNT})
        assert answer.status_code == 200, answer.text
        session = client.cookies[next(iter(client.cookies))]
        token = client.post("/api/v1/accounts/tokens", json={"name": "prog"}).json()["token"]
        typed = {
            "id": "typed",
            "url": f"rtsp://viewer:{quote(TYPED, safe='')}@127.0.0.1:9/x",
        }
        seen["add a camera"] = client.post("/api/v1/cameras", json=typed).content

        def states() -> dict[str, Any]:
            told = client.get("/api/v1/status").json()
            return {camera["id"]: camera for camera in told.get("cameras", ())}  # none: the box is not that far yet

        eventually(lambda: states().get("gate", {}).get("frames_analysed"), "the right password lets frames through")
        eventually(lambda: states().get("refused", {}).get("code") == "auth", "the wrong one is refused")
        seen["doctor"] = client.post("/api/v1/health/doctor", json={}).content
        seen["back-up"] = client.post("/api/v1/health/backups", json={}).content
        eventually(lambda: client.get("/api/v1/health").json()["doctor"]["findings"], "doctor has looked")
        seen |= every_route(client)
        seen["/metrics"] = client.get("/metrics").content
        seen["/"] = client.get("/").content
        live = f"wss://localhost:{port}/api/v1/live"
        with connect(live, ssl=trust, additional_headers={"Authorization": f"Bearer {token}"}, open_timeout=WITHIN_S) as feed:
            seen["live updates"] = "".join(str(feed.recv(WITHIN_S)) for _ in range(2)).encode()
        seen |= of_bundle(client.get("/api/v1/health/diagnostics.zip").content)
        bundle = [sys.executable, "-m", "edge", "diagnostics", str(config), str(tmp_path / "beside.zip")]
        done = subprocess.run(bundle, cwd=ROOT, capture_output=True, timeout=WITHIN_S, check=False)
        seen["diagnostics"] = done.stdout + done.stderr
        seen |= {f"beside, {name}": data for name, data in of_bundle((tmp_path / "beside.zip").read_bytes()).items()}
        seen |= of_processes(box.pid) | of_folder(tmp_path / "data")
        box.send_signal(signal.SIGTERM)
        assert box.wait(WITHIN_S) == 0
    finally:
        box.kill()
        box.wait()
        cameras.stop()
        client.close()
    seen |= {f"{name} at the end": data for name, data in of_folder(tmp_path / "data").items()}
    seen["output"] = output.read_bytes()
    secrets = [CANARY, PASSWORD, WRONG, TYPED, BROKER, ACCOUNT, session, token, token.split("_", 2)[2], *key_words]
    words = {form for secret in secrets for form in forms(secret)}
    assert {name for name, data in seen.items() if any(word in data for word in words)} == set()
    # That the net has no hole.
    assert len([name for name in seen if name.startswith("GET ")]) > 20
    assert b"refused" in seen["bundle: status.json"]
    assert b"refused" in seen["live updates"]
    assert b"driftbox_camera_up" in seen["/metrics"]
    assert any("/backups/" in name and name.endswith("driftbox.db") for name in seen)
    assert any(word in config.read_bytes() for word in words)
