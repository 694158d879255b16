"""A finished evaluation is a trace; the same engine runs over it without any model. Also the authors' recorded micro-profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import ConfigError
from edge.evaluate.run import PolicyResult
from edge.evaluate.studio import Studio
from edge.evaluate.trace import trace_of
from scheduler.engine import EngineConfig
from scheduler.sim.trace_world import SimResult, engine_config, simulate
from scheduler.trace import Trace, TraceKnobs, TraceOption, TraceStream, TraceWindow, parse_trace, trace_of_ekya_table
from tests.support.evaluation import results_of, scripted_studio, scripted_videos

EKYA_TABLE = Path(__file__).resolve().parents[3] / "shared/data/traces/ekya_cityscapes_microprofiles.csv"
KNOBS = (TraceKnobs(name="every", demand_pct=20, quality_frac=1.0), TraceKnobs(name="1/2", demand_pct=10, quality_frac=0.8))
ENGINE = EngineConfig(capacity_pct=100, quantum_pct=5, min_quality=0.0, golden_gpu_s=0.1)
POLICIES = ("thief-repeat", "uniform(high,50)", "uniform(low,30)", "fixed-resources", "optimal", "no-retrain")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Studio, dict[str, PolicyResult], Trace]:
    studio = scripted_studio(scripted_videos(tmp_path_factory.mktemp("footage")))
    results = results_of(studio)
    return studio, results, trace_of(studio, list(results.values()))


def test_an_evaluation_becomes_a_trace_that_survives_writing(
    evaluated: tuple[Studio, dict[str, PolicyResult], Trace],
) -> None:
    studio, results, trace = evaluated
    assert parse_trace(trace.model_dump_json()) == trace
    assert trace.policy == "thief-repeat"
    assert [s.id for s in trace.streams] == ["cam0", "cam1", "cam2"]
    assert trace.windows == studio.options.windows
    for stream in trace.streams:
        assert [k.name for k in stream.knobs] == [k.name for k in studio.knobs(stream.id)]
        assert stream.windows[0].options == (), "there is nothing to learn from before the first window ends"
        assert {o.name for o in stream.windows[1].options} == {"long", "short"}
        assert (
            stream.windows[1].start_quality
            == stream.windows[1].base_quality
            == studio.window_f1(stream.id, 1, studio.base_version)
        )
    trained = results["thief-repeat"].record.trainings
    assert trained
    for training in trained:
        window = next(s for s in trace.streams if s.id == training.stream).windows[training.window]
        option = window.option(training.config)
        assert option is not None
        assert option.measured_quality == training.quality
        assert option.predicted_quality is not None


def test_measured_quality_is_taken_only_from_the_same_model_and_data(
    evaluated: tuple[Studio, dict[str, PolicyResult], Trace],
) -> None:
    """Window 1 begins everywhere with the first model, so what uniform measured there holds for the recorded run too."""
    _, results, trace = evaluated
    for training in results["uniform(high,50)"].record.trainings:
        option = next(s for s in trace.streams if s.id == training.stream).windows[training.window].option(training.config)
        if training.window == 1:
            assert option is not None
            assert option.measured_quality == training.quality


@pytest.mark.parametrize("policy", POLICIES)
def test_evaluate_then_simulate(evaluated: tuple[Studio, dict[str, PolicyResult], Trace], policy: str) -> None:
    studio, _, trace = evaluated
    config = studio.options.engine
    result = simulate(trace, policy, config)
    assert result == simulate(trace, policy, config), "the simulator is deterministic"
    assert 0 < result.mean_quality < 1
    assert set(result.streams) == {"cam0", "cam1", "cam2"}
    assert all(len(q) == trace.windows and all(0 <= x <= 1 for x in q) for q in result.quality.values())
    assert result.admitted <= result.retrainings


def test_the_simulation_ranks_as_the_evaluation_did(evaluated: tuple[Studio, dict[str, PolicyResult], Trace]) -> None:
    studio, results, trace = evaluated
    simulated = {p: simulate(trace, p, studio.options.engine) for p in results}
    assert simulated["no-retrain"].gpu_s == 0
    assert simulated["no-retrain"].mean_quality == pytest.approx(results["no-retrain"].mean_f1, abs=0.06)
    assert simulated["thief-repeat"].mean_quality == pytest.approx(results["thief-repeat"].mean_f1, abs=0.1)
    assert simulated["thief-repeat"].mean_quality > simulated["no-retrain"].mean_quality + 0.05
    assert simulated["thief-repeat"].retrainings > 0


# --- small traces by hand ---------------------------------------------------------------------------------------------


def window(number: int, base: float, *options: TraceOption, start: float | None = None) -> TraceWindow:
    return TraceWindow(
        window=number, base_quality=base, start_quality=base if start is None else start, labels=10, options=options
    )


def option(name: str, predicted: float, cost_gpu_s: float = 10.0, measured: float | None = None) -> TraceOption:
    return TraceOption(name=name, cost_gpu_s=cost_gpu_s, predicted_quality=predicted, measured_quality=measured)


def one_stream(*windows: TraceWindow) -> Trace:
    return Trace(
        source="by hand", window_s=100.0, golden_gpu_s=0.1, streams=(TraceStream(id="a", knobs=KNOBS, windows=windows),)
    )


def run(trace: Trace, policy: str = "thief-repeat", config: EngineConfig = ENGINE) -> SimResult:
    return simulate(trace, policy, config)


def test_without_retraining_the_base_quality_is_shown() -> None:
    trace = one_stream(window(0, 0.6), window(1, 0.5, option("x", 0.8), start=0.8), window(2, 0.4, start=0.7))
    assert run(trace, "no-retrain").quality["a"] == pytest.approx([0.6, 0.5, 0.4])


def test_a_retraining_lifts_its_own_window_and_the_recorded_line_goes_on_from_there() -> None:
    trace = one_stream(window(0, 0.6), window(1, 0.5, option("x", 0.8, measured=0.9)), window(2, 0.4, start=0.7))
    result = run(trace)
    assert (result.retrainings, result.admitted) == (1, 1)
    _, second, third = result.quality["a"]
    assert 0.5 < second < 0.9
    assert third == pytest.approx(0.7)


def test_a_prediction_that_proves_wrong_is_refused_by_the_gate() -> None:
    trace = one_stream(window(0, 0.6), window(1, 0.5, option("x", 0.9, measured=0.3)), window(2, 0.4, start=0.7))
    result = run(trace)
    assert (result.retrainings, result.admitted) == (1, 0)
    assert result.quality["a"][2] == pytest.approx(0.4)


def test_an_option_that_costs_more_than_the_window_is_left_alone() -> None:
    trace = one_stream(window(0, 0.6), window(1, 0.5, option("x", 0.9, cost_gpu_s=500)), window(2, 0.4))
    assert run(trace).retrainings == 0


def test_a_share_that_cannot_carry_the_knobs_shows_less() -> None:
    trace = one_stream(window(0, 0.8), window(1, 0.8))
    full = run(trace, "no-retrain").mean_quality
    tight = run(trace, "no-retrain", replace(ENGINE, capacity_pct=10)).mean_quality
    paused = run(trace, "no-retrain", replace(ENGINE, capacity_pct=5)).mean_quality
    assert (full, tight, paused) == (pytest.approx(0.8), pytest.approx(0.8 * 0.8), 0.0)


def test_every_recorded_option_is_a_family_of_its_own() -> None:
    trace = one_stream(window(0, 0.6), window(1, 0.5, option("x", 0.6), option("y", 0.7, cost_gpu_s=30)))
    config = engine_config(trace, ENGINE)
    assert [c.name for c in config.retrain] == ["x", "y"]
    assert len({c.lr for c in config.retrain}) == 2
    assert {o.name: o.cost_gpu_s for o in config.reference} == {"x": 10.0, "y": 30.0}


# --- the format -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"version": 2}, "version"),
        ({"window_s": 0}, "window_s"),
        ({"streams": []}, "streams"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_trace_names_its_field(change: dict[str, object], path: str) -> None:
    body = json.loads(one_stream(window(0, 0.6)).model_dump_json()) | change
    with pytest.raises(ConfigError) as caught:
        parse_trace(json.dumps(body), "trace.json")
    assert [p for p, _ in caught.value.problems] == [path]


def test_windows_and_streams_must_be_consistent() -> None:
    good = TraceStream(id="a", knobs=KNOBS, windows=(window(0, 0.5), window(1, 0.5)))
    for bad in (
        (good, good),
        (TraceStream(id="a", knobs=KNOBS, windows=(window(1, 0.5),)),),
        (good, TraceStream(id="b", knobs=KNOBS, windows=(window(0, 0.5),))),
    ):
        with pytest.raises(ValueError, match=r"same id|count 0|same number"):
            Trace(source="x", window_s=1.0, streams=bad)


# --- the authors' table -----------------------------------------------------------------------------------------------

HEADER = (
    "city,task_id,hp_id,epochs,accuracy_pred,accuracy_actual,default_inference_acc_actual,default_inference_acc_pred,"
    "runtime_actual,microprofile_time_taken"
)


def test_a_small_table_in_the_authors_columns() -> None:
    rows = ["a,4,0,5,0.9,0.8,0.5,0.55,4.0,9.0", "a,4,0,15,0.95,0.7,0.5,0.55,12.0,9.0", "a,7,0,5,1.2,0.6,0.4,0.45,4.0,8.0"]
    rows += ["b,1,0,5,0.9,0.8,0.5,0.55,4.0,9.0"]
    trace = trace_of_ekya_table([HEADER, *rows], knobs=KNOBS, windows=2)
    assert [s.id for s in trace.streams] == ["a"], "b has one window only"
    first, second, third = trace.streams[0].windows
    assert (first.base_quality, first.options) == (0.5, ())
    assert [o.name for o in second.options] == ["hp0-e5", "hp0-e15"]
    assert (second.predicted_start_quality, second.options[1].measured_quality) == (0.55, 0.7)
    assert third.options[0].predicted_quality == 1.0, "clipped"


def test_a_table_that_is_none() -> None:
    with pytest.raises(ConfigError, match="no column"):
        trace_of_ekya_table(["city,epochs", "a,5"], knobs=KNOBS, windows=1)
    with pytest.raises(ConfigError, match="line 2"):
        trace_of_ekya_table([HEADER, "a,1,0,5,high,0.8,0.5,0.55,4.0,9.0"], knobs=KNOBS, windows=1)
    with pytest.raises(ConfigError, match="no city with 3 windows"):
        trace_of_ekya_table([HEADER, "a,1,0,5,0.9,0.8,0.5,0.55,4.0,9.0"], knobs=KNOBS, windows=3)


@pytest.mark.data
@pytest.mark.skipif(not EKYA_TABLE.exists(), reason="needs the authors' table in ../shared/data/traces")
def test_the_authors_micro_profiles_under_one_contended_gpu() -> None:
    with EKYA_TABLE.open(encoding="utf-8") as lines:
        trace = trace_of_ekya_table(lines, knobs=KNOBS, windows=2)
    assert len(trace.streams) >= 10
    trace = trace.model_copy(update={"streams": trace.streams[:6]})
    # Their micro-profiling took 15 s a camera on a GPU of its own: without a long preparation nothing would be known in time.
    config = replace(ENGINE, prep_pct=80, prep_max_frac=0.6)
    results = {p: run(trace, p, config) for p in ("thief-repeat", "no-retrain", "uniform(high,50)", "uniform(low,50)")}
    assert results["thief-repeat"].admitted > 0
    assert results["thief-repeat"].mean_quality > results["uniform(high,50)"].mean_quality


def test_options_of_a_family_learn_from_each_other() -> None:
    """A recorded option has a trial of its own; which ones are kin, the trace says."""
    kin = option("long-a", 0.7).model_copy(update={"family": "a"})
    trace = one_stream(window(0, 0.5), window(1, 0.5, kin, option("short", 0.6)))
    assert dict(engine_config(trace, ENGINE).families) == {"long-a": "a", "short": "short"}
