"""The gate: both models on the same held-out golden labels of the window in progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.jobs.base import (
    SampleRef,
    Samples,
    Scoring,
    Steps,
    is_sound,
    no_yield,
    pools,
    quality_of,
    quality_steps,
    spread,
    tells,
)
from edge.jobs.label import golden_label_steps
from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts, gain_sd
from models.golden import PLAIN, Labelling
from models.tasks.base import Task
from models.tasks.detection import DETECTION


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """gain_sd: standard error of candidate_quality - serving_quality over these frames (`models.evaluate.gain_sd`)."""

    serving_quality: float | None
    candidate_quality: float | None
    frames: int
    gain_sd: float | None = None


def gate_refs(samples: Samples, stream: str, window: int, frames: int, holdout_frac: float) -> list[SampleRef]:
    """The frames that `gate_steps` judges by, in time order."""
    current = spread(pools(samples, stream, window, holdout_frac)[1], frames)
    missing = frames - len(current)
    older = [ref for ref in samples.sampled(stream, window - 1) if samples.split(ref) == "holdout"] if missing > 0 else []
    return [*older[len(older) - min(missing, len(older)) :], *current]


def gate_steps(
    samples: Samples, golden: Detector, serving: Detector, candidate: Detector, *, stream: str, window: int, frames: int,
    scoring: Scoring, holdout_frac: float = 1.0, task: Task = DETECTION, yield_point: YieldPoint = no_yield,
    labelling: Labelling = PLAIN, timer: Callable[[], float] = lambda: 0.0,
) -> Steps[GateResult]:  # fmt: skip
    """Measures both models on the same held-out golden labels: newest first, those of the window in progress, filled up to `frames`
    with those that the last window's labelling made (a gate that comes early has seen little of its own window). Only frames of
    the held-out pool are used (of the window in progress any, with `holdout_frac` 1), and they stay held out, so that the next
    window does not train on what judged this one.

    Nobody can say what the candidate is worth (candidate_quality None) when its weights are not numbers, or no frame holds an object."""
    refs = gate_refs(samples, stream, window, frames, holdout_frac)
    yield from golden_label_steps(
        samples, golden, [(ref, "holdout") for ref in refs], scoring=scoring, task=task, labelling=labelling,
        yield_point=yield_point, timer=timer,
    )  # fmt: skip
    old = yield from quality_steps(samples, task, serving, refs, scoring, yield_point)
    if not (is_sound(candidate) and tells(samples, refs)):
        return GateResult(serving_quality=quality_of(old), candidate_quality=None, frames=len(old))
    new = yield from quality_steps(samples, task, candidate, refs, scoring, yield_point)
    return compared(old, new)


def compared(old: Sequence[MatchCounts], new: Sequence[MatchCounts]) -> GateResult:
    """Two models on the same frames."""
    return GateResult(
        serving_quality=quality_of(old), candidate_quality=quality_of(new), frames=len(new), gain_sd=gain_sd(old, new)
    )
