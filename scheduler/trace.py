"""A trace: what a window of every stream would have offered and cost, recorded once, replayed by `scheduler.sim` without any model.

Three sources: a finished `driftbox evaluate` (`edge.evaluate.trace`), the journal of a box (`edge.simulate.from_journal`), and the
table of the authors' micro-profiles (`trace_of_ekya_table`). Format: JSON, this schema, `version` 1 (docs/traces.md); a reader
refuses unknown fields and versions. Qualities are 0-1, costs GPU-seconds at 100 pct. Predicted is what the box believed, measured
is what came true on frames that the box never saw; a quality that nobody measured is null.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from configs.errors import ConfigError
from scheduler.curves import fit_curve

VERSION = 1
Quality = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TraceKnobs(_Strict):
    """An inference configuration; the fields of `scheduler.types.KnobProfile`."""

    name: str
    demand_pct: NotNegative
    quality_frac: Quality
    fps: NotNegative = 0.0
    height_px: Annotated[int, Field(ge=0)] = 0
    memory_mib: NotNegative = 0.0


class TraceOption(_Strict):
    """A retraining that was open to a stream in a window. family: what options have in common that differ only in epochs, '' alone.
    init_gpu_s: of cost_gpu_s, what is spent before the first epoch.
    epoch_quality: measured quality after each of its `epochs`, the last one being its end; empty when nobody knows the way."""

    name: str
    cost_gpu_s: NotNegative
    predicted_quality: Quality | None = None
    measured_quality: Quality | None = None
    epochs: Annotated[int, Field(ge=1)] | None = None
    init_gpu_s: NotNegative = 0.0
    epoch_quality: tuple[Quality, ...] = ()
    memory_mib: NotNegative = 0.0
    family: str = ""

    @model_validator(mode="after")
    def _one_quality_per_epoch(self) -> TraceOption:
        if self.epoch_quality and len(self.epoch_quality) != self.epochs:
            raise ValueError(f"option {self.name}: {len(self.epoch_quality)} epoch qualities for {self.epochs} epochs")
        if self.init_gpu_s > self.cost_gpu_s:
            raise ValueError(f"option {self.name}: init_gpu_s is part of cost_gpu_s and cannot be more")
        return self

    @property
    def quality(self) -> float | None:
        """What it would have come to: measured, else predicted."""
        return self.measured_quality if self.measured_quality is not None else self.predicted_quality


class TraceWindow(_Strict):
    """base_quality: of the model that was never retrained, on this window; start_quality: of the model that served when the window
    opened; predicted_start_quality: what the box believed of that one; labels: golden labels made (train + held out)."""

    window: Annotated[int, Field(ge=0)]
    base_quality: Quality
    start_quality: Quality
    predicted_start_quality: Quality | None = None
    labels: Annotated[int, Field(ge=0)] = 0
    profile_gpu_s: NotNegative = 0.0
    options: tuple[TraceOption, ...] = ()

    def option(self, name: str) -> TraceOption | None:
        return next((o for o in self.options if o.name == name), None)


class TraceStream(_Strict):
    id: str
    knobs: Annotated[tuple[TraceKnobs, ...], Field(min_length=1)]
    windows: tuple[TraceWindow, ...]


class Trace(_Strict):
    """policy: the run that the windows are taken from, '' for tables without one. golden_gpu_s: one golden label."""

    version: Literal[1] = 1
    source: str
    policy: str = ""
    window_s: Annotated[float, Field(gt=0)]
    golden_gpu_s: NotNegative = 0.0
    streams: Annotated[tuple[TraceStream, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Trace:
        ids = [s.id for s in self.streams]
        if len(set(ids)) != len(ids):
            raise ValueError("two streams have the same id")
        for stream in self.streams:
            if [w.window for w in stream.windows] != list(range(len(stream.windows))):
                raise ValueError(f"stream {stream.id}: windows must count 0, 1, 2, ... in order")
        if len({len(s.windows) for s in self.streams}) != 1:
            raise ValueError("all streams need the same number of windows")
        return self

    @property
    def windows(self) -> int:
        return len(self.streams[0].windows)

    def option_names(self) -> tuple[str, ...]:
        """Names of all options, in order of first appearance."""
        return tuple(dict.fromkeys(o.name for s in self.streams for w in s.windows for o in w.options))


def parse_trace(text: str, subject: str = "trace") -> Trace:
    """Raises ConfigError naming every wrong field."""
    try:
        return Trace.model_validate_json(text)
    except ValidationError as error:
        problems = tuple((".".join(map(str, d["loc"])) or "trace", d["msg"]) for d in error.errors())
        listed = "; ".join(f"{path}: {what}" for path, what in problems[:5])
        raise ConfigError(
            f"{subject} is not a trace: {listed}", problems=problems, subject=subject,
            remedy=f"write one with `driftbox evaluate --trace` (format version {VERSION})",
        ) from error  # fmt: skip


#: Columns of the authors' table that are used; `runtime_inittime_actual` too, where it is there.
_EKYA_COLUMNS = (
    "city", "task_id", "hp_id", "epochs", "accuracy_pred", "accuracy_actual", "default_inference_acc_actual",
    "default_inference_acc_pred", "runtime_actual", "microprofile_time_taken",
)  # fmt: skip


def trace_of_ekya_table(
    lines: Iterable[str],
    *,
    knobs: tuple[TraceKnobs, ...],
    windows: int,
    window_s: float = 200.0,
    go_round: bool = False,
    subject: str = "table",
) -> Trace:
    """The authors' Cityscapes micro-profiles (CSV, one row per city, window, configuration and epochs) as a trace.

    knobs: the same for every stream; the table has none. Cities with fewer recorded windows than `windows` are left out, or, with
    `go_round`, begin again with their first one when they have come to their last, as often as needed, order kept.
    Window 0 of a stream repeats its first recorded one without options, because a box has nothing to learn from before its first
    window ends. Rows that differ in epochs only are points of one training (`quality_along`).
    Every retraining in the table starts from the pre-trained model, so base and start quality are the same.
    Raises ConfigError for missing columns, a number that is none, or no city with enough windows.
    """
    reader = csv.DictReader(lines)
    missing = [c for c in _EKYA_COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"{subject} has no column {', '.join(missing)}", subject=subject, remedy="give the authors' table")
    cities: dict[str, dict[int, list[dict[str, str]]]] = {}
    try:
        for row in reader:
            cities.setdefault(row["city"], {}).setdefault(int(row["task_id"]), []).append(row)
        streams = tuple(
            TraceStream(id=city, knobs=knobs, windows=_ekya_windows(tasks, windows))
            for city, tasks in sorted(cities.items())
            if go_round or len(tasks) >= windows
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{subject}, line {reader.line_num}: {error}", subject=subject, remedy="correct the table") from error
    if not streams:
        raise ConfigError(f"{subject} has no city with {windows} windows", subject=subject, remedy="ask for fewer windows")
    return Trace(source=f"Ekya micro-profiles, {subject}", window_s=window_s, streams=streams)


def _ekya_windows(tasks: dict[int, list[dict[str, str]]], windows: int) -> tuple[TraceWindow, ...]:
    recorded = [_ekya_window(tasks[task]) for task in sorted(tasks)[:windows]]
    first = recorded[0].model_copy(update={"options": (), "profile_gpu_s": 0.0})
    around = [recorded[number % len(recorded)].model_copy(update={"window": number + 1}) for number in range(windows)]
    return (first, *around)


def _ekya_window(rows: list[dict[str, str]]) -> TraceWindow:
    start = float(rows[0]["default_inference_acc_actual"])
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        points.setdefault(row["hp_id"], [(0, start)]).append((int(row["epochs"]), float(row["accuracy_actual"])))
    return TraceWindow(
        window=0, base_quality=start, start_quality=start,
        predicted_start_quality=float(rows[0]["default_inference_acc_pred"]),
        profile_gpu_s=float(rows[0]["microprofile_time_taken"]),
        options=tuple(_ekya_option(row, points[row["hp_id"]]) for row in rows),
    )  # fmt: skip


def _ekya_option(row: dict[str, str], points: list[tuple[int, float]]) -> TraceOption:
    epochs, cost_gpu_s = int(row["epochs"]), float(row["runtime_actual"])
    return TraceOption(
        name=f"hp{row['hp_id']}-e{epochs}", cost_gpu_s=cost_gpu_s, epochs=epochs,
        predicted_quality=min(1.0, max(0.0, float(row["accuracy_pred"]))),
        measured_quality=float(row["accuracy_actual"]),
        init_gpu_s=min(cost_gpu_s, float(row.get("runtime_inittime_actual") or 0.0)),
        epoch_quality=quality_along(points, epochs), family=f"hp{row['hp_id']}",
    )  # fmt: skip


def quality_along(points: Sequence[tuple[int, float]], epochs: int) -> tuple[float, ...]:
    """Quality after epochs 1, 2, ..., `epochs` of a training of which some (epoch, quality) points are known, one at epoch 0.

    The learning curve fitted to all points, moved to pass through each of them (what it misses is linear in between): trainings rise
    steeply first, so straight lines between far points would promise too much to whoever extrapolates them.
    """
    known = sorted(points)
    curve = fit_curve([k for k, _ in known], [q for _, q in known])
    missed = [q - curve.at(k) for k, q in known]
    asked = range(1, epochs + 1)
    moved = np.interp(asked, [k for k, _ in known], missed)
    measured = dict(known)
    return tuple(measured.get(k, min(1.0, max(0.0, curve.at(k) + float(m)))) for k, m in zip(asked, moved, strict=True))


def sampling_of_ekya_table(
    lines: Iterable[str], *, camera: str = "c1", subject: str = "table"
) -> tuple[tuple[int, float], ...]:
    """The authors' sub-sampling table (CSV `subsampling,c1,...,c5`): (k, what is left of the accuracy when one of k frames is
    analysed) of one camera. Raises ConfigError for a missing column or a number that is none."""
    reader = csv.DictReader(lines)
    missing = [c for c in ("subsampling", camera) if c not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"{subject} has no column {', '.join(missing)}", subject=subject, remedy="give the authors' table")
    try:
        return tuple((int(row["subsampling"]), float(row[camera])) for row in reader)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{subject}, line {reader.line_num}: {error}", subject=subject, remedy="correct the table") from error
