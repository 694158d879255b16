"""What the fleet decided, carried to its engine: as resources on the nodes that boxes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.controller.on_engine import Carrier, carried, nodes_of_boxes, watched
from cluster.engines.base import INFINITE, NodeStatus, Task
from cluster.engines.local import LocalEngine
from cluster.escher.uses import SHARE, customer, home, network
from cluster.placement.sight import Patience
from configs.errors import EnvironmentLacking
from scheduler.fleet.types import CameraKey
from tests.support.fleet_boxes import ToyBox
from tests.support.fleet_world import World

A, B = CameraKey(home="a", camera="c1"), CameraKey(home="b", camera="c1")


@pytest.fixture
def world(tmp_path: Path) -> World:
    boxes = [ToyBox("a", cameras={"c1": ("x", 30.0)}), ToyBox("b", cameras={"c1": ("y", 20.0)}), ToyBox("c", cameras={})]
    made = World(tmp_path, boxes)
    made.tick(25)
    return made


@pytest.fixture
def engine() -> LocalEngine:
    """Box `c` is no node of it; node `other` is no box."""
    labels = {"n1": {"driftbox/box": "a"}, "n2": {"driftbox.io/box": "b"}}
    return LocalEngine({"n1": {"CPU": 4}, "n2": {"CPU": 4}, "other": {"CPU": 4}}, labels=labels)


def carrier(world: World, engine: Any) -> Carrier:
    return Carrier(
        engine, "here", state=lambda: world.controller.state(), holds=lambda: world.controller.holds(), patience=Patience(),
        monotonic_s=lambda: world.now_s, utc_s=lambda: world.now_s,
    )  # fmt: skip


def made_on(engine: LocalEngine, node: str) -> Mapping[str, float]:
    found = next(one for one in engine.nodes() if one.id == node)
    return {name: amount for name, amount in found.total.items() if name.startswith("dbx.")}


def test_a_box_is_found_by_its_nodes_label_or_its_name(world: World) -> None:
    def node(id: str, *, alive: bool = True, **labels: str) -> NodeStatus:
        return NodeStatus(id=id, alive=alive, total={}, free={}, labels={k.replace("_", "/"): v for k, v in labels.items()})

    nodes = [node("n9", driftbox_box="a"), node("n8", alive=False, driftbox_box="b"), node("c"), node("n7", driftbox_box="zz")]
    assert nodes_of_boxes(nodes, world.controller.state().boxes) == {"a": "n9", "c": "c"}


def test_room_networks_grants_and_cameras_stand_on_the_nodes(world: World, engine: LocalEngine) -> None:
    on = carrier(world, engine)
    on.step()
    grant = world.controller.state().grants["x"].by_box["a"]
    assert made_on(engine, "n1") == {
        home("a"): INFINITE, network("lan"): INFINITE, SHARE: 70, customer("x"): int(grant), watched(A): INFINITE,
    }  # fmt: skip
    assert made_on(engine, "n2")[SHARE] == 80
    assert made_on(engine, "other") == {}
    status = on.status()
    assert (status.name, status.nodes, status.boxes, status.problem) == ("local", 3, 2, "")
    for number, pct in enumerate((80, 1)):  # other work goes where the cameras leave room, and not where they do not
        engine.submit(Task(id=f"t{number}", demands={SHARE: pct}))
    found = engine.status(["t0", "t1"])
    assert (found["t0"].node, found["t1"].node) == ("n2", "n1")


def test_work_follows_a_camera_that_moves_and_nothing_new_comes_to_a_box_that_is_emptied(
    world: World, engine: LocalEngine
) -> None:
    on = carrier(world, engine)
    on.step()
    world.boxes["c"].networks = ()  # only `b` may take it
    world.actions().drain("a", True, by="t")
    world.tick(30)
    on.step()
    assert made_on(engine, "n1") == {home("a"): INFINITE}
    assert made_on(engine, "n2")[watched(A)] == INFINITE
    assert made_on(engine, "n2")[SHARE] == 100 - 20 - 10  # a toy box tells of a guest as needing 10


def test_a_box_that_is_away_keeps_its_name_only(world: World) -> None:
    state = world.controller.state()
    away = replace(state, boxes={**state.boxes, "a": replace(state.boxes["a"], online=False)})
    found = {wish.name for wish in carried(away, {"a": "n1"}, Patience(), world.now_s)}
    assert found == {home("a"), watched(A)}, "and the camera, until it was taken over"


def test_the_next_controller_adopts_what_its_predecessor_made(world: World, engine: LocalEngine) -> None:
    carrier(world, engine).step()
    engine.set_resource("dbx.fleet.left-behind", 3, "n1")
    engine.set_resource("dbx.pooled-training.x", 1, "n1")
    engine.set_resource("somebody-elses", 1, "n1")
    before = made_on(engine, "n2")
    world.start()
    world.tick(20)
    carrier(world, engine).step()
    names = {name for node in engine.nodes() for name in node.total}
    assert "dbx.fleet.left-behind" not in names
    assert {"dbx.pooled-training.x", "somebody-elses"} <= names
    assert made_on(engine, "n2")[SHARE] == before[SHARE]


def test_a_share_that_is_in_use_shrinks_when_it_comes_back(world: World, engine: LocalEngine) -> None:
    on = carrier(world, engine)
    on.step()
    engine.submit(Task(id="big", demands={SHARE: 75}))  # fits on n2 only
    world.boxes["b"].cameras = {"c1": ("y", 60.0)}
    world.tick(25)
    on.step()
    assert made_on(engine, "n2")[SHARE] == 75, "clamped: it is in use"
    engine.cancel(["big"])
    on.step()
    assert made_on(engine, "n2")[SHARE] == 40


class Losing:
    """An engine under a controller that loses its lease after so many calls."""

    name = "local"

    def __init__(self, engine: LocalEngine, after: int) -> None:
        self.engine, self.left = engine, after

    def holds(self) -> bool:
        return self.left > 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def set_resource(self, name: str, capacity: float, node: str) -> float:
        self.left -= 1
        return self.engine.set_resource(name, capacity, node)


def test_a_controller_that_loses_its_lease_sets_nothing_more(world: World, engine: LocalEngine) -> None:
    losing = Losing(engine, 3)
    on = Carrier(
        losing, "here", state=world.controller.state, holds=losing.holds, patience=Patience(),  # type: ignore[arg-type]
        monotonic_s=lambda: world.now_s, utc_s=lambda: world.now_s,
    )  # fmt: skip
    on.step()
    assert losing.left == 0, "three calls, and not one more"
    assert "not in charge" in on.status().problem
    on.step()
    assert losing.left == 0
    assert on.status().problem == "", "it stands by"


class Away:
    name = "ray"

    def nodes(self) -> Any:
        raise EnvironmentLacking("the head does not answer", remedy="start it")


def test_an_engine_that_is_away_is_told_and_hurts_nobody(world: World) -> None:
    on = carrier(world, Away())
    on.step()
    assert on.status().problem == "the head does not answer"
    world.tick(5)
    assert world.controller.status().in_charge
