"""Drift detectors: false alarms on still scenes, and which real and graded drifts they see, how soon.

    python tests/benchmarks/bench_drift.py [--data DIR] [--cache DIR] [--edge yolov8n@320] [--alpha 0.05] [--quick]

False alarms: AR(1) sequences, and still scenes cut into four windows, each pair compared; beside them the rate that was stated.
Detection: graded drift (`streams.drift`) over a later window of such scenes; clouds over a car park, window by window; two road
cameras by day and by night. Looks (24 frames) are kept in the cache folder: the first run takes minutes, later ones seconds.
--quick leaves the graded drifts out.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import torch
from pydantic import TypeAdapter

from models.detector import Detector, KeepsFeatures
from models.embedding import FrameStats
from models.tasks.base import Picture
from models.tasks.detection import DETECTION
from models.weights import cache_dir
from models.zoo import load_detector
from scheduler.drift import NAMES, DriftConfig, distance, drift, signature
from scheduler.types import Drift, FrameLook, Look, Signature
from streams import drift as graded
from streams.video import probe, read_frames
from tests.support.looks import Scene, look

DATA = Path(__file__).resolve().parents[2].parent / "shared/data"
FRAMES = 24
#: Fixed cameras whose light does not change and whose traffic stays of one kind: nothing here should alarm.
STILL: tuple[str, ...] = (
    "one_by_one_person", "uab_road_a", "pets09_s2l1_view1", "cdnet_highway", "ua_detrac_mvi40201", "brt_avenue",
    "supermarket_aisle", "grocery_produce", "highway_vdh_video2", "overhead_street_parking", "london_kerbside",
)  # fmt: skip
#: Fixed cameras where traffic all but ends on the way: reported beside, because an alarm is right there.
THINNING: tuple[str, ...] = ("shopfront_cctv", "suburban_road")
#: Scenes that get graded drift.
GRADED: tuple[str, ...] = ("uab_road_a", "pets09_s2l1_view1", "cdnet_highway", "brt_avenue", "overhead_street_parking")
STRENGTHS: tuple[float, ...] = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
CLOUDS, CLOUD_WINDOWS = "pets2001_d3_cam1_lighting", 8
TIME_LAPSES: tuple[str, ...] = ("sg_cam2702", "sg_cam4713")
#: Singapore: light from about 7 h to 19 h all year; the hour between is left out.
DAY_H, NIGHT_H = (7.5, 18.5), (19.5, 6.5)
_FRAMES = TypeAdapter(list[FrameLook])


# --- looks ------------------------------------------------------------------------------------------------------------


class Looks:
    """Looks at stretches of a video, plain or under graded drift, kept on disk."""

    def __init__(self, videos: Path, cache: Path, edge: str) -> None:
        self.videos, self.cache, self.edge = videos, cache, edge
        self._model: Detector | None = None
        self._decoded: tuple[tuple[str, tuple[int, ...]], list[tuple[int, np.ndarray]]] = (("", ()), [])
        cache.mkdir(parents=True, exist_ok=True)

    def window(self, video: str, start_frac: float, stop_frac: float, *, kind: str = "", strength: float = 0.0) -> Look:
        """FRAMES frames of the stretch, evenly spread."""
        total = probe(self._path(video)).frames
        start, stop = round(start_frac * total), round(stop_frac * total)
        return self.at(video, np.linspace(start, max(start, stop - 1), FRAMES).astype(int), kind=kind, strength=strength)

    def at(self, video: str, indices: Iterable[int], *, kind: str = "", strength: float = 0.0) -> Look:
        """The frames of these numbers."""
        wanted = list(dict.fromkeys(int(i) for i in indices))
        key = hashlib.sha256(repr((1, video, wanted, kind, strength, self.edge)).encode()).hexdigest()[:24]
        kept = self.cache / f"{key}.json"
        if not kept.exists():
            kept.write_bytes(_FRAMES.dump_json(self._seen(video, wanted, kind, strength)))
        return Look(version=self.edge, frames=tuple(_FRAMES.validate_json(kept.read_bytes())))

    def _seen(self, video: str, wanted: Sequence[int], kind: str, strength: float) -> list[FrameLook]:
        model, stats = self.detector(), FrameStats(self.edge)
        found = []
        for index, image in self.pictures(video, tuple(wanted)):
            image = graded.apply(image, kind, strength, seed=1, frame=index) if kind else image
            picture = Picture(image=image)
            seen = DETECTION.predict(model, [picture])[0]
            found.append(stats.look_at(picture, seen, model.embed([image])[0]))
        return found

    def pictures(self, video: str, wanted: tuple[int, ...]) -> list[tuple[int, np.ndarray]]:
        """(number, frame); the newest stretch is kept, because many drifts are laid over the same one."""
        if self._decoded[0] != (video, wanted):
            chosen = set(wanted)
            frames = read_frames(self._path(video), start=min(wanted), stop=max(wanted) + 1)
            self._decoded = (video, wanted), [(index, image) for index, image in frames if index in chosen]
        return self._decoded[1]

    def _path(self, video: str) -> Path:
        return self.videos / f"{video}.mp4"

    def detector(self) -> Detector:
        if self._model is None:
            os.environ.setdefault("DRIFTBOX_WEIGHTS", str(self.videos.parent / "weights"))
            torch.set_num_threads(1)
            cv2.setNumThreads(1)
            self._model = load_detector(self.edge)
        return self._model


# --- what a look costs ------------------------------------------------------------------------------------------------


def print_passes(looks: Looks, video: str, rounds: int = 60) -> None:
    """CPU time of a frame's objects and features, asked for one after the other and in one pass, in turns."""
    model = looks.detector()
    (_, image), *_ = looks.pictures(video, (0,))
    spent_s = {"objects": 0.0, "objects, then features": 0.0, "both in one pass (a look)": 0.0}
    for number in range(rounds + 5):
        for name in spent_s:
            begun_s = time.thread_time()
            if name == "both in one pass (a look)":
                assert isinstance(model, KeepsFeatures)
                with model.keeping_features():
                    model.predict([image])
            else:
                model.predict([image])
                if name != "objects":
                    model.embed([image])
            spent_s[name] += time.thread_time() - begun_s if number >= 5 else 0.0  # the first ones warm up
    print(f"\nA frame's objects and features ({looks.edge}): ms of a core, against objects alone")
    for name, seconds in spent_s.items():
        print(f"{name:<28}{1000 * seconds / rounds:>8.1f}{seconds / spent_s['objects']:>8.2f}")


