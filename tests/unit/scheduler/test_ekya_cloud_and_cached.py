"""Models from elsewhere: a cloud behind a thin link, and the models that earlier windows left behind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scheduler.ekya.cached import RULES, class_distance, select
from scheduler.ekya.cloud import best_in_cloud, snapshot_arrival_s
from scheduler.registry import CACHED_FAMILY, expand, make_policy, needs
from scheduler.types import CachedModel, KnobProfile, Network, RetrainOption, Snapshot, StreamView, Traits

KNOBS = (KnobProfile(name="half", demand_pct=10, quality_frac=0.5), KnobProfile(name="full", demand_pct=25, quality_frac=1.0))
CELLULAR = Network(up_mbps=5.1, down_mbps=17.5, up_mb=160, down_mb=398)


def view(id: str = "a", quality: float = 0.5, *ends: float) -> StreamView:
    options = tuple(RetrainOption(name=f"c{n}", end_quality=end, cost_gpu_s=1000.0) for n, end in enumerate(ends))
    return StreamView(id=id, quality=quality, knobs=KNOBS, retrain=options)


def window(*streams: StreamView, network: Network | None = CELLULAR, window_s: float = 400.0) -> Snapshot:
    return Snapshot(remaining_s=window_s, capacity_pct=400, quantum_pct=10, min_quality=0.0, streams=streams, network=network)


# --- cloud ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("up_mbps", "down_mbps", "expected_s"),
    [(5.1, 17.5, 432.92), (8.5, 15.0, 362.85), (10.2, 35.0, 216.46), (52.0, 66.5, 72.49)],
)
def test_models_of_eight_cameras_arrive_as_the_card_computes(up_mbps: float, down_mbps: float, expected_s: float) -> None:
    streams = tuple(view(f"s{n}", 0.5, 0.9) for n in range(8))
    link = replace(CELLULAR, up_mbps=up_mbps, down_mbps=down_mbps)
    assert snapshot_arrival_s(window(*streams, network=link)) == pytest.approx(expected_s, abs=0.02)


def test_a_late_model_never_serves_and_an_early_one_does_for_the_rest() -> None:
    streams = tuple(view(f"s{n}", 0.5, 0.9, 0.8) for n in range(8))
    late = make_policy("cloud")(window(*streams))
    assert [s.retrain for s in late.streams] == [None] * 8
    assert late.expected_quality == pytest.approx(0.5)

    early = make_policy("cloud")(window(*streams, network=replace(CELLULAR, up_mbps=10.2, down_mbps=35.0)))
    assert {(s.retrain, s.source, s.train_pct, s.infer_pct) for s in early.streams} == {("c0", "cloud", 0, 50)}
    arrival_s = 8 * 160 / 10.2 + 8 * 398 / 35
    assert early.expected_quality == pytest.approx((0.5 * arrival_s + 0.9 * (400 - arrival_s)) / 400)


def test_the_cloud_takes_the_most_accurate_configuration_whatever_it_costs() -> None:
    best = best_in_cloud(view("a", 0.5, 0.6, 0.9, 0.9))
    assert best is not None
    assert best.name == "c1"
    assert best_in_cloud(view("a", 0.5, 0.4, 0.5)) is None
    assert best_in_cloud(view("a", 0.5)) is None


@pytest.mark.parametrize("network", [None, replace(CELLULAR, up_mbps=0.0), replace(CELLULAR, down_mbps=0.0)])
def test_without_a_link_nothing_arrives(network: Network | None) -> None:
    given = window(view("a", 0.5, 0.9), network=network)
    assert math.isinf(snapshot_arrival_s(given))
    assert make_policy("cloud")(given).streams == make_policy("no-retrain")(given).streams


def test_what_the_link_brings_is_scaled_by_the_knobs() -> None:
    fast = replace(CELLULAR, up_mbps=1e6, down_mbps=1e6)
    starved = replace(window(view("a", 0.5, 0.9), network=fast), capacity_pct=10)
    assert make_policy("cloud")(starved).expected_quality == pytest.approx(0.45, abs=1e-3)


# --- cached -----------------------------------------------------------------------------------------------------------


def model(name: str, *class_frac: float, count: float = 0.0, daypart: str = "", place: str = "") -> CachedModel:
    return CachedModel(name=name, traits=Traits(class_frac=class_frac, objects_per_frame=count, daypart=daypart, place=place))


NOW = Traits(class_frac=(0.5, 0.5), objects_per_frame=4.0, daypart="night", place="jena")
KEPT = (
    model("newest", 1.0, 0.0, count=9.0, daypart="day", place="zurich"),
    model("middle", 0.6, 0.4, count=5.0, daypart="night", place="zurich"),
    model("oldest", 0.0, 1.0, count=4.5, daypart="night", place="jena"),
)


@pytest.mark.parametrize(
    ("rule", "chosen"), [("classes", "middle"), ("time", "middle"), ("count", "oldest"), ("place", "oldest")]
)
def test_each_rule_picks_its_own_nearest(rule: str, chosen: str) -> None:
    found = select(NOW, KEPT, rule)
    assert found is not None
    assert found.name == chosen


def test_histograms_are_normalised_so_that_raw_counts_compare() -> None:
    assert class_distance(Traits(class_frac=(30, 10)), Traits(class_frac=(0.75, 0.25))) == pytest.approx(0.0)
    assert class_distance(Traits(class_frac=(1.0,)), Traits(class_frac=(0.0, 1.0))) == pytest.approx(math.sqrt(2))
    assert class_distance(Traits(), Traits(class_frac=(1.0,))) == 1.0


def test_the_minimum_is_over_all_models_and_ties_go_to_the_newest() -> None:
    twins = (model("new", 0.4, 0.6, count=4.0), model("old", 0.6, 0.4, count=4.0))
    for rule in ("classes", "count"):
        found = select(NOW, twins, rule)
        assert found is not None
        assert found.name == "new"


@pytest.mark.parametrize("rule", ["time", "place"])
def test_unknown_labels_match_nothing(rule: str) -> None:
    assert select(NOW, (model("m", 1.0),), rule) is None
    assert select(Traits(class_frac=(1.0,)), (model("m", 1.0),), rule) is None


@pytest.mark.parametrize("rule", RULES)
def test_nothing_kept_nothing_chosen(rule: str) -> None:
    assert select(NOW, (), rule) is None


def test_the_policy_names_the_model_and_trains_nothing() -> None:
    given = window(replace(view("a", 0.5, 0.9), traits=NOW, cached=KEPT), replace(view("b", 0.7, 0.9), cached=KEPT))
    plan = make_policy("cached")(given)
    assert [(s.retrain, s.source, s.train_pct) for s in plan.streams] == [("middle", "cached", 0), (None, "box", 0)]
    assert plan.policy == "cached(classes)"
    assert plan.expected_quality == pytest.approx(0.6)
    assert expand("cached") == CACHED_FAMILY


def test_what_the_two_need() -> None:
    assert needs("cloud").remote
    assert not needs("thief").remote
    assert needs("cached(time)").cached
    assert not needs("cached(time)").profiles
