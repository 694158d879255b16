"""The only file that names concrete classes: builds a box from its configuration and runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import numpy as np
import torch

from configs.catalog import retrain_of
from configs.errors import ConfigError, JobError, StorageError
from configs.schema import BoxConfig, CameraEntry
from configs.tasks import CLASSIFICATION
from edge import calibrate, calibrate_processes
from edge.box_status import RuntimeStatus
from edge.cameras.book import CameraBook
from edge.cameras.secrets import SecretFiles
from edge.cameras.times import learns_at, local_now, watches_at
from edge.clock import Clock, SystemClock
from edge.closing import Signals
from edge.fleet.wiring import fleet_part
from edge.form_making import PICTURES as FORM_PICTURES
from edge.gpu.base import ComputeBackend, DeviceFacts
from edge.gpu.choose import Look, build_backend, clock_for
from edge.gpu.device_clock import DeviceClock
from edge.gpu.nvml import DeviceReader, DeviceWatch
from edge.gpu.pooled import PooledBackend
from edge.inference import InferenceWorker
from edge.jobs import Scoring, here
from edge.journal import Journal
from edge.labels_admin import FolderLabels
from edge.live_control import LiveControl
from edge.log_ring import RING
from edge.logs import set_up_logging
from edge.media.folder import MediaFolder
from edge.media.parts import Media, media_of
from edge.media.recorder import ClipRules
from edge.objects.book import ObjectBook
from edge.objects.book import Rules as ObjectRules
from edge.objects.clips import CameraClips
from edge.objects.live import CameraObjects, PictureMaker, new_id
from edge.objects.tracking import SceneTracker
from edge.pool.front import PoolFront
from edge.pool.pool import Pool
from edge.profiler.live import LiveMenu, Profiles, Watching
from edge.profiler.profile import USUAL_FPS
from edge.queries.base import Tools
from edge.queries.live import CameraQueries, specs_of
from edge.queries.models import OpenModel, QueryModels
from edge.resolution import at_own_size
from edge.runtime import STRIDES, BoxRuntime, Parts, Watched, infer_job, knob_profiles, price_of
from edge.samples import FileSamples
from edge.sampling import Sampler
from edge.serving import Serving
from edge.settings import BoxSettings
from edge.shadow import ShadowRules
from edge.shelf import Retention, Shelf
from edge.speed_file import SpeedFile, usable_speed, write_speed
from edge.store.cameras import CameraRows
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.swapping import SWITCH_S
from edge.watchdog.charges import charge_of, watch_over
from edge.watchdog.live import Watchdog
from edge.watchdog.systemd import ServiceManager
from models.detector import Detector
from models.golden import Labelling, class_table
from models.labelled import LabelledImage
from models.retrain import settle_precision
from models.serving.cache import machine
from models.tasks.base import Picture, Task
from models.tasks.detection import DETECTION
from models.tasks.registry import task_of
from scheduler.commands import Note
from scheduler.drift import DriftConfig
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.orloj.beside import Beside
from scheduler.orloj.registry import make_batch_policy
from scheduler.types import Detections, KnobProfile, RetrainConfig
from scheduler.videostorm.reprofile import ReprofileRules
from streams.camera import PyavCamera, open_camera
from streams.masks import masks_from
from streams.rendered.serve import DEMO_CAMERAS, CameraScript
from streams.rtsp_process import RtspServerProcess
from streams.samples import SampleStore
from streams.source import Camera
from streams.url import SourceUrl

if TYPE_CHECKING:
    from edge.gpu.mps import MpsBackend
    from edge.telemetry.mqtt import MqttPublisher
    from edge.web.accounts.book import Accounts
    from edge.web.live import LiveFeed
    from edge.web.services import Services
    from edge.web.tls import Certificates

log = logging.getLogger("driftbox")

#: Most that one job is promised on CPU lanes: a thread cannot use more than a core, and needs some slack to catch up from stalls.
JOB_MAX_PCT = 90.0
#: `scheduler.serving`: no queue.
OWN = "own"
#: Earlier windows whose labels a retraining may replay.
REPLAY_WINDOWS = 5
#: Regions of the picture on which a classifier's cost is guessed.
PLAIN_REGIONS = 4


@dataclass(kw_only=True)
class Box:
    """A built box, not yet running. config: with its cameras as they are in force; first_window: the one to open first; book, maker:
    where its cameras are kept and how more are made; media: what keeps objects, snapshots and clips; devices: its GPUs as of the newest
    look."""

    config: BoxConfig
    runtime: BoxRuntime
    watched: list[Watched]
    first_window: int
    folder: DataFolder
    store: Store
    book: CameraBook
    maker: CameraMaker
    media: Media
    devices: Callable[[], tuple[DeviceFacts, ...]] = tuple


def engine_config(config: BoxConfig, golden_cost_s: float) -> EngineConfig:
    """What the engine needs of the box's configuration; golden_cost_s: first guess, replaced by measurement."""
    return EngineConfig(
        window_s=config.window.seconds, first_window_s=config.window.first_seconds, capacity_pct=config.gpus.capacity_pct,
        quantum_pct=config.scheduler.quantum_pct, min_quality=config.scheduler.min_quality, policy=config.scheduler.policy,
        estimate=config.scheduler.estimate, prep_pct=config.window.prep_pct, prep_auto=config.window.prep_auto,
        prep_max_frac=config.window.prep_max_frac, overlap=config.window.overlap,
        label_frames=config.window.label_frames, holdout_frac=config.window.holdout_frac,
        gate_frames=config.window.gate_frames, gate_margin=config.window.gate_margin, min_gain=config.scheduler.min_gain,
        golden_gpu_s=golden_cost_s, profile_every=config.window.profile_every, profile_epochs=config.window.profile_epochs,
        profile_data_frac=config.window.profile_data_frac, retrain=retrain_configs(config), speed=speed_of(config.gpus.capacity_pct),
        job_max_pct=JOB_MAX_PCT, calibrate=config.scheduler.calibrate, prune_every=config.scheduler.prune_every,
        prune_frac=config.scheduler.prune_frac, react=config.scheduler.react, react_quality=config.scheduler.react_quality,
        react_fast=config.scheduler.react_fast, react_slow=config.scheduler.react_slow,
        react_dwell_s=config.scheduler.react_dwell_s, slaq=None if config.scheduler.slaq == "off" else config.scheduler.slaq,
        gate_risk=config.window.gate_risk, shadow=config.window.shadow, drift=config.scheduler.drift.enabled,
        look_frames=config.scheduler.drift.look_frames, drift_drop=config.scheduler.drift.drop,
        drift_config=DriftConfig(alpha=config.scheduler.drift.false_alarms), reuse=config.scheduler.reuse.enabled,
        reuse_nearest=config.scheduler.reuse.nearest, group=config.scheduler.reuse.group,
        group_distance=config.scheduler.reuse.group_distance, group_max=config.scheduler.reuse.group_cameras,
        knob_loop=config.scheduler.knobs == "seconds",
    )  # fmt: skip


