"""docs/fleet/view.md: every page has its section, every route and picture that it names is there, its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.controller.http import make_app
from cluster.rollouts.types import RolloutRules
from cluster.web.app import EVERY_S, STATIC
from cluster.web.fake import FakeServices
from cluster.web.view import MOST_POINTS, SILENT_S

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / "docs" / "fleet" / "view.md").read_text(encoding="utf-8")
PAGES = re.findall(r"^\s+(\w+): \[\"[^\"]+\", \(\) => import", (STATIC / "fleet.js").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_a_section_and_a_module(page: str) -> None:
    heads = " ".join(re.findall(r"^## .*$", TEXT, re.MULTILINE))
    assert f"`{page}`" in heads
    assert f'id: "{page}"' in (STATIC / "pages" / f"{page}.js").read_text(encoding="utf-8")


def test_every_route_is_there() -> None:
    paths = make_app(FakeServices()).openapi()["paths"]  # type: ignore[attr-defined]
    plain = {re.sub(r"\{\w+\}", "X", path) for path in paths}
    named = re.findall(r"`(?:(?:GET|PUT|POST|PATCH|DELETE) )?(/api/v1/fleet/[^`]+)`", TEXT)
    assert len(named) >= 8
    for path in named:
        assert re.sub(r"/(?:BOX|ID|NAME|SITE)\b", "/X", path) in plain, path


@pytest.mark.parametrize("file", re.findall(r"\]\(([\w./-]+\.(?:md|png))\)", TEXT))
def test_links_and_pictures_are_there(file: str) -> None:
    assert (ROOT / "docs" / "fleet" / file).is_file()


def test_numbers_are_those_of_the_code() -> None:
    rules = RolloutRules()
    assert f"{100 * rules.answered_frac:.0f} % of the step's cameras" in TEXT
    assert f"fell by more than {rules.margin:g}" in TEXT
    assert f"heard within {SILENT_S:.0f} s" in TEXT
    assert f"every {EVERY_S:g} s" in TEXT
    assert f"{MOST_POINTS} points at most" in TEXT
    assert (rules.refused_frac, rules.fewest_answers, rules.steps_frac) == (0.5, 4, (0.0, 0.1, 0.5, 1.0)), "as told in words"
