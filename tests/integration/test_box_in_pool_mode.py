"""A live box whose frames go through one queue: learning, swaps under load, models that fail or hang, and the journal's exact replay."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edge.pool.front import PoolFront
from edge.shadow import ShadowRules
from edge.store.store import ModelState
from scheduler import events as ev
from scheduler.types import Detections
from tests.support.live_box import CONFIG
from tests.support.pooled_box import PooledBox
from tests.support.served_forms import Served, throws

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]

ALWAYS = replace(CONFIG, policy="uniform(quick,50)", shadow=True, window_s=8.0)
RULES = ShadowRules(frames=12, share_frac=1.0, most_s=6.0)


class Hangs:
    """A twist that does not return until it is let go."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, found: Detections) -> Detections:
        self.entered.set()
        self.go.wait()
        return found


def box_of(tmp_path: Path, twist: Callable[[Detections], Detections], *, after: int) -> PooledBox:
    """Every model of camera a after the first one is served in a form that does `twist`. Camera b has another model: with the same
    weights it would share that form."""
    box = PooledBox(tmp_path / "data", {"a": "fake", "b": "fake-other"}, config=ALWAYS)
    box.make = lambda trained, camera: Served(trained, twist, after) if camera == "a" else trained
    box.shadow_by(RULES)
    return box


def healthy(box: PooledBox, camera: str) -> None:
    """It answers, and nothing of it has failed."""
    box.wait_frames(camera)
    assert box.watched[camera].worker.errors == 0


@pytest.mark.parametrize(("policy", "workers"), [("orloj", 1), ("orloj", 2), ("fifo", 2)])
def test_a_whole_box_learns_swaps_and_replays(
    tmp_path: Path, policy: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "driftbox")
    still = replace(ALWAYS, shadow=False)
    with PooledBox(tmp_path / "data", {"a": "fake", "b": "fake"}, policy=policy, workers=workers, config=still) as box:
        first = [box.watched[camera].worker.serving()[1] for camera in "ab"]
        assert all(isinstance(front, PoolFront) for front in first)
        box.wait_frames("a")
        box.wait_frames("b")
        done = box.wait_for(ev.SwapDone, "a")
        box.wait(lambda: box.watched["a"].worker.version() == done.version, "the new model serves")
        healthy(box, "a")
        healthy(box, "b")
        status = box.status.status()
        assert {share.job for share in status.shares} >= {"a/infer", "b/infer"}
        assert not any(share.job.startswith("pool/") for share in status.shares)
        assert all(camera.finish_frac is not None and camera.deadline_ms > 0 for camera in status.cameras)

        def lines() -> list[str]:
            said = [record.getMessage() for record in list(caplog.records)]
            return [line for line in said if "frames by their deadline" in line]

        box.wait(lambda: {"a", "b"} <= {line.split(", ")[1].split(":")[0] for line in lines()}, "both are told of")
        assert all(line.startswith("window ") for line in lines())
        assert box.replayed().exact
        # Nothing moves any more.
        total = box.watched["a"].worker.finish.total()
        assert total.answered == box.watched["a"].worker.frames
        assert total.due >= total.answered + total.dropped
        assert box.pool.pictures >= sum(box.watched[camera].worker.frames for camera in "ab")


def test_cameras_with_the_same_first_model_share_it(tmp_path: Path) -> None:
    # Nothing is learned before the second window: however slow the machine, none of them has another model yet.
    still = replace(CONFIG, window_s=600.0, first_window_s=600.0)
    with PooledBox(tmp_path / "data", {"a": "fake", "b": "fake", "c": "fake-other"}, config=still) as box:
        for camera in "abc":
            healthy(box, camera)
        behind = {camera: box.watched[camera].worker.serving()[1].behind for camera in "abc"}  # type: ignore[attr-defined]
        assert behind["a"] is behind["b"] is not behind["c"]


def test_a_sound_model_takes_over_after_its_shadow_under_load(tmp_path: Path) -> None:
    with box_of(tmp_path, lambda found: found, after=0) as box:
        done = box.wait_for(ev.SwapDone, "a")
        box.wait(lambda: bool(box.watched["a"].worker.swaps), "a frame of the new model")
        assert box.watched["a"].worker.swaps[0].version == done.version
        healthy(box, "a")
        healthy(box, "b")
        assert box.replayed().exact


def test_a_model_that_fails_in_the_shadow_is_never_seen(tmp_path: Path) -> None:
    with box_of(tmp_path, throws, after=4) as box:
        failed = box.wait_for(ev.SwapFailed, "a")
        box.wait(lambda: box.store.model(failed.version).state is ModelState.REJECTED, "the candidate is rejected")
        healthy(box, "a")
        healthy(box, "b")
        assert box.replayed().exact


def test_a_model_that_fails_after_the_takeover_is_taken_back_and_the_other_camera_notices_nothing(tmp_path: Path) -> None:
    breaks = threading.Event()

    def in_the_end(found: Detections) -> Detections:
        return throws(found) if breaks.is_set() else found

    with box_of(tmp_path, in_the_end, after=0) as box:
        box.wait_for(ev.SwapDone, "a")
        breaks.set()
        back = box.wait_for(ev.ModelRolledBack, "a")
        assert back.version == "a-000001"
        assert "the engine was built for another card" in back.reason
        box.wait(lambda: box.store.serving()["a"].id == "a-000001", "it is durable")
        box.wait_frames("a")
        healthy(box, "b")
        assert box.replayed().exact


def test_a_model_that_hangs_after_the_takeover_is_left_and_both_cameras_go_on(tmp_path: Path) -> None:
    breaks, hangs = threading.Event(), Hangs()
    box = box_of(tmp_path, lambda found: hangs(found) if breaks.is_set() else found, after=0)
    patience_s = box.pool._hangs_s
    try:
        with box:
            box.wait_for(ev.SwapDone, "a")
            breaks.set()
            box.wait(hangs.entered.is_set, "the new model hangs")
            healthy(box, "b")
            box.pool._hangs_s = 1.0 * box.slower  # not before: on a busy machine a sound one may take as long
            back = box.wait_for(ev.ModelRolledBack, "a")
            box.pool._hangs_s = patience_s
            assert (back.version, "hangs" in back.reason) == ("a-000001", True)
            box.wait_frames("a")
            healthy(box, "b")
            hangs.go.set()
            assert box.replayed().exact
    finally:
        hangs.go.set()
