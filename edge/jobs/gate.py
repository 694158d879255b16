"""The gate: both models on the same held-out golden labels of the window in progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edge.jobs.base import (
    SampleRef,
    Samples,
    Scoring,
    Steps,
    error_of_quality,
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
from scheduler.admission import MIN_KNOWN


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """serving_quality, candidate_quality: on the newest frames (`gate_refs`), of which there are `newest`; serving_error: standard error
    of the first. gain, gain_sd: of the candidate over the serving model and
    its standard error (`models.evaluate.gain_sd`), over all `frames` frames, older held-out ones too (`older_refs`)."""

    serving_quality: float | None
    candidate_quality: float | None
    frames: int
    gain_sd: float | None = None
    gain: float | None = None
    newest: int = 0
    serving_error: float | None = None


def gate_refs(
    samples: Samples, stream: str, window: int, frames: int, holdout_frac: float, older: bool = True
) -> list[SampleRef]:
    """The frames that `gate_steps` judges by, in time order."""
    current = spread(pools(samples, stream, window, holdout_frac)[1], frames)
    missing = frames - len(current) if older else 0
    before = _held_out(samples, stream, window - 1) if missing > 0 else []
    return [*before[len(before) - min(missing, len(before)) :], *current]


def known_refs(samples: Samples, stream: str, window: int, frames: int, older: bool = True) -> list[SampleRef]:
    """Up to `frames` held-out frames whose labels are there already, the newest, in time order: of the window in progress, and where
    `older` of the last one."""
    windows = (window - 1, window) if older else (window,)
    held_out = [ref for w in windows for ref in _held_out(samples, stream, w)]
    return held_out[max(0, len(held_out) - frames) :]


def older_refs(samples: Samples, stream: str, window: int, frames: int, refs: Sequence[SampleRef]) -> list[SampleRef]:
    """Up to `frames` of the last window's held-out frames beside `refs`, the newest, in time order. Their labels are there already, so
    they cost two inferences each, and the gain is known the better; the newest frames still have a say of their own."""
    known = {ref.name for ref in refs}
    held_out = [ref for ref in _held_out(samples, stream, window - 1) if ref.name not in known]
    return held_out[max(0, len(held_out) - frames) :]


def judging_refs(
    samples: Samples, stream: str, window: int, frames: int, *, holdout_frac: float, older: bool, known: bool
) -> tuple[list[SampleRef], list[SampleRef]]:
    """(the newest, which have a say of their own; the older ones beside them) by which `gate_steps` judges. A gate of known labels has
    no older ones beside: they are among its newest."""
    if known:
        return known_refs(samples, stream, window, frames, older), []
    refs = gate_refs(samples, stream, window, frames, holdout_frac, older)
    return refs, older_refs(samples, stream, window, frames, refs) if older else []


def _held_out(samples: Samples, stream: str, window: int) -> list[SampleRef]:
    return [ref for ref in samples.sampled(stream, window) if samples.split(ref) == "holdout"]


def gate_steps(
    samples: Samples, golden: Detector, serving: Detector, candidate: Detector, *, stream: str, window: int, frames: int,
    scoring: Scoring, holdout_frac: float = 1.0, task: Task = DETECTION, yield_point: YieldPoint = no_yield,
    labelling: Labelling = PLAIN, timer: Callable[[], float] = lambda: 0.0, older: bool = True, known: bool = False,
    least: int = MIN_KNOWN,
) -> Steps[GateResult]:  # fmt: skip
    """Measures both models on the same held-out golden labels: newest first, those of the window in progress, filled up to `frames`
    with those that the last window's labelling made (a gate that comes early has seen little of its own window; where the last one
    showed another scene, `older` False, those say nothing). Only frames of the held-out pool are used (of the window in progress any,
    with `holdout_frac` 1), and they stay held out, so that the next window does not train on what judged this one.

    known: nothing is labelled, and only frames whose labels are there already judge (`known_refs`); on fewer than `least` nobody can
    say what the candidate is worth.

    Nobody can say what the candidate is worth (candidate_quality None) when its weights are not numbers, or no frame holds an object."""
    refs, before = judging_refs(samples, stream, window, frames, holdout_frac=holdout_frac, older=older, known=known)
    yield from golden_label_steps(
        samples, golden, [(ref, "holdout") for ref in refs], scoring=scoring, task=task, labelling=labelling,
        yield_point=yield_point, timer=timer,
    )  # fmt: skip
    old = yield from quality_steps(samples, task, serving, refs, scoring, yield_point)
    if not (is_sound(candidate) and tells(samples, refs)) or (known and len(refs) < least):
        return GateResult(
            serving_quality=quality_of(old), candidate_quality=None, frames=len(old), newest=len(old),
            serving_error=error_of_quality(old),
        )  # fmt: skip
    new = yield from quality_steps(samples, task, candidate, refs, scoring, yield_point)
    old_before = yield from quality_steps(samples, task, serving, before, scoring, yield_point)
    new_before = yield from quality_steps(samples, task, candidate, before, scoring, yield_point)
    all_frames = compared((*old_before, *old), (*new_before, *new))
    return replace(
        all_frames, serving_quality=quality_of(old), candidate_quality=quality_of(new), newest=len(old),
        serving_error=error_of_quality(old),
    )  # fmt: skip


def compared(old: Sequence[MatchCounts], new: Sequence[MatchCounts]) -> GateResult:
    """Two models on the same frames."""
    before, after = quality_of(old), quality_of(new)
    return GateResult(
        serving_quality=before, candidate_quality=after, frames=len(new), gain_sd=gain_sd(old, new),
        gain=None if before is None or after is None else after - before,
    )  # fmt: skip
