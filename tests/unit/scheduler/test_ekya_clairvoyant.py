"""The clairvoyant optimum: against a search without any bound, against every policy, and against itself played through."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from scheduler.ekya.clairvoyant import Best, clairvoyant
from scheduler.ekya.estimate import SpeedCurve, best_knobs, kept_frac
from scheduler.ekya.timeline import WindowRun, held_by, play_window, replan
from scheduler.registry import make_policy
from scheduler.sim.random_profiles import linear_knobs, random_snapshot, sampled_knobs
from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamView

SPEED = ((0.0, 0.0), (30.0, 0.6), (60.0, 0.85), (100.0, 1.0))
#: Policies whose plans are in quanta and train only what helps.
PLAYED = ("thief", "thief-repeat", "optimal", "fair", "fixed-config", "lookahead")


@st.composite
def problems(draw: st.DrawFn, *, streams: int = 2, quanta: int = 5, configs: int = 2, floors: bool = True) -> Snapshot:
    made = random_snapshot(
        draw(st.integers(0, 10_000)),
        streams=draw(st.integers(1, streams)),
        gpus=1,
        configs=draw(st.integers(0, configs)),
        knobs=draw(st.sampled_from([sampled_knobs(), linear_knobs()])),
        quantum_pct=draw(st.sampled_from([10, 20, 25])),
        window_s=draw(st.sampled_from([15.0, 60.0, 200.0])),
        min_quality=draw(st.sampled_from([0.0, 0.3, 0.5])) if floors else 0.0,
        estimate=draw(st.sampled_from(["static", "hand-back"])),
        running_frac=draw(st.sampled_from([0.0, 0.5])),
    )
    return replace(made, capacity_pct=made.quantum_pct * draw(st.integers(1, quanta)))


@st.composite
def curved(draw: st.DrawFn, *, streams: int = 2, quanta: int = 5, configs: int = 2) -> Snapshot:
    made = draw(problems(streams=streams, quanta=quanta, configs=configs))
    return replace(made, speed=draw(st.sampled_from([(), SPEED])), train_max_pct=draw(st.sampled_from([None, 30])))


# --- without any bound ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Camera:
    """quality now, and what may still be trained as (name, end quality, GPU-seconds left)."""

    quality: float
    offers: tuple[tuple[str, float, float], ...]


def flat_optimum(snapshot: Snapshot) -> float:
    """Every allocation and every option in every phase, written out once more."""
    cameras = tuple(
        Camera(v.quality, tuple((o.name, o.end_quality, o.cost_gpu_s) for o in v.retrain if o.end_quality > v.quality))
        for v in snapshot.streams
    )
    return best_from(snapshot, cameras, snapshot.remaining_s) / snapshot.remaining_s / len(cameras)


def shown(snapshot: Snapshot, cameras: tuple[Camera, ...], quanta: int) -> tuple[int, float]:
    """(cameras under the floor, minus summed quality) of the best inference on so many quanta."""
    found = []
    for shares in itertools.product(range(quanta + 1), repeat=len(cameras)):
        if sum(shares) <= quanta:
            pct = [s * snapshot.quantum_pct for s in shares]
            seen = [
                c.quality * kept_frac(best_knobs(v.knobs, p), p) for c, v, p in zip(cameras, snapshot.streams, pct, strict=True)
            ]
            found.append((sum(q < snapshot.min_quality - 1e-12 for q in seen), -sum(seen)))
    return min(found)


def best_from(snapshot: Snapshot, cameras: tuple[Camera, ...], left_s: float) -> float:
    quanta, speed = snapshot.capacity_pct // snapshot.quantum_pct, SpeedCurve.of(snapshot)
    fewest, negative = shown(snapshot, cameras, quanta)
    best = -negative * left_s
    for starts in ways_to_train(cameras, quanta):
        used = sum(q for q, _ in starts if q)
        below, negative = shown(snapshot, cameras, quanta - used)
        rates = [speed.at(q * snapshot.quantum_pct) for q, _ in starts]
        lasts_s = min([left_s, *(o[2] / r for r, (q, o) in zip(rates, starts, strict=True) if o and r > 0)])
        if below > fewest or used == 0 or lasts_s >= left_s:
            continue
        after = tuple(advanced(c, o, r * lasts_s) for c, (_, o), r in zip(cameras, starts, rates, strict=True))
        best = max(best, -negative * lasts_s + best_from(snapshot, after, left_s - lasts_s))
    return best


Offer = tuple[str, float, float]


def ways_to_train(cameras: tuple[Camera, ...], quanta: int) -> Iterator[tuple[tuple[int, Offer | None], ...]]:
    each = [[(0, None), *((q, o) for o in c.offers for q in range(1, quanta + 1))] for c in cameras]
    return (way for way in itertools.product(*each) if sum(q for q, _ in way) <= quanta)


def advanced(camera: Camera, offer: Offer | None, done_gpu_s: float) -> Camera:
    if offer is None or done_gpu_s == 0:
        return camera
    name, end, left = offer
    return Camera(end, ()) if left - done_gpu_s <= 1e-9 else Camera(camera.quality, ((name, end, left - done_gpu_s),))


@settings(max_examples=40, deadline=None)
@given(curved(quanta=4))
def test_it_is_the_best_of_all_schedules(snapshot: Snapshot) -> None:
    best = flat_optimum(snapshot)
    assert clairvoyant(snapshot).quality == pytest.approx(best, abs=1e-9)
    assert clairvoyant(snapshot, exhaustive=True).quality == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_it_is_the_best_of_all_schedules_where_there_is_something_to_train(floor: float) -> None:
    made = [random_snapshot(seed, streams=2, gpus=0.5, configs=2, min_quality=floor) for seed in range(12)]
    made = [replace(s, speed=SPEED, train_max_pct=30) for s in made]
    found = [clairvoyant(s) for s in made]
    assert [best.quality for best in found] == [pytest.approx(flat_optimum(s), abs=1e-9) for s in made]
    assert sum(len(best.schedule) > 1 for best in found) >= 6
    assert any(len(best.schedule) > 2 for best in found)


@settings(max_examples=40, deadline=None)
@given(problems(streams=3, quanta=8, configs=3, floors=False))
def test_with_proportional_speed_no_schedule_beats_the_best_list(snapshot: Snapshot) -> None:
    assert clairvoyant(snapshot, exhaustive=True).quality == pytest.approx(clairvoyant(snapshot).quality, abs=1e-9)


# --- played -----------------------------------------------------------------------------------------------------------


def played(snapshot: Snapshot, best: Best) -> WindowRun:
    return play_window(snapshot, best.schedule[0].held, best.rule)


@settings(max_examples=60, deadline=None)
@given(curved(streams=3, quanta=6, configs=2), st.booleans())
def test_the_schedule_comes_to_what_it_promises(snapshot: Snapshot, exhaustive: bool) -> None:
    best = clairvoyant(snapshot, exhaustive=exhaustive)
    assert sum(s.lasts_s for s in best.schedule) == pytest.approx(snapshot.remaining_s)
    assert all(sum(h.infer_pct + h.train_pct for h in s.held) <= snapshot.capacity_pct for s in best.schedule)
    assert played(snapshot, best).quality == pytest.approx(best.quality, abs=1e-9)


@pytest.mark.parametrize("name", PLAYED)
@settings(max_examples=25, deadline=None)
@given(snapshot=curved(streams=3, quanta=6, configs=2))
def test_no_policy_beats_it(name: str, snapshot: Snapshot) -> None:
    free = replace(snapshot, min_quality=0.0)  # a thief may leave more under the floor than need be, and gain by it
    policy = make_policy(name)
    run = play_window(free, held_by(policy(free)), replan(policy))
    assert run.quality <= clairvoyant(free).quality + 1e-9


@settings(max_examples=30, deadline=None)
@given(curved(streams=2, quanta=5, configs=2))
def test_the_floor_is_kept_in_every_phase(snapshot: Snapshot) -> None:
    for segment in played(snapshot, clairvoyant(snapshot)).segments:
        models = [
            q / kept if (kept := kept_frac(best_knobs(v.knobs, h.infer_pct), h.infer_pct)) else None
            for q, h, v in zip(segment.quality, segment.held, snapshot.streams, strict=True)
        ]
        if None in models:
            continue  # a camera without inference does not show its model
        cameras = tuple(Camera(float(m), ()) for m in models if m is not None)
        fewest = shown(snapshot, cameras, snapshot.capacity_pct // snapshot.quantum_pct)[0]
        assert sum(q < snapshot.min_quality - 1e-9 for q in segment.quality) <= fewest


# --- by hand ----------------------------------------------------------------------------------------------------------

FULL = (KnobProfile(name="full", demand_pct=20, quality_frac=1.0),)


def view(name: str, quality: float, *options: tuple[float, float]) -> StreamView:
    retrain = tuple(RetrainOption(name=f"{name}{n}", end_quality=q, cost_gpu_s=c) for n, (q, c) in enumerate(options))
    return StreamView(id=name, quality=quality, knobs=FULL, retrain=retrain)


def snapshot_of(*views: StreamView, capacity_pct: int = 100) -> Snapshot:
    return Snapshot(remaining_s=100, capacity_pct=capacity_pct, quantum_pct=10, min_quality=0, streams=views)


def test_one_after_the_other_by_hand() -> None:
    # 60 % train: A's 12 GPU-s take 20 s, B's 24 take 40 s; gains .3 over 80 s and .2 over 40 s
    best = clairvoyant(snapshot_of(view("A", 0.5, (0.8, 12)), view("B", 0.6, (0.8, 24))))
    assert best.quality == pytest.approx((0.5 * 100 + 0.3 * 80 + 0.6 * 100 + 0.2 * 40) / 200)
    assert [s.lasts_s for s in best.schedule] == [pytest.approx(20), pytest.approx(40), pytest.approx(40)]
    assert [[h.retrain for h in s.held] for s in best.schedule] == [["A0", None], [None, "B0"], [None, None]]
    assert [[h.train_pct for h in s.held] for s in best.schedule] == [[60, 0], [0, 60], [0, 0]]


def test_side_by_side_where_the_speed_falls_off() -> None:
    # two equal jobs: 30 % each moves .6 each, 60 % moves .85: together both end after 20 s, in turn after 14.1 and 28.2 s
    given_snapshot = replace(snapshot_of(view("A", 0.5, (0.8, 12)), view("B", 0.5, (0.8, 12))), speed=SPEED)
    best = clairvoyant(given_snapshot)
    assert [h.train_pct for h in best.schedule[0].held] == [30, 30]
    assert best.quality == pytest.approx(0.5 + 0.3 * 0.8)


@pytest.mark.parametrize("exhaustive", [False, True])
def test_what_costs_nothing_is_there_at_once(exhaustive: bool) -> None:
    given_snapshot = snapshot_of(view("A", 0.5, (0.9, 0.0)), view("B", 0.5, (0.8, 0.0), (0.9, 6.0)), view("C", 0.5))
    best = clairvoyant(given_snapshot, exhaustive=exhaustive)
    assert played(given_snapshot, best).quality == pytest.approx(best.quality, abs=1e-12)
    assert best.quality == pytest.approx((0.9 + 0.5 * 0.15 + 0.9 * 0.85 + 0.5) / 3)  # 40 % train for 15 s


def test_what_cannot_end_is_not_begun() -> None:
    best = clairvoyant(snapshot_of(view("A", 0.5, (0.9, 80.0))))
    assert [[h.retrain for h in s.held] for s in best.schedule] == [[None]]
    assert best.quality == pytest.approx(0.5)


def test_no_time_and_no_streams() -> None:
    assert clairvoyant(replace(snapshot_of(view("A", 0.5, (0.9, 1.0))), remaining_s=0)).quality == pytest.approx(0.5)
    assert clairvoyant(snapshot_of()).quality == 0.0
    assert clairvoyant(snapshot_of(), exhaustive=True).quality == 0.0


def test_too_large_a_problem_is_refused() -> None:
    many = tuple(view(f"s{n}", 0.5, *((0.6 + m / 100, 1.0 + m) for m in range(18))) for n in range(5))
    with pytest.raises(UsageError, match="combinations of models are too many"):
        clairvoyant(snapshot_of(*many))
