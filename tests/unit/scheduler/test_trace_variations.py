"""What-ifs on traces: fewer streams are a prefix, noise has the asked spread, the truth is never touched."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError, UsageError
from scheduler.sim.random_profiles import FRAME_SAMPLING, interpolated_knobs
from scheduler.sim.variations import believing, experience, first_windows, fixed_configs, prefix, shuffled, with_window_s
from scheduler.trace import Trace, parse_trace, quality_along, sampling_of_ekya_table, trace_of_ekya_table
from tests.support.traces import KNOBS, one_stream, option, random_trace, window


def measured(trace: Trace) -> list[object]:
    return [
        (w.base_quality, w.start_quality, [(o.name, o.cost_gpu_s, o.measured_quality, o.epoch_quality) for o in w.options])
        for s in trace.streams
        for w in s.windows
    ]


def predicted(trace: Trace) -> list[float]:
    return [o.predicted_quality or 0.0 for s in trace.streams for w in s.windows for o in w.options]


# --- streams and windows ----------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), fewer=st.integers(1, 8), more=st.integers(1, 8))
def test_fewer_streams_are_a_prefix_of_more(seed: int, fewer: int, more: int) -> None:
    trace = random_trace(streams=8, windows=1, options=1)
    small, large = (prefix(trace, n, seed) for n in sorted((fewer, more)))
    assert large.streams[: len(small.streams)] == small.streams
    assert len(small.streams) == min(fewer, more)


def test_the_order_is_one_per_seed_and_holds_every_stream() -> None:
    ids = [f"s{n}" for n in range(10)]
    orders = {shuffled(ids, seed) for seed in range(20)}
    assert len(orders) > 10
    assert all(sorted(order) == ids for order in orders)
    assert shuffled(ids, 3) == shuffled(list(reversed(ids)), 3), "how the trace lists them does not matter"


@pytest.mark.parametrize("asked", [0, 5])
def test_a_wrong_number_of_streams_is_refused_by_name(asked: int) -> None:
    with pytest.raises(UsageError, match=r"^streams: the trace has 4") as caught:
        prefix(random_trace(streams=4), asked)
    assert caught.value.subject == "streams"


def test_the_first_windows_are_kept_as_they_are() -> None:
    trace = random_trace(windows=4)
    cut = first_windows(trace, 2)
    assert cut.windows == 3, "window 0 comes on top"
    assert all(c.windows == s.windows[:3] for c, s in zip(cut.streams, trace.streams, strict=True))
    for asked in (0, 5):
        with pytest.raises(UsageError, match=r"^windows: the trace has 4"):
            first_windows(trace, asked)


def test_another_window_length_leaves_costs_and_qualities() -> None:
    trace = random_trace()
    longer = with_window_s(trace, 400.0)
    assert longer.window_s == 400.0
    assert measured(longer) == measured(trace)


# --- beliefs ----------------------------------------------------------------------------------------------------------


def test_true_profiles_foresee_what_is_measured() -> None:
    recorded = window(1, 0.5, option("x", 0.8, predicted=0.6)).model_copy(update={"predicted_start_quality": 0.4})
    trace = one_stream(window(0, 0.5), recorded)
    seen = believing(trace, "true").streams[0].windows[1]
    assert (seen.options[0].predicted_quality, seen.predicted_start_quality) == (0.8, 0.5)
    assert believing(trace, "predicted") == trace
    assert measured(believing(trace, "true")) == measured(trace)


def test_an_option_that_nobody_measured_keeps_its_prediction() -> None:
    guess = option("x", 0.8, predicted=0.6).model_copy(update={"measured_quality": None})
    seen = believing(one_stream(window(0, 0.5), window(1, 0.5, guess)), "true")
    assert seen.streams[0].windows[1].options[0].predicted_quality == 0.6


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_noise_has_the_asked_spread_and_no_bias(noise: float) -> None:
    # All ends at .5, so that clipping to 0-1 takes next to nothing (.5 is 2.5 standard deviations away).
    flat = tuple(window(n, 0.4, *(option(f"c{i}", 0.5) for i in range(18))) for n in range(60))
    trace = one_stream(*flat)
    errors = np.array(predicted(believing(trace, "true", noise, seed=4))) - 0.5
    count = len(errors)
    assert count == 60 * 18
    assert abs(errors.mean()) < 4 * noise / math.sqrt(count)
    assert errors.std() == pytest.approx(noise, rel=0.1)


def test_noise_changes_beliefs_only_and_is_seeded() -> None:
    trace = random_trace(streams=3)
    noisy = believing(trace, "true", 0.3, seed=1)
    assert measured(noisy) == measured(trace)
    assert predicted(noisy) == predicted(believing(trace, "true", 0.3, seed=1))
    assert predicted(noisy) != predicted(believing(trace, "true", 0.3, seed=2))
    assert all(0 <= q <= 1 for q in predicted(noisy))


def test_a_streams_noise_depends_neither_on_the_others_nor_on_later_windows() -> None:
    trace = random_trace(streams=5, windows=4)
    all_of_them = {s.id: s for s in believing(trace, "true", 0.2, seed=3).streams}
    few = believing(first_windows(prefix(trace, 2, 3), 2), "true", 0.2, seed=3)
    for stream in few.streams:
        assert stream.windows == all_of_them[stream.id].windows[:3]


# --- the two fixed configurations -------------------------------------------------------------------------------------


def test_high_and_low_are_the_ends_of_the_measured_front() -> None:
    offers = (option("cheap", 0.6, 5), option("bad", 0.5, 50), option("dear", 0.9, 80), option("dearer", 0.85, 200))
    trace = one_stream(window(0, 0.5), window(1, 0.5, *offers))
    assert fixed_configs(trace.streams) == {"high": "dear", "low": "cheap"}
    assert fixed_configs(trace.streams, 60.0) == {"high": "cheap", "low": "cheap"}, "no more than a quarter of a GPU can end"


def test_without_a_shared_configuration_nothing_is_fixed() -> None:
    a = one_stream(window(0, 0.5), window(1, 0.5, option("x", 0.6)), id="a").streams[0]
    b = one_stream(window(0, 0.5), window(1, 0.5, option("y", 0.6)), id="b").streams[0]
    assert fixed_configs((a, b)) == {}
    assert fixed_configs(()) == {}


# --- the authors' tables ----------------------------------------------------------------------------------------------

HEADER = (
    "city,task_id,hp_id,epochs,accuracy_pred,accuracy_actual,default_inference_acc_actual,default_inference_acc_pred,"
    "runtime_actual,microprofile_time_taken,runtime_inittime_actual"
)
ROWS = [
    "a,4,0,5,0.9,0.8,0.5,0.55,4.0,9.0,0.5",
    "a,4,0,15,0.95,0.7,0.5,0.55,12.0,9.0,0.4",
    "a,7,0,5,0.9,0.6,0.4,0.45,4.0,8.0,0.3",
]


def test_epochs_of_one_configuration_are_points_of_one_training() -> None:
    trace = trace_of_ekya_table([HEADER, *ROWS], knobs=KNOBS, windows=1)
    short, long = trace.streams[0].windows[1].options
    assert (short.epochs, short.init_gpu_s) == (5, 0.5)
    assert long.epochs == 15
    assert (short.epoch_quality[-1], long.epoch_quality[-1]) == (0.8, 0.7), "recorded points stay as they are"
    assert long.epoch_quality[:5] == short.epoch_quality
    assert list(short.epoch_quality) == sorted(short.epoch_quality)
    assert list(long.epoch_quality[4:]) == sorted(long.epoch_quality[4:], reverse=True)


def test_a_training_rises_steeply_first_and_passes_through_what_was_recorded() -> None:
    """Known answer: b = (0.5, 2, 0.05) of the card's E8 between points 5 and 30 epochs apart."""
    true = [1 - (1 / (0.5 * k + 2) + 0.05) for k in range(31)]
    along = quality_along([(0, true[0]), (5, true[5]), (15, true[15]), (30, true[30])], 30)
    assert along == pytest.approx(true[1:], abs=2e-3)
    bent = quality_along([(0, 0.5), (5, 0.8), (10, 0.6)], 10)
    assert (bent[4], bent[9]) == (0.8, 0.6)
    assert all(0 <= q <= 1 for q in bent)