def speed_of(capacity_pct: int) -> tuple[tuple[float, float], ...]:
    """How fast a job runs at a share, on CPU lanes: a job is one thread, so it gains nothing above one core."""
    return ((0.0, 0.0), (100.0, 1.0), (float(capacity_pct), 1.0)) if capacity_pct > 100 else ()


def backend_of(config: BoxConfig, clock: Clock, look: Look | None = None) -> ComputeBackend:
    """What keeps the shares of this box. look: the newest answer about its GPUs; None: they are asked now. EnvironmentLacking: this
    machine cannot do what is configured."""
    return build_backend(config.gpus, data_dir=config.box.data_dir, clock=clock, look=look or DeviceReader().read)


def device_of_models(config: BoxConfig) -> str:
    """Where this process holds its models, as torch names it. Under MPS they are in the jobs' own processes."""
    return "cuda" if config.gpus.device == "cuda" and config.gpus.backend != "mps" else "cpu"


@contextlib.contextmanager
def watched_devices(store: Store, clock: Clock, listeners: list[Callable[[Note], None]]) -> Iterator[DeviceWatch]:
    """Looks after the GPUs while the box runs. A lost one is told, and so is its return: in the log, the database, and to `listeners`,
    who may come later."""

    def news(text: str) -> None:
        log.warning("%s", text)
        for listener in listeners:
            listener(Note(stream="", code="device", text=text))
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "device", text)

    watch = DeviceWatch(DeviceReader(tell=news))
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def measured_speed(
    config: BoxConfig, folder: DataFolder, backend: ComputeBackend, say: Callable[[str], None]
) -> tuple[tuple[float, float], ...]:
    """The speed curve for plans: what `driftbox calibrate` measured here, else what is assumed (`speed_of`)."""
    curve, told = usable_speed(
        folder.root, machine=machine(), devices=[f.name for f in backend.facts()], backend=backend.name,
        capacity_pct=backend.capacity_pct, models=[name for names in models_of(config) for name in names[1:]],
    )  # fmt: skip
    if told:
        say(told)
    return curve or speed_of(backend.capacity_pct)


def models_of(config: BoxConfig) -> list[tuple[str, str, str]]:
    """(task, edge model, golden model) of the cameras, each once; of detection when there is no camera yet."""
    cameras = [(entry.task, entry.edge) for entry in config.active_cameras] or [(DETECTION.name, None)]
    usual = {task: config.models.for_task(task) for task, _ in cameras}
    return sorted({(task, edge or usual[task].edge, usual[task].golden) for task, edge in cameras})


def retrain_configs(config: BoxConfig, model: str | None = None) -> tuple[RetrainConfig, ...]:
    """How a model may be retrained (`configs.catalog`); None: the cameras' usual one."""
    return tuple(RetrainConfig(**entry.model_dump()) for entry in retrain_of(config.models, model or config.models.edge))


def scoring_of(config: BoxConfig) -> Scoring:
    models = config.models
    return Scoring(golden_score_min=models.golden_score_min, score_min=models.edge_score_min, iou_min=models.iou_min)


def labelling_of(config: BoxConfig, *, on_gpu: bool = False) -> Labelling:
    """How golden labels are made. A batch is one picture where no GPU makes more of them cheaper: an iteration lasts as long."""
    models = config.models
    return Labelling(
        batch=models.golden_batch if on_gpu else 1, classes=class_table(models.class_map), agreement=models.agreement,
        unsure_max_frac=models.unsure_max_frac,
    )  # fmt: skip


def retention_of(config: BoxConfig) -> Retention:
    return Retention(keep_versions=config.storage.keep_versions, keep_days=config.storage.keep_versions_days)


def shadow_of(config: BoxConfig) -> ShadowRules:
    window = config.window
    return ShadowRules(frames=window.shadow_frames, share_frac=window.shadow_frac, most_s=window.shadow_seconds)


