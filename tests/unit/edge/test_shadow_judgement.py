"""When a new model may take over: what is held against it after some live frames, and what its golden quality explains."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.shadow import (
    LEAST_LOOKS,
    Glance,
    Overtime,
    Shadow,
    ShadowRules,
    is_finite,
    judge,
    overtime,
    plausible_ratio,
    said_of,
)
from models.evaluate import MatchCounts
from models.fake import FakeDetector
from scheduler.types import Detections

RULES = ShadowRules()


def seen(*, serving: int = 5, sure: int | None = None, new: int = 5, serving_s: float = 0.02, new_s: float = 0.02, n: int = 12):
    glance = Glance(serving=serving, sure=serving if sure is None else sure, new=new, serving_s=serving_s, new_s=new_s)
    return [glance] * n


def boxes(count: int, *, score: float = 0.9, value: float = 1.0) -> Detections:
    return Detections(
        xyxy=np.full((count, 4), value, np.float32),
        score=np.full(count, score, np.float32),
        class_id=np.zeros(count, np.int64),
    )


@pytest.mark.parametrize(
    ("glances", "qualities", "part"),
    [
        (seen(), (None, None), ""),
        (seen(new_s=0.039), (None, None), ""),
        (seen(new_s=0.05), (None, None), "too slow: 50 ms of compute a frame, the present one needs 20 ms"),
        (seen(serving_s=0.0001, new_s=0.0015), (None, None), ""),  # both are fast: noise is no slowness
        (seen(new=20), (None, None), ""),
        (seen(new=21), (None, None), "floods: 252 objects on 12 live frames, the present one 60"),
        (seen(serving=0, new=4), (None, None), ""),  # few are no flood, even where the present one sees nothing
        (seen(serving=0, new=30), (None, None), "floods"),
        (seen(serving=1, sure=0, new=9), (0.2, 0.7), ""),  # a present one of F1 0.2 misses most; 16.7 times more is plausible
        (seen(serving=1, sure=0, new=9), (0.7, 0.75), "floods"),  # not where it was good: 3.1 times
        (seen(serving=0, new=50), (0.0, 0.7), ""),  # measured blind
        (seen(new=0), (None, None), "blind: 0 objects where the present one is sure of 60, on 12 live frames"),
        (seen(new=0), (0.6, 0.7), "blind"),
        (seen(new=0, sure=0), (None, None), ""),  # it was not sure of any
        (seen(serving=30, new=0), (0.02, 0.7), ""),  # what a model of F1 0.02 is sure of need not be there
        (seen(serving=1, new=0, n=4), (None, None), ""),  # four objects, each may be missed
        (seen(new=1), (None, None), ""),
        (seen(new=500, new_s=9.0, n=LEAST_LOOKS - 1), (None, None), ""),  # too few frames to say anything
    ],
)
def test_what_is_held_against_a_new_model(glances: list[Glance], qualities: tuple, part: str) -> None:
    refusal = judge(glances, RULES, *qualities)
    assert part in refusal
    assert bool(refusal) == bool(part)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=30), st.integers(0, 8))
def test_no_two_measured_models_have_counts_that_their_qualities_do_not_explain(
    pairs: list[tuple[int, int]], truth: int
) -> None:
    """Two models on the same frames with `truth` labels each: whatever they find, the ratio of their counts is within the bound."""
    totals = []
    for which in (0, 1):
        found = [pair[which] for pair in pairs]
        counts = [MatchCounts(tp=min(n, truth), fp=max(0, n - truth), fn=max(0, truth - n)) for n in found]
        totals.append((sum(found), MatchCounts.total(counts).f1))
    (n0, f0), (n1, f1) = totals
    ratio = plausible_ratio(f0, f1)
    assert ratio is not None
    if n0 and n1 and truth:
        assert max(n0 / n1, n1 / n0) <= ratio * (1 + 1e-9)


def test_the_ratio_is_unknown_or_without_bound_where_quality_says_nothing() -> None:
    assert plausible_ratio(None, 0.5) is None
    assert plausible_ratio(0.5, None) is None
    assert plausible_ratio(0.0, 0.9) == math.inf
    assert plausible_ratio(1.0, 1.0) == 1.0


def test_the_shadow_costs_no_more_than_its_share() -> None:
    """2,000 frames of 20 ms; the new model needs three times as much. It looks on credit and pays back."""
    shadow = Shadow(FakeDetector(), "v2", ShadowRules(frames=10_000, share_frac=0.25))
    spent_s, serving_s, longest, since = 0.0, 0.0, 0, 0
    for _ in range(2000):
        serving_s += 0.02
        since += 1
        if shadow.may_look(0.02):
            shadow.add(boxes(3), boxes(3), serving_s=0.02, new_s=0.06)
            spent_s += 0.06
            longest, since = max(longest, since), 0
        assert spent_s <= 0.25 * serving_s + 0.06
    assert spent_s > 0.24 * serving_s
    assert longest <= 13


def test_rests_are_not_saved_up() -> None:
    shadow = Shadow(FakeDetector(), "v2", ShadowRules(frames=100, share_frac=0.25))
    assert shadow.may_look(0.02)
    shadow.add(boxes(1), boxes(1), serving_s=0.02, new_s=0.02)
    shadow.may_look(10.0)  # one very dear frame of the serving model
    looks = 0
    for _ in range(20):
        if shadow.may_look(0.02):
            shadow.add(boxes(1), boxes(1), serving_s=0.02, new_s=0.02)
            looks += 1
    assert looks <= 7


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_end_it_at_once(bad: float) -> None:
    shadow = Shadow(FakeDetector(), "v2", RULES)
    assert not is_finite(boxes(1, value=bad))
    shadow.add(boxes(1), boxes(2, score=bad), serving_s=0.01, new_s=0.01)
    assert shadow.over
    assert not shadow.may_look(1.0)
    assert "NaN" in shadow.verdict()


def test_the_first_reason_counts_and_a_full_run_ends_by_itself() -> None:
    shadow = Shadow(FakeDetector(), "v2", ShadowRules(frames=2))
    shadow.fail("one")
    shadow.fail("two")
    assert shadow.verdict() == "one"
    whole = Shadow(FakeDetector(), "v2", ShadowRules(frames=2, most_s=60.0))
    for _ in range(2):
        whole.add(boxes(1), boxes(1), serving_s=0.01, new_s=0.01)
    assert whole.verdict() == ""


def test_a_camera_that_gives_no_frames_holds_nothing_up() -> None:
    assert Shadow(FakeDetector(), "v2", ShadowRules(most_s=0.0)).verdict() == ""


def test_whoever_waits_is_woken_by_a_stop() -> None:
    shadow = Shadow(FakeDetector(), "v2", ShadowRules(most_s=60.0))
    said: list[str] = []
    waiting = threading.Thread(target=lambda: said.append(shadow.verdict()))
    waiting.start()
    shadow.fail("the box was stopped")
    waiting.join(120.0)
    assert said == ["the box was stopped"]


def test_a_prediction_that_takes_too_long_is_broken_off() -> None:
    now = [0.0]
    check = overtime(lambda: now[0], 0.5)
    check()
    now[0] = 0.6
    with pytest.raises(Overtime):
        check()
    assert "broken off" in said_of(Overtime())
    assert "rtsp://***@" in said_of(RuntimeError("rtsp://u:secret@cam/ broke"))
    shadow = Shadow(FakeDetector(), "v2", RULES)
    assert shadow.limit_s(1.0) == 8.0
    assert shadow.limit_s(0.0) > 0
