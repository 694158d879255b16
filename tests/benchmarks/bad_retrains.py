"""Prints how many bad retrainings the box took live: poisoned labels, broken weights, wrong answers, each through the real gate.

A part of `driftbox bench learning` (`run(tries)`); alone: python tests/benchmarks/bad_retrains.py [--tries 1000] [--trainings 12]

Every try is one gate as a box holds it: rendered scenes with exact truth as golden labels, the demo detector (real weights, real
inference) as the serving model, `edge.jobs.gate` for the measurement and `scheduler.engine.BoxEngine` for the decision, with a profile
before it that promised a lot. What varies, by seed: the scene (day, night, fog, one that is nearly empty), which frames and how many,
how good the serving model is there, and what is wrong with the candidate:

    trained on poisoned labels   real retrainings: classes shifted, boxes shifted, labels of other pictures, boxes anywhere
    broken weights               NaN in all, NaN in one tensor, infinite, zero, never trained
    wrong answers                classes exchanged, nothing at all, the same boxes everywhere, boxes that are NaN, throws

A candidate that is by chance worth more than the serving model on all frames of its scene is not bad and is left out ("harmless").
Beside that, what no promise covers: candidates that are only a little worse, how many were taken and what they lost.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configs.schema.planning import WindowSection
from configs.units import CLASSES
from edge import jobs
from models.detector import Detector, DetectorSpec
from models.evaluate import MatchCounts, match_counts
from models.labelled import LabelledImage
from models.retrain import retrain
from models.tasks.base import Picture
from models.tinydet import TinyDetector, load_bundled
from scheduler.admission import SEEING
from scheduler.commands import Command, StartGate, SwapModel
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import Event, GateDone, JobFailed
from scheduler.types import Detections, RetrainConfig
from streams.rendered.scene import RenderedScene
from tests.support.one_gate import at_the_gate

EDGE = "tinydet-edge"
#: Frames per scene, and how far they lie apart.
POOL, STEP_S = 40, 3.7
#: Frames that a box's gate asks for.
GATE_FRAMES = 16
#: Gain that a try's profile promised.
PROMISED = 0.3
CONFIG = RetrainConfig(name="full", epochs=4, lr=2e-3)
#: How much of a little worse a candidate is, as the part of found objects that it loses.
LITTLE = (0.05, 0.1, 0.2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shot:
    """A frame of a scene with its truth."""

    name: str
    image: np.ndarray
    truth: Detections


@cache
def scene(name: str) -> tuple[Shot, ...]:
    """POOL frames: 'day', 'night', 'fog'; or 'empty', the emptier half of a night."""
    from streams.rendered.conditions import Schedule

    kind, seed, condition = {
        "day": ("street", 101, "day"), "night": ("street", 104, "night"), "fog": ("yard", 102, "fog"), "empty": ("hall", 103, "night"),
    }[name]  # fmt: skip
    rendered = RenderedScene(kind, seed, schedule=Schedule.of((0.0, condition)))
    shots = (Shot(name=f"{name}/{n}", image=i, truth=t) for n, (i, t) in enumerate(map(rendered.render, _moments())))
    if name != "empty":
        return tuple(shots)
    few = sorted(shots, key=lambda shot: len(shot.truth))
    return tuple(few[: POOL // 2])


def _moments() -> list[float]:
    return [STEP_S * n for n in range(POOL)]


# --- what is wrong with a candidate -----------------------------------------------------------------------------------


class Answers:
    """A detector that a test makes wrong: `change` is what becomes of the serving model's answer to a picture."""

    def __init__(self, inner: Detector, change: Callable[[Detections, np.ndarray], Detections]) -> None:
        self.spec, self._inner, self._change = DetectorSpec(arch=EDGE, input_px=inner.spec.input_px), inner, change

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        found = self._inner.predict(images, score_min=score_min)
        return [self._change(f, image).above(score_min) for f, image in zip(found, images, strict=True)]

    def state(self) -> dict[str, torch.Tensor]:
        return self._inner.state()


class Remembered:
    """A detector whose answer to a picture is kept, so that a thousand gates cost one inference per frame and model."""

    def __init__(self, inner: Any) -> None:
        self.spec, self._inner, self._seen = inner.spec, inner, dict[int, Any]()

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        return [self._answer(image).above(score_min) for image in images]

    def _answer(self, image: np.ndarray) -> Detections:
        if id(image) not in self._seen:
            try:
                self._seen[id(image)] = self._inner.predict([image], score_min=0.25)[0]
            except Exception as error:  # a broken model may throw anything; the job must hear it each time
                self._seen[id(image)] = error
        found = self._seen[id(image)]
        if isinstance(found, Exception):
            raise found
        return found

    def state(self) -> dict[str, torch.Tensor]:
        return self._inner.state()


