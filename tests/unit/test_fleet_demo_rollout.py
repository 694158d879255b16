"""What the demonstration's owner does with a rollout that stopped: goes on where gates measured gains on every camera only."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def pooling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("fleet_scenes.pooling")


def word(camera: str, after: float, stage: str = "serving") -> dict[str, Any]:
    home, _, id = camera.partition("/")
    return {"rollout": "night", "camera": {"home": home, "camera": id}, "stage": stage, "after": after, "problem": ""}


class Fleet:
    """A controller whose rollout stops `stops` times; offers: what gates say all along. asked: what the owner had done."""

    def __init__(self, stops: int, *offers: dict[str, Any]) -> None:
        self.stops, self.offers, self.asked = stops, offers, list[dict[str, Any]]()

    def view(self) -> dict[str, Any]:
        count = 1 + 2 * len(self.asked)
        row = {"id": "night", "state": "stopped" if self.stops > len(self.asked) else "done", "reason": "quality fell"}
        return {"rollouts": [row | {"decisions": [{}] * count}]}

    def wait(self, what: str, there: Callable[[dict[str, Any]], Any], **_: Any) -> Any:
        found = there(self.view())
        assert found, what
        return found

    def get(self, path: str) -> dict[str, Any]:
        assert path == "state"
        return {"boxes": [{"report": {"confirmation": {"offers": list(self.offers)}}}]}

    def put(self, path: str, body: dict[str, Any], *, method: str) -> None:
        assert (path, method, body["what"]) == ("rollouts/night", "PATCH", "go_on")
        self.asked.append(body)


BEFORE = {"north/gate": 0.2, "north/dock": 0.5}


def test_goes_on_where_every_gate_measured_a_gain(pooling: ModuleType) -> None:
    fleet = Fleet(2, word("north/gate", 0.8), word("north/dock", 0.6))
    assert pooling.carried_on(fleet, BEFORE)["state"] == "done"
    assert [body["reason"] for body in fleet.asked] == ["better on labels: north/dock 0.10, north/gate 0.60"] * 2


def test_leaves_it_where_a_camera_that_serves_it_lost(pooling: ModuleType) -> None:
    fleet = Fleet(2, word("north/gate", 0.8), word("north/dock", 0.4))
    assert pooling.carried_on(fleet, BEFORE)["state"] == "stopped"
    assert not fleet.asked


def test_leaves_it_where_no_gate_let_it_in(pooling: ModuleType) -> None:
    fleet = Fleet(1, word("north/gate", 0.1, "refused"))
    assert pooling.carried_on(fleet, BEFORE)["state"] == "stopped"
    assert not fleet.asked


def test_does_not_go_on_for_ever(pooling: ModuleType) -> None:
    fleet = Fleet(100, word("north/gate", 0.8))
    assert pooling.carried_on(fleet, BEFORE)["state"] == "stopped"
    assert len(fleet.asked) == pooling.MOST_LOOKS - 1


def test_one_that_did_not_stop_is_left_alone(pooling: ModuleType) -> None:
    fleet = Fleet(0, word("north/gate", 0.8))
    assert pooling.carried_on(fleet, BEFORE)["state"] == "done"
    assert not fleet.asked
