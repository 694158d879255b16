"""The only file that names concrete classes: builds a box from its configuration and runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
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
from edge.clock import Clock, SystemClock
from edge.gpu.base import ComputeBackend, DeviceFacts
from edge.gpu.choose import Look, build_backend, clock_for
from edge.gpu.device_clock import DeviceClock
from edge.gpu.nvml import DeviceReader, DeviceWatch
from edge.gpu.pooled import PooledBackend
from edge.inference import InferenceWorker
from edge.jobs import Scoring, here
from edge.journal import Journal
from edge.labels_admin import FolderLabels
from edge.logs import set_up_logging
from edge.pool.front import PoolFront
from edge.pool.pool import Pool
from edge.profiler.live import Profiles, Watching
from edge.profiler.profile import USUAL_FPS
from edge.queries.base import Tools
from edge.queries.live import CameraQueries, specs_of
from edge.queries.models import OpenModel, QueryModels
from edge.resolution import at_own_size
from edge.runtime import BoxRuntime, Parts, Watched, infer_job, knob_profiles, price_of
from edge.samples import FileSamples
from edge.sampling import Sampler
from edge.serving import PICTURES as FORM_PICTURES
from edge.serving import Serving
from edge.shadow import ShadowRules
from edge.shelf import Retention, Shelf
from edge.speed_file import SpeedFile, usable_speed, write_speed
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.swapping import SWITCH_S
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
from scheduler.orloj.registry import make_batch_policy
from scheduler.types import Detections, RetrainConfig
from scheduler.videostorm.reprofile import ReprofileRules
from streams.camera import open_camera
from streams.masks import masks_from
from streams.rendered.serve import DEMO_CAMERAS, CameraScript
from streams.rtsp_process import RtspServerProcess
from streams.samples import SampleStore
from streams.url import SourceUrl

if TYPE_CHECKING:
    from edge.gpu.mps import MpsBackend

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
    """A built box, not yet running. first_window: the one to open first; devices: its GPUs as of the newest look."""

    config: BoxConfig
    runtime: BoxRuntime
    watched: list[Watched]
    first_window: int
    folder: DataFolder
    store: Store
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
        goldens = load_goldens(config)
        addresses = stack.enter_context(rendered_server(config))

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
        tasks = {entry.id: entry.task for entry in config.active_cameras}
        serving = serving_of(config, folder, store, samples, clock)
        stack.callback(serving.close)
        serve, serve_later = serving.serve, serving.serve_later
        steps = here
        if pool is not None:
            serve, serve_later = partial(serve_in_pool, pool.pool, serve), partial(serve_in_pool, pool.pool, serve_later)
        if processes is not None:
            serve = serve_later = partial(serve_in_process, processes)
            steps = processes.steps
        profiles = profiles_of(config, store, clock)
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
                golden_of=lambda camera_id: goldens[tasks[camera_id]],
                clock=clock,
                scoring=scoring_of(config),
                labelling=labelling,
                replay_windows=REPLAY_WINDOWS,
                require_room=require_room,
                shadow=shadow_of(config),
                profiles=profiles,
                reprofile=reprofile_of(config),
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
        anew = {entry.id for entry in config.active_cameras if samples.begin(entry.id, entry.task)}
        watched = [
            watch(entry, config, addresses, runtime, serve_later, anew=entry.id in anew) for entry in config.active_cameras
        ]
        for entry, camera in zip(config.active_cameras, watched, strict=True):
            camera.queries = queries_of(entry, config, clock, beside(config, pool.pool, entry.id) if pool is not None else None)
        yield Box(
            config=config, runtime=runtime, watched=watched, first_window=next_window(store, samples), folder=folder, store=store,
            devices=gpus.facts,
        )  # fmt: skip


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
    return Pooled(pool=Pool(make_batch_policy(config.scheduler.serving), wrapped, clock), backend=wrapped)


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


def serving_of(config: BoxConfig, folder: DataFolder, store: Store, samples: SampleStore, clock: Clock) -> Serving:
    """What makes the served forms of this box's models."""
    tasks = {entry.id: entry.task for entry in config.active_cameras}
    pictures = FileSamples(samples)

    def newest(camera_id: str) -> list[Picture]:
        refs = [ref for window in sorted(samples.windows(camera_id))[-2:] for ref in samples.sampled(camera_id, window)]
        return [pictures.picture(ref) for ref in refs[-FORM_PICTURES:]]

    def tell(camera_id: str, text: str) -> None:
        log.warning("%s: %s", camera_id, text)
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "serving", text, stream=camera_id)

    return Serving(
        serving_form(config), folder.root / "forms", newest=newest, task_of=lambda camera_id: task_of(tasks[camera_id]), tell=tell,
        build_s=config.models.serving_build_s,
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
    camera = open_camera(
        entry.id, SourceUrl(addresses.get(entry.id) or entry.url.resolve()), transport=entry.transport,
        masks=masks_from(entry.masks), loop=entry.loop, realtime=not entry.may_lag, seed=sum(entry.id.encode()),
    )  # fmt: skip
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
        retrain=suited(retrain_configs(config, arch), detector, arch),
    )  # fmt: skip


def profiles_of(config: BoxConfig, store: Store, clock: Clock) -> Profiles:
    """The cameras' stored profiles; one that does not fit is said in the log and the database."""
    watching = {
        entry.id: Watching(
            task=entry.task,
            model=entry.edge or config.models.for_task(entry.task).edge,
            fps=entry.fps or USUAL_FPS,
            machine=machine(),
            device=config.gpus.device,
        )  # fmt: skip
        for entry in config.active_cameras
    }

    def tell(camera: str, text: str) -> None:
        log.warning("%s: %s", camera, text)
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "profile", text, stream=camera)

    return Profiles(store, watching.__getitem__, tell)


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


def run_box(config: BoxConfig, *, demo: bool = False, say: Callable[[str], None] = print) -> int:
    """Runs a box until it is stopped (SIGINT, SIGTERM). Returns the exit code."""
    set_up_logging()
    with built(config, say=say) as box, ExitStack() as stack:
        status = RuntimeStatus(box.runtime, box=config.box.id, site=config.box.site, devices=box.devices)
        if config.web.enabled:
            from edge.web.serve import WebServer

            labels = FolderLabels(box.folder.root, holdout_frac=config.window.holdout_frac)
            server = stack.enter_context(WebServer(status, host=config.web.host, port=config.web.port, labels=labels))
            say(f"status page: {server.url}")
        if config.telemetry.mqtt.enabled:
            from edge.telemetry.publisher import start_telemetry

            stack.callback(start_telemetry(config, box.runtime, status, box.store))
        if demo:
            say("the demo's cameras drift after about a minute; the first better model is usual within five. Stop with Ctrl-C.")
        asyncio.run(_main(box))
    return 0


async def _main(box: Box) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, box.runtime.stop)
    await box.runtime.run(box.watched, box.first_window)
