"""docs/commands.md names every command and every option; the README leads there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from edge.cli import app

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
COMMON = {"--help", "-h"}


def commands(command: Any = None, name: str = "driftbox") -> Iterator[tuple[str, Any]]:
    command = command or typer.main.get_command(app)
    inner = getattr(command, "commands", {})
    for word, child in inner.items():
        yield from commands(child, f"{name} {word}")
    if not inner:
        yield name, command


def test_every_command_is_documented() -> None:
    names = [name for name, _ in commands()]
    assert {"driftbox run", "driftbox decide", "driftbox models rollback", "driftbox cameras list"} <= set(names)
    assert not [name for name in names if f"`{name}" not in PAGE]


def test_every_option_is_documented() -> None:
    options = {
        option
        for _, command in commands()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    assert "--label-frames" in options
    assert not [option for option in sorted(options - COMMON) if f"`{option}`" not in PAGE]


def test_every_command_has_json_and_a_sentence_of_help() -> None:
    for name, command in commands():
        assert (command.help or "").strip().split("\n")[0].endswith("."), name
        assert any("--json" in parameter.opts for parameter in command.params), name


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in ("docs/commands.md", "docs/configuration.md", "docs/mqtt.md", "docs/architecture.md", "docs/decisions/"):
        assert page in readme, page
    assert "AGPL-3.0" in readme
