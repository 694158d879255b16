"""The live runtime with real lanes, threads, files and database; cameras and detectors are scripted.

Every test ends with an exact replay of what the box wrote."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import StorageError
from edge.clock import Clock
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store
from models.fake import FakeDetector
from scheduler import events as ev
from streams.source import CameraState
from tests.support.live_box import CONFIG, WAIT_S, LiveBox

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]


def test_a_better_model_is_admitted_and_swapped_between_two_frames(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        done = box.wait_for(ev.SwapDone, "a")
        box.wait(lambda: box.watched["a"].worker.version() == done.version, "the new model serves")
        box.wait_frames("a")
        box.wait(lambda: any(o.streams[0].admitted for o, _, _ in list(box.runtime.outcomes)), "its window closes")
        (swap, *_) = box.watched["a"].worker.swaps
        assert swap.version == done.version
        view = box.status.status()
        assert box.replayed().exact
        serving = box.store.serving()["a"]
        first = box.store.model("a-000001")
    assert serving.id == view.cameras[0].model
    assert serving.parent is not None
    assert serving.quality is not None
    gates = {e.candidate: e for e in box.seen(ev.GateDone, "a")}
    gate = gates[done.version]
    assert gate.candidate_quality is not None
    assert gate.serving_quality is not None
    assert gate.candidate_quality > gate.serving_quality
    assert first.state is ModelState.RETIRED
    outcome = next(o for o, _, _ in box.runtime.outcomes if o.streams[0].admitted)
    assert outcome.streams[0].end_quality == pytest.approx(gate.candidate_quality)
    assert view.outcomes[0].window >= 0
    assert [v.id for v in view.models if v.serving] == [serving.id]


def test_a_second_start_goes_on_with_the_admitted_model_and_the_next_window(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        admitted = box.wait_for(ev.SwapDone, "a").version
        box.wait(lambda: box.store.serving()["a"].id == admitted, "it is durable")
        box.stop()
        newest = box.samples.newest_window()
        # More may have been admitted between the first swap and the stop.
        admitted = box.store.serving()["a"].id
    with LiveBox(tmp_path / "data", {"a": "fake"}) as again:
        box_started = again.wait_for(ev.BoxStarted)
        assert again.watched["a"].worker.version() == admitted
        assert box_started.window == newest + 1
        again.wait_for(ev.LabelDone, "a")  # what the last run sampled is labelled at once
        assert again.replayed().exact


@pytest.mark.parametrize(
    ("arch", "code"), [("fake-throws", "exception"), ("fake-nan", "nan"), ("fake-memory", "out_of_memory")]
)
def test_a_training_that_fails_costs_its_camera_nothing_and_the_others_less(tmp_path: Path, arch: str, code: str) -> None:
    # A fixed configuration is always retrained, so the training itself fails and not the profiling before it.
    config = replace(CONFIG, policy="uniform(quick,50)")
    with LiveBox(tmp_path / "data", {"a": arch, "b": "fake"}, config=config) as box:
        failed = box.wait_for(ev.JobFailed, "a")
        box.wait_for(ev.SwapDone, "b")
        box.wait_frames("a")
        box.wait_frames("b")
        box.wait_windows(2)
        assert box.watched["a"].worker.version() == "a-000001"
        assert box.watched["a"].worker.errors == 0
        assert box.replayed().exact
        assert [m.version.id for m in box.store.models("a")] == ["a-000001"]
        assert box.store.serving()["b"].id != "b-000001"
    assert failed.code == code
    assert box.noted("retraining-failed")
    assert not [n for n in box.noted("retraining-failed") if n.startswith("b")]
    assert not box.backend.report().keys() - {"a/infer", "b/infer"}, "no lane is left behind"


def test_a_profiling_that_fails_is_said_and_the_window_goes_on(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake-throws", "b": "fake"}) as box:
        box.wait(lambda: bool(box.noted("profile-failed")), "the failure is noted")
        box.wait_for(ev.SwapDone, "b")
        assert box.watched["a"].worker.version() == "a-000001"
        assert box.replayed().exact
    assert "a made-up fault" in box.noted("profile-failed")[0]


class BrokenGolden(FakeDetector):
    def predict(self, images, **options):  # type: ignore[no-untyped-def]
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 GB")

    def clone(self) -> BrokenGolden:
        return BrokenGolden()


def test_a_golden_model_that_runs_out_of_memory_stops_learning_and_nothing_else(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, golden=BrokenGolden()) as box:
        failed = box.wait_for(ev.JobFailed, "a")
        box.wait_frames("a")
        box.wait_windows(2)
        assert box.replayed().exact
    assert failed.code == "out_of_memory"
    assert box.noted("label-failed")


def test_a_candidate_that_is_damaged_before_the_swap_is_not_served(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:

        def damage(thing: object) -> None:
            """Told of the gate's answer before the swap it leads to is carried out."""
            if isinstance(thing, ev.GateDone):
                weights = box.folder.version_dir("a", thing.candidate) / "model.safetensors"
                weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")

        box.runtime.parts.listeners.append(damage)
        failed = box.wait_for(ev.SwapFailed, "a")
        box.wait(lambda: box.store.model(failed.version).state is ModelState.REJECTED, "the candidate is rejected")
        box.wait_frames("a")
        assert box.watched["a"].worker.version() == "a-000001"
        assert box.store.serving()["a"].id == "a-000001"
        assert box.replayed().exact
    assert "damaged" in failed.text
    assert box.noted("swap-failed")