@contextlib.contextmanager
def built(config: BoxConfig, *, say: Callable[[str], None] = log.info) -> Iterator[Box]:
    """Builds the box and takes it apart again. Raises the errors of its parts (configuration, weights, storage)."""
    # One thread per job: two torch threads beside another busy one fall from 28 ms to seconds (OpenMP spinning).
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    clock = clock_for(config.gpus, SystemClock())
    with ExitStack() as stack:
        folder = stack.enter_context(DataFolder(config.box.data_dir))
        store = stack.enter_context(Store(folder.db_path))
        samples = SampleStore(
            folder.samples_dir, max_windows=config.storage.retention_windows, max_bytes=int(config.storage.max_gib * 2**30)
        )
        on_news: list[Callable[[Note], None]] = []
        gpus = stack.enter_context(watched_devices(store, clock, on_news))
        # Before any model is loaded: which GPU this process sees is settled here.
        backend = backend_of(config, clock, gpus.newest)
        stack.callback(backend.close)
        processes = processes_of(backend)
        if processes is not None:
            clock = processes.remote_clock  # a frame costs what its process computed
        pool = pool_of(config, backend, clock)
        if pool is not None:
            stack.callback(pool.pool.close)
            backend = pool.backend
        shelf = Shelf(folder, store, clock, retention_of(config), device=device_of_models(config))
        for note in folder.recover(store, at_utc=clock.utc_s()):
            store.add_note(clock.utc_s(), "recovered", note)
            say(f"recovered: {note}")
        book = CameraBook(config, CameraRows(store), SecretFiles(folder.root), utc_s=clock.utc_s)
        config = config_in_force(book, say)
        maker = CameraMaker(config, clock, pool.pool if pool is not None else None, samples, load_goldens(config))
        goldens = maker.goldens
        maker.addresses |= stack.enter_context(rendered_server(config))
        stack.callback(maker.close)

        def require_room() -> None:
            folder.require_free(config.storage.min_free_mib)

        journal = Journal(folder.events_dir, max_bytes=config.storage.journal_mib * 2**20)
        stack.callback(journal.close)
        labelling = labelling_of(config)
        label_s = max(cost_s(partial(label_once, name, golden), clock) for name, golden in goldens.items())
        engine = BoxEngine(
            replace(
                engine_config(config, label_s * labelling.views), speed=measured_speed(config, folder, backend, say),
                change=price_of(backend.change_cost()),
            )
        )  # fmt: skip
        serving = serving_of(config, folder, store, samples, clock, maker.task_of)
        stack.callback(serving.close)
        serve, serve_later = serving.serve, serving.serve_later
        steps = here
        if pool is not None:
            serve, serve_later = partial(serve_in_pool, pool.pool, serve), partial(serve_in_pool, pool.pool, serve_later)
        if processes is not None:
            serve = serve_later = partial(serve_in_process, processes)
            steps = processes.steps
        profiles = profiles_of(maker.watching, store, clock)
        serve, serve_later = partial(sized, profiles, serve), partial(sized, profiles, serve_later)
        runtime = BoxRuntime(
            Parts(
                engine=engine,
                backend=backend,
                journal=journal,
                store=store,
                shelf=shelf,
                samples=FileSamples(samples),
                sampler=Sampler(samples, fps=config.window.sample_fps, clock=clock, require_room=require_room),
                golden_of=maker.golden_of,
                clock=clock,
                scoring=scoring_of(config),
                labelling=labelling,
                replay_windows=REPLAY_WINDOWS,
                require_room=require_room,
                shadow=shadow_of(config),
                profiles=profiles,
                reprofile=reprofile_of(config),
                on_cpu=config.gpus.device == "cpu",
                reprofiling=partial(reprofile_camera, config) if config.scheduler.reprofile == "auto" else None,
                serve=serve,
                serve_later=serve_later,
                steps=steps,
                trials_at_once=config.window.profile_at_once if backend.name == "lanes" else 1,
                profile_halving=config.window.profile_halving,
            )  # fmt: skip
        )
        if processes is not None:
            processes.hand_over = partial(hand_over, runtime)
        on_news.append(lambda note: runtime.notes.append((clock.utc_s(), note)))
        maker.runtime, maker.served = runtime, serve_later
        maker.media = media_of(config.storage.media, MediaFolder(folder.media_dir), store, runtime.parts.object_listeners)
        if processes is not None:
            maker.refusal = (
                "under gpus.backend: mps cameras join and change their stream or model with the next start of the box"
            )
        watched = [maker.make(entry) for entry in config.active_cameras if watches_at(entry, local_now(entry))]
        yield Box(
            config=config, runtime=runtime, watched=watched, first_window=next_window(store, samples), folder=folder, store=store,
            book=book, maker=maker, media=maker.media, devices=gpus.facts,
        )  # fmt: skip


def config_in_force(book: CameraBook, say: Callable[[str], None]) -> BoxConfig:
    """The configuration with its cameras as the file and the product have them. Raises ConfigError when they do not fit together."""
    for name in book.tidy():
        say(f"recovered: removed the secret {name}, which no camera uses")
    found = book.read()
    for text in found.findings:
        say(text)
    return found.config


def processes_of(backend: ComputeBackend) -> MpsBackend | None:
    """The backend, when jobs compute in processes of their own."""
    from edge.gpu.mps import MpsBackend

    return backend if isinstance(backend, MpsBackend) else None


def serve_in_process(processes: MpsBackend, trained: Detector, camera_id: str) -> Detector:
    """Serves a model as trained; `models.serving`'s forms are of this process."""
    return processes.serve(trained, infer_job(camera_id))


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled:
    """The queue that answers live frames, and the backend whose cameras go through it."""

    pool: Pool
    backend: PooledBackend


def pool_of(config: BoxConfig, backend: ComputeBackend, clock: Clock) -> Pooled | None:
    """None: each camera's thread computes by itself (`scheduler.serving: own`)."""
    if config.scheduler.serving == OWN:
        return None
    wrapped = PooledBackend(backend, clock=clock)
    policy = Beside(make_batch_policy(config.scheduler.serving), wrapped.beside)
    return Pooled(pool=Pool(policy, wrapped, clock), backend=wrapped)


def serve_in_pool(pool: Pool, make: Callable[[Detector, str], Detector], trained: Detector, camera_id: str) -> Detector:
    """Serves a model through the queue; `make`: (a model as trained, its camera) -> the form that is loaded there."""
    return PoolFront(pool, trained, app=camera_id, job=infer_job(camera_id), make=make)


def hand_over(runtime: BoxRuntime, job: str, make: Callable[[Detector], Detector]) -> None:
    """Lets a camera's model go on in another process. Raises SwapRefused, and JobError for a job that serves no camera."""
    camera_id = next((camera_id for camera_id in runtime.watched if infer_job(camera_id) == job), None)
    if camera_id is None:
        raise JobError(f"{job} serves no camera", subject=job)
    runtime.swapper.hand_over(runtime.watched[camera_id].worker, camera_id, make)


def next_window(store: Store, samples: SampleStore) -> int:
    """After a restart a new window begins; the samples of the interrupted one are what it learns from."""
    return max(store.next_window(), samples.newest_window() + 1)


def serving_form(config: BoxConfig) -> str:
    """`models.serving`; on a GPU `auto` is the trained model: forms are compared by the time of cores, and most of them run there."""
    on_gpu = device_of_models(config) == "cuda"
    return "trained" if on_gpu and config.models.serving == "auto" else config.models.serving


