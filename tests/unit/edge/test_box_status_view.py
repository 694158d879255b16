"""What a running box shows of itself: read from other threads, nothing secret, whatever the cameras do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from configs.errors import StreamErrorCode
from edge.gpu.base import DeviceFacts, Fault
from edge.inference import Shown
from edge.live_pictures import draw_jpeg
from edge.queries.base import Tools
from edge.queries.live import CameraQueries, specs_of
from edge.runtime import Job
from edge.store.store import QualityPoint
from models.tasks.classification import CLASSIFICATION
from scheduler import events as ev
from scheduler.commands import Note, ReportPlan
from scheduler.salus.types import MemoryNeed
from scheduler.types import Detections, Plan, StreamOutcome, StreamPlan, WindowOutcome
from streams.source import CameraState, CameraStatus
from tests.support.fakes import put_fakes_in_the_zoo, scripted_frame
from tests.support.live_box import LiveBox
from tests.support.query_scenes import COUNT, LINES, entries_of


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveBox]:
    """A box whose parts are there and whose loop does not run: the test does what the loop would do."""
    put_fakes_in_the_zoo(monkeypatch)
    box = LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"})
    box.runtime.watched = dict(box.watched)
    for id, watched in box.watched.items():
        box.runtime.parts.engine.handle(ev.CameraAdded(at_s=0.0, stream=id, knobs=watched.knobs, version=f"{id}-000001"))
    yield box
    box.store.close()
    box.folder.close()


def analysed(box: LiveBox, camera: str) -> None:
    box.backend.set_shares({f"{camera}/infer": 50.0})
    box.watched[camera].worker.step()


def test_a_box_that_has_just_started(box: LiveBox) -> None:
    status = box.status.status()
    assert [c.id for c in status.cameras] == ["a", "b"]
    assert (status.box, status.site, status.ready, status.plan, status.outcomes) == ("box", "site", False, None, ())
    assert status.cameras[0].model == "a-000001"
    assert status.cameras[0].quality is None
    assert box.status.picture("a") is None
    assert box.status.picture("nobody") is None
    assert {m.id for m in status.models} == {"a-000001", "b-000001"}


def test_a_camera_with_frames_quality_and_a_job(box: LiveBox) -> None:
    analysed(box, "a")
    box.store.add_quality(QualityPoint(stream="a", at_utc=1.7e9, value=0.42, kind="f1", version="a-000001"))
    lane = box.backend.open_lane("a/train/3")
    box.runtime.jobs["a/train/3"] = Job(stream="a", kind="retraining", lane=lane, thread=box._thread, done_frac=0.25)
    view = box.status.status().cameras[0]
    assert (view.objects, view.frames_analysed, view.activity, view.activity_frac) == (6, 1, "retraining", 0.25)
    assert [(p.f1, p.version) for p in view.quality_history] == [(0.42, "a-000001")]
    picture = box.status.picture("a")
    assert picture is not None
    image = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR)
    assert image.shape == (96, 128, 3)
    kinds = {share.job: (share.camera, share.kind) for share in box.status.status().shares}
    assert kinds["a/infer"] == ("a", "inference")
    assert kinds["a/train/3"] == ("a", "retraining")


def test_a_recording_says_how_much_of_it_waits(box: LiveBox, monkeypatch: pytest.MonkeyPatch) -> None:
    status = box.cameras["a"].status()
    for id in "ab":
        monkeypatch.setattr(box.cameras[id], "status", lambda: replace(status, lag_s=7.5))
    box.cameras["a"].may_lag = True
    assert [camera.lag_s for camera in box.status.status().cameras] == [7.5, None]


def test_a_camera_says_its_task_and_what_its_quality_is(box: LiveBox) -> None:
    box.watched["b"].task = CLASSIFICATION
    views = {view.id: view for view in box.status.status().cameras}
    assert (views["a"].task, views["a"].quality_name) == ("detection", "F1")
    assert (views["b"].task, views["b"].quality_name) == ("classification", "accuracy")


def test_a_camera_says_what_its_queries_answered(box: LiveBox) -> None:
    specs, broken = specs_of(entries_of(COUNT, LINES), task="detection")
    told = threading.Event()
    queries = CameraQueries(
        specs, Tools(camera_id="a"), clock=box.runtime.parts.clock, broken={"odd": "no such package", **broken},
        on_outcome=lambda outcome: told.set() if outcome.query == "lines" else None,
    )  # fmt: skip
    box.watched["a"].queries = queries
    box.watched["a"].worker.on_shown = queries.on_shown
    before = {q.name: q.state for q in box.status.status().cameras[0].queries}
    assert before == {"count": "waiting", "lines": "waiting", "odd": "unusable"}
    analysed(box, "a")
    assert told.wait(60.0)
    queries.stop()
    camera = box.status.status().cameras[0]
    found = {q.name: q for q in camera.queries}
    [detect] = [node for node in found["count"].nodes if node.id == "detect"]
    assert found["count"].results["count"]["total"] + detect.boxes_left_out == camera.objects  # the model's slips lie outside
    assert (found["count"].frames, found["count"].failed_frames, camera.frames_skipped) == (1, 0, 0)
    assert found["lines"].knobs["track.association"] == "bytetrack"
    assert [node.transform for node in found["lines"].nodes] == ["decode", "detect", "track", "lines"]
    assert found["odd"].reason == "no such package"
    assert box.status.status().model_dump_json()


def test_a_camera_in_trouble_says_why(box: LiveBox) -> None:
    trouble = CameraStatus(
        state=CameraState.WAITING, since_s=0.0, code=StreamErrorCode.AUTH, error="the camera refused the password", reconnects=3
    )
    box.cameras["a"].status = lambda: trouble  # type: ignore[method-assign]
    box.watched["b"].worker.last_error = "RuntimeError: the net broke"
    a, b = box.status.status().cameras
    assert (a.state, a.code, a.error, a.reconnects) == ("waiting", "auth", "the camera refused the password", 3)
    assert b.error == "RuntimeError: the net broke"


def test_plan_outcomes_and_notes_newest_first(box: LiveBox) -> None:
    entry = StreamPlan(id="a", knobs="every", infer_pct=30, retrain="quick", train_pct=60, expected_quality=0.7)
    plan = Plan(policy="thief", streams=(entry,), spare_pct=10, expected_quality=0.7)
    box.runtime.plan = (ReportPlan(window=2, plan=plan, reasons=("a: why", "b: why not")), 1.7e9)
    for window in (1, 2):
        stream = StreamOutcome(
            id="a",
            start_quality=0.4,
            end_quality=0.6,
            predicted_quality=0.7,
            realised_quality=0.5,
            retrained="quick",
            admitted=True,
        )
        outcome = WindowOutcome(
            window=window, opened_s=0, closed_s=9, streams=(stream,), predicted_quality=0.7, realised_quality=0.5
        )
        box.runtime.outcomes.append((outcome, 1.7e9, 1.7e9 + 9))
        box.runtime.notes.append((1.7e9 + window, Note(stream="a" if window == 1 else "", code="x", text=f"note {window}")))
    status = box.status.status()
    assert status.plan is not None
    assert (status.plan.policy, status.plan.window, status.plan.reason) == ("thief", 2, "a: why; b: why not")
    assert status.plan.streams[0].train_pct == 60
    assert [o.window for o in status.outcomes] == [2, 1]
    assert status.outcomes[0].streams[0].admitted
    assert [(n.text, n.camera) for n in status.notes] == [("note 2", None), ("note 1", "a")]


def test_the_wall_clock_does_not_reach_durations(box: LiveBox) -> None:
    before = box.status.status()
    box.clock.offset_s = -1e6
    after = box.status.status()
    assert after.now_utc < before.now_utc
    assert after.window is not None
    assert after.window.elapsed_s >= 0
    assert all(camera.since_s >= 0 for camera in after.cameras)


def test_the_page_can_serialise_it(box: LiveBox) -> None:
    text = box.status.status().model_dump_json()
    assert type(box.status.status()).model_validate_json(text).box == "box"


@pytest.mark.parametrize("count", [0, 1, 200])
def test_boxes_are_drawn_wherever_they_are(count: int) -> None:
    rng = np.random.default_rng(1)
    found = Detections(
        xyxy=rng.uniform(-500, 900, (count, 4)).astype(np.float32),
        score=np.ones(count, np.float32),
        class_id=rng.integers(0, 7, count),
    )
    frame = scripted_frame("a", 1)
    picture = draw_jpeg(Shown(frame=frame, detections=found, version="v", cost_s=0.0, lag_s=0.0))
    assert picture is not None
    assert picture[:2] == b"\xff\xd8"
    assert np.array_equal(frame.image, scripted_frame("a", 1).image), "the frame itself stays as it was"


def test_devices_memory_and_faults_are_shown(box: LiveBox) -> None:
    hot = DeviceFacts(
        index=1,
        name="NVIDIA H200",
        memory_total_mib=141_000,
        memory_used_mib=2_000,
        temperature_c=90,
        throttled=("power limit",),
    )
    box.status._devices = lambda: (hot,)
    box.backend.open_lane("a/train/3", need=MemoryNeed(persistent_mib=40, ephemeral_mib=200))
    now_s = box.runtime.parts.clock.monotonic_s()
    fault = Fault(
        at_s=now_s - 60, job="b/train/1", code="leak", text="rtsp://u:s3cret@h leaks", remedy="report it", removed=True
    )
    box.runtime.parts.backend.faults = lambda: (fault,)  # type: ignore[method-assign]
    status = box.status.status()
    assert status.backend == "lanes"
    device = status.devices[0]
    assert (device.index, device.name, device.temperature_c, device.throttled) == (1, "NVIDIA H200", 90, ("power limit",))
    assert (device.utilisation_pct, device.problem) == (None, "")
    memory = {view.job: view for view in status.memory}["a/train/3"]
    assert (memory.persistent_mib, memory.ephemeral_mib, memory.measured) == (40, 200, False)
    assert memory.lane is not None
    assert memory.lane_mib >= 200
    told = status.faults[0]
    assert (told.job, told.code, told.removed, told.remedy) == ("b/train/1", "leak", True, "report it")
    assert told.at_utc == pytest.approx(status.now_utc - 60, abs=5)
    assert "s3cret" not in told.text
    assert type(status).model_validate_json(status.model_dump_json()) == status


def test_without_a_driver_there_are_no_devices(box: LiveBox) -> None:
    assert box.status.status().devices == ()