def _boxes(xyxy: np.ndarray, class_id: np.ndarray) -> Detections:
    xyxy = np.asarray(xyxy, np.float32).reshape(-1, 4)
    return Detections(xyxy=xyxy, score=np.full(len(xyxy), 0.9, np.float32), class_id=np.asarray(class_id, np.int64))


def _exchanged(found: Detections, image: np.ndarray) -> Detections:
    return replace(found, class_id=(found.class_id + 1) % len(CLASSES))


def _constant(found: Detections, image: np.ndarray) -> Detections:
    height, width = image.shape[:2]
    grid = [(x, y, x + width / 4, y + height / 3) for x in np.arange(4) * width / 4 for y in np.arange(3) * height / 3]
    return _boxes(np.array(grid), np.arange(len(grid)) % len(CLASSES))


def _nothing(found: Detections, image: np.ndarray) -> Detections:
    return Detections.empty()


def _not_numbers(found: Detections, image: np.ndarray) -> Detections:
    return _boxes(np.full((3, 4), np.nan), np.zeros(3))


def _throws(found: Detections, image: np.ndarray) -> Detections:
    raise RuntimeError("a broken network")


ANSWERS: dict[str, Callable[[Detections, np.ndarray], Detections]] = {
    "classes exchanged": _exchanged, "nothing at all": _nothing, "the same boxes everywhere": _constant,
    "boxes that are NaN": _not_numbers, "throws": _throws,
}  # fmt: skip

Poison = Callable[[LabelledImage, Sequence[LabelledImage], np.random.Generator], Detections]


def _classes_shifted(one: LabelledImage, all_: Sequence[LabelledImage], rng: np.random.Generator) -> Detections:
    return replace(one.labels, class_id=(one.labels.class_id + 1 + rng.integers(0, 2)) % len(CLASSES))


def _boxes_shifted(one: LabelledImage, all_: Sequence[LabelledImage], rng: np.random.Generator) -> Detections:
    return replace(one.labels, xyxy=one.labels.xyxy + np.float32(25.0) * rng.choice([-1, 1], size=(len(one.labels), 1)))


def _of_another(one: LabelledImage, all_: Sequence[LabelledImage], rng: np.random.Generator) -> Detections:
    return all_[int(rng.integers(0, len(all_)))].labels


def _anywhere(one: LabelledImage, all_: Sequence[LabelledImage], rng: np.random.Generator) -> Detections:
    height, width = one.image.shape[:2]
    corner = rng.uniform(0, 1, (6, 2)) * (width * 0.8, height * 0.8)
    size = rng.uniform(0.05, 0.3, (6, 2)) * (width, height)
    return _boxes(np.hstack([corner, corner + size]), rng.integers(0, len(CLASSES), 6))


POISONS: dict[str, Poison] = {
    "classes shifted": _classes_shifted, "boxes shifted": _boxes_shifted, "labels of other pictures": _of_another,
    "boxes anywhere": _anywhere,
}  # fmt: skip


def poisoned(name: str, where: str, seed: int, *, frames: int = 16) -> TinyDetector:
    """The demo model, really retrained on a scene's frames with wrong labels."""
    rng = np.random.default_rng((seed, len(name)))
    shots = scene(where)[:frames]
    clean = [LabelledImage(image=shot.image, labels=shot.truth) for shot in shots]
    wrong = [replace(one, labels=POISONS[name](one, clean, rng)) for one in clean]
    detector = load_bundled(EDGE)
    for _ in retrain(detector, wrong, CONFIG, seed=seed):
        pass
    return detector


