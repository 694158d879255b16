"""Hierarchical max-min fair sharing of nodes (card section 5; worked example 8).

Every user gets a disjoint set of nodes: his resource, any number of it, exists on those and no others; he adds {his resource: 1} to his
tasks. `division` and `assigned` are pure; `FairShare` keeps them true. Users that have subordinates divide what they have got by the
same rule, so a task of team A of organisation 1 demands both.

Max-min: a user who can use fewer nodes than his part gets what he can use, and the rest is divided again among the others. Whole nodes
by largest remainder. Nodes move as little as possible; what runs on one that has changed hands finishes there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.engines.base import INFINITE, NodeId
from cluster.escher.policies.base import Command, Drop, Step, View, Want
from cluster.escher.wishes import Wish


@dataclass(frozen=True, kw_only=True)
class User:
    """parent: '' directly under the whole; active: he has work waiting or running (one with subordinates: if one of them has);
    needs: nodes that he can use, None: all."""

    id: str
    weight: float = 1.0
    parent: str = ""
    active: bool = True
    needs: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"the weight of {self.id} must be above 0, got {self.weight}")


def division(nodes: int, users: Sequence[User]) -> dict[str, int]:
    """How many nodes each of some siblings gets. Sum is `nodes` as long as somebody can use them."""
    parts = {user.id: 0.0 for user in users}
    open_users = [user for user in users if user.active and user.needs != 0]
    left = float(nodes)
    while open_users and left > 0:
        weights = math.fsum(user.weight for user in open_users)
        fair = {user.id: left * user.weight / weights for user in open_users}
        satisfied = [user for user in open_users if user.needs is not None and user.needs <= fair[user.id]]
        if not satisfied:
            parts.update(fair)
            break
        for user in satisfied:
            parts[user.id] = float(user.needs or 0)
            left -= parts[user.id]
        open_users = [user for user in open_users if user not in satisfied]
    return _whole(parts, {user.id: user.needs for user in users}, nodes)


def _whole(parts: Mapping[str, float], needs: Mapping[str, int | None], nodes: int) -> dict[str, int]:
    """By largest remainder; ties by name."""
    found = {name: math.floor(part + 1e-9) for name, part in parts.items()}
    spare = min(nodes, round(math.fsum(parts.values()))) - sum(found.values())
    order = sorted(parts, key=lambda name: (-(parts[name] - found[name]), name))
    for name in order[:spare]:
        room = needs[name]
        if room is None or found[name] < room:
            found[name] += 1
    return found


def divided(nodes: int, users: Sequence[User]) -> dict[str, int]:
    """The whole tree: user -> nodes; subordinates divide what their parent has got. ValueError for a circle, or no parent."""
    _checked(users)
    found: dict[str, int] = {}

    def divide(parent: str, count: int) -> None:
        siblings = [_summed(user, users) for user in users if user.parent == parent]
        parts = division(count, siblings)
        found.update(parts)
        for user in siblings:
            divide(user.id, parts[user.id])

    divide("", nodes)
    return found


def _summed(user: User, users: Sequence[User]) -> User:
    """With what his subordinates can use."""
    below = [_summed(child, users) for child in users if child.parent == user.id]
    if not below:
        return user
    busy = [child for child in below if child.active]
    needs = None if any(child.needs is None for child in busy) else sum(child.needs or 0 for child in busy)
    return replace(user, active=bool(busy), needs=needs)


def _checked(users: Sequence[User]) -> None:
    by_id = {user.id: user for user in users}
    if len(by_id) != len(users):
        raise ValueError("two users have the same id")
    for user in users:
        seen = {user.id}
        while user.parent:
            if user.parent not in by_id or user.parent in seen:
                raise ValueError(f"{user.id} is under {user.parent}, which is no user above it")
            seen.add(user.parent)
            user = by_id[user.parent]


def assigned(
    nodes: Sequence[NodeId], users: Sequence[User], now: Mapping[str, Sequence[NodeId]]
) -> dict[str, tuple[NodeId, ...]]:
    """User -> his nodes, in the tree: a parent has those of his subordinates. now: as it is; nobody loses a node that he may keep."""
    counts = divided(len(nodes), users)
    found: dict[str, tuple[NodeId, ...]] = {}

    def give(parent: str, domain: Sequence[NodeId]) -> None:
        siblings = [user.id for user in users if user.parent == parent]
        kept = {name: [n for n in now.get(name, ()) if n in domain][: counts[name]] for name in siblings}
        free = [node for node in domain if not any(node in mine for mine in kept.values())]
        for name in siblings:
            more = counts[name] - len(kept[name])
            kept[name] += free[:more]
            del free[: max(0, more)]
            found[name] = tuple(sorted(kept[name]))
        for name in siblings:
            give(name, found[name])

    give("", sorted(nodes))
    return found


@dataclass(frozen=True, kw_only=True)
class FairShare:
    """domain: nodes to divide, empty: all that live; granted: user -> his nodes, as last made."""

    id: str
    owner: str
    users: tuple[User, ...] = ()
    domain: tuple[NodeId, ...] = ()
    granted: Mapping[str, tuple[NodeId, ...]] = field(default_factory=dict)

    over = False

    def with_users(self, *users: User) -> FairShare:
        """New ones, or others with the same id in their place. ValueError as `divided`."""
        new = {user.id for user in users}
        after = (*(user for user in self.users if user.id not in new), *users)
        _checked(after)
        return replace(self, users=after)

    def resource(self, user: str) -> str:
        """What his tasks demand 1 of, beside his parents' (`demands`)."""
        return f"{self.id[:40]}.{user}"[:63].rstrip("._-")

    def demands(self, user: str) -> dict[str, float]:
        """Of a task: one unit of his resource and of each above him."""
        by_id = {u.id: u for u in self.users}
        found: dict[str, float] = {}
        while user:
            found[self.resource(user)] = 1.0
            user = by_id[user].parent
        return found

    def watches(self) -> tuple[str, ...]:
        return ()

    def undone(self) -> tuple[Command, ...]:
        return tuple(Drop(name=self.resource(user.id)) for user in self.users)

    def step(self, view: View, now_s: float) -> Step:
        nodes = [node.id for node in view.alive if not self.domain or node.id in self.domain]
        granted = assigned(nodes, self.users, self.granted)
        if granted == self.granted:
            return Step(policy=self)
        # losers first: a node is never two users' (what is held there is clamped, and asked again until it is gone)
        order = sorted(granted, key=lambda name: (not set(self.granted.get(name, ())) - set(granted[name]), name))
        losers = [
            self._want(name, [n for n in self.granted[name] if n in granted[name]]) for name in order if name in self.granted
        ]
        winners = [self._want(name, granted[name]) for name in order if granted[name] != self.granted.get(name, ())]
        gone = [Drop(name=self.resource(name)) for name in self.granted if name not in granted]
        return Step(policy=replace(self, granted=granted), commands=(*gone, *losers, *winners))

    def _want(self, user: str, nodes: Sequence[NodeId]) -> Want:
        return Want(wish=Wish(name=self.resource(user), owner=self.owner, per_node=dict.fromkeys(nodes, float(INFINITE))))