class LateShelf(Shelf):
    """Admits its first candidate only when the window it belongs to has closed: just before, or just after it was recorded."""

    recorded = False

    def __init__(self, folder: DataFolder, store: Store, clock: Clock) -> None:
        super().__init__(folder, store, clock)
        self.swapping, self.closed = threading.Event(), threading.Event()

    def admit(self, stream: str, version: str, quality: float | None, reason: str = "") -> None:
        first = not self.swapping.is_set()
        if first and not self.recorded:
            self.swapping.set()
            self.closed.wait(WAIT_S)
        super().admit(stream, version, quality, reason)
        if first and self.recorded:
            self.swapping.set()
            self.closed.wait(WAIT_S)


class LateShelfAfter(LateShelf):
    recorded = True


@pytest.mark.parametrize("shelf", [LateShelf, LateShelfAfter])
def test_a_window_that_ends_in_the_middle_of_a_swap_leaves_one_truth(tmp_path: Path, shelf: type[LateShelf]) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, shelf=shelf) as box:
        late = box.shelf
        assert isinstance(late, LateShelf)
        box.wait(late.swapping.is_set, "a swap is under way")
        closed = len(box.runtime.outcomes)
        box.wait_windows(closed + 1)
        late.closed.set()

        def one_truth() -> bool:
            serving = box.store.serving()["a"].id
            return serving == box.watched["a"].worker.version() == box.runtime.parts.engine.state.streams["a"].version

        box.wait(one_truth, "database, worker and engine agree")
        box.wait_frames("a")
        box.wait_windows(closed + 2)
        box.wait(one_truth, "and go on agreeing")
        assert box.replayed().exact
        assert box.shelf.detector(box.store.serving()["a"].id) is not None


class Disk:
    """`os.write`, until somebody fills it."""

    def __init__(self) -> None:
        self.full = False

    def __call__(self, fd: int, data: bytes) -> int:
        if self.full:
            if len(data) > 20:
                return os.write(fd, data[:10])  # half a line, then nothing
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)


def test_a_journal_without_room_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    disk = Disk()
    with LiveBox(tmp_path / "data", {"a": "fake"}, journal_write=disk) as box:
        box.wait_windows(1)
        disk.full = True
        box.wait(lambda: bool(box.noted("journal")), "the full disk is said")
        box.wait_frames("a")
        windows = len(box.runtime.outcomes)
        box.wait_windows(windows + 1)
        assert len(box.noted("journal")) == 1, "said once, although it is tried with every tick"
        disk.full = False
        box.wait(lambda: not box.runtime._journal_problem, "the journal goes on")
        box.wait_windows(windows + 2)
        result = box.replayed()
    assert result.exact
    assert result.segments == 2


def test_samples_without_room_are_said_and_live_inference_goes_on(tmp_path: Path) -> None:
    disk = Disk()
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        box.samples._write = disk
        disk.full = True
        box.wait(lambda: bool(box.noted("sampling")), "the full disk is said")
        box.wait_frames("a", 10)
        assert len(box.noted("sampling")) == 1
        disk.full = False
        box.wait(lambda: not box.runtime.parts.sampler.problem, "sampling goes on")
        box.wait_for(ev.LabelDone, "a")
        assert box.replayed().exact
        assert not list((tmp_path / "data" / "samples").rglob(".tmp-*"))


