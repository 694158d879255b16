"""The part of the Ray engine that runs inside a Ray worker: tells where a task runs, hears that it is cancelled, sets resources there.

What driver and worker tell each other goes through the cluster's own key-value store (GCS): no process of ours is needed for it, and
a look-up costs less than a millisecond.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import ray

from cluster.engines.base import NodeId, Work
from cluster.engines.ray_resources import resize
from cluster.engines.run_work import outcome_of

KV_NAMESPACE = b"driftbox"


def start_key(engine: str, task: str) -> bytes:
    """Where a task that began says on which node."""
    return f"{engine}/start/{task}".encode()


def cancel_key(engine: str, task: str) -> bytes:
    """There when a task is to end."""
    return f"{engine}/cancel/{task}".encode()


@cache
def gcs_client(address: str) -> Any:
    """One per process: it is thread-safe and keeps its connection."""
    return importlib.import_module("ray._raylet").GcsClient(address=address)


@dataclass(frozen=True, kw_only=True)
class RayContext:
    """`TaskContext` in a Ray task."""

    node: NodeId
    task: str
    engine: str
    address: str

    def set_resource(self, name: str, capacity: float) -> None:
        resize(gcs_client(self.address), node=self.node, name=name, capacity=capacity)

    def cancelled(self) -> bool:
        return bool(gcs_client(self.address).internal_kv_exists(cancel_key(self.engine, self.task), KV_NAMESPACE))


def run(engine: str, task: str, entry: str, arguments: Mapping[str, Any]) -> str:
    """A Ray task: `Outcome.as_json` of the work."""
    here = ray.get_runtime_context()
    context = RayContext(node=here.get_node_id(), task=task, engine=engine, address=here.gcs_address)
    gcs_client(context.address).internal_kv_put(start_key(engine, task), context.node.encode(), True, KV_NAMESPACE)
    return outcome_of(Work(entry=entry, arguments=arguments), context).as_json()
