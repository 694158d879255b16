"""A camera's inference decodes its frames where frames take turns: waiting comes before the turn, decoding is inside it and free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.gpu.base import Lane
from edge.gpu.executor import TURN_S
from edge.gpu.lanes import LaneBackend
from edge.inference import InferenceWorker
from edge.shadow import Shadow, ShadowRules
from edge.step_pool import StepPool
from models.fake import FakeDetector
from scheduler.salus.types import MemoryNeed
from scheduler.types import Frame, KnobProfile
from tests.support.fakes import FreeLane, StillCamera, scripted_frame

NEED = MemoryNeed(persistent_mib=1.0, ephemeral_mib=1.0)


class EncodedCamera(StillCamera):
    """Pictures wait encoded, by their numbers; who takes them decodes the newest, which takes `decode_s` on a core."""

    def __init__(self, id: str, clock: FakeClock | None = None, *, decode_s: float = 0.0) -> None:
        super().__init__(id)
        self.encoded: list[int] = []
        self.broken: set[int] = set()
        self.log: list[str] = []
        self._clock, self._decode_s = clock, decode_s
        self.at_s = 0.0
        self._wake: Callable[[], None] = lambda: None

    def comes(self, seq: int, *, at_s: float = 0.0) -> None:
        self.encoded.append(seq)
        self.at_s = at_s
        self._wake()

    def next_frame(self, *, after_seq: int, timeout_s: float) -> Frame | None:
        self.log.append("looks" if timeout_s <= 0 else "takes")
        return super().next_frame(after_seq=after_seq, timeout_s=timeout_s)

    def until_due(self, *, after_seq: int, wake: Callable[[], None]) -> float:
        self.log.append("due")
        self._wake = wake
        return 0.0 if self.encoded and self.encoded[-1] > after_seq else 0.5

    def make(self, *, after_seq: int) -> Frame | None:
        self.log.append("make")
        if self._clock is not None and self._decode_s:
            self._clock.work(self._decode_s)
        if not self.encoded or self.encoded[-1] <= after_seq:
            return None
        seq, self.encoded = self.encoded[-1], []
        if seq in self.broken:
            return None
        self.newest = scripted_frame(self.id, seq, at_s=self.at_s)
        return self.newest


class TurnsLane(FreeLane):
    """Says what happens inside it, in its camera's log."""

    takes_turns = True

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log
        self.waits_s = 0.0

    def ask(self, wake: Callable[[], None]) -> TurnsLane | float:
        self._log.append("ask")
        if self.cancelled:
            raise self._error
        return self.waits_s or self

    def __enter__(self) -> None:
        super().__enter__()
        self._log.append("in")

    def __exit__(self, *_: object) -> None:
        self._log.append("out")

    @contextmanager
    def beside(self) -> Iterator[None]:
        self._log.append("(")
        yield
        self._log.append(")")


class Watching(FakeDetector):
    """Says when it is asked, and takes its time on a core."""

    def __init__(self, log: list[str], clock: FakeClock | None = None, takes_s: float = 0.0) -> None:
        super().__init__(skill=1.0)
        self._log, self._clock, self._takes_s = log, clock, takes_s

    def predict(self, images, **how):  # type: ignore[no-untyped-def]
        self._log.append("model")
        if self._clock is not None and self._takes_s:
            self._clock.work(self._takes_s)
        return super().predict(images, **how)


class Bench:
    """A worker, its camera and its clock."""

    def __init__(self, lane: Lane | None = None, *, may_lag: bool = False) -> None:
        self.clock = FakeClock()
        self.camera = EncodedCamera("a")
        self.camera.may_lag = may_lag
        self.lane = lane or TurnsLane(self.camera.log)
        self.pool = StepPool(2, self.clock, spawn=self.clock.spawn)
        self.worker = InferenceWorker(
            self.camera, self.lane, Watching(self.camera.log), "a-1", clock=self.clock, score_min=0.25,
            pool=self.pool,
        )  # fmt: skip
        self.camera.log.clear()

    def shown(self) -> int | None:
        shown = self.worker.shown()
        return shown.frame.seq if shown else None


def test_the_turn_is_waited_for_first_and_decoding_is_a_part_of_it_that_is_not_charged() -> None:
    bench = Bench()
    bench.camera.comes(1)
    bench.worker.step()
    assert bench.camera.log == ["due", "ask", "in", "(", "make", ")", "model", "out", "due"]
    assert bench.shown() == 1


