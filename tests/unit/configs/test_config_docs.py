"""docs/configuration.md is what the schema says now."""

from __future__ import annotations

from pathlib import Path

from configs.describe import configuration_markdown, every_key

PAGE = Path(__file__).parents[3] / "docs/configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_markdown(), "run `make docs`"


def test_every_key_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert not [key for key in every_key() if f"`{key}`" not in page]
    assert {"window.seconds", "cameras[].url", "models.retrain[].epochs", "telemetry.mqtt.password"} <= set(every_key())
