"""Which job runs in which partition of a GPU that its operator has divided (MIG): pure, no driver.

A partition has a fixed size, and a job lives in one of them for as long as it runs: its memory cannot be reached from another. So shares
that fit the GPU as a whole may not fit its parts: jobs of 40, 30 and 30 pct fit two halves of 50 pct only with a cut.
What cannot be kept is cut, and said.

This is bin packing with unequal bins. Best fit in decreasing order finds a complete placement nearly always at the sizes of a box; where
it does not, a bounded exact search tries again (`SEARCH_STEPS`), so that nobody's share is cut that need not be. The source is the usual
textbook treatment of bin packing; nothing here is from a paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Shares and sizes are compared with this tolerance, in points.
EPSILON_PCT = 1e-6
#: Steps that the exact search may take before the greedy placement is kept: milliseconds.
SEARCH_STEPS = 20_000


@dataclass(frozen=True, kw_only=True)
class Bin:
    """A partition. size_pct: of one GPU; memory_mib: what its jobs may hold together. ValueError: a size that is none."""

    id: str
    size_pct: float
    memory_mib: float = math.inf

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size_pct) and self.size_pct > 0) or not self.memory_mib > 0:
            raise ValueError(f"partition {self.id!r}: size and memory must be above 0, got {self.size_pct}, {self.memory_mib}")


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A job that wants `share_pct` of one GPU. memory_mib: its peak, 0 when unknown; placed: the partition it lives in already.
    ValueError: negative or not finite."""

    job: str
    share_pct: float
    memory_mib: float = 0.0
    placed: str | None = None

    def __post_init__(self) -> None:
        for name in ("share_pct", "memory_mib"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} of {self.job!r} must be 0 or more, got {value}")


@dataclass(frozen=True, kw_only=True)
class Placing:
    """where: job -> partition, without those that fit nowhere (memory) or want nothing; given_pct: job -> share that its partition can
    keep, never above what it wants."""

    where: Mapping[str, str]
    given_pct: Mapping[str, float]

    def cut(self, tenants: Sequence[Tenant]) -> tuple[Tenant, ...]:
        """Those who get less than they want."""
        return tuple(t for t in tenants if self.given_pct.get(t.job, 0.0) < t.share_pct - EPSILON_PCT)


@dataclass(kw_only=True)
class _Room:
    """What is left of a partition; left_pct may be negative: its jobs stay although they now want more than it has."""

    id: str
    left_pct: float
    left_mib: float

    def holds(self, tenant: Tenant) -> bool:
        return tenant.memory_mib <= self.left_mib and tenant.share_pct <= self.left_pct + EPSILON_PCT

    def take(self, tenant: Tenant, sign: int = 1) -> None:
        self.left_pct -= sign * tenant.share_pct
        self.left_mib -= sign * tenant.memory_mib


def place(bins: Sequence[Bin], tenants: Sequence[Tenant]) -> Placing:
    """Every tenant's partition and share. Who lives somewhere stays. Nobody's share is cut when a placement without cuts exists (and is
    found within `SEARCH_STEPS`); else the shares in an overfull partition are cut in proportion. Jobs with share 0 that live nowhere
    yet are not placed: they would decide today what is better decided when they want something.

    The answer does not depend on the order of the tenants. ValueError: two of one name, or a placement in an unknown partition."""
    _check(bins, tenants)
    rooms = [_Room(id=b.id, left_pct=b.size_pct, left_mib=b.memory_mib) for b in bins]
    by_id = {room.id: room for room in rooms}
    where = {t.job: t.placed for t in tenants if t.placed is not None}
    for tenant in tenants:
        if tenant.placed is not None:
            by_id[tenant.placed].take(tenant)
    new = sorted(
        (t for t in tenants if t.placed is None and t.share_pct > 0), key=lambda t: (-t.share_pct, -t.memory_mib, t.job)
    )
    found = _best_fit(rooms, new) or _search(rooms, new)
    where |= found if found is not None else _as_well_as_possible(rooms, new)
    return Placing(where=where, given_pct=_given(bins, tenants, where))


def _check(bins: Sequence[Bin], tenants: Sequence[Tenant]) -> None:
    ids = [b.id for b in bins]
    if len(set(ids)) < len(ids):
        raise ValueError("two partitions have one id")
    if len({t.job for t in tenants}) < len(tenants):
        raise ValueError("two tenants have one name")
    for tenant in tenants:
        if tenant.placed is not None and tenant.placed not in ids:
            raise ValueError(f"{tenant.job!r} is placed in {tenant.placed!r}, which is no partition")


def _best_fit(rooms: Sequence[_Room], tenants: Sequence[Tenant]) -> dict[str, str] | None:
    """Largest first, each where least is left over; None when one fits nowhere. The rooms are as before."""
    taken: list[tuple[_Room, Tenant]] = []
    for tenant in tenants:
        fitting = [room for room in rooms if room.holds(tenant)]
        if not fitting:
            break
        room = min(fitting, key=lambda r: (r.left_pct, r.left_mib, r.id))
        room.take(tenant)
        taken.append((room, tenant))
    for room, tenant in taken:
        room.take(tenant, -1)
    return {t.job: room.id for room, t in taken} if len(taken) == len(tenants) else None


def _search(rooms: Sequence[_Room], tenants: Sequence[Tenant]) -> dict[str, str] | None:
    """A complete placement by depth-first search, tightest partition first; None: there is none, or it was not found in time."""
    steps = SEARCH_STEPS
    where: dict[str, str] = {}

    def place_from(at: int) -> bool:
        nonlocal steps
        if at == len(tenants):
            return True
        tenant, tried = tenants[at], set[tuple[float, float]]()
        for room in sorted(rooms, key=lambda r: (r.left_pct, r.left_mib, r.id)):
            state = (room.left_pct, room.left_mib)
            if not room.holds(tenant) or state in tried:
                continue  # partitions with the same room left are the same to it
            tried.add(state)
            steps -= 1
            if steps < 0:
                return False
            room.take(tenant)
            where[tenant.job] = room.id
            done = place_from(at + 1)
            room.take(tenant, -1)
            if done:
                return True
        return False

    return where if place_from(0) else None


def _as_well_as_possible(rooms: Sequence[_Room], tenants: Sequence[Tenant]) -> dict[str, str]:
    """Best fit for those that fit, most room for the others; nobody where its memory does not fit."""
    where: dict[str, str] = {}
    for tenant in tenants:
        fitting = [room for room in rooms if room.holds(tenant)]
        if fitting:
            room = min(fitting, key=lambda r: (r.left_pct, r.left_mib, r.id))
        else:
            large = [room for room in rooms if tenant.memory_mib <= room.left_mib]
            if not large:
                continue
            room = max(large, key=lambda r: (r.left_pct, r.left_mib, r.id))
        room.take(tenant)
        where[tenant.job] = room.id
    return where


def _given(bins: Sequence[Bin], tenants: Sequence[Tenant], where: Mapping[str, str]) -> dict[str, float]:
    wanted = {b.id: 0.0 for b in bins}
    for tenant in sorted(tenants, key=lambda t: t.job):
        if tenant.job in where:
            wanted[where[tenant.job]] += tenant.share_pct
    size = {b.id: b.size_pct for b in bins}
    factor = {id: min(1.0, size[id] / pct) if pct > 0 else 1.0 for id, pct in wanted.items()}
    return {t.job: t.share_pct * factor[where[t.job]] for t in tenants if t.job in where}
