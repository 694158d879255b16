"""The Events page in a real browser: found, looked at, played, marked, deleted; keyboard, phone, and what a viewer sees of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.web.fake import FakeSource
from edge.web.serve import WebServer
from edge.web.services import Services
from tests.support.event_library import Shelf, filled, id_of, object_of
from tests.support.learning_pages import as_viewer
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser

CARDS = ".event-grid li"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return filled(tmp_path)


@pytest.fixture
def url(shelf: Shelf) -> Iterator[str]:
    with WebServer(FakeSource(), host="127.0.0.1", port=0, services=Services(events=shelf.library)) as server:
        yield server.url


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Visit]:
    with Visit(browser, url, "#/events", ready=CARDS) as opened:
        yield opened
        opened.is_sound()


def line(visit: Visit, words: str) -> None:
    visit.page.wait_for_selector(f'#events-line:has-text("{words}")')


def test_events_are_found_page_by_page_and_by_what_is_looked_for(visit: Visit) -> None:
    page = visit.page
    line(visit, "24 events, and earlier ones")
    page.wait_for_function("() => [...document.querySelectorAll('.event-grid img')].some((i) => i.naturalWidth === 256)")
    visit.is_accessible()
    visit.save("events.png")
    page.get_by_role("button", name="Show earlier events").click()
    line(visit, "30 events, newest first")
    page.wait_for_function("() => document.activeElement.closest('li') === document.querySelectorAll('.event-grid li')[24]")
    expect(page.locator(CARDS).nth(27)).to_contain_text("no picture", use_inner_text=True)
    page.get_by_label("Class").select_option("car")
    line(visit, "1 event, newest first")
    expect(page.locator(CARDS)).to_contain_text("car · yard", use_inner_text=True)
    expect(page.locator(CARDS)).to_contain_text("in door", use_inner_text=True)
    page.get_by_label("Class").select_option("")
    page.get_by_label("with a clip").check()
    line(visit, "1 event")
    page.get_by_label("Camera").select_option("yard")
    line(visit, "Nothing was found")


def test_from_a_camera_to_its_events_and_back(browser: Any, url: str) -> None:
    with Visit(browser, url, "#/events", ready=CARDS) as visit:
        page = visit.page
        page.get_by_label("with a clip").check()  # what was looked for before does not hide the camera's
        line(visit, "1 event")
        page.evaluate("location.hash = '#/events/camera/yard'")
        line(visit, "1 event, newest first")
        expect(page.get_by_label("Camera")).to_have_value("yard")
        expect(page.get_by_label("with a clip")).not_to_be_checked()
        assert page.evaluate("location.hash") == "#/events"
        page.locator(f"{CARDS} a").click()
        page.get_by_role("link", name="yard", exact=True).click()
        page.wait_for_selector(".one-camera")
        page.go_back()
        page.get_by_role("link", name="Back to the events").click()
        line(visit, "1 event, newest first")
        expect(page.get_by_label("Camera")).to_have_value("yard")
        assert [
            words for words in visit.complaints if "404" not in words
        ] == []  # this box has no part that knows the camera's places


def test_an_event_is_looked_at_and_its_clip_plays_and_can_be_sought_in(visit: Visit, shelf: Shelf) -> None:
    page = visit.page
    page.get_by_label("with a clip").check()
    line(visit, "1 event")
    page.locator(f"{CARDS} a").press("Enter")
    page.wait_for_selector(".one-event video")
    page.wait_for_function("() => document.querySelector('video')?.readyState >= 1")
    assert abs(page.evaluate("document.querySelector('video').duration") - 8.0) < 0.3
    page.evaluate("document.querySelector('video').currentTime = 6")
    page.wait_for_function(
        "() => !document.querySelector('video').seeking && document.querySelector('video').currentTime >= 5.9"
    )
    page.wait_for_function("() => document.querySelector('.one-event img')?.naturalWidth === 320")
    for fact in ("0.87", "gate-2"):
        expect(page.locator("dl")).to_contain_text(fact, use_inner_text=True)
    expect(page.locator("figcaption").first).to_contain_text("as the camera sent it", use_inner_text=True)
    visit.is_accessible()
    visit.save("event.png")
    with page.expect_download() as kept:
        page.get_by_role("link", name="Save the clip").click()
    assert kept.value.suggested_filename.startswith("gate-")
    page.get_by_role("link", name="Back to the events").click()
    line(visit, "1 event")  # what was looked for is still looked for


def test_an_event_is_kept_and_deleted(visit: Visit, shelf: Shelf) -> None:
    page = visit.page
    page.evaluate(f"location.hash = '#/events/{id_of(1)}'")
    page.get_by_role("button", name="Keep as a favourite").click()
    page.wait_for_selector("button[aria-pressed=true]")
    assert shelf.library.get(id_of(1)).favourite
    page.get_by_role("button", name="Delete …").click()
    page.get_by_role("button", name="Keep it").click()
    assert shelf.library.get(id_of(1)).favourite
    page.get_by_role("button", name="Delete …").click()
    visit.is_accessible()
    page.get_by_role("button", name="Delete it").click()
    line(visit, "24 events")
    assert id_of(1) not in {stored.event.id for stored in shelf.library.search(_all()).objects}
    assert not list(shelf.library.folder.root.glob("*/*/*.mp4"))


def _all() -> Any:
    from edge.store.objects import ObjectQuery

    return ObjectQuery(limit=200)


def test_what_is_new_is_offered_and_not_pushed_in(visit: Visit, shelf: Shelf) -> None:
    page = visit.page
    line(visit, "24 events")
    first = page.locator(CARDS).first.inner_text()
    shelf.add(object_of(90, class_name="bus"))
    newer = page.get_by_role("button", name="There is something newer")
    newer.wait_for()
    assert page.locator(CARDS).first.inner_text() == first
    newer.click()
    page.wait_for_function("() => document.querySelector('.event-grid li')?.innerText?.includes('bus')")


def test_what_is_still_there_cannot_be_deleted_and_what_is_gone_is_said(visit: Visit) -> None:
    page = visit.page
    page.evaluate(f"location.hash = '#/events/{id_of(29)}'")
    page.wait_for_selector(".one-event")
    expect(page.locator(".one-event")).to_contain_text("still there", use_inner_text=True)
    expect(page.get_by_role("button", name="Delete …")).to_be_disabled()
    expect(page.locator(".one-event")).to_contain_text("A clip is written when it is gone", use_inner_text=True)


def test_a_viewer_looks_and_a_phone_is_wide_enough(browser: Any, url: str) -> None:
    with Visit(browser, url, f"#/events/{id_of(1)}", ready=".one-event", width_px=360) as visit:
        page = as_viewer(visit)
        page.wait_for_selector(".one-event video")
        expect(page.get_by_role("button", name="Delete …")).to_have_count(0)
        expect(page.locator(".one-event")).to_contain_text("role operator", use_inner_text=True)
        visit.fits()
        page.evaluate("location.hash = '#/events'")
        page.wait_for_selector(CARDS)
        visit.fits()
        visit.is_accessible()
        visit.save("events-phone.png")


def test_an_event_that_is_not_there_any_more_is_said(browser: Any, url: str) -> None:
    with Visit(browser, url, f"#/events/{id_of(777)}", ready="#page .hint") as visit:
        expect(visit.page.locator("#page")).to_contain_text("there is no event", use_inner_text=True)
        assert all("404" in complaint for complaint in visit.complaints)