def serving_of(
    config: BoxConfig,
    folder: DataFolder,
    store: Store,
    samples: SampleStore,
    clock: Clock,
    task_of_camera: Callable[[str], Task],
) -> Serving:
    """What makes the served forms of this box's models."""
    pictures = FileSamples(samples)

    def newest(camera_id: str) -> list[Picture]:
        refs = [ref for window in sorted(samples.windows(camera_id))[-2:] for ref in samples.sampled(camera_id, window)]
        return [pictures.picture(ref) for ref in refs[-FORM_PICTURES:]]

    def tell(camera_id: str, text: str) -> None:
        log.warning("%s: %s", camera_id, text)
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "serving", text, stream=camera_id)

    return Serving(
        serving_form(config), folder.root / "forms", newest=newest, task_of=task_of_camera, tell=tell,
        build_s=config.models.serving_build_s, device=device_of_models(config),
    )  # fmt: skip


class CameraMaker:
    """Makes cameras: those that a box starts with, and those that join or change while it runs (`edge.live_control.Maker`).

    runtime, served, media: set once they are there; refusal: why a running box cannot take cameras in, '': it can. Used by one thread
    at a time; what it knows of cameras (tasks, golden models) is read by all."""

    runtime: BoxRuntime
    served: Callable[[Detector, str], Detector]
    media: Media
    refusal = ""

    def __init__(
        self, config: BoxConfig, clock: Clock, pool: Pool | None, samples: SampleStore, goldens: dict[str, Detector]
    ) -> None:
        self._config, self._clock, self._pool, self._samples = config, clock, pool, samples
        self.goldens, self.addresses = goldens, dict[str, str]()
        self.watching: dict[str, Watching] = {}
        self._tasks: dict[str, str] = {}
        self._servers: dict[str, tuple[str, RtspServerProcess]] = {}
        for entry in config.active_cameras:
            self._note(entry)

    def golden_of(self, camera_id: str) -> Detector:
        return self.goldens[self._tasks[camera_id]]

    def task_of(self, camera_id: str) -> Task:
        return task_of(self._tasks[camera_id])

    def check(self, entry: CameraEntry) -> None:
        """Loads what a camera needs and the box has not got yet. Raises WeightsError, EnvironmentLacking, ConfigError: then nothing has
        changed."""
        task, device = task_of(entry.task), device_of_models(self._config)
        SourceUrl(self._plain_address(entry))
        task.load(entry.edge or self._config.models.for_task(entry.task).edge, device=device)
        if entry.task not in self.goldens:
            golden = task.load_golden(self._config.models.for_task(entry.task).golden, device=device)
            same = (known for known in self.goldens.values() if known.spec == golden.spec)
            self.goldens[entry.task] = next(same, golden)

    def make(self, entry: CameraEntry) -> Watched:
        """Seconds of work. Raises as `check`."""
        if entry.task not in self.goldens:
            self.check(entry)
        self._note(entry)
        anew = self._samples.begin(entry.id, entry.task)
        self._serve_rendered(entry)
        watched = watch(entry, self._config, self.addresses, self.runtime, self.served, anew=anew)
        watched.queries = self.queries(entry)
        watched.objects = self.objects(entry, watched.camera)
        watched.learns = learns_at(entry, local_now(entry))
        return watched

    def stream(self, entry: CameraEntry) -> Camera:
        """Its camera alone, not started. Raises ConfigError, EnvironmentLacking."""
        self._serve_rendered(entry)
        return camera_of(entry, self.addresses)

    def objects(self, entry: CameraEntry, camera: Camera) -> CameraObjects | None:
        """Who follows its objects in `camera`, not started. Raises ConfigError, EnvironmentLacking (a secret that is not there)."""
        return objects_of(entry, self.media, self._clock, camera)

    def queries(self, entry: CameraEntry) -> CameraQueries | None:
        pool = self._pool
        return queries_of(entry, self._config, self._clock, beside(self._config, pool, entry.id) if pool is not None else None)

    def knobs(self, entry: CameraEntry, cost_s: float) -> tuple[LiveMenu | None, tuple[KnobProfile, ...]]:
        """What a camera may be watched with at the rate of `entry`, whose model needs `cost_s` a frame."""
        self._note(entry)
        profiles, now_s = self.runtime.parts.profiles, self._clock.monotonic_s()
        menu = profiles.menu(entry.id, at_s=now_s) if profiles is not None else None
        return menu, menu.knobs if menu is not None else knob_profiles(entry.fps or USUAL_FPS, cost_s)

    def close(self) -> None:
        """Ends the servers of rendered cameras that joined."""
        for _, server in self._servers.values():
            server.stop()
        self._servers.clear()

    def _note(self, entry: CameraEntry) -> None:
        self._tasks[entry.id] = entry.task
        self.watching[entry.id] = watching_of(entry, self._config)

    def _plain_address(self, entry: CameraEntry) -> str:
        if entry.url.scheme != "rendered":
            return entry.url.resolve()
        script_of(entry)
        return "rtsp://127.0.0.1/rendered"

    def _serve_rendered(self, entry: CameraEntry) -> None:
        """A rendered camera that was not there when the box started has a server of its own."""
        if entry.url.scheme != "rendered":
            self.addresses.pop(entry.id, None)
            return
        scene = entry.url.resolve()
        here, server = self._servers.get(entry.id, ("", None))
        at_start = next((e.url.resolve() for e in self._config.active_cameras if e.id == entry.id), "")
        if scene == here or (server is None and entry.id in self.addresses and scene == at_start):
            return
        script = script_of(entry)
        process = RtspServerProcess([script.mount()])
        process.start()
        if server is not None:
            server.stop()
        self._servers[entry.id], self.addresses[entry.id] = (scene, process), process.url(script.id)


def camera_of(entry: CameraEntry, addresses: dict[str, str]) -> Camera:
    """addresses: of rendered cameras. Raises ConfigError, EnvironmentLacking (a secret that is not there)."""
    return open_camera(
        entry.id, SourceUrl(addresses.get(entry.id) or entry.url.resolve()), transport=entry.transport,
        masks=masks_from(entry.masks), loop=entry.loop, realtime=not entry.may_lag, seed=sum(entry.id.encode()),
    )  # fmt: skip


