"""What could have been had with the models that were really made: how far a run is from perfect knowledge, and where the rest was lost.

Runs of `driftbox evaluate` leave *lessons*: retrainings that were carried out, what they cost, and how good their models were in each
window. From the lessons of all runs over the same footage two figures follow, at any amount of compute:

    given      every lesson's model is there when its window opens, for nothing, and inference has the whole device: no plan that has
               only these models can be better.
    foreseen   a plan that knows every lesson's outcome, pays for its labels and its training, and for nothing else: no looks, no
               held-out labels, no profile, no gate. With `beside_gpu_s` every lesson costs so much more, which is what a box that does
               not know pays for finding out. What a run is below that, it lost by choosing wrongly, or by the order in which it learned.

`foreseen` is a plan that was found, not a bound: each camera's lessons are chosen by trying all of its chains while the others' stand
still, until nothing changes; within a window lessons follow each other on one share, those that win most per GPU-second first.
What is learned in window 0 must end in it like any other; the figures are of windows 1, 2, ..., as those of runs are.
Inference has the knobs that are best for what is left (`InferenceValue`), at what the knob profiles say they keep. A chain begins at the
model that was never retrained; whatever of it fits a window best serves. Pure. Ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scheduler.ekya.estimate import SpeedCurve, StreamEstimator
from scheduler.ekya.quanta import InferenceValue
from scheduler.types import KnobProfile, Snapshot, StreamView

#: Chains of one camera that are tried, at most: those with the fewest lessons first.
MOST_CHAINS = 4_000
#: Rounds over all cameras.
ROUNDS = 6
_TOL = 1e-9


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A retraining that was carried out. window: in which, with labels of the one before or its own; gpu_s: of the labels it learned
    from and of the training; quality: of its model in each window, every frame analysed (before `window` it means nothing)."""

    version: str
    parent: str
    window: int
    gpu_s: float
    quality: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Pupil:
    """A camera and what it may learn. quality: of `base`, the model that was never retrained, in each window."""

    id: str
    knobs: tuple[KnobProfile, ...]
    base: str
    quality: tuple[float, ...]
    lessons: tuple[Lesson, ...] = ()

    def at_speed(self, speed: float) -> Pupil:
        """On a device that does the work of so many of that which was recorded."""
        return replace(
            self,
            knobs=tuple(replace(k, demand_pct=k.demand_pct / speed) for k in self.knobs),
            lessons=tuple(replace(lesson, gpu_s=lesson.gpu_s / speed) for lesson in self.lessons),
        )


@dataclass(frozen=True, kw_only=True)
class Device:
    window_s: float
    capacity_pct: int = 100
    quantum_pct: int = 5


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """quality: mean over cameras and windows 1, 2, ...; windows: of each; lessons: (camera, window, version) as they follow; gpu_s: of
    all of them."""

    quality: float
    windows: tuple[float, ...]
    lessons: tuple[tuple[str, int, str], ...]
    gpu_s: float


def pupils_of(entries: Sequence[Mapping[str, Any]]) -> tuple[Pupil, ...]:
    """What an answer of `driftbox evaluate` holds under "pupils"."""
    return tuple(
        Pupil(
            id=entry["id"], base=entry["base"], quality=tuple(entry["quality"]),
            knobs=tuple(KnobProfile(**knob) for knob in entry["knobs"]),
            lessons=tuple(Lesson(**{**lesson, "quality": tuple(lesson["quality"])}) for lesson in entry["lessons"]),
        )
        for entry in entries
    )  # fmt: skip


def joined(classes: Sequence[Sequence[Pupil]]) -> tuple[Pupil, ...]:
    """The same cameras, of several answers, with the lessons of all of them, each once.

    Raises ValueError where they are about different cameras."""
    if any({p.id for p in pupils} != {p.id for p in classes[0]} for pupils in classes):
        raise ValueError("answers about different cameras have no lessons in common")
    everybody = [pupil for pupils in classes for pupil in pupils]
    return tuple(
        replace(first, lessons=_once(p for p in everybody if p.id == first.id)) for first in (classes[0] if classes else ())
    )


def _once(pupils: Iterable[Pupil]) -> tuple[Lesson, ...]:
    return tuple({lesson.version: lesson for pupil in pupils for lesson in pupil.lessons}.values())


def given(pupils: Sequence[Pupil], device: Device) -> float:
    """Mean quality, windows 1, 2, ..., with every model for nothing."""
    worth = _Worth(pupils, device)
    return float(
        np.mean([worth.undisturbed([_best(p, p.lessons, w) for p in pupils]) for w in range(1, len(pupils[0].quality))])
    )


