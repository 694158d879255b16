"""Both tasks on one box in this process: a camera that detects beside one that classifies what moves, through whole windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs.units import NOTHING
from scheduler import events as ev
from scheduler.types import RetrainConfig
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import CONFIG, LiveBox
from tests.support.moving import MovingCamera, put_classifier_in_the_zoo

pytestmark = pytest.mark.slow

SETTINGS = replace(
    CONFIG, window_s=4.0, first_window_s=2.5, retrain=(RetrainConfig(name="quick", epochs=6, batch=4, lr=0.1),)
)  # fmt: skip


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveBox:
    put_fakes_in_the_zoo(monkeypatch)
    put_classifier_in_the_zoo(monkeypatch)
    cameras = {"a": "fake", "street": "colour-classifier"}
    return LiveBox(tmp_path / "data", cameras, config=SETTINGS, classify={"street": MovingCamera("street")})


def test_both_tasks_label_profile_retrain_and_are_judged_in_one_box(box: LiveBox) -> None:
    with box:
        for stream in ("a", "street"):
            labelled = box.wait_for(ev.LabelDone, stream)
            assert labelled.train > 0
            assert labelled.holdout > 0
            assert labelled.quality is not None
            box.wait_for(ev.ProfileDone, stream)
            box.wait_for(ev.RetrainDone, stream)
            box.wait_for(ev.GateDone, stream)
            done = box.wait_for(ev.SwapDone, stream)
            box.wait(lambda stream=stream, done=done: box.watched[stream].worker.version() != f"{stream}-000001", "it serves")  # type: ignore[misc]
        gate = next(e for e in box.seen(ev.GateDone, "street") if e.candidate == box.seen(ev.SwapDone, "street")[0].version)
        assert gate.serving_quality is not None
        assert gate.candidate_quality is not None
        assert gate.candidate_quality > gate.serving_quality
        box.wait_frames("street")
        views = {view.id: view for view in box.status.status().cameras}
        picture = box.status.picture("street")
        shown = box.watched["street"].worker.shown()
        cost_s = box.watched["street"].worker.cost_s()
        added = {event.stream: event for event in box.seen(ev.CameraAdded)}
        assert box.replayed().exact
    assert (views["street"].quality_name, views["a"].quality_name) == ("accuracy", "F1")
    assert views["street"].quality is not None
    assert views["street"].quality_history
    assert picture is not None
    assert shown is not None
    assert NOTHING not in shown.detections.class_id, "what is no object is not shown"
    assert cost_s is not None
    assert added["a"].arch != added["street"].arch, "cameras of different tasks share no retraining"


def test_samples_of_a_classifying_camera_carry_regions_and_labels_are_about_them(box: LiveBox) -> None:
    with box:
        box.wait_for(ev.LabelDone, "street")
        refs = box.samples.list("street", labelled=True)
        plain = box.samples.list("a")
        pairs = [(box.samples.load_regions(ref), box.samples.load_labels(ref).detections) for ref in refs]
        sampled = [box.samples.load_regions(ref) for ref in box.samples.list("street")]
        looked = [box.samples.load_regions(ref) for ref in plain]
    assert pairs
    for regions, labels in pairs:
        assert regions is not None
        known = {tuple(box) for box in regions.tolist()}
        assert {tuple(box) for box in labels.xyxy.tolist()} <= known
    assert all(regions is not None and len(regions) for regions in sampled), "a frame without movement is no sample"
    assert set(looked) == {None}, "nobody looks for movement on a camera that detects"
    classes = np.concatenate([labels.class_id for _, labels in pairs])
    assert len(set(classes.tolist())) > 1
