"""A live box whose cameras learn from the window in progress, and know their scenes after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler import events as ev
from scheduler.codec import decode
from scheduler.scenes import Scenes
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