def test_a_frame_that_is_due_when_one_is_done_waits_in_the_line_for_its_turn() -> None:
    bench = Bench()
    bench.camera.comes(1)
    bench.worker.on_shown = lambda shown: bench.camera.comes(2) if shown.frame.seq == 1 else None
    assert bench.worker.step() == 0.0, "it is to be asked for at once"
    assert bench.shown() == 1
    bench.worker.step()
    assert bench.shown() == 2
    assert bench.worker.finish.total().due == 2


def test_what_came_while_the_turn_was_waited_for_is_what_is_decoded() -> None:
    bench = Bench()
    bench.camera.comes(1)
    bench.lane.waits_s = 0.3  # type: ignore[attr-defined]
    assert bench.worker.step() == 0.3
    bench.camera.comes(9)
    bench.lane.waits_s = 0.0  # type: ignore[attr-defined]
    bench.worker.step()
    assert bench.camera.log[: bench.camera.log.index("make")].count("due") == 1, "it is known already"
    assert (bench.shown(), bench.worker.frames, bench.camera.log.count("make")) == (9, 1, 1)


def test_no_turn_is_asked_for_when_nothing_came() -> None:
    bench = Bench()
    assert bench.worker.step() == 0.5
    assert bench.camera.log == ["due"]
    assert bench.worker.finish.total().due == 0


def test_a_picture_that_cannot_be_decoded_is_no_error_of_the_model_and_the_next_one_is_shown() -> None:
    bench = Bench()
    bench.camera.broken.add(1)
    for seq in (1, 2):
        bench.camera.comes(seq)
        bench.worker.step()
    assert (bench.shown(), bench.worker.frames, bench.worker.errors) == (2, 1, 0)
    assert bench.camera.log.count("model") == 1
    assert bench.worker.finish.total().answered == 1


def test_frames_are_due_as_if_the_camera_had_decoded_them() -> None:
    due = []
    for lane in (None, FreeLane()):
        bench = Bench(lane)
        bench.worker.set_knobs(KnobProfile(name="k", demand_pct=1.0, quality_frac=1.0, fps=5.0))
        for n in range(40):
            at_s = 0.1 * (n + 1)
            bench.clock.advance_to(at_s)
            if n in range(20, 30):
                continue  # the camera is silent for a second
            bench.camera.comes(n, at_s=at_s)
            if lane is not None:
                bench.camera.show(n, at_s=at_s)
            bench.worker.step()
        due.append((bench.worker.finish.total().due, bench.worker.frames))
    assert due[0] == due[1]
    assert due[0][1] >= 14


@pytest.mark.parametrize("why", ["the lane has no turns", "it takes none", "a recording may lag"])
def test_where_there_are_no_turns_the_camera_decodes(why: str) -> None:
    bench = Bench(FreeLane() if why == "the lane has no turns" else None, may_lag=why == "a recording may lag")
    if why == "it takes none":
        lane = TurnsLane(bench.camera.log)
        lane.takes_turns = False
        bench.worker.begin_anew(lane)
        bench.worker.stop()
        bench.worker.join(10.0)
        bench.camera.log.clear()
        bench.worker._stop.clear()
    bench.camera.show(4)
    bench.worker.step()
    assert bench.shown() == 4
    assert not {"due", "make"} & set(bench.camera.log)


def test_who_is_cancelled_while_it_waits_for_its_turn_decodes_nothing() -> None:
    bench = Bench()
    bench.camera.comes(1)
    bench.lane.cancelled = True  # type: ignore[attr-defined]
    with pytest.raises(JobCancelled):
        bench.worker.step()
    assert bench.camera.log == ["due", "ask"]
    assert bench.camera.encoded == [1]


def test_another_address_of_the_camera_is_decoded_here_as_well() -> None:
    bench = Bench()
    other = EncodedCamera("a")
    other.comes(0)
    bench.worker.turn_to(other)
    bench.worker.step()
    assert other.log == ["due", "make", "due"], "the lane has the first one's log"
    plain = StillCamera("a")
    plain.show(3)
    bench.worker.turn_to(plain)
    assert bench.worker.step() == 0.0, "the pool waits for no frame"
    bench.worker.step()
    assert bench.shown() == 3, "one that cannot be decoded from outside"


