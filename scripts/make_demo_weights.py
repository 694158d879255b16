"""Makes the demo detectors' weights (`models/assets/*.safetensors`) from rendered scenes. See docs/demo-models.md.

    python scripts/make_demo_weights.py tinydet-edge       # clear days only: it is meant to drift
    python scripts/make_demo_weights.py tinydet-golden     # every condition
    python scripts/make_demo_weights.py --measure          # F1 of both per condition, and what a retraining regains

Stands outside the packages because it needs both `streams` and `models`, which do not import each other.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from models.detector import Detector  # noqa: E402
from models.evaluate import f1  # noqa: E402
from models.labelled import LabelledImage  # noqa: E402
from models.retrain import retrain  # noqa: E402
from models.tinydet import TinyDetector, batch_loss, bundled_weights, load_bundled  # noqa: E402
from scheduler.types import Detections, RetrainConfig  # noqa: E402
from streams.rendered import CONDITIONS, Condition, RenderedScene, Schedule  # noqa: E402

KINDS = ("street", "yard", "hall")
#: Scene seeds; the demo cameras and the tests use seeds below 10 000.
TRAIN_SEED, CHECK_SEED = 10_000, 20_000
#: Golden detections below this score are no labels.
LABEL_SCORE_MIN = 0.4
Sample = tuple[np.ndarray, Detections]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    scenes: int
    frames_per_scene: int
    steps: int
    batch: int
    lr: float
    all_conditions: bool
    bf16: bool


RECIPES = {
    "tinydet-edge": Recipe(scenes=180, frames_per_scene=14, steps=700, batch=16, lr=4e-3, all_conditions=False, bf16=True),
    "tinydet-golden": Recipe(scenes=330, frames_per_scene=14, steps=1300, batch=16, lr=3e-3, all_conditions=True, bf16=True),
}


# --- data -------------------------------------------------------------------------------------------------------------


def random_condition(rng: np.random.Generator) -> Condition:
    """A condition for the golden model: one main strength, sometimes a second, any class mix, sometimes a knocked camera."""
    strengths = {"mix": float(rng.random()), "bump": float(rng.random()) if rng.random() < 0.4 else 0.0}
    kinds = ("dark", "dark", "fog", "fog", "rain", "glare", None)
    for chance in (1.0, 0.25):
        kind = kinds[int(rng.integers(len(kinds)))]
        if kind and rng.random() < chance:
            strengths[kind] = float(rng.uniform(0.2, 1.0) ** 0.6)
    return Condition(**strengths)


def render_set(recipe: Recipe, seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    samples: list[Sample] = []
    for number in range(recipe.scenes):
        condition = random_condition(rng) if recipe.all_conditions else Condition(mix=0.25 * float(rng.random()))
        scene = RenderedScene(KINDS[number % 3], TRAIN_SEED + number, schedule=Schedule([(0.0, condition)]))
        samples += [scene.render(float(rng.uniform(0, 5000))) for _ in range(recipe.frames_per_scene)]
    return samples


def augment(sample: Sample, rng: np.random.Generator) -> Sample:
    """Mirrors, zooms and shifts; objects that are mostly pushed out of the picture lose their label."""
    image, labels = sample
    height, width = image.shape[:2]
    boxes = labels.xyxy.copy()
    if rng.random() < 0.5:
        image = image[:, ::-1]
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    zoom = float(rng.uniform(0.85, 1.3))
    shift = rng.uniform(-0.5, 0.5, 2) * abs(zoom - 1) * (width, height) + (1 - zoom) * np.array((width, height)) / 2
    matrix = np.array([[zoom, 0, shift[0]], [0, zoom, shift[1]]])
    image = cv2.warpAffine(np.ascontiguousarray(image), matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    moved = boxes * zoom + np.tile(shift, 2)
    clipped = np.clip(moved, 0, [width, height, width, height])
    areas = [(b[:, 2:] - b[:, :2]).clip(0).prod(1) for b in (clipped, moved)]
    keep = areas[0] > 0.4 * areas[1]
    return image, Detections(xyxy=clipped[keep].astype(np.float32), score=labels.score[keep], class_id=labels.class_id[keep])


def batches(samples: list[Sample], recipe: Recipe, rng: np.random.Generator) -> Iterator[list[Sample]]:
    order: list[int] = []
    for _ in range(recipe.steps):
        if len(order) < recipe.batch:
            order = list(rng.permutation(len(samples)))
        yield [augment(samples[order.pop()], rng) for _ in range(recipe.batch)]


# --- training ---------------------------------------------------------------------------------------------------------


def train(arch: str, recipe: Recipe, seed: int) -> TinyDetector:
    """From random weights, with live batch-norm statistics (a retraining on the box freezes them) and averaged weights."""
    started_s = time.perf_counter()
    samples = render_set(recipe, seed)
    print(f"{len(samples)} frames rendered in {time.perf_counter() - started_s:.0f} s", flush=True)
    detector, rng = TinyDetector(arch, seed=seed), np.random.default_rng(seed + 1)
    average = detector.state()
    optimiser = torch.optim.AdamW(detector.net.parameters(), lr=recipe.lr, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.lr, recipe.steps, pct_start=0.1, final_div_factor=100)
    mean_loss = math.nan
    for step, batch in enumerate(batches(samples, recipe, rng), start=1):
        loss = training_step(detector, optimiser, batch, recipe.bf16)
        schedule.step()
        follow(average, detector, keep=min(0.995, step / (step + 20)))
        mean_loss = loss if math.isnan(mean_loss) else 0.97 * mean_loss + 0.03 * loss
        if step % 50 == 0:
            print(f"step {step}/{recipe.steps} loss {mean_loss:.3f} {time.perf_counter() - started_s:.0f} s", flush=True)
    detector.load_state(average)
    detector.net.eval()
    return detector


def training_step(detector: TinyDetector, optimiser: torch.optim.Optimizer, batch: list[Sample], bf16: bool) -> float:
    pairs = [detector.encode(image, labels) for image, labels in batch]
    inputs = torch.stack([x for x, _ in pairs]).contiguous(memory_format=torch.channels_last)
    detector.net.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        heat, sides = detector.net(inputs)
    loss = batch_loss(heat.float(), sides.float(), [target for _, target in pairs])
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(detector.net.parameters(), 20.0)
    optimiser.step()
    return float(loss.detach())


def follow(average: dict[str, torch.Tensor], detector: TinyDetector, keep: float) -> None:
    """Exponential moving average of the weights."""
    for name, tensor in detector.state().items():
        average[name].mul_(keep).add_(tensor, alpha=1 - keep)


def save(detector: TinyDetector, recipe: Recipe, seed: int, quality: dict[str, float]) -> None:
    arch = detector.spec.arch
    metadata = {
        "arch": arch,
        "recipe": repr(recipe),
        "seed": str(seed),
        "f1_iou30": json.dumps(quality),
        "license": "Apache-2.0",
    }
    path = bundled_weights(arch)
    path.parent.mkdir(exist_ok=True)
    save_file({name: tensor.half() for name, tensor in detector.state().items()}, path, metadata)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.2f} MB")


# --- measuring --------------------------------------------------------------------------------------------------------


def check_frames(kind: str, condition: str, count: int, seed: int = CHECK_SEED) -> list[Sample]:
    scene = RenderedScene(kind, seed + KINDS.index(kind), schedule=Schedule.always(condition))
    return [scene.render(500 + 9.7 * i) for i in range(count)]


def quality_by_condition(detector: TinyDetector, count: int = 30) -> dict[str, float]:
    """F1 at IoU 0.3 and score 0.25 against exact truth, over unseen scenes of all kinds, per condition."""
    quality = {}
    for condition in CONDITIONS:
        samples = [s for offset in (0, 50) for k in KINDS for s in check_frames(k, condition, count, CHECK_SEED + offset)]
        predicted = detector.predict([image for image, _ in samples])
        quality[condition] = round(f1(zip(predicted, (labels for _, labels in samples), strict=True)), 3)
    return quality


#: Retraining configurations for the demo's edge model, see docs/demo-models.md.
PRESETS = {
    "full": RetrainConfig(name="full", epochs=10, batch=4, lr=2e-3),
    "short": RetrainConfig(name="short", epochs=4, batch=4, lr=2e-3),
    "half-data": RetrainConfig(name="half-data", epochs=10, batch=4, lr=2e-3, data_frac=0.5),
    "last-layers": RetrainConfig(name="last-layers", epochs=10, batch=4, lr=2e-3, layers_frac=0.5),
}
#: Cameras and new conditions on which a retraining is measured.
DRIFTS = (("street", "night"), ("yard", "fog"), ("hall", "night"), ("street", "rain+dusk"))


def camera_frames(kind: str, condition: str, count: int, from_s: float, every_s: float) -> list[Sample]:
    """Frames of one fixed camera (not among the training scenes) under one condition."""
    scene = RenderedScene(kind, 700 + KINDS.index(kind), schedule=Schedule.always(condition))
    return [scene.render(from_s + every_s * i) for i in range(count)]


def score(detector: Detector, samples: list[Sample]) -> float:
    """F1 at IoU 0.3 and score 0.25 against exact truth."""
    found = detector.predict([image for image, _ in samples])
    return round(f1(zip(found, (truth for _, truth in samples), strict=True)), 3)


def regained(kind: str, condition: str, config: RetrainConfig, *, frames: int = 40) -> dict[str, float]:
    """The edge model on one camera: on a clear day, in the new condition, and there again after `config` on golden labels."""
    edge, golden = load_bundled("tinydet-edge"), load_bundled("tinydet-golden")
    images = [image for image, _ in camera_frames(kind, condition, frames, 100, 3.1)]
    labelled = [
        LabelledImage(image=image, labels=labels)
        for image, labels in zip(images, golden.predict(images, score_min=LABEL_SCORE_MIN), strict=True)
    ]
    held_out = camera_frames(kind, condition, 40, 900, 5.3)
    result = {
        "day": score(edge, camera_frames(kind, "day", 40, 900, 5.3)),
        "golden": score(golden, held_out),
        "before": score(edge, held_out),
    }
    student, started_s = edge.clone(), time.process_time()
    for _ in retrain(student, labelled, config, seed=0):
        pass
    return result | {"train_cpu_s": round(time.process_time() - started_s, 1), "after": score(student, held_out)}


def measure() -> None:
    for arch in RECIPES:
        print(arch, json.dumps(quality_by_condition(load_bundled(arch))), flush=True)
    for kind, condition in DRIFTS:
        for config in PRESETS.values():
            print(f"{kind} {condition}: {config.name}", json.dumps(regained(kind, condition, config)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="*", choices=[*RECIPES, []], help="which weights to make")
    parser.add_argument("--steps", type=int, help="fewer or more steps than the recipe")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", action="store_true", help="measure the bundled weights")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    for arch in args.arch:
        recipe = RECIPES[arch] if args.steps is None else Recipe(**{**vars(RECIPES[arch]), "steps": args.steps})
        detector = train(arch, recipe, args.seed)
        quality = quality_by_condition(detector)
        print(arch, json.dumps(quality))
        save(detector, recipe, args.seed, quality)
    if args.measure:
        measure()


if __name__ == "__main__":
    main()
