"""Widths in Ray Tune's terms, and DynamicFluid as its resources_allocation_function; Ray itself is a stand-in of this file."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest

from cluster.fluid_tune import Settings, allocation_function, bundles, width_of, widths_now
from configs.errors import EnvironmentLacking
from scheduler.fluid import Pool


@dataclass
class Factory:
    bundles: list[dict[str, float]]


@dataclass
class TuneTrial:
    trial_id: str
    placement_group_factory: Factory
    status: str = "RUNNING"
    last_result: dict[str, Any] = field(default_factory=dict)


@dataclass
class Controller:
    trials: list[TuneTrial]

    def get_trials(self) -> list[TuneTrial]:
        return self.trials


def trial(id: str, width: Fraction | int, left_s: float, **more: Any) -> TuneTrial:
    return TuneTrial(id, Factory(list(bundles(Fraction(width)))), last_result={"left": left_s}, **more)


def left(trial: Any, result: Mapping[str, Any] | None) -> float:
    return (result or {}).get("left", 0.0)


F4 = Settings(pool=Pool(gpus=4, share_max=2, width_max=4), left_s=left, beta=1.2, epsilon_s=0.5)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    tune = ModuleType("ray.tune")
    tune.PlacementGroupFactory = Factory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.tune", tune)


@pytest.mark.parametrize("width", [Fraction(1, 3), Fraction(1, 2), Fraction(1), Fraction(3)])
def test_bundles_stand_for_their_width(width: Fraction) -> None:
    found = bundles(width, cpus_per_gpu=2)
    assert width_of(found) == width
    assert len(found) == max(1, int(width))
    assert all(b["CPU"] >= 1 for b in found)


def test_no_width_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        bundles(Fraction(0))
    assert width_of([{"CPU": 1.0}]) == 0


def test_the_cards_shrink_and_growth() -> None:
    """F4: remaining 8 and 24 at two GPUs each, beta 1.2: one and three."""
    assert widths_now([trial("short", 2, 8), trial("long", 2, 24)], F4) == {"short": 1, "long": 3}


def test_nobody_changes_while_one_waits_or_the_pool_does_not_add_up() -> None:
    waiting = trial("new", 1, 5, status="PENDING")
    assert widths_now([trial("short", 2, 8), trial("long", 2, 24), waiting], F4) == {}
    assert widths_now([trial("short", 3, 8), trial("long", 2, 24)], F4) == {}
    assert widths_now([trial("done", 2, 8, status="TERMINATED")], F4) == {}


@pytest.mark.usefixtures("ray")
def test_tune_gets_a_factory_only_for_a_change() -> None:
    allocate = allocation_function(F4)
    short, long = trial("short", 2, 8), trial("long", 2, 24)
    told = allocate(Controller([short, long]), long, {}, None)
    assert width_of(told.bundles) == 3
    settled = trial("alone", 4, 24)
    assert allocate(Controller([settled]), settled, {}, None) is None


def test_without_ray_the_operator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("ray"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    short, long = trial("short", 2, 8), trial("long", 2, 24)
    with pytest.raises(EnvironmentLacking, match="Ray Tune is not installed"):
        allocation_function(F4)(Controller([short, long]), long, {}, None)
