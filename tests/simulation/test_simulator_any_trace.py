"""Whatever valid trace and setting it is given, the simulator comes to an end with qualities between 0 and 1, the same each time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.simulate import link
from edge.simulate.sweep import Setting, run_policy
from scheduler.trace import Trace, TraceKnobs, TraceOption, TraceStream, TraceWindow, parse_trace

POLICIES = (
    "thief", "thief-repeat", "thief-thorough", "optimal", "lookahead", "fair", "fixed-resources", "fixed-config", "uniform(high,30)",
    "uniform(c0,90)", "uniform(nowhere,50)", "no-retrain", "cloud", "cached(classes)",
)  # fmt: skip
quality = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
cost = st.one_of(st.sampled_from([0.0, 1e-9, 1e6]), st.floats(0, 60))


@st.composite
def options(draw: st.DrawFn, name: str) -> TraceOption:
    epochs = draw(st.one_of(st.none(), st.integers(1, 4)))
    total = draw(cost)
    return TraceOption(
        name=name, cost_gpu_s=total, predicted_quality=draw(st.one_of(st.none(), quality)),
        measured_quality=draw(st.one_of(st.none(), quality)), epochs=epochs, init_gpu_s=total * draw(st.sampled_from([0.0, 0.3, 1.0])),
        epoch_quality=tuple(draw(quality) for _ in range(epochs or 0)) if draw(st.booleans()) else (),
    )  # fmt: skip


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    windows = draw(st.integers(1, 3))
    names = [f"c{n}" for n in range(draw(st.integers(0, 3)))]

    def window(number: int) -> TraceWindow:
        offered = [n for n in names if number and draw(st.booleans())]
        return TraceWindow(
            window=number, base_quality=draw(quality), start_quality=draw(quality),
            predicted_start_quality=draw(st.one_of(st.none(), quality)), labels=draw(st.integers(0, 20)),
            profile_gpu_s=draw(cost), options=tuple(draw(options(n)) for n in offered),
        )  # fmt: skip

    def stream(number: int) -> TraceStream:
        demands = draw(st.lists(st.one_of(st.just(0.0), st.floats(0, 150)), min_size=1, max_size=3))
        knobs = tuple(TraceKnobs(name=f"k{n}", demand_pct=d, quality_frac=draw(quality)) for n, d in enumerate(demands))
        return TraceStream(id=f"s{number}", knobs=knobs, windows=tuple(window(n) for n in range(windows)))

    return Trace(
        source="by chance", window_s=draw(st.sampled_from([1.0, 60.0, 200.0])), golden_gpu_s=draw(st.sampled_from([0.0, 0.1, 50.0])),
        streams=tuple(stream(n) for n in range(draw(st.integers(1, 3)))),
    )  # fmt: skip


situations = st.builds(
    Setting,
    gpus=st.sampled_from([0.05, 0.5, 1.0, 2.5]),
    quantum=st.sampled_from([1, 5, 30, 100]),
    noise=st.sampled_from([0.0, 0.4]),
    profiles=st.sampled_from(["true", "predicted"]),
    estimate=st.sampled_from(["static", "hand-back"]),
    min_quality=st.sampled_from([0.0, 0.4, 1.0]),
    overhead_s=st.sampled_from([None, 0.0, 2.0, 500.0]),
    devices=st.booleans(),
    calibrate=st.sampled_from([None, True]),
    react=st.sampled_from([None, True]),
    slaq=st.sampled_from([None, "sum", "minmax", "finish"]),
    network=st.sampled_from([None, link(50.0, 50.0, 100.0, 100.0), link(1e-3, 1e-3, 0.0, 400.0)]),
    seed=st.integers(0, 3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(trace=traces(), setting=situations, policy=st.sampled_from(POLICIES))
def test_any_valid_trace_in_any_setting(trace: Trace, setting: Setting, policy: str) -> None:
    result = run_policy(trace, policy, setting)
    assert all(0 <= q <= 1 + 1e-9 for each in result.quality.values() for q in each)
    assert all(len(each) == trace.windows for each in result.quality.values())
    assert 0 <= result.mean_quality <= 1 + 1e-9
    assert 0 <= result.admitted <= result.retrainings
    assert result.gpu_s <= setting.gpus * trace.window_s * trace.windows + 1e-6
    assert result == run_policy(trace, policy, setting)


def test_a_retraining_that_costs_nothing_teaches_nothing_and_stops_nothing() -> None:
    free = TraceOption(name="c", cost_gpu_s=0.0, predicted_quality=0.8, measured_quality=0.7)
    knobs = (TraceKnobs(name="every", demand_pct=20, quality_frac=1.0),)
    windows = tuple(TraceWindow(window=n, base_quality=0.5, start_quality=0.5, options=(free,) if n else ()) for n in range(4))
    trace = Trace(source="x", window_s=100.0, streams=(TraceStream(id="a", knobs=knobs, windows=windows),))
    assert run_policy(trace, "thief-repeat", Setting(calibrate=True)).admitted == 3


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(trace=traces())
def test_any_valid_trace_survives_writing(trace: Trace) -> None:
    assert parse_trace(trace.model_dump_json()) == trace


@pytest.mark.parametrize("policy", POLICIES)
def test_one_camera_without_a_single_option(policy: str) -> None:
    knobs = (TraceKnobs(name="every", demand_pct=20, quality_frac=1.0),)
    window = TraceWindow(window=0, base_quality=0.6, start_quality=0.6)
    trace = Trace(source="x", window_s=100.0, streams=(TraceStream(id="a", knobs=knobs, windows=(window,)),))
    result = run_policy(trace, policy, Setting(min_quality=0.0, overhead_s=2.0))
    assert result.retrainings == 0
    assert result.mean_quality == pytest.approx(0.6)
