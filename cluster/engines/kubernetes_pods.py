"""A task as a pod, and a pod as a task's status. Values only.

Gates are scheduling gates (stable since Kubernetes 1.30): the pod is there and the scheduler does not look at it until the last one is
taken away. What is needed to know a task again after a controller's restart stands on its pod.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.engines.base import NodeId, Task, TaskStatus
from cluster.engines.kubernetes_api import Body, KubernetesSettings
from cluster.engines.kubernetes_resources import requests_of
from cluster.engines.run_work import Outcome

MANAGED = "app.kubernetes.io/managed-by"
#: So long a pod stays on a node that does not answer; the default of five minutes is a long time for a camera.
_UNREACHABLE_S = 20
#: Users of the images (configs/container/Containerfile; pause): by number, because Kubernetes cannot see that a name is not root.
WORK_USER, _HOLD_USER = 10001, 65535
#: Why a pod ended that did nothing wrong.
_NODE_REASONS = frozenset({"NodeLost", "NodeShutdown", "Evicted", "Preempting", "Shutdown", "Terminated", "DeletionByPodGC"})


def task_hash(task: str) -> str:
    """Stands for a task's id where Kubernetes takes no free text."""
    return hashlib.sha256(task.encode()).hexdigest()[:24]


def pod_name(task: str, attempt: int) -> str:
    return f"driftbox-{task_hash(task)}-{attempt}"


def gate_name(gate: str, domain: str) -> str:
    """Gates have any name with us; Kubernetes wants a qualified one."""
    return f"{domain}/gate-{hashlib.sha256(gate.encode()).hexdigest()[:24]}"


def pod_body(task: Task, attempt: int, settings: KubernetesSettings) -> Body:
    """attempt: counts the runs from 0. UsageError with code 'whole_only' for demands that Kubernetes cannot count."""
    domain = settings.domain
    keys = {"effect": "NoExecute", "operator": "Exists", "tolerationSeconds": _UNREACHABLE_S}
    spec: Body = {
        "restartPolicy": "Never",
        "containers": [_container(task, settings)],
        "terminationGracePeriodSeconds": 0 if task.hold else 30,
        "automountServiceAccountToken": not task.hold,
        "enableServiceLinks": False,
        "tolerations": [{"key": f"node.kubernetes.io/{key}", **keys} for key in ("not-ready", "unreachable")],
    }
    if task.gates:
        spec["schedulingGates"] = [{"name": gate_name(gate, domain)} for gate in sorted(set(task.gates))]
    if not task.hold:
        spec["serviceAccountName"] = settings.service_account
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(task.id, attempt),
            "labels": {MANAGED: "driftbox", f"{domain}/task": task_hash(task.id)},
            "annotations": {
                f"{domain}/task-id": task.id,
                f"{domain}/attempt": str(attempt),
                f"{domain}/retries": str(task.retries),
                f"{domain}/hold": str(task.hold).lower(),
            },
        },
        "spec": spec,
    }


def _container(task: Task, settings: KubernetesSettings) -> Body:
    requests = requests_of(task.demands, settings.domain)
    container: Body = {
        "name": "task",
        "image": settings.hold_image if task.hold else settings.image,
        "resources": {"requests": requests, "limits": dict(requests)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": _HOLD_USER if task.hold else WORK_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if task.work is not None:
        work = json.dumps({"entry": task.work.entry, "arguments": dict(task.work.arguments)}, allow_nan=False)
        container["command"] = ["python", "-m", "cluster.engines.run_work"]
        container["env"] = [
            {"name": "DRIFTBOX_TASK", "value": task.id},
            {"name": "DRIFTBOX_WORK", "value": work},
            {"name": "DRIFTBOX_DOMAIN", "value": settings.domain},
            {"name": "DRIFTBOX_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]
        container["terminationMessagePath"] = "/dev/termination-log"
        container["terminationMessagePolicy"] = "File"
    return container


@dataclass(frozen=True, kw_only=True)
class PodView:
    """What a pod says of its task. attempt, retries: of the task; lost: its node went, or it was taken off it."""

    name: str
    uid: str
    task: str
    attempt: int
    retries: int
    lost: bool
    status: TaskStatus

    @property
    def to_be_run_again(self) -> bool:
        return self.lost and self.attempt < self.retries


def view_of(pod: Mapping[str, Any], alive: set[NodeId], domain: str) -> PodView | None:
    """None: the pod is no task's. alive: nodes that are ready."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    notes = meta.get("annotations") or {}
    task = notes.get(f"{domain}/task-id")
    if task is None:
        return None
    attempt, retries = int(notes.get(f"{domain}/attempt", "0")), int(notes.get(f"{domain}/retries", "0"))
    hold, node, phase = notes.get(f"{domain}/hold") == "true", spec.get("nodeName"), status.get("phase", "Pending")
    over = phase in ("Succeeded", "Failed")
    lost = (node is not None and node not in alive and not over) or (
        phase == "Failed" and status.get("reason") in _NODE_REASONS
    )
    if lost:
        told = _lost(task, node, again=attempt < retries)
    elif over:
        told = _over(task, node, pod)
    elif node is not None and (hold or phase == "Running"):
        told = TaskStatus(id=task, state="running", node=node)
    else:
        told = TaskStatus(id=task, state="waiting", problem=_hindrance(pod))
    return PodView(
        name=meta["name"], uid=meta.get("uid", ""), task=task, attempt=attempt, retries=retries, lost=lost, status=told
    )


def _lost(task: str, node: NodeId | None, *, again: bool) -> TaskStatus:
    if again:
        return TaskStatus(id=task, state="waiting")
    return TaskStatus(id=task, state="lost", node=node, problem=f"node {node} is gone")


def _over(task: str, node: NodeId | None, pod: Mapping[str, Any]) -> TaskStatus:
    """Out of its termination message; a pod that wrote none tells why in Kubernetes' words."""
    ended = [c["state"]["terminated"] for c in _containers(pod) if "terminated" in (c.get("state") or {})]
    message = ended[0].get("message", "") if ended else ""
    try:
        outcome = Outcome.from_json(message)
    except ValueError:
        reason = (ended[0].get("reason") if ended else "") or pod.get("status", {}).get("reason") or "no answer"
        detail = message or pod.get("status", {}).get("message", "")
        return TaskStatus(id=task, state="failed", node=node, problem=f"its pod ended: {reason} {detail}".strip()[:500])
    if outcome.problem:
        return TaskStatus(id=task, state="failed", node=node, problem=outcome.problem)
    return TaskStatus(id=task, state="done", node=node, result=outcome.result)


def _hindrance(pod: Mapping[str, Any]) -> str:
    """Why a pod that has a node does not begin: an image that cannot be pulled, above all."""
    waiting = [c["state"]["waiting"] for c in _containers(pod) if "waiting" in (c.get("state") or {})]
    words = [
        f"{w.get('reason', '')}: {w.get('message', '')}" for w in waiting if w.get("reason") not in (None, "ContainerCreating")
    ]
    return words[0][:300] if words else ""


def _containers(pod: Mapping[str, Any]) -> list[Body]:
    return list(pod.get("status", {}).get("containerStatuses") or [])
