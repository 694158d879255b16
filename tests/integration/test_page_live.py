"""The shell, the Live and the Overview page in a real browser: tiles, pictures, numbers, keyboard, a phone, a box that goes away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edge.web.fake import FakeSource
from edge.web.serve import WebServer
from tests.support.camera_routes import CameraRoutes, camera
from tests.support.visits import PATIENCE_MS, Visit, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer(FakeSource(), host="127.0.0.1", port=0) as running:
        yield running


def wait_for_picture(page: Any, *, width_px: int) -> None:
    page.wait_for_function("wide => document.querySelector('[data-camera=gate] img')?.naturalWidth === wide", arg=width_px)


def test_the_grid_shows_the_box(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, ready=".tile") as visit:
        page = visit.page
        expect(page.locator(".tile")).to_have_count(4)
        gate = page.locator('[data-camera="gate"]')
        wait_for_picture(page, width_px=320)
        expect(gate.locator(".state")).to_have_text("live", use_inner_text=True)
        expect(gate.locator("img")).to_be_visible()
        expect(gate.locator("svg circle")).to_have_count(8)
        expect(gate.locator("dl")).to_contain_text("quality (F1)", use_inner_text=True)
        expect(gate.locator("dl")).to_contain_text("entrance: door in", use_inner_text=True)
        expect(gate.locator("dl")).to_contain_text("plates: resting (read: MemoryError: no room)", use_inner_text=True)
        yard = page.locator('[data-camera="yard"]').locator("dl")
        for fact in ("quality (accuracy)", "classification"):
            expect(yard).to_contain_text(fact, use_inner_text=True)
        expect(yard).not_to_contain_text("queries", use_inner_text=True)
        expect(page.locator("#summary")).to_contain_text("(F1 and accuracy, 0 to 1)", use_inner_text=True)
        expect(page.locator("#summary")).to_contain_text("2 of 4 cameras live", use_inner_text=True)
        dock = page.locator('[data-camera="dock"]')
        expect(dock.locator(".error")).to_contain_text("timeout: no frames for 6 s", use_inner_text=True)
        expect(dock.locator(".nothing")).to_be_visible()
        expect(page.locator("#nav [aria-current]")).to_have_text("Live", use_inner_text=True)
        expect(page).to_have_title("Live – demo · home – Driftbox")
        visit.is_accessible()
        visit.save("live.png")
        visit.is_sound()


def test_pictures_are_renewed(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, ready=".tile") as visit:
        page = visit.page
        wait_for_picture(page, width_px=320)
        first = page.locator('[data-camera="gate"] img').get_attribute("src")
        page.wait_for_function(
            "before => (document.querySelector('[data-camera=gate] img')?.getAttribute('src') ?? before) !== before", arg=first
        )


def test_one_camera_large_with_its_places(browser: Any, server: WebServer) -> None:
    zone, mask = [(0.1, 0.5), (0.9, 0.5), (0.9, 0.9)], [(0.0, 0.0), (0.2, 0.0), (0.2, 0.2)]
    line = {"door": [(0.1, 0.1), (0.9, 0.1)]}
    routes = CameraRoutes(camera("gate", zones={"path": zone}, masks=[mask], objects={"lines": line}))

    def only_the_camera(page: Any) -> None:
        page.route("**/api/v1/cameras/gate", routes._answer)

    with Visit(browser, server.url, "#/live/gate", ready=".one-camera .zone", before=only_the_camera) as visit:
        page = visit.page
        page.wait_for_function("() => document.querySelector('.one-camera img')?.naturalWidth === 640")
        expect(page.locator(".places .zone, .places .mask, .places .crossing")).to_have_count(3)
        expect(page.locator(".places")).to_have_text("pathdoor")
        visit.is_accessible()
        visit.save("one-camera.png")
        page.get_by_label("zones, lines and masks").uncheck()
        expect(page.locator(".places *")).to_have_count(0)
        page.get_by_label("boxes").uncheck()
        page.wait_for_function("() => document.querySelector('.one-camera img')?.src?.includes('boxes=false')")
        for fact in ("entrance", "Reconnected"):
            expect(page.locator(".one-camera")).to_contain_text(fact, use_inner_text=True)
        page.route("**/api/v1/commands/camera/restart", routes._command)
        page.get_by_role("button", name="Open it anew").click()
        page.wait_for_selector("#announcement:has-text('gate is opened anew')")
        assert routes.commands == [("camera/restart", {"camera": "gate"})]
        expect(page.get_by_role("link", name="Its events")).to_have_attribute("href", "#/events/camera/gate")
        page.get_by_role("link", name="All cameras").click()
        page.wait_for_selector(".tile")
        visit.is_sound()


class Moving(FakeSource):
    """dock: its state and how long it has been in it; the others are as they are."""

    dock = ("stalled", 6.0)

    def status(self) -> Any:
        status = super().status()
        state, since_s = self.dock
        cameras = (c.model_copy(update={"state": state, "since_s": since_s} if c.id == "dock" else {}) for c in status.cameras)
        return status.model_copy(update={"cameras": tuple(cameras)})


def test_cameras_in_trouble_stand_first_and_nothing_jumps(browser: Any) -> None:
    source = Moving()
    with WebServer(source, host="127.0.0.1", port=0) as server, Visit(browser, server.url, ready=".tile") as visit:
        page = visit.page

        def order(*ids: str) -> None:
            page.wait_for_function(
                "ids => [...document.querySelectorAll('.tile')].map((t) => t.dataset.camera).join() === ids", arg=",".join(ids)
            )

        order("dock", "hall", "gate", "yard")
        link = page.locator("[data-camera=dock] h2 a")
        link.focus()
        source.dock = ("live", 1.0)
        expect(page.locator("[data-camera=dock] .state")).to_have_text("live")
        order("dock", "hall", "gate", "yard")  # it came back a second ago
        source.dock = ("live", 25.0)
        order("hall", "gate", "yard", "dock")
        expect(link).to_be_focused()
        source.dock = ("quarantined", 0.0)
        order("dock", "hall", "gate", "yard")
        expect(link).to_be_focused()
        visit.is_accessible()
        visit.is_sound()


def test_what_is_wrong_with_the_box_stands_on_every_page(browser: Any) -> None:
    source = FakeSource()
    source.degraded = ("gate is in quarantine", "the outbox grows")
    with WebServer(source, host="127.0.0.1", port=0) as server, Visit(browser, server.url, "#/live", ready=".tile") as visit:
        page = visit.page
        expect(page.get_by_role("status").get_by_role("link", name="degraded: 2 reasons, see Health")).to_be_visible()
        visit.is_accessible()
        page.get_by_role("link", name="degraded: 2 reasons, see Health").click()
        page.wait_for_selector("h1:has-text('Health')")
        source.degraded = ()
        expect(page.locator("#trouble a")).to_have_count(0)


def test_zones_are_outlined_in_the_grid(browser: Any) -> None:
    class Zoned(FakeSource):
        def status(self) -> Any:
            status = super().status()
            first = status.cameras[0].model_copy(update={"zones": {"path": {"person": 1}}})
            return status.model_copy(update={"cameras": (first, *status.cameras[1:])})

    routes = CameraRoutes(camera("gate", zones={"path": [(0.1, 0.5), (0.9, 0.5), (0.9, 0.9)]}))

    def only_the_list(page: Any) -> None:
        page.route("**/api/v1/cameras", routes._answer)

    with (
        WebServer(Zoned(), host="127.0.0.1", port=0) as server,
        Visit(browser, server.url, ready=".tile .zone", before=only_the_list) as visit,
    ):
        expect(visit.page.locator(".tile .zone")).to_have_count(1)
        visit.is_sound()


def test_a_camera_that_is_not_there_is_said(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, "#/live/nobody", ready="text=There is no camera of this id") as visit:
        expect(visit.page.locator(".one-camera")).to_be_hidden()


SHAPES = """async () => {
  const s = await import("/static/places/shapes.js");
  const places = { zones: { door: [[0, 0], [1, 0], [1, 1]] }, masks: [[[0.1, 0.1], [0.2, 0.1], [0.2, 0.2]]],
    lines: { in: [[0, 0.5], [1, 0.5]] } };
  let shapes = s.shapesOf(places);
  const same = JSON.stringify(s.placesOf(shapes)) === JSON.stringify({ zones: places.zones, lines: places.lines, masks: places.masks });
  const added = s.added(s.added(shapes, "zone"), "zone").map((one) => one.name);
  const nearest = s.cornerAt(shapes, 0, 0.9, 0.4)[0].points;
  const outside = s.moved(shapes, 0, 0, -3, 7)[0].points[0];
  const least = [s.cornerRemoved(shapes, 0, 0) === shapes, s.cornerRemoved(shapes, 1, 0) === shapes,
    s.cornerAfter(shapes, 1, 0) === shapes];
  const twice = s.problemOf(s.renamed(s.added(shapes, "zone"), 3, "door"));
  const bad = s.problemOf(s.renamed(shapes, 0, "Tür <1>"));
  const history = new s.History(0);
  history.change(1); history.change(2, "drag"); history.change(3, "drag"); history.undo();
  const undone = history.value;
  history.undo(); history.undo(); history.redo();
  return { same, added, nearest, outside, least, twice, bad, fine: s.problemOf(shapes), undone, redone: history.value };
}"""


def test_shapes_can_be_changed_and_every_change_taken_back(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, ready=".tile") as visit:
        found = visit.page.evaluate(SHAPES)
    assert found["same"] is True
    assert found["added"][-2:] == ["zone1", "zone2"]
    assert found["nearest"] == [[0, 0], [1, 0], [0.9, 0.4], [1, 1]], "in the side that is nearest"
    assert found["outside"] == [0, 1], "a corner stays on the picture"
    assert found["least"] == [True, True, True]
    assert (found["twice"], found["fine"]) == ('two zones are called "door"', "")
    assert "cannot be a zone's name" in found["bad"]
    assert (found["undone"], found["redone"]) == (1, 1), "a corner that is dragged is one step"


CHART = """async () => {
  const { lineChart, scatter } = await import("/static/charts.js");
  const drawn = lineChart({ title: "Quality", unit: "F1", min: 0, max: 1, series: [
    { name: "a", points: [[0, 0.5], [10, null], [20, 1]], band: [[0, 0.4, 0.6], [20, 0.9, 1]] }, { name: "<b>", points: [] }] });
  const empty = lineChart({ title: "Nothing", series: [{ name: "a", points: [] }] });
  const one = lineChart({ title: "One", series: [{ name: "a", points: [[5, 3]] }] });
  const points = scatter({ title: "Knobs", x: { name: "demand", unit: "%" }, y: { name: "quality" },
    groups: [{ name: "g", points: [[1, 2, "full"]] }] });
  document.body.append(drawn);
  drawn.querySelector("details").open = true;
  await new Promise((done) => setTimeout(done, 50));
  const paths = (figure) => [...figure.querySelectorAll(".plot path")].map((path) => path.getAttribute("d"));
  const words = (figure) => figure.querySelector("svg").getAttribute("aria-label");
  return { lines: paths(drawn), words: words(drawn), rows: [...drawn.querySelectorAll("tbody tr")].length,
    legend: drawn.querySelector(".legend").textContent,
    empty: [paths(empty), words(empty)], one: one.querySelector("circle").getAttribute("cx"), points: words(points),
    broken: /NaN|undefined|Infinity/.test(drawn.outerHTML + empty.outerHTML + one.outerHTML + points.outerHTML) };
}"""


def test_charts_say_what_they_show(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, ready=".tile") as visit:
        found = visit.page.evaluate(CHART)
        visit.is_sound()
    assert found["lines"][1].count("M") == 2, "a gap is no line"
    assert found["lines"][0].endswith("Z"), "the band"
    assert found["words"] == "Quality. a: from 0.50 to 1.00 F1, 2 points; <b>: nothing measured yet."
    assert (found["rows"], found["legend"]) == (3, "a<b>")
    assert found["empty"] == [[""], "Nothing. a: nothing measured yet."]
    assert found["one"] == "216.0", "one point stands in the middle"
    assert "1 points" in found["points"]
    assert found["broken"] is False


def test_the_overview_shows_window_plan_and_outcomes(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, "#/overview", ready="#shares .bar-row") as visit:
        page = visit.page
        expect(page.locator("#window-line")).to_contain_text("window 3 · planned", use_inner_text=True)
        expect(page.locator("#shares .bar-row").first).to_contain_text("promised 35 % · received 34 %", use_inner_text=True)
        expect(page.locator("#shares .bar-row").first).to_contain_text(
            "memory 12 + 80 MiB, lane 0 of 80 MiB", use_inner_text=True
        )
        expect(page.locator("#devices")).to_contain_text("held back: power limit", use_inner_text=True)
        expect(page.locator("#faults")).to_contain_text("was removed", use_inner_text=True)
        expect(page.locator("#plan tbody tr")).to_have_count(2)
        expect(page.locator("#plan")).to_contain_text("below the floor", use_inner_text=True)
        expect(page.locator("#outcomes summary").first).to_contain_text(
            "predicted 0.60, realised 0.61; 1 retrained, 1 admitted", use_inner_text=True
        )
        expect(page.get_by_role("link", name="GPU", exact=True)).to_have_count(2)  # in the navigation, and where there is more
        expect(page.locator("#notes")).to_contain_text("too slow", use_inner_text=True)
        visit.is_accessible()
        visit.save("overview.png")
        visit.is_sound()


def test_it_works_with_the_keyboard_and_open_details_stay_open(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, "#/overview", ready="#outcomes summary") as visit:
        page = visit.page
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        assert page.evaluate("location.hash") == "#/overview"
        page.locator("#outcomes summary").first.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#outcomes details").first).to_have_js_property("open", True)
        seen = page.locator("#window-line").inner_text()
        page.wait_for_function("before => (document.getElementById('window-line')?.textContent ?? before) !== before", arg=seen)
        expect(page.locator("#outcomes details").first).to_have_js_property("open", True)
        expect(page.locator("#outcomes summary").first).to_be_focused()


def test_pages_are_changed_with_the_keyboard_and_the_heading_is_told(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, ready=".tile") as visit:
        page = visit.page
        page.locator("#nav a", has_text="Overview").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#window-line")
        expect(page.locator("#page-title")).to_be_focused()
        expect(page.locator("#page-title")).to_have_text("Overview", use_inner_text=True)
        expect(page.locator("#nav [aria-current]")).to_have_text("Overview", use_inner_text=True)
        page.go_back()
        page.wait_for_selector(".tile")
        expect(page.locator("#window-line")).to_have_count(0)


def test_an_address_that_is_no_page_says_so(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, "#/nowhere/%E0%A4%A", ready="#page > *") as visit:
        assert visit.page.locator(".tile").count() >= 0  # a broken address is the home page's
    with Visit(browser, server.url, "#/nowhere", ready="#page > *") as visit:
        expect(visit.page.locator("#page")).to_contain_text("not there", use_inner_text=True)
        visit.is_sound()


@pytest.mark.parametrize("hash", ["#/live", "#/overview"])
def test_it_fits_a_phone(browser: Any, server: WebServer, hash: str) -> None:
    with Visit(browser, server.url, hash, width_px=360) as visit:
        visit.page.wait_for_function("() => document.getElementById('summary')?.textContent?.includes('live')")
        visit.fits()
        visit.is_accessible()
        visit.save(f"phone-{hash[2:]}.png")


def test_dark_is_as_readable(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, "#/overview", ready="#shares .bar-row", color_scheme="dark") as visit:
        visit.is_accessible()


def test_a_box_that_went_away_is_told(browser: Any) -> None:
    with WebServer(FakeSource(), host="127.0.0.1", port=0) as server:
        visit = Visit(browser, server.url, ready=".tile")
    visit.page.wait_for_selector("#lost:not([hidden])", timeout=PATIENCE_MS)
    expect(visit.page.locator("#lost")).to_contain_text("has not answered since", use_inner_text=True)
    visit.page.close()


def test_names_are_shown_as_text_never_as_markup(browser: Any) -> None:
    class Hostile(FakeSource):
        def status(self) -> Any:
            status = super().status()
            first = status.cameras[0].model_copy(update={"name": "<img src=x onerror=alert(1)>"})
            return status.model_copy(update={"cameras": (first, *status.cameras[1:])})

    with WebServer(Hostile(), host="127.0.0.1", port=0) as server, Visit(browser, server.url, ready=".tile") as visit:
        expect(visit.page.locator("[data-camera=gate] h2")).to_have_text("<img src=x onerror=alert(1)>", use_inner_text=True)
        visit.is_sound()


def test_every_page_stands_also_where_its_part_is_missing(browser: Any, server: WebServer) -> None:
    """A box without labels, events, accounts: each page says something, fits a phone, and nothing in it breaks."""
    with Visit(browser, server.url, ready=".tile", width_px=360) as visit:
        page = visit.page
        for link in page.locator("#nav a").all():
            name = link.inner_text()
            page.evaluate("hash => { location.hash = hash; }", link.get_attribute("href"))
            page.wait_for_function("name => document.querySelector('#page-title')?.textContent === name", arg=name)
            page.wait_for_function("() => document.querySelector('#page')?.textContent.trim().length > 8")
            current = page.locator("#nav [aria-current]").bounding_box()
            assert 0 <= current["x"] <= 360 - current["width"], f"{name} cannot be seen in the navigation"
            visit.fits()
            visit.is_accessible()
        broken = [words for words in visit.complaints if "Failed to load resource" not in words]
        assert broken == []
        assert page.evaluate("window.violations") == []
