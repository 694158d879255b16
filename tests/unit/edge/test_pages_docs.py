"""docs/pages.md: every page of the shell has its section, every route family and number that it names is real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge.before_after import MOST_S, SHARE_FRAC
from edge.gpu_history import EVERY_S
from edge.learning import MAX_PICTURES
from edge.models_view import MAX_BUNDLE_BYTES
from edge.plan_book import EXPLAINABLE
from edge.store.plans import KEPT
from scheduler.ekya.bands import COVERS_FRAC, Z

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "edge" / "web" / "static"
TEXT = (ROOT / "docs" / "pages.md").read_text(encoding="utf-8")
DECISION = (ROOT / "docs" / "decisions" / "0055-plans-and-pictures-on-demand.md").read_text(encoding="utf-8")
SHELL = (STATIC / "box.js").read_text(encoding="utf-8")
#: Pages of this documentation that are written here; the others' are their own.
MINE = ("learning", "gpu", "models", "labels", "queries")


def page_ids() -> list[str]:
    return re.findall(r"^\s+(\w+): \[\"[^\"]+\", \(\) => import", SHELL, re.MULTILINE)


def test_the_shell_names_pages() -> None:
    assert set(MINE) <= set(page_ids())


@pytest.mark.parametrize("page", page_ids())
def test_every_page_has_a_section(page: str) -> None:
    assert re.search(rf"^## .*\(`{page}`\)", TEXT, re.MULTILINE), f"docs/pages.md has no section for {page}"


@pytest.mark.parametrize("page", MINE)
def test_every_page_is_there_and_says_who_it_is(page: str) -> None:
    text = (STATIC / "pages" / f"{page}.js").read_text(encoding="utf-8")
    assert f'id: "{page}"' in text


@pytest.mark.parametrize("link", re.findall(r"\]\(([\w./-]+\.md)\)", TEXT))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).is_file()


@pytest.mark.parametrize("path", re.findall(r"`((?:edge|scheduler)/[\w./]+)`", TEXT))
def test_paths_are_there(path: str) -> None:
    assert (ROOT / path).is_file()


def test_numbers_are_those_of_the_code() -> None:
    assert f"newest {EXPLAINABLE} plans" in TEXT
    assert f"({KEPT:,} plans)" in TEXT
    assert f"minus {Z:.2f} standard deviations" in TEXT
    assert f"{100 * COVERS_FRAC:.0f} % of the windows" in TEXT
    assert f"{MAX_BUNDLE_BYTES // 2**20} MiB at most" in TEXT
    assert f"a point every {EVERY_S:.0f} s" in TEXT
    assert f"newest {EXPLAINABLE} in memory" in DECISION
    assert f"after {MOST_S:.0f}" in DECISION
    assert MAX_PICTURES == 6
    assert "six held-out pictures" in DECISION
    assert f"{1 / SHARE_FRAC - 1:.0f}" == "9"
    assert "nine times" in DECISION
