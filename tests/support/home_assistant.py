"""A real Home Assistant, for tests that ask it what it makes of us. It does not fit beside our own packages, so it has a Python of its
own, named by DRIFTBOX_HOME_ASSISTANT (docs/mqtt.md says how to make one)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ports import free_port

PYTHON = os.environ.get("DRIFTBOX_HOME_ASSISTANT", "")
NEEDED = "needs Home Assistant: DRIFTBOX_HOME_ASSISTANT names the Python that has it (docs/mqtt.md)"
WITHIN_S = 300.0
USER, PASSWORD = "owner", "a house of tests"
#: Without what a house usually has beside: nothing here looks for devices in the network, or for itself on the internet.
CONFIGURATION = """
homeassistant: {{name: Tests, latitude: 0, longitude: 0, elevation: 0, unit_system: metric, time_zone: UTC, country: DE, currency: EUR}}
http: {{server_host: 127.0.0.1, server_port: {port}}}
api:
config:
recorder: {{commit_interval: 1}}
logger: {{default: info}}
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`."""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    pytest.fail(f"Home Assistant: not within {WITHIN_S:g} s: {what}")


class HomeAssistant:
    """A house with nothing in it but MQTT. It may be stopped and started again, and then remembers what it knew. credentials: its
    username and password at the broker."""

    def __init__(self, folder: Path, broker_port: int, **credentials: str) -> None:
        self.port, self._folder = free_port(), folder
        (folder / ".storage").mkdir(parents=True)
        (folder / "configuration.yaml").write_text(CONFIGURATION.format(port=self.port))
        (folder / ".storage/core.config_entries").write_text(json.dumps(_entries(broker_port, credentials)))
        (folder / ".storage/onboarding").write_text(json.dumps(_stored("onboarding", {"done": ["user", "core_config"]})))
        subprocess.run(
            [PYTHON, "-m", "homeassistant", "--script", "auth", "-c", str(folder), "add", USER, PASSWORD],
            check=True, capture_output=True, timeout=WITHIN_S,
        )  # fmt: skip
        self._log, self._http = folder / "output.log", httpx.Client(timeout=60)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it has begun to run, MQTT and all."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "homeassistant", "-c", str(self._folder), "--skip-pip"], stdout=log, stderr=log
            )
        until(self._answers, "it answers")
        self._http.headers["Authorization"] = f"Bearer {self._token()}"
        until(lambda: self._get("/api/config").get("state") == "RUNNING", "it runs")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=WITHIN_S)
            self._process = None

    def complaints(self) -> list[str]:
        """Warnings and errors of its log that have to do with MQTT, or with what we have sent; that it was slow is none."""
        lines = self._log.read_text(errors="replace").splitlines()
        grave = [line for line in lines if (" WARNING " in line or " ERROR " in line) and "Updating state for" not in line]
        return [line for line in grave if any(word in line.lower() for word in ("mqtt", "driftbox", "sensor", "template"))]

    def states(self) -> dict[str, dict[str, Any]]:
        """entity id -> {state, attributes, ...}."""
        return {state["entity_id"]: state for state in self._http.get(f"{self.url}/api/states").raise_for_status().json()}

    def do(self, domain: str, service: str, entity: str) -> None:
        self._http.post(f"{self.url}/api/services/{domain}/{service}", json={"entity_id": entity}).raise_for_status()

    def rendered(self, template: str) -> str:
        """What a template of it shows: its own way to its registries."""
        return self._http.post(f"{self.url}/api/template", json={"template": template}).raise_for_status().text

    def devices(self) -> dict[str, dict[str, Any]]:
        """Identifier of a device of ours -> name, model, maker, software, the device that it belongs to, entities (in order)."""
        template = (
            "{% set ns = namespace(all=[]) %}"
            "{% for id in states | map(attribute='entity_id') | map('device_id') | reject('none') | unique %}"
            "{% set ns.all = ns.all + [{'id': (device_attr(id, 'identifiers') | list)[0][1], 'name': device_attr(id, 'name'),"
            " 'model': device_attr(id, 'model'), 'maker': device_attr(id, 'manufacturer'), 'software': device_attr(id, 'sw_version'),"
            " 'of': device_attr(device_attr(id, 'via_device_id') or id, 'name'), 'entities': device_entities(id) | sort}] %}"
            "{% endfor %}{{ ns.all | to_json }}"
        )
        return {device.pop("id"): device for device in json.loads(self.rendered(template))}

    def _get(self, path: str) -> dict[str, Any]:
        answer = self._http.get(f"{self.url}{path}")
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        try:
            return self._http.get(f"{self.url}/auth/providers").status_code == 200
        except httpx.TransportError:
            return False

    def _token(self) -> str:
        """As a browser comes in."""
        me = f"{self.url}/"
        flow = self._post("/auth/login_flow", json={"client_id": me, "handler": ["homeassistant", None], "redirect_uri": me})
        done = self._post(f"/auth/login_flow/{flow['flow_id']}", json={"client_id": me, "username": USER, "password": PASSWORD})
        fields = {"client_id": me, "grant_type": "authorization_code", "code": done["result"]}
        return str(self._post("/auth/token", data=fields)["access_token"])

    def _post(self, path: str, **body: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._http.post(f"{self.url}{path}", **body).raise_for_status().json()
        return found


def _stored(key: str, data: Mapping[str, Any], *, version: int = 4, minor: int = 1) -> dict[str, Any]:
    return {"version": version, "minor_version": minor, "key": key, "data": data}


def _entries(broker_port: int, credentials: Mapping[str, str]) -> dict[str, Any]:
    """Its connection to the broker, as its own dialogue would have written it."""
    entry = {
        "entry_id": "01JTESTS00000000000000MQTT", "version": 1, "minor_version": 2, "domain": "mqtt", "title": "broker",
        "data": {"broker": "127.0.0.1", "port": broker_port, **credentials}, "options": {"discovery": True},
        "pref_disable_new_entities": False, "pref_disable_polling": False, "source": "user", "unique_id": None, "disabled_by": None,
        "discovery_keys": {}, "created_at": "2026-01-01T00:00:00+00:00", "modified_at": "2026-01-01T00:00:00+00:00", "subentries": [],
    }  # fmt: skip
    return _stored("core.config_entries", {"entries": [entry]}, version=1, minor=5)
