"""Where the bundles of a gang can lie: pure, shared by engines that reserve themselves and by the library's check at the door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.engines.base import QUANTUM, Demands, NodeId

_SLACK = QUANTUM / 2


def places(bundles: Sequence[Demands], free: Mapping[NodeId, Mapping[str, float]], *, spread: bool) -> list[NodeId] | None:
    """A node for each bundle, None: no room. Large bundles first, each where least is left (best fit decreasing).

    free: node -> resource -> amount. spread: every bundle on another node. Equal bundles find a place whenever there is one; mixed ones
    can miss it (bin packing is hard), then they wait although they might fit.
    """
    left = {node: dict(amounts) for node, amounts in free.items()}
    found: dict[int, NodeId] = {}
    for number in sorted(range(len(bundles)), key=lambda i: (-sum(bundles[i].values()), i)):
        bundle = bundles[number]
        room = [
            node
            for node, amounts in left.items()
            if all(amounts.get(name, 0) + _SLACK >= amount for name, amount in bundle.items())
            and not (spread and node in found.values())
        ]
        if not room:
            return None
        best = min(room, key=lambda node: (sum(left[node].get(name, 0) for name in bundle), node))
        for name, amount in bundle.items():
            left[best][name] -= amount
        found[number] = best
    return [found[number] for number in range(len(bundles))]
