"""The live driver: real cameras, real jobs, the machine's clock. Events in, commands out, the end of each command is an event.

Threads: the asyncio loop owns the engine and is the only one that calls it; each camera has an inference worker, each learning job a
thread of its own that runs through a lane. They speak to the loop through `post`. Everything that decides is in `scheduler/`; what is
here only carries out, measures and reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from configs.errors import DriftboxError, JobCancelled, JobError, StorageError, UsageError, redact
from configs.schema import CameraEntry
from configs.schema.fleet import HOUSE
from edge.cameras.types import CameraChanged
from edge.closing import THREADS_S, Closing
from edge.finish import described as finish_described
from edge.gpu.base import ChangeCost, ComputeBackend, Fault, Lane, ShareReport
from edge.gpu.members import Members
from edge.inference import FellBack, InferenceWorker, Shown
from edge.journal import Journal
from edge.live_jobs import KINDS, Body, LearningCommand, LearningParts, LiveJobs
from edge.loop_calls import ask_loop
from edge.needs import Needs
from edge.objects.live import CameraObjects
from edge.objects.types import ObjectListener
from edge.profiler.asked import COST_TOLERANCE_FRAC, COST_TOLERANCE_PCT, Asked
from edge.profiler.live import LiveMenu, Profiles
from edge.queries.live import CameraQueries
from edge.rates import RateMeter
from edge.resolution import at_own_size
from edge.sampling import Sampler
from edge.scene_book import SceneBook
from edge.shadow import ShadowRules
from edge.share_book import UPDATE_S, ShareBook, described
from edge.step_pool import StepPool
from edge.swapping import KEPT_WARM_S, Swapper, no_form_s
from models.detector import Detector
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler import events as ev
from scheduler import knob_loop
from scheduler.answers import Answers
from scheduler.codec import encode
from scheduler.commands import (
    CancelJob,
    Command,
    Note,
    RejectModel,
    ReportPlan,
    ReportWindow,
    SetKnobs,
    SetShares,
    SetTimer,
    StartRetraining,
    SwapModel,
    TurnToScene,
)
from scheduler.ekya.staleness import Fading, followed, of_all
from scheduler.ekya.usual_knobs import STRIDES
from scheduler.engine import TOLD_AT, BoxEngine
from scheduler.pricing import ChangePrice
from scheduler.types import EpochReport, KnobProfile, Observation, RetrainConfig, WindowOutcome
from scheduler.videostorm.joint import Joint, in_force
from scheduler.videostorm.reprofile import ReprofileRules
from scheduler.videostorm.types import Utility
from streams.pulse import Pulse, Threaded
from streams.source import Camera, CameraState

log = logging.getLogger("driftbox")

T = TypeVar("T")
Tell = Callable[[Shown], None]
Gate = Callable[[str, Tell, Callable[[], bool]], Tell]

#: Seconds between two looks at cameras and costs.
TICK_S = 0.5
#: Seconds between two questions to the database whether a command has changed something in it.
FOLLOW_S = 0.1
#: Share kept on top of the measured demand, so that an average share carries an uneven load.
DEMAND_HEADROOM = 1.15

#: What a rate leaves of the quality must be off by more than this for plans to hear of it.
RATE_TOLERANCE = 0.03
#: So many cameras tell what others are like; more of them would only take time.
OTHERS_MOST = 16

#: A frame on which a model that has just taken over computes for so long is given to the one before it.
HANGS_S = 5.0

#: Whose complaint it is when knobs and shares cannot be divided anew, and when a look at the box, or at what others wrote, fails.
DIVIDING, LOOKING, DATABASE = "knobs between plans", "looking at the box", "database"

#: Longest that another thread waits for the loop, and that a camera's last frame is waited for when it is taken out.
ASK_S, WORKER_ENDS_S = 10.0, 3.0

#: How torch says that memory ran out, on the CPU and on CUDA.
OUT_OF_MEMORY = ("can't allocate memory", "out of memory")


def knob_profiles(fps: float, cost_s: float) -> tuple[KnobProfile, ...]:
    """The inference profile of a camera watched at `fps` whose model needs `cost_s` seconds of a core (or GPU) per frame."""
    return tuple(
        KnobProfile(
            name="every" if stride == 1 else f"1/{stride}",
            demand_pct=round(100 * DEMAND_HEADROOM * fps * cost_s / stride, 3),
            quality_frac=quality,
            fps=fps / stride,
        )
        for stride, quality in STRIDES
    )


@dataclass(kw_only=True)
class Watched:
    """A camera that runs: where its frames come from and who analyses them. retrain: how its model may be retrained, empty: as the
    box's configuration says; menu: its stored profile, None: the default one (`STRIDES`), of which rates follows what its frames
    say, as last found in fading (None: nothing), and before that what the box's other cameras say (others); queries: what is asked
    of it; asked: what that may run with and needs, running: the knobs in force, None: it rests; objects:
    who follows its objects, None: nobody; quarantined: why it is left alone until somebody lifts that (`edge.watchdog`), '': it is not;
    learns: its model may; entry: how it is configured, None: nobody said. A camera that is changed becomes another `Watched`."""

    camera: Camera
    worker: InferenceWorker
    fps: float
    height_px: int
    title: str
    arch: str
    knobs: tuple[KnobProfile, ...]
    profiled_cost_s: float
    task: Task = DETECTION
    retrain: tuple[RetrainConfig, ...] = ()
    live: bool = True
    menu: LiveMenu | None = None
    rates: RateMeter | None = None
    fading: Fading | None = None
    others: Fading | None = None
    queries: CameraQueries | None = None
    asked: Asked = field(default_factory=Asked)
    running: Joint | None = None
    objects: CameraObjects | None = None
    quarantined: str = ""
    learns: bool = True
    entry: CameraEntry | None = None

    def joined(self) -> tuple[Joint, ...]:
        """What plans may choose from: its own knobs with those of its queries."""
        return self.asked.joined(self.knobs, self.fps)

    def offered(self) -> tuple[KnobProfile, ...]:
        """The same, as plans know it."""
        return tuple(joint.knobs for joint in self.joined())

    def run(self, knobs: str | None) -> Joint | None:
        """Sets the knobs of that name, the camera's and its queries'; None: it rests. From any thread."""
        self.running = in_force(self.joined(), knobs)
        if self.menu is not None:
            self.menu.knob = self.running.base.name if self.running is not None else None
        if self.queries is not None and self.running is not None:
            for query, setting in {**self.asked.usual(), **self.running.settings}.items():
                with contextlib.suppress(UsageError):  # asked otherwise by now: it keeps what it has
                    self.queries.set_knobs(query, setting)
        return self.running

    def asks_otherwise(self, *, with_cpu: bool) -> bool:
        """Whether its queries need something else than what was offered last. with_cpu: their thread works on the device."""
        cost_s = self.queries.frame_cost_s(with_cpu=with_cpu) if self.queries is not None else None
        return cost_s is not None and self.asked.measured(cost_s, running=self.running, fps=self.fps)

    def measured(self, cost_s: float) -> tuple[KnobProfile, ...] | None:
        """What a frame costs with the knobs in force: the knobs as they are to be planned with from now on; None: as before."""
        expected_s = self.menu.expected_cost_s() if self.menu is not None else self.profiled_cost_s
        if not _differs(cost_s, expected_s, self.fps):
            return None
        self.profiled_cost_s = cost_s
        return self.menu.corrected(cost_s) if self.menu is not None else self._usual()

    def rated(self, at_s: float, others: Callable[[], Fading | None] = lambda: None) -> tuple[KnobProfile, ...] | None:
        """What its own frames say of slower rates, where nothing was profiled: the knobs as they are to be planned with from now on;
        None: as before. others: what the box's other cameras say."""
        if self.rates is None or self.menu is not None or not self.rates.due(at_s):
            return None
        self.fading, self.others = self.rates.look(at_s) or self.fading, others()
        knobs = self._usual()
        off = max(abs(new.quality_frac - old.quality_frac) for new, old in zip(knobs, self.knobs, strict=True))
        return knobs if off > RATE_TOLERANCE else None

    def turned(self, scene: int) -> tuple[KnobProfile, ...] | None:
        """It sees another scene: the knobs as they are to be planned with from now on; None: as before."""
        found = self.rates.turn_to(scene) if self.rates is not None else None
        if self.rates is None or self.menu is not None:
            return None
        self.fading = found
        return self._usual()

    def _usual(self) -> tuple[KnobProfile, ...]:
        return followed(followed(knob_profiles(self.fps, self.profiled_cost_s), self.others), self.fading)


