"""The fleet view in a real browser over a fake controller: every page sound, accessible, fit for a phone; live; actions; roles.

Pictures of an invented fleet (those of docs/ are of `make fleet-demo`):
    DRIFTBOX_SCREENSHOTS=DIR pytest -n 0 tests/integration/test_fleet_page.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.types import FleetState
from cluster.web.fake import FakeServices
from scheduler.fleet.types import CameraKey
from tests.support.accounts import HOSTS, PASSWORD, House
from tests.support.fleet_pages import as_role, served, visit
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser

PAGES = {
    "boxes": "#/boxes", "box": "#/box/depot-1", "customers": "#/customers", "customer": "#/customers/port", "cameras": "#/cameras",
    "models": "#/models", "history": "#/history", "invite": "#/settings/invite", "sites": "#/settings/sites",
    "members": "#/settings/members",
}  # fmt: skip
#: What must stand on each page before it is looked at.
READY = {
    "boxes": ".map circle", "box": "td:has-text('depot-1/cam-1')", "customers": ".goal", "customer": ".plot",
    "cameras": "td:has-text('depot-2/cam-2')", "models": ".way", "history": "h2:has-text('Rounds')", "invite": "table", "sites": "table",
    "members": "table",
}  # fmt: skip


@pytest.fixture
def services() -> FakeServices:
    return FakeServices()


@pytest.fixture
def url(services: FakeServices) -> Iterator[str]:
    with served(services) as address:
        yield address


def picture(opened: Visit, name: str) -> None:
    folder = os.environ.get("DRIFTBOX_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        opened.page.screenshot(path=Path(folder) / f"{name}.png", animations="disabled")


def test_every_page_is_sound_accessible_and_fits_a_phone(browser: Any, url: str) -> None:
    with visit(browser, url, PAGES["boxes"]) as opened:
        for name, hash in PAGES.items():
            opened.page.evaluate("hash => { location.hash = hash; }", hash)
            opened.page.wait_for_selector(READY[name])
            for width_px in (1200, 360):
                opened.page.set_viewport_size({"width": width_px, "height": 900})
                opened.fits()
                if width_px == 1200:
                    picture(opened, name)
                    opened.is_accessible()
        opened.is_sound()
    if os.environ.get("DRIFTBOX_SCREENSHOTS"):
        with visit(browser, url, PAGES["boxes"], width_px=390) as phone:
            picture(phone, "phone")


def test_what_changes_is_seen_within_a_second_or_so(browser: Any, services: FakeServices, url: str) -> None:
    with visit(browser, url, "#/boxes") as opened:
        row = opened.page.locator("tr", has=opened.page.get_by_role("link", name="stadium-1", exact=True))
        expect(row).to_contain_text("well")
        report = services.state().boxes["stadium-1"].report
        assert report is not None
        services.hear(replace(report, sequence=2, alarms=("<b>camera</b> 3 is covered",)))
        expect(row).to_contain_text("<b>camera</b> 3 is covered")
        expect(opened.page.locator(".trouble")).to_contain_text("<b>camera</b> 3 is covered")
        opened.is_sound()


def test_the_map_leads_to_a_site_and_needs_no_mouse(browser: Any, url: str) -> None:
    with visit(browser, url, "#/boxes") as opened:
        opened.page.wait_for_selector(".map a")
        opened.page.locator(".map a", has_text="Harbour").focus()
        opened.page.keyboard.press("Enter")
        expect(opened.page.locator("h2#h-list")).to_have_text("Boxes at harbour")
        expect(opened.page.locator("section:has(h2#h-list) tbody tr")).to_have_count(4)
        opened.is_sound()


def test_without_places_there_is_a_list_and_no_map(browser: Any) -> None:
    services = FakeServices()
    services._known = replace(services._known, state=replace(services.state(), sites={}))
    with served(services) as url, visit(browser, url, "#/boxes") as opened:
        expect(opened.page.locator("section:has(h2#h-map) tbody tr")).to_have_count(5)
        expect(opened.page.locator(".map")).to_have_count(0)
        opened.is_sound()


def test_an_empty_fleet_says_what_to_do(browser: Any) -> None:
    with served(FakeServices(FleetState())) as url, visit(browser, url, "#/boxes") as opened:
        expect(opened.page.locator("#page")).to_contain_text("No box has joined yet")
        for hash, words in (
            ("#/customers", "no customer yet"),
            ("#/models", "No box has told of a model"),
            ("#/cameras", "None."),
        ):
            opened.page.evaluate("hash => { location.hash = hash; }", hash)
            expect(opened.page.locator("#page")).to_contain_text(words)
        opened.is_sound()


def test_a_box_is_emptied_and_used_again(browser: Any, services: FakeServices, url: str) -> None:
    with visit(browser, url, "#/box/depot-1") as opened:
        page = opened.page
        page.get_by_role("button", name="Empty it").click()
        page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
        assert not services.state().boxes["depot-1"].draining, "only when one is sure"
        page.get_by_role("button", name="Empty it").click()
        page.get_by_role("dialog").get_by_role("button", name="Empty it").click()
        page.get_by_role("button", name="Use it again").click()
        page.get_by_role("button", name="Empty it").wait_for()
        assert not services.state().boxes["depot-1"].draining
        assert [row.action for row in services.history.told] == ["drain", "drain.end"]
        opened.is_sound()


def test_a_camera_is_pinned_and_let_go(browser: Any, services: FakeServices, url: str) -> None:
    key = CameraKey(home="depot-1", camera="cam-3")
    with visit(browser, url, "#/box/depot-1") as opened:
        page = opened.page
        page.get_by_role("button", name="Pin … depot-1/cam-3").click()
        page.get_by_role("dialog").get_by_role("button", name="Pin it there").click()
        page.get_by_role("button", name="Unpin depot-1/cam-3").wait_for()
        assert services.state().leases[key].pinned
        page.get_by_role("button", name="Unpin depot-1/cam-3").click()
        page.get_by_role("button", name="Pin … depot-1/cam-3").wait_for()
        assert not services.state().leases[key].pinned
        opened.is_sound()


def test_a_customer_is_added_changed_and_judged_by_its_new_goal(browser: Any, services: FakeServices, url: str) -> None:
    with visit(browser, url, "#/customers") as opened:
        page = opened.page
        page.get_by_text("A new customer").click()
        page.get_by_label("Id").fill("zoo")
        page.get_by_role("spinbutton", name="Goal").fill("0.6")
        page.get_by_role("button", name="Add the customer").click()
        expect(page.locator("h2#h-how")).to_have_text("zoo")
        assert services.state().customers["zoo"].goal == 0.6
        page.evaluate("() => { location.hash = '#/customers/port'; }")
        expect(page.locator("section:has(h2#h-how)")).to_contain_text("below its goal")
        page.get_by_role("spinbutton", name="Goal").fill("0.5")
        page.get_by_role("button", name="Save the change").click()
        expect(page.locator("section:has(h2#h-how)")).to_contain_text("goal met")
        page.get_by_role("spinbutton", name="Goal").fill("7")
        page.get_by_role("button", name="Save the change").click()
        expect(page.locator(".error:visible")).to_have_text("the goal must be above 0 and at most 1")
        assert services.state().customers["port"].goal == 0.5
        opened.is_sound()


def test_a_rollout_is_stopped_continued_and_taken_back(browser: Any, services: FakeServices, url: str) -> None:
    with visit(browser, url, "#/models") as opened:
        page = opened.page
        page.get_by_role("button", name="Stop night-1").click()
        expect(page.locator("article .badge")).to_have_text("stopped")
        page.get_by_role("button", name="Go on with night-1").click()
        expect(page.get_by_role("dialog")).to_contain_text("It stopped because")
        page.get_by_role("dialog").get_by_role("button", name="Go on").click()
        page.get_by_role("button", name="Stop night-1").wait_for()
        page.get_by_role("button", name="Roll back night-1").click()
        page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
        expect(page.locator("article")).to_contain_text("being taken back")
        services.happen_all_withdrawn("night-1")
        services.advance(1)
        expect(page.locator("article")).to_contain_text("taken back")
        page.get_by_role("button", name="Forget night-1").click()
        expect(page.locator("section:has(h2#h-rollouts)")).to_contain_text("None yet.")
        opened.is_sound()


def test_a_rollout_begins_with_its_bundle(browser: Any, services: FakeServices, url: str, tmp_path: Path) -> None:
    bundle = tmp_path / "night.driftbox"
    bundle.write_bytes(b"signed")
    with visit(browser, url, "#/models", before=None) as opened:
        page = opened.page
        page.get_by_role("button", name="Roll back night-1").click()
        page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
        expect(page.locator("article")).to_contain_text("being taken back")
        services.happen_all_withdrawn("night-1")
        services.advance(1)
        page.get_by_text("A new rollout").click()
        page.get_by_label("Id").fill("day-2")
        page.get_by_label("Bundle").set_input_files(bundle)
        page.get_by_role("button", name="Begin", exact=True).click()
        expect(page.locator("section:has(h2#h-rollouts)")).to_contain_text("day-2")
        assert services.actions.bundles == {"day-2": b"signed"}
        opened.is_sound()


def test_a_box_is_invited(browser: Any, services: FakeServices, url: str) -> None:
    with visit(browser, url, "#/settings/invite") as opened:
        page = opened.page
        page.get_by_role("button", name="Make a join code").click()
        expect(page.locator("#join-command")).to_contain_text("driftbox fleet join https://")
        opened.is_accessible()
        page.get_by_role("button", name="Done").click()
        assert [row.action for row in services.history.told] == ["invite"]
        opened.is_sound()


def test_a_viewer_sees_everything_and_no_button_that_would_be_refused(browser: Any, url: str) -> None:
    with visit(browser, url, "#/box/depot-1", before=as_role("viewer")) as opened:
        page = opened.page
        page.wait_for_selector(READY["box"])
        expect(page.locator("#page button")).to_have_count(0)
        page.evaluate("() => { location.hash = '#/models'; }")
        page.wait_for_selector(".way")
        expect(page.locator("#page button")).to_have_count(0)
        page.evaluate("() => { location.hash = '#/settings'; }")
        expect(page.locator(".tabs")).not_to_contain_text("Invite")
        opened.is_sound()


def test_nothing_is_shown_before_somebody_has_signed_in(browser: Any, services: FakeServices, tmp_path: Path) -> None:
    house = House(tmp_path)
    hosts = replace(HOSTS, names=frozenset({"127.0.0.1", "localhost"}))
    with (
        served(services, accounts=house.accounts, hosts=hosts) as url,
        Visit(browser, url, "#/customers", ready="text=Password") as opened,
    ):
        page = opened.page
        assert "Elbe" not in page.content()
        page.get_by_label("Name").fill("admin")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#page")).to_contain_text("City of Elbe")
        page.evaluate("() => { location.hash = '#/settings/accounts'; }")
        expect(page.locator("#page")).to_contain_text("operator")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Password").wait_for()
        assert "Elbe" not in page.locator("#page").inner_text()
        opened.complaints[:] = [
            said for said in opened.complaints if "401" not in said
        ]  # what was under way when one signs out
        opened.is_sound()
    house.close()
