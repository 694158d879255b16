"""What is wished of the nodes: a resource, how much of it, and where. Nodes go and come, the wish stays (card sections 2 and 8).

`set_resource(name, capacity, node_spec)` of the paper has three kinds of node_spec: the caller's node or a given one (`Where(nodes=)`),
and a resource vector with an optional number of nodes (`Where(holding=, count=)`). What we changed: the answer to "which nodes" is not
computed once but whenever the nodes have changed, so that a lost node's resource is made again elsewhere if the wish allows it, or
waits for that node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.engines.base import Demands, NodeId, NodeStatus
from cluster.escher.amounts import fits


@dataclass(frozen=True, kw_only=True)
class Where:
    """nodes: only these, in order of preference; empty: any. holding: a node must have this free when it is chosen. count: on so many
    of them, None on all. together: wishes with the same word lie on the same node (count is 1 then): a task that demands two
    resources can only run where both are (worked example 12)."""

    nodes: tuple[NodeId, ...] = ()
    holding: Demands = field(default_factory=dict)
    count: int | None = None
    together: str = ""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """name on each node of `where` with `capacity`; or, if per_node is given, on exactly those nodes with those capacities. Capacity 0
    deletes, and keeps the place."""

    name: str
    owner: str
    capacity: float = 0.0
    where: Where = field(default_factory=Where)
    per_node: Mapping[NodeId, float] | None = None


def chosen(where: Where, nodes: Sequence[NodeStatus], now_at: Iterable[NodeId] = ()) -> tuple[NodeId, ...]:
    """The nodes for a wish. now_at: where it lies now. It stays there as long as those nodes live (what holds it must not lose it),
    and new ones are added only up to `count`."""
    alive = {node.id: node for node in nodes if node.alive}
    order = where.nodes or tuple(sorted(alive))
    kept = [node for node in order if node in alive and node in set(now_at)]
    fresh = [node for node in order if node in alive and node not in kept and fits(where.holding, alive[node].free)]
    count = 1 if where.together else where.count
    if count is None:
        return (*kept, *fresh)
    return (*kept[:count], *fresh[: max(0, count - len(kept))])


def capacities(wish: Wish, nodes: Sequence[NodeStatus], now_at: Iterable[NodeId] = ()) -> dict[NodeId, float]:
    """Node -> capacity that the wish wants there; only nodes that live."""
    if wish.per_node is not None:
        alive = {node.id for node in nodes if node.alive}
        return {node: capacity for node, capacity in wish.per_node.items() if node in alive}
    return dict.fromkeys(chosen(wish.where, nodes, now_at), wish.capacity)