@dataclass(kw_only=True)
class Job:
    """A learning job in progress. done_frac: None until it is known."""

    stream: str
    kind: str
    lane: Lane
    thread: threading.Thread
    done_frac: float | None = None


def _differs(cost_s: float, profiled_s: float, fps: float) -> bool:
    """Whether a measured cost of a frame is worth telling the planner, who believes in `profiled_s`."""
    return abs(cost_s - profiled_s) > max(COST_TOLERANCE_FRAC * profiled_s, COST_TOLERANCE_PCT / (100 * max(fps, 1e-3)))


def customer_of(entry: Watched) -> str:
    """Whose camera it is."""
    return entry.entry.customer if entry.entry is not None else HOUSE


def trained_form(detector: Detector, camera_id: str) -> Detector:
    """Serves a model as it was trained."""
    return detector


@dataclass(kw_only=True)
class Parts(LearningParts):
    """What a runtime is made of; `edge.wiring` chooses the concrete classes. serve: (a model as trained, its camera) -> the form that
    serves frames (`edge.serving`); serve_later: the same where nobody may wait for the form to be made; form_s: how long `serve` may
    take for a model. shadow: how a new model must prove itself on live frames. profiles: the cameras' stored profiles; reprofile: when
    one is said to have grown old, None: never.
    on_cpu: models compute on the processor, as the threads of queries do. frame_threads: who does the cameras' frames, None: each
    camera's own thread.
    object_listeners: told every event of a tracked object, after it is in the database, from the thread that writes there."""

    engine: BoxEngine
    backend: ComputeBackend
    journal: Journal
    sampler: Sampler
    serve: Callable[[Detector, str], Detector] = trained_form
    serve_later: Callable[[Detector, str], Detector] = trained_form
    form_s: Callable[[Detector], float] = no_form_s
    shadow: ShadowRules = field(default_factory=ShadowRules)
    profiles: Profiles | None = None
    reprofile: ReprofileRules | None = None
    on_cpu: bool = True
    frame_threads: StepPool | None = None
    listeners: list[Callable[[object], None]] = field(default_factory=list)
    object_listeners: list[ObjectListener] = field(default_factory=list)


