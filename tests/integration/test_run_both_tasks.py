"""`driftbox run` with a camera that detects and one that classifies what moves: whole windows, on rendered and on real video.

The policy always retrains, so that every step comes whatever a busy machine makes of predictions; with profiles and a plan that may
refuse, both tasks go through `tests/integration/test_tasks_live.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.journal import read_segments
from edge.replay import replay
from scheduler import events as ev
from scheduler.codec import decode
from tests.support.running_box import RunningBox, eventually, write_classifier

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
LEARNT = (ev.LabelDone, ev.RetrainDone, ev.GateDone)
#: A window, and the next one should the first have been too short on a busy machine.
PATIENCE_S = 540.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def learnt(box: RunningBox, stream: str) -> set[type[ev.Event]]:
    """The steps of learning that the journal has of a camera."""
    segments = read_segments(box.data_dir / "events")
    events = [decode(line) for segment in segments for line in segment.lines]
    return {type(e) for e in events if isinstance(e, LEARNT) and e.stream == stream}


def test_on_rendered_video(tmp_path: Path, boxes: list[RunningBox]) -> None:
    weights = write_classifier(tmp_path / "small.safetensors")
    box = RunningBox(
        tmp_path,
        f"""
gpus: {{capacity_pct: 150}}
window: {{seconds: 180, first_seconds: 20, label_frames: 8, gate_frames: 4, sample_fps: 1.0, prep_pct: 80, prep_max_frac: 0.4}}
scheduler: {{policy: "uniform(quick,50)", min_gain: 0.0, min_quality: 0.0, drift: {{enabled: false}}}}
models:
  serving: trained
  tasks: {{classification: {{edge: "{weights}"}}}}
  retrain: [{{name: quick, epochs: 4, batch: 4, lr: 0.003}}]
cameras:
  - {{id: boxes, url: "rendered:street?seed=101&fps=5&at=0:night", fps: 2}}
  - {{id: crops, url: "rendered:street?seed=102&fps=5", fps: 2, task: classification}}
""",
    )
    boxes.append(box)
    looked_through(box)


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "weights").is_dir(), reason="needs the videos and weights of ../shared/data")
def test_on_real_video(tmp_path: Path, boxes: list[RunningBox]) -> None:
    videos = DATA / "videos"
    box = RunningBox(
        tmp_path,
        f"""
gpus: {{capacity_pct: 150}}
window: {{seconds: 240, first_seconds: 30, label_frames: 8, gate_frames: 4, sample_fps: 1.0, prep_pct: 90, prep_max_frac: 0.4}}
scheduler: {{policy: "uniform(quick,50)", min_gain: 0.0, min_quality: 0.0, drift: {{enabled: false}}}}
models:
  serving: trained
  weights_dir: {DATA / "weights"}
  edge: yolov8n@320
  golden: yolo26s@640
  retrain: [{{name: quick, epochs: 3, batch: 2, layers_frac: 0.3, lr: 0.0005}}]
cameras:
  - {{id: boxes, url: "{videos / "overhead_street_parking.mp4"}", fps: 1, height_px: 360, loop: true}}
  - {{id: crops, url: "{videos / "brt_avenue.mp4"}", fps: 2, height_px: 360, loop: true, task: classification}}
""",
    )
    boxes.append(box)
    looked_through(box)


def looked_through(box: RunningBox) -> None:
    """Both cameras go through every step of a window, the page says what each is, and the journal replays."""
    eventually(lambda: box.status(), "the status page answers")
    for camera in ("boxes", "crops"):
        eventually(lambda camera=camera: learnt(box, camera) == set(LEARNT), f"{camera} learns", PATIENCE_S)  # type: ignore[misc]
    status = eventually(lambda: (s := box.status()) and all(c["quality"] is not None for c in s["cameras"]) and s, "quality")
    cameras = {camera["id"]: camera for camera in status["cameras"]}
    assert (cameras["boxes"]["task"], cameras["boxes"]["quality_name"]) == ("detection", "F1")
    assert (cameras["crops"]["task"], cameras["crops"]["quality_name"]) == ("classification", "accuracy")
    picture = box.get("/api/v1/cameras/crops/picture.jpg")
    assert picture is not None
    assert picture.content.startswith(b"\xff\xd8\xff")
    assert {path.suffix for path in (box.data_dir / "samples" / "crops").rglob("*.*")} == {".jpg", ".json", ".regions"}
    assert {path.suffix for path in (box.data_dir / "samples" / "boxes").rglob("*.*")} == {".jpg", ".json"}
    assert box.stop() == 0
    assert "Traceback" not in box.output.read_text()
    assert replay(box.data_dir).exact
