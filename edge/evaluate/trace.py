"""A finished evaluation as a trace (`scheduler.trace`), so that the simulator can ask "what if" without any model."""

from __future__ import annotations

from collections.abc import Sequence

from edge.evaluate.run import PolicyResult, needs_profiles
from edge.evaluate.studio import Studio
from scheduler.ekya import microprofile
from scheduler.trace import Trace, TraceKnobs, TraceOption, TraceStream, TraceWindow


def trace_of(studio: Studio, results: Sequence[PolicyResult]) -> Trace:
    """Windows as the run of the first policy that profiles saw them (else of the first one): its serving models, its options.
    An option counts as measured when that run, or another one from the same model on the same data, carried it out."""
    result = next((r for r in results if needs_profiles(r.policy)), results[0])
    measured = {
        (t.stream, t.window, t.parent, t.config): t.quality for r in [*reversed(results), result] for t in r.record.trainings
    }
    streams = tuple(
        TraceStream(
            id=stream,
            knobs=tuple(
                TraceKnobs(name=k.name, demand_pct=k.demand_pct, quality_frac=k.quality_frac, fps=k.fps)
                for k in studio.knobs(stream)
            ),
            windows=tuple(_window(studio, result, stream, w, measured) for w in range(studio.options.windows)),
        )
        for stream in sorted(studio.footage)
    )
    return Trace(
        source="driftbox evaluate", policy=result.policy, window_s=studio.options.window_s,
        golden_gpu_s=studio.costs.golden_gpu_s, streams=streams,
    )  # fmt: skip


def _window(
    studio: Studio, result: PolicyResult, stream: str, window: int, measured: dict[tuple[str, int, str, str], float]
) -> TraceWindow:
    serving = result.record.opened_with.get((stream, window), studio.base_version)
    profiled = result.profiled.get((stream, window))
    trials, n_train, lend = (profiled.trials, profiled.n_train, profiled.lend) if profiled else ((), 0, False)
    costs, configs = studio.costs, studio.options.engine.retrain
    predicted = {o.name: o.end_quality for o in microprofile.options(trials, configs, n_train=n_train, lend=lend)}
    known = {c.name: measured[key] for c in configs if (key := (stream, window, serving, c.name)) in measured}
    options = tuple(
        TraceOption(
            name=c.name, cost_gpu_s=costs.retrain_gpu_s(c, n_train or 1), predicted_quality=predicted.get(c.name),
            measured_quality=known.get(c.name), epochs=c.epochs,
        )
        for c in configs
        if c.name in predicted or c.name in known
    )  # fmt: skip
    return TraceWindow(
        window=window, base_quality=studio.window_f1(stream, window, studio.base_version),
        start_quality=studio.window_f1(stream, window, serving),
        predicted_start_quality=result.record.labelled.get((stream, window)),
        labels=studio.options.candidates, profile_gpu_s=profiled.gpu_s if profiled else 0.0, options=options,
    )  # fmt: skip
