"""What golden labels are worth against people's boxes, with and without the agreement filter and the class map, and what they cost.

Run: python tests/benchmarks/bench_labels.py [--golden yolo26s@640] [--form openvino-bf16] [--frames 40] [--json]
People labelled two sets: PETS 2009 S2.L1 view 1 (pedestrians, every frame of one camera) and 139 pictures of Manaus' traffic cameras.
A label is right when it overlaps a person's box of its class by IoU 0.5. Read: precision (right labels of all labels: what is wrong is
trained on), recall (labelled objects of all objects: what is missing is trained on as background), F1, labels left, frames left out,
boxes that the filter dropped as unsure and the part of them that was right after all. `flip, strict`: both views must reach the
threshold, not their mean. `score` is the confidence threshold; a filter that only did what a higher threshold does would not be worth
its second pass. `rendered`: the demo's own cameras, day and night, with exact truth and the demo's golden model. Manaus: vehicles only
(people there are labelled together with their bicycles).
"""

from __future__ import annotations

import argparse
import json
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import torch

from configs.units import CLASSES
from edge.evaluate.golden import GOLDEN_RUNTIMES, TORCH, in_form
from models.detector import Detector
from models.evaluate import MatchCounts, match_counts
from models.golden import VIEW_SCORE_FRAC, GoldenLabels, Labelling, class_table, mirrored, mirrored_back, one_view, two_views
from models.tasks.base import Picture
from models.zoo import load_detector
from scheduler.types import Detections
from streams.rendered.serve import DEMO_CAMERAS

