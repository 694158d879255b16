"""Sharing by entitlement: weighted max-min over demands, flat and along a tree of weights, and whole units (card 2, 7.1).

No justified complaints (NJC): nobody gets less than the smaller of its demand and its entitlement. If all demands are met, what is
left stays with nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cluster.cilantro.types import FloatArray, IntArray


def max_min(entitlements: Sequence[float], demands: Sequence[float], total: float) -> FloatArray:
    """Weighted max-min fair amounts, at most the demand each. entitlements: any positive scale; demands: >= 0, inf: without end.

    The paper's loop (section 4, thesis): by demand per entitlement, the smallest first, as long as a part is enough for it."""
    shares = np.zeros(len(demands))
    left, weights = float(total), float(sum(entitlements))
    order = sorted(range(len(demands)), key=lambda j: (demands[j] / entitlements[j], j))
    for position, j in enumerate(order):
        fair = left * entitlements[j] / weights
        if demands[j] >= fair:
            rest = order[position:]
            for other in rest:
                shares[other] = left * entitlements[other] / weights
            break
        shares[j] = demands[j]
        left, weights = left - demands[j], weights - entitlements[j]
    return shares


@dataclass(frozen=True, kw_only=True)
class Node:
    """A place in the tree of weights: a group has children, a leaf is a job. weight: among its siblings."""

    name: str
    weight: float = 1.0
    children: tuple[Node, ...] = ()


@dataclass(kw_only=True)
class _Group:
    """A tree while it is being built: what is below, by name."""

    groups: dict[str, _Group] = field(default_factory=dict)
    leaves: dict[str, float] = field(default_factory=dict)


def tree(paths: Mapping[str, tuple[str, ...]], weights: Mapping[str, float], groups: Mapping[tuple[str, ...], float]) -> Node:
    """The tree of weights from each job's path. groups: weights of inner nodes by their path, default 1."""
    root = _Group()
    for job, path in paths.items():
        at = root
        for name in path:
            at = at.groups.setdefault(name, _Group())
        at.leaves[job] = weights[job]
    return _node("", (), root, groups)


def _node(name: str, path: tuple[str, ...], group: _Group, weights: Mapping[tuple[str, ...], float]) -> Node:
    inner = [_node(child, (*path, child), found, weights) for child, found in group.groups.items()]
    leaves = [Node(name=job, weight=weight) for job, weight in group.leaves.items()]
    return Node(name=name, weight=weights.get(path, 1.0), children=(*inner, *leaves))


def entitlements(root: Node) -> dict[str, float]:
    """Each job's part of everything: products of the local parts down its path; they add up to 1."""
    found: dict[str, float] = {}
    waiting = [(root, 1.0)]
    while waiting:
        node, part = waiting.pop()
        if not node.children:
            found[node.name] = part
            continue
        weights = sum(child.weight for child in node.children)
        waiting += [(child, part * child.weight / weights) for child in node.children]
    return found


def hierarchical_max_min(root: Node, demands: Mapping[str, float], total: float) -> dict[str, float]:
    """Max-min down the tree: a group's demand is the sum of its children's, never more than there is (card 7.1). What one job of a
    group leaves goes to its siblings first, then to the other groups."""
    wanted = _wanted(root, demands, total)
    found: dict[str, float] = {}
    waiting = [(root, min(total, wanted[id(root)]))]
    while waiting:
        node, amount = waiting.pop()
        if not node.children:
            found[node.name] = amount
            continue
        split = max_min([c.weight for c in node.children], [wanted[id(c)] for c in node.children], amount)
        waiting += [(child, float(part)) for child, part in zip(node.children, split, strict=True)]
    return found


def _wanted(root: Node, demands: Mapping[str, float], total: float) -> dict[int, float]:
    """Demand of every node, by its identity (names of groups need not differ). Iterative: a tree may be deep."""
    order, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += node.children
    wanted: dict[int, float] = {}
    for node in reversed(order):
        need = math.fsum(wanted[id(child)] for child in node.children) if node.children else demands[node.name]
        wanted[id(node)] = min(total, need)
    return wanted


def whole_units(amounts: FloatArray | Sequence[float], total: int | None = None) -> IntArray:
    """Whole numbers by largest remainder: each is the amount rounded down or up, their sum the sum of the amounts rounded down (or
    `total`, if smaller). The released code hands leftover units out by chance (card 7.1); ties go to the first here."""
    given = np.asarray(amounts, dtype=np.float64)
    floors = np.floor(given + 1e-9)
    whole = math.floor(math.fsum(given) + 1e-6)
    left = (whole if total is None else min(whole, total)) - int(floors.sum())
    order = np.lexsort((np.arange(len(given)), -(given - floors)))
    floors[order[: max(0, left)]] += 1
    return floors.astype(np.int64)


def with_least(amounts: FloatArray, least: FloatArray, total: float) -> FloatArray:
    """Amounts raised to `least` each; what that costs is taken from the others in proportion to what they have above theirs.

    If `total` is less than all the least together, it is split in proportion to them: little for all, never nothing for one."""
    if least.sum() >= total:
        return least * (total / least.sum())
    raised = np.maximum(amounts, least)
    over = raised.sum() - total
    if over <= 0:
        return raised
    above = raised - least
    return raised - above * (over / above.sum())
