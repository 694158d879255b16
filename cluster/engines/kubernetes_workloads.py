"""Cameras that are watched inside a cluster: a Deployment for each box that is a pod, not a machine.

Such a box is an ordinary one: its configuration from a Secret, its data folder on a claim, its place by what it demands (named
resources: near a camera's network, apart from its stand-by, a customer's share). One replica, and the old pod ends before the new one
begins: two boxes on one data folder, or with one id, must not be. Kubernetes starts it again wherever its demands are met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.engines.base import Demands, Task, checked_demands
from cluster.engines.kubernetes_api import Body, KubernetesApi, KubernetesRefusal, KubernetesSettings, there
from cluster.engines.kubernetes_pods import MANAGED, WORK_USER, task_hash
from cluster.engines.kubernetes_resources import requests_of
from scheduler.fleet.types import checked


@dataclass(frozen=True, kw_only=True)
class CameraWorkload:
    """A box in the cluster. id: the box's; demands: physical and named, met by one node; config_secret: Secret with `box.yaml`;
    data_claim: PersistentVolumeClaim of its data folder, '' its data ends with the pod; environment: name -> (Secret, key), for what
    the configuration takes from `env:`."""

    id: str
    demands: Demands
    config_secret: str
    data_claim: str = ""
    environment: Mapping[str, tuple[str, str]] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkloadStatus:
    """ready: its pod answers /readyz; problem: in Kubernetes' words, '' none."""

    id: str
    ready: bool
    problem: str = ""


def deployment_of(workload: CameraWorkload, settings: KubernetesSettings) -> Body:
    """UsageError for an id or demands that Kubernetes cannot hold (code 'whole_only' for fractions of named resources)."""
    checked(workload.id, "a box")
    checked_demands(Task(id=workload.id, demands=workload.demands))
    name = deployment_name(workload.id)
    mark = {f"{settings.domain}/box": task_hash(workload.id)}
    labels = {MANAGED: "driftbox", "app.kubernetes.io/name": "driftbox", **mark}
    requests = requests_of(workload.demands, settings.domain)
    data = {"persistentVolumeClaim": {"claimName": workload.data_claim}} if workload.data_claim else {"emptyDir": {}}
    container: Body = {
        "name": "box",
        "image": settings.image,
        "args": ["run", "/etc/driftbox/box.yaml"],
        "ports": [{"containerPort": 8080, "name": "https"}],
        "resources": {"requests": requests, "limits": _limits(requests)},
        "startupProbe": {**_probe("/healthz"), "periodSeconds": 10, "failureThreshold": 90},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 10},
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 30, "failureThreshold": 4},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": WORK_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/driftbox", "readOnly": True},
            {"name": "data", "mountPath": "/var/lib/driftbox"},
            {"name": "cache", "mountPath": "/var/cache/driftbox"},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
    if workload.environment:
        container["env"] = [
            {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for variable, (secret, key) in sorted(workload.environment.items())
        ]
    pod: Body = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "securityContext": {"fsGroup": WORK_USER},
        "terminationGracePeriodSeconds": 60,
        "volumes": [
            {"name": "config", "secret": {"secretName": workload.config_secret}},
            {"name": "data", **data},
            {"name": "cache", "emptyDir": {}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels, "annotations": {f"{settings.domain}/box-id": workload.id}},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": mark},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def deployment_name(box: str) -> str:
    """Kubernetes' names take no '_' and do not end in '-'; the hash keeps two boxes apart that look alike then."""
    return f"box-{box.replace('_', '-').strip('-')[:40]}-{task_hash(box)[:8]}"


def _limits(requests: Mapping[str, str]) -> dict[str, str]:
    """Named resources and memory are limits too; a box may use what CPU is idle."""
    return {name: amount for name, amount in requests.items() if name != "cpu"}


def _probe(path: str) -> Body:
    """The box's certificate is its own, which a kubelet does not check."""
    return {"httpGet": {"path": path, "port": "https", "scheme": "HTTPS"}, "timeoutSeconds": 10}


class Workloads:
    """Boxes in the cluster. All calls may raise KubernetesRefusal."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._namespace = api.settings.namespace

    def apply(self, workload: CameraWorkload) -> None:
        """Makes it so, whatever was there under its id."""
        body = deployment_of(workload, self._api.settings)
        try:
            self._api.call(self._api.apps.create_namespaced_deployment, self._namespace, body)
        except KubernetesRefusal as error:
            if not there(error):
                raise
            patch = [{"op": "replace", "path": "/spec", "value": body["spec"]}]
            self._api.call(self._api.apps.patch_namespaced_deployment, body["metadata"]["name"], self._namespace, patch)

    def remove(self, box: str) -> None:
        """Its pod ends in order; its claim and its Secret stay. Unknown: nothing happens."""
        try:
            self._api.call(self._api.apps.delete_namespaced_deployment, deployment_name(box), self._namespace)
        except KubernetesRefusal as error:
            if error.status != 404:
                raise

    def statuses(self) -> Sequence[WorkloadStatus]:
        label = f"{self._api.settings.domain}/box"
        found = self._api.call(self._api.apps.list_namespaced_deployment, self._namespace, label_selector=label)
        return [_status_of(body, f"{label}-id") for body in found.get("items", ())]


def _status_of(body: Body, note: str) -> WorkloadStatus:
    status = body.get("status") or {}
    problems = [
        f"{c.get('reason', '')}: {c.get('message', '')}"
        for c in status.get("conditions") or []
        if (c.get("type") == "ReplicaFailure" and c.get("status") == "True")
        or (c.get("type") == "Progressing" and c.get("status") == "False")
    ]
    ready = int(status.get("availableReplicas") or 0) >= 1
    return WorkloadStatus(
        id=body["metadata"]["annotations"][note], ready=ready, problem="" if ready else "; ".join(problems)[:300]
    )
