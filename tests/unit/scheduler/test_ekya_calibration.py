"""Calibration: what was predicted against what came, and what follows for the next prediction."""

from __future__ import annotations

import csv
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ekya.calibration import ErrorPrior, ErrorSummary, correct, present, summary
from scheduler.types import Observation, RetrainOption

TABLE = Path(__file__).resolve().parents[4] / "shared/data/traces/ekya_cityscapes_microprofiles.csv"
PRIOR = ErrorPrior()
QUALITY = 0.6


def option(name: str = "a", end_quality: float = 0.7, cost_gpu_s: float = 20.0, **more: float) -> RetrainOption:
    return RetrainOption(name=name, end_quality=end_quality, cost_gpu_s=cost_gpu_s, **more)


def seen(
    realised: float, predicted: float = 0.7, *, window: int = 0, stream: str = "cam", name: str = "a", start: float = QUALITY,
    cost: float = 1.0,
) -> Observation:  # fmt: skip
    return Observation(
        stream=stream, window=window, option=name, start_quality=start, predicted_quality=predicted,
        realised_quality=realised, predicted_gpu_s=20.0, realised_gpu_s=20.0 * cost,
    )  # fmt: skip


def one(
    of: RetrainOption, history: list[Observation], *, stream: str = "cam", quality: float = QUALITY, **more: object
) -> RetrainOption:
    (made,) = correct([of], stream=stream, quality=quality, history=history, **more)  # type: ignore[arg-type]
    return made


def broken(field: str, value: float) -> Observation:
    return replace(seen(0.7), **{field: value})  # type: ignore[arg-type]


# --- without history --------------------------------------------------------------------------------------------------


def test_without_history_the_prior_answers() -> None:
    made = one(option(end_quality=0.7, memory_mib=300.0), [])
    assert made.end_quality == pytest.approx(QUALITY + PRIOR.slope * 0.1)
    known = [PRIOR.bias_sd, PRIOR.slope_sd * 0.1, PRIOR.camera_sd, PRIOR.option_sd, PRIOR.family_sd]
    assert made.quality_sd == pytest.approx(math.hypot(*known, PRIOR.noise_sd, PRIOR.window_sd))
    assert (made.name, made.cost_gpu_s, made.memory_mib) == ("a", 20.0, 300.0)


def test_the_prior_error_is_the_one_the_authors_profiler_has_shown() -> None:
    # their predictions are off by 12 points (root mean square); of a normal error with that sd the median would be 8
    assert one(option(), []).quality_sd == pytest.approx(0.12, abs=0.02)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_no_history_makes_no_gain_of_a_promised_loss(quality: float, end: float) -> None:
    made = one(option(end_quality=end), [], quality=quality)
    assert min(quality, end) - 1e-12 <= made.end_quality <= max(quality, end) + 1e-12


def test_nothing_to_correct() -> None:
    assert correct([], stream="cam", quality=0.5, history=[seen(0.7)]) == ()


def test_order_and_names_are_kept() -> None:
    options = [option("b", 0.9), option("a", 0.7), option("c", 0.4)]
    made = correct(options, stream="cam", quality=QUALITY, history=[seen(0.65)])
    assert [o.name for o in made] == ["b", "a", "c"]
    assert made[0].end_quality > made[2].end_quality


# --- learning ---------------------------------------------------------------------------------------------------------


def test_one_observation_in_the_textbook_case() -> None:
    # everything known but the option's part: posterior mean = residual * prior variance / (prior variance + noise)
    tiny = 1e-9
    prior = ErrorPrior(
        slope=0.5, slope_sd=tiny, headroom_sd=tiny, bias_sd=tiny, camera_sd=tiny, window_sd=tiny, family_sd=tiny,
        option_sd=0.06, noise_sd=0.08, noise_weight=1e9, dof=1e9,
    )  # fmt: skip
    made = one(option(end_quality=0.7), [seen(0.75)], prior=prior)
    shrunk = 0.06**2 / (0.06**2 + 0.08**2)
    assert made.end_quality == pytest.approx(0.65 + 0.1 * shrunk)
    assert made.quality_sd == pytest.approx(math.sqrt(0.06**2 * (1 - shrunk) + 0.08**2), rel=1e-4)


def test_a_consistent_bias_is_learnt() -> None:
    history = [seen(0.62 + 0.005 * (-1) ** w, window=w) for w in range(40)]  # promised +10, always came +2
    made = one(option(), history)
    assert made.end_quality == pytest.approx(0.62, abs=0.01)


