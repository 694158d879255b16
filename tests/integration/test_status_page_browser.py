"""The status page in a real browser: tiles, pictures, numbers, keyboard, a phone, and what happens when the box goes away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.web.fake import FakeSource
from edge.web.serve import WebServer

pytestmark = pytest.mark.browser

#: Of the browser for whatever a test waits for.
PATIENCE_MS = 120_000.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        message = "Chromium is not installed (apt-get install chromium)"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer(FakeSource(), host="127.0.0.1", port=0) as running:
        yield running


class Visit:
    """An open page with everything it complained about. foreign: requests that left the box."""

    def __init__(self, browser: Any, url: str, *, width_px: int = 1200) -> None:
        self.page = browser.new_page(viewport={"width": width_px, "height": 900})
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: request.url.startswith(url) or self.foreign.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector(".tile")


def save_picture(page: Any, name: str) -> None:
    """Keeps a screenshot where DRIFTBOX_SCREENSHOTS says, for people to look at."""
    folder = os.environ.get("DRIFTBOX_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / name, full_page=True)


def test_the_page_shows_the_box(browser: Any, server: WebServer) -> None:
    visit = Visit(browser, server.url)
    page = visit.page
    assert page.locator(".tile").count() == 4
    gate = page.locator('[data-camera="gate"]')
    page.wait_for_function("() => document.querySelector('[data-camera=gate] img').naturalWidth === 640")
    assert gate.locator(".state").inner_text() == "live"
    assert gate.locator("img").is_visible()
    assert gate.locator("svg circle").count() == 8
    assert "quality (F1)" in gate.locator("dl").inner_text()
    assert "entrance: door in" in gate.locator("dl").inner_text()
    assert "plates: resting (read: MemoryError: no room)" in gate.locator("dl").inner_text()
    yard = page.locator('[data-camera="yard"]').locator("dl").inner_text()
    assert "queries" not in yard
    assert "quality (accuracy)" in yard
    assert "classification" in yard
    assert "(F1 and accuracy, 0 to 1)" in page.locator("#summary").inner_text()
    dock = page.locator('[data-camera="dock"]')
    assert "timeout: no frames for 6 s" in dock.locator(".error").inner_text()
    assert dock.locator(".nothing").is_visible()
    assert "2 of 4 cameras live" in page.locator("#summary").inner_text()
    assert "window 3 · planned" in page.locator("#window-line").inner_text()
    assert "promised 35 % · received 34 %" in page.locator("#shares li").first.inner_text()
    assert page.locator("#plan tbody tr").count() == 2
    assert "below the floor" in page.locator("#plan").inner_text()
    assert "predicted 0.60, realised 0.61; 1 retrained, 1 admitted" in page.locator("#outcomes summary").first.inner_text()
    assert "serving" in page.locator("#models tbody tr").first.inner_text()
    assert "too slow" in page.locator("#notes").inner_text()
    save_picture(page, "page.png")
    assert visit.complaints == []
    assert visit.foreign == []
    page.close()


def test_pictures_are_renewed(browser: Any, server: WebServer) -> None:
    page = Visit(browser, server.url).page
    page.wait_for_function("() => document.querySelector('[data-camera=gate] img').naturalWidth === 640")
    first = page.locator('[data-camera="gate"] img').get_attribute("src")
    page.wait_for_function(
        "before => document.querySelector('[data-camera=gate] img').getAttribute('src') !== before", arg=first
    )
    page.close()


def test_it_works_with_the_keyboard_and_open_details_stay_open(browser: Any, server: WebServer) -> None:
    visit = Visit(browser, server.url)
    page = visit.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("#outcomes summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#outcomes details").first.get_attribute("open") is not None
    seen = page.locator("#window-line").inner_text()
    page.wait_for_function("before => document.getElementById('window-line').textContent !== before", arg=seen)
    assert page.locator("#outcomes details").first.get_attribute("open") is not None
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    unnamed = page.evaluate(
        "[...document.querySelectorAll('img:not([hidden]), svg')].filter(e => !(e.alt || e.ariaLabel)).length"
    )
    assert unnamed == 0
    page.close()


def test_it_fits_a_phone(browser: Any, server: WebServer) -> None:
    page = Visit(browser, server.url, width_px=360).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    save_picture(page, "phone.png")
    page.close()


def test_a_box_that_went_away_is_told(browser: Any) -> None:
    with WebServer(FakeSource(), host="127.0.0.1", port=0) as server:
        page = Visit(browser, server.url).page
    page.wait_for_selector("#lost:not([hidden])", timeout=PATIENCE_MS)
    assert "has not answered since" in page.locator("#lost").inner_text()
    page.close()


def test_names_are_shown_as_text_never_as_markup(browser: Any) -> None:
    class Hostile(FakeSource):
        def status(self) -> Any:
            status = super().status()
            first = status.cameras[0].model_copy(update={"name": "<img src=x onerror=alert(1)>"})
            return status.model_copy(update={"cameras": (first, *status.cameras[1:])})

    with WebServer(Hostile(), host="127.0.0.1", port=0) as server:
        visit = Visit(browser, server.url)
        assert visit.page.locator(".tile h3").first.inner_text() == "<img src=x onerror=alert(1)>"
        assert visit.complaints == []
        visit.page.close()
