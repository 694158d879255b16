"""The configuration in force as people see it: everything, with its meaning, and nothing secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from configs.describe import every_key
from configs.load import load_config
from configs.schema import BoxConfig
from configs.units import CLASSES
from edge.api import make_app
from edge.settings import BoxSettings, SettingsView
from edge.web.fake import FakeSource
from edge.web.services import Services
from edge.web.tls import Certificate

EXAMPLE = Path(__file__).parents[3] / "configs" / "example.yaml"


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    source = BoxSettings(load_config(EXAMPLE), tmp_path, file=EXAMPLE)
    return TestClient(make_app(FakeSource(), Services(settings=source)))


def settings_of(config: BoxConfig, folder: Path) -> dict[str, str]:
    view = BoxSettings(config, folder).settings()
    return {one.key: one.value for section in view.sections for one in section.settings}


def test_every_key_is_told_with_its_meaning(client: TestClient) -> None:
    answer = client.get("/api/v1/settings")
    assert answer.status_code == 200
    view = SettingsView.model_validate_json(answer.text)
    told = {one.key: one for section in view.sections for one in section.settings}
    missing = {key for key in every_key() if "[]" not in key and ".NAME" not in key} - set(told)
    assert {key for key in missing if not key.startswith(("cameras", "models.tasks", "models.catalog"))} == set()
    assert all(one.meaning for one in told.values())
    seconds = told["window.seconds"]
    assert (seconds.value, seconds.unit, seconds.given) == ("200.0", "s", True)
    assert told["gpus.device"].given is False
    assert view.file == str(EXAMPLE)
    assert view.disk is not None
    assert view.disk.total_mib > view.disk.free_mib > 0


def test_secrets_are_shown_as_where_they_come_from(tmp_path: Path) -> None:
    mqtt = {"enabled": True, "username": "u", "password": "pl4in-s3cret"}
    told = settings_of(BoxConfig.model_validate({"telemetry": {"mqtt": mqtt}}), tmp_path)
    assert told["telemetry.mqtt.password"] == "***"
    told = settings_of(BoxConfig.model_validate({"telemetry": {"mqtt": {**mqtt, "password": "env:MQTT_PW"}}}), tmp_path)
    assert told["telemetry.mqtt.password"] == "env:MQTT_PW"


def test_secrets_inside_lists_of_sections_are_hidden_too(tmp_path: Path) -> None:
    embedded = {"users": [{"name": "ha", "password": "pl4in-s3cret"}]}
    config = BoxConfig.model_validate({"telemetry": {"mqtt": {"broker": "embedded", "embedded": embedded}}})
    told = settings_of(config, tmp_path)
    assert told["telemetry.mqtt.embedded.users[0].name"] == "ha"
    assert "pl4in-s3cret" not in str(told)


def test_cameras_are_left_out(tmp_path: Path) -> None:
    config = BoxConfig.model_validate({"cameras": [{"id": "gate", "url": "rtsp://u:pl4in@192.0.2.1/s"}]})
    assert not [key for key in settings_of(config, tmp_path) if key.startswith("cameras")]


def test_a_disk_that_cannot_be_asked_is_left_out(tmp_path: Path) -> None:
    assert BoxSettings(BoxConfig(), tmp_path / "gone").settings().disk is None


def test_broker_and_certificate_as_they_are(tmp_path: Path) -> None:
    config = BoxConfig.model_validate({"telemetry": {"mqtt": {"enabled": True, "host": "broker.example", "port": 8883}}})
    source = BoxSettings(config, tmp_path, utc_s=lambda: 1000.0)
    assert (source.settings().mqtt, source.settings().certificate) == (None, None)
    up = [False]
    source.connected = lambda: up[0]
    source.certificate = lambda: Certificate(from_utc=0.0, until_utc=2000.0, names=frozenset({"b", "a"}), fingerprint="AB:CD")
    view = source.settings()
    assert view.mqtt is not None
    assert (view.mqtt.broker, view.mqtt.connected, view.mqtt.obeys) == ("broker.example:8883", False, False)
    assert view.certificate is not None
    assert (view.certificate.names, view.certificate.state) == (("a", "b"), "soon")
    up[0] = True
    assert source.settings().mqtt is not None
    assert source.settings().mqtt.connected is True


def test_what_a_camera_may_be_set_up_with(client: TestClient) -> None:
    choices = client.get("/api/v1/settings/choices").json()
    assert choices["classes"] == list(CLASSES)
    assert choices["tasks"][:2] == ["detection", "classification"]


def test_there_are_no_routes_without_a_source() -> None:
    assert TestClient(make_app(FakeSource())).get("/api/v1/settings").status_code == 404