DATA = Path(__file__).resolve().parents[2].parent / "shared/data"
IOU_MIN = 0.5
SCORES = (0.25, 0.35, 0.4, 0.5, 0.6)
PERSON, CAR, TRUCK = (CLASSES.index(name) for name in ("person", "car", "truck"))
#: One class for what people call car and truck, and detectors van, bus or truck.
VEHICLES = {"truck": "car", "bus": "car"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """A picture and what a person drew in it. plain, flipped: what the golden model sees in it and in its mirror image, down to the
    lowest score of interest."""

    image: np.ndarray
    truth: Detections
    plain: Detections
    flipped: Detections


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to make labels on one set."""

    data: str
    way: str
    score_min: float
    precision: float
    recall: float
    f1: float
    labels: int
    left_out: int
    frames: int
    unsure: int = 0
    unsure_right: float | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", default="yolo26s@640", help="golden model")
    parser.add_argument(
        "--form", default=TORCH, choices=tuple(GOLDEN_RUNTIMES), help="what carries it out: torch is as trained"
    )
    parser.add_argument("--frames", type=int, default=40, help="pictures per set")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with videos/ and labels/")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    golden, demo = (in_form(load_detector(name), options.form) for name in (options.golden, "tinydet-golden"))
    rows: list[Row] = []
    costs: dict[str, float] = {}
    for data, model, wanted, pictures in (
        ("rendered", demo, tuple(range(len(CLASSES))), rendered(options.frames)),
        ("pets09", golden, (PERSON,), pets(options.data, options.frames)),
        ("manaus", golden, (CAR, TRUCK), manaus(options.data, options.frames)),
    ):
        pictures = list(pictures)
        model.predict([pictures[0][0]])  # a form is made with its first picture
        started_s = time.thread_time()
        seen = [look(model, image, truth) for image, truth in pictures]
        costs[data] = (time.thread_time() - started_s) / (2 * len(seen))
        rows += [row for score_min in SCORES for row in ways(data, seen, wanted, score_min)]
    if options.json:
        about = {"golden": options.golden, "form": options.form, "gpu_s_per_pass": costs}
        print(json.dumps({**about, "rows": [vars(row) for row in rows]}, indent=2))
    else:
        show(f"{options.golden} ({options.form})", rows, costs)
    return 0


def look(golden: Detector, image: np.ndarray, truth: Detections) -> Labelled:
    low = VIEW_SCORE_FRAC * min(SCORES)
    plain = golden.predict([image], score_min=low)[0]
    flipped = golden.predict([mirrored(Picture(image=image)).image], score_min=low)[0]
    return Labelled(image=image, truth=truth, plain=plain, flipped=mirrored_back(flipped, image.shape[1]))


def ways(data: str, seen: Sequence[Labelled], wanted: Sequence[int], score_min: float) -> Iterator[Row]:
    """The rows of one set at one threshold."""
    maps = {"": {}, " + class map": VEHICLES} if data == "manaus" else {"": {}}
    for suffix, mapping in maps.items():
        off, flip = Labelling(classes=class_table(mapping)), Labelling(classes=class_table(mapping), agreement="flip")
        low = VIEW_SCORE_FRAC * score_min
        one = [one_view(s.plain.above(low), s.image.shape, off, score_min) for s in seen]
        two = [two_views(s.plain.above(low), s.flipped.above(low), s.image.shape, flip, score_min) for s in seen]
        truths = [of_classes(one_view(s.truth, s.image.shape, off, 0.0).sure, wanted) for s in seen]
        yield row(data, "one view" + suffix, score_min, one, truths, wanted)
        yield row(data, "flip" + suffix, score_min, two, truths, wanted)
        strict = [two_views(s.plain.above(score_min), s.flipped.above(score_min), s.image.shape, flip, score_min) for s in seen]
        yield row(data, "flip, strict" + suffix, score_min, strict, truths, wanted)


def row(
    data: str, way: str, score_min: float, found: Sequence[GoldenLabels], truths: Sequence[Detections], wanted: Sequence[int]
) -> Row:
    used = [(of_classes(f.sure, wanted), t) for f, t in zip(found, truths, strict=True) if not f.left_out]
    counts = MatchCounts.total(match_counts(labels, truth, iou_min=IOU_MIN, score_min=0.0) for labels, truth in used)
    doubts = [(of_classes(f.unsure, wanted), t) for f, t in zip(found, truths, strict=True)]
    doubt = MatchCounts.total(match_counts(labels, truth, iou_min=IOU_MIN, score_min=0.0) for labels, truth in doubts)
    return Row(
        data=data, way=way, score_min=score_min, precision=counts.precision, recall=counts.recall, f1=counts.f1,
        labels=counts.tp + counts.fp, left_out=len(found) - len(used), frames=len(found),
        unsure=doubt.tp + doubt.fp, unsure_right=doubt.precision if doubt.tp + doubt.fp else None,
    )  # fmt: skip


def of_classes(found: Detections, wanted: Sequence[int]) -> Detections:
    keep = np.isin(found.class_id, wanted)
    return Detections(xyxy=found.xyxy[keep], score=found.score[keep], class_id=found.class_id[keep])


def show(golden: str, rows: Sequence[Row], costs: dict[str, float]) -> None:
    print(f"golden {golden}, against people's boxes at IoU {IOU_MIN}; seconds of one core per pass and picture: "
          + ", ".join(f"{data} {cost:.2f}" for data, cost in costs.items()))  # fmt: skip
    columns: tuple[tuple[str, str], ...] = (
        ("set", "<8"),
        ("labels by", "<26"),
        ("score", ">5"),
        ("precision", ">9"),
        ("recall", ">7"),
        ("F1", ">6"),
    )
    columns += (("labels", ">7"), ("left out", ">9"), ("unsure", ">7"), ("right", ">6"))
    print(" ".join(format(name, width) for name, width in columns))
    for r in rows:
        print(
            f"{r.data:<8} {r.way:<26} {r.score_min:>5.2f} {r.precision:>9.3f} {r.recall:>7.3f} {r.f1:>6.3f} {r.labels:>7}"
            f" {r.left_out:>5}/{r.frames:<3} {r.unsure:>7} {'-' if r.unsure_right is None else format(r.unsure_right, '.2f'):>6}"
        )


def rendered(frames: int) -> Iterator[tuple[np.ndarray, Detections]]:
    """Evenly spread over ten minutes of the demo's cameras, day and night, with the exact truth."""
    scenes = [script.scene() for script in DEMO_CAMERAS]
    for k in range(frames):
        yield scenes[k % len(scenes)].render(600.0 * k / frames)


# --- people's boxes ---------------------------------------------------------------------------------------------------


def pets(data: Path, frames: int) -> Iterator[tuple[np.ndarray, Detections]]:
    """Evenly spread frames of the PETS video with its boxes."""
    root = ElementTree.parse(data / "labels/pets09_s2l1_view1_groundtruth.xml").getroot()
    video = cv2.VideoCapture(str(data / "videos/pets09_s2l1_view1.mp4"))
    truth = {int(frame.get("number", "-1")): frame for frame in root}
    wanted = set(np.linspace(0, len(truth) - 1, frames).round().astype(int).tolist())
    for index in range(max(wanted) + 1):
        if not video.grab():
            break
        if index in wanted:
            image = np.asarray(cv2.cvtColor(video.retrieve()[1], cv2.COLOR_BGR2RGB))
            boxes = [[float(box.get(key, "nan")) for key in ("xc", "yc", "w", "h")] for box in truth[index].iter("box")]
            yield image, _labels(np.array(boxes), np.full(len(boxes), PERSON))


def manaus(data: Path, frames: int) -> Iterator[tuple[np.ndarray, Detections]]:
    """Evenly spread pictures of the traffic set that show a car or a truck."""
    with zipfile.ZipFile(data / "labels/manaus_traffic_yolo.zip") as archive:
        names = archive.read("classes.txt").decode().split()
        ours = {names.index("car"): CAR, names.index("truck"): TRUCK}
        texts = {
            n: archive.read(n).decode() for n in sorted(archive.namelist()) if n.startswith("labels/") and n.endswith(".txt")
        }
        rows = {
            n: np.array([line.split() for line in t.splitlines() if line.strip()], float).reshape(-1, 5)
            for n, t in texts.items()
        }
        with_vehicles = [name for name, row in rows.items() if np.isin(row[:, 0], list(ours)).any()]
        for k in np.linspace(0, len(with_vehicles) - 1, min(frames, len(with_vehicles))).round().astype(int):
            name = with_vehicles[k]
            picture = archive.read(name.replace("labels/", "images/").removesuffix(".txt") + ".jpg")
            image = np.asarray(cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR_RGB))
            mine = rows[name][np.isin(rows[name][:, 0], list(ours))]
            size = np.array([image.shape[1], image.shape[0]] * 2)
            yield image, _labels(mine[:, 1:] * size, np.array([ours[int(c)] for c in mine[:, 0]]))


def _labels(centre_size: np.ndarray, class_id: np.ndarray) -> Detections:
    """Boxes as centre and size, px -> labels of score 1."""
    centre_size = centre_size.reshape(-1, 4)
    half = centre_size[:, 2:] / 2
    xyxy = np.concatenate([centre_size[:, :2] - half, centre_size[:, :2] + half], axis=1).astype(np.float32)
    return Detections(xyxy=xyxy, score=np.ones(len(xyxy), np.float32), class_id=class_id.astype(np.int64))


if __name__ == "__main__":
    raise SystemExit(main())
