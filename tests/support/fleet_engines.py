"""Engines for tests of the fleet: `BENCHES`, name -> context manager that gives a `Bench` with three nodes of 4 CPU each.

An engine joins the contract tests by adding itself here. Nothing is created before the context is entered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from cluster.engines.base import Engine, TaskStatus

#: CPU of each node of a bench.
CPU = 4


@dataclass(kw_only=True)
class Bench:
    """An engine with its world. nodes: ids of the three nodes; kill_node: the node dies as it would in a building; until: waits for a
    condition, as long as this engine may need, and says whether it came; quiet: waits as long as this engine takes to do what it is
    going to do, so that "it does not run" can be asserted; features: of `reserve`, `work` (runs Python entries), `kill_node`,
    `fractions`, `context_set` (work may set resources on its node)."""

    engine: Engine
    nodes: tuple[str, ...]
    until: Callable[[Callable[[], bool]], bool]
    quiet: Callable[[], None]
    kill_node: Callable[[str], None] | None = None
    features: frozenset[str] = field(default_factory=frozenset)

    def state(self, task: str) -> str:
        """Of one task; 'unknown' where the engine does not know it."""
        found = self.engine.status([task]).get(task)
        return found.state if found else "unknown"

    def where(self, task: str) -> str | None:
        found = self.engine.status([task]).get(task)
        return found.node if found else None

    def all_in(self, ids: Sequence[str], state: str) -> bool:
        """Waits until all are in `state`."""
        return self.until(lambda: all(self.state(i) == state for i in ids))

    def statuses(self, ids: Sequence[str]) -> dict[str, TaskStatus]:
        return dict(self.engine.status(ids))

    def waits(self, task: str) -> bool:
        """It is waiting, and goes on waiting."""
        self.quiet()
        return self.state(task) == "waiting"


@contextmanager
def local_bench() -> Iterator[Bench]:
    from cluster.engines.local import LocalEngine

    nodes = ("n1", "n2", "n3")
    engine = LocalEngine({node: {"CPU": CPU} for node in nodes})
    try:
        yield Bench(
            engine=engine,
            nodes=nodes,
            until=lambda condition: engine.wait_for(condition, timeout_s=60.0),
            quiet=lambda: None,  # matching is done before a call returns
            kill_node=engine.kill_node,
            features=frozenset({"reserve", "work", "kill_node", "fractions", "context_set"}),
        )
    finally:
        engine.close()


@contextmanager
def ray_bench() -> Iterator[Bench]:
    from tests.support import ray_cluster

    with ray_cluster.ray_engine() as (engine, nodes):
        head, *others = nodes.ids
        yield Bench(
            engine=engine,
            nodes=(head, others[0], others[1]),
            until=ray_cluster.until,
            quiet=ray_cluster.quiet,
            kill_node=nodes.kill,
            features=frozenset({"reserve", "work", "kill_node", "fractions", "context_set"}),
        )


@contextmanager
def kubernetes_bench() -> Iterator[Bench]:
    from cluster.engines.kubernetes_api import KubernetesApi, KubernetesSettings
    from cluster.engines.kubernetes_engine import KubernetesEngine
    from tests.support.fake_kubernetes import fake_cluster

    nodes = ("node-a", "node-b", "node-c")
    with fake_cluster(*nodes) as cluster:
        engine = KubernetesEngine(KubernetesApi(KubernetesSettings(host=cluster.url)), tick_s=0.05)
        try:
            yield Bench(
                engine=engine,
                nodes=nodes,
                until=cluster.until,
                quiet=engine.reconcile,  # the fake's matcher has done its work when a call returns
                kill_node=cluster.stop_kubelet,
                features=frozenset({"work", "kill_node", "context_set"}),
            )
        finally:
            engine.close()


BENCHES: dict[str, Callable[[], AbstractContextManager[Bench]]] = {
    "local": local_bench,
    "ray": ray_bench,
    "kubernetes": kubernetes_bench,
}

#: pytest markers of a bench's tests (`ray`, `slow`).
MARKERS: dict[str, tuple[str, ...]] = {"ray": ("ray",)}


# --- work that tests submit, by its entry -----------------------------------------------------------------------------


def add(context: object, *, left: int, right: int) -> int:
    return left + right


def raise_problem(context: object) -> None:
    raise ValueError("this work always fails")


def where_am_i(context: object) -> str:
    return str(context.node)  # type: ignore[attr-defined]


def make_here(context: object, *, name: str, capacity: float) -> str:
    """P1: the writer of something makes its resource where it runs."""
    context.set_resource(name, capacity)  # type: ignore[attr-defined]
    return str(context.node)  # type: ignore[attr-defined]


def until_cancelled(context: object) -> str:
    """Long work that looks whether it is cancelled."""
    pause = threading.Event()
    while not context.cancelled():  # type: ignore[attr-defined]
        pause.wait(0.01)
    return "stopped"
