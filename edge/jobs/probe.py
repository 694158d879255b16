"""The probe: earlier versions beside the serving one on the held-out labels of the last window (`scheduler.reuse`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edge.jobs.base import (
    SampleRef,
    Samples,
    Scoring,
    Steps,
    error_of_quality,
    is_sound,
    no_yield,
    quality_of,
    quality_steps,
    tells,
)
from models.detector import Detector, YieldPoint
from models.evaluate import gain_sd
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler.events import Probed


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """serving_quality: on the same frames, serving_error: its standard error; frames: held-out labelled ones."""

    serving_quality: float | None
    found: tuple[Probed, ...]
    frames: int
    serving_error: float | None = None


def probe_refs(samples: Samples, stream: str, window: int) -> list[SampleRef]:
    """The frames that `probe_steps` judges by, in time order."""
    return [ref for ref in samples.sampled(stream, window) if samples.split(ref) == "holdout"]


def probe_steps(
    samples: Samples, serving: Detector, candidates: Iterable[tuple[str, Detector]], *, stream: str, window: int,
    scoring: Scoring, task: Task = DETECTION, yield_point: YieldPoint = no_yield,
) -> Steps[ProbeResult]:  # fmt: skip
    """Measures the serving model and each candidate on a window's held-out labels, one frame an iteration.

    candidates: (version, detector), drawn one after the other, so that one at a time is in memory. One whose weights are not numbers
    is left out, and all are when no frame holds an object (`tells`): then there is nothing to be better at."""
    refs = probe_refs(samples, stream, window)
    old = yield from quality_steps(samples, task, serving, refs, scoring, yield_point)
    found: list[Probed] = []
    for version, detector in candidates if tells(samples, refs) else ():
        if not is_sound(detector):
            continue
        new = yield from quality_steps(samples, task, detector, refs, scoring, yield_point)
        quality = quality_of(new)
        if quality is not None:
            found.append(Probed(version=version, quality=quality, gain_sd=gain_sd(old, new)))
    return ProbeResult(
        serving_quality=quality_of(old), found=tuple(found), frames=len(old), serving_error=error_of_quality(old)
    )
