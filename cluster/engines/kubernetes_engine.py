"""The Kubernetes engine: named resources as extended resources, tasks as pods, gates as scheduling gates (card sections 7, 11, 12).

The cluster queues, places and accounts. A reconciler looks every `tick_s`: it patches again what a node lost while it stayed (old
kubelets set extended resources to 0 when they start, a node object may be made anew), tries again what was refused, and runs tasks again
whose node went. A node that was told to be lost comes back without any of our resources, as a raylet does: the library above has moved
what was on it, and two of one thing would be worse than none. Kubernetes has no gang reservation that is on by default: ghosts serve.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.engines.base import Demands, NodeId, NodeStatus, Task, TaskStatus, checked_demands, checked_resource, node_lost
from cluster.engines.kubernetes_api import KubernetesApi, KubernetesRefusal, checked_namespace, gone, there
from cluster.engines.kubernetes_pods import MANAGED, PodView, gate_name, pod_body, pod_name, task_hash, view_of
from cluster.engines.kubernetes_resources import (
    ephemeral_of,
    in_place,
    is_ready,
    node_status,
    patch_for,
    patch_resource,
    used_by,
    whole,
)
from configs.errors import DriftboxError, UsageError

log = logging.getLogger("driftbox.fleet.kubernetes")

_LIFT_TRIES = 20
_NO_GRACE = {"grace_period_seconds": 0}


@dataclass
class _Submitted:
    """A task of this engine object. told: its end, once it has one that its pod cannot tell (any more)."""

    task: Task
    attempt: int = 0
    cancelled: bool = False
    told: TaskStatus | None = None


class KubernetesEngine:
    """See the module. tick_s: between two looks of the reconciler."""

    name = "kubernetes"

    def __init__(self, api: KubernetesApi, *, tick_s: float = 2.0) -> None:
        self._api, self._tick_s = api, tick_s
        self._domain, self._namespace = api.settings.domain, checked_namespace(api.settings.namespace)
        self._lock = threading.RLock()
        self._tasks: dict[str, _Submitted] = {}
        #: What this object has asked for, by node and name.
        self._wanted: dict[tuple[NodeId, str], int] = {}
        #: Nodes ever seen, and whether they were alive then.
        self._seen: dict[NodeId, bool] = {}
        self._problems: dict[str, str] = {}
        self._closed = threading.Event()
        self._list_nodes()  # an API that is away, or refuses us, is told now
        self._ticker = threading.Thread(target=self._tick_until_closed, name="kubernetes-engine", daemon=True)
        self._ticker.start()

    # --- nodes and resources ------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeStatus]:
        found = self._list_nodes()
        used = used_by(self._api.call(self._api.core.list_pod_for_all_namespaces).get("items", ()))
        told = {
            node["metadata"]["name"]: node_status(node, used.get(node["metadata"]["name"], {}), self._domain) for node in found
        }
        with self._lock:
            # A node that is back but not yet empty counts as away.
            away = [name for name, alive in self._seen.items() if not alive or name not in told]
        lost = {name: NodeStatus(id=name, alive=False, total={}, free={}) for name in away}
        return list({**told, **lost}.values())

    def set_resource(self, name: str, capacity: float, node: NodeId) -> float:
        """As the contract. What is refused is raised, and tried again by the reconciler until it is asked for otherwise."""
        checked_resource(name, capacity)
        with self._lock:
            if not self._seen.get(node, True):
                raise node_lost(node)
        try:
            in_force = patch_resource(self._api, node=node, name=name, capacity=capacity, domain=self._domain)
        except KubernetesRefusal:
            self._want(node, name, whole(name, capacity))
            raise
        except UsageError:
            with self._lock:
                self._wanted.pop((node, name), None)
            raise
        self._want(node, name, int(in_force))
        return in_force

    @property
    def problems(self) -> Sequence[str]:
        """What the reconciler could not do at its last look, for people."""
        with self._lock:
            return list(self._problems.values())

    def _want(self, node: NodeId, name: str, capacity: int) -> None:
        with self._lock:
            self._wanted[node, name] = capacity

    def _list_nodes(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = list(self._api.call(self._api.core.list_node).get("items", ()))
        with self._lock:
            self._note_nodes({node["metadata"]["name"]: is_ready(node) for node in found})
        return found

    def _note_nodes(self, ready: Mapping[NodeId, bool]) -> None:
        """What is wanted of a node that is gone is forgotten with it."""
        for name in self._seen:
            self._seen[name] = self._seen[name] and ready.get(name, False)
        for name, alive in ready.items():
            self._seen.setdefault(name, alive)
        self._wanted = {key: capacity for key, capacity in self._wanted.items() if self._seen.get(key[0], True)}

    # --- tasks --------------------------------------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        checked_demands(task)
        pod_body(task, 0, self._api.settings)  # refuses what cannot be a pod, before anything is kept
        with self._lock:
            if task.id in self._tasks:
                return
            self._tasks[task.id] = entry = _Submitted(task=task)
            try:
                entry.attempt = self._attempt_there(task.id)
                self._create(entry)
            except DriftboxError:
                del self._tasks[task.id]
                raise

    def status(self, ids: Sequence[str]) -> Mapping[str, TaskStatus]:
        views = self._views(ids)
        with self._lock:
            return {i: told for i in ids if (told := self._told(i, views.get(i))) is not None}

    def cancel(self, ids: Sequence[str]) -> None:
        with self._lock:
            for i in ids:
                view = self._views([i]).get(i)
                told = self._told(i, view)
                if told is None or told.ended:
                    continue
                entry = self._tasks.setdefault(i, _Submitted(task=Task(id=i, demands={}), attempt=view.attempt if view else 0))
                entry.cancelled = True
                if view is None:
                    continue
                at_once = told.state == "waiting" or entry.task.hold or view.lost
                self._delete(view.name, **(_NO_GRACE if at_once else {}))

    def forget(self, ids: Sequence[str]) -> None:
        for i, told in self.status(ids).items():
            if told.ended:
                with self._lock:
                    self._tasks.pop(i, None)
                for pod in self._pods(i):
                    self._delete(pod["metadata"]["name"], **_NO_GRACE)

    def lift(self, task: str, gate: str) -> None:
        name = gate_name(gate, self._domain)
        for _ in range(_LIFT_TRIES):  # somebody else may lift another gate of it meanwhile
            for pod in self._pods(task):
                gates = [g["name"] for g in pod["spec"].get("schedulingGates") or ()]
                if name not in gates:
                    return
                at = f"/spec/schedulingGates/{gates.index(name)}"
                patch = [{"op": "test", "path": f"{at}/name", "value": name}, {"op": "remove", "path": at}]
                try:
                    self._api.call(self._api.core.patch_namespaced_pod, pod["metadata"]["name"], self._namespace, patch)
                    return
                except KubernetesRefusal as error:
                    if error.status not in (404, 409, 422):
                        raise
            if not self._pods(task):
                return
        raise KubernetesRefusal(f"gate {gate} of task {task} is not to be lifted", status=409, subject=task, remedy="try again")

    # --- gangs: none of its own ---------------------------------------------------------------------------------------

    def reserve(self, gang: str, bundles: Sequence[Demands], *, spread: bool) -> bool | None:
        return None

    def gang_demands(self, gang: str, bundle: int) -> Demands:
        raise UsageError("Kubernetes has no reservation of its own", subject=gang, remedy="gangs are held by ghosts")

    def release(self, gang: str) -> None:
        return

    def close(self) -> None:
        """Pods and resources stay: the next controller finds them."""
        self._closed.set()
        self._ticker.join(timeout=30)
        self._api.close()

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _pods(self, task: str = "") -> list[Mapping[str, Any]]:
        """Of one task, or all of ours."""
        label = f"{self._domain}/task={task_hash(task)}" if task else f"{self._domain}/task"
        listed = self._api.call(
            self._api.core.list_namespaced_pod, self._namespace, label_selector=f"{MANAGED}=driftbox,{label}"
        )
        return list(listed.get("items", ()))

    def _views(self, ids: Sequence[str]) -> dict[str, PodView]:
        """The newest pod of each task that has one."""
        pods = self._pods(ids[0]) if len(ids) == 1 else self._pods() if ids else []
        with self._lock:
            alive = {name for name, is_alive in self._seen.items() if is_alive}
        if not alive.issuperset(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")):
            alive = {node["metadata"]["name"] for node in self._list_nodes() if is_ready(node)}
        found: dict[str, PodView] = {}
        for pod in pods:
            view = view_of(pod, alive, self._domain)
            if view is not None and (view.task not in found or found[view.task].attempt < view.attempt):
                found[view.task] = view
        return found

    def _told(self, task: str, view: PodView | None) -> TaskStatus | None:
        """None: unknown. What this object remembers comes before what is left of a pod."""
        entry = self._tasks.get(task)
        if entry is not None and entry.told is not None:
            return entry.told
        if view is not None and not (entry is not None and entry.cancelled and view.status.state == "waiting"):
            if entry is not None and entry.cancelled and view.status.ended:
                return replace(view.status, state="cancelled", result=None, problem="")
            return view.status
        if entry is None:
            return None
        if entry.cancelled:
            entry.told = TaskStatus(id=task, state="cancelled")
            return entry.told
        if entry.attempt < entry.task.retries:
            return TaskStatus(id=task, state="waiting")  # its pod was taken away; the reconciler makes the next
        return TaskStatus(id=task, state="lost", problem="its pod was taken away")

    def _attempt_there(self, task: str) -> int:
        """A predecessor may have submitted it: its pod is ours."""
        attempts = [int(p["metadata"].get("annotations", {}).get(f"{self._domain}/attempt", "0")) for p in self._pods(task)]
        return max(attempts, default=0)

    def _create(self, entry: _Submitted) -> None:
        body = pod_body(entry.task, entry.attempt, self._api.settings)
        try:
            self._api.call(self._api.core.create_namespaced_pod, self._namespace, body)
        except KubernetesRefusal as error:
            if not there(error):
                raise

    def _delete(self, name: str, **more: Any) -> None:
        try:
            self._api.call(self._api.core.delete_namespaced_pod, name, self._namespace, **more)
        except KubernetesRefusal as error:
            if not gone(error):
                raise

    # --- the reconciler -----------------------------------------------------------------------------------------------

    def _tick_until_closed(self) -> None:
        while not self._closed.wait(self._tick_s):
            self.reconcile()

    def reconcile(self) -> None:
        """One look. What it cannot do stands in `problems` until it can."""
        problems: dict[str, str] = {}
        for step in (self._reconcile_nodes, self._reconcile_tasks):
            try:
                step(problems)
            except DriftboxError as error:
                problems[step.__name__] = str(error)
        with self._lock:
            new = [text for key, text in problems.items() if self._problems.get(key) != text]
            self._problems = problems
        for text in new:
            log.warning("%s", text)

    def _reconcile_nodes(self, problems: dict[str, str]) -> None:
        found = {node["metadata"]["name"]: node for node in self._list_nodes()}
        for name, node in found.items():
            with self._lock:
                back = is_ready(node) and not self._seen[name]
                wanted = {resource: count for (place, resource), count in self._wanted.items() if place == name}
            if back:
                self._empty(name, node)
            elif is_ready(node):
                for resource, count in wanted.items():
                    self._put_right(node, resource, count, problems)

    def _put_right(self, node: Mapping[str, Any], resource: str, count: int, problems: dict[str, str]) -> None:
        name = node["metadata"]["name"]
        if in_place(node, resource, count, self._domain):
            return
        try:
            patch_resource(self._api, node=name, name=resource, capacity=count, domain=self._domain)
            log.info("resource %s on node %s was not as wished, it is again", resource, name)
        except DriftboxError as error:
            problems[f"{name}/{resource}"] = str(error)

    def _empty(self, name: NodeId, node: Mapping[str, Any]) -> None:
        """A node that was lost is back: what it still bears of ours is from before."""
        for resource in sorted(ephemeral_of(node, self._domain)):
            patch = patch_for(node, resource, 0, self._domain)
            if patch:
                self._api.call(self._api.core.patch_node_status, name, patch)
        with self._lock:
            self._seen[name] = True

    def _reconcile_tasks(self, problems: dict[str, str]) -> None:
        with self._lock:
            open_ids = [i for i, entry in self._tasks.items() if entry.told is None]
        if not open_ids:
            return
        views = self._views(["", *open_ids])
        for i in open_ids:
            with self._lock:
                entry = self._tasks.get(i)
                if entry is not None:
                    self._reconcile_task(entry, views.get(i))

    def _reconcile_task(self, entry: _Submitted, view: PodView | None) -> None:
        """Runs it again if its node went and it may; keeps its end if that was its last."""
        if entry.cancelled:
            if view is not None and view.lost:
                self._delete(view.name, **_NO_GRACE)  # a kubelet that is gone never confirms
            return
        if view is not None and not view.lost:
            return
        if view is None and self._pods(entry.task.id):
            return  # the list was older than the pod
        if entry.attempt < entry.task.retries:
            self._delete(pod_name(entry.task.id, entry.attempt), **_NO_GRACE)
            entry.attempt += 1
            self._create(entry)
            return
        told = self._told(entry.task.id, view)
        if view is not None:
            self._delete(view.name, **_NO_GRACE)
        entry.told = told
