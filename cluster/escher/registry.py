"""Who made what, for how long, and what must be set so that the nodes have what is wished. Values in, values out.

The paper leaves clean-up open (card section 8); this is our answer. Every resource and task belongs to an *owner*, who lives by a lease
that he renews. When it runs out, all that is his is deleted. What is wished is kept apart from what the engine answered to have *in
force*, and `due` is the difference: it makes what is new, asks again for a shrink that was clamped, makes again what went with a node,
deletes what nobody wishes, and leaves alone what is right. All of it serialises (`scheduler.fleet.codec`), so a controller that starts
again goes on where its predecessor stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.engines.base import Demands, NodeId, NodeStatus, Task
from cluster.escher.amounts import ephemeral, fits, lacking, physical
from cluster.escher.names import REALM, checked_owner, owner_of
from cluster.escher.wishes import Wish, capacities
from configs.errors import UsageError

#: Most ephemeral resources on one node: engines send the whole table around with every heartbeat.
MOST_PER_NODE = 1000

#: An engine's own view of its resources may lag by so much (seconds); only what is missing for longer counts as lost.
LAG_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Held:
    """A resource on a node. asked: last asked for; answered: capacity that the engine said is in force; at_s: when."""

    asked: float
    answered: float
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Owner:
    """until_s: end of the lease, None: it does not end."""

    id: str
    until_s: float | None


@dataclass(frozen=True, kw_only=True)
class Submitted:
    owner: str
    task: Task


@dataclass(frozen=True, kw_only=True)
class Set:
    """One `set_resource` to make."""

    name: str
    capacity: float
    node: NodeId


@dataclass(frozen=True, kw_only=True)
class Registry:
    """in_force: node -> resource -> what was answered. places: word of `Where.together` -> node that its wishes share."""

    owners: Mapping[str, Owner] = field(default_factory=dict)
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    tasks: Mapping[str, Submitted] = field(default_factory=dict)
    in_force: Mapping[NodeId, Mapping[str, Held]] = field(default_factory=dict)
    places: Mapping[str, NodeId] = field(default_factory=dict)


# --- owners -----------------------------------------------------------------------------------------------------------


def leased(registry: Registry, owner: str, *, now_s: float, lease_s: float | None) -> Registry:
    """A new owner, or a renewed lease. UsageError for a name that cannot be one."""
    until_s = None if lease_s is None else now_s + lease_s
    return replace(registry, owners={**registry.owners, checked_owner(owner): Owner(id=owner, until_s=until_s)})


def expired(registry: Registry, now_s: float) -> tuple[str, ...]:
    """Owners whose lease has run out."""
    return tuple(sorted(o.id for o in registry.owners.values() if o.until_s is not None and o.until_s < now_s))


def without_owner(registry: Registry, owner: str) -> Registry:
    """All that is his is wished no more; `due` then deletes it. His tasks must be cancelled by the caller."""
    return replace(
        registry,
        owners={name: o for name, o in registry.owners.items() if name != owner},
        wishes={name: w for name, w in registry.wishes.items() if w.owner != owner},
        tasks={name: t for name, t in registry.tasks.items() if t.owner != owner},
    )


# --- wishes -----------------------------------------------------------------------------------------------------------


def wished(registry: Registry, wish: Wish, nodes: Sequence[NodeStatus]) -> Registry:
    """UsageError for an owner without a lease, a name that is another's, or more than `MOST_PER_NODE` on a node."""
    if wish.owner not in registry.owners:
        raise UsageError(f"{wish.owner} has no lease", subject=wish.owner, remedy="register the owner first", code="no_lease")
    before = registry.wishes.get(wish.name)
    if (before and before.owner != wish.owner) or owner_of(wish.name) not in (None, wish.owner):
        raise UsageError(
            f"{wish.name} belongs to another than {wish.owner}", subject=wish.name, remedy="begin it with the owner"
        )
    if before is None:
        there = capacities(wish, nodes)
        full = [node for node in there if len(registry.in_force.get(node, {}).keys() - {wish.name}) >= MOST_PER_NODE]
        if full:
            raise UsageError(
                f"node {full[0]} has {MOST_PER_NODE} ephemeral resources already",
                subject=full[0],
                remedy="drop some, or let their owners' leases run out",
                code="too_many",
            )
    return replace(registry, wishes={**registry.wishes, wish.name: wish})


def dropped(registry: Registry, name: str) -> Registry:
    """Unknown: nothing happens."""
    return replace(registry, wishes={n: w for n, w in registry.wishes.items() if n != name})


def lies_at(registry: Registry, name: str) -> tuple[NodeId, ...]:
    """Nodes on which a resource is in force, as far as known."""
    return tuple(sorted(node for node, names in registry.in_force.items() if name in names))


def desired(registry: Registry, nodes: Sequence[NodeStatus]) -> dict[NodeId, dict[str, float]]:
    """Node -> resource -> capacity, of all wishes."""
    found: dict[NodeId, dict[str, float]] = {}
    places = dict(registry.places)
    at: dict[str, set[NodeId]] = {}
    for node, names in registry.in_force.items():
        for name, held in names.items():
            if held.asked > 0:  # else it is on its way out there
                at.setdefault(name, set()).add(node)
    for name, wish in registry.wishes.items():
        word = wish.where.together
        now_at = {places[word]} if word in places else at.get(name, set())
        wanted = capacities(wish, nodes, now_at)
        if word and wanted:
            places[word] = next(iter(wanted))
        for node, capacity in wanted.items():
            found.setdefault(node, {})[name] = capacity
    return found