def test_little_room_keeps_the_old_model(tmp_path: Path) -> None:
    from configs.files import full

    def no_room() -> None:
        raise full("data (10 MiB left, 512 MiB wanted)")

    with LiveBox(tmp_path / "data", {"a": "fake"}, config=replace(CONFIG, policy="uniform(quick,50)")) as box:
        box.runtime.parts.require_room = no_room
        failed = box.wait_for(ev.JobFailed, "a")
        box.wait_frames("a")
        assert box.replayed().exact
        assert box.store.serving()["a"].id == "a-000001"
    assert "512 MiB wanted" in failed.text


def test_a_database_without_room_costs_records_and_no_frame(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        box.wait_windows(1)
        db = box.store._db
        with box.store._lock:
            db.execute("PRAGMA max_page_count=1")  # never less than there are: full from now on
        with pytest.raises(StorageError) as caught:
            for _ in range(1000):
                box.store.add_note(0.0, "filler", "x" * 500)
        assert caught.value.code == "full"
        closed = len(box.runtime.outcomes)
        box.wait_windows(closed + 2)
        box.wait_frames("a")
        worker = box.watched["a"].worker
        box.wait(lambda: worker.version() == box.store.serving()["a"].id, "what serves is what is recorded")
        with box.store._lock:
            db.execute("PRAGMA max_page_count=1000000")
        newest = box.runtime.outcomes[-1][0].window
        box.wait(lambda: box.store.windows()[-1].outcome.window > newest, "windows are recorded again")
        assert box.replayed().exact


def test_a_golden_model_that_is_too_slow_labels_less_and_says_so(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=replace(CONFIG, golden_gpu_s=0.02, min_label_frames=4)) as box:
        box.wait(lambda: bool(box.noted("golden-slow")), "it is said")
        first = box.wait_for(ev.LabelDone, "a")
        box.wait_windows(3)
        assert box.replayed().exact
    assert 4 <= first.train + first.holdout < CONFIG.label_frames
    assert "instead of 20 labels" in box.noted("golden-slow")[0]


def test_a_camera_that_changes_its_resolution_goes_on_learning(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        box.wait_frames("a", 2)
        box.cameras["a"].rows = 48
        box.wait_frames("a", 2)
        box.cameras["a"].rows = 96
        box.wait_for(ev.SwapDone, "a")
        box.wait_frames("a")
        assert box.watched["a"].worker.errors == 0
        assert not box.seen(ev.JobFailed)
        assert box.replayed().exact
        shapes = {box.samples.load_image(ref).shape for ref in box.samples.list("a")}
    assert shapes == {(48, 128, 3), (96, 128, 3)}


def test_a_stalled_camera_gives_its_share_to_the_others_and_gets_it_back(tmp_path: Path) -> None:
    config = replace(CONFIG, capacity_pct=20, prep_pct=10, quantum_pct=1, policy="no-retrain")
    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=config, cost_s=0.03) as box:
        shares = lambda: dict(box.runtime.shares_pct)  # noqa: E731
        box.wait(lambda: {"a/infer", "b/infer"} <= shares().keys() and box.runtime.plan is not None, "both have a share")
        before = shares()["b/infer"]
        box.cameras["a"].state = CameraState.STALLED
        health = box.wait_for(ev.CameraHealth, "a")
        box.wait(lambda: "a/infer" not in shares(), "the stalled camera has no share")
        box.wait(lambda: shares()["b/infer"] > before, "the other has more")
        box.wait_frames("b")
        assert not health.live
        box.cameras["a"].state = CameraState.LIVE
        box.wait_for(ev.CameraHealth, "a", count=2)
        box.wait(lambda: "a/infer" in shares(), "it has a share again")
        box.wait_frames("a")
        assert box.replayed().exact


def test_a_box_without_cameras_waits_for_some(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {}) as box:
        box.wait_windows(2)
        box.wait(lambda: box.status.status().ready, "it says that it is ready")
        assert box.replayed().exact


def test_cameras_that_are_away_at_the_start_are_learned_from_when_they_come(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}) as box:
        for camera in box.cameras.values():
            camera.state = CameraState.STALLED
        box.wait_for(ev.CameraHealth, "b")
        box.wait_windows(1)
        assert box.status.status().ready, "nothing to wait for"
        box.cameras["b"].state = CameraState.LIVE
        box.wait_for(ev.SwapDone, "b")
        box.wait_frames("b")
        assert not box.seen(ev.SwapDone, "a")
        assert box.replayed().exact


