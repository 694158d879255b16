"""The models of a box: golden ones, served forms, and what a first guess of their cost is made on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from configs.errors import ConfigError, StorageError
from configs.schema import BoxConfig
from edge.clock import Clock
from edge.form_making import PICTURES as FORM_PICTURES
from edge.golden_form import AGREEMENT_MIN, TRIES, GoldenForms
from edge.gpu.device_clock import DeviceClock
from edge.profiler.live import Profiles
from edge.resolution import at_own_size
from edge.samples import FileSamples
from edge.serving import AUTO, TRAINED, Serving, in_thread, tries_on
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.wiring.settings import device_of_models, golden_form, serving_form
from models.detector import Detector
from models.labelled import LabelledImage
from models.tasks.base import Picture, Task
from models.tasks.detection import DETECTION
from models.tasks.registry import task_of
from scheduler.types import Detections, RetrainConfig
from streams.samples import SampleStore

log = logging.getLogger("driftbox")

#: Forms that do not compute in the context of the thread that asks.
OUTSIDE_GREEN = ("onnxruntime", "torch-graph-fp16")

#: Nobody waits for the form of a golden model, and it is large.
GOLDEN_BUILD_S = 900.0

#: Regions of the picture on which a classifier's cost is guessed.
PLAIN_REGIONS = 4


def serving_of(
    config: BoxConfig,
    folder: DataFolder,
    store: Store,
    samples: SampleStore,
    clock: Clock,
    task_of_camera: Callable[[str], Task],
    *,
    threads: int = 1,
) -> Serving:
    """What makes the served forms of this box's models. threads: as many run one at a time."""
    pictures = FileSamples(samples)

    def newest(camera_id: str) -> list[Picture]:
        refs = [ref for window in sorted(samples.windows(camera_id))[-2:] for ref in samples.sampled(camera_id, window)]
        return [pictures.picture(ref) for ref in refs[-FORM_PICTURES:]]

    def tell(camera_id: str, text: str) -> None:
        log.warning("%s: %s", camera_id, text)
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "serving", text, stream=camera_id)

    form = serving_form(config)
    if form != config.models.serving and config.models.serving != AUTO:
        text = f"models.serving: {config.models.serving} runs on a processor only; on the GPU models serve as trained"
        log.warning("%s", text)
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "serving", text)
    return Serving(
        form, folder.root / "forms", newest=newest, task_of=task_of_camera, tell=tell,
        build_s=config.models.serving_build_s, device=device_of_models(config), tries=tries_of(config), threads=threads,
    )  # fmt: skip


def tries_of(config: BoxConfig) -> tuple[str, ...]:
    """What `models.serving: auto` measures. ONNX Runtime computes on a stream of its own, and a captured graph in the context of its
    capture, so outside the part of the GPU that a green context is: there they are not tried."""
    tries = tries_on(device_of_models(config))
    return tuple(name for name in tries if name not in OUTSIDE_GREEN) if config.gpus.backend == "green" else tries


def sized(profiles: Profiles, serve: Callable[[Detector, str], Detector], trained: Detector, camera_id: str) -> Detector:
    """What serves a camera; where its profile turns the resolution, small pictures are not enlarged again."""
    menu = profiles.menu(camera_id)
    return serve(at_own_size(trained) if menu is not None and menu.reduces else trained, camera_id)


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


def goldens_in_form(
    config: BoxConfig, folder: DataFolder, store: Store, clock: Clock, golden_of: Callable[[str], Detector], stack: ExitStack
) -> Callable[[str], Detector]:
    """camera -> what labels for it: its golden model, in the form that is fastest here once that was made."""
    choice = golden_form(config)
    if choice == TRAINED:
        return golden_of

    def tell(name: str, text: str) -> None:
        log.warning("%s: %s", name, text)
        with contextlib.suppress(StorageError):
            store.add_note(clock.utc_s(), "serving", f"{name}: {text}")

    forms = Serving(
        choice, folder.root / "golden-forms", newest=lambda camera_id: (), task_of=task_of, tell=tell,
        build_s=max(GOLDEN_BUILD_S, config.models.serving_build_s), tries=TRIES, agreement_min=AGREEMENT_MIN,
    )  # fmt: skip
    stack.callback(forms.close)

    def make(golden: Detector, pictures: list[np.ndarray]) -> Detector:
        return forms.form_of(golden, f"golden model {golden.spec.arch}", pictures)

    return GoldenForms(golden_of, make, in_thread)


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
