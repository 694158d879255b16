"""One real Ray cluster of three nodes for all Ray tests of a process: begun when it is first asked for, gone after the last of them.

A test that kills a node leaves fewer; the next one that asks gets a new node in its place.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.engines.base import NodeId
from cluster.engines.ray_cluster import imported_ray
from cluster.engines.ray_engine import RayEngine
from cluster.engines.ray_nodes import RayNodes

CPUS = 4
NODES = 3
#: Long enough for a worker process to begin on a machine that is busy with other tests.
PATIENCE_S = 60.0
#: A waiting task that could run would begin within so much on a warm cluster.
QUIET_S = 0.4
#: Ray gives a node 30 s to begin, whatever we say, which a machine that is full of other tests may need; so often it is tried again.
TRIES = 5

_shared: list[RayNodes] = []
#: Node -> the box that it is, or was.
_boxes: dict[NodeId, str] = {}
#: What this process's environment said of Ray before the cluster began.
_environment: dict[str, str] = {}


def shared_nodes() -> RayNodes:
    """Three alive nodes."""
    if not _shared:
        _environment.update(_rays_own())
        _shared.append(RayNodes())
        atexit.register(end)
    # Clusters of several test processes begin one after the other: all at once they starve each other on a small machine.
    with open(Path(tempfile.gettempdir()) / "driftbox-ray-start.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for tries_left in range(TRIES, -1, -1):
            try:
                return _filled(_shared[0])
            except Exception:
                if not tries_left:
                    raise
                if not imported_ray().is_initialized():  # from nothing: a node that was too late may still join the old one
                    _shared[0].close()
                    _shared[0] = RayNodes()
    raise AssertionError("not reached")


def _filled(nodes: RayNodes) -> RayNodes:
    """Each node is a box of its own: the name of one that was killed goes to the next that begins."""
    while len(nodes.ids) < NODES:
        box = min({f"box{number}" for number in range(NODES)} - {_boxes[node] for node in nodes.ids})
        _boxes[nodes.add(cpus=CPUS, labels={"driftbox/box": box})] = box
    return nodes


@contextmanager
def ray_engine(*, grace_s: float = 2.0) -> Iterator[tuple[RayEngine, RayNodes]]:
    """An engine on the shared cluster. What it made is gone afterwards, the cluster and this process's part in it stay."""
    nodes = shared_nodes()
    engine = RayEngine(nodes.settings, grace_s=grace_s, leave=False)
    try:
        yield engine, nodes
    finally:
        engine.close()
        clear_resources(engine, nodes.ids)


def clear_resources(engine: RayEngine, ids: Sequence[NodeId]) -> None:
    """ids: of nodes that were not killed; the head may not have noticed yet that others are gone."""
    for node in (node for node in engine.nodes() if node.id in ids):
        for name in set(node.total) - {"CPU", "GPU", "memory_mib"}:
            until(lambda name=name, node=node: engine.set_resource(name, 0, node.id) == 0)  # type: ignore[misc]


def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    """Whether it came true in time."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def quiet() -> None:
    """Waits as long as Ray needs to do what it is going to do."""
    time.sleep(QUIET_S)


def end() -> None:
    """Ends the cluster, if there is one, and leaves nothing of it in the environment. The next who asks begins another."""
    if not _shared:
        return
    import ray

    try:
        ray.shutdown()
        _shared.pop().close()
    except Exception as error:  # no fault of the last test that used it; what stays is told by scripts/run_tests.py
        print(f"the cluster did not end in order: {error!r}", file=sys.stderr)
        _shared.clear()
    for name in _rays_own():
        del os.environ[name]
    os.environ.update(_environment)
    _environment.clear()
    atexit.unregister(end)


def _rays_own() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}


# --- work that tests submit, by its entry -----------------------------------------------------------------------------


def never_listens(context: object) -> None:
    """Looks at nothing, for longer than any test."""
    time.sleep(600)


def dies(context: object) -> None:
    """As if the system had killed it."""
    os._exit(7)


def dies_once(context: object, *, mark: str) -> str:
    """As if the system had killed it, the first time."""
    if not os.path.exists(mark):
        with open(mark, "w"):
            pass
        os._exit(7)
    return "done"
