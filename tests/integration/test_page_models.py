"""The Models page in a real browser: lineage, compare, roll back, promote, pin, export, import, and what a viewer sees of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.learning_pages import Served, as_viewer, served
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def box() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def visit(browser: Any, box: Served) -> Iterator[Visit]:
    with Visit(browser, box.url, "#/models/gate", ready="svg.lineage") as opened:
        yield opened
        opened.is_sound()


def announced(visit: Visit, words: str) -> None:
    visit.page.wait_for_selector(f"#announcement:has-text('{words}')")


def test_versions_and_their_lineage(visit: Visit) -> None:
    page = visit.page
    rows = page.get_by_role("table", name="Versions of gate").locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text("serving", use_inner_text=True)
    expect(rows.nth(1)).to_contain_text("candidate", use_inner_text=True)
    expect(page.locator("svg.lineage circle")).to_have_count(4)
    expect(page.locator("svg.lineage")).to_have_attribute(
        "aria-label", re.compile("gate-000003 was made from gate-000001, candidate")
    )
    visit.is_accessible()
    visit.save("models.png")


def test_two_versions_side_by_side_and_on_pictures(visit: Visit, box: Served) -> None:
    page = visit.page
    page.get_by_role("button", name="Compare", exact=True).click()
    side = page.get_by_role("table", name="Side by side")
    side.wait_for()
    expect(side).to_contain_text("0.600", use_inner_text=True)
    expect(page.locator("#page")).to_contain_text(
        "Their newest common ancestor is gate-000001; 1 retraining lies", use_inner_text=True
    )
    expect(page.get_by_role("table", name="What was done differently")).to_contain_text("epochs", use_inner_text=True)
    visit.is_accessible()
    page.get_by_role("button", name="Show on pictures").click()
    page.wait_for_selector(".pairs")
    assert box.fakes.learning.compared == 1


def test_roll_back_and_serve_another(visit: Visit, box: Served) -> None:
    page = visit.page
    first = page.get_by_label("First")
    expect(first.locator("option:checked")).to_have_text("gate-000001 (retired)")
    page.get_by_role("button", name="Roll gate back").click()
    announced(visit, "gate-000001 serves gate now, in the place of gate-000002")
    expect(first.locator("option:checked")).to_have_text("gate-000001 (serving)")  # still the one that was chosen
    assert box.fakes.models.serving["gate"] == "gate-000001"
    page.get_by_role("button", name="Serve gate-000002").click()
    announced(visit, "gate-000002 serves gate now")


def test_an_unjudged_version_is_served_only_after_a_question(visit: Visit, box: Served) -> None:
    page = visit.page
    page.get_by_role("button", name="Serve … gate-000003").click()
    page.get_by_role("button", name="Leave it").click()
    assert box.fakes.models.serving["gate"] == "gate-000002"
    page.get_by_role("button", name="Serve … gate-000003").click()
    page.get_by_role("button", name="Serve it all the same").click()
    announced(visit, "gate-000003 serves gate now")
    assert box.fakes.models.serving["gate"] == "gate-000003"


def test_pin_export_and_import(visit: Visit, box: Served, tmp_path: Path) -> None:
    page = visit.page
    page.get_by_role("button", name="Pin gate-000000").click()
    announced(visit, "is kept whatever comes")
    assert box.fakes.models.pinned == {"gate-000000"}
    with page.expect_download() as download:
        page.get_by_role("link", name="Export gate-000001").click()
    assert download.value.suggested_filename == "gate-000001.driftbox"
    assert Path(download.value.path()).read_bytes() == b"a bundle of gate-000001"
    bundle = tmp_path / "other.driftbox"
    bundle.write_bytes(bytes(3_000_000))
    page.locator("#bundle-file").set_input_files(bundle)
    page.get_by_role("button", name="Import").click()
    page.wait_for_selector("text=gate-x000001 came in for gate")
    assert box.fakes.models.taken_bytes == 3_000_000


def test_a_viewer_sees_no_button_that_would_be_refused(visit: Visit) -> None:
    page = as_viewer(visit)
    page.wait_for_selector("svg.lineage")
    for word in ("Roll gate back", "Serve", "Pin", "Export", "Import"):
        expect(page.get_by_role("button", name=word)).to_have_count(0)
    expect(page.get_by_role("button", name="Compare")).to_have_count(1)


def test_it_fits_a_phone(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/models/gate", ready="svg.lineage", width_px=360) as visit:
        visit.fits()
