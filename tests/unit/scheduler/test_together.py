"""A lesson of several cameras: who takes what it made, and what of a camera's labels judges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import admission, together
from scheduler.together import Seen, in_doubt, judges, verdicts

RULE = {"margin": 0.0, "risk": 0.4, "seeing": 0.7}
NUMBER = st.none() | st.floats(0, 1) | st.sampled_from([math.nan, math.inf, -math.inf])


@st.composite
def anything(draw: st.DrawFn) -> Seen:
    serving, candidate, gain = draw(NUMBER), draw(NUMBER), None
    if serving is not None and candidate is not None:
        gain = candidate - serving
    return Seen(serving=serving, candidate=candidate, gain=gain, gain_sd=draw(NUMBER), frames=draw(st.integers(0, 40)))


def seen(serving: float, candidate: float, *, frames: int = 1, gain_sd: float | None = None) -> Seen:
    return Seen(serving=serving, candidate=candidate, gain=candidate - serving, gain_sd=gain_sd, frames=frames)


def admitted(*cameras: Seen) -> list[bool]:
    return [v.admitted for v in verdicts(cameras, **RULE)]


def doubt(*cameras: Seen) -> bool:
    return in_doubt(cameras, margin=0.0, seeing=0.7)


def test_one_label_in_five_judges_and_the_others_teach() -> None:
    assert [judges(n) for n in (0, 1, 2, 4, 5, 9, 10, 20)] == [0, 0, 1, 1, 1, 1, 2, 4]


def test_one_frame_of_each_of_eight_cameras_is_enough_where_each_alone_could_prove_nothing() -> None:
    cameras = [seen(0.5, 0.5 + gain) for gain in (0.2, 0.1, 0.15, 0.05, 0.2, 0.1, 0.25, 0.12)]
    assert admitted(*cameras) == [True] * 8
    assert [admitted(one) for one in cameras] == [[False]] * 8


def test_a_model_that_is_worse_for_all_serves_nobody() -> None:
    assert admitted(*(seen(0.6, 0.6 - loss) for loss in (0.1, 0.2, 0.05, 0.3))) == [False] * 4


def test_one_cameras_luck_carries_nobody() -> None:
    """The mean gain is above 0, and all of it is one frame of one camera."""
    assert admitted(seen(0.1, 1.0), *(seen(0.7, 0.6) for _ in range(7))) == [False] * 8


def test_what_lessons_win_outweighs_a_little_bad_luck_and_no_more() -> None:
    spread = (0.06, -0.06, 0.03, -0.03, 0.05, -0.05, 0.02, -0.02)
    assert all(admitted(*(seen(0.8, 0.795 + apart) for apart in spread)))
    assert not any(admitted(*(seen(0.8, 0.74 + apart) for apart in spread)))


def test_of_models_that_find_little_more_is_asked() -> None:
    spread = (0.06, -0.06, 0.03, -0.03, 0.05, -0.05, 0.02, -0.02)
    assert not any(admitted(*(seen(0.2, 0.195 + apart) for apart in spread)))


#: What eight cameras saw of three models that had learnt from labels of other pictures, each worse for them in the mean
#: (`tests/benchmarks/bad_lessons.py`): (serving, candidate, gain_sd, frames).
WORSE = {
    "night, seed 0": [
        (0.182, 0.250, None, 1), (0.143, 0.0, 0.010, 2), (0.923, 0.909, None, 1), (0.0, 0.0, 0.0, 2),
        (0.143, 0.500, 0.300, 2), (0.0, 1.0, None, 1), (0.750, 0.500, None, 1), (0.250, 0.909, None, 1),
    ],
    "night, seed 1": [
        (0.0, 0.500, None, 1), (0.0, 0.0, None, 1), (0.200, 0.0, 0.167, 2), (0.286, 0.500, None, 1),
        (0.824, 0.667, 0.044, 2), (0.0, 0.333, 0.250, 2), (0.0, 0.0, None, 1), (0.133, 0.444, 0.175, 2),
    ],
    "fog, seed 1": [
        (0.167, 0.235, 0.056, 2), (0.571, 0.667, None, 1), (0.222, 0.0, None, 1), (0.0, 0.0, None, 1),
        (0.364, 0.714, 0.075, 2), (0.286, 0.750, None, 1), (0.182, 0.0, None, 1), (0.222, 0.667, 0.200, 2),
    ],
}  # fmt: skip


@pytest.mark.parametrize("frames", WORSE.values(), ids=WORSE.keys())
def test_where_every_model_finds_a_third_or_less_an_object_or_two_decides_nothing(
    frames: list[tuple[float, float, float | None, int]],
) -> None:
    """Each was taken by a camera that lost by it, before anybody looked again."""
    cameras = [seen(s, c, frames=n, gain_sd=sd) for s, c, sd, n in frames]
    assert any(admitted(*cameras))
    assert doubt(*cameras)


def test_what_is_clear_is_not_looked_at_again() -> None:
    much = [seen(0.2, 0.2 + gain) for gain in (0.3, 0.25, 0.4, 0.2, 0.35, 0.3, 0.25, 0.3)]
    assert all(admitted(*much))
    assert not doubt(*much)
    worse = [seen(0.3, 0.3 - loss) for loss in (0.1, 0.2, 0.05, 0.3)]
    assert not doubt(*worse)


def test_models_that_find_most_of_what_is_there_are_trusted_at_the_first_look() -> None:
    spread = (0.06, -0.06, 0.03, -0.03, 0.05, -0.05, 0.02, -0.02)
    assert not doubt(*(seen(0.8, 0.795 + apart) for apart in spread))
    assert doubt(*(seen(0.5, 0.53 + apart) for apart in spread))


@given(st.lists(anything(), max_size=9))
def test_nothing_is_looked_at_again_that_is_sure_or_that_one_camera_alone_can_tell(cameras: list[Seen]) -> None:
    if doubt(*cameras):
        assert sum(s.tells() for s in cameras) >= 2
        known = [s for s in cameras if s.tells()]
        assert together._of_model(known, 0.0)[2] < together.SURE


def test_whose_own_frames_say_clearly_that_it_is_worse_there_keeps_its_model() -> None:
    """As where one camera's labels are of something else than the others'."""
    other = seen(0.8, 0.5, frames=8, gain_sd=0.02)
    assert admitted(*(seen(0.5, 0.7) for _ in range(14)), other) == [True] * 14 + [False]


def test_one_frame_that_speaks_against_it_keeps_from_no_camera_what_all_have_won() -> None:
    """One frame knows a gain to half a point of quality."""
    assert admitted(*(seen(0.5, 0.7) for _ in range(7)), seen(0.6, 0.55)) == [True] * 8


BLIND = Seen(serving=None, candidate=None, gain=None, gain_sd=None, frames=0)
DEAD = Seen(serving=0.5, candidate=math.nan, gain=math.nan, gain_sd=None, frames=3)


def test_who_cannot_tell_keeps_what_it_has_and_counts_for_nothing() -> None:
    assert admitted(BLIND, *(seen(0.5, 0.7) for _ in range(5)), DEAD) == [False, *[True] * 5, False]
    assert admitted(BLIND, *(seen(0.7, 0.5) for _ in range(5))) == [False] * 6


def test_few_frames_of_its_own_outweigh_what_others_saw_and_one_does_not() -> None:
    """The others gain a little: one frame that lost as much as five lets it be taken."""
    others = [seen(0.6, 0.6 + gain) for gain in (0.03, 0.06, 0.01, 0.05, 0.04, 0.02, 0.03)]
    assert admitted(*others, seen(0.85, 0.75))[-1] is True
    assert admitted(*others, seen(0.85, 0.75, frames=5, gain_sd=0.04))[-1] is False


def test_a_model_that_finds_next_to_nothing_on_a_cameras_frames_must_be_the_surer_there() -> None:
    """Of `tests/benchmarks/bad_lessons.py`: a model that was taught with the labels of other pictures, and eight cameras in fog. The
    first, third, fourth and seventh truly lose by it; three of them took it while only the chance counted."""
    told = [
        (0.59, 0.23, 3, 0.07), (0.33, 0.57, 2, 0.03), (0.69, 0.26, 3, 0.22), (0.11, 0.29, 3, 0.15),
        (0.00, 0.67, 2, 0.00), (0.25, 0.73, 2, 0.27), (0.80, 0.17, 2, 0.28), (0.00, 0.16, 4, 0.09),
    ]  # fmt: skip
    everywhere = [seen(old, new, frames=n, gain_sd=sd) for old, new, n, sd in told]
    assert admitted(*everywhere) == [False, True, False, False, True, True, False, False]


def test_a_model_that_nobody_can_tell_anything_of_serves_nobody() -> None:
    assert verdicts([BLIND, DEAD], **RULE) == [admission.REFUSED] * 2
    assert verdicts([DEAD] * 8, **RULE) == [admission.REFUSED] * 8


def test_a_camera_that_is_alone_is_judged_as_ever() -> None:
    one = seen(0.5, 0.6, frames=12, gain_sd=0.03)
    alone = admission.judge(0.5, 0.6, gain=one.gain, gain_sd=0.03, frames=12, **RULE)
    assert verdicts([one], **RULE) == [alone]
    assert alone.admitted


def test_the_error_of_all_is_that_of_a_mean_over_cameras_worked_by_hand() -> None:
    """Gains 0.1, 0.2, 0.3: mean 0.2, standard error 0.1 / sqrt(3). Of 0.1, 0.2 and 0.9 the last counts as 0.2 + 0.2."""
    _, gain, error = together._of_all([seen(0.4, 0.5), seen(0.4, 0.6), seen(0.4, 0.7)])
    assert gain == pytest.approx(0.2)
    assert error == pytest.approx(0.1 / math.sqrt(3))
    _, gain, _ = together._of_all([seen(0.1, 0.2), seen(0.1, 0.3), seen(0.1, 1.0)])
    assert gain == pytest.approx((0.1 + 0.2 + 0.4) / 3)


@given(st.lists(anything(), max_size=9))
def test_no_model_that_most_cameras_lose_much_by_is_taken_and_nothing_raises(cameras: list[Seen]) -> None:
    found = verdicts(cameras, **RULE)
    assert len(found) == len(cameras)
    gains = sorted(c.gain for c in cameras if c.tells() and c.gain is not None)
    if any(v.admitted for v in found):
        assert gains[len(gains) // 2] > -2 * together.FAR
    if not any(c.tells() for c in cameras):
        assert not any(v.admitted for v in found)


@given(st.lists(st.floats(0.15, 0.9), min_size=4, max_size=12), st.floats(0.15, 0.6))
def test_a_poisoned_lesson_serves_nobody(qualities: list[float], lost: float) -> None:
    """All lose, each as much as it can."""
    assert not any(admitted(*(seen(q, max(0.0, q - lost)) for q in qualities)))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 12)), min_size=2, max_size=8), st.randoms())
def test_the_order_of_cameras_decides_nothing(cameras: list[tuple[float, float, int]], random: object) -> None:
    numbered = [(i, seen(a, b, frames=n, gain_sd=0.05)) for i, (a, b, n) in enumerate(cameras)]
    shuffled = list(numbered)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first = dict(zip([i for i, _ in numbered], admitted(*(s for _, s in numbered)), strict=True))
    assert dict(zip([i for i, _ in shuffled], admitted(*(s for _, s in shuffled)), strict=True)) == first
