"""Claiming a box, signing in, and the Settings page in a real browser, with real accounts behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_config
from edge.settings import BoxSettings
from edge.settings_book import SettingsBook
from edge.web.fake import FakeSource
from edge.web.serve import WebServer
from edge.web.services import Services
from edge.web.who import Role
from tests.support.accounts import PASSWORD, House
from tests.support.camera_routes import CameraRoutes, camera
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[2] / "configs" / "example.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def served(house: House, folder: Path) -> WebServer:
    config = load_config(EXAMPLE)
    book = SettingsBook(config, house.store, utc_s=lambda: 0.0)
    settings = BoxSettings(config, folder, file=EXAMPLE, book=book)
    return WebServer(FakeSource(), host="127.0.0.1", port=0, services=Services(accounts=house.accounts, settings=settings))


@pytest.fixture
def house(folder: Path) -> Iterator[House]:
    house = House(folder)
    yield house
    house.close()


@pytest.fixture
def server(house: House, folder: Path) -> Iterator[WebServer]:
    with served(house, folder) as running:
        yield running


def sign_in(page: Any, name: str = "admin", password: str = PASSWORD) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Password", exact=True).fill(password)
    page.keyboard.press("Enter")


def signed_in(browser: Any, server: WebServer, hash: str, *, role: Role = Role.ADMIN, **more: Any) -> Visit:
    visit = Visit(browser, server.url, hash, ready="form", **more)
    sign_in(visit.page, role.word)
    visit.page.wait_for_selector("#nav:not([hidden])")
    return visit


# --- claim and sign-in --------------------------------------------------------------------------------------------------


def test_a_new_box_is_claimed_and_leads_to_its_first_camera(browser: Any, folder: Path) -> None:
    house = House(folder, claimed=False)
    code = house.accounts.new_code()
    with served(house, folder) as server, Visit(browser, server.url, ready="text=Claim this box") as visit:
        page = visit.page
        visit.is_accessible()
        visit.save("claim.png")
        expect(page.get_by_label("Claim code")).to_be_focused()
        page.get_by_label("Claim code").fill("WRONG-CODE-0000")
        page.get_by_label("Password", exact=True).fill(PASSWORD)
        page.get_by_label("Password again").fill("something else")
        page.get_by_role("button", name="Claim the box").click()
        page.wait_for_selector("text=the two passwords are not the same")
        page.get_by_label("Password again").fill(PASSWORD)
        page.get_by_role("button", name="Claim the box").click()
        page.wait_for_selector("text=this is not the box's claim code")
        page.get_by_label("Claim code").fill(code.lower())
        page.get_by_role("button", name="Claim the box").click()
        page.wait_for_selector("text=Step 1 of 5")
        expect(page.locator("#person")).to_have_text(re.compile(r"^admin \(admin\)"), use_inner_text=True)
        assert page.evaluate("window.violations") == []
        assert visit.foreign == []
    house.close()


def test_nothing_is_seen_without_signing_in_and_the_address_waits(browser: Any, server: WebServer) -> None:
    with Visit(browser, server.url, "#/overview", ready="form") as visit:
        page = visit.page
        expect(page.locator("#page-title")).to_have_text("Sign in", use_inner_text=True)
        expect(page.locator("#nav")).to_be_hidden()
        assert "demo" not in page.locator("body").inner_text(), "not even the box's name"
        visit.is_accessible()
        visit.fits()
        sign_in(page, password="wrong wrong wrong")
        page.wait_for_selector(".error:not([hidden])")
        assert PASSWORD not in page.content()
        sign_in(page)
        page.wait_for_selector("#window-line")
        expect(page.locator("#page-title")).to_have_text("Overview", use_inner_text=True)


def test_a_session_that_ended_leads_to_signing_in_and_back(browser: Any, server: WebServer, house: House) -> None:
    with signed_in(browser, server, "#/overview", role=Role.OPERATOR) as visit:
        page = visit.page
        page.wait_for_selector("#window-line")
        house.accounts.set_password("operator", "another " + PASSWORD, by="test", address="")
        page.get_by_role("link", name="Settings").click()
        page.wait_for_selector("text=Password")
        expect(page.locator("#nav")).to_be_hidden()
        sign_in(page, "operator", "another " + PASSWORD)
        page.wait_for_selector("text=Tokens and sessions")


def test_signing_out(browser: Any, server: WebServer) -> None:
    with signed_in(browser, server, "#/live") as visit:
        page = visit.page
        page.wait_for_selector(".tile")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_selector("form")
        page.reload()
        page.wait_for_selector("form")
        expect(page.locator(".tile")).to_have_count(0)


# --- settings -----------------------------------------------------------------------------------------------------------


def test_accounts_are_added_changed_and_removed(browser: Any, server: WebServer, house: House) -> None:
    with signed_in(browser, server, "#/settings/accounts") as visit:
        page = visit.page
        page.wait_for_selector("text=Accounts of this box")
        visit.is_accessible()
        visit.save("settings-accounts.png")
        page.get_by_label("Name", exact=True).fill("kim")
        page.get_by_label("Password", exact=True).fill(PASSWORD)
        page.get_by_label("Role", exact=True).select_option("operator")
        page.get_by_role("button", name="Add the account").click()
        page.get_by_label("Role of kim").wait_for()
        assert {user.name: user.role for user in house.accounts.users()}["kim"] is Role.OPERATOR
        page.get_by_label("Role of kim").select_option("viewer")
        page.wait_for_selector("text=kim is viewer now")
        assert {user.name: user.role for user in house.accounts.users()}["kim"] is Role.VIEWER
        page.get_by_role("row", name="kim").get_by_role("button", name="Remove").click()
        visit.is_accessible()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        page.wait_for_selector("text=kim was removed")
        assert "kim" not in {user.name for user in house.accounts.users()}
        assert page.evaluate("window.violations") == []


def test_a_token_is_shown_once_and_revoked(browser: Any, server: WebServer, house: House) -> None:
    with signed_in(browser, server, "#/settings/own") as visit:
        page = visit.page
        page.wait_for_selector("text=There are no tokens.")
        page.wait_for_selector("text=(this one)")
        page.get_by_text("Make a token").click()
        page.get_by_label("What it is for").fill("home")
        page.get_by_label("Held to these parts").fill("status, metrics")
        page.get_by_label("Only these cameras").fill("gate yard")
        page.get_by_role("button", name="Make the token").click()
        expect(page.locator("#new-token")).to_have_text(re.compile("^driftbox_"), use_inner_text=True)
        shown = page.locator("#new-token").inner_text()
        visit.is_accessible()
        page.get_by_role("button", name="Done").click()
        page.wait_for_selector("text=metrics, status, camera gate, camera yard")  # it stands behind the dialog already
        expect(page.locator("#new-token")).to_have_count(0)
        assert shown not in page.content()
        visit.is_accessible()
        page.get_by_role("button", name="Revoke the token home").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        page.wait_for_selector("text=There are no tokens.")
        assert house.accounts.tokens(None) == []
        visit.is_sound()


def test_who_did_what_is_in_the_audit_log(browser: Any, server: WebServer) -> None:
    with signed_in(browser, server, "#/settings/audit") as visit:
        visit.page.wait_for_selector("text=sign-in")
        assert PASSWORD not in visit.page.content()
        visit.is_accessible()
        visit.is_sound()


def test_the_file_is_shown_with_its_keys(browser: Any, server: WebServer) -> None:
    with signed_in(browser, server, "#/settings/box") as visit:
        page = visit.page
        page.wait_for_selector("text=Configuration file")
        page.locator("summary", has_text="telemetry").click()
        expect(page.locator("details[open]")).to_contain_text("env:MQTT_PASSWORD", use_inner_text=True)
        page.locator("summary", has_text="window").first.click()
        expect(page.locator("#page")).to_contain_text("200.0 s", use_inner_text=True)
        visit.is_accessible()
        visit.save("settings-box.png")
        visit.is_sound()


def test_how_long_clips_are_kept_is_changed_here_and_counts_at_once(browser: Any, server: WebServer, house: House) -> None:
    kept = SettingsBook(load_config(EXAMPLE), house.store, utc_s=lambda: 0.0)
    with signed_in(browser, server, "#/settings/box") as visit:
        page = visit.page
        days = page.get_by_label("Keep clips, days", exact=True)
        days.fill("0")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("alert").filter(has_text="clip_days")).to_be_visible()
        assert all("422" in text for text in visit.complaints)  # the browser itself tells of the refusal
        visit.complaints.clear()
        days.fill("3")
        page.get_by_label("Other days by class", exact=True).fill("car 2.5, person 30")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("button", name="As the file says")).to_be_enabled()
        assert (kept.media().clip_days, kept.media().class_days) == (3.0, {"person": 30.0, "car": 2.5})
        expect(page.get_by_label("Other days by class", exact=True)).to_have_value("car 2.5, person 30")
        visit.is_accessible()
        visit.save("settings-media.png")
        page.get_by_role("button", name="As the file says").click()
        expect(page.get_by_role("button", name="As the file says")).to_be_disabled()
        assert kept.changed() == frozenset()
        visit.is_sound()


def test_of_two_who_change_the_same_bounds_the_second_is_told(browser: Any, server: WebServer, house: House) -> None:
    other = SettingsBook(load_config(EXAMPLE), house.store, utc_s=lambda: 0.0)
    with signed_in(browser, server, "#/settings/box") as visit:
        page = visit.page
        days = page.get_by_label("Keep clips, days", exact=True)
        days.fill("3")
        other.change_media({"event_days": 44.0}, by="kim")
        page.get_by_role("button", name="Save", exact=True).click()
        page.wait_for_selector("#announcement:has-text('changed by somebody else meanwhile')")
        expect(page.get_by_label("Keep events, days", exact=True)).to_have_value("44.0")
        assert other.changed() == {"storage.media.event_days"}
        assert all("412" in text for text in visit.complaints)
        visit.complaints.clear()
        days.fill("3")
        page.get_by_role("button", name="Save", exact=True).click()
        page.wait_for_selector("#announcement:has-text('in force')")
        assert (other.media().clip_days, other.media().event_days) == (3.0, 44.0)
        visit.is_sound()


def test_a_viewer_sees_only_what_is_theirs(browser: Any, server: WebServer) -> None:
    with signed_in(browser, server, "#/settings", role=Role.VIEWER) as visit:
        visit.page.wait_for_selector("text=API tokens")
        expect(visit.page.locator(".tabs a")).to_have_text(["Tokens and sessions"], use_inner_text=True)
        visit.page.evaluate("location.hash = '#/setup'")
        visit.page.wait_for_selector("text=needs the role operator")


def test_cameras_are_changed_switched_and_removed(browser: Any, server: WebServer) -> None:
    zone = {"door": [[0.1, 0.1], [0.5, 0.1], [0.5, 0.5]]}
    routes = CameraRoutes(camera("gate", name="<b>Gate</b>", zones=zone), camera("yard"))
    with signed_in(browser, server, "#/settings/cameras", before=routes.install) as visit:
        page = visit.page
        page.get_by_role("cell", name="<b>Gate</b> gate").wait_for()
        visit.is_accessible()
        visit.save("settings-cameras.png")
        page.get_by_role("switch", name="Let yard learn").uncheck()
        page.wait_for_selector("text=Let yard learn: off")
        assert routes.commands == [("camera/learning", {"camera": "yard", "on": False})]
        page.get_by_role("link", name="Change gate").click()
        page.get_by_label("Analysed frames per second").fill("2")
        expect(page.get_by_label("Id", exact=True)).to_be_disabled()
        page.get_by_label("corner 1, left").fill("0")
        visit.is_accessible()
        page.get_by_role("button", name="Save the changes").click()
        page.wait_for_selector("text=was changed")
        assert routes.changed == [("gate", {"fps": 2, "zones": {"door": [[0, 0.1], [0.5, 0.1], [0.5, 0.5]]}})]
        page.get_by_role("button", name="Remove yard").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        page.wait_for_selector("text=yard was removed")
        assert routes.removed == ["yard"]
        visit.is_sound()


def test_all_of_it_fits_a_phone(browser: Any, server: WebServer) -> None:
    routes = CameraRoutes(camera("gate", zones={"door": [(0.1, 0.1), (0.5, 0.1), (0.5, 0.5)]}))
    with signed_in(browser, server, "#/settings/own", before=routes.install, width_px=360) as visit:
        for hash in ("own", "cameras/gate", "accounts", "box", "audit", "cameras"):
            visit.page.evaluate("hash => { location.hash = hash; }", f"#/settings/{hash}")
            visit.page.wait_for_selector("#page h2")
            visit.page.wait_for_function("() => !document.body.textContent.includes('loading …')")
            visit.fits()
