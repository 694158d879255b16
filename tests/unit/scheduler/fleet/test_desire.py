"""Which wishes of the fleet a box applies."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fleet.desire import Answer, Known, judged, utc_s
from scheduler.fleet.types import CameraKey, CameraOrder, Desired, ShareOrder

NOW_S = 1_800_000_000.0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW_S + seconds, UTC).isoformat()


def wish(term: int = 1, version: int = 1, *, expires_s: float = 60.0, box: str = "hall", **more: object) -> Desired:
    return Desired(box=box, term=term, version=version, made_utc=at(0), expires_utc=at(expires_s), **more)  # type: ignore[arg-type]


def ask(new: Desired, known: Known | None = None, *, now_s: float = NOW_S, offset_s: float | None = 0.0) -> Answer:
    return judged(new, known or Known(), box="hall", now_utc_s=now_s, offset_s=offset_s)


def in_force(desired: Desired) -> Known:
    return Known(applied=desired, highest=desired.order)


def test_the_first_wish_is_applied() -> None:
    answer = ask(wish(3, 7))
    assert (answer.verdict, answer.why, answer.known.highest) == ("apply", "", (3, 7))


@pytest.mark.parametrize(
    ("new", "verdict", "word"),
    [
        (wish(2, 5), "apply", ""),
        (wish(3, 1), "apply", ""),
        (wish(2, 4), "same", ""),
        (wish(2, 4, expires_s=999), "same", ""),
        (wish(2, 4, expires_s=-999), "same", ""),
        (wish(2, 3), "refuse", "older"),
        (wish(1, 900), "refuse", "term 1 still writes"),
        (wish(2, 5, box="yard"), "refuse", "box yard"),
        (wish(2, 5, expires_s=-1), "refuse", "expired 1 s ago"),
        (wish(2, 5, expires_s=0), "refuse", "expired 0 s ago"),
    ],
)
def test_beside_one_that_is_in_force(new: Desired, verdict: str, word: str) -> None:
    answer = ask(new, in_force(wish(2, 4)))
    assert answer.verdict == verdict
    assert word in answer.why
    assert bool(answer.why) == (verdict == "refuse")


def test_split_brain_is_said_only_of_lower_terms_and_of_two_wishes_with_one_number() -> None:
    known = in_force(wish(2, 4))
    assert ask(wish(1, 9), known).split
    assert ask(wish(2, 4, draining=True), known).split
    assert not ask(wish(2, 3), known).split
    assert not ask(wish(2, 5, expires_s=-5), known).split


def test_a_wish_that_had_expired_still_says_that_its_term_has_begun() -> None:
    """The new controller was there, whatever became of its wish: the old one may not write any more."""
    known = ask(wish(5, 1, expires_s=-10), in_force(wish(4, 9))).known
    assert known.applied == wish(4, 9)
    assert ask(wish(4, 10), known).split
    assert ask(wish(5, 1, expires_s=60), known).verdict == "apply"  # made anew with the same number: nothing was put in force


def test_what_is_for_another_box_says_nothing_of_our_order() -> None:
    known = in_force(wish(2, 4))
    assert ask(wish(9, 9, box="yard"), known).known == known


@pytest.mark.parametrize("hours", [-1.0, 1.0, -30 * 24.0])
def test_a_wrong_clock_is_corrected_by_what_was_measured(hours: float) -> None:
    """A box whose clock goes `hours` after the controller's."""
    own_s = NOW_S - hours * 3600
    assert ask(wish(expires_s=30), now_s=own_s, offset_s=hours * 3600).verdict == "apply"
    assert ask(wish(expires_s=-30), now_s=own_s, offset_s=hours * 3600).verdict == "refuse"


def test_without_a_measured_difference_a_wish_waits_and_what_is_in_force_stays() -> None:
    known = in_force(wish(2, 4))
    answer = ask(wish(2, 5), known, offset_s=None)
    assert (answer.verdict, answer.known.applied) == ("wait", wish(2, 4))
    assert ask(wish(2, 4), known, offset_s=None).verdict == "same"
    assert ask(wish(2, 3), known, offset_s=None).verdict == "refuse"
    assert ask(wish(2, 5), answer.known, offset_s=0.0).verdict == "apply"


def test_what_stands_twice_is_refused() -> None:
    camera = CameraKey(home="hall", camera="gate")
    twice = (CameraOrder(camera=camera, role="own", term=1), CameraOrder(camera=camera, role="release", term=2))
    shares = (ShareOrder(customer="shop", share_pct=5), ShareOrder(customer="shop", share_pct=6))
    assert "hall/gate stands in it twice" in ask(wish(cameras=twice)).why
    assert "shop stands in it twice" in ask(wish(shares=shares)).why


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-11-22T10:00:00", "9999-99-99T00:00:00Z"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    assert utc_s(text) is None
    assert ask(replace(wish(), expires_utc=text)).verdict == "refuse"


def test_times_are_read_with_their_zone() -> None:
    assert utc_s("1970-01-01T01:00:00+01:00") == utc_s("1970-01-01T00:00:00Z") == 0.0


orders = st.tuples(st.integers(0, 5), st.integers(0, 5))


@given(st.lists(st.tuples(orders, st.booleans(), st.floats(-100, 100)), max_size=30))
def test_what_is_in_force_only_ever_moves_up_whatever_comes_and_how_often(
    messages: list[tuple[tuple[int, int], bool, float]],
) -> None:
    known = Known()
    for (term, version), draining, expires_s in messages:
        new = wish(term, version, expires_s=expires_s, draining=draining)
        answer = ask(new, known)
        before = known.applied.order if known.applied else (-1, -1)
        assert answer.known.highest >= known.highest
        assert answer.known.applied == known.applied
        if answer.verdict == "apply":
            assert new.order > before
            assert expires_s > 0
            known = replace(answer.known, applied=new)
        else:
            known = answer.known
        assert known.applied is None or known.applied.order <= known.highest


@given(st.lists(orders, min_size=1, max_size=12), st.randoms())
def test_the_highest_wish_wins_in_any_order_with_doubles(numbers: list[tuple[int, int]], rng: object) -> None:
    """Boxes that get the same wishes in any order, any number of times, come to the same."""

    def end(sequence: list[tuple[int, int]]) -> Desired | None:
        known = Known()
        for number in sequence:
            answer = ask(wish(*number), known)
            known = replace(answer.known, applied=wish(*number)) if answer.verdict == "apply" else answer.known
        return known.applied

    shuffled = numbers * 2
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    found = end(shuffled)
    assert found == wish(*max(numbers))
    assert found == end(sorted(numbers))
