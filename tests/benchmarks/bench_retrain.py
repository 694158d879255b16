"""Retraining on real video, one knob at a time: F1 before and after on later and on earlier frames, GPU-seconds; half precision.

Run: python tests/benchmarks/bench_retrain.py [--folder DIR] [--video NAME ...] [--edge M] [--golden M] [--knob NAME ...] [--keep FILE]
     [--new-class NAME]
DIR holds videos/ and weights/ (default: ../shared/data). Learned from: 40 frames of a video's second quarter, labelled by the golden
model (score 0.35 and above); replayed: 24 frames of the first quarter. Judged on 30 frames of the last 45 % ("later") and on 16 others
of the first quarter ("earlier": what was forgotten?), F1 at IoU 0.3. GPU-seconds are CPU seconds of one thread. One run per row, one
seed: differences of a point or two are luck. FILE keeps finished rows, so that a run that was stopped goes on.

--new-class NAME asks another question: what becomes of a class that the camera has not seen before, and of the others? The edge model's
outputs for the class are taken out (its weights there 0, its bias "never"), so it knows the class as little as one that it was never
trained for. Of 160 frames, those of the first half without the class are the past (replayed, and judged: "earlier"), those of the second
half with it are learned from and judged ("later"); F1 of the class and of the others apart. YOLO models only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from configs.units import CLASSES, COCO_TO_CLASSES
from edge.footage import Footage, footage_of_videos
from models.detector import Detector
from models.evaluate import FramePair, f1
from models.labelled import LabelledImage, predicted
from models.precision import FLOAT32, Precision
from models.retrain import retrain, student
from models.tasks.detection import DETECTION
from scheduler.types import Detections, RetrainConfig

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
VIDEOS = ("overhead_street_parking", "brt_avenue")
GOLDEN_SCORE_MIN, LONGEST_PX = 0.35, 640
#: Part of the video and number of frames: from, to, how many, frames by which they are shifted.
SETS = {"older": (0.0, 0.25, 24, 0), "new": (0.25, 0.5, 40, 0), "later": (0.55, 1.0, 30, 0), "earlier": (0.0, 0.25, 16, 3)}

BASE = RetrainConfig(name="base", epochs=10, batch=2, layers_frac=0.5, lr=3e-4)
#: Each changes what it names in BASE. Ekya's card beside: data fraction 0.2/0.5/1 -> 60.6/69.3/75.2 % at 4/16/62 GPU-s; layers trained
#: 0.1/0.5/1 -> 65.8/71.3/74.1 % at 3/43/80 GPU-s (classification, read off its figures).
KNOBS = {
    "base": BASE,
    "epochs 5": replace(BASE, epochs=5),
    "epochs 15": replace(BASE, epochs=15),
    "layers 0.1": replace(BASE, layers_frac=0.1),
    "layers 1": replace(BASE, layers_frac=1.0),
    "data 0.25": replace(BASE, data_frac=0.25),
    "lr 1e-4": replace(BASE, lr=1e-4),
    "lr 1e-3": replace(BASE, lr=1e-3),
    "batch 8": replace(BASE, batch=8),
    "replay 0.25": replace(BASE, replay_frac=0.25),
    "replay 0.25, distill 1": replace(BASE, replay_frac=0.25, distill=1.0),
    "distill 1": replace(BASE, distill=1.0),
    "balance": replace(BASE, balance=True),
    "bfloat16": BASE,
}

Sets = dict[str, list[LabelledImage]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """later, earlier: F1 (0-1) on the two judged sets."""

    video: str
    knob: str
    later: float
    earlier: float
    gpu_s: float


def labelled_sets(footage: Footage, golden: Detector) -> Sets:
    """The four sets of a video, labelled by the golden model."""
    n = footage.frames
    wanted = {
        name: [min(n - 1, int((start + (stop - start) * (i + 0.5) / count) * n) + shift) for i in range(count)]
        for name, (start, stop, count, shift) in SETS.items()
    }
    images = footage.load({i for indices in wanted.values() for i in indices}, longest_px=LONGEST_PX)
    labels = {i: golden.predict([images[i]], score_min=GOLDEN_SCORE_MIN)[0] for i in images}
    return {
        name: [LabelledImage(image=images[i], labels=labels[i]) for i in indices if i in images]
        for name, indices in wanted.items()
    }


def judged(model: Detector, sets: Sets) -> tuple[float, float]:
    later, earlier = (f1(predicted(model, sets[name], task=DETECTION)) for name in ("later", "earlier"))
    return later, earlier


def measured(video: str, edge: Detector, sets: Sets, knob: str, config: RetrainConfig, *, seed: int = 0) -> Row:
    """One retraining of a copy of `edge`."""
    model = student(edge, config, seed=seed)
    precision = Precision(dtype=torch.bfloat16) if knob == "bfloat16" else FLOAT32
    started_s = time.thread_time()
    replay = sets["older"] if config.replay_frac > 0 else ()
    for _ in retrain(model, sets["new"], config, seed=seed, replay=replay, teacher=edge, precision=precision):
        pass
    gpu_s = time.thread_time() - started_s
    later, earlier = judged(model, sets)
    return Row(video=video, knob=knob, later=later, earlier=earlier, gpu_s=gpu_s)


def rows(video: str, edge: Detector, sets: Sets, knobs: Sequence[str], kept: dict[str, Row]) -> Iterator[Row]:
    """Those in `kept` are not measured again; new ones are added to it."""
    if f"{video}/before" not in kept:
        later, earlier = judged(edge, sets)
        kept[f"{video}/before"] = Row(video=video, knob="before", later=later, earlier=earlier, gpu_s=0.0)
    yield kept[f"{video}/before"]
    for knob in knobs:
        if f"{video}/{knob}" not in kept:
            kept[f"{video}/{knob}"] = measured(video, edge, sets, knob, KNOBS[knob])
        yield kept[f"{video}/{knob}"]


# --- a class that appears later ---------------------------------------------------------------------------------------

LOOKED_AT = 160
#: Bias of a class that is never said (a chance of 3 in 10,000).
NEVER = -8.0
LESSONS = {
    "plain": replace(BASE, layers_frac=1.0),
    "replay 0.4": replace(BASE, layers_frac=1.0, replay_frac=0.4),
    "replay 0.4, distill 1, balance": replace(BASE, layers_frac=1.0, replay_frac=0.4, distill=1.0, balance=True),
}


@dataclass(frozen=True, kw_only=True)
class NewClassRow:
    """F1 of the new class and of the others on later frames (which show it), of the others on earlier ones (which do not)."""

    lesson: str
    new: float
    others: float
    earlier: float
    gpu_s: float


def without_class(edge: Detector, class_id: int) -> Detector:
    """A copy that does not know a class."""
    rows = [coco for coco, ours in COCO_TO_CLASSES.items() if ours == class_id]
    state = edge.state()
    for name, tensor in state.items():
        if re.search(r"\.cv3\.\d+\.2\.(weight|bias)$", name):
            tensor[rows] = NEVER if name.endswith("bias") else 0.0
    unknowing = edge.clone()
    unknowing.load_state(state)
    return unknowing


def parted(footage: Footage, golden: Detector, class_id: int) -> Sets:
    """older, earlier: frames of the first half without the class, in turns; new, later: those of the second half with it."""
    n = footage.frames
    images = footage.load(set(range(0, n, max(1, n // LOOKED_AT))), longest_px=LONGEST_PX)
    seen = {i: golden.predict([images[i]], score_min=GOLDEN_SCORE_MIN)[0] for i in sorted(images)}
    samples = {i: LabelledImage(image=images[i], labels=labels) for i, labels in seen.items()}
    past = [samples[i] for i, labels in seen.items() if i < n / 2 and not (labels.class_id == class_id).any()]
    since = [samples[i] for i, labels in seen.items() if i >= n / 2 and (labels.class_id == class_id).any()]
    return {"older": past[::2], "earlier": past[1::2], "new": since[::2], "later": since[1::2]}


def of_class(pairs: Sequence[FramePair], class_id: int, *, others: bool = False) -> float:
    """F1 over one class, or over all others."""

    def kept(found: Detections) -> Detections:
        rows = (found.class_id == class_id) != others
        return Detections(xyxy=found.xyxy[rows], score=found.score[rows], class_id=found.class_id[rows])

    return f1([(kept(said), kept(labels)) for said, labels in pairs])


def new_class_row(lesson: str, model: Detector, sets: Sets, class_id: int, gpu_s: float) -> NewClassRow:
    later, earlier = (list(predicted(model, sets[name], task=DETECTION)) for name in ("later", "earlier"))
    return NewClassRow(
        lesson=lesson, new=of_class(later, class_id), others=of_class(later, class_id, others=True),
        earlier=of_class(earlier, class_id, others=True), gpu_s=gpu_s,
    )  # fmt: skip


def new_class_rows(edge: Detector, sets: Sets, class_id: int) -> Iterator[NewClassRow]:
    unknowing = without_class(edge, class_id)
    yield new_class_row("before", unknowing, sets, class_id, 0.0)
    for lesson, config in LESSONS.items():
        model = student(unknowing, config, seed=0)
        started_s = time.thread_time()
        list(retrain(model, sets["new"], config, seed=0, replay=sets["older"] if config.replay_frac else (), teacher=unknowing))
        yield new_class_row(lesson, model, sets, class_id, time.thread_time() - started_s)


def new_class(edge: Detector, golden: Detector, footages: Sequence[Footage], name: str) -> None:
    class_id = CLASSES.index(name)
    print(f"{'video':28} {'lesson':32} {'new':>6} {'others':>7} {'earlier':>8} {'GPU-s':>7}")
    for footage in footages:
        sets = parted(footage, golden, class_id)
        print(f"{footage.id:28} pictures: " + ", ".join(f"{len(found)} {which}" for which, found in sets.items()))
        if min(map(len, sets.values())) < 5:
            print(f"{footage.id:28} too few with or without a {name}")
            continue
        for row in new_class_rows(edge, sets, class_id):
            print(
                f"{footage.id:28} {row.lesson:32} {row.new:6.3f} {row.others:7.3f} {row.earlier:8.3f} {row.gpu_s:7.1f}",
                flush=True,
            )


def line(row: Row) -> str:
    return f"{row.video:28} {row.knob:24} {row.later:6.3f} {row.earlier:8.3f} {row.gpu_s:7.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=DATA, help="holds videos/ and weights/")
    parser.add_argument("--video", nargs="+", default=VIDEOS)
    parser.add_argument("--edge", default="yolov8n@320")
    parser.add_argument("--golden", default="yolo26l")
    parser.add_argument("--knob", nargs="+", choices=tuple(KNOBS), default=tuple(KNOBS))
    parser.add_argument("--keep", type=Path, help="file with finished rows, read and written")
    parser.add_argument("--new-class", choices=CLASSES, help="measure what becomes of this class when it appears later")
    options = parser.parse_args()
    os.environ.setdefault("DRIFTBOX_WEIGHTS", str(options.folder / "weights"))
    torch.set_num_threads(1)
    known = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    kept = {key: Row(**row) for key, row in known.items()}
    edge, golden = DETECTION.load(options.edge), DETECTION.load_golden(options.golden)
    footages = footage_of_videos([options.folder / "videos" / f"{name}.mp4" for name in options.video])
    if options.new_class:
        new_class(edge, golden, footages, options.new_class)
        return
    print(f"{'video':28} {'knob':24} {'later':>6} {'earlier':>8} {'GPU-s':>7}")
    for footage in footages:
        sets = labelled_sets(footage, golden)
        for row in rows(footage.id, edge, sets, options.knob, kept):
            print(line(row), flush=True)
            if options.keep:
                options.keep.write_text(json.dumps({key: asdict(row) for key, row in kept.items()}))


if __name__ == "__main__":
    main()
