"""A sample store of one camera with scripted pictures and their labels, as a learning job's process reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from edge.samples import FileSamples
from models.fake import scripted_image
from scheduler.types import Detections, Frame
from streams.samples import SampleStore

#: (number) -> (picture, what is in it).
Picture = Callable[[int], tuple[np.ndarray, Detections]]


def labelled_samples(root: Path, *, newest: bool = True, picture: Picture = scripted_image) -> FileSamples:
    """Twelve pictures of camera `gate` in each of the windows 0 and 1. newest: whether those of window 1 have labels, too."""
    store = SampleStore(root)
    for seq in range(24):
        image, truth = picture(seq)
        window = int(seq >= 12)
        ref = store.add(Frame(stream="gate", seq=seq, captured_s=0.0, captured_utc=0.0, image=image), window)
        if newest or not window:
            store.label(ref, truth, "golden", "holdout" if seq % 4 == 3 else "train")
    return FileSamples(store)
