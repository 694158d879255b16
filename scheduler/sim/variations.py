"""What-ifs on a trace: fewer streams, fewer windows, other window lengths, other beliefs. Each takes a trace and gives a new one.

    prefix        k streams are always the first k of one shuffled order, so that a study over streams adds cameras and never swaps
    believing     what policies are told (predictions); what comes true stays as recorded
    first_windows, with_window_s

Chance is seeded per stream, so a stream's noise does not depend on how many others or how many windows there are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from configs.errors import UsageError
from scheduler.ekya.baselines import front_names
from scheduler.trace import Trace, TraceOption, TraceStream, TraceWindow
from scheduler.types import Observation, RetrainOption

Profiles = Literal["true", "predicted"]


def shuffled(ids: Sequence[str], seed: int) -> tuple[str, ...]:
    """The one order of a seed."""
    order = np.random.default_rng([seed, len(ids)]).permutation(len(ids))
    names = sorted(ids)
    return tuple(names[i] for i in order)


def prefix(trace: Trace, streams: int, seed: int = 0) -> Trace:
    """The first `streams` streams of the seed's order. Raises UsageError when the trace has fewer, or for none."""
    if not 1 <= streams <= len(trace.streams):
        raise UsageError(
            f"streams: the trace has {len(trace.streams)}, asked for {streams}", subject="streams",
            remedy=f"take 1 to {len(trace.streams)}",
        )  # fmt: skip
    by_id = {s.id: s for s in trace.streams}
    return trace.model_copy(update={"streams": tuple(by_id[s] for s in shuffled(tuple(by_id), seed)[:streams])})


def first_windows(trace: Trace, windows: int) -> Trace:
    """Window 0 and `windows` windows after it. Raises UsageError when the trace has fewer, or for none."""
    if not 1 <= windows < trace.windows:
        raise UsageError(
            f"windows: the trace has {trace.windows - 1} after the first, asked for {windows}", subject="windows",
            remedy=f"take 1 to {trace.windows - 1}" if trace.windows > 1 else "record a longer trace",
        )  # fmt: skip
    cut = tuple(s.model_copy(update={"windows": s.windows[: windows + 1]}) for s in trace.streams)
    return trace.model_copy(update={"streams": cut})


def with_window_s(trace: Trace, window_s: float) -> Trace:
    """The same offers in windows of another length: costs and qualities stay, the time for them changes."""
    return trace.model_copy(update={"window_s": window_s})


def believing(trace: Trace, profiles: Profiles, noise_frac: float = 0.0, seed: int = 0) -> Trace:
    """The trace with other beliefs. "predicted": as recorded; "true": the box foresees what will be measured (start quality too).
    noise_frac: standard deviation (quality, 0-1) of Gaussian noise on every predicted end quality, clipped to 0-1 (Ekya figure
    2.11b). Costs are not touched. An option that nobody measured keeps its prediction."""
    return trace.model_copy(update={"streams": tuple(_stream_believing(s, profiles, noise_frac, seed) for s in trace.streams)})


def _stream_believing(stream: TraceStream, profiles: Profiles, noise_frac: float, seed: int) -> TraceStream:
    rng = np.random.default_rng([seed, zlib.crc32(stream.id.encode())])
    windows = tuple(_window_believing(w, profiles, noise_frac, rng) for w in stream.windows)
    return stream.model_copy(update={"windows": windows})


def _window_believing(window: TraceWindow, profiles: Profiles, noise_frac: float, rng: np.random.Generator) -> TraceWindow:
    noise = rng.normal(0.0, 1.0, len(window.options)) * noise_frac
    options = tuple(
        option.model_copy(update={"predicted_quality": _noisy(_belief(option, profiles), float(error))})
        for option, error in zip(window.options, noise, strict=True)
    )
    start = window.start_quality if profiles == "true" else window.predicted_start_quality
    return window.model_copy(update={"options": options, "predicted_start_quality": start})


def _belief(option: TraceOption, profiles: Profiles) -> float | None:
    if profiles == "true" or option.predicted_quality is None:
        return option.quality
    return option.predicted_quality


def _noisy(quality: float | None, error: float) -> float | None:
    return None if quality is None else min(1.0, max(0.0, quality + error))


def experience(streams: Sequence[TraceStream]) -> tuple[Observation, ...]:
    """What a profiler's predictions came to on hold-out streams, as calibration is told of it: every option of every different window
    that was both predicted and measured. A gain is measured from the true start, and put on top of the start that was labelled."""
    seen: list[Observation] = []
    for stream in streams:
        offers = dict.fromkeys((w.start_quality, w.predicted_start_quality, w.options) for w in stream.windows if w.options)
        for number, (start, labelled, options) in enumerate(offers):
            believed = start if labelled is None else labelled
            seen += [_observed(stream.id, number - len(offers), o, believed, start) for o in options if _is_both(o)]
    return tuple(seen)


def _is_both(option: TraceOption) -> bool:
    return option.predicted_quality is not None and option.measured_quality is not None and option.cost_gpu_s > 0


def _observed(stream: str, window: int, option: TraceOption, believed: float, start: float) -> Observation:
    assert option.predicted_quality is not None
    assert option.measured_quality is not None
    return Observation(
        stream=stream, window=window, option=option.name, start_quality=believed, predicted_quality=option.predicted_quality,
        realised_quality=believed + option.measured_quality - start, serving_quality=start,
        predicted_gpu_s=option.cost_gpu_s, realised_gpu_s=option.cost_gpu_s,
    )  # fmt: skip


def fixed_configs(streams: Sequence[TraceStream], most_gpu_s: float = math.inf) -> dict[str, str]:
    """The paper's Cfg 1 ("high") and Cfg 2 ("low"): the dear and the cheap end of the Pareto front that hold-out streams measured.

    An option counts with its mean over the windows that offered it; one that costs more than `most_gpu_s` on any of them is left
    out. Empty when no option is known on all of `streams`.
    """
    profiles = [tuple(o for o in _mean_options(s) if o.cost_gpu_s <= most_gpu_s) for s in streams]
    try:
        high, low = front_names(profiles)
    except ValueError:
        return {}
    return {"high": high, "low": low}


def _mean_options(stream: TraceStream) -> tuple[RetrainOption, ...]:
    offers: dict[str, list[tuple[float, float]]] = {}
    for option in (o for w in stream.windows for o in w.options):
        if option.quality is not None:
            offers.setdefault(option.name, []).append((option.quality, option.cost_gpu_s))
    return tuple(
        RetrainOption(
            name=name, end_quality=float(np.mean([q for q, _ in seen])), cost_gpu_s=float(np.mean([c for _, c in seen]))
        )
        for name, seen in offers.items()
    )