def broken(how: str) -> TinyDetector:
    """The demo model with weights that are none."""
    if how == "never trained":
        return TinyDetector(EDGE, seed=5)
    detector = load_bundled(EDGE)
    state = {k: v.clone() for k, v in detector.state().items()}
    names = [k for k, v in state.items() if v.is_floating_point()]
    for name in names if how != "NaN in one tensor" else names[len(names) // 2 : len(names) // 2 + 1]:
        state[name].fill_({"infinite": float("inf"), "zero": 0.0}.get(how, float("nan")))
    detector.load_state(state)
    return detector


BROKEN = ("NaN in all", "NaN in one tensor", "infinite", "zero", "never trained")


def candidates(trainings: int, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """(what is wrong, model). trainings: how many are really trained."""
    for how in BROKEN:
        yield f"weights: {how}", broken(how)
    for how, change in ANSWERS.items():
        yield f"answers: {how}", Answers(load_bundled(EDGE), change)
    for number in range(trainings):
        name = list(POISONS)[number % len(POISONS)]
        where = ("day", "fog", "night")[number // len(POISONS) % 3]
        yield f"labels: {name} ({where})", poisoned(name, where, seed + number)


# --- one gate ---------------------------------------------------------------------------------------------------------


class Weaker:
    """The serving model on a camera that drifted: it misses a part of what it would find, by chance, the same for the same picture."""

    def __init__(self, inner: Remembered, missed_frac: float) -> None:
        self.spec, self._inner, self._missed_frac = inner.spec, inner, missed_frac

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        return [self._thinned(image).above(score_min) for image in images]

    def _thinned(self, image: np.ndarray) -> Detections:
        found = self._inner.predict([image])[0]
        keep = np.random.default_rng(int(image[::7, ::7].sum())).random(len(found)) >= self._missed_frac
        return Detections(xyxy=found.xyxy[keep], score=found.score[keep], class_id=found.class_id[keep])

    def state(self) -> dict[str, torch.Tensor]:
        return self._inner.state()


class Golden:
    """Knows the truth of every rendered frame."""

    spec = DetectorSpec(arch="truth", input_px=320)

    def __init__(self, shots: Sequence[Shot]) -> None:
        self._truth = {id(shot.image): shot.truth for shot in shots}

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        return [self._truth[id(image)] for image in images]


class GateSamples:
    """`edge.jobs.Samples` of the window in progress (1) with some shots of a scene, and of the last one (0) whose held-out frames,
    `older`, were labelled when it was learned from."""

    def __init__(self, shots: Sequence[Shot], older: Sequence[Shot] = ()) -> None:
        self._shots = {0: tuple(older), 1: tuple(shots)}
        self._labels: dict[str, tuple[Detections, str]] = {shot.name: (shot.truth, "holdout") for shot in older}

    def sampled(self, stream: str, window: int) -> Sequence[Any]:
        return self._shots[window]

    def picture(self, ref: Any) -> Picture:
        return Picture(image=ref.image)

    def labels(self, ref: Any) -> Detections | None:
        return self._labels[ref.name][0] if ref.name in self._labels else None

    def split(self, ref: Any) -> str | None:
        return self._labels[ref.name][1] if ref.name in self._labels else None

    def by_person(self, ref: Any) -> bool:
        return False

    def label(self, ref: Any, labels: Detections, *, golden: str, split: str, **marks: Any) -> None:
        self._labels[ref.name] = (labels, split)

    def labelled(self, stream: str, windows: Sequence[int], split: str) -> Sequence[LabelledImage]:
        return ()


def is_taken(
    shots: Sequence[Shot], serving: Any, candidate: Any, promised: float, older: Sequence[Shot] = (), frames: int | None = None
) -> bool:
    """One candidate's way through the gate, from the job to the engine's decision: by what is labelled already, and where that leaves
    doubt by new labels. frames: that the gate asks for, None: as many as there are."""
    engine, gate = engine_at_the_gate(promised)
    samples, golden = GateSamples(shots, older), Golden((*shots, *older))
    asked: StartGate | None = replace(gate, frames=len(shots) if frames is None else frames)
    told: Sequence[Command] = ()
    while asked is not None:
        told = engine.handle(_measured(asked, samples, golden, serving, candidate))
        asked = next((replace(c, frames=asked.frames) for c in told if isinstance(c, StartGate)), None)
    return any(isinstance(command, SwapModel) for command in told)


def _measured(gate: StartGate, samples: GateSamples, golden: Golden, serving: Any, candidate: Any) -> Event:
    try:
        result = jobs.run_at_once(
            jobs.gate_steps(
                samples, golden, serving, candidate, stream="a", window=1, frames=gate.frames, scoring=jobs.Scoring(),
                known=gate.known,
            )
        )  # type: ignore[arg-type]  # fmt: skip
    except Exception:  # as in the box: whatever a job raises is one failed job
        return JobFailed(at_s=30, job=gate.job, stream="a", code="exception")
    return GateDone(
        at_s=30, job=gate.job, stream="a", candidate="a-2", serving_quality=result.serving_quality,
        candidate_quality=result.candidate_quality, frames=result.frames, gpu_s=1.0, gain_sd=result.gain_sd,
        gain=result.gain,
    )  # fmt: skip


def engine_at_the_gate(promised: float, start: float = 0.4) -> tuple[BoxEngine, StartGate]:
    """An engine of one camera whose retraining has just ended, after a profile that promised `promised` more."""
    config = EngineConfig(
        window_s=100, first_window_s=100, retrain=(CONFIG,), policy="thief", gate_seeing=SEEING, gate_known=True,
        gate_risk=WindowSection().gate_risk,
    )  # fmt: skip
    return at_the_gate(config, curve=tuple(start + promised * part for part in (0.0, 0.7, 0.9, 1.0)))


def true_f1(shots: Sequence[Shot], model: Any) -> float:
    """Over all frames of a scene; a model that throws or whose weights are none is worth nothing."""
    if not jobs.base.is_sound(model):
        return 0.0
    try:
        found = model.predict([shot.image for shot in shots])
    except RuntimeError:
        return 0.0
    return MatchCounts.total(match_counts(f, shot.truth) for f, shot in zip(found, shots, strict=True)).f1


# --- all of them ------------------------------------------------------------------------------------------------------


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(tries: int = 1000, *, trainings: int = 12, seed: int = 0) -> dict[str, Any]:
    """tries: gates with bad candidates. trainings: models that are really trained on poisoned labels. Returns, JSON-ready: tries;
    taken, those that were taken live; by_kind, the tries of each; worst, the taken ones; harmless; little, what became of candidates
    that are only a little worse: tries, taken, mean F1 that a taken one lost."""
    with _one_thread():
        wrong = [(what, Remembered(model)) for what, model in candidates(trainings, seed)]
        serving = Remembered(load_bundled(EDGE))
        tried, taken, harmless = Counter[str](), list[dict[str, Any]](), 0
        number = 0
        while sum(tried.values()) < tries:
            rng = np.random.default_rng((seed, number))
            what, candidate = wrong[number % len(wrong)]
            number += 1
            where, shots, older, present = _draw(rng, serving)
            values = true_f1(scene(where), present), true_f1(scene(where), candidate)
            if values[1] >= values[0]:
                harmless += 1
                if harmless > 20 * tries:
                    raise RuntimeError("nearly no candidate is bad: nothing is tried")
                continue
            tried[what] += 1
            if is_taken(shots, present, candidate, PROMISED, older, GATE_FRAMES):
                taken.append(
                    {
                        "what": what,
                        "scene": where,
                        "frames": [len(shots), len(older)],
                        "serving_f1": values[0],
                        "candidate_f1": values[1],
                    }
                )
        return {
            "tries": sum(tried.values()), "taken": len(taken), "harmless": harmless, "by_kind": dict(sorted(tried.items())),
            "worst": taken, "little": _a_little_worse(serving, max(100, tries // 5), seed),
        }  # fmt: skip


def _draw(rng: np.random.Generator, serving: Remembered) -> tuple[str, list[Shot], list[Shot], Weaker]:
    """A scene, some of its frames for the window in progress (an early gate has seen few) and for the last window's held-out labels
    (a slow golden model has made few), and how good the serving model is there."""
    where = str(rng.choice(["day", "night", "fog", "empty"]))
    pool = scene(where)
    new, old = int(rng.integers(2, GATE_FRAMES + 1)), int(rng.integers(3, GATE_FRAMES + 1))
    picked = rng.permutation(len(pool))[: new + old]
    shots = [replace(pool[i], name=f"{n}") for n, i in enumerate(picked)]
    return where, shots[:new], shots[new:], Weaker(serving, float(rng.uniform(0, 0.8)))


def _a_little_worse(serving: Remembered, tries: int, seed: int) -> dict[str, Any]:
    """Nobody can tell them apart on 16 frames with certainty: how often that goes wrong, and what it costs."""
    lost: list[float] = []
    for number in range(tries):
        rng = np.random.default_rng((seed, 1, number))
        where, shots, older, present = _draw(rng, serving)
        worse = Weaker(serving, min(1.0, present._missed_frac + LITTLE[number % len(LITTLE)]))
        if is_taken(shots, present, worse, PROMISED / 3, older, GATE_FRAMES):
            lost.append(true_f1(scene(where), present) - true_f1(scene(where), worse))
    return {"tries": tries, "taken": len(lost), "mean_lost_f1": round(float(np.mean(lost)), 4) if lost else 0.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=1000)
    parser.add_argument("--trainings", type=int, default=12, help="models really trained on poisoned labels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    answer = run(given.tries, trainings=given.trainings, seed=given.seed)
    if given.json:
        print(json.dumps(answer, indent=1))
        return 0 if answer["taken"] == 0 else 1
    for what, count in answer["by_kind"].items():
        print(f"{what:<44} {count:>5} tries")
    print(f"bad retrainings taken live: {answer['taken']} of {answer['tries']}   (to reach: 0 in 1,000)")
    little = answer["little"]
    print(
        f"a little worse, no promise: {little['taken']} of {little['tries']} taken, each lost {little['mean_lost_f1']:.3f} F1"
    )
    return 0 if answer["taken"] == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
