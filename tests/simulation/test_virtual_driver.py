"""The virtual-time driver: jobs advance at the speed of their shares, answers come at the exact time, nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from scheduler.commands import (
    Command,
    ReportWindow,
    SetShares,
    StartGate,
    StartLabelling,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    EpochDone,
    Event,
    GateDone,
    JobFailed,
    LabelDone,
    ProfileDone,
    RetrainDone,
    SwapDone,
)
from scheduler.sim.driver import VirtualDriver, Work
from scheduler.types import EpochReport, KnobProfile, ProfileTrial, RetrainConfig

CONFIG = RetrainConfig(name="full", epochs=4)
KNOBS = (KnobProfile(name="every", demand_pct=20, quality_frac=1.0), KnobProfile(name="1/2", demand_pct=10, quality_frac=0.7))
ENGINE = EngineConfig(
    window_s=100, first_window_s=100, prep_pct=50, retrain=(CONFIG,), label_frames=10, gate_frames=2, golden_gpu_s=0.2,
    cost_margin_frac=0.0, estimate="static",
)  # fmt: skip


@dataclass
class ScriptedWorld:
    """Labels cost 2 GPU-s, trials 1, retrainings 8, gates 0.4; retraining lifts quality by `gain` from .5."""

    gain: float = 0.2
    failing: frozenset[str] = frozenset()
    answers: list[tuple[float, str]] = field(default_factory=list)
    shares: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    quality: dict[str, float] = field(default_factory=lambda: {"a": 0.5, "b": 0.5})

    def start(self, command: Command, at_s: float) -> Work:
        def note(event: Event) -> Event:
            self.answers.append((event.at_s, type(event).__name__))
            return event

        if isinstance(command, StartLabelling):
            job, stream = command.job, command.stream
            return Work(
                gpu_s=2.0,
                finish=lambda t: note(
                    LabelDone(at_s=t, job=job, stream=stream, train=6, holdout=4, quality=self.quality[stream], gpu_s=2.0)
                ),
            )
        if isinstance(command, StartProfiling):
            q = self.quality[command.stream]
            curve = tuple(q + self.gain * k / 4 for k in range(4))
            trial = ProfileTrial(config=CONFIG, quality=curve, init_gpu_s=0.0, gpu_s_per_epoch=2.0, n_profiled=6, n_total=6)
            done = ProfileDone(at_s=0, job=command.job, stream=command.stream, trials=(trial,), n_train=6, gpu_s=1.0)
            return Work(gpu_s=1.0, finish=lambda t: note(ProfileDone(**{**vars(done), "at_s": t})))
        if isinstance(command, StartRetraining):
            job, stream = command.job, command.stream
            if stream in self.failing:
                return Work(gpu_s=3.0, finish=lambda t: note(JobFailed(at_s=t, job=job, stream=stream, code="nan")))
            epochs = tuple((2.0 * n, lambda t, n=n: note(_epoch(t, job, stream, n))) for n in range(1, 4))
            return Work(
                gpu_s=8.0,
                milestones=epochs,
                finish=lambda t: note(RetrainDone(at_s=t, job=job, stream=stream, candidate=f"{stream}+", gpu_s=8.0)),
            )
        assert isinstance(command, StartGate)
        gate = command
        return Work(
            gpu_s=0.4,
            finish=lambda t: note(
                GateDone(
                    at_s=t,
                    job=gate.job,
                    stream=gate.stream,
                    candidate=gate.candidate,
                    frames=2,
                    gpu_s=0.4,
                    serving_quality=self.quality[gate.stream],
                    candidate_quality=self.quality[gate.stream] + self.gain,
                )  # fmt: skip
            ),
        )

    def swap(self, command: SwapModel, at_s: float) -> Event:
        self.quality[command.stream] = command.quality or 0.0
        self.answers.append((at_s, "SwapDone"))
        return SwapDone(at_s=at_s, stream=command.stream, version=command.version)

    def observe(self, command: Command, at_s: float) -> tuple[Event, ...]:
        if isinstance(command, SetShares):
            self.shares.append((at_s, dict(command.shares_pct)))
        return ()


def _epoch(at_s: float, job: str, stream: str, number: int) -> EpochDone:
    return EpochDone(at_s=at_s, stream=stream, report=EpochReport(job=job, epoch=number, loss=1.0, gpu_s=2.0 * number))


def run(world: ScriptedWorld, *, until_s: float, config: EngineConfig = ENGINE) -> VirtualDriver:
    driver = VirtualDriver(BoxEngine(config), world)
    cameras: list[Event] = [CameraAdded(at_s=0, stream=s, knobs=KNOBS, version=s, quality=0.5) for s in ("a", "b")]
    driver.run([*cameras, BoxStarted(at_s=0, window=1)], until_s)
    return driver


def test_preparation_takes_what_its_cost_and_share_say() -> None:
    world = ScriptedWorld()
    run(world, until_s=99)
    # inference needs 2 * 20 pct, preparation has the other 60: two labels of 2 GPU-s, then two trials of 1 GPU-s
    ends = [round(at, 6) for at, kind in world.answers if kind in ("LabelDone", "ProfileDone")]
    assert ends == pytest.approx([2 / 0.6, 4 / 0.6, 5 / 0.6, 6 / 0.6], abs=1e-5)


def test_work_done_is_the_share_integrated_over_time() -> None:
    world = ScriptedWorld()
    run(world, until_s=99)
    ends: dict[str, list[float]] = {}
    for at_s, kind in world.answers:
        ends.setdefault(kind, []).append(at_s)
    jobs = {job for _, shares in world.shares for job in shares if "/train/" in job}
    assert jobs == {"a/train/1", "b/train/1"}
    done_s = dict(zip(("a/train/1", "b/train/1"), ends["RetrainDone"], strict=True))
    if received(world, "a/train/1", done_s["a/train/1"]) < 7.9:  # b ended first
        done_s = dict(zip(("b/train/1", "a/train/1"), ends["RetrainDone"], strict=True))
    for job, at_s in done_s.items():
        assert received(world, job, at_s) == pytest.approx(8.0, abs=1e-3)


def received(world: ScriptedWorld, job: str, until_s: float) -> float:
    """GPU-seconds that `job` was given up to `until_s`."""
    edges = [at for at, _ in world.shares] + [until_s]
    return sum(
        max(0.0, min(stop, until_s) - at) * shares.get(job, 0.0) / 100
        for (at, shares), stop in zip(world.shares, edges[1:], strict=True)
    )


def test_epochs_are_reported_in_order_and_both_cameras_get_better() -> None:
    world = ScriptedWorld()
    driver = run(world, until_s=100)
    kinds = [kind for _, kind in world.answers]
    assert kinds.count("EpochDone") == 6
    assert kinds.count("SwapDone") == 2
    outcome = next(c.outcome for _, cs in driver.log for c in cs if isinstance(c, ReportWindow))
    assert all(s.admitted for s in outcome.streams)
    assert outcome.realised_quality is not None
    assert 0.5 < outcome.realised_quality < 0.7


def test_a_failing_training_leaves_the_other_camera_alone() -> None:
    world = ScriptedWorld(failing=frozenset({"a"}))
    run(world, until_s=99)
    assert world.quality == {"a": 0.5, "b": pytest.approx(0.7)}


def test_the_same_run_twice_is_the_same_to_the_byte() -> None:
    from scheduler.codec import encode

    logs = []
    for _ in range(2):
        driver = run(ScriptedWorld(), until_s=350)
        logs.append([encode(x) for event, commands in driver.log for x in (event, *commands)])
    assert logs[0] == logs[1]
    assert len(logs[0]) > 50


def test_without_its_log_the_run_is_the_same() -> None:
    with_log, without = ScriptedWorld(), ScriptedWorld()
    run(with_log, until_s=250)
    driver = VirtualDriver(BoxEngine(ENGINE), without, keep_log=False)
    cameras: list[Event] = [CameraAdded(at_s=0, stream=s, knobs=KNOBS, version=s, quality=0.5) for s in ("a", "b")]
    driver.run([*cameras, BoxStarted(at_s=0, window=1)], 250)
    assert driver.log == []
    assert (without.answers, without.shares) == (with_log.answers, with_log.shares)


def test_time_stops_at_until() -> None:
    driver = run(ScriptedWorld(), until_s=50)
    assert driver.now_s == 50
    assert all(event.at_s <= 50 for event, _ in driver.log)


# --- jobs that wait for something else than this device ---------------------------------------------------------------


@dataclass
class CloudWorld(ScriptedWorld):
    """Retrainings happen elsewhere: they take `seconds`, whatever their share."""

    seconds: float = 17.0
    begun_s: list[float] = field(default_factory=list)

    def start(self, command: Command, at_s: float) -> Work:
        work = super().start(command, at_s)
        if not isinstance(command, StartRetraining):
            return work
        self.begun_s.append(at_s)
        return Work.waiting(self.seconds, work.finish)


@pytest.mark.parametrize("capacity_pct", [60, 100])
def test_a_job_that_waits_ends_after_its_seconds_whatever_its_share(capacity_pct: int) -> None:
    world = CloudWorld()
    driver = run(world, until_s=99, config=replace(ENGINE, capacity_pct=capacity_pct, prep_pct=30))
    assert world.begun_s
    ends = [at for at, kind in world.answers if kind == "RetrainDone"]
    assert ends == pytest.approx([at + 17.0 for at in world.begun_s])
    assert driver.used_gpu_s["train"] == 0
    assert [kind for _, kind in world.answers].count("EpochDone") == 0


def test_a_job_that_waits_past_its_window_is_dropped() -> None:
    world = CloudWorld(seconds=500.0)
    driver = run(world, until_s=100)
    outcome = next(c.outcome for _, cs in driver.log for c in cs if isinstance(c, ReportWindow))
    assert [s.note for s in outcome.streams] == ["not finished when the window ended"] * 2
    assert world.quality == {"a": 0.5, "b": 0.5}
