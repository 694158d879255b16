"""Cameras with all that watches them: those that a box starts with, and those that join or change while it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial

from configs.errors import StorageError
from configs.schema import BoxConfig, CameraEntry
from configs.tasks import CLASSIFICATION
from edge.cameras.times import learns_at, local_now
from edge.clock import Clock
from edge.inference import InferenceWorker
from edge.live_jobs import Reprofile
from edge.media.parts import Media
from edge.media.recorder import ClipRules
from edge.objects.book import ObjectBook
from edge.objects.book import Rules as ObjectRules
from edge.objects.clips import CameraClips
from edge.objects.live import CameraObjects, PictureMaker, new_id
from edge.objects.tracking import SceneTracker
from edge.pool.pool import Pool
from edge.profiler.live import LiveMenu, Profiles, Watching
from edge.profiler.profile import USUAL_FPS
from edge.queries.base import Tools
from edge.queries.live import CameraQueries, specs_of
from edge.queries.models import OpenModel, QueryModels
from edge.rates import RateMeter
from edge.runtime import BoxRuntime, Watched, infer_job, knob_profiles
from edge.store.store import Store
from edge.wiring.compute import beside
from edge.wiring.models import cost_s, plain_lesson, plain_picture, suited
from edge.wiring.settings import device_of_models, retrain_configs
from models.detector import Detector
from models.retrain import settle_precision
from models.serving.cache import machine
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from models.tasks.registry import task_of
from scheduler.ekya.usual_knobs import STRIDES
from scheduler.types import KnobProfile
from streams.camera import PyavCamera, open_camera
from streams.masks import masks_from
from streams.rendered.address import script_of
from streams.rtsp_process import RtspServerProcess
from streams.samples import SampleStore
from streams.source import Camera
from streams.url import SourceUrl

log = logging.getLogger("driftbox")


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
        script_of(entry.id, entry.url.resolve())
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
        script = script_of(entry.id, scene)
        process = RtspServerProcess([script.mount()])
        process.start()
        if server is not None:
            server.stop()
        self._servers[entry.id], self.addresses[entry.id] = (scene, process), process.url(script.id)


def camera_of(entry: CameraEntry, addresses: dict[str, str]) -> Camera:
    """addresses: of rendered cameras. Raises ConfigError, EnvironmentLacking (a secret that is not there)."""
    return open_camera(
        entry.id, SourceUrl(addresses.get(entry.id) or entry.url.resolve()), transport=entry.transport,
        masks=masks_from(entry.masks), loop=entry.loop, realtime=not entry.may_lag, seed=sum(entry.id.encode()), rtsp_by=entry.rtsp_by,
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
        camera, lane, served(detector, entry.id), version.id, clock=parts.clock, score_min=score_min, task=task, goal_s=entry.goal_s,
        pool=parts.frame_threads,
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
        rates=None if task.wants_regions else RateMeter(score_min=score_min),  # answers for regions are no boxes to compare
    )  # fmt: skip


def watching_of(entry: CameraEntry, config: BoxConfig) -> Watching:
    """What its profile must have been made for."""
    return Watching(
        task=entry.task, model=entry.edge or config.models.for_task(entry.task).edge, fps=entry.fps or USUAL_FPS, machine=machine(),
        device=config.gpus.device, every_frame=entry.url.scheme != "rendered",
    )  # fmt: skip


def profiles_of(watching: Mapping[str, Watching], store: Store, clock: Clock) -> Profiles:
    """The cameras' stored profiles; one that does not fit is said in the log and the database."""

    def tell(camera: str, text: str) -> None:
        log.warning("%s: %s", camera, text)
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "profile", text, stream=camera)

    return Profiles(store, watching.__getitem__, tell)


def reprofiling_of(config: BoxConfig, current: Callable[[], BoxConfig] | None = None) -> Reprofile | None:
    """current: the configuration with today's cameras and queries, None: they stay those of `config`. Returns None where an operator is
    told to do it. Under `mps` this process does not compute on the GPU, and what it measured on its cores would not be a profile of
    this box."""
    if config.scheduler.reprofile != "auto" or config.gpus.backend == "mps":
        return None
    return partial(_reprofile, current or (lambda: config))


def _reprofile(
    current: Callable[[], BoxConfig], camera: str, query: str, budget_s: float, checkpoint: Callable[[], None]
) -> None:
    """Profiles a camera, or a query of it, as `driftbox profile` does, on its recording or on what it sends now, and keeps it: who
    follows the database takes it up. checkpoint: called between frames and settings, and while a stretch of the camera comes in.
    Raises what `profile_command` raises."""
    from edge.profiler.command import ProfileOptions, profile_command

    config, options = current(), ProfileOptions(live=True, budget_s=budget_s, query=query or None)
    profile_command(config, camera, options, device=device_of_models(config), curve=STRIDES, told=lambda *_: checkpoint())


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
            rtsp_by=entry.rtsp_by,
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
