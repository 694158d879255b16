"""A live box whose cameras learn from the window in progress, and know their scenes after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.fake import FakeDetector
from scheduler import events as ev
from scheduler.codec import decode, encode
from scheduler.scenes import Lesson, Scene, Scenes
from scheduler.types import Signature
from tests.support.live_box import CONFIG, LiveBox

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]

GLANCES = replace(
    CONFIG, window_s=10.0, first_window_s=10.0, policy="lookahead", overlap=True, prep_auto=True, drift=True, reuse=True, glance=True,
    learn_now=True, look_frames=4, label_frames=10, min_label_frames=4, gate_frames=6, least_quality=0.05,
)  # fmt: skip


def test_a_new_camera_learns_from_its_first_window_and_its_scene_is_known_after_a_restart(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=GLANCES) as box:
        box.wait_for(ev.SwapDone, "a")
        taught = box.seen(ev.LabelDone, "a")[0]
        assert taught.job == "a/label/0.1", "in the first window, of that window"
        assert taught.train > 0
        box.wait_windows(1)
        box.wait(lambda: box.store.scenes("a") is not None, "its scene is kept")
        assert box.replayed().exact
        body = box.store.scenes("a")
    assert body is not None
    kept = decode(body)
    assert isinstance(kept, Scenes)
    assert kept.present is not None
    assert kept.present.signature.view, "where its pictures have edges is a part of it"
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=GLANCES) as again:
        assert again.wait_for(ev.CameraAdded, "a").scenes == kept
        again.wait_for(ev.LookDone, "a")
        stream = again.runtime.parts.engine.state.streams["a"]
        assert [scene.number for scene in stream.scenes.known] == [scene.number for scene in kept.known], "the same scene"
        assert again.replayed().exact


def test_a_scene_that_is_back_is_served_by_the_mean_of_what_was_learned_in_it_and_since(tmp_path: Path) -> None:
    """The second box comes up in the scene of the first one's lesson, after another scene that taught a model, too."""
    averages = replace(GLANCES, average=True)
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=averages) as box:
        own = box.wait_for(ev.SwapDone, "a").version
        box.wait_windows(1)
        box.stop()
        day = box.runtime.parts.engine.state.streams["a"].scenes.present
        assert day is not None
        assert [lesson.version for lesson in day.lessons][-1] == own
        since = box.shelf.keep_candidate(
            "a", parent=own, detector=FakeDetector(skill=0.95), config=CONFIG.retrain[0], window=1
        ).id
        box.shelf.admit("a", since, 0.5)
        lesson = Lesson(version=since)
        elsewhere = Scene(
            number=day.number + 1, signature=Signature(values=tuple(value + 40.0 for value in day.signature.values)),
            version=since, lessons=(lesson,),
        )  # fmt: skip
        left = replace(day, version=own)
        box.store.keep_scenes("a", encode(Scenes(known=(elsewhere, left), made=day.number + 2, newest=lesson)))
        skills = [float(box.shelf.detector(version).state()["skill"]) for version in (*(x.version for x in day.lessons), since)]
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=averages) as again:
        swapped = again.wait_for(ev.SwapDone, "a")
        assert (swapped.asked, swapped.version) == (own, again.store.serving("a")["a"].id)
        assert again.watched["a"].worker.version() == swapped.version
        assert again.store.model(swapped.version).config["origin"]["kind"] == "average"
        assert float(again.shelf.detector(swapped.version).state()["skill"]) == pytest.approx(sum(skills) / len(skills))
        assert swapped.version in [model.name for model in again.shelf.cached("a")], "it may serve again, after a restart too"
        again.wait_frames("a")
        assert again.replayed().exact
