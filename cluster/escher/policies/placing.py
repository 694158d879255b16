"""Policies that are a list of calls, made once: wishes for the library, and demands for the tasks (card section 5). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.engines.base import INFINITE, Demands, NodeId
from cluster.escher.amounts import either, every
from cluster.escher.wishes import Where, Wish

#: 10 ** levels is the capacity of `priority`: engines hold no more.
MOST_LEVELS = 6


@dataclass(frozen=True, kw_only=True)
class Placing:
    """wishes: to be made; demands: what each task adds to its own."""

    wishes: tuple[Wish, ...]
    demands: tuple[Demands, ...]


def pinned(name: str, owner: str, node: NodeId, *, tasks: int = 1) -> Placing:
    """So many tasks on this node and no other (card section 1)."""
    wish = Wish(name=name, owner=owner, capacity=tasks, where=Where(nodes=(node,)))
    return Placing(wishes=(wish,), demands=tuple({name: 1.0} for _ in range(tasks)))


def data_locality(name: str, owner: str, replicas: Sequence[NodeId]) -> Placing:
    """Whoever reads the data runs where it lies. replicas: nodes that have it; all of them serve, and one that is lost is served again
    when it comes back with the data."""
    wish = Wish(name=name, owner=owner, capacity=INFINITE, where=Where(nodes=tuple(replicas)))
    return Placing(wishes=(wish,), demands=({name: 1.0},))


def anti_affinity(name: str, owner: str, *, tasks: int, nodes: Sequence[NodeId] = ()) -> Placing:
    """No two of the tasks on one node; more tasks than nodes: the rest waits (worked example 3). They hold the unit as long as they
    run; `gang.anti_affinity_gang` is for long tasks that must not keep others from the same rule."""
    wish = Wish(name=name, owner=owner, capacity=1.0, where=Where(nodes=tuple(nodes)))
    return Placing(wishes=(wish,), demands=tuple({name: 1.0} for _ in range(tasks)))


def balanced(name: str, owner: str, *, tasks: int, nodes: Sequence[NodeId]) -> Placing:
    """Load balance with known counts: ceil(tasks / nodes) on each (worked example 4). ValueError without nodes."""
    if not nodes:
        raise ValueError("there are no nodes to balance over")
    each = math.ceil(tasks / len(nodes))
    wish = Wish(name=name, owner=owner, capacity=each, where=Where(nodes=tuple(nodes)))
    return Placing(wishes=(wish,), demands=tuple({name: 1.0} for _ in range(tasks)))


def priority(name: str, owner: str, *, levels: int, classes: Sequence[int], nodes: Sequence[NodeId] = ()) -> Placing:
    """Not preemptive: a task of class p (0 is served first) needs 10^p of 10^Pmax, so the last class starts only on a node where no
    other runs (worked example 6). levels: Pmax, 1 to 6; classes: of each task. ValueError for others.

    Within a class up to 10^(Pmax-p) tasks share a node. It orders the ends of the scale only: one task of a middle class keeps the
    last one out, but ten of the last but one do not keep out the first.
    """
    if not 1 <= levels <= MOST_LEVELS:
        raise ValueError(f"levels must be 1 to {MOST_LEVELS}, got {levels}")
    wrong = [c for c in classes if not 0 <= c <= levels]
    if wrong:
        raise ValueError(f"classes must be 0 to {levels}, got {wrong[0]}")
    wish = Wish(name=name, owner=owner, capacity=10.0**levels, where=Where(nodes=tuple(nodes)))
    return Placing(wishes=(wish,), demands=tuple({name: 10.0**c} for c in classes))


#: Units per whole of a combined objective, so that engines that count in whole units can hold it.
OBJECTIVE_SCALE = 1000


def combined_objective(
    name: str, owner: str, *, weights: Demands, shares: Demands, hard: Demands, halvings: int = 4, nodes: Sequence[NodeId] = ()
) -> tuple[Wish, list[dict[str, float]]]:
    """alpha * memory + beta * cpu and the like: (the wish for every node, preferences for `soft.Soft`).

    weights: resource -> alpha; shares: resource -> part of a node that the task takes, 0-1. The objective's capacity per node is the sum
    of the weights, the task takes g = sum(alpha * share); tried with g, g/2, g/4, ... The paper claims the best node up to a factor 2;
    any node with g left qualifies, so it is a heuristic. ValueError for shares outside 0-1.
    """
    wrong = [n for n, share in shares.items() if not 0 <= share <= 1 or n not in weights]
    if wrong or not weights:
        raise ValueError(f"shares must be 0 to 1 and have a weight, look at {', '.join(sorted(wrong)) or 'weights'}")
    wish = Wish(
        name=name, owner=owner, capacity=math.ceil(OBJECTIVE_SCALE * sum(weights.values())), where=Where(nodes=tuple(nodes))
    )
    gain = OBJECTIVE_SCALE * sum(weights[n] * share for n, share in shares.items())
    tries = [max(1, math.ceil(gain / 2**step)) for step in range(halvings)]
    return wish, either(*(every({name: float(units)}, hard) for units in tries))


def pairs(name: str, owner: str, *, count: int, nodes: Sequence[NodeId] = ()) -> tuple[Placing, tuple[Demands, ...]]:
    """Pairs whose members are together while the pairs are spread (worked example 11): the placing of the first members, and what the
    second ones demand. Each first one makes its `NAME.i` (capacity 1) where it runs: `follow`."""
    first = anti_affinity(name, owner, tasks=count, nodes=nodes)
    return first, tuple({f"{name}.{i}": 1.0} for i in range(count))


def follow(name: str, owner: str, node: NodeId, *, units: float = INFINITE) -> Wish:
    """Co-location: what the leader makes (or has made for it) on the node where it runs; followers demand 1 of it (P1)."""
    return Wish(name=name, owner=owner, per_node={node: units})
