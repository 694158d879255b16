"""`bench profiling` reads its answers right: errors, costs side by side, what corrects whom, the setting that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from configs.schema import BoxConfig
from scheduler.ekya.microprofile import families
from tests.support.scripts import benchmark


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        yield benchmark("bench_profiling", patch)


def result(
    bench: ModuleType, *, stream: str = "a", promised: float = 0.6, profile_cpu_s: float = 1.0, train_cpu_s: float = 10.0,
    right: tuple[int, ...] = (8, 8, 4, 4), before: float = 0.5,
) -> Any:  # fmt: skip
    """Four held-out pictures of ten regions; every configuration gets `right` of them right, 0.6 in all unless said."""
    trained = tuple(bench.Trained(config=c.name, right=right, regions=(10,) * 4, cpu_s=train_cpu_s) for c in bench.CONFIGS)
    names = [c.name for c in bench.CONFIGS]
    profiled = tuple(
        bench.Profiled(
            setting=s.name, before=before, predicted=dict.fromkeys(names, promised), sd=dict.fromkeys(names, 0.0),
            cost_s=dict.fromkeys(names, 5.0), cpu_s=profile_cpu_s,
        )
        for s in bench.SETTINGS
    )  # fmt: skip
    return bench.StreamResult(stream=stream, crops=(100, 40), trained=trained, profiled=profiled)


def test_the_configurations_are_ekya_s_eighteen_in_six_families(bench: ModuleType) -> None:
    assert len(bench.CONFIGS) == 18
    assert len({c.name for c in bench.CONFIGS}) == 18
    assert len(families(bench.CONFIGS)) == 6
    assert {(c.epochs, c.data_frac) for c in bench.CONFIGS} == {(e, f) for e in (5, 15, 30) for f in (0.1, 0.5, 1.0)}
    assert {(c.layers_frac == 1.0, c.head_neurons) for c in bench.CONFIGS} == {(False, 64), (True, 1024)}


def test_what_each_setting_tries(bench: ModuleType) -> None:
    count = {s.name: len(families(bench.tried(s))) for s in bench.SETTINGS}
    assert (count["box"], count["paper"], count["two families run"], count["three heads"], count["one head"]) == (6, 6, 2, 3, 1)
    assert [s.name for s in bench.SETTINGS if s.lend] == ["box"], "as a box is shipped"
    assert BoxConfig().window.profile_lend
    assert all(s.tried in ("families", "speakers", "heads", "head") for s in bench.SETTINGS)
    assert len({s.name for s in bench.SETTINGS}) == len(bench.SETTINGS)


def test_errors_are_against_what_was_really_trained(bench: ModuleType) -> None:
    found = bench.verdict([result(bench, promised=0.63)], "paper", "alone")
    assert found.error_points == pytest.approx(3.0)
    assert found.bias_points == pytest.approx(3.0)
    assert found.stream_points == (pytest.approx(3.0),)
    assert found.cost_ratio == pytest.approx(0.5)
    assert bench.baselines([result(bench)])[0].error_points == pytest.approx(10.0), "saying that nothing changes"


@pytest.mark.parametrize(("promised", "profile_cpu_s", "reached"), [(0.63, 1.8, True), (0.63, 2.0, False), (0.50, 1.0, False)])
def test_both_figures_must_be_reached(bench: ModuleType, promised: float, profile_cpu_s: float, reached: bool) -> None:
    found = bench.verdict([result(bench, promised=promised, profile_cpu_s=profile_cpu_s)], "paper", "alone")
    assert found.times == pytest.approx(180 / profile_cpu_s)
    assert found.reached is reached


def test_costs_add_up_over_streams(bench: ModuleType) -> None:
    found = bench.verdict([result(bench, profile_cpu_s=1.0), result(bench, stream="b", profile_cpu_s=3.0)], "paper", "alone")
    assert (found.profile_cpu_s, found.exhaustive_cpu_s) == (pytest.approx(4.0), pytest.approx(360.0))


def test_the_most_exact_of_the_cheap_enough_is_taken(bench: ModuleType) -> None:
    def verdict(name: str, error: float, cpu_s: float) -> Any:
        return bench.Verdict(
            setting=name, history="alone", error_points=error, error_p90_points=0.0, bias_points=0.0, stream_points=(),
            lost_points=0.0, cost_ratio=1.0, profile_cpu_s=cpu_s, exhaustive_cpu_s=100.0,
        )  # fmt: skip

    exact, cheap, cheaper = verdict("exact", 1.0, 10.0), verdict("cheap", 4.0, 1.0), verdict("cheaper", 9.0, 0.5)
    assert bench.best([exact, cheap, cheaper]) is cheap
    assert bench.best([exact, verdict("half", 3.0, 2.0)]).setting == "half", "none is cheap enough: the cheapest"


def test_what_is_lost_by_a_wrong_choice(bench: ModuleType) -> None:
    good = result(bench)
    better = bench.Trained(config=bench.CONFIGS[3].name, right=(9, 9, 9, 9), regions=(10,) * 4, cpu_s=10.0)
    trained = tuple(better if t.config == better.config else t for t in good.trained)
    missed = bench.StreamResult(stream="a", crops=good.crops, trained=trained, profiled=good.profiled)
    assert bench.verdict([missed], "box", "alone").lost_points == pytest.approx(30.0)


# --- history ----------------------------------------------------------------------------------------------------------


def test_a_stream_is_never_corrected_by_its_own_outcome(bench: ModuleType) -> None:
    others = [result(bench, stream=name, promised=0.5) for name in "bcd"]
    ways = [[result(bench, promised=0.5, right=right), *others] for right in ((10,) * 4, (0,) * 4)]
    for history in bench.HISTORIES:
        said = [bench.answers(results, results[0], "paper", history) for results in ways]
        assert said[0] == said[1]
    assert bench.untried(ways[0], ways[0][0]) == bench.untried(ways[1], ways[1][0])


def test_what_others_came_to_mends_a_promise(bench: ModuleType) -> None:
    """Everywhere the profiler promises nothing, and ten points come: on this stream too."""
    results = [result(bench, stream=name, promised=0.5) for name in "abcde"]
    alone, full = (bench.verdict(results, "paper", history) for history in ("alone", "others in full"))
    assert alone.error_points == pytest.approx(10.0)
    assert full.error_points < 5.0
    assert full.profile_cpu_s == alone.profile_cpu_s


def test_a_box_knows_of_each_stream_what_it_would_have_carried_out(bench: ModuleType) -> None:
    whole = result(bench)
    preferred = bench.CONFIGS[4].name
    profiled = tuple(replace(p, predicted={**p.predicted, preferred: 0.9}) for p in whole.profiled)
    one = bench.observations(replace(whole, profiled=profiled), "paper", one_each=True)
    assert [o.option for o in one] == [preferred]
    assert (one[0].start_quality, one[0].predicted_quality, one[0].realised_quality) == (0.5, 0.9, 0.6)
    assert len(bench.observations(whole, "paper", one_each=False)) == 18


def test_without_a_trial_the_mean_gain_of_the_others_is_all_there_is(bench: ModuleType) -> None:
    results = [result(bench), result(bench, stream="b", right=(7,) * 4), result(bench, stream="c", right=(9,) * 4)]
    assert bench.untried(results, results[0]) == {c.name: pytest.approx(0.8) for c in bench.CONFIGS}
    assert bench.untried(results[:1], results[0]) == {c.name: 0.5 for c in bench.CONFIGS}


# --- the text ---------------------------------------------------------------------------------------------------------


def test_the_text_and_the_json_say_the_same(bench: ModuleType) -> None:
    results = [result(bench, promised=0.62)]
    text, data = "\n".join(bench.lines(results)), bench.as_json(results)
    assert "reached: " in text
    assert f"{data['best']}: 2.0 points in the median and 180x cheaper" in text
    labels = [row["setting"] for row in data["settings"]]
    assert len(set(labels)) == len(labels) == len(bench.SETTINGS) * len(bench.HISTORIES)
    assert "box" in labels, "`bench learning` asks for it"
    assert data["best"] in labels
    assert data["settings"][0]["times"] == pytest.approx(180.0)
    assert data["settings"][0]["unchanged_points"] == pytest.approx(10.0)
