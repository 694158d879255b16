"""Looks, probes and shared retrainings on a live box: real lanes, threads, files; every run ends with an exact replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.store.store import ModelState
from scheduler import events as ev
from scheduler import together
from scheduler.engine import EngineConfig
from tests.support.live_box import CONFIG, LiveBox

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]

LEARNS = replace(CONFIG, drift=True, reuse=True, look_frames=16)


def test_a_window_is_looked_at_and_what_a_swap_replaced_is_asked_again(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=LEARNS) as box:
        first = box.wait_for(ev.LookDone, "a")
        assert first.look.version == "a-000001"
        assert 0 < len(first.look.frames) <= 16
        assert first.signature.values
        admitted = box.wait_for(ev.SwapDone, "a").version
        probe = box.wait_for(ev.ProbeDone, "a")
        assert [found.version for found in probe.found] == ["a-000001"]
        assert probe.serving_quality is not None
        assert probe.found[0].quality < probe.serving_quality
        assert box.replayed().exact
        kept = {m.name: m for m in box.shelf.cached("a")}
    assert kept[admitted].signature is not None
    assert kept[admitted].signature.values, "a restart knows the windows of its models"


def test_two_cameras_share_a_retraining_and_each_keeps_a_version_of_its_own(tmp_path: Path) -> None:
    # Both must be labelled and profiled in the same window: on a busy machine two seconds do not hold it.
    config = replace(LEARNS, group=True, group_distance=9.0, window_s=12.0)
    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=config) as box:
        box.wait(lambda: any(e.candidates for e in box.seen(ev.RetrainDone)), "a shared retraining ends")
        done = next(e for e in box.seen(ev.RetrainDone) if e.candidates)
        made = dict(done.candidates)
        assert set(made) == {"a", "b"}
        box.wait(
            lambda: {e.stream for e in box.seen(ev.GateDone) if e.candidate in made.values()} == {"a", "b"}, "both judge it"
        )
        box.wait(lambda: {e.stream for e in box.seen(ev.SwapDone)} == {"a", "b"}, "both serve it")
        assert box.replayed().exact
        models = {camera: box.store.model(version) for camera, version in made.items()}
    for camera, model in models.items():
        assert model.version.stream == camera
        assert model.version.parent == f"{camera}-000001"
        # Each judges by its own few frames: one may refuse what the other took, and learn by itself.
        refused = model.state is ModelState.REJECTED and "few frames do not prove" in model.reason
        assert refused or model.state in (ModelState.SERVING, ModelState.RETIRED)
    assert len({m.version.sha256 for m in models.values()}) <= 2


def four_that_learn_together(**changes: Any) -> EngineConfig:
    return replace(
        LEARNS,
        together=True,
        overlap=True,
        prep_auto=True,
        policy="lookahead",
        gate_known=True,
        window_s=12.0,
        first_window_s=6.0,
        **changes,
    )


def made_by_the_first_lesson(box: LiveBox) -> dict[str, str]:
    """Camera -> version, once there is one."""
    box.wait(lambda: any(e.candidates for e in box.seen(ev.RetrainDone)), "a lesson of all ends")
    return dict(next(e for e in box.seen(ev.RetrainDone) if e.candidates).candidates)


def test_four_cameras_learn_together_and_each_takes_what_all_have_learned(tmp_path: Path) -> None:
    cameras = dict.fromkeys("abcd", "fake")
    with LiveBox(tmp_path / "data", cameras, config=four_that_learn_together()) as box:
        made = made_by_the_first_lesson(box)
        assert set(made) == set(cameras)
        box.wait(
            lambda: {e.stream for e in box.seen(ev.GateDone) if e.candidate in made.values()} == set(cameras), "all judge it"
        )
        box.wait(lambda: any(e.version in made.values() for e in box.seen(ev.SwapDone)), "somebody serves it")
        assert box.replayed().exact
        models = {camera: box.store.model(version) for camera, version in made.items()}
    assert {(m.version.stream, m.version.parent) for m in models.values()} == {(c, f"{c}-000001") for c in cameras}


def test_a_lesson_in_doubt_is_looked_at_again_on_new_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever would be taken is in doubt here, so each gate is asked twice, the second time on frames that it has labelled."""
    monkeypatch.setattr(together, "LITTLE", 2.0)
    monkeypatch.setattr(together, "SURE", 2.0)
    cameras = dict.fromkeys("abcd", "fake")
    with LiveBox(tmp_path / "data", cameras, config=four_that_learn_together(look_again=True)) as box:
        made = made_by_the_first_lesson(box)
        box.wait(lambda: len([e for e in box.seen(ev.GateDone) if e.candidate in made.values()]) == 8, "all judge it twice")
        box.wait(lambda: any(e.version in made.values() for e in box.seen(ev.SwapDone)), "somebody serves it")
        assert box.replayed().exact
        gates = [e for e in box.seen(ev.GateDone) if e.candidate in made.values()]
    assert {e.stream for e in gates[:4]} == {e.stream for e in gates[4:]} == set(cameras)
    assert {e.job for e in gates[:4]}.isdisjoint(e.job for e in gates[4:])
