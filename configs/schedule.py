"""Weekly times of day: `mon-fri 07:00-19:00`, `sat,sun 22:00-06:00`, `00:00-24:00`. Pure: whoever asks brings the local time.

Everything is read off the wall clock of the place. When clocks go forward, nobody asks for the hour that is skipped; when they go back,
the hour that comes twice is in the span both times. A span that begins before the change and ends after it therefore lasts an hour less
or more, as people who wrote it down expect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

DAYS: tuple[str, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN = 24 * 60
#: Spans of one schedule: more is a mistake of a program.
MAX_SPANS = 50

_SPAN = re.compile(r"^(?:(?P<days>[a-z,-]+)\s+)?(?P<from>\d{1,2}:\d{2})\s*-\s*(?P<until>\d{1,2}:\d{2})$")
_HELP = "write mon-fri 07:00-19:00, sat,sun 22:00-06:00 or 00:00-24:00"


@dataclass(frozen=True, kw_only=True)
class Span:
    """days: on which it begins, 0 is Monday; minutes since midnight. until_min <= from_min: it ends on the next day."""

    days: frozenset[int]
    from_min: int
    until_min: int

    def holds(self, day: int, minute: int) -> bool:
        """Whether it is on at a minute of a day of the week."""
        if self.from_min < self.until_min:
            return day in self.days and self.from_min <= minute < self.until_min
        begun_today = day in self.days and minute >= self.from_min
        return begun_today or ((day - 1) % 7 in self.days and minute < self.until_min)


def span_of(text: str) -> Span:
    """Raises ValueError, saying how it is written."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text[:40]!r} is no time of the week: {_HELP}")
    from_min, until_min = _minutes(found["from"], 23), _minutes(found["until"], 24)
    if from_min == until_min:
        raise ValueError(f"{text[:40]!r} begins when it ends; a whole day is 00:00-24:00")
    return Span(days=_days(found["days"]), from_min=from_min, until_min=until_min)


def active_at(spans: Iterable[Span], local: datetime) -> bool:
    """Whether any of them is on at a local time (only its weekday and time of day count). No span at all: always."""
    spans = tuple(spans)
    day, minute = local.weekday(), 60 * local.hour + local.minute
    return not spans or any(span.holds(day, minute) for span in spans)


def _minutes(text: str, last_hour: int) -> int:
    hour, minute = (int(part) for part in text.split(":"))
    if hour > last_hour or minute > 59 or (hour == 24 and minute):
        raise ValueError(f"{text} is no time of day: {_HELP}")
    return 60 * hour + minute


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"{part[:20]!r} is no day; days are {', '.join(DAYS)}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        days |= {(begin + step) % 7 for step in range((end - begin) % 7 + 1)}
    return frozenset(days)
