"""Tiny videos of the fake detector's scripted pictures, whose objects survive encoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import av

from models.fake import scripted_image


def write_scripted_video(
    path: Path, *, frames: int, first_seed: int = 0, change_every: int = 1, objects: Sequence[int] = (6,)
) -> Path:
    """`frames` pictures, a new one every `change_every` frames, H.264 without loss of its grey levels. objects: in each picture of
    equal parts of the video."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"qp": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        for number in range(frames):
            shown = objects[number * len(objects) // frames]
            image, _ = scripted_image(first_seed + number // change_every, n_objects=shown)
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path
