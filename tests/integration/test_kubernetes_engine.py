"""The Kubernetes engine beyond the contract: what a cluster refuses, loses and gives back. Against a fake API server over real HTTP; the
last test runs against a real cluster when KUBECONFIG and DRIFTBOX_KUBERNETES_TEST=1 say so (marker `kubernetes`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from typer.testing import CliRunner

from cluster.cli import fleet_app
from cluster.controller.lease_kubernetes import KubernetesLeases
from cluster.engines.base import Task, Work
from cluster.engines.kubernetes_api import KubernetesApi, KubernetesRefusal, KubernetesSettings, refusal
from cluster.engines.kubernetes_engine import KubernetesEngine
from cluster.engines.kubernetes_pods import pod_body, pod_name, view_of
from cluster.engines.kubernetes_resources import quantity
from cluster.engines.kubernetes_workloads import CameraWorkload, Workloads, deployment_of
from configs.errors import EnvironmentLacking, UsageError
from tests.support.fake_kubernetes import FakeCluster, fake_cluster
from tests.support.mosquitto import eventually

MANIFESTS = Path(__file__).parents[2] / "configs" / "kubernetes"
HERE = "tests.support.fleet_engines"
DATA = "driftbox.io/data"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster("node-a", "node-b") as found:
        yield found


@pytest.fixture
def engine(cluster: FakeCluster) -> Iterator[KubernetesEngine]:
    """Its reconciler looks only when the test asks."""
    found = engine_on(cluster)
    yield found
    found.close()


def engine_on(cluster: FakeCluster, tick_s: float = 3600.0) -> KubernetesEngine:
    return KubernetesEngine(KubernetesApi(KubernetesSettings(host=cluster.url)), tick_s=tick_s)


def amounts(cluster: FakeCluster, node: str) -> list[str | None]:
    status = cluster.get("nodes", node)["status"]
    return [status[place].get(DATA) for place in ("capacity", "allocatable")]


def state(engine: KubernetesEngine, task: str) -> str:
    return engine.status([task])[task].state


# --- resources --------------------------------------------------------------------------------------------------------


def test_both_fields_are_patched_with_a_json_patch_and_nothing_else(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    before = cluster.get("nodes", "node-a")["status"]

    engine.set_resource("data", 3, "node-a")

    assert amounts(cluster, "node-a") == ["3", "3"]
    assert ("PATCH", "/api/v1/nodes/node-a/status") in cluster.calls
    assert "application/json-patch+json" in {h.get("content-type") for h in cluster.headers}
    after = cluster.get("nodes", "node-a")["status"]
    assert {k: v for k, v in after["capacity"].items() if k != DATA} == before["capacity"]
    engine.set_resource("data", 0, "node-a")
    assert cluster.get("nodes", "node-a")["status"] == before


def test_what_is_as_wished_is_not_patched_again(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    engine.set_resource("data", 3, "node-a")
    count = sum(method == "PATCH" for method, _ in cluster.calls)
    engine.set_resource("data", 3, "node-a")
    engine.reconcile()
    assert sum(method == "PATCH" for method, _ in cluster.calls) == count


def test_fractions_are_refused_with_a_code(engine: KubernetesEngine) -> None:
    for refused in (
        lambda: engine.set_resource("data", 0.5, "node-a"),
        lambda: engine.submit(Task(id="half", demands={"data": 0.5})),
        lambda: engine.submit(Task(id="half", demands={"GPU": 0.5})),
    ):
        with pytest.raises(UsageError) as found:
            refused()
        assert found.value.code == "whole_only"
    assert engine.status(["half"]) == {}


def test_an_old_kubelet_that_zeroes_resources_is_put_right(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    engine.set_resource("data", 3, "node-a")
    engine.submit(Task(id="holder", demands={"data": 2}))
    cluster.zero_resources("node-a")
    assert amounts(cluster, "node-a") == ["0", "0"]

    engine.reconcile()

    assert amounts(cluster, "node-a") == ["3", "3"]


def test_a_kubelet_that_copies_only_the_capacity_back_is_put_right(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    engine.set_resource("data", 3, "node-a")
    api = KubernetesApi(KubernetesSettings(host=cluster.url))
    api.call(api.core.patch_node_status, "node-a", [{"op": "remove", "path": "/status/allocatable/driftbox.io~1data"}])
    assert amounts(cluster, "node-a") == ["3", None]

    engine.reconcile()

    assert amounts(cluster, "node-a") == ["3", "3"]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(403, "rbac.yaml"), (422, "admission.yaml"), (401, "credentials"), (503, "tried again"), (429, "tried again")],
)
def test_a_refused_patch_is_told_and_tried_again_until_it_is_let_through(
    cluster: FakeCluster, engine: KubernetesEngine, code: int, remedy: str
) -> None:
    cluster.refuse("PATCH", "/status", code=code, message="no patches today")
    with pytest.raises(EnvironmentLacking) as found:
        engine.set_resource("data", 3, "node-a")
    assert "no patches today" in found.value.message
    assert remedy in found.value.remedy
    engine.reconcile()
    assert any("no patches today" in problem for problem in engine.problems)
    assert amounts(cluster, "node-a") == [None, None]

    cluster.allow_all()
    engine.reconcile()

    assert amounts(cluster, "node-a") == ["3", "3"]
    assert list(engine.problems) == []


def test_what_was_refused_and_is_not_wished_any_more_is_not_done(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    cluster.refuse("PATCH", "/status", code=403, times=1)
    with pytest.raises(EnvironmentLacking):
        engine.set_resource("data", 3, "node-a")
    engine.set_resource("data", 0, "node-a")
    engine.reconcile()
    assert amounts(cluster, "node-a") == [None, None]


def test_an_api_that_is_away_is_told_and_the_engine_goes_on_when_it_is_back(
    cluster: FakeCluster, engine: KubernetesEngine
) -> None:
    cluster.refuse("GET", "/api/v1", code=500, message="etcd is full")
    with pytest.raises(EnvironmentLacking, match="etcd is full"):
        engine.nodes()
    engine.reconcile()
    assert engine.problems
    cluster.allow_all()
    engine.reconcile()
    assert not engine.problems
    assert len(engine.nodes()) == 2


def test_nobody_there_is_an_environment_error_at_once() -> None:
    with pytest.raises(EnvironmentLacking, match="does not answer"):
        KubernetesEngine(KubernetesApi(KubernetesSettings(host="http://127.0.0.1:9")))


def test_no_kubeconfig_is_an_environment_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="no Kubernetes cluster"):
        KubernetesApi(KubernetesSettings(kubeconfig=str(tmp_path / "none")))


def test_credentials_are_in_no_message() -> None:
    body = json.dumps({"message": "bad request for https://user:hunter2@api:6443/?token=abcdef"})
    text = str(refusal(403, "Forbidden", body, doing="patch", subject="node"))
    assert "hunter2" not in text
    assert "abcdef" not in text


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_that_was_lost_comes_back_empty(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    """What was on it has been moved meanwhile; two of one thing would be worse than none."""
    engine.set_resource("data", 1, "node-a")
    cluster.stop_kubelet("node-a")
    assert {n.id: n.alive for n in engine.nodes()} == {"node-a": False, "node-b": True}
    engine.set_resource("data", 1, "node-b")
    cluster.start_kubelet("node-a")
    assert not {n.id: n.alive for n in engine.nodes()}["node-a"]  # not before it is empty

    engine.reconcile()

    nodes = {n.id: n for n in engine.nodes()}
    assert nodes["node-a"].alive
    assert "data" not in nodes["node-a"].total
    assert nodes["node-b"].total["data"] == 1
    assert engine.set_resource("data", 1, "node-a") == 1


def test_a_node_whose_object_is_deleted_is_lost_with_its_tasks(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    engine.set_resource("data", 5, "node-a")
    for task in (Task(id="again", demands={"data": 1}, retries=1), Task(id="once", demands={"data": 1})):
        engine.submit(task)
    cluster.remove_node("node-a")
    engine.reconcile()
    assert not {n.id: n.alive for n in engine.nodes()}["node-a"]
    assert (state(engine, "again"), state(engine, "once")) == ("waiting", "lost")
    with pytest.raises(UsageError) as found:
        engine.set_resource("data", 5, "node-a")
    assert found.value.code == "node_lost"

    engine.set_resource("data", 5, "node-b")

    assert state(engine, "again") == "running"
    cluster.remove_node("node-b")
    engine.reconcile()
    assert state(engine, "again") == "lost"


def test_free_counts_pods_of_others(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    api = KubernetesApi(KubernetesSettings(host=cluster.url, namespace="others"))
    other = KubernetesEngine(api, tick_s=3600)
    other.submit(Task(id="theirs", demands={"CPU": 1.5, "memory_mib": 1024}))
    nodes = {n.id: n for n in engine.nodes()}
    assert sum(n.free["CPU"] for n in nodes.values()) == 6.5
    assert sum(n.free["memory_mib"] for n in nodes.values()) == 2 * 8192 - 1024
    other.close()


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_tasks_outlive_the_controller(cluster: FakeCluster) -> None:
    first = engine_on(cluster)
    first.submit(Task(id="long", demands={"CPU": 1}, gates=("go",)))
    first.submit(Task(id="sum", demands={"CPU": 1}, work=Work(entry=f"{HERE}:add", arguments={"left": 1, "right": 2})))
    first.close()

    second = engine_on(cluster)
    second.submit(Task(id="long", demands={"CPU": 1}, gates=("go",)))  # it does not know that its predecessor did
    assert len([p for p in cluster.all("pods") if p["metadata"]["annotations"]["driftbox.io/task-id"] == "long"]) == 1
    assert state(second, "long") == "waiting"
    second.lift("long", "go")
    assert state(second, "long") == "running"
    assert cluster.until(lambda: state(second, "sum") == "done")
    assert second.status(["sum"])["sum"].result == 3
    second.cancel(["long"])
    second.forget(["long", "sum"])
    assert cluster.all("pods") == []
    second.close()


def test_two_gates_lifted_at_once_are_both_lifted(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    gates = tuple(f"gate {n}" for n in range(6))
    engine.submit(Task(id="gated", demands={"CPU": 1}, gates=gates))
    lifters = [threading.Thread(target=engine.lift, args=("gated", gate)) for gate in gates]
    for lifter in lifters:
        lifter.start()
    for lifter in lifters:
        lifter.join()
    assert state(engine, "gated") == "running"


def test_a_refused_pod_is_not_kept_as_a_task(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    cluster.refuse("POST", "/pods", code=403, message="quota", times=1)
    with pytest.raises(KubernetesRefusal):
        engine.submit(Task(id="refused", demands={"CPU": 1}))
    engine.submit(Task(id="refused", demands={"CPU": 1}))
    assert state(engine, "refused") == "running"


def test_a_result_too_large_for_a_pods_answer_fails_with_what_to_do(cluster: FakeCluster, engine: KubernetesEngine) -> None:
    engine.submit(Task(id="big", demands={}, work=Work(entry=f"{HERE}:add", arguments={"left": "x" * 5000, "right": ""})))  # type: ignore[dict-item]
    assert cluster.until(lambda: state(engine, "big") == "failed")
    assert "return where it lies" in engine.status(["big"])["big"].problem


def test_a_pod_that_was_killed_tells_why() -> None:
    pod = pod_body(Task(id="hungry", demands={"CPU": 1}, work=Work(entry="a:b")), 0, KubernetesSettings())
    pod["spec"]["nodeName"] = "node-a"
    pod["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "task", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}],
    }
    view = view_of(pod, {"node-a"}, "driftbox.io")
    assert view is not None
    assert (view.status.state, view.lost) == ("failed", False)
    assert "OOMKilled" in view.status.problem
    pod["status"] = {"phase": "Failed", "reason": "Evicted"}
    evicted = view_of(pod, {"node-a"}, "driftbox.io")
    assert evicted is not None
    assert evicted.lost


def test_an_image_that_cannot_be_pulled_is_told_while_it_waits() -> None:
    pod = pod_body(Task(id="pulls", demands={}, work=Work(entry="a:b")), 0, KubernetesSettings())
    pod["spec"]["nodeName"] = "node-a"
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "task", "state": {"waiting": waiting}}]}
    view = view_of(pod, {"node-a"}, "driftbox.io")
    assert view is not None
    assert (view.status.state, view.status.problem) == ("waiting", "ImagePullBackOff: no such image")


def test_run_work_as_a_pod_runs_it(tmp_path: Path) -> None:
    """`python -m cluster.engines.run_work` in a process of its own, with a pod's environment."""
    answer = tmp_path / "answer"
    environment = {
        **os.environ, "DRIFTBOX_TASK": "sum", "DRIFTBOX_NODE": "node-a", "DRIFTBOX_ANSWER": str(answer), "PYTHONPATH": os.getcwd(),
        "DRIFTBOX_WORK": json.dumps({"entry": f"{HERE}:add", "arguments": {"left": 4, "right": 5}}),
    }  # fmt: skip
    command = [sys.executable, "-m", "cluster.engines.run_work"]
    assert subprocess.run(command, env=environment, timeout=240, check=False).returncode == 0
    assert json.loads(answer.read_text()) == {"result": 9, "problem": ""}
    del environment["DRIFTBOX_WORK"]
    assert subprocess.run(command, env=environment, timeout=240, check=False, capture_output=True).returncode == 2


