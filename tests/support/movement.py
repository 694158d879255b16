"""Regions of movement against what is known to move: boxes of a scene, or the ground truth of PETS 2009 S2.L1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from streams.motion import Motion
from streams.video import read_frames

PETS_FPS = 10.0


def common_px(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Area that every box of a (N, 4) shares with every box of b (M, 4). (N, M)."""
    top_left = np.maximum(a[:, None, :2], b[None, :, :2])
    bottom_right = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return np.clip(bottom_right - top_left, 0, None).prod(axis=2)


def covered(truth: np.ndarray, regions: np.ndarray) -> int:
    """How many boxes of `truth` have at least half of their area in one region."""
    if not len(truth) or not len(regions):
        return 0
    area = (truth[:, 2:] - truth[:, :2]).prod(axis=1)
    return int((common_px(truth, regions).max(axis=1) >= 0.5 * area).sum())


def pets_truth(data: Path) -> dict[int, np.ndarray]:
    """Frame number -> the walkers' boxes (N, 4). data: the folder with videos/ and labels/."""
    truth = {}
    for frame in ElementTree.parse(data / "labels" / "pets09_s2l1_view1_groundtruth.xml").getroot().iter("frame"):
        boxes = [[float(box.get(key, "nan")) for key in ("xc", "yc", "w", "h")] for box in frame.iter("box")]
        xc, yc, w, h = np.array(boxes).reshape(-1, 4).T
        truth[int(frame.get("number", "-1"))] = np.stack([xc - w / 2, yc - h / 2, xc + w / 2, yc + h / 2], axis=1)
    return truth


@dataclass(frozen=True, kw_only=True)
class Found:
    """asked: boxes of walkers; found: those with at least half of their area in one region; told: regions; right: those that touch a
    walker."""

    asked: int
    found: int
    told: int
    right: int

    @property
    def recall(self) -> float:
        return self.found / self.asked

    @property
    def precision(self) -> float:
        return self.right / self.told


def walkers_found(data: Path, *, every: int = 1, first: int = 20) -> Found:
    """Every `every`-th frame of the video, judged from frame `first` on."""
    truth, motion = pets_truth(data), Motion()
    asked = found = told = right = 0
    for index, image in read_frames(data / "videos" / "pets09_s2l1_view1.mp4", every=every):
        regions = motion.find(image, at_s=index / PETS_FPS)
        if index < first:
            continue
        walkers = truth[index]
        asked, found = asked + len(walkers), found + covered(walkers, regions)
        told += len(regions)
        right += int((common_px(regions, walkers) > 0).any(axis=1).sum()) if len(regions) else 0
    return Found(asked=asked, found=found, told=told, right=right)
