"""Which snapshots and clips go, and why. Pure: what is there, how old and how large, goes in; what to delete comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from edge.store.objects import MediaItem

DAY_S = 86_400.0
#: When there is too much, so much more is deleted as not to delete again for every new file.
SLACK_FRAC = 0.03


@dataclass(frozen=True, kw_only=True)
class Rules:
    """clip_days, snapshot_days: how long they are kept; camera_days: instead, by camera; class_days: instead, by class (a clip of
    several is kept for the longest). max_bytes: most that all may take; min_free_bytes: least free room on the disk."""

    clip_days: float
    snapshot_days: float
    max_bytes: int
    min_free_bytes: int = 0
    camera_days: Mapping[str, float] = field(default_factory=dict)
    class_days: Mapping[str, float] = field(default_factory=dict)

    def days(self, item: MediaItem) -> float:
        """How long an item is kept."""
        usual = self.camera_days.get(item.camera, self.clip_days if item.kind == "clip" else self.snapshot_days)
        return max((self.class_days.get(name, usual) for name in item.classes), default=usual)

    @property
    def least_days(self) -> float:
        return min((self.clip_days, self.snapshot_days, *self.camera_days.values(), *self.class_days.values()))


@dataclass(frozen=True, kw_only=True)
class Deletion:
    item: MediaItem
    reason: Literal["age", "size", "disk"]


def choose(
    items: Iterable[MediaItem], *, now_utc: float, used_bytes: int, free_bytes: float, rules: Rules, ages: bool = True
) -> Iterator[Deletion]:
    """What goes, in the order in which it should. items: oldest first; read no further than needed. used_bytes: of all items;
    free_bytes: on the disk. ages: also look for what is too old (that may read all items). Favourites never go."""
    goal_bytes = rules.max_bytes if used_bytes <= rules.max_bytes else int(rules.max_bytes * (1 - SLACK_FRAC))
    least_free = rules.min_free_bytes if free_bytes >= rules.min_free_bytes else rules.min_free_bytes * (1 + SLACK_FRAC)
    for item in items:
        age_days = (now_utc - item.at_utc) / DAY_S
        needed = used_bytes > goal_bytes or free_bytes < least_free
        if not needed and (not ages or age_days <= rules.least_days):
            return
        if item.favourite:
            continue
        reason: Literal["age", "size", "disk"] | None = None
        if age_days > rules.days(item):
            reason = "age"
        elif needed:
            reason = "size" if used_bytes > goal_bytes else "disk"
        if reason is not None:
            used_bytes -= item.size_bytes
            free_bytes += item.size_bytes
            yield Deletion(item=item, reason=reason)
