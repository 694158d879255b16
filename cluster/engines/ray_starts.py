"""Who of several attempts at one task started, across the processes of a Ray cluster (a `Holder` of `cluster.escher.starts`).

Each attempt that starts adds a key of its own to the cluster's key-value store and looks afterwards, so of two at once the later sees
itself, and the earlier either sees it too or was first. No actor of ours: nothing to keep alive.
"""

from __future__ import annotations

from typing import Any

from cluster.engines.ray_worker import KV_NAMESPACE, gcs_client


class RayStarts:
    """client: Ray's `GcsClient`. The store ends with the cluster's head, and so do the tasks."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def claim(self, task: str, attempt: int) -> bool:
        """True: do it. False: a later attempt has started."""
        self._client.internal_kv_put(f"{_prefix(task)}{attempt}".encode(), b"", True, KV_NAMESPACE)
        return attempt >= max(self._started(task))

    def forget(self, task: str) -> None:
        """It is over, and its id may be used again."""
        for attempt in self._started(task):
            self._client.internal_kv_del(f"{_prefix(task)}{attempt}".encode(), False, KV_NAMESPACE)

    def _started(self, task: str) -> list[int]:
        prefix = _prefix(task)
        keys = self._client.internal_kv_keys(prefix.encode(), KV_NAMESPACE)
        return [int(rest) for key in keys if (rest := key.decode().removeprefix(prefix)).isdecimal()]


def _prefix(task: str) -> str:
    return f"started/{task}/"


def in_cluster() -> RayStarts:
    """Of the cluster that this worker belongs to."""
    import ray

    return RayStarts(gcs_client(ray.get_runtime_context().gcs_address))