class BoxRuntime:
    """Runs the box. `run` returns after `stop` or when a StopRequested was handled."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.watched: dict[str, Watched] = {}
        self.jobs: dict[str, Job] = {}
        self.shares_pct: dict[str, float] = {}
        self.spare_pct = 0.0
        self.plan: tuple[ReportPlan, float] | None = None
        self.outcomes: deque[tuple[WindowOutcome, float, float]] = deque(maxlen=20)
        #: What each job was promised and received, per closed window; as far back as `outcomes`.
        self.window_shares: deque[tuple[int, tuple[ShareReport, ...]]] = deque(maxlen=20)
        self._members = Members(parts.backend)
        self._scene_book = SceneBook(parts.store)
        self._share_book = ShareBook(self._members.report, parts.clock.monotonic_s())
        self.notes: deque[tuple[float, Note]] = deque(maxlen=50)
        self.ready = False
        self.started_utc = parts.clock.utc_s()
        self.window_opened_utc = self.started_utc
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._inbox: asyncio.Queue[Callable[[float], ev.Event]] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self.pulse = Pulse(parts.clock.monotonic_s)
        self.closing = Closing()
        #: What stands between a camera's worker and those who are told of its frames: (camera, tell, are they behind) -> tell.
        self._gate: Gate | None = None
        #: Called first when the box ends: who looks after it must not bring back what is being ended.
        self.before_end: list[Callable[[], None]] = []
        self._last_s = float("-inf")
        self._journal_problem = ""
        self._sampling_problem = ""
        self._complaints: dict[str, str] = {}
        self._going_back: dict[str, str] = {}
        self._observed: dict[str, tuple[Observation, ...]] | None = None  # as it was when the box started
        self._live_jobs = LiveJobs(parts, on_epoch=self._on_epoch, task_of=self._task_of, members=self._members)
        self._helpers: list[threading.Thread] = []
        self._needs = Needs(parts.backend)
        self._known_faults: set[Fault] = set()
        self._seen_knobs: object = None
        self.swapper = Swapper(
            shelf=parts.shelf, store=parts.store, clock=parts.clock, rules=parts.shadow, serve=lambda d, camera: parts.serve(d, camera),
            serve_later=lambda d, camera: parts.serve_later(d, camera), form_s=lambda d: parts.form_s(d),
            left_s=lambda: parts.engine.state.ends_s - parts.clock.monotonic_s(),
        )  # fmt: skip
        self._execute: dict[type[Command], Callable[..., None]] = {
            SetTimer: self._set_timer,
            SetShares: self._set_shares,
            SetKnobs: self._set_knobs,
            TurnToScene: self._turn_to_scene,
            **dict.fromkeys(KINDS, self._start_job),
            CancelJob: self._cancel_job,
            SwapModel: self._swap_model,
            RejectModel: self._reject_model,
            ReportPlan: self._report_plan,
            ReportWindow: self._report_window,
            Note: self._note,
        }

    # --- from other threads -------------------------------------------------------------------------------------------

    def post(self, make: Callable[[float], ev.Event]) -> None:
        """Hands an event to the loop; it is stamped when its turn comes, so times never run backwards."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to be told
                loop.call_soon_threadsafe(self._inbox.put_nowait, make)

    def stop(self) -> None:
        self.post(lambda at_s: ev.StopRequested(at_s=at_s))

    def quarantine(self, camera_id: str, reason: str) -> None:
        """Leaves a camera alone that does harm or nothing: its share goes to the others. `lift` ends that."""
        self._soon(self._set_aside, camera_id, reason)

    def lift(self, camera_id: str) -> None:
        """Tries a camera again that was left alone. No-op for any other."""
        self._soon(self._take_back, camera_id)

    def restart_inference(self, camera_id: str) -> None:
        """Gives a camera's inference another thread, in a lane of its own where the old one still is in its lane. KeyError: no such
        camera."""
        worker = self.watched[camera_id].worker
        if worker.keeps_its_lane:
            worker.begin_anew()
            return
        self.parts.backend.close_lane(infer_job(camera_id))
        worker.begin_anew(self.parts.backend.open_lane(infer_job(camera_id), role="infer"))
        self._soon(lambda: self._members.set_shares(self.shares_pct))

    def ask(self, work: Callable[[], T], *, within_s: float = ASK_S) -> T:
        """Does `work` in the loop's thread, for any other thread, and gives what it gives. Raises what it raises, and JobError (code
        'not_running') when the box does not run (yet, any more), or its loop does not come round; then nothing was done."""
        return ask_loop(self._loop, work, within_s=within_s)

    def handle(self, make: Callable[[float], ev.Event]) -> None:
        """Tells the engine something that happened, and carries out what it says. Loop thread only."""
        self._handle(make)

    def _soon(self, work: Callable[..., None], *arguments: object) -> None:
        """In the loop's thread, from any other."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(work, *arguments)

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def run(self, watched: list[Watched], first_window: int) -> None:
        """Starts the given cameras and opens window `first_window`; returns when the box was stopped."""
        self._loop = asyncio.get_running_loop()
        self._begin_segment()
        self.parts.sampler.window = first_window
        for entry in watched:
            self.add_camera(entry)
        self.parts.sampler.start()
        self._handle(lambda at_s: ev.BoxStarted(at_s=at_s, window=first_window))
        beside = [asyncio.create_task(self._tick_for_ever()), asyncio.create_task(self._follow_for_ever())]
        try:
            while not self._stopped.is_set():
                self._handle(await self._inbox.get())
        finally:
            for task in beside:
                task.cancel()
            await asyncio.to_thread(self._shut_down)

    def add_camera(self, entry: Watched) -> None:
        """Starts a camera and tells the engine. Loop thread only."""
        camera_id = entry.camera.id
        # Never changed in place: others look at it from their threads.
        self.watched = self.watched | {camera_id: entry}
        self._want(entry, entry.fps)
        entry.camera.start()
        entry.worker.on_fall_back = functools.partial(self._fell_back, camera_id)
        self._listen(entry)
        if entry.objects is not None:
            entry.objects.start()
        entry.worker.start()
        self.parts.sampler.add(entry.camera)
        entry.asked = self._asked_of(camera_id, entry)
        serving = self.parts.shelf.serving_version(camera_id)
        self._handle(
            lambda at_s: ev.CameraAdded(
                at_s=at_s,
                stream=camera_id,
                knobs=entry.offered(),
                version=serving.id,
                quality=serving.quality,
                observations=self._observations().get(camera_id, ()),
                cached=self.parts.shelf.cached(camera_id),
                replaced=self.parts.shelf.replaced(camera_id),
                delivered=self.parts.shelf.delivered(camera_id),
                scenes=self._scene_book.of(camera_id),
                offered=self.parts.shelf.offered(camera_id),
                retrain=entry.retrain,
                arch=f"{entry.task.name}/{entry.arch}",
                utility=utility_of(entry),
                learns=entry.learns,
                customer=customer_of(entry),
            )  # fmt: skip
        )
        self._tell(CameraChanged(camera=camera_id, entry=entry.entry))

    def remove_camera(self, camera_id: str) -> Watched:
        """Takes a camera out: the engine gives its share to the others. What it leaves behind is for `put_away`, beside the loop.
        KeyError: no such camera. Loop thread only."""
        entry = self.watched[camera_id]
        self.watched = {id: other for id, other in self.watched.items() if id != camera_id}
        self.parts.sampler.remove(camera_id)
        self.swapper.give_up(camera_id, "its camera was taken out")
        self._complaints.pop(camera_id, None)
        self._going_back.pop(camera_id, None)
        entry.worker.stop()
        self._handle(lambda at_s: ev.CameraRemoved(at_s=at_s, stream=camera_id))
        self.parts.backend.cancel(infer_job(camera_id))
        self._tell(CameraChanged(camera=camera_id, entry=None))
        return entry

    def put_away(self, entry: Watched) -> None:
        """Ends what a camera that was taken out has left: its threads, models and lane. May take seconds; not in the loop's thread."""
        if entry.queries is not None:
            entry.queries.stop()
        if entry.objects is not None:
            entry.objects.stop()
        entry.camera.stop()
        entry.worker.join(WORKER_ENDS_S)
        entry.worker.close()
        self.parts.backend.close_lane(infer_job(entry.camera.id))

    def change_camera(self, after: Watched) -> Watched:
        """Goes on watching a camera as `after` says: the same worker and task; perhaps another stream (started already), rate, size,
        name, queries, objects, whether it learns. Returns what it was; its stream, queries and objects are still there when `after` has
        others; whoever calls starts and stops these, for it may take the disk its time.
        KeyError: no such camera. Loop thread only."""
        camera_id = after.camera.id
        before = self.watched[camera_id]
        self.watched = self.watched | {camera_id: after}
        if after.camera is not before.camera:
            after.worker.turn_to(after.camera)
            self.parts.sampler.add(after.camera)
        self._listen(after)
        if after.learns != before.learns:
            self._handle(lambda at_s: ev.LearningSwitched(at_s=at_s, stream=camera_id, learns=after.learns))
        if customer_of(after) != customer_of(before):
            self._handle(lambda at_s: ev.CustomerChanged(at_s=at_s, stream=camera_id, customer=customer_of(after)))
        if after.queries is not before.queries:
            self._handle(lambda at_s: ev.AskedAnew(at_s=at_s, stream=camera_id, utility=utility_of(after)))
            after.asked = self._asked_of(camera_id, after)
        if after.offered() != before.offered():
            self._handle(lambda at_s: ev.KnobsMeasured(at_s=at_s, stream=camera_id, knobs=after.offered()))
        stream = self.parts.engine.state.streams.get(camera_id)
        self._set_knobs(SetKnobs(stream=camera_id, knobs=stream.knob if stream is not None else None))
        self._tell(CameraChanged(camera=camera_id, entry=after.entry))
        return before

    def _listen(self, entry: Watched) -> None:
        looks = [one.on_shown for one in (entry.rates, entry.queries, entry.objects) if one is not None]
        entry.worker.hold = entry.queries.behind if entry.queries is not None else _nobody_waits
        entry.worker.after_s = entry.queries.after_s if entry.queries is not None else _nothing_after
        entry.worker.weight = (utility_of(entry) or self.parts.engine.config.knob_utility).quality_weight
        tell: Tell = looks[0] if len(looks) == 1 else functools.partial(_all_look, looks)
        entry.worker.on_shown = (
            tell if self._gate is None else self._gate(entry.camera.id, tell, functools.partial(_behind, entry))
        )

    def stand_between(self, gate: Gate) -> None:
        """From now on `gate` says of every camera who is told of which frame (a camera that changes boxes: `edge.fleet`)."""
        self._gate = gate
        self._soon(self._listen_anew)

    def _listen_anew(self) -> None:
        for entry in self.watched.values():
            self._listen(entry)

    def _want(self, entry: Watched, fps: float) -> None:
        """The sampler has its own rate, which the camera must give in any case."""
        entry.camera.want(fps=max(fps, self.parts.sampler.fps), height_px=entry.height_px, regions=entry.task.wants_regions)

    def _observations(self) -> dict[str, tuple[Observation, ...]]:
        """What came of earlier predictions, read once: all cameras stand in the same rows."""
        if self._observed is None:
            self._observed = self.parts.store.observations()
        return self._observed

    def _handle(self, make: Callable[[float], ev.Event]) -> None:
        now_s = max(self._last_s, self.parts.clock.monotonic_s())
        self._last_s = now_s
        event = make(now_s)
        commands = self.parts.engine.handle(event)
        self._write([encode(event), *(encode(command) for command in commands)])
        self._tell(event)
        for command in commands:
            try:
                self._execute[type(command)](command)
            except Exception as error:  # a command that cannot be carried out must not end the box: others go on
                log.exception("command %s failed", type(command).__name__)
                self._note(Note(stream="", code="command-failed", text=f"{type(command).__name__}: {redact(str(error))}"))
                self._answer_failure(command, error)
        if not self._journal_problem and self.parts.journal.wants_rotation:
            self._begin_segment()
        if isinstance(event, ev.StopRequested):
            self._stopped.set()

    def _answer_failure(self, command: Command, error: Exception) -> None:
        """The engine waits for an answer to these; one that could not even be started has failed."""
        code, text = failure_of(error)
        if isinstance(command, LearningCommand):
            self.post(functools.partial(_failed_event, command.job, command.stream, code, text))
        elif isinstance(command, SwapModel):
            self.post(functools.partial(_swap_failed_event, command.stream, command.version, text))

    def _write(self, lines: list[str]) -> None:
        """A disk that is full must not stop the cameras: the journal begins a new segment when there is room again."""
        if self._journal_problem:
            return
        try:
            for line in lines:
                self.parts.journal.append(line)
        except StorageError as error:
            self._journal_failed(error)

    def _begin_segment(self) -> None:
        try:
            self.parts.journal.start_segment(encode(self.parts.engine.checkpoint()))
        except StorageError as error:
            self._journal_failed(error)
            return
        if self._journal_problem:
            log.info("the journal goes on")
        self._journal_problem = ""

    def _journal_failed(self, error: StorageError) -> None:
        """Said once: it is tried again with every tick."""
        known, self._journal_problem = self._journal_problem, str(error)
        if not known:
            self._note(Note(stream="", code="journal", text=str(error)))

    def _tell(self, thing: object) -> None:
        for listener in self.parts.listeners:
            try:
                listener(thing)
            except Exception:  # telemetry must not touch the box
                log.exception("a listener failed")

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
                self._complaints.pop(LOOKING, None)
            except Exception as error:  # a task that dies takes all later looks with it, and nobody would see why
                self._complain(LOOKING, redact(f"{type(error).__name__}: {error}"))

    async def _follow_for_ever(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_S)
            self.follow()

    def follow(self) -> None:
        """Looks whether `driftbox models promote` or `rollback` has written another model into the database. Loop thread only."""
        try:
            if self.parts.store.changed_by_others():
                for camera_id, entry in list(self.watched.items()):
                    self._follow_choice(camera_id, entry)
                    self._follow_offers(camera_id)
                    self._follow_profile(camera_id, entry)
                    self._follow_asked(camera_id, entry)
                self._complaints.pop(DATABASE, None)
        except StorageError as error:
            self._complain(DATABASE, str(error))

    def _set_aside(self, camera_id: str, reason: str) -> None:
        entry = self.watched.get(camera_id)
        if entry is None or entry.quarantined:
            return
        entry.quarantined = redact(reason) or "unknown"
        entry.worker.set_knobs(None)
        self._help(f"{camera_id}/quarantine", entry.camera.stop)
        self._note(Note(stream=camera_id, code="quarantined", text=f"the camera is left alone: {entry.quarantined}"))
        if entry.live:
            entry.live = False
            self._handle(lambda at_s: ev.CameraHealth(at_s=at_s, stream=camera_id, live=False))

    def _take_back(self, camera_id: str) -> None:
        entry = self.watched.get(camera_id)
        if entry is None or not entry.quarantined:
            return
        entry.quarantined = ""
        stream = self.parts.engine.state.streams.get(camera_id)
        self._set_knobs(SetKnobs(stream=camera_id, knobs=stream.knob if stream else None))  # the engine tells changes only
        if not entry.worker.is_alive() or entry.worker.silent_s() > 0:
            self.restart_inference(camera_id)
        self._help(f"{camera_id}/lift", functools.partial(_reopen, entry.camera))
        self._note(Note(stream=camera_id, code="lifted", text="the camera is tried again"))

    def tick(self) -> None:
        """Looks at cameras, costs, serving models and the disk, and tells the engine what changed. Loop thread only."""
        self.pulse.beat()
        self._share_book.update(self.parts.clock.monotonic_s(), at_least_s=UPDATE_S)
        for camera_id, entry in list(self.watched.items()):
            try:
                self._look_at(camera_id, entry)
                self._complaints.pop(camera_id, None)
            except Exception as error:  # a busy database, say: the next look may do better, and the others are looked at
                self._complain(camera_id, redact(f"{type(error).__name__}: {error}"))
        self._look_at_faults()
        try:
            self._look_at_knobs()
        except Exception as error:  # knobs and shares stay as they are: the next plan, or the next change, may do better
            self._complain(DIVIDING, redact(f"{type(error).__name__}: {error}"))
        if self._journal_problem:
            self._begin_segment()
        known, self._sampling_problem = self._sampling_problem, self.parts.sampler.problem
        if self._sampling_problem and not known:
            self._note(Note(stream="", code="sampling", text=f"nothing is sampled: {self._sampling_problem}"))
        self.ready = self.ready or all(w.worker.frames > 0 or not w.live for w in self.watched.values())

    def _look_at_faults(self) -> None:
        """What the compute backend has to tell. A job that hangs is given up, for its thread cannot be ended: the engine goes on."""
        faults = self.parts.backend.faults()
        for fault in faults:
            if fault in self._known_faults:
                continue
            stream = fault.job.partition("/")[0]
            text = f"{fault.job}: {fault.text} ({fault.remedy})" if fault.job else f"{fault.text} ({fault.remedy})"
            self._note(Note(stream=stream, code=f"compute-{fault.code}", text=redact(text)))
            if fault.code == "hung" and fault.removed and self.jobs.pop(fault.job, None) is not None:
                self._members.cancel(fault.job)
                self.post(functools.partial(_failed_event, fault.job, stream, fault.code, fault.text))
        self._known_faults = set(faults)

    def _look_at_knobs(self) -> None:
        """Tells the engine when knobs and inference shares are worth dividing anew, or a recording is late or no longer so."""
        engine = self.parts.engine
        lags_s = {camera_id: entry.camera.lag_s for camera_id, entry in self.watched.items()}
        # Whole seconds: a backlog is no matter of milliseconds, and what did not change is not thought over.
        loads = tuple(ev.Load(stream=camera_id, lag_s=round(s)) for camera_id, s in sorted(lags_s.items()) if round(s) > 0)
        seen = knob_loop.seen(engine.state, loads)
        if seen == self._seen_knobs:
            return
        self._seen_knobs = seen
        if knob_loop.due(engine.state, engine.config, loads):
            self._handle(lambda at_s: ev.KnobsDue(at_s=at_s, loads=loads))
        self._complaints.pop(DIVIDING, None)

    def _complain(self, camera_id: str, text: str) -> None:
        if self._complaints.get(camera_id) != text:
            log.warning("%s: %s", camera_id, text)
        self._complaints[camera_id] = text

    def _look_at(self, camera_id: str, entry: Watched) -> None:
        if entry.quarantined:
            return
        status = entry.camera.status()
        live = status.state is CameraState.LIVE
        gone = status.state in (CameraState.STALLED, CameraState.WAITING, CameraState.ENDED, CameraState.STOPPED)
        if (entry.live and gone) or (not entry.live and live):
            entry.live = live
            log.info("camera %s: %s %s", camera_id, status.state.value, status.error)
            self._handle(lambda at_s: ev.CameraHealth(at_s=at_s, stream=camera_id, live=live))
            self._tell(status)
        stream = self.parts.engine.state.streams.get(camera_id)
        if stream is not None and not stream.candidate:  # what others have missed; a candidate may be on its way
            self._follow_choice(camera_id, entry)
        entry.worker.let_go(after_s=KEPT_WARM_S)
        if entry.worker.break_off(after_s=HANGS_S):
            log.warning("%s: the newest model hangs on a live frame; it was told to stop", camera_id)
        cost_s = entry.worker.cost_s()
        knobs = (entry.measured(cost_s) if cost_s else None) or entry.rated(
            self.parts.clock.monotonic_s(), functools.partial(self._others_say, camera_id)
        )
        entry.knobs = knobs or entry.knobs
        if entry.asks_otherwise(with_cpu=self.parts.on_cpu):
            self._offer_with_queries(camera_id, entry)
        elif knobs is not None:
            self._handle(lambda at_s: ev.KnobsMeasured(at_s=at_s, stream=camera_id, knobs=entry.offered()))
        self._review_profile(camera_id, entry, cost_s=cost_s, drifted=False)
        self._review_asked(camera_id, entry, drifted=False)

    def _others_say(self, camera_id: str) -> Fading | None:
        """What slower rates leave of the quality of the box's other cameras, some of them: one more is likely to be like them."""
        others = (entry.fading for other, entry in self.watched.items() if other != camera_id and entry.fading is not None)
        return of_all(itertools.islice(others, OTHERS_MOST))

    def _follow_profile(self, camera_id: str, entry: Watched) -> None:
        """Takes up a profile that `driftbox profile` has written."""
        if self.parts.profiles is None:
            return
        found = self.parts.profiles.newer(camera_id, entry.menu, at_s=self.parts.clock.monotonic_s())
        if found is None:
            return
        if found.reduces:
            at_own_size(entry.worker.serving()[1])
        found.knob = entry.running.base.name if entry.running is not None else None  # a name means the same in every menu
        entry.menu, entry.knobs = found, found.knobs
        self._handle(lambda at_s: ev.KnobsMeasured(at_s=at_s, stream=camera_id, knobs=entry.offered()))
        text = f"plans use version {found.version} of its profile: {len(found.knobs)} settings of its knobs"
        self._note(Note(stream=camera_id, code="profile-taken-up", text=text))

    def _follow_asked(self, camera_id: str, entry: Watched) -> None:
        """Takes up profiles of its queries that `driftbox profile --query` has written."""
        if self.parts.profiles is None or entry.queries is None:
            return
        at_s = self.parts.clock.monotonic_s()
        found = self.parts.profiles.asked(camera_id, entry.queries.specs(), known=entry.asked, at_s=at_s)
        if found is None:
            return
        entry.asked = found
        self._offer_with_queries(camera_id, entry)
        for query, menu in sorted(found.menus.items()):
            text = f"plans use version {found.versions[query]} of the profile of {query}: {len(menu.options)} settings of its knobs"
            self._note(Note(stream=camera_id, code="profile-taken-up", text=text))

    def _offer_with_queries(self, camera_id: str, entry: Watched) -> None:
        """Its queries may run with something else than before: a name that stays in force may mean another setting of theirs."""
        self._handle(lambda at_s: ev.KnobsMeasured(at_s=at_s, stream=camera_id, knobs=entry.offered()))
        stream = self.parts.engine.state.streams.get(camera_id)
        if stream is not None and entry.running is not None:
            entry.run(stream.knob)

    def _asked_of(self, camera_id: str, entry: Watched) -> Asked:
        """What the stored profiles of its queries offer."""
        if self.parts.profiles is None or entry.queries is None:
            return Asked()
        return self.parts.profiles.asked(camera_id, entry.queries.specs(), at_s=self.parts.clock.monotonic_s()) or Asked()

    def _review_profile(self, camera_id: str, entry: Watched, *, cost_s: float | None, drifted: bool) -> None:
        """Says when a camera should be profiled anew (`scheduler.videostorm.reprofile`)."""
        if entry.menu is None or self.parts.reprofile is None:
            return
        at_s = self.parts.clock.monotonic_s()
        why = entry.menu.due(self.parts.reprofile, at_s=at_s, cost_s=cost_s, drifted=drifted)
        if not why:
            return
        again = self.parts.reprofiling is not None
        then = "it is profiled anew when there is time" if again else f"run driftbox profile {camera_id}"
        text = f"its profile (version {entry.menu.version}) has grown old: {why}; {then}"
        self._note(Note(stream=camera_id, code="profile-old", text=text))
        if again:
            self._handle(lambda at_s: ev.ProfileOld(at_s=at_s, stream=camera_id, why=why))

    def _review_asked(self, camera_id: str, entry: Watched, *, drifted: bool) -> None:
        """The same of its queries; one that has no profile is given one by a box that profiles by itself."""
        if self.parts.reprofile is None:
            return
        again = self.parts.reprofiling is not None
        at_s = self.parts.clock.monotonic_s()
        for query, why in entry.asked.due(self.parts.reprofile, at_s=at_s, drifted=drifted, missing=again).items():
            by_itself = again and query in entry.asked.by_itself
            then = "it is profiled when there is time" if by_itself else f"run driftbox profile {camera_id} --query {query}"
            text = f"the profile of its query {query} has grown old: {why}; {then}"
            if query not in entry.asked.menus:
                text = f"its query {query} has no profile in use; {then}"
            self._note(Note(stream=camera_id, code="profile-old", text=text))
            if by_itself:
                self._handle(functools.partial(_old_query, camera_id, query, why))

    def _follow_choice(self, camera_id: str, entry: Watched) -> None:
        """Serves what the database says when that is neither what serves nor what is about to: somebody else has written it. At once
        when the model is still warm, else when a helper has loaded it."""
        stream = self.parts.engine.state.streams.get(camera_id)
        wanted = self.parts.shelf.serving_version(camera_id).id
        here = (entry.worker.version(), stream.version if stream else wanted)
        if wanted == here[0] == here[1] or wanted == self.swapper.version_under_way(camera_id):
            self._going_back.pop(camera_id, None)
            return
        if self._going_back.get(camera_id) == wanted:  # under way, or it failed and that was said
            return
        self._going_back[camera_id] = wanted
        if entry.worker.kept(wanted) is not None:
            self._go_back(camera_id, entry, wanted)
        else:
            self._help(f"{camera_id}/rollback", functools.partial(self._go_back, camera_id, entry, wanted))

    def _follow_offers(self, camera_id: str) -> None:
        """Tells the engine of models that `driftbox models import` has brought in for a camera's gate to judge."""
        stream = self.parts.engine.state.streams.get(camera_id)
        offered = self.parts.shelf.offered(camera_id)
        if stream is None or set(offered) <= set(stream.offered):
            return
        cached = self.parts.shelf.cached(camera_id)
        self._handle(lambda at_s: ev.ModelsOffered(at_s=at_s, stream=camera_id, cached=cached, offered=offered))

    def _go_back(self, camera_id: str, entry: Watched, version: str) -> None:
        """In the loop's thread when it is quick, else in a helper's."""
        try:
            self.swapper.go_back(entry.worker, camera_id, version)
        except Exception as error:  # the model that serves goes on
            _, text = failure_of(error)
            serving = entry.worker.version()
            self.note_from_anywhere(
                Note(stream=camera_id, code="rollback-failed", text=f"{version} cannot serve, {serving} goes on: {text}")
            )
            # One truth: what the database says serves is what is never tidied away.
            self._keep(functools.partial(self.parts.shelf.admit, camera_id, serving, None, f"{version} cannot serve: {text}"))
            return
        self.post(lambda at_s: ev.ModelRolledBack(at_s=at_s, stream=camera_id, version=version))

    def _fell_back(self, camera_id: str, fell: FellBack) -> None:
        """A new model failed on live frames and the one before serves again. Called from the camera's worker, so only passed on."""
        self._going_back[camera_id] = fell.version  # the tick is not to take it for somebody else's choice
        self._help(f"{camera_id}/put-back", functools.partial(self._put_back, camera_id, fell))

    def _put_back(self, camera_id: str, fell: FellBack) -> None:
        if fell.failed == fell.version:  # the model stays what it is; only where it runs does not change
            text = f"{fell.version} goes on where it ran before: the new place {fell.reason}"
            self.note_from_anywhere(Note(stream=camera_id, code="hand-over-failed", text=text))
            return
        try:
            self.parts.shelf.put_back(camera_id, failed=fell.failed, version=fell.version, reason=fell.reason)
        except Exception as error:  # said; the worker serves the old model in any case, and the tick compares again
            log.warning("%s: not recorded that %s was put back: %s", camera_id, fell.version, redact(str(error)))
        text = f"{fell.failed} was taken back, {fell.version} serves again: it {fell.reason}"
        self.note_from_anywhere(Note(stream=camera_id, code="model-put-back", text=text))
        self.post(
            lambda at_s: ev.ModelRolledBack(
                at_s=at_s, stream=camera_id, version=fell.version, reason=f"{fell.failed} {fell.reason}"
            )
        )

    def note_from_anywhere(self, note: Note) -> None:
        """For people, from any thread."""
        self._soon(self._note, note)

    def _help(self, name: str, run: Callable[[], None]) -> None:
        """A short piece of work beside the loop."""
        self._helpers = [thread for thread in self._helpers if thread.is_alive()]
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._helpers.append(thread)

    def _shut_down(self) -> None:
        """Everybody is told first, then waited for together: the slowest counts, not the sum."""
        self.pulse.rest()
        for work in self.before_end:
            work()
        for timer in self._timers.values():
            timer.cancel()
        self.swapper.stop()
        for job_id in list(self.jobs):
            self._members.cancel(job_id)
        ends: dict[str, Callable[[], None]] = {"sampler": self.parts.sampler.stop}
        for camera_id, entry in self.watched.items():
            entry.worker.stop()
            if entry.queries is not None:
                ends[f"{camera_id}/queries"] = entry.queries.stop
            if entry.objects is not None:
                ends[f"{camera_id}/objects"] = entry.objects.stop
            self.parts.backend.cancel(infer_job(camera_id))
            ends[f"{camera_id}/camera"] = entry.camera.stop
            ends[f"{camera_id}/inference"] = functools.partial(entry.worker.join, THREADS_S)
        threads = [job.thread for job in list(self.jobs.values())] + self._helpers
        left = self.closing.all_at_once(ends) + self.closing.join(threads)
        if left:
            log.warning("not waited for: %s", ", ".join(sorted(left)))

    # --- commands: quick ones -----------------------------------------------------------------------------------------

    def _set_timer(self, command: SetTimer) -> None:
        assert self._loop is not None
        if command.timer in self._timers:
            self._timers[command.timer].cancel()
        delay_s = max(0.0, command.at_s - self.parts.clock.monotonic_s())
        self._timers[command.timer] = self._loop.call_later(delay_s, self._timer_fires, command.timer)

    def _timer_fires(self, timer: str) -> None:
        """In the loop. Whose turn it is depends on what models have answered, so that is told before."""
        if timer in TOLD_AT:
            for camera_id, entry in self.watched.items():
                if (answers := entry.worker.answers.take()) is not None:
                    self._inbox.put_nowait(functools.partial(_answered_event, camera_id, answers))
        self._inbox.put_nowait(functools.partial(_timer_event, timer))

    def _set_shares(self, command: SetShares) -> None:
        self.shares_pct = dict(command.shares_pct)
        self.spare_pct = command.spare_pct
        self._members.set_shares(self.shares_pct)
        self._say_lengths()

    def _say_lengths(self) -> None:
        """What the retrainings under way take in all by the engine's newest estimate, for a policy that runs the shortest first."""
        for stream in self.parts.engine.state.ordered():
            if stream.running is not None:
                self.parts.backend.expect(stream.running.job, stream.running.length_gpu_s())

    def _turn_to_scene(self, command: TurnToScene) -> None:
        entry = self.watched.get(command.stream)
        knobs = entry.turned(command.scene) if entry is not None else None
        if entry is not None and knobs is not None:
            entry.knobs, offered = knobs, entry.offered()
            self.post(lambda at_s: ev.KnobsMeasured(at_s=at_s, stream=command.stream, knobs=offered))

    def _set_knobs(self, command: SetKnobs) -> None:
        entry = self.watched.get(command.stream)
        if entry is None:
            return
        running = entry.run(command.knobs)
        knobs = running.knobs if running is not None else None
        entry.worker.set_knobs(None if entry.quarantined else knobs)
        self._want(entry, knobs.fps if knobs else 0.0)

    def _cancel_job(self, command: CancelJob) -> None:
        self._members.cancel(command.job)

    def _reject_model(self, command: RejectModel) -> None:
        log.info("%s: model %s not admitted: %s", command.stream, command.version, command.reason)
        self.swapper.give_up(command.stream, command.reason, version=command.version)
        self.parts.shelf.reject(command.stream, command.version, command.reason)

    def _report_plan(self, command: ReportPlan) -> None:
        self.plan = (command, self.parts.clock.utc_s())
        for reason in command.reasons:
            log.info("plan: %s", reason)
        self._tell(command)

    def _report_window(self, command: ReportWindow) -> None:
        now_utc = self.parts.clock.utc_s()
        outcome = command.outcome
        self.outcomes.append((outcome, self.window_opened_utc, now_utc))
        opened_utc = self.window_opened_utc
        self._close_shares(outcome.window)
        for seen in outcome.streams:
            entry = self.watched.get(seen.id)
            if entry is not None and seen.drift is not None and seen.drift.drifted:
                self._review_profile(seen.id, entry, cost_s=None, drifted=True)
                self._review_asked(seen.id, entry, drifted=True)
        self._close_finish(outcome.window)
        self._keep(lambda: self.parts.store.add_window(outcome, opened_utc=opened_utc, closed_utc=now_utc))
        self._keep(self.parts.store.prune)
        for stream in self.parts.engine.state.ordered():
            self._keep(functools.partial(self._scene_book.keep, stream.id, stream.scenes))
        self._help("tidy", self._tidy)
        self.window_opened_utc = now_utc
        self.parts.sampler.window = outcome.window + 1
        self._price_changes()
        self._tell(command)
        log.info(
            "window %d closed: predicted %s, realised %s, admitted %d", outcome.window, _shown(outcome.predicted_quality),
            _shown(outcome.realised_quality), sum(s.admitted for s in outcome.streams),
        )  # fmt: skip

    def _price_changes(self) -> None:
        """Once a window: what the backend has learned of the cost of its changes counts for the next plan."""
        price = price_of(self.parts.backend.change_cost())
        if price != self.parts.engine.config.change:
            self.post(lambda at_s: ev.ChangePriced(at_s=at_s, price=price))

    def _close_shares(self, window: int) -> None:
        shares = self._share_book.close_window(self.parts.clock.monotonic_s())
        self.window_shares.append((window, shares))
        self._keep(lambda: self.parts.store.add_shares(window, shares))
        for report in shares:
            log.info("window %d, %s", window, described(report))

    def _close_finish(self, window: int) -> None:
        """How many frames were answered by their deadline, for the log."""
        for camera_id, entry in sorted(self.watched.items()):
            told = entry.worker.finish.close_window()
            if told.due:
                log.info("window %d, %s", window, finish_described(camera_id, told, entry.worker.finish.goal_s))

    def _tidy(self) -> None:
        for camera_id in list(self.watched):
            self._keep(functools.partial(self.parts.shelf.tidy, camera_id))

    def _note(self, command: Note) -> None:
        now_utc = self.parts.clock.utc_s()
        self.notes.append((now_utc, command))
        self._keep(lambda: self.parts.store.add_note(now_utc, command.code, command.text, stream=command.stream))
        log.warning("%s%s", f"{command.stream}: " if command.stream else "", command.text)
        self._tell(command)

    # --- commands: jobs -----------------------------------------------------------------------------------------------

    def _start_job(self, command: LearningCommand) -> None:
        self._spawn(command.job, command.stream, KINDS[type(command)], self._live_jobs.body(command))
        self._say_lengths()

    def _on_epoch(self, command: StartRetraining, report: EpochReport) -> None:
        job = self.jobs.get(command.job)
        if job is not None:
            job.done_frac = report.epoch / command.config.epochs
        self.post(lambda at_s: ev.EpochDone(at_s=at_s, stream=command.stream, report=report))

    def _spawn(self, job_id: str, stream: str, kind: str, body: Body) -> None:
        """Runs a learning job in a thread of its own; whatever goes wrong there becomes JobFailed and nothing else."""
        sort = (kind, self.watched[stream].arch if stream in self.watched else "")
        lane = self._needs.open_lane(job_id, sort)
        clock = self.parts.clock

        def run() -> None:
            started_s, took_s = clock.thread_cpu_s(), None
            try:
                make = body(lane, lambda: clock.thread_cpu_s() - started_s)
                took_s = clock.thread_cpu_s() - started_s
            except JobCancelled:
                return
            except Exception as error:
                code, text = failure_of(error)
                log.info("job %s failed: %s", job_id, text, exc_info=not isinstance(error, DriftboxError))
                make = functools.partial(_failed_event, job_id, stream, code, text)
            finally:
                self._share_book.update(clock.monotonic_s())  # the backend forgets the job with its lane
                self._needs.close_lane(job_id, sort, took_s=took_s)
                self.jobs.pop(job_id, None)
            self.post(make)

        thread = threading.Thread(target=run, name=job_id, daemon=True)
        self.jobs[job_id] = Job(stream=stream, kind=kind, lane=lane, thread=thread)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            self.jobs.pop(job_id)
            self.parts.backend.close_lane(job_id)
            raise

    def _swap_model(self, command: SwapModel) -> None:
        """Lets the new model take over between two frames (`edge.swapping`); on any failure the old stays."""

        def run() -> None:
            try:
                version = self._swap(command)
            except Exception as error:
                _, text = failure_of(error)
                unforeseen = not isinstance(error, DriftboxError)
                log.info("%s: model %s does not take over: %s", command.stream, command.version, text, exc_info=unforeseen)
                self.post(functools.partial(_swap_failed_event, command.stream, command.version, text))
                return
            asked = "" if version == command.version else command.version
            self.post(lambda at_s: ev.SwapDone(at_s=at_s, stream=command.stream, version=version, asked=asked))

        self._help(f"{command.stream}/swap", run)

    def _swap(self, command: SwapModel) -> str:
        """The version that serves now."""
        version = self.swapper.take_over(self.watched[command.stream].worker, command)
        quality = command.quality if version == command.version else None  # of a mean nobody knows it yet
        if quality is not None:
            self._live_jobs.keep_quality(command.stream, quality, version)
        log.info(
            "%s: model %s serves, %s %s on labels of this window",
            command.stream,
            version,
            self._task_of(command.stream).quality_name,
            _shown(quality),
        )
        return version

    def _keep(self, write: Callable[[], object]) -> None:
        """For records the box can live without: a full disk is said, not raised."""
        try:
            write()
        except StorageError as error:
            log.warning("not recorded: %s", error)

    def _task_of(self, camera_id: str) -> Task:
        return self.watched[camera_id].task


