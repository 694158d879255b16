"""Classification of what moves, on real video: accuracy before and after retraining the head or everything, ms per crop.

Run: python tests/benchmarks/bench_tasks.py [FOLDER] [VIDEO ...]   FOLDER: holds videos/ and weights/ (default: ../shared/data)
Regions by background subtraction (`streams.motion`), golden labels by yolo26s's class of the region. Trained on pictures of the first
60 % of a video, judged on those of the rest. `always one`: what answering with the commonest class of the judged part would reach.
`zero-shot`: as the weights come, ImageNet's classes grouped to ours (MobileNetV2's file holds features only: it says `nothing`).
Times are CPU time of one thread.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import torch

from models.detector import Detector
from models.evaluate import MatchCounts
from models.labelled import LabelledImage, predicted
from models.retrain import Augmentation, retrain, student
from models.tasks.base import Picture, Scoring
from models.tasks.classification import CLASSIFICATION
from scheduler.types import RetrainConfig
from streams.motion import Motion

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
VIDEOS = ("london_kerbside", "brt_avenue", "ua_detrac_intersection")
MODELS = ("efficientnet-lite0", "mobilenetv2")
GOLDEN, GOLDEN_SCORE_MIN = "yolo26s@640", 0.4
#: Pictures labelled of each video, and the part of them that is learnt from.
PICTURES, TRAIN_FRAC = 48, 0.6
CONFIGS = (
    RetrainConfig(name="head", epochs=5, batch=8, layers_frac=0.05, lr=3e-3),
    RetrainConfig(name="head, 64 added", epochs=5, batch=8, layers_frac=0.05, lr=3e-3, head_neurons=64),
    RetrainConfig(name="all layers", epochs=5, batch=8, layers_frac=1.0, lr=3e-4),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """accuracy: 0-1. took_s: CPU seconds of the retraining."""

    video: str
    model: str
    what: str
    accuracy: float
    took_s: float = 0.0


def labelled_pictures(video: Path, golden: Detector) -> list[LabelledImage]:
    """Pictures spread over those in which something moved, in time order."""
    moved: list[Picture] = []
    motion = Motion()
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        fps, every = float(stream.average_rate), max(1, stream.frames // (2 * PICTURES))
        for i, frame in enumerate(container.decode(video=0)):
            image = frame.to_ndarray(format="rgb24")
            regions = motion.find(image, at_s=i / fps)
            if len(regions) and i % every == 0:
                moved.append(Picture(image=image, regions=regions))
    chosen = [moved[i] for i in np.unique(np.linspace(0, len(moved) - 1, PICTURES).round().astype(int))]
    labels = CLASSIFICATION.labels(golden, chosen, score_min=GOLDEN_SCORE_MIN)
    return [LabelledImage(image=picture.image, labels=found) for picture, found in zip(chosen, labels, strict=True)]


def accuracy(model: Detector, samples: Sequence[LabelledImage]) -> float:
    pairs = predicted(model, samples, task=CLASSIFICATION)
    return MatchCounts.total(CLASSIFICATION.counts(found, labels, Scoring()) for found, labels in pairs).f1


def commonest_frac(samples: Sequence[LabelledImage]) -> float:
    counts = np.bincount(np.concatenate([s.labels.class_id for s in samples]))
    return float(counts.max() / counts.sum())


def crop_ms(model: Detector, samples: Sequence[LabelledImage]) -> float:
    """Milliseconds of CPU per crop, cutting and scaling included."""
    CLASSIFICATION.predict(model, [samples[0].picture])  # the first run of a model is slow
    crops, started_s = sum(len(s.labels) for s in samples), time.process_time()
    CLASSIFICATION.predict(model, [s.picture for s in samples])
    return 1000 * (time.process_time() - started_s) / max(1, crops)


def rows_of(video: str, name: str, train: Sequence[LabelledImage], judge: Sequence[LabelledImage]) -> list[Row]:
    model = CLASSIFICATION.load(name)
    print(f"  {name}: {crop_ms(model, judge):.1f} ms per crop at {model.spec.input_px} px", flush=True)
    rows = [Row(video=video, model=name, what="zero-shot", accuracy=accuracy(model, judge))]
    print(f"  {name}, zero-shot: {rows[0].accuracy:.3f}", flush=True)
    for config in CONFIGS:
        started_s = time.process_time()
        run = trained(model, train, config)
        took_s = time.process_time() - started_s
        rows.append(Row(video=video, model=name, what=config.name, accuracy=accuracy(run, judge), took_s=took_s))
        print(f"  {name}, {config.name}: {rows[-1].accuracy:.3f} after {took_s:.0f} s", flush=True)
    return rows


def trained(model: Detector, train: Sequence[LabelledImage], config: RetrainConfig) -> Detector:
    copy = student(model, config)
    for _ in retrain(copy, train, config, seed=0, augmentation=Augmentation(), task=CLASSIFICATION):
        pass
    return copy


def main(folder: Path, videos: Sequence[str]) -> None:
    if not (folder / "weights").is_dir():
        sys.exit(f"{folder} holds no weights; name the folder that holds videos/ and weights/")
    os.environ.setdefault("DRIFTBOX_WEIGHTS", str(folder / "weights"))
    torch.set_num_threads(1)
    golden = CLASSIFICATION.load_golden(GOLDEN)
    rows: list[Row] = []
    for video in videos:
        samples = labelled_pictures(folder / "videos" / f"{video}.mp4", golden)
        cut = int(TRAIN_FRAC * len(samples))
        train, judge = samples[:cut], samples[cut:]
        regions = [sum(len(s.labels) for s in part) for part in (train, judge)]
        print(f"{video}: {len(train)} pictures, {regions[0]} regions to learn; {len(judge)}, {regions[1]} to judge", flush=True)
        rows.append(Row(video=video, model="-", what="always one", accuracy=commonest_frac(judge)))
        print(f"  always one: {rows[-1].accuracy:.3f}", flush=True)
        for name in MODELS:
            rows += rows_of(video, name, train, judge)
    print_rows(rows)


def print_rows(rows: Sequence[Row]) -> None:
    print(f"\n{'model':<20} {'':<16} " + " ".join(f"{v:>24}" for v in dict.fromkeys(r.video for r in rows)) + f" {'mean':>7}")
    for model, what in dict.fromkeys((r.model, r.what) for r in rows):
        mine = [r for r in rows if (r.model, r.what) == (model, what)]
        cells = " ".join(f"{r.accuracy:>15.3f} ({r.took_s:4.0f} s)" if r.took_s else f"{r.accuracy:>24.3f}" for r in mine)
        print(f"{model:<20} {what:<16} {cells} {np.mean([r.accuracy for r in mine]):>7.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA, sys.argv[2:] or VIDEOS)
