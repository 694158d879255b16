"""The Health page in a real browser: what is wrong, what to do, doctor, log, back-ups, the bundle; what a viewer does not see."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.web.fake import FakeSource
from edge.web.fake_health import FakeHealth
from edge.web.serve import WebServer
from edge.web.services import Services
from tests.support.learning_pages import as_viewer
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def health() -> FakeHealth:
    return FakeHealth()


@pytest.fixture
def url(health: FakeHealth) -> Iterator[str]:
    with WebServer(FakeSource(), host="127.0.0.1", port=0, services=Services(health=health, metrics=health)) as server:
        yield server.url


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Visit]:
    with Visit(browser, url, "#/health", ready="#page section") as opened:
        yield opened
        opened.is_sound()


def test_it_says_what_is_wrong_and_what_to_do(visit: Visit, health: FakeHealth) -> None:
    page = visit.page
    page.wait_for_selector("text=camera gate is in quarantine")
    expect(page.locator("#page")).to_contain_text("<b>it failed</b>", use_inner_text=True)
    page.get_by_role("button", name="Look now").click()
    page.wait_for_selector("text=no frame within 8 s")
    first = page.locator("section", has_text="Doctor").locator("tbody tr").first
    for told in ("bad", "is the camera on?"):
        expect(first).to_contain_text(told, use_inner_text=True)
    assert health.asked == ["doctor"]
    page.wait_for_selector(".log:has-text('<i>dock</i>')")
    page.locator("#log-level").select_option("WARNING")
    page.wait_for_function("() => document.querySelector('.log')?.textContent.includes('window 3 closed') === false")
    page.get_by_label("with these words").fill("DOCK")
    page.keyboard.press("Enter")
    page.wait_for_function("() => /^[^\\n]*WARNING[^\\n]*dock[^\\n]*$/.test(document.querySelector('.log')?.textContent)")
    page.get_by_label("with these words").fill("nobody")
    page.keyboard.press("Enter")
    page.wait_for_selector(".log:has-text('No such line.')")
    visit.is_accessible()
    visit.save("health.png")


def test_a_back_up_is_made_and_the_bundle_comes(visit: Visit, health: FakeHealth, tmp_path: Path) -> None:
    page = visit.page
    page.get_by_role("button", name="Back up now").click()
    page.wait_for_selector("text=20260921-141320-by-hand")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download diagnostics").click()
    target = tmp_path / "bundle.zip"
    download.value.save_as(target)
    assert set(zipfile.ZipFile(io.BytesIO(target.read_bytes())).namelist()) == {"README.txt", "status.json"}
    assert health.asked == ["backup", "diagnostics"]


def test_a_viewer_sees_how_it_is_and_no_button_that_would_be_refused(visit: Visit) -> None:
    page = as_viewer(visit)
    expect(page.locator("#page section").nth(3)).to_be_attached()
    expect(page.locator("#page button")).to_have_count(0)
    expect(page.locator("text=Download diagnostics")).to_have_count(0)
    expect(page.locator(".log")).to_have_count(0)


def test_it_is_good_on_a_phone(browser: Any, url: str) -> None:
    with Visit(browser, url, "#/health", ready="#page section", width_px=360) as visit:
        visit.fits()
        visit.is_accessible()
        visit.is_sound()