# --- the controller's lease -------------------------------------------------------------------------------------------


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_one_controller_holds_the_lease_and_terms_only_rise(cluster: FakeCluster) -> None:
    clock = Clock()
    one, two = (KubernetesLeases(KubernetesApi(KubernetesSettings(host=cluster.url)), clock, clock) for _ in range(2))

    assert one.take("a", lasts_s=10, note="https://a").term == 1
    assert one.take("a", lasts_s=10, note="https://a").term == 1  # renewed
    refused = two.take("b", lasts_s=10)
    assert (refused.mine, refused.holder, refused.note, refused.term) == (False, "a", "https://a", 1)
    clock.now_s += 9
    assert one.take("a", lasts_s=10).mine
    clock.now_s += 9
    assert not two.take("b", lasts_s=10).mine  # it was renewed meanwhile, by b's own counting
    clock.now_s += 11
    taken = two.take("b", lasts_s=10)
    assert (taken.mine, taken.term) == (True, 2)
    assert not one.take("a", lasts_s=10).mine
    one.give("a", 1)  # not his any more
    assert not one.take("a", lasts_s=10).mine
    two.give("b", 2)
    assert one.take("a", lasts_s=10).term == 3
    assert one.take("a", lasts_s=10, above=7).term == 8


def test_of_two_who_take_a_free_lease_at_once_one_gets_it(cluster: FakeCluster) -> None:
    clock = Clock()
    found: list[bool] = []

    def take(holder: str) -> None:
        found.append(
            KubernetesLeases(KubernetesApi(KubernetesSettings(host=cluster.url)), clock, clock).take(holder, lasts_s=10).mine
        )

    takers = [threading.Thread(target=take, args=(f"controller{n}",)) for n in range(6)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert found.count(True) == 1
    assert len(found) == 6


def test_a_lease_that_is_changed_under_our_hands_is_asked_for_again(cluster: FakeCluster) -> None:
    clock = Clock()
    leases = KubernetesLeases(KubernetesApi(KubernetesSettings(host=cluster.url)), clock, clock)
    assert leases.take("a", lasts_s=10).mine
    cluster.refuse("PUT", "/leases", code=409, times=2)
    assert leases.take("a", lasts_s=10).term == 1
    cluster.refuse("PUT", "/leases", code=409)
    with pytest.raises(EnvironmentLacking):
        leases.take("a", lasts_s=10)


# --- camera workloads and manifests -----------------------------------------------------------------------------------


WORKLOAD = CameraWorkload(
    id="north_1", demands={"CPU": 2, "memory_mib": 4096, "near-yard": 1}, config_secret="north-config", data_claim="north-data",
    environment={"NORTH_PASSWORD": ("north-config", "password")},
)  # fmt: skip


def test_a_camera_workload_is_applied_changed_and_removed(cluster: FakeCluster) -> None:
    workloads = Workloads(KubernetesApi(KubernetesSettings(host=cluster.url)))
    workloads.apply(WORKLOAD)
    workloads.apply(WORKLOAD)
    assert [(w.id, w.ready) for w in workloads.statuses()] == [("north_1", True)]
    (found,) = cluster.all("deployments")
    container = found["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "2000m", "memory": "4294967296", "driftbox.io/near-yard": "1"}
    assert container["resources"]["limits"]["driftbox.io/near-yard"] == "1"
    assert (found["spec"]["replicas"], found["spec"]["strategy"]) == (1, {"type": "Recreate"})
    workloads.remove("north_1")
    workloads.remove("north_1")
    assert list(workloads.statuses()) == []


def test_a_box_in_the_cluster_by_command(cluster: FakeCluster, tmp_path: Path) -> None:
    config = {"clusters": [{"name": "c", "cluster": {"server": cluster.url}}], "users": [{"name": "u", "user": {}}]}
    config |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))

    def run(*words: str) -> Any:
        got = CliRunner().invoke(fleet_app, ["workloads", *words, "--kubeconfig", str(file), "--json"], catch_exceptions=False)
        assert got.exit_code == 0, got.output
        return json.loads(got.stdout)

    asked = (
        "--config-secret",
        "north-config",
        "--demand",
        "CPU=2",
        "--demand",
        "dbx.fleet.net.yard=1",
        "--data-claim",
        "north-data",
    )
    run("apply", "north_1", *asked, "--env", "NORTH_PASSWORD=north-config/password")
    assert run("list") == [{"box": "north_1", "ready": True, "problem": ""}]
    (found,) = cluster.all("deployments")
    container = found["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "2000m", "driftbox.io/dbx.fleet.net.yard": "1"}
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "north-config", "key": "password"}
    run("remove", "north_1")
    assert run("list") == []
    for wrong in (("--demand", "CPU"), ("--demand", "a=0.5"), ("--env", "X=secret"), ("--demand", "=1")):
        with pytest.raises(UsageError):
            run("apply", "north_1", "--config-secret", "s", *wrong)