def foreseen(pupils: Sequence[Pupil], device: Device, *, beside_gpu_s: float = 0.0) -> Foreseen:
    """See the module."""
    worth = _Worth(pupils, device)
    dearer = [replace(p, lessons=tuple(replace(n, gpu_s=n.gpu_s + beside_gpu_s) for n in p.lessons)) for p in pupils]
    chains = [list(_chains(p)) for p in dearer]
    chosen: list[tuple[Lesson, ...]] = [() for _ in pupils]
    best = worth.of(dearer, chosen)
    for _ in range(ROUNDS):
        before = best
        for number, mine in enumerate(chains):
            for chain in mine:
                tried = [*chosen[:number], chain, *chosen[number + 1 :]]
                value = worth.of(dearer, tried)
                if sum(value) > sum(best) + _TOL:
                    chosen, best = tried, value
        if sum(best) <= sum(before) + _TOL:
            break
    taken = sorted((lesson.window, p.id, lesson.version) for p, chain in zip(pupils, chosen, strict=True) for lesson in chain)
    return Foreseen(
        quality=float(np.mean(best[1:])), windows=tuple(best[1:]), gpu_s=sum(lesson.gpu_s for chain in chosen for lesson in chain),
        lessons=tuple((id, window, version) for window, id, version in taken),
    )  # fmt: skip


def _chains(pupil: Pupil) -> Iterator[tuple[Lesson, ...]]:
    """All ways to learn, nothing first: at most one lesson a window, each from a model that is there by then."""
    level: list[tuple[Lesson, ...]] = [()]
    left = MOST_CHAINS
    while level and left > 0:
        yield from level[:left]
        left -= len(level)
        level = [(*chain, lesson) for chain in level for lesson in pupil.lessons if _may_follow(pupil, chain, lesson)]


def _may_follow(pupil: Pupil, chain: Sequence[Lesson], lesson: Lesson) -> bool:
    there = {pupil.base, *(earlier.version for earlier in chain)}
    return lesson.parent in there and lesson.window > (chain[-1].window if chain else -1)


def _best(pupil: Pupil, lessons: Sequence[Lesson], window: int) -> float:
    """Of what is there when the window opens, the best in it; lessons of the window itself are there too."""
    return max([pupil.quality[window], *(lesson.quality[window] for lesson in lessons if lesson.window <= window)])


class _Worth:
    """What chains are worth, window by window; each different window is worked out once."""

    def __init__(self, pupils: Sequence[Pupil], device: Device) -> None:
        snapshot = Snapshot(
            remaining_s=device.window_s, capacity_pct=device.capacity_pct,
            quantum_pct=device.quantum_pct, min_quality=0.0,
            streams=tuple(StreamView(id=p.id, quality=1.0, knobs=p.knobs) for p in pupils),
        )  # fmt: skip
        self._device, self._cameras, speed = device, len(pupils), SpeedCurve.of(snapshot)
        self._value = InferenceValue(snapshot, [StreamEstimator.of(view, snapshot, speed) for view in snapshot.streams])
        self._known: dict[tuple[tuple[float, float, float], ...], float] = {}

    def undisturbed(self, quality: Sequence[float]) -> float:
        return float(self._value.worth(np.array([quality]))[0, -1]) / self._cameras

    def of(self, pupils: Sequence[Pupil], chosen: Sequence[Sequence[Lesson]]) -> list[float]:
        """Mean quality over cameras of each window; minus infinity where a window's lessons do not end in it."""
        return [
            self._window(tuple(_in_window(p, chain, w) for p, chain in zip(pupils, chosen, strict=True)))
            for w in range(len(pupils[0].quality))
        ]

    def _window(self, cameras: tuple[tuple[float, float, float], ...]) -> float:
        if cameras not in self._known:
            self._known[cameras] = self._worked_out(cameras)
        return self._known[cameras]

    def _worked_out(self, cameras: Sequence[tuple[float, float, float]]) -> float:
        """cameras: (quality before, after, GPU-seconds). The share that is best for all lessons of the window."""
        learns = [number for number, (_, _, gpu_s) in enumerate(cameras) if gpu_s > 0]
        learns.sort(key=lambda n: (-(cameras[n][1] - cameras[n][0]) / cameras[n][2], n))
        states = [[before for before, _, _ in cameras]]
        for number in learns:
            states.append([*states[-1][:number], cameras[number][1], *states[-1][number + 1 :]])
        worth = self._value.worth(np.array(states)) / self._cameras
        work = np.array([cameras[number][2] for number in learns])
        share = np.arange(1, worth.shape[1] - 1)  # quanta that learn; inference keeps one
        lasts = work[:, None] * 100 / (share * self._device.quantum_pct)
        left_s = self._device.window_s - lasts.sum(axis=0)
        shown = (worth[:-1, worth.shape[1] - 1 - share] * lasts).sum(axis=0) + worth[-1, -1] * left_s
        fits = shown[left_s >= 0]
        if not len(learns):
            return float(worth[0, -1])
        return float(fits.max()) / self._device.window_s if len(fits) else -np.inf


def _in_window(pupil: Pupil, chain: Sequence[Lesson], window: int) -> tuple[float, float, float]:
    """(quality before, after, GPU-seconds) of what a camera learns in a window."""
    before = _best(pupil, [lesson for lesson in chain if lesson.window < window], window)
    mine = next((lesson for lesson in chain if lesson.window == window), None)
    return (before, before, 0.0) if mine is None else (before, max(before, mine.quality[window]), max(mine.gpu_s, 1e-6))
