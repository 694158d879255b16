"""Time on a device that several jobs used at once: charges add up to the time it was busy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.overlap import Overlap


def test_alone_is_charged_in_full() -> None:
    book = Overlap()
    book.begin("a", 1.0)
    assert book.used_s("a", 1.5) == pytest.approx(0.5)
    assert book.end("a", 3.0) == pytest.approx(2.0)
    assert book.used_s("a", 9.0) == pytest.approx(2.0)


def test_two_at_once_are_charged_half() -> None:
    book = Overlap()
    book.begin("a", 0.0)
    book.begin("b", 2.0)
    assert book.end("a", 4.0) == pytest.approx(2.0 + 2.0 / 2)
    assert book.end("b", 5.0) == pytest.approx(2.0 / 2 + 1.0)


def test_a_long_one_beside_three_short_ones() -> None:
    book = Overlap()
    book.begin("long", 0.0)
    for start_s in (1.0, 3.0, 5.0):
        book.begin("short", start_s)
        assert book.end("short", start_s + 1.0) == pytest.approx(0.5)
    assert book.end("long", 8.0) == pytest.approx(5.0 + 3 * 0.5)


def test_an_end_that_is_told_late_takes_nothing_from_its_own_job() -> None:
    book = Overlap()
    book.begin("a", 0.0)
    book.begin("b", 0.0)
    assert book.end("b", 4.0) == pytest.approx(2.0)  # a's end at 1.0 is not known yet: 0.5 + 3.0 would be right
    assert book.end("a", 1.0) == pytest.approx(0.5)


def test_what_was_told_never_falls() -> None:
    book = Overlap()
    book.begin("a", 0.0)
    assert book.used_s("a", 5.0) == pytest.approx(5.0)
    book.end("a", 3.0)  # the host asked late, the device had been done earlier
    assert book.used_s("a", 6.0) == pytest.approx(5.0)
    book.begin("a", 10.0)
    assert book.used_s("a", 14.0) == pytest.approx(7.0)  # 3 + 4: the excess is not charged twice


def test_an_end_before_the_start_is_nothing() -> None:
    book = Overlap()
    book.begin("a", 2.0)
    assert book.end("a", 1.0) == 0.0


def test_one_piece_per_job() -> None:
    book = Overlap()
    book.begin("a", 0.0)
    with pytest.raises(ValueError, match="a"):
        book.begin("a", 1.0)


def test_a_job_that_left_counts_no_more() -> None:
    book = Overlap()
    book.begin("gone", 0.0)
    book.begin("a", 0.0)
    book.forget("gone")
    assert book.in_flight() == ("a",)
    assert book.end("a", 2.0) == pytest.approx(2.0)
    assert book.used_s("gone", 5.0) == 0.0


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, float]]:
    """(job, time) toggles in the order of time: a job that is out begins, one that is in ends."""
    times = sorted(draw(st.lists(st.integers(0, 100), min_size=1, max_size=40)))
    return [(draw(st.sampled_from("abcd")), float(at_s)) for at_s in times]


@given(histories())
def test_charges_add_up_to_busy_time(history: list[tuple[str, float]]) -> None:
    book, busy_s, last_s = Overlap(), 0.0, history[0][1]
    lengths: dict[str, float] = dict.fromkeys("abcd", 0.0)
    started: dict[str, float] = {}
    end_s = history[-1][1] + 1
    for job, at_s in [*history, *(("", end_s),)]:
        busy_s += (at_s - last_s) if book.in_flight() else 0.0
        last_s = at_s
        if job in book.in_flight():
            book.end(job, at_s)
            lengths[job] += at_s - started[job]
        elif job:
            book.begin(job, at_s)
            started[job] = at_s
    for job in book.in_flight():
        lengths[job] += end_s - started[job]
    used = {job: book.used_s(job, end_s) for job in "abcd"}
    assert sum(used.values()) == pytest.approx(busy_s)
    assert all(used[job] <= lengths[job] + 1e-9 for job in "abcd")


def test_memory_stays_bounded() -> None:
    book = Overlap()
    for n in range(1000):
        book.begin("a", n)
        book.begin("b", n + 0.25)
        book.end("a", n + 0.5)
        book.end("b", n + 0.75)
    assert book._pieces == []
