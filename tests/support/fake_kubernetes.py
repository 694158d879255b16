"""A Kubernetes API server for tests: real HTTP on loopback that the official client talks to, with a scheduler and kubelets of its own.

It knows nodes with status patches, pods with scheduling gates, deployments and leases, resource versions and their conflicts. Pods are
bound when all they ask for is free on one ready node; a pod that does work runs it on a thread. It can be told to refuse a call, to lose
a node or its kubelet, and to zero extended resources as an old kubelet does. What it does not know is 404, as the real one.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cluster.engines.kubernetes_api import KubernetesApi, KubernetesSettings
from cluster.engines.kubernetes_resources import is_ready, patch_resource, quantity, used_by
from cluster.engines.run_work import Outcome, run_pod

Body = dict[str, Any]
_GROUPS = {
    ("api", "v1"): {"nodes": False, "pods": True},
    ("apis", "apps", "v1"): {"deployments": True},
    ("apis", "coordination.k8s.io", "v1"): {"leases": True},
}


class Status(Exception):
    """An answer that is a refusal."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass
class Rule:
    """Refuses calls whose method and path match, so many times (None: for ever)."""

    method: str
    path: str
    code: int
    message: str
    times: int | None


class FakeCluster:
    """domain: whose resources an old kubelet zeroes. `url` is its address while it is open."""

    def __init__(self, *, domain: str = "driftbox.io") -> None:
        self.domain = domain
        self.changed = threading.Condition(threading.RLock())
        self.calls: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self._objects: dict[tuple[str, str, str], Body] = {}
        self._rules: list[Rule] = []
        self._version = 0
        self._stops: dict[str, threading.Event] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        for stop in self._stops.values():
            stop.set()
        self._server.shutdown()
        self._server.server_close()

    # --- what tests tell it -------------------------------------------------------------------------------------------

    def add_node(self, name: str, *, cpus: int = 4, memory: str = "8Gi", labels: Mapping[str, str] | None = None) -> None:
        amounts = {"cpu": str(cpus), "memory": memory, "pods": "110"}
        status = {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": f"10.0.0.{len(self._objects) + 1}"}],
        }
        self._put(
            "nodes",
            "",
            {"kind": "Node", "metadata": {"name": name, "labels": dict(labels or {})}, "spec": {}, "status": status},
        )

    def stop_kubelet(self, name: str) -> None:
        """The machine is gone: nothing reports, nothing confirms."""
        self._condition(name, "Unknown")

    def start_kubelet(self, name: str) -> None:
        self._condition(name, "True")

    def remove_node(self, name: str) -> None:
        """Its object is deleted; pod collection takes its pods with it."""
        with self.changed:
            self._drop("nodes", "", name)
            for key, pod in list(self._objects.items()):
                if key[0] == "pods" and pod["spec"].get("nodeName") == name:
                    self._end_pod(key)

    def zero_resources(self, name: str) -> None:
        """A kubelet from before Kubernetes 1.16 starts again (issue 64632)."""
        with self.changed:
            node = copy.deepcopy(self._objects["nodes", "", name])
            for place in ("capacity", "allocatable"):
                for key in node["status"][place]:
                    if key.startswith(f"{self.domain}/"):
                        node["status"][place][key] = "0"
            self._put("nodes", "", node)

    def refuse(
        self, method: str, path: str, *, code: int, message: str = "refused by the test", times: int | None = None
    ) -> None:
        """path: a part of it."""
        with self.changed:
            self._rules.append(Rule(method, path, code, message, times))

    def allow_all(self) -> None:
        with self.changed:
            self._rules.clear()

    def get(self, resource: str, name: str, namespace: str = "") -> Body:
        with self.changed:
            return copy.deepcopy(self._objects[resource, namespace, name])

    def all(self, resource: str) -> list[Body]:
        with self.changed:
            return [copy.deepcopy(body) for key, body in self._objects.items() if key[0] == resource]

    # --- the API ------------------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Body]:
        url = urlsplit(target)
        with self.changed:
            self.calls.append((method, url.path))
            try:
                self._refuse_by_rule(method, url.path)
                return 200, self._dispatch(method, url.path, {k: v[0] for k, v in parse_qs(url.query).items()}, body)
            except Status as status:
                return status.code, {"kind": "Status", "status": "Failure", "code": status.code, "message": status.message}
            finally:
                self._schedule()
                self.changed.notify_all()

    def _refuse_by_rule(self, method: str, path: str) -> None:
        for rule in self._rules:
            if rule.method == method and rule.path in path and rule.times != 0:
                rule.times = None if rule.times is None else rule.times - 1
                raise Status(rule.code, rule.message)

    def _dispatch(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Body:
        resource, namespace, name, sub = _parsed(path)
        if not name:
            if method == "GET":
                return {
                    "kind": "List",
                    "metadata": {"resourceVersion": str(self._version)},
                    "items": self._list(resource, namespace, query),
                }
            if method == "POST":
                return self._create(resource, namespace, body)
        key = (resource, namespace, name)
        if key not in self._objects:
            raise Status(404, f'{resource} "{name}" not found')
        if method == "GET":
            return copy.deepcopy(self._objects[key])
        if method == "PATCH":
            return self._patch(key, sub, body)
        if method == "PUT":
            return self._replace(key, body)
        if method == "DELETE":
            return self._delete(key, int(query.get("gracePeriodSeconds", "30")))
        raise Status(405, f"{method} is not allowed")

    def _list(self, resource: str, namespace: str, query: Mapping[str, str]) -> list[Body]:
        found = [b for k, b in self._objects.items() if k[0] == resource and namespace in ("", k[1])]
        for term in filter(None, query.get("labelSelector", "").split(",")):
            key, equals, value = term.partition("=")
            found = [b for b in found if key in _labels(b) and (not equals or _labels(b)[key] == value)]
        for term in filter(None, query.get("fieldSelector", "").split(",")):
            _, _, value = term.partition("spec.nodeName=")
            found = [b for b in found if b["spec"].get("nodeName") == value]
        return copy.deepcopy(found)

    def _create(self, resource: str, namespace: str, body: Body) -> Body:
        name = body["metadata"]["name"]
        if (resource, namespace, name) in self._objects:
            raise Status(409, f'{resource} "{name}" already exists')
        body = copy.deepcopy(body)
        if resource == "pods":
            _check_pod(body)
            body["status"] = {"phase": "Pending"}
        if resource == "deployments":
            body["status"] = {"replicas": body["spec"]["replicas"], "availableReplicas": body["spec"]["replicas"]}
        body["metadata"]["namespace"] = namespace
        return self._put(resource, namespace, body)

    def _patch(self, key: tuple[str, str, str], sub: str, operations: Any) -> Body:
        if not isinstance(operations, list):
            raise Status(415, "this server takes JSON patches only")
        body = copy.deepcopy(self._objects[key])
        before = copy.deepcopy(body)
        for operation in operations:
            _apply(body, operation)
        if key[0] == "nodes" and sub != "status" and body["status"] != before["status"]:
            body["status"] = before["status"]  # the main resource does not write the status
        if key[0] == "pods":
            gates = [g["name"] for g in body["spec"].get("schedulingGates", [])]
            if not set(gates) <= {g["name"] for g in before["spec"].get("schedulingGates", [])}:
                raise Status(422, "scheduling gates can only be removed")
        return self._put(key[0], key[1], body)

    def _replace(self, key: tuple[str, str, str], body: Body) -> Body:
        theirs = body["metadata"].get("resourceVersion")
        if theirs is not None and theirs != self._objects[key]["metadata"]["resourceVersion"]:
            raise Status(409, "the object has been modified; please apply your changes to the latest version")
        return self._put(key[0], key[1], copy.deepcopy(body))

    def _delete(self, key: tuple[str, str, str], grace_s: int) -> Body:
        body = self._objects[key]
        stop = self._stops.get(body["metadata"]["uid"])
        node = self._objects.get(("nodes", "", body.get("spec", {}).get("nodeName") or ""))
        confirmed_by_kubelet = key[0] == "pods" and node is not None and body["status"]["phase"] == "Running"
        if grace_s and confirmed_by_kubelet and (stop is not None or not is_ready(node)):
            body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            if stop is not None and is_ready(node):
                stop.set()
            return copy.deepcopy(body)
        self._end_pod(key) if key[0] == "pods" else self._drop(*key)
        return copy.deepcopy(body)

    # --- objects ------------------------------------------------------------------------------------------------------

    def _put(self, resource: str, namespace: str, body: Body) -> Body:
        with self.changed:
            self._version += 1
            key = (resource, namespace, body["metadata"]["name"])
            uid = self._objects[key]["metadata"]["uid"] if key in self._objects else str(uuid.uuid4())
            body["metadata"] |= {"uid": uid, "resourceVersion": str(self._version)}
            self._objects[key] = body
            self._schedule()
            self.changed.notify_all()
            return copy.deepcopy(body)

    def _drop(self, resource: str, namespace: str, name: str) -> None:
        self._objects.pop((resource, namespace, name), None)

    def _end_pod(self, key: tuple[str, str, str]) -> None:
        stop = self._stops.get(self._objects[key]["metadata"]["uid"])
        if stop is not None:
            stop.set()
        self._drop(*key)

    def _condition(self, name: str, ready: str) -> None:
        with self.changed:
            node = copy.deepcopy(self._objects["nodes", "", name])
            node["status"]["conditions"] = [{"type": "Ready", "status": ready}]
            self._put("nodes", "", node)

    # --- scheduler and kubelets ---------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Binds what fits, the oldest first; under the lock."""
        for key, pod in list(self._objects.items()):
            waiting = key[0] == "pods" and not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
            if waiting and "deletionTimestamp" not in pod["metadata"]:
                node = self._node_for(pod)
                if node:
                    self._bind(key, pod, node)

    def _node_for(self, pod: Body) -> str:
        used = used_by(body for key, body in self._objects.items() if key[0] == "pods")
        for key, node in self._objects.items():
            if key[0] == "nodes" and is_ready(node) and _fits(pod, node, used.get(key[2], {})):
                return key[2]
        return ""

    def _bind(self, key: tuple[str, str, str], pod: Body, node: str) -> None:
        pod["spec"]["nodeName"] = node
        pod["status"]["phase"] = "Running"
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        if "command" in pod["spec"]["containers"][0]:
            stop = self._stops[pod["metadata"]["uid"]] = threading.Event()
            threading.Thread(target=self._run, args=(key, pod["metadata"]["uid"], node, stop), daemon=True).start()

    def _run(self, key: tuple[str, str, str], uid: str, node: str, stop: threading.Event) -> None:
        """The kubelet: the pod's work with the pod's environment, as `python -m cluster.engines.run_work` does it."""
        environ = {}
        for variable in self.get("pods", key[2], key[1])["spec"]["containers"][0].get("env", []):
            environ[variable["name"]] = variable.get("value", node)
        api = KubernetesApi(KubernetesSettings(host=self.url, domain=self.domain))

        def resize(place: str, name: str, capacity: float) -> float:
            return patch_resource(api, node=place, name=name, capacity=capacity, domain=environ["DRIFTBOX_DOMAIN"])

        message = run_pod(environ, resize, stop)
        api.close()
        with self.changed:
            pod = self._objects.get(key)
            alive = is_ready(
                self._objects.get(("nodes", "", node), {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
            )
            if pod is None or pod["metadata"]["uid"] != uid or not alive:
                return  # nobody is there to tell
            if "deletionTimestamp" in pod["metadata"]:
                self._drop(*key)
            else:
                failed = bool(Outcome.from_json(message).problem)
                pod["status"]["phase"] = "Failed" if failed else "Succeeded"
                ended = {"exitCode": int(failed), "reason": "Error" if failed else "Completed", "message": message}
                pod["status"]["containerStatuses"] = [{"name": "task", "state": {"terminated": ended}}]
            self._schedule()
            self.changed.notify_all()

    def until(self, condition: Any, timeout_s: float = 60.0) -> bool:
        """Waits for a condition over this cluster or over who talks to it."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if condition():
                return True
            with self.changed:
                self.changed.wait(0.01)
        return bool(condition())


def _check_pod(body: Body) -> None:
    """What the real one refuses of a pod, of what we could get wrong."""
    for container in body["spec"]["containers"]:
        resources = container.get("resources", {})
        for name, amount in resources.get("requests", {}).items():
            extended = "/" in name
            if extended and (quantity(amount) != int(quantity(amount)) or resources.get("limits", {}).get(name) != amount):
                raise Status(422, f"{name}: extended resources are whole, and request equals limit")
    for gate in body["spec"].get("schedulingGates", []):
        if len(gate["name"].partition("/")[2]) > 63:
            raise Status(422, "a gate's name is a qualified name")


def _fits(pod: Body, node: Body, used: Mapping[str, float]) -> bool:
    allocatable = node["status"]["allocatable"]
    asked = used_by([{"spec": {**pod["spec"], "nodeName": "?"}}])["?"]
    return all(quantity(allocatable.get(name, 0)) - used.get(name, 0.0) >= amount for name, amount in asked.items())


def _apply(body: Body, operation: Mapping[str, Any]) -> None:
    """RFC 6902, of it add, remove, replace and test."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
    place: Any = body
    for step in steps[:-1]:
        if isinstance(place, list):
            place = place[int(step)] if int(step) < len(place) else None
        else:
            place = place.get(step)
        if place is None:
            raise Status(422, f"there is no {operation['path']}")
    last: Any = int(steps[-1]) if isinstance(place, list) else steps[-1]
    there = last < len(place) if isinstance(place, list) else last in place
    if operation["op"] != "add" and not there:
        raise Status(422, f"there is no {operation['path']}")
    if operation["op"] == "test":
        if place[last] != operation["value"]:
            raise Status(422, "the test operation failed")
    elif operation["op"] == "remove":
        del place[last]
    else:
        place[last] = operation["value"]


def _labels(body: Body) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def _parsed(path: str) -> tuple[str, str, str, str]:
    """(resource, namespace, name, subresource). Status 404 for what is none."""
    parts = tuple(path.strip("/").split("/"))
    for group, resources in _GROUPS.items():
        if parts[: len(group)] != group:
            continue
        rest = list(parts[len(group) :])
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if rest and rest[0] in resources and len(rest) <= 3:
            return (rest[0], namespace, *(rest[1:] + ["", ""])[:2])  # type: ignore[return-value]
    raise Status(404, f"the server could not find the requested resource {path}")


def _handler(cluster: FakeCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length) if length else b""
            cluster.headers.append({key.lower(): value for key, value in self.headers.items()})
            code, body = cluster.answer(self.command, self.path, json.loads(raw) if raw else None)
            payload = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def fake_cluster(*nodes: str) -> Iterator[FakeCluster]:
    """With nodes of 4 CPU each."""
    cluster = FakeCluster()
    for node in nodes:
        cluster.add_node(node)
    try:
        yield cluster
    finally:
        cluster.close()
