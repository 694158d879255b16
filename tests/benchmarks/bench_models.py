"""Every form a model can serve in: frames/s, ms, MiB and F1, beside fp32 torch in the same run.

    driftbox bench models [--models yolov8n@320,yolo26n@320,tinydet-edge] [--videos 8] [--frames 14] [--variants ...] [--json FILE]
    driftbox bench models --models yolov8n@320 --videos 2 --pruned 0.3 --epochs 10

One thread. Speed: forms take turns on the frames of one video, encoding and decoding included; time is CPU time of the thread, which is
what a core to itself would need (every runtime here runs on the caller's thread; wall time on a shared machine measures the neighbours).
Quality: F1 at IoU 0.3 against labels of the golden detector (yolo26s@640) on frames of several videos; int8 is calibrated per video on
frames that are not judged. tinydet knows rendered streets only, so it is judged on those, against what was rendered.
--pruned adds the model with that part of its channels taken out, trained per video on the frames of calibration with the unpruned one
as teacher (a minute of CPU per video), as `pruned` and `pruned-int8`; `retrained` is the unpruned one, trained on the same.
Detectors only: a classifier answers about crops, not about frames, and is refused.
Needs `../shared/data`, or --data; rendered streets need nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import av
import numpy as np
import psutil
import torch

from configs.errors import DriftboxError, UsageError
from models.compress.prune import lesson, pruned
from models.detector import Detector
from models.evaluate import MatchCounts, match_counts
from models.labelled import LabelledImage
from models.retrain import retrain
from models.serving.base import Runtime
from models.serving.registry import runtime_of
from models.serving.served import ServedDetector, open_form
from models.weights import FOLDER_VARIABLE, is_path
from models.zoo import DETECTION, entry_of, load_detector, split_size
from scheduler.types import Detections
from streams.rendered import RenderedScene, Schedule

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
GOLDEN, GOLDEN_SCORE_MIN = "yolo26s@640", 0.4
MODELS = ("yolov8n@320", "yolo26n@320", "tinydet-edge")
VARIANTS = ("torch", "torch-compiled", "onnxruntime", "onnxruntime-int8", "openvino", "openvino-int8")
#: Videos where the small models find something: F1 of nothing found is no measure of what int8 costs.
VIDEOS = (
    "ua_detrac_mvi40201", "pets09_s2l1_view1", "cdnet_highway", "brt_avenue", "london_kerbside", "supermarket_aisle",
    "highway_vdh_video2", "pets2001_d3_cam1_lighting", "uab_road_a", "suburban_road",
)  # fmt: skip
CALIBRATION = 30
SPEED_FRAMES, ROUNDS = 40, 3
#: environment.md: ms per image at 224x224, one thread, mobilenet_v2 / resnet18.
ANCHOR = {
    "torch": "25 / 56",
    "onnxruntime": "8.8 / 37",
    "onnxruntime-int8": "9.9 / 45",
    "openvino": "5.1 / 18.6",
    "openvino-int8": "3.6 / 10.2",
}
SPEED_TO_REACH, F1_TO_LOSE = 2.5, 0.01


@dataclass(kw_only=True)
class Scene:
    """One camera: frames to calibrate on, frames to judge on and their labels. lessons: labels of the calibration
    frames, where something is trained on them."""

    name: str
    calibration: list[np.ndarray]
    judged: list[np.ndarray]
    labels: list[Detections] = field(default_factory=list)
    lessons: list[Detections] = field(default_factory=list)


@dataclass(kw_only=True)
class Row:
    model: str
    variant: str
    build_s: float = 0.0
    fps: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    ratio: float = 0.0
    form_mib: float = 0.0
    resident_mib: float = 0.0
    f1: float = 0.0
    f1_lost: float = 0.0
    agreement: float = 0.0
    problem: str = ""


# --- pictures ---------------------------------------------------------------------------------------------------------


def frames_of(path: Path, wanted: Sequence[float]) -> list[np.ndarray]:
    """uint8 RGB frames at the given parts (0-1) of a video."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        places = {min(stream.frames - 1, int(part * stream.frames)) for part in wanted}
        return [f.to_ndarray(format="rgb24") for i, f in enumerate(container.decode(stream)) if i in places]


def real_scenes(data: Path, n_videos: int, n_frames: int, golden: Detector, *, trained: bool = False) -> list[Scene]:
    """Calibrated on the first 40 percent of each video, judged on the last half."""
    scenes = []
    for name in VIDEOS[:n_videos]:
        path = data / "videos" / f"{name}.mp4"
        scene = Scene(
            name=name,
            calibration=frames_of(path, np.linspace(0.0, 0.4, CALIBRATION, endpoint=False).tolist()),
            judged=frames_of(path, np.linspace(0.5, 1.0, n_frames, endpoint=False).tolist()),
        )
        scene.labels = golden.predict(scene.judged, score_min=GOLDEN_SCORE_MIN)
        if trained:
            scene.lessons = golden.predict(scene.calibration, score_min=GOLDEN_SCORE_MIN)
        scenes.append(scene)
    return scenes


