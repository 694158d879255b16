"""The commands beside a controller, on its data folder; what its HTTP answers people."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from cluster.cli import fleet_app
from cluster.controller.api import CustomerIn
from cluster.controller.authority import Authority
from cluster.controller.codes import code_of, digest, new_secret, secret_of
from cluster.controller.http import make_app
from cluster.controller.live import LiveServices
from cluster.controller.membership import Membership
from cluster.controller.services import ControllerStatus, EngineStatus
from cluster.controller.store import FleetStore
from cluster.types import Customer
from configs.errors import EnvironmentLacking, UsageError
from edge.clock import SystemClock
from tests.support.fleet_boxes import ToyBox
from tests.support.fleet_world import BEGIN_S, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, [ToyBox("a", cameras={"c1": ("x", 30.0)}), ToyBox("b", cameras={"c1": ("y", 20.0)})])
    made.tick(25)
    return made


def run(world: World, *words: str) -> Any:
    got = CliRunner().invoke(fleet_app, [*words, "--data-dir", str(world.folder), "--json"], catch_exceptions=False)
    assert got.exit_code == 0, got.output
    return json.loads(got.stdout)


def test_status_tells_boxes_customers_and_who_is_in_charge(world: World) -> None:
    document = run(world, "status")
    assert [(box["box"], box["state"], box["cameras"]) for box in document["boxes"]] == [("a", "online", 1), ("b", "online", 1)]
    assert {row["customer"]: row["share_pct"] > 0 for row in document["customers"]} == {"x": True, "y": True}
    assert document["controller"]["term"] == 1
    plain = CliRunner().invoke(fleet_app, ["status", "--data-dir", str(world.folder)], catch_exceptions=False)
    assert "no controller is in charge" in plain.output, "its lease ran out long ago, by this machine's clock"


def test_an_objective_nobody_knows_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no objective best") as refused:
        CliRunner().invoke(fleet_app, ["serve", "--data-dir", str(tmp_path), "--objective", "best"], catch_exceptions=False)
    for known in ("njc", "sw", "ew", "fair"):
        assert known in refused.value.remedy
    assert not list(tmp_path.iterdir())


def test_status_tells_every_controller_its_lease_and_its_engine(world: World) -> None:
    engine = EngineStatus(name="ray", where="head:6379", nodes=3, boxes=2, problem="the head is away")
    now_s = SystemClock().utc_s()
    mine = ControllerStatus(
        id="c1", in_charge=True, term=4, url="https://c1:8470", now_utc_s=now_s, lease="ray at head:6379", engine=engine
    )
    store = FleetStore(world.db)
    store.tell_controller(mine)
    store.tell_controller(replace(mine, id="b2", in_charge=False, reason="controller c1 is in charge", engine=EngineStatus()))
    store.tell_controller(replace(mine, id="a0", now_utc_s=now_s - 60.0))
    document = run(world, "status")
    assert [(one["id"], one["lease"], one["engine"]["name"]) for one in document["controllers"]] == [
        ("c1", "ray at head:6379", "ray"), ("b2", "ray at head:6379", "local"),
    ]  # fmt: skip
    assert document["controller"]["in_charge"] == "c1", "its lease is not in this folder"
    plain = CliRunner().invoke(fleet_app, ["status", "--data-dir", str(world.folder)], catch_exceptions=False).output
    assert "c1 writes; lease: ray at head:6379; engine: ray at head:6379, 3 nodes, 2 of them boxes" in plain
    assert "b2 stands by (controller c1 is in charge)" in plain
    assert "the engine is not up to date: the head is away" in plain
    invited = run(world, "boxes", "invite")
    assert "https://c1:8470" in invited["command"], "boxes are sent to the one in charge"
    store.forget_controller("c1")
    assert [one["id"] for one in run(world, "status")["controllers"]] == ["b2"]


def test_customers_are_added_changed_and_removed_by_command(world: World) -> None:
    run(world, "customers", "add", "z", "--goal", "0.9", "--weight", "2", "--group", "north", "--measure", "deadline")
    world.tick()
    customer = world.controller.state().customers["z"]
    assert (customer.goal, customer.weight, customer.path, customer.measure) == (0.9, 2.0, ("north",), "deadline")
    assert "z" in {row["customer"] for row in run(world, "customers", "list")}
    run(world, "customers", "remove", "z")
    world.tick()
    assert "z" not in world.controller.state().customers


def test_groups_of_customers_are_weighed_by_command_at_once_and_over_a_restart(world: World) -> None:
    for customer, group in (("x", "one"), ("y", "two")):
        run(world, "customers", "add", customer, "--group", group)
    before_s = world.controller.status().last_round_s
    while world.controller.status().last_round_s == before_s:
        world.tick()
    weighed_s = world.now_s
    run(world, "customers", "weigh", "two", "3")
    world.tick(12)
    assert world.controller.status().last_round_s > weighed_s, f"nobody waits {world.rules.round_s:g} s for it"
    assert run(world, "status")["groups"] == {"two": 3.0}
    assert {row["customer"]: row["group"] for row in run(world, "customers", "list")} == {"x": "one", "y": "two"}
    world.start()
    world.tick(20)  # its predecessor's lease runs out
    assert world.controller.state().groups["two"].weight == 3
    run(world, "customers", "weigh", "two", "1")
    world.tick()
    assert world.controller.state().groups == {}, "1 is what every group has"
    assert [row.subject for row in world.history.audit() if row.action == "group.weigh"] == ["two", "two"]


@pytest.mark.parametrize(
    "line",
    [
        "customers add z --goal 7", "customers add No", "customers remove nobody", "drain nobody", "boxes forget nobody",
        "boxes revoke nobody", "boxes uninvite nothing", "boxes invite --days 0", "customers weigh a 0", "customers weigh a//b 2",
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(world: World, line: str) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(fleet_app, [*line.split(), "--data-dir", str(world.folder)], catch_exceptions=False)


def test_a_folder_without_a_controller_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="no controller's data"):
        CliRunner().invoke(fleet_app, ["status", "--data-dir", str(tmp_path / "nowhere")], catch_exceptions=False)


def test_drain_and_back(world: World) -> None:
    run(world, "drain", "a")
    world.tick(20)
    assert world.controller.state().boxes["a"].draining
    assert not world.boxes["a"].watched()
    run(world, "drain", "a", "--off")
    world.tick(2)
    assert not world.controller.state().boxes["a"].draining
    audit = [(row.action, row.subject) for row in world.history.audit()]
    assert audit == [("box.use", "a"), ("box.drain", "a")]


def test_invitations_are_shown_once_and_listed_without_their_secret(world: World) -> None:
    made = run(world, "boxes", "invite", "--box", "gate")
    listed = run(world, "boxes", "list")
    assert [(row["ref"], row["box"]) for row in listed["invites"]] == [(made["ref"], "gate")]
    secret = made["code"].partition(".")[0]
    assert secret not in json.dumps(listed)
    files = b"".join(path.read_bytes() for path in world.folder.glob("fleet.db*"))
    assert secret.encode() not in files
    assert secret.replace("-", "").encode() not in files
    run(world, "boxes", "uninvite", made["ref"])
    assert run(world, "boxes", "list")["invites"] == []


def test_codes_are_read_as_people_type_them() -> None:
    secret = new_secret()
    code = code_of(secret, "ab" * 32)
    assert code == f"{secret}.{'ab' * 16}"
    assert digest(code) == digest(secret.lower().replace("-", " "))
    for wrong in ("", "AAAA", "AAAA-AAAA-AAAA-AAA!", "é" * 16):
        with pytest.raises(UsageError):
            secret_of(wrong)


# --- HTTP for people --------------------------------------------------------------------------------------------------


@pytest.fixture
def client(world: World) -> TestClient:
    services = LiveServices(
        world.controller,
        world.actions(),
        world.history,
        Membership(world.db, Authority(world.folder / "ca", now_utc_s=BEGIN_S)),
    )
    return TestClient(make_app(services), base_url="https://127.0.0.1", client=("127.0.0.1", 1234))


def test_the_state_over_http_and_what_is_done_there(world: World, client: TestClient) -> None:
    assert client.get("/healthz").json() == {"ok": True, "in_charge": True}
    state = client.get("/api/v1/fleet/state").json()
    assert [box["id"] for box in state["boxes"]] == ["a", "b"]
    assert client.get("/api/v1/fleet/status").json()["term"] == 1
    assert client.put("/api/v1/fleet/customers/q", json={"goal": 0.6}).status_code == 200
    assert client.put("/api/v1/fleet/boxes/a/drain", json={"on": True}).status_code == 200
    assert client.put("/api/v1/fleet/cameras/b/c1/pin", json={"box": "b"}).status_code == 200
    world.tick(2)
    after = world.controller.state()
    assert after.customers["q"].goal == 0.6
    assert after.boxes["a"].draining
    assert [lease.pinned for key, lease in after.leases.items() if str(key) == "b/c1"] == [True]
    made = client.post("/api/v1/fleet/invites", json={"box": "gate"}).json()
    assert made["code"]
    assert client.get("/api/v1/fleet/members").json() == []


def test_errors_over_http_say_what_to_do(client: TestClient) -> None:
    assert client.put("/api/v1/fleet/customers/x", json={"goal": 0.6}).status_code == 200
    for method, path, body, status in (
        ("PUT", "boxes/nobody/drain", {"on": True}, 404), ("DELETE", "customers/x", None, 409),
        ("PUT", "customers/q", {"goal": 9}, 422), ("DELETE", "boxes/nobody", None, 404),
    ):  # fmt: skip
        got = client.request(method, f"/api/v1/fleet/{path}", json=body)
        assert got.status_code == status, got.text
        assert got.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("PUT", "customers/q", {"goal": 9}, "goal: Input should be less than or equal to 1"),
        ("PUT", "customers/q", {"goal": "s3cret"}, "goal: Input should be a valid number"),
        (
            "PUT",
            "customers/q",
            {"measure": "speed", "weight": 0},
            "weight: Input should be greater than 0; measure: Input should be",
        ),
        ("PUT", "customers/q", {"gaol": 0.5}, "gaol: Extra inputs are not permitted"),
        ("PUT", "customers/q", {"path": [7]}, "path.0: Input should be a valid string"),
        ("PUT", "customers/No Such", {}, "No Such"),
        ("PUT", "groups/a", {"weight": 0}, "weight: Input should be greater than 0"),
        ("POST", "invites", {"days": "s3cret"}, "days: Input should be a valid number"),
        ("POST", "invites", {"days": 99}, "days: Input should be less than or equal to 30"),
        ("PUT", "boxes/a/drain", {"on": "s3cret"}, "on: Input should be a valid boolean"),
        ("PUT", "boxes/a/drain", [1], "the body: Input should be"),
    ],
)
def test_a_wrong_field_is_named_and_never_repeated(
    client: TestClient, method: str, path: str, body: object, message: str
) -> None:
    got = client.request(method, f"/api/v1/fleet/{path}", json=body)
    assert got.status_code == 422
    error = got.json()["error"]
    assert error["message"].startswith(message) or message in error["message"]
    assert "s3cret" not in got.text
    assert "validation error" not in got.text
    assert error["subject"] in error["message"]


def test_a_wrong_field_of_a_command_is_named(world: World) -> None:
    with pytest.raises(UsageError, match="measure: Input should be 'quality' or 'deadline'"):
        words = ["customers", "add", "z", "--measure", "speed", "--data-dir", str(world.folder)]
        CliRunner().invoke(fleet_app, words, catch_exceptions=False)


def test_what_a_customer_is_has_one_definition() -> None:
    """The body of a request has the fields of `Customer`, with the same values where nothing is said."""
    default = Customer(id="x")
    assert {**CustomerIn().model_dump(), "path": (), "id": "x"} == {f.name: getattr(default, f.name) for f in fields(default)}
