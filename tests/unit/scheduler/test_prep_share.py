"""The share of preparation: worked examples, a brute force over all shares, and what must hold for any cameras."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine_state import BoxState, EngineConfig, StreamState
from scheduler.prep import first_share_pct, label_tasks, share_pct
from scheduler.prep_share import LATER_WINDOWS, PRIOR_GAIN, Watched, Work, choose, expected_gain
from scheduler.registry import Needs, needs
from scheduler.types import KnobProfile

#: Loses nothing down to 5 % of the device, everything in proportion below.
EASY = (KnobProfile(name="every", demand_pct=5, quality_frac=1.0, fps=1.0),)
#: Needs 40 % for its full quality.
STEEP = (
    KnobProfile(name="every", demand_pct=40, quality_frac=1.0, fps=4.0),
    KnobProfile(name="1/2", demand_pct=20, quality_frac=0.6, fps=2.0),
    KnobProfile(name="1/4", demand_pct=10, quality_frac=0.3, fps=1.0),
)


def chosen(work: list[Work], watched: list[Watched], *, left_s: float = 200.0, most_s: float = 120.0) -> float:
    return choose(work, watched, left_s=left_s, most_s=most_s, capacity_pct=100, quantum_pct=10)


def test_inference_that_loses_nothing_leaves_all_the_rest() -> None:
    """Two cameras that need 5 % each: preparation takes 90 % when they gain, since sooner is better."""
    assert chosen([Work(gpu_s=20, gain=0.1)] * 2, [Watched(quality=0.8, knobs=EASY)] * 2) == 90


def test_measuring_only_takes_a_trickle_over_all_the_time_it_has() -> None:
    """Nothing is to be gained and inference suffers in proportion to its share (convex loss): the least share is the cheapest."""
    assert chosen([Work(gpu_s=5, gain=0.0)] * 2, [Watched(quality=0.8, knobs=STEEP)] * 2) == 10


def test_the_smallest_of_equally_good_shares() -> None:
    assert chosen([Work(gpu_s=1, gain=0.0)], [Watched(quality=0.8, knobs=EASY)]) == 10


def test_nothing_to_do_takes_the_least() -> None:
    assert chosen([], [Watched(quality=0.8, knobs=STEEP)]) == 10
    assert chosen([Work(gpu_s=5, gain=0.2)], [], left_s=0.0) == 10


def test_a_worked_example() -> None:
    """One camera of quality 0.8 that needs 40 %; a gain of 0.1 costs 30 GPU-s; 200 s are left, of which 120 for preparation. 20 %
    pay for 24 of the 30 GPU-s; 30 % take 100 s, 60 % take 50 s and cost inference nothing, 70 % take 43 s and cost 0.32 meanwhile:
    0.1 * (1 + 150/200) = 0.175 against 0.1 * (1 + 157.1/200) - 0.32 * 42.9/200 = 0.110."""
    assert chosen([Work(gpu_s=30, gain=0.1)], [Watched(quality=0.8, knobs=STEEP)]) == 60


def test_more_is_taken_when_more_is_to_be_gained() -> None:
    watched = [Watched(quality=0.6, knobs=STEEP)] * 2
    shares = [chosen([Work(gpu_s=30, gain=gain)] * 2, watched) for gain in (0.0, 0.02, 0.1, 0.5)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


@given(
    gains=st.lists(st.floats(0, 0.5), min_size=1, max_size=5), gpu_s=st.floats(0.5, 60), quality=st.floats(0.05, 1),
    speed=st.floats(0.1, 1),
)  # fmt: skip
def test_it_is_the_best_of_all_shares(gains: list[float], gpu_s: float, quality: float, speed: float) -> None:
    """Against a search that writes the objective out in its own words."""
    left_s, most_s = 200.0, 90.0
    work = [Work(gpu_s=gpu_s, gain=gain) for gain in gains]
    watched = [Watched(quality=quality, knobs=STEEP) for _ in gains]

    def shown(capacity: float) -> float:
        each = capacity / len(watched)
        kept = 1.0 if each >= 40 else 0.6 if each >= 20 else 0.3 if each >= 10 else 0.3 * each / 10
        return quality * kept * len(watched)

    def value(share: float) -> float:
        paid, gained, used = most_s * share / 100 * speed, 0.0, 0.0
        for gain in sorted(gains, reverse=True):
            part = max(0.0, min(1.0, (paid - used) / gpu_s))
            gained, used = gained + part * gain, used + part * gpu_s
        takes_s = used / (share / 100 * speed)
        return gained * ((left_s - takes_s) / left_s + LATER_WINDOWS) - (shown(100) - shown(100 - share)) * takes_s / left_s

    got = choose(work, watched, left_s=left_s, most_s=most_s, capacity_pct=100, quantum_pct=10, speed_frac=speed)
    assert got in range(10, 100, 10)
    assert value(got) >= max(value(share) for share in range(10, 100, 10)) - 1e-6


def test_what_a_camera_should_gain() -> None:
    assert expected_gain([], full=True) == PRIOR_GAIN
    assert expected_gain([0.3, 0.2], full=True) == pytest.approx(0.1)  # half of the newest
    assert expected_gain([-0.2], full=True) == 0.0
    assert expected_gain([0.3], full=False) == 0.0


# --- in the engine's preparation ------------------------------------------------------------------------------------------


def state_of(**streams: StreamState) -> BoxState:
    return BoxState(window=3, opened_s=0.0, ends_s=200.0, golden_gpu_s=0.5, streams=dict(streams))


def camera(id: str, **more: object) -> StreamState:
    return StreamState(id=id, knobs=STEEP, version="v", quality=0.7, **more)  # type: ignore[arg-type]


def test_a_configured_share_stays_unless_the_box_may_choose() -> None:
    state = state_of(a=camera("a"))
    assert share_pct(state, EngineConfig(prep_pct=35), needs("thief"), 0.0) == 35
    assert share_pct(state, EngineConfig(prep_pct=35, prep_auto=True), needs("thief"), 0.0) != 35


def test_a_fixed_split_keeps_its_promise_to_inference() -> None:
    config = EngineConfig(prep_pct=35, prep_auto=True)
    assert first_share_pct(config, needs("uniform(low,30)")) == 70
    assert first_share_pct(config, needs("uniform(low,100)")) == config.quantum_pct
    assert share_pct(state_of(a=camera("a")), config, needs("uniform(low,90)"), 0.0) == 10


def test_cameras_that_are_only_measured_take_less_than_cameras_that_learn() -> None:
    config = EngineConfig(prep_auto=True, label_frames=40, min_label_frames=8)
    learning = state_of(a=camera("a", gains=[0.2]), b=camera("b", gains=[0.1]))
    settled = state_of(a=camera("a", full=False), b=camera("b", full=False))
    assert share_pct(settled, config, Needs(), 0.0) < share_pct(learning, config, Needs(), 0.0)


def test_a_model_that_was_offered_gets_labels_to_be_judged_by_though_own_retrainings_won_nothing() -> None:
    config = EngineConfig(prep_auto=True, label_frames=40, min_label_frames=8)
    fruitless = state_of(a=camera("a", gains=[0.0, 0.0]))
    offered = state_of(a=camera("a", gains=[0.0, 0.0], offered=("night-1",)))
    for state in (fruitless, offered):
        state.prep_pct = share_pct(state, config, Needs(), 0.0)
    assert fruitless.prep_pct < offered.prep_pct
    assert [task.frames for task in label_tasks(fruitless, config, Needs(), 0.0)[0]] == [config.min_label_frames]
    assert [task.frames for task in label_tasks(offered, config, Needs(), 0.0)[0]] == [config.label_frames]
