"""From shares to partitions of a GPU's multiprocessors (SMs), for backends that divide a device in space (CUDA green contexts).

A driver divides SMs only in equal groups of a size that depends on the architecture (`granularity`), so a share has to be rounded.
A group is `100 / groups` pct of the device; with 16 groups that is 6.25 points, which has two consequences here:

- jobs whose share is below one group live together in one *common* partition, as large as their shares together ask for. One group
  each would take from the others what nobody promised them;
- a partition is rounded *up* while groups are left (largest remainder first): what it is too large, token pacing takes back
  (`scheduler.pacing`), what it is too small nothing can give. Rounding down costs a job less than one group.

The bound of one group for rounding down is the usual one of largest-remainder apportionment. Nothing here is from a paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Shares are compared with this tolerance, in groups: 3 x 33.333 pct are not to lose a group to rounding.
EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class Granularity:
    """How finely an architecture's SMs can be divided. minimum_sms: of one partition; multiple_sms: partitions are multiples of it."""

    minimum_sms: int
    multiple_sms: int

    def round_down(self, sms: float) -> int:
        """The largest partition of at most `sms` SMs; 0 when not even the smallest fits."""
        whole = int(sms + EPSILON) // self.multiple_sms * self.multiple_sms
        return whole if whole >= self.minimum_sms else 0


def granularity(major: int, minor: int = 0) -> Granularity:
    """The driver's documented guideline per compute capability (CUDA driver API, green contexts; the driver itself is asked at run time
    and has the last word). ValueError: an architecture that cannot be divided."""
    if major < 6:
        raise ValueError(f"compute capability {major}.{minor} has no green contexts; they begin with 6.0")
    sizes = {6: (1, 1), 7: (2, 2), 8: (4, 2)}
    minimum, multiple = sizes.get(major, (8, 8))
    return Granularity(minimum_sms=minimum, multiple_sms=multiple)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Jobs that run on the same groups. share_pct: promised to them together; groups: how many they get, at least 1."""

    jobs: tuple[str, ...]
    share_pct: float
    groups: int


def plan_partitions(shares_pct: Mapping[str, float], *, groups: int) -> tuple[Partition, ...]:
    """Divides `groups` equal groups of SMs among jobs by their shares (percent of the whole device). Jobs with share 0 get none.

    Never more than `groups` together, never less than one per partition; a larger share never gets fewer groups than a smaller one;
    at most one partition has several jobs, those with the smallest shares. Ties go to the name that sorts first.
    Raises ValueError for shares that are negative, not finite or above 100 together, or when there is no group.
    """
    _check(shares_pct, groups)
    per_group_pct = 100.0 / groups
    wanted = {job: share / per_group_pct for job, share in sorted(shares_pct.items()) if share > 0}
    by_size = sorted(wanted, key=lambda job: (wanted[job], job))
    small_count = sum(ideal < 1 - EPSILON for ideal in wanted.values())
    while (
        small_count and len(wanted) - small_count + 1 > groups
    ):  # 100 pct and a crumb: rounding has left no group for the crumb
        small_count += 1
    small = tuple(sorted(by_size[:small_count]))
    members: dict[str, tuple[str, ...]] = {job: (job,) for job in wanted if job not in small}
    if small:
        members[small[0]] = small
    ideals = {first: sum(wanted[job] for job in jobs) for first, jobs in members.items()}
    counts = _apportion(ideals, groups)
    return tuple(
        Partition(jobs=members[first], share_pct=ideals[first] * per_group_pct, groups=counts[first])
        for first in sorted(members)
    )


def _check(shares_pct: Mapping[str, float], groups: int) -> None:
    if groups < 1:
        raise ValueError(f"there must be at least one group of SMs, got {groups}")
    for job, share in shares_pct.items():
        if not math.isfinite(share) or share < 0:
            raise ValueError(f"share of {job!r} must be 0 or more percent, got {share}")
    if sum(shares_pct.values()) > 100 + 1e-6:
        raise ValueError(f"shares sum to {sum(shares_pct.values()):g} pct of one device")


def _apportion(ideals: Mapping[str, float], groups: int) -> dict[str, int]:
    """Floors, at least 1 each, then one more for the largest remainders. Only the common partition can be below one group, and then
    the others' floors leave a group for it, because their ideals sum to less than `groups` (but for rounding: the largest gives)."""
    counts = {key: max(1, math.floor(ideal + EPSILON)) for key, ideal in ideals.items()}
    while sum(counts.values()) > groups:
        counts[max(counts, key=lambda key: (counts[key], key))] -= 1
    spare = groups - sum(counts.values())
    by_remainder = sorted(ideals, key=lambda key: (counts[key] - ideals[key], key))
    for key in by_remainder[: max(0, spare)]:
        if ideals[key] > counts[key] + EPSILON:
            counts[key] += 1
    return counts


def assign_groups(
    before: Mapping[str, tuple[int, ...]], counts: Mapping[str, int], *, groups: int
) -> dict[str, tuple[int, ...]]:
    """Which groups (0..groups-1) each partition gets, moving as few as possible: a partition keeps the lowest of those it has, and
    takes the lowest free ones beyond. A partition whose groups stay the same needs no new context. ValueError: too many asked for."""
    if sum(counts.values()) > groups:
        raise ValueError(f"{sum(counts.values())} groups asked for, there are {groups}")
    kept = {key: tuple(sorted(before.get(key, ())))[:count] for key, count in counts.items()}
    free = _free(kept.values(), groups)
    assigned = {}
    for key in sorted(counts):
        missing = counts[key] - len(kept[key])
        assigned[key] = tuple(sorted((*kept[key], *free[:missing])))
        del free[:missing]
    return assigned


def _free(taken: Iterable[tuple[int, ...]], groups: int) -> list[int]:
    used = {group for ids in taken for group in ids}
    return [group for group in range(groups) if group not in used]
