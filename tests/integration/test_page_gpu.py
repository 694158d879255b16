"""The GPU page in a real browser: shares over time, memory and its lanes, devices, closed windows."""

from __future__ import annotations

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
        told = page.locator("#page").inner_text()
        assert "promised 35 % · received 34 %" in told
        assert "83 °C" in told
        assert "throttled: power limit" in told
        assert "5 of 30 points were throttled" in told
        expect(page.get_by_role("table", name="Memory lanes").locator("tbody tr")).to_have_count(2)
        expect(page.get_by_role("table", name="Memory of each job")).to_contain_text("12 MiB", use_inner_text=True)
        expect(page.locator("figure", has_text="retraining, all cameras")).to_have_count(1)
        page.get_by_role("link", name="gate", exact=True).click()
        training = page.locator("figure", has_text="gate/train (retraining)")
        training.wait_for()
        expect(training.locator("svg.plot path.line")).to_have_count(2)
        assert "20 points" in training.locator("svg.plot").get_attribute("aria-label")
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
