"""One retraining for cameras that drifted together: who learns with whom. ECCO's idea (arXiv 2512.11727).

Cameras of one site often see the same change at the same time (dusk, snow, a new kind of vehicle). Their labels then teach the same
thing, and one retraining on a pool of them is worth as much to each as one of its own, at the cost of one. Here
    alike       the same architecture and the same list of retraining configurations, drifted in the same window, signatures not further
                apart than `distance_max` - each pair of the group, so that a chain of small steps does not join day with night
    leader      the one with the least quality: it has most to gain, and is profiled and retrained with everybody's labels
    pool        thinned so that the group pays for one retraining (the engine divides the configuration's data fraction)
    admission   every member gates the result on its own labels; one that refuses it learns alone in the next window
ECCO forms groups by how models score on each other's data; a distance of signatures costs nothing. Ours is off by default.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from scheduler.reuse import distance
from scheduler.types import Signature


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A camera that could learn with others. kind: cameras of different kinds never share (architecture, configurations); quality: of
    its serving model, None counts as 0."""

    id: str
    kind: Hashable
    signature: Signature | None
    quality: float | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """leader: profiled and retrained; followers: the others, nearest first."""

    leader: str
    followers: tuple[str, ...]

    @property
    def members(self) -> tuple[str, ...]:
        return (self.leader, *self.followers)


def groups(cameras: Sequence[Candidate], *, distance_max: float, members_max: int) -> tuple[Group, ...]:
    """Groups of two cameras at least, no camera in two, the neediest leader first. Cameras that are like no other are left out.

    Greedy: the camera in most need takes the nearest that are alike with all it has, then the next one in need among the rest; no
    two cameras that stay out of groups are alike, and no group has room for one of them."""
    waiting = sorted(cameras, key=lambda c: (c.quality or 0.0, c.id))
    found: list[Group] = []
    while waiting:
        leader, *rest = waiting
        taken = [leader]
        for other in sorted(rest, key=lambda c: (distance(leader.signature, c.signature), c.id)):
            if len(taken) < members_max and all(_alike(other, member, distance_max) for member in taken):
                taken.append(other)
        if len(taken) > 1:
            found.append(Group(leader=leader.id, followers=tuple(c.id for c in taken[1:])))
        waiting = [c for c in rest if c not in taken]
    return tuple(found)


def _alike(a: Candidate, b: Candidate, distance_max: float) -> bool:
    return a.kind == b.kind and distance(a.signature, b.signature) <= distance_max