def watch(
    entry: CameraEntry, config: BoxConfig, addresses: dict[str, str], runtime: BoxRuntime,
    served: Callable[[Detector, str], Detector], *, anew: bool = False,
) -> Watched:  # fmt: skip
    """A camera with its inference worker, not started. served: (a model as trained, its camera) -> what serves it from the start.
    anew: its task is another one than before, so it begins with a new model."""
    parts = runtime.parts
    task = task_of(entry.task)
    arch = entry.edge or config.models.for_task(entry.task).edge
    version = parts.shelf.ensure(entry.id, arch, partial(task.load, device=device_of_models(config)), anew=anew)
    detector = parts.shelf.detector(version.id)
    camera = camera_of(entry, addresses)
    lane = parts.backend.open_lane(infer_job(entry.id), role="infer")
    score_min = config.models.edge_score_min
    worker = InferenceWorker(
        camera, lane, served(detector, entry.id), version.id, clock=parts.clock, score_min=score_min, task=task, goal_s=entry.goal_s
    )  # fmt: skip
    picture = plain_picture(task)
    how = settle_precision(detector, [plain_lesson(picture)], task=task)
    log.info("%s: %s trains in %s", entry.id, arch, how.name)
    seconds = cost_s(lambda: task.predict(detector, [picture], score_min=score_min), parts.clock)
    fps = entry.fps or USUAL_FPS
    menu = parts.profiles.menu(entry.id, at_s=parts.clock.monotonic_s()) if parts.profiles is not None else None
    if menu is not None:
        log.info("%s: plans use version %d of its profile", entry.id, menu.version)
    return Watched(
        camera=camera, worker=worker, fps=fps, height_px=entry.height_px, title=entry.title, arch=arch, menu=menu,
        knobs=menu.knobs if menu is not None else knob_profiles(fps, seconds), profiled_cost_s=seconds, task=task,
        retrain=suited(retrain_configs(config, arch), detector, arch), entry=entry,
    )  # fmt: skip


def watching_of(entry: CameraEntry, config: BoxConfig) -> Watching:
    """What its profile must have been made for."""
    return Watching(
        task=entry.task, model=entry.edge or config.models.for_task(entry.task).edge, fps=entry.fps or USUAL_FPS, machine=machine(),
        device=config.gpus.device,
    )  # fmt: skip


def profiles_of(watching: Mapping[str, Watching], store: Store, clock: Clock) -> Profiles:
    """The cameras' stored profiles; one that does not fit is said in the log and the database."""

    def tell(camera: str, text: str) -> None:
        log.warning("%s: %s", camera, text)
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "profile", text, stream=camera)

    return Profiles(store, watching.__getitem__, tell)


def reprofile_camera(config: BoxConfig, camera: str, budget_s: float, checkpoint: Callable[[], None]) -> None:
    """Profiles a camera as `driftbox profile` does, on its newest samples or its recording, and keeps it: who follows the database takes
    it up. checkpoint: called between frames and settings. Raises what `profile_command` raises."""
    from edge.profiler.command import ProfileOptions, profile_command

    profile_command(
        config, camera, ProfileOptions(budget_s=budget_s), device=device_of_models(config), curve=STRIDES,
        told=lambda *_: checkpoint(),
    )  # fmt: skip


def reprofile_of(config: BoxConfig) -> ReprofileRules | None:
    """When a profile is said to have grown old; None: never."""
    scheduler = config.scheduler
    if scheduler.reprofile == "off":
        return None
    return ReprofileRules(factor=scheduler.reprofile_factor, for_s=scheduler.reprofile_after_s)


def sized(profiles: Profiles, serve: Callable[[Detector, str], Detector], trained: Detector, camera_id: str) -> Detector:
    """What serves a camera; where its profile turns the resolution, small pictures are not enlarged again."""
    menu = profiles.menu(camera_id)
    return serve(at_own_size(trained) if menu is not None and menu.reduces else trained, camera_id)


def objects_of(entry: CameraEntry, media: Media, clock: Clock, camera: Camera) -> CameraObjects | None:
    """Who follows a camera's objects, not started; None: nobody. A camera of which anything changes that this looks at needs another."""
    wanted = entry.objects
    if not wanted.enabled:
        return None
    fps = entry.fps or USUAL_FPS
    # Fewer frames a second leave longer between two sights of an object.
    rules = ObjectRules(
        start_frames=wanted.start_frames, start_score=wanted.start_score, lost_s=max(wanted.lost_s, 3.0 / fps),
        silent_s=max(ObjectRules.silent_s, 3 * wanted.lost_s, 10.0 / fps),
    )  # fmt: skip
    clips = clips_of(entry, media, camera)
    return CameraObjects(
        SceneTracker(entry.id, fps=fps, lost_s=rules.lost_s, zones=entry.zones, lines=wanted.lines, classes=entry.classes),
        ObjectBook(entry.id, new_id=new_id, rules=rules), media.writer, clock=clock,
        classes=entry.classes, zones=tuple(entry.zones), lines=tuple(wanted.lines),
        pictures=PictureMaker(media.folder, media.space) if wanted.snapshots else None,
        recorder=media.recorder if clips is not None else None, beside=() if clips is None else (clips,),
    )  # fmt: skip


def clips_of(entry: CameraEntry, media: Media, camera: Camera) -> CameraClips | None:
    """What makes a camera's clips; None: there are none (switched off, or its masks could not be kept, or it plays a file at its own
    pace)."""
    wanted = entry.recording
    refused = entry.masks and wanted.with_masks == "none"
    if not wanted.clips or refused or entry.may_lag or not isinstance(camera, PyavCamera):
        return None
    main = None
    if entry.record_url is not None:
        main = open_camera(
            entry.id,
            SourceUrl(entry.record_url.resolve()),
            transport=entry.transport,
            loop=entry.loop,
            seed=sum(entry.id.encode()) + 1,
        )
    rules = ClipRules(
        pre_s=wanted.pre_s,
        post_s=wanted.post_s,
        max_s=wanted.max_s,
        masks=masks_from(entry.masks),
        masked_fps=wanted.masked_fps,
    )
    return CameraClips(entry.id, media.recorder, rules, camera, main)