# --- false alarms -----------------------------------------------------------------------------------------------------


def print_sequences(alpha: float, tries: int = 400) -> None:
    print(f"\nFalse alarms on AR(1) sequences, % of {tries} pairs of looks (stated: {100 * alpha:g} in all)")
    print(f"{'autocorrelation':<18}{'frames':>8}" + "".join(f"{name:>12}" for name in (*NAMES, "any")))
    for frames in (12, FRAMES, 40):
        for phi in (0.0, 0.3, 0.5, 0.7, 0.8, 0.9):
            count: Counter[str] = Counter()
            for k in range(tries):
                a, b = (look(Scene(phi=phi), 2 * k + side, frames=frames) for side in (0, 1))
                count.update(_alarms(drift(a, b, DriftConfig(alpha=alpha))))
            print(f"{phi:<18g}{frames:>8}" + "".join(f"{100 * count[name] / tries:>12.1f}" for name in (*NAMES, "any")))


def _alarms(found: Drift) -> dict[str, int]:
    """1 for each detector that fired, and for any of them."""
    return {"any": int(found.drifted)} | {t.name: int(t.fired) for t in found.tests}


def print_still(looks: Looks, alpha: float) -> None:
    print(f"\nStill scenes in four windows of {FRAMES} frames, each pair compared: alarms (stated: {100 * alpha:g} % in all)")
    print(f"{'scene':<28}{'pairs':>6}" + "".join(f"{name:>12}" for name in (*NAMES, "any")))
    total: Counter[str] = Counter()
    for video in STILL:
        total += _pairs(looks, video, alpha)
    _print_alarms("all still scenes", total)
    print(f"{'rate, %':<34}" + "".join(f"{100 * total[name] / total['pairs']:>12.1f}" for name in (*NAMES, "any")))
    for video in THINNING:
        _pairs(looks, video, alpha)