# --- with the executor, in virtual time -------------------------------------------------------------------------------


class Box:
    """Cameras on a CPU where `width` frames are in work at a time."""

    def __init__(self, width: int) -> None:
        self.clock = FakeClock()
        self.backend = LaneBackend(capacity_pct=400, memory_mib=1000.0, clock=self.clock, infer_width=width)
        self.pool = StepPool(width, self.clock, turn_s=TURN_S, spawn=self.clock.spawn)
        self.workers: dict[str, InferenceWorker] = {}
        self.cameras: dict[str, EncodedCamera] = {}
        self.shares: dict[str, float] = {}

    def add(self, id: str, *, decode_s: float, frame_s: float, every_s: float, frames: int, share_pct: float) -> None:
        camera = self.cameras[id] = EncodedCamera(id, self.clock, decode_s=decode_s)
        lane = self.backend.open_lane(id, role="infer", need=NEED)
        worker = self.workers[id] = InferenceWorker(
            camera, lane, Watching([], self.clock, frame_s), f"{id}-1", clock=self.clock, score_min=0.25, pool=self.pool
        )
        self.shares[id] = share_pct

        def body() -> None:
            for n in range(frames):
                camera.comes(n, at_s=self.clock.monotonic_s())
                while worker.frames + worker.errors <= n and self.clock.monotonic_s() < 900.0:
                    self.clock.sleep(0.001)
                    camera._wake()  # packets go on coming
                self.clock.sleep(every_s)

        worker.start()
        self.clock.spawn(body)

    def end(self) -> None:
        for worker in self.workers.values():
            worker.stop()
        self.pool.close()
        self.clock.join()

    def run(self, until_s: float) -> dict[str, int]:
        """Frames of each that were analysed."""
        self.backend.set_shares(self.shares)
        self.clock.advance_to(until_s)
        self.backend.check()
        return {id: worker.frames for id, worker in self.workers.items()}


def test_a_share_is_for_the_model_alone_whatever_decoding_takes() -> None:
    box = Box(4)
    for id, decode_s in (("cheap", 0.0), ("dear", 0.15)):
        box.add(id, decode_s=decode_s, frame_s=0.05, every_s=0.1, frames=30, share_pct=60.0)
    done = box.run(30.0)
    assert done == {"cheap": 30, "dear": 30}
    received = {id: box.backend.ledger(id).last().received_s for id in done}
    assert received == {"cheap": pytest.approx(1.5), "dear": pytest.approx(1.5)}
    cost_s = box.workers["dear"].cost_s()
    assert cost_s == pytest.approx(0.05), "what plans count with is the model's, too"
    box.end()


def test_a_camera_whose_decoder_hangs_costs_the_others_one_turn() -> None:
    box = Box(1)
    box.add("stuck", decode_s=30.0, frame_s=0.01, every_s=0.1, frames=1, share_pct=100.0)
    for n in range(3):
        box.add(f"cam{n}", decode_s=0.01, frame_s=0.02, every_s=0.2, frames=20, share_pct=100.0)
    done = box.run(TURN_S + 20 * 0.3)
    assert done == {"stuck": 0, "cam0": 20, "cam1": 20, "cam2": 20}
    box.run(40.0)
    box.end()


def test_cameras_that_mostly_decode_use_all_the_turns_there_are() -> None:
    box = Box(2)
    for n in range(2):
        box.add(f"cam{n}", decode_s=0.09, frame_s=0.01, every_s=0.0, frames=50, share_pct=100.0)
    assert box.run(50 * 0.1 + 0.2) == {"cam0": 50, "cam1": 50}, "one beside the other, not one after the other"
    box.end()


# --- by the pool ------------------------------------------------------------------------------------------------------


