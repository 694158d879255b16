"""What moves: part of real walkers that lie in a region, by frame rate, and milliseconds of a core per frame at 640x360.

Run: python tests/benchmarks/bench_motion.py [DATA] [VIDEO...]
DATA holds videos/ and labels/ (default: ../shared/data). PETS 2009 S2.L1 against its ground truth (anchor: none; Ekya cuts its crops
out of golden boxes), every 1st, 2nd, 5th and 10th of its 10 frames/s; then the cost on VIDEOs, at about 5 frames/s.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from streams.motion import Motion
from streams.video import probe, read_frames
from tests.support.movement import PETS_FPS, walkers_found

VIDEOS = ("brt_avenue", "ua_detrac_mvi40201", "opentrafficcam_junction", "highway_canersu", "shopfront_cctv")
FRAMES = 200


def cost_ms(video: Path) -> tuple[float, float]:
    """(median CPU milliseconds of a frame of 360 rows, regions of the mean frame)."""
    fps, motion = probe(video).fps, Motion()
    costs, counts = [], []
    for index, image in read_frames(video, every=max(1, round(fps / 5)), height_px=360):
        started_s = time.thread_time()
        counts.append(len(motion.find(image, at_s=index / fps)))
        costs.append(1000 * (time.thread_time() - started_s))
        if len(costs) == FRAMES:
            break
    return float(np.median(costs)), float(np.mean(counts))


def main() -> None:
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("../shared/data")
    print("frames/s  walkers  in a region  regions  touch a walker")
    for every in (1, 2, 5, 10):
        # The background is learnt from as many frames at every rate.
        found = walkers_found(data, every=every, first=20 * every)
        print(
            f"{PETS_FPS / every:8.0f}  {found.asked:7d}  {found.recall:11.3f}  {found.told:7d}  {found.precision:14.3f}",
            flush=True,
        )
    print("\nvideo                         ms/frame  regions/frame")
    for name in sys.argv[2:] or VIDEOS:
        ms, regions = cost_ms(data / "videos" / f"{name}.mp4")
        print(f"{name:28s}  {ms:8.2f}  {regions:13.1f}", flush=True)


if __name__ == "__main__":
    main()
