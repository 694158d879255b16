"""The lease and the engine that a controller's configuration asks for. What cannot work is refused here, with what to do."""

from __future__ import annotations

from collections.abc import Callable

from cluster.controller.database import FleetDatabase
from cluster.controller.lease import LeaseStore, SqliteLeases
from cluster.engines.base import Engine
from cluster.engines.choose import EngineSettings, kubernetes_settings, open_engine
from configs.schema import ControllerConfig

Clock = Callable[[], float]


def open_leases(config: ControllerConfig, db: FleetDatabase, utc_s: Clock, monotonic_s: Clock) -> LeaseStore:
    """EnvironmentLacking: what it is asked for is not installed, does not answer, or refuses us. Whether it can be written shows when
    the lease is asked for first (`LeaseKeeper.begin`)."""
    name = config.lease.name
    if config.lease.store == "ray":
        from cluster.controller.lease_ray import RayLeases, kv_client

        return RayLeases(kv_client(config.ray.address, _token(config)), utc_s, monotonic_s, name=name)
    if config.lease.store == "kubernetes":
        from cluster.controller.lease_kubernetes import KubernetesLeases
        from cluster.engines.kubernetes_api import KubernetesApi

        return KubernetesLeases(
            KubernetesApi(kubernetes_settings(engine_settings(config))), utc_s, monotonic_s, name=f"driftbox-{name}"
        )
    return SqliteLeases(db, utc_s, name=name)


def open_fleet_engine(config: ControllerConfig) -> Engine | None:
    """None: `local`, placement stays in the controller. Raises as `open_engine`, and when it cannot be asked for its nodes."""
    if config.engine_in_force == "local":
        return None
    engine = open_engine(engine_settings(config))
    try:
        engine.nodes()
    except BaseException:
        engine.close()
        raise
    return engine


def engine_settings(config: ControllerConfig) -> EngineSettings:
    kubernetes = config.kubernetes
    return EngineSettings(
        engine=config.engine_in_force, address=config.ray.address, token=_token(config), kubeconfig=kubernetes.kubeconfig,
        context=kubernetes.context, namespace=kubernetes.namespace, domain=kubernetes.domain, image=kubernetes.image,
    )  # fmt: skip


def lease_told(config: ControllerConfig) -> str:
    """Where the lease is, for people."""
    if config.lease.store == "ray":
        return f"ray at {config.ray.address}"
    return f"kubernetes, namespace {config.kubernetes.namespace}" if config.lease.store == "kubernetes" else "file"


def engine_told(config: ControllerConfig) -> str:
    """Where the engine is, for people."""
    if config.engine_in_force == "ray":
        return config.ray.address
    return f"namespace {config.kubernetes.namespace}" if config.engine_in_force == "kubernetes" else ""


def _token(config: ControllerConfig) -> str:
    return config.ray.token.resolve() if config.ray.token is not None else ""