def settled(registry: Registry, nodes: Sequence[NodeStatus]) -> Registry:
    """Without what was on nodes that are gone (their resources went with them), and with a node for every word of `together`."""
    alive = {node.id for node in nodes if node.alive}
    kept = {node: names for node, names in registry.in_force.items() if node in alive and names}
    places = {word: node for word, node in registry.places.items() if node in alive}
    cleaned = replace(registry, in_force=kept, places=places)
    words = {wish.where.together for wish in registry.wishes.values()} - {""}
    if words == set(places):
        return cleaned
    where = desired(cleaned, nodes)
    for name, wish in registry.wishes.items():
        word = wish.where.together
        if word and word not in places:
            places.update((word, node) for node in where if name in where[node])
    return replace(cleaned, places={word: node for word, node in places.items() if word in words})


def about(registry: Registry, name: str) -> Registry:
    """What concerns one resource, so that a change of it does not cost a look at all others."""
    wish = registry.wishes.get(name)
    here = {node: {name: names[name]} for node, names in registry.in_force.items() if name in names}
    return Registry(wishes={name: wish} if wish else {}, in_force=here, places=registry.places)


def due(registry: Registry, nodes: Sequence[NodeStatus], now_s: float) -> tuple[Set, ...]:
    """What must be set, deletions first (a share that moves is never in two places), in a fixed order. Call `settled` before."""
    wanted = desired(registry, nodes)
    totals = {node.id: node.total for node in nodes if node.alive}
    deletions: list[Set] = []
    for node, names in registry.in_force.items():
        if node in totals:
            deletions += [Set(name=n, capacity=0.0, node=node) for n in names if n not in wanted.get(node, {})]
    changes: list[Set] = []
    for node, amounts in wanted.items():
        for name, capacity in amounts.items():
            held = registry.in_force.get(node, {}).get(name)
            if not _is_right(held, capacity, totals[node].get(name), now_s):
                changes.append(Set(name=name, capacity=capacity, node=node))
    shrinks_first = sorted(changes, key=lambda s: (s.capacity > _answered(registry, s), s.node, s.name))
    return (*sorted(deletions, key=lambda s: (s.node, s.name)), *shrinks_first)


def _answered(registry: Registry, change: Set) -> float:
    held = registry.in_force.get(change.node, {}).get(change.name)
    return held.answered if held else 0.0


def _is_right(held: Held | None, capacity: float, told: float | None, now_s: float) -> bool:
    """told: what the engine shows of it."""
    if held is None:
        return capacity == 0
    if held.asked != capacity or held.answered != capacity:
        return False
    # a raylet or a node object that was made anew has forgotten what was set on it
    return told is not None or capacity == 0 or now_s - held.at_s < LAG_S


def noted(registry: Registry, done: Set, answered: float, now_s: float) -> Registry:
    """After an engine answered to a `Set`."""
    names = dict(registry.in_force.get(done.node, {}))
    if done.capacity == 0 and answered == 0:
        names.pop(done.name, None)
    else:
        names[done.name] = Held(asked=done.capacity, answered=answered, at_s=now_s)
    return replace(registry, in_force={**registry.in_force, done.node: names})


def orphans(registry: Registry, nodes: Sequence[NodeStatus]) -> tuple[Set, ...]:
    """Resources of our realm that nodes show and no wish and no record explains: somebody died between making and writing it down."""
    return tuple(
        Set(name=name, capacity=0.0, node=node.id)
        for node in nodes
        if node.alive
        for name in sorted(node.total)
        if name.startswith(f"{REALM}.") and name not in registry.wishes and name not in registry.in_force.get(node.id, {})
    )


# --- tasks ------------------------------------------------------------------------------------------------------------


def with_task(registry: Registry, owner: str, task: Task) -> Registry:
    """UsageError for an owner without a lease."""
    if owner not in registry.owners:
        raise UsageError(f"{owner} has no lease", subject=owner, remedy="register the owner first", code="no_lease")
    return replace(registry, tasks={**registry.tasks, task.id: Submitted(owner=owner, task=task)})


def without_tasks(registry: Registry, ids: Iterable[str]) -> Registry:
    gone = set(ids)
    return replace(registry, tasks={name: t for name, t in registry.tasks.items() if name not in gone})


def never(registry: Registry, demands: Demands, nodes: Sequence[NodeStatus]) -> str:
    """Why no node can ever run such a task, in a sentence; '' one can, or something that nobody has made yet could change it.

    Physical amounts are what nodes were born with. Ephemeral ones are judged only when all of them are wished: then the capacities that
    the wishes want must meet on one node (worked example 12 is the trap: {a:1} here, {b:1} there, a task that wants both).
    """
    alive = [node for node in nodes if node.alive]
    born = [node for node in alive if fits(physical(demands), node.total)]
    if not born:
        short = sorted({name for node in alive for name in lacking(physical(demands), node.total)})
        return f"no node has as much {', '.join(short)}" if alive else ""
    made = ephemeral(demands)
    if not made or any(name not in registry.wishes for name in made):
        return ""
    where = desired(registry, nodes)
    reach = {n: max((where[node].get(n, 0.0) for node in where), default=0.0) for n in made}
    if any(registry.wishes[name].capacity == 0 and registry.wishes[name].per_node is None for name in made):
        return ""  # a signal or a queue: its capacity is to come
    if any(fits(made, where.get(node.id, {})) for node in born):
        return ""
    scarce = lacking(made, reach)
    if scarce:
        return f"no node is to have as much {', '.join(scarce)}"
    return f"no node is to have {', '.join(sorted(made))} at once"
