"""The Kubernetes API as this product uses it: dicts in, dicts out, and every refusal as an error that says what to do about it.

The official client does authentication, TLS and transport. Its typed models are left out on the way back: a list of a thousand pods is
read in a tenth of the time, and fields of a newer cluster stay where they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from configs.errors import DriftboxError, EnvironmentLacking, UsageError

Body = dict[str, Any]
_TIMEOUT_S = (5.0, 20.0)
_JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """kubeconfig: file, '' what KUBECONFIG says or, in a pod, its service account; context: of that file, '' its current one;
    namespace: of our pods; domain: before the names of our resources, gates and labels; image: of pods that do work, the same release
    as this; hold_image: of those that only hold; service_account: of pods that do work (they may set resources)."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = "driftbox"
    domain: str = "driftbox.io"
    image: str = "driftbox:latest"
    hold_image: str = "registry.k8s.io/pause:3.10"
    service_account: str = "driftbox-work"
    host: str = field(default="", repr=False)


class KubernetesRefusal(EnvironmentLacking):
    """The cluster understood and said no, or is away. status: of HTTP, 0: there was no answer."""

    def __init__(self, message: str, *, status: int, subject: str = "", remedy: str = "") -> None:
        super().__init__(message, subject=subject, remedy=remedy, code="kubernetes")
        self.status = status


class KubernetesApi:
    """One cluster. Thread-safe, as the client's connection pool is."""

    def __init__(self, settings: KubernetesSettings | None = None) -> None:
        self.settings = settings or KubernetesSettings()
        client = imported_client()
        api = client.ApiClient(_configuration(self.settings))
        self.core, self.apps, self.leases = client.CoreV1Api(api), client.AppsV1Api(api), client.CoordinationV1Api(api)
        self._api = api

    def call(self, method: Any, *args: Any, **more: Any) -> Body:
        """The answer of a method of `core`, `apps` or `leases`. KubernetesRefusal."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        if method.__name__.startswith("patch_"):
            more["_content_type"] = _JSON_PATCH
        doing = method.__name__.replace("_", " ")
        subject = str(args[0]) if args and isinstance(args[0], str) else ""
        try:
            answer = method(*args, **more, _preload_content=False, _request_timeout=_TIMEOUT_S)
            body = json.loads(answer.data)
        except ApiException as error:
            raise refusal(error.status or 0, error.reason or "", error.body, doing=doing, subject=subject) from None
        except (HTTPError, OSError, ValueError) as error:
            raise KubernetesRefusal(
                f"the Kubernetes API does not answer ({doing}): {type(error).__name__}", status=0, remedy="is the cluster up?"
            ) from None
        if int(answer.status) >= 400:  # without `_preload_content` some releases leave it to the caller to look
            raise refusal(int(answer.status), str(answer.reason or ""), answer.data, doing=doing, subject=subject)
        return dict(body) if isinstance(body, dict) else {}

    def close(self) -> None:
        self._api.close()


def refusal(status: int, reason: str, body: Any, *, doing: str, subject: str) -> KubernetesRefusal:
    """What the cluster answered, with what to do. The answer's own words are kept, the request's never."""
    said = _message(body) or reason
    remedies = {
        401: "the credentials of the kubeconfig are not accepted: are they from this cluster, and not expired?",
        403: "this account may not: kubectl apply -f configs/kubernetes/rbac.yaml",
        404: "it is gone, or the namespace is missing: kubectl apply -f configs/kubernetes/namespace.yaml",
        409: "somebody else changed it meanwhile: it is tried again",
        422: "an admission policy or the API itself refuses it: see configs/kubernetes/admission.yaml",
    }
    remedy = remedies.get(status, "it is tried again" if status == 429 or status >= 500 else "is the cluster 1.30 or newer?")
    return KubernetesRefusal(
        f"Kubernetes refuses to {doing}: {status} {said}"[:500], status=status, subject=subject, remedy=remedy
    )


def _message(body: Any) -> str:
    try:
        found = json.loads(body)
    except (TypeError, ValueError):
        return ""
    return str(found.get("message", "")) if isinstance(found, dict) else ""


def imported_client() -> Any:
    """The module `kubernetes.client`. EnvironmentLacking if it is not installed."""
    try:
        from kubernetes import client
    except ImportError as error:
        raise EnvironmentLacking(
            f"the Kubernetes client is not installed ({error})", subject="kubernetes", remedy="install driftbox[cluster]"
        ) from None
    return client


def open_api() -> KubernetesApi:
    """As the environment says: what a pod of ours uses."""
    return KubernetesApi()


def _configuration(settings: KubernetesSettings) -> Any:
    from kubernetes import client, config

    configuration = client.Configuration()
    if settings.host:  # a cluster that asks for no credentials: `kubectl proxy`, a test
        configuration.host = settings.host
    else:
        try:
            config.load_config(
                config_file=settings.kubeconfig or None, context=settings.context or None, client_configuration=configuration
            )
        except (config.ConfigException, OSError) as error:
            raise EnvironmentLacking(
                f"no Kubernetes cluster to talk to: {error}",
                subject=settings.kubeconfig,
                remedy="name a kubeconfig",
            ) from None
    configuration.retries = False  # a refusal is told at once; the reconciler is who tries again
    return configuration


def gone(error: DriftboxError) -> bool:
    """It is not there (any more)."""
    return isinstance(error, KubernetesRefusal) and error.status == 404


def there(error: DriftboxError) -> bool:
    """It is there already, or was changed meanwhile."""
    return isinstance(error, KubernetesRefusal) and error.status == 409


def checked_namespace(name: str) -> str:
    """UsageError unless it can be one."""
    if not name or len(name) > 63 or not all(c.isascii() and (c.isalnum() or c == "-") for c in name) or name != name.lower():
        raise UsageError(f"{name[:80]!r} cannot be a Kubernetes namespace", subject=name[:80])
    return name
