"""`driftbox run` on real RTSP cameras: events come, pictures and clips hold what they say, masks hold, and a kill loses nothing told."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from edge.store.objects import ObjectQuery, ObjectStore
from edge.store.store import Store
from tests.support.running_box import RunningBox, eventually

pytestmark = [pytest.mark.slow, pytest.mark.rtsp, pytest.mark.timeout(600)]

CONFIG = """
window: {seconds: 600, first_seconds: 600}
scheduler: {policy: no-retrain, drift: {enabled: false}}
models: {serving: trained}
cameras:
  - id: street
    url: "rendered:street?seed=101&fps=5"
    zones: {left: [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]}
    objects: {start_score: 0.3, lost_s: 1.0, lines: {mid: [[0.5, 0], [0.5, 1]]}}
    recording: {pre_s: 2.0, post_s: 1.0, max_s: 10.0}
  - id: yard
    url: "rendered:yard?seed=7&fps=5"
    masks: [[[0, 0], [0.4, 0], [0.4, 1], [0, 1]]]
    objects: {start_score: 0.3, lost_s: 1.0}
    recording: {pre_s: 2.0, post_s: 1.0, max_s: 10.0}
  - id: hall
    url: "rendered:street?seed=7&fps=5"
    masks: [[[0, 0], [0.4, 0], [0.4, 1], [0, 1]]]
    objects: {start_score: 0.3, lost_s: 1.0, snapshots: false}
    recording: {with_masks: none}
"""


def events(box: RunningBox, **query: object) -> list[dict[str, Any]]:
    words = "&".join(f"{name}={value}" for name, value in query.items())
    answer = box.get(f"/api/v1/events?limit=200&{words}")
    return answer.json()["events"] if answer is not None and answer.status_code == 200 else []


def fetched(box: RunningBox, id: str, name: str) -> bytes:
    answer = box.get(f"/api/v1/events/{id}/{name}")
    assert answer is not None
    assert answer.status_code == 200, answer.text
    return answer.content


def ended_with_clip(box: RunningBox, camera: str) -> dict[str, Any] | None:
    return next((e for e in events(box, camera=camera, clip="true") if e["ended_utc"] is not None and e["has_snapshot"]), None)


def pictures(data: bytes) -> list[np.ndarray]:
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def half_written(box: RunningBox) -> list[Path]:
    """Clips that are being written, of which something can be played already: a kill leaves them so."""
    parts = (box.data_dir / "media").glob(f"*/*/.tmp-{box.process.pid}-*")
    return [part for part in parts if b"mdat" in part.read_bytes()]


def test_events_come_with_pictures_and_clips_and_a_kill_loses_nothing(tmp_path: Path, boxes: list[RunningBox]) -> None:
    box = RunningBox(tmp_path, CONFIG)
    boxes.append(box)
    event = eventually(lambda: ended_with_clip(box, "street"), "an event of the street has a clip")
    details = box.get(f"/api/v1/events/{event['id']}").json()  # type: ignore[union-attr]
    clip = details["clips"][0]
    assert (clip["codec"], clip["masked"]) == ("h264", False)
    # It begins before the object (as far as the box had been running), at a keyframe, and every picture of the camera is in it.
    assert clip["began_utc"] <= event["started_utc"] + 0.1
    images = pictures(fetched(box, event["id"], "clip.mp4"))
    seconds = clip["ended_utc"] - clip["began_utc"]
    assert len(images) >= 0.4 * 5 * seconds, "pictures of all of it; a busy machine draws fewer than five a second"
    assert images[0].shape[0] >= 180
    jpeg = cv2.imdecode(np.frombuffer(fetched(box, event["id"], "snapshot.jpg"), np.uint8), cv2.IMREAD_COLOR)
    assert jpeg.shape[:2] == images[0].shape[:2]
    assert len(fetched(box, event["id"], "thumbnail.jpg")) > 500

    yard = eventually(lambda: ended_with_clip(box, "yard"), "an event of the yard has a clip")
    masked = pictures(fetched(box, yard["id"], "clip.mp4"))
    width = masked[0].shape[1]
    assert max(int(image[:, : int(0.38 * width)].max()) for image in masked) < 60
    shown = cv2.imdecode(np.frombuffer(fetched(box, yard["id"], "thumbnail.jpg"), np.uint8), cv2.IMREAD_COLOR)
    assert shown is not None

    eventually(lambda: events(box, zone="left"), "something was in the zone")
    eventually(lambda: [e for e in events(box, camera="hall") if e["ended_utc"]], "an event of the hall ends")
    assert events(box, camera="hall", clip="true") == []
    assert events(box, camera="hall", snapshot="true") == []
    assert not (box.data_dir / "media" / "hall").exists()
    status = box.status()
    assert status is not None
    street = next(camera for camera in status["cameras"] if camera["id"] == "street")
    assert set(street["present"]) >= {"person", "car"}
    assert set(street["zones"]) == {"left"}

    opened = eventually(lambda: half_written(box) and events(box, open="true"), "something is there and recorded")
    told = {e["id"] for e in events(box)}
    os.kill(box.process.pid, signal.SIGKILL)
    box.process.wait()
    again = RunningBox(tmp_path, CONFIG)
    boxes.append(again)
    left = eventually(lambda: events(again), "the box is back")
    found = {e["id"]: e for e in left}
    for one in opened:
        row = again.get(f"/api/v1/events/{one['id']}").json()  # type: ignore[union-attr]
        assert row["ended_utc"] is not None
        assert row["ended_utc"] >= row["started_utc"]
    assert len(left) == 200 or told <= set(found)
    assert "up to the moment when the box stopped" in again.output.read_text()
    assert not list((again.data_dir / "media").glob(f"*/*/.tmp-{box.process.pid}-*"))
    assert again.stop() == 0
    with Store(again.data_dir / "driftbox.db") as store:  # a box that ends well leaves nothing open
        assert ObjectStore(store).search(ObjectQuery(open=True)).objects == ()
