"""How the demonstration tells of its rollout: it looks on, and a model that no gate let in is no success."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def pooling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("fleet_scenes.pooling")


def word(camera: str, after: float, stage: str = "serving", problem: str = "") -> dict[str, Any]:
    home, _, id = camera.partition("/")
    return {"rollout": "night", "camera": {"home": home, "camera": id}, "stage": stage, "after": after, "problem": problem}


def ended(state: str, reason: str, **counts: int) -> dict[str, Any]:
    return {"state": state, "reason": reason, "counts": {"serving": 0, **counts}}


def test_it_tells_what_every_gate_said_and_how_the_rollout_ended(pooling: ModuleType) -> None:
    words = [word("north/gate", 0.8), word("north/dock", 0.4, "refused", "not better")]
    told = pooling.ended_how(ended("done", "all have answered", serving=1, refused=1), words)
    assert told == "1 of 2 gates let it in: north/gate serving 0.80, north/dock refused 0.40 (not better); the rollout is done"


def test_a_box_that_has_forgotten_the_rollout_already_counts(pooling: ModuleType) -> None:
    told = pooling.ended_how(ended("done", "all have answered", serving=2), [word("north/gate", 0.8)])
    assert told.startswith("2 of 2 gates let it in: north/gate serving 0.80;")


def test_a_rollout_that_stopped_says_why(pooling: ModuleType) -> None:
    told = pooling.ended_how(ended("stopped", "quality on labels fell", serving=1), [word("north/gate", 0.8)])
    assert told.endswith("the rollout is stopped (quality on labels fell)")


def test_where_no_gate_let_it_in_the_scene_has_not_happened(pooling: ModuleType) -> None:
    with pytest.raises(Exception, match=r"no gate let the model in: north/gate refused 0\.10 \(not better\)"):
        pooling.ended_how(ended("stopped", "gates", refused=1), [word("north/gate", 0.1, "refused", "not better")])


def test_nobody_is_asked_to_go_on_with_a_rollout() -> None:
    """A rollout that must be pushed is none that works."""
    assert not [path.name for path in SCRIPTS.glob("fleet_scenes/*.py") if "go_on" in path.read_text()]
