"""Profiles that speak for other cameras: what is told, by whom, when, and what policies have none of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import belief, pooled
from scheduler.commands import ReportPlan, StartGate, StartProfiling, StartRetraining
from scheduler.engine_state import BoxState, EngineConfig, StreamState
from scheduler.pooled import Profiled
from scheduler.types import RetrainConfig, RetrainOption
from tests.support.learning_world import LearningWorld, Ran, run

SHORT = RetrainOption(name="short", end_quality=0.6, cost_gpu_s=6.0)
LONG = RetrainOption(name="long", end_quality=0.7, cost_gpu_s=24.0)
CONFIGS = (
    RetrainConfig(name="short", epochs=5, layers_frac=0.5),
    RetrainConfig(name="long", epochs=15, layers_frac=0.5),
    RetrainConfig(name="head", epochs=10, layers_frac=0.1),
)
ONE = Profiled(options=(SHORT, LONG), start=0.5, taught=12)


def told(*known: Profiled, quality: float = 0.4, gain: float = 0.2, taught: int = 4) -> dict[str, RetrainOption]:
    return {o.name: o for o in pooled.options(known, quality=quality, gain=gain, taught=taught, least_sd=0.05)}


def test_a_worked_example() -> None:
    """Profiled at 0.5: short wins half of what long wins, for 0.5 and 2 GPU-s a label. A camera of 0.4 that should win 0.2, with four
    labels: 0.5 for 2 and 0.6 for 8 GPU-s."""
    found = told(ONE)
    assert found["short"].end_quality == pytest.approx(0.5)
    assert found["long"].end_quality == pytest.approx(0.6)
    assert (found["short"].cost_gpu_s, found["long"].cost_gpu_s) == (pytest.approx(2.0), pytest.approx(8.0))
    assert found["long"].quality_sd == pytest.approx(0.1)


def test_profiles_are_averaged_in_parts_of_their_best() -> None:
    """A second one from 0.1 on: short +0.4, long +0.2. Parts (1, 0.5) and (0.5, 1): alike, so both win all of it."""
    other = Profiled(options=(replace(SHORT, end_quality=0.5), replace(LONG, end_quality=0.3)), start=0.1, taught=12)
    found = told(ONE, other)
    assert found["short"].end_quality == found["long"].end_quality == pytest.approx(0.6)


def test_a_profile_in_which_nothing_wins_has_no_shape_but_tells_costs() -> None:
    flat = Profiled(
        options=(replace(SHORT, end_quality=0.5, cost_gpu_s=12.0), replace(LONG, end_quality=0.51)), start=0.5, taught=12
    )
    assert told(flat) == {}
    assert told(ONE, flat)["short"].end_quality == pytest.approx(0.5)
    assert told(ONE, flat)["short"].cost_gpu_s == pytest.approx(3.0)


def test_what_epochs_say_counts_as_four_profiles() -> None:
    """A profile in which both win alike: (1 + 4 * 5/7) / 5 and (1 + 4 * 15/17) / 5, so the short one wins 0.85 of 0.2."""
    alike = Profiled(options=(replace(SHORT, end_quality=0.7), LONG), start=0.5, taught=12)
    found = {
        o.name: o
        for o in pooled.options([alike], quality=0.4, gain=0.2, taught=4, least_sd=0.05, prior=pooled.by_epochs(CONFIGS))
    }
    assert found["long"].end_quality == pytest.approx(0.6)
    assert found["short"].end_quality == pytest.approx(0.4 + 0.2 * (1 + 4 * 5 / 7) / (1 + 4 * 15 / 17))


def test_layers_count_and_a_camera_that_has_learned_wins_less_by_few_epochs() -> None:
    """Fifteen epochs of half the layers: 15/17 and 15/19. Five: 5/7 and 5/9, so 0.81 and 0.70 of that. Ten of a tenth: as 4.5 such."""
    first, later = pooled.by_layers(CONFIGS, later=False), pooled.by_layers(CONFIGS, later=True)
    assert first.parts == pytest.approx({"short": 5 / 7, "long": 15 / 17, "head": 4.472 / 6.472}, abs=1e-3)
    assert later.parts == pytest.approx({"short": 5 / 9, "long": 15 / 19, "head": 4.472 / 8.472}, abs=1e-3)
    assert first.weight == later.weight == 8
    assert first.parts["head"] < first.parts["short"]


def test_a_lesson_that_cameras_share_takes_more_epochs() -> None:
    """15/20 and 5/10 of a first one, 15/25 and 5/15 of later ones."""
    first, later = (pooled.by_layers(CONFIGS, later=late, together=True).parts for late in (False, True))
    assert (first["long"], first["short"]) == pytest.approx((0.75, 0.5))
    assert (later["long"], later["short"]) == pytest.approx((0.6, 1 / 3))


def test_what_a_label_costs_to_learn_from_is_the_mean_of_the_profiles() -> None:
    dearer = Profiled(options=(replace(SHORT, cost_gpu_s=4.0),), start=0.5, taught=2)
    cheap = Profiled(options=(replace(SHORT, cost_gpu_s=4.0), replace(LONG, cost_gpu_s=12.0)), start=0.5, taught=4)
    assert pooled.label_gpu_s([dearer, cheap]) == {"short": pytest.approx(1.5), "long": pytest.approx(3.0)}
    assert pooled.label_gpu_s([]) == {}


def test_training_more_than_half_of_the_layers_wins_nothing_more() -> None:
    half, all_of_them = replace(CONFIGS[1], name="half"), replace(CONFIGS[1], name="all", layers_frac=1.0)
    parts = pooled.by_layers([half, all_of_them], later=False).parts
    assert parts["half"] == parts["all"]


@given(st.integers(1, 100), st.integers(1, 100), st.floats(0.01, 1), st.booleans())
def test_more_epochs_never_say_less(one: int, other: int, layers: float, later: bool) -> None:
    few, many = (
        RetrainConfig(name=name, epochs=n, layers_frac=layers) for name, n in zip("ab", sorted((one, other)), strict=True)
    )
    parts = pooled.by_layers([few, many], later=later).parts
    assert 0 < parts["a"] <= parts["b"] < 1


def test_a_configuration_of_which_nothing_is_known_beforehand_is_told_by_profiles_alone() -> None:
    prior = pooled.by_epochs(CONFIGS[1:])
    found = pooled.options([ONE], quality=0.4, gain=0.2, taught=4, least_sd=0.05, prior=prior)
    assert {o.name: o.end_quality for o in found}["short"] == pytest.approx(0.4 + 0.2 * 0.5 / ((1 + 4 * 15 / 17) / 5))


def test_nothing_is_known_of_nothing() -> None:
    assert told() == {}


@given(
    st.lists(
        st.builds(
            Profiled,
            options=st.tuples(
                st.builds(RetrainOption, name=st.just("a"), end_quality=st.floats(0, 1), cost_gpu_s=st.floats(0, 100)),
                st.builds(RetrainOption, name=st.just("b"), end_quality=st.floats(0, 1), cost_gpu_s=st.floats(0, 100)),
            ),
            start=st.floats(0, 1), taught=st.integers(0, 50),
        ),
        max_size=4,
    ),
    st.floats(0, 1), st.floats(0, 1), st.integers(0, 50),
)  # fmt: skip
def test_no_promise_leaves_the_scale_or_wins_more_than_is_expected(
    known: list[Profiled], quality: float, gain: float, taught: int
) -> None:
    options = pooled.options(known, quality=quality, gain=gain, taught=taught, least_sd=0.05)
    assert all(0 <= o.end_quality <= min(1.0, quality + gain) + 1e-9 and o.cost_gpu_s >= 0 for o in options)
    assert not options or max(o.end_quality for o in options) == pytest.approx(min(1.0, quality + gain))


# --- in the engine ----------------------------------------------------------------------------------------------------

CAMERAS = ("a", "b", "c", "d")


def lived(pool: int, *, windows: int = 5, policy: str = "lookahead", **changes: object) -> Ran:
    """Four cameras whose scene changes for their models in every window: there is always something to win."""
    world = LearningWorld(learns=0.8)
    world.said = lambda version, truth, window: truth - (0.1 if not version.endswith(f":{window}") else 0.0)
    return run(
        world, windows=windows, cameras=CAMERAS, profile_pool=pool, drift=False, reuse=False, policy=policy, label_frames=20,
        **{"overlap": True, **changes},
    )  # fmt: skip


def test_two_are_profiled_and_all_are_retrained() -> None:
    each, shared = lived(0, windows=3), lived(2, windows=3)
    assert len(shared.of(StartProfiling)) == 2 < len(each.of(StartProfiling))
    assert {c.stream for c in shared.of(StartRetraining)} == set(CAMERAS)


def test_people_read_who_told_them() -> None:
    reasons = [reason for c in lived(2).of(ReportPlan) for reason in c.reasons]
    assert any("told by 2 profiles of this box" in reason for reason in reasons)


def test_which_configurations_pay_follows_from_epochs_and_layers_only_where_that_is_asked_for() -> None:
    """Profiles find a head as good as a long one. Told by epochs alone it is nearly that; by layers it is no better than a short one."""
    state = BoxState()
    stream = state.streams["a"] = StreamState(id="a", knobs=(), version="1", quality=0.4, taught=4)
    alike = Profiled(
        options=tuple(RetrainOption(name=c.name, end_quality=0.7, cost_gpu_s=6.0) for c in CONFIGS), start=0.5, taught=12
    )
    config = EngineConfig(retrain=CONFIGS)

    def ends(config: EngineConfig) -> dict[str, float]:
        return {o.name: o.end_quality for o in belief.pooled_options(stream, state, config, [alike])}

    assert ends(config)["head"] > ends(config)["short"]
    assert ends(replace(config, pool_layers=True))["head"] < ends(replace(config, pool_layers=True))["short"]
    stream.has_won(0.2)  # it has learned: few epochs win less of what is left
    later = ends(replace(config, pool_layers=True))
    assert later["short"] < later["long"]


def test_profiles_grow_old() -> None:
    """After LASTS_WINDOWS windows somebody is profiled again."""
    profiled = [c.window for c in lived(2, windows=pooled.LASTS_WINDOWS + 5).of(StartProfiling)]
    assert len(profiled) > 2
    assert max(profiled) >= pooled.LASTS_WINDOWS


def test_cameras_that_learn_together_have_their_own() -> None:
    with_pool, without = (lived(pool, group=True).of(StartProfiling) for pool in (2, 0))
    assert with_pool == without


def test_cameras_that_do_every_step_together_have_their_own() -> None:
    with_pool, without = (lived(pool, overlap=False).of(StartProfiling) for pool in (2, 0))
    assert with_pool == without
    assert len(without) > 2


@pytest.mark.parametrize("policy", ["uniform(high,50)", "uniform(full,50)"])
def test_a_fixed_split_is_told_nothing_by_others(policy: str) -> None:
    with_pool, without = lived(2, policy=policy), lived(0, policy=policy)
    assert [type(c) for c in with_pool.world.done] == [type(c) for c in without.world.done]


# --- the paper's fixed split ------------------------------------------------------------------------------------------


def test_a_plain_split_serves_what_it_trained_without_a_gate() -> None:
    plain, gated = (lived(0, policy="uniform(full,50)", plain_splits=on) for on in (True, False))
    assert not plain.of(StartGate)
    assert gated.of(StartGate)
    assert len(plain.swaps()) == len(plain.of(StartRetraining))


def test_even_a_model_that_is_worse() -> None:
    world = LearningWorld(learns=0.1)
    ran = run(world, windows=3, policy="uniform(full,50)", plain_splits=True, drift=False, reuse=False, label_frames=20)
    assert ran.swaps()


def test_policies_that_choose_keep_their_gate() -> None:
    assert lived(2, plain_splits=True).of(StartGate)
