"""What a cascade costs, frame by frame, on real video: detect, then classify the crop of every object. Measured once, kept in a file.

    python tests/benchmarks/serving_costs.py [--frames 60] [--data DIR]   writes tests/benchmarks/serving_costs.json

CPU time of one thread, torch fp32: yolov8n@320 on the whole frame, mobilenetv2@128 on the crops of what it finds (score 0.25 and above).
Batches of both models in several sizes give c0 and c1 of their batch laws.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

COSTS = Path(__file__).with_suffix(".json")
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
#: Cameras that differ: empty, sparse, crowded, changing.
VIDEOS = (
    "one_by_one_person", "shopfront_cctv", "pets09_s2l1_view1", "ua_detrac_mvi40201", "london_kerbside", "supermarket_aisle",
    "opentrafficcam_junction", "ua_detrac_intersection",
)  # fmt: skip
DETECTOR, CLASSIFIER = "yolov8n@320", "mobilenetv2"
DETECT_SIZES, CLASSIFY_SIZES = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32)


def measure(data: Path, frames: int) -> dict[str, object]:
    """cameras: per video and frame [detect_ms, crops, classify_ms]; batches: per model [size, ms of that batch, ms of one alone]."""
    import numpy as np
    import torch
    from bench_models import frames_of

    from models.crops import crops
    from models.zoo import CLASSIFICATION, load_detector

    torch.set_num_threads(1)
    detector, classifier = load_detector(DETECTOR), load_detector(CLASSIFIER, task=CLASSIFICATION)
    cameras: dict[str, list[list[float]]] = {}
    pictures, cut = [], []
    for video in VIDEOS:
        images = frames_of(data / "videos" / f"{video}.mp4", np.linspace(0.0, 1.0, frames, endpoint=False).tolist())
        detector.predict(images[:1])
        rows = []
        for image in images:
            detect_ms, (found,) = timed_ms(lambda image=image: detector.predict([image]))  # type: ignore[misc]
            parts = list(crops(image, found.xyxy))
            classify_ms = timed_ms(lambda parts=parts: classifier.predict(parts))[0] if len(parts) else 0.0  # type: ignore[misc]
            rows.append([round(detect_ms, 2), len(parts), round(classify_ms, 2)])
            cut += list(parts)
        cameras[video] = rows
        pictures += images[:4]
        print(video, "detect", round(float(np.median([r[0] for r in rows])), 1), "ms, crops", [int(r[1]) for r in rows][::6])
    return {
        "detector": DETECTOR,
        "classifier": CLASSIFIER,
        "cameras": cameras,
        "batches": {
            "detect": batches(detector.predict, pictures, DETECT_SIZES),
            "classify": batches(classifier.predict, cut, CLASSIFY_SIZES),
        },
    }


def batches(predict: Callable[[Sequence[object]], object], given: Sequence[object], sizes: Sequence[int]) -> list[list[float]]:
    rows = []
    for turn in range(5):
        alone_ms = min(timed_ms(lambda: predict(given[:1]))[0] for _ in range(3))
        for size in sizes:
            some = [given[(turn * size + i) % len(given)] for i in range(size)]
            rows.append([size, round(timed_ms(lambda some=some: predict(some))[0], 2), round(alone_ms, 2)])  # type: ignore[misc]
    return rows


def timed_ms(call: Callable[[], object]) -> tuple[float, object]:
    started_s = time.thread_time()
    given = call()
    return 1000 * (time.thread_time() - started_s), given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=60, help="per video (default 60)")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the videos")
    asked = parser.parse_args()
    COSTS.write_text(json.dumps(measure(asked.data, asked.frames)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
