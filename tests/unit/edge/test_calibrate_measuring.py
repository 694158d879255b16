"""Calibration in virtual time: what is measured is what the lanes did, and what is concluded is usable where it belongs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.errors import JobError, StorageError
from configs.load import load_demo
from edge import calibrate
from edge.calibrate import Bench, Plan, Subject, concluded, job_speeds, measure, problem_of, shares_of, table
from edge.clock import FakeClock
from edge.gpu.base import Lane
from edge.gpu.lanes import LaneBackend
from edge.speed_file import MeasuredSpeed, SpeedFile, read_speed, usable_speed, write_speed
from edge.store.folder import DataFolder
from edge.wiring.compute import measured_speed
from edge.wiring.settings import models_of, speed_of
from scheduler.ekya.estimate import SpeedCurve
from tests.support.fakes import FreeLane

PLAN = Plan(shares_pct=(25.0, 50.0, 100.0), repeats=2, span_s=2.0, most_s=60.0, iterations=4)
BRIEF = Plan(shares_pct=(50.0, 100.0), repeats=1, span_s=10.0, most_s=90.0, iterations=40)
HERE: dict[str, Any] = {"machine": "A processor, 2 cores", "devices": (), "backend": "lanes", "capacity_pct": 100}


class VirtualBench(Bench):
    clock: FakeClock

    def __init__(self, capacity_pct: int = 100) -> None:
        clock = FakeClock()
        super().__init__(LaneBackend(capacity_pct=capacity_pct, clock=clock), clock)

    def spawn(self, body: Callable[[], None]) -> None:
        self.clock.spawn(body)

    def rest(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + seconds)

    def join(self) -> None:
        self.rest(100.0)
        self.clock.join()


def subject(
    bench: VirtualBench, kind: calibrate.JobKind, cost_s: float, *, model: str = "edge", waits_s: float = 0.0
) -> Subject:
    """A job whose iterations compute for cost_s; waits_s: and wait for something that is no compute."""

    def steps(lane: Lane) -> Iterator[None]:
        while True:
            bench.clock.work(cost_s / 2)
            lane.checkpoint()
            bench.clock.work(cost_s / 2)
            if waits_s:
                bench.clock.sleep(waits_s)
            yield

    return Subject(kind=kind, model=model, steps=steps)


@pytest.mark.parametrize(("cost_s", "share_pct"), [(0.05, 50.0), (0.2, 10.0), (1.0, 10.0), (1.0, 100.0)])
def test_a_lane_is_measured_exactly_also_with_few_long_iterations(cost_s: float, share_pct: float) -> None:
    bench = VirtualBench()
    found = measure(bench, subject(bench, "training", cost_s), share_pct, None, PLAN)
    assert found is not None
    assert found.throughput == pytest.approx(share_pct / 100 / cost_s, rel=0.03)
    assert found.received_pct == pytest.approx(share_pct, rel=0.1)
    assert bench.backend.report() == {}, "its lanes are closed again"


def test_beside_another_job_both_keep_their_shares_and_one_without_room_is_left_out() -> None:
    bench = VirtualBench()
    train, infer = subject(bench, "training", 0.1), subject(bench, "inference", 0.1)
    found = measure(bench, train, 75.0, infer, PLAN)
    assert found is not None
    assert found.throughput == pytest.approx(7.5, rel=0.03)
    assert found.beside == "inference edge"
    assert measure(bench, train, 95.0, infer, PLAN) is None
    assert measure(bench, train, 100.0, infer, PLAN) is None


def test_what_is_too_slow_at_a_share_is_left_out_once_and_for_all() -> None:
    bench = VirtualBench()
    asked: list[str] = []
    slow = subject(bench, "training", 5.0)
    assert measure(bench, slow, 10.0, None, PLAN) is None
    seen = calibrate.run(
        bench, [slow], Plan(shares_pct=(10.0, 100.0), repeats=2, span_s=4.0, most_s=60.0), progress=lambda w, f: asked.append(w)
    )
    assert {s.share_pct for s in seen} == {100.0}
    assert len(asked) == 4
    with pytest.raises(JobError, match="training with edge is too slow to be measured"):
        calibrate.run(bench, [subject(bench, "training", 50.0)], Plan(shares_pct=(100.0,), repeats=1, span_s=1.0, most_s=20.0))


def test_a_job_that_fails_is_named_and_leaves_no_lane_behind() -> None:
    bench = VirtualBench()

    def steps(lane: Lane) -> Iterator[None]:
        yield
        raise ArithmeticError("the loss became nan")

    with pytest.raises(JobError, match="a training job failed: the loss became nan") as caught:
        measure(bench, Subject(kind="training", model="edge", steps=steps), 50.0, None, PLAN)
    assert caught.value.subject == "edge"
    assert bench.backend.report() == {}


@pytest.mark.parametrize("capacity_pct", [100, 200])
def test_everything_is_measured_in_turns_and_lanes_turn_out_proportional(capacity_pct: int) -> None:
    bench = VirtualBench(capacity_pct)
    subjects = [
        subject(bench, "inference", 0.1),
        subject(bench, "training", 0.1),
        subject(bench, "labelling", 0.3, model="golden"),
    ]
    told: list[float] = []
    seen = calibrate.run(bench, subjects, BRIEF, progress=lambda what, frac: told.append(frac))
    assert told == sorted(told)
    beside = {(s.job, s.beside) for s in seen if s.beside}
    assert beside == {("training", "inference edge"), ("labelling", "inference edge"), ("inference", "training edge")}
    assert len([s for s in seen if s.job == "training" and not s.beside]) == len(shares_of(BRIEF, capacity_pct))
    made = concluded(seen, **{**HERE, "capacity_pct": capacity_pct}, quick=False, utc_s=0.0)
    curve = SpeedCurve(made.speed)
    for share_pct in (10, 25, 60, 100):
        assert curve.at(share_pct) == pytest.approx(share_pct / 100, abs=0.03)
    if capacity_pct > 100:
        assert curve.at(capacity_pct) == pytest.approx(1.0, abs=0.03), "a job is one thread"
    assert (made.known, made.problem) == ("well", "")
    assert made.models == ("edge", "golden")
    columns, rows = table(made)
    assert len(rows) == 3 * len(shares_of(BRIEF, capacity_pct))
    assert all(len(row) == len(columns) for row in rows)


def one(
    share_pct: float, throughput: float, *, beside: str = "", job: calibrate.JobKind = "training", got: float | None = None
) -> MeasuredSpeed:
    return MeasuredSpeed(
        job=job, model="edge", beside=beside, share_pct=share_pct, throughput=throughput, span_s=3.0,
        received_pct=min(share_pct, 100.0) if got is None else got,
    )  # fmt: skip


def test_the_curve_for_plans_is_that_of_training_beside_inference() -> None:
    alone = [one(25, 4.0), one(50, 7.0), one(100, 10.0)]
    beside = [one(25, 1.0, beside="inference edge"), one(50, 3.5, beside="inference edge")]
    others = [one(25, 90.0, job="inference"), one(100, 100.0, job="inference")]
    made = concluded([*alone, *beside, *others], **HERE, quick=True, utc_s=0.0)
    assert made.speed == ((0.0, 0.0), (25.0, 0.2), (50.0, 0.7), (100.0, 1.0))
    training = next(job for job in job_speeds(made.samples) if job.kind == "training")
    assert training.slowdown_frac == pytest.approx(1 - (0.25 + 0.5) / 2)
    assert made.measured_utc == "1970-01-01T00:00:00+00:00"
    assert made.quick


def test_without_a_measurement_at_100_there_is_no_curve() -> None:
    with pytest.raises(JobError, match="make no speed curve: nothing was measured at 100 pct"):
        concluded([one(50, 1.0)], **HERE, quick=False, utc_s=0.0)


def test_a_busy_machine_and_measurements_that_differ_are_said_and_not_used() -> None:
    quiet = [one(50, 5.0), one(100, 10.0)]
    busy = [one(50, 5.0), one(100, 6.0, got=61.0)]
    wild = [one(50, 1.0), one(50, 9.0), one(100, 10.0)]
    assert concluded(quiet, **HERE, quick=False, utc_s=0.0).problem == ""
    assert "a job with 100 pct received 61" in concluded(busy, **HERE, quick=False, utc_s=0.0).problem
    assert "differ too much" in concluded(wild, **HERE, quick=False, utc_s=0.0).problem
    on_gpu = concluded(busy, **{**HERE, "devices": ("H200",)}, quick=False, utc_s=0.0)
    assert on_gpu.problem == "", "what a GPU does not deliver beside others is what is to be learnt"
    over = [one(100, 10.0), one(200, 10.0, got=99.0)]
    assert (
        problem_of(over, calibrate.planned([calibrate.grouped(over, beside=False)["training", "edge"]], []), on_cpu=True) == ""
    )


# --- the file -------------------------------------------------------------------------------------------------------------


def made_here(**changes: Any) -> SpeedFile:
    found = concluded([one(50, 6.0), one(100, 10.0)], **HERE, quick=False, utc_s=0.0)
    return found.model_copy(update={"models": ("edge", "golden"), **changes})


def asked(root: Path, **changes: Any) -> tuple[tuple[tuple[float, float], ...], str]:
    return usable_speed(root, **({**HERE, "models": ["edge", "golden"]} | changes))


def test_what_was_measured_is_read_back_and_used(tmp_path: Path) -> None:
    assert asked(tmp_path) == ((), "")
    written = made_here()
    path = write_speed(tmp_path, written)
    assert read_speed(tmp_path) == written
    assert json.loads(path.read_text())["schema_version"] == 1
    curve, told = asked(tmp_path)
    assert curve == ((0.0, 0.0), (50.0, 0.6), (100.0, 1.0))
    assert told == "plans use the speed measured on 1970-01-01T00:00:00+00:00, well known"


def test_a_larger_capacity_than_was_measured_goes_on_flat(tmp_path: Path) -> None:
    write_speed(tmp_path, made_here())
    curve, _ = asked(tmp_path, capacity_pct=250)
    assert curve[-1] == (250.0, 1.0)
    assert SpeedCurve(curve).at(200) == pytest.approx(1.0), "and does not begin anew"


@pytest.mark.parametrize(
    ("there", "here", "part"),
    [
        ({}, {"machine": "Another, 8 cores"}, "it was made on another machine (A processor, 2 cores; this is Another, 8 cores)"),
        ({"devices": ("L4",)}, {}, "A processor, 2 cores, L4"),
        ({"backend": "mps"}, {}, "made with gpus.backend mps, this box runs with lanes"),
        ({}, {"models": ["edge", "golden", "yolov8n"]}, "it knows nothing of yolov8n"),
        ({"problem": "other programs kept the machine busy"}, {}, "other programs kept the machine busy"),
    ],
)  # fmt: skip
def test_what_belongs_elsewhere_is_refused_in_a_plain_sentence(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any], part: str
) -> None:
    write_speed(tmp_path, made_here(**there))
    curve, told = asked(tmp_path, **here)
    assert curve == ()
    assert part in told
    assert told.endswith("run driftbox calibrate again")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 2'), "newer"),
        (lambda text: text[: len(text) // 2], "corrupt"),
        (lambda text: text.replace('"backend"', '"backened"'), "corrupt"),
        (lambda text: text.replace("0.6", "1.6"), "corrupt"),  # a curve that falls
        (lambda text: text.replace("0.6", "NaN"), "corrupt"),
        (lambda text: "", "corrupt"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_with_a_remedy_and_no_reason_to_stop(
    tmp_path: Path, change: Callable[[str], str], code: str
) -> None:
    path = write_speed(tmp_path, made_here())
    path.write_text(change(path.read_text()))
    with pytest.raises(StorageError) as caught:
        read_speed(tmp_path)
    assert caught.value.code == code
    curve, told = asked(tmp_path)
    assert curve == ()
    assert "is not used" in told
    assert "run driftbox calibrate again" in told


def test_a_folder_in_its_place_is_nothing_and_a_disk_error_is_said(tmp_path: Path) -> None:
    (tmp_path / "speed.json").mkdir()
    assert asked(tmp_path) == ((), "")


# --- the box ----------------------------------------------------------------------------------------------------------------


def test_the_box_plans_with_what_was_measured_here_for_its_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.wiring.compute.machine", lambda: HERE["machine"])
    config, backend = load_demo(), LaneBackend(capacity_pct=100)
    assert models_of(config) == [("detection", "tinydet-edge", "tinydet-golden")]
    said: list[str] = []
    with DataFolder(tmp_path / "data") as folder:
        assert measured_speed(config, folder, backend, said.append) == speed_of(100)
        assert said == []
        write_speed(folder.root, made_here(models=("tinydet-edge", "tinydet-golden")))
        assert measured_speed(config, folder, backend, said.append) == ((0.0, 0.0), (50.0, 0.6), (100.0, 1.0))
        write_speed(folder.root, made_here())
        assert measured_speed(config, folder, backend, said.append) == speed_of(100)
    assert said[0].startswith("plans use the speed measured")
    assert "it knows nothing of tinydet-edge, tinydet-golden" in said[1]


@pytest.mark.slow
def test_the_jobs_of_the_demos_models_really_run() -> None:
    """One iteration of each, with the real built-in models."""
    from edge.wiring.calibrating import subjects_of

    found = subjects_of(load_demo(), "detection", "tinydet-edge", "tinydet-golden")
    assert [(s.kind, s.model, s.role) for s in found] == [
        ("inference", "tinydet-edge", "infer"), ("training", "tinydet-edge", "learn"), ("labelling", "tinydet-golden", "learn"),
    ]  # fmt: skip
    for job in found:
        steps = job.steps(FreeLane())
        next(steps)
        next(steps)
