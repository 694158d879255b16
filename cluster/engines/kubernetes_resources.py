"""Ephemeral resources as extended resources of nodes (ESCHER card sections 7 and 11). Values, and one patch.

A name becomes `<domain>/<name>`; amounts are whole numbers. Both `capacity` and `allocatable` are patched: the scheduler reads the
second, which a kubelet copies from the first only at its next look, and simulated nodes have no kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cluster.engines.base import Demands, NodeId, NodeStatus, checked_resource, node_lost
from cluster.engines.kubernetes_api import Body, KubernetesApi, gone
from configs.errors import DriftboxError, UsageError

MIB = 2**20
#: Our names of what nodes are born with.
GPU = "nvidia.com/gpu"
_SUFFIXES = {
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


def whole(name: str, amount: float) -> int:
    """The amount as Kubernetes counts. UsageError with code 'whole_only' for a fraction."""
    if amount != int(amount):
        raise UsageError(
            f"Kubernetes counts {name} in whole units, not {amount}",
            subject=name,
            code="whole_only",
            remedy="scale it: 1000 for 1",
        )
    return int(amount)


def quantity(text: Any) -> float:
    """A Kubernetes quantity ("500m", "4Gi", 3) as a number. ValueError for anything else."""
    text = str(text)
    for length in (2, 1):
        if text[-length:] in _SUFFIXES:
            return float(text[:-length]) * _SUFFIXES[text[-length:]]
    return float(text)


def requests_of(demands: Demands, domain: str) -> dict[str, str]:
    """Demands as a container's requests. UsageError with code 'whole_only'."""
    found: dict[str, str] = {}
    for name, amount in demands.items():
        if name == "CPU":
            found["cpu"] = f"{max(1, round(amount * 1000))}m"
        elif name == "memory_mib":
            found["memory"] = str(round(amount * MIB))
        elif name == "GPU":
            found[GPU] = str(whole(name, amount))
        else:
            found[f"{domain}/{name}"] = str(whole(name, amount))
    return found


def used_by(pods: Iterable[Mapping[str, Any]]) -> dict[NodeId, dict[str, float]]:
    """What the pods that are bound and not over hold, by node and Kubernetes' name."""
    used: dict[NodeId, dict[str, float]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        place = used.setdefault(node, {})
        for container in pod["spec"].get("containers", ()):
            for name, amount in (container.get("resources", {}).get("requests") or {}).items():
                place[name] = place.get(name, 0.0) + quantity(amount)
    return used


def is_ready(node: Mapping[str, Any]) -> bool:
    """Its kubelet has lately said so. A node without conditions (a simulated one) counts as ready."""
    conditions = node.get("status", {}).get("conditions") or []
    ready = [c.get("status") for c in conditions if c.get("type") == "Ready"]
    return not ready or ready[0] == "True"


def node_status(node: Mapping[str, Any], used: Mapping[str, float], domain: str) -> NodeStatus:
    """As the engine tells of it; amounts are those that the scheduler goes by."""
    name, alive = node["metadata"]["name"], is_ready(node)
    addresses = node.get("status", {}).get("addresses") or []
    labels = {**(node["metadata"].get("labels") or {}), **({"address": addresses[0]["address"]} if addresses else {})}
    if not alive:
        return NodeStatus(id=name, alive=False, total={}, free={}, labels=labels)
    total, free = {}, {}
    for theirs, amount in (node.get("status", {}).get("allocatable") or {}).items():
        ours, unit = _our_name(theirs, domain)
        if ours and (theirs in ("cpu", "memory", GPU) or quantity(amount) > 0):
            total[ours] = quantity(amount) / unit
            free[ours] = (quantity(amount) - used.get(theirs, 0.0)) / unit
    return NodeStatus(id=name, alive=True, total=total, free=free, labels=labels)


def _our_name(theirs: str, domain: str) -> tuple[str, float]:
    """(our name, '' it is not ours; its unit)."""
    known = {"cpu": ("CPU", 1.0), "memory": ("memory_mib", float(MIB)), GPU: ("GPU", 1.0)}
    if theirs in known:
        return known[theirs]
    return (theirs.removeprefix(f"{domain}/"), 1.0) if theirs.startswith(f"{domain}/") else ("", 1.0)


def ephemeral_of(node: Mapping[str, Any], domain: str) -> set[str]:
    """Our names on a node, in either field, whatever their amount."""
    status = node.get("status", {})
    both = {**(status.get("capacity") or {}), **(status.get("allocatable") or {})}
    return {theirs.removeprefix(f"{domain}/") for theirs in both if theirs.startswith(f"{domain}/")}


def in_place(node: Mapping[str, Any], name: str, capacity: int, domain: str) -> bool:
    """Both fields say so."""
    status = node.get("status", {})
    return all(_amount(status.get(place), f"{domain}/{name}") == capacity for place in ("capacity", "allocatable"))


def patch_for(node: Mapping[str, Any], name: str, capacity: int, domain: str) -> list[Body]:
    """The JSON patch that makes it so; empty: it is so."""
    if in_place(node, name, capacity, domain) and (capacity or name not in ephemeral_of(node, domain)):
        return []
    path, status = f"{domain}~1{name}", node.get("status", {})
    places = ("capacity", "allocatable")
    if capacity:
        return [{"op": "add", "path": f"/status/{place}/{path}", "value": str(capacity)} for place in places]
    return [
        {"op": "remove", "path": f"/status/{place}/{path}"}
        for place in places
        if f"{domain}/{name}" in (status.get(place) or {})
    ]


def _amount(amounts: Mapping[str, Any] | None, name: str) -> float:
    return quantity((amounts or {}).get(name, 0))


def patch_resource(api: KubernetesApi, *, node: NodeId, name: str, capacity: float, domain: str) -> float:
    """`Engine.set_resource` on Kubernetes: the capacity now in force, max(capacity, units in use). Reading what is in use and patching
    are two steps: a pod bound in between may leave the node with less than it holds, which costs nobody anything that he has."""
    checked_resource(name, capacity)
    wanted = whole(name, capacity)
    try:
        found = api.call(api.core.read_node, node)
    except DriftboxError as error:
        if gone(error):
            raise node_lost(node) from None
        raise
    if not is_ready(found):
        raise node_lost(node)
    in_use = 0.0
    if wanted < _amount(found.get("status", {}).get("allocatable"), f"{domain}/{name}"):
        pods = api.call(api.core.list_pod_for_all_namespaces, field_selector=f"spec.nodeName={node}")
        in_use = used_by(pods.get("items", ())).get(node, {}).get(f"{domain}/{name}", 0.0)
    in_force = max(wanted, int(in_use))
    patch = patch_for(found, name, in_force, domain)
    if patch:
        api.call(api.core.patch_node_status, node, patch)
    return float(in_force)