def test_a_modest_profiler_is_corrected_upwards() -> None:
    history = [seen(0.75, predicted=0.6, window=w) for w in range(20)]
    assert one(option(end_quality=0.6), history).end_quality == pytest.approx(0.75, abs=0.03)


def test_each_option_has_its_own_part() -> None:
    history = [seen(0.70, name="good", window=w) for w in range(15)] + [seen(0.58, name="bad", window=w) for w in range(15)]
    good, bad, new = correct([option("good"), option("bad"), option("new")], stream="cam", quality=QUALITY, history=history)
    assert bad.end_quality < new.end_quality < good.end_quality
    assert good.end_quality - bad.end_quality > 0.08
    assert new.quality_sd > good.quality_sd, "never tried, less known"


def test_options_of_one_family_learn_from_each_other() -> None:
    history = [seen(0.72, name="deep-5", window=w) for w in range(6)] + [seen(0.60, name="flat-5", window=w) for w in range(6)]
    families = {"deep-5": "deep", "deep-30": "deep", "flat-5": "flat", "flat-30": "flat"}
    options = [option("deep-30"), option("flat-30")]
    deep, flat = correct(options, stream="cam", quality=QUALITY, history=history, families=families)
    alone, other = correct(options, stream="cam", quality=QUALITY, history=history)
    assert deep.end_quality - flat.end_quality > 0.03
    assert alone.end_quality == pytest.approx(other.end_quality)


def test_a_camera_of_its_own_kind_among_many() -> None:
    others = [seen(0.70, stream=f"o{n}", window=w) for n in range(5) for w in range(6)]
    own = [seen(0.60, window=w) for w in range(12)]
    mine, theirs = one(option(), others + own), one(option(), others + own, stream="o0")
    assert mine.end_quality < theirs.end_quality - 0.03
    stranger = one(option(), others + own, stream="new")
    assert mine.end_quality < stranger.end_quality <= theirs.end_quality
    assert stranger.quality_sd > theirs.quality_sd


def test_what_other_cameras_saw_helps_a_new_one() -> None:
    others = [seen(0.61, stream=f"o{n}", window=w) for n in range(4) for w in range(5)]
    made, blank = one(option(), others), one(option(), [])
    assert abs(made.end_quality - 0.61) < abs(blank.end_quality - 0.61)
    assert made.quality_sd < blank.quality_sd


def test_predictions_that_tell_nothing_lose_their_weight() -> None:
    rng = random.Random(3)
    history = [seen(0.68 + rng.gauss(0, 0.02), predicted=rng.uniform(0.5, 0.95), window=w) for w in range(60)]
    low, high = one(option(end_quality=0.55), history), one(option(end_quality=0.9), history)
    assert high.end_quality - low.end_quality < 0.05
    good = [seen(p, predicted=p, window=w) for w, p in enumerate(rng.uniform(0.5, 0.95) for _ in range(60))]
    low, high = one(option(end_quality=0.55), good), one(option(end_quality=0.9), good)
    assert high.end_quality - low.end_quality == pytest.approx(0.35, abs=0.06)


def test_headroom_carries_over_to_a_better_model() -> None:
    # a retraining mended half of the errors, whatever was there
    history = [seen(q + 0.5 * (1 - q), predicted=q + 0.1, start=q, window=w) for w, q in enumerate(np.linspace(0.4, 0.9, 30))]
    for quality in (0.5, 0.85):
        made = one(option(end_quality=quality + 0.1), history, quality=quality)
        assert made.end_quality == pytest.approx(quality + 0.5 * (1 - quality), abs=0.03)


def test_the_winners_curse_is_not_taken_for_a_bias() -> None:
    """Of several unbiased noisy predictions the highest is chosen: it disappoints. An honest correction foresees the chosen one's gain,
    and does not lower what was predicted modestly."""
    rng = np.random.default_rng(5)
    history = []
    for window in range(150):
        true = QUALITY + 0.05 + rng.normal(0, 0.05, 6)
        promised = true + rng.normal(0, 0.1, 6)
        best = int(np.argmax(promised))
        history.append(seen(float(true[best]), predicted=float(promised[best]), window=window, name=f"n{window % 30}"))
    prior = replace(PRIOR, half_life_windows=1e6)
    trust = 0.05**2 / (0.05**2 + 0.1**2)
    for promise in (-0.1, 0.05, 0.2):
        made = one(option("n1", end_quality=QUALITY + promise), history, prior=prior)
        assert made.end_quality - QUALITY == pytest.approx(0.05 + trust * (promise - 0.05), abs=0.035)