def _pairs(looks: Looks, video: str, alpha: float) -> Counter[str]:
    windows = [looks.window(video, k / 4, (k + 1) / 4) for k in range(4)]
    count: Counter[str] = Counter()
    for a, b in combinations(windows, 2):
        count.update({"pairs": 1} | _alarms(drift(a, b, DriftConfig(alpha=alpha))))
    _print_alarms(video, count)
    return count


def _print_alarms(label: str, count: Counter[str]) -> None:
    print(f"{label:<28}{count['pairs']:>6}" + "".join(f"{count[name]:>12}" for name in (*NAMES, "any")))


# --- detection --------------------------------------------------------------------------------------------------------


def print_graded(looks: Looks, alpha: float) -> None:
    print(f"\nGraded drift over {len(GRADED)} scenes: % seen, and mean magnitude (without: {100 * alpha:g} % stated)")
    print(f"{'kind':<16}" + "".join(f"{strength:>13g}" for strength in STRENGTHS))
    by_test = {strength: Counter[str]() for strength in STRENGTHS}
    for kind in graded.KINDS:
        cells = []
        for strength in STRENGTHS:
            answers = [_under(looks, video, kind, strength, alpha) for video in GRADED]
            by_test[strength].update(t.name for found in answers for t in found.tests if t.fired)
            seen = 100 * sum(found.drifted for found in answers) / len(answers)
            cells.append(f"{seen:>6.0f} ({np.mean([found.magnitude for found in answers]):.2f})")
        print(f"{kind:<16}" + "".join(f"{cell:>13}" for cell in cells))
    tried = len(graded.KINDS) * len(GRADED)
    for name in NAMES:
        print(f"{name:<16}" + "".join(f"{100 * by_test[strength][name] / tried:>13.0f}" for strength in STRENGTHS))


def _under(looks: Looks, video: str, kind: str, strength: float, alpha: float) -> Drift:
    """The second quarter of a video under drift, against its first."""
    config = DriftConfig(alpha=alpha)
    # The cache knows a picture without drift by another name than one with.
    now = looks.window(video, 0.25, 0.5, kind=kind if strength else "", strength=strength)
    return drift(looks.window(video, 0, 0.25), now, config)


def print_clouds(looks: Looks, alpha: float) -> None:
    print(f"\n{CLOUDS}, {CLOUD_WINDOWS} windows against the first (clouds: 138 -> 90 -> 128 -> 98 grey levels)")
    windows = [looks.window(CLOUDS, k / CLOUD_WINDOWS, (k + 1) / CLOUD_WINDOWS) for k in range(CLOUD_WINDOWS)]
    for number, now in enumerate(windows):
        found = drift(windows[0], now, DriftConfig(alpha=alpha))
        print(f"  window {number}: grey {_mean(now, 'brightness'):5.1f}, {_mean(now, 'objects'):4.1f} objects: {_says(found)}")


