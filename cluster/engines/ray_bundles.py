"""Gives back what Ray forgets of a placement group that is removed in the moment in which it is placed (ray#64693; decision 0070).

A group is placed in two steps: its nodes set the amounts aside (prepare), then the head writes that down and confirms (commit). Removed
between the two, it is gone for the head, and nobody tells its nodes: what they set aside stays taken until their raylet restarts. The
head's last record of the group names those nodes, and a raylet takes back what it is told to, however often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

log = logging.getLogger("driftbox.fleet.ray")

#: A raylet on the same site answers within milliseconds.
_RAYLET_S = 2.0


def give_back(group: Any, record: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> None:
    """record: of the group after it was removed (`placement_group_table`); nodes: Ray's table of them."""
    bundles: dict[str, list[int]] = {}
    for number, node in record["bundles_to_node_id"].items():
        if node:
            bundles.setdefault(node, []).append(number)
    for row in nodes:
        if row["Alive"] and row["NodeID"] in bundles:
            _tell(row, group, {number: record["bundles"][number] for number in bundles[row["NodeID"]]})


def _tell(node: Mapping[str, Any], group: Any, bundles: Mapping[int, Mapping[str, float]]) -> None:
    """Asks the raylet of a node to take these back. Ray has no call for it in Python, only the message."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel  # it adds the cluster's token, and TLS where Ray has it
    from ray.core.generated.node_manager_pb2 import RemovePlacementGroupBundlesRequest
    from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

    request = RemovePlacementGroupBundlesRequest(placement_group_id=group.id.binary())
    for number, amounts in bundles.items():
        bundle = request.bundle_specs.add()
        bundle.bundle_id.placement_group_id = group.id.binary()
        bundle.bundle_id.bundle_index = number
        bundle.unit_resources.update(amounts)
        bundle.node_id = bytes.fromhex(node["NodeID"])
    try:
        with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
            NodeManagerServiceStub(channel).RemovePlacementGroupBundles(request, timeout=_RAYLET_S)
    except grpc.RpcError as error:
        log.warning(
            "node %s may go on holding %s until Ray is restarted there: %s", node["NodeID"], dict(bundles), error.code()
        )
