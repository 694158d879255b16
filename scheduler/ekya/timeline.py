"""One window played out exactly, in continuous time: what the streams would really see if the profiles were true.

`EstimateAccuracy` holds shares still for the whole window; a real window hands shares on whenever a retraining ends. This is
the arithmetic behind the paper's running example (section 3.2) and the measure the planners are compared by. What happens at a
completion is a rule: plan anew (the paper's text), or one of the fixed re-sharings of the authors' code and of the baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduler.ekya.estimate import SpeedCurve, StreamEstimator
from scheduler.types import Plan, RetrainOption, Snapshot, StreamView

#: A retraining with less than this left has ended (GPU-seconds).
_DONE_GPU_S = 1e-9


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one stream holds: shares in percent points (not only whole ones) and the name of the retraining, if any."""

    infer_pct: float
    train_pct: float
    retrain: str | None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The moment one or more retrainings ended. snapshot: of now, ended ones without options, others as they stand;
    held: as of just before, in stream order; ended: stream numbers."""

    at_s: float
    snapshot: Snapshot
    held: tuple[Held, ...]
    ended: tuple[int, ...]


#: What every stream holds after a completion.
Rule = Callable[[Completion], tuple[Held, ...]]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of constant shares. quality: instantaneous, per stream."""

    from_s: float
    to_s: float
    held: tuple[Held, ...]
    quality: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class WindowRun:
    """A window played out. mean_quality: over time, per stream; end_quality: of the model that serves at the end."""

    segments: tuple[Segment, ...]
    mean_quality: tuple[float, ...]
    end_quality: tuple[float, ...]

    @property
    def quality(self) -> float:
        """Mean over time and streams; 0 without streams."""
        return sum(self.mean_quality) / len(self.mean_quality) if self.mean_quality else 0.0


def held_by(plan: Plan) -> tuple[Held, ...]:
    """What a plan gives to each stream."""
    return tuple(Held(infer_pct=s.infer_pct, train_pct=s.train_pct, retrain=s.retrain) for s in plan.streams)


# --- rules ------------------------------------------------------------------------------------------------------------


def replan(policy: Callable[[Snapshot], Plan]) -> Rule:
    """The paper's text: plan anew with the time left, ended jobs removed."""
    return lambda completion: held_by(policy(completion.snapshot))


def keep(completion: Completion) -> tuple[Held, ...]:
    """The freed share is never used again."""
    return _without_ended(completion)[0]


def to_own_inference(completion: Completion) -> tuple[Held, ...]:
    """The freed share goes to the same stream's inference."""
    return tuple(
        replace(held, infer_pct=held.infer_pct + held.train_pct, train_pct=0.0, retrain=None)
        if number in completion.ended
        else held
        for number, held in enumerate(completion.held)
    )


def to_inferences(completion: Completion) -> tuple[Held, ...]:
    """The freed share goes equally to all inference jobs (the authors' live code)."""
    held, freed = _without_ended(completion)
    return tuple(replace(h, infer_pct=h.infer_pct + freed / len(held)) for h in held)


def to_all_jobs(completion: Completion) -> tuple[Held, ...]:
    """The freed share goes equally to all jobs that remain (the authors' simulator)."""
    held, freed = _without_ended(completion)
    each = freed / (len(held) + sum(h.retrain is not None for h in held))
    return tuple(replace(h, infer_pct=h.infer_pct + each, train_pct=h.train_pct + (each if h.retrain else 0.0)) for h in held)


def _without_ended(completion: Completion) -> tuple[tuple[Held, ...], float]:
    held = tuple(
        replace(h, train_pct=0.0, retrain=None) if number in completion.ended else h for number, h in enumerate(completion.held)
    )
    return held, sum(completion.held[number].train_pct for number in completion.ended)


# --- the loop ---------------------------------------------------------------------------------------------------------


@dataclass
class _Stream:
    """One stream while it is played."""

    view: StreamView
    quality: float
    running: RetrainOption | None = None  # cost_gpu_s: what is left
    ended: bool = False
    seen_s: float = 0.0  # integral of the instantaneous quality

    def now(self) -> StreamView:
        """As a planner would see it."""
        if self.ended:
            return replace(self.view, quality=self.quality, retrain=(), running=None)
        if self.running is not None:
            return replace(self.view, retrain=(self.running,), running=self.running.name)
        return self.view

    def hold(self, held: Held) -> None:
        """Start the retraining that `held` names, unless it runs already. Errors: ValueError for an unknown name."""
        if held.retrain is None or held.train_pct <= 0 or (self.running and self.running.name == held.retrain):
            return
        found = [o for o in self.now().retrain if o.name == held.retrain]
        if not found:
            raise ValueError(f"stream '{self.view.id}' has no retraining '{held.retrain}' to start")
        self.running = found[0]


def play_window(snapshot: Snapshot, start: Sequence[Held], rule: Rule) -> WindowRun:
    """Play `snapshot.remaining_s` seconds from `start`, applying `rule` at each completion.

    The model is swapped at completion and never before; what has not ended when the window ends is thrown away. A share above
    `train_max_pct` trains no faster.
    """
    speed = SpeedCurve.of(snapshot)
    streams = [_Stream(view, view.quality) for view in snapshot.streams]
    kept = [StreamEstimator.of(view, snapshot, speed) for view in snapshot.streams]
    segments: list[Segment] = []
    held, at_s, end_s = tuple(start), 0.0, snapshot.remaining_s
    while at_s < end_s:
        for stream, own in zip(streams, held, strict=True):
            stream.hold(own)
        rates = [speed.at(own.train_pct) if own.retrain else 0.0 for own in held]
        left = [s.running.cost_gpu_s / r for s, r in zip(streams, rates, strict=True) if s.running and r > 0]
        step_s = min([end_s - at_s, *left])
        quality = tuple(k.knobs_at(h.infer_pct)[1] * s.quality for k, h, s in zip(kept, held, streams, strict=True))
        segments.append(Segment(from_s=at_s, to_s=at_s + step_s, held=held, quality=quality))
        at_s += step_s
        ended = tuple(n for n, s in enumerate(streams) if _advance(s, step_s, rates[n], quality[n]))
        if ended and at_s < end_s:
            now = replace(snapshot, remaining_s=end_s - at_s, streams=tuple(s.now() for s in streams))
            held = rule(Completion(at_s=at_s, snapshot=now, held=held, ended=ended))
    means = tuple(s.seen_s / end_s if end_s > 0 else 0.0 for s in streams)
    return WindowRun(segments=tuple(segments), mean_quality=means, end_quality=tuple(s.quality for s in streams))


def _advance(stream: _Stream, step_s: float, rate: float, quality: float) -> bool:
    """Let `step_s` pass; True if the stream's retraining ended (and its model was swapped)."""
    stream.seen_s += quality * step_s
    if stream.running is None or rate <= 0:
        return False
    left_gpu_s = stream.running.cost_gpu_s - rate * step_s
    if left_gpu_s > _DONE_GPU_S:
        stream.running = replace(stream.running, cost_gpu_s=left_gpu_s)
        return False
    stream.quality, stream.running, stream.ended = stream.running.end_quality, None, True
    return True
