"""The wizard and the Settings page on a real box with a real RTSP camera that wants a password: tried, added with a mask drawn on its
picture, changed, removed. The password is seen nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streams.rendered.serve import CameraScript
from streams.rtsp_process import RtspServerProcess
from tests.support.running_box import RunningBox, eventually
from tests.support.visits import Visit, expect

pytestmark = [pytest.mark.browser, pytest.mark.rtsp, pytest.mark.slow, pytest.mark.timeout(600)]

PASSWORD = "p/w@1:c4n4ry"
CONFIG = """
web: {login: false}
window: {seconds: 600, first_seconds: 300}
"""


@pytest.fixture
def camera() -> Iterator[RtspServerProcess]:
    server = RtspServerProcess([CameraScript(id="cam", kind="yard", seed=3).mount()], user="viewer", password=PASSWORD)
    server.start()
    yield server
    server.stop()


def address_of(camera: RtspServerProcess) -> str:
    return f"rtsp://127.0.0.1:{camera.port}/cam"


def test_a_real_camera(browser: Any, camera: RtspServerProcess, tmp_path: Path, boxes: list[RunningBox]) -> None:
    box = RunningBox(tmp_path, CONFIG)
    boxes.append(box)
    eventually(box.status, "the box answers")
    with Visit(browser, f"http://127.0.0.1:{box.port}/", "#/setup", ready="text=Step 1 of 5") as visit:
        page = visit.page
        page.get_by_label("Address", exact=True).fill(address_of(camera))
        page.get_by_role("button", name="Try it").click()
        page.wait_for_selector("text=The camera refused the user or the password.")
        page.get_by_label("User", exact=True).fill("viewer")
        page.get_by_label("Password", exact=True).fill(PASSWORD)
        page.get_by_role("button", name="Try it").click()
        page.wait_for_selector("text=It works: 320×180 px")
        next_step(page, 2)
        page.get_by_label("Name", exact=True).fill("Hof <1>")
        next_step(page, 3)
        page.wait_for_function("() => document.querySelector('.place-editor img')?.naturalWidth === 320")
        page.get_by_role("button", name="Add a privacy mask").click()
        next_step(page, 4)
        next_step(page, 5)
        page.get_by_role("button", name="Add this camera").click()
        page.wait_for_selector('[data-camera="hof-1"] .state.live')
        expect(page.locator(".tile h2")).to_have_text("Hof <1>", use_inner_text=True)
        added = next(c for c in (box.get("/api/v1/cameras") or pytest.fail("gone")).json()["cameras"] if c["id"] == "hof-1")
        assert added["entry"]["masks"] == [[[0.4, 0.4], [0.6, 0.4], [0.6, 0.6], [0.4, 0.6]]]
        change_it(page)
        visit.is_sound()
        remove_it(page)
    assert box.stop() == 0
    assert PASSWORD not in box.output.read_text()


def next_step(page: Any, step: int) -> None:
    page.get_by_role("button", name="Next").click()
    page.wait_for_selector(f"text=Step {step} of 5")


def change_it(page: Any) -> None:
    """Its address with *** in it goes back as it is, and the camera stays live; nothing of the password is on the page."""
    page.evaluate("location.hash = '#/settings/cameras/hof-1'")
    page.get_by_label("Analysed frames per second").fill("2")
    assert "***@" in page.get_by_role("textbox", name="Address", exact=True).input_value()
    assert "c4n4ry" not in page.content()
    page.get_by_role("button", name="Save the changes").click()
    page.wait_for_selector("text=was changed")
    page.get_by_role("switch", name="Let hof-1 learn").uncheck()
    page.wait_for_selector("text=Let hof-1 learn: off")
    page.evaluate("location.hash = '#/live'")
    page.wait_for_selector('[data-camera="hof-1"] .state.live')


def remove_it(page: Any) -> None:
    page.evaluate("location.hash = '#/settings/cameras'")
    page.get_by_role("button", name="Remove hof-1").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.wait_for_selector("text=There is no camera yet.")