# --- robustness -------------------------------------------------------------------------------------------------------


def test_one_wild_outcome_does_not_dominate() -> None:
    steady = [seen(0.66 + 0.01 * (-1) ** w, window=w) for w in range(10)]
    wild = [*steady, seen(0.05, window=10)]
    moved = abs(one(option(), wild).end_quality - one(option(), steady).end_quality)
    mean_moved = 0.61 / 11  # what the plain mean would do
    assert moved < 0.35 * mean_moved
    assert one(option(), wild).quality_sd > one(option(), steady).quality_sd, "but it is not forgotten"


def test_sd_shrinks_with_consistent_history_and_grows_with_scatter() -> None:
    def sd(windows: int, scatter: float) -> float:
        return one(option(), [seen(0.66 + scatter * (-1) ** w, window=w) for w in range(windows)]).quality_sd

    assert sd(0, 0.0) > sd(3, 0.01) > sd(10, 0.01) > sd(40, 0.01)
    assert sd(40, 0.15) > sd(40, 0.05) > sd(40, 0.01)
    assert sd(40, 0.15) == pytest.approx(0.15, abs=0.05)


def test_a_camera_has_its_own_scatter() -> None:
    calm = [seen(0.66 + 0.005 * (-1) ** w, stream="calm", window=w) for w in range(25)]
    rough = [seen(0.66 + 0.15 * (-1) ** w, stream="rough", window=w) for w in range(25)]
    assert one(option(), calm + rough, stream="calm").quality_sd < 0.75 * one(option(), calm + rough, stream="rough").quality_sd


def test_sd_is_honest_in_a_world_as_assumed() -> None:
    rng = np.random.default_rng(1)
    inside, errors = [], []
    for _ in range(150):
        bias, slope = rng.normal(0, 0.05), rng.normal(0.4, 0.2)

        def came(promise: float, bias: float = bias, slope: float = slope) -> float:
            return QUALITY + bias + slope * promise + rng.normal(0, 0.09)

        promises = rng.uniform(-0.1, 0.3, 13)
        history = [seen(came(p), predicted=QUALITY + p, window=w) for w, p in enumerate(promises[1:])]
        made = one(option(end_quality=QUALITY + promises[0]), history)
        errors.append(came(promises[0]) - made.end_quality)
        inside.append(bool(abs(errors[-1]) <= made.quality_sd))
    assert 0.55 <= statistics.mean(inside) <= 0.85
    assert abs(statistics.mean(errors)) < 0.02


def test_old_observations_fade() -> None:
    change = [seen(0.70, window=w) for w in range(20)] + [seen(0.60, window=w) for w in range(20, 40)]
    assert one(option(), change).end_quality < one(option(), change, prior=replace(PRIOR, half_life_windows=1e6)).end_quality
    quick = one(option(), change, prior=replace(PRIOR, half_life_windows=4)).end_quality
    assert quick == pytest.approx(0.60, abs=0.02)


def test_many_options_of_one_window_are_not_as_many_windows() -> None:
    names = [f"n{n}" for n in range(12)]
    together = [seen(0.72, name=name, window=0, stream="other") for name in names]
    apart = [seen(0.72, name=name, window=w, stream=f"o{w}") for w, name in enumerate(names)]
    assert one(option("x"), together).quality_sd > one(option("x"), apart).quality_sd


def test_a_hopeless_promise_stays_hopeless() -> None:
    history = [
        seen(0.75, predicted=0.5, window=w) for w in range(60)
    ]  # a profiler that knows nothing, and gains that always come
    assert one(option(end_quality=0.3), history).end_quality <= QUALITY
    assert one(option(end_quality=0.5), history).end_quality > QUALITY


