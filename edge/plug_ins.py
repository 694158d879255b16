"""What the command line takes in from the cluster tier without importing it: entry points of installed packages (pyproject.toml)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from scheduler.decide import System

FLEET, DECIDE = "driftbox.fleet", "driftbox.decide"


def add_fleet_commands(app: typer.Typer) -> None:
    """The commands of the controller beside those of a box."""
    for found in entry_points(group=FLEET):
        app.add_typer(found.load())


def system_of(name: str) -> System:
    """The system called `name`, of a box or of a fleet. Errors: UsageError listing the known ones."""
    from scheduler.decide import system

    plugged = _plugged()
    return plugged[name].load() if name in plugged else system(name, also=tuple(plugged))


@cache
def _plugged() -> dict[str, EntryPoint]:
    return {found.name: found for found in sorted(entry_points(group=DECIDE), key=lambda f: f.name)}
