"""Several Ray nodes on this machine, each with a raylet of its own: for the demonstration, the benchmark and the tests.

The cluster is closed by a token made here. Beginning a node costs one to three seconds and 130 MiB; workers begin when work needs them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cluster.engines.base import NodeId
from cluster.engines.ray_cluster import RaySettings, reread_environment

MIB = 2**20
#: So that many nodes fit on a small machine and a lost one is noticed within a second. Ray reads them when a process begins.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else all nodes are 127.0.0.1 to each other, and clients of a head there hang
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "3000",  # a busy machine answers late
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_gcs_create_placement_group_retry_max_interval_ms": "100",
    "RAY_raylet_report_resources_period_milliseconds": "20",
}


@cache
def _token() -> str:
    """One per process: Ray reads it once, whatever the environment says later."""
    return secrets.token_hex(24)


class RayNodes:
    """A cluster of its own; `settings` is how to join it. Its environment variables stay set: this process reads them too."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dbx-ray", dir="/tmp"))  # sockets' paths must be short
        (self._folder / "ray").mkdir()
        self._token = _token()
        os.environ.update(_ENVIRONMENT | {"RAY_TMPDIR": str(self._folder), "RAY_AUTH_TOKEN": self._token})
        reread_environment()
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(shutdown_at_exit=True)
        self._nodes: dict[NodeId, Any] = {}

    @property
    def settings(self) -> RaySettings:
        return RaySettings(address=str(self._cluster.address), token=self._token)

    @property
    def ids(self) -> Sequence[NodeId]:
        """Those begun and not killed here; the head is the first."""
        return list(self._nodes)

    def add(self, *, cpus: float, labels: Mapping[str, str] | None = None, memory_mib: int = 4096) -> NodeId:
        """Begins a node and waits until the cluster knows it."""
        node = self._cluster.add_node(
            num_cpus=cpus,
            memory=memory_mib * MIB,
            object_store_memory=80 * MIB,
            include_dashboard=False,
            include_log_monitor=False,  # nobody reads the workers' output through it, and it costs a Python process per node
            labels=dict(labels or {}),
        )
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def kill(self, node: NodeId) -> None:
        """As a power cut: its processes get no chance to say anything. Not the head, where the cluster's own state is."""
        self._cluster.remove_node(self._nodes.pop(node), allow_graceful=False)

    def pause_head(self) -> Callable[[], None]:
        """The cluster's own state stops answering, though its port takes connections, until what this returns is called."""
        (server,) = self._cluster.head_node.all_processes["gcs_server"]
        server.process.send_signal(signal.SIGSTOP)
        return lambda: server.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends all of it; whoever joined must have left."""
        self._cluster.shutdown()
        self._nodes.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