def test_a_city_that_has_come_to_its_last_window_goes_round() -> None:
    once = trace_of_ekya_table([HEADER, *ROWS], knobs=KNOBS, windows=2)
    round_ = trace_of_ekya_table([HEADER, *ROWS], knobs=KNOBS, windows=5, go_round=True)
    bases = [w.base_quality for w in round_.streams[0].windows]
    assert bases == [0.5, 0.5, 0.4, 0.5, 0.4, 0.5], "window 0 repeats the first recorded one"
    assert [w.window for w in round_.streams[0].windows] == list(range(6))
    assert round_.streams[0].windows[:3] == once.streams[0].windows
    with pytest.raises(ConfigError):
        trace_of_ekya_table([HEADER, *ROWS], knobs=KNOBS, windows=5)


def test_the_sub_sampling_table() -> None:
    lines = ["subsampling,c1,c2", "1,1,1", "2,0.78,0.74"]
    assert sampling_of_ekya_table(lines) == ((1, 1.0), (2, 0.78))
    assert sampling_of_ekya_table(lines, camera="c2")[1] == (2, 0.74)
    with pytest.raises(ConfigError, match="no column c9"):
        sampling_of_ekya_table(lines, camera="c9")
    with pytest.raises(ConfigError, match="line 3"):
        sampling_of_ekya_table([*lines[:2], "2,much,0.7"])