def model_of(body: dict[str, object]) -> str:
    names = {
        "Namespace",
        "ServiceAccount",
        "Service",
        "PersistentVolumeClaim",
        "Deployment",
        "Pod",
        "ClusterRole",
        "ClusterRoleBinding",
    }
    names |= {"Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert body["kind"] in names
    return f"V1{body['kind']}"


def assert_every_field_is_known(body: dict[str, object]) -> None:
    """The official client's model of it keeps all that is in it: a field that Kubernetes does not know would be gone."""
    api = client.ApiClient()
    typed = api.deserialize(json.dumps(body), model_of(body), "application/json")
    assert api.sanitize_for_serialization(typed) == body


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_have_only_fields_that_kubernetes_knows(path: Path) -> None:
    bodies = list(yaml.safe_load_all(path.read_text()))
    assert bodies
    for body in bodies:
        assert_every_field_is_known(body)


def test_what_is_generated_has_only_fields_that_kubernetes_knows() -> None:
    work = Work(entry="a:b", arguments={"x": 1})
    for task in (Task(id="held", demands={"x": 2, "CPU": 0.5}, gates=("one",)), Task(id="done", demands={"CPU": 1}, work=work)):
        assert_every_field_is_known(pod_body(task, 0, KubernetesSettings()))
    assert_every_field_is_known(deployment_of(WORKLOAD, KubernetesSettings()))


def test_rbac_allows_what_the_engine_calls_and_no_more_of_nodes() -> None:
    roles = [b for b in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()) if b["kind"] in ("ClusterRole", "Role")]
    allowed = {(r, verb) for role in roles for rule in role["rules"] for r in rule["resources"] for verb in rule["verbs"]}
    needed = {
        ("nodes", "get"), ("nodes", "list"), ("nodes/status", "patch"), ("pods", "list"), ("pods", "create"), ("pods", "patch"),
        ("pods", "delete"), ("deployments", "create"), ("deployments", "patch"), ("deployments", "list"), ("deployments", "delete"),
        ("leases", "get"), ("leases", "create"), ("leases", "update"),
    }  # fmt: skip
    assert needed <= allowed
    assert {verb for resource, verb in allowed if resource == "nodes"} == {"get", "list"}
    assert not any(verb == "*" for _, verb in allowed)


