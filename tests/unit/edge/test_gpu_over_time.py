"""The hour of shares, memory and devices that the GPU page shows."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from edge.api import make_app
from edge.box_gpu import BoxGpu, device_series, job_series, lanes_of, series_name
from edge.clock import FakeClock, SystemClock
from edge.gpu.base import ChangeCost, DeviceFacts, JobMemory, ShareReport
from edge.gpu_history import EVERY_S, SPAN_S, GpuHistory, Point, Sources
from edge.status import JobMemoryView
from edge.store.store import Store
from edge.web.fake import FakeSource
from edge.web.services import Services
from scheduler.salus.types import MemoryNeed
from scheduler.types import WindowOutcome


def share(job: str, promised_pct: float = 30.0, received_pct: float = 29.0, backlogged_frac: float = 1.0) -> ShareReport:
    return ShareReport(
        job=job,
        promised_pct=promised_pct,
        received_pct=received_pct,
        backlogged_frac=backlogged_frac,
        iterations=3,
        span_s=10.0,
    )


def point(
    at_utc: float, *jobs: ShareReport, devices: tuple[DeviceFacts, ...] = (), memory: Mapping[str, JobMemory] | None = None
) -> Point:
    return Point(at_utc=at_utc, shares={j.job: j for j in jobs}, memory=memory or {}, devices=devices)


def gpu(index: int, temperature_c: float | None, *throttled: str) -> DeviceFacts:
    return DeviceFacts(
        index=index,
        name=f"GPU {index}",
        memory_total_mib=1000,
        memory_used_mib=100,
        temperature_c=temperature_c,
        throttled=throttled,
    )


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("gate/infer", "gate/infer"),
        ("gate/train/12", "gate/train"),
        ("gate/train/12.1", "gate/train"),
        ("gate/profile/3+2", "gate/profile"),
        ("odd", "odd"),
        ("", ""),
    ],
)
def test_jobs_of_one_kind_are_one_line(job: str, name: str) -> None:
    assert series_name(job) == name


def test_a_job_that_does_not_run_is_a_gap_and_its_lanes_add_up() -> None:
    points = (
        point(0.0, share("gate/infer")),
        point(10.0, share("gate/infer"), share("gate/profile/3", 20.0, 10.0), share("gate/profile/3+1", 20.0, 12.0, 0.5)),
        point(20.0, share("gate/profile/4", 5.0, 5.0)),
    )
    inference, profile = job_series(points, "gate")
    assert (inference.job, inference.kind, inference.camera) == ("gate/infer", "inference", "gate")
    assert inference.promised_pct == (30.0, 30.0, None)
    assert (profile.job, profile.kind) == ("gate/profile", "preparation")
    assert profile.promised_pct == (None, 40.0, 5.0)
    assert profile.received_pct == (None, 22.0, 5.0)
    assert profile.wanted_frac == (None, 1.0, 1.0)


def test_all_together_they_are_added_up_by_kind() -> None:
    """However many cameras there are, the page asks for a handful of lines."""
    points = (
        point(0.0, share("a/infer", 30.0, 29.0, 0.2), share("b/infer", 20.0, 10.0, 0.9), share("a/train/3", 40.0, 40.0)),
        point(10.0, share("b/label/4", 5.0, 5.0), share("b/odd", 1.0, 1.0)),
    )
    found = {series.job: series for series in job_series(points)}
    assert sorted(found) == ["inference", "other", "preparation", "retraining"]
    assert (found["inference"].promised_pct, found["inference"].wanted_frac) == ((50.0, None), (0.9, None))
    assert found["preparation"].received_pct == (None, 5.0)
    assert all(series.camera is None for series in found.values())
    assert [series.job for series in job_series(points, "b")] == ["b/infer", "b/label", "b/odd"]
    assert job_series(points, "nobody") == ()


def test_memory_that_cannot_be_seen_is_a_gap() -> None:
    def held(mib: float | None) -> Mapping[str, JobMemory]:
        return {"a/infer": JobMemory(job="a/infer", need=None, measured=False, lane=0, lane_mib=10, held_mib=mib)}

    [series] = job_series(
        (point(0.0, share("a/infer"), memory=held(12.5)), point(10.0, share("a/infer"), memory=held(None))), "a"
    )
    assert series.held_mib == (12.5, None)


def test_devices_that_come_and_go() -> None:
    points = (point(0.0, devices=(gpu(0, 60.0), gpu(1, None))), point(10.0, devices=(gpu(0, 83.0, "heat"),)))
    first, second = device_series(points)
    assert first.temperature_c == (60.0, 83.0)
    assert first.throttled == (False, True)
    assert second.temperature_c == (None, None)
    assert second.memory_used_mib == (100, None)
    assert device_series(()) == ()


def test_lanes_name_their_jobs() -> None:
    about = (
        JobMemoryView(job="a/infer", lane=1, lane_mib=80),
        JobMemoryView(job="b/infer", lane=1, lane_mib=80),
        JobMemoryView(job="a/train/1", lane=None),
    )
    [lane] = lanes_of(about)
    assert (lane.lane, lane.size_mib, lane.jobs) == (1, 80, ("a/infer", "b/infer"))


# --- the thread ---------------------------------------------------------------------------------------------------------


class Asked:
    """A backend that counts; fails: what the next look raises."""

    def __init__(self) -> None:
        self.looks, self.fails = 0, ""

    def report(self, span_s: float) -> Mapping[str, ShareReport]:
        assert span_s == EVERY_S
        self.looks += 1
        if self.fails:
            raise RuntimeError(self.fails)
        return {"a/infer": share("a/infer")}

    def sources(self) -> Sources:
        return Sources(report=self.report, memory=dict, devices=tuple)


def test_what_cannot_be_asked_is_said_once_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("edge.gpu_history.log.warning", lambda text, *values: said.append(text % values))
    asked = Asked()
    history = GpuHistory(asked.sources(), FakeClock())
    history.look()
    asked.fails = "the device is gone, see rtsp://u:p4ss@x/1"
    history.look()
    history.look()
    asked.fails = ""
    history.look()
    assert len(history.points()) == 2
    assert len(said) == 1
    assert "p4ss" not in said[0]


def test_no_more_than_an_hour_is_kept() -> None:
    history = GpuHistory(Asked().sources(), FakeClock())
    for _ in range(round(SPAN_S / EVERY_S) + 5):
        history.look()
    assert len(history.points()) == SPAN_S / EVERY_S


class Changing:
    """Eight jobs whose shares change with every look, and whose memory and devices do not; nothing that is told is told twice."""

    def __init__(self) -> None:
        self.looks = 0

    def report(self, span_s: float) -> Mapping[str, ShareReport]:
        self.looks += 1
        return {job: share(job, received_pct=20.0 + self.looks / 7) for job in self.jobs()}

    def memory(self) -> Mapping[str, JobMemory]:
        need = MemoryNeed(persistent_mib=100.0, ephemeral_mib=20.0)
        held_mib = 90.0 + self.looks // 3
        return {
            job: JobMemory(job=job, need=need, measured=True, lane=1, lane_mib=20.0, held_mib=held_mib) for job in self.jobs()
        }

    def jobs(self) -> list[str]:
        return [f"camera-{number}/infer" for number in range(8)]

    def sources(self) -> Sources:
        return Sources(report=self.report, memory=self.memory, devices=lambda: (gpu(0, 50.0), gpu(1, None)))


def test_what_is_as_it_was_is_kept_once() -> None:
    history = GpuHistory(Changing().sources(), FakeClock())
    for _ in range(6):
        history.look()
    points = history.points()
    assert len({id(p.devices) for p in points}) == 1
    assert [p.memory["camera-0/infer"].held_mib for p in points] == [90.0, 90.0, 91.0, 91.0, 91.0, 92.0]
    assert len({id(p.memory) for p in points}) == 3, "three times it was another"
    assert len({id(name) for p in points for name in p.shares if name == "camera-3/infer"}) == 1
    assert len({p.shares["camera-0/infer"].received_pct for p in points}) == 6


def test_an_hour_of_eight_cameras_takes_little() -> None:
    history = GpuHistory(Changing().sources(), FakeClock())
    history.look()
    tracemalloc.start()
    try:
        before_bytes = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            history.look()
        a_look_bytes = (tracemalloc.get_traced_memory()[0] - before_bytes) / 100
    finally:
        tracemalloc.stop()
    assert a_look_bytes < 3500, "it was 6,000 and more with a dictionary in every value"


def test_it_looks_every_ten_seconds_until_it_is_stopped() -> None:
    clock, asked = FakeClock(), Asked()
    history = GpuHistory(asked.sources(), clock)
    stopped: list[bool] = []
    clock.spawn(lambda: history._run(lambda: not stopped))  # what `start` runs in its thread
    clock.advance_to(3 * EVERY_S)
    assert asked.looks == 3
    assert [p.at_utc - history.points()[0].at_utc for p in history.points()] == [0.0, EVERY_S, 2 * EVERY_S]
    clock.advance_to(3.5 * EVERY_S)
    stopped.append(True)
    clock.advance_to(4 * EVERY_S)
    clock.join()
    assert asked.looks == 3


def test_stopping_is_safe_before_the_start_and_twice() -> None:
    history = GpuHistory(Asked().sources(), SystemClock())
    history.stop()
    history.start()
    history.stop()
    history.stop()
    assert "gpu-history" not in {thread.name for thread in threading.enumerate()}


def test_a_device_that_does_not_answer_leaves_the_thread_without_a_pulse() -> None:
    """NVML that hangs: the watchdog sees it, and lets another thread go on."""
    clock, stopped = FakeClock(), list[bool]()

    def hangs() -> tuple[DeviceFacts, ...]:
        clock.sleep(200.0)
        return ()

    history = GpuHistory(Sources(report=Asked().report, memory=dict, devices=hangs), clock)
    clock.spawn(lambda: history._run(lambda: not stopped))
    clock.advance_to(clock.monotonic_s() + EVERY_S / 2)
    assert history.thread.silent_s() == 0, "it waits for its time"
    clock.advance_to(clock.monotonic_s() + EVERY_S / 2 + 90.0)
    assert history.thread.silent_s() == pytest.approx(90.0)
    stopped.append(True)
    clock.advance_to(clock.monotonic_s() + 200.0)
    clock.join()


# --- over HTTP ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "driftbox.db") as opened:
        yield opened


def test_over_http(store: Store) -> None:
    for window in range(3):
        outcome = WindowOutcome(
            window=window, opened_s=0, closed_s=1, streams=(), predicted_quality=None, realised_quality=None
        )
        store.add_window(outcome, opened_utc=window, closed_utc=window + 1)
        store.add_shares(window, [share("gate/infer")])
    history = GpuHistory(Asked().sources(), FakeClock())
    history.look()
    source = BoxGpu(FakeSource(), history, store, lambda: ChangeCost(settle_s=1.5, gpu_s=0.2, blind_s=0.0))
    client = TestClient(make_app(FakeSource(), Services(gpu=source)), base_url="http://127.0.0.1:8080")
    told = client.get("/api/v1/gpu", params={"windows": 2}).json()
    assert [w["window"] for w in told["windows"]] == [2, 1]
    assert told["windows"][0]["shares"][0]["promised_pct"] == 30.0
    assert told["jobs"][0]["job"] == "inference"
    assert client.get("/api/v1/gpu", params={"camera": "a"}).json()["jobs"][0]["job"] == "a/infer"
    assert client.get("/api/v1/gpu", params={"camera": "../a"}).status_code == 422
    assert len(told["at_utc"]) == 1
    assert told["change_settle_s"] == 1.5
    assert told["unit"] == "one GPU"
    assert client.get("/api/v1/gpu", params={"windows": -1}).status_code == 422
