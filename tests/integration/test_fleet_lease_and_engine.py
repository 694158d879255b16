"""Who writes, and what placement is carried to, for real: two processes of `driftbox fleet serve` on one folder; the lease and the
engine of Kubernetes (a fake API server over real HTTP) and of Ray (a real cluster of small nodes); what is refused at the door."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.controller.events import BoxJoined
from cluster.controller.inbox import put
from cluster.controller.serve import FleetFolder, RunningController, ServeOptions
from cluster.engines.ray_cluster import imported_ray
from configs.errors import EnvironmentLacking
from configs.load import load_controller
from configs.schema import MqttSection
from edge.clock import SystemClock
from tests.support.fake_kubernetes import FakeCluster, fake_cluster
from tests.support.mosquitto import Broker, Listener, eventually, require_mosquitto
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    require_mosquitto()
    made = Broker(tmp_path_factory.mktemp("mosquitto"))
    made.start()
    yield made
    made.stop()


# --- two processes ----------------------------------------------------------------------------------------------------


class Process:
    """`driftbox fleet serve` as its owner starts it."""

    def __init__(self, folder: Path, name: str, broker: Broker, config: Path) -> None:
        self.port, self.log_file = free_port(), folder.parent / f"{name}.log"
        self._log = self.log_file.open("wb")
        words = ("fleet", "serve", "--data-dir", folder, "--host", "127.0.0.1", "--name", "127.0.0.1", "--no-login")
        more = ("--port", self.port, "--broker", f"127.0.0.1:{broker.port}", "--config", config)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from edge.cli import main; main()", *map(str, (*words, *more))],
            cwd=ROOT, stdout=self._log, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        try:
            got = httpx.get(f"https://127.0.0.1:{self.port}/api/v1/fleet/status", verify=False, timeout=20.0)
        except httpx.TransportError:
            assert self.process.poll() is None, self.log()
            return {}
        return dict(got.json())

    def writes(self) -> bool:
        return bool(self.status().get("in_charge"))

    def log(self) -> str:
        return self.log_file.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.process.wait()
        self._log.close()


def terms_told(listener: Listener) -> list[int]:
    told = [payload for topic, payload, retained in listener.seen if topic == "driftbox/fleet/controller" and not retained]
    return [json.loads(payload)["term"] for payload in told if payload]


@pytest.mark.mqtt
@pytest.mark.slow
def test_one_of_two_processes_writes_and_the_other_takes_over(broker: Broker, tmp_path: Path) -> None:
    folder, config = tmp_path / "fleet", tmp_path / "fleet.yaml"
    config.write_text("lease:\n  lasts_s: 6\n")
    with ExitStack() as stack:
        ear = Listener(broker.port)
        stack.callback(ear.close)
        one = Process(folder, "one", broker, config)
        stack.callback(one.end)
        eventually(one.writes, "the first one writes")
        two = Process(folder, "two", broker, config)
        stack.callback(two.end)
        eventually(lambda: "is in charge" in two.status().get("reason", ""), "the second one waits, and says why")
        eventually(lambda: "stands by" in two.log(), "also in its log")
        eventually(lambda: f"https://127.0.0.1:{one.port}" in two.status().get("reason", ""), "and where the first one is")

        told = FleetFolder(folder, SystemClock(), beside=True)
        stack.callback(told.close)
        rows = lambda: [  # noqa: E731
            (row.status.in_charge, row.status.lease, row.status.engine.name) for row in told.store.controllers(time.time())
        ]
        eventually(lambda: rows() == [(True, "file", "local"), (False, "file", "local")], "both are written down")

        one.send(signal.SIGSTOP)
        eventually(two.writes, "the second one takes over when the lease has run out")
        one.send(signal.SIGCONT)
        eventually(lambda: one.status().get("in_charge") is False, "the first one stops")
        eventually(lambda: "not in charge any more" in one.log(), "and says so")

        two.send(signal.SIGTERM)
        assert two.process.wait(60) == 0
        eventually(one.writes, "who ends gives the lease back, and the other one writes again")
        eventually(lambda: terms_told(ear)[-1:] >= [3], "by a term of its own")
        terms = terms_told(ear)
        assert terms == sorted(terms), "nobody told anything by a term that was over"
        assert len(set(terms)) >= 3


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def kubeconfig(folder: Path, cluster: FakeCluster) -> Path:
    file = folder / "kubeconfig"
    body = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "k", "cluster": {"server": cluster.url}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(body))
    return file


def controller(
    folder: Path, port: int, changes: dict[str, dict[str, Any]], say: Callable[[str], None] = lambda text: None
) -> RunningController:
    """With a broker at `port`, which need not be there."""
    given = MqttSection.model_validate({"enabled": True, "host": "127.0.0.1", "port": port, "prefix": folder.name})
    config = load_controller(None, changes)
    options = ServeOptions(data_dir=folder, host="127.0.0.1", port=0, broker=given, login=False, config=config)
    return RunningController(options, say=say)


def with_box(running: RunningController, box: str) -> None:
    with running.folder.db.transaction() as db:
        put(db, BoxJoined(box=box, site="here", at_utc_s=time.time(), capacity_pct=100.0), at_utc_s=time.time())


@pytest.mark.slow
def test_the_lease_and_the_engine_of_kubernetes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(fake_cluster("gate", "elsewhere"))
        asked = {
            "lease": {"store": "kubernetes", "name": "north", "lasts_s": 4.0}, "engine": {"use": "kubernetes"},
            "kubernetes": {"kubeconfig": str(kubeconfig(tmp_path, cluster))},
        }  # fmt: skip
        told: list[str] = []
        one, two, stranger = (
            controller(tmp_path / name, free_port(), asked, told.append) for name in ("one", "two", "stranger")
        )
        one.start()
        stack.callback(one.stop)
        eventually(lambda: one.controller.status().in_charge, "the first one is in charge")
        assert any("carries no data" in text and str(tmp_path / "one") in text for text in told), (
            "its owner is told at the door"
        )
        with pytest.raises(EnvironmentLacking, match="of another fleet holds the lease") as refused:
            stranger.start()
        assert "ca/ included" in refused.value.remedy
        shutil.copytree(tmp_path / "one" / "ca", tmp_path / "two" / "ca")
        two.start()
        stack.callback(two.stop)
        eventually(lambda: "is in charge" in two.controller.status().reason, "the second one stands by, on another folder")
        assert cluster.get("leases", "driftbox-north", "driftbox")["spec"]["holderIdentity"].startswith(one._keeper.id)

        with_box(one, "gate")
        pin = "driftbox.io/dbx.fleet.box.gate"
        eventually(lambda: pin in cluster.get("nodes", "gate")["status"]["capacity"], "its node has the box's name")
        assert pin not in cluster.get("nodes", "elsewhere")["status"]["capacity"]
        status = one.controller.status()
        assert (status.lease, status.engine.name) == ("kubernetes, namespace driftbox", "kubernetes")
        eventually(lambda: one.controller.status().engine.boxes == 1, "and the status counts it")

        one._ended.set()  # as if it hung: nobody renews
        one._wake_up()
        eventually(lambda: two.controller.status().in_charge, "the second one takes over")
        assert not one.controller.status().in_charge


@pytest.mark.parametrize(
    ("changes", "message", "remedy"),
    [
        ({"lease": {"store": "kubernetes"}, "kubernetes": {"kubeconfig": "/no/file"}}, "no Kubernetes cluster", "a kubeconfig"),
        ({"engine": {"use": "kubernetes"}, "kubernetes": {"kubeconfig": "/no/file"}}, "no Kubernetes cluster", "a kubeconfig"),
        ({"lease": {"store": "ray"}, "engine": {"use": "local"}, "ray": {"address": "127.0.0.1:PORT"}}, "nobody answers", "ray status"),
        ({"engine": {"use": "ray"}, "ray": {"address": "127.0.0.1:PORT"}}, "nobody answers", "ray status"),
        ({"lease": {"store": "ray"}, "ray": {"address": "127.0.0.1:PORT", "token": "file:/no/file"}}, "cannot be read", "create"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_the_door(
    tmp_path: Path, changes: dict[str, dict[str, Any]], message: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imported_ray(), "is_initialized", lambda: False)  # tests before this one may have joined a cluster
    said = json.loads(json.dumps(changes).replace("PORT", str(free_port())))
    running = controller(tmp_path / "fleet", free_port(), said)
    with pytest.raises(EnvironmentLacking, match=message) as refused:
        running.start()
    assert remedy in refused.value.remedy
    again = controller(tmp_path / "fleet", free_port(), {})
    again.start()  # nothing was left open: no port, no file, no lease
    again.stop()


def test_an_account_that_may_not_write_leases_is_told_at_the_door(tmp_path: Path) -> None:
    with fake_cluster("gate") as cluster:
        cluster.refuse("POST", "/leases", code=403)
        asked = {"lease": {"store": "kubernetes"}, "kubernetes": {"kubeconfig": str(kubeconfig(tmp_path, cluster))}}
        with pytest.raises(EnvironmentLacking, match="403") as refused:
            controller(tmp_path / "fleet", free_port(), asked).start()
        assert "rbac.yaml" in refused.value.remedy


# --- Ray --------------------------------------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.slow
def test_the_lease_and_the_engine_of_ray(tmp_path: Path) -> None:
    from tests.support.ray_cluster import shared_nodes

    nodes = shared_nodes()
    asked = {
        "lease": {"store": "ray", "name": "yard", "lasts_s": 4.0},
        "ray": {"address": nodes.settings.address, "token": nodes.settings.token},
    }
    one = controller(tmp_path / "one", free_port(), asked)
    two = controller(tmp_path / "two", free_port(), {**asked, "engine": {"use": "local"}})
    with ExitStack() as stack:
        one.start()
        stack.callback(one.stop)
        eventually(lambda: one.controller.status().in_charge, "the first one is in charge")
        shutil.copytree(tmp_path / "one" / "ca", tmp_path / "two" / "ca")
        two.start()
        stack.callback(two.stop)
        eventually(lambda: "is in charge" in two.controller.status().reason, "the second one stands by")
        with_box(one, "box0")  # as a node of the shared cluster says of itself
        eventually(lambda: one.controller.status().engine.boxes == 1, "a node of the cluster is the box")
        status = one.controller.status()
        assert (status.lease, status.engine.where) == (f"ray at {nodes.settings.address}", nodes.settings.address)
        engine = one._carrier._engine  # type: ignore[union-attr]
        eventually(
            lambda: [n.labels["driftbox/box"] for n in engine.nodes() if "dbx.fleet.box.box0" in n.total] == ["box0"],
            "and has its name",
        )
        one._ended.set()  # as if it hung: nobody renews
        one._wake_up()
        eventually(lambda: two.controller.status().in_charge, "the second one takes over")
        assert not one.controller.status().in_charge
        engine.set_resource(
            "dbx.fleet.box.box0", 0, next(n.id for n in engine.nodes() if n.labels.get("driftbox/box") == "box0")
        )
