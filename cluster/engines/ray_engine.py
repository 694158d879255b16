"""The Ray engine: ESCHER's two calls and tasks with demands, on a Ray cluster (card sections 7, 10, 12).

Ray queues, places and accounts. Here is kept only what Ray does not know: ids, gates, who was cancelled. What an engine object has
submitted ends with its process, as Ray's rule is; resources stay. Nothing is decided here.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.engines import ray_worker
from cluster.engines.base import ENDED, Demands, NodeId, NodeStatus, Task, TaskState, TaskStatus, checked_demands
from cluster.engines.bounded import bounded
from cluster.engines.ray_cluster import RaySettings, joined, left
from cluster.engines.ray_groups import Gang, Ghosts, free_gang, reserved
from cluster.engines.ray_resources import checked_ray_name, first_line, node_statuses, options_of, resize
from cluster.engines.run_work import Outcome
from configs.errors import EnvironmentLacking, UsageError

log = logging.getLogger("driftbox.fleet.ray")

_BUNDLE = "bundle."
_GANG_LOST = "a node of the gang is gone"
#: A head on the same site answers within milliseconds.
_HEAD_S = 2.0


@dataclass
class _Record:
    """A task. reference: Ray's, None while it is not handed to Ray; bundle: of a gang, where it may run alone; orphaned: that gang is
    lost; cancelled_s: since when its work is asked to stop."""

    task: Task
    gates: set[str]
    bundle: tuple[str, int] | None = None
    started: bool = False
    orphaned: bool = False
    reference: Any = None
    cancelled_s: float | None = None
    told: TaskStatus = field(default_factory=lambda: TaskStatus(id="", state="waiting"))

    @property
    def ended(self) -> bool:
        return self.told.state in ENDED


class RayEngine:
    """See the module. grace_s: how long work may take to stop by itself when it is cancelled, before its process is ended; tick_s:
    how often is looked after what Ray does not do by itself. leave: `close` takes this process out of the cluster; call_s: the longest
    that a call waits for a head that dies under it."""

    name = "ray"

    def __init__(
        self, settings: RaySettings, *, grace_s: float = 5.0, tick_s: float = 0.1, leave: bool = True, call_s: float = 30.0
    ) -> None:
        self.address = joined(settings)
        host, _, port = self.address.rpartition(":")
        self._head = (host.strip("[]"), int(port))
        self._id = uuid.uuid4().hex[:12]
        self._grace_s, self._tick_s, self._leave, self.call_s = grace_s, tick_s, leave, call_s
        self._client = ray_worker.gcs_client(self.address)
        self._lock = threading.RLock()
        self._records: dict[str, _Record] = {}
        self._gangs: dict[str, Gang] = {}
        self._ghosts = Ghosts(self._alive)
        self._remote = _ray().remote(ray_worker.run)
        self._freed_s = time.monotonic()
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick_until_closed, name="ray-engine", daemon=True)
        self._ticker.start()

    # --- nodes and resources ------------------------------------------------------------------------------------------

    @bounded
    def nodes(self) -> Sequence[NodeStatus]:
        import ray._private.state as state

        self._reach_head()
        try:
            return node_statuses(_ray().nodes(), state.total_resources_per_node(), state.available_resources_per_node())
        except Exception as error:  # Ray raises whatever its parts do
            raise self._away(error) from None

    @bounded
    def set_resource(self, name: str, capacity: float, node: NodeId) -> float:
        self._reach_head()
        in_force = resize(self._client, node=node, name=name, capacity=capacity)
        with self._lock:
            self._poke()
        return in_force

    def _poke(self) -> None:
        """Something may be free now that was not."""
        self._freed_s = time.monotonic()
        self._ghosts.poke()

    def _alive(self) -> set[NodeId]:
        return {row["NodeID"] for row in _ray().nodes() if row["Alive"]}

    # --- tasks --------------------------------------------------------------------------------------------------------

    @bounded
    def submit(self, task: Task) -> None:
        checked_demands(task)
        for name in task.demands:
            checked_ray_name(name)
        self._reach_head()
        with self._lock:
            if task.id in self._records:
                return
            record = _Record(task=task, gates=set(task.gates), bundle=self._bundle(task))
            record.told = TaskStatus(id=task.id, state="waiting")
            self._records[task.id] = record
            self._start(record)

    @bounded
    def status(self, ids: Sequence[str]) -> Mapping[str, TaskStatus]:
        self._reach_head()
        with self._lock:
            asked = {i: self._records[i] for i in ids if i in self._records}
            self._look(list(asked.values()))
            return {i: record.told for i, record in asked.items()}

    @bounded
    def cancel(self, ids: Sequence[str]) -> None:
        self._reach_head()
        with self._lock:
            known = [self._records[i] for i in ids if i in self._records]
            stopping = [record for record in known if not record.ended and record.cancelled_s is None]
            for record in stopping:
                self._cancel(record)
            if stopping:
                self._poke()

    @bounded
    def forget(self, ids: Sequence[str]) -> None:
        with self._lock:
            for i in ids:
                if i in self._records and self._records[i].ended:
                    del self._records[i]
                    self._ghosts.forget(i)

    @bounded
    def lift(self, task: str, gate: str) -> None:
        with self._lock:
            record = self._records.get(task)
            if record is not None and gate in record.gates:
                record.gates.discard(gate)
                self._start(record)

    # --- gangs --------------------------------------------------------------------------------------------------------

    @bounded
    def reserve(self, gang: str, bundles: Sequence[Demands], *, spread: bool) -> bool | None:
        for number, bundle in enumerate(bundles):
            checked_demands(Task(id=f"{gang}.{number}", demands=bundle))
        if not bundles or not all(bundles):
            raise UsageError(f"gang {gang} has a bundle that asks for nothing", subject=gang)
        self._reach_head()
        with self._lock:
            self._lose_gangs()
            if self._holds(gang):
                return True
        try:
            held = reserved(bundles, spread=spread, freed_s=self._freed_s)  # without the lock: it waits for Ray
        except Exception as error:  # Ray raises whatever its parts do
            raise self._away(error) from None
        if held is None:
            return False
        with self._lock:
            if self._holds(gang):  # asked for twice at once
                free_gang(held)
            else:
                self._gangs[gang] = held
        return True

    def gang_demands(self, gang: str, bundle: int) -> Demands:
        return {f"{_BUNDLE}{gang}.{bundle}": 1.0}

    @bounded
    def release(self, gang: str) -> None:
        with self._lock:
            held = self._gangs.pop(gang, None)
            if held is None:
                return
            self.cancel([i for i, r in self._records.items() if r.bundle and r.bundle[0] == gang and r.started])
            if not held.lost:
                free_gang(held)
            self._poke()

    def close(self) -> None:
        self._closed.set()
        self._ticker.join(timeout=10)
        try:
            self._end_all()
        except EnvironmentLacking as error:  # what it has submitted ends with this process anyhow
            log.warning("%s", error)
        if self._leave:
            left()

    @bounded
    def _end_all(self) -> None:
        self._reach_head()
        with self._lock:
            for record in self._records.values():
                if not record.ended:
                    self._end_process(record)
            self._ghosts.close()
            for gang in list(self._gangs):
                self.release(gang)
            for what in ("start", "cancel"):
                self._client.internal_kv_del(f"{self._id}/{what}/".encode(), True, ray_worker.KV_NAMESPACE)

    # --- inside, under the lock ---------------------------------------------------------------------------------------

    def _bundle(self, task: Task) -> tuple[str, int] | None:
        """The bundle of a gang that a task demands. UsageError if it demands more beside it: a bundle is all that a member gets."""
        found = [name for name in task.demands if name.startswith(_BUNDLE)]
        if not found:
            return None
        gang, _, number = found[0].removeprefix(_BUNDLE).rpartition(".")
        if len(task.demands) > 1 or not number.isdecimal():
            raise UsageError(
                f"task {task.id} demands {found[0]} and more", subject=task.id, remedy="demand gang_demands(...) alone"
            )
        return gang, int(number)

    def _start(self, record: _Record) -> None:
        """Hands it to Ray if nothing of ours holds it back."""
        if record.gates or record.started or record.ended or not self._bundle_is_free(record):
            return
        record.started = True
        task = record.task
        if task.work is None:
            if record.bundle is None:
                self._ghosts.add(task.id, task.demands, task.retries)
            return
        options = {**options_of(task.demands), "max_retries": task.retries, "name": task.id[:100]}
        if record.bundle is not None:
            options |= self._inside(record.bundle)
        started = self._remote.options(**options)
        record.reference = started.remote(self._id, task.id, task.work.entry, dict(task.work.arguments))

    def _bundle_is_free(self, record: _Record) -> bool:
        if record.bundle is None:
            return True
        others = (r for r in self._records.values() if r.bundle == record.bundle and r is not record)
        return self._holds(record.bundle[0]) and not any(r.started and not r.ended for r in others)

    def _inside(self, bundle: tuple[str, int]) -> dict[str, Any]:
        """Options that put a task into its bundle, of which it takes all: one member at a time."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        held = self._gangs[bundle[0]]
        place = PlacementGroupSchedulingStrategy(placement_group=held.group, placement_group_bundle_index=bundle[1])
        return {**options_of(held.bundles[bundle[1]]), "scheduling_strategy": place}

    def _cancel(self, record: _Record) -> None:
        if record.reference is None:
            self._ghosts.end(record.task.id)
            self._tell(record, "cancelled")
            return
        record.cancelled_s = time.monotonic()
        key = ray_worker.cancel_key(self._id, record.task.id)
        self._client.internal_kv_put(key, b"1", True, ray_worker.KV_NAMESPACE)
        self._look([record])
        if record.told.state == "waiting":
            _ray().cancel(record.reference, force=False, recursive=False)

    def _look(self, records: Sequence[_Record]) -> None:
        """Brings what is told of them up to date."""
        self._lose_gangs()
        for record in records:
            if record.ended or not record.started:
                continue
            if record.task.work is None:
                self._look_at_hold(record)
        working = [r for r in records if r.reference is not None and not r.ended]
        if not working:
            return
        references = [r.reference for r in working]
        ready, _ = _ray().wait(references, num_returns=len(references), timeout=0, fetch_local=False)
        done = set(ready)
        nodes = self._began(working)
        alive = self._alive() if nodes else set()
        for record in working:
            node = nodes.get(record.task.id)
            if record.reference in done:
                self._collect(record, node, alive)
            elif node is not None and node in alive:
                record.told = replace(record.told, state="running", node=node)
            else:
                record.told = replace(record.told, state="waiting", node=None)

    def _look_at_hold(self, record: _Record) -> None:
        if record.bundle is not None:
            self._look_at_member(record, record.bundle)
            return
        state, node = self._ghosts.state(record.task.id)
        problem = f"node {record.told.node} is gone" if state == "lost" else ""
        record.told = replace(
            record.told, state=state, node=node or (record.told.node if state in ENDED else None), problem=problem
        )

    def _look_at_member(self, record: _Record, bundle: tuple[str, int]) -> None:
        """A member that only holds: it runs as long as its gang is held."""
        if self._holds(bundle[0]):
            record.told = replace(record.told, state="running", node=self._gangs[bundle[0]].nodes[bundle[1]])

    def _holds(self, gang: str) -> bool:
        return gang in self._gangs and not self._gangs[gang].lost

    def _lose_gangs(self) -> None:
        """A gang with a node that is gone is lost, and what it held elsewhere is freed at once. Ray would put its bundle on another
        node as if nothing had happened; without room there it tries without a pause, and places no other group (ray#65007)."""
        held = [name for name in self._gangs if self._holds(name)]
        alive = self._alive() if held else set()
        for name in held:
            gang = self._gangs[name]
            if not alive.issuperset(gang.nodes):
                gang.lost = True
                free_gang(gang)
                self._orphan(name)

    def _orphan(self, gang: str) -> None:
        """Members of a gang that is lost: those that hold are lost now, work when Ray has ended it."""
        for record in self._records.values():
            if record.bundle and record.bundle[0] == gang and record.started and not record.ended:
                record.orphaned = True
                if record.task.work is None:
                    self._tell(record, "lost", problem=_GANG_LOST)
        self._poke()

    def _began(self, records: Sequence[_Record]) -> dict[str, NodeId]:
        """Where work that began said that it runs."""
        keys = {ray_worker.start_key(self._id, r.task.id): r.task.id for r in records}
        found = self._client.internal_kv_multi_get(list(keys), ray_worker.KV_NAMESPACE)
        return {keys[key]: value.decode() for key, value in found.items()}

    def _collect(self, record: _Record, node: NodeId | None, alive: set[NodeId]) -> None:
        from ray import exceptions

        record.told = replace(record.told, node=node)
        try:
            outcome = Outcome.from_json(_ray().get(record.reference))
        except exceptions.TaskCancelledError:
            self._tell(record, "cancelled")
        except (
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.LocalRayletDiedError,
            exceptions.TaskPlacementGroupRemoved,
        ) as error:
            if record.cancelled_s is not None:
                self._tell(record, "cancelled")
            elif record.orphaned:
                self._tell(record, "lost", problem=_GANG_LOST)
            elif node is None or node not in alive or not _answers(node):
                self._tell(record, "lost", problem=f"node {node} is gone")
            else:
                self._tell(record, "failed", problem=f"its process died: {first_line(error)}")
        except Exception as error:  # whatever Ray met on the way: what it was is told to who asked for the work
            self._tell(record, "failed", problem=first_line(error))
        else:
            state: TaskState = "cancelled" if record.cancelled_s is not None else "failed" if outcome.problem else "done"
            self._tell(record, state, problem=outcome.problem, result=outcome.result)
        record.reference = None
        self._poke()
        for key in (ray_worker.start_key(self._id, record.task.id), ray_worker.cancel_key(self._id, record.task.id)):
            self._client.internal_kv_del(key, False, ray_worker.KV_NAMESPACE)

    def _tell(self, record: _Record, state: TaskState, *, problem: str = "", result: Any = None) -> None:
        record.told = replace(record.told, state=state, problem=problem, result=result if state == "done" else None)

    # --- what Ray does not do by itself -------------------------------------------------------------------------------

    def _tick_until_closed(self) -> None:
        away = False
        while not self._closed.wait(1.0 if away else self._tick_s):
            try:
                self._reach_head()
                with self._lock:
                    self._tick()
                away = False
            except Exception as error:  # the cluster is away for now: it is asked again, and told of once
                if not away:
                    log.warning("%s", first_line(error))
                away = True

    def _tick(self) -> None:
        self._ghosts.tick()
        open_records = [r for r in self._records.values() if not r.ended]
        stopping = [r for r in open_records if r.cancelled_s is not None]
        waiting = [r for r in open_records if r.bundle is not None]
        self._look([*stopping, *waiting])
        for record in waiting:
            self._start(record)
        for record in stopping:
            if not record.ended and time.monotonic() - (record.cancelled_s or 0.0) > self._grace_s:
                self._end_process(record)

    def _end_process(self, record: _Record) -> None:
        if record.reference is not None:
            _ray().cancel(record.reference, force=True, recursive=False)

    def _reach_head(self) -> None:
        """EnvironmentLacking at once when the head is away: Ray's own calls would wait for it, some for ever."""
        try:
            socket.create_connection(self._head, timeout=_HEAD_S).close()
        except OSError as error:
            raise self._away(error) from None

    def unanswered(self) -> EnvironmentLacking:
        return self._away(TimeoutError(f"no answer within {self.call_s:g} s"))

    def _away(self, error: BaseException) -> EnvironmentLacking:
        return EnvironmentLacking(
            f"the Ray cluster at {self.address} does not answer: {first_line(error)}",
            subject=self.address,
            remedy="is its head running?",
        )


def _answers(node: NodeId) -> bool:
    """Whether its raylet takes a connection. Workers die with their raylet and are heard of at once, the node seconds later: the
    head waits for several missed heartbeats before it gives a node up."""
    row = next((row for row in _ray().nodes() if row["NodeID"] == node), None)
    if row is None:
        return False
    try:
        socket.create_connection((row["NodeManagerAddress"], row["NodeManagerPort"]), timeout=_HEAD_S).close()
    except OSError:
        return False
    return True


def _ray() -> Any:
    import ray

    return ray
