"""Adding a camera in a real browser: with the mouse, with the keyboard alone, on a phone; what is wrong is said in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edge.cameras.onvif_view import OnvifCamera, OnvifProbe, OnvifProfile
from edge.cameras.probe import ProbeResult
from edge.web.fake import FakeSource
from edge.web.serve import WebServer
from tests.support.camera_routes import CameraRoutes
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer(FakeSource(), host="127.0.0.1", port=0) as running:
        yield running


@pytest.fixture
def routes() -> CameraRoutes:
    return CameraRoutes()


def wizard(browser: Any, server: WebServer, routes: CameraRoutes, **more: Any) -> Visit:
    visit = Visit(browser, server.url, "#/live", ready=".tile", before=routes.install, **more)
    visit.page.evaluate("location.hash = '#/setup'")
    visit.page.wait_for_selector("text=Step 1 of 5")
    return visit


def press_next(page: Any, words: str) -> None:
    page.get_by_role("button", name="Next").click()
    page.wait_for_selector(f"text={words}")


def has_corners(page: Any, count: int, *names: str) -> None:
    """So many corners can be taken hold of; names: of the first ones."""
    corners = page.locator(".place-editor circle")
    expect(corners).to_have_count(count)
    for number, name in enumerate(names):
        expect(corners.nth(number)).to_have_attribute("aria-label", name)


def test_a_camera_is_added_with_zones_and_a_mask(browser: Any, server: WebServer, routes: CameraRoutes) -> None:
    with wizard(browser, server, routes) as visit:
        page = visit.page
        visit.is_accessible()
        page.get_by_label("Address", exact=True).fill("rtsp://192.0.2.10/s1")
        page.get_by_label("User", exact=True).fill("admin")
        page.get_by_label("Password", exact=True).fill("p/w@1")
        page.get_by_role("button", name="Try it").click()
        page.wait_for_selector("text=It works: 640×360 px, 15.0 frames/s")
        assert routes.probed == [{"url": "rtsp://192.0.2.10/s1", "user": "admin", "password": "p/w@1"}]
        visit.save("setup-1.png")
        press_next(page, "Step 2 of 5")
        page.get_by_label("Name", exact=True).fill("Hof, Nord")
        expect(page.get_by_label("Id", exact=True)).to_have_value("hof-nord")
        page.get_by_label("person").check()
        visit.is_accessible()
        press_next(page, "Step 3 of 5")
        page.get_by_role("button", name="Add a zone").click()
        page.keyboard.type("door")
        page.wait_for_function("() => document.querySelector('.place-editor img')?.naturalWidth === 640")
        drag_first_corner(page)
        page.get_by_role("button", name="Add a privacy mask").click()
        visit.is_accessible()
        visit.save("setup-3.png")
        press_next(page, "Step 4 of 5")
        page.get_by_label("Times of watching").fill("mon-fri 07:00-19:00\n")
        page.get_by_label("Days they are kept").fill("7")
        visit.is_accessible()
        press_next(page, "Step 5 of 5")
        expect(page.locator(".summary")).to_contain_text("1 zone, 0 lines, 1 privacy mask", use_inner_text=True)
        expect(page.locator(".summary")).to_contain_text("7 days", use_inner_text=True)
        assert "p/w" not in page.content()
        visit.is_accessible()
        page.get_by_role("button", name="Add this camera").click()
        page.wait_for_selector(".tile")
        expect(page.locator("#announcement")).to_contain_text("Hof, Nord was added", use_inner_text=True)
        (added,) = routes.added
        assert (added["id"], added["name"], added["classes"]) == ("hof-nord", "Hof, Nord", ["person"])
        assert (added["url"], added["credentials"]) == ("rtsp://192.0.2.10/s1", {"user": "admin", "password": "p/w@1"})
        assert added["schedule"]["watch"] == ["mon-fri 07:00-19:00"]
        assert added["recording"]["keep_days"] == 7
        assert list(added["zones"]) == ["door"]
        x, y = added["zones"]["door"][0]
        assert abs(x - 0.1) < 0.02
        assert abs(y - 0.15) < 0.02
        assert added["zones"]["door"][2] == [0.75, 0.75]
        assert len(added["masks"]) == 1
        visit.is_sound()


def drag_first_corner(page: Any) -> None:
    """From where it is to 10 % right, 15 % down."""
    box = page.locator(".place-editor svg.places").bounding_box()
    page.locator(".place-editor circle").first.scroll_into_view_if_needed()
    box = page.locator(".place-editor svg.places").bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.25 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.15 * box["height"])
    page.mouse.up()


def test_the_keyboard_alone_is_enough(browser: Any, server: WebServer, routes: CameraRoutes) -> None:
    with wizard(browser, server, routes) as visit:
        page = visit.page
        tab_to(page, "Address")
        page.keyboard.type("rendered:street")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=It works")
        tab_to(page, "Next")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Step 2 of 5")
        expect(page.locator("h2:focus")).to_have_count(1)  # the new step's heading is told
        tab_to(page, "Name")
        page.keyboard.type("Street")
        tab_to(page, "Next")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Step 3 of 5")
        tab_to(page, "Add a zone")
        page.keyboard.press("Enter")
        page.keyboard.type("pavement")
        tab_to(page, "zone pavement, corner 1 of 4: 25 % right, 25 % down", back=True)
        for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowUp"):
            page.keyboard.press(key)
        has_corners(page, 4, "zone pavement, corner 1 of 4: 24 % right, 19 % down")
        page.keyboard.press("Delete")
        has_corners(page, 3)
        tab_to(page, "Undo", back=True)
        page.keyboard.press("Enter")
        has_corners(page, 4)
        for step in (4, 5):
            tab_to(page, "Next")
            page.keyboard.press("Enter")
            page.wait_for_selector(f"text=Step {step} of 5")
        tab_to(page, "Add this camera")
        page.keyboard.press("Enter")
        page.wait_for_selector(".tile")
        assert routes.added[0]["zones"]["pavement"][0] == [0.24, 0.19]
        visit.is_sound()


def tab_to(page: Any, name: str, *, back: bool = False) -> None:
    """Presses Tab until the element of this name has the focus."""
    here = "() => { const e = document.activeElement; return e.ariaLabel || e.labels?.[0]?.textContent || e.textContent; }"
    for _ in range(80):
        if page.evaluate(here) == name:
            return
        page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"Tab never came to {name}, last: {page.evaluate(here)[:80]}")


def test_corners_can_be_typed_as_numbers_and_every_step_undone(browser: Any, server: WebServer, routes: CameraRoutes) -> None:
    with wizard(browser, server, routes) as visit:
        page = visit.page
        page.get_by_label("Address", exact=True).fill("rendered:street")
        press_next(page, "Step 2 of 5")
        page.get_by_label("Name", exact=True).fill("a")
        press_next(page, "Step 3 of 5")
        page.get_by_role("button", name="Add a line").click()
        page.get_by_label("corner 1, left").fill("12.5")
        page.get_by_label("corner 2, top").fill("80")
        page.get_by_label("corner 2, top").fill("8000")
        has_corners(
            page, 2, "line line1, corner 1 of 2: 13 % right, 50 % down", "line line1, corner 2 of 2: 70 % right, 80 % down"
        )
        for _ in range(3):
            page.get_by_role("button", name="Undo").click()
        has_corners(page, 0)
        expect(page.get_by_role("button", name="Undo")).to_be_disabled()
        page.get_by_role("button", name="Redo").click()
        has_corners(page, 2)
        page.get_by_label("Name", exact=True).fill("No Such Name")
        page.get_by_role("button", name="Next").click()
        expect(page.locator("[role=alert].error")).to_contain_text("cannot be a line's name", use_inner_text=True)


WRONG = {
    "auth": "refused the user or the password", "timeout": "Nothing answered in time", "not_found": "no video under this path",
    "codec": "no video that can be decoded", "network": "refused or broken",
}  # fmt: skip


def test_what_is_wrong_with_a_camera_is_said_in_words(browser: Any, server: WebServer, routes: CameraRoutes) -> None:
    with wizard(browser, server, routes) as visit:
        visit.page.get_by_label("Address", exact=True).fill("rtsp://192.0.2.10/s1")
        for code, words in WRONG.items():
            routes.probe = ProbeResult(ok=False, state="waiting", code=code, error="401 Unauthorized <b>x</b>")
            visit.page.get_by_role("button", name="Try it").click()
            visit.page.wait_for_selector(f"text={words}")
            expect(visit.page.locator(".tried")).to_contain_text("401 Unauthorized <b>x</b>", use_inner_text=True)


def test_cameras_of_the_network_are_asked_for_their_streams(browser: Any, server: WebServer, routes: CameraRoutes) -> None:
    routes.found = (OnvifCamera(address="192.0.2.77:80", name="<i>Cam</i> 7", hardware="IPC-1"),)
    streams = [("main", 1080), ("sub", 360)]
    profiles = tuple(
        OnvifProfile(token=name, name=name, height_px=px, width_px=px * 16 // 9, url=f"rtsp://192.0.2.77/{name}")
        for name, px in streams
    )
    with wizard(browser, server, routes) as visit:
        page = visit.page
        page.get_by_label("User", exact=True).fill("admin")
        page.get_by_role("button", name="Search the network").click()
        page.get_by_role("button", name="Use <i>Cam</i> 7").click()
        page.wait_for_selector("text=Nothing answered in time")
        routes.onvif = OnvifProbe(ok=True, manufacturer="Acme", profiles=profiles, analyse="sub", record="main", notes=("odd",))
        page.get_by_role("button", name="Use <i>Cam</i> 7").click()
        page.wait_for_selector("text=Acme offers 2 streams.")
        visit.is_accessible()
        page.get_by_role("button", name="Use these streams").click()
        page.wait_for_selector("text=It works")
        expect(page.get_by_label("Address", exact=True)).to_have_value("rtsp://192.0.2.77/sub")
        expect(page.get_by_label("Main stream", exact=True)).to_have_value("rtsp://192.0.2.77/main")
        assert routes.probed[0] == {"onvif": "192.0.2.77:80", "user": "admin", "password": ""}
        routes.found = ()
        page.get_by_role("button", name="Search the network").click()
        page.wait_for_selector("text=No camera answered")
        visit.is_sound()


def test_what_the_box_refuses_is_told_and_nothing_is_lost(browser: Any, server: WebServer, routes: CameraRoutes) -> None:
    with wizard(browser, server, routes) as visit:
        page = visit.page
        page.get_by_role("button", name="Next").click()
        expect(page.locator("[role=alert].error")).to_contain_text("Give the camera's address", use_inner_text=True)
        page.get_by_label("Address", exact=True).fill("rendered:street")
        press_next(page, "Step 2 of 5")
        page.get_by_label("Name", exact=True).fill("Gate")
        for step in (3, 4, 5):
            press_next(page, f"Step {step} of 5")
        routes.refusal = (409, {"detail": "there is a camera gate already"})
        page.get_by_role("button", name="Add this camera").click()
        page.wait_for_selector("text=there is a camera gate already")
        routes.refusal = (422, {"detail": "it cannot be", "problems": [{"field": "fps", "text": "is too much"}]})
        page.get_by_role("button", name="Add this camera").click()
        page.wait_for_selector("text=it cannot be: fps: is too much")
        for step in (4, 3, 2):
            page.get_by_role("button", name="Back").click()
            page.wait_for_selector(f"text=Step {step} of 5")
        expect(page.get_by_label("Name", exact=True)).to_have_value("Gate")


def test_it_fits_a_phone(browser: Any, server: WebServer, routes: CameraRoutes) -> None:
    with wizard(browser, server, routes, width_px=360, has_touch=True) as visit:
        page = visit.page
        page.get_by_label("Address", exact=True).fill(
            "rtsp://192.0.2.10/a-rather-long-path-of-a-stream/with?channel=1&subtype=0"
        )
        page.get_by_role("button", name="Try it").click()
        page.wait_for_selector("text=It works")
        visit.fits()
        press_next(page, "Step 2 of 5")
        page.get_by_label("Name", exact=True).fill("a")
        visit.fits()
        press_next(page, "Step 3 of 5")
        page.get_by_role("button", name="Add a zone").click()
        page.locator(".place-editor circle").first.wait_for()
        assert page.locator(".place-editor circle").first.bounding_box()["width"] >= 20, "large enough for a finger"
        visit.fits()
        visit.save("phone-setup.png")
        for step in (4, 5):
            press_next(page, f"Step {step} of 5")
            visit.fits()
