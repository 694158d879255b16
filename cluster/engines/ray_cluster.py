"""A Ray cluster to work with: joined by its address, or begun on this machine.

Clusters are closed by a token since Ray 2.52 (card section 10): whoever joins carries it. It is handed to Ray by the environment: the
parts of Ray that are not Python read it there, and it is in no message of ours.
"""

from __future__ import annotations

import importlib
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.engines.ray_resources import first_line
from configs.errors import EnvironmentLacking, UsageError

NAMESPACE = "driftbox"
#: Packages of ours that tasks may need; sent along where the cluster's nodes have no Driftbox of their own.
PACKAGES = ("configs", "scheduler", "streams", "models", "cluster")
_REMEDY = "is Ray running there (`ray status`), and is its address right? Boxes join one with `ray start --address`"
#: A process that uses Ray ends itself when the cluster's head was away so long; a controller must outlive it.
_PATIENCE_S = 10 * 365 * 86_400


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """address: HOST:PORT of the head, '' begins a cluster on this machine; token: the cluster's, '' none or as the environment says;
    token_file: where it lies instead; send_packages: our Python packages travel with the tasks, for nodes without Driftbox; cpus: of
    a cluster that is begun, None as many as there are."""

    address: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    send_packages: bool = False
    cpus: int | None = None


def joined(settings: RaySettings) -> str:
    """The address (HOST:PORT) of the cluster that this process now belongs to. One process belongs to one cluster.

    EnvironmentLacking: Ray is not installed, nobody answers, the token is refused. UsageError: this process belongs to another."""
    prepare_environment(settings)
    ray = imported_ray()
    if ray.is_initialized():
        here = str(ray.get_runtime_context().gcs_address)
        if settings.address not in ("", here):
            raise UsageError(
                f"this process belongs to the Ray cluster at {here} already",
                subject=settings.address,
                remedy="one process, one cluster",
            )
        return here
    if settings.address:
        must_answer(settings.address)
    try:
        ray.init(**_arguments(settings))
    except Exception as error:  # Ray raises whatever its parts do: ConnectionError, RuntimeError, its own, an assertion
        raise EnvironmentLacking(
            f"the Ray cluster {settings.address or 'on this machine'} cannot be used: {_without(first_line(error), settings.token)}",
            subject=settings.address,
            remedy=_REMEDY,
        ) from None
    return str(ray.get_runtime_context().gcs_address)


def left() -> None:
    """Ends this process's part; a cluster that it began ends with it."""
    imported_ray().shutdown()


def imported_ray() -> Any:
    """The module. EnvironmentLacking if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise EnvironmentLacking(
            f"Ray is not installed ({error})", subject="ray", remedy="install driftbox[cluster], or choose the engine 'local'"
        ) from None
    return ray


def prepare_environment(settings: RaySettings) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_PATIENCE_S))
    if settings.token_file and not Path(settings.token_file).is_file():
        raise EnvironmentLacking(
            f"there is no token in {settings.token_file}", subject=settings.token_file, remedy="copy the head's"
        )
    if settings.token or settings.token_file:
        os.environ["RAY_AUTH_MODE"] = "token"
    if settings.token:
        os.environ["RAY_AUTH_TOKEN"] = settings.token
    elif settings.token_file:
        os.environ["RAY_AUTH_TOKEN_PATH"] = settings.token_file
    if not settings.address:
        # A cluster of our own: a group that waits for room is tried ten times a second, not once.
        os.environ.setdefault("RAY_gcs_create_placement_group_retry_max_interval_ms", "100")
    reread_environment()


def reread_environment() -> None:
    """Ray looks at its variables when it is imported; what was set since then is read now (its own way: `_enable_token_auth`)."""
    imported_ray()
    importlib.import_module("ray._raylet").Config.initialize("")


def _arguments(settings: RaySettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR", "configure_logging": False,
    }  # fmt: skip
    if settings.send_packages:
        arguments["runtime_env"] = {"py_modules": [str(folder) for folder in package_folders()]}
    if settings.address:
        return {**arguments, "address": settings.address}
    return {**arguments, "include_dashboard": False, "num_cpus": settings.cpus}


def package_folders() -> list[Path]:
    """Where the packages of `PACKAGES` lie."""
    root = Path(__file__).resolve().parents[2]
    return [root / name for name in PACKAGES]


def must_answer(address: str) -> None:
    """Ray itself waits a minute for a head that is not there, and 20 s before it says that a token is wrong, in words that do not."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise UsageError(f"{address!r} is no address of a Ray cluster", subject=address, remedy="write HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
    except OSError as error:
        raise EnvironmentLacking(f"nobody answers at {address}: {error}", subject=address, remedy=_REMEDY) from None
    from ray.exceptions import AuthenticationError

    try:
        importlib.import_module("ray._raylet").GcsClient(address=address)
    except AuthenticationError:
        raise EnvironmentLacking(
            f"the Ray cluster at {address} refuses the token",
            subject=address,
            remedy="copy the head's (~/.ray/auth_token there)",
        ) from None
    except Exception as error:  # Ray raises whatever its parts do
        message = f"what answers at {address} is no Ray cluster: {first_line(error)}"
        raise EnvironmentLacking(message, subject=address, remedy=_REMEDY) from None


def _without(text: str, secret: str) -> str:
    return text.replace(secret, "***") if secret else text
