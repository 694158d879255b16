"""What Prometheus is told: documented, parseable, bounded, without secrets, and right."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from edge.api import make_app
from edge.metrics import CAMERAS_MAX, METRICS, STATES, Gathered, ProcessUse, render
from edge.status import BoxStatus, CameraView
from edge.watchdog.live import Report
from edge.watchdog.rules import Mode
from edge.web.fake import FakeSource
from edge.web.fake_health import FakeHealth
from edge.web.services import Services

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")


def gathered() -> Gathered:
    workers = (
        Report(name="gate/inference", camera="gate", mode=Mode.GIVEN_UP, silent_s=7.5, restarts=5, reason="secret reason"),
        Report(name="sampler", camera="", mode=Mode.WELL, silent_s=0.0, restarts=1, reason=""),
    )
    return Gathered(
        status=FakeSource().status(), workers=workers, degraded=("one", "two"), disk_bytes={"samples": 5, "models": 7},
        disk_free_bytes=11, backups_utc=(1.0, 2.0), outbox=3, process=ProcessUse(resident_bytes=13, cpu_s=1.5, threads=4, open_files=9),
    )  # fmt: skip


def samples(g: Gathered) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(render(g).decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def test_the_numbers_are_those_of_the_box() -> None:
    told = samples(gathered())
    assert told["driftbox_degraded", ()] == 2
    assert told["driftbox_camera_up", (("camera", "gate"),)] == 1
    assert told["driftbox_camera_up", (("camera", "dock"),)] == 0
    assert told["driftbox_camera_state", (("camera", "dock"), ("state", "stalled"))] == 1
    assert told["driftbox_camera_frames_per_second", (("camera", "gate"), ("kind", "wanted"))] == 5
    assert told["driftbox_window_quality_ratio", (("kind", "predicted"),)] == 0.6
    assert told["driftbox_share_percent", (("camera", "yard"), ("kind", "received"), ("work", "inference"))] == 12.5
    assert told["driftbox_device_usable", (("device", "1"),)] == 0
    assert told["driftbox_device_throttled", (("device", "0"),)] == 1
    assert told["driftbox_device_slowed", (("device", "0"),)] == 0, "at its power limit, as a GPU that works hard is"
    assert told["driftbox_device_utilisation_ratio", (("device", "0"),)] == 0.71
    assert told["driftbox_faults", (("code", "leak"),)] == 1
    assert told["driftbox_outbox_messages", ()] == 3
    assert told["driftbox_watchdog_given_up", (("worker", "gate/inference"),)] == 1
    assert told["driftbox_watchdog_restarts_total", (("worker", "sampler"),)] == 1
    assert told["driftbox_disk_bytes", (("what", "models"),)] == 7
    assert told["driftbox_process_cpu_seconds_total", ()] == 1.5


def test_only_a_recording_that_may_lag_has_a_lag() -> None:
    recording, camera = (CameraView(id=id, state="live", lag_s=lag_s) for id, lag_s in (("night", 0.0), ("gate", None)))
    told = samples(replace(gathered(), status=FakeSource().status().model_copy(update={"cameras": (recording, camera)})))
    lags = {labels: value for (name, labels), value in told.items() if name == "driftbox_camera_lag_seconds"}
    assert lags == {(("camera", "night"),): 0.0}, "one that keeps up is told too"


def test_what_is_not_known_is_not_told() -> None:
    empty = Gathered(status=BoxStatus(box="b", now_utc=1.0, started_utc=0.0))
    names = {name for name, _ in samples(empty)}
    assert "driftbox_outbox_messages" not in names
    assert "driftbox_backup_age_seconds" not in names
    assert "driftbox_camera_up" not in names
    assert "driftbox_ready" in names


def test_names_keep_to_the_rules_of_prometheus_and_units_are_base_units() -> None:
    names = [about.name for about in METRICS]
    assert len(names) == len(set(names))
    for about in METRICS:
        assert re.fullmatch(r"driftbox_[a-z0-9_]+", about.name)
        assert about.name.endswith("_total") == (about.kind == "counter"), about.name
        assert about.text.endswith("."), about.name
        assert not {"job", "instance"} & set(about.labels), "Prometheus gives these itself"
        assert not re.search(r"_(ms|mib|gib|minutes|hours)(_|$)", about.name), "base units: seconds, bytes"


@pytest.mark.parametrize("about", METRICS, ids=lambda about: about.name)
def test_every_metric_is_documented_with_its_labels(about: object) -> None:
    row = next((line for line in PAGE.splitlines() if line.startswith(f"| `{about.name}` |")), None)  # type: ignore[attr-defined]
    assert row is not None
    assert all(f"`{label}`" in row for label in about.labels)  # type: ignore[attr-defined]


def test_the_page_documents_nothing_else() -> None:
    assert set(re.findall(r"^\| `(driftbox_\w+)` \|", PAGE, re.MULTILINE)) == {about.name for about in METRICS}


def test_every_metric_is_told_by_a_box_that_has_everything() -> None:
    status = FakeSource().status()
    cameras = tuple(camera.model_copy(update={"finish_frac": 0.9, "lag_s": 2.5}) for camera in status.cameras)
    queried = replace(gathered(), status=status.model_copy(update={"cameras": cameras}))
    told = {name for name, _ in samples(queried)}
    assert {about.name for about in METRICS} == told


def test_no_text_of_the_box_gets_into_a_label() -> None:
    hostile = CameraView(id="gate", name='<b>"name"</b>', state="waiting", error="rtsp://me:hunter2@cam/1")
    status = FakeSource().status().model_copy(update={"cameras": (hostile,)})
    text = render(replace(gathered(), status=status)).decode()
    for secret in ("hunter2", "name&quot;", "<b>", "secret reason", "rtsp"):
        assert secret not in text


IDS = st.text(string.ascii_lowercase + string.digits + "_-", min_size=1, max_size=63)


@settings(max_examples=30, deadline=None)
@given(ids=st.lists(IDS, unique=True, max_size=30), text=st.text(max_size=40))
def test_whatever_the_cameras_are_called_it_can_be_parsed(ids: list[str], text: str) -> None:
    cameras = tuple(CameraView(id=id, name=text, state="live", quality=0.5, quality_name=text) for id in ids)
    status = FakeSource().status().model_copy(update={"cameras": cameras, "site": text})
    told = samples(Gathered(status=status))
    assert sum(name == "driftbox_camera_up" for name, _ in told) == len(ids)


def test_the_number_of_series_is_bounded() -> None:
    many = tuple(CameraView(id=f"c{n}", state="live") for n in range(5 * CAMERAS_MAX))
    status = FakeSource().status().model_copy(update={"cameras": many})
    told = samples(Gathered(status=status))
    assert sum(name == "driftbox_camera_up" for name, _ in told) == CAMERAS_MAX
    assert sum(name == "driftbox_camera_state" for name, _ in told) == CAMERAS_MAX * len(STATES)


def test_over_http() -> None:
    health = FakeHealth()
    client = TestClient(make_app(FakeSource(), Services(health=health, metrics=health)))
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"driftbox_degraded 1.0" in answer.content
    assert TestClient(make_app(FakeSource())).get("/metrics").status_code == 404
