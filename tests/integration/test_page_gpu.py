"""The GPU page in a real browser: shares over time, memory and its lanes, devices, closed windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.learning_pages import Served, served
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def box() -> Iterator[Served]:
    with served() as running:
        yield running


def test_shares_memory_and_devices_are_told_with_units(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/gpu", ready="figure") as visit:
        page = visit.page
        for told in ("promised 35 % · received 34 %", "83 °C", "throttled: power limit", "5 of 30 points were throttled"):
            expect(page.locator("#page")).to_contain_text(told, use_inner_text=True)
        expect(page.get_by_role("table", name="Memory lanes").locator("tbody tr")).to_have_count(2)
        expect(page.get_by_role("table", name="Memory of each job")).to_contain_text("12 MiB", use_inner_text=True)
        expect(page.locator("figure", has_text="retraining, all cameras")).to_have_count(1)
        page.get_by_role("link", name="gate", exact=True).click()
        training = page.locator("figure", has_text="gate/train (retraining)")
        training.wait_for()
        expect(training.locator("svg.plot path.line")).to_have_count(2)
        expect(training.locator("svg.plot")).to_have_attribute("aria-label", re.compile("20 points"))
        training.get_by_text("as a table").click()
        expect(training.locator("tbody tr")).to_have_count(60)
        page.get_by_text("window 2, closed").click()
        expect(page.get_by_role("table", name="Shares of window 2")).to_be_visible()
        visit.is_accessible()
        visit.save("gpu.png")
        visit.is_sound()


def test_it_fits_a_phone(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/gpu", ready="figure", width_px=360) as visit:
        visit.fits()
        visit.save("gpu-phone.png")