def test_an_uncertain_curve_is_believed_less() -> None:
    sure, usual, vague = (one(option(end_quality=0.8, quality_sd=sd), []) for sd in (0.0, 0.05, 0.4))
    assert usual == sure, "the usual error is in the noise already"
    assert QUALITY < vague.end_quality < sure.end_quality
    assert vague.end_quality - QUALITY < 0.25 * (sure.end_quality - QUALITY)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 4), *[st.floats(0, 1)] * 3), max_size=25),
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.floats(0, 1),
    st.randoms(use_true_random=False),
)
def test_any_history_gives_sane_options_in_any_order(
    rows: list[tuple[int, int, int, float, float, float]], ends: list[float], quality: float, rnd: random.Random
) -> None:
    history = [
        seen(realised, predicted, stream=f"c{c}", window=w, name=f"n{n}", start=start)
        for c, w, n, realised, predicted, start in rows
    ]
    options = [option(f"n{n}", end) for n, end in enumerate(ends)]
    made = correct(options, stream="c1", quality=quality, history=history)
    assert all(0 <= o.end_quality <= 1 and 0 < o.quality_sd < 1.5 and o.cost_gpu_s == 20.0 for o in made)
    for raw, o in zip(options, made, strict=True):
        assert raw.end_quality > quality - 3 * PRIOR.noise_sd or o.end_quality <= quality + 1e-12
    rnd.shuffle(history)
    again = correct(options, stream="c1", quality=quality, history=history)
    assert [o.end_quality for o in again] == pytest.approx([o.end_quality for o in made], abs=1e-9)


def test_only_the_newest_of_many_are_looked_at() -> None:
    old = [seen(0.9, stream=f"o{n}", window=0) for n in range(50)]
    new = [seen(0.6, stream=f"o{n}", window=9) for n in range(20)]
    assert one(option(), old + new, prior=replace(PRIOR, max_observations=20)) == one(option(), new)


# --- the serving model itself -----------------------------------------------------------------------------------------


def labelled(measured: float, true: float, *, window: int, stream: str = "cam") -> Observation:
    return replace(seen(0.8, start=measured, window=window, stream=stream), serving_quality=true)


def test_without_history_the_labels_are_believed() -> None:
    assert present(0.93, stream="cam", history=[]) == 0.93
    assert present(0.93, stream="cam", history=[seen(0.7, window=w, start=0.5) for w in range(9)]) == 0.93, "no gate spoke"


def test_a_small_sample_is_too_extreme() -> None:
    rng = np.random.default_rng(2)
    true = rng.normal(0.8, 0.07, 200)
    measured = np.clip(true + rng.normal(0, 0.1, 200), 0, 1)
    history = [labelled(float(m), float(t), window=w) for w, (m, t) in enumerate(zip(measured, true, strict=True))][:60]
    believed = [present(float(m), stream="cam", history=history) for m in measured[60:]]
    assert present(1.0, stream="cam", history=history) < 0.92
    assert present(0.6, stream="cam", history=history) > 0.67
    assert np.mean(np.abs(believed - true[60:])) < 0.75 * np.mean(np.abs(measured[60:] - true[60:]))


def test_true_labels_stay_believed() -> None:
    history = [labelled(q, q, window=w) for w, q in enumerate(np.linspace(0.5, 0.9, 30))]
    for measured in (0.45, 0.7, 0.95):
        assert present(measured, stream="cam", history=history) == pytest.approx(measured, abs=0.005)


def test_labels_that_flatter_one_camera() -> None:
    history = [labelled(0.8, 0.7, window=w) for w in range(15)]
    history += [labelled(0.8, 0.8, window=w, stream=f"o{n}") for w in range(5) for n in range(3)]
    assert present(0.8, stream="cam", history=history) < 0.75 < present(0.8, stream="o1", history=history)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1), st.floats(0, 1)), max_size=15), st.floats(0, 1))
def test_the_present_is_a_quality(rows: list[tuple[int, float, float]], measured: float) -> None:
    history = [labelled(m, t, window=w, stream=f"c{c}") for w, (c, m, t) in enumerate(rows)]
    assert 0 <= present(measured, stream="c1", history=history) <= 1


def test_a_present_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="serving quality"):
        present(math.nan, stream="cam", history=[])
    with pytest.raises(ValueError, match="calibration needs finite"):
        present(0.5, stream="cam", history=[labelled(0.5, math.nan, window=0)])
    with pytest.raises(ValueError, match="serving quality"):
        one(option(), [], serving=math.nan)


def test_the_gain_is_put_on_top_of_what_the_serving_model_is_believed_to_be_worth() -> None:
    history = [seen(0.65, window=w) for w in range(6)]
    plain, moved = one(option(), history), one(option(), history, serving=QUALITY - 0.1)
    assert moved.end_quality == pytest.approx(plain.end_quality - 0.1)
    assert moved.quality_sd == plain.quality_sd


# --- costs ------------------------------------------------------------------------------------------------------------


