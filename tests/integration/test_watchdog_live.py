"""The watchdog on a live box: real threads die, hang and fail; the camera beside goes on. No durations are judged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.watchdog import charges
from edge.watchdog.charges import watch_over
from edge.watchdog.live import Watchdog
from edge.watchdog.rules import Mode, Rules
from edge.watchdog.systemd import ServiceManager
from scheduler import events as ev
from streams import camera as camera_module
from streams.camera import open_camera
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import LiveBox
from tests.support.scripted_video import write_scripted_video

pytestmark = pytest.mark.slow

QUICK = Rules(silent_s=60, faults=4, restarts=2, pause_s=0.05, pause_max_s=0.1, grace_s=0.2)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    monkeypatch.setattr("edge.inference.ERROR_REST_S", 0.02)
    for name in ("CAMERA", "INFERENCE", "BESIDE"):
        monkeypatch.setattr(charges, name, QUICK)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[LiveBox]:
    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}) as running:
        yield running


def watched(box: LiveBox) -> Watchdog:
    """A watchdog with hurried looks; it ends with its box."""
    found = watch_over(box.runtime, manager=ServiceManager({}))
    found._look_s = 0.05
    found.start()
    return found


def modes(watchdog: Watchdog) -> dict[str, Mode]:
    return {report.name: report.mode for report in watchdog.reports()}


def restarts(watchdog: Watchdog, name: str) -> int:
    return sum(report.restarts for report in watchdog.reports() if report.name == name)


def break_once(worker: Any) -> None:
    """The worker's next step throws where nobody catches it; those after that are as before."""
    real = worker.step

    def step() -> float:
        worker.step = real
        raise RuntimeError("rtsp://me:secret@cam/1 made up")

    worker.step = step


def test_a_dead_inference_thread_is_replaced_and_the_other_camera_does_not_notice(box: LiveBox) -> None:
    watchdog = watched(box)
    box.wait_frames("a")
    threads = {id: box.watched[id].worker._thread for id in "ab"}
    break_once(box.watched["a"].worker)
    box.wait(lambda: restarts(watchdog, "a/inference") == 1, "the dead thread is replaced")
    box.wait_frames("a", 10)
    assert not threads["a"].is_alive()
    assert box.watched["b"].worker._thread is threads["b"]
    assert box.watched["b"].worker.errors == 0
    box.wait(lambda: bool(box.noted("watchdog")), "it is told")
    assert "its thread has ended" in box.noted("watchdog")[0]
    assert "secret" not in str(box.noted("watchdog"))
    box.wait(lambda: modes(watchdog)["a/inference"] is Mode.WELL, "it is well again")
    assert watchdog.degraded() == ()
    assert box.replayed().exact


def test_a_thread_that_hangs_in_a_prediction_is_left_behind(box: LiveBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charges, "INFERENCE", Rules(silent_s=3.0 * box.slower, grace_s=1.0))
    watchdog = watched(box)
    box.wait_frames("a")
    worker, held = box.watched["a"].worker, threading.Event()
    before = worker._thread
    real = worker._predict
    hangs = threading.Event()

    def hang(model: Any, picture: Any) -> Any:
        hangs.set()
        held.wait(300)
        return real(model, picture)

    worker._predict = hang  # type: ignore[method-assign]
    box.wait(hangs.is_set, "it hangs")
    worker._predict = real  # type: ignore[method-assign]
    box.wait(lambda: restarts(watchdog, "a/inference") >= 1, "another thread takes over")
    box.wait_frames("a", 10)
    assert before.is_alive(), "nobody can end it"
    held.set()
    box.wait(lambda: not before.is_alive(), "it ends when it comes back")
    box.wait_frames("a", 10)
    assert box.watched["b"].worker.errors == 0
    assert box.replayed().exact


