"""Where jobs compute, as the configuration asks for it, how fast, and who looks after the GPUs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from configs.errors import JobError, StorageError
from configs.machine import usable_cores
from configs.schema import BoxConfig
from configs.schema.crosscheck import OWN
from edge.clock import Clock
from edge.gpu.base import ComputeBackend
from edge.gpu.choose import Look, build_backend
from edge.gpu.nvml import DeviceReader, DeviceWatch
from edge.gpu.pooled import PooledBackend
from edge.pool.front import PoolFront
from edge.pool.pool import Pool
from edge.queries.models import OpenModel
from edge.runtime import BoxRuntime, infer_job
from edge.speed_file import usable_speed
from edge.step_pool import StepPool
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.wiring.settings import device_of_models, models_of, speed_of
from models.detector import Detector
from models.serving.cache import machine
from models.tasks.registry import task_of
from scheduler.commands import Note
from scheduler.orloj.beside import Beside
from scheduler.orloj.registry import make_batch_policy

if TYPE_CHECKING:
    from edge.gpu.mps import MpsBackend

log = logging.getLogger("driftbox")


def backend_of(config: BoxConfig, clock: Clock, look: Look | None = None) -> ComputeBackend:
    """What keeps the shares of this box. look: the newest answer about its GPUs; None: they are asked now. EnvironmentLacking: this
    machine cannot do what is configured."""
    ask = DeviceReader().read
    return build_backend(config.gpus, data_dir=config.box.data_dir, clock=clock, look=look or ask, look_anew=ask)


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


#: Most workers of the queue: each has a copy of every model.
POOL_WORKERS_MAX = 8


def pool_workers(config: BoxConfig) -> int:
    """Batches of the queue that run at a time: as many as there are cores for them, one on a GPU; 1 where there is no queue."""
    on_cores = config.scheduler.serving != OWN and config.gpus.device == "cpu"
    return min(usable_cores(), POOL_WORKERS_MAX) if on_cores else 1


def pool_of(config: BoxConfig, backend: ComputeBackend, clock: Clock) -> Pooled | None:
    """None: each camera's thread computes by itself (`scheduler.serving: own`)."""
    if config.scheduler.serving == OWN:
        return None
    wrapped = PooledBackend(backend, clock=clock, workers=pool_workers(config))
    policy = Beside(make_batch_policy(config.scheduler.serving), wrapped.beside)
    return Pooled(pool=Pool(policy, wrapped, clock), backend=wrapped)


def frame_threads_of(config: BoxConfig, clock: Clock) -> StepPool | None:
    """Who does the cameras' frames where they take turns at the processor: as many threads as may have one (`edge.gpu.choose`). None:
    each camera's own, because frames are computed elsewhere and its thread has to wait for that."""
    own = config.gpus.device == "cpu" and config.scheduler.serving == OWN
    return StepPool(usable_cores(), clock) if own else None


def serve_in_pool(pool: Pool, make: Callable[[Detector, str], Detector], trained: Detector, camera_id: str) -> Detector:
    """Serves a model through the queue; `make`: (a model as trained, its camera) -> the form that is loaded there."""
    return PoolFront(pool, trained, app=camera_id, job=infer_job(camera_id), make=make)


def hand_over(runtime: BoxRuntime, job: str, make: Callable[[Detector], Detector]) -> None:
    """Lets a camera's model go on in another process. Raises SwapRefused, and JobError for a job that serves no camera."""
    camera_id = next((camera_id for camera_id in runtime.watched if infer_job(camera_id) == job), None)
    if camera_id is None:
        raise JobError(f"{job} serves no camera", subject=job)
    runtime.swapper.hand_over(runtime.watched[camera_id].worker, camera_id, make)


def beside(config: BoxConfig, pool: Pool, camera_id: str) -> OpenModel:
    """Models that a camera's queries ask beside its own. They serve as trained, and are paid from the camera's share."""

    def open_model(model: str, task_name: str) -> Detector:
        trained = task_of(task_name).load(model or config.models.for_task(task_name).edge, device=device_of_models(config))
        return PoolFront(
            pool, trained, app=f"{camera_id}/{task_name}", job=infer_job(camera_id), make=lambda trained, app: trained
        )

    return open_model