def rendered_scenes(n_scenes: int, n_frames: int) -> list[Scene]:
    """Rendered cameras with exact labels, day and night; judged frames come later than those of calibration."""
    scenes = []
    for seed in range(n_scenes):
        kind, light = ("street", "yard", "hall")[seed % 3], ("day", "dusk", "night")[seed // 3 % 3]
        street = RenderedScene(kind, 900 + seed, 640, 360, Schedule.always(light))
        judged = [street.render(400.0 + 7.3 * k) for k in range(n_frames)]
        scenes.append(
            Scene(
                name=f"{kind} {light}",
                calibration=[street.render(7.3 * k)[0] for k in range(CALIBRATION)],
                judged=[image for image, _ in judged],
                labels=[truth for _, truth in judged],
            )
        )
    return scenes


def check_is_detector(name: str) -> None:
    """Raises UsageError for an unknown model and for one that is no detector. What a weights file holds is known once it is loaded."""
    arch, _ = split_size(name)
    task = DETECTION if is_path(arch) else entry_of(arch).task
    if task != DETECTION:
        raise UsageError(
            f"{name} is a model for {task}, and what is judged here are boxes on whole frames",
            subject=name, remedy=f"leave it out; `driftbox evaluate --task {task} --edge {name}` judges it by what it is asked",
        )  # fmt: skip


# --- measuring --------------------------------------------------------------------------------------------------------


def resident_mib() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def state_mib(model: Detector) -> float:
    return sum(t.numel() * t.element_size() for t in model.state().values()) / 2**20


def served(model: Detector, runtime: Runtime, scene: Scene) -> ServedDetector:
    form = ServedDetector(model, runtime, lambda body, shape, shown: open_form(runtime, body, shape, scene.calibration))
    form.prepare(scene.judged[0])
    return form


def taught(model: Detector, student: Detector, scene: Scene, epochs: int) -> Detector:
    """The student after training on the scene's calibration frames, with `model` as teacher."""
    samples = [LabelledImage(image=i, labels=d) for i, d in zip(scene.calibration, scene.lessons, strict=True)]
    for _ in retrain(student, samples, lesson(epochs), seed=1, teacher=model):
        pass
    return student


def made(model: Detector, variant: str, scene: Scene, asked: argparse.Namespace) -> Detector:
    if variant == "torch":
        return model
    if variant == "retrained":
        return taught(model, model.clone(), scene, asked.epochs)
    if variant.startswith("pruned"):
        if id(scene) not in _PRUNED:
            _PRUNED[id(scene)] = taught(model, pruned(model, asked.pruned), scene, asked.epochs)
        student = _PRUNED[id(scene)]
        return student if variant == "pruned" else served(student, runtime_of("openvino-int8"), scene)
    return served(model, runtime_of(variant), scene)


_PRUNED: dict[int, Detector] = {}


def cpu_ms(detector: Detector, image: np.ndarray) -> float:
    started_s = time.thread_time()
    detector.predict([image])
    return 1000 * (time.thread_time() - started_s)


def measure_speed(rows: Mapping[str, Row], detectors: Mapping[str, Detector], images: Sequence[np.ndarray]) -> None:
    """Forms take turns picture by picture, so that whatever else the machine does hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in detectors}
    for detector in detectors.values():
        for image in images[:3]:
            detector.predict([image])
    for _ in range(ROUNDS):
        for image in images:
            for name, detector in detectors.items():
                times[name].append(cpu_ms(detector, image))
    for name, taken in times.items():
        row = rows[name]
        row.p50_ms, row.p99_ms = (float(np.percentile(taken, p)) for p in (50, 99))
        row.fps = 1000 / row.p50_ms
        row.ratio = rows["torch"].p50_ms / row.p50_ms if rows["torch"].p50_ms else 0.0


def f1_of(detector: Detector, scene: Scene, labels: Sequence[Detections]) -> MatchCounts:
    return MatchCounts.total(
        match_counts(found, label) for found, label in zip(detector.predict(scene.judged), labels, strict=True)
    )


def bench(name: str, variants: Sequence[str], scenes: Sequence[Scene], asked: argparse.Namespace) -> list[Row]:
    model = load_detector(name, task=DETECTION)
    rows = {variant: Row(model=name, variant=variant) for variant in variants}
    counts = {variant: MatchCounts() for variant in variants}
    agreed = {variant: MatchCounts() for variant in variants}
    fast: dict[str, Detector] = {}
    for number, scene in enumerate(scenes):
        trained = model.predict(scene.judged)
        for variant in variants:
            row = rows[variant]
            if row.problem or (variant == "torch-compiled" and number):
                continue
            before_mib, started_s = resident_mib(), time.process_time()
            try:
                form = made(model, variant, scene, asked)
            except DriftboxError as error:
                row.problem = str(error)
                continue
            row.build_s += time.process_time() - started_s
            counts[variant] += f1_of(form, scene, scene.labels)
            agreed[variant] += f1_of(form, scene, trained)
            if number == 0:
                row.resident_mib = resident_mib() - before_mib
                fast[variant] = form
            row.form_mib = form.memory_mib if isinstance(form, ServedDetector) else state_mib(form)
        print(f"  {name}: {scene.name}", flush=True)
    measure_speed(rows, fast, (scenes[0].calibration + scenes[0].judged)[:SPEED_FRAMES])
    for variant, row in rows.items():
        whole = variant != "torch-compiled"  # built for one scene only: it costs half a minute each
        row.build_s /= len(scenes) if whole else 1
        row.f1, row.agreement = (counts[variant].f1, agreed[variant].f1) if whole else (float("nan"), agreed[variant].f1)
        row.f1_lost = rows["torch"].f1 - row.f1
    return list(rows.values())


# --- printing ---------------------------------------------------------------------------------------------------------


def print_rows(rows: Sequence[Row]) -> None:
    print(
        f"\n{'model':<14}{'form':<18}{'frames/s':>9}{'p50 ms':>8}{'p99 ms':>8}{'x torch':>9}{'MiB':>7}{'resident':>9}"
        f"{'build s':>9}{'F1':>8}{'lost':>8}{'agrees':>8}   anchor ms (mobilenet_v2 / resnet18)"
    )
    for row in rows:
        if row.problem:
            print(f"{row.model:<14}{row.variant:<18}{row.problem}")
            continue
        print(
            f"{row.model:<14}{row.variant:<18}{row.fps:>9.1f}{row.p50_ms:>8.2f}{row.p99_ms:>8.2f}{row.ratio:>9.2f}"
            f"{row.form_mib:>7.1f}{row.resident_mib:>9.1f}{row.build_s:>9.1f}{row.f1:>8.3f}{row.f1_lost:>+8.3f}{row.agreement:>8.3f}"
            f"   {ANCHOR.get(row.variant, '-')}"
        )


def print_targets(rows: Sequence[Row]) -> None:
    print("\nnumbers to reach: int8 on CPU >= 2.5x frames/s of fp32 torch, <= 1 point of F1 lost")
    for row in rows:
        if not row.variant.endswith("int8") or row.variant.startswith("pruned") or row.problem:
            continue
        ok = row.ratio >= SPEED_TO_REACH and row.f1_lost <= F1_TO_LOSE
        print(
            f"{'REACHED' if ok else 'MISSED':<8} {row.model} {row.variant}: {row.ratio:.2f}x, {100 * row.f1_lost:+.1f} points lost"
        )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--videos", type=int, default=8)
    parser.add_argument("--frames", type=int, default=14, help="judged frames per video")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--pruned", type=float, default=0.0, help="part of the channels to take out")
    parser.add_argument("--epochs", type=int, default=10, help="of the training after pruning")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(words)
    names = asked.models.split(",")
    torch.set_num_threads(1)
    if not all(map(is_rendered, names)) and not (asked.data / "videos").is_dir():
        parser.exit(3, f"no videos in {asked.data}: give --data\n")
    os.environ.setdefault(FOLDER_VARIABLE, str(asked.data / "weights"))
    try:
        measure(names, asked)
    except UsageError as error:
        parser.exit(error.exit_code, f"{error}\n")


def measure(names: Sequence[str], asked: argparse.Namespace) -> None:
    for name in names:
        check_is_detector(name)
    variants = list(dict.fromkeys(["torch", *asked.variants.split(",")]))
    variants += ["retrained", "pruned", "pruned-int8"] if asked.pruned else []
    rows = [row for name in names for row in bench(name, variants, scenes_for(name, asked), asked)]
    print_rows(rows)
    print_targets(rows)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


_SCENES: dict[bool, list[Scene]] = {}


def is_rendered(name: str) -> bool:
    """Whether a model is judged on rendered streets."""
    return name.startswith("tinydet")


def scenes_for(name: str, asked: argparse.Namespace) -> list[Scene]:
    rendered = is_rendered(name)
    if rendered not in _SCENES:
        _SCENES[rendered] = (
            rendered_scenes(asked.videos, asked.frames)
            if rendered
            else real_scenes(asked.data, asked.videos, asked.frames, load_detector(GOLDEN), trained=asked.pruned > 0)
        )
    return _SCENES[rendered]


if __name__ == "__main__":
    main()