def queries_of(entry: CameraEntry, config: BoxConfig, clock: Clock, open_model: OpenModel | None) -> CameraQueries | None:
    """What is asked of a camera; None: nothing. open_model: for models beside the camera's own, None: there is no queue for them."""
    specs, broken = specs_of(entry.queries, task=entry.task, may_lag=entry.may_lag)
    for name, why in broken.items():
        log.warning("%s: the query %s cannot run: %s", entry.id, name, why)
    if not specs and not broken:
        return None
    models = QueryModels(entry.id, open_model)
    tools = Tools(
        camera_id=entry.id, fps=entry.fps or USUAL_FPS, score_min=config.models.edge_score_min, detector=models.of(DETECTION.name),
        classifier=models.of(CLASSIFICATION),
    )  # fmt: skip
    return CameraQueries(specs, tools, clock=clock, broken=broken, close=models.close)


def beside(config: BoxConfig, pool: Pool, camera_id: str) -> OpenModel:
    """Models that a camera's queries ask beside its own. They serve as trained, and are paid from the camera's share."""

    def open_model(model: str, task_name: str) -> Detector:
        trained = task_of(task_name).load(model or config.models.for_task(task_name).edge, device=device_of_models(config))
        return PoolFront(
            pool, trained, app=f"{camera_id}/{task_name}", job=infer_job(camera_id), make=lambda trained, app: trained
        )

    return open_model


def suited(configs: tuple[RetrainConfig, ...], model: Detector, name: str) -> tuple[RetrainConfig, ...]:
    """Those that the model can do: only classifiers have room for an added layer. Raises ConfigError when none is left."""
    fit = tuple(c for c in configs if not c.head_neurons or hasattr(model, "head_neurons"))
    if len(fit) < len(configs):
        log.warning("%s is no classifier: %d configurations with head_neurons are left out", name, len(configs) - len(fit))
    if not fit:
        raise ConfigError(
            f"no retraining configuration is left for {name}: all of them add a layer (head_neurons), which only classifiers can have",
            subject=name, remedy=f"give {name} an entry of its own under models.catalog",
        )  # fmt: skip
    return fit


def load_goldens(config: BoxConfig) -> dict[str, Detector]:
    """The golden model of every task that a camera has (of detection, when there is no camera yet). Tasks that are labelled by the
    same detector share it."""
    loaded: dict[str, Detector] = {}
    for name in sorted({entry.task for entry in config.active_cameras}) or [DETECTION.name]:
        golden = task_of(name).load_golden(config.models.for_task(name).golden, device=device_of_models(config))
        same = (known for known in loaded.values() if known.spec == golden.spec)
        loaded[name] = next(same, golden)
    return loaded


def plain_picture(task: Task) -> Picture:
    """A grey picture, in which as much moves as in a quiet street where the task asks for that."""
    regions = np.array([[140 * i + 20, 150, 140 * i + 100, 210] for i in range(PLAIN_REGIONS)], np.float32)
    return Picture(image=np.full((360, 640, 3), 127, np.uint8), regions=regions if task.wants_regions else None)


def plain_lesson(picture: Picture) -> LabelledImage:
    """The plain picture with something to learn in it."""
    boxes = picture.regions if picture.regions is not None else np.array([[160, 100, 320, 220]], np.float32)
    labels = Detections(xyxy=boxes, score=np.ones(len(boxes), np.float32), class_id=np.zeros(len(boxes), np.int64))
    return LabelledImage(image=picture.image, labels=labels)


def label_once(task_name: str, golden: Detector) -> None:
    task = task_of(task_name)
    task.labels(golden, [plain_picture(task)], score_min=0.5)


def cost_s(work: Callable[[], object], clock: Clock) -> float:
    """Seconds of compute of a piece of work on a plain picture: good enough to begin with, replaced by measurement while running. On a
    GPU nobody else works yet, and an answer is there when the device is done: the time that passes is the device's."""
    now_s = clock.monotonic_s if isinstance(clock, DeviceClock) else clock.thread_cpu_s
    costs = []
    for _ in range(4):
        started_s = now_s()
        work()
        costs.append(now_s() - started_s)
    return max(1e-4, min(costs[1:]))


# --- rendered cameras -------------------------------------------------------------------------------------------------


def script_of(entry: CameraEntry) -> CameraScript:
    """`rendered:street?seed=101&at=0:day,75:night` -> what the renderer is told. A camera of the built-in demo that gives only
    its scene has that demo's schedule. Raises ConfigError."""
    kind, _, query = entry.url.resolve().removeprefix("rendered:").partition("?")
    # In a query '+' stands for a space; here it joins conditions.
    values = {key: found[-1] for key, found in parse_qs(query.replace("+", "%2B")).items()}
    demo = next((s for s in DEMO_CAMERAS if s.id == entry.id and s.kind == kind), None)
    script = demo if demo is not None and not values else CameraScript(id=entry.id, kind=kind, seed=1)
    try:
        if "seed" in values:
            script = replace(script, seed=int(values["seed"]))
        if "fps" in values:
            script = replace(script, fps=float(values["fps"]))
        if "at" in values:
            moments = [moment.split(":", 1) for moment in values["at"].split(",")]
            script = replace(script, schedule=tuple((float(at_s), name) for at_s, name in moments))
        script.scene()
    except ConfigError as error:
        named = error.message if entry.id in error.message else f"camera {entry.id}: {error.message}"
        raise ConfigError(named, subject=entry.id, remedy=error.remedy) from None
    except ValueError:
        raise ConfigError(
            f"camera {entry.id}: the rendered address cannot be read", subject=entry.id,
            remedy="write rendered:street?seed=1&fps=5&at=0:day,60:day,90:night",
        ) from None  # fmt: skip
    return script


@contextlib.contextmanager
def rendered_server(config: BoxConfig) -> Iterator[dict[str, str]]:
    """Serves the rendered cameras of a configuration over real RTSP from a process of its own; yields camera id -> address."""
    scripts = [script_of(entry) for entry in config.active_cameras if entry.url.scheme == "rendered"]
    if not scripts:
        yield {}
        return
    server = RtspServerProcess([script.mount() for script in scripts])
    server.start()
    try:
        yield {script.id: server.url(script.id) for script in scripts}
    finally:
        server.stop()


# --- calibrate --------------------------------------------------------------------------------------------------------


