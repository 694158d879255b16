"""The simulator's contract: same seed same run, truth apart from belief, more streams never swap streams, costs that stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.simulate.sweep import Setting, engine_config_of, run_policy, varied
from scheduler.codec import encode
from scheduler.commands import ReportPlan, SetShares, StartRetraining
from scheduler.events import EpochDone, GateDone, LabelDone, ProfileDone, RetrainDone, SwapDone
from scheduler.sim.driver import VirtualDriver
from scheduler.sim.trace_world import TraceWorld, engine_config, simulate, virtual_box
from scheduler.sim.variations import believing
from scheduler.trace import Trace
from tests.support.traces import one_stream, option, random_trace, window

POLICIES = ("thief-repeat", "thief", "optimal", "uniform(low,50)", "fixed-resources", "no-retrain")
SETTING = Setting(min_quality=0.0, overhead_s=2.0)
CONFIG = engine_config_of(SETTING)


def ran(trace: Trace, policy: str = "thief-repeat", setting: Setting = SETTING) -> tuple[VirtualDriver, TraceWorld]:
    driver, world, events = virtual_box(varied(trace, setting), policy, engine_config_of(setting), setting.overhead_s)
    driver.run(events, trace.windows * trace.window_s)
    return driver, world


def events_of(driver: VirtualDriver, kind: type) -> list:
    return [event for event, _ in driver.log if isinstance(event, kind)]


# --- the same, again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run_to_the_byte(policy: str) -> None:
    setting = replace(SETTING, noise=0.2, seed=5)
    logs = [
        [encode(x) for event, commands in ran(random_trace(1), policy, setting)[0].log for x in (event, *commands)]
        for _ in range(2)
    ]
    assert logs[0] == logs[1]
    assert len(logs[0]) > 40


def test_another_seed_gives_another_run() -> None:
    runs = {run_policy(random_trace(1), "thief-repeat", replace(SETTING, noise=0.3, seed=n)).mean_quality for n in range(4)}
    assert len(runs) > 1


def test_the_order_of_streams_in_the_trace_does_not_matter() -> None:
    trace = random_trace(2)
    backwards = trace.model_copy(update={"streams": tuple(reversed(trace.streams))})
    assert simulate(trace, "thief-repeat", CONFIG) == simulate(backwards, "thief-repeat", CONFIG)


# --- truth and belief -------------------------------------------------------------------------------------------------


def test_what_policies_believe_never_changes_what_a_decision_is_worth() -> None:
    """A policy that believes nothing does the same under any belief, and comes to the same."""
    trace = random_trace(3, streams=3)
    for policy in ("no-retrain", "uniform(c1,50)"):
        plain, lied_to = (simulate(believing(trace, "predicted", n), policy, CONFIG) for n in (0.0, 0.5))
        assert plain == lied_to
        assert 0 < plain.mean_quality < 1


def test_wrong_beliefs_cost_quality() -> None:
    traces = [random_trace(n, streams=3, options=6) for n in range(6)]
    knowing = sum(run_policy(t, "optimal", replace(SETTING, profiles="true")).mean_quality for t in traces)
    guessing = sum(run_policy(t, "optimal", replace(SETTING, profiles="true", noise=0.5)).mean_quality for t in traces)
    assert guessing < knowing


def test_the_policy_is_told_the_prediction_and_the_gate_the_truth() -> None:
    trace = one_stream(window(0, 0.5), window(1, 0.5, option("x", 0.6, predicted=0.9)))
    driver, _ = ran(trace)
    (profile,) = events_of(driver, ProfileDone)
    assert [t.quality for t in profile.trials] == [(0.9,)]
    (gate,) = events_of(driver, GateDone)
    assert (gate.serving_quality, gate.candidate_quality) == (0.5, 0.6)


def test_recorded_predictions_reach_the_plan_exactly() -> None:
    """A recorded option is a family of its own, epochs and all, so no curve is fitted through what was recorded."""
    offers = (option("x5", 0.61, way=(0.55, 0.61)), option("x9", 0.737, 20, way=(0.5, 0.55, 0.737)))
    trace = one_stream(window(0, 0.5), window(1, 0.5, *offers))
    config = engine_config(trace, CONFIG)
    assert [(c.name, c.epochs) for c in config.retrain] == [("x5", 2), ("x9", 3)]
    driver, _ = ran(trace, setting=replace(SETTING, calibrate=False))
    reasons = " ".join(line for _, commands in driver.log for c in commands if isinstance(c, ReportPlan) for line in c.reasons)
    assert "(20.0 GPU-s), 0.500 -> 0.737" in reasons


def test_what_cannot_be_wrong_is_neither_corrected_nor_watched() -> None:
    exact = engine_config_of(replace(SETTING, profiles="true"))
    assert (exact.calibrate, exact.react) == (False, False)
    for unsure in (SETTING, replace(SETTING, profiles="true", noise=0.1)):
        config = engine_config_of(unsure)
        assert (config.calibrate, config.react) == (True, True)
    forced = engine_config_of(replace(SETTING, calibrate=False, react=False, prune=False, slaq="sum"))
    assert (forced.calibrate, forced.react, forced.prune_every, forced.slaq) == (False, False, 0, "sum")


# --- epochs on the way ------------------------------------------------------------------------------------------------


def test_epochs_report_the_recorded_way_at_the_recorded_pace() -> None:
    way = (0.6, 0.65, 0.7)
    costly = option("x", 0.7, 10.0, way=way).model_copy(update={"init_gpu_s": 1.0})
    driver, _ = ran(one_stream(window(0, 0.5), window(1, 0.5, costly)), setting=replace(SETTING, react=False))
    reports = [e.report for e in events_of(driver, EpochDone)]
    assert [(r.epoch, r.quality) for r in reports] == [(1, 0.6), (2, 0.65), (3, 0.7)]
    assert [r.gpu_s for r in reports] == pytest.approx([4, 7, 10])
    assert [r.loss for r in reports] == pytest.approx([0.4, 0.35, 0.3])
    (done,) = events_of(driver, RetrainDone)
    assert done.at_s == events_of(driver, EpochDone)[-1].at_s
    kinds = [type(e) for e, _ in driver.log if isinstance(e, EpochDone | RetrainDone)]
    assert kinds == [EpochDone, EpochDone, EpochDone, RetrainDone]


def test_a_job_measures_itself_on_the_labels_that_judged_its_start() -> None:
    """The labels said .58 of a model that is really at .5, so the same labels say .08 too much of every epoch; the gate is right."""
    late = window(1, 0.5, option("x", 0.7, way=(0.6, 0.7))).model_copy(update={"predicted_start_quality": 0.58})
    driver, _ = ran(one_stream(window(0, 0.5), late), setting=replace(SETTING, react=False, calibrate=False))
    assert events_of(driver, LabelDone)[0].quality == 0.58
    assert [e.report.quality for e in events_of(driver, EpochDone)] == pytest.approx([0.68, 0.78])
    (gate,) = events_of(driver, GateDone)
    assert (gate.serving_quality, gate.candidate_quality) == (0.5, 0.7)


def test_an_option_without_a_recorded_way_reports_nothing_on_it() -> None:
    driver, _ = ran(one_stream(window(0, 0.5), window(1, 0.5, option("x", 0.7))))
    assert events_of(driver, RetrainDone)
    assert not events_of(driver, EpochDone)


# --- preparation and the window's length ------------------------------------------------------------------------------


def test_overhead_takes_its_seconds_and_no_compute() -> None:
    trace = random_trace(4, streams=3)
    costly = trace.model_copy(update={"golden_gpu_s": 5.0})
    driver, _ = ran(costly, setting=replace(SETTING, overhead_s=3.0))
    first_plans = [e.at_s for e, cs in driver.log if e.at_s >= 100 for c in cs if isinstance(c, ReportPlan)]
    assert first_plans[0] == pytest.approx(103.0, abs=1e-4)
    assert {driver.used_gpu_s[kind] for kind in ("label", "profile", "gate")} == {0.0}
    assert len(events_of(driver, LabelDone)) == 3 * 4


def test_without_overhead_preparation_costs_what_was_recorded() -> None:
    busy = window(1, 0.5, option("x", 0.8)).model_copy(update={"profile_gpu_s": 7.0, "labels": 10})
    trace = one_stream(window(0, 0.5), busy).model_copy(update={"golden_gpu_s": 0.1})
    driver, _ = ran(trace, setting=replace(SETTING, overhead_s=None))
    assert driver.used_gpu_s["profile"] == pytest.approx(7.0)
    assert driver.used_gpu_s["label"] == pytest.approx(1.0)
    assert driver.used_gpu_s["gate"] == pytest.approx(CONFIG.gate_frames * 0.1)


def test_in_a_longer_window_the_same_retraining_costs_the_same_and_serves_longer() -> None:
    trace = one_stream(window(0, 0.5), window(1, 0.5, option("x", 0.8, 30.0)))
    spent, mean = [], []
    for window_s in (100.0, 200.0, 400.0):
        setting = replace(SETTING, window_s=window_s)
        driver, world = ran(varied(trace, setting), setting=setting)
        spent.append(driver.used_gpu_s["train"])
        mean.append(world.shown(2 * window_s)["a"][1])
    assert spent == pytest.approx([30.0] * 3)
    assert mean == sorted(mean)
    assert mean[0] < mean[2] - 0.02


def test_a_window_that_is_too_short_retrains_nothing() -> None:
    trace = one_stream(window(0, 0.5), window(1, 0.5, option("x", 0.8, 30.0)))
    assert run_policy(trace, "thief-repeat", replace(SETTING, window_s=20.0)).retrainings == 0


# --- devices and clouds -----------------------------------------------------------------------------------------------


def test_on_devices_no_small_share_lies_on_two_of_them() -> None:
    setting = replace(SETTING, gpus=2.0, devices=True)
    driver, _ = ran(random_trace(5, streams=4), setting=setting)
    plans = [c.plan for _, commands in driver.log for c in commands if isinstance(c, ReportPlan)]
    assert any(p.placement for p in plans)
    for plan in plans:
        for entry in plan.streams:
            for kind, share in (("infer", entry.infer_pct), ("train", entry.train_pct)):
                parts = [p for p in plan.placement if (p.stream, p.kind) == (entry.id, kind)]
                assert len(parts) <= 1 or share >= 100


def test_a_part_of_a_gpu_is_a_device_too() -> None:
    assert [g.capacity_pct for g in engine_config_of(replace(SETTING, gpus=2.5, devices=True)).gpus] == [100, 100, 50]
    assert engine_config_of(SETTING).gpus == ()


def test_models_come_back_from_a_cloud_when_both_transfers_are_over() -> None:
    from edge.simulate import link

    trace = random_trace(6, streams=2, windows=1)
    setting = replace(SETTING, network=link(10.0, 20.0, 100.0, 200.0))
    driver, _ = ran(trace, "cloud", setting)
    planned_s = next(e.at_s for e, cs in driver.log for c in cs if isinstance(c, StartRetraining))
    # two cameras: 2 * 100 / 10 + 2 * 200 / 20 seconds
    assert {round(e.at_s - planned_s, 6) for e in events_of(driver, RetrainDone)} == {40.0}
    assert driver.used_gpu_s["train"] == 0
    late = replace(SETTING, network=link(1.0, 20.0, 100.0, 200.0))
    assert run_policy(trace, "cloud", late).retrainings == 0
    assert run_policy(trace, "cloud", late).mean_quality == run_policy(trace, "no-retrain", SETTING).mean_quality


def test_a_model_that_the_trace_does_not_hold_cannot_serve() -> None:
    from scheduler.commands import SwapModel
    from scheduler.events import SwapFailed

    world = TraceWorld(random_trace())
    answer = world.swap(SwapModel(stream="s0", version="cached:3", quality=None), 10.0)
    assert isinstance(answer, SwapFailed)
    assert world.admitted == 0


# --- what people see --------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 50), policy=st.sampled_from(POLICIES))
def test_shown_quality_is_the_integral_of_model_times_knobs(seed: int, policy: str) -> None:
    """Against a second reading: a sum over the log, stretch by stretch."""
    trace = random_trace(seed, streams=2, windows=2)
    driver, world = ran(trace, policy)
    shown = world.shown(300.0)
    for stream in trace.streams:
        swaps = [(e.at_s, e.version) for e in events_of(driver, SwapDone) if e.stream == stream.id]
        gates = {e.candidate: e.candidate_quality for e in events_of(driver, GateDone)}
        shares = [
            (e.at_s, dict(c.shares_pct).get(f"{stream.id}/infer", 0.0))
            for e, commands in driver.log
            for c in commands
            if isinstance(c, SetShares)
        ]
        cuts = sorted({0.0, 100.0, 200.0, 300.0, *(at for at, _ in (*swaps, *shares))})
        total = [0.0, 0.0, 0.0]
        for start, stop in zip(cuts, cuts[1:], strict=False):
            number = int(start // 100)
            before = [(at, version) for at, version in swaps if at <= start]
            here = [gates[version] for at, version in before if at >= 100 * number]
            recorded = stream.windows[number]
            quality = here[-1] if here else recorded.start_quality if before else recorded.base_quality
            share = next(share for at, share in reversed(shares) if at <= start)
            carried = max((k.quality_frac for k in stream.knobs if k.demand_pct <= share + 1e-6), default=0.8 * share / 10)
            total[number] += (stop - start) * quality * carried
        assert shown[stream.id] == pytest.approx([t / 100 for t in total], abs=1e-6)


def test_every_policy_stays_between_nothing_and_the_best_model() -> None:
    trace = random_trace(7)
    most = max(o.measured_quality or 0.0 for s in trace.streams for w in s.windows for o in w.options)
    for policy in POLICIES:
        result = run_policy(trace, policy, SETTING)
        assert all(0 <= q <= most for each in result.quality.values() for q in each)
        assert result.admitted <= result.retrainings


def test_more_gpus_are_never_worse_for_the_exact_plan() -> None:
    trace = random_trace(8, streams=4, windows=3)
    known = replace(SETTING, profiles="true")
    means = [run_policy(trace, "optimal", replace(known, gpus=g)).mean_quality for g in (0.25, 0.5, 1.0, 2.0)]
    assert all(b >= a - 0.005 for a, b in zip(means, means[1:], strict=False))
    assert means[-1] > means[0] + 0.1
