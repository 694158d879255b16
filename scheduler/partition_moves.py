"""How jobs come to their partitions where a partition cannot be resized (MPS static partitions): which job moves next, and where to.

A job that is to have more groups of multiprocessors needs a second partition beside the one it has, for as long as its standby is warmed
and the old process drains. Where that fits all is simple. Where it does not, a room that is nobody's home any more is cleared: who is in
it moves in with others for a moment, and from there to a partition of its own. All keep running meanwhile, on SMs that they share; their
tokens hold their shares as ever. A room is only cleared when that makes enough room for somebody.

Who has more than it should keeps it until somebody lacks it: shares swing, and every move costs a process.

What sizes are wanted says `scheduler.partitions.plan_partitions`. Nothing here is from a paper.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.partitions import Partition


@dataclass(frozen=True, kw_only=True)
class Room:
    """A partition that there is. jobs: who has a process in it, in the order in which they came."""

    name: str
    groups: int
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Move:
    """A new partition of `groups`, or into the one named `beside`, which has so many."""

    groups: int
    beside: str = ""


def wanted_for(job: str, plan: Sequence[Partition], *, groups: int) -> Partition:
    """The planned partition of a job; one group for a job that nothing was promised to, which its tokens hold. Never all `groups` that
    there are: nothing could be made beside such a partition, so nobody could ever leave it."""
    planned = next((part for part in plan if job in part.jobs), Partition(jobs=(job,), share_pct=0.0, groups=1))
    return replace(planned, groups=min(planned.groups, max(1, groups - 1)))


def next_move(
    job: str, plan: Sequence[Partition], rooms: Sequence[Room], *, free: int, at: Mapping[str, str],
    waiting: Collection[str] = (),
) -> Move | None:  # fmt: skip
    """Where the next process of `job` is to be; None: where it is now, or, for a newcomer, nowhere yet.

    free: groups in no partition; at: the room of each job that can move (others stay where they are until they end); waiting:
    newcomers that found no room. A job may still have a process in a room that it has left: it drains."""
    house = _House(plan, rooms, free, at, {*at, *waiting, job})
    wanted = house.wants[job]
    home = house.home(wanted, exactly=house.pressed)
    if home is not None:
        return None if at.get(job) == home.name else Move(groups=home.groups, beside=home.name)
    left = next((room for room in rooms if room.groups == wanted.groups and not house.lives_in(room)), None)
    if left is not None:
        return Move(groups=left.groups, beside=left.name)
    if wanted.groups <= free:
        return Move(groups=wanted.groups)
    return house.detour(job) if house.pressed and job in at else None


def is_pressed(
    plan: Sequence[Partition], rooms: Sequence[Room], *, free: int, at: Mapping[str, str], waiting: Collection[str] = ()
) -> bool:
    """Somebody lacks a partition that does not fit beside those that there are: whoever needs none should give its own back."""
    return _House(plan, rooms, free, at, {*at, *waiting}).pressed


def last_resort(rooms: Sequence[Room], *, free: int) -> Move | None:
    """For a newcomer that cannot wait any longer: the largest there is, its own or another's. None: there is nothing at all."""
    shared = max(rooms, key=lambda room: (room.groups, -len(room.jobs), room.name), default=None)
    if shared is None or free > shared.groups:
        return Move(groups=free) if free > 0 else None
    return Move(groups=shared.groups, beside=shared.name)


class _House:
    """All rooms at once. asking: jobs that move or wait."""

    def __init__(
        self, plan: Sequence[Partition], rooms: Sequence[Room], free: int, at: Mapping[str, str], asking: Collection[str]
    ) -> None:
        self.rooms, self.free, self.at = rooms, free, at
        self.groups = free + sum(room.groups for room in rooms)
        self.wants = {job: wanted_for(job, plan, groups=self.groups) for job in asking}
        lacking = [want.groups for want in self.wants.values() if self.home(want, exactly=False) is None]
        self.need = min((groups for groups in lacking if groups > free), default=0)

    @property
    def pressed(self) -> bool:
        """Somebody lacks a partition that does not fit beside those that there are."""
        return self.need > 0

    def lives_in(self, room: Room) -> tuple[str, ...]:
        """Who has not left it."""
        return tuple(job for job in room.jobs if self.at.get(job, room.name) == room.name)

    def home(self, want: Partition, *, exactly: bool) -> Room | None:
        """The one room of those who want that: whose first inhabitant is one of them; the others in it are guests. exactly: of just
        that size, else of that size or larger."""
        fitting = [
            room for room in self.rooms
            if room.groups == want.groups or (room.groups > want.groups and not exactly)
            if self.lives_in(room)[:1] and self.lives_in(room)[0] in want.jobs
        ]  # fmt: skip
        return max(
            fitting, key=lambda room: (len(set(self.lives_in(room)) & set(want.jobs)), -room.groups, room.name), default=None
        )

    def detour(self, job: str) -> Move | None:
        """For a job in the room that is cleared next: where it waits for its own. Of the rooms that are nobody's home the smallest that
        is enough is cleared, else the largest; who is in it goes to the largest home, or, where it is the only one, to what is left
        beside its old partition and its next."""
        emptying = sum(room.groups for room in self.rooms if not self.lives_in(room))
        homes = {home.name for home in (self.home(want, exactly=True) for want in self.wants.values()) if home is not None}
        strays = [room for room in self.rooms if room.name not in homes and self._can_be_cleared(room)]
        if self.free + emptying >= self.need or self.free + sum(room.groups for room in strays) < self.need:
            return None
        enough = [room for room in strays if self.free + room.groups >= self.need]
        cleared = min(enough, key=_size) if enough else max(strays, key=_size)
        if self.at[job] != cleared.name:
            return None
        others = [room for room in self.rooms if room is not cleared and self.lives_in(room)]
        if not others:
            return Move(groups=min(self.free, self.groups - self.wants[job].groups))
        refuge = max(others, key=lambda room: (room.name in homes, room.groups, room.name))
        return Move(groups=refuge.groups, beside=refuge.name)

    def _can_be_cleared(self, room: Room) -> bool:
        living = self.lives_in(room)
        return bool(living) and all(job in self.at for job in living)


def _size(room: Room) -> tuple[int, str]:
    return room.groups, room.name