def calibrate_box(config: BoxConfig, *, quick: bool, progress: Callable[[str, float], None]) -> SpeedFile:
    """Measures the box's own jobs on its own backend and keeps the result in its data folder. Raises StorageError (code 'in_use' while a
    box runs on the folder: it would be measured too), WeightsError, JobError."""
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    clock = clock_for(config.gpus, SystemClock())
    with DataFolder(config.box.data_dir) as folder:
        # A box that may give away less than one core or GPU is measured as if it had a whole one: speed is relative to that.
        # (A partition of a GPU cannot be made whole.)
        least_pct = 0 if config.gpus.backend == "mig" else 100
        whole = config.gpus.model_copy(update={"capacity_pct": max(least_pct, config.gpus.capacity_pct)})
        backend = backend_of(config.model_copy(update={"gpus": whole}), clock)
        plan, processes = calibrate.QUICK if quick else calibrate.FULL, processes_of(backend)
        if processes is not None:
            plan = replace(plan, most_s=plan.most_s + calibrate_processes.PROCESS_S)
        try:
            found = [subject for names in models_of(config) for subject in subjects_of(config, *names, processes=processes)]
            seen = calibrate.run(calibrate.Bench(backend, clock), found, plan, progress=progress)
            made = calibrate.concluded(
                seen, machine=machine(), devices=[f.name for f in backend.facts()], backend=backend.name,
                capacity_pct=backend.capacity_pct, quick=quick, utc_s=clock.utc_s(),
            )  # fmt: skip
        finally:
            backend.close()
        write_speed(folder.root, made)
    return made


def subjects_of(
    config: BoxConfig, task_name: str, edge: str, golden: str, *, processes: MpsBackend | None = None
) -> list[calibrate.Subject]:
    """The jobs of the cameras of one task with one model, on a plain picture: speed at a share does not depend on what is seen.
    processes: where they compute when it is not here."""
    task = task_of(task_name)
    device = device_of_models(config)
    detector, picture = task.load(edge, device=device), plain_picture(task)
    lesson = plain_lesson(picture)
    settle_precision(detector, [lesson], task=task)
    golden_model, names = task.load_golden(golden, device=device), (edge, golden)
    score_min, lessons = config.models.edge_score_min, [lesson] * 8
    if processes is None:
        return calibrate.subjects(task, detector, golden_model, [picture], lessons, names=names, score_min=score_min)
    samples = calibrate_processes.kept_lessons(processes.scratch_dir / re.sub(r"\W+", "-", f"{task_name}-{edge}"), lessons)
    return calibrate_processes.subjects(
        processes, task, detector, golden_model, [picture], samples, names=names, score_min=score_min
    )


# --- run --------------------------------------------------------------------------------------------------------------


def run_box(config: BoxConfig, *, demo: bool = False, file: Path | None = None, say: Callable[[str], None] = print) -> int:
    """Runs a box until it is stopped (SIGINT, SIGTERM). Returns the exit code. file: where config was read from."""
    set_up_logging()
    manager = ServiceManager()
    with Signals() as signals, built(config, say=say) as box, ExitStack() as stack:
        status = RuntimeStatus(box.runtime, box=config.box.id, site=config.box.site, devices=box.devices)
        control = LiveControl(box.runtime, box.book, box.maker, data_dir=box.folder.root)
        box.runtime.before_end.append(control.stop)
        watchdog = watch_over(box.runtime, manager=manager)
        status.degraded, control.lift = watchdog.degraded, watchdog.lift
        _back_up(box, config, stack)
        fleet = fleet_part(box, status, control, tell=partial(_warned, box, "fleet"))
        box.runtime.before_end.append(fleet.stop)
        watchdog.take(charge_of("fleet", fleet))
        settings = BoxSettings(config, box.folder.root, file=file, utc_s=box.runtime.parts.clock.utc_s)
        if config.web.enabled:
            from edge.web.serve import WebServer

            certificates = _certificates(box, config, stack, say)
            if certificates is not None:
                settings.certificate = partial(getattr, certificates, "certificate")
            services = _with_learning(_services(box, config, settings, control, status), box, status, watchdog, stack)
            services = replace(_with_health(services, box, status, watchdog, fleet.sentence), fleet=fleet)
            tls = certificates.context if certificates is not None else None
            server = stack.enter_context(
                WebServer(status, host=config.web.host, port=config.web.port, services=services, tls=tls)
            )
            watchdog.take(charge_of("web", server))
            say(f"status page: {server.url}")
            if services.accounts is not None:
                _say_claim(services.accounts, say)
        if config.telemetry.mqtt.enabled:
            from edge.telemetry.publisher import start_telemetry

            stack.callback(
                start_telemetry(
                    config,
                    box.runtime,
                    status,
                    box.store,
                    control,
                    look_after=partial(_look_after, watchdog, settings),
                    configured=lambda: [kept.entry for kept in box.book.read().cameras],
                )  # fmt: skip
            )
        fleet.start()
        # After telemetry, so that it hears of what a kill has left open, and of what ends with the box.
        box.media.start(partial(_warned, box, "media"))
        stack.callback(box.media.stop)
        watchdog.more_conditions.append(box.media.conditions)
        for name, worker in box.media.workers().items():
            watchdog.take(charge_of(name, worker))
        if demo:
            say("the demo's cameras drift after about a minute; the first better model is usual within five. Stop with Ctrl-C.")
        control.start()
        asyncio.run(_main(box, signals, manager, watchdog))
    return 0


def _services(box: Box, config: BoxConfig, settings: BoxSettings, control: LiveControl, status: RuntimeStatus) -> Services:
    """What the web interface is made of beside the status."""
    from edge.cameras.live_desk import LiveDesk
    from edge.cameras.onvif import Onvif
    from edge.cameras.probe import Prober
    from edge.web.hosts import host_names
    from edge.web.services import Services

    return Services(
        accounts=_accounts(box, config),
        hosts=host_names(config.web.hostnames),
        live=_live(box, status),
        labels=FolderLabels(box.folder.root, holdout_frac=config.window.holdout_frac),
        settings=settings,
        control=control,
        cameras=LiveDesk(control, Prober(), Onvif()),
        events=box.media.library,
    )