class Pooled(Bench):
    """The worker's steps are done by the pool, in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.worker.start()
        self.now_s = 0.0
        self.run(0.1)

    def run(self, seconds: float) -> None:
        self.now_s += seconds
        self.clock.advance_to(self.now_s)

    def comes(self, seq: int) -> None:
        self.camera.comes(seq, at_s=self.clock.monotonic_s())
        self.run(0.01)

    def end(self) -> None:
        self.worker.stop()
        self.worker.join(10.0)
        self.pool.close()
        self.clock.join()


@pytest.fixture
def pooled() -> Iterator[Pooled]:
    made = Pooled()
    yield made
    made.end()


def test_a_frame_is_analysed_as_soon_as_it_is_there(pooled: Pooled) -> None:
    for seq in (1, 2, 3):
        pooled.comes(seq)
        assert pooled.shown() == seq
    assert pooled.worker.is_alive()
    assert pooled.worker.finish.total().due == 3


def test_one_that_has_to_wait_is_asked_again_when_its_lane_said(pooled: Pooled) -> None:
    pooled.lane.waits_s = 0.5  # type: ignore[attr-defined]
    pooled.comes(1)
    assert pooled.shown() is None
    pooled.run(5.0)
    assert pooled.worker.silent_s() == 0.0, "waiting is no silence"
    pooled.lane.waits_s = 0.0  # type: ignore[attr-defined]
    pooled.run(0.5)
    assert pooled.shown() == 1


def test_a_pause_ends_when_knobs_are_set_and_not_a_look_later(pooled: Pooled) -> None:
    pooled.worker.set_knobs(None)
    pooled.run(1.0)
    pooled.comes(1)
    pooled.run(5.0)
    assert pooled.shown() is None
    pooled.worker.set_knobs(KnobProfile(name="k", demand_pct=1.0, quality_frac=1.0, fps=10.0))
    pooled.run(0.001)
    assert pooled.shown() == 1


def test_one_that_was_cancelled_is_out_of_the_pool_and_a_new_lane_brings_it_back(pooled: Pooled) -> None:
    pooled.lane.cancelled = True  # type: ignore[attr-defined]
    pooled.comes(1)
    assert not pooled.worker.is_alive()
    assert not pooled.worker.keeps_its_lane
    pooled.worker.begin_anew(TurnsLane(pooled.camera.log))
    pooled.run(0.1)
    assert pooled.worker.is_alive()
    assert pooled.shown() == 1


def test_a_step_that_breaks_is_counted_and_begun_anew_in_the_same_lane(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*, after_seq: int, wake: Callable[[], None]) -> float:
        raise ZeroDivisionError("the camera's own fault")

    with monkeypatch.context() as broken:
        broken.setattr(pooled.camera, "until_due", breaks)
        pooled.camera._wake()
        pooled.run(0.1)
        assert not pooled.worker.is_alive()
        assert pooled.worker.last_error == "ZeroDivisionError: the camera's own fault"
    assert pooled.worker.keeps_its_lane
    pooled.worker.begin_anew()
    pooled.comes(4)
    assert (pooled.worker.is_alive(), pooled.shown()) == (True, 4)


def test_one_that_hangs_is_silent_and_what_it_does_when_it_comes_back_changes_nothing(pooled: Pooled) -> None:
    model = pooled.worker.serving()[1]
    model._clock, model._takes_s = pooled.clock, 100.0  # type: ignore[attr-defined]
    pooled.comes(1)
    pooled.run(30.0)
    assert pooled.worker.silent_s() > 20.0
    assert not pooled.worker.keeps_its_lane
    model._takes_s = 0.0  # type: ignore[attr-defined]
    pooled.worker.begin_anew(TurnsLane(pooled.camera.log))
    pooled.comes(2)
    assert pooled.shown() == 2
    pooled.run(200.0)
    pooled.comes(3)
    assert pooled.shown() == 3
    assert pooled.camera.log.count("model") == 3


def test_turned_to_a_camera_whose_frames_come_another_way_it_has_a_thread_of_its_own(pooled: Pooled) -> None:
    plain = StillCamera("a")
    plain.show(5)
    pooled.worker.turn_to(plain)
    pooled.run(0.1)
    for _ in range(600):
        if pooled.shown() == 5:
            break
        pooled.worker.join(0.1)
    assert pooled.shown() == 5
    assert pooled.worker.is_alive()


def test_a_shadow_looks_in_a_turn_of_its_own_before_the_next_frame(pooled: Pooled) -> None:
    pooled.worker.shadow(Shadow(Watching(pooled.camera.log), "a-2", ShadowRules(frames=4, share_frac=1.0)))
    pooled.camera.log.clear()
    pooled.comes(1)
    assert [what for what in pooled.camera.log if what in ("ask", "in", "out", "model")] == ["ask", "in", "model", "out"] * 2
