"""Which engine: the only place that names concrete ones.

The engines' modules are imported when they are chosen: a controller with the engine `local` needs neither Ray nor the Kubernetes client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from cluster.engines.base import Engine, NodeId
from configs.errors import UsageError

if TYPE_CHECKING:
    from cluster.engines.kubernetes_api import KubernetesSettings

EngineName = Literal["ray", "kubernetes", "local"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """engine: see `docs/fleet/engines.md`; address: HOST:PORT of a Ray cluster, '' begins one on this machine; token, token_file: that
    cluster's; send_packages: our packages travel with Ray tasks; kubeconfig, context, namespace, domain, image: see
    `KubernetesSettings`, '' its defaults."""

    engine: EngineName = "ray"
    address: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    send_packages: bool = False
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    domain: str = ""
    image: str = ""


def open_engine(settings: EngineSettings, *, local_nodes: Mapping[NodeId, Mapping[str, float]] | None = None) -> Engine:
    """local_nodes: of the engine `local`, id -> physical amounts; None: this machine's CPU. UsageError for an unknown name;
    EnvironmentLacking when the engine is not installed or does not answer."""
    known: dict[str, Callable[[], Engine]] = {
        "ray": lambda: _ray(settings),
        "kubernetes": lambda: _kubernetes(settings),
        "local": lambda: _local(local_nodes),
    }
    if settings.engine not in known:
        names = ", ".join(get_args(EngineName))
        raise UsageError(f"there is no engine {settings.engine!r}", subject=settings.engine, remedy=f"choose one of {names}")
    return known[settings.engine]()


def _ray(settings: EngineSettings) -> Engine:
    from cluster.engines.ray_cluster import RaySettings, imported_ray

    imported_ray()
    from cluster.engines.ray_engine import RayEngine

    return RayEngine(
        RaySettings(
            address=settings.address,
            token=settings.token,
            token_file=settings.token_file,
            send_packages=settings.send_packages,
        )
    )


def _kubernetes(settings: EngineSettings) -> Engine:
    from cluster.engines.kubernetes_api import KubernetesApi
    from cluster.engines.kubernetes_engine import KubernetesEngine

    return KubernetesEngine(KubernetesApi(kubernetes_settings(settings)))


def kubernetes_settings(settings: EngineSettings) -> KubernetesSettings:
    """What is '' is left to the defaults."""
    from cluster.engines.kubernetes_api import KubernetesSettings

    named = {
        name: value for name in ("kubeconfig", "context", "namespace", "domain", "image") if (value := getattr(settings, name))
    }
    return KubernetesSettings(**named)


def _local(nodes: Mapping[NodeId, Mapping[str, float]] | None) -> Engine:
    from cluster.engines.local import LocalEngine

    return LocalEngine(nodes or {"here": {"CPU": float(os.cpu_count() or 1)}})