def test_a_wall_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        for offset_s in (-86_400.0, 3.15e7, 0.0):
            box.clock.offset_s = offset_s
            closed = len(box.runtime.outcomes)
            box.wait_windows(closed + 1)
            box.wait_frames("a")
            assert box.status.status().now_utc > 0
        box.wait_for(ev.SwapDone, "a")
        assert box.replayed().exact
        times = [e.at_s for e in box.journalled()]
        windows = [w.outcome.window for w in box.store.windows()]
    assert times == sorted(times)
    assert windows == list(range(windows[0], windows[0] + len(windows)))
    for outcome, _, _ in box.runtime.outcomes:
        assert outcome.closed_s > outcome.opened_s


class StuckGolden(FakeDetector):
    """In the middle of a long iteration when the box is stopped; it ends half a second later."""

    def __init__(self) -> None:
        super().__init__(skill=1.0)
        self.entered, self.go_on = threading.Event(), threading.Event()

    def predict(self, images, **options):  # type: ignore[no-untyped-def]
        self.entered.set()
        self.go_on.wait(WAIT_S)
        return super().predict(images)

    def clone(self) -> StuckGolden:
        return self


def test_stopping_waits_for_the_iteration_in_work_and_ends_every_thread(tmp_path: Path) -> None:
    golden = StuckGolden()

    def release(thing: object) -> None:
        if isinstance(thing, ev.StopRequested):
            threading.Timer(0.5, golden.go_on.set).start()

    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, golden=golden) as box:
        box.runtime.parts.listeners.append(release)
        box.wait(golden.entered.is_set, "a job is in the middle of an iteration")
        result = box.replayed()
        left = [t.name for t in set(threading.enumerate()) - box.threads_before]
    assert result.exact
    assert left == []
    assert isinstance(box.journalled()[-1], ev.StopRequested)
    assert not box.seen(ev.JobFailed), "told to stop is not failing"


def test_stopping_at_once_is_clean(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        result = box.replayed()
    assert result.exact


def test_a_rollback_by_another_process_is_followed(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        box.wait_for(ev.SwapDone, "a")
        for count in (1, 2):  # twice to the same version: the second must not be taken for the first
            box.wait(lambda: box.watched["a"].worker.version() != "a-000001", "a newer model serves")
            with Store(box.folder.db_path) as other:
                other.serve("a-000001", at_utc=0.0, reason="rolled back by the operator")
            rolled = box.wait_for(ev.ModelRolledBack, "a", count=count)
            assert rolled.version == "a-000001"
            box.wait(lambda: box.watched["a"].worker.version() == "a-000001", "the old model serves")
        box.wait_frames("a")
        assert box.replayed().exact


def test_a_rollback_to_damaged_weights_is_refused_and_the_box_goes_on(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        swapped = box.wait_for(ev.SwapDone, "a")
        box.wait(lambda: box.watched["a"].worker.version() == swapped.version, "the new model serves")
        box.watched["a"].worker._previous = None  # it is out of memory by now, so that its files are read
        (box.folder.version_dir("a", "a-000001") / "model.safetensors").write_bytes(b"rubbish")
        with Store(box.folder.db_path) as other:
            other.serve("a-000001", at_utc=0.0, reason="rolled back by the operator")
        box.wait(lambda: bool(box.noted("rollback-failed")), "it is said")
        box.wait_frames("a")
        assert box.watched["a"].worker.version() != "a-000001"
        box.wait(lambda: box.store.serving()["a"].id == box.watched["a"].worker.version(), "the database says what serves")
        assert box.replayed().exact
    assert len(box.noted("rollback-failed")) == 1
    assert "a-000001 cannot serve" in box.noted("rollback-failed")[0]
    assert not box.seen(ev.ModelRolledBack)


def test_a_serving_row_that_vanishes_does_not_stop_the_looking(tmp_path: Path) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, config=replace(CONFIG, policy="no-retrain")) as box:
        box.wait_frames("a", 1)
        # The box has nothing to compare with, and must keep its cameras and its windows.
        with Store(box.folder.db_path) as other:
            other._db.execute("DELETE FROM serving")
        box.wait(lambda: "a" in box.runtime._complaints, "the trouble is noticed")
        closed = len(box.runtime.outcomes)
        box.wait_windows(closed + 1)
        box.wait_frames("a")
        with Store(box.folder.db_path) as other:
            now_serving = (box.watched["a"].worker.version(),)
            other._db.execute("INSERT INTO serving (stream, version, since_utc) VALUES ('a', ?, 0)", now_serving)
        box.wait(lambda: "a" not in box.runtime._complaints, "all is well again")
        assert box.replayed().exact