def _live(box: Box, status: RuntimeStatus) -> LiveFeed:
    """What pages are told as it happens: what changes in the status, and tracked objects."""
    from edge.web.live import LiveFeed

    feed = LiveFeed(status.status)
    box.runtime.parts.object_listeners.append(lambda event: feed.publish("object", {"object": vars(event)}))
    return feed


def _look_after(watchdog: Watchdog, settings: BoxSettings, publisher: MqttPublisher) -> None:
    watchdog.take(charge_of("telemetry", publisher))
    settings.connected = lambda: publisher.connected


def _with_health(services: Services, box: Box, status: RuntimeStatus, watchdog: Watchdog, fleet: Callable[[], str]) -> Services:
    """With how the box is, and what Prometheus is told."""
    from edge.box_health import BoxHealth, Sources
    from edge.store.outbox import waiting_in

    speaks = box.config.telemetry.mqtt.enabled
    health = BoxHealth(
        Sources(
            status=status, root=box.folder.root, config=lambda: box.book.read().config, watchdog=watchdog, ring=RING,
            clock=box.runtime.parts.clock, outbox=lambda: waiting_in(box.store) if speaks else None,
            fleet=fleet,
        )
    )  # fmt: skip
    return replace(services, health=health, metrics=health)


def _back_up(box: Box, config: BoxConfig, stack: ExitStack) -> None:
    """Lets the running box back itself up."""
    from edge.box_health import DailyBackup

    storage, tell = config.storage, partial(_warned, box, "backup")
    daily = DailyBackup(
        box.folder.root, box.runtime.parts.clock, every_days=storage.backup_days, keep=storage.backups_kept, tell=tell
    )
    daily.start()
    stack.callback(daily.stop)


def _accounts(box: Box, config: BoxConfig) -> Accounts | None:
    """Who may ask; None: `web.login` is off, and the page says so to nobody but the operator."""
    from edge.store.accounts import AccountStore
    from edge.web.accounts.book import Accounts
    from edge.web.accounts.local import write_local_token

    if not config.web.login:
        if config.web.is_open:
            _warned(
                box, "login", f"web.login is off and web.host is {config.web.host}: whoever reaches the port sees the cameras"
            )
        return None
    clock = box.runtime.parts.clock
    return Accounts(AccountStore(box.store), clock, local=write_local_token(box.folder.root))


def _say_claim(accounts: Accounts, say: Callable[[str], None]) -> None:
    """The claim code of a new box, this once. It goes to whoever started it, and into no log of ours."""
    code = accounts.first_code()
    if code is not None:
        say(f"claim code: {code} (shown this once; open the page and make the first account with it)")
    elif not accounts.claimed():
        say("nobody has made an account yet; `driftbox accounts claim-code` shows a new claim code")


def _certificates(box: Box, config: BoxConfig, stack: ExitStack, say: Callable[[str], None]) -> Certificates | None:
    """What the page is served with; None: plain HTTP. Looked after while the box runs."""
    from edge.web.tls import Certificates, CertificateWatch

    if config.web.tls_kind == "off":
        if config.web.is_open and config.web.login:
            _warned(
                box,
                "tls",
                "web.tls is off: passwords cross the network unprotected, unless a proxy in front of the box speaks TLS",
            )
        return None
    clock = box.runtime.parts.clock
    certificates = Certificates(config.web, box.folder.root, now_utc=clock.utc_s())
    tell = partial(_warned, box, "certificate")
    for text in certificates.first_notes:
        tell(text)
    stack.enter_context(CertificateWatch(certificates, clock.utc_s, tell))
    say(f"certificate: SHA-256 {certificates.certificate.fingerprint}")
    return certificates


def _warned(box: Box, code: str, text: str) -> None:
    """In the log, on the page and in the database."""
    log.warning("%s", text)
    at_utc = box.runtime.parts.clock.utc_s()
    box.runtime.notes.append((at_utc, Note(stream="", code=code, text=text)))
    with contextlib.suppress(StorageError):
        box.store.add_note(at_utc, code, text)


def _with_learning(services: Services, box: Box, status: RuntimeStatus, watchdog: Watchdog, stack: ExitStack) -> Services:
    """With what the pages about learning, compute, models and queries ask."""
    from edge import before_after, gpu_history
    from edge.box_gpu import BoxGpu
    from edge.box_learning import BoxLearning
    from edge.box_models import BoxModels
    from edge.box_queries import BoxQueries
    from edge.box_why import BoxWhy
    from edge.plan_book import PlanBook
    from edge.store.plans import PlanStore

    runtime, parts = box.runtime, box.runtime.parts
    engine, backend, clock = parts.engine, parts.backend, parts.clock
    book = PlanBook(PlanStore(box.store), newest=lambda: engine.decided, policy=lambda: engine.config.policy, utc=clock.utc_s)
    parts.listeners.append(book.heard)
    looked_at = gpu_history.Sources(report=backend.report, memory=backend.memory, devices=box.devices)
    history = gpu_history.GpuHistory(looked_at, clock)
    history.start()
    stack.callback(history.stop)
    watchdog.take(charge_of("gpu-history", history.thread))
    compared = before_after.Sources(
        detector=partial(parts.shelf.detector, device="cpu"), samples=parts.samples,
        windows=SampleStore(box.folder.samples_dir).windows, task_of=lambda camera: runtime.watched[camera].task, scoring=parts.scoring,
    )  # fmt: skip
    return replace(
        services, learning=BoxLearning(runtime, book, before_after.Comparer(compared)), why=BoxWhy(book, clock.monotonic_s),
        gpu=BoxGpu(status, history, box.store, backend.change_cost),
        models=BoxModels(box.folder.root, box.store, services.control), queries=BoxQueries(runtime),
    )  # fmt: skip


async def _main(box: Box, signals: Signals, manager: ServiceManager, watchdog: Watchdog) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        manager.stopping()
        box.runtime.stop()

    signals.runs(stop=stop, hurry=box.runtime.closing.hurry)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.came)
    watchdog.start()
    loop.call_soon(manager.ready)  # when the cameras are started and the loop has come round
    try:
        await box.runtime.run(box.watched, box.first_window)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        signals.listen()  # web and MQTT are still to say farewell
