"""A data folder with sampled, labelled frames of two cameras, as a box leaves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.fake import scripted_image
from scheduler.types import Detections, Frame
from streams.samples import SampleRef, SampleStore

CAMERAS = ("gate", "yard")
#: Of each window: samples 0-3 are labelled (1 has unsure boxes, 3 is held out), 4 is not.
PER_WINDOW = 5
COST_GPU_S = 0.5


def labelled_folder(root: Path, *, windows: int = 2) -> SampleStore:
    store = SampleStore(root / "samples", utc=lambda: 1000.0)
    for camera in CAMERAS:
        for window in range(windows):
            for seq in range(PER_WINDOW):
                add_sample(store, camera, window, seq)
    return store


def add_sample(store: SampleStore, camera: str, window: int, seq: int) -> SampleRef:
    image, truth = scripted_image(window * 100 + seq)
    ref = store.add(Frame(stream=camera, seq=seq, captured_s=0.0, captured_utc=0.0, image=image), window)
    if seq < PER_WINDOW - 1:
        doubt = first(truth, 1) if seq == 1 else Detections.empty()
        store.label(ref, truth, "golden", "holdout" if seq == 3 else "train", unsure=doubt, gpu_s=COST_GPU_S)
    return ref


def first(found: Detections, n: int) -> Detections:
    return Detections(xyxy=found.xyxy[:n], score=np.full(n, 0.42, np.float32), class_id=found.class_id[:n])
