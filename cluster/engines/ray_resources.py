"""Named resources of a running Ray cluster: made, changed and read (ESCHER card sections 10 and 12).

`ray.experimental.set_resource` is gone since Ray 2.0; the raylet's call for resizing pods in place does the same and creates what it
does not know (ResizeLocalResourceInstances; here by GcsClient, which carries the cluster's token). Ray keeps no record of it: a raylet
that starts again has lost everything, and the scheduling library replays it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cluster.engines.base import PHYSICAL, NodeId, NodeStatus, checked_resource, node_lost
from configs.errors import EnvironmentLacking, UsageError

MIB = 2**20
#: Ray's own names: "node:..." and accelerators belong to it, "..._group_<bundle>_<id>" are its placement groups.
_RAYS_OWN = re.compile(r"node:|accelerator_type:|(memory|object_store_memory|TPU|NPU|HPU|RBLN|neuron_cores|bundle)$|.*_group_")


def resize(client: Any, *, node: NodeId, name: str, capacity: float) -> float:
    """The capacity now in force: a shrink below what is in use is clamped by Ray to that. Absolute: the last writer wins.

    UsageError for a name that Ray keeps for itself; with code 'node_lost' for a node that is gone; EnvironmentLacking when the node
    does not answer (it may be lost soon)."""
    from ray.exceptions import RayError

    checked_ray_name(name)
    checked_resource(name, capacity)
    try:
        totals: Mapping[str, float] = client.resize_raylet_resource_instances(node, {name: float(capacity)})
    except ValueError as error:
        if "not alive" in str(error):
            raise node_lost(node) from None
        raise UsageError(f"Ray cannot hold {name}: {error}", subject=name, remedy="choose another name") from None
    except RayError as error:
        raise EnvironmentLacking(
            f"node {node} does not answer: {first_line(error)}",
            subject=node,
            remedy="is its raylet running? Ray drops it soon if not",
        ) from None
    return float(totals.get(name, 0.0))


def checked_ray_name(name: str) -> None:
    """UsageError for names that Ray keeps for itself."""
    if _RAYS_OWN.match(name):
        raise UsageError(f"{name} is a name that Ray keeps for itself", subject=name, remedy="put your own prefix before it")


def node_statuses(
    table: Iterable[Mapping[str, Any]], totals: Mapping[NodeId, Mapping[str, float]], free: Mapping[NodeId, Mapping[str, float]]
) -> list[NodeStatus]:
    """From Ray's three views: its table knows who is alive but not what was resized, the other two know amounts but not the dead."""
    return [_status(row, totals.get(row["NodeID"], {}), free.get(row["NodeID"], {})) for row in table]


def _status(row: Mapping[str, Any], total: Mapping[str, float], free: Mapping[str, float]) -> NodeStatus:
    alive = bool(row["Alive"])
    amounts = _ours(total) if alive else {}
    labels = {"address": str(row["NodeManagerAddress"]), **dict(row.get("Labels") or {})}
    # What is used up is missing from Ray's view of what is free.
    rest = {**dict.fromkeys(amounts, 0.0), **_ours(free)} if alive else {}
    return NodeStatus(id=row["NodeID"], alive=alive, total=amounts, free=rest, labels=labels)


def _ours(amounts: Mapping[str, float]) -> dict[str, float]:
    """Ray's names and units as ours, without what only Ray needs."""
    found = {name: float(amount) for name, amount in amounts.items() if not _RAYS_OWN.match(name)}
    if "memory" in amounts:
        found["memory_mib"] = amounts["memory"] / MIB
    return found


def options_of(demands: Mapping[str, float]) -> dict[str, Any]:
    """Ray's options for a task with these demands. Nothing is asked for that is not named: Ray's own default is one CPU."""
    resources = {name: amount for name, amount in demands.items() if name not in PHYSICAL}
    options: dict[str, Any] = {"num_cpus": demands.get("CPU", 0), "resources": resources}
    if "GPU" in demands:
        options["num_gpus"] = demands["GPU"]
    if "memory_mib" in demands:
        options["memory"] = int(demands["memory_mib"] * MIB)
    return options


def bundle_of(demands: Mapping[str, float]) -> dict[str, float]:
    """The same as a bundle of a placement group."""
    bundle = {name: amount for name, amount in demands.items() if name != "memory_mib"}
    if "memory_mib" in demands:
        bundle["memory"] = demands["memory_mib"] * MIB
    return bundle


def first_line(error: BaseException) -> str:
    """Ray's errors are pages; the first line says it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