def test_a_poison_camera_is_quarantined_alone_and_can_be_lifted(box: LiveBox) -> None:
    watchdog = watched(box)
    box.wait_frames("a")
    worker = box.watched["a"].worker
    real = worker._predict

    def poison(*_: object) -> Any:
        raise ValueError("this camera's pictures break the model")

    worker._predict = poison  # type: ignore[method-assign]
    box.wait(lambda: bool(box.watched["a"].quarantined), "it is quarantined")
    reason = box.watched["a"].quarantined
    assert "this camera's pictures break the model" in reason
    assert "2 restarts" in reason
    box.wait(lambda: any(not e.live for e in box.seen(ev.CameraHealth, "a")), "the engine gives its share to others")
    box.wait_frames("b", 10)
    box.wait(lambda: any("camera a is in quarantine" in text for text in watchdog.degraded()), "the box says it is degraded")
    assert any("left alone" in text for text in box.noted("quarantined"))
    frames = worker.frames
    # The other camera: same thread, no failure, never not live.
    assert box.watched["b"].worker.errors == 0
    assert restarts(watchdog, "b/inference") == 0
    assert all(e.live for e in box.seen(ev.CameraHealth, "b"))

    worker._predict = real  # type: ignore[method-assign]
    assert watchdog.lift("a")
    box.runtime.lift("a")
    box.wait(lambda: not box.watched["a"].quarantined, "it is tried again")
    box.wait(lambda: worker.frames > frames + 5, "frames are analysed again")
    box.wait(lambda: watchdog.degraded() == (), "all is well")
    assert box.replayed().exact


def test_a_dead_sampler_is_replaced(box: LiveBox) -> None:
    watchdog = watched(box)
    sampler = box.runtime.parts.sampler
    real, before = sampler.sample_once, sampler._thread

    def broken() -> int:
        sampler.sample_once = real  # type: ignore[method-assign]
        raise RuntimeError("made up")

    sampler.sample_once = broken  # type: ignore[method-assign]
    box.wait(lambda: restarts(watchdog, "sampler") == 1, "it is replaced")
    assert sampler._thread is not before
    window = sampler.window
    box.wait(lambda: sampler.window > window or sampler._seqs.get("a", -1) >= 0, "it samples again")


def test_a_camera_that_comes_or_goes_is_followed(box: LiveBox) -> None:
    watchdog = watched(box)
    box.wait(lambda: {"a/inference", "b/inference", "sampler"} <= modes(watchdog).keys(), "all are looked after")
    box.runtime.watched.pop("b")
    box.wait(lambda: "b/inference" not in modes(watchdog), "who left is forgotten")


# --- a real camera ----------------------------------------------------------------------------------------------------


@pytest.fixture
def real_camera(tmp_path: Path) -> Iterator[Any]:
    camera = open_camera("file", str(write_scripted_video(tmp_path / "a.mp4", frames=20)), loop=True)
    camera.want(fps=10)
    camera.start()
    yield camera
    camera.stop()


def frame_after(camera: Any, seq: int) -> Any:
    frame = None
    for _ in range(600):
        frame = camera.next_frame(after_seq=seq, timeout_s=0.5)
        if frame is not None:
            return frame
    pytest.fail("no frame came")


def test_a_decoder_that_died_is_seen_and_a_restart_brings_frames(real_camera: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = frame_after(real_camera, -1)

    def dies(self: Any, success: bool) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(camera_module.PyavCamera, "_note_decoded", dies)
        deadline = threading.Event()
        while all(thread.alive for thread in real_camera.threads()) and not deadline.wait(0.05):
            real_camera.next_frame(after_seq=first.seq, timeout_s=0.05)
    states = {thread.name: thread.alive for thread in real_camera.threads()}
    assert states == {"reader": True, "decoder": False}
    real_camera.restart()
    assert frame_after(real_camera, first.seq).seq > first.seq
    assert all(thread.alive for thread in real_camera.threads())


def test_pictures_that_break_the_decoder_are_counted_with_the_reason(real_camera: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frame_after(real_camera, -1)

    def breaks(*_: object, **__: object) -> None:
        raise ValueError("a picture that breaks the library")

    monkeypatch.setattr(camera_module, "_pictures", breaks)
    pause = threading.Event()
    while not any(t.faults >= 3 for t in real_camera.threads()):
        real_camera.next_frame(after_seq=10**9, timeout_s=0.05)
        pause.wait(0.01)
    (decoder,) = [t for t in real_camera.threads() if t.name == "decoder"]
    assert decoder.alive
    assert decoder.fault == "ValueError: a picture that breaks the library"


def test_a_stopped_camera_and_the_end_of_a_file_are_no_trouble(tmp_path: Path) -> None:
    camera = open_camera("file", str(write_scripted_video(tmp_path / "b.mp4", frames=5)), realtime=False)
    assert all(t.alive and t.silent_s == 0 for t in camera.threads()) or not camera.threads()
    camera.want(fps=10)
    camera.start()
    seq = -1
    while (frame := camera.next_frame(after_seq=seq, timeout_s=30)) is not None:
        seq = frame.seq
    assert all(t.alive for t in camera.threads())
    camera.stop()
    assert all(t.alive and t.silent_s == 0 for t in camera.threads())
