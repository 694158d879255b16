"""Swaps on a box that runs: shadow, a new model that fails on live frames, an operator who chooses while all this goes on.

The models that misbehave do so only as they serve: what the gate judges is sound, as with a broken export."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.models_exchange import import_model
from edge.shadow import Shadow, ShadowRules
from edge.store.store import ModelState, Store
from models.bundle import write_bundle
from models.detector import Detector, DetectorSpec
from models.fake import FakeDetector
from models.keys import KeyRing
from models.versions import Manifest, read_manifest, save_version
from scheduler import events as ev
from scheduler.types import Detections
from tests.support.live_box import CONFIG, WAIT_S, LiveBox
from tests.support.served_forms import Served, throws

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]

ALWAYS = replace(CONFIG, policy="uniform(quick,50)", shadow=True, window_s=8.0)
RULES = ShadowRules(frames=12, share_frac=1.0, most_s=6.0)


def no_numbers(found: Detections) -> Detections:
    return Detections(xyxy=found.xyxy + np.float32("nan"), score=found.score, class_id=found.class_id)


def floods(found: Detections) -> Detections:
    return _times(found, 40)


def _times(found: Detections, n: int) -> Detections:
    return Detections(xyxy=np.tile(found.xyxy, (n, 1)), score=np.tile(found.score, n), class_id=np.tile(found.class_id, n))


def blind(found: Detections) -> Detections:
    return Detections.empty()


def box_that_serves(tmp_path: Path, twist: Callable[[Detections], Detections], *, after: int) -> LiveBox:
    """Every model after the first one is served in a form that does `twist`."""
    box = LiveBox(tmp_path / "data", {"a": "fake"}, config=ALWAYS)
    box.runtime.parts.serve = lambda trained, camera: Served(trained, twist, after)
    box.shadow_by(RULES)
    return box


def box_that_serves_in_the_shadow(tmp_path: Path, twist: Callable[[Detections], Detections]) -> LiveBox:
    """The same, but sound until its shadow begins: wrong on every live frame, and on nothing before. Frames alone end that shadow: by
    time a busy machine, that gives it two or three, would let a blind model pass, as is right for a camera that shows nothing."""
    begun = threading.Event()
    box = LiveBox(tmp_path / "data", {"a": "fake"}, config=ALWAYS)
    box.runtime.parts.serve = lambda trained, camera: Served(trained, twist, 0, once=begun)
    box.shadow_by(replace(RULES, frames=SURELY, most_s=WAIT_S))
    worker = box.watched["a"].worker
    begins = worker.shadow

    def shadow(one: Shadow | None) -> None:
        begun.set()
        begins(one)

    worker.shadow = shadow  # type: ignore[method-assign]
    return box


WARM = 2  # predictions before a model meets a live frame
#: Live frames in which a skill of 0.4 is sure of so many objects that blindness is no chance, however the gate's few frames judged both.
SURELY = 24


@pytest.mark.parametrize(
    ("twist", "after", "part"), [(throws, 0, "its first run failed: RuntimeError"), (no_numbers, 1, "numbers that are none")]
)
def test_a_model_that_fails_in_its_first_runs_is_never_seen(
    tmp_path: Path, twist: Callable[[Detections], Detections], after: int, part: str
) -> None:
    is_never_seen(box_that_serves(tmp_path, twist, after=after), part)


@pytest.mark.parametrize(
    ("twist", "part"),
    [
        (throws, "it failed on a live frame: RuntimeError: the engine was built for another card"),
        (no_numbers, "numbers that are none"),
        (floods, f"refused after {SURELY} live frames beside a-000001: it floods"),
        (blind, f"refused after {SURELY} live frames beside a-000001: it is blind"),
    ],
)
def test_a_model_that_does_not_hold_its_own_in_the_shadow_is_never_seen(
    tmp_path: Path, twist: Callable[[Detections], Detections], part: str
) -> None:
    is_never_seen(box_that_serves_in_the_shadow(tmp_path, twist), part)


def is_never_seen(box: LiveBox, part: str) -> None:
    with box:
        failed = box.wait_for(ev.SwapFailed, "a")
        assert part in failed.text
        box.wait(lambda: box.store.model(failed.version).state is ModelState.REJECTED, "the candidate is rejected")
        box.wait_frames("a")
        assert box.watched["a"].worker.version() == box.store.serving()["a"].id == "a-000001"
        assert box.watched["a"].worker.errors == 0
        assert not box.folder.version_dir("a", failed.version).exists()
        assert box.replayed().exact
    assert any(part in note for note in box.noted("swap-failed"))


def test_a_sound_model_takes_over_after_its_shadow_and_no_frame_is_missed(tmp_path: Path) -> None:
    with box_that_serves(tmp_path, lambda found: found, after=0) as box:
        done = box.wait_for(ev.SwapDone, "a")
        box.wait(lambda: bool(box.watched["a"].worker.swaps), "a frame of the new model")
        (swap, *_) = box.watched["a"].worker.swaps
        assert swap.version == done.version
        assert box.store.model(done.version).reason == "better on labels of its window"
        assert box.store.replaced("a") == "a-000001"
        made = read_manifest(box.folder.version_dir("a", done.version))
        assert made.samples
        assert len(made.samples) == box.store.model(done.version).config["samples"]
        assert made.gpu_s is not None
        assert "f1" in made.quality
        assert box.replayed().exact


def test_a_camera_that_stalls_in_the_shadow_does_not_hang_the_swap(tmp_path: Path) -> None:
    box = box_that_serves(tmp_path, lambda found: found, after=0)
    box.shadow_by(replace(RULES, frames=1000, most_s=1.0))
    with box:
        box.wait(lambda: box.runtime.swapper.version_under_way("a") is not None, "a model is on its way")
        box.cameras["a"].next_frame = lambda **_: None  # type: ignore[method-assign,assignment]
        box.wait(lambda: bool(box.seen(ev.SwapDone, "a") or box.seen(ev.SwapFailed, "a")), "the swap ends")
        assert box.replayed().exact


def test_a_box_that_stops_does_not_wait_for_a_shadow(tmp_path: Path) -> None:
    box = box_that_serves(tmp_path, lambda found: found, after=0)
    box.shadow_by(replace(RULES, frames=10_000, most_s=10_000.0))
    with box:
        box.wait(lambda: box.runtime.swapper.version_under_way("a") is not None, "a model is on its way")
        box.stop()
        assert not [t for t in threading.enumerate() if t.name == "a/swap"]
        assert box.replayed().exact


def test_a_model_that_fails_after_the_takeover_is_taken_back_and_everybody_is_told(tmp_path: Path) -> None:
    with box_that_serves(tmp_path, throws, after=WARM + RULES.frames + 2) as box:
        back = box.wait_for(ev.ModelRolledBack, "a")
        (done, *_) = box.seen(ev.SwapDone, "a")
        assert back.version == "a-000001"
        assert done.version in back.reason
        assert "the engine was built for another card" in back.reason
        box.wait(lambda: box.store.serving()["a"].id == "a-000001", "it is durable")
        assert box.store.model(done.version).state is ModelState.REJECTED
        box.wait_frames("a")
        assert box.runtime.parts.engine.state.streams["a"].version == box.watched["a"].worker.version()
        assert box.replayed().exact
    (note, *_) = box.noted("model-put-back")
    assert f"{done.version} was taken back, a-000001 serves again" in note


def test_an_operator_who_goes_back_is_served_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        done = box.wait_for(ev.SwapDone, "a")
        box.wait(lambda: box.watched["a"].worker.version() == done.version, "the new model serves")
        replaced = box.store.replaced("a")
        assert replaced is not None

        def never(version: str) -> Detector:
            raise AssertionError(f"{version} was loaded although it is warm")

        monkeypatch.setattr(box.runtime.swapper.shelf, "detector", never)
        with Store(box.folder.db_path) as other:
            other.serve(replaced, at_utc=0.0, reason="rolled back by the operator")
        back = box.wait_for(ev.ModelRolledBack, "a")
        assert (back.version, back.reason) == (replaced, "")
        assert box.store.model(replaced).reason == "rolled back by the operator"
        assert box.replayed().exact


def test_an_operator_who_chooses_while_a_model_is_in_the_shadow_is_obeyed(tmp_path: Path) -> None:
    box = box_that_serves(tmp_path, lambda found: found, after=0)
    box.shadow_by(replace(RULES, frames=10_000, most_s=600.0))
    other_one = box.shelf.keep_candidate(
        "a", parent="a-000001", detector=FakeDetector(skill=0.9), config=CONFIG.retrain[0], window=0
    ).id
    with box:
        box.wait(lambda: box.runtime.swapper.version_under_way("a") is not None, "a model is on its way")
        coming = box.runtime.swapper.version_under_way("a")
        with Store(box.folder.db_path) as other:
            other.serve(other_one, at_utc=0.0, reason="promoted by the operator")
        box.wait(lambda: box.watched["a"].worker.version() == other_one, "the operator's choice serves")
        back = box.wait_for(ev.ModelRolledBack, "a")
        assert back.version == other_one
        assert coming is not None
        box.wait(lambda: box.store.model(coming).state is ModelState.REJECTED, "the other is given up")
        assert box.store.serving()["a"].id == other_one
        assert box.replayed().exact


def bundle_of(box: LiveBox, folder: Path, skill: float) -> Path:
    """A bundle with a model of that skill, signed by the box's own key."""
    version = folder / "there"
    version.mkdir()
    manifest = Manifest(
        id="there-000007", stream="there", parent=None, spec=DetectorSpec(arch="fake-throws", input_px=128), config=None, window=None,
        created_utc=0.0,
    )  # fmt: skip
    save_version(version, manifest, FakeDetector(skill=skill).state())
    write_bundle(version, folder / "there.driftbox", KeyRing(box.root).signer())
    return folder / "there.driftbox"


@pytest.mark.parametrize(("skill", "serves"), [(1.0, True), (0.05, False)])
def test_an_imported_model_is_judged_by_the_camera_of_a_running_box(tmp_path: Path, skill: float, serves: bool) -> None:
    # No retraining of this architecture ever ends well: what serves is the first model, of skill 0.4.
    with LiveBox(tmp_path / "data", {"a": "fake-throws"}, config=replace(CONFIG, shadow=False)) as box:
        box.wait_windows(1)
        bundle = bundle_of(box, tmp_path, skill)
        taken = import_model(box.root, bundle, camera="a")["version"]
        box.wait(lambda: bool(box.seen(ev.ModelsOffered, "a")), "the engine hears of it")
        wanted = ModelState.SERVING if serves else ModelState.REJECTED
        box.wait(lambda: box.store.model(taken).state is wanted, f"it is {wanted}")
        if serves:
            box.wait(lambda: box.watched["a"].worker.version() == taken, "people see it")
        else:
            assert "not better on this camera's labels" in box.store.model(taken).reason
        assert box.replayed().exact