def test_the_admission_policy_names_our_domain_and_service_accounts() -> None:
    policy, binding = yaml.safe_load_all((MANIFESTS / "admission.yaml").read_text())
    assert policy["spec"]["matchConditions"][0]["expression"].count("system:serviceaccount:driftbox:") == 1
    text = " ".join(v["expression"] for v in policy["spec"]["validations"])
    assert text.count(f"startsWith('{KubernetesSettings().domain}/')") == 4
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]


@pytest.mark.parametrize(
    ("text", "amount"), [("500m", 0.5), ("4Gi", 2**32), ("3", 3.0), (7, 7.0), ("2k", 2000.0), ("1.5G", 1.5e9)]
)
def test_quantities(text: str, amount: float) -> None:
    assert quantity(text) == amount


# --- a real cluster ---------------------------------------------------------------------------------------------------


def small_round(api: KubernetesApi, tick_s: float) -> None:
    """What the product asks of a cluster, once: a resource on a node, two gated pods of which one has room, a lease given on."""
    engine, tasks = KubernetesEngine(api, tick_s=tick_s), ["real-1", "real-2"]
    node = next(n.id for n in engine.nodes() if n.alive)
    try:
        assert engine.set_resource("driftbox-test", 1, node) == 1
        for task in tasks:
            engine.submit(Task(id=task, demands={"driftbox-test": 1}, gates=("go",)))
            engine.lift(task, "go")
        states = lambda: sorted(status.state for status in engine.status(tasks).values())  # noqa: E731
        eventually(lambda: states() == ["running", "waiting"], "one has room, the other waits")
        one, two = (KubernetesLeases(api, time.time, time.monotonic, name="driftbox-test") for _ in range(2))
        term = one.take("a", lasts_s=30).term
        assert not two.take("b", lasts_s=30).mine
        one.give("a", term)
        taken = two.take("b", lasts_s=30)
        assert (taken.mine, taken.term > term) == (True, True)
        two.give("b", taken.term)
    finally:
        engine.cancel(tasks)
        engine.set_resource("driftbox-test", 0, node)
        engine.close()


def test_the_round_that_a_real_cluster_is_asked_for_goes_through(cluster: FakeCluster) -> None:
    small_round(KubernetesApi(KubernetesSettings(host=cluster.url)), 0.2)
    assert cluster.get("nodes", "node-a")["status"]["capacity"].get("driftbox.io/driftbox-test") in (None, "0")


@pytest.mark.kubernetes
@pytest.mark.skipif(not os.environ.get("DRIFTBOX_KUBERNETES_TEST"), reason="needs KUBECONFIG and DRIFTBOX_KUBERNETES_TEST=1")
def test_on_a_real_cluster() -> None:
    """Needs the manifests applied and, for `hold`, the pause image. What it makes it removes, but for a lease `driftbox-test`."""
    small_round(KubernetesApi(), 1.0)


def test_pod_names_are_names() -> None:
    name = pod_name("A task / with any: id " * 20, 12)
    assert len(name) < 64
    assert name.replace("-", "").isalnum()
