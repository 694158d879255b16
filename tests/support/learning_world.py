"""A virtual box whose cameras' scenes, models and mistakes are scripted: for what the engine does over many windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scheduler.commands import (
    Command,
    Note,
    RejectModel,
    ReportPlan,
    ReportWindow,
    StartGate,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.drift import signature
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    Event,
    GateDone,
    JobFailed,
    LabelDone,
    LookDone,
    Probed,
    ProbeDone,
    ProfileDone,
    RetrainDone,
    SwapDone,
    SwapFailed,
)
from scheduler.sim.driver import VirtualDriver, Work
from scheduler.types import KnobProfile, ProfileTrial, RetrainConfig, Traits
from tests.support.looks import Scene, look

CONFIG = RetrainConfig(name="full", epochs=4)
KNOBS = (KnobProfile(name="full", demand_pct=20, quality_frac=1.0), KnobProfile(name="half", demand_pct=10, quality_frac=0.8))
DAY = Scene(phi=0.3)
NIGHT = Scene(phi=0.3, brightness=40.0, contrast=15.0, sharpness=2.0, confidence=0.25, objects=1.5, cars=0.2, turn=1.2)
ENGINE = EngineConfig(
    window_s=100, first_window_s=100, prep_pct=50, prep_max_frac=0.6, retrain=(CONFIG,), label_frames=40, min_label_frames=8,
    gate_frames=16, golden_gpu_s=0.1, cost_margin_frac=0.0, drift=True, reuse=True, calibrate=False,
)  # fmt: skip

T = TypeVar("T")
SceneOf = Callable[[str, int], Scene]


@dataclass
class LearningWorld:
    """scene_of: (camera, window) -> its scene. worth: (version, is it night) -> its true quality. A retraining makes a version that is
    worth `learns` in the scenes it was trained in, and `forgets` in the others. said: what a measurement of a version says, where that
    is not the truth. failing: names of the commands whose jobs fail; dead: versions that cannot be swapped in. A mean of versions is
    worth `means` by day and by night; None: they have none."""

    scene_of: SceneOf = lambda camera, window: DAY
    worth: dict[tuple[str, bool], float] = field(default_factory=dict)
    learns: float = 0.8
    forgets: float = 0.3
    base: float = 0.5
    means: float | None = 0.75
    failing: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    done: list[Command] = field(default_factory=list)
    gain_sd: float | None = 0.02
    said: Callable[[str, float, int], float] = lambda version, truth, window: truth

    def truth(self, version: str, camera: str, window: int) -> float:
        return self.worth.get((version, self.scene_of(camera, window) is NIGHT), self.base)

    def _measured(self, version: str, camera: str, window: int) -> float:
        return self.said(version, self.truth(version, camera, window), window)

    def start(self, command: Command, at_s: float) -> Work:
        self.done.append(command)
        if type(command).__name__ in self.failing:
            return Work(gpu_s=0.1, finish=lambda t: JobFailed(at_s=t, job=command.job, stream=command.stream, code="exception"))  # type: ignore[attr-defined]
        if isinstance(command, StartLook):
            return self._look(command)
        if isinstance(command, StartLabelling):
            return self._label(command)
        if isinstance(command, StartProbe):
            return self._probe(command)
        if isinstance(command, StartProfiling):
            return self._profile(command)
        if isinstance(command, StartRetraining):
            return self._retrain(command)
        assert isinstance(command, StartGate)
        return self._gate(command)

    def _look(self, c: StartLook) -> Work:
        scene = self.scene_of(c.stream, c.window)
        seed = 100_000 * sum(c.stream.encode()) + c.window  # every version sees the same frames
        seen = look(scene, seed, frames=c.frames, version=c.version)
        return Work(
            gpu_s=0.5,
            finish=lambda t: LookDone(at_s=t, job=c.job, stream=c.stream, look=seen, signature=signature(seen), gpu_s=0.5),
        )

    def _label(self, c: StartLabelling) -> Work:
        holdout, cost = int(0.4 * c.frames), 0.1 * c.frames
        quality = self._measured(c.version, c.stream, c.window)
        return Work(
            gpu_s=cost,
            finish=lambda t: LabelDone(
                at_s=t, job=c.job, stream=c.stream, train=c.frames - holdout, holdout=holdout, quality=quality, gpu_s=cost,
                golden_gpu_s=0.1, traits=Traits(class_frac=(1.0,), place=c.stream),
            ),
        )  # fmt: skip

    def _probe(self, c: StartProbe) -> Work:
        found = tuple(
            Probed(version=v, quality=self._measured(v, c.stream, c.window), gain_sd=self.gain_sd) for v in c.candidates
        )
        return Work(
            gpu_s=0.3,
            finish=lambda t: ProbeDone(
                at_s=t, job=c.job, stream=c.stream, serving_quality=self._measured(c.version, c.stream, c.window),
                found=found, frames=16, gpu_s=0.3,
            ),
        )  # fmt: skip

    def _profile(self, c: StartProfiling) -> Work:
        now = self.truth(c.version, c.stream, c.window)
        end = max(now, self.learns)
        curve = tuple(now + (end - now) * part for part in (0.0, 0.7, 0.9, 1.0))
        trials = tuple(
            ProfileTrial(config=config, quality=curve, init_gpu_s=0.2, gpu_s_per_epoch=0.5, n_profiled=24, n_total=24)
            for config in c.configs
        )
        return Work(
            gpu_s=1.0,
            finish=lambda t: ProfileDone(at_s=t, job=c.job, stream=c.stream, trials=trials, n_train=24, gpu_s=1.0),
        )

    def _retrain(self, c: StartRetraining) -> Work:
        members = c.members or (c.stream,)
        made = {m: f"{m}:{c.window}" for m in members}
        for member in members:
            night = self.scene_of(c.stream, c.window) is NIGHT
            self.worth[made[member], night] = self.learns
            self.worth[made[member], not night] = self.forgets
        return Work(
            gpu_s=4.0,
            finish=lambda t: RetrainDone(
                at_s=t, job=c.job, stream=c.stream, candidate=made[c.stream], gpu_s=4.0,
                candidates=tuple(made.items()) if c.members else (),
            ),
        )  # fmt: skip

    def _gate(self, c: StartGate) -> Work:
        old, new = (self._measured(v, c.stream, c.window) for v in (c.version, c.candidate))
        return Work(
            gpu_s=1.6,
            finish=lambda t: GateDone(
                at_s=t, job=c.job, stream=c.stream, candidate=c.candidate, serving_quality=old, candidate_quality=new,
                frames=16, gpu_s=1.6, gain_sd=self.gain_sd,
            ),
        )  # fmt: skip

    def swap(self, command: SwapModel, at_s: float) -> Event:
        if command.version in self.dead:
            return SwapFailed(at_s=at_s, stream=command.stream, version=command.version, text="made up")
        if command.mean_of and self.means is not None:
            mean = f"mean of {' and '.join(command.mean_of)}"
            self.worth[mean, False] = self.worth[mean, True] = self.means
            return SwapDone(at_s=at_s, stream=command.stream, version=mean, asked=command.version)
        return SwapDone(at_s=at_s, stream=command.stream, version=command.version)

    def observe(self, command: Command, at_s: float) -> tuple[Event, ...]:
        if isinstance(command, SwapModel | RejectModel | Note | ReportPlan | ReportWindow):
            self.done.append(command)
        return ()


def of(kind: type[T], commands: Sequence[Command]) -> list[T]:
    """The commands of one kind, in order."""
    return [c for c in commands if isinstance(c, kind)]


@dataclass
class Ran:
    """A run that has ended."""

    world: LearningWorld
    driver: VirtualDriver

    @property
    def engine(self) -> BoxEngine:
        return self.driver.engine

    def of(self, kind: type[T]) -> list[T]:
        """The commands of one kind, in order."""
        return of(kind, self.world.done)

    def swaps(self, *causes: str) -> list[SwapModel]:
        return [c for c in self.of(SwapModel) if not causes or c.cause in causes]

    def labels(self, camera: str = "a") -> dict[int, int]:
        """Window that was learned in -> labels that were asked for."""
        return {c.window + 1: c.frames for c in self.of(StartLabelling) if c.stream == camera}


def run(
    world: LearningWorld, *, windows: int, cameras: tuple[str, ...] = ("a",), events: tuple[Event, ...] = (), arch: str = "net",
    delivered: str = "", **changes: object,
) -> Ran:  # fmt: skip
    """`windows` windows of 100 s; the first has nothing to learn from. Every camera begins with the version `NAME-0`; delivered: what
    they are said to have come with."""
    driver = VirtualDriver(BoxEngine(replace(ENGINE, **changes)), world)  # type: ignore[arg-type]
    added: list[Event] = [
        CameraAdded(at_s=0, stream=c, knobs=KNOBS, version=f"{c}-0", quality=world.base, arch=arch, delivered=delivered)
        for c in cameras
    ]
    driver.run([*added, BoxStarted(at_s=0, window=0), *events], until_s=100.0 * windows - 1e-3)
    return Ran(world, driver)
