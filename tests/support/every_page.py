"""A box with all its parts, most of them fakes, and every one of its pages: for what must hold of all of them.

Shared by `tests/integration/test_every_page.py` and `driftbox bench web_checks`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.load import load_config
from edge.labels_fake import FakeLabels
from edge.settings import BoxSettings
from edge.settings_book import SettingsBook
from edge.web.fake import FakeSource
from edge.web.fake_health import FakeHealth
from edge.web.fake_learning import FakeGpu, FakeLearning, FakeModels, FakeQueries, FakeWhy
from edge.web.serve import WebServer
from edge.web.services import Services
from tests.support.accounts import PASSWORD, House
from tests.support.camera_routes import CameraRoutes, camera
from tests.support.event_library import filled, id_of
from tests.support.visits import Visit

EXAMPLE = Path(__file__).parents[2] / "configs" / "example.yaml"
#: Address -> what is there when the page is.
PAGES = {
    "live": ".tile .state.live", "live/gate": ".one-camera dl", "overview": "#shares .bar-row", "events": ".event-grid li",
    f"events/{id_of(1)}": ".one-event dl", "labels": ".review img", "learning": "table", "learning/gate": ".chart-figure",
    "models/gate": "svg.lineage", "queries/gate": "svg.dag", "gpu": ".chart-figure", "gpu/gate": ".chart-figure", "health": "table",
    "settings/cameras": "table", "settings/cameras/gate": ".place-editor", "settings/own": "table", "settings/accounts": "table",
    "settings/audit": "table", "settings/box": "form", "setup": "fieldset",
}  # fmt: skip


@contextmanager
def furnished_box(folder: Path, *, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Its address; it has an account of each role."""
    (shelf := folder / "shelf").mkdir()
    house, health, config = House(folder), FakeHealth(), load_config(EXAMPLE)
    settings = BoxSettings(config, folder, file=EXAMPLE, book=SettingsBook(config, house.store, utc_s=lambda: 0.0))
    services = Services(
        accounts=house.accounts, settings=settings, labels=FakeLabels(4), learning=FakeLearning(), why=FakeWhy(), gpu=FakeGpu(),
        models=FakeModels(), queries=FakeQueries(), health=health, metrics=health, events=filled(shelf).library,
    )  # fmt: skip
    with WebServer(FakeSource(), host="127.0.0.1", port=0, services=services, tls=tls) as server:
        yield server.url
    house.close()


def signed_in(browser: Any, url: str, **more: Any) -> Visit:
    places = {"zones": {"door": [(0.1, 0.1), (0.9, 0.1), (0.9, 0.9)]}, "masks": [[(0.0, 0.0), (0.1, 0.0), (0.1, 0.1)]]}
    routes = CameraRoutes(camera("gate", **places))
    opened = Visit(browser, url, "#/live", ready="form", before=routes.install, **more)
    opened.page.get_by_label("Name", exact=True).fill("admin")
    opened.page.get_by_label("Password", exact=True).fill(PASSWORD)
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_selector(".tile")
    return opened


def go(page: Any, address: str) -> None:
    page.evaluate("address => { location.hash = '#/' + address; }", address)
    page.wait_for_selector(PAGES[address])