@pytest.mark.parametrize(("share", "kept"), [(5, 0.44), (10, 0.71), (20, 0.945), (25, 1.0)])
def test_interpolated_knobs_carry_what_the_card_says(share: float, kept: float) -> None:
    """papers/ekya.md 4.4: f(.05) = .44, f(.1) = .71, f(.2) = .945, f(.25) = 1."""
    by_share = {k.demand_pct: k.quality_frac for k in interpolated_knobs()}
    assert by_share[share] == pytest.approx(kept, abs=1e-9)


def test_interpolated_knobs_rise_with_their_share_and_have_names_of_their_own() -> None:
    knobs = interpolated_knobs(25.0, FRAME_SAMPLING)
    assert [k.demand_pct for k in knobs] == sorted(k.demand_pct for k in knobs)
    assert [k.quality_frac for k in knobs] == sorted(k.quality_frac for k in knobs)
    assert len({k.name for k in knobs}) == len(knobs)
    assert knobs[0].quality_frac > 0, "below one frame in twenty nothing is left to offer"


# --- the format -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 3, "epoch_quality": [0.5, 0.6]}, "2 epoch qualities for 3 epochs"),
        ({"epoch_quality": [0.5]}, "1 epoch qualities for None epochs"),
        ({"init_gpu_s": 11.0}, "init_gpu_s is part of cost_gpu_s"),
        ({"epochs": 0}, "greater than or equal to 1"),
    ],
)
def test_an_option_that_contradicts_itself_is_refused_with_its_path(change: dict[str, object], message: str) -> None:
    body = json.loads(one_stream(window(0, 0.5), window(1, 0.5, option("x", 0.6))).model_dump_json())
    body["streams"][0]["windows"][1]["options"][0] |= change
    with pytest.raises(ConfigError, match=message) as caught:
        parse_trace(json.dumps(body))
    assert caught.value.problems[0][0].startswith("streams.0.windows.1.options.0")


# --- hold-out streams -------------------------------------------------------------------------------------------------


def test_experience_is_what_hold_out_streams_predicted_and_measured() -> None:
    trace = random_trace(streams=2, windows=3, options=4)
    seen = experience(trace.streams)
    offered = [(s, w, o) for s in trace.streams for w in s.windows for o in w.options]
    known = [(s, w, o) for s, w, o in offered if o.predicted_quality is not None and o.measured_quality is not None]
    assert len(seen) == len({(s.id, w.start_quality, o) for s, w, o in known})
    assert all(o.window < 0 for o in seen), "before the box was put up"
    _, w, o = known[0]
    first = next(e for e in seen if e.option == o.name)
    assert o.measured_quality is not None
    assert first.realised_quality - first.start_quality == pytest.approx(o.measured_quality - w.start_quality)


def test_experience_counts_a_repeated_window_once() -> None:
    trace = random_trace(streams=1, windows=2, options=2)
    stream = trace.streams[0]
    twice = stream.model_copy(update={"windows": (*stream.windows, *stream.windows)})
    assert len(experience([twice])) == len(experience([stream]))