def print_time_lapses(looks: Looks, alpha: float, labels: Path) -> None:
    print(f"\nRoad cameras by day and night, looks of {FRAMES // 2} captures in order of time; reference: the first day")
    for camera in TIME_LAPSES:
        video, hours = f"{camera}_timelapse", _hours(labels / f"{camera}_timestamps.csv")
        seen = looks.at(video, range(len(hours)))
        parts = {name: _parts(seen, [h for h in range(len(hours)) if inside(hours[h])]) for name, inside in DAYPARTS.items()}
        reference = parts["day"][0]
        for name, windows in parts.items():
            for now in windows[1:] if name == "day" else windows:
                found = drift(reference, now, DriftConfig(alpha=alpha))
                print(f"  {camera} {name:<6} grey {_mean(now, 'brightness'):5.1f}: {_says(found)}")
        named = [(name, signature(now)) for name, windows in parts.items() for whole in windows for now in _halves(whole)]
        print(f"  {camera}: nearest by signature is of the same part of the day for {_nearest(named)}")


DAYPARTS = {
    "day": lambda hour: DAY_H[0] <= hour < DAY_H[1],
    "night": lambda hour: hour >= NIGHT_H[0] or hour < NIGHT_H[1],
}


def _hours(table: Path) -> list[float]:
    """Hour of the day of each capture."""
    with table.open(encoding="utf-8") as lines:
        times = [datetime.fromisoformat(row["capture_time_sgt"]) for row in csv.DictReader(lines)]
    return [t.hour + t.minute / 60 for t in times]


def _parts(seen: Look, indices: Sequence[int]) -> list[Look]:
    """Those frames in looks of half the usual size."""
    size = FRAMES // 2
    whole = len(indices) // size * size
    return [
        replace(seen, frames=tuple(seen.frames[i] for i in indices[start : start + size])) for start in range(0, whole, size)
    ]


def _halves(whole: Look) -> tuple[Look, Look]:
    middle = len(whole.frames) // 2
    return replace(whole, frames=whole.frames[:middle]), replace(whole, frames=whole.frames[middle:])


def print_signatures(looks: Looks) -> None:
    named = [(v, signature(looks.window(v, k / 4, (k + 1) / 4))) for v in (*STILL, *THINNING) for k in range(4)]
    same = [distance(a, b) for (va, a), (vb, b) in combinations(named, 2) if va == vb]
    other = [distance(a, b) for (va, a), (vb, b) in combinations(named, 2) if va != vb]
    print(f"\nSignatures: nearest window is of the same scene for {_nearest(named)}")
    print(f"  distance within a scene: median {np.median(same):.2f}, largest {max(same):.2f};", end=" ")
    print(f"between scenes: median {np.median(other):.2f}, smallest {min(other):.2f}")


def _nearest(named: Sequence[tuple[str, Signature]]) -> str:
    right = 0
    for number, (name, mine) in enumerate(named):
        others = [(distance(mine, theirs), k) for k, (_, theirs) in enumerate(named) if k != number]
        right += named[min(others)[1]][0] == name
    return f"{right} of {len(named)}"


def _mean(now: Look, field: str) -> float:
    return float(np.mean([getattr(frame, field) for frame in now.frames]))


def _says(found: Drift) -> str:
    fired = ", ".join(f"{t.name} {t.statistic:.2f} > {t.threshold:.2f}" for t in found.tests if t.fired)
    return f"magnitude {found.magnitude:.2f}, {'drift: ' + fired if fired else 'no drift'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with videos/, weights/ and labels/")
    parser.add_argument("--cache", type=Path, help="where looks are kept (default: bench-drift in the cache folder)")
    parser.add_argument("--edge", default="yolov8n@320")
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--quick", action="store_true", help="no graded drift")
    options = parser.parse_args()
    print_sequences(options.alpha)
    if not (options.data / "videos").is_dir():
        print(f"\n(no videos in {options.data}: the rest is left out)")
        return
    looks = Looks(options.data / "videos", options.cache or cache_dir() / "bench-drift", options.edge)
    print_passes(looks, "brt_avenue")
    print_still(looks, options.alpha)
    print_signatures(looks)
    print_clouds(looks, options.alpha)
    print_time_lapses(looks, options.alpha, options.data / "labels")
    if not options.quick:
        print_graded(looks, options.alpha)


if __name__ == "__main__":
    main()
