"""The tour of docs/tour.md, in a real browser on a real box: claim, a camera, a zone on its picture, an event at a subscriber, a label
that is reviewed, a model rolled back. Nothing is done outside the browser; its pictures are the page's:

DRIFTBOX_SCREENSHOTS=docs/img/tour pytest -n 0 tests/integration/test_tour.py
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mosquitto import Broker, Listener, require_mosquitto
from tests.support.running_box import RunningBox, eventually
from tests.support.visits import Visit

pytestmark = [pytest.mark.browser, pytest.mark.mqtt, pytest.mark.slow, pytest.mark.timeout(1500)]

PASSWORD = "seven green umbrellas"
#: What an installer puts down, with windows short enough for a tour, and a broker. No camera stands in it, and nobody edits it.
CONFIG = """
box: {{id: tour, site: home}}
gpus: {{capacity_pct: 150}}
window: {{seconds: 100, first_seconds: 25, label_frames: 12, gate_frames: 6, sample_fps: 1.0, prep_pct: 80, prep_max_frac: 0.5}}
scheduler: {{policy: "uniform(quick,60)", min_gain: 0.0, min_quality: 0.0, drift: {{enabled: false}}}}
models:
  serving: trained
  retrain: [{{name: quick, epochs: 6, batch: 4, lr: 0.002, replay_frac: 0.2}}]
telemetry: {{mqtt: {{enabled: true, port: {port}}}}}
"""
PATIENCE_MS = 900_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    require_mosquitto()
    running = Broker(tmp_path)
    running.start()
    yield running
    running.stop()


class Tour(Visit):
    """A visit that keeps its pictures by number."""

    def picture(self, name: str) -> None:
        folder = os.environ.get("DRIFTBOX_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(folder) / f"{name}.jpg", type="jpeg", quality=80, animations="disabled")

    def go(self, name: str) -> None:
        self.page.locator("#nav a", has_text=re.compile(f"^{name}$")).click()


def test_from_a_new_box_to_a_rolled_back_model(browser: Any, broker: Broker, tmp_path: Path, boxes: list[RunningBox]) -> None:
    started_s = time.monotonic()
    box = RunningBox(tmp_path, CONFIG.format(port=broker.port))
    boxes.append(box)
    code = eventually(lambda: re.search(r"claim code: (\S+)", box.output.read_text()), "a claim code")[1]
    eventually(lambda: box.get("/healthz"), "the page is served")
    listener = Listener(broker.port)
    with Tour(browser, f"http://127.0.0.1:{box.port}/", ready="text=Claim this box", width_px=1100) as tour:
        tour.page.set_default_timeout(PATIENCE_MS)
        claim(tour, code)
        add_a_camera(tour)
        see_it_live(tour, started_s)
        draw_a_zone(tour)
        an_event_comes(listener)
        review_a_label(tour)
        roll_a_model_back(tour)
        eventually(lambda: listener.of("camera/gate/model"), "the subscriber is told of models")
        tour.is_accessible()
        tour.is_sound()
    listener.close()
    assert box.stop() == 0


def claim(tour: Tour, code: str) -> None:
    page = tour.page
    page.get_by_label("Claim code").fill(code)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password again").fill(PASSWORD)
    tour.picture("1-claim")
    page.get_by_role("button", name="Claim the box").click()
    page.wait_for_selector("text=Step 1 of 5")


def add_a_camera(tour: Tour) -> None:
    page = tour.page
    page.get_by_label("Address", exact=True).fill("rendered:street?seed=101&fps=5&at=0:night")
    tour.picture("2-find")
    page.get_by_role("button", name="Next").click()
    page.get_by_label("Name", exact=True).fill("Gate")
    page.get_by_label("Analysed frames per second").fill("2")
    for step in (3, 4, 5):  # the zone comes afterwards, on the live picture
        page.get_by_role("button", name="Next").click()
        page.wait_for_selector(f"text=Step {step} of 5")
    tour.picture("3-add")
    page.get_by_role("button", name="Add this camera").click()


def see_it_live(tour: Tour, started_s: float) -> None:
    page = tour.page
    page.wait_for_selector("[data-camera=gate] .state.live")
    page.wait_for_function("() => document.querySelector('[data-camera=gate] img')?.naturalWidth > 0")
    print(
        f"\nfirst live picture {time.monotonic() - started_s:.0f} s after the box was started (to reach: 180 s with its installation)"
    )
    page.get_by_role("link", name="Gate").click()


def draw_a_zone(tour: Tour) -> None:
    """On the camera's picture, with the mouse; it is in force when the page comes back."""
    page = tour.page
    page.get_by_role("link", name="Change this camera").click()
    page.wait_for_function("() => document.querySelector('.place-editor img')?.naturalWidth > 0")
    page.get_by_role("button", name="Add a zone").click()
    page.keyboard.type("pavement")
    stage = page.locator(".place-editor svg.places")
    stage.evaluate("e => e.scrollIntoView({block: 'center'})")
    for corner, place in enumerate([(0.05, 0.45), (0.95, 0.45), (0.95, 0.95), (0.05, 0.95)]):
        box = stage.bounding_box()
        at = page.locator(f".place-editor circle[data-corner='{corner}']").bounding_box()
        page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + place[0] * box["width"], box["y"] + place[1] * box["height"], steps=3)
        page.mouse.up()
    tour.picture("4-zone")
    page.get_by_role("button", name="Save the changes").click()
    page.wait_for_selector("#announcement:has-text('was changed')")
    tour.go("Live")
    page.get_by_role("link", name="Gate").click()
    page.wait_for_selector(".one-camera .places .zone")
    page.wait_for_function("() => document.querySelector('.one-camera img')?.naturalWidth > 0")
    page.wait_for_selector("text=In pavement")
    tour.picture("5-live")


def an_event_comes(listener: Listener) -> None:
    """Of a tracked object in the zone that was drawn, at a subscriber that knows nothing of the browser."""

    def told() -> list[Any]:
        return [body for body in listener.json_of("camera/gate/events") if body["kind"] in ("new", "update", "end")]

    eventually(told, "an object's event")
    eventually(lambda: [body for body in told() if "pavement" in body["zones"]], "an event in the zone")


def review_a_label(tour: Tour) -> None:
    page = tour.page
    eventually_shown(page, "Labels", ".review img", tour)
    page.wait_for_function("() => document.querySelector('.review img')?.naturalWidth > 0")
    tour.picture("6-label")
    with page.expect_response(lambda answer: answer.request.method == "PUT" and "/api/v1/labels/" in answer.url) as saved:
        page.get_by_role("button", name="Accept and go on").click()
    assert saved.value.status == 200


def eventually_shown(page: Any, name: str, selector: str, tour: Tour) -> None:
    """Looks at a page again and again, as a person would, until what is waited for is there."""

    def there() -> bool:
        tour.go("Live")
        tour.go(name)
        page.wait_for_timeout(3000)
        return bool(page.locator(selector).count())

    eventually(there, f"{name} shows {selector}", within_s=PATIENCE_MS / 1000)


def roll_a_model_back(tour: Tour) -> None:
    page = tour.page
    tour.go("Models")
    page.wait_for_selector("tr:has-text('serving'):not(:has-text('the first'))")
    tour.picture("7-models")
    page.get_by_role("button", name=re.compile("^Roll gate back")).click()
    page.wait_for_selector("#announcement:has-text('serves gate now')")
    tour.picture("8-rolled-back")
