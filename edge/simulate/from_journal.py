"""The journal of a box as a trace: what its windows offered, cost and came to, for the simulator (docs/traces.md has the rules).

What a box knows of a camera in a window, and what is filled in:

    predicted_start_quality   its labels at the window's begin, made from the window before
    start_quality             of the model that served when the window opened, on frames of this very window: the gate's figure, else
                              the next window's labels when no model was swapped in between; else as predicted, else as in the
                              window before, else what the camera came with, else the engine's prior
    base_quality              of the model that the journal begins with. Nobody measures it once another model serves; it is taken to
                              stay at its last known value and never above start_quality, so that the simulator never flatters
                              retraining
    options                   what profiling predicted; cost and quality of the one that was carried out are what came true. One that
                              was carried out without profiling (a fixed policy) has no prediction
    epoch_quality             of the one that was carried out, from its epoch reports; missing epochs follow the learning curve
                              through the others, the end is the gate's figure

Every closed window counts as one of full length. A camera that came later or left earlier has its first or last known quality in the
windows without it, and no options there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import StorageError
from edge.journal import Segment, journal_of
from scheduler.codec import decode
from scheduler.commands import ReportWindow, StartRetraining
from scheduler.ekya import microprofile
from scheduler.engine import Checkpoint, EngineConfig
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    EpochDone,
    GateDone,
    KnobsMeasured,
    LabelDone,
    ModelRolledBack,
    ProfileDone,
    RetrainDone,
    SwapDone,
)
from scheduler.trace import Trace, TraceKnobs, TraceOption, TraceStream, TraceWindow, quality_along
from scheduler.types import KnobProfile, RetrainConfig, RetrainOption


def trace_of_data_dir(data_dir: Path) -> Trace:
    """The journal under `data_dir`/events as a trace. Raises StorageError when there is none, when it cannot be read, or when no
    window of it was closed."""
    segments = journal_of(data_dir)
    record = _Record()
    for segment in segments:
        record.read(segment)
    return record.trace(f"journal of a box, {len(record.closed)} windows")


@dataclass(kw_only=True)
class _Training:
    """A retraining that was started. cost_gpu_s, quality: None until it ended, until its gate ended."""

    config: RetrainConfig
    candidate: str = ""
    cost_gpu_s: float | None = None
    quality: float | None = None
    epochs: dict[int, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Seen:
    """What the journal says of one camera in one window."""

    labelled: float | None = None
    labels: int = 0
    profile_gpu_s: float = 0.0
    options: tuple[RetrainOption, ...] = ()
    gate: float | None = None  # of the model that served when the window opened
    swapped: bool = False
    training: _Training | None = None


@dataclass(kw_only=True)
class _Camera:
    knobs: tuple[KnobProfile, ...] = ()
    came_with: float | None = None
    windows: dict[int, _Seen] = field(default_factory=dict)


@dataclass
class _Record:
    """Everything read so far. window: the one that is open; closed: those with an outcome, rising."""

    config: EngineConfig | None = None
    window: int = 0
    closed: list[int] = field(default_factory=list)
    golden_gpu_s: list[float] = field(default_factory=list)
    cameras: dict[str, _Camera] = field(default_factory=dict)

    def read(self, segment: Segment) -> None:
        for number, line in enumerate(segment.lines):
            entry = decode(line)
            if number == 0:
                if not isinstance(entry, Checkpoint):
                    raise StorageError(
                        f"{segment.path.name} does not begin with a checkpoint", code="corrupt", remedy="move it out of events/"
                    )
                self._checkpoint(entry)
            else:
                self._entry(entry)

    def _checkpoint(self, entry: Checkpoint) -> None:
        self.config = entry.config
        self.window = max(self.window, entry.state.window)
        for stream in entry.state.streams.values():
            camera = self._camera(stream.id)
            camera.knobs = stream.knobs or camera.knobs
            camera.came_with = stream.quality if camera.came_with is None else camera.came_with

    def _entry(self, entry: Any) -> None:
        if isinstance(entry, BoxStarted):
            self.window = entry.window
        elif isinstance(entry, CameraAdded):
            camera = self._camera(entry.stream)
            camera.knobs = entry.knobs or camera.knobs
            camera.came_with = entry.quality if camera.came_with is None else camera.came_with
        elif isinstance(entry, KnobsMeasured):
            self._camera(entry.stream).knobs = entry.knobs
        elif isinstance(entry, LabelDone):
            self._labelled(entry)
        elif isinstance(entry, ProfileDone):
            self._profiled(entry)
        elif isinstance(entry, ReportWindow):
            self.closed.append(entry.outcome.window)
            self.window = entry.outcome.window + 1
        else:
            self._training_entry(entry)

    def _training_entry(self, entry: Any) -> None:
        if isinstance(entry, StartRetraining):
            self._seen(entry.stream).training = _Training(config=entry.config)
        elif isinstance(entry, EpochDone):
            training = self._seen(entry.stream).training
            if training is not None and entry.report.quality is not None:
                training.epochs[entry.report.epoch] = entry.report.quality
        elif isinstance(entry, RetrainDone):
            training = self._seen(entry.stream).training
            if training is not None:
                training.candidate, training.cost_gpu_s = entry.candidate, entry.gpu_s
        elif isinstance(entry, GateDone):
            self._gated(entry)
        elif isinstance(entry, SwapDone | ModelRolledBack):
            self._seen(entry.stream).swapped = True

    def _labelled(self, entry: LabelDone) -> None:
        seen = self._seen(entry.stream)
        seen.labelled, seen.labels = entry.quality, entry.train + entry.holdout
        if entry.golden_gpu_s is not None:
            self.golden_gpu_s.append(entry.golden_gpu_s)

    def _profiled(self, entry: ProfileDone) -> None:
        assert self.config is not None  # a segment begins with a checkpoint
        seen = self._seen(entry.stream)
        seen.options = microprofile.options(entry.trials, self.config.retrain, n_train=entry.n_train, lend=entry.lend)
        seen.profile_gpu_s = entry.gpu_s

    def _gated(self, entry: GateDone) -> None:
        seen = self._seen(entry.stream)
        if not seen.swapped and entry.serving_quality is not None:
            seen.gate = entry.serving_quality
        if seen.training is not None and seen.training.candidate == entry.candidate:
            seen.training.quality = entry.candidate_quality

    def _camera(self, stream: str) -> _Camera:
        return self.cameras.setdefault(stream, _Camera())

    def _seen(self, stream: str) -> _Seen:
        return self._camera(stream).windows.setdefault(self.window, _Seen())

    # --- the trace ----------------------------------------------------------------------------------------------------

    def trace(self, source: str) -> Trace:
        """Windows renumbered from 0. Raises StorageError when none was closed or no camera was ever there."""
        numbers, cameras = sorted(set(self.closed)), {s: c for s, c in sorted(self.cameras.items()) if c.knobs}
        if self.config is None or not numbers or not cameras:
            raise StorageError(
                "the journal holds no finished window of any camera", code="corrupt", remedy="let the box run for two windows"
            )
        streams = tuple(_stream(name, camera, numbers, self.config) for name, camera in cameras.items())
        golden = float(np.median(self.golden_gpu_s)) if self.golden_gpu_s else self.config.golden_gpu_s
        return Trace(
            source=source, policy=self.config.policy, window_s=self.config.window_s, golden_gpu_s=golden, streams=streams
        )


def _stream(name: str, camera: _Camera, numbers: Sequence[int], config: EngineConfig) -> TraceStream:
    seen = [camera.windows.get(number, _Seen()) for number in numbers]
    starts = _start_qualities(seen, camera.came_with, config.prior_quality)
    bases = _base_qualities(seen, starts)
    epochs = {c.name: c.epochs for c in config.retrain}
    windows = tuple(
        TraceWindow(
            window=i, base_quality=base, start_quality=start, predicted_start_quality=each.labelled, labels=each.labels,
            profile_gpu_s=each.profile_gpu_s, options=_options(each, start, epochs),
        )
        for i, (each, start, base) in enumerate(zip(seen, starts, bases, strict=True))
    )  # fmt: skip
    knobs = tuple(
        TraceKnobs(
            name=k.name,
            demand_pct=k.demand_pct,
            quality_frac=k.quality_frac,
            fps=k.fps,
            height_px=k.height_px,
            memory_mib=k.memory_mib,
        )
        for k in camera.knobs
    )
    return TraceStream(id=name, knobs=knobs, windows=windows)


def _start_qualities(seen: Sequence[_Seen], came_with: float | None, prior: float) -> list[float]:
    """See the module. The first that is known also holds for the windows before it."""
    nexts: Iterable[_Seen | None] = [*seen[1:], None]
    known = [_start_quality(each, after) for each, after in zip(seen, nexts, strict=True)]
    first = next((q for q in known if q is not None), None)
    last = came_with if came_with is not None else prior if first is None else first
    filled = []
    for quality in known:
        last = last if quality is None else quality
        filled.append(last)
    return filled


def _start_quality(seen: _Seen, after: _Seen | None) -> float | None:
    if seen.gate is not None:
        return seen.gate
    if after is not None and not seen.swapped and after.labelled is not None:
        return after.labelled
    return seen.labelled


def _base_qualities(seen: Sequence[_Seen], starts: Sequence[float]) -> list[float]:
    bases: list[float] = []
    replaced = False
    for each, start in zip(seen, starts, strict=True):
        bases.append(min(bases[-1], start) if replaced else start)
        replaced = replaced or each.swapped
    return bases


def _options(seen: _Seen, start: float, epochs: Mapping[str, int]) -> tuple[TraceOption, ...]:
    training = seen.training if seen.training and seen.training.cost_gpu_s is not None else None
    name = training.config.name if training else ""
    profiled = tuple(
        TraceOption(
            name=o.name, cost_gpu_s=o.cost_gpu_s, predicted_quality=_clipped(o.end_quality), epochs=epochs.get(o.name),
            memory_mib=o.memory_mib,
        )
        for o in seen.options
        if o.name != name
    )  # fmt: skip
    if training is None:
        return profiled
    predicted = next((_clipped(o.end_quality) for o in seen.options if o.name == name), None)
    done = TraceOption(
        name=name, cost_gpu_s=training.cost_gpu_s or 0.0, predicted_quality=predicted, measured_quality=training.quality,
        epochs=training.config.epochs, epoch_quality=_epoch_quality(training, start),
    )  # fmt: skip
    return (*profiled, done)


def _clipped(quality: float) -> float:
    return min(1.0, max(0.0, quality))


def _epoch_quality(training: _Training, start: float) -> tuple[float, ...]:
    if training.quality is None or not training.epochs:
        return ()
    points = {0: start} | training.epochs | {training.config.epochs: training.quality}
    return quality_along(tuple(points.items()), training.config.epochs)