def test_costs_follow_what_retrainings_took() -> None:
    assert one(option(), [seen(0.65, window=w, cost=1.5) for w in range(15)]).cost_gpu_s == pytest.approx(30, rel=0.05)
    assert one(option(), [seen(0.65, window=w, cost=0.5) for w in range(15)]).cost_gpu_s == pytest.approx(10, rel=0.1)
    assert one(option(), [seen(0.65, window=w) for w in range(15)]).cost_gpu_s == 20.0


def test_one_absurd_cost_does_not_dominate_and_a_bound_holds() -> None:
    usual = [seen(0.65, window=w, cost=1.02) for w in range(10)]
    assert one(option(), [*usual, seen(0.65, window=10, cost=200.0)]).cost_gpu_s < 22
    assert one(option(), [seen(0.65, window=w, cost=1000.0) for w in range(60)]).cost_gpu_s == pytest.approx(80.0)
    assert one(option(), [seen(0.65, window=w, cost=0.001) for w in range(60)]).cost_gpu_s == pytest.approx(5.0)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="serving quality"):
        one(option(), [], quality=bad)
    with pytest.raises(ValueError, match="predictions"):
        one(option(end_quality=bad), [])
    with pytest.raises(ValueError, match="predictions"):
        one(option(quality_sd=bad), [])
    with pytest.raises(ValueError, match="cost"):
        one(option(cost_gpu_s=bad), [])
    for field in ("start_quality", "predicted_quality", "realised_quality", "predicted_gpu_s", "realised_gpu_s"):
        with pytest.raises(ValueError, match="calibration needs finite"):
            one(option(), [broken(field, bad)])


@pytest.mark.parametrize("field", ["predicted_gpu_s", "realised_gpu_s"])
def test_a_cost_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="costs above 0"):
        one(option(), [broken(field, 0.0)])


@pytest.mark.parametrize(
    "bad",
    [{"slope": math.nan}, {"noise_sd": 0.0}, {"dof": -1.0}, {"half_life_windows": 0.0}, {"max_cost_ratio": 0.5},
     {"max_observations": -1}],
)  # fmt: skip
def test_a_prior_without_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="ErrorPrior"):
        ErrorPrior(**bad)  # type: ignore[arg-type]


# --- for people -------------------------------------------------------------------------------------------------------


def test_the_summary_of_a_camera_and_of_the_box() -> None:
    history = [seen(0.7 - e, window=n, cost=1.5) for n, e in enumerate((0.02, 0.04, 0.06))] + [seen(0.70, stream="other")]
    mine = summary(history, "cam")
    assert (mine.stream, mine.n) == ("cam", 3)
    assert mine.bias == pytest.approx(0.04)
    assert mine.sd == pytest.approx(1.4826 * 0.02)
    assert mine.cost_ratio == pytest.approx(1.5)
    assert summary(history).n == 4
    assert summary(history, "nobody") == ErrorSummary(stream="nobody", n=0, bias=0.0, sd=0.0, cost_ratio=1.0)


# --- the authors' table -----------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.skipif(not TABLE.exists(), reason="needs the authors' table in ../shared/data/traces")
def test_other_cities_correct_a_city_of_the_authors_table() -> None:
    with TABLE.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    cities = sorted({r["city"] for r in rows})
    raw, corrected, inside = [], [], []
    for city in cities[::3]:
        history = [_observed(r) for r in rows if r["city"] != city]
        for r in (r for r in rows if r["city"] == city and r["task_id"] == "1"):
            o = _observed(r)
            made = one(option(o.option, o.predicted_quality), history, stream=city, quality=o.start_quality)
            raw.append(abs(o.predicted_quality - o.realised_quality))
            corrected.append(abs(made.end_quality - o.realised_quality))
            inside.append(corrected[-1] <= made.quality_sd)
    assert statistics.median(corrected) < 0.75 * statistics.median(raw)
    assert statistics.mean(corrected) < 0.65 * statistics.mean(raw)
    assert 0.55 < statistics.mean(inside) < 0.9


def _observed(r: dict[str, str]) -> Observation:
    return Observation(
        stream=r["city"], window=int(r["task_id"]), option=f"hp{r['hp_id']}-e{r['epochs']}",
        start_quality=float(r["default_inference_acc_actual"]), predicted_quality=min(1.0, max(0.0, float(r["accuracy_pred"]))),
        realised_quality=float(r["accuracy_actual"]), predicted_gpu_s=1.0, realised_gpu_s=1.0,
    )  # fmt: skip
