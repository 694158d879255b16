"""Weekly times: how they are read, what they hold, and what happens when clocks change."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.schedule import DAY_MIN, DAYS, active_at, span_of

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2026, 11, 23)  # a Monday


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return MONDAY + timedelta(days=day, hours=hour, minutes=minute)


def test_without_times_it_is_always_on() -> None:
    assert active_at((), at(3, 4))


@pytest.mark.parametrize(
    ("text", "on", "off"),
    [
        ("mon-fri 07:00-19:00", [(0, 7, 0), (4, 18, 59)], [(0, 6, 59), (4, 19, 0), (5, 12, 0)]),
        ("sat,sun 22:00-06:00", [(5, 22, 0), (6, 5, 59), (0, 5, 59)], [(5, 5, 0), (0, 22, 0), (6, 6, 0)]),
        ("00:00-24:00", [(0, 0, 0), (6, 23, 59)], []),
        ("fri-mon 12:00-13:00", [(4, 12, 0), (6, 12, 30), (0, 12, 0)], [(1, 12, 0), (3, 12, 0)]),
        ("Sun 23:00 - 24:00", [(6, 23, 0)], [(0, 0, 0), (6, 22, 59)]),
    ],
)
def test_a_span_holds_its_times(text: str, on: list[tuple[int, int, int]], off: list[tuple[int, int, int]]) -> None:
    span = span_of(text)
    assert all(active_at([span], at(*moment)) for moment in on)
    assert not any(active_at([span], at(*moment)) for moment in off)


@pytest.mark.parametrize(
    "text",
    ["", "07:00", "mon 7-9", "mon-fry 07:00-08:00", "24:30-25:00", "24:00-07:00", "10:00-10:00", "10:61-12:00", "x" * 500],
)
def test_what_is_no_time_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"write mon-fri|no day|begins when it ends"):
        span_of(text)


def test_when_clocks_go_forward_a_night_is_an_hour_shorter_and_when_they_go_back_an_hour_longer() -> None:
    night = [span_of("sat 22:00-06:00")]

    def minutes_on(start: datetime) -> int:
        moments = (start + timedelta(minutes=n) for n in range(24 * 60))
        return sum(active_at(night, moment.astimezone(BERLIN)) for moment in moments)

    forward, back, usual = (datetime(2026, *day, 12, tzinfo=UTC) for day in ((3, 28), (10, 24), (11, 21)))
    assert (minutes_on(forward), minutes_on(back), minutes_on(usual)) == (7 * 60, 9 * 60, 8 * 60)


def test_a_span_inside_the_skipped_hour_is_never_on_that_day_and_one_inside_the_doubled_hour_is_on_twice() -> None:
    span = [span_of("02:00-03:00")]

    def minutes_on(day: tuple[int, int]) -> int:
        start = datetime(2026, *day, tzinfo=BERLIN).astimezone(UTC)
        return sum(active_at(span, (start + timedelta(minutes=n)).astimezone(BERLIN)) for n in range(23 * 60))

    assert minutes_on((3, 29)) == 0
    assert minutes_on((10, 25)) == 120


_TIMES = st.integers(0, DAY_MIN - 1)


@given(days=st.sets(st.sampled_from(DAYS), min_size=1), begins=_TIMES, lasts=st.integers(1, DAY_MIN - 1))
def test_a_span_is_on_exactly_as_long_as_it_says(days: set[str], begins: int, lasts: int) -> None:
    ends = (begins + lasts) % DAY_MIN
    text = f"{','.join(sorted(days))} {begins // 60:02}:{begins % 60:02}-{ends // 60:02}:{ends % 60:02}"
    span = span_of(text)
    week = sum(active_at([span], MONDAY + timedelta(minutes=n)) for n in range(7 * DAY_MIN))
    assert week == len(days) * lasts


@given(st.text(max_size=60))
def test_any_text_is_a_span_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        span = span_of(text)
        assert span.days
        assert 0 <= span.from_min < DAY_MIN
        assert 0 <= span.until_min <= DAY_MIN