def _reopen(camera: Camera) -> None:
    """A camera that is stopped already, or a thread of which hangs, is opened anew all the same."""
    if isinstance(camera, Threaded):
        camera.restart()
    else:
        camera.start()


def _behind(entry: Watched) -> bool:
    """Whether somebody who is told of its frames has not taken the last one."""
    return (entry.queries is not None and entry.queries.pending()) or (entry.objects is not None and entry.objects.behind())


def _all_look(looks: Sequence[Callable[[Shown], None]], shown: Shown) -> None:
    """Each is told of an analysed frame; none of them waits or raises."""
    for look in looks:
        look(shown)


def _nothing_after(patience_s: float) -> float:
    return 0.0


def _nobody_waits() -> bool:
    return False


def _old_query(camera_id: str, query: str, why: str, at_s: float) -> ev.Event:
    return ev.ProfileOld(at_s=at_s, stream=camera_id, why=why, query=query)


def utility_of(entry: Watched) -> Utility | None:
    """What quality and lag are worth to those who ask the camera something."""
    return entry.queries.utility() if entry.queries is not None else None


def infer_job(camera_id: str) -> str:
    return f"{camera_id}/infer"


def price_of(cost: ChangeCost) -> ChangePrice:
    """What plans are told of the cost of a share change."""
    return ChangePrice(settle_s=cost.settle_s, gpu_s=cost.gpu_s, blind_s=cost.blind_s)


def failure_of(error: Exception) -> tuple[str, str]:
    """(code, redacted text) of whatever a job raised."""
    if isinstance(error, JobError):
        return error.code, str(error)
    if isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in OUT_OF_MEMORY):
        return "out_of_memory", "out of memory"
    if isinstance(error, DriftboxError):
        return "exception", str(error)
    return "exception", redact(f"{type(error).__name__}: {error}")


def _answered_event(camera_id: str, answers: Answers, at_s: float) -> ev.Event:
    return ev.Answered(at_s=at_s, stream=camera_id, answers=answers)


def _timer_event(timer: str, at_s: float) -> ev.Event:
    return ev.TimerFired(at_s=at_s, timer=timer)


def _failed_event(job: str, stream: str, code: str, text: str, at_s: float) -> ev.Event:
    return ev.JobFailed(at_s=at_s, job=job, stream=stream, code=code, text=text)


def _swap_failed_event(stream: str, version: str, text: str, at_s: float) -> ev.Event:
    return ev.SwapFailed(at_s=at_s, stream=stream, version=version, text=text)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
