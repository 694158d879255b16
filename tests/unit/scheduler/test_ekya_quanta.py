"""What quanta buy: the inference half by itself, against enumeration; speed up to what one job can use."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ekya.estimate import SpeedCurve, StreamEstimator, best_knobs, kept_frac
from scheduler.ekya.quanta import InferenceValue, KnobSteps, training_speed
from scheduler.sim.random_profiles import linear_knobs, random_snapshot, sampled_knobs
from scheduler.types import KnobProfile, Snapshot, StreamView

SPEED = ((0.0, 0.0), (30.0, 0.6), (60.0, 0.85), (100.0, 1.0))
ODD = (
    KnobProfile(name="nothing", demand_pct=0.0, quality_frac=0.2),
    KnobProfile(name="worse", demand_pct=20.0, quality_frac=0.1),
    KnobProfile(name="half", demand_pct=20.0, quality_frac=0.5),
    KnobProfile(name="never", demand_pct=900.0, quality_frac=1.0),
)


@st.composite
def problems(draw: st.DrawFn) -> Snapshot:
    made = random_snapshot(
        draw(st.integers(0, 10_000)),
        streams=draw(st.integers(1, 3)),
        gpus=1,
        configs=1,
        quantum_pct=draw(st.sampled_from([10, 15, 25])),
        min_quality=draw(st.sampled_from([0.0, 0.3, 0.5])),
    )
    made = replace(made, capacity_pct=draw(st.sampled_from([0, 20, 60, 100])))
    kinds = [linear_knobs(), sampled_knobs(), ODD, ()]
    return replace(made, streams=tuple(replace(v, knobs=draw(st.sampled_from(kinds))) for v in made.streams))


def value_of(snapshot: Snapshot) -> InferenceValue:
    speed = SpeedCurve.of(snapshot)
    return InferenceValue(snapshot, [StreamEstimator.of(view, snapshot, speed) for view in snapshot.streams])


def kept(view: StreamView, share_pct: int) -> float:
    return kept_frac(best_knobs(view.knobs, share_pct), share_pct)


def enumerated(snapshot: Snapshot, models: np.ndarray, quanta: int) -> tuple[int, float]:
    """(streams under the floor, value) of the best way to share `quanta` quanta between the inferences."""
    best = (len(models) + 1, 0.0)
    for shares in itertools.product(range(quanta + 1), repeat=len(models)):
        if sum(shares) <= quanta:
            seen = [kept(v, s * snapshot.quantum_pct) * m for v, s, m in zip(snapshot.streams, shares, models, strict=True)]
            best = min(best, (sum(q < snapshot.min_quality - 1e-12 for q in seen), -sum(seen)))
    return best[0], -best[1]


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 1_000))
def test_the_table_is_the_best_of_all_ways_to_share(snapshot: Snapshot, seed: int) -> None:
    models = np.random.default_rng(seed).uniform(0, 1, (2, len(snapshot.streams)))
    table = value_of(snapshot).table(models)
    for k, quanta in itertools.product(range(2), range(snapshot.capacity_pct // snapshot.quantum_pct + 1)):
        assert (table.below[k, quanta], table.value[k, quanta]) == pytest.approx(enumerated(snapshot, models[k], quanta))
        given_out = table.quanta[k, :, quanta]
        assert given_out.sum() <= quanta
        shown = [kept(v, int(q) * snapshot.quantum_pct) for v, q in zip(snapshot.streams, given_out, strict=True)]
        assert list(table.kept[k, :, quanta]) == shown
        assert table.value[k, quanta] == pytest.approx(float(np.dot(shown, models[k])))


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 1_000))
def test_leaving_a_stream_out_and_putting_it_back(snapshot: Snapshot, seed: int) -> None:
    models = np.random.default_rng(seed).uniform(0, 1, (3, len(snapshot.streams)))
    inference = value_of(snapshot)
    table, without = inference.table(models), inference.worth_without(models)
    for worth in (inference.worth(models), *(inference.worth_with(w, v, models[:1, v])[0] for v, w in enumerate(without))):
        value, below = inference.split(worth[:1])
        assert value == pytest.approx(table.value[:1])
        assert (below == table.below[:1]).all()


def test_a_stream_joins_with_several_models_at_once() -> None:
    snapshot = random_snapshot(1, streams=3, gpus=0.6, configs=1, min_quality=0.4)
    inference = value_of(snapshot)
    models = np.array([[0.5, 0.6, 0.7]])
    joined = inference.worth_with(inference.worth_without(models)[1], 1, np.array([0.1, 0.9]))
    for n, quality in enumerate((0.1, 0.9)):
        assert joined[n] == pytest.approx(inference.worth(np.array([[0.5, quality, 0.7]])))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_knob_steps_are_the_estimators(snapshot: Snapshot) -> None:
    for view in snapshot.streams:
        estimator = StreamEstimator.of(view, snapshot, SpeedCurve())
        quanta = snapshot.capacity_pct // snapshot.quantum_pct
        steps = KnobSteps.of(estimator, quanta, snapshot.quantum_pct)
        assert steps.quanta[0] == steps.kept[0] == 0
        for q in range(quanta + 1):
            assert steps.kept[steps.quanta <= q][-1] == estimator.frac_at(q * snapshot.quantum_pct)


def test_training_speed_in_quanta() -> None:
    snapshot = replace(random_snapshot(0, streams=1, gpus=1.25, configs=1), quantum_pct=30)
    assert training_speed(snapshot) == pytest.approx([0, 0.3, 0.6, 0.9, 1.2])
    assert training_speed(replace(snapshot, train_max_pct=75)) == pytest.approx([0, 0.3, 0.6, 0.75, 0.75])
    assert training_speed(replace(snapshot, speed=SPEED)) == pytest.approx([0, 0.6, 0.85, 0.9625, 1.4])
    assert training_speed(replace(snapshot, capacity_pct=20)) == pytest.approx([0])


def test_no_streams() -> None:
    inference = value_of(replace(random_snapshot(0, streams=0, gpus=1)))
    assert inference.table(np.zeros((1, 0))).value.tolist() == [[0.0] * 11]
    assert inference.worth_without(np.zeros((1, 0))).shape == (0, 1, 11)
